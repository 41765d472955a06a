//! Pages that the calling thread holds, as the kernel is asked to work on them.

use canvas_types::{PAGE_SIZE, PageId};

/// Adjacent pages that nobody else makes present, discards or protects meanwhile: their words are busy in the calling
/// thread's hands, or absent pages between such pages, under the lock of their chunk. Only this module's code makes
/// one, so an implementation of [`Kernel`](super::Kernel) may rely on that.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    first: PageId,
    pages: usize,
}

impl Held {
    /// The caller must hold the pages as described.
    pub(super) fn new(first: PageId, pages: usize) -> Held {
        Held { first, pages }
    }
    /// The first page.
    #[inline]
    pub fn first(self) -> PageId {
        self.first
    }
    /// Number of pages.
    #[inline]
    pub fn pages(self) -> usize {
        self.pages
    }
    /// Number of bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.pages * PAGE_SIZE
    }
}

/// Pages to discard, by address: laid out as the kernel's `struct iovec`. They are [`Held`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range {
    addr: usize,
    bytes: usize,
}

impl Range {
    /// The range of pages that the caller holds.
    pub(super) fn of(held: Held) -> Range {
        Range {
            addr: held.first.addr(),
            bytes: held.bytes(),
        }
    }
    /// Address of the first page.
    pub fn addr(&self) -> usize {
        self.addr
    }
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
