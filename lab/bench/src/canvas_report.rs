//! Parser of the report of `canvas run --stats` (docs/STATS.md) into a sample.

use serde_json::Value;

use crate::record::{Ahead, AppTier, Entries, Far, Held, Prefetch, Proactive, Quantiles, Sample};

fn number(v: &Value, path: &[&str]) -> Option<u64> {
    path.iter().try_fold(v, |v, key| v.get(key))?.as_u64()
}

/// Reason why a report does not prove a good run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// Not JSON; has the parser's message.
    #[error("canvas's report cannot be read: {0}")]
    Unreadable(String),
    /// The report has another schema.
    #[error("canvas's report has another schema; measure the canvas of this version")]
    OtherForm,
    /// Number of pages that came back damaged.
    #[error("{0} far copies did not verify")]
    Damaged(u64),
}

/// Copies the figures of the report in `text` into `sample`; leaves the sample unchanged when the report has
/// another schema. Fails if the report is not JSON, or lists damaged pages.
pub fn apply(text: &str, sample: &mut Sample) -> Result<(), ReportError> {
    let v: Value =
        serde_json::from_str(text).map_err(|e| ReportError::Unreadable(e.to_string()))?;
    if v["schema"] != "canvas-stats/1" {
        return Err(ReportError::OtherForm);
    }
    let get = |path: &[&str]| number(&v, path);
    sample.mode = v["mode"].as_str().map(str::to_owned);
    sample.faults = get(&["counters", "faults_far"]);
    sample.swap_in_pages = get(&["counters", "pages_in"]);
    sample.swap_out_pages = get(&["counters", "pages_out"]);
    sample.own_slowdown = v["features"]["slowdown"].as_f64();
    sample.memory_peak_bytes = get(&["memory", "local_bytes", "peak"]);
    sample.far_peak_bytes = get(&["memory", "pool_bytes", "peak"]);
    let held = |what| get(&["memory", what, "now"]);
    if let (Some(resident_bytes), Some(cache_bytes), Some(native_bytes)) = (
        held("resident_bytes"),
        held("cache_bytes"),
        held("native_bytes"),
    ) {
        sample.held = Some(Held {
            resident_bytes,
            cache_bytes,
            native_bytes,
            metadata_bytes: held("metadata_bytes"),
            segment_peak_bytes: get(&["memory", "segment_bytes", "peak"]).unwrap_or(0),
        });
    }
    if get(&["fault_time_ns", "count"]).is_some_and(|n| n > 0) {
        let q = |name| get(&["fault_time_ns", name]).map(|n| n as f64);
        if let (Some(p50), Some(p99)) = (q("p50"), q("p99")) {
            sample.fault_ns = Some(Quantiles {
                p50,
                p99,
                p999: q("p999"),
                max: q("max"),
            });
        }
        let buckets = v["fault_time_ns"]["histogram"].as_array();
        sample.fault_histogram = buckets
            .into_iter()
            .flatten()
            .filter_map(|b| Some((b.get(0)?.as_u64()?, b.get(1)?.as_u64()?)))
            .collect();
    }
    let counter = |name| get(&["counters", name]);
    if let (Some(issued), Some(used)) = (counter("prefetch_issued"), counter("prefetch_used")) {
        sample.prefetch = Some(Prefetch {
            issued,
            used,
            contribution: v["prefetch"]["contribution"].as_f64(),
            accuracy: v["prefetch"]["accuracy"].as_f64(),
        });
    }
    let asked = [
        counter("app_faults_forwarded"),
        counter("app_faults_kept_out"),
    ];
    if asked.iter().flatten().any(|n| *n > 0) {
        let of = |name| counter(name).unwrap_or_default();
        sample.app_tier = Some(AppTier {
            forwarded: of("app_faults_forwarded"),
            kept_out: of("app_faults_kept_out"),
            by_arrays: of("app_issued_arrays"),
            by_links: of("app_issued_links"),
            by_links_used: of("app_used_links"),
            by_refs: of("app_issued_refs"),
            by_refs_used: of("app_used_refs"),
        });
    }
    if let (Some(pages), Some(ns)) = (
        counter("pages_in_proactive").filter(|n| *n > 0),
        counter("pages_in_proactive_ns"),
    ) {
        let used = counter("pages_in_proactive_used").unwrap_or_default();
        sample.proactive = Some(Proactive { pages, ns, used });
    }
    let locked = counter("entry_allocs_locked");
    if let (Some(locked), Some(reserved)) = (locked, counter("entry_allocs_reserved")) {
        sample.entries = Some(Entries {
            locked,
            stocked: counter("entry_allocs_stocked").unwrap_or(0),
            reserved,
            dropped: counter("entry_reservations_dropped").unwrap_or(0),
        });
    }
    if let Some(far) = &mut sample.far {
        apply_far(&v, far);
    }
    match get(&["verify_failures"]) {
        Some(n) if n > 0 => Err(ReportError::Damaged(n)),
        _ => Ok(()),
    }
}

fn apply_far(v: &Value, far: &mut Far) {
    let get = |path: &[&str]| number(v, path);
    far.pages_demoted = get(&["counters", "pages_demoted"]);
    far.pages_promoted = get(&["counters", "pages_promoted"]);
    far.faults = get(&["counters", "faults_beyond_pool"]);
    far.reads = get(&["far", "reads"]);
    far.in_bytes = get(&["far", "bytes_in"]);
    far.extents_out = get(&["far", "extents_out"]);
    far.out_bytes = get(&["far", "bytes_out"]);
    far.failovers = get(&["far", "failovers"]);
    far.repairs = get(&["far", "repairs"]);
    // Reports of older versions have no times of reads ahead.
    if let Some(done) = get(&["far", "prefetch_time_ns", "count"]) {
        let q = |name| get(&["far", "prefetch_time_ns", name]).map(|n| n as f64);
        far.ahead = Some(Ahead {
            done,
            dropped: get(&["far", "dropped"]).unwrap_or_default(),
            promoted: get(&["far", "promoted"]).unwrap_or_default(),
            p50_ns: q("p50").filter(|_| done > 0),
            p90_ns: q("p90").filter(|_| done > 0),
        });
    }
    if get(&["far", "read_time_ns", "count"]).is_some_and(|n| n > 0) {
        let q = |name| get(&["far", "read_time_ns", name]).map(|n| n as f64);
        if let (Some(p50), Some(p99)) = (q("p50"), q("p99")) {
            far.read_ns = Some(Quantiles {
                p50,
                p99,
                p999: q("p999"),
                max: q("max"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_fields() {
        let text = r#"{"schema":"canvas-stats/1","mode":"signal","memory":{"local_bytes":{"now":1,"peak":2},
            "pool_bytes":{"now":3,"peak":4}},"fault_time_ns":{"count":5,"p50":6,"p90":7,"p99":8,"max":9,"histogram":[[6,3],[9,2]]},
            "prefetch":{"contribution":0.25,"accuracy":0.5},
            "counters":{"prefetch_issued":10,"prefetch_used":5,"entry_allocs_locked":11,
            "entry_allocs_stocked":7,"entry_allocs_reserved":12,"entry_reservations_dropped":3,
            "faults_far":15,"pages_in":20,"pages_out":30,"pages_in_proactive":4,
            "pages_in_proactive_ns":1000,"pages_in_proactive_used":32,
            "app_faults_forwarded":50,"app_faults_kept_out":51,"app_issued_arrays":52,"app_issued_links":53,
            "app_used_links":54,"app_issued_refs":55,"app_used_refs":56},"verify_failures":0}"#;
        let mut s = Sample::default();
        apply(text, &mut s).unwrap();
        assert_eq!(s.far, None, "not over donors");
        assert_eq!(s.mode.as_deref(), Some("signal"));
        assert_eq!(
            (s.faults, s.swap_in_pages, s.swap_out_pages),
            (Some(15), Some(20), Some(30))
        );
        assert_eq!((s.memory_peak_bytes, s.far_peak_bytes), (Some(2), Some(4)));
        let q = s.fault_ns.unwrap();
        assert_eq!((q.p50, q.p99, q.p999, q.max), (6.0, 8.0, None, Some(9.0)));
        assert_eq!(s.fault_histogram, [(6, 3), (9, 2)]);
        assert_eq!(s.prefetch.unwrap().accuracy, Some(0.5));
        let app = s.app_tier.unwrap();
        assert_eq!((app.forwarded, app.kept_out, app.by_arrays), (50, 51, 52));
        assert_eq!((app.by_links, app.by_links_used), (53, 54));
        assert_eq!((app.by_refs, app.by_refs_used), (55, 56));
        let entries = s.entries.unwrap();
        assert_eq!(
            (entries.stocked, entries.reserved, entries.dropped),
            (7, 12, 3)
        );
        let back = s.proactive.unwrap();
        assert_eq!((back.page_ns(), back.used), (Some(250.0), 32));
    }

    #[test]
    fn what_local_memory_held_becomes_fields() {
        let text = r#"{"schema":"canvas-stats/1","memory":{"resident_bytes":{"now":1,"peak":9},
            "cache_bytes":{"now":2,"peak":9},"native_bytes":{"now":3,"peak":9},
            "metadata_bytes":null,"segment_bytes":{"now":9,"peak":4}}}"#;
        let mut s = Sample::default();
        apply(text, &mut s).unwrap();
        let expected = Held {
            resident_bytes: 1,
            cache_bytes: 2,
            native_bytes: 3,
            metadata_bytes: None,
            segment_peak_bytes: 4,
        };
        assert_eq!(s.held, Some(expected));
        // Without a limit canvas does not manage memory, and reports only a few figures.
        let mut s = Sample::default();
        apply(r#"{"schema":"canvas-stats/1"}"#, &mut s).unwrap();
        assert_eq!(s.held, None);
    }

    #[test]
    fn far_memory_over_donors_becomes_fields() {
        let text = r#"{"schema":"canvas-stats/1","counters":{"pages_demoted":1,"pages_promoted":2,"faults_beyond_pool":3},
            "far":{"extents_out":4,"bytes_out":5,"reads":6,"bytes_in":7,"failovers":8,"repairs":9,
            "read_time_ns":{"count":3,"p50":10,"p90":11,"p99":12,"p999":13,"max":14,"histogram":[[10,3]]},
            "prefetch_time_ns":{"count":16,"p50":17,"p90":18,"p99":19,"p999":20,"max":21,"histogram":[[17,16]]},
            "dropped":22,"promoted":23}}"#;
        let before = Far {
            donors: 3,
            pool_bytes: 15,
            ..Far::default()
        };
        let mut s = Sample {
            far: Some(before),
            ..Sample::default()
        };
        apply(text, &mut s).unwrap();
        let expected = Far {
            pages_demoted: Some(1),
            pages_promoted: Some(2),
            faults: Some(3),
            extents_out: Some(4),
            out_bytes: Some(5),
            reads: Some(6),
            in_bytes: Some(7),
            failovers: Some(8),
            repairs: Some(9),
            read_ns: Some(Quantiles {
                p50: 10.0,
                p99: 12.0,
                p999: Some(13.0),
                max: Some(14.0),
            }),
            ahead: Some(Ahead {
                done: 16,
                dropped: 22,
                promoted: 23,
                p50_ns: Some(17.0),
                p90_ns: Some(18.0),
            }),
            ..before
        };
        assert_eq!(s.far, Some(expected));
        // A count of 0 gives no times.
        let none =
            r#"{"schema":"canvas-stats/1","far":{"prefetch_time_ns":{"count":0,"p50":0,"p90":0}}}"#;
        apply(none, &mut s).unwrap();
        assert_eq!(s.far.unwrap().ahead, Some(Ahead::default()));
    }

    #[test]
    fn damage_is_an_error() {
        let mut s = Sample::default();
        assert!(apply("{", &mut s).is_err());
        assert!(apply("{\"schema\":\"other\"}", &mut s).is_err());
        let bad = r#"{"schema":"canvas-stats/1","verify_failures":2}"#;
        assert_eq!(apply(bad, &mut s), Err(ReportError::Damaged(2)));
    }
}
