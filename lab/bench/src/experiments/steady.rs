//! A program that runs while the experiment changes something (`lab steady`), and its progress in a time.

use std::time::Duration;

use canvas_workloads::Quantiles;
use canvas_workloads::steady::{FILLED, RIGHT, Tick};

use crate::engine::child::Child;
use crate::engine::program::Fail;
use crate::engine::script::{Stage, failed};
use crate::record::Sample;
use crate::stats::{bucket_at, together};

/// Its name in the results.
pub const NAME: &str = "steady";

/// Timeout of filling its memory, and of checking all of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The running program.
pub struct Steady {
    child: Child,
}

impl Steady {
    /// Starts it with `mib` MiB of data after `prefix`: `canvas run ... --`, or nothing.
    pub fn start(stage: &Stage, prefix: Vec<String>, mib: u64) -> Result<Steady, Fail> {
        let own = [
            stage.lab(),
            "steady".to_owned(),
            mib.to_string(),
            stage.seed().to_string(),
        ];
        let child = stage.start_with_input([prefix.as_slice(), &own].concat(), NAME)?;
        Ok(Steady { child })
    }

    /// Fails with the program's message if it has ended.
    pub fn check(&mut self) -> Result<(), Fail> {
        match self.child.wait(Duration::ZERO) {
            None => Ok(()),
            Some(_) => Err(failed(format!(
                "the program has ended: {}",
                self.child.complaint()
            ))),
        }
    }

    /// Waits until its data is filled.
    pub fn filled(&mut self, stage: &Stage) -> Result<(), Fail> {
        stage.until("the filling of its memory", PATIENCE, || {
            self.check()?;
            Ok(self.child.output().starts_with(FILLED).then_some(()))
        })
    }

    /// Lets it check all its data and end. Returns false if a page was lost or a word was wrong.
    pub fn end(&mut self, stage: &Stage) -> Result<bool, Fail> {
        drop(self.child.input());
        self.ended(stage)?;
        Ok(self.child.last_line() == RIGHT)
    }

    /// Waits for its end.
    fn ended(&mut self, stage: &Stage) -> Result<(), Fail> {
        stage.until("the check of its data", PATIENCE, || {
            Ok(self.child.wait(Duration::ZERO).map(drop))
        })
    }

    /// Whether it has ended because a page was lost, which raises SIGBUS.
    pub fn is_lost(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        const SIGBUS: i32 = nix::sys::signal::Signal::SIGBUS as i32;
        let ended = self.child.wait(Duration::from_secs(5));
        ended.is_some_and(|e| {
            e.status.signal() == Some(SIGBUS) || e.status.code() == Some(128 + SIGBUS)
        })
    }

    /// Its ticks between two times, in seconds since 1970.
    pub fn ticks(&self, from_s: f64, to_s: f64) -> Vec<Tick> {
        let text = self.child.output();
        let ticks = text.lines().filter_map(|l| serde_json::from_str(l).ok());
        let within = |t: &Tick| t.unix_s - t.seconds >= from_s && t.unix_s <= to_s;
        ticks.filter(within).collect()
    }
}

/// Adds the figures of these ticks to a sample.
pub fn apply(ticks: &[Tick], sample: &mut Sample) {
    let seconds: f64 = ticks.iter().map(|t| t.seconds).sum();
    let steps: u64 = ticks.iter().map(|t| t.steps).sum();
    if steps == 0 {
        return;
    }
    sample.ops_per_s = Some(steps as f64 / seconds);
    let counts = together(ticks.iter().flat_map(|t| &t.access_histogram));
    let at = |part| bucket_at(&counts, part).map_or(0.0, |bound| bound as f64);
    let longest = ticks.iter().map(|t| t.longest_ns).max();
    sample.access_ns = Some(Quantiles {
        p50: at(0.5),
        p99: at(0.99),
        p999: Some(at(0.999)),
        max: longest.map(|ns| ns as f64),
    });
    sample.access_histogram = counts.into_iter().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_together() {
        let tick = |bound, count, longest_ns| Tick {
            unix_s: 1.0,
            seconds: 0.5,
            steps: count,
            longest_ns,
            access_histogram: vec![(bound, count)],
        };
        let mut sample = Sample::default();
        apply(&[], &mut sample);
        assert_eq!(sample, Sample::default());
        apply(&[tick(100, 90, 99), tick(2000, 10, 1999)], &mut sample);
        let found = sample.access_ns.unwrap();
        assert_eq!(sample.ops_per_s, Some(100.0));
        assert_eq!(
            (found.p50, found.p99, found.max),
            (100.0, 2000.0, Some(1999.0))
        );
    }
}
