//! A program that runs until its input ends, and prints its progress ten times a second: for experiments that
//! change something while it runs.
//!
//! It reads random pages, checks every word of them, and changes one page in sixteen. At the end it checks
//! all pages.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::data::{PAGE, Shared, Templates, WORDS, wrong_word};
use crate::output::{Times, round};
use crate::rng::{RngExt, stream};
use crate::{Failure, filled};

/// Line printed when the data is filled.
pub const FILLED: &str = "filled";
/// Last line, printed when every word was right.
pub const RIGHT: &str = "right";

/// One page of this number is changed.
const CHANGED: u32 = 16;
/// Interval between two lines.
const TICK: Duration = Duration::from_millis(100);

/// Progress in one tenth of a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// End of the interval, in seconds since 1970.
    pub unix_s: f64,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// Pages read.
    pub steps: u64,
    /// Longest first access to a page, in ns.
    pub longest_ns: u64,
    /// First accesses to pages as (upper bound in ns, count).
    pub access_histogram: Vec<(u64, u64)>,
}

/// The pages, and the number of changes to each.
struct Heap {
    templates: Templates,
    pages: Shared,
    changes: Vec<u8>,
}

impl Heap {
    fn new(mib: u64, seed: u64) -> Result<Heap, Failure> {
        let count = ((mib as usize) << 20) / PAGE;
        let templates = Templates::new(seed);
        Ok(Heap {
            pages: Shared::heap(count, &templates)?,
            changes: filled(count, 0)?,
            templates,
        })
    }

    /// Present value of a word: each change of a page adds one to its last word.
    fn expected(&self, p: usize, word: usize) -> u64 {
        let first = self.templates.expected(p, word);
        if word == WORDS - 1 {
            first.wrapping_add(u64::from(self.changes[p]))
        } else {
            first
        }
    }

    fn check(&self, p: usize) -> Result<(), Failure> {
        for word in 0..WORDS {
            let (got, want) = (self.pages.load(p, word), self.expected(p, word));
            if got != want {
                return Err(wrong_word(p, word, got, want));
            }
        }
        Ok(())
    }

    fn change(&mut self, p: usize) {
        self.changes[p] = self.changes[p].wrapping_add(1);
        let last = WORDS - 1;
        self.pages.page(p)[last].store(self.expected(p, last), Relaxed);
    }
}

/// Runs over `mib` MiB of data until `input` ends; writes its lines to `out`.
pub fn run(
    mib: u64,
    seed: u64,
    input: impl Read + Send + 'static,
    mut out: impl Write,
) -> Result<(), Failure> {
    let mut heap = Heap::new(mib, seed)?;
    let mut line = |text: &str| {
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        written.map_err(|e| Failure::Usage(format!("the output cannot be written: {e}")))
    };
    line(FILLED)?;
    let over = Arc::new(AtomicBool::new(false));
    end_with(input, Arc::clone(&over));
    let mut random = stream(seed, 98);
    let count = heap.changes.len();
    let (mut times, mut longest, mut steps, mut began) = (Times::new(), 0, 0, Instant::now());
    while !over.load(Relaxed) {
        let p = random.random_range(0..count);
        let before = Instant::now();
        let first = heap.pages.load(p, 0);
        let after = Instant::now();
        let ns = (after - before).as_nanos() as u64;
        times.add(ns);
        (longest, steps) = (ns.max(longest), steps + 1);
        if first != heap.expected(p, 0) {
            return Err(wrong_word(p, 0, first, heap.expected(p, 0)));
        }
        heap.check(p)?;
        if random.random_range(0..CHANGED) == 0 {
            heap.change(p);
        }
        if after - began >= TICK {
            let tick = Tick {
                unix_s: now_unix_s(),
                seconds: round((after - began).as_secs_f64(), 1e6),
                steps,
                longest_ns: longest,
                access_histogram: times.buckets(),
            };
            let text = serde_json::to_string(&tick).map_err(|e| Failure::Usage(e.to_string()))?;
            line(&text)?;
            (times, longest, steps, began) = (Times::new(), 0, 0, Instant::now());
        }
    }
    for p in 0..count {
        heap.check(p)?;
    }
    line(RIGHT)
}

/// Sets `over` at the end of the input.
fn end_with(mut input: impl Read + Send + 'static, over: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while input.read(&mut bytes).is_ok_and(|n| n > 0) {}
        over.store(true, Relaxed);
    });
}

fn now_unix_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    round(now.unwrap_or_default().as_secs_f64(), 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input that ends after some time.
    struct Late(Instant);

    impl Read for Late {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            thread::sleep(self.0.saturating_duration_since(Instant::now()));
            Ok(0)
        }
    }

    #[test]
    fn it_says_what_it_did_until_its_input_ends() {
        let mut out = Vec::new();
        run(8, 3, Late(Instant::now() + 3 * TICK), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[lines.len() - 1]), (FILLED, RIGHT));
        for line in &lines[1..lines.len() - 1] {
            let tick: Tick = serde_json::from_str(line).unwrap();
            let counted: u64 = tick.access_histogram.iter().map(|b| b.1).sum();
            assert!(tick.steps > 0 && counted == tick.steps, "{tick:?}");
            assert!(
                tick.longest_ns > 0 && tick.seconds >= TICK.as_secs_f64(),
                "{tick:?}"
            );
        }
        assert!(lines.len() > 2, "{text}");
    }

    #[test]
    fn a_word_that_was_damaged_or_a_change_that_was_lost_is_found() {
        let mut heap = Heap::new(1, 1).unwrap();
        heap.change(7);
        heap.check(7).unwrap();
        heap.pages.page(7)[5].fetch_xor(1, Relaxed);
        let said = heap.check(7).unwrap_err().to_string();
        assert!(said.starts_with("word 5 of page 7 is"), "{said}");
        heap.pages.page(7)[5].fetch_xor(1, Relaxed);
        heap.pages.page(7)[WORDS - 1].store(heap.templates.expected(7, WORDS - 1), Relaxed);
        assert!(heap.check(7).is_err(), "the change was lost");
    }
}
