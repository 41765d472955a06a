//! Which of an agent's threads serves which tenant.
//!
//! One thread serves all tenants as long as it can: it starts and answers requests of several tenants together, and
//! needs no wake-ups for that. When it is full and a processor is idle, another thread takes tenants over, so that the
//! fuller of the two has as little work as possible; when two have little work, one of them gets all tenants again. A
//! tenant is served by one thread at a time, so one that fills a thread by itself is as fast as it can be.
//!
//! Nothing oscillates: a move must relieve the full thread by at least [`GAIN`], and two threads are joined only when
//! they have less work together than [`SLACK`], far below full.

use crate::in_a_row;

/// Checks a second.
pub const ROUNDS_IN_S: u32 = 4;
/// Thousandths of a processor.
pub type Permille = u32;
/// Load from which a thread is full.
pub const FULL: Permille = 850;
/// Idle processor time needed for a thread without work to get tenants.
pub const IDLE: Permille = 500;
/// By how much a move must lower the load of the fuller thread.
pub const GAIN: Permille = 100;
/// Two threads with less load together are joined.
pub const SLACK: Permille = 500;
/// Consecutive checks after which a thread counts as full.
const FULL_ROUNDS: u32 = ROUNDS_IN_S / 2;
/// Consecutive checks after which two threads are joined.
const SLACK_ROUNDS: u32 = 2 * ROUNDS_IN_S;
/// A tenant with less load does not fill a thread.
const SMALL: Permille = 50;

/// How many threads there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// As many as are needed, up to this number.
    Elastic(usize),
    /// This number, with the tenants divided evenly among them.
    Fixed(usize),
}

impl Width {
    /// Most threads; at least 1.
    pub fn most(self) -> usize {
        match self {
            Width::Elastic(n) | Width::Fixed(n) => n.max(1),
        }
    }
}

/// A tenant of a thread, and its load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Its number.
    pub id: u64,
    /// Load since the last check.
    pub busy: Permille,
}

/// A tenant moves between threads; index `to` may be one past the last thread, for a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The tenant's number.
    pub id: u64,
    /// The thread that serves it.
    pub from: usize,
    /// The thread that is to serve it.
    pub to: usize,
}

/// Assigns tenants to threads.
#[derive(Clone, Debug)]
pub struct Threads {
    width: Width,
    full_rounds: u32,
    slack_rounds: u32,
}

fn sum(loads: &[Load]) -> Permille {
    loads.iter().map(|l| l.busy).sum()
}

/// The busiest thread of those for which `may` holds.
fn fullest(all: &[Vec<Load>], may: impl Fn(&usize) -> bool) -> Option<usize> {
    (0..all.len()).filter(may).max_by_key(|at| sum(&all[*at]))
}

/// The best move from thread `from` to one of `targets`, if it relieves the fuller of the two enough.
fn relief(
    all: &[Vec<Load>],
    from: usize,
    targets: impl Iterator<Item = (usize, Permille)>,
) -> Option<Move> {
    let has = sum(&all[from]);
    let moves = targets.flat_map(|(to, theirs)| {
        all[from].iter().map(move |load| {
            let after = (has - load.busy).max(theirs + load.busy);
            (after, to, load.id)
        })
    });
    let (after, to, id) = moves.min()?;
    (after + GAIN <= has).then_some(Move { id, from, to })
}

impl Threads {
    /// With `width` threads.
    pub fn new(width: Width) -> Threads {
        Threads {
            width,
            full_rounds: 0,
            slack_rounds: 0,
        }
    }

    /// Most threads.
    pub fn most(&self) -> usize {
        self.width.most()
    }

    /// Limits the number of threads, because the system can start no more.
    pub fn bound(&mut self, threads: usize) {
        self.width = match self.width {
            Width::Elastic(_) => Width::Elastic(threads),
            Width::Fixed(_) => Width::Fixed(threads),
        };
    }

    /// The thread at which a new tenant starts; `all` has the tenants of each thread.
    pub fn place(&self, all: &[Vec<Load>]) -> usize {
        let least = |of: &mut dyn Iterator<Item = usize>| {
            let key = |at: &usize| (sum(&all[*at]), all[*at].len(), *at);
            of.min_by_key(key)
        };
        if let Width::Elastic(_) = self.width {
            // Not on a thread without tenants while others are not full.
            let mut room = (0..all.len()).filter(|at| {
                let theirs = &all[*at];
                !theirs.is_empty() && sum(theirs) < FULL
            });
            if let Some(at) = least(&mut room) {
                return at;
            }
        }
        least(&mut (0..all.len())).unwrap_or(0)
    }

    /// The move to make, by each thread's tenants and loads since the last check, and by the idle processor time (1000:
    /// one processor, or two by half).
    pub fn rebalance(&mut self, all: &[Vec<Load>], idle: Permille) -> Option<Move> {
        match self.width {
            Width::Elastic(_) => self.relieve(all, idle).or_else(|| self.join(all)),
            Width::Fixed(_) => {
                let from = fullest(all, |at| all[*at].len() > 1)?;
                let others = (0..all.len()).filter(|at| *at != from);
                relief(all, from, others.map(|at| (at, sum(&all[at]))))
            }
        }
    }

    /// Moves a tenant from a full thread to another one.
    fn relieve(&mut self, all: &[Vec<Load>], idle: Permille) -> Option<Move> {
        // A single tenant that fills a thread cannot be helped.
        let can_be = |at: &usize| {
            let large = all[*at].iter().filter(|l| l.busy >= SMALL).count();
            sum(&all[*at]) >= FULL && large >= 2
        };
        let full = fullest(all, can_be);
        self.full_rounds = in_a_row(self.full_rounds, full.is_some());
        let from = full.filter(|_| self.full_rounds >= FULL_ROUNDS)?;
        self.full_rounds = 0;
        let new = (all.len() < self.most()).then_some((all.len(), 0));
        let others = (0..all.len()).filter(|at| *at != from);
        let targets = others.map(|at| (at, sum(&all[at]))).chain(new);
        // A thread with work already has a processor.
        relief(
            all,
            from,
            targets.filter(|(_, sum)| *sum >= SMALL || idle >= IDLE),
        )
    }

    /// Of two threads with little load, one gives its tenants to the other.
    fn join(&mut self, all: &[Vec<Load>]) -> Option<Move> {
        let mut used: Vec<usize> = (0..all.len()).filter(|at| !all[*at].is_empty()).collect();
        used.sort_by_key(|at| (sum(&all[*at]), *at));
        let two = used.first_chunk::<2>();
        let two = two.filter(|[a, b]| sum(&all[*a]) + sum(&all[*b]) < SLACK);
        self.slack_rounds = in_a_row(self.slack_rounds, two.is_some());
        let [a, b] = two.filter(|_| self.slack_rounds >= SLACK_ROUNDS)?;
        let (to, from) = (*a.min(b), *a.max(b));
        let id = all[from].first()?.id;
        Some(Move { id, from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Threads that serve tenants, each of which would use `wants` of an otherwise idle thread.
    struct Model {
        wants: Vec<Permille>,
        on: Vec<Vec<u64>>,
        processors: u32,
    }

    impl Model {
        fn loads(&self) -> Vec<Vec<Load>> {
            let of = |ids: &Vec<u64>| {
                let want = |id: &u64| self.wants[*id as usize];
                let all: u32 = ids.iter().map(want).sum();
                let busy = |id: &u64| want(id) * 1000 / all.max(1000);
                ids.iter()
                    .map(|id| Load {
                        id: *id,
                        busy: busy(id),
                    })
                    .collect()
            };
            self.on.iter().map(of).collect()
        }

        fn served(&self) -> Permille {
            self.loads().iter().map(|l| sum(l)).sum()
        }

        fn idle(&self) -> Permille {
            (1000 * self.processors).saturating_sub(self.served())
        }

        /// One check and its move. True when there was one.
        fn round(&mut self, threads: &mut Threads) -> bool {
            let Some(Move { id, from, to }) = threads.rebalance(&self.loads(), self.idle()) else {
                return false;
            };
            assert!(from != to && to <= self.on.len() && to < threads.most());
            if to == self.on.len() {
                self.on.push(Vec::new());
            }
            let at = self.on[from].iter().position(|other| *other == id);
            self.on[from].swap_remove(at.expect("it is served there"));
            self.on[to].push(id);
            true
        }

        /// The most load that `threads` threads can serve of these tenants.
        fn best(&self, threads: usize) -> Permille {
            let n = self.wants.len() as u32;
            let ways = (threads as u64).pow(n);
            let way = |mut way: u64| {
                let mut sums = vec![0; threads];
                for want in &self.wants {
                    sums[(way % threads as u64) as usize] += want;
                    way /= threads as u64;
                }
                sums.iter().map(|s| 1000.min(*s)).sum::<u32>()
            };
            (0..ways).map(way).max().unwrap_or(0)
        }
    }

    fn widths() -> impl Strategy<Value = Width> {
        prop_oneof![
            (1..=3usize).prop_map(Width::Elastic),
            (1..=3usize).prop_map(Width::Fixed)
        ]
    }

    proptest! {
        /// Whatever tenants want: moves come to an end, and threads serve at least three quarters of what they could.
        #[test]
        fn it_comes_to_rest_and_serves_three_quarters_of_what_can_be_at_least(
            wants in prop::collection::vec(0..=1000u32, 0..7),
            width in widths(),
            processors in 1..8u32,
        ) {
            let mut threads = Threads::new(width);
            let fixed = matches!(width, Width::Fixed(_));
            let begin = if fixed { width.most() } else { 1 };
            let mut m = Model { on: vec![Vec::new(); begin], wants, processors };
            for id in 0..m.wants.len() as u64 {
                let at = threads.place(&m.loads());
                m.on[at].push(id);
            }
            let moved = (0..400).filter(|_| m.round(&mut threads)).count();
            prop_assert!(moved <= 30, "{moved} moves");
            prop_assert!((0..100).all(|_| !m.round(&mut threads)), "it does not rest: {:?}", m.on);
            prop_assert_eq!(m.on.iter().map(Vec::len).sum::<usize>(), m.wants.len());
            // Another thread starts only where half a processor is idle.
            if fixed || processors > 4 {
                let (served, best) = (m.served(), m.best(width.most()));
                prop_assert!(served * 4 >= best * 3, "{served} of {best}: {:?} {:?}", m.on, m.wants);
            } else {
                // No thread starts where processors have enough work.
                prop_assert!(m.on.len() <= 1 + processors as usize);
            }
            // When all tenants are quiet, one thread has them all again.
            if !fixed {
                m.wants.iter_mut().for_each(|w| *w = 0);
                for _ in 0..100 {
                    m.round(&mut threads);
                }
                prop_assert!(m.on.iter().filter(|ids| !ids.is_empty()).count() <= 1);
            }
        }
    }

    fn loads(of: &[&[(u64, Permille)]]) -> Vec<Vec<Load>> {
        let load = |(id, busy): &(u64, Permille)| Load {
            id: *id,
            busy: *busy,
        };
        of.iter().map(|l| l.iter().map(load).collect()).collect()
    }

    #[test]
    fn a_full_thread_is_relieved_where_a_processor_is_idle() {
        let full = loads(&[&[(1, 500), (2, 300), (3, 200)]]);
        let mut t = Threads::new(Width::Elastic(2));
        assert_eq!(t.rebalance(&full, 1000), None, "for a moment only");
        assert_eq!(
            t.rebalance(&full, 1000),
            Some(Move {
                id: 1,
                from: 0,
                to: 1
            })
        );
        assert!(
            (0..9).all(|_| t.rebalance(&full, 400).is_none()),
            "none is idle"
        );
        let mut one = Threads::new(Width::Elastic(1));
        assert!(
            (0..9).all(|_| one.rebalance(&full, 1000).is_none()),
            "not allowed"
        );
        let alone = loads(&[&[(1, 1000), (2, 10)]]);
        assert!(
            (0..9).all(|_| t.rebalance(&alone, 1000).is_none()),
            "one tenant fills it"
        );
        t.bound(1);
        assert!((0..9).all(|_| t.rebalance(&full, 1000).is_none()));
    }

    #[test]
    fn who_comes_begins_where_others_are_unless_they_are_full() {
        let t = Threads::new(Width::Elastic(4));
        assert_eq!(t.place(&loads(&[&[]])), 0);
        assert_eq!(t.place(&loads(&[&[(1, 300)], &[]])), 0);
        assert_eq!(t.place(&loads(&[&[(1, 300)], &[(2, 100)], &[]])), 1);
        assert_eq!(t.place(&loads(&[&[(1, 900)], &[(2, 950)], &[]])), 2);
        let t = Threads::new(Width::Fixed(3));
        assert_eq!(t.place(&loads(&[&[(1, 0)], &[], &[]])), 1);
        assert_eq!(t.place(&[]), 0);
    }
}
