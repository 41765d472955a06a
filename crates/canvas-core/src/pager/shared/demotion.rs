//! Moves far copies of shared pages beyond the store, in extents; also makes room in the store without moving any.
//!
//! Copies leave the store in requests. Requests lie in shared memory like everything here: a request and its contents
//! outlive the process that made it. The store keeps its copies until the request has ended. Then each page whose copy
//! is still the one that was carried gets the new entry; the other carried copies are obsolete. The step is idempotent:
//! a process that takes over from a dead one repeats it.

use super::word::{Entry, State, Word, load, transition};
use super::{Kernel, Partition};

/// A copy that a request carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DemotedCopy {
    /// The page it belongs to.
    pub page: u32,
    /// Its entry in the store.
    pub from: Entry,
    /// Its entry beyond the store.
    pub to: Entry,
}

/// Carries copies beyond the store.
pub trait Demoter: Kernel {
    /// Whether the copy lies in the store.
    fn is_in_store(&self, entry: Entry) -> bool;
    /// Takes an empty request; `None` if all are in use, or if there is nowhere to carry copies to.
    fn begin(&self) -> Option<usize>;
    /// Adds the page's copy to a request; false if the request has no room for it.
    fn pack(&self, request: usize, page: u32, entry: Entry) -> bool;
    /// Sends a request on its way. From here on, another process can complete it.
    fn send(&self, request: usize);
    /// Frees the request, and its room beyond the store except for what pages now name.
    fn release(&self, request: usize);
    /// Returns a request that has ended and whether its copies can be read beyond the store; `None` if no request has
    /// ended.
    fn ended(&self) -> Option<(usize, bool)>;
    /// Calls `on` with each copy that an ended request carried.
    fn each_copy(&self, request: usize, on: impl FnMut(DemotedCopy));
    /// Whether the store's copy that the page names is the one that the request carried. If so, records what it looks
    /// like, and counts one more use of its new place.
    fn confirm(&self, request: usize, copy: DemotedCopy) -> bool;
    /// Takes that use back: the page is being brought in instead.
    fn retract(&self, copy: DemotedCopy);
}

impl Partition<'_> {
    /// Sends a request with the copies that have been in the store longest, examining at most `scan_max` pages below
    /// `end`. Returns how many copies it carries. The caller holds the lock.
    pub fn demote(&self, k: &impl Demoter, scan_max: u32, end: u32) -> u32 {
        let Some(request) = k.begin() else { return 0 };
        let mut n = 0;
        self.each_from(self.copies_hand, scan_max, end, |page, w, cur| {
            if cur.state() != State::Far || !k.is_in_store(cur.entry()) {
                return true;
            }
            // The copy has been in the store for less than one round. (If a fault is faster, the page is coming in
            // already.)
            if cur.is_referenced() {
                transition(w, cur, cur.unreferenced());
                return true;
            }
            k.step();
            if !k.pack(request, page, cur.entry()) {
                return false;
            }
            n += 1;
            // Do not pick it again before the request has ended.
            transition(w, cur, cur.referenced());
            true
        });
        k.step();
        if n == 0 {
            k.release(request);
        } else {
            k.send(request);
        }
        n
    }

    /// Completes the requests that have ended. Returns how many copies have left the store; calls `failed` for each
    /// request that has failed. The caller holds the lock.
    pub fn complete_demotions(&self, k: &impl Demoter, mut failed: impl FnMut()) -> u32 {
        let mut gone = 0;
        while let Some((request, is_there)) = k.ended() {
            if is_there {
                k.each_copy(request, |copy| {
                    gone += u32::from(self.complete_copy(k, request, copy))
                });
            } else {
                failed();
            }
            k.step();
            k.release(request);
        }
        gone
    }

    fn complete_copy(&self, k: &impl Demoter, request: usize, copy: DemotedCopy) -> bool {
        let Some(w) = self.words.get(copy.page as usize) else {
            return false;
        };
        let cur = load(w);
        let is_that = cur.state() == State::Far && cur.entry() == copy.from;
        if !is_that || !k.is_in_store(copy.from) || !k.confirm(request, copy) {
            return false;
        }
        k.step();
        if !transition(w, cur, Word::new(State::Far, 0, copy.to)) {
            k.retract(copy);
            return false;
        }
        k.step();
        k.freed(copy.from);
        true
    }

    /// Drops up to `want` copies in the store that belong to resident pages, examining at most `scan_max` pages below
    /// `end`. Such a page is stored again when it is evicted. Returns how many. The caller holds the lock.
    pub fn drop_copies(&self, k: &impl Demoter, want: u32, scan_max: u32, end: u32) -> u32 {
        let mut n = 0;
        self.each_from(self.copies_hand, scan_max, end, |_, w, cur| {
            if cur.state() == State::Resident && k.is_in_store(cur.entry()) {
                k.step();
                // Only the lock holder changes Resident words.
                if transition(w, cur, cur.with_entry(Entry::NONE)) {
                    k.step();
                    k.freed(cur.entry());
                    n += 1;
                }
            }
            n < want
        });
        n
    }
}
