//! One host of the cluster: its network namespace, its part of this machine's memory, its donor and its
//! agent.
//!
//! Its memory is a control group. /proc/meminfo does not know of that, so each host has a meminfo file of its
//! own, which its donor reads (`canvas serve -o procfs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::plan::Size;
use crate::engine::child::Child;
use crate::engine::program::Fail;
use crate::engine::script::{Stage, failed};
use crate::host::cgroup::Group;
use crate::host::switch::{Port, Switch};
use crate::processes;
use crate::workload::Argv;

/// Port of donors.
const PORT: u16 = 7070;
/// Most memory that a host lends, and the reserve that its donor leaves.
const LENT_MIB: u64 = 512;
const RESERVE_MIB: u64 = 64;
/// Timeout of the start of donor and agent, and of the death of a host's processes.
const PATIENCE: Duration = Duration::from_secs(20);

/// State that a donor reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Bytes lent to others.
    pub bytes: u64,
    /// Evicted slabs, and those of them that were not moved in time.
    pub evicted: [u64; 2],
}

/// A host.
pub struct Machine {
    pub number: usize,
    pub is_up: bool,
    home: PathBuf,
    key: PathBuf,
    /// Directory of its sockets.
    pub sockets: PathBuf,
    total: u64,
    // Dropped before the control groups that contain them.
    donor: Option<Child>,
    agent: Option<Child>,
    services: Group,
    bound: Group,
    port: Port,
    /// Evictions of earlier donors of this host.
    evicted: [u64; 2],
    /// Number of services that the kernel killed because memory was short.
    pub ooms: u32,
    starts: u32,
}

impl Machine {
    /// A host at a switch; with `is_limited` its memory is limited to its size.
    pub fn new(
        stage: &Stage,
        switch: &Switch,
        number: usize,
        size: &Size,
        is_limited: bool,
        (key, sockets): (&Path, &Path),
    ) -> Result<Machine, Fail> {
        let port = switch.join(number as u32, stage.undo());
        let total = size.host_mib << 20;
        let bound = stage.group(&format!("host{number}"), is_limited.then_some(total))?;
        // In cgroup v2, a group with child groups has no processes of its own.
        let services = bound.within("services", stage.undo())?;
        let machine = Machine {
            number,
            is_up: true,
            home: stage.dir.join(format!("host{number}")),
            key: key.to_owned(),
            sockets: sockets.to_owned(),
            total,
            donor: None,
            agent: None,
            services,
            bound,
            port: port.map_err(|e| failed(e.to_string()))?,
            evicted: [0; 2],
            ooms: 0,
            starts: 0,
        };
        for dir in ["", "proc", "far"] {
            let path = machine.home.join(dir);
            fs::create_dir_all(&path).map_err(|e| failed(format!("{}: {e}", path.display())))?;
        }
        machine.look()?;
        Ok(machine)
    }

    /// Creates a group of this host for a container.
    pub fn group(&self, stage: &Stage, name: &str) -> Result<Group, Fail> {
        Ok(self.bound.within(&stage.unique(name), stage.undo())?)
    }

    /// Starts a program in this host's network namespace and one of its groups.
    pub fn start(
        &self,
        stage: &Stage,
        group: &Group,
        argv: Vec<String>,
        tag: &str,
    ) -> Result<Child, Fail> {
        let argv = [self.port.prefix(), argv].concat();
        let env = Vec::new();
        Ok(stage.start(group.wrap(&Argv { argv, env }).argv, tag)?)
    }

    fn service(
        &mut self,
        stage: &Stage,
        name: &str,
        argv: Vec<String>,
        says: &str,
    ) -> Result<Child, Fail> {
        self.starts += 1;
        let tag = format!("host{}-{name}-{}", self.number, self.starts);
        let mut child = self.start(stage, &self.services, argv, &tag)?;
        stage.until(&format!("the start of a {name}"), PATIENCE, || {
            if child.wait(Duration::ZERO).is_some() {
                return Err(failed(format!("a {name} ended: {}", child.complaint())));
            }
            Ok(child.log().contains(says).then_some(()))
        })?;
        Ok(child)
    }

    /// Address of its donor.
    fn address(&self) -> String {
        format!("{}:{PORT}", self.port.address)
    }

    /// Starts its donor, which lends what the host's own programs leave.
    pub fn lend(&mut self, stage: &Stage) -> Result<(), Fail> {
        let argv = vec![
            stage.canvas(),
            "serve".to_owned(),
            format!("--listen={}", self.address()),
            format!("--memory={LENT_MIB}M"),
            format!("--reserve={RESERVE_MIB}M"),
            format!("--key-file={}", self.key.display()),
            format!("--state-json={}", self.state().display()),
            format!("-oprocfs={}", self.home.join("proc").display()),
        ];
        self.donor = Some(self.service(stage, "donor", argv, "listening on ")?);
        Ok(())
    }

    /// Starts its agent, which uses these donors of all other hosts.
    pub fn keep(&mut self, stage: &Stage, copies: &str, donors: &[String]) -> Result<(), Fail> {
        let own = self.address();
        let others: Vec<&str> = donors
            .iter()
            .map(String::as_str)
            .filter(|d| *d != own)
            .collect();
        let _ = fs::remove_file(self.socket());
        let argv = vec![
            stage.canvas(),
            "agent".to_owned(),
            format!("--socket={}", self.socket().display()),
            format!("--to={}", others.join(",")),
            format!("--copies={copies}"),
            format!("--to=disk:{}", self.home.join("far").display()),
            format!("--key-file={}", self.key.display()),
        ];
        self.agent = Some(self.service(stage, "agent", argv, "listening at ")?);
        Ok(())
    }

    /// Socket of its agent.
    pub fn socket(&self) -> PathBuf {
        self.sockets.join(format!("agent{}.sock", self.number))
    }

    fn state(&self) -> PathBuf {
        self.home.join("donor.json")
    }

    /// Last state of its donor, at most a second old.
    pub fn lent(&self) -> Lent {
        let mut lent = Lent::default();
        if self.donor.is_some() && self.is_up {
            let text = fs::read_to_string(self.state()).unwrap_or_default();
            lent = lent_in(&text);
        }
        for (all, before) in lent.evicted.iter_mut().zip(self.evicted) {
            *all += before;
        }
        lent
    }

    /// Updates the host's meminfo file; returns the memory in use, in bytes.
    pub fn look(&self) -> Result<u64, Fail> {
        let used = self.bound.used_bytes();
        let free = self.total.saturating_sub(used);
        let text = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\n",
            self.total >> 10,
            free >> 10
        );
        let path = self.home.join("proc/meminfo");
        let new = self.home.join("proc/meminfo.new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        written.map_err(|e| failed(format!("{}: {e}", path.display())))?;
        Ok(used)
    }

    /// Bytes of the host's memory that are in swap.
    pub fn swapped_bytes(&self) -> u64 {
        self.bound.swapped_bytes()
    }

    /// Adds up the donor's evictions and removes its state, which its successor would seem to have.
    fn forget_donor(&mut self) {
        self.evicted = self.lent().evicted;
        let _ = fs::remove_file(self.state());
    }

    /// Power failure: disconnects the host and kills all of its processes.
    pub fn die(&mut self, stage: &Stage, switch: &Switch) -> Result<(), Fail> {
        self.forget_donor();
        self.is_up = false;
        let cut = switch.connect(&self.port, false);
        cut.map_err(|e| failed(e.to_string()))?;
        stage.until("the death of a host", PATIENCE, || {
            let pids = self.bound.all_processes();
            processes::kill_all(&pids);
            for child in [&mut self.donor, &mut self.agent].into_iter().flatten() {
                child.wait(Duration::ZERO);
            }
            Ok(pids.is_empty().then_some(()))
        })?;
        (self.donor, self.agent) = (None, None);
        Ok(())
    }

    /// Power is back: connects the host and starts its services.
    pub fn come_back(
        &mut self,
        stage: &Stage,
        switch: &Switch,
        copies: Option<&str>,
        donors: &[String],
    ) -> Result<(), Fail> {
        let put = switch.connect(&self.port, true);
        put.map_err(|e| failed(e.to_string()))?;
        self.is_up = true;
        if let Some(copies) = copies {
            self.lend(stage)?;
            self.keep(stage, copies, donors)?;
        }
        Ok(())
    }

    /// Restarts a service that the kernel killed because memory was short, as systemd would.
    pub fn look_after(
        &mut self,
        stage: &Stage,
        copies: Option<&str>,
        donors: &[String],
    ) -> Result<(), Fail> {
        let (true, Some(copies)) = (self.is_up, copies) else {
            return Ok(());
        };
        if self.is_oom(true)? {
            self.forget_donor();
            self.lend(stage)?;
        }
        if self.is_oom(false)? {
            self.keep(stage, copies, donors)?;
        }
        Ok(())
    }

    /// Whether the kernel killed its donor, or its agent; fails if it ended in another way.
    fn is_oom(&mut self, is_donor: bool) -> Result<bool, Fail> {
        use std::os::unix::process::ExitStatusExt;
        let child = if is_donor {
            &mut self.donor
        } else {
            &mut self.agent
        };
        let Some(child) = child else {
            return Ok(false);
        };
        let Some(ended) = child.wait(Duration::ZERO) else {
            return Ok(false);
        };
        if ended.status.signal() != Some(nix::sys::signal::Signal::SIGKILL as i32) {
            let what = if is_donor { "donor" } else { "agent" };
            return Err(failed(format!("a {what} ended: {}", child.complaint())));
        }
        self.ooms += 1;
        Ok(true)
    }
}

/// Addresses of the hosts' donors.
pub fn donors(machines: &[Machine]) -> Vec<String> {
    machines.iter().map(Machine::address).collect()
}

fn lent_in(state: &str) -> Lent {
    let v: Value = serde_json::from_str(state).unwrap_or_default();
    let counter = |name: &str| v["counters"][name].as_u64().unwrap_or(0);
    Lent {
        bytes: v["touched_bytes"].as_u64().unwrap_or(0),
        evicted: [counter("evicted_slabs"), counter("evicted_late_slabs")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_what_is_lent_and_was_taken_back() {
        let state = r#"{"touched_bytes":5,"counters":{"evicted_slabs":3,"evicted_late_slabs":1}}"#;
        let lent = Lent {
            bytes: 5,
            evicted: [3, 1],
        };
        assert_eq!(lent_in(state), lent);
        assert_eq!(lent_in(""), Lent::default());
    }
}
