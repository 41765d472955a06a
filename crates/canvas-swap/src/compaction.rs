//! Which extents are worth emptying when no more slabs are to be had.
//!
//! An extent is free when its last page has left it, so pages that are rewritten at random leave many
//! extents with a few pages each. Their pages are brought back into the pool, and leave it again together.
//! Extents that are emptiest are worth most: one that kept `k` of `n` pages gives room for `n - k` more. The
//! hand takes those that kept half or less, and when a whole round finds none, a little more each time, to
//! three quarters: beyond, what is moved is more than three times what is won, pages that were rewritten once
//! are moved for those that soon will be, and far memory counts as full.

use canvas_types::sync::{AtomicU32, Ordering};

use crate::extents::{ExtentBook, Slabs};

/// Part of an extent's pages that it may have kept, in sixteenths, that the hand begins with.
const PART_START: u32 = 8;
/// And ends with.
const PART_MAX: u32 = 12;

/// The hand. It is moved under the book's lock.
pub struct CompactionHand {
    /// The next extent.
    at: AtomicU32,
    part: AtomicU32,
    /// Extents found in this round.
    found: AtomicU32,
}

impl CompactionHand {
    /// At the first extent.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> CompactionHand {
        CompactionHand {
            at: AtomicU32::new(0),
            part: AtomicU32::new(PART_START),
            found: AtomicU32::new(0),
        }
    }
    /// At the first extent.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> CompactionHand {
        CompactionHand {
            at: AtomicU32::new(0),
            part: AtomicU32::new(PART_START),
            found: AtomicU32::new(0),
        }
    }

    /// A round has ended; false when there is nothing that would be worth it.
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

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// This extent is worth emptying. It is held once, for the caller.
    Found(u32),
    /// None so far: the look goes on from here.
    NotYet,
    /// None in a whole round.
    None,
}

impl ExtentBook<'_> {
    /// The next extent that is worth emptying: durable, mostly empty, and used anew by nobody but us when it
    /// is empty. Looks at about `look_max` extents.
    pub fn sparse(&self, hand: &CompactionHand, look_max: u32, slabs: &impl Slabs) -> Look {
        let _held = self.state.taking.lock(self.yield_now);
        let n = self.slab_extents;
        let end = slabs.high() * n;
        let mut at = hand.at.load(Ordering::Relaxed);
        let (mut looked, mut look) = (0, Look::NotYet);
        while looked < look_max && look == Look::NotYet {
            if at >= end {
                at = 0;
                if !hand.round_ended() || end == 0 {
                    look = Look::None;
                    break;
                }
            }
            let slab_end = (at / n + 1) * n;
            let Some(others) = self.writable(at / n, slabs) else {
                at = slab_end;
                looked += 1;
                continue;
            };
            let part = hand.part.load(Ordering::Relaxed);
            let until = slab_end.min(at + look_max - looked);
            looked += until - at;
            let found = (at..until).find(|e| {
                self.kept_at_most(*e, part) && !self.known_to(&others, *e) && self.hold_if_kept(*e)
            });
            at = found.map_or(until, |e| e + 1);
            if let Some(e) = found {
                hand.found.fetch_add(1, Ordering::Relaxed);
                look = Look::Found(e);
            }
        }
        hand.at.store(at, Ordering::Relaxed);
        look
    }

    /// Has the extent kept some, and so many sixteenths at most, of the pages that it was written with?
    fn kept_at_most(&self, extent: u32, part: u32) -> bool {
        let live = u32::from(self.arrays.live[extent as usize].load(Ordering::Acquire));
        let written = u32::from(self.arrays.written[extent as usize].load(Ordering::Acquire));
        live != 0 && live * 16 <= written * part
    }
}
