//! Where libcanvas keeps its own memory: fixed addresses, mapped at start-up, touched lazily.

use canvas_pager::regions::Region;
use canvas_pager::table::PageTable;
use canvas_shm::far;
use canvas_swap::digests;
use canvas_swap::extents::BookArrays;
use canvas_sys::{Errno, mem};
use canvas_types::layout::{self, WINDOW_BLOCKS, WINDOW_PAGES, WORDS_BASE};
use canvas_types::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Swap cache buffers: one page a slot.
pub const CACHE_BUFFERS: usize = layout::STORE_BASE;
/// Pages of swap cache at most (128 MiB): its metadata is touched all over, so it is bounded too.
pub const CACHE_SLOTS_MAX: usize = 1 << 15;
/// The compressed pool.
pub const POOL: usize = layout::STORE_BASE + (1 << 40);
/// Bytes that the pool's region spans; the limit lies below it.
pub const POOL_BYTES: usize = 4 << 40;
/// Never written: reads as zeros without costing memory.
pub const ZEROS: usize = layout::STORE_BASE + (6 << 40);
/// Pages of zeros.
pub const ZERO_PAGES: usize = 64;

const META_BYTES: usize = 0x40_0000_0000;
const RESIDENT_IN_BLOCK: usize = WORDS_BASE + 0x10_0000_0000;
const TOUCHED_IN_BLOCK: usize = WORDS_BASE + 0x11_0000_0000;
const REGIONS: usize = WORDS_BASE + 0x12_0000_0000;
/// Regions that the window can have.
const REGIONS_MAX: usize = 1 << 20;
/// Swap cache slot states, pages, entries, free stack and FIFO.
pub const CACHE_META: usize = WORDS_BASE + 0x13_0000_0000;
/// Entry table.
const ENTRIES: usize = WORDS_BASE + 0x18_0000_0000;
/// Entries that the table can have.
const ENTRIES_MAX: usize = 1 << 31;
/// Slab metadata of the pool.
pub const POOL_META: usize = WORDS_BASE + 0x20_0000_0000;
/// Working memory of fills and reclaims.
pub const CONTEXTS: usize = WORDS_BASE + 0x38_0000_0000;
/// Ring and write buffer of the trace.
pub const TRACE: usize = WORDS_BASE + 0x39_0000_0000;
/// Bytes that they may take.
pub const TRACE_BYTES: usize = 2 << 20;

/// The book of extents of the far space: by extent, twice by slab, then by extent again.
const DEEP: usize = WORDS_BASE + 0x3a_0000_0000;
const DEEP_WRITTEN: usize = DEEP + far::EXTENTS_MAX + far::SLABS_MAX * 8;
const DEEP_SPANS: usize = WORDS_BASE + 0x3b_0000_0000;
/// Hashes of local pages whose copy lies beyond the pool.
const DIGESTS: usize = WORDS_BASE + 0x3c_0000_0000;
/// Local pages that they are made for at most (128 GiB); of more, some are stored without need.
const DIGESTS_PAGES_MAX: usize = 1 << 25;

const _: () = {
    assert!(DEEP_WRITTEN + far::EXTENTS_MAX <= DEEP_SPANS);
    assert!(DEEP_SPANS + far::EXTENTS_MAX * 8 <= DIGESTS);
    assert!(DIGESTS + digests::words_for(DIGESTS_PAGES_MAX) * 8 <= WORDS_BASE + META_BYTES);
    assert!(TRACE + TRACE_BYTES <= DEEP);
    assert!(WINDOW_PAGES * 8 <= 0x10_0000_0000);
    assert!(WINDOW_BLOCKS * 4 <= 0x1_0000_0000);
    assert!(REGIONS_MAX * core::mem::size_of::<Region>() <= 0x1_0000_0000);
    assert!(ENTRIES_MAX * 8 <= 0x8_0000_0000);
    assert!(TRACE + TRACE_BYTES <= WORDS_BASE + META_BYTES);
    assert!(WORDS_BASE + META_BYTES <= layout::GATE_PAGE);
};

/// One past the highest block with a resident page.
static HIGH_BLOCK: AtomicU32 = AtomicU32::new(0);

/// Maps all areas.
pub fn map() -> Result<(), Errno> {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // Apart from each other, so that each is a mapping of its own in /proc/self/smaps.
    let areas = [
        (CACHE_BUFFERS, CACHE_SLOTS_MAX * canvas_types::PAGE_SIZE),
        (POOL, POOL_BYTES),
        (ZEROS, ZERO_PAGES * canvas_types::PAGE_SIZE),
        (WORDS_BASE, META_BYTES),
    ];
    for (addr, bytes) in areas {
        mem::map_lazy(addr, bytes, rw)?;
        // SAFETY: these advices discard nothing. Huge pages would make memory use jump.
        unsafe {
            let _ = mem::advise(addr, bytes, libc::MADV_NOHUGEPAGE);
            let _ = mem::advise(addr, bytes, libc::MADV_DONTDUMP);
        }
    }
    Ok(())
}

fn atomics8(addr: usize, n: usize) -> &'static [AtomicU8] {
    // SAFETY: as below.
    unsafe { core::slice::from_raw_parts(addr as *const AtomicU8, n) }
}

fn atomics32(addr: usize, n: usize) -> &'static [AtomicU32] {
    // SAFETY: inside an area that `map` mapped for the life of the process; atomics, any bits valid.
    unsafe { core::slice::from_raw_parts(addr as *const AtomicU32, n) }
}

fn atomics64(addr: usize, n: usize) -> &'static [AtomicU64] {
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts(addr as *const AtomicU64, n) }
}

/// Page words and resident counts.
#[inline(always)]
pub fn table() -> PageTable<'static> {
    PageTable {
        words: atomics64(WORDS_BASE, WINDOW_PAGES),
        resident_in_block: atomics32(RESIDENT_IN_BLOCK, WINDOW_BLOCKS),
        high_block: &HIGH_BLOCK,
    }
}

/// The word of a page.
#[inline(always)]
pub fn word(page: u32) -> &'static AtomicU64 {
    &table().words[page as usize]
}

/// Nonzero words, one count a block: what a mapping call may skip.
#[inline(always)]
pub fn touched_in_block() -> &'static [AtomicU32] {
    atomics32(TOUCHED_IN_BLOCK, WINDOW_BLOCKS)
}

/// Is no touched page of the block away from memory? Then a search for far pages may skip it.
#[inline(always)]
pub fn all_resident(block: usize) -> bool {
    let touched = touched_in_block()[block].load(Ordering::Relaxed);
    touched <= table().resident_in_block[block].load(Ordering::Relaxed)
}

/// The book of extents of the far space.
pub fn extent_book() -> BookArrays<'static> {
    BookArrays {
        live: atomics8(DEEP, far::EXTENTS_MAX),
        written: atomics8(DEEP_WRITTEN, far::EXTENTS_MAX),
        spans: atomics64(DEEP_SPANS, far::EXTENTS_MAX),
        slab_live: atomics32(DEEP + far::EXTENTS_MAX, far::SLABS_MAX),
        roles: atomics32(DEEP + far::EXTENTS_MAX + far::SLABS_MAX * 4, far::SLABS_MAX),
    }
}

/// Hashes of what lies beyond the pool, for a process with so many local pages at most.
pub fn digests(local_pages: usize) -> &'static [AtomicU64] {
    let words = digests::words_for(local_pages.min(DIGESTS_PAGES_MAX));
    atomics64(DIGESTS, words)
}

/// The entry table's memory.
pub fn entries() -> &'static [AtomicU64] {
    atomics64(ENTRIES, ENTRIES_MAX)
}

/// Atomics in the pool's metadata area, from `offset` bytes.
pub fn pool_meta64(offset: usize, n: usize) -> &'static [AtomicU64] {
    atomics64(POOL_META + offset, n)
}

/// Atomics in the swap cache's metadata area, from `offset` bytes.
pub fn cache_meta32(offset: usize, n: usize) -> &'static [AtomicU32] {
    atomics32(CACHE_META + offset, n)
}

/// Atomics in the swap cache's metadata area, from `offset` bytes.
pub fn cache_meta64(offset: usize, n: usize) -> &'static [AtomicU64] {
    atomics64(CACHE_META + offset, n)
}

/// Memory for the region list; taken once.
pub fn region_memory() -> &'static mut [Region] {
    // SAFETY: called once, by start-up; the area is zero, and zero is a valid Region.
    unsafe { core::slice::from_raw_parts_mut(REGIONS as *mut Region, REGIONS_MAX) }
}
