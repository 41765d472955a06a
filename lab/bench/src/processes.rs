//! Processes as /proc shows them: ancestry, memory, and killing them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use canvas_types::procfs::{Stat, cpu_ticks, memory_bytes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process tree is still alive after it was killed; has the pid of one of its processes.
#[derive(Debug, thiserror::Error)]
#[error("process {0} does not end")]
pub struct TreeError(pub u32);

/// The state of process `pid`; `None` if there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// All processes.
fn all() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect()
}

/// The living processes that descend from `root` (itself included), or are in its process group and not older
/// than it.
fn family(table: &HashMap<u32, Stat>, root: u32, start_ticks: u64) -> Vec<u32> {
    // The pid was reused: then the group of that number belongs to another process too.
    if table
        .get(&root)
        .is_some_and(|s| s.start_ticks != start_ticks)
    {
        return Vec::new();
    }
    let mut found: Vec<u32> = table
        .iter()
        .filter(|(pid, s)| **pid == root || (s.group == root && s.start_ticks >= start_ticks))
        .map(|(pid, _)| *pid)
        .collect();
    // The root first: a shell would continue with its next line when its child is killed.
    found.sort_by_key(|pid| (*pid != root, *pid));
    let mut at = 0;
    while at < found.len() {
        for (pid, s) in table {
            if s.parent == found[at] && !found.contains(pid) {
                found.push(*pid);
            }
        }
        at += 1;
    }
    found.retain(|pid| {
        table
            .get(pid)
            .is_some_and(|s| !matches!(s.state, b'Z' | b'X'))
    });
    found
}

/// Living processes of the tree below `root`, which leads a process group and started at `start_ticks`.
pub fn tree(root: u32, start_ticks: u64) -> Vec<u32> {
    family(&all(), root, start_ticks)
}

/// Processor time of these processes and of the children they waited for, in seconds, with a resolution of a
/// clock tick.
pub fn cpu_s(pids: &[u32]) -> f64 {
    let one = |pid: &u32| cpu_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?);
    pids.iter().filter_map(one).sum::<u64>() as f64 / ticks_a_second()
}

/// Clock ticks per second.
fn ticks_a_second() -> f64 {
    let a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    a_second.ok().flatten().unwrap_or(100).max(1) as f64
}

/// Processor time of the threads of a process whose names have this prefix, in seconds, by name.
pub fn threads_cpu_s(pid: u32, prefix: &str) -> BTreeMap<String, f64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let one = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let name = name.trim_end();
        let ticks = || cpu_ticks(&fs::read(task.path().join("stat")).ok()?);
        let used_s = || Some((name.to_owned(), ticks()? as f64 / ticks_a_second()));
        name.starts_with(prefix).then(used_s)?
    };
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(one)
        .collect()
}

/// Anonymous memory of these processes, in bytes, from the kernel's counters; pages shared after a fork count
/// once per process.
pub fn anonymous_bytes(pids: &[u32]) -> u64 {
    let one = |pid: &u32| {
        let text = fs::read(format!("/proc/{pid}/status")).ok()?;
        memory_bytes(&text, "RssAnon")
    };
    pids.iter().filter_map(one).sum()
}

/// Kills these processes; processes that have ended are not an error.
pub fn kill_all(pids: &[u32]) {
    for pid in pids {
        if let Ok(pid) = i32::try_from(*pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Environment variable of everything the bench starts, by which processes are found when the bench dies
/// before it has learned their pid. A program that overwrites its environment (for its title) does so later.
pub const MARK: &str = "BENCH_CHILD";

/// Living processes with this value of [`MARK`], except those of other users.
fn marked(mark: &str) -> Vec<u32> {
    let entry = format!("{MARK}={mark}");
    let bears = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|b| *b == 0)
            .any(|e| e == entry.as_bytes())
    };
    all().into_keys().filter(bears).collect()
}

/// Kills these processes repeatedly until there are none; fails after a few seconds.
fn end_until_none(living: impl Fn() -> Vec<u32>) -> Result<(), TreeError> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let pids = living();
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(TreeError(pids[0]));
        }
        kill_all(&pids);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills all processes with this value of [`MARK`]; fails like [`end_tree`].
pub fn end_marked(mark: &str) -> Result<(), TreeError> {
    end_until_none(|| marked(mark))
}

/// Kills the whole tree below `root`; fails if some of it is alive after a few seconds.
pub fn end_tree(root: u32, start_ticks: u64) -> Result<(), TreeError> {
    end_until_none(|| tree(root, start_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn p(parent: u32, group: u32, start_ticks: u64) -> Stat {
        Stat {
            state: b'S',
            parent,
            group,
            threads: 1,
            start_ticks,
        }
    }

    #[test]
    fn a_family_is_descendants_and_the_group_left_behind() {
        let mut table = HashMap::from([
            (10, p(1, 10, 100)),
            (11, p(10, 10, 101)),
            (12, p(11, 12, 102)),
            (13, p(1, 10, 103)),
            (20, p(1, 20, 50)),
        ]);
        let sorted = |t: &HashMap<u32, Stat>| {
            let mut v = family(t, 10, 100);
            v.sort_unstable();
            v
        };
        assert_eq!(sorted(&table), [10, 11, 12, 13]);
        table.remove(&10);
        assert_eq!(sorted(&table), [11, 12, 13], "its group is still there");
        table.insert(10, p(1, 10, 500));
        assert_eq!(sorted(&table), [0; 0], "the number belongs to another now");
    }

    #[test]
    fn a_name_need_not_be_utf_8() {
        let mut child = canvas_testing::process::with_name_not_utf8();
        let pid = child.id();
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(name, canvas_testing::process::NAME_NOT_UTF8);
        assert_eq!(tree(pid, stat(pid).unwrap().start_ticks), [pid]);
        assert!(anonymous_bytes(&[pid]) > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_tree_is_ended_with_grandchildren() {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("sh")
            .args(["-c", "sleep 100 & sleep 100; :"])
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = child.id();
        let ticks = stat(pid).unwrap().start_ticks;
        while tree(pid, ticks).len() < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(anonymous_bytes(&[pid]) > 0);
        // The test reaps the child, as the bench does.
        let reaper = std::thread::spawn(move || child.wait().unwrap());
        end_tree(pid, ticks).unwrap();
        assert_eq!(tree(pid, ticks), [0; 0]);
        assert!(!reaper.join().unwrap().success());
    }
}
