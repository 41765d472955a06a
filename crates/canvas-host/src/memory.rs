//! Total and available memory of a host.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::groups::{Group, Limited, groups_below};

/// Why the host's memory cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file lacks the figures.
    #[error("{} does not say MemTotal and MemAvailable in kB", .0.display())]
    NoFigures(PathBuf),
}

/// A host's memory at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// Total memory.
    pub total_bytes: u64,
    /// Memory that can be used without swapping (the kernel's estimate).
    pub available_bytes: u64,
    /// Free swap; 0 where the file does not report it.
    pub swap_free_bytes: u64,
}

impl HostMemory {
    /// Memory that this process may use: the machine's, within the limits of its control groups, by
    /// the files below `procfs`.
    pub fn read(procfs: &Path) -> Result<HostMemory, HostError> {
        Host::new(procfs).memory()
    }

    /// The machine's memory, from `meminfo` below `procfs`.
    pub fn of_machine(procfs: &Path) -> Result<HostMemory, HostError> {
        let path = procfs.join("meminfo");
        match std::fs::read_to_string(&path) {
            Ok(text) => HostMemory::parse(&text).ok_or(HostError::NoFigures(path)),
            Err(source) => Err(HostError::Unreadable { path, source }),
        }
    }

    /// Parses `MemTotal`, `MemAvailable` and `SwapFree` of /proc/meminfo (man 5 proc_meminfo).
    fn parse(text: &str) -> Option<HostMemory> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(HostMemory {
            total_bytes: field("MemTotal:")?,
            available_bytes: field("MemAvailable:")?,
            swap_free_bytes: field("SwapFree:").unwrap_or(0),
        })
    }

    /// Applies the group's limit.
    fn within(self, group: &Group) -> HostMemory {
        let Some((total_bytes, available_bytes)) = group.total_and_available() else {
            return self;
        };
        let swap_left = group.swap_left_bytes().unwrap_or(u64::MAX);
        HostMemory {
            total_bytes: self.total_bytes.min(total_bytes),
            available_bytes: self.available_bytes.min(available_bytes),
            swap_free_bytes: self.swap_free_bytes.min(swap_left),
        }
    }
}

/// The host of this process, for callers that ask often.
pub struct Host {
    procfs: PathBuf,
    limited: Mutex<Limited>,
}

impl Host {
    /// Reads the files below `procfs` (/proc).
    pub fn new(procfs: &Path) -> Host {
        Host {
            procfs: procfs.to_owned(),
            limited: Mutex::default(),
        }
    }

    /// Memory that this process may use: the machine's, within the limits of its control groups.
    pub fn memory(&self) -> Result<HostMemory, HostError> {
        let machine = HostMemory::of_machine(&self.procfs)?;
        let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = limited.look(machine.total_bytes, || groups_below(&self.procfs, "self"));
        drop(limited);
        Ok(groups.iter().fold(machine, HostMemory::within))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n";
        let mut memory = HostMemory {
            total_bytes: 16_000 << 10,
            available_bytes: 8000 << 10,
            swap_free_bytes: 0,
        };
        assert_eq!(HostMemory::parse(text), Some(memory));
        memory.swap_free_bytes = 500 << 10;
        let text = format!("{text}SwapTotal:  600 kB\nSwapFree:   500 kB\n");
        assert_eq!(HostMemory::parse(&text), Some(memory));
        assert_eq!(HostMemory::parse("MemTotal: 1 kB\n"), None);
        assert_eq!(
            HostMemory::parse("MemTotal: 1 kB\nMemAvailable: x kB\n"),
            None
        );
        assert!(HostMemory::read(Path::new("/nonexistent")).is_err());
        assert!(
            HostMemory::read(Path::new("/proc"))
                .unwrap()
                .available_bytes
                > 0
        );
    }

    #[test]
    fn a_control_group_is_a_smaller_host() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "proc/meminfo",
            "MemTotal: 4000 kB\nMemAvailable: 3000 kB\nSwapFree: 100 kB\n",
        );
        let procfs = dir.path().join("proc");
        let host = Host::new(&procfs);
        let machine = HostMemory::of_machine(&procfs).unwrap();
        assert_eq!(host.memory().unwrap(), machine, "no groups");
        let mount = dir.path().join("groups");
        put(
            "proc/self/mounts",
            &format!("x {} cgroup2 rw 0 0\n", mount.display()),
        );
        put("proc/self/cgroup", "0::/lends/donor\n");
        put("groups/lends/memory.max", "2048000\n");
        put("groups/lends/memory.current", "2000000\n");
        put("groups/lends/memory.stat", "inactive_file 1000000\n");
        put("groups/lends/memory.swap.max", "max\n");
        put("groups/lends/donor/memory.max", "1500000\n");
        put("groups/lends/donor/memory.current", "100000\n");
        put("groups/lends/donor/memory.stat", "anon 100000\n");
        put("groups/lends/donor/memory.swap.max", "0\n");
        put("groups/lends/donor/memory.swap.current", "0\n");
        let within = HostMemory {
            total_bytes: 1_500_000,
            available_bytes: 1_048_000,
            swap_free_bytes: 0,
        };
        assert_eq!(HostMemory::read(&procfs).unwrap(), within);
        assert_eq!(
            host.memory().unwrap(),
            machine,
            "the groups of a moment ago"
        );
    }
}
