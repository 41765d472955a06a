//! Sentences and figures for users.

use std::fmt::{self, Display};
use std::io::Write as _;

/// Writes one line to standard error.
pub fn say(sentence: impl Display) {
    // In one write: other processes write there too, and lines must not mix. A closed stderr is the
    // caller's choice.
    let line = format!("canvas: {sentence}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The system's error text, without Rust's "(os error 2)".
pub fn reason(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => e.to_string(),
    }
}

/// Prints bytes with about three digits: `1.5G`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "";
        for next in ["K", "M", "G", "T"] {
            if value < 999.5 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let text = match value {
            v if unit.is_empty() || v >= 9.95 => format!("{v:.0}{unit}"),
            v => format!("{v:.1}{unit}"),
        };
        f.pad(&text)
    }
}
