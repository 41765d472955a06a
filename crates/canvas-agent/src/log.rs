//! Lines on standard error, not more than a reader can follow.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// What a line is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A request of the tenant that makes no sense.
    Refused,
    /// A copy that does not verify.
    Corrupt,
    /// The far directory's file system is full.
    Full,
    /// The backing file cannot be read, written or made smaller.
    Disk,
    /// A donor.
    Donor,
}
const KINDS: usize = About::Donor as usize + 1;

/// Writes lines, at most one of each kind in [`PAUSE`].
#[derive(Debug)]
pub struct Log {
    last: [Option<Instant>; KINDS],
    held_back: [u64; KINDS],
    say: fn(&str),
}

impl Log {
    /// Writes with `say`.
    pub fn new(say: fn(&str)) -> Log {
        Log {
            last: [None; KINDS],
            held_back: [0; KINDS],
            say,
        }
    }

    /// Writes a line, unless one of its kind was written a moment ago.
    pub fn line(&mut self, about: About, text: impl Display) {
        let k = about as usize;
        let now = Instant::now();
        if self.last[k].is_some_and(|t| now - t < PAUSE) {
            self.held_back[k] += 1;
            return;
        }
        self.last[k] = Some(now);
        match std::mem::take(&mut self.held_back[k]) {
            0 => (self.say)(&format!("far memory: {text}")),
            n => (self.say)(&format!("far memory: {text} ({n} more like it before)")),
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
        log.last[About::Full as usize] = Instant::now().checked_sub(PAUSE);
        log.line(About::Full, "d");
        assert_eq!(
            *LINES.lock().unwrap(),
            [
                "far memory: a",
                "far memory: c",
                "far memory: d (1 more like it before)"
            ]
        );
    }
}
