//! Shared by the tests of this crate.
#![allow(dead_code)]

use canvas_types::sync::AtomicU64;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A proptest runner whose seed is printed, or taken from `CANVAS_SEED`.
pub fn runner(cases: u32) -> TestRunner {
    let seed = match std::env::var("CANVAS_SEED") {
        Ok(text) => text.parse().expect("CANVAS_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            now.as_nanos() as u64
        }
    };
    println!("CANVAS_SEED={seed}");
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Zeroed words.
pub fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}
