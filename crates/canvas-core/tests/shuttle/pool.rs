//! The allocators under shuttle's scheduler: run with `--features shuttle`.

use canvas_core::swap::classes::*;
use canvas_core::swap::entry::{EntryTable, Record};
use canvas_core::swap::slots::*;
use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering, Threads};
use shuttle::sync::Arc;
use shuttle::thread;
use std::cell::Cell;

fn no_yield() {}

const THREADS: Threads = Threads {
    yield_now: no_yield,
    number: || THREAD.with(Cell::get),
};

shuttle::thread_local! {
    /// Which magazine a thread uses.
    static THREAD: Cell<usize> = Cell::new(0);
}

/// Shuttle's atomics cannot outlive an execution, and the arrays must outlive the threads.
fn leak_words(n: usize) -> &'static [AtomicU64] {
    Vec::leak((0..n).map(|_| AtomicU64::new(0)).collect())
}

fn check(quick: u32, f: impl Fn() + Send + Sync + 'static) {
    let iterations = canvas_testing::random::scaled(quick) as usize;
    // Shuttle prints the schedule of a failing run; random and PCT look for different bugs.
    let f = std::sync::Arc::new(f);
    let g = f.clone();
    shuttle::check_random(move || g(), iterations);
    shuttle::check_pct(move || f(), iterations, 3);
}

#[test]
fn an_entry_has_one_owner() {
    check(200, || {
        let table = Arc::new(EntryTable::new(leak_words(5), THREADS));
        let owners: Arc<Vec<AtomicU32>> = Arc::new((0..5).map(|_| AtomicU32::new(0)).collect());
        let threads: Vec<_> = (1..=3u32)
            .map(|me| {
                let (table, owners) = (table.clone(), owners.clone());
                thread::spawn(move || {
                    // Two threads share a magazine.
                    THREAD.with(|t| t.set(me as usize / 2));
                    for round in 0..3u64 {
                        let Some(a) = table.alloc() else { continue };
                        let e = a.entry;
                        assert_eq!(
                            owners[e.0 as usize].swap(me, Ordering::SeqCst),
                            0,
                            "two owners"
                        );
                        assert_eq!(table.get(e), Record::Empty);
                        let mine = Record::SameFilled(me as u64 * 100 + round);
                        assert!(table.set(e, mine));
                        thread::yield_now();
                        assert_eq!(table.get(e), mine);
                        assert_eq!(owners[e.0 as usize].swap(0, Ordering::SeqCst), me);
                        assert!(table.free(e));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(table.live(), 0);
        // The free list is complete: all four can be allocated, each once.
        let mut all: Vec<u32> = (0..4).map(|_| table.alloc().unwrap().entry.0).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
        assert_eq!(table.alloc(), None);
        assert!(!table.free(SwapEntry::NONE));
    });
}

struct Budget(AtomicI64);

impl PoolBudget for Budget {
    fn charge(&self, bytes: i64) -> bool {
        // Two slabs and no more.
        let now = self.0.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if bytes > 0 && now > 2 * SLAB_CHARGE_BYTES {
            self.0.fetch_sub(bytes, Ordering::SeqCst);
            return false;
        }
        true
    }
}

struct Memory<'m> {
    owners: &'m [AtomicU32],
}

impl SlabRelease for Memory<'_> {
    fn release_range(&self, off: usize, len: usize) {
        for o in &self.owners[off / PAGE..(off + len) / PAGE] {
            assert_eq!(o.load(Ordering::SeqCst), 0, "released a slab in use");
        }
        thread::yield_now();
        for o in &self.owners[off / PAGE..(off + len) / PAGE] {
            assert_eq!(
                o.load(Ordering::SeqCst),
                0,
                "handed out a slab while it was being released"
            );
        }
    }
}

const PAGE: usize = 4096;
const SLABS: usize = 3;

#[test]
fn a_slot_has_one_owner_and_slabs_come_back() {
    check(100, || {
        let pool = Arc::new(SlotPool::new(leak_words(SLABS * SLAB_WORDS), &[], no_yield));
        let budget = Arc::new(Budget(AtomicI64::new(0)));
        let owners: Arc<Vec<AtomicU32>> =
            Arc::new((0..SLABS * RAW_SLOTS).map(|_| AtomicU32::new(0)).collect());
        let threads: Vec<_> = (1..=3u32)
            .map(|me| {
                let (pool, budget, owners) = (pool.clone(), budget.clone(), owners.clone());
                thread::spawn(move || {
                    let memory = Memory { owners: &owners };
                    // Threads 1 and 2 share a class, 3 has another: all compete for two slabs.
                    let class = if me == 3 { RAW_CLASS - 4 } else { RAW_CLASS };
                    for _ in 0..2 {
                        let held: Vec<_> =
                            (0..3).filter_map(|_| pool.alloc(class, &*budget)).collect();
                        for s in &held {
                            let first = &owners[s.offset() / PAGE];
                            if class == RAW_CLASS {
                                assert_eq!(first.swap(me, Ordering::SeqCst), 0, "two owners");
                            }
                        }
                        if me == 2 {
                            pool.trim(&*budget, &memory);
                        }
                        for s in held {
                            if class == RAW_CLASS {
                                assert_eq!(owners[s.offset() / PAGE].swap(0, Ordering::SeqCst), me);
                            }
                            assert!(pool.free(s, &*budget, &memory));
                        }
                    }
                    if me == 1 {
                        pool.trim(&*budget, &memory);
                    }
                })
            })
            .collect();
        // A fork may come at any moment, and must find a consistent state.
        {
            let _still = pool.fork_guard();
            let charged = (pool.slabs_in_use() + pool.slabs_empty()) as i64 * SLAB_CHARGE_BYTES;
            assert_eq!(pool.charged_bytes(), charged);
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(pool.slabs_in_use(), 0);
        pool.trim(&*budget, &Memory { owners: &owners });
        assert_eq!(
            (pool.charged_bytes(), budget.0.load(Ordering::SeqCst)),
            (0, 0)
        );
        // Nothing was lost meanwhile.
        assert_eq!(
            (0..2 * RAW_SLOTS)
                .filter_map(|_| pool.alloc(RAW_CLASS, &*budget))
                .count(),
            2 * RAW_SLOTS
        );
        assert_eq!(pool.alloc(RAW_CLASS, &*budget), None);
    });
}
