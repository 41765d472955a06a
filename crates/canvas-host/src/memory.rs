//! What the host says about its memory.

use std::io;
use std::path::{Path, PathBuf};

/// Why the host's memory is not known.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The system does not let the file be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file lacks what is looked for.
    #[error("{} does not say MemTotal and MemAvailable in kB", .0.display())]
    NoFigures(PathBuf),
}

/// A look at the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What could still be used without swapping (the kernel's estimate).
    pub available_bytes: u64,
    /// What could still be swapped out; nothing where the file does not say so.
    pub swap_free_bytes: u64,
}

impl HostMemory {
    /// Reads `meminfo` below `procfs`.
    pub fn read(procfs: &Path) -> Result<HostMemory, HostError> {
        let path = procfs.join("meminfo");
        match std::fs::read_to_string(&path) {
            Ok(text) => HostMemory::parse(&text).ok_or(HostError::NoFigures(path)),
            Err(source) => Err(HostError::Unreadable { path, source }),
        }
    }

    /// `MemTotal`, `MemAvailable` and `SwapFree` of the text of /proc/meminfo (man 5 proc_meminfo).
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
}
