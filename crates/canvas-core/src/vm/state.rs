//! What the pager of one process remembers.

use canvas_types::PageId;
use canvas_types::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, RawSpin};

// As the segment's times are ([`super::ledger::once_in`]).
use core::sync::atomic::AtomicU64 as Time;

use crate::pager::clock::{Clock, ClockParams, EpochClock};
use crate::pager::dirty_share::DirtyShare;
use crate::pager::headroom::Headroom;
use crate::pager::holds::Holds;
use crate::pager::locks::SharedLock;
use crate::pager::prefetch::choice::Prefetchers;

/// Locks of chunks; chunks whose numbers differ by a multiple of this share one.
pub(super) const CHUNK_LOCKS: usize = if cfg!(feature = "shuttle") { 8 } else { 4096 };
/// Locks of blocks, likewise.
pub(super) const BLOCK_LOCKS: usize = 256;
/// Cells for repeated faults; threads share one if their numbers collide.
const SPURIOUS_CELLS: usize = 64;

/// The state of a process's pager. Usable as a static; a fork's child goes on with its copy.
pub struct State {
    /// Chooses which page to evict.
    pub clock: Clock,
    /// Coarse eviction time.
    pub epoch: EpochClock,
    /// Choose what to bring in ahead.
    pub prefetchers: Prefetchers,
    /// Calls by which a device may write to any page; reclaim stops meanwhile.
    pub holds: Holds,
    /// A batch of reclaim was refused because of such a call, since somebody last took that back.
    pub was_held: AtomicBool,
    /// Resident pages of the managed range, as the kernel counts them; updated together with the charge.
    pub resident_pages: AtomicI64,
    /// Pages that reclaim has ever unmapped, apart from those of a trace.
    pub evicted_pages: AtomicU64,
    /// Samples of proactive swap-in that were touched.
    pub proactive_used: AtomicU64,
    pub(super) headroom: Headroom,
    pub(super) dirty_share: DirtyShare,
    /// A thread reclaims ahead of its own need.
    pub(super) in_line_busy: AtomicBool,
    /// Far memory is nearly full: no page that comes in keeps its entry.
    pub(super) nearly_full: AtomicBool,
    /// Until this time, dirty pages of the swap cache are not tried.
    pub(super) refused_until_ns: AtomicU64,
    /// Until this time, no thread waits for other processes: they gave nothing when last asked.
    pub(super) silent_until_ns: AtomicU64,
    /// Until this time, all pages to evict belong to other processes.
    pub(super) others_until_ns: AtomicU64,
    /// When the demand of this process was last judged, its count of returned pages then, and since when none returns.
    pub(super) judged_ns: Time,
    pub(super) returned: AtomicU64,
    pub(super) quiet_ns: AtomicU64,
    /// Taken, if it is free, to update the ages of this process's pages. A thread that is killed in a vfork child may
    /// leave it taken; ages are updated later then.
    pub(super) ages_writer: RawSpin,
    /// One lock per chunk, between threads that make pages present and the reclaimer that write-protects a span.
    pub(super) chunks: [SharedLock; CHUNK_LOCKS],
    /// Blocks in which a batch releases spans.
    pub(super) blocks: [AtomicBool; BLOCK_LOCKS],
    pub(super) spurious: [AtomicU64; SPURIOUS_CELLS],
    /// Damaged pages that were reported.
    pub(super) damaged: AtomicU32,
    /// When it was last reported that nothing can be stored.
    pub(super) full_told_ns: Time,
}

impl State {
    /// The state of a process that has no page yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> State {
        State {
            clock: Clock::new(ClockParams::DEFAULT),
            epoch: EpochClock::new(),
            prefetchers: Prefetchers::new(),
            holds: Holds::new(),
            was_held: AtomicBool::new(false),
            resident_pages: AtomicI64::new(0),
            evicted_pages: AtomicU64::new(0),
            proactive_used: AtomicU64::new(0),
            headroom: Headroom::new(),
            dirty_share: DirtyShare::new(),
            in_line_busy: AtomicBool::new(false),
            nearly_full: AtomicBool::new(false),
            refused_until_ns: AtomicU64::new(0),
            silent_until_ns: AtomicU64::new(0),
            others_until_ns: AtomicU64::new(0),
            judged_ns: Time::new(0),
            returned: AtomicU64::new(0),
            quiet_ns: AtomicU64::new(0),
            ages_writer: RawSpin::new(),
            chunks: [const { SharedLock::new() }; _],
            blocks: [const { AtomicBool::new(false) }; _],
            spurious: [const { AtomicU64::new(NO_FAULT) }; _],
            damaged: AtomicU32::new(0),
            full_told_ns: Time::new(0),
        }
    }
}

/// A cell of [`State::spurious`] without a fault.
const NO_FAULT: u64 = u64::MAX;

impl State {
    /// Counts consecutive faults on one page, for each group of threads: two threads that fault on two pages must not
    /// reset each other's count. Returns how often the page had faulted before in a row, or `None` if the last fault of
    /// the thread's group was on another page.
    pub(super) fn repeated(&self, thread: usize, page: PageId) -> Option<u32> {
        // A cell holds the page in its low half and the count above it.
        const TIMES: u64 = 1 << 32;
        let cell = &self.spurious[thread % self.spurious.len()];
        let seen = cell.load(Ordering::Relaxed);
        let same = seen as u32 == page.0 && seen != NO_FAULT;
        let now = match same {
            true => seen.saturating_add(TIMES),
            false => u64::from(page.0),
        };
        // If two threads share the cell, the fault of the one that loses is repeated anyway.
        cell.store(now, Ordering::Relaxed);
        same.then_some((seen / TIMES) as u32)
    }

    /// In a fork's child, of whose pages `resident` are resident: forgets what the parent's threads were doing.
    pub fn after_fork_in_child(&self, resident: i64) {
        self.resident_pages.store(resident, Ordering::Relaxed);
        self.in_line_busy.store(false, Ordering::Relaxed);
        self.holds.forget();
    }
}
