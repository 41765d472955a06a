//! Interleavings of the locks of the fault path.

use std::sync::Arc;

use canvas_core::pager::locks::{ContextPool, Gate, SharedLock};
use canvas_types::sync::{AtomicU32, Ordering};
use shuttle::thread;

const RUNS: usize = 2000;

fn run_all(threads: Vec<thread::JoinHandle<()>>) {
    for t in threads {
        t.join().unwrap();
    }
}

#[test]
fn nobody_shares_what_one_holds_alone() {
    shuttle::check_random(
        || {
            let lock = Arc::new(SharedLock::new());
            // Written in two steps by the exclusive holder, read by those who share.
            let pair = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let mut threads = Vec::new();
            for n in 1..3 {
                let (lock, pair) = (lock.clone(), pair.clone());
                threads.push(thread::spawn(move || {
                    let _alone = lock.exclusive(thread::yield_now);
                    pair[0].store(n, Ordering::Relaxed);
                    pair[1].store(n, Ordering::Relaxed);
                }));
            }
            for _ in 0..2 {
                let (lock, pair) = (lock.clone(), pair.clone());
                threads.push(thread::spawn(move || {
                    let _shared = lock.shared(thread::yield_now);
                    let first = pair[0].load(Ordering::Relaxed);
                    assert_eq!(first, pair[1].load(Ordering::Relaxed), "seen half written");
                }));
            }
            run_all(threads);
            // Nothing is left held.
            drop(lock.exclusive(thread::yield_now));
        },
        RUNS,
    );
}

#[test]
fn a_place_is_one_threads_at_a_time() {
    shuttle::check_random(
        || {
            let places = Arc::new(ContextPool::<2>::new());
            let holders = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let threads = (0..3)
                .map(|first| {
                    let (places, holders) = (places.clone(), holders.clone());
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let place = places.take(first, thread::yield_now);
                            let holder = &holders[place.index()];
                            assert_eq!(holder.fetch_add(1, Ordering::Relaxed), 0, "two have it");
                            holder.fetch_sub(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            run_all(threads);
        },
        RUNS,
    );
}

#[test]
fn behind_a_closed_gate_nobody_is_in_the_middle_of_something() {
    shuttle::check_random(
        || {
            let gate = Arc::new(Gate::<2>::new());
            let pair = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let wait = |_: &AtomicU32, _: u32| thread::yield_now();
            let mut threads: Vec<_> = (0..2)
                .map(|stripe| {
                    let (gate, pair) = (gate.clone(), pair.clone());
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let _inside = gate.enter(stripe, |_| false, wait);
                            pair[0].fetch_add(1, Ordering::Relaxed);
                            pair[1].fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for by in 2..4 {
                let (gate, pair) = (gate.clone(), pair.clone());
                threads.push(thread::spawn(move || {
                    gate.close(by, wait);
                    assert!(gate.drain(|| {
                        thread::yield_now();
                        true
                    }));
                    let first = pair[0].load(Ordering::Relaxed);
                    // The thread that closed the gate passes, others do not.
                    drop(gate.enter(0, |who| who == by, |_, _| panic!("closed to us")));
                    assert_eq!(first, pair[1].load(Ordering::Relaxed), "somebody is inside");
                    gate.open();
                }));
            }
            run_all(threads);
        },
        RUNS,
    );
}

#[test]
fn who_waits_in_vain_gives_up() {
    shuttle::check_random(
        || {
            let gate = Gate::<1>::new();
            let inside = gate.enter(0, |_| false, |_, _| panic!("it is open"));
            gate.close(1, |_, _| panic!("it is open"));
            let mut left = 3;
            assert!(!gate.drain(|| {
                left -= 1;
                left > 0
            }));
            gate.open();
            drop(inside);
        },
        1,
    );
}
