//! Far copies of shared pages on their way beyond the pool, in extents, and what makes room in the store without that.
//!
//! Copies leave the store in requests, which lie in shared memory as all the rest: a request and what it carries outlive
//! the process that made it. Until it has ended the store keeps its copies. Then each page whose copy is still the one
//! that was carried names the new one; of the others it carried something that nobody needs. Done twice, it is done once:
//! who takes over from a dead process does it again.

use canvas_types::sync::{AtomicU64, Ordering};

use super::word::{Entry, State, Word, load, transition};
use super::{Kernel, Partition};

/// A copy that a request carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// Whose it is.
    pub page: u32,
    /// Where it lay in the store.
    pub from: Entry,
    /// Where it lies now.
    pub to: Entry,
}

/// What carries copies on, beyond the store.
pub trait Carrier: Kernel {
    /// Does the copy lie in the store?
    fn is_in_store(&self, entry: Entry) -> bool;
    /// An empty request; `None` when all are in use, or when there is nowhere to carry to.
    fn begin(&self) -> Option<usize>;
    /// Puts the page's copy into a request; false when that has no room for it.
    fn pack(&self, request: usize, page: u32, entry: Entry) -> bool;
    /// Sends a request on its way. Whoever comes next, it goes on from here.
    fn send(&self, request: usize);
    /// The request is free again, and so is its place beyond the pool, but for what pages name.
    fn release(&self, request: usize);
    /// A request that has ended, and whether what it carried will be found; `None`: no request has.
    fn ended(&self) -> Option<(usize, bool)>;
    /// Calls `on` with each copy that an ended request carried.
    fn each_carried(&self, request: usize, on: impl FnMut(Carried));
    /// Is the store's copy, which the page names, what the request carried? If so, notes what it looks like, and that
    /// its new place is used once more.
    fn arrives(&self, request: usize, carried: Carried) -> bool;
    /// The new place is not used after all: the page is being brought in.
    fn stays(&self, carried: Carried);
}

impl Partition<'_> {
    /// Sends a request with the copies that have been in the store longest, of `look_max` pages below `end` at most. How
    /// many it carries. Under the lock.
    pub fn carry(&self, k: &impl Carrier, look_max: u32, end: u32) -> u32 {
        let Some(request) = k.begin() else { return 0 };
        let mut n = 0;
        self.each_from_hand(look_max, end, |page, w, cur| {
            if cur.state() != State::Far || !k.is_in_store(cur.entry()) {
                return true;
            }
            // It has been there for less than a round. (If a fault is faster, the page is on its way already.)
            if cur.is_referenced() {
                transition(w, cur, cur.unreferenced());
                return true;
            }
            k.step();
            if !k.pack(request, page, cur.entry()) {
                return false;
            }
            n += 1;
            // Not again at once, before the request has ended.
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

    /// Ends the requests that have ended. How many copies have left the store; `failed` is called for each request that
    /// has failed. Under the lock.
    pub fn settle(&self, k: &impl Carrier, mut failed: impl FnMut()) -> u32 {
        let mut gone = 0;
        while let Some((request, is_there)) = k.ended() {
            if is_there {
                k.each_carried(request, |carried| {
                    gone += u32::from(self.arrive(k, request, carried))
                });
            } else {
                failed();
            }
            k.step();
            k.release(request);
        }
        gone
    }

    fn arrive(&self, k: &impl Carrier, request: usize, carried: Carried) -> bool {
        let Some(w) = self.words.get(carried.page as usize) else {
            return false;
        };
        let cur = load(w);
        let is_that = cur.state() == State::Far && cur.entry() == carried.from;
        if !is_that || !k.is_in_store(carried.from) || !k.arrives(request, carried) {
            return false;
        }
        k.step();
        if !transition(w, cur, Word::new(State::Far, 0, carried.to)) {
            k.stays(carried);
            return false;
        }
        k.step();
        k.freed(carried.from);
        true
    }

    /// Gives up `want` copies in the store of pages that are in memory, of `look_max` pages below `end` at most: such a
    /// page is stored again when it leaves. How many. Under the lock.
    pub fn give_up_copies(&self, k: &impl Carrier, want: u32, look_max: u32, end: u32) -> u32 {
        let mut n = 0;
        self.each_from_hand(look_max, end, |_, w, cur| {
            if cur.state() == State::Resident && k.is_in_store(cur.entry()) {
                k.step();
                // Resident words are the lock holder's to change.
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

    /// Calls `on` with pages from the hand on, round and round, `most` of them, as long as it says true.
    fn each_from_hand(
        &self,
        most: u32,
        end: u32,
        mut on: impl FnMut(u32, &AtomicU64, Word) -> bool,
    ) {
        let mut page = self.copies_hand.load(Ordering::Relaxed);
        // The second round finds what the first one has found to be new.
        for _ in 0..u64::from(most).min(2 * u64::from(end)) {
            if page >= end {
                page = 0;
            }
            let w = &self.words[page as usize];
            if !on(page, w, load(w)) {
                break;
            }
            page += 1;
        }
        self.copies_hand.store(page, Ordering::Relaxed);
    }
}
