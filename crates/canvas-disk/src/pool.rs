//! A disk's pages in a compressed pool of this process.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use canvas_core::far::fetch::{self, Lost, Stored};
use canvas_core::far::{Channel, Host, State, channel, completion, demote};
use canvas_core::swap::classes::{CLASSES, region_bytes};
use canvas_core::swap::codec::{Content, classify};
use canvas_core::swap::hash::{PageHash, portable};
use canvas_core::swap::slots::{SLAB_CHARGE_BYTES, SLAB_WORDS, SLABS_MAX};
use canvas_core::swap::{
    Chosen, LoadError, LocalPool, Lz, LzScratch, PoolArrays, Record, Scratch, SlotMem, StoreError,
};
use canvas_shm::Counter;
use canvas_shm::mailbox::Status;
use canvas_sys::{Errno, clmul, lz4, proc};
use canvas_types::sync::{Threads, backoff};
use canvas_types::{Codec, ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use crate::far::{self, ASKED, BEYOND, BUSY, Bound, CAME, DiskFar, KNOWN, Tenant, USED};
use crate::file::DiskFile;
use crate::recover::Found;
use crate::sys::lazy::{LazyArray, LazyBytes, LazyPage};
use crate::{DiskError, PageStore};

/// Pages of the largest disk: one less than an entry table has words.
pub const PAGES_MAX: u64 = (1 << 31) - 1;
/// Interval of background work, without far memory and with it.
const IDLE: Duration = Duration::from_secs(1);
const WATCHFUL: Duration = Duration::from_millis(20);
/// Size of the smallest useful pool.
pub const POOL_BYTES_MIN: u64 = 1 << 20;
/// Size of the largest pool.
pub const POOL_BYTES_MAX: u64 = SLABS_MAX as u64 * SLAB_CHARGE_BYTES as u64;

/// Why a disk cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// It would have no page.
    #[error("a disk of less than 4K has no page")]
    NoPage,
    /// It would have more pages than a table has entries.
    #[error("a disk of {0} pages is too large: the most is {PAGES_MAX}")]
    TooManyPages(u64),
    /// No page would find room.
    #[error("a pool of {0} bytes is too small: the least is {POOL_BYTES_MIN}")]
    PoolTooSmall(u64),
    /// It would need more slots than can be numbered.
    #[error("a pool of {0} bytes is too large: the most is {POOL_BYTES_MAX}")]
    PoolTooLarge(u64),
    /// The kernel provides no address space or random bytes.
    #[error("the kernel refused memory for the disk (error {0})")]
    Kernel(i32),
    /// The limit on file sizes is too low for its memory file.
    #[error(
        "the limit on file sizes forbids the disk's memory file of {0} MiB; raise it (ulimit -f), or write -o restarts=0"
    )]
    FileLimit(u64),
    /// The file is not the memory file of a disk.
    #[error("the memory file is not one of this version of canvas's")]
    Foreign,
}

impl From<Errno> for MemoryError {
    fn from(e: Errno) -> MemoryError {
        MemoryError::Kernel(e.0)
    }
}

/// Checks the sizes of a disk.
pub(crate) fn check(pages: u64, pool_bytes: u64) -> Result<(), MemoryError> {
    match (pages, pool_bytes) {
        (0, _) => Err(MemoryError::NoPage),
        (n, _) if n > PAGES_MAX => Err(MemoryError::TooManyPages(n)),
        (_, n) if n < POOL_BYTES_MIN => Err(MemoryError::PoolTooSmall(n)),
        (_, n) if n > POOL_BYTES_MAX => Err(MemoryError::PoolTooLarge(n)),
        _ => Ok(()),
    }
}

/// Slabs for a pool: a quarter more than its limit, which pages promoted to compact extents may
/// exceed.
pub(crate) fn slabs_of(pool_bytes: u64) -> usize {
    let slabs = least_slabs(pool_bytes);
    (slabs + slabs / 4).min(SLABS_MAX)
}

/// Slabs for a pool without far memory.
fn least_slabs(pool_bytes: u64) -> usize {
    (pool_bytes / SLAB_CHARGE_BYTES as u64) as usize
}

/// The memory of a disk, allocated by the kernel as it is used.
pub struct DiskMemory {
    pool_bytes: u64,
    /// One byte per page.
    states: LazyArray<AtomicU8>,
    entries: LazyArray<AtomicU64>,
    slab_words: LazyArray<AtomicU64>,
    class_bytes: [AtomicI64; CLASSES],
    slots: LazyBytes,
    /// Whether it was preallocated, and none of it is freed.
    is_kept: bool,
    /// Key of the content hash.
    key: LazyPage,
    /// For a disk that outlives its server: writes in place under way.
    journal: Option<LazyArray<AtomicU64>>,
    /// Entries that the last server may have used.
    touched: Vec<Range<u32>>,
    /// Whether a disk uses it, or did.
    used: AtomicBool,
    /// The tenant that has far memory.
    tenant: Option<Tenant>,
}

impl DiskMemory {
    /// Memory for a disk with `pages` pages and a pool of up to `pool_bytes`. Besides the pool it
    /// takes 9 bytes per page that was ever written.
    pub fn new(pages: u64, pool_bytes: u64) -> Result<Box<DiskMemory>, MemoryError> {
        DiskMemory::with_slabs(pages, pool_bytes, slabs_of(pool_bytes))
    }

    /// Memory for a disk without far memory, all of it allocated now and none of it freed, so that
    /// storing pages needs no memory from the kernel.
    pub fn taken(pages: u64, pool_bytes: u64) -> Result<Box<DiskMemory>, MemoryError> {
        let mut memory = DiskMemory::with_slabs(pages, pool_bytes, least_slabs(pool_bytes))?;
        memory.states.take_all()?;
        memory.entries.take_all()?;
        memory.slab_words.take_all()?;
        memory.slots.take_all()?;
        memory.is_kept = true;
        Ok(memory)
    }

    /// Size of the memory that [`DiskMemory::taken`] allocates.
    pub fn taken_bytes(pages: u64, pool_bytes: u64) -> u64 {
        let slabs = least_slabs(pool_bytes);
        9 * pages + (8 * slabs * SLAB_WORDS + region_bytes(slabs)) as u64
    }

    fn with_slabs(
        pages: u64,
        pool_bytes: u64,
        slabs: usize,
    ) -> Result<Box<DiskMemory>, MemoryError> {
        check(pages, pool_bytes)?;
        Ok(Box::new(DiskMemory {
            pool_bytes,
            states: LazyArray::new(pages as usize)?,
            // Entry 0 is unused.
            entries: LazyArray::new(pages as usize + 1)?,
            slab_words: LazyArray::new(slabs * SLAB_WORDS)?,
            class_bytes: [const { AtomicI64::new(0) }; CLASSES],
            slots: LazyBytes::new(region_bytes(slabs))?,
            is_kept: false,
            key: LazyPage::new(|key| proc::random_bytes(key))?,
            journal: None,
            touched: Vec::new(),
            used: AtomicBool::new(false),
            tenant: None,
        }))
    }

    /// Memory in a file, with the disk in it. No other process may use it.
    pub fn of_file(file: &DiskFile) -> Result<Box<DiskMemory>, MemoryError> {
        Ok(Box::new(DiskMemory {
            pool_bytes: file.pool_bytes,
            states: LazyArray::new(file.pages as usize)?,
            entries: file.entries()?,
            slab_words: LazyArray::new(slabs_of(file.pool_bytes) * SLAB_WORDS)?,
            class_bytes: [const { AtomicI64::new(0) }; CLASSES],
            slots: file.slots()?,
            is_kept: false,
            key: file.key()?,
            journal: Some(file.journal()?),
            touched: file.touched()?,
            used: AtomicBool::new(false),
            tenant: None,
        }))
    }

    /// Adds the tenant of a disk with far memory beyond the pool.
    pub fn with_tenant(mut self: Box<DiskMemory>, tenant: Tenant) -> Box<DiskMemory> {
        self.tenant = Some(tenant);
        self
    }

    /// The configured limit on the pool.
    pub fn pool_bytes_max(&self) -> u64 {
        self.pool_bytes
    }

    /// Whether there is far memory.
    pub fn has_tenant(&self) -> bool {
        self.tenant.is_some()
    }

    /// Ends the use of far memory: nothing waits for it any more.
    pub fn leave(&self) {
        if let Some(tenant) = &self.tenant {
            tenant.leave();
        }
    }
}

/// lz4 from canvas-sys.
pub struct Lz4;

impl Lz for Lz4 {
    fn compress(&self, src: &PageBuf, dst: &mut [u8], scratch: &mut LzScratch) -> Option<usize> {
        lz4::compress(src, dst, scratch)
    }
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        lz4::decompress(src, dst)
    }
}

/// The slots' bytes; whether their memory is never freed.
pub struct Slots<'m>(&'m LazyBytes, bool);

impl SlotMem for Slots<'_> {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        self.0.copy_out(off, dst);
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        self.0.copy_in(off, src);
    }
    fn release(&self, off: usize, len: usize) {
        if !self.1 {
            self.0.discard(off, len);
        }
    }
}

/// A disk's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskStats {
    /// Pages of the disk.
    pub pages: u64,
    /// Pages stored: written, and neither discarded nor zeros.
    pub stored_pages: u64,
    /// Of those, pages of one repeated value, which take no space.
    pub same_pages: u64,
    /// Size of the other ones as stored, with their hashes.
    pub stored_bytes: u64,
    /// Memory of the pool in use, including partly filled slabs.
    pub pool_bytes: u64,
    /// Limit on the pool.
    pub pool_bytes_max: u64,
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
    /// Of those, pages with unchanged contents.
    pub clean_writes: u64,
    /// Writes refused because there was no room.
    pub refused: u64,
    /// Reads of damaged pages.
    pub damaged: u64,
    /// Pages that a client waited for from beyond the pool, without prefetched ones.
    pub far_reads: u64,
    /// Pages read directly from donors, by all servers of the disk.
    pub lane_reads: u64,
    /// Of the pages waited for, reads that found no copy in time.
    pub unreachable: u64,
    /// Far memory in use.
    pub far_bytes: u64,
    /// Limit on far memory.
    pub far_bytes_max: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) stored: AtomicI64,
    pub(crate) same: AtomicI64,
    reads: AtomicU64,
    writes: AtomicU64,
    clean_writes: AtomicU64,
    refused: AtomicU64,
    damaged: AtomicU64,
    far_reads: AtomicU64,
    unreachable: AtomicU64,
    /// Why pages cannot be demoted.
    stuck: Mutex<Option<Status>>,
}

impl Counts {
    /// Records that pages cannot be demoted.
    pub(crate) fn note_stuck(&self, why: Status) {
        *self.stuck.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A disk's pages in a pool. Page `n` has entry `n + 1`.
pub struct PoolStore<'m> {
    pub(crate) pool: LocalPool<'m, Chosen<Lz4>, Slots<'m>, Bound<'m>>,
    pub(crate) states: &'m [AtomicU8],
    /// No page from this one on was ever written.
    pub(crate) high: AtomicU32,
    /// Where the search for pages to demote goes on.
    pub(crate) hand: AtomicU32,
    pub(crate) tenant: Option<&'m Tenant>,
    pub(crate) far_state: State,
    pub(crate) counts: Counts,
    pool_bytes_max: u64,
    found: Found,
}

impl<'m> PoolStore<'m> {
    /// A disk over `memory`: an empty one, or the one in its file.
    ///
    /// # Panics
    /// If the memory has served another disk, whose pages would be in the way.
    pub fn new(memory: &'m DiskMemory, codec: Codec) -> PoolStore<'m> {
        assert!(!memory.used.swap(true, Relaxed), "memory of another disk");
        let arrays = PoolArrays {
            entries: memory.entries.all(),
            slab_words: memory.slab_words.all(),
            class_bytes: &memory.class_bytes,
            digests: &[],
        };
        let hash = PageHash::new(memory.key.get(), clmul::fastest().unwrap_or(portable));
        let bound = match &memory.tenant {
            None => Bound::Own {
                bytes: i64::try_from(memory.pool_bytes).unwrap_or(i64::MAX),
                charged: AtomicI64::new(0),
            },
            Some(tenant) => Bound::Tenant(tenant),
        };
        let threads = Threads {
            yield_now: std::thread::yield_now,
            number: thread_number,
        };
        let lz = Chosen { lz: Lz4, codec };
        let pool = LocalPool::new(
            arrays,
            hash,
            lz,
            Slots(&memory.slots, memory.is_kept),
            bound,
            threads,
        );
        let journal = memory.journal.as_ref().map_or(&[][..], LazyArray::all);
        let mut store = PoolStore {
            pool: pool.keeping_old().journaled(journal),
            states: memory.states.all(),
            high: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            tenant: memory.tenant.as_ref(),
            far_state: State::new(),
            counts: Counts::default(),
            pool_bytes_max: memory.pool_bytes,
            found: Found::default(),
        };
        if memory.journal.is_some() {
            store.found = store.take_over(&memory.touched);
        }
        store
    }

    /// What was on the disk when this was made.
    pub fn found(&self) -> Found {
        self.found
    }

    /// The disk's figures; not a consistent snapshot while others read and write.
    pub fn stats(&self) -> DiskStats {
        let pool = self.pool.stats();
        let counts = &self.counts;
        let level = |n: &AtomicI64| n.load(Relaxed).max(0) as u64;
        let (far_bytes, far_bytes_max) = self.tenant.map_or((0, 0), Tenant::far_bytes);
        DiskStats {
            pages: self.pages(),
            stored_pages: level(&counts.stored),
            same_pages: level(&counts.same),
            stored_bytes: pool.stored_bytes.max(0) as u64,
            pool_bytes: pool.charged_bytes.max(0) as u64,
            pool_bytes_max: self
                .tenant
                .map_or(self.pool_bytes_max, Tenant::pool_bytes_max),
            reads: counts.reads.load(Relaxed),
            writes: counts.writes.load(Relaxed),
            clean_writes: counts.clean_writes.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            damaged: counts.damaged.load(Relaxed),
            far_reads: counts.far_reads.load(Relaxed),
            lane_reads: self.tenant.map_or(0, Tenant::lane_reads),
            unreachable: counts.unreachable.load(Relaxed),
            far_bytes,
            far_bytes_max,
        }
    }

    /// Frees the memory of empty slabs; for idle times.
    pub fn trim(&self) {
        self.pool.trim();
    }

    /// Why pages could not be demoted since the last call.
    pub fn stuck(&self) -> Option<Status> {
        let stuck = self.counts.stuck.lock();
        stuck.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Does background work: completes what is under way, and demotes pages if the pool is above
    /// its mark. Returns how long to wait before the next call.
    pub fn background_round(&self) -> Duration {
        let Some(b) = self.far() else {
            return IDLE;
        };
        if demote::background_round(&b) {
            return Duration::ZERO;
        }
        Duration::from_nanos(demote::idle_ns(self)).min(WATCHFUL)
    }

    fn far(&self) -> Option<DiskFar<'_, 'm>> {
        let store = self;
        self.tenant.map(|tenant| DiskFar { store, tenant })
    }

    fn entry(&self, page: u64) -> Result<SwapEntry, DiskError> {
        if page >= self.pages() {
            return Err(DiskError::Outside);
        }
        Ok(entry_of(page as u32))
    }

    /// What a page's entry holds; for a page that was never written, its memory is not touched.
    pub(crate) fn record(&self, entry: SwapEntry) -> Record {
        match self.states[entry.0 as usize - 1].load(Relaxed) & KNOWN {
            0 => Record::Free,
            _ => self.pool.record(entry),
        }
    }

    /// Claims a page for this thread: calls on one entry must not overlap.
    fn hold(&self, entry: SwapEntry, waited: bool) -> Held<'_> {
        let state = &self.states[entry.0 as usize - 1];
        let mut spins = 0;
        while state.fetch_or(BUSY, Acquire) & BUSY != 0 {
            backoff(&mut spins, pause);
        }
        Held {
            entry,
            state,
            waited,
        }
    }

    /// Calls a function with a page claimed by this thread. While it must wait, the page is
    /// released.
    fn with_page(
        &self,
        page: u64,
        mut on: impl FnMut(&Held<'_>) -> Result<(), Stop>,
    ) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        let began = Instant::now();
        let mut waited = false;
        loop {
            let held = self.hold(entry, waited);
            let Err(stop) = on(&held) else {
                return Ok(());
            };
            drop(held);
            match (stop, self.far()) {
                (Stop::Error(e), _) => return Err(e),
                (Stop::Comes(place), Some(b)) => {
                    completion::wait_for_arrival(&b, page as u32, place);
                    waited = true;
                }
                (Stop::Full, Some(b))
                    if began.elapsed() < Duration::from_nanos(b.wait_ns_max())
                        && demote::make_room(&b) => {}
                (Stop::Full | Stop::Comes(_), _) => {
                    add(&self.counts.refused);
                    return Err(DiskError::Full);
                }
            }
        }
    }

    /// Reads a claimed page, wherever it is.
    fn load(&self, held: &Held<'_>, out: &mut PageBuf, scratch: &mut Scratch) -> Result<(), Stop> {
        let entry = held.entry;
        let place = match self.pool.load(entry, out, scratch) {
            Ok(()) => {
                if let Some(b) = self.far() {
                    fetch::used(&b, entry);
                    if held.has(CAME) {
                        fetch::neighbour_used(self);
                    }
                }
                held.clear(CAME | ASKED);
                held.set(USED);
                return Ok(());
            }
            Err(LoadError::NoCopy) => {
                out.fill(0);
                return Ok(());
            }
            Err(LoadError::Verify) => return Err(self.damaged()),
            Err(LoadError::InFarTier(place)) => place,
        };
        let Some(b) = self.far() else {
            return Err(self.damaged());
        };
        // It is being promoted, alone or with its whole extent: it either arrives in the pool, or
        // is read afterwards.
        if !held.waited && channel::is_in_flight(&b, entry.0 - 1, place) {
            return Err(Stop::Comes(place));
        }
        add(&self.counts.far_reads);
        let mut stored = Stored::new();
        match fetch::load(&b, entry, place, out, &mut stored) {
            Ok(()) => {
                fetch::fetch_neighbours(&b, place.extent);
                held.clear(ASKED);
                if fetch::keep(&b, entry, place, &stored) {
                    held.clear(BEYOND);
                    held.set(USED);
                }
                Ok(())
            }
            Err(Lost::Damaged) => Err(self.damaged()),
            Err(Lost::Unreachable | Lost::Gone) => {
                add(&self.counts.unreachable);
                Err(Stop::Error(DiskError::Unreachable))
            }
        }
    }

    fn damaged(&self) -> Stop {
        add(&self.counts.damaged);
        Stop::Error(DiskError::Damaged)
    }

    /// Stores a claimed page.
    fn store(&self, held: &Held<'_>, from: &PageBuf, scratch: &mut Scratch) -> Result<(), Stop> {
        let entry = held.entry;
        held.set(KNOWN);
        self.pool.claim(entry);
        self.high.fetch_max(entry.0, Relaxed);
        let before = self.pool.record(entry);
        if matches!(classify(from), Content::Zero) {
            self.pool.drop_copy(entry);
        } else {
            match self.pool.store(entry, has_copy(before), from, scratch) {
                Ok(outcome) if outcome.kind == canvas_core::swap::Kind::Clean => {
                    add(&self.counts.clean_writes)
                }
                Ok(_) => {}
                Err(StoreError::Full { .. } | StoreError::NoEntry) => return Err(Stop::Full),
            }
        }
        let after = self.pool.record(entry);
        // Unchanged contents may still be beyond the pool.
        if !matches!(after, Record::InFarTier(_)) {
            held.clear(BEYOND);
        }
        held.clear(CAME | ASKED);
        held.set(USED);
        add(&self.counts.writes);
        self.count(Counter::PagesOut, 1);
        self.note(before, after);
        Ok(())
    }

    /// Updates the sums.
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
        // Memory of such a page is not touched; a concurrent write counts as later.
        if !has_copy(self.record(entry)) {
            out.fill(0);
            return Ok(());
        }
        // The host's agent divides its pool by these two counters.
        self.count(Counter::PagesIn, 1);
        self.with_page(page, |held| self.load(held, out, scratch))
    }

    fn write(&self, page: u64, from: &PageBuf, scratch: &mut Scratch) -> Result<(), DiskError> {
        self.with_page(page, |held| self.store(held, from, scratch))
    }

    fn write_part(
        &self,
        page: u64,
        at: usize,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        self.with_page(page, |held| {
            let mut whole = [0; PAGE_SIZE];
            self.load(held, &mut whole, scratch)?;
            whole[at..at + bytes.len()].copy_from_slice(bytes);
            self.store(held, &whole, scratch)
        })
    }

    fn expect(&self, pages: Range<u64>) {
        if let Some(b) = self.far() {
            far::expect(&b, pages);
        }
    }

    fn discard(&self, page: u64) -> Result<(), DiskError> {
        let entry = self.entry(page)?;
        // Ranges are mostly empty; a concurrent write counts as later.
        if !has_copy(self.record(entry)) {
            return Ok(());
        }
        let held = self.hold(entry, false);
        let before = self.pool.record(entry);
        self.pool.drop_copy(entry);
        held.clear(BEYOND | USED | CAME | ASKED);
        self.note(before, self.pool.record(entry));
        Ok(())
    }
}

/// A page claimed by a thread.
struct Held<'s> {
    entry: SwapEntry,
    state: &'s AtomicU8,
    /// Whether this thread has already waited for a transfer of the page.
    waited: bool,
}

impl Held<'_> {
    fn has(&self, bit: u8) -> bool {
        self.state.load(Relaxed) & bit != 0
    }
    fn set(&self, bits: u8) {
        self.state.fetch_or(bits, Relaxed);
    }
    fn clear(&self, bits: u8) {
        self.state.fetch_and(!bits, Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.state.fetch_and(!BUSY, Release);
    }
}

/// Why a claimed page is released with nothing done.
enum Stop {
    Error(DiskError),
    /// The page is being promoted from there.
    Comes(ExtentRef),
    /// The pool is full.
    Full,
}

/// Pauses while another thread keeps a page for long.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// The entry of a page.
pub(crate) fn entry_of(page: u32) -> SwapEntry {
    SwapEntry(page + 1)
}

pub(crate) fn has_copy(record: Record) -> bool {
    !matches!(record, Record::Free | Record::Empty)
}

/// A number for the calling thread, for the allocators' magazines.
pub(crate) fn thread_number() -> usize {
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
