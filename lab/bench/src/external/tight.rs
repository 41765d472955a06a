//! Workloads that are hard under a tight limit: several processes at once, forks, and calls that change
//! mappings. Their sizes do not change with the scale, since the limit is small and given in bytes.

use std::path::PathBuf;

use super::error::WorkloadError;
use super::files;
use super::patience_s;
use super::python::text;
use super::tools;
use crate::workload::{Argv, Place, Plan, Workload};

const SCRIPT: &str = include_str!("../../../../tests/py/crowd.py");

/// A command that is timed as a whole.
struct Timed {
    name: &'static str,
    about: &'static str,
    /// Arguments of the command.
    args: &'static [&'static str],
    runs: Runs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// The script itself.
    Script,
    StressNg,
    /// Redis' own test driver.
    RedisTests,
}

/// Variable with the path of Redis's sources, of the installed version.
const REDIS_SOURCE: &str = "CANVAS_BENCH_REDIS_SOURCE";

const ALL: [Timed; 8] = [
    Timed {
        name: "crowd",
        about: "ten processes of Python that rewrite and check 4 MiB each, three times",
        args: &["10", "4"],
        runs: Runs::Script,
    },
    Timed {
        name: "fork-storm",
        about: "1,000 short forks, eight at a time, that write to what they inherit",
        args: &["storm", "1000"],
        runs: Runs::Script,
    },
    Timed {
        name: "redis-tests",
        about: "a part of Redis' own tests, four at a time: ten processes",
        args: &[
            "unit/type/string",
            "unit/type/hash",
            "unit/keyspace",
            "unit/sort",
            "unit/multi",
            "unit/scan",
        ],
        runs: Runs::RedisTests,
    },
    stress("stress-fork", &["--fork", "2", "--fork-ops", "4000"]),
    stress("stress-malloc", &["--malloc", "2", "--malloc-ops", "60000"]),
    stress(
        "stress-mremap",
        &[
            "--mremap",
            "2",
            "--mremap-bytes",
            "96m",
            "--mremap-ops",
            "200",
        ],
    ),
    stress("stress-brk", &["--brk", "2", "--brk-ops", "400000"]),
    stress(
        "stress-bigheap",
        &["--bigheap", "2", "--bigheap-ops", "4000"],
    ),
];

const fn stress(name: &'static str, args: &'static [&'static str]) -> Timed {
    Timed {
        name,
        about: "a stressor of stress-ng, a fixed number of its operations by two processes",
        args,
        runs: Runs::StressNg,
    }
}

/// All such commands.
pub fn all() -> Vec<Box<dyn Workload>> {
    let boxed = |t| Box::new(t) as Box<dyn Workload>;
    ALL.into_iter().map(boxed).collect()
}

fn script(place: &Place) -> std::path::PathBuf {
    let sum = files::sha256(SCRIPT.as_bytes());
    place.cache.join(format!("crowd-{}.py", &sum[..12]))
}

fn redis_source() -> Result<PathBuf, WorkloadError> {
    let told = std::env::var_os(REDIS_SOURCE).map(PathBuf::from);
    let is_there = |at: &PathBuf| at.join("tests/test_helper.tcl").is_file();
    told.filter(is_there)
        .ok_or(WorkloadError::NoRedisTests(REDIS_SOURCE))
}

fn redis_needs() -> Result<(), WorkloadError> {
    tools::need("tclsh8.6", "tcl8.6")?;
    for name in REDIS_PROGRAMS {
        tools::need(name, "redis-server and redis-tools")?;
    }
    redis_source().map(drop)
}

/// Programs that Redis's tests start.
const REDIS_PROGRAMS: [&str; 4] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-check-aof",
];

impl Workload for Timed {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        let needs = match self.runs {
            Runs::Script => Ok(()),
            Runs::StressNg => tools::need("stress-ng", "stress-ng").map(drop),
            Runs::RedisTests => redis_needs(),
        };
        tools::python().map(drop).and(needs).err()
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        files::produce(&script(place), |at| files::write(at, SCRIPT.as_bytes())).map(|_| ())
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let (python, script) = (text(&tools::python()?), text(&script(place)));
        let mut argv = vec![python.clone(), script.clone(), "timed".to_owned()];
        match self.runs {
            Runs::Script => argv.extend([python, script]),
            Runs::StressNg => argv.push(text(&tools::need("stress-ng", "stress-ng")?)),
            Runs::RedisTests => {
                argv.extend([python, script, "redis".to_owned()]);
                argv.push(text(&redis_source()?));
                argv.push(text(&place.scratch));
            }
        }
        argv.extend(self.args.iter().map(|a| (*a).to_owned()));
        Ok(Plan::Program(Argv { argv, env: vec![] }))
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
