//! The content hash against field arithmetic, bit by bit, and against other keys.
use crate::common;
use canvas_core::swap::hash::{Hash, PageHash, portable, same};
use canvas_testing::random::{scaled, sized};
use canvas_types::{PAGE_SIZE, PageBuf};
use proptest::prelude::*;

fn hash(page: &PageBuf, key: &PageBuf) -> Hash {
    PageHash::new(key, portable).of(page)
}

/// a * b modulo x^128 + x^7 + x^2 + x + 1.
fn times(mut a: u128, mut b: u128) -> u128 {
    let mut product = 0;
    while b != 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a = a << 1 ^ if a >> 127 == 1 { 0x87 } else { 0 };
        b >>= 1;
    }
    product
}

/// The definition in the module's documentation.
fn by_definition(page: &PageBuf, key: &PageBuf) -> Hash {
    let keyed: Vec<u128> = page
        .chunks(16)
        .zip(key.chunks(16))
        .map(|(m, k)| [m, k].map(|b| u128::from_le_bytes(b.try_into().unwrap())))
        .map(|[m, k]| m ^ k)
        .collect();
    let pairs = (0..keyed.len()).filter(|i| i % 8 < 4);
    let sum = pairs.fold(0, |sum, i| sum ^ times(keyed[i], keyed[i + 4]));
    sum.to_le_bytes()
}

fn page_from(words: &[(usize, u64)], pattern: u64) -> PageBuf {
    let mut page = core::array::from_fn(|i| pattern.to_le_bytes()[i % 8]);
    for (at, word) in words {
        page[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    page
}

#[test]
fn is_the_sum_of_products_in_the_field() {
    let part = || {
        (
            prop::collection::vec((0..PAGE_SIZE / 8, any::<u64>()), 0..40),
            prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        )
    };
    common::runner(300)
        .run(&(part(), part()), |((page, p), (key, k))| {
            let (page, key) = (page_from(&page, p), page_from(&key, k));
            prop_assert_eq!(hash(&page, &key), by_definition(&page, &key));
            Ok(())
        })
        .unwrap();
}

/// Computed by a program in another language from the definition: the hash must not change by accident.
#[test]
fn known_answers() {
    let key = noise(1);
    let mut one_bit = [0; PAGE_SIZE];
    one_bit[PAGE_SIZE - 1] = 0x80;
    for (page, want) in [
        ([0; PAGE_SIZE], 0x416a_aa30_8dab_07b1_9a7e_840b_a2df_78fa),
        ([0xff; PAGE_SIZE], 0x12ac_3504_fc10_2f3b_0974_2e1b_d8f9_2703),
        (noise(2), 0x4aa1_32f8_68ae_6b5c_7cff_9c21_b446_1a8d),
        (one_bit, 0x3f9f_a5c5_f4e5_ac73_be41_1f9b_ee1f_8f43),
        (key, 0),
    ] {
        let got = hash(&page, &key);
        assert_eq!(u128::from_be_bytes(got), want, "{got:02x?}");
    }
}

#[test]
fn any_flipped_bit_changes_it() {
    let mut page = page_from(&[(7, 1), (100, u64::MAX)], 0x0123_4567_89ab_cdef);
    let key = page_from(&[(3, 77), (300, 5)], 0xfedc_ba98_0246_8ace);
    // This must not hold under any key: where a pair's other block equals the key's, its own bytes count for nothing.
    let whole = hash(&page, &key);
    let step = sized(7 / scaled(1).min(7) as usize, 1009);
    for bit in (0..PAGE_SIZE * 8).step_by(step) {
        page[bit / 8] ^= 1 << (bit % 8);
        assert!(!same(&hash(&page, &key), &whole), "bit {bit}");
        page[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(same(&hash(&page, &key), &whole));
}

/// An attacker who knows a key can make any number of pages with one hash. Under another key they are nothing special.
#[test]
fn pages_that_are_made_for_one_key_differ_under_another() {
    common::runner(100)
        .run(
            &(any::<u64>(), any::<u64>(), 0..128usize, 1..u64::MAX),
            |(known, other, pair, change)| {
                prop_assume!(known != other);
                let (known, other) = (noise(known), noise(other));
                let block = pair / 4 * 8 + pair % 4;
                let mut page = noise(!change);
                let (at, partner) = (block * 16, (block + 4) * 16);
                page[at..at + 16].copy_from_slice(&known[at..at + 16]);
                let mut changed = page;
                for (byte, c) in changed[partner..].iter_mut().zip(change.to_le_bytes()) {
                    *byte ^= c;
                }
                prop_assert_eq!(hash(&page, &known), hash(&changed, &known));
                prop_assert_ne!(hash(&page, &other), hash(&changed, &other));
                Ok(())
            },
        )
        .unwrap();
}

/// A page of noise.
fn noise(mut state: u64) -> PageBuf {
    core::array::from_fn(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    })
}

#[test]
fn equal_is_all_bytes_equal() {
    let a: Hash = core::array::from_fn(|i| i as u8);
    assert!(same(&a, &a));
    for bit in 0..128 {
        let mut b = a;
        b[bit / 8] ^= 1 << (bit % 8);
        assert!(!same(&a, &b) && !same(&b, &a));
    }
}
