//! The *floor* of each process of a tenant: the local memory that it keeps, whichever process faults.
//!
//! A process's *demand* grows while pages that it had lost come back, and shrinks while none do. What the limit leaves
//! after native memory (the *room*) is divided among the demands by max-min fairness: a process with a small demand
//! keeps all of it, and those that want more all keep the same amount. What a process has beyond its floor is, as far
//! as faults tell, the oldest that the tenant has, and is what reclaim takes.
//!
//! If the room does not even cover [`PROGRESS_PAGES`] of each demand, enforcing the limit is useless: native memory
//! cannot leave, and passing a few pages round among the processes would end all progress. Then the floors ignore the
//! room, up to [`FREE_PAGES`] each, and the tenant's report says what limit it would need.

/// Demand of a process about which nothing is known yet, and the least that a demand falls to (256 KiB).
pub const LEAST_PAGES: i64 = 64;
/// The part of its demand that a process needs to make progress (1 MiB).
pub const PROGRESS_PAGES: i64 = 256;
/// Largest floor while the limit cannot be enforced (4 MiB).
pub const FREE_PAGES: i64 = 1024;
/// A demand is judged once in this time.
pub const PERIOD_NS: u64 = 5_000_000;
/// A demand grows if at least this many pages come back in [`PERIOD_NS`] (one in 200 us).
const MANY_A_PERIOD: u64 = 25;
/// A demand shrinks after this many times [`PERIOD_NS`] without any.
const QUIET_PERIODS: u64 = 8;

/// A process's demand, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// How many pages of local memory the process wants to keep.
    pub pages: i64,
    /// Time since a page last came back.
    pub quiet_ns: u64,
}

impl Demand {
    /// Demand of a process that has just started.
    pub const NEW: Demand = Demand {
        pages: LEAST_PAGES,
        quiet_ns: 0,
    };

    /// The demand after another `elapsed_ns`, in which `came_back` pages were faulted in again; `held`: pages that the
    /// process holds. It grows by a quarter per look while pages come back, at most to a quarter more than what is
    /// held, and shrinks by a sixteenth after eight looks without any.
    pub fn next(self, came_back: u64, elapsed_ns: u64, held: i64) -> Demand {
        let periods = (elapsed_ns / PERIOD_NS).max(1);
        if came_back >= MANY_A_PERIOD.saturating_mul(periods) {
            let most = held.max(LEAST_PAGES);
            let grown = self.pages + (self.pages / 4).max(16);
            return Demand {
                pages: grown.min(most + most / 4).max(self.pages),
                quiet_ns: 0,
            };
        }
        let quiet_ns = match came_back {
            0 => self.quiet_ns.saturating_add(elapsed_ns),
            _ => 0,
        };
        if quiet_ns < QUIET_PERIODS * PERIOD_NS {
            return Demand { quiet_ns, ..self };
        }
        Demand {
            pages: (self.pages - (self.pages / 16).max(1)).max(LEAST_PAGES),
            quiet_ns: 0,
        }
    }
}

/// How the room is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The largest floor: a process keeps its demand, but at most this much.
    pub level: i64,
    /// Sum of all floors.
    pub floors: i64,
    /// Pages by which the room is too small for all to make progress; 0 if it suffices.
    pub short: i64,
}

/// Divides `room` among the demands. `demands` gives for each process the smaller of its demand and what it holds.
pub fn divide(room: i64, demands: impl Iterator<Item = i64> + Clone) -> Division {
    let sum = |level: i64| -> i64 {
        demands
            .clone()
            .fold(0i64, |n, d| n.saturating_add(d.clamp(0, level)))
    };
    let progress = sum(PROGRESS_PAGES);
    if progress > room {
        return Division {
            level: FREE_PAGES,
            floors: sum(FREE_PAGES),
            short: progress.saturating_sub(room),
        };
    }
    // Find the greatest level whose sum fits the room; PROGRESS_PAGES does.
    let most = demands.clone().max().unwrap_or(0).max(PROGRESS_PAGES);
    let (mut low, mut high) = (PROGRESS_PAGES, most);
    while low < high {
        let mid = low + (high - low + 1) / 2;
        if sum(mid) <= room {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    Division {
        level: low,
        floors: sum(low),
        short: 0,
    }
}

/// How many of the tenant's `over` excess pages this process must evict: in proportion to its share of all that is
/// beyond floors, at least one if it has any.
pub fn part(over: i64, surplus: i64, all_surplus: i64) -> i64 {
    if over <= 0 || surplus <= 0 {
        return 0;
    }
    let part = i128::from(over) * i128::from(surplus) / i128::from(all_surplus.max(surplus));
    (part as i64 + 1).min(surplus)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_demand_grows_while_pages_come_back_and_shrinks_when_none_do() {
        let held = 10_000;
        let mut d = Demand::NEW;
        for _ in 0..40 {
            d = d.next(MANY_A_PERIOD, PERIOD_NS, held);
        }
        assert_eq!(d.pages, held + held / 4);
        // A few pages that come back change nothing.
        let before = d;
        for _ in 0..100 {
            d = d.next(1, PERIOD_NS, held);
        }
        assert_eq!(d.pages, before.pages);
        // Without any the demand falls to the least, but not at once.
        assert_eq!(d.next(0, PERIOD_NS, held).pages, before.pages);
        for _ in 0..5_000 {
            d = d.next(0, PERIOD_NS, held);
        }
        assert_eq!(d.pages, LEAST_PAGES);
    }

    #[test]
    fn a_long_time_between_looks_is_not_taken_for_many_faults() {
        let d = Demand::NEW.next(MANY_A_PERIOD * 9, 10 * PERIOD_NS, 1000);
        assert_eq!(d.pages, LEAST_PAGES);
        let d = Demand::NEW.next(MANY_A_PERIOD * 10, 10 * PERIOD_NS, 1000);
        assert!(d.pages > LEAST_PAGES);
    }

    #[test]
    fn a_limit_that_cannot_be_kept_is_told() {
        // Ten small processes, and room for half of what they need.
        let d = divide(5 * PROGRESS_PAGES, [4 * PROGRESS_PAGES; 10].into_iter());
        assert_eq!(d.short, 5 * PROGRESS_PAGES);
        assert_eq!(d.level, FREE_PAGES);
        assert_eq!(d.floors, 10 * FREE_PAGES.min(4 * PROGRESS_PAGES));
        // Native memory alone is more than the limit.
        let d = divide(-100, [10].into_iter());
        assert_eq!((d.short, d.floors), (110, 10));
        // No process and no room.
        assert_eq!(divide(0, [].into_iter()).short, 0);
    }

    /// Hands out page by page, each to a process that has least among those that want more.
    fn naive(room: i64, demands: &[i64]) -> Vec<i64> {
        let mut floors = vec![0; demands.len()];
        for _ in 0..room {
            let next = (0..demands.len())
                .filter(|i| floors[*i] < demands[*i])
                .min_by_key(|i| floors[*i]);
            let Some(i) = next else { break };
            floors[i] += 1;
        }
        floors
    }

    proptest! {
        /// Compared with handing out page by page: less than a page per process is left over.
        #[test]
        fn as_page_by_page(
            demands in proptest::collection::vec(0..1500i64, 0..12),
            room in 0..12_000i64,
        ) {
            let d = divide(room, demands.iter().copied());
            let progress: i64 = demands.iter().map(|d| (*d).min(PROGRESS_PAGES)).sum();
            prop_assert_eq!(d.short, (progress - room).max(0));
            if d.short == 0 {
                let want = naive(room, &demands);
                let got: Vec<i64> = demands.iter().map(|x| (*x).min(d.level)).collect();
                prop_assert_eq!(got.iter().sum::<i64>(), d.floors);
                for (got, want) in got.iter().zip(&want) {
                    prop_assert!(got == want || got + 1 == *want, "{:?} {:?}", got, want);
                }
                prop_assert!(d.floors <= room);
            }
        }

        /// All parts together are at least the excess, and no process goes below its floor.
        #[test]
        fn parts_add_up(surplus in proptest::collection::vec(-50..3000i64, 1..12), over in 0..5000i64) {
            let all: i64 = surplus.iter().map(|s| (*s).max(0)).sum();
            let parts: Vec<i64> = surplus.iter().map(|s| part(over, *s, all)).collect();
            for (p, s) in parts.iter().zip(&surplus) {
                prop_assert!(*p >= 0 && *p <= (*s).max(0));
            }
            prop_assert!(parts.iter().sum::<i64>() >= over.min(all));
        }

        /// A demand stays within its bounds, whatever happens.
        #[test]
        fn a_demand_has_bounds(steps in proptest::collection::vec((0..200u64, 0..100_000_000u64, 0..5000i64), 1..200)) {
            let mut d = Demand::NEW;
            for (came_back, elapsed_ns, held) in steps {
                let before = d.pages;
                d = d.next(came_back, elapsed_ns, held);
                prop_assert!(d.pages >= LEAST_PAGES);
                prop_assert!(d.pages <= before.max(held + held / 4).max(LEAST_PAGES + LEAST_PAGES / 4));
            }
        }
    }
}
