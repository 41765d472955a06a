//! A mapping of this process.

use core::sync::atomic::AtomicU32;

use canvas_sys::{Errno, mem};
use nix::libc;

/// A mapping that is unmapped when dropped.
pub struct Mapping {
    addr: usize,
    bytes: usize,
}

/// The kernel refuses mappings of zero bytes.
fn some(bytes: usize) -> usize {
    bytes.max(1)
}

impl Mapping {
    /// Maps private memory.
    pub fn private(bytes: usize) -> Result<Mapping, Errno> {
        let addr = mem::map_lazy(0, some(bytes), mem::READ_WRITE)?;
        Ok(Mapping { addr, bytes })
    }

    /// Maps a part of a file, shared.
    pub fn shared(fd: i32, offset: usize, bytes: usize, prot: i32) -> Result<Mapping, Errno> {
        let addr = mem::map_shared(fd, offset, some(bytes), prot)?;
        Ok(Mapping { addr, bytes })
    }

    /// Without huge pages, which would take memory that nobody touched, and left out of core dumps.
    pub fn sparse(self) -> Mapping {
        for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
            // SAFETY: neither changes contents.
            let _ = unsafe { mem::advise(self.addr, some(self.bytes), advice) };
        }
        self
    }

    /// Allocates all of it now (Linux 5.14).
    pub fn take_all(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping; contents stay.
        unsafe { mem::advise(self.addr, some(self.bytes), libc::MADV_POPULATE_WRITE) }
    }

    /// Where it begins.
    #[inline]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The address of `bytes` bytes at an offset.
    ///
    /// # Panics
    ///
    /// If they exceed the mapping.
    #[inline]
    pub fn place(&self, at: usize, bytes: usize) -> usize {
        assert!(
            at <= self.bytes && bytes <= self.bytes - at,
            "outside the memory"
        );
        self.addr + at
    }

    /// A number in the mapping that the kernel also reads or writes.
    pub fn word(&self, at: u32) -> &AtomicU32 {
        let place = self.place(at as usize, 4);
        assert!(place.is_multiple_of(4));
        // SAFETY: it lies in the mapping, which lives as long as `self`, on a multiple of 4; any bits are a number,
        // and all access of this process to it is by atomics.
        unsafe { &*core::ptr::with_exposed_provenance(place) }
    }

    /// Reads a value that the kernel has finished to write.
    ///
    /// # Safety
    ///
    /// Any bits are a `T`.
    pub unsafe fn read<T: Copy>(&self, at: usize) -> T {
        let place = self.place(at, size_of::<T>());
        // SAFETY: it lies in the mapping; the caller's promise.
        unsafe { core::ptr::with_exposed_provenance::<T>(place).read_unaligned() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what borrows from the mapping borrows from its owner, which is no more.
        let _ = unsafe { mem::unmap(self.addr, some(self.bytes)) };
    }
}
