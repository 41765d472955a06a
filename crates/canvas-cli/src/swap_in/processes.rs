//! Selects processes, and finds their swapped pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use canvas_place::swap_in::{Piece, add};
use canvas_sys::Errno as SysErrno;
use canvas_sys::pagemap::{Pagemap, Run};
use canvas_sys::process::Process;
use canvas_types::PAGE_SIZE;
use nix::errno::Errno;

use super::system::kib_of;
use crate::args::SwapInArgs;
use crate::error::Failure;

/// End of a process's addresses.
const END: usize = 0x7fff_ffff_f000;
/// Most runs returned by one call.
const RUNS: usize = 1024;
/// Entries of a pagemap read at a time.
const ENTRIES: usize = 4096;
/// Mount point of control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The processes whose pages come back.
pub enum Who {
    /// These processes.
    Pids(Vec<u32>),
    /// The processes of a control group.
    Group(PathBuf),
    /// All processes.
    All,
}

impl Who {
    /// The selection by the flags.
    pub fn of(args: &SwapInArgs) -> Result<Who, Failure> {
        let Some(group) = &args.cgroup else {
            return Ok(match args.pid.is_empty() {
                true => Who::All,
                false => Who::Pids(args.pid.clone()),
            });
        };
        let below = Path::new(CGROUPS).join(group);
        let dir = [group, &below].into_iter().find(|d| procs(d).exists());
        match dir {
            Some(dir) => Ok(Who::Group(dir.clone())),
            None => Err(Failure::usage(format!(
                "--cgroup {}: there is no such control group; write a directory below {CGROUPS}",
                group.display()
            ))),
        }
    }

    /// The selected processes with swapped pages, in ascending order of pages: callers take from
    /// the end.
    pub fn sources(&self) -> Result<Vec<Source>, Failure> {
        let pids = match self {
            Who::Pids(pids) => {
                if let Some(pid) = pids.iter().find(|pid| status(**pid).is_none()) {
                    return Err(Failure::usage(format!(
                        "--pid {pid}: there is no such process"
                    )));
                }
                pids.clone()
            }
            Who::Group(dir) => {
                let mut pids = Vec::new();
                of_group(dir, &mut pids).map_err(|e| {
                    Failure::usage(format!(
                        "--cgroup {}: its processes cannot be read: {}",
                        dir.display(),
                        crate::reason(&e)
                    ))
                })?;
                pids
            }
            Who::All => every_process()?,
        };
        let own = std::process::id();
        let swapped = |pid: u32| Some((kib_of(&status(pid)?, "VmSwap:")?, pid));
        let mut found: Vec<_> = pids
            .into_iter()
            .filter(|pid| *pid != own)
            .filter_map(swapped)
            .filter(|(kib, _)| *kib > 0)
            .collect();
        found.sort_unstable();
        found.dedup();
        Ok(found.into_iter().map(|(_, pid)| Source::new(pid)).collect())
    }
}

fn procs(dir: &Path) -> PathBuf {
    dir.join("cgroup.procs")
}

fn status(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

fn every_process() -> Result<Vec<u32>, Failure> {
    let entries = fs::read_dir("/proc")
        .map_err(|e| Failure::usage(format!("/proc cannot be read: {}", crate::reason(&e))))?;
    let names = entries.flatten().map(|e| e.file_name());
    Ok(names.filter_map(|n| n.to_str()?.parse().ok()).collect())
}

/// The processes of a group and its descendants.
fn of_group(dir: &Path, pids: &mut Vec<u32>) -> io::Result<()> {
    let text = fs::read_to_string(procs(dir))?;
    pids.extend(text.lines().filter_map(|l| l.parse::<u32>().ok()));
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            // The group may have been removed.
            let _ = of_group(&entry.path(), pids);
        }
    }
    Ok(())
}

/// Why a process is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// It has ended.
    #[error("the process has ended")]
    Gone,
    /// This user lacks the rights.
    #[error(
        "process {0} may not be touched by this user; be root, or have CAP_SYS_NICE and the rights of a debugger"
    )]
    NotAllowed(u32),
    /// The kernel is too old.
    #[error("this kernel cannot bring pages of other processes back (Linux 5.13 and later can)")]
    NotHere,
    /// Another error.
    #[error("pages of process {0} cannot be brought back: {1}")]
    Fails(u32, &'static str),
}

impl Refused {
    fn of(pid: u32, e: SysErrno) -> Refused {
        match Errno::from_raw(e.0) {
            Errno::ESRCH | Errno::ENOENT => Refused::Gone,
            Errno::EPERM | Errno::EACCES => Refused::NotAllowed(pid),
            Errno::ENOSYS | Errno::EINVAL => Refused::NotHere,
            e => Refused::Fails(pid, e.desc()),
        }
    }
}

/// Iterates over the swapped pages of a process, from the lowest address on.
pub struct Source {
    pid: u32,
    open: Option<(Process, Pagemap)>,
    /// Addresses below this were examined.
    at: usize,
    /// Swapped ranges found so far; the next one last.
    ranges: Vec<(usize, usize)>,
    /// All swapped pages were added.
    is_done: bool,
    asked: bool,
}

impl Source {
    fn new(pid: u32) -> Source {
        Source {
            pid,
            open: None,
            at: 0,
            ranges: Vec::new(),
            is_done: false,
            asked: false,
        }
    }

    /// The process's pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether all swapped pages were added.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether some of its pages were requested.
    pub fn was_asked(&self) -> bool {
        self.asked
    }

    /// Opens the process and its page map.
    pub fn open(&mut self) -> Result<(), Refused> {
        if self.open.is_none() {
            let process = Process::open(self.pid).map_err(|e| Refused::of(self.pid, e))?;
            let map = Pagemap::of_process(self.pid).map_err(|e| Refused::of(self.pid, e))?;
            self.open = Some((process, map));
        }
        Ok(())
    }

    /// Adds up to `pages_max` swapped pages; returns how many.
    pub fn add(&mut self, pages_max: u64, pieces: &mut Vec<Piece>) -> u64 {
        let page = PAGE_SIZE as u64;
        let mut added = 0;
        let mut entries = vec![0u64; ENTRIES];
        while added < pages_max {
            if self.ranges.is_empty() && !self.find((pages_max - added) as usize) {
                self.is_done = true;
                break;
            }
            let Some((start, end)) = self.ranges.pop() else {
                continue;
            };
            let Some((_, map)) = &self.open else { break };
            let wanted = ((end - start) / PAGE_SIZE).min(ENTRIES);
            let given = map.read(start, &mut entries[..wanted]);
            let first = start as u64 / page;
            let (n, looked) = add(
                self.pid,
                first,
                &entries[..given],
                pages_max - added,
                pieces,
            );
            added += n;
            // A process that has ended returns no entries.
            let next = start + looked * PAGE_SIZE;
            if given > 0 && next < end {
                self.ranges.push((next, end));
            }
        }
        added
    }

    /// Finds further swapped ranges; false if there are none.
    fn find(&mut self, pages_max: usize) -> bool {
        let Some((_, map)) = self.open.as_ref().filter(|_| self.at < END) else {
            return false;
        };
        let mut runs = [Run::default(); RUNS];
        match map.swapped_runs(self.at, END, pages_max, &mut runs) {
            Ok(found) => {
                let ranges = runs[..found.runs].iter();
                let range = |r: &Run| (r.start(), r.start() + r.pages() * PAGE_SIZE);
                self.ranges = ranges.rev().map(range).collect();
                // Always moves forward, whatever the kernel returns.
                self.at = found.until.max(self.at + PAGE_SIZE);
                found.runs > 0
            }
            // Before Linux 6.7.
            Err(_) => {
                let text = fs::read_to_string(format!("/proc/{}/smaps", self.pid));
                self.ranges = swapped_mappings(&text.unwrap_or_default());
                self.ranges.reverse();
                self.at = END;
                !self.ranges.is_empty()
            }
        }
    }

    /// Requests pieces of this process; returns the number of pages requested.
    pub fn ask(&mut self, pieces: &[Piece]) -> Result<u64, Refused> {
        let Some((process, _)) = &self.open else {
            return Err(Refused::Gone);
        };
        let ranges: Vec<_> = pieces
            .iter()
            .map(|p| (p.page as usize * PAGE_SIZE, p.pages as usize * PAGE_SIZE))
            .collect();
        let (mut at, mut asked) = (0, 0);
        while at < ranges.len() {
            let done = match process.will_need(&ranges[at..]) {
                Ok(done) => done,
                // It is no longer mapped.
                Err(SysErrno(libc_errno::ENOMEM)) => 0,
                Err(e) => return Err(Refused::of(self.pid, e)),
            };
            asked += pieces[at..at + done].iter().map(|p| p.pages).sum::<u64>();
            at += done.max(1);
        }
        self.asked |= asked > 0;
        Ok(asked)
    }
}

/// The kernel's error numbers.
mod libc_errno {
    pub const ENOMEM: i32 = nix::errno::Errno::ENOMEM as i32;
}

/// Start and end of each mapping with swapped pages, from the text of smaps.
fn swapped_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| {
            let (start, end) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?))
        });
        if range.is_some() {
            mapping = range;
        } else if kib_of(line, "Swap:").is_some_and(|kib| kib > 0)
            && let Some((start, end)) = mapping.take()
            && start < end
            && end <= END
        {
            found.push((start, end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_with_swap_are_found_in_smaps() {
        let text = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Swap:                 64 kB
SwapPss:              64 kB
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
Swap:                  0 kB
7f0000002000-7f0000004000 rw-p 00000000 00:00 0
Swap:                  8 kB
VmFlags: rd wr mr
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Swap:                  4 kB
";
        let want = [
            (0x55d0_c000_0000, 0x55d0_c002_1000),
            (0x7f00_0000_2000, 0x7f00_0000_4000),
        ];
        assert_eq!(swapped_mappings(text), want);
        assert_eq!(swapped_mappings("nonsense\nSwap: 4 kB\n"), []);
    }

    #[test]
    fn a_process_is_read_to_its_end() {
        let mut own = Source::new(std::process::id());
        own.open().unwrap();
        let mut pieces = Vec::new();
        own.add(u64::MAX >> 13, &mut pieces);
        assert!(own.is_done());
        let mut none = Source::new(i32::MAX as u32);
        assert_eq!(none.open(), Err(Refused::Gone));
    }
}
