//! How far a tenant may grow where its host runs out of memory: the decision of each `canvas run`.
//!
//! Every run checks for itself, and knows of the others only through the kernel's figure. To keep many runs together
//! from passing the reserve between two checks, each takes a small part of what is left above it ([`PARTS`]): up to
//! that number of runs, growing as fast as they can, come close to the reserve but never pass it. Below the mark no run
//! grows by more than a 128th of what it has, until well more than the mark is available for a while.
//!
//! ```text
//!      0        reserve        mark             calm                 available memory
//!      ├───────────┼─────────────┼────────────────┼────────────────────────►
//!       never       short: growth ends, pools      a step a check, ever smaller towards the mark
//!                   spill until the mark           (short ends after `CALM_CHECKS` checks)
//! ```

use crate::in_a_row;

/// Number of runs whose steps together are no more than what is left above the mark.
pub const PARTS: u64 = 64;
/// Consecutive checks with well more than the mark that end the shortage.
pub const CALM_CHECKS: u32 = 20;
/// Part of what it has by which a tenant may still grow when the shortage begins, since a running program needs some
/// slack. All tenants' slack together is less than the distance between mark and reserve.
const PLAY: u64 = 128;
/// Smaller steps are not taken: a pool grows by slabs of 32 KiB.
const STEP_MIN_BYTES: u64 = 64 << 10;
/// Least pool that is kept when it is demoted for the host's sake.
const POOL_MIN_BYTES: u64 = 1 << 20;

/// A measurement of the host, or of the control group that has least left above its reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoomSample {
    /// Available memory (`MemAvailable`).
    pub available_bytes: u64,
    /// Memory always left alone.
    pub reserve_bytes: u64,
}

impl RoomSample {
    /// Below this growth ends: a quarter above the reserve.
    pub fn mark_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.reserve_bytes / 4)
    }
    /// Above this a shortage ends: a half above the reserve.
    pub fn calm_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.reserve_bytes / 2)
    }
    /// Memory available above the mark.
    pub fn left_bytes(&self) -> u64 {
        self.available_bytes.saturating_sub(self.mark_bytes())
    }
    /// What one run may take of that until its next check.
    pub fn step_bytes(&self) -> u64 {
        self.left_bytes() / PARTS
    }
}

/// What the tenant has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Bytes in its pool.
    pub pool_bytes: u64,
    /// Local memory of the run, in bytes.
    pub local_bytes: u64,
    /// Whether its pool can be demoted to far memory.
    pub can_spill: bool,
}

/// What the tenant may have until the next check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The pool may grow to this; local memory is bounded by its own limit.
    Step {
        /// Limit on the pool.
        pool_bytes: u64,
    },
    /// The host is short: neither may grow beyond these limits, and the pool demotes what exceeds its limit.
    Short {
        /// Limit on the pool.
        pool_bytes: u64,
        /// Limit on local memory.
        local_bytes: u64,
    },
}

/// One run's state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guard {
    /// The limits during the shortage, if there is one: pool and local.
    bounds: Option<(u64, u64)>,
    calm: u32,
}

impl Guard {
    /// Adds a measurement and decides.
    pub fn judge(&mut self, sample: RoomSample, held: Held) -> Verdict {
        let (pool, local) = match self.bounds {
            None if sample.step_bytes() >= STEP_MIN_BYTES => {
                return Verdict::Step {
                    pool_bytes: held.pool_bytes.saturating_add(sample.step_bytes()),
                };
            }
            None => {
                self.calm = 0;
                let play = |bytes: u64| bytes.saturating_add(bytes / PLAY);
                (play(held.pool_bytes), play(held.local_bytes))
            }
            Some(bounds) => bounds,
        };
        self.calm = in_a_row(self.calm, sample.available_bytes > sample.calm_bytes());
        if self.calm >= CALM_CHECKS {
            *self = Guard::default();
            // The next check allows the first step.
            return Verdict::Step {
                pool_bytes: held.pool_bytes,
            };
        }
        let missing = sample.mark_bytes().saturating_sub(sample.available_bytes);
        let pool = if held.can_spill && missing > 0 {
            // A quarter at a time: other runs give memory as well, and written pages leave the pool later.
            let less = held.pool_bytes.saturating_sub(missing.div_ceil(4));
            pool.min(less).max(POOL_MIN_BYTES.min(pool))
        } else {
            pool
        };
        self.bounds = Some((pool, local));
        Verdict::Short {
            pool_bytes: pool,
            local_bytes: local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn free(available_mib: u64) -> RoomSample {
        RoomSample {
            available_bytes: available_mib * MIB,
            reserve_bytes: 1000 * MIB,
        }
    }

    fn held(pool_mib: u64, can_spill: bool) -> Held {
        Held {
            pool_bytes: pool_mib * MIB,
            local_bytes: 6400 * MIB,
            can_spill,
        }
    }

    #[test]
    fn steps_become_smaller_towards_the_mark() {
        let mut guard = Guard::default();
        let mut step = |available| match guard.judge(free(available), held(500, false)) {
            Verdict::Step { pool_bytes } => pool_bytes / MIB - 500,
            Verdict::Short { .. } => panic!("{available}"),
        };
        let steps = [1250 + 6400, 1250 + 640, 1250 + 64].map(&mut step);
        assert_eq!(steps, [100, 10, 1]);
    }

    #[test]
    fn a_step_that_is_too_small_for_a_slab_is_none() {
        let mut guard = Guard::default();
        let verdict = guard.judge(free(1250 + 3), held(640, false));
        assert!(matches!(verdict, Verdict::Short { .. }), "{verdict:?}");
    }

    #[test]
    fn a_shortage_freezes_and_ends_when_it_is_calm_for_a_while() {
        let mut guard = Guard::default();
        let frozen = Verdict::Short {
            pool_bytes: 645 * MIB,
            local_bytes: 6450 * MIB,
        };
        assert_eq!(guard.judge(free(1249), held(640, false)), frozen);
        // What the tenant has grown by since does not move its limits.
        assert_eq!(guard.judge(free(0), held(650, false)), frozen);
        for _ in 1..CALM_CHECKS {
            assert_eq!(guard.judge(free(1501), held(650, false)), frozen);
        }
        let not_calm = guard.judge(free(1500), held(650, false));
        assert_eq!(not_calm, frozen, "from the beginning");
        for _ in 1..CALM_CHECKS {
            assert_eq!(guard.judge(free(1501), held(650, false)), frozen);
        }
        let pool_bytes = 650 * MIB;
        let over = guard.judge(free(1501), held(650, false));
        assert_eq!(over, Verdict::Step { pool_bytes });
    }

    #[test]
    fn a_pool_that_can_spill_gives_until_the_mark() {
        let mut guard = Guard::default();
        let mut pool = |available, has| match guard.judge(free(available), held(has, true)) {
            Verdict::Short { pool_bytes, .. } => pool_bytes / MIB,
            Verdict::Step { .. } => panic!(),
        };
        assert_eq!(pool(850, 4000), 3900, "a quarter of what is missing");
        assert_eq!(pool(1250, 3910), 3900, "the mark is reached: no further");
        assert_eq!(pool(0, 1), 1, "something is kept");
    }

    proptest! {
        /// Tenants that grow as fast as they may, each by its last measurement, checking in any order: their growth
        /// never brings the host below its reserve, and they are never frozen with room left.
        #[test]
        fn many_at_once_never_pass_the_reserve(
            total in 1u64 << 24..1 << 36,
            tenants in 1usize..PARTS as usize,
            order in prop::collection::vec(0usize..PARTS as usize, 1..4000),
        ) {
            let reserve = total / 20;
            let mut guards = vec![Guard::default(); tenants];
            let mut pools = vec![0u64; tenants];
            let mut may = vec![0u64; tenants];
            for round in order.chunks(tenants) {
                // All see the same free memory before any of them uses its allowance.
                let available = total - pools.iter().sum::<u64>();
                for who in round.iter().map(|w| w % tenants) {
                    let seen = RoomSample { available_bytes: available, reserve_bytes: reserve };
                    let has = Held { pool_bytes: pools[who], local_bytes: 0, can_spill: false };
                    may[who] = match guards[who].judge(seen, has) {
                        Verdict::Step { pool_bytes } | Verdict::Short { pool_bytes, .. } => pool_bytes,
                    };
                }
                for (pool, may) in pools.iter_mut().zip(&may) {
                    *pool = (*pool).max(*may);
                }
                prop_assert!(total - pools.iter().sum::<u64>() >= reserve);
            }
        }
    }
}
