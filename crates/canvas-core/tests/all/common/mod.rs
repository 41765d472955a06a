//! Shared by the tests of this crate.
#![allow(dead_code)]

pub use canvas_testing::random::runner;
use canvas_types::sync::AtomicU64;

/// Zeroed words.
pub fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}
