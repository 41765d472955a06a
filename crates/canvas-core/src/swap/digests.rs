//! Content hashes of local pages whose far copy is in far memory: they show at the next swap-out that such a page has
//! not changed, so that it need not be compressed, stored and written again.
//!
//! A cache of fixed size over memory that the caller provides: an evicted hash costs one needless write, no more. Each
//! place holds an entry's number and 96 bits of a hash in two words (a changed page has those of the old one with a
//! probability of 2^-96), which are read and written without a lock. If two threads write one place at the same time,
//! the result matches neither of them, because the second word is also mixed with the entry's number. Nothing here
//! depends on a hash except the answer: hashes are secret.
//!
//! ```text
//! bucket   4 places of 2 words (one cache line)
//! word 0   entry (32) | hash bytes 0..4
//! word 1   hash bytes 4..12, exclusive-or with the entry's number times an odd constant
//! ```

use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU64, Ordering};

use crate::swap::hash::Hash;

/// Places of a bucket.
const WAYS: usize = 4;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = 2 * WAYS;
/// 2^64 divided by the golden ratio: spreads consecutive numbers (Knuth, TAOCP 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Words for a process that may have `local_pages` in local memory: two places for each, so that few are evicted.
pub const fn words_for(local_pages: usize) -> usize {
    (2 * local_pages / WAYS + 1).next_power_of_two() * BUCKET_WORDS
}

/// The cache of hashes. The module's documentation describes it.
#[derive(Clone, Copy)]
pub struct Digests<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Digests<'a> {
    /// Over `words`, all zero at first; the largest power of two of buckets that fits is used. Without a bucket no hash
    /// is ever known.
    pub fn new(words: &'a [AtomicU64]) -> Digests<'a> {
        let buckets = words.len() / BUCKET_WORDS;
        let used = (buckets + 1).next_power_of_two() / 2;
        Digests {
            words: &words[..used * BUCKET_WORDS],
        }
    }

    /// Records the hash of the copy that the entry names. Only the entry's owner calls it.
    pub fn put(&self, entry: SwapEntry, hash: &Hash) {
        let Some(bucket) = self.bucket(entry) else {
            return;
        };
        let holds = |place: &&[AtomicU64]| (place[0].load(Ordering::Relaxed) >> 32) as u32;
        let place = bucket
            .chunks_exact(2)
            .find(|p| holds(p) == entry.0)
            .or_else(|| bucket.chunks_exact(2).find(|p| holds(p) == 0))
            // Any place, but not chosen by the hash, which would reveal it.
            .unwrap_or_else(|| {
                let way = spread(entry) as usize % WAYS;
                &bucket[2 * way..2 * way + 2]
            });
        let (first, second) = words_of(entry, hash);
        place[0].store(0, Ordering::Relaxed);
        place[1].store(second, Ordering::Relaxed);
        place[0].store(first, Ordering::Release);
    }

    /// Forgets the entry's hash, because its copy changes. Only the entry's owner calls it.
    pub fn forget(&self, entry: SwapEntry) {
        let places = self.bucket(entry).unwrap_or_default().chunks_exact(2);
        for place in places {
            if (place[0].load(Ordering::Relaxed) >> 32) as u32 == entry.0 {
                place[0].store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether this is known to be the hash of the copy that the entry names.
    pub fn is(&self, entry: SwapEntry, hash: &Hash) -> bool {
        let Some(bucket) = self.bucket(entry) else {
            return false;
        };
        let (first, second) = words_of(entry, hash);
        bucket.chunks_exact(2).any(|p| {
            let different = p[0].load(Ordering::Acquire) ^ first;
            different | (p[1].load(Ordering::Relaxed) ^ second) == 0
        })
    }

    fn bucket(&self, entry: SwapEntry) -> Option<&'a [AtomicU64]> {
        let buckets = self.words.len() / BUCKET_WORDS;
        if buckets == 0 || !entry.is_some() {
            return None;
        }
        let at = (spread(entry) >> 32) as usize & (buckets - 1);
        self.words.get(at * BUCKET_WORDS..(at + 1) * BUCKET_WORDS)
    }
}

fn spread(entry: SwapEntry) -> u64 {
    u64::from(entry.0).wrapping_mul(SPREAD)
}

fn words_of(entry: SwapEntry, hash: &Hash) -> (u64, u64) {
    let part = |at: usize| {
        let bytes = [hash[at], hash[at + 1], hash[at + 2], hash[at + 3]];
        u64::from(u32::from_le_bytes(bytes))
    };
    let first = u64::from(entry.0) << 32 | part(0);
    let second = (part(8) << 32 | part(4)) ^ spread(entry);
    (first, second)
}
