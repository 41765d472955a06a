//! All workloads that this build knows.

use crate::workload::Workload;

/// Every workload, by the order in which lists show them.
pub fn workloads() -> Vec<Box<dyn Workload>> {
    Vec::new()
}

/// The workload of this name.
pub fn find<'a>(all: &'a [Box<dyn Workload>], name: &str) -> Option<&'a dyn Workload> {
    all.iter().find(|w| w.name() == name).map(Box::as_ref)
}
