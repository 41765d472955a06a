//! The slot allocator against a naive model; giving memory back; waste of the classes.
use crate::common;
use canvas_core::swap::classes::*;
use canvas_core::swap::slots::*;
use canvas_types::sync::{AtomicI64, Ordering};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

fn no_yield() {}

struct Budget {
    used: AtomicI64,
    limit: i64,
}

impl PoolBudget for Budget {
    fn charge(&self, bytes: i64) -> bool {
        assert_eq!(bytes % SLAB_CHARGE_BYTES, 0);
        let now = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes > 0 && now > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// Records which slabs were given back.
#[derive(Default)]
struct Released(Mutex<Vec<(usize, usize)>>);

impl SlabRelease for Released {
    fn release_range(&self, off: usize, len: usize) {
        self.0.lock().unwrap().push((off, len));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    Free(prop::sample::Index),
    FreeMany(prop::sample::Index, usize),
    FreeWrong(u64),
    Trim,
}

/// The invariants between any two operations.
fn hold(
    pool: &SlotPool<'_>,
    live: &BTreeMap<usize, SlotId>,
    budget: &Budget,
    released: &Released,
) -> Result<(), TestCaseError> {
    for (off, len) in released.0.lock().unwrap().drain(..) {
        prop_assert!(off % SLAB_BYTES == 0 && len % SLAB_BYTES == 0 && len > 0);
        prop_assert_eq!(live.range(off..off + len).next(), None);
    }
    let slabs: BTreeSet<_> = live.values().map(|s| s.slab()).collect();
    prop_assert_eq!(pool.slabs_in_use(), slabs.len() as u64);
    prop_assert!(pool.slabs_empty() <= EMPTY_KEEP as u64);
    let charged = (pool.slabs_in_use() + pool.slabs_empty()) as i64 * SLAB_CHARGE_BYTES;
    prop_assert_eq!(pool.charged_bytes(), charged);
    prop_assert_eq!(budget.used.load(Ordering::Relaxed), charged);
    Ok(())
}

/// There is really no room: no empty slab is left, no slab may be charged, and no slab of this or a larger class has a
/// free slot.
fn is_full_for(
    pool: &SlotPool<'_>,
    live: &BTreeMap<usize, SlotId>,
    budget: &Budget,
    want: usize,
) -> Result<(), TestCaseError> {
    prop_assert!(budget.used.load(Ordering::Relaxed) + SLAB_CHARGE_BYTES > budget.limit);
    prop_assert_eq!(pool.slabs_empty(), 0);
    for class in want..CLASSES {
        let mine: Vec<_> = live.values().filter(|s| s.class() == class).collect();
        let slabs: BTreeSet<_> = mine.iter().map(|s| s.slab()).collect();
        prop_assert_eq!(mine.len(), slabs.len() * slots_per_slab(class));
    }
    Ok(())
}

#[test]
#[cfg_attr(miri, ignore = "few steps fill no pool")]
fn behaves_like_a_set_of_intervals() {
    let op = prop_oneof![
        8 => (0..CLASSES).prop_map(Op::Alloc),
        8 => (20..CLASSES).prop_map(Op::Alloc),
        6 => any::<prop::sample::Index>().prop_map(Op::Free),
        1 => (any::<prop::sample::Index>(), 1..200usize).prop_map(|(i, n)| Op::FreeMany(i, n)),
        1 => (0..1u64 << 41).prop_map(Op::FreeWrong),
        1 => Just(Op::Trim),
    ];
    let (larger_total, nones_total) = (Cell::new(0), Cell::new(0));
    common::runner(100)
        .run(
            &(2..32i64, prop::collection::vec(op, 1..1500)),
            |(limit, ops)| {
                let (mut larger, mut nones) = (0, 0);
                const SLABS: usize = 40;
                let meta = common::words(SLABS * SLAB_WORDS);
                let class_bytes: Vec<AtomicI64> = (0..32).map(|_| AtomicI64::new(0)).collect();
                let budget = Budget {
                    used: AtomicI64::new(0),
                    limit: limit * SLAB_CHARGE_BYTES,
                };
                let released = Released::default();
                let pool = SlotPool::new(&meta, &class_bytes, no_yield);
                // Start offset -> slot: intervals in use, and their order.
                let mut live: BTreeMap<usize, SlotId> = BTreeMap::new();
                for op in ops {
                    match op {
                        Op::Alloc(want) => match pool
                            .alloc(want, &budget)
                            .or_else(|| pool.alloc_larger(want))
                        {
                            Some(slot) => {
                                let class = slot.class();
                                prop_assert!(class >= want);
                                if class != want {
                                    larger += 1;
                                }
                                let (start, end) = (slot.offset(), slot.offset() + slot.bytes());
                                prop_assert!(end <= SLABS * SLAB_BYTES);
                                prop_assert_eq!(start / SLAB_BYTES, (end - 1) / SLAB_BYTES);
                                let before = live.range(..end).next_back();
                                prop_assert!(before.is_none_or(|(s, b)| s + b.bytes() <= start));
                                live.insert(start, slot);
                            }
                            None => {
                                is_full_for(&pool, &live, &budget, want)?;
                                nones += 1;
                            }
                        },
                        Op::Free(i) if !live.is_empty() => {
                            let key = *live.keys().nth(i.index(live.len())).unwrap();
                            let slot = live.remove(&key).unwrap();
                            prop_assert!(pool.free(slot, &budget, &released));
                            prop_assert!(!pool.free(slot, &budget, &released), "double free");
                        }
                        Op::FreeMany(i, n) if !live.is_empty() => {
                            let from = i.index(live.len());
                            let keys: Vec<_> = live.keys().skip(from).take(n).copied().collect();
                            for key in keys {
                                let slot = live.remove(&key).unwrap();
                                prop_assert!(pool.free(slot, &budget, &released));
                            }
                        }
                        Op::FreeWrong(id) => {
                            let slot = SlotId(id);
                            if !live.values().any(|&s| s == slot) {
                                prop_assert!(!pool.free(slot, &budget, &released));
                            }
                        }
                        Op::Trim => {
                            pool.trim(&budget, &released);
                            prop_assert_eq!(pool.slabs_empty(), 0);
                        }
                        _ => {}
                    }
                    hold(&pool, &live, &budget, &released)?;
                }
                larger_total.set(larger_total.get() + larger);
                nones_total.set(nones_total.get() + nones);
                for class in 0..CLASSES {
                    let n = live.values().filter(|s| s.class() == class).count();
                    prop_assert_eq!(pool.class_live(class), n as u64);
                    prop_assert_eq!(
                        class_bytes[class].load(Ordering::Relaxed),
                        (n * CLASS_BYTES[class] as usize) as i64
                    );
                }
                Ok(())
            },
        )
        .unwrap();
    // The paths that only a full pool takes were taken.
    assert!(larger_total.get() > 0, "never a larger slot");
    assert!(nones_total.get() > 0, "never full");
}

#[test]
fn all_comes_back() {
    const SLABS: usize = 200;
    let meta = common::words(SLABS * SLAB_WORDS);
    let budget = Budget {
        used: AtomicI64::new(0),
        limit: i64::MAX,
    };
    let released = Released::default();
    let pool = SlotPool::new(&meta, &[], no_yield);
    for round in 0..3 {
        let mut slots = Vec::new();
        for i in 0.. {
            match pool.alloc(i * 7 % CLASSES, &budget) {
                Some(s) => slots.push(s),
                None => break,
            }
        }
        assert_eq!(pool.charged_bytes(), SLABS as i64 * SLAB_CHARGE_BYTES);
        // Free in an order that mixes slabs.
        slots.sort_by_key(|s| (s.0.wrapping_mul(0x9e37_79b9_7f4a_7c15), round));
        for s in slots {
            assert!(pool.free(s, &budget, &released));
        }
        assert_eq!(pool.slabs_in_use(), 0);
        assert!(pool.slabs_empty() <= EMPTY_KEEP as u64);
        pool.trim(&budget, &released);
        assert_eq!(
            (pool.charged_bytes(), budget.used.load(Ordering::Relaxed)),
            (0, 0)
        );
        let back: usize = released
            .0
            .lock()
            .unwrap()
            .drain(..)
            .map(|(_, len)| len)
            .sum();
        assert_eq!(back, SLABS * SLAB_BYTES);
    }
}

#[test]
fn a_batch_of_neighbours_is_one_range() {
    let meta = common::words(64 * SLAB_WORDS);
    let budget = Budget {
        used: AtomicI64::new(0),
        limit: i64::MAX,
    };
    let released = Released::default();
    let pool = SlotPool::new(&meta, &[], no_yield);
    let slots: Vec<_> = (0..10 * RAW_SLOTS)
        .map(|_| pool.alloc(RAW_CLASS, &budget).unwrap())
        .collect();
    slots
        .into_iter()
        .for_each(|s| assert!(pool.free(s, &budget, &released)));
    pool.trim(&budget, &released);
    assert_eq!(*released.0.lock().unwrap(), [(0, 10 * SLAB_BYTES)]);
}

#[test]
fn raw_headers_lie_behind_the_slabs_and_apart() {
    const SLABS: usize = 3;
    let meta = common::words(SLABS * SLAB_WORDS);
    let budget = Budget {
        used: AtomicI64::new(0),
        limit: i64::MAX,
    };
    let pool = SlotPool::new(&meta, &[], no_yield);
    let offsets: BTreeSet<_> = (0..SLABS * RAW_SLOTS)
        .map(|_| pool.raw_header_offset(pool.alloc(RAW_CLASS, &budget).unwrap()))
        .collect();
    let want: BTreeSet<_> = (SLABS * SLAB_BYTES..region_bytes(SLABS))
        .step_by(RAW_HEADER_BYTES)
        .collect();
    assert_eq!(offsets, want);
}

#[test]
fn class_for_is_the_smallest_that_fits() {
    for bytes in 0..=4096usize {
        let want = CLASS_BYTES
            .iter()
            .position(|&c| c as usize >= bytes)
            .unwrap();
        assert_eq!(class_for(bytes), want, "{bytes}");
    }
}

#[test]
fn pages_go_to_the_fullest_slab() {
    let meta = common::words(8 * SLAB_WORDS);
    let budget = Budget {
        used: AtomicI64::new(0),
        limit: i64::MAX,
    };
    let released = Released::default();
    let pool = SlotPool::new(&meta, &[], no_yield);
    let slots: Vec<_> = (0..3 * RAW_SLOTS)
        .map(|_| pool.alloc(RAW_CLASS, &budget).unwrap())
        .collect();
    // Leave 2, 7 and 4 pages in the three slabs, in any order of freeing.
    for (slab, n) in [(1, 1), (0, 6), (2, 4)] {
        for s in slots.iter().filter(|s| s.slab() == slab).take(n) {
            assert!(pool.free(*s, &budget, &released));
        }
    }
    let into: Vec<_> = (0..11)
        .map(|_| pool.alloc(RAW_CLASS, &budget).unwrap().slab())
        .collect();
    assert_eq!(into, [1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_id_of_another_class_frees_nothing() {
    let meta = common::words(8 * SLAB_WORDS);
    let budget = Budget {
        used: AtomicI64::new(0),
        limit: i64::MAX,
    };
    let released = Released::default();
    let pool = SlotPool::new(&meta, &[], no_yield);
    let slot = pool.alloc(3, &budget).unwrap();
    for class in (0..32).filter(|&c| c != 3) {
        let wrong = SlotId(slot.0 ^ ((3 ^ class) << 35));
        assert_eq!(
            (wrong.class() as u64, wrong.slab(), wrong.index()),
            (class, slot.slab(), slot.index())
        );
        assert!(!pool.free(wrong, &budget, &released));
    }
    assert_eq!(pool.class_live(3), 1);
    assert!(pool.free(slot, &budget, &released));
}

/// Opens slabs as long as there is memory for them.
struct Opener {
    opened: Cell<u32>,
    most: Cell<u32>,
}

impl PoolBudget for Opener {
    fn charge(&self, _bytes: i64) -> bool {
        true
    }
    fn open_slab(&self, slab: u32) -> bool {
        assert_eq!(slab, self.opened.get(), "each once, lowest first");
        let may = slab < self.most.get();
        self.opened.set(slab + u32::from(may));
        may
    }
}

#[test]
fn a_slab_is_opened_before_its_first_use() {
    let words = common::words(8 * SLAB_WORDS);
    let pool = SlotPool::new(&words, &[], no_yield);
    let budget = Opener {
        opened: Cell::new(0),
        most: Cell::new(2),
    };
    let fill = || -> Vec<_> { std::iter::from_fn(|| pool.alloc(RAW_CLASS, &budget)).collect() };
    let slots = fill();
    assert_eq!(slots.len(), 2 * RAW_SLOTS);
    assert!(
        words[2 * SLAB_WORDS..]
            .iter()
            .all(|w| w.load(Ordering::Relaxed) == 0)
    );
    // What was open once is used again.
    assert!(
        slots
            .iter()
            .all(|s| pool.free(*s, &budget, &Released::default()))
    );
    pool.trim(&budget, &Released::default());
    assert_eq!(fill().len(), 2 * RAW_SLOTS);
    budget.most.set(3);
    assert_eq!(fill().len(), RAW_SLOTS);
    assert_eq!(pool.charged_bytes(), 3 * SLAB_CHARGE_BYTES);
}
