//! What the processes of a tenant share about the memory that they share (docs/SHARED.md): the lock, the
//! journal, the words, who maps which region, and what system calls need.
//!
//! It lies in a file of its own, made by `canvas run --shared`. Everything in it is an atomic.

use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use canvas_types::layout::SHARED_PAGES;
use canvas_types::{PAGE_SIZE, PageBuf};

use crate::far::EXTENTS_MAX;
use crate::mailbox::REQUESTS;

/// Processes that can have shared memory at one time.
pub const PROCS: usize = 1024;
/// Regions that there can be at one time.
pub const REGIONS: usize = 1024;
/// Ranges that a process can have pinned at one time: calls under way.
pub const PINS: usize = 128;
/// Victims of an eviction at most: pages of the pipe.
pub const VICTIMS: usize = 256;
/// Pages that the store can have (256 GiB).
pub const STORE_PAGES: usize = 1 << 26;

/// Words of the key.
pub const KEY_WORDS: usize = PAGE_SIZE / 8;

/// A process. One with identity 0 is free.
#[repr(C, align(64))]
pub struct Proc {
    /// Identity of the process that has the place ([`crate::lives`]); 0 when it is free.
    pub id: AtomicU64,
    /// Not 0 while a fork of it waits for its child: another number for each process.
    pub forking: AtomicU32,
    /// Calls that found no free range: all of the partition is pinned.
    pub pin_all: AtomicU32,
    /// Which of the ranges are used.
    pub used: [AtomicU64; PINS / 64],
    /// First page and one past the last, 32 bits each; 0 for none.
    pub pins: [AtomicU64; PINS],
}

/// Values of [`Region::state`].
pub mod region_state {
    /// The place holds no region.
    pub const FREE: u32 = 0;
    /// Some process has a part of the region.
    pub const USED: u32 = 1;
    /// No process has any part of it any more; it is being emptied.
    pub const DYING: u32 = 2;
}

/// A mapping that forks have made several processes'.
#[repr(C, align(64))]
pub struct Region {
    /// A number of [`region_state`].
    pub state: AtomicU32,
    /// Counts the mappings that were here.
    pub generation: AtomicU32,
    /// Number of its first page in the partition.
    pub start: AtomicU32,
    /// One past the last page.
    pub end: AtomicU32,
    /// One bit for each process that has a part of it.
    pub holders: [AtomicU64; PROCS / 64],
}

impl Region {
    /// Has no process a part of it?
    pub fn is_orphan(&self) -> bool {
        self.holders.iter().all(|h| h.load(Ordering::SeqCst) == 0)
    }
    /// Notes that process `i` has a part of it.
    pub fn hold(&self, i: usize) {
        self.holders[i / 64].fetch_or(1 << (i % 64), Ordering::SeqCst);
    }
    /// Notes that it has none.
    pub fn let_go(&self, i: usize) {
        self.holders[i / 64].fetch_and(!(1 << (i % 64)), Ordering::SeqCst);
    }
}

/// The control file's beginning.
#[repr(C)]
pub struct Control {
    /// Bound on resident pages.
    pub limit_pages: AtomicI64,
    /// Pages that the pipe takes.
    pub pipe_pages: AtomicU32,
    /// One past the highest page that ever was in a region.
    pub end: AtomicU32,
    /// Highest number of resident pages seen.
    pub resident_peak: AtomicI64,
    /// Highest number of pages of the store seen.
    pub store_peak: AtomicI64,
    /// When dead processes were last looked for (CLOCK_MONOTONIC).
    pub looked_ns: AtomicU64,
    /// Who holds the lock: identity, then 16 bits with the number of its place plus one; 0 for nobody.
    pub lock: AtomicU64,
    /// The journal of `canvas_pager::shared`.
    pub phase: AtomicU32,
    /// How many pages the journal names (`canvas_pager::shared::Journal::count`).
    pub victims: AtomicU32,
    /// The pages that the journal names (`canvas_pager::shared::Journal::pages`).
    pub pages: [AtomicU32; VICTIMS],
    /// Where the search for victims goes on.
    pub hand: AtomicU32,
    /// Where the search for room in the store goes on.
    pub next_unit: AtomicU32,
    /// Pages of the store in which anything was ever looked for.
    pub store_end: AtomicU32,
    /// Where the search for copies that leave the store goes on.
    pub copies_hand: AtomicU32,
    /// Where the search for an extent beyond the pool goes on.
    pub next_extent: AtomicU32,
    /// Nothing is written beyond the pool before this moment (CLOCK_MONOTONIC): the last write failed.
    pub rest_until_ns: AtomicU64,
    /// When it was last said that nothing can be.
    pub told_ns: AtomicU64,
    /// Number of the process that looks at what is being written, plus one.
    pub carrier: AtomicU32,
    /// The extent that each request of what processes share is about, while that is in use.
    pub request_extents: [AtomicU32; REQUESTS],
    /// One past the highest process that ever was.
    pub procs_end: AtomicU32,
    /// A place for each process that maps the partition.
    pub procs: [Proc; PROCS],
    /// A place for each mapping that processes share.
    pub regions: [Region; REGIONS],
    /// Key of the content hash of shared pages (`canvas_swap::hash`): random, written before the first
    /// process starts. Whoever brings a page back verifies it, whoever evicted it.
    pub page_key: [AtomicU64; KEY_WORDS],
}

const fn up(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_SIZE)
}

/// Where the staging buffer begins: a page for each place of the journal.
pub const STAGING: usize = up(core::mem::size_of::<Control>());
/// Where the words begin.
pub const WORDS: usize = STAGING + VICTIMS * PAGE_SIZE;
/// Where the bits of the store's units begin.
pub const UNITS: usize = WORDS + SHARED_PAGES * 8;
/// Where the counts of extents' uses begin.
pub const USES: usize = UNITS + STORE_PAGES * 4;
/// Words of a page's hash.
pub const HASH_WORDS: usize = 2;
/// Where the hashes of pages whose copies lie beyond the pool begin.
pub const HASHES: usize = USES + EXTENTS_MAX;
/// Bytes of the control file. Most of it is never touched.
pub const CONTROL_BYTES: usize = HASHES + SHARED_PAGES * HASH_WORDS * 8;

/// The control file as it is mapped in this process.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    addr: usize,
}

impl Map {
    /// The control file at `addr`.
    ///
    /// # Safety
    /// `addr` must be the start of a mapping of at least [`CONTROL_BYTES`] bytes, page-aligned, shared,
    /// writable, and never unmapped. Any contents are valid: every field is an atomic.
    pub unsafe fn at(addr: usize) -> Map {
        Map { addr }
    }
    /// The file's beginning.
    pub fn control(self) -> &'static Control {
        // SAFETY: the promise of `at`; all fields are atomics, for which every bit pattern is valid.
        unsafe { &*(self.addr as *const Control) }
    }
    /// Writes the key, before any process maps the file.
    pub fn set_page_key(self, key: &PageBuf) {
        for (word, bytes) in self.control().page_key.iter().zip(key.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }
    /// Copies the key.
    pub fn page_key(self, key: &mut PageBuf) {
        for (word, bytes) in self.control().page_key.iter().zip(key.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
    /// Words of pages.
    pub fn words(self) -> &'static [AtomicU64] {
        // SAFETY: as above; the words lie inside the mapping.
        unsafe {
            core::slice::from_raw_parts((self.addr + WORDS) as *const AtomicU64, SHARED_PAGES)
        }
    }
    /// Bits of the store's units.
    pub fn units(self) -> &'static [AtomicU32] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts((self.addr + UNITS) as *const AtomicU32, STORE_PAGES) }
    }
    /// How many entries name each extent beyond the pool.
    pub fn uses(self) -> &'static [AtomicU8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts((self.addr + USES) as *const AtomicU8, EXTENTS_MAX) }
    }
    /// The hash of a page whose copy lies beyond the pool.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn hash(self, page: u32) -> &'static [AtomicU64; HASH_WORDS] {
        assert!((page as usize) < SHARED_PAGES);
        let at = self.addr + HASHES + page as usize * HASH_WORDS * 8;
        // SAFETY: as above, and a page of the partition (asserted).
        unsafe { &*(at as *const [AtomicU64; HASH_WORDS]) }
    }
    /// A page of the staging buffer.
    ///
    /// # Safety
    /// The caller holds the lock, and has no other reference to the page.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn staging(&self, place: usize) -> &mut PageBuf {
        assert!(place < VICTIMS);
        // SAFETY: inside the mapping; the lock's holder alone uses the buffer (the caller's promise).
        unsafe { &mut *((self.addr + STAGING + place * PAGE_SIZE) as *mut PageBuf) }
    }
}
