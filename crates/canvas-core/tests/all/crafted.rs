//! Pages crafted to be taken for others: a write must never go unnoticed.
//!
//! For XXH3-128 without a seed, whose secret is public, two contents with one hash can be constructed. Of each 8 bytes
//! it multiplies the halves, after XOR with the secret, and adds the product to one of its sums and the 8 bytes to
//! another. tests/c/crafted.c does this with a whole program.

use crate::pools::*;
use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::{Kind, Scratch};
use canvas_testing::random::{seed, sized};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};
use xxhash_rust::xxh3::xxh3_128;

/// XXH3_kSecret at 8k: XORed with the first word of stripe k.
const SECRET: [u64; 7] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
];
const LOW: u64 = 0xffff_ffff;

/// The first word of a stripe.
fn word(page: &mut PageBuf, stripe: usize) -> &mut [u8; 8] {
    page[64 * stripe..].first_chunk_mut().unwrap()
}

fn product(stripe: usize, word: u64) -> u64 {
    let keyed = word ^ SECRET[stripe];
    (keyed & LOW) * (keyed >> 32)
}

/// A page before and after a write: low halves like the secret's, so that products are zero, and what one high half
/// gains the other loses.
fn own_write(seed: u64) -> (PageBuf, PageBuf) {
    let mut rng = Rng(seed);
    let mut before = page_of(rng.next(), 2000);
    let highs = [rng.next() << 32, rng.next() << 32];
    let moved = (rng.next() | 1) << 32;
    for (stripe, high) in [5, 6].into_iter().zip(highs) {
        *word(&mut before, stripe) = (high | SECRET[stripe] & LOW).to_le_bytes();
    }
    let mut after = before;
    for (stripe, high) in [
        (5, highs[0].wrapping_add(moved)),
        (6, highs[1].wrapping_sub(moved)),
    ] {
        *word(&mut after, stripe) = (high | SECRET[stripe] & LOW).to_le_bytes();
    }
    (before, after)
}

/// A page before and after a known write of another party to its first word; four words of an attacker keep both sums
/// unchanged.
fn neighbours_write(seed: u64) -> (PageBuf, PageBuf) {
    let mut rng = Rng(seed);
    let mut before = page_of(rng.next(), 2000);
    let (old, new) = (rng.below(1 << 40), (1 << 40) + rng.below(1 << 40));
    *word(&mut before, 0) = old.to_le_bytes();
    let mut after = before;
    *word(&mut after, 0) = new.to_le_bytes();
    // As 1 * low and twice 2^31 * high.
    let products = product(0, old).wrapping_sub(product(0, new));
    let (low, high) = (products & LOW, products >> 32);
    let mut sum = old.wrapping_sub(new);
    for (stripe, x, y) in [(1, 1, low), (2, 1 << 31, high), (3, 1 << 31, high)] {
        let (was, is) = (SECRET[stripe], SECRET[stripe] ^ (y << 32 | x));
        *word(&mut before, stripe) = was.to_le_bytes();
        *word(&mut after, stripe) = is.to_le_bytes();
        sum = sum.wrapping_sub(is.wrapping_sub(was));
    }
    // Its product is zero by the high half before, and by the low half after.
    let was = SECRET[4] & !LOW | SECRET[4].wrapping_sub(sum) & LOW;
    *word(&mut before, 4) = was.to_le_bytes();
    *word(&mut after, 4) = was.wrapping_add(sum).to_le_bytes();
    (before, after)
}

fn pairs() -> Vec<(PageBuf, PageBuf)> {
    let seed = seed();
    let pairs: Vec<_> = (0..sized(50, 1))
        .flat_map(|i| [own_write(seed ^ i), neighbours_write(seed ^ i)])
        .collect();
    for (before, after) in &pairs {
        assert!(before != after);
        assert_eq!(xxh3_128(before), xxh3_128(after), "they are made well");
    }
    pairs
}

#[test]
fn a_changed_page_is_never_clean() {
    let pairs = pairs();
    let world = World::new(pairs.len(), 100, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let mut back = [0; PAGE_SIZE];
    for (before, after) in &pairs {
        let first = pool
            .store(SwapEntry::NONE, false, before, &mut scratch)
            .unwrap();
        let again = pool.store(first.entry, true, before, &mut scratch).unwrap();
        assert_eq!(again.kind, Kind::Clean);
        let changed = pool.store(first.entry, true, after, &mut scratch).unwrap();
        assert_ne!(changed.kind, Kind::Clean, "the write is lost");
        pool.load(changed.entry, &mut back, &mut scratch).unwrap();
        assert!(back == *after);
    }
}

#[test]
fn nor_is_one_whose_copy_lies_beyond_the_pool() {
    let pairs = pairs();
    let world = World::new(pairs.len(), 100, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let mut back = [0; PAGE_SIZE];
    for (extent, (before, after)) in pairs.iter().enumerate() {
        let entry = pool
            .store(SwapEntry::NONE, false, before, &mut scratch)
            .unwrap()
            .entry;
        let len = pool.stored_len(entry).unwrap();
        let mut stored = vec![0; HEADER_BYTES + len as usize];
        assert!(pool.copy_stored(entry, &mut stored));
        let place = ExtentRef {
            extent: extent as u32,
            offset: 64,
            len,
        };
        assert!(pool.demote(entry, stored.first_chunk().unwrap(), place));
        pool.decode(entry, &stored, &mut back).unwrap();
        assert!(back == *before);
        let again = pool.store(entry, true, before, &mut scratch).unwrap();
        assert_eq!(again.kind, Kind::Clean);
        let changed = pool.store(entry, true, after, &mut scratch).unwrap();
        assert_ne!(changed.kind, Kind::Clean, "the write is lost");
        pool.load(entry, &mut back, &mut scratch).unwrap();
        assert!(back == *after);
    }
}

/// The other use of the hash: what is stored for one page is rejected as another's, however it was crafted.
#[test]
fn a_crafted_copy_in_anothers_place_is_refused() {
    for (before, after) in pairs() {
        let world = World::new(2, 4, i64::MAX);
        let pool = world.pool();
        let mut scratch = Box::new(Scratch::new());
        let entry = pool
            .store(SwapEntry::NONE, false, &before, &mut scratch)
            .unwrap()
            .entry;
        let len = pool.stored_len(entry).unwrap();
        let mut stored = vec![0; HEADER_BYTES + len as usize];
        assert!(pool.copy_stored(entry, &mut stored));
        let mut forged = stored[..HEADER_BYTES].to_vec();
        forged.extend_from_slice(&after);
        let mut back = [0; PAGE_SIZE];
        assert!(pool.decode(entry, &forged, &mut back).is_err());
        assert!(pool.decode(entry, &stored, &mut back).is_ok());
    }
}
