//! Control groups that limit memory, with cgroup v1 or v2, as the host has it.

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

/// The memory controller of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Version of cgroups: 1 or 2.
    pub version: u32,
    /// Directory in which groups are made.
    root: PathBuf,
}

/// Finds a controller in the text of /proc/self/mounts, by its names in v1 and v2; `controllers` reads the
/// cgroup.controllers of a v2 mount.
fn find_in(
    mounts: &str,
    names: [&str; 2],
    controllers: impl Fn(&Path) -> String,
) -> Option<Controller> {
    let mut second = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(dir), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let root = PathBuf::from(dir);
        match kind {
            "cgroup" if options.split(',').any(|o| o == names[0]) => {
                return Some(Controller { version: 1, root });
            }
            "cgroup2" if controllers(&root).split_whitespace().any(|c| c == names[1]) => {
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
    /// The memory controller of this host. Fails if none can be used.
    pub fn find() -> Result<Controller, CgroupError> {
        Controller::named("memory", "memory")?.ok_or(CgroupError::NoController)
    }

    /// The controller with these names in v1 and v2, if mounted.
    pub fn named(first: &str, second: &str) -> Result<Option<Controller>, CgroupError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(CgroupError::NotRoot);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let read =
            |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        Ok(find_in(&mounts, [first, second], read))
    }
}

/// Figures of a group's memory.stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Anonymous memory.
    pub anonymous_bytes: u64,
    /// Major faults since the group was made.
    pub major_faults: Option<u64>,
    /// Pages swapped in, if the kernel counts them per group.
    pub swapped_in_pages: Option<u64>,
    /// Pages swapped out, if the kernel counts them per group.
    pub swapped_out_pages: Option<u64>,
}

fn figures_in(version: u32, text: &str) -> Figures {
    let all = numbers(text);
    let get = |name: &str| all.get(name).copied();
    // With zswap, pages go to the pool first, and pages of zeros are not stored; all of these count, as in
    // the host's counters. (Groups have pswp* since 2025, later than the others.)
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

fn cannot_set_up(path: &Path, source: std::io::Error) -> CgroupError {
    CgroupError::SetUp {
        path: path.to_owned(),
        source,
    }
}

/// Enables this controller below the root of v2, until the end of the run. v1 needs nothing.
pub(super) fn enable(
    controller: &Controller,
    undo: &Arc<Undo>,
    which: &str,
) -> Result<(), CgroupError> {
    if controller.version == 1 {
        return Ok(());
    }
    let enabled = controller.root.join("cgroup.subtree_control");
    let now = fs::read_to_string(&enabled).unwrap_or_default();
    if now.split_whitespace().any(|c| c == which) {
        return Ok(());
    }
    undo.note(Step::WriteBack {
        path: enabled.clone(),
        text: format!("-{which}"),
    })?;
    fs::write(&enabled, format!("+{which}")).map_err(|e| cannot_set_up(&enabled, e))
}

/// A control group of the bench; dropping it kills its processes and removes it.
pub struct Group {
    version: u32,
    path: PathBuf,
    _held: Held,
}

impl Group {
    /// Creates a group with a limit of `limit_bytes` (or none, only for counting), whose programs may be
    /// swapped or not.
    pub fn new(
        controller: &Controller,
        undo: &Arc<Undo>,
        name: &str,
        limit_bytes: Option<u64>,
        may_swap: bool,
    ) -> Result<Group, CgroupError> {
        let group = Group::made(controller, undo, name, "memory")?;
        let set = |file: &str, text: String| group.set(file, &text);
        match (controller.version, limit_bytes) {
            (1, Some(bytes)) => set("memory.limit_in_bytes", bytes.to_string())?,
            (2, Some(bytes)) => set("memory.max", bytes.to_string())?,
            _ => {}
        }
        if !may_swap {
            match controller.version {
                1 => set("memory.swappiness", "0".to_owned())?,
                // Absent if swap is not accounted: then there is nothing to forbid.
                _ if group.path.join("memory.swap.max").exists() => {
                    set("memory.swap.max", "0".to_owned())?;
                }
                _ => {}
            }
        }
        Ok(group)
    }

    /// Creates a group of one controller, without limits.
    pub(super) fn made(
        controller: &Controller,
        undo: &Arc<Undo>,
        name: &str,
        which: &str,
    ) -> Result<Group, CgroupError> {
        enable(controller, undo, which)?;
        let path = controller
            .root
            .join(format!("canvas-bench-{}-{name}", std::process::id()));
        let held = undo.hold(Step::RemoveCgroup { path: path.clone() })?;
        fs::create_dir(&path).map_err(|e| cannot_set_up(&path, e))?;
        Ok(Group {
            version: controller.version,
            path,
            _held: held,
        })
    }

    /// Writes one of the group's settings.
    pub(super) fn set(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        let file = self.path.join(file);
        fs::write(&file, text).map_err(|e| cannot_set_up(&file, e))
    }

    /// Command line that runs `command` in the group: a shell enters it, then execs the program.
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

    /// Number of the group's processes that the kernel killed because memory was short.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.version == 1 {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        numbers(&text).get("oom_kill").copied().unwrap_or(0)
    }

    /// Memory figures of the group.
    pub fn figures(&self) -> Figures {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        figures_in(self.version, &text)
    }

    /// User and system time of all processes of the group, past ones included, in seconds; only v2 has them.
    pub fn cpu_s(&self) -> Option<(f64, f64)> {
        let text = fs::read_to_string(self.path.join("cpu.stat")).ok()?;
        let all = numbers(&text);
        let seconds = |name| Some(*all.get(name)? as f64 / 1e6);
        Some((seconds("user_usec")?, seconds("system_usec")?))
    }

    /// A reclaimer of the group's memory.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer {
            version: self.version,
            path: self.path.clone(),
        }
    }

    /// Processes in the group.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(&self.path)
    }

    /// Kills the processes in the group.
    pub fn kill_all(&self) {
        kill_all(&self.path);
    }
}

/// Reclaims memory from a group.
pub struct Reclaimer {
    version: u32,
    path: PathBuf,
}

impl Reclaimer {
    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    /// Memory of the group, in bytes.
    pub fn usage_bytes(&self) -> u64 {
        let file = match self.version {
            1 => "memory.usage_in_bytes",
            _ => "memory.current",
        };
        self.read(file).trim().parse().unwrap_or(0)
    }

    /// Time in which a process of the group waited for memory; with v1 that of the whole host, which has no
    /// figure per group.
    pub fn stalled(&self) -> Duration {
        let text = match self.version {
            1 => fs::read_to_string("/proc/pressure/memory").unwrap_or_default(),
            _ => self.read("memory.pressure"),
        };
        stalled_in(&text)
    }

    /// Has the kernel reclaim this number of bytes, or what it can.
    pub fn reclaim(&self, bytes: u64) {
        // What the kernel cannot reclaim stays; the next step follows soon.
        if self.version == 2 {
            let _ = fs::write(self.path.join("memory.reclaim"), bytes.to_string());
            return;
        }
        // Lowering the limit makes the kernel reclaim the excess; it refuses instead of killing a process.
        let limit = self.path.join("memory.limit_in_bytes");
        let lower = self.usage_bytes().saturating_sub(bytes).max(1 << 20);
        let _ = fs::write(&limit, lower.to_string());
        let _ = fs::write(&limit, "-1");
    }
}

/// Total time in a line such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234", which is in us.
fn stalled_in(pressure: &str) -> Duration {
    let line = pressure.lines().find(|l| l.starts_with("some "));
    let total = line.and_then(|l| l.split_once("total=")?.1.trim().parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

fn processes_in(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|l| l.parse().ok()).collect()
}

fn kill_all(path: &Path) {
    let pids = processes_in(path);
    // Cannot kill the bench itself, which is never in one of its groups.
    processes::kill_all(&pids);
}

/// Kills all processes of the group at `path` and removes it.
pub fn remove(path: &Path) -> Result<(), CgroupError> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if !path.is_dir() {
            return Ok(());
        }
        kill_all(path);
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            // Processes need some time to exit.
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

    const MEMORY: [&str; 2] = ["memory"; 2];

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
        assert_eq!(
            find_in(v1, MEMORY, with),
            controller(1, "/sys/fs/cgroup/memory")
        );
        assert_eq!(find_in(v2, MEMORY, with), controller(2, "/sys/fs/cgroup"));
        assert_eq!(find_in(v2, MEMORY, without), None);
        assert_eq!(
            find_in(&format!("{v2}{v1}"), MEMORY, with),
            controller(1, "/sys/fs/cgroup/memory")
        );
        assert_eq!(find_in("", MEMORY, with), None);
        let disks = "cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n";
        assert_eq!(
            find_in(&format!("{v1}{disks}"), ["blkio", "io"], with),
            controller(1, "/sys/fs/cgroup/blkio")
        );
    }

    #[test]
    fn lost_time_is_read() {
        let text =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=7\n";
        assert_eq!(stalled_in(text), Duration::from_millis(1500));
        assert_eq!(stalled_in(""), Duration::ZERO);
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
