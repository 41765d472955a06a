//! Rates between two samples of a run.

use canvas_shm::histogram::{BUCKETS, quantile_ns};
use serde::Serialize;

use canvas_control::features::Features;
use canvas_control::wire::{Donor, Stat};

/// Rates over an interval, and levels at its end.
#[derive(Serialize, Clone, Debug)]
pub struct Rates {
    /// `canvas-stat/1`.
    pub schema: &'static str,
    pub tenant: String,
    pub pid: u32,
    /// End of the interval, in seconds since 1970.
    pub unix_s: f64,
    pub interval_s: f64,
    pub faults_first_touch_per_s: f64,
    pub faults_cache_per_s: f64,
    pub faults_far_per_s: f64,
    pub faults_beyond_pool_per_s: f64,
    pub pages_in_per_s: f64,
    pub pages_out_per_s: f64,
    pub prefetch_hits_per_s: f64,
    pub hint_pages_in_per_s: f64,
    pub hint_pages_out_per_s: f64,
    pub hints_dropped_per_s: f64,
    /// Median and 99th percentile of the faults in the interval; `null` without any.
    pub fault_p50_ns: Option<u64>,
    pub fault_p99_ns: Option<u64>,
    pub local_bytes: u64,
    pub local_limit_bytes: Option<u64>,
    pub pool_bytes: u64,
    pub far_bytes: u64,
    pub remote_read_bytes_per_s: f64,
    pub remote_written_bytes_per_s: f64,
    pub healthy: bool,
    /// `null` without far memory.
    pub weight: Option<u32>,
    pub swap_in_limit_bytes_per_s: Option<u64>,
    pub swap_out_limit_bytes_per_s: Option<u64>,
    /// Limit on the pool in effect: `--pool`, or the part of it that the host's agent grants.
    pub pool_limit_bytes: u64,
    /// `null` if the host's agent limits no pools.
    pub pool_grant_bytes: Option<u64>,
    /// Resident shared memory.
    pub shared_bytes: u64,
    /// Limit on it in effect; `null` without `--shared`.
    pub shared_limit_bytes: Option<u64>,
    /// `null` if the host's agent does not limit shared memory.
    pub shared_grant_bytes: Option<u64>,
    /// Page features of the interval.
    pub features: Features,
    /// Pages brought back ahead of need in the interval, by their source.
    pub ahead: Ahead,
    /// Its donors, at the end of the interval.
    pub donors: Vec<Donor>,
}

/// Pages brought back ahead of need per second, by their source.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Ahead {
    /// Low tier: streams and trends, and neighbours in groups.
    pub streams_per_s: f64,
    pub nearby_per_s: f64,
    /// Application tier: deltas of a thread in an array; links and references, each with those that
    /// were used.
    pub arrays_per_s: f64,
    pub links_per_s: f64,
    pub links_used_per_s: f64,
    pub refs_per_s: f64,
    pub refs_used_per_s: f64,
    /// Because of the program's hints; of a recording; of free memory.
    pub hints_per_s: f64,
    pub learnt_per_s: f64,
    pub proactive_per_s: f64,
    /// Faults passed to the application tier, and those of threads that are excluded from it.
    pub forwarded_per_s: f64,
    pub kept_out_per_s: f64,
}

impl Ahead {
    /// From the counters' rates by name.
    fn of(counter: impl Fn(&str) -> f64) -> Ahead {
        let (nearby, arrays) = (
            counter("prefetch_issued_nearby"),
            counter("app_issued_arrays"),
        );
        Ahead {
            streams_per_s: (counter("prefetch_issued") - nearby - arrays).max(0.0),
            nearby_per_s: nearby,
            arrays_per_s: arrays,
            links_per_s: counter("app_issued_links"),
            links_used_per_s: counter("app_used_links"),
            refs_per_s: counter("app_issued_refs"),
            refs_used_per_s: counter("app_used_refs"),
            hints_per_s: counter("hint_pages_in"),
            learnt_per_s: counter("learn_pages_in"),
            proactive_per_s: counter("pages_in_proactive"),
            forwarded_per_s: counter("app_faults_forwarded"),
            kept_out_per_s: counter("app_faults_kept_out"),
        }
    }

    /// In the order of the columns of `canvas stat --prefetch` and `canvas top`.
    pub fn cells(&self) -> [f64; 12] {
        [
            self.streams_per_s,
            self.nearby_per_s,
            self.forwarded_per_s,
            self.kept_out_per_s,
            self.arrays_per_s,
            self.links_per_s,
            self.links_used_per_s,
            self.refs_per_s,
            self.refs_used_per_s,
            self.hints_per_s,
            self.learnt_per_s,
            self.proactive_per_s,
        ]
    }
}

impl Rates {
    /// From two samples of the same run; `None` if they are not.
    pub fn between(before: &Stat, after: &Stat, unix_s: f64) -> Option<Rates> {
        let ns = after.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)?;
        let interval_s = ns as f64 / 1e9;
        // Rounded to a thousandth.
        let rate = |n: u64| (n as f64 / interval_s * 1e3).round() / 1e3;
        let counter = |name: &str| {
            let of = |s: &Stat| s.counters.get(name).copied().unwrap_or(0);
            rate(of(after).saturating_sub(of(before)))
        };
        let remote = |of: fn(&canvas_control::wire::Far) -> u64| {
            let of = |s: &Stat| s.status.far.as_ref().map_or(0, of);
            rate(of(after).saturating_sub(of(before)))
        };
        let mut faults = [0; BUCKETS];
        for (i, n) in faults.iter_mut().enumerate() {
            let of = |s: &Stat| s.fault_ns.get(i).copied().unwrap_or(0);
            *n = of(after).saturating_sub(of(before));
        }
        let any = faults.iter().any(|n| *n > 0);
        // The middle of a bucket can exceed the largest value.
        let quantile = |per_mille| {
            let ns = quantile_ns(&faults, per_mille);
            any.then(|| ns.min(after.fault_ns_max.max(1)))
        };
        let (used, limits) = (&after.status.used, &after.status.limits);
        Some(Rates {
            schema: "canvas-stat/1",
            tenant: after.status.tenant.clone(),
            pid: after.status.pid,
            unix_s,
            interval_s: (interval_s * 1e3).round() / 1e3,
            faults_first_touch_per_s: counter("faults_first_touch"),
            faults_cache_per_s: counter("cache_hits_victim"),
            faults_far_per_s: counter("faults_far"),
            faults_beyond_pool_per_s: counter("faults_beyond_pool"),
            pages_in_per_s: counter("pages_in"),
            pages_out_per_s: counter("pages_out"),
            prefetch_hits_per_s: counter("prefetch_used"),
            hint_pages_in_per_s: counter("hint_pages_in"),
            hint_pages_out_per_s: counter("hint_pages_out"),
            hints_dropped_per_s: counter("hints_dropped"),
            fault_p50_ns: quantile(500),
            fault_p99_ns: quantile(990),
            local_bytes: used.local_bytes,
            local_limit_bytes: limits.local_effective_bytes,
            pool_bytes: used.pool_bytes,
            far_bytes: used.far_bytes,
            remote_read_bytes_per_s: remote(|f| f.bytes_in),
            remote_written_bytes_per_s: remote(|f| f.bytes_out),
            healthy: after.status.healthy,
            weight: after.status.limits.weight,
            swap_in_limit_bytes_per_s: after.status.limits.swap_in_limit_bytes_per_s,
            swap_out_limit_bytes_per_s: after.status.limits.swap_out_limit_bytes_per_s,
            pool_limit_bytes: limits.pool_now_bytes(),
            pool_grant_bytes: limits.pool_grant_bytes,
            shared_bytes: used.shared_bytes,
            shared_limit_bytes: limits.shared_now_bytes(),
            shared_grant_bytes: limits.shared_grant_bytes,
            features: after.features.since(&before.features).features(ns),
            ahead: Ahead::of(counter),
            donors: after.status.donors.clone(),
        })
    }
}

/// The time in seconds since 1970, to a millisecond.
pub fn unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as f64 / 1e3
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use canvas_shm::histogram::bucket_of;

    /// A sample with `n` in every rate, `bytes` in every level, and every feature at its extreme.
    pub fn rates(tenant: &str, n: f64, bytes: u64) -> Rates {
        let looks = [stat(1_000_000_000), stat(2_000_000_000)];
        Rates {
            tenant: tenant.to_owned(),
            pid: 4_194_303,
            faults_first_touch_per_s: n,
            faults_cache_per_s: n,
            faults_far_per_s: n,
            faults_beyond_pool_per_s: n,
            pages_in_per_s: n,
            pages_out_per_s: n,
            prefetch_hits_per_s: n,
            fault_p50_ns: Some(n as u64),
            fault_p99_ns: Some(n as u64 * 1000),
            local_bytes: bytes,
            pool_bytes: bytes,
            far_bytes: bytes,
            remote_read_bytes_per_s: n,
            remote_written_bytes_per_s: n * 1e6,
            features: Features {
                compression: Some(4096.0),
                slowdown: Some(100.0),
                hot_ratio: Some(1.0),
                ..Features::default()
            },
            ahead: Ahead::of(|_| n),
            ..Rates::between(&looks[0], &looks[1], 0.0).unwrap()
        }
    }

    fn stat(at_ns: u64) -> Stat {
        let text = format!(
            r#"{{"at_ns":{at_ns},"counters":{{}},"fault_ns":[],"fault_ns_max":0,"status":{{
            "schema":"canvas-status/1","tenant":"t","pid":1,"program":"p","canvas_version":"0",
            "uptime_s":1.0,"mode":null,"healthy":true,"health":[],"processes":[],"far":null,"donors":[],
            "limits":{{"local_bytes":null,"local_percent":null,"local_effective_bytes":null,
            "pool_bytes":0,"far_bytes":null,"spill_at_percent":null,"far_wait_ms":null,"prefetch":"none"}},
            "used":{{"local_bytes":7,"resident_bytes":0,"cache_bytes":0,"native_bytes":0,
            "far_pages_bytes":0,"pool_bytes":0,"far_bytes":0,"footprint_bytes":0}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn differences_over_the_time_between() {
        let (mut a, mut b) = (stat(1_000_000_000), stat(3_000_000_000));
        a.counters.insert("faults_far".to_owned(), 10);
        b.counters.insert("faults_far".to_owned(), 15);
        b.counters.insert("pages_out".to_owned(), 4);
        for (name, n) in [
            ("prefetch_issued", 100),
            ("prefetch_issued_nearby", 20),
            ("app_issued_arrays", 30),
            ("app_used_refs", 8),
            ("learn_pages_in", 12),
        ] {
            b.counters.insert(name.to_owned(), n);
        }
        a.fault_ns = vec![0; BUCKETS];
        a.fault_ns[bucket_of(1_000_000)] = 1000;
        b.fault_ns = a.fault_ns.clone();
        b.fault_ns[bucket_of(4000)] = 98;
        b.fault_ns[bucket_of(100_000)] = 2;
        b.fault_ns_max = 1 << 30;
        let r = Rates::between(&a, &b, 0.0).unwrap();
        assert_eq!(
            (r.faults_far_per_s, r.pages_out_per_s, r.interval_s),
            (2.5, 2.0, 2.0)
        );
        assert_eq!(
            r.ahead.cells(),
            [
                25.0, 10.0, 0.0, 0.0, 15.0, 0.0, 0.0, 0.0, 4.0, 0.0, 6.0, 0.0
            ]
        );
        let (p50, p99) = (r.fault_p50_ns.unwrap(), r.fault_p99_ns.unwrap());
        assert!(
            (3500..4600).contains(&p50),
            "{p50}: the earlier faults do not count"
        );
        assert!((90_000..120_000).contains(&p99), "{p99}");
        assert_eq!(Rates::between(&b, &b, 0.0).map(|r| r.pid), None);
        assert_eq!(
            Rates::between(&a, &stat(2_000_000_000), 0.0)
                .unwrap()
                .fault_p50_ns,
            None
        );
    }
}
