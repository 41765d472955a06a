//! What the pager requires. All of it is known at compile time: no call here is indirect.

use canvas_shm::slow::Cause;
use canvas_shm::{ProcSlot, Segment, lend};
use canvas_types::sync::AtomicU64;
use canvas_types::{ExtentRef, PageBuf, PageId, SwapEntry};
use core::ops::DerefMut;

use super::context::{Batch, Fill};
use super::spans::{Held, Range};
use super::state::State;
use crate::far::fetch::{Lost, Stored};
use crate::pager::prefetch::{Advice, Area, FaultSite, MemoryView, Prefetcher};
use crate::pager::slot::SlotTable;
use crate::pager::table::PageTable;
use crate::pager::word::{self, Word};
use crate::pager::writes::Writes;
use crate::swap::{LoadError, Outcome, Scratch, StoreError};

/// Where the contents of pages that come in are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Nowhere: they are zeros.
    Zeros,
    /// In a slot of the swap cache, for one page.
    Slot(u32),
    /// In a context's staging pages.
    Staged(&'a [PageBuf]),
}

/// Why a copy stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The range crosses a border between two of the kernel's mappings.
    Border,
    /// The kernel was interrupted, or the process's memory map was changing: try again.
    Again,
    /// The kernel had no free page.
    NoMemory,
    /// The next page is present.
    Present,
    /// Nothing is mapped there that could hold the page.
    NotMapped,
}

/// How far a copy came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Pages that are present now.
    pub pages: usize,
    /// Why it stopped there, if not at the end.
    pub stopped: Option<Stop>,
}

/// How a discard ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discarded {
    /// Whether all contents are gone; otherwise some may remain.
    pub all: bool,
    /// How many of the pages a relative still maps, so that their memory is not free.
    pub still_shared: i64,
}

/// The kernel, for pages of the managed range.
pub trait Kernel {
    /// Monotonic time in ns.
    fn now_ns(&self) -> u64;
    /// Sleeps for `ns`, and longer the more threads do.
    fn sleep(&self, ns: u64);
    /// Sleeps for `ns`, while the caller holds a chunk.
    fn sleep_holding(&self, ns: u64);
    /// Calls `f`, which may wait for `cause`.
    fn during<R>(&self, cause: Cause, f: impl FnOnce() -> R) -> R;
    /// Yields while another thread works on a page.
    fn yield_to_page();
    /// Yields while another thread holds a chunk.
    fn yield_to_chunk();
    /// Yields to another thread.
    fn yield_now();
    /// Makes absent pages present, write-protected if `protect`. Threads that wait for them go on.
    fn copy_in(&self, to: Held, from: Source<'_>, protect: bool) -> Copied;
    /// Copies a present, write-protected page to a slot of the swap cache.
    fn copy_out(&self, page: Held, slot: u32);
    /// Write-protects pages, or lifts the protection; absent ones are left alone. False if the kernel refuses.
    fn protect(&self, pages: Held, on: bool) -> bool;
    /// Discards contents that are not needed any more.
    fn discard(&self, ranges: &[Range]) -> Discarded;
    /// Discards the contents of one page. False if the kernel keeps it.
    fn discard_page(&self, page: Held) -> bool;
    /// Whether the kernel has a page there.
    fn is_present(&self, page: PageId) -> bool;
    /// Wakes threads that wait for a page of these, if faults are delivered to handler threads; such threads fault again.
    fn wake(&self, ranges: &[Range]);
    /// Calls `touches`, which touches memory of canvas's own that is charged elsewhere.
    fn uncounted<R>(&self, touches: impl FnOnce() -> R) -> R {
        touches()
    }
}

/// Untouched pages that are claimed for a first touch, `from..to`: their words are Filling.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The first page.
    pub from: PageId,
    /// One past the last page.
    pub to: PageId,
    /// The pages are locked in memory from their first touch on.
    pub is_locked: bool,
}

/// Why nothing can be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarFull {
    /// The host's memory is down to its reserve.
    HostShort,
    /// Far memory takes nothing.
    Stalled,
    /// The host does not overcommit, and has nothing left.
    NoMemory,
    /// The pool is full, and nothing is beyond it.
    PoolFull,
    /// The pool and far memory are full.
    AllFull,
}

/// What is reported to the user.
#[derive(Clone, Copy, Debug)]
pub enum Report {
    /// A stored copy is damaged, or is not where its entry says; `is_last`: further ones are counted only.
    Damaged {
        /// Its page.
        page: PageId,
        /// Where it was.
        why: LoadError,
        /// Whether this is the last line.
        is_last: bool,
    },
    /// The kernel has lost a page.
    Vanished {
        /// The page.
        page: PageId,
        /// Its word.
        word: Word,
    },
    /// Reclaim stops, and new memory is refused.
    FarFull(FarFull),
}

/// The process and its tenant.
pub trait Process {
    /// The pager's state.
    fn state(&self) -> &State;
    /// The tenant's segment.
    fn segment(&self) -> &Segment;
    /// This process's slot in it.
    fn slot(&self) -> &ProcSlot;
    /// The page words.
    fn table(&self) -> PageTable<'_>;
    /// The word of a page.
    #[inline(always)]
    fn word(&self, page: PageId) -> &AtomicU64 {
        &self.table().words[page.index()]
    }
    /// The swap cache.
    fn cache(&self) -> SlotTable<'_>;
    /// The contents of a slot, for its writer or taker.
    fn slot_page(&self, slot: u32) -> &PageBuf;
    /// Fills a slot that the caller has allocated and not filled yet.
    fn fill_slot(&self, slot: u32, page: &PageBuf);
    /// Scores of writes.
    fn writes(&self) -> Writes<'_>;
    /// A number for the calling thread.
    fn thread(&self) -> usize;
    /// Whether relatives may map its pages.
    fn has_forked(&self) -> bool;
    /// Working memory for bringing pages in, until dropped.
    fn fill(&self) -> impl DerefMut<Target = Fill>;
    /// Working memory for reclaim, until dropped.
    fn batch(&self) -> impl DerefMut<Target = Batch>;
    /// Keeps other processes from copying this process's pages during a batch of reclaim; `None` where none can.
    fn lent(&self) -> Option<lend::Batch<'_>> {
        None
    }
    /// `n` slots of the swap cache use memory from now on.
    fn slots_opened(&self, _n: usize) {}
    /// Releases what a process of the tenant had, if it has ended; returns whether it has.
    fn release_dead(&self, other: &ProcSlot) -> bool;
    /// Wakes the reclaim thread of another process.
    fn wake_other(&self, other: &ProcSlot);
    /// Starts this process's reclaim thread, unless it runs.
    fn start_reclaimer(&self);
    /// Wakes this process's reclaim thread, or starts it.
    fn wake_reclaimer(&self);
    /// The reclaim thread has seen that the pool must not grow, and asks for the next step; waits for it. False where no
    /// step can come.
    fn wait_for_step(&self) -> bool {
        false
    }
    /// Claims `page` and up to `ahead` untouched neighbours in the direction of `stride` (1 or -1) for a first touch.
    /// `None` if the page is not memory that canvas manages, and an empty range if another thread has it.
    fn claim_untouched(&self, page: PageId, ahead: u32, stride: i32) -> Option<Claim>;
    /// `pages` claimed pages from `first` on, of one block, are untouched again.
    fn unclaim(&self, first: PageId, pages: usize);
    /// The mapping of a page, for prefetchers; `None` if that is not known now.
    fn area_of(&self, page: PageId) -> Option<Area>;
    /// The program's advice on a page's region.
    fn advice(&self, page: PageId) -> Advice;
    /// Keeps pages charged that were discarded here but that a relative still maps.
    fn keep_charge(&self, pages: i64);
    /// Reports to the user.
    fn report(&self, what: Report);
}

/// The process's compressed pool, and far memory beyond it. Whoever calls owns the entry.
pub trait Store {
    /// Loads and verifies the copy of an entry.
    fn load(
        &self,
        entry: SwapEntry,
        page: &mut PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), LoadError>;
    /// Stores a page; `far_copy`: the entry holds an earlier copy.
    fn store(
        &self,
        entry: SwapEntry,
        far_copy: bool,
        page: &PageBuf,
        scratch: &mut Scratch,
    ) -> Result<Outcome, StoreError>;
    /// Frees an entry with its copies.
    fn release(&self, entry: SwapEntry);
    /// Drops the copy of an entry, which is kept. False if it has none.
    fn drop_copy(&self, entry: SwapEntry) -> bool;
    /// As [`Store::drop_copy`], but for copies beyond the pool, which stay.
    fn drop_pooled_copy(&self, entry: SwapEntry) -> bool;
    /// Where the copy is, if it is beyond the pool.
    fn extent_ref(&self, entry: SwapEntry) -> Option<ExtentRef>;
    /// Drops the pooled copy of an entry that has one beyond the pool as well.
    fn demote_home(&self, entry: SwapEntry);
    /// Frees empty slabs.
    fn trim(&self);
    /// Drops copies of resident pages to make room in the pool. True if a store may fit now.
    fn drop_copies(&self) -> bool {
        false
    }
    /// Waits until something has left the full pool. False if nothing will.
    fn make_room(&self) -> bool {
        false
    }
    /// Whether the host gives the pool no more memory.
    fn has_no_memory(&self) -> bool {
        false
    }
    /// Bytes used on NUMA nodes and beyond the pool, and the limit there.
    fn used_and_limit(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Whether there is far memory beyond the pool.
    fn has_far_tier(&self) -> bool {
        false
    }
    /// Whether nothing can be written beyond the pool, although what is there can be read.
    fn is_closed(&self) -> bool {
        false
    }
    /// Whether a closed far tier may open again while a thread waits.
    fn may_open(&self) -> bool {
        false
    }
    /// Whether far memory does not answer, or takes no pages.
    fn is_stalled(&self) -> bool {
        false
    }
    /// Whether the page is on its way, alone or with its extent.
    fn is_in_flight(&self, _page: PageId, _place: ExtentRef) -> bool {
        false
    }
    /// Reads a copy beyond the pool.
    fn load_far_tier(
        &self,
        _entry: SwapEntry,
        _place: ExtentRef,
        _page: &mut PageBuf,
        _stored: &mut Stored,
    ) -> Result<(), Lost> {
        Err(Lost::Unreachable)
    }
    /// Waits for a page that is on its way. The caller must not own the page's word.
    fn wait_for_arrival(&self, _page: PageId, _place: ExtentRef) {}
    /// Completes reads that have arrived.
    fn absorb(&self) {}
    /// A page was loaded from the pool.
    fn used(&self, _entry: SwapEntry) {}
    /// A page that had come into the pool beside another one was used.
    fn neighbour_used(&self) {}
    /// Requests the neighbours of a page that was read alone.
    fn fetch_neighbours(&self, _extent: u32) {}
    /// Keeps in the pool what [`Store::load_far_tier`] has read, if there is room.
    fn keep(&self, _entry: SwapEntry, _place: ExtentRef, _stored: &Stored) {}
    /// Requests a whole extent. The caller has claimed a page whose entry names it.
    fn fetch(&self, _extent: u32) {}
    /// Requests a page alone. The caller has claimed it.
    fn read_ahead(&self, _page: PageId, _place: ExtentRef) -> bool {
        false
    }
    /// Requests what a stream needs after the `pages` pages from `start` on.
    fn fetch_for_stream(&self, _start: PageId, _stride: i32, _pages: u32) {}
}

/// Optional features: each is called at one place, and may do nothing.
pub trait Observers: Process {
    /// Decides what comes in besides a page that faults.
    #[inline(always)]
    fn prefetcher(&self) -> &impl Prefetcher {
        &self.state().prefetchers
    }
    /// A fault begins; the result comes back with its end, if it is not 0.
    #[inline]
    fn fault_begins(&self, _page: PageId) -> u64 {
        0
    }
    /// A fault has ended with its page present. `met` is the word that it found.
    #[inline]
    fn fault_ended(&self, _begun: u64, _page: PageId, _met: Word, _write: bool) {}
    /// A far page is about to come in, before its thread goes on: the program may ask for its faults next. `planned`:
    /// pages come in with it.
    #[inline]
    fn before_swap_in(&self, _at: FaultSite, _planned: bool) {}
    /// A far page is present, and its word published.
    #[inline]
    fn swapped_in(&self, _at: FaultSite, _data: &PageBuf) {}
    /// A page comes in during a fault on another page.
    #[inline]
    fn prefetched(&self, _page: PageId) {}
    /// Pages `from..from + pages` were filled with zeros because of a touch of `touched`.
    #[inline]
    fn zero_filled(&self, _from: PageId, _pages: usize, _touched: PageId) {}
    /// A page has left local memory.
    #[inline]
    fn evicted(&self, _page: PageId) {}
    /// A page was discarded.
    #[inline]
    fn discarded(&self, _page: PageId) {}
    /// Whether a prefetched page is to stay unmapped, so that its first touch is seen.
    #[inline]
    fn wants_touch_of(&self, _page: PageId) -> bool {
        false
    }
}

/// The process's memory, as prefetchers see it.
impl<T: Process> MemoryView for T {
    #[inline]
    fn area_of(&self, page: PageId) -> Option<Area> {
        Process::area_of(self, page)
    }
    #[inline]
    fn is_far(&self, page: PageId) -> bool {
        let w = self.table().words.get(page.index());
        w.is_some_and(|w| word::load(w).state() == word::State::Far)
    }
    #[inline]
    fn epoch(&self) -> u8 {
        self.state().epoch.now()
    }
}

/// All that the pager requires.
pub trait Vm: Kernel + Process + Store + Observers {}
impl<T: Kernel + Process + Store + Observers> Vm for T {}
