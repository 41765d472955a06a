//! What a user sees while the bench runs: a bar on a terminal, else a line for each run.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress over a known number of runs, on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    done: u64,
    quiet: bool,
}

impl Progress {
    /// Of `total` runs; with `quiet` nothing is shown.
    pub fn new(total: u64, quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let form = "{bar:30} {pos}/{len} {elapsed_precise} (left {eta_precise}) {wide_msg}";
            // The form above is right; if it were not, the usual one would do.
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress {
            bar,
            total,
            done: 0,
            quiet,
        }
    }

    /// A line of its own.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if self.quiet => {}
            None => eprintln!("{line}"),
        }
    }

    /// What runs now.
    pub fn now(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// `runs` have ended (or will not be); `line` says how, when there is something to say.
    pub fn advance(&mut self, runs: u64, line: Option<&str>) {
        self.done += runs;
        match (&self.bar, line) {
            (Some(bar), _) => bar.inc(runs),
            (None, Some(line)) => self.say(&format!("[{}/{}] {line}", self.done, self.total)),
            (None, None) => {}
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
