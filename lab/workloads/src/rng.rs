//! Seeded random numbers: streams of xoshiro256++ and one mixing function.

use rand::SeedableRng;
pub use rand::{Rng, RngExt};
pub use rand_xoshiro::Xoshiro256PlusPlus as Stream;

/// A bijection of 64-bit numbers that mixes all bits (MurmurHash3's finalizer).
#[inline]
pub fn mix64(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Stream `number` of a seed; streams of different numbers are independent.
pub fn stream(seed: u64, number: u64) -> Stream {
    let apart = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Stream::seed_from_u64(mix64(mix64(seed.wrapping_add(0x51ed)) ^ apart))
}
