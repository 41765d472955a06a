//! The report of `canvas run --stats`; docs/STATS.md has its schema.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use canvas_control::features::Features;
use canvas_control::wire::SlowFaults;
use canvas_core::pager::learn::chunks;
use canvas_core::swap::classes::CLASS_BYTES;
use canvas_shm::Far;
use canvas_shm::far::{EXTENT_BYTES, SLAB_BYTES, SLABS_MAX};
use canvas_shm::files::Files;
use canvas_shm::histogram::{BUCKETS, Histogram, bucket_floor_ns, quantile_ns};
use canvas_shm::nodes::NodeBook;
use canvas_shm::segment::{Counter, Mode, Segment, config_flag};
use canvas_sys::proc::now_ns;
use canvas_types::PAGE_SIZE;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::control::features;
use crate::supervise::End;
use crate::sweep::Peaks;

/// Name and version of the schema.
pub const SCHEMA: &str = "canvas-stats/1";

/// The report's data that are not in the segment.
pub struct Run {
    /// CMD as written, without its arguments (which may hold secrets).
    pub program: String,
    /// How faults were delivered; `None` if CMD was not managed.
    pub mode: Option<Mode>,
    /// How CMD ended.
    pub end: End,
    /// Time from CMD's start to its end.
    pub wall: Duration,
    /// User time of CMD and of its children that were waited for.
    pub user: Duration,
    /// System time of CMD and of its children that were waited for.
    pub system: Duration,
    /// Largest resident set of one of these processes, in bytes.
    pub max_rss_bytes: u64,
    /// Samples taken while CMD ran.
    pub peaks: Peaks,
}

/// The report.
#[derive(Serialize, Debug)]
pub struct Report {
    schema: &'static str,
    canvas_version: &'static str,
    program: String,
    mode: Option<&'static str>,
    exit: Exit,
    time: Time,
    processes: Processes,
    limits: Limits,
    policy: Policy,
    memory: Memory,
    fault_time_ns: Times,
    slow_faults: SlowFaults,
    prefetch: Prefetch,
    classes: Vec<Class>,
    shared: Option<SharedMemory>,
    nodes: Vec<NodeMemory>,
    learn: Option<Learn>,
    far: Option<FarMemory>,
    features: Features,
    refaults: Vec<u64>,
    verify_failures: u64,
    counters: Map<String, Value>,
}

#[derive(Serialize, Debug)]
struct Exit {
    code: Option<i32>,
    signal: Option<i32>,
    core_dumped: bool,
}

#[derive(Serialize, Debug)]
struct Time {
    wall_s: f64,
    user_s: f64,
    system_s: f64,
}

#[derive(Serialize, Debug)]
struct Processes {
    managed: u32,
    unmanaged: u32,
    max_rss_bytes: u64,
}

#[derive(Serialize, Debug)]
struct Limits {
    local_bytes: Option<u64>,
    local_percent: Option<f64>,
    local_effective_bytes: Option<u64>,
    local_needed_bytes: Option<u64>,
    pool_bytes: u64,
    swap_cache_bytes: u64,
    proactive_threshold_bytes: Option<u64>,
    proactive_batch_bytes: u64,
    far_full: bool,
}

/// The settings in effect.
#[derive(Serialize, Debug)]
struct Policy {
    slo: Option<String>,
    codec: &'static str,
    reservations: bool,
    prefetch: &'static str,
    app_tier: &'static str,
    native_swap: bool,
}

/// A value at CMD's end, and its peak.
#[derive(Serialize, Debug)]
struct Level {
    now: u64,
    peak: u64,
}

#[derive(Serialize, Debug)]
struct Memory {
    local_bytes: Level,
    resident_bytes: Level,
    cache_bytes: Level,
    native_bytes: Level,
    metadata_bytes: Option<Level>,
    swapped_bytes: Level,
    far_bytes: Level,
    pool_bytes: Level,
    footprint_bytes: Level,
    segment_bytes: Level,
    agent_bytes: Level,
}

#[derive(Serialize, Debug)]
struct Times {
    count: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
    /// Upper bound in ns and count of each bucket that is not empty.
    histogram: Vec<(u64, u64)>,
}

impl Times {
    fn of(sums: &[u64; BUCKETS], max_ns: u64) -> Times {
        // A quantile is the middle of its bucket, which can exceed the largest value.
        let quantile = |per_mille| quantile_ns(sums, per_mille).min(max_ns);
        Times {
            count: sums.iter().sum(),
            p50: quantile(500),
            p90: quantile(900),
            p99: quantile(990),
            p999: quantile(999),
            max: max_ns,
            histogram: (0..BUCKETS)
                .filter(|b| sums[*b] > 0)
                .map(|b| (bucket_floor_ns(b + 1), sums[b]))
                .collect(),
        }
    }
}

#[derive(Serialize, Debug)]
struct Prefetch {
    contribution: Option<f64>,
    accuracy: Option<f64>,
}

/// Far memory beyond the pool.
#[derive(Serialize, Debug)]
struct FarMemory {
    limit_bytes: u64,
    used_bytes: u64,
    #[serde(flatten)]
    counts: canvas_control::wire::Far,
    read_time_ns: Times,
    prefetch_time_ns: Times,
}

/// Pages on a NUMA node.
#[derive(Serialize, Debug)]
struct NodeMemory {
    node: u32,
    limit_bytes: u64,
    used_bytes: Level,
}

impl NodeMemory {
    fn new(book: &NodeBook) -> Option<NodeMemory> {
        let now = bytes(book.bytes.load(Relaxed));
        Some(NodeMemory {
            node: book.number()?,
            limit_bytes: book.bound_bytes.load(Relaxed),
            used_bytes: Level {
                now,
                peak: now.max(bytes(book.bytes_peak.load(Relaxed))),
            },
        })
    }
}

/// Recordings of resumptions.
#[derive(Serialize, Debug)]
struct Learn {
    loaded: u32,
    recordings: u32,
    pages: u64,
}

impl Learn {
    fn of(segment: &Segment) -> Option<Learn> {
        let all = &segment.recordings;
        let there = all.places.iter().filter(|r| !r.is_empty());
        let flags = segment.config.flags.load(Relaxed);
        (flags & config_flag::LEARN != 0).then(|| Learn {
            loaded: all.loaded.load(Relaxed),
            recordings: there.clone().count() as u32,
            pages: there.map(|r| chunks::count(r.words())).sum(),
        })
    }
}

/// Managed shared memory.
#[derive(Serialize, Debug)]
struct SharedMemory {
    limit_bytes: u64,
    grant_bytes: Option<u64>,
    resident_bytes: Level,
    store_bytes: Level,
    beyond_bytes: u64,
}

impl SharedMemory {
    fn new(files: &Files, segment: &Segment, far: Option<&Far>) -> SharedMemory {
        let c = files.control();
        let level = |now: i64, peak: i64| Level {
            now: page_bytes(now),
            peak: page_bytes(peak.max(now)),
        };
        SharedMemory {
            limit_bytes: page_bytes(c.limit_pages.load(Relaxed)),
            grant_bytes: granted_shared(segment),
            resident_bytes: level(files.resident_pages(), c.resident_peak.load(Relaxed)),
            store_bytes: level(files.store_pages(), c.store_peak.load(Relaxed)),
            beyond_bytes: far.map_or(0, |f| files.extents_used(f) * EXTENT_BYTES as u64),
        }
    }
}

/// The host agent's grant of shared memory, if it limits that.
pub fn granted_shared(segment: &Segment) -> Option<u64> {
    Some(segment.shared.bytes.load(Relaxed)).filter(|bytes| *bytes != 0)
}

/// Bytes of `pages` pages. The program can write the counter.
pub fn page_bytes(pages: i64) -> u64 {
    (pages.max(0) as u64).saturating_mul(PAGE_SIZE as u64)
}

/// A sufficient limit, in whole MiB, if the configured one is too small.
pub fn needed_bytes(pages: i64) -> Option<u64> {
    (pages > 0).then(|| page_bytes(pages).saturating_add((1 << 20) - 1) >> 20 << 20)
}

/// Slabs used, and the limit. The program can write there, so both are checked.
pub fn slabs(far: &Far) -> (u64, u64) {
    let used = far.slabs_used.load(Relaxed).clamp(0, SLABS_MAX as i64);
    let most = far.slabs_max.load(Relaxed).min(SLABS_MAX as u64);
    (used as u64, most)
}

impl FarMemory {
    fn new(far: &Far) -> FarMemory {
        let s = &far.stats;
        let (used, most) = slabs(far);
        let times = |of: &Histogram| {
            let mut sums = [0; BUCKETS];
            let longest_ns = of.add_to(&mut sums);
            Times::of(&sums, longest_ns)
        };
        FarMemory {
            limit_bytes: most * SLAB_BYTES as u64,
            used_bytes: used * SLAB_BYTES as u64,
            counts: canvas_control::wire::Far::of(
                far,
                s.degraded_slabs.load(Relaxed).max(0) as u64,
            ),
            read_time_ns: times(&s.read_ns),
            prefetch_time_ns: times(&s.prefetch_ns),
        }
    }
}

#[derive(Serialize, Debug)]
struct Class {
    slot_bytes: u64,
    now_bytes: u64,
    peak_bytes: u64,
}

/// `part / whole` to six digits, at most 1; `None` if the whole is 0.
pub fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| ((part as f64 / whole as f64).min(1.0) * 1e6).round() / 1e6)
}

fn seconds(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e6
}

/// A share as the user wrote it, in percent.
fn percent(ppm: u64) -> f64 {
    ppm as f64 / 10_000.0
}

/// Name of a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Signal => "signal",
        Mode::Thread => "thread",
    }
}

impl Exit {
    fn of(end: End) -> Exit {
        match end {
            End::Exit(code) => Exit {
                code: Some(code),
                signal: None,
                core_dumped: false,
            },
            End::Signal(signal, core_dumped) => Exit {
                code: None,
                signal: Some(signal),
                core_dumped,
            },
        }
    }
}

impl Limits {
    fn of(segment: &Segment) -> Limits {
        let config = &segment.config;
        let local_bytes = config.local_bytes.load(Relaxed);
        let local_ppm = config.local_ppm.load(Relaxed);
        Limits {
            local_bytes: (local_bytes != 0).then_some(local_bytes),
            local_percent: (local_ppm != 0).then(|| percent(local_ppm)),
            local_effective_bytes: segment.local_limit_pages().map(page_bytes),
            local_needed_bytes: needed_bytes(segment.needed_pages_peak.load(Relaxed)),
            pool_bytes: config.pool_bytes.load(Relaxed),
            swap_cache_bytes: config.swap_cache_bytes.load(Relaxed),
            proactive_threshold_bytes: proactive_threshold_bytes(segment),
            proactive_batch_bytes: proactive_batch_bytes(segment),
            far_full: segment.far_full.load(Relaxed) != 0,
        }
    }
}

/// The size that `proactive-threshold` amounts to; `None` if it is off, or there is no limit.
pub fn proactive_threshold_bytes(segment: &Segment) -> Option<u64> {
    let limit = segment.local_limit_pages()?;
    segment.proactive_pages(limit).map(page_bytes)
}

/// `proactive-batch`.
pub fn proactive_batch_bytes(segment: &Segment) -> u64 {
    page_bytes(segment.config.proactive_batch_pages.load(Relaxed).into())
}

/// A count that the program can write, made non-negative.
fn bytes(n: i64) -> u64 {
    n.max(0) as u64
}

impl Memory {
    fn of(run: &Run, segment: &Segment) -> Memory {
        let level = |now: u64, peak: u64| Level {
            now,
            peak: peak.max(now),
        };
        let (last, peak) = (&run.peaks.last, &run.peaks.peak);
        let (beside, beside_peak) = (&run.peaks.beside, &run.peaks.beside_peak);
        let cached_peak = peak
            .cached_pages
            .max(segment.cached_pages_peak.load(Relaxed));
        Memory {
            local_bytes: level(
                page_bytes(segment.local_pages.load(Relaxed)),
                page_bytes(segment.local_pages_peak.load(Relaxed)),
            ),
            resident_bytes: level(
                page_bytes(last.resident_pages),
                page_bytes(peak.resident_pages),
            ),
            cache_bytes: level(page_bytes(last.cached_pages), page_bytes(cached_peak)),
            native_bytes: level(page_bytes(last.native_pages), page_bytes(peak.native_pages)),
            metadata_bytes: last
                .metadata_pages
                .zip(peak.metadata_pages)
                .map(|(now, peak)| level(page_bytes(now), page_bytes(peak))),
            swapped_bytes: level(
                page_bytes(last.swapped_pages),
                page_bytes(peak.swapped_pages),
            ),
            far_bytes: level(page_bytes(last.far_pages), page_bytes(peak.far_pages)),
            pool_bytes: level(
                bytes(segment.pool_bytes.load(Relaxed)),
                bytes(segment.pool_bytes_peak.load(Relaxed)),
            ),
            footprint_bytes: level(
                page_bytes(segment.footprint_pages.load(Relaxed)),
                page_bytes(segment.footprint_pages_peak.load(Relaxed)),
            ),
            segment_bytes: level(beside.segment_bytes, beside_peak.segment_bytes),
            agent_bytes: level(beside.agent_bytes, beside_peak.agent_bytes),
        }
    }
}

impl Prefetch {
    fn of(segment: &Segment) -> Prefetch {
        let total = |c| segment.total(c);
        let (demand, used) = (total(Counter::FaultFar), total(Counter::PrefetchUsed));
        Prefetch {
            // Canvas, section 6.3.2. Its prefetched pages wait in the swap cache, so that each use
            // is a fault that hits. Most of ours are mapped and never fault, so we count pages
            // found used as hits.
            contribution: ratio(used, used + demand),
            accuracy: ratio(used, total(Counter::PrefetchIssued)),
        }
    }
}

/// Page features of the whole run.
pub fn features_of(run: &Run, segment: &Segment) -> Features {
    let mut sums = features::look(None, segment, run.mode, &run.peaks.fullest);
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    // Its processes have ended, and more ran than have a slot.
    sums.cpu_ns = nanos(run.user.saturating_add(run.system));
    let ended_ns = segment.ended_stalled_ns.load(Relaxed);
    sums.stalled_ns.insert(0, ended_ns);
    sums.features(nanos(run.wall))
}

impl Report {
    /// Reads the segment. Must be called before the last processes' slots are released; otherwise
    /// current values are 0.
    pub fn new(run: &Run, segment: &Segment, far: Option<&Far>, shared: Option<&Files>) -> Report {
        let total = |c| segment.total(c);
        let (last, peak) = (&run.peaks.last, &run.peaks.peak);
        let config = &segment.config;

        let (sums, max_ns) = segment.fault_times();

        Report {
            schema: SCHEMA,
            canvas_version: env!("CARGO_PKG_VERSION"),
            program: run.program.clone(),
            mode: run.mode.map(mode_name),
            exit: Exit::of(run.end),
            time: Time {
                wall_s: seconds(run.wall),
                user_s: seconds(run.user),
                system_s: seconds(run.system),
            },
            processes: Processes {
                managed: segment.managed.load(Relaxed),
                unmanaged: segment.unmanaged.load(Relaxed),
                max_rss_bytes: run.max_rss_bytes,
            },
            limits: Limits::of(segment),
            policy: Policy {
                slo: Some(config.slo())
                    .filter(|slo| slo.is_on())
                    .map(|slo| slo.to_string()),
                codec: config.codec().name(),
                reservations: config.reservations(),
                prefetch: config.prefetch().name(),
                app_tier: config.app_tier().name(),
                native_swap: config.native_swap(),
            },
            memory: Memory::of(run, segment),
            fault_time_ns: Times::of(&sums, max_ns),
            slow_faults: SlowFaults::of(&segment.slow, now_ns()),
            prefetch: Prefetch::of(segment),
            classes: CLASS_BYTES
                .iter()
                .zip(last.class_bytes.iter().zip(&peak.class_bytes))
                .map(|(slot, (now, peak))| Class {
                    slot_bytes: u64::from(*slot),
                    now_bytes: bytes(*now),
                    peak_bytes: bytes(*peak),
                })
                .collect(),
            shared: shared.map(|files| SharedMemory::new(files, segment, far)),
            nodes: segment.nodes().iter().filter_map(NodeMemory::new).collect(),
            learn: Learn::of(segment),
            far: far.map(FarMemory::new),
            features: features_of(run, segment),
            refaults: segment.refaults().to_vec(),
            verify_failures: total(Counter::VerifyFailure),
            counters: Counter::ALL
                .iter()
                .map(|c| (c.json_name().to_owned(), total(*c).into()))
                .collect(),
        }
    }

    /// As JSON, with a final newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The report's file, checked for writing before CMD starts.
#[derive(Debug)]
pub struct Place {
    file: PathBuf,
    /// Written directly, because it cannot be replaced: a device or a pipe.
    special: bool,
}

impl Place {
    /// Checks that a report can be written to `file`, without changing it.
    pub fn new(file: &Path) -> io::Result<Place> {
        // A relative path would work as well, but an absolute one is clear in messages.
        let file = std::path::absolute(file)?;
        match fs::metadata(&file) {
            Ok(m) if m.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(m) if !m.is_file() => {
                let kind = m.file_type();
                if !kind.is_fifo() {
                    OpenOptions::new().append(true).open(&file)?;
                }
                return Ok(Place {
                    file,
                    special: true,
                });
            }
            Ok(_) => {
                OpenOptions::new().append(true).open(&file)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        // What matters is whether the directory accepts a new file.
        let place = Place {
            file,
            special: false,
        };
        let temporary = place.temporary();
        File::create(&temporary)?;
        fs::remove_file(&temporary)?;
        Ok(place)
    }

    fn temporary(&self) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.file.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        self.file.with_file_name(name)
    }

    /// Writes the report atomically: a reader sees the whole report, or the old file.
    pub fn write(&self, text: &str) -> io::Result<()> {
        if self.special {
            return OpenOptions::new()
                .append(true)
                .open(&self.file)?
                .write_all(text.as_bytes());
        }
        let temporary = self.temporary();
        let written = File::create(&temporary)
            .and_then(|mut f| f.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&temporary, &self.file));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

#[cfg(test)]
mod tests;
