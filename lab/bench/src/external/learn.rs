//! Machine learning in Python: XGBoost, scikit-learn.

use super::error::WorkloadError;
use super::files;
use super::python::{self, LEARN};
use super::{patience_s, scaled};
use crate::workload::{Place, Plan, Workload};

/// A program over one generated file of rows.
struct Learn {
    name: &'static str,
    about: &'static str,
    script: &'static str,
    /// Kind of data, as in make_data.py.
    data: &'static str,
    rows_at_one: u64,
    row_bytes: u64,
    /// Arguments after the file's name.
    args: fn(&Place) -> Vec<String>,
}

/// XGBoost and KMeans.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Learn {
            name: "xgboost",
            about: "XGBoost, histogram trees, 2 threads, on HIGGS-shaped data (28 features)",
            script: "xgboost_higgs.py",
            data: "higgs",
            rows_at_one: 1_000_000,
            row_bytes: 29 * 4,
            args: |_| vec!["20".into()],
        }),
        Box::new(Learn {
            name: "sklearn-kmeans",
            about: "scikit-learn's KMeans, 2 threads, 16 clusters of points with 32 features",
            script: "sklearn_kmeans.py",
            data: "blobs",
            rows_at_one: 3_000_000,
            row_bytes: 32 * 4,
            args: |place| vec!["20".into(), (place.seed % (1 << 32)).to_string()],
        }),
    ]
}

impl Learn {
    fn rows(&self, place: &Place) -> u64 {
        scaled(place, self.rows_at_one, 5_000)
    }
}

impl Workload for Learn {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn missing(&self, place: &Place) -> Option<WorkloadError> {
        LEARN.missing(place)
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)?;
        LEARN.prepare(place)?;
        let rows = self.rows(place);
        LEARN
            .data(place, self.data, rows, rows * self.row_bytes)
            .map(|_| ())
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        let file = python::data_path(place, self.data, self.rows(place));
        let mut args = vec![python::text(&file)];
        args.extend((self.args)(place));
        Ok(Plan::Program(LEARN.program(place, self.script, &args)))
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
