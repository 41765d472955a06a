//! The output of a program, and its histograms of times.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Result of a run, printed as one JSON object. The bench parses it, from external programs and clients as
/// well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Summary of the computed result; depends on sizes and seed only.
    pub answer: String,
    /// Duration of the measured part, without making and checking the data. Absent if the bench should take
    /// the duration of the whole run.
    pub seconds: Option<f64>,
    /// Throughput of the measured part; lab/WORKLOADS.md has the unit of each program.
    pub ops_per_s: Option<f64>,
    /// Latency of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<Quantiles>,
    /// Histogram of the latency as (upper bound in ns, count).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_histogram: Vec<(u64, u64)>,
    /// Time of page-touching accesses, for a sample of them (lab/WORKLOADS.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_ns: Option<Quantiles>,
    /// Histogram of the access times as (upper bound in ns, count).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_histogram: Vec<(u64, u64)>,
    /// (seconds since the measurement began, operations per second), every 250 ms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<(f64, f64)>,
    /// Begin and end of the measured part, in seconds since 1970, for observers outside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_unix_s: Option<(f64, f64)>,
}

/// Quantiles of a distribution, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: Option<f64>,
    pub max: Option<f64>,
}

impl Output {
    /// Output of a fixed amount of work: `ops` operations in `seconds`.
    pub(crate) fn of_work(answer: String, ops: f64, seconds: f64) -> Output {
        Output {
            answer,
            // More digits would be noise.
            seconds: Some(round(seconds, 1e6)),
            ops_per_s: Some(round(ops / seconds.max(1e-9), 1e3)),
            ..Output::default()
        }
    }

    /// Adds the access times.
    pub(crate) fn with_accesses(mut self, times: &Times) -> Output {
        self.access_ns = times.quantiles();
        self.access_histogram = times.buckets();
        self
    }

    /// Adds the latencies of requests.
    pub(crate) fn with_times(mut self, times: &Times) -> Output {
        self.latency_ns = times.quantiles();
        self.latency_histogram = times.buckets();
        self
    }
}

/// Rounds `x` to a multiple of 1 / `parts`.
pub(crate) fn round(x: f64, parts: f64) -> f64 {
    (x * parts).round() / parts
}

/// Longest time that the histogram resolves: a minute.
const MAX_NS: u64 = 60_000_000_000;

/// Histogram of times in ns, with 16 buckets per power of two.
pub(crate) struct Times(Histogram<u64>);

impl Times {
    pub(crate) fn new() -> Times {
        // One significant digit is 16 buckets per octave. The bounds are valid constants.
        Times(Histogram::new_with_bounds(1, MAX_NS, 1).expect("bounds in order"))
    }

    #[inline]
    pub(crate) fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    pub(crate) fn merge(&mut self, other: &Times) {
        self.0.add(&other.0).expect("the same bounds");
    }

    fn quantiles(&self) -> Option<Quantiles> {
        let at = |q| self.0.value_at_quantile(q) as f64;
        (!self.0.is_empty()).then(|| Quantiles {
            p50: at(0.5),
            p99: at(0.99),
            p999: Some(at(0.999)),
            max: Some(self.0.max() as f64),
        })
    }

    pub(crate) fn buckets(&self) -> Vec<(u64, u64)> {
        self.0
            .iter_recorded()
            .map(|b| {
                let upper = self.0.highest_equivalent(b.value_iterated_to());
                (upper, b.count_at_value())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_everything_and_quantiles_are_near() {
        let mut times = Times::new();
        for ns in 1..=10_000 {
            times.add(ns);
        }
        let mut more = Times::new();
        more.add(u64::MAX);
        times.merge(&more);
        let buckets = times.buckets();
        assert_eq!(buckets.iter().map(|b| b.1).sum::<u64>(), 10_001);
        assert!(buckets.windows(2).all(|w| w[0].0 < w[1].0), "{buckets:?}");
        let q = times.quantiles().unwrap();
        assert!((q.p50 - 5000.0).abs() < 400.0, "{q:?}");
        assert!((q.p99 - 9900.0).abs() < 800.0, "{q:?}");
        assert!(q.max.unwrap() >= MAX_NS as f64, "longer is the longest");
        assert_eq!(Times::new().quantiles(), None);
    }
}
