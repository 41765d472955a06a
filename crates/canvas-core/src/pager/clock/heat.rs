//! What a fault says about a page: flags and heat when it is filled, the time when it is evicted. The preload library
//! and the replay call the same functions.

use canvas_types::sync::{AtomicU64, Ordering};

use crate::pager::word::{HEAT_MAX, State, Word, flag};

/// Why a page becomes resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FillKind {
    /// First touch: the page was zeros.
    FirstTouch = 0,
    /// Filled with zeros ahead of a first touch.
    FirstTouchAhead = 1,
    /// A fault on a far page.
    Demand = 2,
    /// A fault on a page in the swap cache that reclaim had unmapped.
    VictimHit = 3,
    /// Prefetched, not part of a stream.
    Prefetch = 4,
    /// A fault that continues a stream ([`crate::pager::prefetch::Plan::stream`]), on a far page or on a prefetched page in
    /// the swap cache.
    Stream = 5,
    /// Prefetched ahead of a stream.
    StreamPrefetch = 6,
}

/// The policy's parameters. Replays chose [`ClockParams::DEFAULT`], see `docs/REPLACEMENT.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockParams {
    /// A refault fewer than this many epochs after the eviction spares the page in the next sweep: a page that was
    /// unmapped by mistake a moment ago is not unmapped again.
    pub grace_epochs: u8,
    /// The next sweep spares a page filled by first touch.
    pub first_touch_grace: bool,
    /// A refault within this many epochs of the eviction makes a page hotter.
    pub near_epochs: u8,
    /// A refault after more than this many epochs halves a page's heat.
    pub far_epochs: u8,
    /// Heat added by a near refault.
    pub near_heat: u8,
    /// The hand spares less when it takes fewer than one page in this many examined.
    pub cool_below: u8,
    /// The hand spares more when it takes more than one page in this many examined.
    pub warm_above: u8,
    /// Heat added by a swap-cache hit.
    pub victim_hit_heat: u8,
    /// Maximum heat of a page: it is offered at least every 2^heat_cap sweeps.
    pub heat_cap: u8,
    /// Pages spared between two victims are taken, too, if the gap is at most this long and none of them is hotter than
    /// `bridge_heat`: runs get longer, at the price of some swap-cache hits.
    pub bridge_pages: u8,
    /// Maximum heat of a page that may be bridged.
    pub bridge_heat: u8,
    /// Heat from which a spared page is a candidate for losing its reservation.
    pub hot_heat: u8,
    /// Heat from which a spared page is a candidate for losing its far copy: it will stay for so long that writing it
    /// again then costs less than keeping the copy until then.
    pub copy_heat: u8,
}

impl ClockParams {
    /// The values that programs run with; docs/REPLACEMENT.md says what others cost.
    pub const DEFAULT: ClockParams = ClockParams {
        grace_epochs: 1,
        first_touch_grace: true,
        near_epochs: 8,
        far_epochs: 32,
        near_heat: 1,
        cool_below: 32,
        warm_above: 8,
        victim_hit_heat: 2,
        heat_cap: 7,
        bridge_pages: 2,
        bridge_heat: 1,
        hot_heat: 3,
        copy_heat: 5,
    };

    /// The word of a page that becomes resident: flags, heat and state. `word` is its word before (untouched, cached,
    /// far, or filling: only flags, heat, epoch and entry matter). The result is in state [`State::Resident`], ready to
    /// be published.
    #[inline]
    pub fn on_fill(&self, word: Word, kind: FillKind, now_epoch: u8) -> Word {
        let w = word
            .clear(flag::REFERENCED | flag::PREFETCHED | flag::STREAM)
            .with_state(State::Resident);
        let cap = u64::from(self.heat_cap).min(HEAT_MAX);
        match kind {
            FillKind::FirstTouch | FillKind::FirstTouchAhead => {
                let w = w.with_heat(0).with_epoch(now_epoch);
                if self.first_touch_grace {
                    w.set(flag::REFERENCED)
                } else {
                    w
                }
            }
            FillKind::Demand => {
                let distance = now_epoch.wrapping_sub(word.epoch());
                let heat = if distance <= self.near_epochs {
                    (w.heat() + u64::from(self.near_heat)).min(cap)
                } else if distance > self.far_epochs {
                    w.heat() / 2
                } else {
                    w.heat()
                };
                let w = w.with_heat(heat);
                if distance < self.grace_epochs {
                    w.set(flag::REFERENCED)
                } else {
                    w
                }
            }
            FillKind::VictimHit => w
                .with_heat((w.heat() + u64::from(self.victim_hit_heat)).min(cap))
                .set(flag::REFERENCED),
            // Nothing was learnt about the page: it keeps the heat from its own faults.
            FillKind::Prefetch => w.set(flag::PREFETCHED),
            FillKind::Stream => w.with_heat(0).set(flag::STREAM),
            FillKind::StreamPrefetch => w.with_heat(0).set(flag::STREAM | flag::PREFETCHED),
        }
    }

    /// The word of a page that reclaim has unmapped, with the time. The state is unchanged (the caller publishes
    /// [`State::Cached`] or [`State::Far`]). The heat stays for the refault, and the STREAM flag tells the swap cache
    /// that the page may be written out before others.
    #[inline]
    pub fn on_evict(&self, word: Word, now_epoch: u8) -> Word {
        word.clear(flag::REFERENCED).with_epoch(now_epoch)
    }
}

/// Coarse eviction time: an 8-bit epoch that advances each time a sixteenth of local memory has been evicted.
pub struct EpochClock {
    /// `epoch << 32 | pages evicted in it`.
    state: AtomicU64,
}

/// Epochs in which as many pages are evicted as local memory holds.
pub const EPOCHS_PER_MEMORY: u64 = 16;

impl EpochClock {
    /// A clock in epoch 0, with nothing evicted yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> EpochClock {
        EpochClock {
            state: AtomicU64::new(0),
        }
    }
    /// The current epoch.
    #[inline]
    pub fn now(&self) -> u8 {
        (self.state.load(Ordering::Relaxed) >> 32) as u8
    }
    /// Counts `evicted` pages; `local_pages` is what local memory may hold now. Returns the epoch.
    #[inline]
    pub fn advance(&self, evicted: u32, local_pages: u64) -> u8 {
        let length = (local_pages / EPOCHS_PER_MEMORY).clamp(1, u64::from(u32::MAX));
        let mut cur = self.state.load(Ordering::Relaxed);
        loop {
            let count = (cur & 0xffff_ffff) + u64::from(evicted);
            let epoch = (cur >> 32).wrapping_add(count / length) & 0xff;
            let next = (epoch << 32) | (count % length);
            match self
                .state
                .compare_exchange_weak(cur, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return epoch as u8,
                Err(now) => cur = now,
            }
        }
    }
}
