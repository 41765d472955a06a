//! Creates the files of shared memory ([`crate::shared`]), for the `canvas` command.

use std::os::fd::{AsFd, OwnedFd};

use canvas_types::layout::SHARED_BYTES;
use canvas_types::{PAGE_SIZE, PageBuf};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, pipe2};

use crate::far::{self, Far};
use crate::lives::Lives;
use crate::map::map_part;
use crate::segment::shared_fd;
use crate::shared::{CONTROL_BYTES, Control, Map, STORE_PAGES, VICTIMS};

/// The files of one tenant's shared memory.
#[derive(Debug)]
pub struct Files {
    fds: [OwnedFd; shared_fd::COUNT],
    map: Map,
}

impl Files {
    /// Creates the files, for at most `limit_pages` resident pages, with this key for content hashes.
    pub fn create(limit_pages: i64, page_key: &PageBuf) -> Result<Files, Errno> {
        let control = memory(c"canvas-shared-control", CONTROL_BYTES)?;
        let partition = memory(c"canvas-shared", SHARED_BYTES)?;
        let store = memory(c"canvas-shared-store", STORE_PAGES * PAGE_SIZE)?;
        let (pipe_out, pipe_in) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // An unprivileged user may or may not be allowed this size; if not, batches are smaller.
        let _ = fcntl(
            &pipe_in,
            FcntlArg::F_SETPIPE_SZ((VICTIMS * PAGE_SIZE) as i32),
        );
        let pipe_bytes = fcntl(&pipe_in, FcntlArg::F_GETPIPE_SZ)?.max(0) as usize;
        let addr = map_part(&control, 0, CONTROL_BYTES)?;
        // SAFETY: the mapping made just now has the full size, starts on a page, is shared and writable; nothing ever
        // unmaps it, and the file cannot shrink (`memory`).
        let map = unsafe { Map::at(addr) };
        let c = map.control();
        c.limit_pages.store(limit_pages, Relaxed);
        map.set_page_key(page_key);
        let pages = (pipe_bytes / PAGE_SIZE).clamp(1, VICTIMS);
        c.pipe_pages.store(pages as u32, Relaxed);
        Ok(Files {
            fds: [control, partition, store, pipe_out, pipe_in],
            map,
        })
    }
    /// Duplicates of the descriptors, in the order of [`shared_fd`].
    pub fn copies(&self) -> std::io::Result<std::vec::Vec<OwnedFd>> {
        self.fds.iter().map(OwnedFd::try_clone).collect()
    }
    /// The inode of the control file, which identifies it.
    pub fn inode(&self) -> Result<u64, Errno> {
        nix::sys::stat::fstat(&self.fds[shared_fd::CONTROL]).map(|s| s.st_ino)
    }
    /// The beginning of the control file.
    pub fn control(&self) -> &'static Control {
        self.map.control()
    }
    /// Whether a live process maps this shared memory.
    pub fn are_in_use(&self, lives: Lives) -> bool {
        let ids = self.control().procs.iter().map(|p| p.id.load(Relaxed));
        ids.filter(|id| *id != 0).any(|id| !lives.is_gone(id))
    }
    /// The run is over, its tenant lives on, and no process maps its shared memory any more: releases its far memory.
    /// True when the agent must be notified.
    pub fn leave_far(&self, far: &Far) -> bool {
        far.mailboxes[far::SHARED].reset();
        far.drop_process(far::SHARED)
    }
    /// Far extents that hold copies of shared pages.
    pub fn extents_used(&self, far: &Far) -> u64 {
        let high = far.slabs_high.load(Relaxed).min(far::SLABS_MAX as u32) as usize;
        let ours = (0..high).filter(|slab| far.slabs[*slab].refers(far::SHARED));
        let counts = self.map.uses().chunks(far::SLAB_EXTENTS);
        let of = |slab: usize| counts.clone().nth(slab).unwrap_or(&[]);
        let is_used = |count: &&AtomicU8| count.load(Relaxed) != 0;
        ours.map(|slab| of(slab).iter().filter(is_used).count() as u64)
            .sum()
    }
    /// Resident pages.
    pub fn resident_pages(&self) -> i64 {
        pages(&self.fds[shared_fd::PARTITION])
    }
    /// Pages of the compressed store.
    pub fn store_pages(&self) -> i64 {
        pages(&self.fds[shared_fd::STORE])
    }
}

fn pages(file: impl AsFd) -> i64 {
    nix::sys::stat::fstat(file).map_or(0, |s| s.st_blocks / (PAGE_SIZE as i64 / 512))
}

/// Creates a memfd of fixed size.
fn memory(name: &core::ffi::CStr, bytes: usize) -> Result<OwnedFd, Errno> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(name, flags)?;
    ftruncate(&fd, bytes as i64)?;
    let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

// Miri has no memory files.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn they_cost_nothing_until_they_are_used() {
        let key = core::array::from_fn(|i| (i * 7 + (i >> 8)) as u8);
        let files = Files::create(100, &key).unwrap();
        assert_eq!(files.control().limit_pages.load(Relaxed), 100);
        assert!(files.control().pipe_pages.load(Relaxed) >= 1);
        assert_eq!((files.resident_pages(), files.store_pages()), (0, 0));
        assert!(pages(&files.fds[shared_fd::CONTROL]) < 6);
        let mut back = [0; PAGE_SIZE];
        files.map.page_key(&mut back);
        assert_eq!(back, key);
        let one = [7u8; 1];
        nix::sys::uio::pwrite(&files.fds[shared_fd::PARTITION], &one, 1 << 30).unwrap();
        assert_eq!(files.resident_pages(), 1);
        assert_eq!(files.map.words().len(), SHARED_BYTES / PAGE_SIZE);
        assert_eq!(files.copies().unwrap().len(), shared_fd::COUNT);
    }
}
