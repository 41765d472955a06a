//! The inspected process: its memory, and its tenant's segment.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Acquire;

use canvas_core::pager::regions::{Region, kind};
use canvas_shm::lives::{Lives, map_offset};
use canvas_shm::{Far, ProcSlot, Segment};
use canvas_types::{PAGE_SIZE, PageBuf, layout};

use super::maps::{self, Map};
use crate::error::Failure;

/// A managed process.
pub struct Target {
    /// Its pid here.
    pub pid: u32,
    /// /proc/PID/mem: reading it never waits for the process and never faults a page in.
    mem: File,
    /// /proc/PID/pagemap.
    pagemap: File,
    /// Its index among the tenant's processes.
    pub index: usize,
    /// The tenant's far area, if there is one.
    pub far: Option<&'static Far>,
    /// Key of the content hash of its pages.
    key: OnceLock<PageBuf>,
}

/// Regions read together.
const REGIONS_AT_ONCE: usize = 512;

/// The pagemap bits of a page in memory or in the kernel's swap.
pub const PRESENT: u64 = 0b11 << 62;

impl Target {
    /// Opens the process with everything needed to inspect it.
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
                "process {pid} is not managed by canvas: none of its memory is far, so any debugger can read it; `canvas status` shows managed processes"
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

    /// Copies memory; an error if one of its pages is absent.
    pub fn copy(&self, addr: usize, out: &mut [u8]) -> io::Result<()> {
        self.mem.read_exact_at(out, addr as u64)
    }

    /// The key to verify its far pages. It exists before the first far page.
    pub fn key(&self) -> io::Result<&PageBuf> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let mut key = [0; PAGE_SIZE];
        self.copy(layout::tables(layout::KEYS), &mut key)?;
        Ok(self.key.get_or_init(|| key))
    }

    /// Reads a number of the process.
    pub fn word(&self, addr: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.copy(addr, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Reads numbers of the process, from `addr` on.
    pub fn words(&self, addr: usize, out: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; out.len() * 8];
        self.copy(addr, &mut bytes)?;
        numbers(&bytes, out);
        Ok(())
    }

    /// Reads page table entries from page number `page` (an address divided by the page size) on.
    pub fn pagemap(&self, page: usize, out: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; out.len() * 8];
        self.pagemap.read_exact_at(&mut bytes, page as u64 * 8)?;
        numbers(&bytes, out);
        Ok(())
    }

    /// Its mappings.
    pub fn maps(&self) -> Result<Vec<Map>, Failure> {
        let text = fs::read(proc_path(self.pid, "smaps")).map_err(|e| self.gone(&e))?;
        let ranges = self.left_out().unwrap_or_default();
        Ok(maps::leave_out(maps::parse(&text), &ranges))
    }

    /// The managed ranges that the program excludes from core dumps, in order; `None` if it was
    /// stopped while it changed the lists.
    pub fn left_out(&self) -> Option<Vec<Range<usize>>> {
        let (window, partition) = (layout::window_base(), layout::shared_base());
        let mut found = Vec::new();
        for (list, base) in [
            (layout::REGIONS, window),
            (layout::PARTITION_REGIONS, partition),
        ] {
            for region in self.regions(list)? {
                let addr = |page: u32| base + page as usize * PAGE_SIZE;
                if region.attr.kind & kind::DONTDUMP != 0 {
                    found.push(addr(region.start)..addr(region.end));
                }
            }
        }
        Some(found)
    }

    /// Reads a list of regions from its tables; `None` if it is inconsistent.
    fn regions(&self, list: usize) -> Option<Vec<Region>> {
        let mut regions: Vec<Region> = Vec::new();
        let mut bytes = vec![0; REGIONS_AT_ONCE * size_of::<Region>()];
        for batch in 0..layout::REGIONS_MAX / REGIONS_AT_ONCE {
            let at = layout::tables(list) + batch * bytes.len();
            if self.copy(at, &mut bytes).is_err() {
                // The list is empty.
                return Some(regions);
            }
            for region in bytes.as_chunks().0.iter().map(Region::from_bytes) {
                if region == Region::default() {
                    return Some(regions);
                }
                let begins = regions.last().map_or(0, |r| r.end);
                if region.start < begins || region.end <= region.start {
                    return None;
                }
                regions.push(region);
            }
        }
        None
    }

    /// Like [`Target::maps`], faster, but without private pages and exclusions.
    pub fn maps_only(&self) -> Result<Vec<Map>, Failure> {
        let text = fs::read(proc_path(self.pid, "maps")).map_err(|e| self.gone(&e))?;
        Ok(maps::parse(&text))
    }

    /// Its open files with this name in /proc.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        descriptors(self.pid, name).unwrap_or_default()
    }

    fn gone(&self, e: &io::Error) -> Failure {
        Failure::usage(format!(
            "process {} can no longer be read: {}",
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

/// The path /proc/PID/NAME.
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

/// The process's index in the segment behind a descriptor, if it is its tenant's, and the far area.
fn segment_of(pid: u32, path: &PathBuf) -> Option<(usize, Option<&'static Far>)> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let segment = Segment::map(&file).ok()?;
    if segment.magic.load(Acquire) != canvas_shm::segment::MAGIC {
        return None;
    }
    let maps = maps::parse(&fs::read(proc_path(pid, "maps")).ok()?);
    let lives = Lives::of(&file);
    // It maps the page of its identity; if it could not, a lock shows its pid.
    let is_it = |slot: &&ProcSlot| {
        let Some(id) = slot.identity() else {
            return false;
        };
        maps.iter().any(|m| shows(m, id)) || lives.number(id) == Some(pid)
    };
    let index = segment.index_of(segment.procs.iter().find(is_it)?);
    // From here on addresses are relative to this tenant; no other one is inspected.
    let bases = segment.config.bases();
    if !layout::place(bases) && layout::bases() != bases {
        return None;
    }
    Some((index, Far::map(&file).ok()))
}

/// Whether this mapping shows that the process with this identity is alive.
fn shows(map: &Map, id: u64) -> bool {
    map.name.starts_with("/memfd:canvas-segment (deleted)") && map.offset == map_offset(id) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_there_and_who_is_not_managed() {
        let sentence = |pid| Target::open(pid).err().unwrap().sentence;
        assert!(sentence(u32::MAX).starts_with("there is no process 4294967295"));
        let own = sentence(std::process::id());
        assert!(own.contains("is not managed by canvas"), "{own}");
    }
}
