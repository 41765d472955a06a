//! Python environments with pinned packages from PyPI, the bench's scripts, and the data they generate.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::WorkloadError;
use super::files;
use super::tools;
use crate::workload::{Argv, Place};

const SCRIPTS: [(&str, &str); 12] = [
    ("linked.py", include_str!("scripts/linked.py")),
    ("load.py", include_str!("scripts/load.py")),
    ("make_data.py", include_str!("scripts/make_data.py")),
    ("protocol.py", include_str!("../../../guests/protocol.py")),
    (
        "redis_benchmark.py",
        include_str!("scripts/redis_benchmark.py"),
    ),
    (
        "redis_recovery.py",
        include_str!("scripts/redis_recovery.py"),
    ),
    (
        "sklearn_kmeans.py",
        include_str!("scripts/sklearn_kmeans.py"),
    ),
    ("spark_common.py", include_str!("scripts/spark_common.py")),
    ("spark_graph.py", include_str!("scripts/spark_graph.py")),
    ("spark_ml.py", include_str!("scripts/spark_ml.py")),
    ("xgboost_higgs.py", include_str!("scripts/xgboost_higgs.py")),
    ("ycsb.py", include_str!("scripts/ycsb.py")),
];

/// A set of packages. Lists all packages to install: pip adds no dependencies (XGBoost's would include a GPU
/// library of 200 MB).
pub struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
    /// Disk space needed to download, unpack and install.
    needs_bytes: u64,
}

/// XGBoost and scikit-learn.
pub const LEARN: Environment = Environment {
    name: "learn",
    packages: &[
        "numpy==1.26.4",
        "scipy==1.14.1",
        "joblib==1.4.2",
        "threadpoolctl==3.5.0",
        "scikit-learn==1.5.2",
        "xgboost==2.1.3",
    ],
    needs_bytes: 1500 << 20,
};

/// Spark.
pub const SPARK: Environment = Environment {
    name: "spark",
    packages: &["numpy==1.26.4", "py4j==0.10.9.7", "pyspark==3.5.3"],
    needs_bytes: 1800 << 20,
};

impl Environment {
    /// A directory for each set of versions.
    fn home(&self, place: &Place) -> PathBuf {
        let sum = files::sha256(self.packages.join(" ").as_bytes());
        place
            .cache
            .join(format!("python-{}-{}", self.name, &sum[..12]))
    }

    /// A marker written last: an environment without it is incomplete. Environments cannot be renamed when
    /// complete, because they contain their own path.
    fn ready(&self, place: &Place) -> PathBuf {
        self.home(place).join("ready")
    }

    /// Path of its interpreter; valid after `prepare`.
    pub fn python(&self, place: &Place) -> PathBuf {
        self.home(place).join("bin/python")
    }

    /// Reason why it cannot be installed.
    pub fn missing(&self, place: &Place) -> Option<WorkloadError> {
        if self.ready(place).exists() {
            return None;
        }
        tools::python().err()
    }

    /// Installs it; does nothing the second time.
    pub fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let home = self.home(place);
        files::produce(&self.ready(place), |ready| {
            files::need_free(&place.cache, self.needs_bytes)?;
            files::run(
                Command::new(tools::python()?)
                    .args(["-m", "venv", "--clear"])
                    .arg(&home),
            )?;
            files::run(
                Command::new(self.python(place))
                    .args(["-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir"])
                    .args(["--disable-pip-version-check"])
                    .args(self.packages),
            )
            .map_err(|e| WorkloadError::Install {
                packages: self.packages.join(", "),
                source: Box::new(e),
            })?;
            files::write(ready, self.packages.join(" ").as_bytes())
        })
        .map(|_| ())
    }

    /// Command line of a script with its arguments.
    pub fn program(&self, place: &Place, name: &str, args: &[String]) -> Argv {
        let mut argv = vec![text(&self.python(place)), text(&script(place, name))];
        argv.extend_from_slice(args);
        let env = [
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONHASHSEED", "0"),
            ("OMP_NUM_THREADS", "2"),
            ("OPENBLAS_NUM_THREADS", "1"),
        ];
        Argv {
            argv,
            env: env.map(|(k, v)| (k.into(), v.into())).into(),
        }
    }

    /// Has `make_data.py KIND FILE COUNT SEED` generate a file of about `bytes`; returns its path.
    pub fn data(
        &self,
        place: &Place,
        kind: &str,
        count: u64,
        bytes: u64,
    ) -> Result<PathBuf, WorkloadError> {
        files::produce(&data_path(place, kind, count), |tmp| {
            files::need_free(&place.cache, bytes)?;
            files::run(
                Command::new(self.python(place))
                    .arg(script(place, "make_data.py"))
                    .arg(kind)
                    .arg(tmp)
                    .args([count.to_string(), place.seed.to_string()])
                    .env("PYTHONDONTWRITEBYTECODE", "1"),
            )
        })
    }
}

/// Path of the file that [`Environment::data`] makes; differs with every parameter.
pub fn data_path(place: &Place, kind: &str, count: u64) -> PathBuf {
    let sum = files::sha256(include_str!("scripts/make_data.py").as_bytes());
    place.cache.join("data").join(format!(
        "{kind}-{count}-seed{}-{}.bin",
        place.seed,
        &sum[..8]
    ))
}

fn scripts_home(place: &Place) -> PathBuf {
    let all: String = SCRIPTS.iter().flat_map(|(n, t)| [*n, *t]).collect();
    let sum = files::sha256(all.as_bytes());
    place.cache.join(format!("scripts-{}", &sum[..12]))
}

/// Path of a script in the cache; valid after [`prepare_scripts`].
pub fn script(place: &Place, name: &str) -> PathBuf {
    scripts_home(place).join(name)
}

/// Writes all scripts into the cache; does nothing the second time.
pub fn prepare_scripts(place: &Place) -> Result<(), WorkloadError> {
    files::produce(&scripts_home(place), |dir| {
        files::make_dir(dir)?;
        SCRIPTS
            .iter()
            .try_for_each(|(name, text)| files::write(&dir.join(name), text.as_bytes()))
    })
    .map(|_| ())
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
