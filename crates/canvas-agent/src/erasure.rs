//! Erasure coding of extents: computes parity shards and rebuilds missing shards.
//!
//! Input shards are not trusted: a damaged or old one gives bytes that do not verify, and [`candidates`] tries other
//! combinations.

use std::ops::Range;

use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_place::replicas::Code;
use canvas_place::replicas::code::SHARDS_MAX;
use fec_rs::ReedSolomon;

/// Encodes and rebuilds shards of one code.
pub struct Coder {
    code: Code,
    fec: ReedSolomon,
}

impl std::fmt::Debug for Coder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coder({})", self.code)
    }
}

/// A range of one shard, from one donor.
#[derive(Debug)]
pub struct Piece {
    /// Index of the shard.
    pub shard: usize,
    /// The donor that sent it.
    pub donor: usize,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Coder {
    /// For `code`.
    pub fn new(code: Code) -> Coder {
        // Fails only for zero shards, and for more than 256.
        let fec = ReedSolomon::new(code.data(), code.parity()).expect("few shards");
        Coder { code, fec }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Bytes of one shard of an extent.
    pub fn shard_bytes(&self) -> usize {
        self.code.shard_bytes(EXTENT_BYTES)
    }

    /// The range of each shard to write together with a range of the extent; consecutive ranges of the extent give
    /// consecutive ranges of the shard.
    pub fn piece(&self, extent: Range<usize>) -> Range<usize> {
        let to = |to| self.code.shard_to(EXTENT_BYTES, to);
        to(extent.start)..to(extent.end)
    }

    /// All shards of an extent, concatenated.
    pub fn encode(&self, extent: &[u8]) -> Vec<u8> {
        let (shard, shards) = (self.shard_bytes(), self.code.shards());
        let mut all = vec![0; shard * shards];
        all[..extent.len()].copy_from_slice(extent);
        let mut parts: Vec<&mut [u8]> = all.chunks_exact_mut(shard).collect();
        let encoded = self.fec.encode(&mut parts);
        debug_assert!(encoded.is_ok(), "all shards have one length");
        all
    }

    /// Rebuilds one range of all shards from `pieces`, which hold this range of at least `data` different shards.
    /// `None` when they are too few.
    pub fn complete(&self, pieces: &[&Piece]) -> Option<Vec<Vec<u8>>> {
        let mut all: [Option<Vec<u8>>; SHARDS_MAX] = Default::default();
        for piece in pieces {
            let place = all[..self.code.shards()].get_mut(piece.shard)?;
            *place = Some(piece.bytes.clone());
        }
        let all = &mut all[..self.code.shards()];
        self.fec.reconstruct(all).ok()?;
        all.iter_mut().map(Option::take).collect()
    }
}

/// Copies the part of `range` (of the extent) that `shards` hold to its place in `extent`; the shards' bytes begin at
/// `from` within each shard.
pub fn assemble(
    code: Code,
    shards: &[Vec<u8>],
    from: usize,
    range: Range<usize>,
    extent: &mut [u8],
) {
    let mut at = range.start;
    for place in code.shard_ranges(EXTENT_BYTES, range) {
        let len = place.range.len();
        let start = place.range.start - from;
        extent[at..at + len].copy_from_slice(&shards[place.shard][start..start + len]);
        at += len;
    }
}

/// Combinations of just enough pieces, those in front first. Pieces of one shard may occur together.
pub fn candidates(code: Code, pieces: &[Piece]) -> impl Iterator<Item = Vec<&Piece>> {
    let mut chosen: Vec<usize> = (0..code.data()).collect();
    let mut more = code.data() <= pieces.len();
    let choices = std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let now: Vec<&Piece> = chosen.iter().map(|i| &pieces[*i]).collect();
        // The next combination, in lexicographic order.
        let (k, n) = (chosen.len(), pieces.len());
        more = match (0..k).rev().find(|i| chosen[*i] < n - k + i) {
            Some(i) => {
                let first = chosen[i] + 1;
                for (n, place) in chosen[i..].iter_mut().enumerate() {
                    *place = first + n;
                }
                true
            }
            None => false,
        };
        Some(now)
    });
    choices.filter(|choice| {
        let shards = choice.iter().fold(0u32, |bits, p| bits | 1 << p.shard);
        shards.count_ones() as usize == choice.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coders() -> impl Strategy<Value = Coder> {
        (2..=8usize, 1..=2usize).prop_map(|(k, m)| Coder::new(Code::new(k, m).unwrap()))
    }

    /// A product in GF(2^8), with the code's polynomial, bit by bit.
    fn product(a: u8, b: u8) -> u8 {
        (0..8).rev().fold(0u8, |sum, bit| {
            let carry = if sum & 0x80 != 0 { 0x1d } else { 0 };
            (sum << 1) ^ carry ^ if b & 1 << bit != 0 { a } else { 0 }
        })
    }

    fn extent(seed: u64) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..EXTENT_BYTES).map(|_| rng.u8(..)).collect()
    }

    fn pieces(coder: &Coder, extent: &[u8], range: Range<usize>) -> Vec<Piece> {
        let all = coder.encode(extent);
        let shards = all.chunks_exact(coder.shard_bytes()).enumerate();
        let piece = |(shard, bytes): (usize, &[u8])| Piece {
            shard,
            donor: shard,
            bytes: bytes[range.clone()].to_vec(),
        };
        shards.map(piece).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Each parity byte is the sum of the products of the bytes at its offset, as slow arithmetic computes it.
        #[test]
        fn parity_is_linear_as_the_field_says(coder in coders(), seed: u64, at in 0..2000usize) {
            let (code, shard) = (coder.code(), coder.shard_bytes());
            let data = extent(seed);
            let all = coder.encode(&data);
            prop_assert!(all[..EXTENT_BYTES] == data[..]);
            // The parity of a single 1 byte is its coefficient.
            let coefficient = |shard_of: usize, parity: usize| {
                let mut one = vec![0; EXTENT_BYTES];
                one[shard_of * shard] = 1;
                coder.encode(&one)[(code.data() + parity) * shard]
            };
            for parity in 0..code.parity() {
                let sum = (0..code.data()).fold(0, |sum, n| {
                    let byte = all[n * shard + at];
                    sum ^ product(byte, coefficient(n, parity))
                });
                prop_assert_eq!(all[(code.data() + parity) * shard + at], sum);
            }
        }

        /// Whichever shards are lost, up to the code's limit: any range of all shards is rebuilt from the others.
        #[test]
        fn any_range_comes_back_from_any_shards_that_are_enough(
            coder in coders(), seed: u64, from in 0..60usize, len in 1..40usize,
            lost in prop::collection::btree_set(0..10usize, 0..3),
        ) {
            let code = coder.code();
            let from = (from * 64).min(coder.shard_bytes() - 64);
            let range = from..(from + len * 64).min(coder.shard_bytes());
            let data = extent(seed);
            let all = pieces(&coder, &data, range.clone());
            let left: Vec<&Piece> = all
                .iter()
                .filter(|p| !lost.contains(&p.shard))
                .collect();
            let Some(back) = coder.complete(&left) else {
                prop_assert!(left.len() < code.data());
                return Ok(());
            };
            prop_assert!(left.len() >= code.data());
            prop_assert!(back.iter().zip(&all).all(|(got, piece)| *got == piece.bytes));
        }

        /// Assembly yields the range of the extent and touches nothing else.
        #[test]
        fn a_range_is_put_together_in_its_place(
            coder in coders(), seed: u64, a in 0..EXTENT_BYTES, b in 0..EXTENT_BYTES,
        ) {
            let (data, range) = (extent(seed), a.min(b)..a.max(b));
            let all = pieces(&coder, &data, 0..coder.shard_bytes());
            let shards: Vec<Vec<u8>> = all.into_iter().map(|p| p.bytes).collect();
            let mut built = vec![0x5a; EXTENT_BYTES];
            assemble(coder.code(), &shards, 0, range.clone(), &mut built);
            prop_assert!(built[range.clone()] == data[range.clone()]);
            prop_assert!(built[..range.start].iter().all(|b| *b == 0x5a));
            prop_assert!(built[range.end..].iter().all(|b| *b == 0x5a));
        }

        /// A combination without bad pieces is found among pieces of which some are bad and some are duplicates.
        #[test]
        fn a_choice_without_bad_pieces_is_among_the_candidates(
            coder in coders(), seed: u64,
            bad in prop::collection::btree_set(0..10usize, 0..3), twice in 0..8usize,
        ) {
            let code = coder.code();
            let data = extent(seed);
            let mut all = pieces(&coder, &data, 0..64);
            let good: Vec<Vec<u8>> = all.iter().map(|p| p.bytes.clone()).collect();
            for piece in all.iter_mut().filter(|p| bad.contains(&p.shard)) {
                piece.bytes[13] ^= 0x40;
            }
            let bad = all.iter().filter(|p| bad.contains(&p.shard)).count();
            let bytes = vec![0; 64];
            all.insert(0, Piece { shard: twice.min(code.shards() - 1), donor: 20, bytes });
            let mut choices = candidates(code, &all);
            let found = choices.any(|choice| coder.complete(&choice).is_some_and(|back| back == good));
            prop_assert_eq!(found, bad <= code.parity());
        }
    }
}
