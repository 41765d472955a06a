//! Memory of a process and its descendants according to the kernel: for runs without a limit, in
//! which processes do not account for memory themselves.

use std::fs;
use std::time::{Duration, Instant};

use canvas_sys::proc::same_memory;
use canvas_types::PAGE_SIZE;
use canvas_types::procfs::memory_bytes;

/// Pauses are at least this many times as long as a measurement, because the kernel walks page
/// tables for one.
const WAIT_TIMES: u32 = 20;
/// Most processes measured.
const PROCESSES_MAX: usize = 1024;

/// Measures a tree of processes now and then.
pub struct Tree {
    root: u32,
    next: Instant,
}

impl Tree {
    /// For `root` and its descendants.
    pub fn new(root: u32) -> Tree {
        Tree {
            root,
            next: Instant::now(),
        }
    }
    /// Resident anonymous pages of the tree, each shared page counted once; `None` if it is too
    /// soon after the last measurement.
    pub fn anon_pages(&mut self) -> Option<i64> {
        let began = Instant::now();
        if began < self.next {
            return None;
        }
        let pids = memories(self.root);
        let bytes: u64 = match pids[..] {
            // Within one process nothing is shared, and this figure needs no page table walk.
            [only] => field(only, "status", "RssAnon"),
            _ => pids
                .iter()
                .map(|p| field(*p, "smaps_rollup", "Pss_Anon"))
                .sum(),
        };
        let took = began.elapsed();
        self.next = began + (took * WAIT_TIMES).max(Duration::from_millis(1));
        Some((bytes / PAGE_SIZE as u64) as i64)
    }
}

/// `root` and its descendants, except those that use their parent's memory: children of vfork
/// before their exec. If the kernel does not tell, a process counts as having its own.
fn memories(root: u32) -> Vec<u32> {
    let all = descendants(root);
    let own = all
        .iter()
        .filter(|(pid, parent)| !same_memory(*pid, *parent));
    own.map(|(pid, _)| *pid).collect()
}

/// `root` and its descendants, each after its parent, with the parent's pid (0 for the root).
fn descendants(root: u32) -> Vec<(u32, u32)> {
    let mut all = vec![(root, 0)];
    let mut at = 0;
    while at < all.len() && all.len() < PROCESSES_MAX {
        // Children belong to the thread that forked them.
        let parent = all[at].0;
        for task in fs::read_dir(format!("/proc/{parent}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(
                text.split_ascii_whitespace()
                    .filter_map(|n| Some((n.parse().ok()?, parent))),
            );
        }
        at += 1;
    }
    all
}

/// Anonymous memory of a process that shares none, in bytes; 0 if it is gone. The kernel's counter
/// may lag by some pages per processor; it is used if nothing else may be read.
pub fn anon_bytes(pid: u32) -> u64 {
    match field(pid, "smaps_rollup", "Pss_Anon") {
        0 => field(pid, "status", "RssAnon"),
        bytes => bytes,
    }
}

/// A memory figure of /proc/PID/`file`, in bytes; 0 if the process is gone.
fn field(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    memory_bytes(&text, name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn memory_of_a_child_counts_and_ends_with_it() {
        let me = std::process::id();
        let alone = field(me, "status", "RssAnon");
        assert!(alone > 0);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendants(me).contains(&(child.id(), me)));
        // Until its exec it uses this process's memory.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !memories(me).contains(&child.id()) && Instant::now() < deadline {}
        assert!(memories(me).contains(&child.id()));
        assert!(field(child.id(), "smaps_rollup", "Pss_Anon") > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(me).contains(&(child.id(), me)));
        assert_eq!(field(child.id(), "status", "RssAnon"), 0);
    }

    /// A child of vfork that waits uses its parent's memory, which counts once.
    #[test]
    fn a_child_with_our_memory_is_not_counted_again() {
        let script = "import os, sys\n\
            wait = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]\n\
            os.posix_spawn('/bin/true', ['true'], {}, file_actions=wait)";
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut parent = Command::new("python3")
            .args(["-c", script])
            .arg(&fifo)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let id = parent.id();
        let is_counted_once = || memories(id).len() == 1 && descendants(id).len() == 2;
        while !is_counted_once() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_counted_once());
        // Lets the child continue, which may end at once: a write could find no reader.
        fs::OpenOptions::new().write(true).open(&fifo).unwrap();
        assert!(parent.wait().unwrap().success());
    }

    #[test]
    fn a_look_is_not_repeated_at_once() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut tree = Tree::new(child.id());
        assert!(tree.anon_pages().is_some());
        assert!(tree.next > Instant::now() - Duration::from_millis(1));
        drop(child.stdin.take());
        child.wait().unwrap();
        std::thread::sleep(tree.next.saturating_duration_since(Instant::now()));
        assert_eq!(tree.anon_pages(), Some(0));
    }
}
