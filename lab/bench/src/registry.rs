//! Registry of all workloads.

use crate::workload::Workload;
use crate::{builtin, external};

/// All workloads, in the order of lists.
pub fn workloads() -> Vec<Box<dyn Workload>> {
    let mut all = builtin::all();
    all.extend(external::all());
    all
}

/// Finds a workload by name.
pub fn find<'a>(all: &'a [Box<dyn Workload>], name: &str) -> Option<&'a dyn Workload> {
    all.iter().find(|w| w.name() == name).map(Box::as_ref)
}
