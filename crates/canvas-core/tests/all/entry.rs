//! The entry table against a naive model.
use crate::common;
use canvas_core::swap::entry::{BATCH, EntryTable, Record};
use canvas_core::swap::slots::SlotId;
use canvas_types::sync::{Ordering, Threads};
use canvas_types::{ExtentRef, SwapEntry};
use proptest::prelude::*;
use std::collections::BTreeMap;

std::thread_local! {
    static THREAD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

const THREADS: Threads = Threads {
    yield_now: || {},
    number: || THREAD.get(),
};

#[derive(Clone, Debug)]
enum Op {
    Alloc,
    /// Another thread continues.
    Thread(usize),
    Free(prop::sample::Index),
    Set(prop::sample::Index, Record),
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        Just(Record::Empty),
        any::<u64>().prop_map(Record::SameFilled),
        any::<i32>().prop_map(|p| Record::SameFilled(p as i64 as u64)),
        any::<u32>().prop_map(|p| Record::SameFilled(p as u64 | (p as u64) << 32)),
        any::<f32>().prop_map(|p| Record::SameFilled((p as f64).to_bits())),
        (any::<u32>(), 0..2048u32, 0..=4096u16).prop_map(|(extent, unit, len)| {
            Record::InFarTier(ExtentRef {
                extent,
                offset: unit * 16,
                len,
            })
        }),
        (0..1u64 << 40, 0..=4096u16, any::<bool>()).prop_map(|(s, len, home)| Record::Stored {
            slot: SlotId(s),
            len,
            home
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Alloc),
        2 => (0usize..20).prop_map(Op::Thread),
        3 => any::<prop::sample::Index>().prop_map(Op::Free),
        4 => (any::<prop::sample::Index>(), record()).prop_map(|(i, r)| Op::Set(i, r)),
    ]
}

#[test]
fn behaves_like_a_map() {
    common::runner(200)
        .run(&prop::collection::vec(op(), 1..400), |ops| {
            let words = common::words(50);
            let table = EntryTable::new(&words, THREADS);
            let mut model: BTreeMap<u32, Record> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Alloc => match table.alloc() {
                        Some(a) => {
                            prop_assert!(model.len() < 49 && a.entry.is_some());
                            prop_assert_eq!(model.insert(a.entry.0, Record::Empty), None);
                        }
                        None => prop_assert_eq!(model.len(), 49),
                    },
                    Op::Thread(n) => THREAD.set(n),
                    Op::Free(i) => {
                        // Any index, allocated or not, and one past the end.
                        let e = i.index(51) as u32;
                        prop_assert_eq!(table.free(SwapEntry(e)), model.remove(&e).is_some());
                    }
                    Op::Set(i, r) if !model.is_empty() => {
                        let e = *model.keys().nth(i.index(model.len())).unwrap();
                        if table.set(SwapEntry(e), r) {
                            model.insert(e, r);
                        } else {
                            prop_assert!(
                                matches!(r, Record::SameFilled(p) if !Record::pattern_fits(p))
                            );
                        }
                    }
                    Op::Set(..) => {}
                }
                prop_assert_eq!(table.live(), model.len() as u64);
            }
            for e in 0..51 {
                prop_assert_eq!(
                    table.get(SwapEntry(e)),
                    model.get(&e).copied().unwrap_or(Record::Free)
                );
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn touches_only_what_it_hands_out() {
    let words = common::words(1000);
    let table = EntryTable::new(&words, THREADS);
    for _ in 0..100 {
        let entries: Vec<_> = (0..10).map(|_| table.alloc().unwrap().entry).collect();
        entries.into_iter().for_each(|e| assert!(table.free(e)));
    }
    assert_eq!(table.high_water(), BATCH as u64);
    assert!(
        words[BATCH + 1..]
            .iter()
            .all(|w| w.load(Ordering::Relaxed) == 0)
    );
    assert_eq!(words[0].load(Ordering::Relaxed), 0);
}

#[test]
fn touches_only_what_is_allowed() {
    let words = common::words(1000);
    let table = EntryTable::new(&words, THREADS);
    let all = || std::iter::from_fn(|| table.alloc()).count();
    table.allow(0);
    assert_eq!(all(), 0);
    table.allow(101);
    assert_eq!(all(), 100);
    assert!(words[101..].iter().all(|w| w.load(Ordering::Relaxed) == 0));
    table.allow(2000);
    assert_eq!(all(), 899);
}

#[test]
fn patterns_that_must_fit_do() {
    let fit = [
        0,
        1,
        u64::MAX,
        i64::MIN as u64 >> 4,
        0x5a5a_5a5a_5a5a_5a5a,
        1.0f64.to_bits(),
        0xdead_beef_dead_beef,
    ];
    assert!(fit.iter().all(|&p| Record::pattern_fits(p)));
    assert!(!Record::pattern_fits(0x4123_4567_89ab_cdef));
}

#[test]
fn one_of_a_batch_takes_the_lock() {
    let words = common::words(1000);
    let table = EntryTable::new(&words, THREADS);
    let all: Vec<_> = (0..160).map(|_| table.alloc().unwrap()).collect();
    let locked = all.iter().filter(|a| a.locked).count();
    assert_eq!(locked, 160 / BATCH);
    // A thread gets back without the lock what it freed; a thread that has freed nothing does not.
    assert!(table.free(all[0].entry));
    THREAD.set(1);
    assert!(table.alloc().unwrap().locked);
    THREAD.set(0);
    let again = table.alloc().unwrap();
    assert_eq!((again.entry, again.locked), (all[0].entry, false));
}

#[test]
fn no_entry_is_out_of_reach_in_another_magazine() {
    let words = common::words(31);
    let table = EntryTable::new(&words, THREADS);
    for n in 0..30 {
        THREAD.set(n);
        assert!(table.alloc().is_some(), "after {n}");
    }
    assert!(table.alloc().is_none());
    // All free entries are in one magazine, and count as free.
    assert!((1..=10).all(|e| table.free(SwapEntry(e))));
    assert!(!table.free(SwapEntry(1)), "freed twice");
    assert_eq!(table.live(), 20);
    for n in 0..10 {
        THREAD.set(n);
        assert!(table.alloc().is_some());
    }
    assert!(table.alloc().is_none());
    THREAD.set(0);
}

#[test]
fn chains_of_any_length_come_back_whole() {
    let words = common::words(2000);
    let table = EntryTable::new(&words, THREADS);
    let mut all: Vec<u32> = (0..1999).map(|_| table.alloc().unwrap().entry.0).collect();
    assert!(table.alloc().is_none());
    all.sort_unstable();
    assert_eq!(all, (1..2000).collect::<Vec<_>>());
    // Numbers of all sizes are heads of chains and follow one.
    for (i, e) in all.iter().rev().enumerate() {
        THREAD.set(i / 40);
        assert!(table.free(SwapEntry(*e)));
        assert_eq!(table.live(), 1998 - i as u64);
        assert_eq!(table.get(SwapEntry(*e)), Record::Free);
    }
    THREAD.set(0);
    let mut again: Vec<u32> = (0..1999).map(|_| table.alloc().unwrap().entry.0).collect();
    assert!(table.alloc().is_none());
    again.sort_unstable();
    assert_eq!(again, all);
}
