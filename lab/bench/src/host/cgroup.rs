//! Control groups that limit memory, of version 1 or 2, whichever the host has.

mod nested;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::CgroupError;
use super::step::Step;
use super::undo::{Held, Undo};
use crate::processes;
use crate::workload::Argv;

/// Where the memory controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// 1 or 2.
    pub version: u32,
    /// Directory in which groups are made.
    root: PathBuf,
}

/// Finds the memory controller in the text of /proc/self/mounts; `controllers` reads
/// cgroup.controllers of a version 2 mount.
fn find_in(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Controller> {
    let mut second = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(dir), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let root = PathBuf::from(dir);
        match kind {
            "cgroup" if options.split(',').any(|o| o == "memory") => {
                return Some(Controller { version: 1, root });
            }
            "cgroup2" if controllers(&root).split_whitespace().any(|c| c == "memory") => {
                second = Some(Controller { version: 2, root });
            }
            _ => {}
        }
    }
    second
}

/// Numbers by name, as in memory.stat.
fn numbers(text: &str) -> HashMap<&str, u64> {
    text.lines()
        .filter_map(|l| l.split_once(' '))
        .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
        .collect()
}

impl Controller {
    /// The controller of this host, or one sentence why there is none to use.
    pub fn find() -> Result<Controller, CgroupError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(CgroupError::NotRoot);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let read =
            |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        find_in(&mounts, read).ok_or(CgroupError::NoController)
    }
}

/// What a group's memory.stat tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Anonymous memory.
    pub anonymous_bytes: u64,
    /// Major faults since the group was made.
    pub major_faults: Option<u64>,
    /// Pages swapped in, where the kernel counts them by group.
    pub swapped_in_pages: Option<u64>,
    /// Pages swapped out, likewise.
    pub swapped_out_pages: Option<u64>,
}

fn figures_in(version: u32, text: &str) -> Figures {
    let all = numbers(text);
    let get = |name: &str| all.get(name).copied();
    // With zswap, pages go to the pool first, and pages of zeroes go nowhere; all ways count, as in
    // the host's counters. (pswp* came to groups in 2025, after the others.)
    let all_ways = |first, others: [&str; 2]| {
        Some(get(first)? + others.iter().filter_map(|n| get(n)).sum::<u64>())
    };
    Figures {
        anonymous_bytes: get(if version == 1 { "total_rss" } else { "anon" }).unwrap_or(0),
        major_faults: get(if version == 1 {
            "total_pgmajfault"
        } else {
            "pgmajfault"
        }),
        swapped_in_pages: all_ways("pswpin", ["zswpin", "swpin_zero"]),
        swapped_out_pages: all_ways("pswpout", ["zswpout", "swpout_zero"]),
    }
}

/// A control group of ours; removed, with what runs in it, when dropped.
pub struct Group {
    version: u32,
    path: PathBuf,
    _held: Held,
}

impl Group {
    /// Makes a group limited to `limit_bytes` (none: only counted), whose programs may be swapped
    /// or not. An error is one sentence.
    pub fn new(
        controller: &Controller,
        undo: &Arc<Undo>,
        name: &str,
        limit_bytes: Option<u64>,
        may_swap: bool,
    ) -> Result<Group, CgroupError> {
        let path = controller
            .root
            .join(format!("canvas-bench-{}-{name}", std::process::id()));
        let fail = |what: &Path, source| CgroupError::SetUp {
            path: what.to_owned(),
            source,
        };
        if controller.version == 2 {
            let enabled = controller.root.join("cgroup.subtree_control");
            let now = fs::read_to_string(&enabled).unwrap_or_default();
            if !now.split_whitespace().any(|c| c == "memory") {
                // Kept for the next group of this run: undone at its end.
                undo.note(Step::WriteBack {
                    path: enabled.clone(),
                    text: "-memory".to_owned(),
                })?;
                fs::write(&enabled, "+memory").map_err(|e| fail(&enabled, e))?;
            }
        }
        let held = undo.hold(Step::RemoveCgroup { path: path.clone() })?;
        fs::create_dir(&path).map_err(|e| fail(&path, e))?;
        let set = |file: &str, text: String| {
            let file = path.join(file);
            fs::write(&file, text).map_err(|e| fail(&file, e))
        };
        match (controller.version, limit_bytes) {
            (1, Some(bytes)) => set("memory.limit_in_bytes", bytes.to_string())?,
            (2, Some(bytes)) => set("memory.max", bytes.to_string())?,
            _ => {}
        }
        if !may_swap {
            match controller.version {
                1 => set("memory.swappiness", "0".to_owned())?,
                // Absent where swap is not accounted: then there is nothing to forbid.
                _ if path.join("memory.swap.max").exists() => {
                    set("memory.swap.max", "0".to_owned())?;
                }
                _ => {}
            }
        }
        Ok(Group {
            version: controller.version,
            path,
            _held: held,
        })
    }

    /// `command` started inside of the group: the shell moves itself, then becomes the program.
    pub fn wrap(&self, command: &Argv) -> Argv {
        let procs = self.path.join("cgroup.procs");
        let script = r#"echo $$ > "$0" && exec "$@""#;
        let mut argv = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        argv.push(procs.to_string_lossy().into_owned());
        argv.extend(command.argv.iter().cloned());
        Argv {
            argv,
            env: command.env.clone(),
        }
    }

    /// How many processes the kernel ended for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.version == 1 {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        numbers(&text).get("oom_kill").copied().unwrap_or(0)
    }

    /// What the group uses and has used.
    pub fn figures(&self) -> Figures {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        figures_in(self.version, &text)
    }

    /// User and system time of all that ran in the group, in seconds, where the kernel tells (v2).
    pub fn cpu_s(&self) -> Option<(f64, f64)> {
        let text = fs::read_to_string(self.path.join("cpu.stat")).ok()?;
        let all = numbers(&text);
        let seconds = |name| Some(*all.get(name)? as f64 / 1e6);
        Some((seconds("user_usec")?, seconds("system_usec")?))
    }

    /// Processes that run in the group.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(&self.path)
    }

    /// Ends what runs in the group.
    pub fn kill_all(&self) {
        kill_all(&self.path);
    }
}

fn processes_in(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|l| l.parse().ok()).collect()
}

fn kill_all(path: &Path) {
    let pids = processes_in(path);
    // A group that took itself in would be us: the bench never runs in one of its groups.
    processes::kill_all(&pids);
}

/// Ends what runs in the group at `path` and removes it. An error is one sentence.
pub fn remove(path: &Path) -> Result<(), CgroupError> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if !path.is_dir() {
            return Ok(());
        }
        kill_all(path);
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            // Processes take their time to go.
            Err(source) if Instant::now() > until => {
                return Err(CgroupError::Remove {
                    path: path.to_owned(),
                    source,
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_is_found_and_version_1_wins_in_a_mixture() {
        let v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let controller = |version, root: &str| {
            Some(Controller {
                version,
                root: root.into(),
            })
        };
        let with = |_: &Path| "cpu memory\n".to_owned();
        let without = |_: &Path| "cpu hugetlb\n".to_owned();
        assert_eq!(find_in(v1, with), controller(1, "/sys/fs/cgroup/memory"));
        assert_eq!(find_in(v2, with), controller(2, "/sys/fs/cgroup"));
        assert_eq!(find_in(v2, without), None);
        assert_eq!(
            find_in(&format!("{v2}{v1}"), with),
            controller(1, "/sys/fs/cgroup/memory")
        );
        assert_eq!(find_in("", with), None);
    }

    #[test]
    fn figures_of_both_versions() {
        let v1 = figures_in(1, "rss 1\ntotal_rss 4096\ntotal_pgmajfault 7\n");
        assert_eq!((v1.anonymous_bytes, v1.major_faults), (4096, Some(7)));
        assert_eq!(v1.swapped_in_pages, None, "not counted there");
        let v2 = figures_in(
            2,
            "anon 8192\npgmajfault 3\npswpin 5\npswpout 6\nzswpin 10\nzswpout 20\n\
             swpin_zero 100\nswpout_zero 200\n",
        );
        assert_eq!(v2.anonymous_bytes, 8192);
        assert_eq!(
            (v2.swapped_in_pages, v2.swapped_out_pages),
            (Some(115), Some(226))
        );
        let before_2025 = figures_in(2, "anon 1\nzswpin 10\nswpin_zero 1\n");
        assert_eq!(before_2025.swapped_in_pages, None, "only a part is counted");
    }
}
