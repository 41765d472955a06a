//! Experiments: each asserts what is promised and gives its figures as text.

pub mod balance;
pub mod contention;
pub mod erasure;
pub mod failures;
pub mod pressure;
pub mod slabs;
pub mod utilization;

/// How large experiments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Seconds in all.
    Short,
    /// Minutes, up to 10,000 hosts.
    Full,
    /// So many hosts; experiments that are of fixed size are short.
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
