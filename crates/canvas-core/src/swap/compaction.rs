//! Which extents are worth emptying when no more slabs are available, and which slab when few extents are in use.
//!
//! An extent is free when its last page has left it, so random rewrites leave many extents with a few pages each. Their
//! pages are promoted to the pool, and demoted again together. The emptiest extents gain most: emptying one that kept
//! `k` of `n` pages frees room for `n - k` more. The hand takes those that kept half or less, and when a whole round
//! finds none, a little more each time, up to three quarters: beyond that, more than three times as much is moved as
//! gained, pages that were rewritten once are moved for those that soon will be, and far memory counts as full.
//!
//! A slab is given up with its last extent. Where the remaining pages would fill only a part of the slabs, the slab
//! with the fewest of them is *emptied*: its pages are moved, and extents are taken from other slabs meanwhile.

use canvas_types::sync::{AtomicU32, Ordering};

use crate::pager::scan::ScanCursor;
use crate::swap::extents::{ExtentBook, Slabs};

/// Sixteenths of its pages that an extent may have kept, at the start of a search,
const PART_START: u32 = 8;
/// and at the end.
const PART_MAX: u32 = 12;

/// The hand of the search. It moves under the book's lock.
pub struct CompactionScan {
    /// The next extent.
    at: AtomicU32,
    part: AtomicU32,
    /// Extents found in this round.
    found: AtomicU32,
}

impl CompactionScan {
    /// Starts at the first extent.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> CompactionScan {
        CompactionScan {
            at: AtomicU32::new(0),
            part: AtomicU32::new(PART_START),
            found: AtomicU32::new(0),
        }
    }

    /// Ends a round; false when nothing is worth emptying.
    fn round_ended(&self) -> bool {
        let (part, found) = (
            self.part.load(Ordering::Relaxed),
            self.found.swap(0, Ordering::Relaxed),
        );
        let next = if found == 0 {
            (part + 1).min(PART_MAX)
        } else {
            (part - 1).max(PART_START)
        };
        self.part.store(next, Ordering::Relaxed);
        found != 0 || part < PART_MAX
    }
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchOutcome {
    /// This extent is worth emptying. It is held once, for the caller.
    Found(u32),
    /// None so far: the next search continues from here.
    NotYet,
    /// None in a whole round.
    None,
}

impl ExtentBook<'_> {
    /// The next extent worth emptying: durable, mostly empty, and reusable only by this process when it is empty.
    /// Visits about `scan_max` extents.
    pub fn sparse(
        &self,
        hand: &CompactionScan,
        scan_max: u32,
        slabs: &impl Slabs,
    ) -> SearchOutcome {
        let _held = self.state.taking.lock(self.yield_now);
        let n = self.slab_extents;
        let end = slabs.high() * n;
        if end == 0 {
            return SearchOutcome::None;
        }
        let at = hand.at.load(Ordering::Relaxed);
        let (mut scan, mut outcome) = (
            ScanCursor::new(at, end, scan_max as usize),
            SearchOutcome::NotYet,
        );
        while let Some(at) = scan.peek() {
            if scan.wrapped() && !hand.round_ended() {
                outcome = SearchOutcome::None;
                break;
            }
            let left = n - at % n;
            let Some(others) = self.writable(at / n, slabs) else {
                scan.skip(left);
                continue;
            };
            let part = hand.part.load(Ordering::Relaxed);
            let until = at + left.min(scan.budget() as u32);
            let found = (at..until).find(|e| {
                self.kept_at_most(*e, part) && !self.known_to(&others, *e) && self.hold_if_kept(*e)
            });
            scan.pass(found.map_or(until, |e| e + 1) - at);
            if let Some(e) = found {
                hand.found.fetch_add(1, Ordering::Relaxed);
                outcome = SearchOutcome::Found(e);
                break;
            }
        }
        hand.at.store(scan.at(), Ordering::Relaxed);
        outcome
    }

    /// Gives up all slabs without extents in use: including the one from which extents are taken, and slabs that a
    /// thread emptied while another one took an extent.
    pub fn give_up_empty(&self, slabs: &impl Slabs) {
        let Some(_held) = self.state.taking.try_lock() else {
            return;
        };
        let current = &self.state.search.current;
        if let Some(slab) = current.load(Ordering::Relaxed).checked_sub(1)
            && self.extents_kept(slab) == 0
        {
            current.store(0, Ordering::Relaxed);
        }
        self.each_slab(slabs.high(), |slab| self.drop_if_empty(slab, slabs));
    }

    /// Chooses the slab to empty: the one whose pages would fill the fewest extents, among those to which no other
    /// process refers. False when all far pages would fill more than `part` sixteenths of the other slabs.
    pub fn begin_emptying(&self, part: u64, slabs: &impl Slabs) -> bool {
        let Some(_held) = self.state.taking.try_lock() else {
            return false;
        };
        let (mut ours, mut needed, mut least) = (0u64, 0u64, None::<(u32, u32)>);
        self.each_slab(slabs.high(), |slab| {
            if let Some(others) = self.writable(slab, slabs) {
                let n = self.extents_needed(slab);
                (ours, needed) = (ours + 1, needed + u64::from(n));
                if others.nobody() && least.is_none_or(|(least, _)| n < least) {
                    least = Some((n, slab));
                }
            }
        });
        let room = u64::from(self.slab_extents) * ours.saturating_sub(1);
        let Some((_, slab)) = least.filter(|_| needed * 16 <= room * part) else {
            return false;
        };
        let current = &self.state.search.current;
        if current.load(Ordering::Relaxed) == slab + 1 {
            current.store(0, Ordering::Relaxed);
        }
        self.state.emptied.store(slab + 1, Ordering::Relaxed);
        true
    }

    /// Extents that the pages of a slab would fill, estimated from some of its extents.
    fn extents_needed(&self, slab: u32) -> u32 {
        const SAMPLED: u32 = 128;
        let (first, n) = (slab * self.slab_extents, self.slab_extents);
        let (mut live, mut written) = (0, 0);
        for extent in (first..first + n).step_by(n.div_ceil(SAMPLED) as usize) {
            let kept = u32::from(self.arrays.live[extent as usize].load(Ordering::Relaxed));
            if kept > 0 {
                live += kept;
                written += self.pages_written(extent).max(kept);
            }
        }
        let kept = self.extents_kept(slab);
        match written {
            0 => kept,
            _ => (kept * live).div_ceil(written),
        }
    }

    /// The slab that is being emptied.
    pub fn emptied(&self) -> Option<u32> {
        self.state.emptied.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Ends the emptying of this slab, if it is under way.
    pub fn end_emptying(&self, slab: u32) {
        let emptied = &self.state.emptied;
        let _ = emptied.compare_exchange(slab + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The next extent of the slab, from its `from`th on, whose pages can be moved, and its index in the slab. The
    /// extent is held once, for the caller.
    pub fn next_kept(&self, slab: u32, from: u32, slabs: &impl Slabs) -> Option<(u32, u32)> {
        let _held = self.state.taking.lock(self.yield_now);
        let others = self.writable(slab, slabs)?;
        (from..self.slab_extents).find_map(|n| {
            let extent = slab * self.slab_extents + n;
            let moves = self.kept_at_most(extent, 16)
                && !self.known_to(&others, extent)
                && self.hold_if_kept(extent);
            moves.then_some((extent, n))
        })
    }

    /// Whether the extent has kept some, and at most `part` sixteenths, of the pages with which it was written.
    fn kept_at_most(&self, extent: u32, part: u32) -> bool {
        let live = u32::from(self.arrays.live[extent as usize].load(Ordering::Acquire));
        let written = u32::from(self.arrays.written[extent as usize].load(Ordering::Acquire));
        live != 0 && live * 16 <= written * part
    }
}
