//! The built-in workloads (`lab workload NAME`).
//!
//! They need no package, no download and no data on disk.

use canvas_workloads::{PROGRAMS, Program};

use crate::workload::{Argv, Place, Plan, Workload, WorkloadError};

/// All built-in workloads, in the order of lab/WORKLOADS.md.
pub fn all() -> Vec<Box<dyn Workload>> {
    PROGRAMS
        .iter()
        .map(|program| Box::new(Builtin { program }) as Box<dyn Workload>)
        .collect()
}

struct Builtin {
    program: &'static Program,
}

/// Local runs take 5 to 20 s at scale 1; a swap file on a slow disk can be a hundred times slower.
const TIMEOUT_S: f64 = 1200.0;

impl Workload for Builtin {
    fn name(&self) -> &str {
        self.program.name
    }
    fn about(&self) -> &str {
        self.program.about
    }
    fn missing(&self, _place: &Place) -> Option<WorkloadError> {
        None
    }
    fn prepare(&self, _place: &Place) -> Result<(), WorkloadError> {
        Ok(())
    }
    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let mut argv = vec![
            place.lab.to_string_lossy().into_owned(),
            "workload".to_owned(),
            self.program.name.to_owned(),
            format!("--scale={}", place.scale),
            format!("--seed={}", place.seed),
        ];
        if place.huge_pages {
            argv.push("--huge-pages".to_owned());
        }
        Ok(Plan::Program(Argv {
            argv,
            env: Vec::new(),
        }))
    }
    fn timeout_s(&self, place: &Place) -> u64 {
        // Small sizes still need time to start and for their shortest measurement; linpack's time grows
        // faster than its data.
        (TIMEOUT_S * place.scale.max(0.1).powf(1.5)).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Answer;
    use canvas_workloads::Options;
    use std::path::PathBuf;

    fn place() -> Place {
        Place {
            cache: PathBuf::from("/nonexistent/cache"),
            scratch: PathBuf::from("/nonexistent/scratch"),
            scale: 0.25,
            seed: 7,
            canvas: PathBuf::from("/usr/bin/canvas"),
            lab: PathBuf::from("/usr/bin/lab"),
            huge_pages: false,
        }
    }

    #[test]
    fn each_runs_lab_and_needs_nothing() {
        let place = place();
        for w in all() {
            assert!(w.missing(&place).is_none());
            w.prepare(&place).unwrap();
            let Plan::Program(Argv { argv, .. }) = w.plan(&place, 0).unwrap() else {
                panic!("{} is a program", w.name());
            };
            assert_eq!(
                argv,
                [
                    "/usr/bin/lab",
                    "workload",
                    w.name(),
                    "--scale=0.25",
                    "--seed=7"
                ]
            );
            assert!(w.timeout_s(&place) >= 30, "{}", w.name());
        }
    }

    #[test]
    fn huge_pages_are_asked_for() {
        let place = Place {
            huge_pages: true,
            ..place()
        };
        for w in all() {
            let Plan::Program(Argv { argv, .. }) = w.plan(&place, 0).unwrap() else {
                panic!("{} is a program", w.name());
            };
            assert_eq!(argv.last().unwrap(), "--huge-pages");
        }
    }

    /// Fields left out of the output line are empty when the line is parsed.
    #[test]
    fn what_is_printed_is_what_is_read() {
        let options = Options {
            mib: Some(4),
            seconds: Some(0.3),
            ..Options::default()
        };
        let printed = canvas_workloads::run("random-read", &options).unwrap();
        assert!(!printed.rates.is_empty() && !printed.access_histogram.is_empty());
        for printed in [printed, Answer::default()] {
            let line = serde_json::to_string(&printed).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), printed);
        }
    }
}
