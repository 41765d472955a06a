//! Memory that the kernel provides page by page as it is touched, for code without `unsafe`: private memory of this
//! process, or a part of a memory file, which another process may hold and continue to use.
//!
//! [`LazyArray`] is accessed as atomics. [`LazyBytes`] are only copied in and out: there is never a reference into
//! them, and a copy is one instruction of the processor. So overlapping copies, by several threads or by another
//! process, leave a mixture of both, and nothing worse. [`LazyPage`] is private and filled once. None of it is in core
//! dumps.

use core::arch::asm;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use canvas_sys::{Errno, mem};
use canvas_types::{PAGE_SIZE, PageBuf};
use nix::libc;

use super::mapping::Mapping;

/// A part of a memory file that cannot become shorter.
#[derive(Clone, Copy)]
pub struct Part {
    /// The file's descriptor.
    pub fd: i32,
    /// Where the part begins: a multiple of a page.
    pub offset: usize,
}

fn private(bytes: usize) -> Result<Mapping, Errno> {
    Ok(Mapping::private(bytes)?.sparse())
}

fn of_file(part: Part, bytes: usize) -> Result<Mapping, Errno> {
    Ok(Mapping::shared(part.fd, part.offset, bytes, mem::READ_WRITE)?.sparse())
}

/// A number that threads may share, and for which any bits are valid.
///
/// # Safety
///
/// Zeros, and all other bits, are a valid value, and nothing is to be done when one is forgotten.
pub unsafe trait Atomic {}
// SAFETY: an integer has no invalid bits, and no destructor.
unsafe impl Atomic for AtomicU8 {}
// SAFETY: an integer has no invalid bits, and no destructor.
unsafe impl Atomic for AtomicU32 {}
// SAFETY: an integer has no invalid bits, and no destructor.
unsafe impl Atomic for AtomicU64 {}

/// An array of numbers, initially zero, or what the file contains.
pub struct LazyArray<T> {
    mapping: Mapping,
    count: usize,
    of: PhantomData<[T]>,
}

impl<T: Atomic> LazyArray<T> {
    /// Creates `count` numbers. They use memory once they are touched.
    pub fn new(count: usize) -> Result<LazyArray<T>, Errno> {
        let mapping = private(bytes_of::<T>(count)?)?;
        Ok(LazyArray::over(mapping, count))
    }

    /// Maps `count` numbers of a file, which must be that long.
    pub fn of_file(part: Part, count: usize) -> Result<LazyArray<T>, Errno> {
        let mapping = of_file(part, bytes_of::<T>(count)?)?;
        Ok(LazyArray::over(mapping, count))
    }

    fn over(mapping: Mapping, count: usize) -> LazyArray<T> {
        LazyArray {
            mapping,
            count,
            of: PhantomData,
        }
    }

    /// Allocates the memory of all of them now.
    pub fn take_all(&self) -> Result<(), Errno> {
        self.mapping.take_all()
    }

    /// The numbers.
    #[inline]
    pub fn all(&self) -> &[T] {
        let start = core::ptr::with_exposed_provenance(self.mapping.addr());
        // SAFETY: the mapping starts on a page, holds `count` numbers (any bits are one), is writable, and lives as
        // long as `self`; this process uses it as atomics only, and another one's changes are like theirs.
        unsafe { core::slice::from_raw_parts(start, self.count) }
    }
}

fn bytes_of<T>(count: usize) -> Result<usize, Errno> {
    let bytes = count.checked_mul(size_of::<T>());
    bytes.ok_or(Errno(libc::ENOMEM))
}

/// A page that is filled once.
pub struct LazyPage {
    mapping: Mapping,
}

impl LazyPage {
    /// Creates a page of zeros and lets `fill` fill it.
    pub fn new(fill: impl FnOnce(&mut PageBuf) -> Result<(), Errno>) -> Result<LazyPage, Errno> {
        let mapping = private(PAGE_SIZE)?;
        let start = core::ptr::with_exposed_provenance_mut::<PageBuf>(mapping.addr());
        // SAFETY: the mapping is a page that is ours alone, and zeros are bytes.
        fill(unsafe { &mut *start })?;
        Ok(LazyPage { mapping })
    }

    /// The page.
    #[inline]
    pub fn get(&self) -> &PageBuf {
        let start = core::ptr::with_exposed_provenance::<PageBuf>(self.mapping.addr());
        // SAFETY: the mapping is a page, lives as long as `self`, and is not written to any more.
        unsafe { &*start }
    }
}

/// Bytes that are copied in and out; initially zero, or what the file contains.
pub struct LazyBytes {
    mapping: Mapping,
    /// The advice that returns pages to the kernel.
    discard: i32,
}

impl LazyBytes {
    /// Creates `bytes` bytes. They use memory once they are touched.
    pub fn new(bytes: usize) -> Result<LazyBytes, Errno> {
        Ok(LazyBytes {
            mapping: private(bytes)?,
            discard: libc::MADV_DONTNEED,
        })
    }

    /// Maps `bytes` bytes of a file, which must be that long.
    pub fn of_file(part: Part, bytes: usize) -> Result<LazyBytes, Errno> {
        Ok(LazyBytes {
            mapping: of_file(part, bytes)?,
            // From the file as well.
            discard: libc::MADV_REMOVE,
        })
    }

    /// Allocates the memory of all of them now.
    pub fn take_all(&self) -> Result<(), Errno> {
        self.mapping.take_all()
    }

    /// Copies `dst.len()` bytes out, from offset `at`.
    ///
    /// # Panics
    ///
    /// If the range exceeds the memory.
    #[inline]
    pub fn copy_out(&self, at: usize, dst: &mut [u8]) {
        let from = self.place(at, dst.len());
        // SAFETY: `from` is inside the mapping (`place`), `dst` is a live slice that nobody else uses.
        unsafe { copy(from, dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies `src` in, at offset `at`.
    ///
    /// # Panics
    ///
    /// If the range exceeds the memory.
    #[inline]
    pub fn copy_in(&self, at: usize, src: &[u8]) {
        let to = self.place(at, src.len());
        // SAFETY: `to` is inside the mapping (`place`), to which no reference exists; `src` is a live slice.
        unsafe { copy(src.as_ptr(), to, src.len()) }
    }

    /// Returns the whole pages of a range to the kernel: they read as zeros from now on.
    ///
    /// # Panics
    ///
    /// If the range exceeds the memory.
    pub fn discard(&self, at: usize, bytes: usize) {
        let page = PAGE_SIZE;
        let start = self.mapping.place(at, bytes).next_multiple_of(page);
        let end = (self.mapping.addr() + at + bytes) / page * page;
        if start < end {
            // SAFETY: the range is inside the mapping (`place`). Nobody relies on its contents by a reference, and to a
            // reader that copies them zeros are bytes like others.
            let _ = unsafe { mem::advise(start, end - start, self.discard) };
        }
    }

    fn place(&self, at: usize, bytes: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.mapping.place(at, bytes))
    }
}

/// Copies bytes by one instruction, so that concurrent writes to either range leave only a mixture.
///
/// # Safety
///
/// Both ranges must be mapped, the second one writable, and no reference to it alive but the caller's.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the ranges are the caller's promise; the direction flag is clear at every call, as the ABI says.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn numbers_are_zero_and_keep_what_is_written() {
        let lazy = LazyArray::<AtomicU64>::new(1 << 20).unwrap();
        let words = lazy.all();
        assert_eq!(words.len(), 1 << 20);
        assert_eq!(words[(1 << 20) - 1].load(Ordering::Relaxed), 0);
        words[7].store(9, Ordering::Relaxed);
        assert_eq!(lazy.all()[7].load(Ordering::Relaxed), 9);
        assert_eq!(LazyArray::<AtomicU8>::new(0).unwrap().all().len(), 0);
        assert!(LazyArray::<AtomicU32>::new(usize::MAX).is_err());
        // More than any machine has.
        assert!(LazyArray::<AtomicU8>::new(1 << 60).is_err());
    }

    #[test]
    fn memory_that_is_taken_keeps_what_is_there() {
        let lazy = LazyArray::<AtomicU64>::new(5000).unwrap();
        lazy.all()[4999].store(3, Ordering::Relaxed);
        let bytes = LazyBytes::new(3 * PAGE_SIZE + 1).unwrap();
        bytes.copy_in(PAGE_SIZE, &[7]);
        match lazy.take_all() {
            Err(Errno(libc::EINVAL)) => return, // Before Linux 5.14.
            taken => taken.unwrap(),
        }
        bytes.take_all().unwrap();
        assert_eq!(lazy.all()[4999].load(Ordering::Relaxed), 3);
        let mut entries = [0; 4];
        let map = canvas_sys::pagemap::Pagemap::open().unwrap();
        assert_eq!(map.read(bytes.mapping.addr(), &mut entries), 4);
        let there = |e: u64| e & (canvas_sys::pagemap::PRESENT | canvas_sys::pagemap::SWAPPED) != 0;
        assert!(entries.into_iter().all(there), "{entries:x?}");
        let mut out = [0; 2];
        bytes.copy_out(PAGE_SIZE, &mut out);
        assert_eq!(out, [7, 0]);
    }

    #[test]
    fn a_page_is_filled_once() {
        let page = LazyPage::new(|page| {
            assert_eq!(*page, [0; PAGE_SIZE]);
            page[7] = 9;
            Ok(())
        });
        assert_eq!(page.unwrap().get()[..9], [0, 0, 0, 0, 0, 0, 0, 9, 0]);
        assert!(LazyPage::new(|_| Err(Errno(libc::EIO))).is_err());
    }

    #[test]
    fn bytes_come_back_until_they_are_discarded() {
        let bytes = LazyBytes::new(3 * 4096 + 5).unwrap();
        let mut out = [1; 100];
        bytes.copy_out(4090, &mut out);
        assert_eq!(out, [0; 100]);
        let some: [u8; 100] = core::array::from_fn(|i| i as u8 + 1);
        bytes.copy_in(4090, &some);
        bytes.copy_in(3 * 4096, &some[..5]);
        bytes.copy_out(4090, &mut out);
        assert_eq!(out, some);
        // Only the second whole page lies in the range.
        bytes.discard(4000, 2 * 4096);
        bytes.copy_out(4090, &mut out);
        assert_eq!(out[..6], some[..6]);
        assert_eq!(out[6..], [0; 94]);
        bytes.copy_out(3 * 4096, &mut out[..5]);
        assert_eq!(out[..5], some[..5]);
        bytes.copy_in(3 * 4096 + 5, &[]);
    }

    #[test]
    fn what_lies_in_a_file_is_seen_by_all_who_map_it_and_leaves_it_when_discarded() {
        // SAFETY: libc reads the name, which lives.
        let fd = unsafe { libc::memfd_create(c"canvas-test".as_ptr(), 0) };
        // SAFETY: the call takes no address.
        assert_eq!(unsafe { libc::ftruncate(fd, 5 * 4096) }, 0);
        let part = |offset| Part { fd, offset };
        let one = LazyBytes::of_file(part(4096), 4 * 4096).unwrap();
        one.copy_in(4090, &[7; 9000]);
        let words = LazyArray::<AtomicU64>::of_file(part(8192), 512).unwrap();
        assert_eq!(
            words.all()[511].load(Ordering::Relaxed),
            u64::from_ne_bytes([7; 8])
        );
        words.all()[0].store(0, Ordering::Relaxed);
        one.discard(8192, 4096);
        drop(one);
        let two = LazyBytes::of_file(part(4096), 4 * 4096).unwrap();
        let mut out = [1; 4 * 4096];
        two.copy_out(0, &mut out);
        let is_seven = |i: usize| {
            (4090..8192).contains(&i) && !(4096..4104).contains(&i) || (12288..13090).contains(&i)
        };
        for (i, byte) in out.iter().enumerate() {
            assert_eq!(*byte, if is_seven(i) { 7 } else { 0 }, "byte {i}");
        }
        // SAFETY: the call takes no address; mappings of the file stay.
        unsafe { libc::close(fd) };
        assert!(
            LazyBytes::of_file(part(0), 4096).is_err(),
            "a descriptor that is none"
        );
    }

    #[test]
    #[should_panic(expected = "outside the memory")]
    fn nothing_is_copied_outside() {
        LazyBytes::new(4096).unwrap().copy_in(4090, &[0; 7]);
    }

    #[test]
    #[should_panic(expected = "outside the memory")]
    fn nothing_is_discarded_outside() {
        LazyBytes::new(4096).unwrap().discard(1, usize::MAX);
    }
}
