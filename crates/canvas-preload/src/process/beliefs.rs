//! SIGSYS is never blocked, and in signal mode neither is SIGBUS. This module keeps what the program's threads believe
//! to have blocked of them, and such signals that were sent meanwhile, until they may be delivered.

use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_sys::signal::{self, bit};
use canvas_types::sync::RawSpin;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::paging::freeze;
use crate::runtime::state;

/// A `siginfo_t`, as bytes.
pub type Info = [u64; 16];

/// Canvas's signals in this mode, which must never be blocked: a fault (unless handler threads serve it) or a trapped
/// call would end the program.
pub fn ours() -> u64 {
    let faults = match state::PROCESS.in_thread_mode() {
        true => 0,
        false => bit(libc::SIGBUS),
    };
    faults | bit(libc::SIGSYS)
}

/// Canvas's signals in a set, as bits 0 and 1.
pub fn pack(set: u64) -> u8 {
    let set = set & ours();
    (set & bit(libc::SIGBUS) != 0) as u8 | (((set & bit(libc::SIGSYS) != 0) as u8) << 1)
}

/// The inverse of [`pack`].
pub fn unpack(bits: u8) -> u64 {
    (u64::from(bits & 1) * bit(libc::SIGBUS)) | (u64::from((bits >> 1) & 1) * bit(libc::SIGSYS))
}

/// What a thread believes to have blocked; unused if `tid` is 0.
struct Belief {
    tid: AtomicU32,
    blocked: AtomicU8,
}

/// Threads that believe to have something blocked, hashed by number. Further threads are treated as believing nothing.
const PLACES: usize = 1024;
/// A thread's entry is one of this many from its hash on.
const WAYS: usize = 8;

state! {
    static BELIEFS: Beliefs {
        table: [Belief; PLACES] = [const {
            Belief {
                tid: AtomicU32::new(0),
                blocked: AtomicU8::new(0),
            }
        }; PLACES],
        /// Entries in use; never less than the actual number.
        believers: AtomicUsize = AtomicUsize::new(0),
    }
}

state! {
    static KEPT: Kept {
        pending: [Pending; 64] = [const {
            Pending {
                tid: AtomicU32::new(NOBODY),
                signal: AtomicU32::new(0),
                info: UnsafeCell::new([0; 16]),
            }
        }; 64],
        /// Number of signals that are kept.
        count: AtomicUsize = AtomicUsize::new(0),
        /// Taken only inside `freeze::enter`, so that a fork finds it free.
        lock: RawSpin = RawSpin::new(),
        /// Threads that wait for canvas's signals (`sigwait`), by number; 0 for none.
        waiting: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16],
        waiters: AtomicUsize = AtomicUsize::new(0),
    }
}

/// In a fork's child: its one thread believes what the forking thread did, and nothing is pending.
pub fn after_fork_in_child(believed: u8) {
    for b in &BELIEFS.table {
        b.tid.store(0, Ordering::Relaxed);
    }
    BELIEFS.believers.store(0, Ordering::Relaxed);
    if believed != 0 {
        set(proc::tid(), believed);
    }
    KEPT.waiters.store(0, Ordering::Relaxed);
    for one in &KEPT.pending {
        one.tid.store(NOBODY, Ordering::Relaxed);
    }
    KEPT.count.store(0, Ordering::Relaxed);
    for w in &KEPT.waiting {
        w.store(0, Ordering::Relaxed);
    }
}

fn places(tid: u32) -> impl Iterator<Item = &'static Belief> {
    let first = tid as usize * WAYS % PLACES;
    BELIEFS.table[first..first + WAYS].iter()
}

fn entry(tid: u32) -> Option<&'static Belief> {
    places(tid).find(|b| b.tid.load(Ordering::Relaxed) == tid)
}

fn claim(tid: u32) -> Option<&'static Belief> {
    let take = |b: &Belief, from: u32| {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        b.tid.compare_exchange(from, tid, success, failure).is_ok()
    };
    // Counted first: a handler in between must not see zero.
    BELIEFS.believers.fetch_add(1, Ordering::Relaxed);
    if let Some(b) = places(tid).find(|b| take(b, 0)) {
        return Some(b);
    }
    BELIEFS.believers.fetch_sub(1, Ordering::Relaxed);
    // Reuse the entry of a vfork child that has called exec, or of a thread that ended unnoticed.
    places(tid).find(|b| {
        let whose = b.tid.load(Ordering::Relaxed);
        !proc::is_thread(whose) && take(b, whose)
    })
}

fn set(tid: u32, blocked: u8) {
    match (entry(tid), blocked) {
        (Some(b), 0) => {
            b.blocked.store(0, Ordering::Relaxed);
            b.tid.store(0, Ordering::Release);
            BELIEFS.believers.fetch_sub(1, Ordering::Relaxed);
        }
        (Some(b), blocked) => b.blocked.store(blocked, Ordering::Relaxed),
        (None, 0) => {}
        (None, blocked) => {
            if let Some(b) = claim(tid) {
                b.blocked.store(blocked, Ordering::Relaxed);
            }
        }
    }
}

/// Changes what the calling thread believes to have blocked of canvas's signals; returns what it believed before.
pub fn change(change: impl Fn(u8) -> u8) -> u8 {
    // Ask for the thread's number only if the answer matters, which is seldom: libc blocks everything only for moments.
    if BELIEFS.believers.load(Ordering::Relaxed) == 0 && change(0) == 0 {
        return 0;
    }
    let tid = proc::tid();
    let had = entry(tid).map_or(0, |b| b.blocked.load(Ordering::Relaxed));
    let now = change(had);
    if now != had {
        set(tid, now);
    }
    had
}

/// What the calling thread believes to have blocked.
pub fn mine() -> u8 {
    change(|had| had)
}

/// Removes the calling thread, which ends.
pub fn thread_exit() {
    change(|_| 0);
}

/// A signal that is kept until a thread unblocks it.
struct Pending {
    /// The thread that it was sent to, [`ALL`] if it was sent to the process, [`NOBODY`] for none.
    tid: AtomicU32,
    signal: AtomicU32,
    info: UnsafeCell<Info>,
}
// SAFETY: `info` is touched under the lock only.
unsafe impl Sync for Pending {}

const NOBODY: u32 = u32::MAX;
const ALL: u32 = 0;

/// Handles a signal that was sent and that the calling thread believes to have blocked: passes it to a thread that
/// waits for it, or keeps it. The caller has all signals blocked and is not inside `freeze::enter`.
///
/// # Safety
///
/// `info` must be the kernel's, of this signal.
pub unsafe fn keep(sig: i32, info: *const libc::siginfo_t) {
    // SAFETY: the kernel's siginfo (the caller's promise), of 128 bytes.
    let (bytes, code) = unsafe { (info.cast::<Info>().read_unaligned(), (*info).si_code) };
    let to_thread = code == libc::SI_TKILL;
    let whose = if to_thread { proc::tid() } else { ALL };
    let _inside = freeze::enter_masked();
    let _g = KEPT.lock.lock(yield_now);
    // These signals do not queue: one that is kept already suffices.
    let is_it = |p: &&Pending| {
        p.tid.load(Ordering::Relaxed) == whose && p.signal.load(Ordering::Relaxed) == sig as u32
    };
    if KEPT.pending.iter().any(|p| is_it(&p)) {
        return;
    }
    let free = KEPT
        .pending
        .iter()
        .find(|p| p.tid.load(Ordering::Relaxed) == NOBODY);
    if let Some(p) = free {
        // SAFETY: the lock is held, so nobody else touches it.
        unsafe { p.info.get().write(bytes) };
        p.signal.store(sig as u32, Ordering::Relaxed);
        p.tid.store(whose, Ordering::Relaxed);
        KEPT.count.fetch_add(1, Ordering::Relaxed);
    }
    // Under the lock: a waiting thread either looked for kept signals before this, or is seen here.
    if !to_thread && KEPT.waiters.load(Ordering::Relaxed) > 0 {
        ring(sig);
    }
}

/// Wakes a waiting thread, which takes what is kept. A signal from the program cannot be forwarded to another thread.
fn ring(sig: i32) {
    let bell = [
        sig as u64,
        BELL as u32 as u64,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    for w in &KEPT.waiting {
        let tid = w.load(Ordering::Relaxed);
        if tid != 0 && signal::queue(tid, sig, &bell).is_ok() {
            return;
        }
    }
}

/// `si_code` of canvas's own notification to a waiting thread.
pub const BELL: i32 = -0x6361;

/// Takes one of the kept signals in `of` that the calling thread may have.
pub fn take(of: u8) -> Option<(i32, Info)> {
    // A waiting thread must not miss a signal that is being kept right now.
    if of == 0
        || (KEPT.count.load(Ordering::Relaxed) == 0 && KEPT.waiters.load(Ordering::Relaxed) == 0)
    {
        return None;
    }
    let _inside = freeze::enter();
    let tid = proc::tid();
    let _g = KEPT.lock.lock(yield_now);
    let p = KEPT.pending.iter().find(|p| may_have(p, tid, of))?;
    let sig = p.signal.load(Ordering::Relaxed) as i32;
    // SAFETY: the lock is held, so nobody else touches it.
    let info = unsafe { p.info.get().read() };
    p.tid.store(NOBODY, Ordering::Relaxed);
    KEPT.count.fetch_sub(1, Ordering::Relaxed);
    Some((sig, info))
}

fn may_have(p: &Pending, tid: u32, of: u8) -> bool {
    let whose = p.tid.load(Ordering::Relaxed);
    (whose == ALL || whose == tid)
        && pack(bit(p.signal.load(Ordering::Relaxed).max(1) as i32)) & of != 0
}

/// The kept signals that the calling thread may have.
pub fn pending() -> u64 {
    if KEPT.count.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let _inside = freeze::enter();
    let tid = proc::tid();
    let _g = KEPT.lock.lock(yield_now);
    let mine = KEPT.pending.iter().filter(|p| may_have(p, tid, u8::MAX));
    mine.fold(0, |set, p| {
        set | bit(p.signal.load(Ordering::Relaxed) as i32)
    })
}

/// Delivers, through the kernel, signals that are kept for the calling thread and no longer `blocked`: their handlers
/// run before this returns, unless all signals are blocked.
pub fn deliver(blocked: u8) -> bool {
    let mut any = false;
    while let Some((sig, info)) = take(!blocked) {
        any |= signal::queue(proc::tid(), sig, &info).is_ok();
    }
    any
}

/// Drops what is kept of `sig`, which the program now ignores.
pub fn discard(sig: i32) {
    if pack(bit(sig)) == 0 || KEPT.count.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _inside = freeze::enter();
    let _g = KEPT.lock.lock(yield_now);
    for p in &KEPT.pending {
        let there = p.tid.load(Ordering::Relaxed) != NOBODY;
        if there && p.signal.load(Ordering::Relaxed) == sig as u32 {
            p.tid.store(NOBODY, Ordering::Relaxed);
            KEPT.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The calling thread waits for canvas's signals, until dropped.
pub struct Waiter(Option<&'static AtomicU32>);

/// From now on [`keep`] notifies the calling thread, which really has canvas's signals blocked. Before it waits it must
/// [`take`] what is kept.
pub fn wait() -> Waiter {
    KEPT.waiters.fetch_add(1, Ordering::Relaxed);
    let tid = proc::tid();
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    let free = |w: &&AtomicU32| w.compare_exchange(0, tid, success, failure).is_ok();
    Waiter(KEPT.waiting.iter().find(|w| free(w)))
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(w) = self.0 {
            w.store(0, Ordering::Release);
        }
        KEPT.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
