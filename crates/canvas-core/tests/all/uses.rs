//! Extents of shared pages against a plain list of counts.

use std::sync::atomic::{AtomicU8, AtomicU32};

use canvas_core::swap::uses::Uses;
use proptest::prelude::*;

const SLAB: u32 = 6;
const SLABS: u32 = 3;

proptest! {
    #[test]
    fn an_extent_is_free_when_nothing_names_it(ops in proptest::collection::vec((0u8..3, any::<u32>()), 1..200)) {
        let counts: Vec<AtomicU8> = (0..SLAB * SLABS).map(|_| AtomicU8::new(0)).collect();
        let next = AtomicU32::new(0);
        let uses = Uses { counts: &counts, next: &next, slab_extents: SLAB };
        let mut oracle = vec![0u32; (SLAB * SLABS) as usize];
        for (op, which) in ops {
            let held: Vec<u32> = (0..SLAB * SLABS).filter(|e| oracle[*e as usize] > 0).collect();
            let slab = which % SLABS;
            let of = |slab: u32| (slab * SLAB) as usize..((slab + 1) * SLAB) as usize;
            if op == 0 || held.is_empty() {
                let got = uses.take(slab);
                prop_assert_eq!(got.is_some(), oracle[of(slab)].contains(&0));
                if let Some(extent) = got {
                    prop_assert_eq!((uses.slab_of(extent), oracle[extent as usize]), (slab, 0));
                    prop_assert_eq!(uses.current_slab(), slab);
                    oracle[extent as usize] = 1;
                }
            } else {
                let extent = held[which as usize % held.len()];
                let count = &mut oracle[extent as usize];
                if op == 1 && *count < 129 {
                    uses.hold(extent);
                    *count += 1;
                } else {
                    *count -= 1;
                    prop_assert_eq!(uses.unhold(extent), *count == 0);
                }
            }
            for slab in 0..SLABS {
                prop_assert_eq!(uses.is_empty(slab), oracle[of(slab)].iter().all(|c| *c == 0));
            }
        }
        for slab in 0..SLABS {
            uses.forget(slab);
            prop_assert!(uses.is_empty(slab));
        }
    }
}

#[test]
fn what_no_slab_has_is_nowhere() {
    let counts = [const { AtomicU8::new(0) }; 6];
    let next = AtomicU32::new(u32::MAX);
    let uses = Uses {
        counts: &counts,
        next: &next,
        slab_extents: SLAB,
    };
    assert_eq!(uses.take(1), None);
    uses.hold(6);
    assert!(!uses.unhold(6));
    assert!(uses.is_empty(7), "nothing is there");
    assert_eq!(uses.take(0), Some(0));
}
