//! Page ages per process, so that victims are the tenant's oldest pages rather than those of the faulting process.
//!
//! A process records when its pages came in, as *generations*: at most [`GENERATIONS`] numbers, finer for younger
//! pages. It evicts its oldest pages first, so the pages left in each generation are known without examining any page.
//! Hits are not visible, but it is known when there can have been none: while a process did not run. So the time that
//! the process slept counts in full for a page's age, and the time that it ran counts a quarter ([`RAN_COUNTS`]). Old
//! pages that it still needs come back, and become its floor ([`crate::pager::floor`]).
//!
//! A [`Tenant`] sums the pages beyond all floors by age, in powers of two. The excess is taken from the oldest of
//! these; processes with pages of the youngest age needed share the rest.

use crate::pager::floor;

/// Generations of a process.
pub const GENERATIONS: usize = 16;
/// Pages that came in within this many ms have the same age.
const FINEST_MS: u64 = 8;
/// One part in this many of the time that a process ran makes its pages older.
pub const RAN_COUNTS: u64 = 4;
const PAGE_BITS: u32 = 28;
const PAGES_MAX: i64 = (1 << PAGE_BITS) - 1;
const MS_MASK: u64 = (1 << (64 - PAGE_BITS)) - 1;
/// Ages are distinguished by powers of two of a ms.
const BUCKETS: usize = 40;

/// Pages, the last of which came in at `until_ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Generation {
    until_ms: u64,
    pages: i64,
}

/// The generations of one process, oldest first. A plain value: its writer must exclude other writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ages {
    list: [Generation; GENERATIONS],
    len: usize,
}

impl Ages {
    /// Encodes the generations as numbers for other processes, which may read each one separately.
    pub fn encode(&self) -> [u64; GENERATIONS] {
        core::array::from_fn(|i| match self.list[..self.len].get(i) {
            Some(g) => ((g.until_ms & MS_MASK).max(1) << PAGE_BITS) | g.pages as u64,
            None => 0,
        })
    }

    /// Decodes numbers that may be from different moments, or no ages at all.
    pub fn decode(words: impl IntoIterator<Item = u64>) -> Ages {
        let mut ages = Ages::default();
        for word in words.into_iter().take(GENERATIONS).take_while(|w| *w != 0) {
            ages.list[ages.len] = Generation {
                until_ms: word >> PAGE_BITS,
                pages: word as i64 & PAGES_MAX,
            };
            ages.len += 1;
        }
        ages
    }

    /// All pages.
    pub fn pages(&self) -> i64 {
        self.list[..self.len].iter().map(|g| g.pages).sum()
    }

    /// Updates the ages: the process has `held` pages now. Additional pages have come in since the last call; missing
    /// ones were freed by the program, most often those that it used last.
    pub fn update(&mut self, held: i64, now_ms: u64) {
        let more = held.max(0) - self.pages();
        if more > 0 {
            self.filled(more, now_ms);
        } else {
            self.freed(-more);
        }
    }

    /// Records that reclaim evicted the process's `n` oldest pages.
    pub fn record_evicted(&mut self, mut n: i64) {
        for g in &mut self.list[..self.len] {
            let took = n.min(g.pages);
            g.pages -= took;
            n -= took;
        }
        self.forget_empty();
    }

    fn filled(&mut self, n: i64, now_ms: u64) {
        let as_young = |g: &Generation| g.until_ms / FINEST_MS == (now_ms & MS_MASK) / FINEST_MS;
        if !self.list[..self.len].last().is_some_and(as_young) {
            if self.len == GENERATIONS {
                self.merge(now_ms);
            }
            self.list[self.len] = Generation::default();
            self.len += 1;
        }
        let g = &mut self.list[self.len - 1];
        g.until_ms = now_ms & MS_MASK;
        g.pages = (g.pages + n).min(PAGES_MAX);
    }

    fn freed(&mut self, mut n: i64) {
        for g in self.list[..self.len].iter_mut().rev() {
            let took = n.min(g.pages);
            g.pages -= took;
            n -= took;
        }
        self.forget_empty();
    }

    /// Merges two neighbouring generations. The pages of the older one then count as young as the younger one's, so the
    /// pair with the smallest ratio of ages is chosen.
    fn merge(&mut self, now_ms: u64) {
        let age = |i: usize| u128::from(since(self.list[i].until_ms, now_ms) + FINEST_MS);
        let loss_is_less = |i: usize, j: usize| age(i) * age(j + 1) < age(j) * age(i + 1);
        let at =
            (1..GENERATIONS - 1).fold(0, |best, i| if loss_is_less(i, best) { i } else { best });
        self.list[at + 1].pages = (self.list[at].pages + self.list[at + 1].pages).min(PAGES_MAX);
        self.remove(at);
    }

    fn forget_empty(&mut self) {
        for i in (0..self.len).rev() {
            if self.list[i].pages == 0 {
                self.remove(i);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.list.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Each generation's pages with their minimum age in ms.
    fn each(&self, now_ms: u64) -> impl Iterator<Item = (u64, i64)> + '_ {
        let all = self.list[..self.len].iter();
        all.map(move |g| (since(g.until_ms, now_ms), g.pages))
    }
}

fn since(ms: u64, now_ms: u64) -> u64 {
    let elapsed = now_ms.wrapping_sub(ms) & MS_MASK;
    // Clocks of two readers may differ a little.
    if elapsed > MS_MASK / 2 { 0 } else { elapsed }
}

/// What must be known of a process to judge its pages.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its generations.
    pub ages: Ages,
    /// When its program was last seen running, in ms.
    pub ran_ms: u64,
    /// Pages beyond its floor.
    pub surplus: i64,
    /// It shares pages with relatives. Relatives evict together, because a page is freed only by the last of them.
    pub has_relatives: bool,
}

impl Process {
    /// Its pages beyond the floor, oldest first, by bucket of age. Pages that no generation counts are young.
    fn each_bucket(&self, now_ms: u64, mut f: impl FnMut(usize, i64)) {
        let mut left = self.surplus;
        let slept = since(self.ran_ms, now_ms);
        for (age, pages) in self.ages.each(now_ms) {
            let pages = pages.min(left);
            if pages <= 0 {
                continue;
            }
            left -= pages;
            let age = slept.min(age) + age.saturating_sub(slept) / RAN_COUNTS;
            f(bucket(age), pages);
        }
        if left > 0 {
            f(0, left);
        }
    }
}

fn bucket(age_ms: u64) -> usize {
    ((u64::BITS - age_ms.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The pages of all processes beyond their floors, by age.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    now_ms: u64,
    pages: [i64; BUCKETS],
    /// Relatives: the sum of their pages, and the bucket of the oldest.
    relatives: i64,
    relatives_bucket: usize,
}

impl Tenant {
    /// Sums the processes' pages up.
    pub fn of(processes: impl Iterator<Item = Process>, now_ms: u64) -> Tenant {
        let mut t = Tenant {
            now_ms,
            pages: [0; BUCKETS],
            relatives: 0,
            relatives_bucket: 0,
        };
        for p in processes {
            p.each_bucket(now_ms, |bucket, pages| {
                if p.has_relatives {
                    t.relatives += pages;
                    t.relatives_bucket = t.relatives_bucket.max(bucket);
                } else {
                    t.pages[bucket] += pages;
                }
            });
        }
        t.pages[t.relatives_bucket] += t.relatives;
        t
    }

    /// How many of the tenant's `over` excess pages this process, which is one of those summed, must evict.
    pub fn part(&self, over: i64, p: &Process) -> i64 {
        let mut taken = 0i64;
        for at in (0..BUCKETS).rev() {
            let here = self.pages[at];
            if taken + here < over && at > 0 {
                taken += here;
                continue;
            }
            let (mut older, mut band) = (0, 0);
            p.each_bucket(self.now_ms, |bucket, pages| {
                let bucket = if p.has_relatives {
                    self.relatives_bucket
                } else {
                    bucket
                };
                match bucket.cmp(&at) {
                    core::cmp::Ordering::Greater => older += pages,
                    core::cmp::Ordering::Equal => band += pages,
                    core::cmp::Ordering::Less => {}
                }
            });
            if over <= 0 {
                return 0;
            }
            return older + floor::part(over - taken, band, here);
        }
        0
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn process(ages: Ages, ran_ms: u64, surplus: i64) -> Process {
        Process {
            ages,
            ran_ms,
            surplus,
            has_relatives: false,
        }
    }

    #[test]
    fn an_idle_process_gives_before_a_busy_one_that_is_older() {
        let (mut busy, mut idle) = (Ages::default(), Ages::default());
        busy.update(1000, 1_000);
        busy.update(1000, 1_100);
        idle.update(1000, 3_000);
        for now in (3_100..6_000).step_by(100) {
            busy.update(1000, now);
            idle.update(1000, now);
        }
        busy.update(1600, 6_000);
        let (busy, idle) = (process(busy, 6_000, 1500), process(idle, 3_000, 900));
        let t = Tenant::of([busy, idle].into_iter(), 6_000);
        assert_eq!((t.part(600, &busy), t.part(600, &idle)), (0, 601));
        // Past the idle process's surplus, the busy one's oldest pages go as well.
        assert_eq!((t.part(1_000, &busy), t.part(1_000, &idle)), (101, 900));
        // There is no excess.
        assert_eq!((t.part(0, &busy), t.part(-5, &idle)), (0, 0));
    }

    #[test]
    fn relatives_give_together() {
        let (mut old, mut young) = (Ages::default(), Ages::default());
        old.update(1000, 10);
        old.update(1000, 100);
        young.update(1000, 50_000);
        let mut processes = [process(old, 10, 1000), process(young, 50_000, 500)];
        processes.iter_mut().for_each(|p| p.has_relatives = true);
        let t = Tenant::of(processes.into_iter(), 50_000);
        let parts = processes.map(|p| t.part(300, &p));
        assert_eq!(parts, [201, 101]);
    }

    #[test]
    fn what_others_read_is_what_was_written() {
        let mut ages = Ages::default();
        for i in 0..100 {
            ages.update(i * 7, 50 + i as u64 * 13);
        }
        assert_eq!(Ages::decode(ages.encode()), ages);
        // Arbitrary numbers do no harm.
        let t = Ages::decode([u64::MAX; 40]);
        assert!(t.pages() > 0 && t.each(3).all(|(age, _)| age <= MS_MASK));
    }

    /// One process page by page: when each page came in, oldest first.
    #[derive(Default)]
    struct Naive(VecDeque<u64>);

    proptest! {
        /// The count is right, no page counts as older than it is, and none as younger than a quarter of its age (plus
        /// the time between two updates).
        #[test]
        fn generations_are_as_a_list_of_pages(
            steps in proptest::collection::vec((0..4u8, 1..200i64, 0..12u32), 1..300),
        ) {
            let (mut ages, mut naive) = (Ages::default(), Naive::default());
            let mut now = 1_000u64;
            for (what, n, wait) in steps {
                now += (1u64 << wait) - 1;
                match what {
                    0 | 1 => naive.0.extend((0..n).map(|_| now)),
                    2 => {
                        let n = n.min(naive.0.len() as i64);
                        naive.0.drain(..n as usize);
                        ages.record_evicted(n);
                    }
                    _ => {
                        let left = naive.0.len().saturating_sub(n as usize);
                        naive.0.truncate(left);
                    }
                }
                ages.update(naive.0.len() as i64, now);
                prop_assert_eq!(ages.pages(), naive.0.len() as i64);
                let mut pages = naive.0.iter();
                for (age, n) in ages.each(now) {
                    for _ in 0..n {
                        let real = now - pages.next().unwrap();
                        prop_assert!(age <= real && real <= 4 * age + 32, "{} of {}", age, real);
                    }
                }
            }
        }

        /// Compared with taking the oldest page of any process, one by one: as many are taken, no process goes below
        /// its floor, and pages twice as old as the last page taken there are taken here, too.
        #[test]
        fn parts_are_as_the_oldest_pages_of_all(
            processes in proptest::collection::vec(
                (proptest::collection::vec((0..300i64, 1..100_000u64), 1..12), 0..200_000u64, 0..2_000i64),
                1..8,
            ),
            over in 0..4_000i64,
        ) {
            const NOW: u64 = 2_000_000;
            let processes: Vec<Process> = processes
                .into_iter()
                .map(|(fills, slept, floor)| {
                    let mut ages = Ages::default();
                    let mut at = NOW - fills.iter().map(|f| f.1).sum::<u64>();
                    let mut held = 0;
                    for (pages, wait) in fills {
                        held += pages;
                        ages.update(held, at);
                        at += wait;
                    }
                    ages.update(held, at);
                    process(ages, NOW - slept, held - floor)
                })
                .collect();
            let tenant = Tenant::of(processes.iter().copied(), NOW);
            let parts: Vec<i64> = processes.iter().map(|p| tenant.part(over, p)).collect();
            let all: i64 = processes.iter().map(|p| p.surplus.max(0)).sum();
            let sum: i64 = parts.iter().sum();
            // Each process with pages of the last bucket rounds up.
            prop_assert!(sum >= over.min(all) && sum <= over + processes.len() as i64, "{} of {}", sum, over);
            // Page by page: (age, process).
            let mut pages = Vec::new();
            for (i, p) in processes.iter().enumerate() {
                let (mut left, slept) = (p.surplus.max(0), NOW - p.ran_ms);
                for (age, n) in p.ages.each(NOW) {
                    let age = if age <= slept { age } else { slept + (age - slept) / RAN_COUNTS };
                    for _ in 0..n.min(left) {
                        pages.push((age, i));
                    }
                    left -= n.min(left);
                }
            }
            pages.sort_by_key(|(age, _)| core::cmp::Reverse(*age));
            pages.truncate(over as usize);
            let youngest = pages.last().map_or(0, |(age, _)| *age);
            for (i, (p, part)) in processes.iter().zip(&parts).enumerate() {
                prop_assert!(*part >= 0 && *part <= p.surplus.max(0));
                let must = pages.iter().filter(|(age, who)| *who == i && *age > 2 * youngest).count();
                prop_assert!(*part >= must as i64, "{} of {}", part, must);
            }
        }
    }
}
