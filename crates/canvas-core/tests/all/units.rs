//! The units of the shared store against a plain list of booleans.

use std::sync::atomic::{AtomicU32, Ordering};

use canvas_core::swap::units::{FarCopy, PAGE_UNITS, StoreRef, UNITS_MAX, Units, units_of};
use canvas_types::ExtentRef;
use proptest::prelude::*;

const PAGES: usize = 5;

proptest! {
    #[test]
    fn takes_what_is_free(ops in proptest::collection::vec((any::<bool>(), 1..=UNITS_MAX, any::<usize>()), 1..200)) {
        let words: Vec<AtomicU32> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
        let next = AtomicU32::new(0);
        let units = Units { used: &words, next: &next };
        let mut oracle = [false; PAGES * PAGE_UNITS];
        let mut held: Vec<(usize, usize)> = Vec::new();
        for (take, n, which) in ops {
            if take || held.is_empty() {
                let fits = oracle.windows(n).any(|w| w.iter().all(|u| !u));
                let got = units.take(n, PAGES);
                prop_assert_eq!(got.is_some(), fits);
                if let Some(unit) = got {
                    let unit = unit as usize;
                    prop_assert!(oracle[unit..unit + n].iter().all(|u| !u));
                    oracle[unit..unit + n].fill(true);
                    held.push((unit, n));
                }
            } else {
                let (unit, n) = held.swap_remove(which % held.len());
                oracle[unit..unit + n].fill(false);
                let mut empty = Vec::new();
                units.free(unit as u32, n, |page| empty.push(page));
                let want: Vec<usize> = (unit / PAGE_UNITS..=(unit + n - 1) / PAGE_UNITS)
                    .filter(|p| oracle[p * PAGE_UNITS..(p + 1) * PAGE_UNITS].iter().all(|u| !u))
                    .collect();
                prop_assert_eq!(empty, want);
            }
            for (i, used) in oracle.iter().enumerate() {
                let word = words[i / PAGE_UNITS].load(Ordering::Relaxed);
                prop_assert_eq!(word >> (i % PAGE_UNITS) & 1 == 1, *used);
            }
        }
        // Rebuilt from what is held, they are the same.
        let before: Vec<u32> = words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        units.forget(PAGES);
        for (unit, n) in held {
            units.mark(unit as u32, n);
        }
        let after: Vec<u32> = words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn places_are_numbers(unit in 0u32..1 << 31, bytes in 1usize..=4096) {
        let place = StoreRef { unit, bytes };
        prop_assert!(place.number() > 0 && place.number() < 1 << 44);
        prop_assert_eq!(StoreRef::of(place.number()), place);
        let copy = FarCopy::Stored(place);
        prop_assert_eq!((copy.number(), FarCopy::of(copy.number())), (place.number(), copy));
    }

    #[test]
    fn places_beyond_the_pool_are_other_numbers(extent in 0u32..1 << 26, offset in 0u32..1 << 11, len in 1u16..=4096) {
        let copy = FarCopy::InExtent(ExtentRef { extent, offset: offset * 16, len });
        prop_assert!(copy.number() >= 1 << 44 && copy.number() < 1 << 50);
        prop_assert_eq!(FarCopy::of(copy.number()), copy);
    }
}

#[test]
fn the_longest_record_is_a_page_and_its_header() {
    assert_eq!(units_of(4096), UNITS_MAX);
    assert_eq!(units_of(1), 1);
    assert_eq!(units_of(112), 1);
    assert_eq!(units_of(113), 2);
}
