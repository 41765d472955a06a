//! Repeatable randomised tests: their seed is printed, or taken from [`SEED`]; longer by [`SCALE`], shorter under Miri.

use std::time::UNIX_EPOCH;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// The environment variable for a seed: a number.
pub const SEED: &str = "CANVAS_TEST_SEED";

/// The environment variable for the length of the tests, a factor; `make test-slow` sets it.
pub const SCALE: &str = "CANVAS_TEST_SCALE";

/// Steps or cases of a test: `quick` of them, times [`SCALE`]; under Miri a fiftieth, but two if `quick` are.
///
/// # Panics
///
/// If [`SCALE`] is not a number.
pub fn scaled(quick: u32) -> u32 {
    let scale = std::env::var(SCALE);
    let all = quick * scale.map_or(1, |n| n.parse().expect("CANVAS_TEST_SCALE is a number"));
    sized(all, (all / 50).max(all.min(2)))
}

/// A size that does not scale: `usual`, or `under_miri`, which runs a program some thousand times slower.
pub const fn sized<T: Copy>(usual: T, under_miri: T) -> T {
    if cfg!(miri) { under_miri } else { usual }
}

/// Prints and returns a seed: that of the environment, or a new one.
///
/// # Panics
///
/// If [`SEED`] is not a number.
pub fn seed() -> u64 {
    let seed = match std::env::var(SEED) {
        Ok(text) => text.parse().expect("CANVAS_TEST_SEED is a number"),
        Err(_) => UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64),
    };
    println!("{SEED}={seed}");
    seed
}

/// A proptest runner on [`seed`], for [`scaled`] cases. It keeps no file of failures: the printed seed repeats them.
pub fn runner(cases: u32) -> TestRunner {
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config {
        cases: scaled(cases),
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Most rounds of cases until everything has happened.
const ROUNDS_MAX: usize = 40;

/// Runs `cases` cases on [`seed`], and as many again, up to `ROUNDS_MAX` times, until
/// `is_complete`, so that rare events do not make a test fail by chance. The caller checks whether
/// it is complete.
///
/// # Panics
///
/// If a case fails.
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
        // A runner cannot be reused; the next one continues with the same seed.
        runner = TestRunner::new_with_rng(runner.config().clone(), runner.new_rng());
    }
}
