//! `canvas status`: shows runs and disks.

use std::fmt::Write;

use canvas_types::exit;
use serde_json::json;

use crate::args::StatusArgs;
use crate::control::client::{Found, Runs, nobody};
use crate::error::Failure;
use crate::table::{Bytes, Count, plain, print};
use canvas_control::wire::{Ask, Disk, Limits, Problem, Reply, Status};
use canvas_runner::STATUS_SCHEMA;

/// State of a run.
enum Known {
    Answer(Box<Status>),
    Silent(Problem),
}

/// Prints the state of runs.
pub fn run(args: &StatusArgs) -> Result<i32, Failure> {
    let runs = Runs::look();
    let wanted = args.tenant.as_deref();
    let known: Vec<(Found, Known)> = runs
        .find(wanted)
        .into_iter()
        .filter_map(|found| {
            let known = match runs.ask(&found, Ask::Status) {
                Ok(Reply::Status(status)) => Known::Answer(status),
                Ok(Reply::Refused(why)) => {
                    Known::Silent(canvas_control::health::Code::RunnerSilent.problem(why))
                }
                Ok(_) => return None,
                Err(e) => Known::Silent(e.problem()?),
            };
            Some((found, known))
        })
        .collect();
    if known.is_empty() {
        if wanted.is_some() {
            return Err(nobody(wanted));
        }
        if !args.json {
            print("no canvas run and no canvas disk of this user is running\n");
        }
        return Ok(exit::OK);
    }
    let mut text = String::new();
    for (found, known) in &known {
        match (known, args.json) {
            (Known::Answer(status), true) => {
                text += &serde_json::to_string(status).unwrap_or_default();
                text.push('\n');
            }
            (Known::Silent(problem), true) => {
                let line = json!({
                    "schema": STATUS_SCHEMA,
                    "tenant": found.name.tenant,
                    "pid": found.name.pid,
                    "healthy": false,
                    "health": [problem],
                });
                text += &format!("{line}\n");
            }
            (Known::Answer(status), false) => block(&mut text, status),
            (Known::Silent(problem), false) => {
                let _ = writeln!(text, "{}  pid {}", found.name.tenant, found.name.pid);
                line(&mut text, problem);
            }
        }
    }
    print(&text);
    let healthy = |(_, known): &(Found, Known)| matches!(known, Known::Answer(s) if s.healthy);
    Ok(if known.iter().all(healthy) {
        exit::OK
    } else {
        exit::NEGATIVE
    })
}

fn line(text: &mut String, p: &Problem) {
    let _ = writeln!(text, "  {} {}: {}", p.code, p.name, plain(&p.text));
}

/// Formats a duration: `3d 4h`, `5m 10s`.
pub fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86400 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86400, s % 86400 / 3600),
    }
}

/// The limit on local memory in effect; `None` if only `--slo` limits it, so that all of this
/// host's memory may be used.
pub fn local_bound(limits: &Limits) -> Option<u64> {
    let is_all = |bytes: u64| bytes >= canvas_runner::host_memory().ram_bytes;
    let only_slo = limits.slo.is_some() && limits.local_bytes.is_some_and(is_all);
    limits.local_effective_bytes.filter(|_| !only_slo)
}

/// Formats usage and limit: `512M of 1.0G (50%)`.
fn of(used: u64, limit: Option<u64>, share: Option<f64>) -> String {
    let share = share.map(|p| format!(" ({p}%)")).unwrap_or_default();
    match limit {
        Some(limit) => format!("{} of {}{share}", Bytes(used), Bytes(limit)),
        None => "no limit: canvas manages nothing".to_owned(),
    }
}

fn block(text: &mut String, s: &Status) {
    let state = if s.healthy { "healthy" } else { "degraded" };
    let _ = writeln!(
        text,
        "{}  pid {}  {}  up {}  {state}",
        plain(&s.tenant),
        s.pid,
        plain(&s.program),
        duration(s.uptime_s)
    );
    for p in &s.health {
        line(text, p);
    }
    match &s.disk {
        Some(d) => disk(text, d, s),
        None => local(text, s),
    }
    beyond_local(text, s);
    share(text, &s.limits);
    if s.disk.is_none() {
        let pids: Vec<String> = s.processes.iter().map(u32::to_string).collect();
        let _ = writeln!(text, "  processes {}", pids.join(" "));
    }
    slow_faults(text, s);
    donors(text, s);
}

/// The line about what a disk's clients see.
fn disk(text: &mut String, d: &Disk, s: &Status) {
    // With far memory, the ratio of the pool alone would mislead.
    let ratio = d.ratio.filter(|_| s.used.far_bytes == 0);
    let ratio = ratio.map_or(String::new(), |ratio| format!(", ratio {ratio:.1}"));
    let clients = if d.clients == 1 { "client" } else { "clients" };
    let _ = writeln!(
        text,
        "  disk  {}, {} pages stored{ratio}, {} {clients}, {} reads/s, {} writes/s",
        Bytes(d.size_bytes),
        d.stored_pages,
        d.clients,
        Count(d.reads_per_s),
        Count(d.writes_per_s)
    );
}

/// The lines about local memory.
fn local(text: &mut String, s: &Status) {
    let limits = &s.limits;
    let used = s.used.local_bytes;
    let local = match (local_bound(limits), &limits.slo) {
        (None, Some(slo)) if limits.local_effective_bytes.is_some() => {
            format!("{}, limited only by slo={slo}", Bytes(used))
        }
        (bound, _) => of(used, bound, limits.local_percent),
    };
    let _ = writeln!(text, "  local {local}");
    if limits.local_effective_bytes.is_none() {
        return;
    }
    let _ = writeln!(
        text,
        "        {} mapped, {} in the swap cache, {} native{}",
        Bytes(s.used.resident_bytes),
        Bytes(s.used.cache_bytes),
        Bytes(s.used.native_bytes),
        s.used
            .metadata_bytes
            .map(|own| format!(" (of which {} are canvas's own)", Bytes(own)))
            .unwrap_or_default()
    );
    if s.used.swapped_bytes > 0 {
        let _ = writeln!(
            text,
            "        {} more in the host's swap",
            Bytes(s.used.swapped_bytes)
        );
    }
}

/// The lines about shared memory, pool, far memory, and all memory of this host that the run uses.
fn beyond_local(text: &mut String, s: &Status) {
    let limits = &s.limits;
    if let Some(own) = limits.shared_bytes {
        let granted = match limits.shared_grant_bytes {
            Some(_) => format!(" granted of {}", Bytes(own)),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "  shared {}{granted}, {} of others in the pool",
            of(s.used.shared_bytes, limits.shared_now_bytes(), None),
            Bytes(s.used.shared_store_bytes)
        );
    }
    for node in &s.nodes {
        let limit = Some(node.limit_bytes);
        let used = of(node.used_bytes, limit, None);
        let _ = writeln!(text, "  node  {} {used}, uncompressed", node.node);
    }
    let granted = match limits.pool_grant_bytes {
        Some(_) => format!(" granted of {}", Bytes(limits.pool_bytes)),
        None => String::new(),
    };
    // In the pool or beyond it; the pool may also hold copies of resident pages.
    let pages = match (&s.disk, s.used.far_pages_bytes) {
        (Some(_), bytes) => format!("{} of pages are stored", Bytes(bytes)),
        (None, 0) => "no page is away".to_owned(),
        (None, bytes) => format!("{} of pages are away", Bytes(bytes)),
    };
    let _ = writeln!(
        text,
        "  pool  {}{granted}; {pages}",
        of(s.used.pool_bytes, Some(limits.pool_now_bytes()), None)
    );
    if limits.far_bytes.is_some() {
        let copies = limits.copies.as_ref();
        let copies = copies.map_or_else(String::new, |c| format!(", copies {}", plain(c)));
        let _ = writeln!(
            text,
            "  far   {}{copies}",
            of(s.used.far_bytes, limits.far_bytes, None)
        );
    }
    if limits.local_effective_bytes.is_some() {
        let agent = match s.used.agent_bytes {
            0 => String::new(),
            bytes => format!(", {} in its agent", Bytes(bytes)),
        };
        let _ = writeln!(
            text,
            "  all   {} of this host's memory, of which {} in its segment{agent}",
            Bytes(s.used.memory_bytes),
            Bytes(s.used.segment_bytes)
        );
    }
}

/// The line about the tenant's share of contended links.
fn share(text: &mut String, limits: &Limits) {
    let Some(weight) = limits.weight else {
        return;
    };
    let rate = |limit: Option<u64>| match limit {
        Some(bytes) => format!("{}/s", Bytes(bytes)),
        None => "none".to_owned(),
    };
    let _ = writeln!(
        text,
        "  share weight {weight}, swap-in limit {}, swap-out limit {}",
        rate(limits.swap_in_limit_bytes_per_s),
        rate(limits.swap_out_limit_bytes_per_s)
    );
}

/// The line about slow faults: their number by cause, and the last one.
fn slow_faults(text: &mut String, s: &Status) {
    let Some(last) = s.slow_faults.last.first() else {
        return;
    };
    let mut causes: Vec<_> = s.slow_faults.causes.iter().collect();
    causes.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.ns));
    let each = causes
        .iter()
        .map(|(cause, sum)| format!("{cause} {} ({} ms)", sum.faults, sum.ns / 1_000_000));
    let each: Vec<_> = each.collect();
    let _ = writeln!(
        text,
        "  slow     faults over 1 ms: {}; last: {} ms for {}, page {}, process {}, {} ago",
        each.join(", "),
        last.ns / 1_000_000,
        last.cause,
        last.page,
        last.pid,
        duration(last.ago_s),
    );
}

/// A line for each donor.
fn donors(text: &mut String, s: &Status) {
    for d in &s.donors {
        let us = |us: Option<u32>| us.map_or("-".to_owned(), |us| us.to_string());
        // A donor that takes memory back is shown as that.
        let state = match d.state.as_str() {
            "up" if d.suspect => "silent",
            "up" if d.slow => "slow",
            state => state,
        };
        let slabs = if d.slabs == 1 { "slab" } else { "slabs" };
        let _ = writeln!(
            text,
            "  donor {}  {}  {} {slabs}  {} free  ping {} us  reads p50 {} p99 {} us  {} waiting  {} failovers",
            plain(&d.address),
            plain(state),
            d.slabs,
            Bytes(d.free_bytes),
            us(d.round_trip_us),
            us(d.read_p50_us),
            us(d.read_p99_us),
            d.outstanding,
            d.failovers
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_parts_at_most() {
        let want = [
            (5.9, "5s"),
            (65.0, "1m 5s"),
            (7300.0, "2h 1m"),
            (180_000.0, "2d 2h"),
        ];
        for (seconds, text) in want {
            assert_eq!(duration(seconds), text);
        }
    }
}
