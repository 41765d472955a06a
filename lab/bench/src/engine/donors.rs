//! Donors that the bench starts: `canvas serve` on this host for one program's far memory, in its network
//! namespace or behind a link; and the death of a donor.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use canvas_shm::far::SLAB_BYTES;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::child::Child;
use super::error::BenchError;
use crate::host::net::Network;
use crate::host::undo::Undo;
use crate::sampler;
use crate::variant::FarBelow;
use crate::workload::Argv;

/// Number of donors if the experiment does not set it.
pub const DONORS: u32 = 3;
/// Size of the pool in percent of the working set: most cold pages are demoted to donors.
const POOL_PERCENT: u64 = 5;
/// Smallest pool that canvas works with, and some room for pages in flight.
const POOL_BYTES_MIN: u64 = 4 << 20;
/// Timeout of the donors' start, and of their end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of far reads after which the program counts as working.
const READS_UNDER_LOAD: u64 = 256;
/// Interval at which the slabs are sampled after a death.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Size of the pool of a program with this working set.
pub fn pool_bytes(working_set: u64) -> u64 {
    (working_set / 100 * POOL_PERCENT)
        .max(POOL_BYTES_MIN)
        .next_multiple_of(1 << 20)
}

/// Size of the far memory of a program with this working set, in whole slabs; large enough to have no
/// influence. Each donor lends this much, so that any one can hold all of it.
pub fn far_bytes(working_set: u64) -> u64 {
    (2 * working_set).next_multiple_of(SLAB_BYTES as u64) + 4 * SLAB_BYTES as u64
}

/// Resources that donors used until their end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Processor time, user and system.
    pub cpu_s: f64,
    /// Bytes read and written for clients.
    pub bytes: u64,
}

struct Donor {
    child: Child,
    address: String,
    state: PathBuf,
}

/// Running donors, which end when this is dropped.
pub struct Donors {
    donors: Vec<Donor>,
    key: PathBuf,
    far_bytes: u64,
}

/// Listening address of a donor, from the first line of its log.
fn listens_on(log: &str) -> Option<&str> {
    let rest = log.split_once("listening on ")?.1;
    // An incomplete line may end within the port number.
    let (address, _) = rest.split_once(',')?;
    Some(address)
}

/// Bytes lent and bytes moved, from a donor's state.
fn lent_and_moved(state: &str) -> Option<(u64, u64)> {
    let v: Value = serde_json::from_str(state).ok()?;
    let counter = |name: &str| v.get("counters")?.get(name)?.as_u64();
    let moved = counter("read_bytes")? + counter("written_bytes")?;
    Some((v.get("lent_bytes")?.as_u64()?, moved))
}

fn state_of(path: &Path) -> Option<(u64, u64)> {
    lent_and_moved(&fs::read_to_string(path).ok()?)
}

impl Donors {
    /// Starts `count` donors that lend `far_bytes` each, in `network` if given; their files are in `dir`.
    pub fn start(
        canvas: &Path,
        count: u32,
        far_bytes: u64,
        network: Option<&Network>,
        dir: &Path,
        undo: &Arc<Undo>,
    ) -> Result<Donors, BenchError> {
        let key = dir.join("cluster.key");
        let made = Command::new(canvas).arg("keygen").arg(&key).output();
        let made = made.map_err(|source| BenchError::CannotRunCanvas {
            canvas: canvas.to_owned(),
            source,
        })?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return Err(BenchError::NoKey(why.trim().to_owned()));
        }
        let mut donors = Vec::new();
        for n in 0..count {
            let state = dir.join(format!("donor{n}.json"));
            let text = |path: &Path| path.to_string_lossy().into_owned();
            let address = network.map_or(Ipv4Addr::LOCALHOST, Network::address);
            let own = [
                text(canvas),
                "serve".to_owned(),
                format!("--listen={address}:0"),
                format!("--memory={far_bytes}"),
                format!("--key-file={}", text(&key)),
                format!("--state-json={}", text(&state)),
                "-odrain=100ms".to_owned(),
            ];
            let prefix = network.map_or_else(Vec::new, Network::prefix);
            let command = Argv {
                argv: [prefix.as_slice(), &own].concat(),
                env: Vec::new(),
            };
            let child = Child::start(&command, dir, &format!("donor{n}"), undo)?;
            donors.push(Donor {
                child,
                address: String::new(),
                state,
            });
        }
        let until = Instant::now() + PATIENCE;
        for donor in &mut donors {
            donor.address = donor.listening(until)?;
        }
        Ok(Donors {
            donors,
            key,
            far_bytes,
        })
    }

    /// Listening addresses of the donors.
    pub fn addresses(&self) -> Vec<&str> {
        self.donors.iter().map(|d| d.address.as_str()).collect()
    }

    /// Kills the donor at an address, as if its host had died.
    pub fn kill(&mut self, address: &str) {
        if let Some(at) = self.donors.iter().position(|d| d.address == address) {
            self.donors.swap_remove(at).child.end();
        }
    }

    /// Flags of an agent that uses these donors.
    pub fn servers(&self) -> [String; 2] {
        [
            format!("--to={}", self.addresses().join(",")),
            format!("--key-file={}", self.key.display()),
        ]
    }

    /// Flags of `canvas run` for far memory on these donors; disk copies are in `far_dir`.
    pub fn flags(&self, below: &FarBelow, far_dir: &Path) -> Vec<String> {
        let mut flags = vec![
            format!("--far={}", self.far_bytes),
            format!("--to=disk:{}", far_dir.display()),
            below.copies_flag(),
        ];
        flags.extend(self.servers());
        flags.extend(below.flags.iter().cloned());
        flags
    }

    /// Has the donor that lends most killed once the program of `canvas` (a `canvas run`) reads far memory.
    pub fn one_dies(&self, canvas: u32) -> Death {
        let stop = Arc::new(AtomicBool::new(false));
        let donors = self.donors.iter();
        let donors: Vec<(u32, PathBuf)> =
            donors.map(|d| (d.child.pid(), d.state.clone())).collect();
        let stopped = Arc::clone(&stop);
        Death {
            stop,
            thread: thread::spawn(move || die(canvas, &donors, &stopped)),
        }
    }

    /// Ends the donors; returns the resources that they used.
    pub fn end(mut self) -> Work {
        for donor in &self.donors {
            donor.child.terminate();
        }
        let mut work = Work::default();
        for donor in &mut self.donors {
            if donor.child.wait(PATIENCE).is_none() {
                donor.child.end();
            }
            if let Some(ended) = donor.child.wait(Duration::ZERO) {
                work.cpu_s += ended.user_s + ended.system_s;
            }
            work.bytes += state_of(&donor.state).map_or(0, |(_, moved)| moved);
        }
        work
    }
}

impl Donor {
    fn listening(&mut self, until: Instant) -> Result<String, BenchError> {
        loop {
            if let Some(address) = listens_on(&self.child.log()) {
                return Ok(address.to_owned());
            }
            let ended = self.child.wait(Duration::from_millis(10)).is_some();
            if ended || Instant::now() > until {
                return Err(BenchError::NoDonor(self.child.complaint()));
            }
        }
    }
}

/// A donor's death in the future.
pub struct Death {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<f64>>,
}

impl Death {
    /// Seconds from the death until no slab had too few copies; `None` if the program ended before.
    pub fn recovery_s(self) -> Option<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().flatten()
    }
}

fn die(canvas: u32, donors: &[(u32, PathBuf)], stop: &AtomicBool) -> Option<f64> {
    let until_some = |look: &mut dyn FnMut() -> bool| {
        while !stop.load(Ordering::Relaxed) {
            if look() {
                return Some(());
            }
            thread::sleep(LOOK_EVERY);
        }
        None
    };
    let mut lease = None;
    until_some(&mut || {
        lease = sampler::tenant_of(canvas);
        lease.is_some()
    })?;
    let stats = &lease.as_ref()?.far().stats;
    let mut victim = 0;
    until_some(&mut || {
        if stats.reads.load(Ordering::Relaxed) < READS_UNDER_LOAD {
            return false;
        }
        let lent = |path: &Path| state_of(path).map_or(0, |(lent, _)| lent);
        let most = donors.iter().map(|(pid, path)| (lent(path), *pid)).max();
        let found = most.filter(|(bytes, _)| *bytes > 0);
        victim = found.map_or(0, |(_, pid)| pid);
        found.is_some()
    })?;
    let died = Instant::now();
    kill(Pid::from_raw(victim.cast_signed()), Signal::SIGKILL).ok()?;
    until_some(&mut || stats.degraded_slabs.load(Ordering::Relaxed) > 0)?;
    // Slabs that were freed, as at the end of a program, have nothing to recover.
    until_some(&mut || {
        stats.repairs.load(Ordering::Relaxed) > 0
            && stats.degraded_slabs.load(Ordering::Relaxed) <= 0
    })?;
    Some(died.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::{Far, Segment};
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn an_address_is_read_when_its_line_is_there() {
        let line = "serve: listening on 127.0.0.1:4242, lending up to 64 MiB";
        assert_eq!(listens_on(line), Some("127.0.0.1:4242"));
        assert_eq!(listens_on("serve: listening on 127.0.0.1:42"), None);
        assert_eq!(listens_on("canvas: no address"), None);
    }

    #[test]
    fn a_state_tells_what_is_lent_and_moved() {
        let state = r#"{"lent_bytes":5,"counters":{"read_bytes":7,"written_bytes":11}}"#;
        assert_eq!(lent_and_moved(state), Some((5, 18)));
        assert_eq!(lent_and_moved(r#"{"lent_bytes":5,"counters":{}}"#), None);
        assert_eq!(lent_and_moved(""), None);
    }

    #[test]
    fn who_lends_most_dies_under_load_and_recovery_ends_with_repair() {
        let _only = sampler::ONLY_SEGMENT.lock();
        let (fd, _) = Segment::create(true).unwrap();
        let stats = &Far::map(&fd).unwrap().stats;
        let dir = tempfile::tempdir().unwrap();
        let start = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut less, mut most) = (start(), start());
        let state = |lent: u64| {
            let path = dir.path().join(lent.to_string());
            let counters = r#"{"read_bytes":0,"written_bytes":0}"#;
            let text = format!(r#"{{"lent_bytes":{lent},"counters":{counters}}}"#);
            fs::write(&path, text).unwrap();
            path
        };
        let donors = [(less.id(), state(1)), (most.id(), state(2))];
        stats.reads.store(READS_UNDER_LOAD, Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        let (ended, recovery_s) = thread::scope(|scope| {
            let watch = scope.spawn(|| die(std::process::id(), &donors, &stop));
            let ended = most.wait().unwrap();
            // The watching thread may sample at any time.
            while !watch.is_finished() {
                stats.degraded_slabs.store(1, Ordering::Relaxed);
                thread::sleep(5 * LOOK_EVERY);
                stats.repairs.store(1, Ordering::Relaxed);
                stats.degraded_slabs.store(0, Ordering::Relaxed);
                thread::sleep(5 * LOOK_EVERY);
            }
            (ended, watch.join().unwrap())
        });
        assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32));
        assert!(recovery_s.is_some_and(|s| s > 0.0));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(die(std::process::id(), &donors, &stop), None);
        assert!(less.try_wait().unwrap().is_none(), "the other one lives");
        less.kill().unwrap();
        less.wait().unwrap();
    }

    #[test]
    fn pools_are_small_and_far_memory_is_not() {
        assert_eq!(pool_bytes(1 << 30), 52 << 20);
        assert_eq!(pool_bytes(1 << 20), POOL_BYTES_MIN);
        let far = far_bytes(100 << 20);
        assert!(far > 200 << 20 && far.is_multiple_of(SLAB_BYTES as u64));
    }
}
