//! The memory file of a disk whose server may be killed: everything that the next server needs.
//!
//! ```text
//! ┌────────┬─────┬─────────┬─────────┬───────┐
//! │ header │ key │ journal │ entries │ slots │      each begins on a page
//! └────────┴─────┴─────────┴─────────┴───────┘
//! ```
//!
//! The process that outlives the servers makes the file, which takes memory where it is written.
//! Servers rebuild all other state from the entries.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use canvas_core::swap::classes::region_bytes;
use canvas_core::swap::pool::JOURNAL_WORDS;
use canvas_sys::proc;
use canvas_types::{PAGE_SIZE, PageBuf};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Whence, ftruncate, lseek};
use std::sync::atomic::AtomicU64;

use crate::pool::{MemoryError, check, slabs_of};
use crate::sys::lazy::{LazyArray, LazyBytes, LazyPage, Part};

/// Identifies the layout; changes with it.
const MAGIC: u64 = u64::from_le_bytes(*b"cnvdisk1");
/// More than the threads that store at the same time: queues, clients, and the one that moves
/// pages.
const NOTES: usize = 64;
const WORD: usize = size_of::<u64>();

/// The memory file.
pub struct DiskFile {
    file: File,
    /// Pages of the disk.
    pub pages: u64,
    /// Limit on its pool.
    pub pool_bytes: u64,
}

fn system(e: Errno) -> MemoryError {
    MemoryError::Kernel(e as i32)
}

fn number(e: &std::io::Error) -> MemoryError {
    MemoryError::Kernel(e.raw_os_error().unwrap_or(0))
}

impl DiskFile {
    /// Makes a file for an empty disk, with a new key.
    pub fn create(pages: u64, pool_bytes: u64) -> Result<DiskFile, MemoryError> {
        check(pages, pool_bytes)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(c"canvas-disk", flags).map_err(system)?;
        let disk = DiskFile {
            file: fd.into(),
            pages,
            pool_bytes,
        };
        let bytes = disk.bytes() as u64;
        // The kernel would kill this process for exceeding its file size limit.
        if let Ok((most, _)) = getrlimit(Resource::RLIMIT_FSIZE)
            && most < bytes
        {
            return Err(MemoryError::FileLimit(bytes.div_ceil(1 << 20)));
        }
        ftruncate(&disk.file, bytes as i64).map_err(system)?;
        let header = [MAGIC, pages, pool_bytes].map(u64::to_le_bytes).concat();
        let write = |bytes: &[u8], at| disk.file.write_all_at(bytes, at).map_err(|e| number(&e));
        write(&header, 0)?;
        let mut key = [0; PAGE_SIZE];
        proc::random_bytes(&mut key)?;
        write(&key, PAGE_SIZE as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&disk.file, FcntlArg::F_ADD_SEALS(seals)).map_err(system)?;
        Ok(disk)
    }

    /// Opens a file that another process made, with its contents.
    pub fn open(fd: OwnedFd) -> Result<DiskFile, MemoryError> {
        let file = File::from(fd);
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(system)?;
        let mut header = [0; 3 * WORD];
        file.read_exact_at(&mut header, 0).map_err(|e| number(&e))?;
        let [magic, pages, pool_bytes] = [0, 1, 2].map(|i| {
            let word = header.as_chunks::<WORD>().0[i];
            u64::from_le_bytes(word)
        });
        let disk = DiskFile {
            file,
            pages,
            pool_bytes,
        };
        // The file cannot shrink: accesses to it never fail.
        let stays = SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK);
        if magic != MAGIC || check(pages, pool_bytes).is_err() || !stays || !disk.is_whole() {
            return Err(MemoryError::Foreign);
        }
        Ok(disk)
    }

    fn is_whole(&self) -> bool {
        let there = self.file.metadata().map(|m| m.len());
        there.is_ok_and(|there| there == self.bytes() as u64)
    }

    /// The file's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn part(&self, offset: usize) -> Part {
        let fd = self.file.as_raw_fd();
        Part { fd, offset }
    }

    fn journal_at(&self) -> usize {
        2 * PAGE_SIZE
    }
    fn entries_at(&self) -> usize {
        (self.journal_at() + NOTES * JOURNAL_WORDS * WORD).next_multiple_of(PAGE_SIZE)
    }
    /// One more than the pages: entry 0 is unused.
    fn entries_count(&self) -> usize {
        self.pages as usize + 1
    }
    fn slots_at(&self) -> usize {
        (self.entries_at() + self.entries_count() * WORD).next_multiple_of(PAGE_SIZE)
    }
    fn bytes(&self) -> usize {
        (self.slots_at() + region_bytes(slabs_of(self.pool_bytes))).next_multiple_of(PAGE_SIZE)
    }

    pub(crate) fn journal(&self) -> Result<LazyArray<AtomicU64>, MemoryError> {
        let part = self.part(self.journal_at());
        Ok(LazyArray::of_file(part, NOTES * JOURNAL_WORDS)?)
    }
    pub(crate) fn entries(&self) -> Result<LazyArray<AtomicU64>, MemoryError> {
        let part = self.part(self.entries_at());
        Ok(LazyArray::of_file(part, self.entries_count())?)
    }
    pub(crate) fn slots(&self) -> Result<LazyBytes, MemoryError> {
        let bytes = region_bytes(slabs_of(self.pool_bytes));
        Ok(LazyBytes::of_file(self.part(self.slots_at()), bytes)?)
    }
    /// A private copy of the key.
    pub(crate) fn key(&self) -> Result<LazyPage, MemoryError> {
        let read = |key: &mut PageBuf| {
            let read = self.file.read_exact_at(key, PAGE_SIZE as u64);
            read.map_err(|e| canvas_sys::Errno(e.raw_os_error().unwrap_or(0)))
        };
        Ok(LazyPage::new(read)?)
    }

    /// Ranges of entries that may have been used: reading others would take memory for them.
    pub(crate) fn touched(&self) -> Result<Vec<Range<u32>>, MemoryError> {
        let (start, end) = (self.entries_at() as i64, self.slots_at() as i64);
        let entry = |at: i64| ((at - start) as usize / WORD) as u32;
        let (mut at, mut all) = (start, Vec::new());
        while at < end {
            let data = match lseek(&self.file, at, Whence::SeekData) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno::ENXIO) => break,
                Err(e) => return Err(system(e)),
            };
            // There is always a hole after the last data.
            at = lseek(&self.file, data, Whence::SeekHole).map_err(system)?;
            let to = entry(at.min(end)).min(self.entries_count() as u32);
            all.push(entry(data).max(1)..to);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_as_it_was_made_and_no_other_is() {
        let made = DiskFile::create(1000, 3 << 20).unwrap();
        let copy = || made.fd().try_clone_to_owned().unwrap();
        let opened = DiskFile::open(copy()).unwrap();
        assert_eq!((opened.pages, opened.pool_bytes), (1000, 3 << 20));
        assert_eq!(opened.key().unwrap().get(), made.key().unwrap().get());
        assert_ne!(made.key().unwrap().get(), &[0; PAGE_SIZE]);
        assert_eq!(opened.touched().unwrap(), []);
        let entries = opened.entries().unwrap();
        entries.all()[700].store(9, std::sync::atomic::Ordering::Relaxed);
        let touched = made.touched().unwrap();
        assert_eq!((touched.len(), touched[0].clone()), (1, 512..1001));
        made.file.write_all_at(&[1], 0).unwrap();
        assert_eq!(DiskFile::open(copy()).err(), Some(MemoryError::Foreign));
        let other = File::from(memfd_create(c"x", MFdFlags::empty()).unwrap());
        assert!(DiskFile::open(other.into()).is_err());
    }

    #[test]
    fn what_cannot_be_a_disk_has_no_file() {
        assert_eq!(
            DiskFile::create(0, 1 << 20).err(),
            Some(MemoryError::NoPage)
        );
        let little = DiskFile::create(1, 4096).err();
        assert_eq!(little, Some(MemoryError::PoolTooSmall(4096)));
    }
}
