//! Experiments: each asserts what is promised and returns its figures as text.

pub mod balance;
pub mod contention;
pub mod erasure;
pub mod failures;
pub mod pressure;
pub mod slabs;
pub mod utilization;

/// Scale of the experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Takes seconds.
    Short,
    /// Takes minutes; up to 10,000 hosts.
    Full,
    /// This number of hosts; experiments of fixed size are short.
    Hosts(usize),
}

/// Mean and standard deviation.
pub fn spread(values: &[f64]) -> (f64, f64) {
    assert!(!values.is_empty());
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}
