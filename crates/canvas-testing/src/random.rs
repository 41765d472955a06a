//! Randomised tests that can be repeated: their seed is printed, or taken from [`SEED`].

use std::time::UNIX_EPOCH;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// The variable that a seed is taken from: a number.
pub const SEED: &str = "CANVAS_TEST_SEED";

/// A seed, printed: that of the environment, or else another one each time.
///
/// # Panics
///
/// When [`SEED`] is no number.
pub fn seed() -> u64 {
    let seed = match std::env::var(SEED) {
        Ok(text) => text.parse().expect("CANVAS_TEST_SEED is a number"),
        Err(_) => UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64),
    };
    println!("{SEED}={seed}");
    seed
}

/// A proptest runner on [`seed`]. It keeps no file of failures: the printed seed repeats them.
pub fn runner(cases: u32) -> TestRunner {
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Rounds of cases at most, until everything has happened.
const ROUNDS_MAX: usize = 10;

/// Runs so many cases on [`seed`], and as many again while what rarely happens has not (`is_complete`): not to fail
/// by chance. Whether it has in the end is the caller's to check.
///
/// # Panics
///
/// When a case fails.
pub fn run_until<S: Strategy>(
    cases: u32,
    plan: &S,
    case: impl Fn(S::Value) -> TestCaseResult,
    is_complete: impl Fn() -> bool,
) {
    let mut runner = runner(cases);
    for _ in 0..ROUNDS_MAX {
        if let Err(failed) = runner.run(plan, &case) {
            panic!("{failed}");
        }
        if is_complete() {
            break;
        }
        // One that has run runs no more; what follows is of the same seed.
        runner = TestRunner::new_with_rng(runner.config().clone(), runner.new_rng());
    }
}
