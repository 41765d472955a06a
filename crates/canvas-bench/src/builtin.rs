//! The workloads that the `canvas` command brings along (`canvas workload NAME`).
//!
//! They need nothing that is not there: no package, no download, no data on disk.

use canvas_workloads::{PROGRAMS, Program};

use crate::workload::{Argv, Place, Plan, Workload};

/// All of them, in the order of docs/WORKLOADS.md.
pub fn all() -> Vec<Box<dyn Workload>> {
    PROGRAMS
        .iter()
        .map(|program| Box::new(Builtin { program }) as Box<dyn Workload>)
        .collect()
}

/// One built-in program with further flags, under a name of its own ("random-read-4-threads"). An
/// error is one sentence.
pub fn with_flags(program: &str, name: &str, flags: &[&str]) -> Result<Box<dyn Workload>, String> {
    let program = canvas_workloads::find(program).map_err(|e| e.to_string())?;
    Ok(Box::new(Flagged {
        plain: Builtin { program },
        name: name.to_owned(),
        flags: flags.iter().map(|f| (*f).to_owned()).collect(),
    }))
}

struct Builtin {
    program: &'static Program,
}

impl Builtin {
    fn plan_with(&self, place: &Place, flags: &[String]) -> Plan {
        let mut argv = vec![
            place.canvas.to_string_lossy().into_owned(),
            "workload".to_owned(),
            self.program.name.to_owned(),
            format!("--scale={}", place.scale),
            format!("--seed={}", place.seed),
        ];
        argv.extend_from_slice(flags);
        Plan::Program(Argv {
            argv,
            env: Vec::new(),
        })
    }
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
    fn missing(&self, _place: &Place) -> Option<String> {
        None
    }
    fn prepare(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }
    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, String> {
        Ok(self.plan_with(place, &[]))
    }
    fn timeout_s(&self, place: &Place) -> u64 {
        // Small sizes keep their start-up and their shortest time; linpack grows faster than data.
        (TIMEOUT_S * place.scale.max(0.1).powf(1.5)).ceil() as u64
    }
}

struct Flagged {
    plain: Builtin,
    name: String,
    flags: Vec<String>,
}

impl Workload for Flagged {
    fn name(&self) -> &str {
        &self.name
    }
    fn about(&self) -> &str {
        self.plain.about()
    }
    fn missing(&self, place: &Place) -> Option<String> {
        self.plain.missing(place)
    }
    fn prepare(&self, place: &Place) -> Result<(), String> {
        self.plain.prepare(place)
    }
    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, String> {
        Ok(self.plain.plan_with(place, &self.flags))
    }
    fn timeout_s(&self, place: &Place) -> u64 {
        self.plain.timeout_s(place)
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
        }
    }

    #[test]
    fn each_runs_the_command_itself_and_needs_nothing() {
        let place = place();
        for w in all() {
            assert_eq!(w.missing(&place), None);
            assert_eq!(w.prepare(&place), Ok(()));
            let Plan::Program(Argv { argv, .. }) = w.plan(&place, 0).unwrap() else {
                panic!("{} is a program", w.name());
            };
            assert_eq!(
                argv,
                [
                    "/usr/bin/canvas",
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
    fn flags_are_added_under_another_name() {
        let w = with_flags("random-read", "random-read-4", &["--threads=4"]).unwrap();
        assert_eq!(w.name(), "random-read-4");
        let Ok(Plan::Program(Argv { argv, .. })) = w.plan(&place(), 0) else {
            panic!("a program");
        };
        assert_eq!(argv[2], "random-read");
        assert_eq!(argv.last().unwrap(), "--threads=4");
        assert!(with_flags("nonsense", "x", &[]).is_err());
    }

    /// What the programs print and what the bench reads are types of two crates.
    #[test]
    fn what_is_printed_is_what_is_read() {
        let options = Options {
            mib: Some(4),
            seconds: Some(0.3),
            ..Options::default()
        };
        let printed = canvas_workloads::run("random-read", &options).unwrap();
        let read: Answer = serde_json::from_str(&serde_json::to_string(&printed).unwrap()).unwrap();
        assert_eq!(read.answer, printed.answer);
        assert_eq!(read.seconds, printed.seconds);
        assert_eq!(read.ops_per_s, printed.ops_per_s);
        assert_eq!(read.access_histogram, printed.access_histogram);
        assert_eq!(read.rates, printed.rates);
        assert!(!read.rates.is_empty() && !read.access_histogram.is_empty());
        let (read, printed) = (read.access_ns.unwrap(), printed.access_ns.unwrap());
        assert_eq!(
            (read.p50, read.p99, read.p999, read.max),
            (printed.p50, printed.p99, printed.p999, printed.max)
        );
    }
}
