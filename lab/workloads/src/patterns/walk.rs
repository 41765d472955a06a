//! Choice of the next page to touch.

use std::time::Duration;

use rand_distr::{Distribution, Zipf};

use crate::rng::{Rng, RngExt, Stream, mix64, stream};
use crate::{Failure, Job};

/// The patterns that touch a filled heap.
#[derive(Debug)]
pub enum Kind {
    /// Every page in address order.
    Sequential,
    /// Every n-th page.
    Strided(usize),
    /// Uniformly random pages.
    Uniform,
    /// Uniformly random pages, changed.
    Write,
    /// Every page in address order, changed.
    WriteOn,
    /// Zipf-distributed: a few pages often.
    Zipf,
    /// A pointer chase: each page names the next.
    Chase,
    /// Uniformly random pages of a part that moves.
    Phases,
}

impl Kind {
    /// Whether the pattern changes the pages it touches.
    pub fn writes(&self) -> bool {
        matches!(self, Kind::Write | Kind::WriteOn)
    }
}

/// Exponent of the popularity.
const THETA: f64 = 0.99;
/// Number of phases, each with another part of the heap.
const PHASES: usize = 8;
/// The heap has this number of parts.
const PART: usize = 5;

/// A thread's walk through the heap.
pub struct Walk {
    next: Next,
    pages: usize,
    seed: u64,
    rng: Stream,
}

enum Next {
    /// Next page, step, and first page of this round.
    Step {
        page: usize,
        by: usize,
        first: usize,
    },
    Uniform,
    Zipf(Zipf<f64>),
    At(usize),
    Phases {
        each: Duration,
    },
}

impl Walk {
    /// The walk of thread `id`; `pages` is at least 2.
    pub fn new(kind: &Kind, pages: usize, job: &Job, id: usize) -> Walk {
        let start = pages / job.threads * id;
        let next = match *kind {
            Kind::Sequential | Kind::WriteOn => Next::Step {
                page: start,
                by: 1,
                first: 0,
            },
            Kind::Strided(by) => Next::Step {
                page: start,
                by,
                first: start % by,
            },
            Kind::Uniform | Kind::Write => Next::Uniform,
            // Both parameters are in range: pages > 0, and the exponent is a positive constant.
            Kind::Zipf => Next::Zipf(Zipf::new(pages as f64, THETA).expect("in range")),
            Kind::Chase => Next::At(start),
            // The warm-up adds a quarter to the time.
            Kind::Phases => Next::Phases {
                each: Duration::from_secs_f64(job.seconds * 1.25 / PHASES as f64),
            },
        };
        Walk {
            next,
            pages,
            seed: job.seed,
            rng: stream(job.seed, 1000 + id as u64),
        }
    }

    /// The page to touch, `elapsed` after the beginning.
    #[inline]
    pub fn page(&mut self, elapsed: Duration) -> usize {
        match &mut self.next {
            Next::Step { page, by, first } => {
                let now = *page;
                *page += *by;
                if *page >= self.pages {
                    *first = (*first + 1) % *by;
                    // A stride may be as long as the heap.
                    *page = *first % self.pages;
                }
                now
            }
            Next::Uniform => self.rng.random_range(0..self.pages),
            Next::Zipf(zipf) => {
                // Scatters pages of similar popularity over the memory.
                let rank = zipf.sample(&mut self.rng) as u64;
                (mix64(rank.wrapping_add(self.seed)) % self.pages as u64) as usize
            }
            Next::At(page) => *page,
            Next::Phases { each } => {
                let phase = (elapsed.as_nanos() / each.as_nanos().max(1)) as usize % PHASES;
                let from = part(phase, self.pages);
                from + self.rng.random_range(0..(self.pages / PART).max(1))
            }
        }
    }

    /// The word of the page to read.
    #[inline]
    pub fn word(&mut self) -> usize {
        (self.rng.next_u64() >> 55) as usize
    }

    /// Sets the next page of a chase.
    pub fn go_to(&mut self, page: usize) {
        self.next = Next::At(page);
    }
}

/// First page of a phase's part. Parts of consecutive phases do not overlap.
fn part(phase: usize, pages: usize) -> usize {
    let room = pages - (pages / PART).max(1);
    room * (phase * 3 % PHASES) / (PHASES - 1)
}

/// One cycle through all pages.
pub struct Chain(Vec<u32>);

impl Chain {
    /// A random cycle (Sattolo's algorithm).
    pub fn new(pages: usize, seed: u64) -> Result<Chain, Failure> {
        let mut rng = stream(seed, 2000);
        let mut next = crate::room(pages)?;
        next.extend(0..pages as u32);
        for i in (1..pages).rev() {
            next.swap(i, rng.random_range(0..i));
        }
        Ok(Chain(next))
    }

    /// The successor of page `p`.
    pub fn next(&self, p: usize) -> u64 {
        u64::from(self.0[p])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(threads: usize) -> Job {
        Job {
            name: "test",
            mib: 4,
            seed: 3,
            seconds: 8.0,
            threads,
            rounds: 1,
            stride: 10,
        }
    }

    fn pages(kind: &Kind, pages: usize, count: usize) -> Vec<usize> {
        let mut walk = Walk::new(kind, pages, &job(1), 0);
        (0..count).map(|_| walk.page(Duration::ZERO)).collect()
    }

    proptest! {
        #[test]
        fn a_chain_is_one_cycle(n in 2usize..2000, seed in any::<u64>()) {
            let chain = Chain::new(n, seed).unwrap();
            let mut seen = vec![false; n];
            let mut p = 0;
            for _ in 0..n {
                prop_assert!(!seen[p], "page {} comes twice", p);
                seen[p] = true;
                p = chain.next(p) as usize;
            }
            prop_assert_eq!(p, 0);
        }

        #[test]
        fn a_stride_comes_to_each_page_once_a_round(n in 2usize..3000, by in 1usize..3000) {
            let by = by.min(n);
            let mut all = pages(&Kind::Strided(by), n, n);
            prop_assert!(all.windows(2).all(|w| w[1] == w[0] + by || w[1] < by));
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..n));
        }

        #[test]
        fn parts_lie_in_the_heap_and_move(n in 64usize..1_000_000) {
            for phase in 0..PHASES {
                prop_assert!(part(phase, n) + n / PART <= n);
                let (here, next) = (part(phase, n), part((phase + 1) % PHASES, n));
                prop_assert!(here.abs_diff(next) >= n / PART, "{} {}", here, next);
            }
        }
    }

    #[test]
    fn zipf_has_the_shape_of_zipf() {
        let (n, draws) = (1000usize, 400_000);
        let zipf = Zipf::new(n as f64, THETA).unwrap();
        let mut rng = stream(5, 0);
        let mut counts = vec![0u32; n + 1];
        for _ in 0..draws {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        let sum: f64 = (1..=n).map(|k| (k as f64).powf(-THETA)).sum();
        let expected = |from: usize, to: usize| -> f64 {
            (from..to).map(|k| (k as f64).powf(-THETA)).sum::<f64>() / sum * f64::from(draws)
        };
        for (from, to) in [(1, 2), (2, 3), (3, 10), (10, 100), (100, 1001)] {
            let got = f64::from(counts[from..to].iter().sum::<u32>());
            let want = expected(from, to);
            // The tolerance is six standard deviations.
            assert!(
                (got - want).abs() < 6.0 * want.sqrt(),
                "{from}..{to}: {got} {want}"
            );
        }
    }

    #[test]
    fn popular_pages_are_scattered_and_few_get_most() {
        let n = 1 << 14;
        let mut counts = vec![0u32; n];
        for p in pages(&Kind::Zipf, n, 200_000) {
            counts[p] += 1;
        }
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|p| std::cmp::Reverse(counts[*p]));
        let top: u32 = order[..n / 20].iter().map(|p| counts[*p]).sum();
        assert!(
            top > 120_000,
            "a twentieth of the pages gets {top} of 200000"
        );
        assert!(order[..8].windows(2).any(|w| w[0].abs_diff(w[1]) > n / 8));
    }

    #[test]
    fn phases_stay_within_their_part() {
        let n = 1000;
        let mut walk = Walk::new(&Kind::Phases, n, &job(1), 0);
        for (ms, phase) in [(0, 0), (1_249, 0), (1_251, 1), (8_800, 7), (10_001, 0)] {
            for _ in 0..500 {
                let p = walk.page(Duration::from_millis(ms));
                let from = part(phase, n);
                assert!((from..from + n / PART).contains(&p), "{ms} ms: {p}");
            }
        }
    }

    #[test]
    fn threads_begin_apart() {
        let first = |id| Walk::new(&Kind::Sequential, 1000, &job(4), id).page(Duration::ZERO);
        assert_eq!([first(0), first(1), first(3)], [0, 250, 750]);
    }
}
