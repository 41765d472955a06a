//! The shipped pager ([`canvas_core::vm`]) against a naive oracle: a program reads, writes, discards, locks and passes
//! pages to system calls, while pages are evicted, written out and brought in ahead, over a kernel that fails; it forks;
//! copies move beyond the pool and back, do not answer, and are damaged; it is killed in the middle of a call. No page is
//! lost or torn, and none comes back damaged; no page, slot or entry has two owners or none; all charges add up.
//!
//! Seed: CANVAS_TEST_SEED, else random, printed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use canvas_core::vm::{Process, ledger, reclaim};
use canvas_shm::Counter;
use canvas_testing::random::sized;
use canvas_types::PageId;

use crate::pools::Rng;
use crate::sim::{Killed, Plan, Sim, bring_in, evict};

const PAGES: u32 = 700;

fn ops() -> u64 {
    canvas_testing::random::scaled(25_000).into()
}

/// One step of the program, or of the reclaim thread. `values` is what each page must read as; pages are chosen among
/// those for which `mine` is true.
fn step(sim: &Sim, rng: &mut Rng, values: &[AtomicU64], mine: impl Fn(u32) -> bool) {
    let page = loop {
        let page = rng.below(u64::from(PAGES)) as u32;
        if mine(page) {
            break page;
        }
    };
    let value = &values[page as usize];
    // Some pages are of zeros, and few are alike.
    let new = |rng: &mut Rng| if rng.below(6) == 0 { 0 } else { rng.next() };
    match rng.below(24) {
        0..7 => {
            if let Some(n) = sim.read(page) {
                assert_eq!(n, value.load(Relaxed), "page {page}");
            }
        }
        7..11 => {
            let n = new(rng);
            if sim.write(page, n).is_some() {
                value.store(n, Relaxed);
            }
        }
        // Runs in order, for the prefetcher.
        11 | 12 => {
            for page in (page..PAGES.min(page + 24)).filter(|p| mine(*p)) {
                if let Some(n) = sim.read(page) {
                    assert_eq!(n, values[page as usize].load(Relaxed), "page {page}");
                }
            }
        }
        13 => {
            if sim.pin(page).is_some() {
                evict(sim, 16);
                let n = new(rng);
                sim.write_pinned(page, n);
                value.store(n, Relaxed);
            }
        }
        14 => {
            for page in (page..PAGES.min(page + 1 + rng.below(20) as u32)).filter(|p| mine(*p)) {
                sim.discard_pages(page..page + 1);
                values[page as usize].store(0, Relaxed);
            }
        }
        15 => sim.lock(page, rng.below(4) == 0),
        16 => evict(sim, 1 + rng.below(40) as u32),
        17 => {
            reclaim::evict_excess(sim);
        }
        18 => {
            let end = PAGES.min(page + 1 + rng.below(60) as u32);
            reclaim::reclaim_chosen(sim, page, end);
        }
        19 if sim.plan.beyond => {
            sim.demote(page, 1 + rng.below(60) as usize);
        }
        20 if rng.below(8) == 0 => sim.damage(page),
        21 if rng.below(8) == 0 => sim.fork(),
        22 if rng.below(4) == 0 => sim.child_ends(),
        _ => {
            let pages: Vec<PageId> = (page..PAGES.min(page + 20)).map(PageId).collect();
            bring_in(sim, &pages);
        }
    }
}

/// What some run must have met, besides what the simulated kernel sees.
const COUNTERS: [Counter; 8] = [
    Counter::PagesOutProtected,
    Counter::PagesOutClean,
    Counter::FaultFirstWrite,
    Counter::CacheHitVictim,
    Counter::CacheHitPrefetch,
    Counter::FaultFirstTouch,
    Counter::ReclaimDirect,
    Counter::PrefetchUnused,
];

fn values() -> Vec<AtomicU64> {
    (0..1024).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn no_page_is_lost_and_the_books_add_up() {
    let (mut seen, mut counts) = (BTreeSet::new(), [0; COUNTERS.len()]);
    let seed = canvas_testing::random::seed();
    for round in 0..6 {
        let mut rng = Rng(seed.wrapping_add(round));
        let plan = Plan {
            pages: PAGES as usize,
            slots: [16, 32, 64][rng.below(3) as usize],
            limit_pages: 150 + rng.below(400) as i64,
            // Sometimes far memory is full.
            copies: [120, 10_000][round as usize % 2],
            fails: [0, 30, 200][round as usize % 3],
            beyond: round >= 2,
            locks: [0, 0, 40][round as usize % 3],
            seed: rng.next(),
        };
        println!("{plan:?}");
        let (sim, values) = (Sim::new(plan), values());
        for n in 0..ops() / 6 {
            step(&sim, &mut rng, &values, |_| true);
            if rng.below(500) == 0 {
                sim.set_limit(100 + rng.below(600) as i64);
            }
            if n % 64 == 0 {
                sim.check(|page| values[page as usize].load(Relaxed));
            }
        }
        sim.check(|page| values[page as usize].load(Relaxed));
        seen.extend(sim.seen.lock().unwrap().iter().copied());
        for (sum, counter) in counts.iter_mut().zip(COUNTERS) {
            *sum += sim.segment().total(counter);
        }
    }
    if cfg!(miri) {
        return; // A few steps do not meet all of it.
    }
    for what in [
        "evicted",
        "came in from far",
        "prefetched",
        "swapped in",
        "discarded",
        "pinned",
        "locked",
        "store refused",
        "far memory is full",
        "copy interrupted",
        "copy stopped at a border",
        "no free page for a while",
        "page kept",
        "protection refused",
        "stays charged for a relative",
        "demoted",
        "promoted",
        "read beyond the pool",
        "far memory did not answer",
        "a damaged page",
    ] {
        assert!(seen.contains(what), "no run met: {what}");
    }
    for (n, counter) in counts.iter().zip(COUNTERS) {
        assert!(*n > 0, "no run counted {}", counter.json_name());
    }
}

#[test]
fn threads_lose_no_page_of_each_other() {
    const THREADS: u32 = 4;
    let seed = canvas_testing::random::seed();
    let plan = Plan {
        pages: PAGES as usize,
        slots: 48,
        limit_pages: 240,
        copies: 200,
        fails: 300,
        beyond: true,
        locks: 0,
        seed,
    };
    let (sim, values) = (Sim::new(plan), values());
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (sim, values) = (&sim, &values);
            scope.spawn(move || {
                let mut rng = Rng(seed.wrapping_add(u64::from(me)));
                for _ in 0..ops() / 12 {
                    // Neighbours have different owners.
                    step(sim, &mut rng, values, |page| page % THREADS == me);
                }
            });
        }
    });
    sim.check(|page| values[page as usize].load(Relaxed));
    assert!(ledger::charged(&sim) > 0);
}

#[test]
fn a_process_that_is_killed_in_any_call_leaves_right_books() {
    let seed = canvas_testing::random::seed();
    let mut rng = Rng(seed);
    let plan = Plan {
        pages: PAGES as usize,
        slots: 32,
        limit_pages: 300,
        copies: 200,
        fails: 60,
        beyond: true,
        locks: 40,
        seed,
    };
    // What is expected must not fill the output.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Killed>() {
            report(panic);
        }
    }));
    let (sim, mine) = (Sim::new(plan), values());
    let mut killed = 0;
    while killed < sized(40, 3) {
        let (other, theirs) = (sim.relative(plan), values());
        other.kill_after(1 + rng.below(3_000));
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loop {
                step(&other, &mut rng, &theirs, |_| true);
                step(&sim, &mut rng, &mine, |_| true);
            }
        }));
        let why = died.expect_err("it is killed");
        if !why.is::<Killed>() {
            std::panic::resume_unwind(why);
        }
        killed += 1;
        sim.release(&other);
        sim.check(|page| mine[page as usize].load(Relaxed));
    }
}
