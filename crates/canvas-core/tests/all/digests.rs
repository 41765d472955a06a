//! Hashes of pages in far memory against a map.
use canvas_core::swap::digests::{BUCKET_WORDS, Digests, words_for};
use canvas_core::swap::hash::Hash;
use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU64, Ordering};
use proptest::prelude::*;
use std::collections::HashMap;

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

fn hash_of(n: u64) -> Hash {
    let mut h = [0; 16];
    h[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    h[8..].copy_from_slice(&(!n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    h
}

proptest! {
    /// Against a map: a hash that is reported as known is the last one that was put.
    #[test]
    fn never_an_old_or_foreign_hash(
        ops in prop::collection::vec((1..60u32, prop::option::weighted(0.8, 0..4u64)), 1..300),
        places in 0..5usize,
    ) {
        let memory = words(places * BUCKET_WORDS);
        let digests = Digests::new(&memory);
        let mut model = HashMap::new();
        for (entry, content) in ops {
            let entry = SwapEntry(entry);
            match content {
                Some(content) => {
                    digests.put(entry, &hash_of(content));
                    prop_assert_eq!(digests.is(entry, &hash_of(content)), places > 0);
                }
                None => digests.forget(entry),
            }
            model.insert(entry, content);
            for (e, c) in &model {
                for other in 0..4 {
                    prop_assert!(Some(other) == *c || !digests.is(*e, &hash_of(other)));
                }
            }
        }
    }
}

#[test]
fn nearly_all_local_pages_are_known() {
    let n = 10_000;
    let memory = words(words_for(n));
    let digests = Digests::new(&memory);
    // Entries as a stream leaves them: consecutive, and long after each other.
    let entries = || (1..=n as u32).map(|i| SwapEntry(7 * i));
    for e in entries() {
        digests.put(e, &hash_of(u64::from(e.0)));
    }
    let known = entries()
        .filter(|e| digests.is(*e, &hash_of(u64::from(e.0))))
        .count();
    assert!(known > n * 95 / 100, "{known} of {n}");
}

#[test]
fn halves_of_two_writers_match_neither() {
    let memory = words(BUCKET_WORDS);
    let digests = Digests::new(&memory);
    let (a, b) = (SwapEntry(3), SwapEntry(4));
    let (old, new) = (hash_of(1), hash_of(2));
    // A's first word over B's second, as when both put at the same time; then A has B's content.
    let other = words(BUCKET_WORDS);
    digests.put(a, &old);
    Digests::new(&other).put(b, &new);
    assert!(digests.is(a, &old));
    memory[1].store(other[1].load(Ordering::Relaxed), Ordering::Relaxed);
    assert!(!digests.is(a, &old) && !digests.is(a, &new) && !digests.is(b, &new));
}

#[test]
fn no_entry_is_no_place() {
    let memory = words(BUCKET_WORDS);
    let digests = Digests::new(&memory);
    digests.put(SwapEntry::NONE, &[0; 16]);
    assert!(!digests.is(SwapEntry::NONE, &[0; 16]));
}
