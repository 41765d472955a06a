//! A checksum of (place, value) pairs, which may be added in any order.

use crate::rng::mix64;

/// Sum of mixed (place, value) pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Adds the value at a place.
    #[inline]
    pub fn add(&mut self, place: u64, value: u64) {
        let at = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = self.0.wrapping_add(mix64(value ^ at.rotate_left(29)));
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
