//! The shipped pager under shuttle's scheduler: threads fault on pages that others evict, write out, discard and pin.

use canvas_core::pager::word::State;
use canvas_core::vm::reclaim;
use canvas_types::PageId;
use shuttle::sync::Arc;
use shuttle::thread;

use crate::sim::{Plan, Sim, bring_in, evict};

const PAGES: usize = 8;

fn check(times: usize, f: impl Fn() + Send + Sync + 'static) {
    let f = std::sync::Arc::new(f);
    let g = f.clone();
    let config = || {
        let mut config = shuttle::Config::new();
        // Pages pass through it.
        config.stack_size = 1 << 25;
        config
    };
    let random = shuttle::scheduler::RandomScheduler::new(times);
    shuttle::Runner::new(random, config()).run(move || g());
    let pct = shuttle::scheduler::PctScheduler::new(3, times);
    shuttle::Runner::new(pct, config()).run(move || f());
}

fn sim(limit_pages: i64) -> Arc<Sim> {
    Arc::new(Sim::new(Plan {
        pages: PAGES,
        slots: 4,
        limit_pages,
        copies: 100,
        fails: 0,
        beyond: false,
        locks: 0,
        seed: 1,
    }))
}

/// What a page that was never written to again must read as.
fn value(page: u32) -> u64 {
    u64::from(page) + 100
}

#[test]
fn a_page_that_leaves_while_it_is_used_is_not_lost() {
    check(60, || {
        let sim = sim(100);
        for page in 0..4 {
            sim.write(page, value(page)).unwrap();
        }
        let evicts = {
            let sim = sim.clone();
            thread::spawn(move || {
                evict(&sim, 4);
                reclaim::write_out(&*sim, &mut canvas_core::vm::Process::batch(&*sim), 4);
            })
        };
        let reads = {
            let sim = sim.clone();
            thread::spawn(move || {
                for page in 0..4 {
                    let n = sim.read(page).unwrap();
                    assert!(n == value(page) || n == value(page) + 50, "{n}");
                }
            })
        };
        for page in [3, 0] {
            sim.write(page, value(page) + 50).unwrap();
            sim.write(page, value(page)).unwrap();
        }
        evicts.join().unwrap();
        reads.join().unwrap();
        sim.check(|page| if page < 4 { value(page) } else { 0 });
    });
}

#[test]
fn what_is_discarded_reads_as_zeros_whoever_brings_it_in() {
    check(60, || {
        let sim = sim(100);
        for page in 0..4 {
            sim.write(page, value(page)).unwrap();
        }
        evict(&sim, 4);
        reclaim::write_out(&*sim, &mut canvas_core::vm::Process::batch(&*sim), 4);
        let brings = {
            let sim = sim.clone();
            thread::spawn(move || bring_in(&sim, &[PageId(0), PageId(1), PageId(2), PageId(3)]))
        };
        let discards = {
            let sim = sim.clone();
            thread::spawn(move || sim.discard_pages(1..3))
        };
        assert_eq!(sim.read(3), Some(value(3)));
        brings.join().unwrap();
        discards.join().unwrap();
        sim.check(|page| match page {
            0 | 3 => value(page),
            _ => 0,
        });
    });
}

#[test]
fn a_pinned_page_stays_and_can_be_written_to() {
    check(60, || {
        let sim = sim(100);
        for page in 0..3 {
            sim.write(page, value(page)).unwrap();
        }
        let evicts = {
            let sim = sim.clone();
            thread::spawn(move || evict(&sim, 3))
        };
        sim.pin(1).unwrap();
        let word = canvas_core::pager::word::load(canvas_core::vm::Process::word(&*sim, PageId(1)));
        assert_ne!(word.state(), State::Cached);
        sim.write_pinned(1, 77);
        evicts.join().unwrap();
        sim.check(|page| match page {
            1 => 77,
            0 | 2 => value(page),
            _ => 0,
        });
    });
}
