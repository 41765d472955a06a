//! Lines on standard error, rate-limited.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Least time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum About {
    /// An invalid request of the tenant.
    Refused,
    /// A copy does not verify.
    Corrupt,
    /// The far directory's file system is full.
    Full,
    /// A backing file cannot be read, written or shrunk.
    Disk,
    /// This donor cannot be used.
    DonorLost(usize),
    /// This donor can be used again.
    DonorBack(usize),
    /// A connection to the host agent's socket that is rejected.
    Hello,
    /// This donor is new.
    DonorFound(usize),
    /// The tenant's copies policy changed.
    Copies,
    /// This donor has lost slabs that it lent.
    DonorForgot(usize),
}

/// Writes lines, at most one of each kind in [`PAUSE`].
#[derive(Debug)]
pub struct Log {
    /// By kind, when a line was last written and how many were suppressed since.
    kinds: HashMap<About, (Instant, u64)>,
    say: fn(&str),
}

impl Log {
    /// Writes with `say`.
    pub fn new(say: fn(&str)) -> Log {
        Log {
            kinds: HashMap::new(),
            say,
        }
    }

    /// Writes a line, unless one of its kind was written less than [`PAUSE`] ago.
    pub fn line(&mut self, about: About, text: impl Display) {
        let now = Instant::now();
        let held_back = match self.kinds.get_mut(&about) {
            Some((last, held_back)) if now - *last < PAUSE => {
                *held_back += 1;
                return;
            }
            Some((_, held_back)) => *held_back,
            None => 0,
        };
        self.kinds.insert(about, (now, 0));
        match held_back {
            0 => (self.say)(&format!("far memory: {text}")),
            n => (self.say)(&format!("far memory: {text} ({n} more like it suppressed)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn one_line_of_a_kind() {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let mut log = Log::new(|line| LINES.lock().unwrap().push(line.to_owned()));
        log.line(About::Full, "a");
        log.line(About::Full, "b");
        log.line(About::Disk, "c");
        log.kinds.get_mut(&About::Full).unwrap().0 -= PAUSE;
        log.line(About::Full, "d");
        assert_eq!(
            *LINES.lock().unwrap(),
            [
                "far memory: a",
                "far memory: c",
                "far memory: d (1 more like it suppressed)"
            ]
        );
    }
}
