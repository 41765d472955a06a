//! `canvas stat`: prints a line for each run and interval.

use std::time::Instant;

use canvas_types::exit;

use crate::args::StatArgs;
use crate::control::client::{Stats, nobody};
use crate::control::rates::{Rates, unix_s};
use crate::error::Failure;
use crate::table::{Bytes, Count, MibPerS, Micros, feature_cells, print, run_name};

/// Lines between two headers.
const HEADER_EVERY: u64 = 20;

/// Prints rates until a signal comes or nothing runs any more.
pub fn run(args: &StatArgs) -> Result<i32, Failure> {
    let wanted = args.tenant.as_deref();
    let mut before = Stats::told(wanted);
    if before.is_empty() {
        return Err(nobody(wanted));
    }
    let begun = Instant::now();
    let (mut ticks, mut lines) = (0u32, 0u64);
    while args.count.is_none_or(|count| u64::from(ticks) < count) {
        ticks += 1;
        let next = begun + args.interval * ticks;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = Stats::told(wanted);
        if now.is_empty() {
            break;
        }
        let at = unix_s();
        for (name, stat) in &now {
            let Some(rates) = before.get(name).and_then(|b| Rates::between(b, stat, at)) else {
                continue;
            };
            let mut text = String::new();
            if args.json {
                text += &serde_json::to_string(&rates).unwrap_or_default();
                text.push('\n');
            } else {
                if lines.is_multiple_of(HEADER_EVERY) {
                    text += match args {
                        _ if args.features => FEATURES,
                        _ if args.prefetch => PREFETCH,
                        _ => HEADER,
                    };
                }
                text += &match args {
                    _ if args.features => features(&rates),
                    _ if args.prefetch => prefetch(&rates),
                    _ => line(&rates),
                };
            }
            lines += 1;
            if !print(&text) {
                return Ok(exit::OK);
            }
        }
        before = now;
    }
    Ok(exit::OK)
}

const HEADER: &str = "\
------tenant------ -------faults/s-------- -----pages/s----- -fault us-- -----memory------ -far MiB/s-
                     new cache   far  deep    in   out  hits   p50   p99 local  pool   far  read write
";

const FEATURES: &str = "\
------tenant------   frag  store    seq    hot   comp   file   slow  stall
";

const PREFETCH: &str = "\
------tenant------ -low tier-- ------------application tier------------- ----others-----
                    strm  near   fwd  kept array links  used  refs  used  hint learn  free
";

/// Width of the first column.
const NAME_WIDTH: usize = 18;

fn name(r: &Rates) -> String {
    run_name(&r.tenant, r.pid, NAME_WIDTH)
}

fn prefetch(r: &Rates) -> String {
    let mut text = name(r);
    for n in r.ahead.cells() {
        text += &format!(" {:>5}", Count(n).to_string());
    }
    text.push('\n');
    text
}

fn features(r: &Rates) -> String {
    let mut text = name(r);
    for cell in feature_cells(&r.features) {
        text += &format!(" {cell:>6}");
    }
    text.push('\n');
    text
}

fn line(r: &Rates) -> String {
    let us = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| Micros(ns).to_string());
    format!(
        "{} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}\n",
        name(r),
        Count(r.faults_first_touch_per_s),
        Count(r.faults_cache_per_s),
        Count(r.faults_far_per_s),
        Count(r.faults_beyond_pool_per_s),
        Count(r.pages_in_per_s),
        Count(r.pages_out_per_s),
        Count(r.prefetch_hits_per_s),
        us(r.fault_p50_ns),
        us(r.fault_p99_ns),
        Bytes(r.local_bytes),
        Bytes(r.pool_bytes),
        Bytes(r.far_bytes),
        MibPerS(r.remote_read_bytes_per_s),
        MibPerS(r.remote_written_bytes_per_s),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::rates::tests::rates;

    #[test]
    fn no_number_shifts_a_column() {
        let much = rates("a-tenant-whose-name-is-long", 1e9, 1 << 53);
        for r in [rates("t", 0.0, 0), rates("t", 12_345.0, 12_345_678), much] {
            for (header, line) in [
                (HEADER, line(&r)),
                (PREFETCH, prefetch(&r)),
                (FEATURES, features(&r)),
            ] {
                let width = header.lines().last().map(str::len);
                assert_eq!(Some(line.trim_end().len()), width, "{header}{line}");
            }
        }
    }
}
