//! The command under test, and waiting.

use std::process::Command;
use std::time::{Duration, Instant};

/// The binary.
pub const CANVAS: &str = env!("CARGO_BIN_EXE_canvas");

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);

/// `canvas` without `CANVAS_*` variables.
pub fn canvas(args: &[&str]) -> Command {
    let mut c = Command::new(CANVAS);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CANVAS_") {
            c.env_remove(name);
        }
    }
    c.args(args);
    c
}

/// Repeats `look` until it returns a value.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "in vain waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
