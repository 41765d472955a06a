//! One host of the cluster: its network, its part of this host's memory, its donor and its agent.
//!
//! Its memory is a control group. What the kernel says of a whole machine's memory (/proc/meminfo)
//! does not know of that, so each host has a file with its own, which its donor reads
//! (`canvas serve -o procfs`).

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

/// Where donors listen.
const PORT: u16 = 7070;
/// The most that a host lends, and what its donor leaves to it in any case.
const LENT_MIB: u64 = 512;
const RESERVE_MIB: u64 = 64;
/// How long donor and agent may take to begin, and all processes of a host to die.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a donor says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Bytes that others use.
    pub bytes: u64,
    /// Slabs that it took back, and of those the ones that were not moved in time.
    pub evicted: [u64; 2],
}

/// A host.
pub struct Machine {
    pub number: usize,
    pub is_up: bool,
    home: PathBuf,
    key: PathBuf,
    /// Where its sockets are.
    pub sockets: PathBuf,
    total: u64,
    // Ended before the groups that they are in are removed.
    donor: Option<Child>,
    agent: Option<Child>,
    services: Group,
    bound: Group,
    port: Port,
    /// Of donors that are no more: what they took back.
    evicted: [u64; 2],
    /// How often the kernel ended a service for want of memory.
    pub ooms: u32,
    starts: u32,
}

impl Machine {
    /// A host at a switch; with `is_limited` it has no more memory than its size says.
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
        // On version 2 a group that has groups has no processes.
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

    /// A group of this host for a container.
    pub fn group(&self, stage: &Stage, name: &str) -> Result<Group, Fail> {
        Ok(self.bound.within(&stage.unique(name), stage.undo())?)
    }

    /// Starts a program in this host's network and one of its groups.
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

    /// Where its donor listens.
    fn address(&self) -> String {
        format!("{}:{PORT}", self.port.address)
    }

    /// Starts its donor; what it lends is bounded by what its own programs leave.
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

    /// Starts its agent, which has these donors, all other hosts'.
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

    /// Where its agent listens.
    pub fn socket(&self) -> PathBuf {
        self.sockets.join(format!("agent{}.sock", self.number))
    }

    fn state(&self) -> PathBuf {
        self.home.join("donor.json")
    }

    /// What its donor says, at most a second ago.
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

    /// Writes what /proc/meminfo of this host would say: what is in use of it, in bytes.
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

    /// What of it is in swap.
    pub fn swapped_bytes(&self) -> u64 {
        self.bound.swapped_bytes()
    }

    /// What its donor did is kept; what it said last is not its successor's.
    fn forget_donor(&mut self) {
        self.evicted = self.lent().evicted;
        let _ = fs::remove_file(self.state());
    }

    /// Its power fails: nothing comes from it any more, and all of its processes are gone.
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

    /// Its power is back.
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

    /// Starts a service again that the kernel ended for want of memory, as systemd does.
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

    /// Whether its donor, or its agent, was ended by the kernel; another end of it is an error.
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

/// Where the donors of hosts listen.
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
