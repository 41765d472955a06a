//! Spark on `local[2]`, driven from Python.

use super::error::WorkloadError;
use super::files;
use super::python::{self, SPARK};
use super::tools;
use super::{patience_s, scaled};
use crate::workload::{Place, Plan, Workload};

/// Input of the program.
enum Over {
    /// Rows that Spark generates from the seed.
    Rows,
    /// A file of edges with this number of vertices at scale 1.
    Graph(u64),
}

/// A program on Spark.
struct Spark {
    name: &'static str,
    about: &'static str,
    /// Name of the program in the script.
    work: &'static str,
    over: Over,
}

const fn rows(name: &'static str, work: &'static str, about: &'static str) -> Spark {
    Spark {
        name,
        about,
        work,
        over: Over::Rows,
    }
}

const fn graph(
    name: &'static str,
    work: &'static str,
    vertices: u64,
    about: &'static str,
) -> Spark {
    Spark {
        name,
        about,
        work,
        over: Over::Graph(vertices),
    }
}

const ALL: [Spark; 8] = [
    rows(
        "spark-lr",
        "lr",
        "Spark ML logistic regression, 20 features, 20 rounds",
    ),
    rows(
        "spark-kmeans",
        "kmeans",
        "Spark ML KMeans, 20 features, 10 clusters",
    ),
    rows(
        "spark-bayes",
        "bayes",
        "Spark ML multinomial naive Bayes over bags of words, 20 classes",
    ),
    rows(
        "spark-skewed-groupby",
        "skewed-groupby",
        "Spark: all values of each key together, one key has a sixth of the rows",
    ),
    graph(
        "spark-pagerank",
        "pagerank",
        65_536,
        "GraphX PageRank (called by way of Py4J), RMAT graph, 8 rounds",
    ),
    graph(
        "spark-cc",
        "cc",
        131_072,
        "GraphX connected components (by way of Py4J), RMAT graph",
    ),
    graph(
        "spark-sssp",
        "sssp",
        65_536,
        "GraphX shortest paths to three vertices (by way of Py4J), RMAT graph",
    ),
    graph(
        "spark-triangles",
        "triangles",
        65_536,
        "GraphX triangle counting (by way of Py4J), RMAT graph",
    ),
];

/// All programs on Spark.
pub fn all() -> Vec<Box<dyn Workload>> {
    ALL.into_iter()
        .map(|s| Box::new(s) as Box<dyn Workload>)
        .collect()
}

/// Heap of the JVM in MiB; Spark refuses less than 450 MiB.
fn heap_mib(place: &Place) -> u64 {
    (300 + scaled(place, 600, 0)).max(512)
}

/// Spark 3.5 runs on Java 8 to 17, and on 21.
fn java() -> Result<std::path::PathBuf, WorkloadError> {
    tools::java_home(8..=21, false)
}

impl Spark {
    /// Number of vertices of the graph (a power of two), and the approximate size of its file.
    fn graph(&self, place: &Place) -> Option<(u64, u64)> {
        match self.over {
            Over::Rows => None,
            Over::Graph(at_one) => {
                let vertices = scaled(place, at_one, 1024).next_power_of_two();
                Some((vertices, vertices * 8 * 14))
            }
        }
    }
}

impl Workload for Spark {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn missing(&self, place: &Place) -> Option<WorkloadError> {
        java().err().or_else(|| SPARK.missing(place))
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)?;
        SPARK.prepare(place)?;
        match self.graph(place) {
            Some((vertices, bytes)) => SPARK.data(place, "edges", vertices, bytes).map(|_| ()),
            None => Ok(()),
        }
    }

    fn plan(&self, place: &Place, run: u32) -> Result<Plan, WorkloadError> {
        let scratch = place.scratch.join(format!("{}-{run}", self.name));
        files::fresh_dir(&scratch)?;
        let scratch = python::text(&scratch);
        let (script, data) = match self.graph(place) {
            Some((vertices, _)) => {
                let file = python::data_path(place, "edges", vertices);
                ("spark_graph.py", python::text(&file))
            }
            None => ("spark_ml.py", place.scale.to_string()),
        };
        let args = [
            self.work.into(),
            data,
            // Spark's seed must fit a signed 32-bit number.
            (place.seed % (1 << 31)).to_string(),
            format!("{}m", heap_mib(place)),
            scratch.clone(),
        ];
        let mut program = SPARK.program(place, script, &args);
        program.env.extend([
            ("JAVA_HOME".into(), python::text(&java()?)),
            // Avoids files in /tmp/hsperfdata_USER.
            ("SPARK_LAUNCHER_OPTS".into(), "-XX:-UsePerfData".into()),
            ("SPARK_LOCAL_IP".into(), "127.0.0.1".into()),
            ("SPARK_LOCAL_DIRS".into(), scratch.clone()),
            ("TMPDIR".into(), scratch),
        ]);
        Ok(Plan::Program(program))
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
