//! Pages and swap entries.

use core::ops::Range;

use crate::layout;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// The bytes of one page.
pub type PageBuf = [u8; PAGE_SIZE];

/// A page of the managed range: its index from the managed range's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageId(pub u32);

impl PageId {
    /// The page that contains `addr`, which must lie in the managed range.
    #[inline(always)]
    pub fn of_addr(addr: usize) -> PageId {
        debug_assert!(layout::in_window(addr));
        PageId(((addr - layout::window_base()) >> PAGE_SHIFT) as u32)
    }
    /// Address of the page's first byte in the managed range.
    #[inline(always)]
    pub fn addr(self) -> usize {
        layout::window_base() + ((self.0 as usize) << PAGE_SHIFT)
    }
    /// The pages with these numbers, in order.
    #[inline(always)]
    pub fn each(numbers: Range<u32>) -> impl Iterator<Item = PageId> {
        numbers.map(PageId)
    }
    /// The page `pages` after this one.
    #[inline(always)]
    pub fn plus(self, pages: usize) -> PageId {
        PageId(self.0 + pages as u32)
    }
    /// Number of pages from `start`, which must not be after this one, to this one.
    #[inline(always)]
    pub fn since(self, start: PageId) -> usize {
        (self.0 - start.0) as usize
    }
    /// Index into per-page arrays.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A swap entry: an index into the process's entry table. Zero means "no entry".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SwapEntry(pub u32);

impl SwapEntry {
    /// The entry of a page that has none.
    pub const NONE: SwapEntry = SwapEntry(0);
    /// Whether this names an entry.
    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// Location of a page's copy beyond the pool: a record of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtentRef {
    /// The extent, a number of the tenant's far space.
    pub extent: u32,
    /// First byte of the record in the extent, a multiple of 16.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u16,
}
