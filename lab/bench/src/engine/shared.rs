//! What the programs of a cell share when one agent keeps the far memory of all: donors, `canvas agent`,
//! and the link between them, which is watched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::child::Child;
use super::donors::{DONORS, Donors, Work};
use super::error::BenchError;
use crate::host::net::Network;
use crate::host::undo::Undo;
use crate::variant::{FarBelow, Tenancy};
use crate::workload::Argv;

/// How long the agent may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what the link has carried. Each starts a process.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An agent and its donors; they end with this.
pub struct Shared {
    agent: Child,
    socket: PathBuf,
    donors: Donors,
}

impl Shared {
    /// Starts donors that lend `far_bytes` each, and the agent, with the flags that `below` has for it; files go
    /// to `dir`, disk copies to `far_dir`.
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

    /// Flags of a `canvas run` with so much far memory that is the tenant of this number, with
    /// `tenant_flags` of its own; where all are one tenant they are.
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

    /// Ends them: processor time of the agent, and what the donors did.
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

/// Flags that `canvas run` must know for programs of this tenancy with flags of their own.
pub fn needed_flags(tenancy: Tenancy, tenant_flags: &[String]) -> Vec<String> {
    match tenancy {
        Tenancy::Own => Vec::new(),
        // Runs join a tenant since there are weights.
        Tenancy::One => vec!["-o".to_owned(), "weight=1".to_owned()],
        Tenancy::Each => tenant_flags.to_vec(),
    }
}

/// What a link had carried to this host: seconds since the run of the bench began, and bytes.
pub type Carried = Vec<(f64, u64)>;

/// Looks at what a link has carried to this host until `over`.
pub fn watch(network: &Network, began: Instant, over: &AtomicBool) -> Carried {
    let mut seen = Vec::new();
    loop {
        let was_over = over.load(Ordering::Relaxed);
        if let Some(bytes) = network.to_host_bytes() {
            seen.push((began.elapsed().as_secs_f64(), bytes));
        }
        if was_over {
            return seen;
        }
        let next = Instant::now() + LOOK_EVERY;
        while Instant::now() < next && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_tenancy_uses_is_needed() {
        let own = ["-o".to_owned(), "weight=4".to_owned()];
        assert_eq!(needed_flags(Tenancy::Own, &own), [""; 0]);
        assert_eq!(needed_flags(Tenancy::Each, &own), own);
        assert_eq!(needed_flags(Tenancy::Each, &[]), [""; 0]);
        assert_eq!(needed_flags(Tenancy::One, &own), ["-o", "weight=1"]);
    }
}
