//! External programs: redis and memcached under YCSB, XGBoost, scikit-learn, Spark, Java.
//!
//! Servers and Java come from the system. `prepare` downloads pinned Python packages (PyPI) and jars (Maven
//! Central) once into the cache, and generates data there from the seed. The workloads' programs are scripts
//! in `scripts/` and, for YCSB, classes in `java/`.

pub(crate) mod error;
mod files;
mod jars;
mod learn;
mod load;
mod pager;
mod python;
mod recovery;
mod rounds;
mod spark;
mod tight;
pub(crate) mod tools;
mod ycsb;

#[cfg(test)]
mod tests;

use crate::workload::{Place, Workload};

/// All external workloads.
pub fn all() -> Vec<Box<dyn Workload>> {
    let mut all = ycsb::all();
    all.extend(learn::all());
    all.extend(spark::all());
    all.extend(pager::all());
    all.extend(tight::all());
    all.extend(recovery::all());
    all.extend(rounds::all());
    all.extend(load::all());
    all
}

/// `at_one` scaled, but never below `least`.
fn scaled(place: &Place, at_one: u64, least: u64) -> u64 {
    ((at_one as f64 * place.scale) as u64).max(least)
}

/// Timeout of a run in seconds: swapping to a disk may be a hundred times slower.
fn patience_s(place: &Place) -> u64 {
    600 + scaled(place, 1800, 0)
}
