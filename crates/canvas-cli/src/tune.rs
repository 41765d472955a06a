//! `canvas tune`: changes settings of runs, and reports what and why ([`canvas_place::tune`]
//! decides).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use canvas_control::names::Name;
use canvas_control::wire::Stat;
use canvas_host::HostMemory;
use canvas_place::replicas::Policy;
use canvas_place::tune::{Change, RunSample, Tuner, Verdict};
use canvas_types::exit;
use canvas_types::units::Size;
use serde::Serialize;

use crate::args::TuneArgs;
use crate::control::client::{Runs, Stats, nobody};
use crate::control::rates::unix_s;
use crate::error::Failure;
use crate::signals::stopped;
use crate::table::{Bytes, Count, Micros, plain, print};

/// This part of the host's memory does not count as spare, in percent.
const KEPT_PERCENT: u64 = 10;

/// Spare memory of this host; `None` if it is unknown.
pub fn spare_bytes() -> Option<u64> {
    let host = HostMemory::read(Path::new("/proc")).ok()?;
    let kept = host.total_bytes / 100 * KEPT_PERCENT;
    Some(host.available_bytes.saturating_sub(kept))
}

/// State of a run.
#[derive(Default)]
struct Tuned {
    tuner: Tuner,
    /// It refused donors, as it has none.
    no_donors: bool,
}

/// Output for a run in an interval.
#[derive(Serialize, Debug)]
struct Told {
    schema: &'static str,
    tenant: String,
    pid: u32,
    unix_s: f64,
    slowdown: Option<f64>,
    reads_per_s: f64,
    read_us_mean: Option<f64>,
    pool_bytes: u64,
    pool_limit_bytes: u64,
    copies: Option<String>,
    /// KEY=VALUE; `null` for no change.
    change: Option<String>,
    /// Whether it was made.
    is_done: bool,
    why: String,
}

/// Observes and changes runs until a signal comes or nothing runs any more.
pub fn run(args: &TuneArgs) -> Result<i32, Failure> {
    let signals = crate::signals::ends()
        .map_err(|e| Failure::usage(format!("signals cannot be read: {}", e.desc())))?;
    let wanted = args.tenant.as_deref();
    let mut before = Stats::told_by_runs(wanted);
    if before.is_empty() {
        return Err(nobody(wanted));
    }
    let mut known: BTreeMap<Name, Tuned> = BTreeMap::new();
    if !args.json {
        print(HEADER);
    }
    let mut next = Instant::now();
    loop {
        next += args.interval;
        let left = next.saturating_duration_since(Instant::now());
        if let Some(failure) = stopped(&signals, left) {
            return Ok(failure.code);
        }
        let now = Stats::told_by_runs(wanted);
        if now.is_empty() {
            return Ok(exit::OK);
        }
        for (name, stat) in &now {
            let Some(earlier) = before.get(name) else {
                continue;
            };
            let tuned = known.entry(name.clone()).or_default();
            let told = tune(args, tuned, name, earlier, stat);
            let text = match args.json {
                true => serde_json::to_string(&told).unwrap_or_default() + "\n",
                false => line(&told),
            };
            if !print(&text) {
                return Ok(exit::OK);
            }
        }
        if args.once {
            return Ok(exit::OK);
        }
        before = now;
    }
}

/// One run in one interval.
fn tune(args: &TuneArgs, tuned: &mut Tuned, name: &Name, before: &Stat, now: &Stat) -> Told {
    let elapsed_ns = now.at_ns.saturating_sub(before.at_ns).max(1);
    let look = look_of(before, now, elapsed_ns, !tuned.no_donors);
    let Verdict { change, why } = tuned.tuner.step(&look);
    let (limits, used) = (&now.status.limits, &now.status.used);
    let features = now.features.since(&before.features).features(elapsed_ns);
    let mut told = Told {
        schema: "canvas-tune/1",
        tenant: name.tenant.clone(),
        pid: name.pid,
        unix_s: unix_s(),
        slowdown: features.slowdown,
        reads_per_s: (look.reads as f64 / look.elapsed_s * 10.0).round() / 10.0,
        read_us_mean: (look.reads > 0)
            .then(|| (look.read_ns as f64 / look.reads as f64 / 100.0).round() / 10.0),
        pool_bytes: used.pool_bytes,
        pool_limit_bytes: limits.pool_now_bytes(),
        copies: limits.copies.clone(),
        change: None,
        is_done: false,
        why,
    };
    let Some(change) = change else {
        return told;
    };
    let (key, value) = match &change {
        Change::Pool(bytes) => ("pool", Size::from_bytes(*bytes).to_string()),
        Change::Copies(policy) => ("copies", policy.to_string()),
    };
    told.change = Some(format!("{key}={value}"));
    if !args.dry_run {
        match set(name, key, value) {
            Ok(()) => told.is_done = true,
            Err(failure) => {
                tuned.no_donors |= key == "copies";
                told.why = failure.sentence;
            }
        }
    }
    if !told.is_done && key == "copies" {
        // The change was not made, so the tuner's record of it is wrong: start over.
        tuned.tuner = Tuner::default();
    }
    told
}

fn look_of(before: &Stat, now: &Stat, elapsed_ns: u64, has_donors: bool) -> RunSample {
    let (limits, used) = (&now.status.limits, &now.status.used);
    let far = now.status.far.as_ref();
    let earlier = before.status.far.as_ref();
    let since = |of: fn(&canvas_control::wire::Far) -> u64| {
        far.map_or(0, of).saturating_sub(earlier.map_or(0, of))
    };
    RunSample {
        elapsed_s: elapsed_ns as f64 / 1e9,
        reads: since(|f| f.fault_reads),
        read_ns: since(|f| f.fault_read_ns),
        copies: far.and(limits.copies.as_deref()).and_then(Policy::named),
        is_whole: far.is_none_or(|f| f.degraded_slabs == 0),
        has_donors,
        pool_bytes_max: limits.pool_now_bytes(),
        pool_bytes: used.pool_bytes,
        spill_percent: limits.spill_at_percent.unwrap_or(100),
        pool_is_own: limits.pool_grant_bytes.is_none(),
        spare_bytes: spare_bytes().unwrap_or(0),
    }
}

fn set(name: &Name, key: &str, value: String) -> Result<(), Failure> {
    let runs = Runs::look();
    let found = runs.one(&name.to_string())?;
    runs.set(&found, vec![(key.to_owned(), value)])
}

const HEADER: &str = "\
------tenant------   slow reads/s    us  pool    of copies
";

fn line(t: &Told) -> String {
    let slow = t
        .slowdown
        .map_or("-".to_owned(), |s| format!("{:.1}%", s * 100.0));
    let us = t
        .read_us_mean
        .map_or("-".to_owned(), |us| Micros((us * 1e3) as u64).to_string());
    let what = match (&t.change, t.is_done) {
        (Some(change), true) => format!("{change}: "),
        (Some(change), false) => format!("not {change}: "),
        (None, _) => String::new(),
    };
    format!(
        "{:<18} {slow:>6} {:>7} {us:>5} {:>5} {:>5} {:<12} {what}{}\n",
        plain(&format!("{}.{}", t.tenant, t.pid)),
        Count(t.reads_per_s),
        Bytes(t.pool_bytes),
        Bytes(t.pool_limit_bytes),
        t.copies.as_deref().map_or("-".to_owned(), plain),
        plain(&t.why),
    )
}
