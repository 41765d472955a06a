//! Lends pages to another process that copies from or to them ([`canvas_shm::lend`]): the owner's part, in its reclaim
//! thread, and the requester's.

use canvas_shm::ProcSlot;
use canvas_shm::lend::{CopyRequest, PAGES_MAX, RequestCell, Requester, Stage};
use canvas_sys::{gate, proc, signal};
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::Ordering;

use crate::memory::pins::{self, Pins};
use crate::runtime::state;
use crate::tenant::members;

/// How long the owner keeps pages present for a requester that does not begin to copy, and how often it checks that a
/// copying requester still lives.
const KEPT_NS: u64 = 100_000_000;
/// How long the owner may take until it takes a request, and until it has made the pages present: one may lie beyond
/// the pool.
const LOOK_NS: u64 = 1_000_000_000;
const FETCH_NS: u64 = 10_000_000_000;
/// Maximum duration of a batch of the owner's reclaim; a batch in a vfork child that was killed never ends.
const BATCH_NS: u64 = 100_000_000;
/// Pause between two polls for the answer.
const PAUSE_NS: u64 = 100_000;
/// How often a copy is tried while its pages are present.
const TRIES: usize = 4;

/// Result of [`copy`] if the owner does not answer.
pub const REFUSED: isize = -(libc::EPERM as isize);

/// State of the reclaim thread's part: pages that it keeps present for another process.
#[derive(Default)]
pub struct Lender {
    kept: Option<Kept>,
}

struct Kept {
    request: CopyRequest,
    until_ns: u64,
    _pins: Pins,
}

impl Lender {
    /// Takes the posted request, if there is one. The caller is not inside `freeze::enter`.
    pub fn round(&mut self) {
        let place = &state::slot().lend;
        let there = place.request();
        if let Some(kept) = &mut self.kept {
            // The same pages may have been requested again: that is another request.
            let is_at = |stage| there == Some(kept.request.at(stage));
            let is_used = is_at(Stage::Copying);
            if (is_used || is_at(Stage::Ready)) && proc::now_ns() < kept.until_ns {
                return;
            }
            if is_used {
                kept.until_ns = proc::now_ns() + KEPT_NS;
                forget_if_gone(kept.request);
                return;
            }
            self.give_up();
        }
        let Some(request) = there.filter(|r| r.stage() == Stage::Posted) else {
            return;
        };
        let taken = request.at(Stage::Fetching);
        if !place.replace(request, taken) {
            return;
        }
        let bytes = request.count() as usize * PAGE_SIZE;
        let pins = pins::pin_range(PageId(request.first()).addr(), bytes);
        let done = taken.at(match pins.is_empty() {
            true => Stage::Failed,
            false => Stage::Ready,
        });
        if place.replace(taken, done) {
            self.kept = Some(Kept {
                request: done,
                until_ns: proc::now_ns() + KEPT_NS,
                _pins: pins,
            });
        }
    }

    /// Ends a request that nobody uses. If the requester starts to copy at this moment, the pins stay until the next
    /// round.
    fn give_up(&mut self) {
        if let Some(kept) = self.kept.take() {
            let place = &state::slot().lend;
            if !place.remove(kept.request)
                && place.request() == Some(kept.request.at(Stage::Copying))
            {
                self.kept = Some(kept);
            }
        }
    }
}

/// Removes the request of a requester that has ended.
fn forget_if_gone(request: CopyRequest) {
    let Some(requester) = state::seg().procs.get(request.process() as usize) else {
        return;
    };
    members::release_gone(|slot| core::ptr::eq(slot, requester));
    if requester.identity().is_none() {
        state::slot().lend.forget(request.process());
    }
}

/// Outcome of a request.
#[derive(PartialEq, Eq)]
enum Answer {
    Ready(CopyRequest),
    Failed,
    Refused,
}

/// This thread's request for `bytes` at `addr`, or as much of that as one request can have.
fn request_for(addr: usize, bytes: usize) -> CopyRequest {
    let requester = Requester {
        process: state::seg().index_of(state::slot()) as u32,
        thread: proc::tid(),
    };
    let first = PageId::of_addr(addr).0;
    let last =
        PageId::of_addr(addr.saturating_add(bytes.clamp(1, PAGES_MAX as usize * PAGE_SIZE) - 1));
    CopyRequest::of(requester, first, last.0.saturating_sub(first) + 1)
}

/// A request in use, until dropped. No signal handler runs meanwhile, because it could leave by a jump.
pub struct Use<'a> {
    place: &'a RequestCell,
    request: CopyRequest,
    mask: u64,
}

impl<'a> Use<'a> {
    /// Uses the request if `begin` can place it.
    fn begin(
        place: &'a RequestCell,
        request: CopyRequest,
        begin: impl Fn(CopyRequest) -> bool,
    ) -> Option<Self> {
        let request = request.at(Stage::Copying);
        let mask = signal::set_mask(u64::MAX);
        if !begin(request) {
            signal::set_mask(mask);
            return None;
        }
        Some(Use {
            place,
            request,
            mask,
        })
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.place.remove(self.request);
        signal::set_mask(self.mask);
    }
}

/// Outcome of [`keep`].
pub enum Stay<'a> {
    /// Pages that are present stay so until this is dropped.
    Held(#[allow(dead_code)] Use<'a>),
    /// Pages may leave: the owner must be asked.
    Unsettled,
    /// Other processes keep asking, or the owner has ended.
    Refused,
}

/// Keeps present pages of `bytes` at `addr` from leaving; the owner need not act.
pub fn keep(slot: &ProcSlot, addr: usize, bytes: usize) -> Stay<'_> {
    let (id, request) = (slot.id.load(Ordering::Relaxed), request_for(addr, bytes));
    let begun = proc::now_ns();
    let used = loop {
        if let Some(used) = Use::begin(&slot.lend, request, |r| slot.lend.put(r)) {
            break used;
        }
        if slot.id.load(Ordering::Relaxed) != id || proc::now_ns() - begun > LOOK_NS {
            return Stay::Refused;
        }
        if let Some(other) = slot.lend.request()
            && proc::now_ns() - begun > KEPT_NS
        {
            members::release_gone(|s| state::seg().index_of(s) == other.process() as usize);
        }
        gate::wait(PAUSE_NS / 2);
    };
    let begun = proc::now_ns();
    while slot.lend.is_in_batch() {
        if proc::now_ns() - begun > BATCH_NS {
            return Stay::Unsettled;
        }
        gate::yield_now();
    }
    Stay::Held(used)
}

/// Requests `bytes` at `addr`, or as much of that as one request can have. The caller removes the request when it is
/// done.
fn ask(slot: &ProcSlot, addr: usize, bytes: usize) -> Answer {
    let (id, posted) = (slot.id.load(Ordering::Relaxed), request_for(addr, bytes));
    let begun = proc::now_ns();
    let mut was_posted = false;
    loop {
        if slot.id.load(Ordering::Relaxed) != id {
            return Answer::Refused;
        }
        if !was_posted && slot.lend.put(posted) {
            was_posted = true;
            members::wake(slot);
            continue;
        }
        let there = (slot.lend.request()).filter(|r| was_posted && r.is_same(posted));
        let stage = there.map(CopyRequest::stage);
        match (there, stage) {
            (Some(r), Some(Stage::Ready)) => return Answer::Ready(r),
            (Some(r), Some(Stage::Failed)) => {
                slot.lend.remove(r);
                return Answer::Failed;
            }
            // The owner ran out of patience: try once more.
            (None, _) => was_posted = false,
            _ => {}
        }
        let patience_ns = match stage {
            Some(Stage::Fetching) => FETCH_NS,
            _ => LOOK_NS,
        };
        if proc::now_ns() - begun > patience_ns {
            if let Some(r) = there {
                slot.lend.remove(r);
            }
            return Answer::Refused;
        }
        if stage != Some(Stage::Fetching) {
            members::wake(slot);
        }
        proc::sleep_ns(PAUSE_NS);
    }
}

/// What was tried of a copy before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// The call as the program made it: not all of the pages are present.
    Yes,
    /// Nothing: the kernel would write.
    No,
}

/// Makes a copy from or to `bytes` at `addr` of a process by `call`, which returns `failed` if a page is absent. `pin`
/// pins what the call needs of this process.
pub fn copy(
    slot: &ProcSlot,
    (addr, bytes): (usize, usize),
    (tried, failed): (Tried, isize),
    pin: impl Fn() -> Pins,
    call: impl Fn() -> isize,
) -> isize {
    if tried == Tried::No {
        let _pins = pin();
        match keep(slot, addr, bytes) {
            Stay::Held(_used) => match call() {
                r if r == failed => {}
                r => return r,
            },
            Stay::Unsettled => {}
            Stay::Refused => return REFUSED,
        }
    }
    for _ in 0..TRIES {
        match ask(slot, addr, bytes) {
            Answer::Ready(ready) => {
                let _pins = pin();
                // The owner may have run out of patience just now.
                let begin = |used| slot.lend.replace(ready, used);
                if let Some(_used) = Use::begin(&slot.lend, ready, begin) {
                    match call() {
                        r if r == failed => {}
                        r => return r,
                    }
                }
            }
            Answer::Failed => return failed,
            Answer::Refused => return REFUSED,
        }
    }
    failed
}
