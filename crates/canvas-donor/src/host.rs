//! What the host says about its memory.

use std::path::Path;

/// A look at the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What could still be used without swapping (the kernel's estimate).
    pub available_bytes: u64,
}

impl HostMemory {
    /// Reads `meminfo` below `procfs`. The error is one sentence.
    pub fn read(procfs: &Path) -> Result<HostMemory, String> {
        let path = procfs.join("meminfo");
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        HostMemory::parse(&text).ok_or_else(|| {
            format!(
                "{} does not say MemTotal and MemAvailable in kB",
                path.display()
            )
        })
    }

    /// `MemTotal` and `MemAvailable` of the text of /proc/meminfo (man 5 proc_meminfo).
    fn parse(text: &str) -> Option<HostMemory> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(HostMemory {
            total_bytes: field("MemTotal:")?,
            available_bytes: field("MemAvailable:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n";
        assert_eq!(
            HostMemory::parse(text),
            Some(HostMemory {
                total_bytes: 16_000 << 10,
                available_bytes: 8000 << 10
            })
        );
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
