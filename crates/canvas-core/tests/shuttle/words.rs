//! The lock-free parts under shuttle's scheduler: `cargo test -p canvas-core --features shuttle`.

use std::sync::Arc;

use canvas_core::pager::clock::{Clock, ClockParams, EpochClock, VictimBatch, take_reservation};
use canvas_core::pager::holds::Holds;
use canvas_core::pager::prefetch::FaultKind;
use canvas_core::pager::prefetch::streams::ThreadStreams;
use canvas_core::pager::table::PageTable;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};
use canvas_types::{PageId, SwapEntry};
use shuttle::thread;

struct World {
    words: Vec<AtomicU64>,
    counts: Vec<AtomicU32>,
    high: AtomicU32,
}

impl World {
    fn new(resident: std::ops::Range<usize>) -> World {
        let w = World {
            words: (0..BLOCK_PAGES).map(|_| AtomicU64::new(0)).collect(),
            counts: vec![AtomicU32::new(0)],
            high: AtomicU32::new(0),
        };
        for page in resident {
            w.table().note_resident(page);
            w.words[page].store(Word(0).with_state(State::Resident).0, Ordering::Relaxed);
        }
        w
    }
    fn table(&self) -> PageTable<'_> {
        PageTable {
            words: &self.words,
            resident_in_block: &self.counts,
            high_block: &self.high,
        }
    }
}

fn pages_of(batch: &VictimBatch) -> Vec<u32> {
    batch
        .runs()
        .iter()
        .flat_map(|r| r.start.0..r.start.0 + r.len)
        .collect()
}

#[test]
fn selections_are_disjoint_and_complete() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::new(56..72));
            let clock = Arc::new(Clock::new(ClockParams::DEFAULT));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (world, clock) = (world.clone(), clock.clone());
                    thread::spawn(move || {
                        let mut out = VictimBatch::new();
                        clock.select(&world.table(), 6, &mut out);
                        pages_of(&out)
                    })
                })
                .collect();
            let mut all: Vec<u32> = threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect();
            all.sort_unstable();
            let mut distinct = all.clone();
            distinct.dedup();
            assert_eq!(all, distinct, "a page was selected twice");
            assert_eq!(
                all,
                (56..72).collect::<Vec<_>>(),
                "three wants of six empty sixteen pages"
            );
        },
        300,
    );
}

#[test]
fn two_streams_and_the_hand_meet_in_one_chunk() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::new(0..12));
            for page in 0..12 {
                world.words[page].fetch_or(flag::STREAM, Ordering::Relaxed);
            }
            let clock = Arc::new(Clock::new(ClockParams::DEFAULT));
            clock.stream_passed(PageId(0));
            clock.stream_passed(PageId(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (world, clock) = (world.clone(), clock.clone());
                    thread::spawn(move || {
                        let mut out = VictimBatch::new();
                        clock.select(&world.table(), 6, &mut out);
                        pages_of(&out)
                    })
                })
                .collect();
            let mut all: Vec<u32> = threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..12).collect::<Vec<_>>(), "each page once");
        },
        300,
    );
}

#[test]
fn a_pinned_page_is_never_selected() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::new(0..4));
            let clock = Arc::new(Clock::new(ClockParams::DEFAULT));
            let (w2, c2) = (world.clone(), clock.clone());
            let reclaim = thread::spawn(move || {
                let mut out = VictimBatch::new();
                c2.select(&w2.table(), 4, &mut out);
                out.pages()
            });
            if word::pin(&world.words[2]) {
                for _ in 0..20 {
                    assert_eq!(word::load(&world.words[2]).state(), State::Resident);
                }
                word::unpin(&world.words[2]);
            }
            assert!(reclaim.join().unwrap() >= 3);
        },
        500,
    );
}

#[test]
fn no_pin_is_lost_when_a_mapping_call_publishes() {
    shuttle::check_random(
        || {
            let w = Arc::new(AtomicU64::new(Word(0).with_state(State::Resident).0));
            assert!(word::pin(&w) && word::pin(&w));
            let other = w.clone();
            let mapping = thread::spawn(move || {
                loop {
                    let cur = word::load(&other);
                    if word::transition(&other, cur, cur.with_state(State::Mapping)) {
                        word::publish(&other, cur);
                        return;
                    }
                }
            });
            let third = w.clone();
            let unpin = thread::spawn(move || word::unpin(&third));
            word::unpin(&w);
            mapping.join().unwrap();
            unpin.join().unwrap();
            assert_eq!(word::load(&w).pins(), 0);
            assert!(word::load(&w).evictable());
        },
        500,
    );
}

#[test]
fn a_page_goes_round_without_losing_its_bytes() {
    // Threads fault and unmap one page; its bytes are where the word says. For the way out of the swap cache, where the
    // writer owns the slot and not the page, see shuttle_slots.rs.
    shuttle::check_random(
        || {
            let word_ = Arc::new(AtomicU64::new(Word(0).with_state(State::Resident).0));
            // Managed range, swap cache: which of them holds the page.
            let place = Arc::new([AtomicU32::new(7), AtomicU32::new(0)]);
            let go = |from: State, busy: State, to: State, dst: usize| {
                let (w, place) = (word_.clone(), place.clone());
                thread::spawn(move || {
                    for _ in 0..4 {
                        let cur = word::load(&w);
                        if cur.state() == from && word::transition(&w, cur, cur.with_state(busy)) {
                            let bytes = place[1 - dst].swap(0, Ordering::Relaxed);
                            assert_eq!(bytes, 7, "the owner finds the bytes where the word said");
                            place[dst].store(bytes, Ordering::Relaxed);
                            word::publish(&w, cur.with_state(to));
                        }
                        thread::yield_now();
                    }
                })
            };
            let threads = [
                go(State::Cached, State::Filling, State::Resident, 0),
                go(State::Resident, State::Evicting, State::Cached, 1),
                go(State::Resident, State::Evicting, State::Cached, 1),
                go(State::Cached, State::Filling, State::Resident, 0),
            ];
            for t in threads {
                t.join().unwrap();
            }
            let at = match word::load(&word_).state() {
                State::Resident => 0,
                State::Cached => 1,
                s => panic!("left busy: {s:?}"),
            };
            let values: Vec<u32> = place.iter().map(|p| p.load(Ordering::Relaxed)).collect();
            assert_eq!(values[at], 7);
            assert_eq!(values.iter().sum::<u32>(), 7);
        },
        300,
    );
}

#[test]
fn a_reservation_is_taken_once() {
    shuttle::check_random(
        || {
            let w = Arc::new(AtomicU64::new(
                Word(0)
                    .with_state(State::Resident)
                    .with_entry(SwapEntry(9))
                    .0,
            ));
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let w = w.clone();
                    thread::spawn(move || u32::from(take_reservation(&w).is_some()))
                })
                .collect();
            // Reclaim races: the first one gets the entry.
            let cur = word::load(&w);
            let evicted = word::transition(&w, cur, cur.with_state(State::Evicting));
            let kept = u32::from(evicted && cur.entry().is_some());
            let taken: u32 = takers.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(taken + kept, if evicted || taken > 0 { 1 } else { 0 });
            assert_eq!(word::load(&w).entry().is_some(), taken == 0);
        },
        500,
    );
}

#[test]
fn epochs_lose_no_eviction() {
    shuttle::check_random(
        || {
            let e = Arc::new(EpochClock::new());
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let e = e.clone();
                    thread::spawn(move || {
                        e.advance(5, 160);
                        e.advance(5, 160);
                    })
                })
                .collect();
            for t in threads {
                t.join().unwrap();
            }
            assert_eq!(e.now(), 3, "30 evictions in epochs of 10");
        },
        200,
    );
}

#[test]
fn a_busy_table_gives_no_plan_and_no_wait() {
    let mut config = shuttle::Config::new();
    // The tables are larger than the stack of shuttle's tasks.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(100), config).run(|| {
        let p = Arc::new(ThreadStreams::new());
        let threads: Vec<_> = (0..2)
            .map(|t| {
                let p = p.clone();
                thread::spawn(move || {
                    (0..4u32)
                        .map(|i| {
                            p.on_fault(1, PageId(t * 100_000 + i), FaultKind::Demand)
                                .count
                        })
                        .sum::<u32>()
                })
            })
            .collect();
        for t in threads {
            assert!(t.join().unwrap() <= 16);
        }
    });
}

/// Reclaim takes pages out of a device's reach in two steps; a device writes between the two steps of a call. Both
/// never happen at once, even with more calls than places.
#[test]
fn no_batch_of_reclaim_runs_during_a_device_call() {
    shuttle::check_random(
        || {
            let holds = Arc::new(Holds::new());
            let devices = Arc::new(AtomicU32::new(0));
            let callers: Vec<_> = (1..3u64)
                .map(|now| {
                    let (holds, devices) = (holds.clone(), devices.clone());
                    thread::spawn(move || {
                        let call = holds.begin(now);
                        let mut waits = 0;
                        while !holds.is_settled() {
                            waits += 1;
                            assert!(waits < 10_000, "a batch has no end");
                            thread::yield_now();
                        }
                        devices.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        devices.fetch_sub(1, Ordering::SeqCst);
                        holds.end(call);
                    })
                })
                .collect();
            let reclaimers: Vec<_> = (0..2)
                .map(|_| {
                    let (holds, devices) = (holds.clone(), devices.clone());
                    thread::spawn(move || {
                        for _ in 0..3 {
                            let Some(_batch) = holds.batch(3) else {
                                thread::yield_now();
                                continue;
                            };
                            assert_eq!(devices.load(Ordering::SeqCst), 0);
                            thread::yield_now();
                            assert_eq!(devices.load(Ordering::SeqCst), 0);
                        }
                    })
                })
                .collect();
            for t in callers.into_iter().chain(reclaimers) {
                t.join().unwrap();
            }
            assert!(!holds.is_held(3) && holds.is_settled());
        },
        20_000,
    );
}
