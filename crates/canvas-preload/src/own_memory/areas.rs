//! Where libcanvas keeps its own memory: at fixed offsets from the managed range. Start-up maps it read-only; parts are
//! opened for writing, and touched, when they are needed.

use canvas_core::pager::regions::{Region, Regions};
use canvas_core::pager::table::{FarPages, PageTable};
use canvas_core::pager::writes::Writes;
use canvas_core::swap::classes::{RAW_HEADERS_BYTES, SLAB_BYTES};
use canvas_core::swap::digests;
use canvas_core::swap::extents::BookArrays;
use canvas_core::swap::slots::SLAB_WORDS;
use canvas_shm::far;
use canvas_sys::{Errno, mem};
use canvas_types::layout::{
    self, BLOCK_PAGES, ENTRIES, ENTRIES_MAX, KEYS, META_BYTES, PARTITION_REGIONS,
    PARTITION_REGIONS_MAX, REGIONS, REGIONS_MAX, STORE_OFFSET, WINDOW_BLOCKS, WINDOW_PAGES, tables,
    window_base,
};
use canvas_types::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use canvas_types::{PAGE_SIZE, PageBuf, PageId};
use core::ops::Range;

use crate::own_memory::writable::{Mark, Steps, open};
use crate::runtime::state::{CacheAligned, PROCESS};

// Also needed by readers from outside (`canvas read`, `canvas dump`), to find a page's bytes.
pub use canvas_types::layout::{CACHE_META, CACHE_SLOTS_MAX, cache_buffers, pool};

/// Bytes of address space for the pool; the limit lies below.
pub const POOL_BYTES: usize = 4 << 40;
/// The parts of the pool's range that lie on node `place` of the tenant: slabs, then their raw headers.
pub const fn node_parts(place: usize) -> [core::ops::Range<usize>; 2] {
    let first = layout::POOL_OWN_SLABS + place * layout::NODE_SLABS;
    let end = first + layout::NODE_SLABS;
    let headers = layout::POOL_SLABS * SLAB_BYTES;
    [
        first * SLAB_BYTES..end * SLAB_BYTES,
        headers + first * RAW_HEADERS_BYTES..headers + end * RAW_HEADERS_BYTES,
    ]
}
const _: () = assert!(
    (layout::POOL_OWN_SLABS * RAW_HEADERS_BYTES).is_multiple_of(PAGE_SIZE)
        && (layout::NODE_SLABS * RAW_HEADERS_BYTES).is_multiple_of(PAGE_SIZE)
);

/// Index (among the tenant's nodes) of the node that an address in the pool's range belongs to.
pub fn node_at(addr: usize) -> Option<usize> {
    let offset = addr.checked_sub(pool()).filter(|o| *o < POOL_BYTES)?;
    layout::node_at(offset, SLAB_BYTES, RAW_HEADERS_BYTES)
}

/// Pages that are never written: they read as zeros and use no memory.
#[inline(always)]
pub fn zeros() -> usize {
    window_base() + STORE_OFFSET + (6 << 40)
}
/// Number of these pages.
pub const ZERO_PAGES: usize = 64;

// Offsets in the tables, from the first page word on.
const RESIDENT_IN_BLOCK: usize = 0x10_0000_0000;
const TOUCHED_IN_BLOCK: usize = 0x11_0000_0000;
const WRITES_IN_BLOCK: usize = 0x11_8000_0000;
/// Slab metadata of the pool.
pub const POOL_META: usize = 0x20_0000_0000;
/// Working memory of fills and reclaim.
pub const CONTEXTS: usize = 0x38_0000_0000;
/// Bytes of the swap cache's metadata.
pub const CACHE_META_BYTES: usize = CACHE_SLOTS_MAX * 40;
/// Ring and write buffer of the trace.
const TRACE: usize = 0x39_0000_0000;
/// Maximum bytes of both.
pub const TRACE_BYTES: usize = 2 << 20;

/// Arrays of the far space's extent book: by extent, by slab (two numbers each), and by extent again.
const DEEP: usize = 0x3a_0000_0000;
const DEEP_WRITTEN: usize = DEEP + far::EXTENTS_MAX + far::SLABS_MAX * 8;
const DEEP_SPANS: usize = 0x3b_0000_0000;
/// Hashes of local pages whose copy lies beyond the pool.
const DIGESTS: usize = 0x3c_0000_0000;
/// Links between pages ([`canvas_core::pager::app::links`]), behind the keys.
const LINKS: usize = 0x3e_0000_0000;
/// Maximum number of links, 16 MiB.
const LINKS_MAX: usize = 1 << 21;
/// What is learnt about a resumption: two tables of its chunks, and the words of a recording.
const LEARN: usize = 0x3f_0000_0000;
/// Cells of each table: a recording has at most three quarters as many chunks.
const LEARN_PLACES: usize = 1 << 14;
/// Bytes of tables and words.
const LEARN_BYTES: usize = (2 * LEARN_PLACES + canvas_shm::learn::WORDS) * 4;
/// Local pages that the hashes are sized for, at most (128 GiB). Some pages beyond that are stored without need.
const DIGESTS_PAGES_MAX: usize = 1 << 25;

const _: () = {
    assert!(DIGESTS + digests::words_for(DIGESTS_PAGES_MAX) * 8 <= KEYS);
    assert!(KEYS + 2 * PAGE_SIZE <= LINKS);
    assert!(LINKS + LINKS_MAX * 8 <= LEARN);
    assert!(LEARN + LEARN_BYTES <= META_BYTES);
    assert!(DEEP_WRITTEN + far::EXTENTS_MAX <= DEEP_SPANS);
    assert!(DEEP_SPANS + far::EXTENTS_MAX * 8 <= DIGESTS);
    assert!(KEYS + 2 * PAGE_SIZE <= META_BYTES);
    assert!(TRACE + TRACE_BYTES <= DEEP);
    assert!(WINDOW_PAGES * 8 <= 0x10_0000_0000);
    assert!(WINDOW_BLOCKS * 4 <= 0x1_0000_0000);
    assert!(TOUCHED_IN_BLOCK + WINDOW_BLOCKS * 4 <= WRITES_IN_BLOCK);
    assert!(WRITES_IN_BLOCK + WINDOW_BLOCKS <= REGIONS);
    assert!(REGIONS + REGIONS_MAX * size_of::<Region>() <= PARTITION_REGIONS);
    assert!(PARTITION_REGIONS + PARTITION_REGIONS_MAX * size_of::<Region>() <= CACHE_META);
    assert!(ENTRIES_MAX * 8 <= 0x8_0000_0000);
    assert!(TRACE + TRACE_BYTES <= META_BYTES);
    assert!(
        STORE_OFFSET + (6 << 40) + ZERO_PAGES * canvas_types::PAGE_SIZE <= layout::SHARED_OFFSET
    );
};

/// Address of the working memory of fills and reclaim.
pub fn contexts() -> usize {
    tables(CONTEXTS)
}

/// Address of the trace's ring and write buffer.
pub fn trace() -> usize {
    tables(TRACE)
}

/// Maps all areas, and opens the parts that every process uses.
pub fn map() -> Result<(), Errno> {
    // Not adjacent, so that each is a mapping of its own in /proc/self/smaps.
    let areas = [
        (cache_buffers(), CACHE_SLOTS_MAX * canvas_types::PAGE_SIZE),
        (pool(), POOL_BYTES),
        (zeros(), ZERO_PAGES * canvas_types::PAGE_SIZE),
        (tables(0), META_BYTES),
    ];
    for (addr, bytes) in areas {
        mem::map_lazy(addr, bytes, libc::PROT_READ)?;
        // SAFETY: these advices discard nothing. (Huge pages would make memory use jump.)
        unsafe {
            let _ = mem::advise(addr, bytes, libc::MADV_NOHUGEPAGE);
            let _ = mem::advise(addr, bytes, libc::MADV_DONTDUMP);
        }
    }
    open(tables(KEYS), 2 * PAGE_SIZE)?;
    open(tables(CACHE_META), CACHE_META_BYTES)?;
    open(tables(LEARN), LEARN_BYTES)
}

/// Bytes of page words that are opened at a time: those of 128 MiB of managed memory.
const WORDS_STEP: usize = 256 << 10;
const WORDS_STEPS: usize = WINDOW_PAGES * 8 / WORDS_STEP;
/// Blocks whose counts are opened at a time: those of 8 GiB of managed memory.
const BLOCKS_STEP: usize = 4096;
/// Slabs of the far space whose extents are opened at a time: 1 GiB.
const DEEP_STEP: usize = 16;

state! {
    /// How far the areas are used and open.
    static AREAS: Areas {
        /// One past the highest block with a resident page.
        high_block: CacheAligned<AtomicU32> = CacheAligned(AtomicU32::new(0)),
        blocks: Steps<{ WINDOW_BLOCKS / BLOCKS_STEP / 64 }> = Steps::new(),
        deep: Steps<{ far::SLABS_MAX / DEEP_STEP / 64 }> = Steps::new(),
        /// Pages whose words are open.
        pages: AtomicU64 = AtomicU64::new(0),
        entries: Mark = Mark::new(WORDS_STEP),
        /// Of the pool's own slabs, and of each node's: their bytes, raw headers and metadata.
        slabs: [[Mark; 3]; 1 + layout::NODES_MAX] =
            [const { [Mark::new(1 << 20), Mark::new(64 << 10), Mark::new(64 << 10)] };
                1 + layout::NODES_MAX],
        cache: Mark = Mark::new(128 << 10),
        regions_of_window: Mark = Mark::new(64 << 10),
        regions_of_partition: Mark = Mark::new(16 << 10),
    }
}
/// Which page words are open. All zeros, which apart from the rest take no room in the library's file.
static WORDS: Steps<{ WORDS_STEPS / 64 }> = Steps::new();

/// Opens the tables for the pages `start..end`, which are about to become accessible, and an entry for each page.
/// Returns how many entries may be used, if their number has grown.
pub fn open_pages(start: u32, end: u32) -> Result<Option<usize>, Errno> {
    let steps = |unit: usize| start as usize / unit..(end as usize).div_ceil(unit);
    let of_blocks = |run: Range<usize>| {
        for (table, each) in [
            (RESIDENT_IN_BLOCK, 4),
            (TOUCHED_IN_BLOCK, 4),
            (WRITES_IN_BLOCK, 1),
        ] {
            let step = BLOCKS_STEP * each;
            open(tables(table) + run.start * step, run.len() * step)?;
        }
        Ok(())
    };
    let blocks = steps(BLOCKS_STEP * BLOCK_PAGES);
    AREAS.blocks.reach(blocks, of_blocks)?;
    let of_words = |run: Range<usize>| open(tables(run.start * WORDS_STEP), run.len() * WORDS_STEP);
    let opened = WORDS.reach(steps(WORDS_STEP / 8), of_words)?;
    if opened == 0 {
        return Ok(None);
    }
    // A page has one entry at most.
    let more = (opened * WORDS_STEP / 8) as u64;
    let pages = AREAS.pages.fetch_add(more, Ordering::Relaxed) + more;
    let bytes = AREAS
        .entries
        .reach(tables(ENTRIES), pages as usize * 8, ENTRIES_MAX * 8)?;
    Ok(Some(bytes / 8))
}

/// Opens a slab of the pool's range. All slabs before it, in the pool or on its node, are open already.
pub fn open_slab(slab: usize) -> Result<(), Errno> {
    let (first, slabs, marks) = match slab.checked_sub(layout::POOL_OWN_SLABS) {
        None => (0, layout::POOL_OWN_SLABS, &AREAS.slabs[0]),
        Some(n) => {
            let node = n / layout::NODE_SLABS;
            let first = layout::POOL_OWN_SLABS + node * layout::NODE_SLABS;
            (first, layout::NODE_SLABS, &AREAS.slabs[1 + node])
        }
    };
    let parts = [
        (pool(), SLAB_BYTES),
        (pool() + layout::POOL_SLABS * SLAB_BYTES, RAW_HEADERS_BYTES),
        (tables(POOL_META), SLAB_WORDS * 8),
    ];
    for (mark, (base, each)) in marks.iter().zip(parts) {
        mark.reach(base + first * each, (slab - first + 1) * each, slabs * each)?;
    }
    Ok(())
}

/// Opens the buffers of the swap cache's first `slots` slots; returns how many buffers are open.
pub fn open_cache(slots: usize) -> usize {
    let most = CACHE_SLOTS_MAX * PAGE_SIZE;
    let wanted = slots.min(CACHE_SLOTS_MAX) * PAGE_SIZE;
    // If there is no memory for more, those that are open must do.
    let _ = AREAS.cache.reach(cache_buffers(), wanted, most);
    AREAS.cache.bytes() / PAGE_SIZE
}

/// Opens a list of regions for at least `wanted` of them; returns for how many it is open.
fn open_regions(mark: &Mark, at: usize, wanted: usize, most: usize) -> usize {
    let each = size_of::<Region>();
    let open = mark.reach(
        tables(at),
        wanted * each,
        (most * each).next_multiple_of(PAGE_SIZE),
    );
    open.map_or(0, |bytes| bytes / each)
}

fn open_window_regions(wanted: usize) -> usize {
    open_regions(&AREAS.regions_of_window, REGIONS, wanted, REGIONS_MAX)
}

fn open_partition_regions(wanted: usize) -> usize {
    let mark = &AREAS.regions_of_partition;
    open_regions(mark, PARTITION_REGIONS, wanted, PARTITION_REGIONS_MAX)
}

/// Opens the extent book's numbers about slabs. Called once, in a process with far memory.
pub fn open_extent_book() -> Result<(), Errno> {
    open(tables(DEEP + far::EXTENTS_MAX), far::SLABS_MAX * 8)
}

/// Opens the extent book's numbers about a slab's extents.
pub fn open_extents(slab: u32) -> Result<(), Errno> {
    let step = slab as usize / DEEP_STEP;
    let extents = far::SLAB_EXTENTS * DEEP_STEP;
    let open_steps = |run: Range<usize>| {
        for (table, each) in [(DEEP, 1), (DEEP_WRITTEN, 1), (DEEP_SPANS, 8)] {
            let bytes = extents * each;
            open(tables(table + run.start * bytes), run.len() * bytes)?;
        }
        Ok(())
    };
    AREAS.deep.reach(step..step + 1, open_steps).map(|_| ())
}

pub fn open_trace() -> Result<(), Errno> {
    open(trace(), TRACE_BYTES)
}

/// `n` atomics of the tables.
///
/// All of them are in bounds (asserted). The tables are mapped before anything asks for them, and never unmapped.
#[inline(always)]
fn atomics<A: Atomic>(offset: usize, n: usize) -> &'static [A] {
    assert!(offset.is_multiple_of(align_of::<A>()) && offset <= META_BYTES);
    assert!(n <= (META_BYTES - offset) / size_of::<A>());
    // SAFETY: inside the tables, which `map` mapped for the life of the process, as start-up's first step that uses
    // memory; aligned; `Atomic` promises that any bits are valid and may change.
    unsafe { core::slice::from_raw_parts(tables(offset) as *const A, n) }
}

/// An atomic integer: valid whatever its bits are, and while others write to it.
///
/// # Safety
///
/// No other type may implement it.
unsafe trait Atomic: 'static {}
// SAFETY: an atomic integer.
unsafe impl Atomic for AtomicU8 {}
// SAFETY: an atomic integer.
unsafe impl Atomic for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Atomic for AtomicU64 {}

/// Page words and resident counts.
#[inline(always)]
pub fn table() -> PageTable<'static> {
    PageTable {
        words: atomics(0, WINDOW_PAGES),
        resident_in_block: atomics(RESIDENT_IN_BLOCK, WINDOW_BLOCKS),
        high_block: &AREAS.high_block,
    }
}

/// The word of a page.
#[inline(always)]
pub fn word(page: PageId) -> &'static AtomicU64 {
    &table().words[page.index()]
}

/// Nonzero words per block: a mapping call may skip blocks without any.
#[inline(always)]
pub fn touched_in_block() -> &'static [AtomicU32] {
    atomics(TOUCHED_IN_BLOCK, WINDOW_BLOCKS)
}

/// Write scores of the blocks.
#[inline(always)]
pub fn writes() -> Writes<'static> {
    Writes(atomics(WRITES_IN_BLOCK, WINDOW_BLOCKS))
}

/// The page words, for a search for far pages.
#[inline]
pub fn far_pages() -> FarPages<'static, impl Fn(usize) -> bool> {
    let table = table();
    FarPages {
        words: table.words,
        blocks: table.blocks(),
        is_empty: all_resident,
        now_epoch: PROCESS.pager.epoch.now(),
    }
}

/// Whether all touched pages of the block are in memory, so that a search for far pages may skip it.
#[inline(always)]
pub fn all_resident(block: usize) -> bool {
    let touched = touched_in_block()[block].load(Ordering::Relaxed);
    touched <= table().resident_in_block[block].load(Ordering::Relaxed)
}

/// The extent book of the far space.
pub fn extent_book() -> BookArrays<'static> {
    BookArrays {
        live: atomics(DEEP, far::EXTENTS_MAX),
        written: atomics(DEEP_WRITTEN, far::EXTENTS_MAX),
        spans: atomics(DEEP_SPANS, far::EXTENTS_MAX),
        slab_live: atomics(DEEP + far::EXTENTS_MAX, far::SLABS_MAX),
        roles: atomics(DEEP + far::EXTENTS_MAX + far::SLABS_MAX * 4, far::SLABS_MAX),
    }
}

/// Opens the hashes of pages beyond the pool, for a process with at most `local_pages` local pages; empty if there is
/// no memory for them.
pub fn digests(local_pages: usize) -> &'static [AtomicU64] {
    let words = digests::words_for(local_pages.min(DIGESTS_PAGES_MAX));
    match open(tables(DIGESTS), words * 8) {
        Ok(()) => atomics(DIGESTS, words),
        Err(_) => &[],
    }
}

/// Opens the memory that [`links`] returns for `local_pages`.
pub fn open_links(local_pages: usize) -> Result<(), Errno> {
    open(tables(LINKS), links(local_pages).len() * 8)
}

/// Memory for links between pages, for a process with `local_pages` local pages: four links of 8 bytes per local page,
/// because most of a program's pages are far. It is touched as links are found.
pub fn links(local_pages: usize) -> &'static [AtomicU64] {
    let links = local_pages.saturating_mul(4).clamp(4096, LINKS_MAX);
    atomics(LINKS, links.next_power_of_two())
}

/// Memory for what is learnt about a resumption: two tables, and the words of a recording. It is touched as faults
/// come.
pub fn learnt() -> ([&'static [AtomicU32]; 2], &'static [AtomicU32]) {
    let table = |i| atomics(LEARN + i * LEARN_PLACES * 4, LEARN_PLACES);
    let words = LEARN + 2 * LEARN_PLACES * 4;
    (
        [table(0), table(1)],
        atomics(words, canvas_shm::learn::WORDS),
    )
}

/// Memory for key 0 or 1.
///
/// # Safety
///
/// `map` has been called, and this function not yet with the same number.
pub unsafe fn key_memory(which: usize) -> &'static mut PageBuf {
    assert!(which < 2);
    // SAFETY: a page of zeros in the tables, which `map` mapped for the life of the process; nobody else has it (the
    // caller's promise).
    unsafe { &mut *(tables(KEYS + which * PAGE_SIZE) as *mut PageBuf) }
}

/// The entry table's memory.
pub fn entries() -> &'static [AtomicU64] {
    atomics(ENTRIES, ENTRIES_MAX)
}

/// Atomics in the pool's metadata area, from `offset` bytes on.
pub fn pool_meta64(offset: usize, n: usize) -> &'static [AtomicU64] {
    atomics(POOL_META + offset, n)
}

/// Atomics in the swap cache's metadata area, from `offset` bytes on.
pub fn cache_meta32(offset: usize, n: usize) -> &'static [AtomicU32] {
    atomics(CACHE_META + offset, n)
}

/// Atomics in the swap cache's metadata area, from `offset` bytes on.
pub fn cache_meta64(offset: usize, n: usize) -> &'static [AtomicU64] {
    atomics(CACHE_META + offset, n)
}

/// Memory for the lists of regions: of the managed range, and of the partition of shared memory.
///
/// # Safety
///
/// To be called once, after [`map`].
pub unsafe fn region_lists() -> [Regions<'static>; 2] {
    // SAFETY: mapped for the life of the process and large enough (asserted); the caller promises that nobody else has
    // it; it is all zeros, and zeros are a valid Region.
    let memory = |at, n| unsafe { core::slice::from_raw_parts_mut(tables(at) as *mut Region, n) };
    let window = memory(REGIONS, REGIONS_MAX);
    let partition = memory(PARTITION_REGIONS, PARTITION_REGIONS_MAX);
    [
        Regions::opened_by(window, open_window_regions),
        Regions::opened_by(partition, open_partition_regions),
    ]
}
