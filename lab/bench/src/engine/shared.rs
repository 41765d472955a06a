//! Far memory shared by the programs of a cell: donors, one `canvas agent`, and the link between them, which
//! is sampled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::child::Child;
use super::donors::{DONORS, Donors, Work};
use super::error::BenchError;
use crate::host::net::Network;
use crate::host::undo::Undo;
use crate::processes;
use crate::record::{AgentWork, Sample};
use crate::variant::{FarBelow, Tenancy};
use crate::workload::Argv;

/// Timeout of the agent's start, and of its end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Prefix of the names of an agent's serving threads.
const SERVING: &str = "serve";
/// Interval at which agent and link are sampled. Each sample starts a process.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An agent and its donors, which end when this is dropped.
pub struct Shared {
    agent: Child,
    socket: PathBuf,
    donors: Donors,
}

impl Shared {
    /// Starts donors that lend `far_bytes` each, and the agent with its flags in `below`. Their files are in
    /// `dir`, disk copies in `far_dir`.
    pub fn start(
        canvas: &Path,
        below: &FarBelow,
        far_bytes: u64,
        network: Option<&Network>,
        dir: &Path,
        far_dir: &Path,
        undo: &Arc<Undo>,
    ) -> Result<Shared, BenchError> {
        let donors = Donors::start(canvas, DONORS, far_bytes, network, dir, undo)?;
        let socket = dir.join("agent.sock");
        let own = [
            canvas.display().to_string(),
            "agent".to_owned(),
            format!("--socket={}", socket.display()),
            format!("--to=disk:{}", far_dir.display()),
        ];
        let command = Argv {
            argv: [own.as_slice(), &donors.servers(), &below.agent_flags].concat(),
            env: Vec::new(),
        };
        let mut agent = Child::start(&command, dir, "agent", undo)?;
        let until = Instant::now() + PATIENCE;
        while !agent.log().contains("listening at ") {
            let ended = agent.wait(Duration::from_millis(10)).is_some();
            if ended || Instant::now() > until {
                return Err(BenchError::NoAgent(agent.complaint()));
            }
        }
        Ok(Shared {
            agent,
            socket,
            donors,
        })
    }

    /// Flags of `canvas run` for tenant number `number` with `far_bytes` of far memory and its own
    /// `tenant_flags`. With [`Tenancy::One`], all runs are the same tenant.
    pub fn flags(
        &self,
        below: &FarBelow,
        far_bytes: u64,
        number: u32,
        tenant_flags: &[String],
    ) -> Vec<String> {
        let mut flags = vec![
            format!("--far={far_bytes}"),
            format!("--to=agent:{}", self.socket.display()),
            below.copies_flag(),
        ];
        if below.tenancy == Tenancy::One {
            flags.push("--tenant=all".to_owned());
        } else {
            flags.push(format!("--tenant=run-{number}"));
            flags.extend_from_slice(tenant_flags);
        }
        flags.extend(below.flags.iter().cloned());
        flags
    }

    /// Pid of the agent.
    pub fn agent(&self) -> u32 {
        self.agent.pid()
    }

    /// Ends agent and donors; returns the agent's processor time and the donors' resources.
    pub fn end(mut self) -> (f64, Work) {
        self.agent.terminate();
        if self.agent.wait(PATIENCE).is_none() {
            self.agent.end();
        }
        let ended = self.agent.wait(Duration::ZERO);
        let cpu_s = ended.map_or(0.0, |e| e.user_s + e.system_s);
        (cpu_s, self.donors.end())
    }
}

/// Flags that `canvas run` must have for this tenancy and `tenant_flags`.
pub fn needed_flags(tenancy: Tenancy, tenant_flags: &[String]) -> Vec<String> {
    match tenancy {
        Tenancy::Own => Vec::new(),
        // Runs can join a tenant only in versions that have weights.
        Tenancy::One => vec!["-o".to_owned(), "weight=1".to_owned()],
        Tenancy::Each => tenant_flags.to_vec(),
    }
}

/// Samples of a link towards this host: seconds since the run of the bench began, and total bytes.
pub type Carried = Vec<(f64, u64)>;

/// What is sampled while programs share an agent.
pub struct Watched<'a> {
    /// Pid of the agent.
    pub agent: u32,
    /// Its link to the donors, if it has one.
    pub network: Option<&'a Network>,
}

/// A sample of an agent's processor time.
pub struct AgentLook {
    /// Seconds since the run of the bench began.
    at_s: f64,
    /// Processor time of all threads, in seconds.
    cpu_s: f64,
    /// Processor time of each serving thread, in seconds.
    threads_s: BTreeMap<String, f64>,
}

/// Samples taken.
#[derive(Default)]
pub struct Seen {
    /// Samples of the link.
    pub carried: Carried,
    /// Samples of the agent.
    pub agent: Vec<AgentLook>,
}

/// Samples an agent and its link until `over`.
pub fn watch(watched: &Watched, began: Instant, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    loop {
        let was_over = over.load(Ordering::Relaxed);
        if let Some(bytes) = watched.network.and_then(Network::to_host_bytes) {
            seen.carried.push((began.elapsed().as_secs_f64(), bytes));
        }
        seen.agent.push(AgentLook {
            at_s: began.elapsed().as_secs_f64(),
            cpu_s: processes::cpu_s(&[watched.agent]),
            threads_s: processes::threads_cpu_s(watched.agent, SERVING),
        });
        if was_over {
            return seen;
        }
        let next = Instant::now() + LOOK_EVERY;
        while Instant::now() < next && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Work of the agent while all programs were measured, in whole sample intervals; `None` if they were not
/// measured together for at least two samples.
pub fn work_of(samples: &[Sample], looks: &[AgentLook]) -> Option<AgentWork> {
    let measured = samples.iter().filter_map(|s| {
        let (from_s, to_s) = s.measured_s?;
        Some((s.at_s + from_s, s.at_s + to_s))
    });
    let (from_s, to_s) = measured.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))?;
    let mut within = looks.iter().filter(|l| (from_s..=to_s).contains(&l.at_s));
    let (first, last) = (within.next()?, within.next_back()?);
    let span_s = last.at_s - first.at_s;
    let (mut reads, mut bytes) = (0.0, 0.0);
    for sample in samples {
        let mut before_s = sample.at_s;
        for tick in &sample.timeline {
            let at_s = sample.at_s + tick.at_s;
            // Overlap of the interval since the previous tick with the sampled time.
            let part_s = (at_s.min(last.at_s) - before_s.max(first.at_s)).max(0.0);
            let far = tick.far.unwrap_or_default();
            reads += far.reads_per_s * part_s;
            bytes += far.in_bytes_per_s * part_s;
            before_s = at_s;
        }
    }
    let of_before = |name: &String| first.threads_s.get(name).copied().unwrap_or_default();
    let busy = last.threads_s.iter();
    Some(AgentWork {
        cpu_s: last.cpu_s - first.cpu_s,
        busy: busy
            .map(|(name, used_s)| (used_s - of_before(name)) / span_s)
            .collect(),
        reads: reads as u64,
        in_bytes_per_s: bytes / span_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FarTick, Tick};

    #[test]
    fn an_agents_work_is_that_of_the_time_in_which_all_were_measured() {
        let sample = |at_s, measured_s| Sample {
            at_s,
            measured_s: Some(measured_s),
            timeline: (0..80)
                .map(|i| Tick {
                    at_s: f64::from(i) / 4.0,
                    far: Some(FarTick {
                        reads_per_s: 100.0,
                        in_bytes_per_s: 4096.0,
                        ..FarTick::default()
                    }),
                    ..Tick::default()
                })
                .collect(),
            ..Sample::default()
        };
        let look = |at_s: f64| AgentLook {
            at_s,
            cpu_s: at_s,
            threads_s: [("serve".to_owned(), at_s / 2.0)].into(),
        };
        let looks: Vec<AgentLook> = (0..20).map(|i| look(f64::from(i))).collect();
        // 4 to 9 and 5 to 10 overlap from 5 to 9.
        let both = [sample(1.0, (3.0, 8.0)), sample(2.0, (3.0, 8.0))];
        let work = work_of(&both, &looks).unwrap();
        assert_eq!((work.cpu_s, work.busy.as_slice()), (4.0, [0.5].as_slice()));
        assert_eq!((work.reads, work.in_bytes_per_s), (800, 8192.0));
        assert_eq!(work.read_ns(), Some(5e6));
        let apart = [sample(1.0, (3.0, 4.0)), sample(9.0, (3.0, 4.0))];
        assert_eq!(work_of(&apart, &looks), None);
    }

    #[test]
    fn only_what_a_tenancy_uses_is_needed() {
        let own = ["-o".to_owned(), "weight=4".to_owned()];
        assert_eq!(needed_flags(Tenancy::Own, &own), [""; 0]);
        assert_eq!(needed_flags(Tenancy::Each, &own), own);
        assert_eq!(needed_flags(Tenancy::Each, &[]), [""; 0]);
        assert_eq!(needed_flags(Tenancy::One, &own), ["-o", "weight=1"]);
    }
}
