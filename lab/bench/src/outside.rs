//! Local memory of a program under canvas, measured from outside: the memory of its processes less that of
//! the pool's mappings, both from the kernel. Canvas's own accounting is not used.

use std::fs;

use canvas_sys::proc::same_memory;
use canvas_types::procfs::memory_bytes;

/// Size of the mapping in which libcanvas keeps the compressed pool in each process (canvas-preload,
/// `areas.rs`). Its address is random for each tenant, and no other readable mapping has this size. The
/// kernel lists it in adjacent parts: those writable so far, those only readable, and with `--numa` those of
/// each node.
const POOL_BYTES: usize = 4 << 40;

/// Begin and end of a readable private mapping, from its header line in /proc/PID/smaps.
fn readable(head: &str) -> Option<(usize, usize)> {
    let (range, rest) = head.split_once(' ')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let ends = range
        .split_once('-')
        .and_then(|(a, b)| hex(a).zip(hex(b)))?;
    let mut access = rest.chars();
    (access.next() == Some('r') && access.nth(2) == Some('p')).then_some(ends)
}

/// Memory of the pool in the text of /proc/PID/smaps; pages shared after a fork count in proportion.
fn pool_in(smaps: &str) -> u64 {
    // Adjacent mappings, with their memory.
    let mut runs: Vec<(usize, usize, u64)> = Vec::new();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some(bytes) = memory_bytes(line.as_bytes(), "Pss") {
            if let (true, Some((.., memory))) = (inside, runs.last_mut()) {
                *memory += bytes;
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            let ends = readable(line);
            inside = ends.is_some();
            match (ends, runs.last_mut()) {
                (Some((begin, end)), Some((_, last, _))) if *last == begin => *last = end,
                (Some((begin, end)), _) => runs.push((begin, end, 0)),
                (None, _) => {}
            }
        }
    }
    let pools = runs
        .iter()
        .filter(|(begin, end, _)| end.checked_sub(*begin) == Some(POOL_BYTES));
    pools.map(|(.., memory)| memory).sum()
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Anonymous memory of a process: the smaller of two upper bounds. The kernel's walk over the maps may count
/// a moving page twice, and its counter counts shared pages in full.
fn anonymous(pid: u32) -> u64 {
    let field = |file, name| memory_bytes(read(pid, file).as_bytes(), name).unwrap_or(0);
    field("smaps_rollup", "Pss_Anon").min(field("status", "RssAnon"))
}

fn pools(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| pool_in(&read(*pid, "smaps"))).sum()
}

/// The processes, without those that share another's memory (a child of vfork before its exec).
fn memories(pids: &[u32]) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for pid in pids {
        if !found.iter().any(|other| same_memory(*pid, *other)) {
            found.push(*pid);
        }
    }
    found
}

/// Local memory of these processes in total, in bytes. The pools may change while the maps are read, so only
/// the part that is certain counts.
pub fn local_bytes(pids: &[u32]) -> u64 {
    let pids = &memories(pids)[..];
    let before = pools(pids);
    let anonymous: u64 = pids.iter().map(|pid| anonymous(*pid)).sum();
    anonymous.saturating_sub(before.max(pools(pids)))
}

/// Memory allowed under a limit of `limit_bytes`: 1 % more, or 4 MiB.
pub fn allowed_bytes(limit_bytes: u64) -> u64 {
    limit_bytes + (limit_bytes / 100).max(4 << 20)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::processes::{stat, tree};

    use super::*;

    #[test]
    fn only_the_pool_is_the_pool() {
        let smaps = "600000000000-600000100000 rw-p 00000000 00:00 0 \n\
                     Rss: 900 kB\nPss: 800 kB\nPss_Anon: 800 kB\n\
                     690000000000-6d0000000000 rw-p 00000000 00:00 0 \n\
                     Rss: 90 kB\nPss:                70 kB\nPss_Dirty: 5 kB\n\
                     700000000000-740000000000 ---p 00000000 00:00 0 \n\
                     Pss: 1 kB\n\
                     7e0000000000-7e0000001000 rw-p 00000000 00:00 0 \n\
                     Pss: 500 kB\n";
        assert_eq!(pool_in(smaps), 70 << 10);
        assert_eq!(pool_in(""), 0);
        // In parts: one on another NUMA node, one never used.
        let parts = "690000000000-6b0000000000 rw-p 00000000 00:00 0 \n\
                     Rss: 90 kB\nPss:                70 kB\nPss_Dirty: 5 kB\n\
                     6b0000000000-6c0000000000 rw-p 00000000 00:00 0 \n\
                     Pss: 30 kB\n\
                     6c0000000000-6d0000000000 r--p 00000000 00:00 0 \n\
                     Pss: 0 kB\n\
                     6d0000000000-6d0000001000 r--s 00000000 00:00 0 \n\
                     Pss: 4 kB\n";
        assert_eq!(pool_in(parts), 100 << 10);
    }

    #[test]
    fn what_a_process_fills_is_seen() {
        let me = [std::process::id()];
        let before = local_bytes(&me);
        let filled = vec![1u8; 32 << 20];
        let after = local_bytes(&me);
        assert!(after >= before + (24 << 20), "{before} {after}");
        drop(filled);
        assert_eq!(local_bytes(&[]), 0);
    }

    #[test]
    fn memory_of_two_processes_counts_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        // A child of posix_spawn shares its parent's memory until its exec, for which it waits here.
        let script = format!(
            "import os; os.posix_spawn('/bin/true', ['true'], {{}}, \
             file_actions=[(os.POSIX_SPAWN_OPEN, 0, {fifo:?}, os.O_RDONLY, 0)])"
        );
        let mut python = std::process::Command::new("python3")
            .args(["-c", &script])
            .spawn()
            .expect("python3");
        let start = stat(python.id()).expect("it lives").start_ticks;
        let until = Instant::now() + Duration::from_secs(30);
        let (mut pids, mut found) = (Vec::new(), Vec::new());
        while (pids.len(), &found[..]) != (2, &[python.id()]) && Instant::now() < until {
            pids = tree(python.id(), start);
            found = memories(&pids);
        }
        std::fs::write(&fifo, "").expect("the child reads");
        let status = python.wait().expect("it ends");
        assert_eq!((pids.len(), found), (2, vec![python.id()]));
        assert!(status.success());
        let me = std::process::id();
        assert_eq!(memories(&[me, 1, me]), [me, 1]);
    }

    #[test]
    fn a_little_more_is_allowed() {
        assert_eq!(allowed_bytes(8 << 20), 12 << 20);
        assert_eq!(allowed_bytes(1000 << 20), 1010 << 20);
    }
}
