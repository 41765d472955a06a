//! All workloads that this build knows.

use crate::workload::Workload;
use crate::{builtin, external};

/// Every workload, by the order in which lists show them.
pub fn workloads() -> Vec<Box<dyn Workload>> {
    let mut all = builtin::all();
    all.extend(external::all());
    all
}

/// The workload of this name.
pub fn find<'a>(all: &'a [Box<dyn Workload>], name: &str) -> Option<&'a dyn Workload> {
    all.iter().find(|w| w.name() == name).map(Box::as_ref)
}
