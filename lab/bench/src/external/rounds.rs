//! Programs that traverse the same memory repeatedly and print the time of each round: structures whose nodes
//! are in random order, in C, Python and Java, and examples of canvas.h.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::WorkloadError;
use super::files;
use super::python::{self, text};
use super::tools;
use super::{patience_s, scaled};
use crate::stats::median;
use crate::workload::{Answer, Argv, Place, Plan, Workload};

/// Rounds of a program with several structures.
const ROUNDS: &str = "6";
/// Bytes of a node in C: a page.
const NODE_BYTES: &str = "4096";
/// Bytes of an object with the overhead of Python, or of Java.
const PYTHON_BYTES: u64 = 1150;
const JAVA_BYTES: u64 = 1100;
/// Steps of graph_walk per MiB.
const STEPS_A_MIB: u64 = 40;

/// Names and texts of files compiled together, the main program first.
type Sources = &'static [(&'static str, &'static str)];

const LINKED: Sources = &[
    ("linked.c", include_str!("../../../../tests/c/linked.c")),
    ("common.h", include_str!("../../../../tests/c/common.h")),
    ("random.h", include_str!("../../../../tests/c/random.h")),
];
const BTREE_SCAN: Sources = &[
    (
        "btree_scan.c",
        include_str!("../../../../examples/btree_scan.c"),
    ),
    API.0,
    API.1,
];
const GRAPH_WALK: Sources = &[
    (
        "graph_walk.c",
        include_str!("../../../../examples/graph_walk.c"),
    ),
    API.0,
    API.1,
];
const API: ((&str, &str), (&str, &str)) = (
    ("canvas-api.c", include_str!("../../../../api/canvas-api.c")),
    ("canvas.h", include_str!("../../../../api/canvas.h")),
);
const NODES: Sources = &[("Nodes.java", include_str!("java/Nodes.java"))];

/// Language of a program.
#[derive(Clone, Copy)]
enum Written {
    C(Sources),
    Python,
    Java,
}

/// A program that prints the time of each round.
struct Rounds {
    name: &'static str,
    about: &'static str,
    written: Written,
    /// Arguments for a size in MiB.
    args: fn(u64, &Place) -> Vec<String>,
    /// Rounds before the measured ones, in which the order is learned, or memory is still local.
    learn: usize,
}

const fn linked(name: &'static str, about: &'static str, written: Written) -> Rounds {
    Rounds {
        name,
        about,
        written,
        args: |_, _| Vec::new(),
        learn: 2,
    }
}

const ALL: [Rounds; 8] = [
    Rounds {
        args: |mib, place| structure("list", mib, place),
        ..linked(
            "linked-list",
            "a list in C with nodes of a page each, in random order",
            Written::C(LINKED),
        )
    },
    Rounds {
        args: |mib, place| structure("tree", mib, place),
        ..linked(
            "linked-tree",
            "a tree in C with nodes of a page each, in random order",
            Written::C(LINKED),
        )
    },
    Rounds {
        args: |mib, _| vec![(mib * (1 << 20) / PYTHON_BYTES).to_string(), ROUNDS.into()],
        ..linked(
            "linked-python",
            "objects of Python that are linked in any order",
            Written::Python,
        )
    },
    Rounds {
        args: |mib, _| collection("list", mib),
        ..linked(
            "java-linkedlist",
            "a LinkedList of Java in any order",
            Written::Java,
        )
    },
    Rounds {
        args: |mib, _| collection("hash", mib),
        ..linked(
            "java-hashmap",
            "a HashMap of Java in any order",
            Written::Java,
        )
    },
    Rounds {
        args: |mib, _| collection("tree", mib),
        ..linked(
            "java-treemap",
            "a TreeMap of Java in any order",
            Written::Java,
        )
    },
    Rounds {
        name: "btree-scan",
        about: "examples/btree_scan.c: scans of a B+ tree with scattered leaves, with or without hints",
        written: Written::C(BTREE_SCAN),
        args: |mib, _| vec![mib.to_string(), "4".into()],
        learn: 1,
    },
    Rounds {
        name: "graph-walk",
        about: "examples/graph_walk.c: random walkers on a graph, with hints or without",
        written: Written::C(GRAPH_WALK),
        args: |mib, _| vec![mib.to_string(), (STEPS_A_MIB * mib).to_string()],
        learn: 0,
    },
];

/// Arguments of the C program.
fn structure(kind: &str, mib: u64, place: &Place) -> Vec<String> {
    let (mib, seed) = (mib.to_string(), (place.seed % (1 << 32)).to_string());
    [kind, &mib, NODE_BYTES, ROUNDS, &seed]
        .map(String::from)
        .into()
}

/// Arguments of the Java program.
fn collection(kind: &str, mib: u64) -> Vec<String> {
    let count = (mib * (1 << 20) / JAVA_BYTES).to_string();
    [kind, &count, ROUNDS].map(String::from).into()
}

/// All such programs.
pub fn all() -> Vec<Box<dyn Workload>> {
    let boxed = |r| Box::new(r) as Box<dyn Workload>;
    ALL.into_iter().map(boxed).collect()
}

/// Time in a line "round 3: 12.5 ms".
fn round_ms(line: &str) -> Option<f64> {
    let (_, time) = line.strip_prefix("round ")?.split_once(": ")?;
    time.strip_suffix(" ms")?.parse().ok()
}

fn java() -> Result<PathBuf, WorkloadError> {
    tools::java_home(17..=99, true)
}

/// A directory for each version of the sources.
fn home(place: &Place, sources: Sources) -> PathBuf {
    let all: String = sources.iter().map(|(_, text)| *text).collect();
    let sum = files::sha256(all.as_bytes());
    place.cache.join(format!("rounds-{}", &sum[..12]))
}

fn write_all(dir: &Path, sources: Sources) -> Result<(), WorkloadError> {
    files::make_dir(dir)?;
    let mut all = sources.iter();
    all.try_for_each(|(name, text)| files::write(&dir.join(name), text.as_bytes()))
}

impl Workload for Rounds {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        match self.written {
            Written::C(_) => tools::missing("cc", "gcc"),
            Written::Python => tools::missing("python3", "python3"),
            Written::Java => java().err(),
        }
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        let (sources, mut compiler) = match self.written {
            Written::Python => return python::prepare_scripts(place),
            Written::C(sources) => (sources, Command::new(tools::need("cc", "gcc")?)),
            Written::Java => (NODES, Command::new(java()?.join("bin/javac"))),
        };
        files::produce(&home(place, sources), |dir| {
            write_all(dir, sources)?;
            compiler.current_dir(dir);
            let is_code = |name: &&str| Path::new(name).extension().is_none_or(|e| e != "h");
            compiler.args(sources.iter().map(|(name, _)| *name).filter(is_code));
            if let Written::C(_) = self.written {
                compiler.args(["-O2", "-I.", "-o", "program", "-ldl"]);
            }
            files::run(&mut compiler)
        })
        .map(|_| ())
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let mib = scaled(place, 64, 16);
        let mut argv = match self.written {
            Written::C(sources) => vec![text(&home(place, sources).join("program"))],
            Written::Python => vec![
                text(&tools::need("python3", "python3")?),
                text(&python::script(place, "linked.py")),
            ],
            Written::Java => vec![
                text(&java()?.join("bin/java")),
                "-XX:-UsePerfData".into(),
                "-XX:+UseSerialGC".into(),
                format!("-Xms{}m", 2 * mib),
                format!("-Xmx{}m", 2 * mib),
                "-cp".into(),
                text(&home(place, NODES)),
                "Nodes".into(),
            ],
        };
        argv.extend((self.args)(mib, place));
        Ok(Plan::Program(Argv {
            argv,
            env: vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())],
        }))
    }

    fn answer(&self, output: &str, log: &str) -> Option<Answer> {
        let lines = output.lines().chain(log.lines());
        let times: Vec<f64> = lines.filter_map(round_ms).collect();
        let counted = times.get(self.learn..).filter(|t| !t.is_empty());
        let others = output.lines().filter(|l| round_ms(l).is_none());
        Some(Answer {
            answer: others.collect::<Vec<_>>().join("; "),
            seconds: Some(median(counted?)? / 1e3),
            ..Answer::default()
        })
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_in_which_the_order_is_learnt_do_not_count() {
        let output = "ready\nround 0: 900.0 ms\nround 1: 800.0 ms\nround 2: 10.0 ms\nround 3: 30.0 ms\nsum a\n";
        let told = ALL[0].answer(output, "").unwrap();
        assert_eq!(
            (told.answer.as_str(), told.seconds),
            ("ready; sum a", Some(0.02))
        );
        assert_eq!(ALL[0].answer("ready\nround 0: 900.0 ms\n", ""), None);
        let hinted = ALL[7]
            .answer("sum b\n", "round 0: 5.0 ms\ncanvas is here\n")
            .unwrap();
        assert_eq!(
            (hinted.answer.as_str(), hinted.seconds),
            ("sum b", Some(0.005))
        );
    }
}
