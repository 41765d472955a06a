//! The entry table against a naive oracle.
#![cfg(not(feature = "shuttle"))]

mod common;

use canvas_swap::entry::{EntryTable, Record};
use canvas_swap::slots::SlotId;
use canvas_types::sync::Ordering;
use canvas_types::{DeepPlace, SwapEntry};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn no_yield() {}

#[derive(Clone, Debug)]
enum Op {
    Alloc,
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
            Record::Deep(DeepPlace {
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
        3 => any::<prop::sample::Index>().prop_map(Op::Free),
        4 => (any::<prop::sample::Index>(), record()).prop_map(|(i, r)| Op::Set(i, r)),
    ]
}

#[test]
fn behaves_like_a_map() {
    common::runner(200)
        .run(&prop::collection::vec(op(), 1..400), |ops| {
            let words = common::words(50);
            let table = EntryTable::new(&words, no_yield);
            let mut model: BTreeMap<u32, Record> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Alloc => match table.alloc() {
                        Some(e) => {
                            prop_assert!(model.len() < 49 && e.is_some());
                            prop_assert_eq!(model.insert(e.0, Record::Empty), None);
                        }
                        None => prop_assert_eq!(model.len(), 49),
                    },
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
    let table = EntryTable::new(&words, no_yield);
    for _ in 0..100 {
        let entries: Vec<_> = (0..10).map(|_| table.alloc().unwrap()).collect();
        entries.into_iter().for_each(|e| assert!(table.free(e)));
    }
    assert_eq!(table.high_water(), 10);
    assert!(words[11..].iter().all(|w| w.load(Ordering::Relaxed) == 0));
    assert_eq!(words[0].load(Ordering::Relaxed), 0);
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
