//! Progress shown while the bench runs: a bar on a terminal, otherwise a line per run.

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
    /// Progress over `total` runs; shows nothing if `quiet`.
    pub fn new(total: u64, quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let form = "{bar:30} {pos}/{len} {elapsed_precise} (left {eta_precise}) {wide_msg}";
            // The template is valid; if it were not, the default style would do.
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

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if self.quiet => {}
            None => eprintln!("{line}"),
        }
    }

    /// Shows what runs now.
    pub fn now(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Counts `runs` as ended or left out; prints `line` if given.
    pub fn advance(&mut self, runs: u64, line: Option<&str>) {
        self.done += runs;
        match (&self.bar, line) {
            (Some(bar), _) => bar.inc(runs),
            (None, Some(line)) => self.say(&format!("[{}/{}] {line}", self.done, self.total)),
            (None, None) => {}
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
