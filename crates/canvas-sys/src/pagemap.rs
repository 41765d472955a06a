//! Which pages of a process are present: /proc/PID/pagemap.

use crate::gate::{Errno, sys3};
use crate::proc::File;
use canvas_types::PAGE_SIZE;
use core::mem::ManuallyDrop;
use core::ops::Range;

/// Bit of an entry: the page is present.
pub const PRESENT: u64 = 1 << 63;
/// Bit of an entry: the page is swapped out.
pub const SWAPPED: u64 = 1 << 62;
/// Bit of an entry: the page belongs to a file, or to shared memory.
pub const OF_FILE: u64 = 1 << 61;
/// Bit of an entry: no other process maps the page.
pub const EXCLUSIVE: u64 = 1 << 56;

/// PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg).
pub const SCAN: usize = 0xc060_6610;
/// Categories of that call.
mod category {
    pub const FILE: u64 = 1 << 2;
    pub const PRESENT: u64 = 1 << 3;
    pub const SWAPPED: u64 = 1 << 4;
    pub const ZERO: u64 = 1 << 5;
}

/// Adjacent pages: the kernel's `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

impl Run {
    /// A run of `pages` pages from `start` on.
    pub fn new(start: usize, pages: usize) -> Run {
        Run {
            start: start as u64,
            end: (start + pages * PAGE_SIZE) as u64,
            categories: 0,
        }
    }
    /// Its first byte.
    pub fn start(self) -> usize {
        self.start as usize
    }
    /// Number of pages.
    pub fn pages(self) -> usize {
        (self.end - self.start) as usize / PAGE_SIZE
    }
}

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Run>() == 24);

/// The open file.
pub struct Pagemap(File);

/// Result of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Number of runs.
    pub runs: usize,
    /// Where the scan ended: the range's end, or the page at which there was no room for more.
    pub until: usize,
}

impl Pagemap {
    /// Opens that of this process; `None` without /proc.
    pub fn open() -> Option<Pagemap> {
        File::open(c"/proc/self/pagemap").ok().map(Pagemap)
    }
    /// Opens that of a process, which requires the right to read its memory.
    pub fn of_process(pid: u32) -> Result<Pagemap, Errno> {
        let path = crate::proc::path_of(pid, b"pagemap");
        let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
        File::open(path).map(Pagemap)
    }
    /// Moves the descriptor out of the program's way and keeps it open for good; exec closes it.
    pub fn moved(self) -> Option<i32> {
        crate::descriptors::moved(self.0.into_fd() as i32, true).ok()
    }
    /// Wraps a descriptor from [`Pagemap::moved`], which is never closed.
    pub fn of(fd: i32) -> ManuallyDrop<Pagemap> {
        ManuallyDrop::new(Pagemap(File::of(fd as usize)))
    }
    /// Reads the entries of the pages from `addr` on; returns how many the kernel gave.
    pub fn read(&self, addr: usize, entries: &mut [u64]) -> usize {
        self.0.read_entries(addr / PAGE_SIZE, entries).unwrap_or(0)
    }
    /// Finds the runs of present private pages in `start..end`, with at most `pages_max` pages. Empty space costs no
    /// time, however large it is. An error on kernels without this call (before Linux 6.7).
    pub fn private_runs(
        &self,
        start: usize,
        end: usize,
        pages_max: usize,
        runs: &mut [Run],
    ) -> Result<Found, Errno> {
        let not = category::FILE | category::ZERO;
        self.scan(start..end, pages_max, category::PRESENT, not, runs)
    }
    /// Finds the runs of swapped-out pages in `start..end`, like [`Pagemap::private_runs`].
    pub fn swapped_runs(
        &self,
        start: usize,
        end: usize,
        pages_max: usize,
        runs: &mut [Run],
    ) -> Result<Found, Errno> {
        self.scan(start..end, pages_max, category::SWAPPED, 0, runs)
    }
    /// Finds the runs of pages that are in one category, and in none of others.
    fn scan(
        &self,
        range: Range<usize>,
        pages_max: usize,
        of: u64,
        not: u64,
        runs: &mut [Run],
    ) -> Result<Found, Errno> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start: range.start as u64,
            end: range.end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: pages_max as u64,
            category_inverted: not,
            category_mask: of | not,
            category_anyof_mask: 0,
            return_mask: of,
        };
        // SAFETY: the kernel reads and writes `arg`, and writes at most `vec_len` entries to `runs`; both live across
        // the call.
        let n = unsafe { sys3(libc::SYS_ioctl, self.0.fd(), SCAN, &raw mut arg as usize) }?;
        Ok(Found {
            runs: n.min(runs.len()),
            until: arg.walk_end as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;

    const BYTES: usize = 1 << 40;

    /// Maps a terabyte of addresses in which only the pages of `touched` are present.
    fn sparse(touched: &[usize]) -> usize {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = mem::map_lazy(0, BYTES, rw).unwrap();
        // SAFETY: the advice discards nothing.
        unsafe { mem::advise(at, BYTES, libc::MADV_NOHUGEPAGE) }.unwrap();
        for page in touched {
            // SAFETY: inside the mapping made just now, which nothing else uses.
            unsafe { ((at + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        // Read only: the kernel's page of zeros, which uses no memory.
        // SAFETY: inside the mapping made just now, which nothing else uses.
        unsafe { ((at + 9000 * PAGE_SIZE) as *const u8).read_volatile() };
        at
    }

    #[test]
    fn runs_are_the_pages_that_were_written_to() {
        let at = sparse(&[3, 4, 5, 70_000, 200_000_000]);
        let map = Pagemap::open().unwrap();
        let mut runs = [Run::default(); 8];
        let found = map.private_runs(at, at + BYTES, usize::MAX >> 1, &mut runs);
        if found == Err(Errno(libc::ENOTTY)) {
            return canvas_testing::skip("no PAGEMAP_SCAN, which Linux has from 6.7 on");
        }
        let found = found.unwrap();
        let pages = |r: &Run| ((r.start() - at) / PAGE_SIZE, r.pages());
        let got: [(usize, usize); 3] = core::array::from_fn(|i| pages(&runs[i]));
        assert_eq!((found.runs, found.until), (3, at + BYTES));
        assert_eq!(got, [(3, 3), (70_000, 1), (200_000_000, 1)]);
        // In parts.
        let first = map.private_runs(at, at + BYTES, 2, &mut runs).unwrap();
        assert_eq!((first.runs, pages(&runs[0])), (1, (3, 2)));
        let rest = map.private_runs(first.until, at + BYTES, 9, &mut runs);
        assert_eq!((rest.unwrap().runs, pages(&runs[0])), (3, (5, 1)));
        // SAFETY: nothing uses it any more.
        unsafe { mem::unmap(at, BYTES) }.unwrap();
    }

    #[test]
    fn what_is_there_is_not_swapped() {
        let at = sparse(&[3, 4]);
        let map = Pagemap::of_process(crate::proc::pid()).unwrap();
        let mut runs = [Run::default(); 8];
        // SAFETY: inside the mapping made just now; a lock changes no contents.
        let locked = unsafe { libc::mlock((at + 3 * PAGE_SIZE) as *const _, 2 * PAGE_SIZE) };
        assert_eq!(locked, 0);
        let found = map.swapped_runs(at, at + BYTES, 100, &mut runs);
        if found == Err(Errno(libc::ENOTTY)) {
            return canvas_testing::skip("no PAGEMAP_SCAN, which Linux has from 6.7 on");
        }
        let found = found.unwrap();
        assert_eq!((found.runs, found.until), (0, at + BYTES));
        assert_eq!(Pagemap::of_process(0).err(), Some(Errno(libc::ENOENT)));
        // SAFETY: nothing uses it any more.
        unsafe { mem::unmap(at, BYTES) }.unwrap();
    }

    #[test]
    fn entries_tell_what_is_private() {
        let at = sparse(&[1]);
        let mut entries = [0; 3];
        assert_eq!(Pagemap::open().unwrap().read(at, &mut entries), 3);
        assert_eq!(entries.map(|e| e & PRESENT != 0), [false, true, false]);
        assert_eq!(entries[1] & (OF_FILE | EXCLUSIVE), EXCLUSIVE);
        // SAFETY: nothing uses it any more.
        unsafe { mem::unmap(at, BYTES) }.unwrap();
    }
}
