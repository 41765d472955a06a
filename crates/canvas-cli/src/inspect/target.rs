//! The process that is looked at: its memory, and the tenant's segment that it shares.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use canvas_shm::{Far, ProcSlot, Segment};
use canvas_types::procfs::Stat;
use canvas_types::{PAGE_SIZE, PageBuf, layout};

use super::maps::{self, Map};
use crate::error::Failure;

/// A managed process.
pub struct Target {
    /// Its number here.
    pub pid: u32,
    /// /proc/PID/mem: reading it never waits for the process, and never brings a page in.
    mem: File,
    /// /proc/PID/pagemap.
    pagemap: File,
    /// Its place among the tenant's processes.
    pub index: usize,
    /// The tenant's far area, if there is one.
    pub far: Option<&'static Far>,
    /// The key of the content hash of its pages.
    key: OnceLock<PageBuf>,
}

/// The page is in memory, or in the kernel's swap.
pub const PRESENT: u64 = 0b11 << 62;

impl Target {
    /// Finds it, with what is needed to look at it.
    pub fn open(pid: u32) -> Result<Target, Failure> {
        let there = proc_path(pid, "stat");
        if fs::metadata(&there).is_err() {
            return Err(Failure::usage(format!(
                "there is no process {pid}; `canvas status` shows the processes of each run"
            )));
        }
        let refused = |e: &io::Error| {
            Failure::usage(format!(
                "the memory of process {pid} may not be read ({}); be its user or root, with the rights that a \
                 debugger needs (ptrace(2); kernel.yama.ptrace_scope)",
                crate::reason(e)
            ))
        };
        let open = |name| File::open(proc_path(pid, name)).map_err(|e| refused(&e));
        let (mem, pagemap) = (open("mem")?, open("pagemap")?);
        let fds = descriptors(pid, "/memfd:canvas-segment").map_err(|e| refused(&e))?;
        let Some((index, far)) = fds.iter().find_map(|path| segment_of(pid, path)) else {
            return Err(Failure::usage(format!(
                "process {pid} is not managed by canvas: nothing of it is far, so any debugger reads it; \
                 `canvas status` shows those that are"
            )));
        };
        Ok(Target {
            pid,
            mem,
            pagemap,
            index,
            far,
            key: OnceLock::new(),
        })
    }

    /// Copies memory as it lies there; an error when a page of it is absent.
    pub fn copy(&self, addr: usize, out: &mut [u8]) -> io::Result<()> {
        self.mem.read_exact_at(out, addr as u64)
    }

    /// The key by which its far pages are verified. It has been made before there are any.
    pub fn key(&self) -> io::Result<&PageBuf> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let mut key = [0; PAGE_SIZE];
        self.copy(layout::tables(layout::KEYS), &mut key)?;
        Ok(self.key.get_or_init(|| key))
    }

    /// A number of the process's.
    pub fn word(&self, addr: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.copy(addr, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Numbers of the process's, from `addr` on.
    pub fn words(&self, addr: usize, out: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; out.len() * 8];
        self.copy(addr, &mut bytes)?;
        numbers(&bytes, out);
        Ok(())
    }

    /// What the kernel's page tables say of pages from `page` (an address divided by a page) on.
    pub fn pagemap(&self, page: usize, out: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; out.len() * 8];
        self.pagemap.read_exact_at(&mut bytes, page as u64 * 8)?;
        numbers(&bytes, out);
        Ok(())
    }

    /// What it maps.
    pub fn maps(&self) -> Result<Vec<Map>, Failure> {
        let text = fs::read(proc_path(self.pid, "smaps")).map_err(|e| self.gone(&e))?;
        Ok(maps::parse(&text))
    }

    /// The same, sooner, without telling which have pages of their own.
    pub fn maps_only(&self) -> Result<Vec<Map>, Failure> {
        let text = fs::read(proc_path(self.pid, "maps")).map_err(|e| self.gone(&e))?;
        Ok(maps::parse(&text))
    }

    /// Its files by the name that the kernel gives them.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        descriptors(self.pid, name).unwrap_or_default()
    }

    fn gone(&self, e: &io::Error) -> Failure {
        Failure::usage(format!(
            "process {} cannot be looked at any more: {}",
            self.pid,
            crate::reason(e)
        ))
    }
}

fn numbers(bytes: &[u8], out: &mut [u64]) {
    for (number, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *number = u64::from_ne_bytes(*bytes);
    }
}

/// /proc/PID/NAME.
pub fn proc_path(pid: u32, name: &str) -> PathBuf {
    format!("/proc/{pid}/{name}").into()
}

/// Descriptors of a process whose files have this name.
fn descriptors(pid: u32, name: &str) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(proc_path(pid, "fd"))?;
    let paths = entries.flatten().map(|e| e.path());
    let deleted = format!("{name} (deleted)");
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.as_os_str() == &*deleted);
    Ok(paths.filter(is_it).collect())
}

/// The process's place in the segment behind a descriptor, if it is one of its tenant's, and the far area.
fn segment_of(pid: u32, path: &PathBuf) -> Option<(usize, Option<&'static Far>)> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let segment = Segment::map(&file).ok()?;
    if segment.magic.load(Acquire) != canvas_shm::segment::MAGIC {
        return None;
    }
    let stat = Stat::parse(&fs::read(proc_path(pid, "stat")).ok()?)?;
    let numbers = own_numbers(&fs::read(proc_path(pid, "status")).ok()?);
    let is_it = |slot: &&ProcSlot| {
        let ticks = slot.start_ticks.load(Relaxed);
        numbers.contains(&slot.pid.load(Acquire)) && (ticks == 0 || ticks == stat.start_ticks)
    };
    let index = segment.index_of(segment.procs.iter().find(is_it)?);
    // From here on addresses are those of this tenant: we look at no other one.
    let bases = segment.config.bases();
    if !layout::place(bases) && layout::bases() != bases {
        return None;
    }
    Some((index, Far::map(&file).ok()))
}

/// The numbers that a process has, in this namespace and those below, from its status.
fn own_numbers(status: &[u8]) -> Vec<u32> {
    let line = status
        .split(|b| *b == b'\n')
        .find_map(|l| l.strip_prefix(b"NSpid:"));
    let text = String::from_utf8_lossy(line.unwrap_or_default());
    text.split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_each_namespace() {
        assert_eq!(own_numbers(b"Pid:\t7\nNSpid:\t7\t12\t1\n"), [7, 12, 1]);
        assert!(own_numbers(b"Pid:\t7\n").is_empty());
    }

    #[test]
    fn who_is_not_there_and_who_is_not_managed() {
        let sentence = |pid| Target::open(pid).err().unwrap().sentence;
        assert!(sentence(u32::MAX).starts_with("there is no process 4294967295"));
        let own = sentence(std::process::id());
        assert!(own.contains("is not managed by canvas"), "{own}");
    }
}
