//! State that all of libcanvas shares: the segment, our slot in it, the descriptors, the policy.

use canvas_core::vm::State;
use canvas_shm::{Counter, ProcSlot, Segment};
use canvas_sys::uffd::Uffd;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::runtime::thread;

static SEGMENT: AtomicUsize = AtomicUsize::new(0);
static SLOT: AtomicUsize = AtomicUsize::new(0);
static UFFD: AtomicI32 = AtomicI32::new(-1);

/// This process's pidfd, or -1 (the kernel's PIDFD_SELF is used then).
pub static PIDFD: AtomicI32 = AtomicI32::new(-1);
/// The process that the tables belong to: a vfork child runs on them under another pid.
pub static PID: AtomicU32 = AtomicU32::new(0);
/// Faults are delivered to handler threads, which must wake the faulting thread.
pub static THREAD_MODE: AtomicBool = AtomicBool::new(false);
/// The process has forked, or is a fork's child: pages may be shared.
pub static FORKED: AtomicBool = AtomicBool::new(false);
/// Minor faults of this process that copied no page of the program: served by its handler threads (and retried), or on
/// memory of canvas that is charged separately.
pub static FAULTS_WITHOUT_COPY: AtomicU64 = AtomicU64::new(0);
/// process_madvise on this process itself does not work here.
pub static NO_VECTOR_DISCARD: AtomicBool = AtomicBool::new(false);

/// The pager's state.
pub static PAGER: State = State::new();

/// This process, for [`canvas_core::vm`]: `paging` implements the kernel's and the process's part, `far_tier` the
/// store, and `paging::observers` the optional features.
pub struct Process;

pub static PROCESS: Process = Process;

/// Attaches the segment at `addr`.
///
/// # Safety
///
/// As for [`Segment::at`].
pub unsafe fn attach(addr: usize) {
    SEGMENT.store(addr, Ordering::Release);
}

/// The tenant segment.
#[inline(always)]
pub fn seg() -> &'static Segment {
    // SAFETY: before anything calls this, start-up has attached a mapping as `Segment::at` wants it.
    unsafe { Segment::at(SEGMENT.load(Ordering::Relaxed)) }
}

pub fn set_slot(slot: &'static ProcSlot) {
    SLOT.store(slot as *const ProcSlot as usize, Ordering::Release);
}

/// This process's slot.
#[inline(always)]
pub fn slot() -> &'static ProcSlot {
    // SAFETY: before anything calls this, `set_slot` has stored the address of a slot, which lives for ever.
    unsafe { &*(SLOT.load(Ordering::Relaxed) as *const ProcSlot) }
}

#[inline(always)]
pub fn uffd() -> Uffd {
    Uffd(UFFD.load(Ordering::Relaxed))
}

pub fn set_uffd(u: Uffd) {
    UFFD.store(u.0, Ordering::Release);
}

/// Adds `n` to a counter.
#[inline(always)]
pub fn count(c: Counter, n: u64) {
    seg().count(thread::thread_hash(), c, n);
}
