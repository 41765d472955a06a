//! Further workloads of the pager's targets (docs/TARGETS.md): a Java program, redis-benchmark, a program's
//! start.

use std::path::PathBuf;
use std::process::Command;

use super::error::WorkloadError;
use super::files;
use super::python;
use super::tools;
use super::ycsb;
use super::{patience_s, scaled};
use crate::workload::{Argv, Place, Plan, Workload};

/// The Java program, the redis server under redis-benchmark, the start of a program.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Java), Box::new(RedisBenchmark), Box::new(StartUp)]
}

/// Linked structures, churn and exceptions: the Java program of the end-to-end tests.
struct Java;

const SOURCES: [(&str, &str); 2] = [
    (
        "Work.java",
        include_str!("../../../../tests/java/Work.java"),
    ),
    ("Tell.java", include_str!("java/canvasbench/Tell.java")),
];

fn java() -> Result<PathBuf, WorkloadError> {
    tools::java_home(11..=99, true)
}

impl Java {
    /// A directory for each version of the sources.
    fn home(place: &Place) -> PathBuf {
        let all: String = SOURCES.iter().map(|(_, text)| *text).collect();
        let sum = files::sha256(all.as_bytes());
        place.cache.join(format!("java-{}", &sum[..12]))
    }
}

impl Workload for Java {
    fn name(&self) -> &str {
        "java"
    }

    fn about(&self) -> &str {
        "Java with G1: linked objects in scattered order, garbage, exceptions, 2 threads"
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        java().err()
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        let java = java()?;
        files::produce(&Self::home(place), |dir| {
            files::make_dir(dir)?;
            for (name, text) in SOURCES {
                files::write(&dir.join(name), text.as_bytes())?;
            }
            files::run(
                Command::new(java.join("bin/javac"))
                    .args(["--release", "11", "-d"])
                    .arg(dir.join("classes"))
                    .args(SOURCES.iter().map(|(name, _)| dir.join(name))),
            )
        })
        .map(|_| ())
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        // 230 bytes per node, and room for two generations.
        let heap_mib = scaled(place, 900, 96);
        let mut argv = vec![
            python::text(&java()?.join("bin/java")),
            "-XX:-UsePerfData".into(),
            "-XX:+UseG1GC".into(),
            format!("-Xms{heap_mib}m"),
            format!("-Xmx{heap_mib}m"),
            "-cp".into(),
            python::text(&Self::home(place).join("classes")),
        ];
        argv.extend(["canvasbench.Tell".into(), "Work".into()]);
        let nodes = scaled(place, 3_000_000, 100_000);
        let seed = place.seed % (1 << 32);
        argv.extend([nodes, 4, 2, seed].map(|n| n.to_string()));
        Ok(Plan::Program(Argv { argv, env: vec![] }))
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}

/// A client in C, faster than YCSB, so that the extra cost of a request is visible.
struct RedisBenchmark;

impl Workload for RedisBenchmark {
    fn name(&self) -> &str {
        "redis-set-get"
    }

    fn about(&self) -> &str {
        "redis under redis-benchmark: SET and GET of 500 bytes, 20 connections"
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        tools::missing("redis-server", "redis-server")
            .or_else(|| tools::missing("redis-benchmark", "redis-tools"))
            .or_else(|| tools::missing("python3", "python3"))
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let program = |name, package| tools::need(name, package).map(|p| python::text(&p));
        let port = tools::free_port()?;
        let client = vec![
            program("python3", "python3")?,
            python::text(&python::script(place, "redis_benchmark.py")),
            program("redis-benchmark", "redis-tools")?,
            port.to_string(),
            scaled(place, 300_000, 2_000).to_string(),
        ];
        Ok(Plan::Server {
            server: ycsb::redis_server(place, port)?,
            socket: format!("127.0.0.1:{port}"),
            clients: vec![Argv {
                argv: client,
                env: vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())],
            }],
        })
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}

/// A program that only prints its answer: its time is that of starting a program.
struct StartUp;

impl Workload for StartUp {
    fn name(&self) -> &str {
        "start-up"
    }

    fn about(&self) -> &str {
        "starts echo: how long a program takes to begin and to end"
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        tools::missing("echo", "coreutils")
    }

    fn prepare(&self, _: &Place) -> Result<(), WorkloadError> {
        Ok(())
    }

    fn plan(&self, _: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let echo = tools::need("echo", "coreutils")?;
        Ok(Plan::Program(Argv {
            argv: vec![python::text(&echo), r#"{"answer":"started"}"#.into()],
            env: vec![],
        }))
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
