//! The log: one line on standard error for each event that operators care about, limited so that no
//! peer can fill a disk.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Most lines of a kind per period.
const LINES_OF_A_PERIOD: u32 = 5;
/// The period.
const PERIOD: Duration = Duration::from_secs(10);

struct Kind {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Writes to standard error.
#[derive(Default)]
pub struct Log {
    kinds: Mutex<HashMap<&'static str, Kind>>,
}

impl Log {
    /// Writes a line. After five lines of a kind in ten seconds, further ones are left out; the
    /// next line says how many.
    pub fn line(&self, kind: &'static str, sentence: impl Display) {
        let left_out = {
            let mut kinds = self.kinds.lock().expect("no thread panics while it logs");
            let Some(left_out) = admit(&mut kinds, kind, Instant::now()) else {
                return;
            };
            left_out
        };
        if left_out > 0 {
            eprintln!("canvas serve: {kind}: {sentence} ({left_out} more of this kind before)");
        } else {
            eprintln!("canvas serve: {kind}: {sentence}");
        }
    }
}

/// Whether to write a line, and how many of its kind were left out before it.
fn admit(kinds: &mut HashMap<&'static str, Kind>, kind: &'static str, now: Instant) -> Option<u64> {
    let state = kinds.entry(kind).or_insert(Kind {
        since: now,
        lines: 0,
        left_out: 0,
    });
    if now.saturating_duration_since(state.since) >= PERIOD {
        state.since = now;
        state.lines = 0;
    }
    if state.lines >= LINES_OF_A_PERIOD {
        state.left_out += 1;
        return None;
    }
    state.lines += 1;
    Some(std::mem::take(&mut state.left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_comes_too_often_is_left_out_and_counted() {
        let mut kinds = HashMap::new();
        let start = Instant::now();
        for _ in 0..LINES_OF_A_PERIOD {
            assert_eq!(admit(&mut kinds, "a", start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(admit(&mut kinds, "a", start), None);
        }
        assert_eq!(admit(&mut kinds, "b", start), Some(0));
        assert_eq!(admit(&mut kinds, "a", start + PERIOD), Some(7));
        assert_eq!(admit(&mut kinds, "a", start + PERIOD), Some(0));
    }
}
