//! What the processes of a tenant share about their shared memory (docs/SHARED.md): the lock, the journal, the words,
//! which process maps which region, and the pages that system calls use.
//!
//! It is in a file of its own, created by `canvas run --shared`. Everything in it is an atomic.

use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use canvas_types::layout::SHARED_PAGES;
use canvas_types::{PAGE_SIZE, PageBuf};

use crate::far::EXTENTS_MAX;
use crate::mailbox::REQUESTS;

/// Most processes with shared memory at one time.
pub const PROCS: usize = 1024;
/// Most regions at one time.
pub const REGIONS: usize = 1024;
/// Most ranges that a process can have pinned at one time, by system calls under way.
pub const PINS: usize = 128;
/// Most victims of an eviction: pages of the pipe.
pub const VICTIMS: usize = 256;
/// Most pages of the store (256 GiB).
pub const STORE_PAGES: usize = 1 << 26;

/// Words of the key.
pub const KEY_WORDS: usize = PAGE_SIZE / 8;

/// A process. A slot with identity 0 is free.
#[repr(C, align(64))]
pub struct Proc {
    /// Identity of the process with this slot ([`crate::lives`]); 0 when it is free.
    pub id: AtomicU64,
    /// Nonzero while a fork of it waits for its child: a different number for each process.
    pub forking: AtomicU32,
    /// Calls that found no free range: they pin the whole partition.
    pub pin_all: AtomicU32,
    /// A bit for each range in use.
    pub used: [AtomicU64; PINS / 64],
    /// First page and one past the last, 32 bits each; 0 for none.
    pub pins: [AtomicU64; PINS],
}

/// Values of [`Region::state`].
pub mod region_state {
    /// The slot holds no region.
    pub const FREE: u32 = 0;
    /// Some process maps a part of the region.
    pub const USED: u32 = 1;
    /// No process maps any part of it any more; it is being emptied.
    pub const DYING: u32 = 2;
}

/// A mapping that several processes share because of forks.
#[repr(C, align(64))]
pub struct Region {
    /// A value of [`region_state`].
    pub state: AtomicU32,
    /// Number of mappings that were here.
    pub generation: AtomicU32,
    /// Index of its first page in the partition.
    pub start: AtomicU32,
    /// One past the last page.
    pub end: AtomicU32,
    /// A bit for each process that maps a part of it.
    pub holders: [AtomicU64; PROCS / 64],
}

impl Region {
    /// Whether no process maps a part of it.
    pub fn is_orphan(&self) -> bool {
        self.holders.iter().all(|h| h.load(Ordering::SeqCst) == 0)
    }
    /// Records that process `i` maps a part of it.
    pub fn hold(&self, i: usize) {
        self.holders[i / 64].fetch_or(1 << (i % 64), Ordering::SeqCst);
    }
    /// Records that process `i` maps none of it.
    pub fn let_go(&self, i: usize) {
        self.holders[i / 64].fetch_and(!(1 << (i % 64)), Ordering::SeqCst);
    }
}

/// The control file's beginning.
#[repr(C)]
pub struct Control {
    /// Limit on resident pages.
    pub limit_pages: AtomicI64,
    /// Pages that fit into the pipe.
    pub pipe_pages: AtomicU32,
    /// One past the highest page that was ever in a region.
    pub end: AtomicU32,
    /// Highest number of resident pages seen.
    pub resident_peak: AtomicI64,
    /// Highest number of pages of the store seen.
    pub store_peak: AtomicI64,
    /// When dead processes were last searched for (CLOCK_MONOTONIC).
    pub looked_ns: AtomicU64,
    /// The lock's holder: identity, then 16 bits with the index of its slot + 1; 0 when free.
    pub lock: AtomicU64,
    /// Phase of the journal of `canvas_core::pager::shared`.
    pub phase: AtomicU32,
    /// Number of pages in the journal (`canvas_core::pager::shared::Journal::count`).
    pub victims: AtomicU32,
    /// The pages in the journal (`canvas_core::pager::shared::Journal::pages`).
    pub pages: [AtomicU32; VICTIMS],
    /// Where the search for victims continues.
    pub hand: AtomicU32,
    /// Where the search for room in the store continues.
    pub next_unit: AtomicU32,
    /// Pages of the store that were ever searched.
    pub store_end: AtomicU32,
    /// Where the search for copies to demote from the store continues.
    pub copies_hand: AtomicU32,
    /// Where the search for a far extent continues.
    pub next_extent: AtomicU32,
    /// Nothing is demoted before this time, because the last write failed (CLOCK_MONOTONIC).
    pub rest_until_ns: AtomicU64,
    /// When the failure was last logged.
    pub told_ns: AtomicU64,
    /// Index of the process that watches writes under way, + 1.
    pub demoter: AtomicU32,
    /// The extent of each request of shared memory, while the request is in use.
    pub request_extents: [AtomicU32; REQUESTS],
    /// One past the highest process slot ever used.
    pub procs_end: AtomicU32,
    /// A slot for each process that maps the partition.
    pub procs: [Proc; PROCS],
    /// A slot for each shared mapping.
    pub regions: [Region; REGIONS],
    /// Key of the content hash of shared pages (`canvas_core::swap::hash`): random, written before the first process starts.
    /// With it any process can verify a page that another one has evicted.
    pub page_key: [AtomicU64; KEY_WORDS],
}

const fn up(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_SIZE)
}

/// Offset of the staging buffer: one page for each entry of the journal.
pub const STAGING: usize = up(core::mem::size_of::<Control>());
/// Offset of the page words.
pub const WORDS: usize = STAGING + VICTIMS * PAGE_SIZE;
/// Offset of the store's allocation bits.
pub const UNITS: usize = WORDS + SHARED_PAGES * 8;
/// Offset of the extents' use counts.
pub const USES: usize = UNITS + STORE_PAGES * 4;
/// Words of a page's hash.
pub const HASH_WORDS: usize = 2;
/// Offset of the hashes of pages with far copies.
pub const HASHES: usize = USES + EXTENTS_MAX;
/// Bytes of the control file. Most of it is never touched.
pub const CONTROL_BYTES: usize = HASHES + SHARED_PAGES * HASH_WORDS * 8;

/// The control file, as mapped in this process.
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
    /// The beginning of the file.
    pub fn control(self) -> &'static Control {
        // SAFETY: the mapping begins with it and stays (the promise of `at`); all fields are atomics, for which any
        // bits are valid.
        unsafe { &*(self.addr as *const Control) }
    }
    /// Sets the key, before any process maps the file.
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
        // SAFETY: the words lie in the mapping, which stays (the promise of `at`), and are aligned atomics.
        unsafe {
            core::slice::from_raw_parts((self.addr + WORDS) as *const AtomicU64, SHARED_PAGES)
        }
    }
    /// Allocation bits of the store's units.
    pub fn units(self) -> &'static [AtomicU32] {
        // SAFETY: the units lie in the mapping, which stays (the promise of `at`), and are aligned atomics.
        unsafe { core::slice::from_raw_parts((self.addr + UNITS) as *const AtomicU32, STORE_PAGES) }
    }
    /// By far extent, the number of entries that name it.
    pub fn uses(self) -> &'static [AtomicU8] {
        // SAFETY: the counts lie in the mapping, which stays (the promise of `at`), and are atomics.
        unsafe { core::slice::from_raw_parts((self.addr + USES) as *const AtomicU8, EXTENTS_MAX) }
    }
    /// The hash of a page with a far copy.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn hash(self, page: u32) -> &'static [AtomicU64; HASH_WORDS] {
        assert!((page as usize) < SHARED_PAGES);
        let at = self.addr + HASHES + page as usize * HASH_WORDS * 8;
        // SAFETY: the hash of a page of the partition (asserted) lies in the mapping, which stays (the promise of
        // `at`), and consists of aligned atomics.
        unsafe { &*(at as *const [AtomicU64; HASH_WORDS]) }
    }
    /// A page of the staging buffer.
    ///
    /// # Safety
    /// The caller holds the lock, and has no other reference to the page.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn staging(&self, place: usize) -> &mut PageBuf {
        assert!(place < VICTIMS);
        // SAFETY: the page lies in the mapping (asserted, and the promise of `at`); only the lock's holder uses the
        // buffer, and has no other reference to it (the caller's promise).
        unsafe { &mut *((self.addr + STAGING + place * PAGE_SIZE) as *mut PageBuf) }
    }
}
