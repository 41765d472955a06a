//! Capture of pages of real programs: runs a workload in plain memory, and copies a sample of its anonymous
//! pages when its memory has stopped growing.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use canvas_types::procfs::Mapping;
use canvas_types::{PAGE_SIZE, PageBuf};

use super::CodecError;
use crate::engine::child::Child;
use crate::host::undo::Undo;
use crate::processes;
use crate::workload::{Place, Plan, Workload};

/// Interval at which a program's memory is sampled.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Number of samples with less than 2 % growth after which memory counts as stable.
const STILL_LOOKS: usize = 10;
/// Timeout of a server's start, and of a program's or a client's work.
const PATIENCE: Duration = Duration::from_secs(120);
/// Mappings longer than this are reserved address space, and are skipped.
const MAPPING_BYTES_MAX: usize = 64 << 30;

/// Address range of a mapping, if its memory is anonymous and private.
fn is_anonymous(line: &[u8]) -> Option<(usize, usize)> {
    let m = Mapping::parse(line)?;
    let named = m.name.is_empty() || m.name == b"[heap]" || m.name.starts_with(b"[anon:");
    let ours = m.is_private && named && m.end - m.start <= MAPPING_BYTES_MAX;
    ours.then_some((m.start, m.end))
}

/// Addresses of a process's pages in memory.
fn present(pid: u32) -> std::io::Result<Vec<u64>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut found = Vec::new();
    for (start, end) in maps.split(|b| *b == b'\n').filter_map(is_anonymous) {
        let mut words = vec![0; (end - start) / PAGE_SIZE * 8];
        let Ok(read) = pagemap.read_at(&mut words, (start / PAGE_SIZE * 8) as u64) else {
            continue;
        };
        for (n, word) in words[..read].as_chunks::<8>().0.iter().enumerate() {
            // The highest bit says that the page is in memory.
            if u64::from_ne_bytes(*word) >> 63 != 0 {
                found.push((start + n * PAGE_SIZE) as u64);
            }
        }
    }
    Ok(found)
}

/// `count` of the addresses, evenly spread from an offset that the seed fixes; all of them if there are not
/// more.
fn spread(all: &[u64], count: usize, seed: u64) -> Vec<u64> {
    if all.len() <= count {
        return all.to_vec();
    }
    let begin = fastrand::Rng::with_seed(seed).usize(..all.len());
    let at = |n: usize| all[(begin + n * all.len() / count) % all.len()];
    (0..count).map(at).collect()
}

/// Copies pages of the process with the most memory.
fn pages_of(pids: &[u32], count: usize, seed: u64) -> Result<Vec<PageBuf>, CodecError> {
    let largest = pids
        .iter()
        .max_by_key(|p| processes::anonymous_bytes(&[**p]));
    let pid = *largest.ok_or(CodecError::Gone)?;
    let fail = |source| CodecError::Memory { pid, source };
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(fail)?;
    let mut pages = Vec::new();
    for address in spread(&present(pid).map_err(fail)?, count, seed) {
        let mut page = [0; PAGE_SIZE];
        // Skips pages that were unmapped since.
        if memory.read_exact_at(&mut page, address).is_ok() {
            pages.push(page);
        }
    }
    match pages.len() {
        0 => Err(CodecError::Gone),
        _ => Ok(pages),
    }
}

fn ended(child: &mut Child, at_most: Duration) -> Result<bool, CodecError> {
    match child.wait(at_most) {
        Some(e) if !e.status.success() => Err(CodecError::Failed(child.complaint())),
        other => Ok(other.is_some()),
    }
}

/// Copies pages of a program once its memory has stopped growing. Also copies them whenever memory has grown
/// by a quarter, so that a program that ends while it grows leaves pages.
fn grown(child: &mut Child, count: usize, seed: u64) -> Result<Vec<PageBuf>, CodecError> {
    let until = Instant::now() + PATIENCE;
    let mut seen: Vec<u64> = Vec::new();
    let mut last: Option<(u64, Vec<PageBuf>)> = None;
    while Instant::now() < until {
        if ended(child, LOOK_EVERY)? {
            return last.map(|(_, pages)| pages).ok_or(CodecError::Gone);
        }
        let pids = processes::tree(child.pid(), child.start_ticks);
        let now = processes::anonymous_bytes(&pids);
        seen.push(now);
        if last.as_ref().is_none_or(|(then, _)| now > then + then / 4)
            && let Ok(pages) = pages_of(&pids, count, seed)
        {
            last = Some((now, pages));
        }
        if seen.len() > STILL_LOOKS && now - (now / 50) <= seen[seen.len() - 1 - STILL_LOOKS] {
            break;
        }
    }
    let pids = processes::tree(child.pid(), child.start_ticks);
    // The program may have ended since; then the last copies count.
    pages_of(&pids, count, seed).or_else(|e| last.map(|(_, pages)| pages).ok_or(e))
}

/// Runs a workload in plain memory and copies `count` of its pages.
pub fn capture(
    workload: &dyn Workload,
    place: &Place,
    count: usize,
    undo: &Arc<Undo>,
) -> Result<Vec<PageBuf>, CodecError> {
    if let Some(why) = workload.missing(place) {
        return Err(CodecError::Missing(why));
    }
    workload.prepare(place).map_err(CodecError::Missing)?;
    let plan = workload.plan(place, 0).map_err(CodecError::Missing)?;
    let dir: &Path = &place.scratch;
    let start = |command, tag: &str| {
        Child::start(command, dir, tag, undo).map_err(|e| CodecError::Failed(e.to_string()))
    };
    let mut child = match &plan {
        Plan::Program(command) => {
            let mut child = start(command, "program")?;
            let pages = grown(&mut child, count, place.seed);
            child.end();
            return pages;
        }
        Plan::Server {
            server,
            socket,
            clients,
        } => {
            let mut child = start(server, "program")?;
            let until = Instant::now() + PATIENCE;
            while TcpStream::connect(socket).is_err() {
                if ended(&mut child, LOOK_EVERY)? || Instant::now() > until {
                    return Err(CodecError::Failed(child.complaint()));
                }
            }
            for (n, command) in clients.iter().enumerate() {
                let mut client = start(command, &format!("client{n}"))?;
                if !ended(&mut client, PATIENCE)? {
                    return Err(CodecError::Failed("its client does not end".to_owned()));
                }
            }
            child
        }
    };
    let pids = processes::tree(child.pid(), child.start_ticks);
    let pages = pages_of(&pids, count, place.seed);
    child.end();
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{one_journal, request};
    use crate::host::reverse::Host;
    use crate::workload::Argv;

    #[test]
    fn pages_are_spread_and_follow_from_the_seed() {
        let all: Vec<u64> = (0..1000).collect();
        let some = spread(&all, 10, 3);
        assert_eq!(some, spread(&all, 10, 3));
        assert_ne!(some, spread(&all, 10, 4));
        let mut sorted = some.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|w| w[1] - w[0] == 100), "{sorted:?}");
        assert_eq!(spread(&all, 1000, 1), all);
    }

    #[test]
    fn only_anonymous_memory_is_taken() {
        let of = |text: &str| is_anonymous(text.as_bytes());
        assert_eq!(
            of("1000-3000 rw-p 00000000 00:00 0 "),
            Some((0x1000, 0x3000))
        );
        assert!(of("1000-3000 rw-p 00000000 00:00 0    [heap]").is_some());
        assert!(of("1000-3000 rw-p 00000000 fe:00 42   /bin/true").is_none());
        assert!(of("1000-3000 rw-s 00000000 00:00 0 ").is_none());
        assert!(of("1000-3000 rw-p 00000000 00:00 0    [stack]").is_none());
    }

    /// A program that ends while its memory grows still leaves pages.
    #[test]
    fn a_program_that_ends_while_it_grows_is_captured() {
        let _one = one_journal();
        let dir = tempfile::tempdir().unwrap();
        let undo = Arc::new(Undo::begin(&Host, &request(&[]).guardian).unwrap());
        // Ten million characters more every 0.2 s; the program ends before ten samples.
        let script = "x=; for i in 1 2 3 4; do x=$x$(head -c 4000000 /dev/zero | tr '\\0' a); sleep 0.1; done";
        let command = Argv {
            argv: ["sh", "-c", script].map(String::from).to_vec(),
            ..Argv::default()
        };
        let mut child = Child::start(&command, dir.path(), "grows", &undo).unwrap();
        let pages = grown(&mut child, 1 << 20, 1).unwrap();
        child.end();
        let of_text = pages.iter().filter(|page| page.iter().all(|b| *b == b'a'));
        assert!(of_text.count() > 500);
        assert_eq!(Arc::into_inner(undo).unwrap().finish(), [""; 0]);
    }

    /// Pages of this process are copied unchanged.
    #[test]
    fn a_process_has_its_pages_copied() {
        let marked: Vec<u8> = (0..64 * PAGE_SIZE).map(|n| (n / 8 % 251) as u8).collect();
        let at = marked.as_ptr() as u64;
        let pages = present(std::process::id()).unwrap();
        let inside = |a: &&u64| (at..at + 63 * PAGE_SIZE as u64).contains(a);
        assert!(pages.iter().filter(inside).count() >= 60);
        let copied = pages_of(&[std::process::id()], 1 << 20, 1).unwrap();
        let first = (at as usize).next_multiple_of(PAGE_SIZE) - at as usize;
        let aligned = &marked[first..first + PAGE_SIZE];
        assert!(copied.iter().any(|page| page == aligned));
    }
}
