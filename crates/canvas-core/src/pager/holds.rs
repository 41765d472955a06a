//! Excludes reclaim during calls in which a device may write to pages that no argument names.
//!
//! Such a call holds reclaim from [`Holds::begin`] to [`Holds::end`], for at most [`MAX_NS`]: it may wait for ever, or
//! be left by a jump out of a signal handler. A batch of reclaim begins only when no call holds it, and a call waits
//! until no batch is running ([`Holds::is_settled`]). Each announces itself before it looks for the other, so at least
//! one of the two sees the other.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// How long a call holds reclaim at most: the kernel's longest default timeout of a device command.
pub const MAX_NS: u64 = 60_000_000_000;
/// Calls that are tracked separately.
#[cfg(not(feature = "shuttle"))]
const SLOTS: usize = 64;
#[cfg(feature = "shuttle")]
const SLOTS: usize = 1;

/// The calls and batches in progress.
pub struct Holds {
    /// When each call began; 0 for none.
    slots: [AtomicU64; SLOTS],
    /// Calls that found no free place, and when the last of them began.
    overflow: AtomicU32,
    overflow_ns: AtomicU64,
    batches: AtomicU32,
}

/// A call that holds reclaim.
#[derive(Clone, Copy, Debug)]
pub struct HoldingCall {
    /// [`SLOTS`]: counted in `overflow`.
    slot: usize,
    begun_ns: u64,
}

/// A batch of reclaim, until dropped.
pub struct Batch<'a>(&'a Holds);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.batches.fetch_sub(1, Ordering::SeqCst);
    }
}

fn is_over(begun_ns: u64, now_ns: u64) -> bool {
    begun_ns == 0 || now_ns >= begun_ns.saturating_add(MAX_NS)
}

impl Holds {
    /// Nothing in progress.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Holds {
        Holds {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            overflow: AtomicU32::new(0),
            overflow_ns: AtomicU64::new(0),
            batches: AtomicU32::new(0),
        }
    }

    /// Begins a call, at a time that is not 0: from here on no batch begins. One may still be running.
    pub fn begin(&self, now_ns: u64) -> HoldingCall {
        let call = |slot| HoldingCall {
            slot,
            begun_ns: now_ns,
        };
        for (i, slot) in self.slots.iter().enumerate() {
            let old = slot.load(Ordering::Relaxed);
            if is_over(old, now_ns)
                && slot
                    .compare_exchange(old, now_ns, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                return call(i);
            }
        }
        self.overflow_ns.fetch_max(now_ns, Ordering::SeqCst);
        self.overflow.fetch_add(1, Ordering::SeqCst);
        call(SLOTS)
    }

    /// Ends a call.
    pub fn end(&self, call: HoldingCall) {
        match self.slots.get(call.slot) {
            // If this call had exceeded its time, the place may be another call's now.
            Some(slot) => {
                let _ =
                    slot.compare_exchange(call.begun_ns, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
            None => {
                self.overflow.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether a call holds reclaim.
    pub fn is_held(&self, now_ns: u64) -> bool {
        let overflow = self.overflow.load(Ordering::SeqCst) != 0
            && !is_over(self.overflow_ns.load(Ordering::SeqCst), now_ns);
        overflow
            || self
                .slots
                .iter()
                .any(|p| !is_over(p.load(Ordering::SeqCst), now_ns))
    }

    /// Begins a batch; `None` while a call holds reclaim.
    pub fn batch(&self, now_ns: u64) -> Option<Batch<'_>> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        let batch = Batch(self);
        (!self.is_held(now_ns)).then_some(batch)
    }

    /// Whether no batch is running.
    pub fn is_settled(&self) -> bool {
        self.batches.load(Ordering::SeqCst) == 0
    }

    /// In a fork's child: drops the parent's calls.
    pub fn forget(&self) {
        for slot in &self.slots {
            slot.store(0, Ordering::Relaxed);
        }
        self.overflow.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_holds_reclaim_until_it_ends_and_for_a_minute_at_most() {
        let holds = Holds::new();
        assert!(holds.batch(1).is_some());
        let (short, endless) = (holds.begin(5), holds.begin(7));
        assert!(holds.batch(8).is_none());
        assert!(
            holds.is_settled(),
            "a batch that was refused is not under way"
        );
        holds.end(short);
        assert!(holds.batch(6 + MAX_NS).is_none());
        assert!(holds.batch(7 + MAX_NS).is_some());
        // Its place was taken meanwhile: the end of the old call does not end the new one.
        for now in 0..SLOTS as u64 {
            holds.begin(8 + MAX_NS + now);
        }
        holds.end(endless);
        assert!(holds.batch(9 + MAX_NS).is_none());
    }

    #[test]
    fn a_child_has_none_of_its_parents_calls() {
        let holds = Holds::new();
        for now in 1..=SLOTS as u64 + 3 {
            holds.begin(now);
        }
        assert!(holds.batch(100).is_none());
        holds.forget();
        assert!(holds.batch(100).is_some());
    }

    proptest! {
        /// Compared with a list of what is in progress: reclaim is held exactly while there is a call younger than the
        /// bound; with more calls than places it may be held longer.
        #[test]
        fn as_a_list_of_calls(steps in proptest::collection::vec((0..3u8, 1..MAX_NS, any::<usize>()), 1..300)) {
            let holds = Holds::new();
            let (mut now, mut calls) = (1u64, Vec::<HoldingCall>::new());
            let mut crowded = false;
            for (what, step, which) in steps {
                match what {
                    0 => {
                        calls.push(holds.begin(now));
                        crowded |= calls.len() > SLOTS;
                    }
                    1 if !calls.is_empty() => holds.end(calls.swap_remove(which % calls.len())),
                    1 => {}
                    _ => now += step / 16,
                }
                let naive = calls.iter().any(|c| now < c.begun_ns + MAX_NS);
                if naive || !crowded {
                    prop_assert_eq!(holds.is_held(now), naive);
                }
                prop_assert_eq!(holds.batch(now).is_some(), !holds.is_held(now));
                prop_assert!(holds.is_settled());
            }
        }
    }
}
