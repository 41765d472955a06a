//! What several folders need of this process.

use canvas_core::vm::State;
use canvas_shm::{Counter, ProcSlot, Segment};
use canvas_sys::proc;
use canvas_sys::uffd::Uffd;
use core::ops::Deref;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::runtime::thread;

/// Has its cache lines to itself: a write to it costs no thread that only reads what is next to it.
#[repr(align(64))]
pub struct CacheAligned<T>(pub T);

impl<T> Deref for CacheAligned<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The program's limits on one resource, or `u64::MAX`. Canvas enforces them, and raises the kernel's: its own memory
/// would not fit.
pub struct Limit {
    pub soft: AtomicU64,
    pub hard: AtomicU64,
}

impl Limit {
    const fn none() -> Limit {
        Limit {
            soft: AtomicU64::new(u64::MAX),
            hard: AtomicU64::new(u64::MAX),
        }
    }
}

state! {
    /// This process. For [`canvas_core::vm`], `paging` implements the kernel's and the process's part, `far_tier` the
    /// store, and `paging::observers` the optional features; all of them reach it by its name, at a constant address.
    pub static PROCESS: Process {
        segment: AtomicUsize = AtomicUsize::new(0),
        slot: AtomicUsize = AtomicUsize::new(0),
        uffd: AtomicI32 = AtomicI32::new(-1),
        pid: AtomicU32 = AtomicU32::new(0),
        thread_mode: AtomicBool = AtomicBool::new(false),
        forked: AtomicBool = AtomicBool::new(false),
        /// process_madvise on this process itself does not work here.
        pub no_vector_discard: AtomicBool = AtomicBool::new(false),
        /// Nonzero once this process has a reclaim thread.
        pub reclaimer: AtomicU32 = AtomicU32::new(0),
        /// RLIMIT_AS.
        pub address_space: Limit = Limit::none(),
        /// RLIMIT_DATA.
        pub data: Limit = Limit::none(),
        /// The hard RLIMIT_NOFILE that the program has set; the kernel's leaves room for canvas's descriptors above it.
        pub hard_files: AtomicU64 = AtomicU64::new(u64::MAX),
        /// What the pager remembers.
        pub pager: CacheAligned<State> = CacheAligned(State::new()),
        /// Minor faults of this process that copied no page of the program: served by its handler threads (and
        /// retried), or on memory of canvas that is charged separately.
        pub faults_without_copy: CacheAligned<AtomicU64> = CacheAligned(AtomicU64::new(0)),
        /// Pages that this process has charged by estimate since it last measured.
        pub drift_pages: CacheAligned<AtomicI64> = CacheAligned(AtomicI64::new(0)),
    }
}

impl Process {
    /// At start-up: this process has the tables, and its faults are served as the mode says.
    pub fn begin(&self, thread_mode: bool) {
        self.thread_mode.store(thread_mode, Ordering::Relaxed);
        self.pid.store(proc::pid(), Ordering::Relaxed);
    }

    /// In a fork's child, which gets slot and userfaultfd of its own besides: it has a copy of the tables. Mode, limits
    /// and drift are its parent's.
    pub fn after_fork_in_child(&self) {
        self.pid.store(proc::pid(), Ordering::Relaxed);
        self.faults_without_copy.store(0, Ordering::Relaxed);
        self.note_forked();
    }

    /// Records that this process has forked, or is a fork's child.
    pub fn note_forked(&self) {
        self.forked.store(true, Ordering::Relaxed);
    }

    /// Whether this process may share pages, because it has forked or is a fork's child.
    #[inline(always)]
    pub fn has_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// Whether faults are delivered to handler threads, which must wake the faulting thread.
    #[inline(always)]
    pub fn in_thread_mode(&self) -> bool {
        self.thread_mode.load(Ordering::Relaxed)
    }

    /// The number of the process that the tables belong to.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Whether the caller is in a vfork child: it runs on this memory under another number, and the tables are not its.
    pub fn is_vfork_child(&self) -> bool {
        self.pid() != proc::pid()
    }
}

/// Attaches the segment at `addr`.
///
/// # Safety
///
/// As for [`Segment::at`].
pub unsafe fn attach(addr: usize) {
    PROCESS.segment.store(addr, Ordering::Release);
}

/// The tenant segment.
#[inline(always)]
pub fn seg() -> &'static Segment {
    // SAFETY: before anything calls this, start-up has attached a mapping as `Segment::at` wants it.
    unsafe { Segment::at(PROCESS.segment.load(Ordering::Relaxed)) }
}

pub fn set_slot(slot: &'static ProcSlot) {
    PROCESS
        .slot
        .store(slot as *const ProcSlot as usize, Ordering::Release);
}

/// This process's slot.
#[inline(always)]
pub fn slot() -> &'static ProcSlot {
    // SAFETY: before anything calls this, `set_slot` has stored the address of a slot, which lives for ever.
    unsafe { &*(PROCESS.slot.load(Ordering::Relaxed) as *const ProcSlot) }
}

#[inline(always)]
pub fn uffd() -> Uffd {
    Uffd(PROCESS.uffd.load(Ordering::Relaxed))
}

pub fn set_uffd(u: Uffd) {
    PROCESS.uffd.store(u.0, Ordering::Release);
}

/// Adds `n` to a counter.
#[inline(always)]
pub fn count(c: Counter, n: u64) {
    seg().count(thread::thread_hash(), c, n);
}
