//! Pages of a disk in a compressed pool of this process.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize};
use std::time::Duration;

use canvas_swap::classes::{CLASSES, region_bytes};
use canvas_swap::codec::{Content, classify};
use canvas_swap::hash::{PageHash, portable};
use canvas_swap::slots::{SLAB_CHARGE_BYTES, SLAB_WORDS, SLABS_MAX};
use canvas_swap::{
    Chosen, LoadError, LocalPool, Lz, LzScratch, PoolArrays, PoolBudget, Record, Scratch, SlotMem,
    StoreError,
};
use canvas_sys::lazy::{LazyArray, LazyBytes};
use canvas_sys::{Errno, clmul, lz4, proc};
use canvas_types::sync::{Threads, backoff};
use canvas_types::{Codec, PAGE_SIZE, PageBuf, SwapEntry};

use crate::{DiskError, PageStore};

/// Pages of the largest disk: the words of an entry table but one.
pub const PAGES_MAX: u64 = (1 << 31) - 1;
/// Bytes of the smallest pool that can be worked with.
pub const POOL_BYTES_MIN: u64 = 1 << 20;
/// Bytes of the largest pool.
pub const POOL_BYTES_MAX: u64 = SLABS_MAX as u64 * SLAB_CHARGE_BYTES as u64;
/// A bit of a page's state: a thread works on the page.
const BUSY: u8 = 1;

/// Why there is no disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// It would have no page.
    #[error("a disk of less than 4K has no page")]
    NoPage,
    /// It would have more pages than a table has entries.
    #[error("a disk of {0} pages is too large: {PAGES_MAX} can be had")]
    TooManyPages(u64),
    /// No page would find room.
    #[error("a pool of {0} bytes is too little to work with: {POOL_BYTES_MIN} can be had")]
    PoolTooSmall(u64),
    /// More than slots can be numbered.
    #[error("a pool of {0} bytes is too large: {POOL_BYTES_MAX} can be had")]
    PoolTooLarge(u64),
    /// The kernel does not give addresses or random bytes.
    #[error("the kernel does not give memory for the disk (error {0})")]
    Kernel(i32),
}

impl From<Errno> for MemoryError {
    fn from(e: Errno) -> MemoryError {
        MemoryError::Kernel(e.0)
    }
}

/// The memory of a disk: given by the kernel as it is used.
pub struct DiskMemory {
    pool_bytes: u64,
    /// A byte a page.
    states: LazyArray<AtomicU8>,
    entries: LazyArray<AtomicU64>,
    slab_words: LazyArray<AtomicU64>,
    class_bytes: [AtomicI64; CLASSES],
    slots: LazyBytes,
    /// The key of the content hash.
    key: PageBuf,
    /// A disk uses it, or did.
    used: AtomicBool,
}

impl DiskMemory {
    /// Memory of a disk with so many pages, whose pool takes so many bytes at most. Beside the pool it takes
    /// 9 bytes a page that was ever written.
    pub fn new(pages: u64, pool_bytes: u64) -> Result<Box<DiskMemory>, MemoryError> {
        match (pages, pool_bytes) {
            (0, _) => return Err(MemoryError::NoPage),
            (n, _) if n > PAGES_MAX => return Err(MemoryError::TooManyPages(n)),
            (_, n) if n < POOL_BYTES_MIN => return Err(MemoryError::PoolTooSmall(n)),
            (_, n) if n > POOL_BYTES_MAX => return Err(MemoryError::PoolTooLarge(n)),
            _ => {}
        }
        let slabs = (pool_bytes / SLAB_CHARGE_BYTES as u64) as usize;
        let mut memory = Box::new(DiskMemory {
            pool_bytes,
            states: LazyArray::new(pages as usize)?,
            // The first entry is none.
            entries: LazyArray::new(pages as usize + 1)?,
            slab_words: LazyArray::new(slabs * SLAB_WORDS)?,
            class_bytes: [const { AtomicI64::new(0) }; CLASSES],
            slots: LazyBytes::new(region_bytes(slabs))?,
            key: [0; PAGE_SIZE],
            used: AtomicBool::new(false),
        });
        proc::random_bytes(&mut memory.key)?;
        Ok(memory)
    }
}

/// lz4 from canvas-sys.
struct Lz4;

impl Lz for Lz4 {
    fn compress(&self, src: &PageBuf, dst: &mut [u8], scratch: &mut LzScratch) -> Option<usize> {
        lz4::compress(src, dst, &mut scratch.0, false)
    }
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        lz4::decompress(src, dst)
    }
}

/// The bytes of the slots.
struct Slots<'m>(&'m LazyBytes);

impl SlotMem for Slots<'_> {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        self.0.copy_out(off, dst);
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        self.0.copy_in(off, src);
    }
    fn release(&self, off: usize, len: usize) {
        self.0.discard(off, len);
    }
}

/// The bound on the pool.
struct Bound {
    bytes: i64,
    charged: AtomicI64,
}

impl PoolBudget for Bound {
    fn charge(&self, bytes: i64) -> bool {
        let within = |charged: i64| {
            let sum = charged + bytes;
            (bytes <= 0 || sum <= self.bytes).then_some(sum)
        };
        self.charged.fetch_update(Relaxed, Relaxed, within).is_ok()
    }
}

/// What a disk holds and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskStats {
    /// Pages of the disk.
    pub pages: u64,
    /// Pages that are stored: neither never written, nor discarded, nor zeros.
    pub stored_pages: u64,
    /// Of those, pages of one repeated value, which take no room.
    pub same_pages: u64,
    /// What the other ones take as they are stored, with their hashes.
    pub stored_bytes: u64,
    /// What the pool takes, slabs that are not full included.
    pub pool_bytes: u64,
    /// What it may take.
    pub pool_bytes_max: u64,
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
    /// Of those, pages that had the same content before.
    pub clean_writes: u64,
    /// Pages discarded or overwritten with zeros by a range.
    pub discards: u64,
    /// Pages that found no room.
    pub refused: u64,
    /// Reads of damaged pages.
    pub damaged: u64,
}

#[derive(Default)]
struct Counts {
    stored: AtomicI64,
    same: AtomicI64,
    reads: AtomicU64,
    writes: AtomicU64,
    clean_writes: AtomicU64,
    discards: AtomicU64,
    refused: AtomicU64,
    damaged: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A disk's pages in a pool. Page `n` owns entry `n + 1`.
pub struct PoolStore<'m> {
    pool: LocalPool<'m, Chosen<Lz4>, Slots<'m>, Bound>,
    states: &'m [AtomicU8],
    pool_bytes_max: u64,
    counts: Counts,
}

impl<'m> PoolStore<'m> {
    /// An empty disk over `memory`.
    ///
    /// # Panics
    /// When the memory has served another disk, whose pages would be in the way.
    pub fn new(memory: &'m DiskMemory, codec: Codec) -> PoolStore<'m> {
        assert!(!memory.used.swap(true, Relaxed), "memory of another disk");
        let arrays = PoolArrays {
            entries: memory.entries.all(),
            slab_words: memory.slab_words.all(),
            class_bytes: &memory.class_bytes,
            digests: &[],
        };
        let hash = PageHash::new(&memory.key, clmul::fastest().unwrap_or(portable));
        let bound = Bound {
            bytes: i64::try_from(memory.pool_bytes).unwrap_or(i64::MAX),
            charged: AtomicI64::new(0),
        };
        let threads = Threads {
            yield_now: std::thread::yield_now,
            number: thread_number,
        };
        let lz = Chosen { lz: Lz4, codec };
        let pool = LocalPool::new(arrays, hash, lz, Slots(&memory.slots), bound, threads);
        PoolStore {
            pool: pool.keeping_old(),
            states: memory.states.all(),
            pool_bytes_max: memory.pool_bytes,
            counts: Counts::default(),
        }
    }

    /// What it holds and has done; not of one moment while others read and write.
    pub fn stats(&self) -> DiskStats {
        let pool = self.pool.stats();
        let counts = &self.counts;
        let level = |n: &AtomicI64| n.load(Relaxed).max(0) as u64;
        DiskStats {
            pages: self.pages(),
            stored_pages: level(&counts.stored),
            same_pages: level(&counts.same),
            stored_bytes: pool.stored_bytes.max(0) as u64,
            pool_bytes: pool.charged_bytes.max(0) as u64,
            pool_bytes_max: self.pool_bytes_max,
            reads: counts.reads.load(Relaxed),
            writes: counts.writes.load(Relaxed),
            clean_writes: counts.clean_writes.load(Relaxed),
            discards: counts.discards.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            damaged: counts.damaged.load(Relaxed),
        }
    }

    /// Gives the kernel the memory of slabs that hold nothing; for quiet moments.
    pub fn trim(&self) {
        self.pool.trim();
    }

    fn entry(&self, page: u64) -> Result<SwapEntry, DiskError> {
        if page >= self.pages() {
            return Err(DiskError::Outside);
        }
        Ok(entry_of(page as u32))
    }

    /// Takes a page into this thread's hands: the calls on one entry are one at a time.
    fn hold(&self, entry: SwapEntry) -> Held<'_> {
        let state = &self.states[entry.0 as usize - 1];
        let mut spins = 0;
        while state.fetch_or(BUSY, Acquire) & BUSY != 0 {
            backoff(&mut spins, pause);
        }
        Held(state)
    }

    /// The page is held.
    fn load(
        &self,
        entry: SwapEntry,
        out: &mut PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        match self.pool.load(entry, out, scratch) {
            Ok(()) => Ok(()),
            Err(LoadError::NoCopy) => {
                out.fill(0);
                Ok(())
            }
            Err(LoadError::Verify | LoadError::Deep(_)) => {
                add(&self.counts.damaged);
                Err(DiskError::Damaged)
            }
        }
    }

    /// The page is held.
    fn store(
        &self,
        entry: SwapEntry,
        from: &PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        self.pool.claim(entry);
        let before = self.pool.record(entry);
        if matches!(classify(from), Content::Zero) {
            self.pool.drop_copy(entry);
        } else {
            match self.pool.store(entry, has_copy(before), from, scratch) {
                Ok(outcome) if outcome.kind == canvas_swap::Kind::Clean => {
                    add(&self.counts.clean_writes)
                }
                Ok(_) => {}
                Err(StoreError::Full { .. } | StoreError::NoEntry) => {
                    add(&self.counts.refused);
                    return Err(DiskError::Full);
                }
            }
        }
        add(&self.counts.writes);
        self.note(before, self.pool.record(entry));
        Ok(())
    }

    /// Keeps the sums.
    fn note(&self, before: Record, after: Record) {
        let of = |record: Record| {
            let same = matches!(record, Record::SameFilled(_));
            (i64::from(has_copy(record)), i64::from(same))
        };
        let ((stored, same), (stored_now, same_now)) = (of(before), of(after));
        self.counts.stored.fetch_add(stored_now - stored, Relaxed);
        self.counts.same.fetch_add(same_now - same, Relaxed);
    }
}

impl PageStore for PoolStore<'_> {
    fn pages(&self) -> u64 {
        self.states.len() as u64
    }

    fn read(&self, page: u64, out: &mut PageBuf, scratch: &mut Scratch) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        add(&self.counts.reads);
        // Nothing of such a page is touched; what is written meanwhile is written afterwards.
        if !has_copy(self.pool.record(entry)) {
            out.fill(0);
            return Ok(());
        }
        let _held = self.hold(entry);
        self.load(entry, out, scratch)
    }

    fn write(&self, page: u64, from: &PageBuf, scratch: &mut Scratch) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        let _held = self.hold(entry);
        self.store(entry, from, scratch)
    }

    fn write_part(
        &self,
        page: u64,
        at: usize,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        let _held = self.hold(entry);
        let mut whole = [0; PAGE_SIZE];
        self.load(entry, &mut whole, scratch)?;
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        self.store(entry, &whole, scratch)
    }

    fn discard(&self, page: u64) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        add(&self.counts.discards);
        // Ranges are mostly empty; what is written meanwhile is written afterwards.
        if !has_copy(self.pool.record(entry)) {
            return Ok(());
        }
        let _held = self.hold(entry);
        let before = self.pool.record(entry);
        self.pool.drop_copy(entry);
        self.note(before, self.pool.record(entry));
        Ok(())
    }
}

/// A page in a thread's hands.
struct Held<'s>(&'s AtomicU8);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!BUSY, Release);
    }
}

/// While another thread has a page for long.
fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// The entry of a page.
fn entry_of(page: u32) -> SwapEntry {
    SwapEntry(page + 1)
}

fn has_copy(record: Record) -> bool {
    !matches!(record, Record::Free | Record::Empty)
}

/// A number of the calling thread's, for the allocators' shelves.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(0) };
    }
    MINE.with(|mine| {
        if mine.get() == 0 {
            mine.set(NEXT.fetch_add(1, Relaxed));
        }
        mine.get()
    })
}
