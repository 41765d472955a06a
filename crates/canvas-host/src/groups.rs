//! Control groups of a process, and how much memory their limits leave.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which the process's groups, and which of them have a limit, are determined again.
const REGROUP: Duration = Duration::from_secs(2);

/// Limits of version 1 from this value on mean "no limit" (the kernel writes 2^63 less a page).
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// A control group that may have a limit on memory.
pub struct Group {
    dir: PathBuf,
    version: u32,
}

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// Directory of the group.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its memory limit, if any.
    pub fn limit_bytes(&self) -> Option<u64> {
        if self.version == 2 {
            let limits = ["memory.max", "memory.high"].map(|file| self.number(file));
            limits.into_iter().flatten().min()
        } else {
            let limit = self.number("memory.limit_in_bytes");
            limit.filter(|bytes| *bytes < NO_LIMIT_BYTES)
        }
    }

    fn used_bytes(&self) -> Option<u64> {
        self.number(match self.version {
            2 => "memory.current",
            _ => "memory.usage_in_bytes",
        })
    }

    /// Memory left below its limit if it keeps all that it has, page cache included; `None` without
    /// a limit.
    pub fn left_bytes(&self) -> Option<u64> {
        Some(self.limit_bytes()?.saturating_sub(self.used_bytes()?))
    }

    /// Its limit and the memory available below it; `None` without a limit.
    pub fn total_and_available(&self) -> Option<(u64, u64)> {
        let limit = self.limit_bytes()?;
        let stat = match self.version {
            2 => ["active_file", "inactive_file"],
            _ => ["total_active_file", "total_inactive_file"],
        };
        let used = self.used_bytes()?;
        let stat_text = fs::read_to_string(self.dir.join("memory.stat")).ok()?;
        let [active, inactive] = stat.map(|name| {
            let line = stat_text
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        });
        // The kernel can reclaim page cache; active pages are counted as half reclaimable.
        let kept = used.saturating_sub(inactive + active / 2);
        Some((limit, limit.saturating_sub(kept)))
    }

    /// Swap left below its limit; `None` without a limit on swap.
    pub fn swap_left_bytes(&self) -> Option<u64> {
        let (limit, used) = if self.version == 2 {
            ("memory.swap.max", "memory.swap.current")
        } else {
            // Limit on memory plus swap: with what is left of memory, this is an upper bound.
            ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes")
        };
        Some(self.number(limit)?.saturating_sub(self.number(used)?))
    }
}

/// The memory control groups of a process, with their ancestors.
pub fn groups_of(pid: u32) -> Vec<Group> {
    groups_below(Path::new("/proc"), &pid.to_string())
}

/// Like [`groups_of`], for a process by its name (such as `self`) below `procfs`.
pub(crate) fn groups_below(procfs: &Path, process: &str) -> Vec<Group> {
    let read = |path: &str| fs::read_to_string(procfs.join(path)).unwrap_or_default();
    let own = read(&format!("{process}/cgroup"));
    groups_in(&own, &read("self/mounts"), Path::is_dir)
}

/// The groups with a limit, for callers that ask often.
#[derive(Default)]
pub struct Limited {
    looked_up: Option<Instant>,
    groups: Arc<[Group]>,
}

impl Limited {
    /// Groups of `find` whose limit is below the machine's memory. `find` is called again every two
    /// seconds; in between the last result is returned, so that groups without a limit are not read
    /// each time.
    pub fn look(&mut self, machine_bytes: u64, find: impl FnOnce() -> Vec<Group>) -> Arc<[Group]> {
        if self.looked_up.is_none_or(|at| at.elapsed() > REGROUP) {
            let is_smaller = |g: &Group| g.limit_bytes().is_some_and(|l| l < machine_bytes);
            self.groups = find().into_iter().filter(is_smaller).collect();
            self.looked_up = Some(Instant::now());
        }
        Arc::clone(&self.groups)
    }
}

fn groups_in(own: &str, mounts: &str, is_dir: impl Fn(&Path) -> bool) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields[..] else {
            continue;
        };
        let (version, is_ours): (u32, fn(&str) -> bool) = match kind {
            "cgroup2" => (2, str::is_empty),
            "cgroup" if options.split(',').any(|o| o == "memory") => (1, |controllers| {
                controllers.split(',').any(|c| c == "memory")
            }),
            _ => continue,
        };
        let path = own.lines().find_map(|l| {
            let (controllers, path) = l.split_once(':')?.1.split_once(':')?;
            is_ours(controllers).then_some(path)
        });
        let Some(path) = path else { continue };
        let mount = Path::new(mount);
        let whole = mount.join(path.trim_start_matches('/'));
        // In a container the mount may show the group itself, under another name.
        let deepest = if is_dir(&whole) {
            whole
        } else {
            mount.to_owned()
        };
        for dir in deepest.ancestors().take_while(|d| d.starts_with(mount)) {
            let dir = dir.to_owned();
            groups.push(Group { dir, version });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
proc /proc proc rw 0 0
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
";

    #[test]
    fn groups_are_found_with_those_above() {
        let own = "5:cpu:/x\n4:memory:/a/b\n0::/\n";
        let dirs = |own| {
            let groups = groups_in(own, MOUNTS, |_| true);
            let show = |g: &Group| format!("{} {}", g.version, g.dir.display());
            groups.iter().map(show).collect::<Vec<_>>()
        };
        let want = [
            "2 /sys/fs/cgroup/unified",
            "1 /sys/fs/cgroup/memory/a/b",
            "1 /sys/fs/cgroup/memory/a",
            "1 /sys/fs/cgroup/memory",
        ];
        let got: Vec<String> = dirs(own)
            .iter()
            .map(|d| d.trim_end_matches('/').to_owned())
            .collect();
        assert_eq!(got, want);
        // Hidden from a container.
        let hidden = groups_in("4:memory:/docker/x\n", MOUNTS, |_| false);
        assert_eq!(hidden.len(), 1);
        assert_eq!(hidden[0].dir, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn limits_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let group = |version| Group {
            dir: dir.path().to_owned(),
            version,
        };
        assert_eq!(group(2).total_and_available(), None);
        put("memory.max", "max\n");
        put("memory.high", "1000\n");
        put("memory.current", "700\n");
        put(
            "memory.stat",
            "anon 3\nactive_file 40\ninactive_file 100\ntotal_active_file 20\ntotal_inactive_file 10\n",
        );
        assert_eq!(group(2).total_and_available(), Some((1000, 420)));
        assert_eq!(group(2).left_bytes(), Some(300));
        assert_eq!(group(2).swap_left_bytes(), None, "a kernel without swap");
        put("memory.swap.max", "50\n");
        put("memory.swap.current", "20\n");
        assert_eq!(group(2).swap_left_bytes(), Some(30));
        put("memory.swap.max", "max\n");
        assert_eq!(group(2).swap_left_bytes(), None, "no limit");
        put("memory.high", "max\n");
        assert_eq!(group(2).total_and_available(), None, "no limit");
        put("memory.limit_in_bytes", "500\n");
        put("memory.usage_in_bytes", "600\n");
        assert_eq!(group(1).total_and_available(), Some((500, 0)));
        assert_eq!(
            (group(1).limit_bytes(), group(2).limit_bytes()),
            (Some(500), None)
        );
        assert_eq!(
            (group(1).left_bytes(), group(2).left_bytes()),
            (Some(0), None)
        );
        put("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(
            (group(1).limit_bytes(), group(1).left_bytes()),
            (None, None)
        );
    }
}
