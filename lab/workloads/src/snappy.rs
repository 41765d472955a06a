//! Snappy over a corpus of text: compressed block by block, then decompressed and compared.
//!
//! Text and compressed text both stay in memory. An operation is one byte of text, compressed or
//! decompressed.

use std::time::{Duration, Instant};

use snap::raw::{Decoder, Encoder, max_compress_len};
use xxhash_rust::xxh3::xxh3_64;

use crate::output::Output;
use crate::{Failure, Job, text};

/// Bytes of text compressed at once.
const BLOCK: usize = 1 << 20;

pub fn run(job: &Job) -> Result<Output, Failure> {
    // Text and compressed text together are about 1.6 times the text.
    let text = text::corpus(job.bytes() / 8 * 5, job.seed)?;
    let mut packed = Packed::with_room(text.len())?;
    let mut took = Duration::ZERO;
    for _ in 0..job.rounds {
        let began = Instant::now();
        packed.compress(&text)?;
        packed.check(&text)?;
        took += began.elapsed();
    }
    let answer = format!(
        "snappy text={} stored={} digest={:016x}",
        text.len(),
        packed.bytes.len(),
        xxh3_64(&packed.bytes)
    );
    let ops = 2.0 * text.len() as f64 * f64::from(job.rounds);
    Ok(Output::of_work(answer, ops, took.as_secs_f64()))
}

/// Compressed blocks, concatenated.
struct Packed {
    bytes: Vec<u8>,
    /// End of each block.
    ends: Vec<usize>,
}

impl Packed {
    fn with_room(text_bytes: usize) -> Result<Packed, Failure> {
        Ok(Packed {
            bytes: crate::room(text_bytes)?,
            ends: Vec::new(),
        })
    }

    fn compress(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.bytes.clear();
        self.ends.clear();
        let mut encoder = Encoder::new();
        let mut out = vec![0; max_compress_len(BLOCK)];
        for block in text.chunks(BLOCK) {
            let n = encoder.compress(block, &mut out).map_err(wrong)?;
            self.bytes.extend_from_slice(&out[..n]);
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    /// Decompresses every block and compares it with the text.
    fn check(&self, text: &[u8]) -> Result<(), Failure> {
        let mut decoder = Decoder::new();
        let mut out = vec![0; BLOCK];
        let mut from = 0;
        for ((i, block), end) in text.chunks(BLOCK).enumerate().zip(&self.ends) {
            let n = decoder
                .decompress(&self.bytes[from..*end], &mut out)
                .map_err(wrong)?;
            if out[..n] != *block {
                return Err(wrong(format!("block {i} does not decompress to its text")));
            }
            from = *end;
        }
        Ok(())
    }
}

fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::Wrong(format!("snappy: {what}; memory was damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_bytes_come_back(
            piece in prop::collection::vec(any::<u8>(), 1..2000), repeats in 1usize..3000
        ) {
            let text = piece.repeat(repeats);
            let mut packed = Packed::with_room(text.len()).unwrap();
            packed.compress(&text).unwrap();
            prop_assert!(packed.check(&text).is_ok());
            prop_assert_eq!(packed.ends.len(), text.len().div_ceil(BLOCK));
        }
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let text = text::corpus(3 * BLOCK / 2, 4).unwrap();
        let mut packed = Packed::with_room(text.len()).unwrap();
        packed.compress(&text).unwrap();
        for at in [100, packed.bytes.len() / 2, packed.bytes.len() - 1] {
            packed.bytes[at] ^= 1;
            assert!(packed.check(&text).is_err(), "byte {at}");
            packed.bytes[at] ^= 1;
        }
        assert!(packed.check(&text).is_ok());
    }
}
