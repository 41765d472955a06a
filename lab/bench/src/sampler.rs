//! Samples a program's memory and swap traffic while it runs: peaks, and rates over time.

use std::fs::{self, File, OpenOptions};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_shm::histogram::{BUCKETS, quantile_ns};
use canvas_shm::map::Lease;
use canvas_shm::segment::{Counter, Segment};

use crate::counts::{Counts, Looks};
use crate::host::cgroup::{Figures, Group};
use crate::host::swap::Swap;
use crate::outside;
use crate::processes;
use crate::record::{FarTick, Prefetch, Quantiles, Tick};

/// Most ticks of a run; beyond that, neighbours are merged.
const TICKS_MAX: usize = 600;
/// Interval of measurements from outside, each of which walks the maps of all processes.
const OUTSIDE_EVERY_S: f64 = 1.0;

/// Counters of the whole host; used only for a program that has swap to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Host {
    in_pages: u64,
    out_pages: u64,
    readahead: u64,
    readahead_hits: u64,
}

impl Host {
    fn parse(vmstat: &str) -> Host {
        let get = |name: &str| {
            let value = |l: &str| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
            vmstat.lines().find_map(value).unwrap_or(0)
        };
        // Pages through zswap, to and from the device, and pages of zeros, which are not stored.
        Host {
            in_pages: get("pswpin") + get("zswpin") + get("swpin_zero"),
            out_pages: get("pswpout") + get("zswpout") + get("swpout_zero"),
            readahead: get("swap_ra"),
            readahead_hits: get("swap_ra_hit"),
        }
    }

    fn now() -> Host {
        Host::parse(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }
}

/// The segment that a running canvas shares with its processes.
fn shared_memory(canvas: u32) -> Option<File> {
    let entries = fs::read_dir(format!("/proc/{canvas}/fd")).ok()?;
    let entry = entries.flatten().find(|entry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        link.to_string_lossy().starts_with("/memfd:canvas-segment")
    })?;
    let file = OpenOptions::new().read(true).write(true).open(entry.path());
    file.ok()
}

/// Held by tests that create a segment in this process: tests run in parallel, and [`shared_memory`] takes
/// the first segment of a process.
#[cfg(test)]
pub static ONLY_SEGMENT: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Counters and far area of a `canvas run` with far memory.
pub fn tenant_of(canvas: u32) -> Option<Lease> {
    Lease::map(&shared_memory(canvas)?).ok()
}

/// Counters of a `canvas run`, with or without far memory.
pub fn counters_of(canvas: u32) -> Option<&'static Segment> {
    Segment::map(&shared_memory(canvas)?).ok()
}

/// Whether the process is an agent of far memory that `canvas run` started.
fn is_agent(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).nth(1) == Some(b"agent-worker".as_slice())
}

/// Totals since the beginning.
#[derive(Clone, Copy)]
struct Moved {
    in_pages: u64,
    out_pages: u64,
    far: Option<FarMoved>,
}

/// Totals of traffic beyond the pool.
#[derive(Clone, Copy, Default)]
struct FarMoved {
    in_bytes: u64,
    out_bytes: u64,
    in_pages: u64,
    reads: u64,
}

impl Moved {
    /// Rates between two samples.
    fn since(&self, before: &Moved, before_s: f64, at_s: f64) -> Tick {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / (at_s - before_s);
        let far = self.far.map(|now| {
            let before = before.far.unwrap_or_default();
            FarTick {
                in_bytes_per_s: rate(now.in_bytes, before.in_bytes),
                out_bytes_per_s: rate(now.out_bytes, before.out_bytes),
                in_pages_per_s: rate(now.in_pages, before.in_pages),
                reads_per_s: rate(now.reads, before.reads),
            }
        });
        Tick {
            at_s,
            in_pages_per_s: rate(self.in_pages, before.in_pages),
            out_pages_per_s: rate(self.out_pages, before.out_pages),
            ops_per_s: None,
            far,
        }
    }
}

/// The program to sample.
pub struct Watch<'a> {
    /// Its control group, if it has one.
    pub group: Option<&'a Group>,
    /// Pid of the started process.
    pub pid: u32,
    /// Start time in clock ticks, which identifies it together with its pid.
    pub start_ticks: u64,
    /// Whether that process is `canvas run`.
    pub is_canvas: bool,
    /// Whether it has far memory.
    pub is_far: bool,
    /// The swap area that the program has to itself.
    pub swap: Option<&'a Swap>,
}

/// Samples one program from its start.
pub struct Sampler<'a> {
    watch: Watch<'a>,
    started: Instant,
    tick_every: Duration,
    segment: Option<&'static Segment>,
    tenant: Option<Lease>,
    first: Host,
    last: Option<(f64, Moved)>,
    /// Histogram of faults beyond the pool at each tick.
    reads: Vec<(f64, [u64; BUCKETS])>,
    /// Time of the last measurement of local memory from outside.
    outside_s: f64,
    /// Peak of sampled anonymous memory.
    pub memory_peak_bytes: u64,
    /// Peak of local memory under canvas, from the kernel.
    pub local_peak_bytes: Option<u64>,
    /// Peak of the sampled anonymous memory of canvas's agent.
    pub agent_peak_bytes: Option<u64>,
    /// Peak of sampled bytes on the far side.
    pub far_peak_bytes: Option<u64>,
    /// Rates over time.
    pub ticks: Vec<Tick>,
    /// Sampled counters.
    pub looks: Looks,
}

impl<'a> Sampler<'a> {
    /// Begins sampling.
    pub fn new(watch: Watch<'a>, started: Instant, tick_every: Duration) -> Sampler<'a> {
        Sampler {
            watch,
            started,
            tick_every,
            segment: None,
            tenant: None,
            first: Host::now(),
            last: None,
            reads: Vec::new(),
            memory_peak_bytes: 0,
            local_peak_bytes: None,
            agent_peak_bytes: None,
            far_peak_bytes: None,
            outside_s: 0.0,
            ticks: Vec::new(),
            looks: Looks::default(),
        }
    }

    /// Takes a sample; adds a tick when one is due.
    pub fn sample(&mut self) {
        let w = &self.watch;
        let figures = w.group.map(Group::figures);
        let memory = match figures {
            Some(figures) => figures.anonymous_bytes,
            None => processes::anonymous_bytes(&processes::tree(w.pid, w.start_ticks)),
        };
        self.memory_peak_bytes = self.memory_peak_bytes.max(memory);
        if let Some(swap) = w.swap {
            self.far_peak_bytes = self.far_peak_bytes.max(Some(swap.far_bytes()));
        }
        let at_s = self.started.elapsed().as_secs_f64();
        self.looks.add(at_s, counted(w, self.segment, figures));
        let stored = w.swap.map_or(0, Swap::far_bytes);
        self.looks.memory.push((at_s, memory + stored));
        if !w.is_canvas {
            self.looks.local.push((at_s, memory));
        }
        if w.is_canvas && at_s >= self.outside_s + OUTSIDE_EVERY_S {
            self.outside_s = at_s;
            let mut pids = processes::tree(w.pid, w.start_ticks);
            // The command itself is not part of the program.
            pids.retain(|pid| *pid != w.pid);
            // Neither is the agent.
            let (agents, pids): (Vec<u32>, Vec<u32>) = pids.iter().partition(|pid| is_agent(**pid));
            if !agents.is_empty() {
                let bytes = processes::anonymous_bytes(&agents);
                self.agent_peak_bytes = self.agent_peak_bytes.max(Some(bytes));
            }
            let local = outside::local_bytes(&pids);
            self.local_peak_bytes = self.local_peak_bytes.max(Some(local));
            self.looks.local.push((at_s, local));
        }
        let due = self
            .last
            .map_or(0.0, |(at, _)| at + self.tick_every.as_secs_f64());
        if at_s < due {
            return;
        }
        if let Some((in_pages, out_pages)) = self.swapped() {
            let now = Moved {
                in_pages,
                out_pages,
                far: self.far_moved(),
            };
            if let Some((before_s, before)) = self.last {
                self.ticks.push(now.since(&before, before_s, at_s));
                join_neighbours(&mut self.ticks);
            }
            self.last = Some((at_s, now));
        }
        if let Some(tenant) = &self.tenant {
            let mut reads = [0; BUCKETS];
            tenant.far().stats.read_ns.add_to(&mut reads);
            self.reads.push((at_s, reads));
        }
    }

    /// Latency of the faults beyond the pool between two times, in whole ticks; `None` if there were none.
    pub fn reads_between(&self, from_s: f64, to_s: f64) -> Option<Quantiles> {
        reads_between(&self.reads, from_s, to_s)
    }

    /// Traffic beyond the pool since the beginning.
    fn far_moved(&self) -> Option<FarMoved> {
        let tenant = self.tenant.as_ref()?;
        let (counters, stats) = (tenant.segment(), &tenant.far().stats);
        Some(FarMoved {
            // The agent's count does not include reads over direct read channels.
            in_bytes: stats.bytes_in.load(Relaxed) + stats.lane_bytes.load(Relaxed),
            out_bytes: stats.bytes_out.load(Relaxed),
            in_pages: counters.total(Counter::FaultBeyondPool)
                + counters.total(Counter::PagesPromoted),
            reads: stats.reads.load(Relaxed),
        })
    }

    /// Pages swapped in and out since the beginning, from any source that counts them.
    pub fn swapped(&mut self) -> Option<(u64, u64)> {
        if self.watch.is_canvas {
            if self.segment.is_none() {
                if self.watch.is_far {
                    self.tenant = tenant_of(self.watch.pid);
                    self.segment = self.tenant.as_ref().map(Lease::segment);
                } else {
                    let file = shared_memory(self.watch.pid)?;
                    self.segment = Segment::map(&file).ok();
                }
            }
            let segment = self.segment?;
            return Some((
                segment.total(Counter::PagesIn),
                segment.total(Counter::PagesOut),
            ));
        }
        if self.watch.swap.is_some() {
            let now = Host::now();
            return Some((
                now.in_pages.saturating_sub(self.first.in_pages),
                now.out_pages.saturating_sub(self.first.out_pages),
            ));
        }
        let figures = self.watch.group?.figures();
        Some((figures.swapped_in_pages?, figures.swapped_out_pages?))
    }

    /// Work of the kernel's readahead, for a program that has swap to itself.
    pub fn readahead(&self, major_faults: Option<u64>) -> Option<Prefetch> {
        self.watch.swap?;
        let now = Host::now();
        let issued = now.readahead.saturating_sub(self.first.readahead);
        let used = now.readahead_hits.saturating_sub(self.first.readahead_hits);
        let share = |whole: u64| (whole > 0).then(|| (used as f64 / whole as f64).min(1.0));
        Some(Prefetch {
            issued,
            used,
            contribution: major_faults.and_then(|m| share(m + used)),
            accuracy: share(issued),
        })
    }
}

/// Counters of a program so far; most need its control group.
fn counted(watch: &Watch, segment: Option<&Segment>, figures: Option<Figures>) -> Counts {
    let faults = match watch.is_canvas {
        true => segment.map(|s| s.total(Counter::FaultFar)),
        false => figures.and_then(|f| f.major_faults),
    };
    Counts {
        faults,
        cpu_s: watch.group.map(|g| processes::cpu_s(&g.processes())),
    }
}

fn reads_between(seen: &[(f64, [u64; BUCKETS])], from_s: f64, to_s: f64) -> Option<Quantiles> {
    let mut within = seen.iter().filter(|(at, _)| (from_s..=to_s).contains(at));
    let (_, first) = within.next()?;
    let (_, last) = within.next_back()?;
    let mut reads = *last;
    for (n, before) in reads.iter_mut().zip(first) {
        *n = n.saturating_sub(*before);
    }
    if reads.iter().all(|n| *n == 0) {
        return None;
    }
    let q = |per_mille| quantile_ns(&reads, per_mille) as f64;
    Some(Quantiles {
        p50: q(500),
        p99: q(990),
        p999: Some(q(999)),
        max: None,
    })
}

/// Merges pairs of neighbouring ticks into their means when there are too many.
fn join_neighbours(ticks: &mut Vec<Tick>) {
    if ticks.len() < TICKS_MAX {
        return;
    }
    let mut joined = Vec::with_capacity(ticks.len() / 2 + 1);
    let mut begin_s = 0.0;
    for pair in ticks.chunks(2) {
        let last = pair[pair.len() - 1];
        let span = last.at_s - begin_s;
        let mean = |of: &dyn Fn(&Tick) -> f64| {
            let mut from = begin_s;
            let mut sum = 0.0;
            for t in pair {
                sum += of(t) * (t.at_s - from);
                from = t.at_s;
            }
            if span > 0.0 { sum / span } else { of(&last) }
        };
        joined.push(Tick {
            at_s: last.at_s,
            in_pages_per_s: mean(&|t| t.in_pages_per_s),
            out_pages_per_s: mean(&|t| t.out_pages_per_s),
            ops_per_s: last.ops_per_s,
            far: last.far.map(|_| {
                let of = |t: &Tick| t.far.unwrap_or_default();
                FarTick {
                    in_bytes_per_s: mean(&|t| of(t).in_bytes_per_s),
                    out_bytes_per_s: mean(&|t| of(t).out_bytes_per_s),
                    in_pages_per_s: mean(&|t| of(t).in_pages_per_s),
                    reads_per_s: mean(&|t| of(t).reads_per_s),
                }
            }),
        });
        begin_s = last.at_s;
    }
    *ticks = joined;
}

/// Adds rates that a workload reported itself (seconds since `offset_s` of the run, operations per second
/// until then) to the ticks; creates ticks if there are none.
pub fn merge_rates(ticks: &mut Vec<Tick>, rates: &[(f64, f64)], offset_s: f64) {
    if ticks.is_empty() {
        ticks.extend(rates.iter().map(|(at_s, ops)| Tick {
            at_s: at_s + offset_s,
            ops_per_s: Some(*ops),
            ..Tick::default()
        }));
        return;
    }
    for tick in ticks {
        if tick.at_s < offset_s {
            continue;
        }
        // The first rate whose interval ends at the tick or later.
        let of = rates.iter().find(|(at_s, _)| at_s + offset_s >= tick.at_s);
        tick.ops_per_s = of.map(|(_, ops)| *ops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::histogram::bucket_of;
    use proptest::prelude::*;

    #[test]
    fn counters_of_the_host() {
        let h = Host::parse(
            "pswpin 1\npswpout 2\nswap_ra 5\nswap_ra_hit 4\nzswpin 10\nzswpout 20\nswpin_zero 100\n",
        );
        assert_eq!(
            (h.in_pages, h.out_pages, h.readahead, h.readahead_hits),
            (111, 22, 5, 4)
        );
    }

    #[test]
    fn a_workloads_rates_find_their_ticks() {
        let tick = |at_s| Tick {
            at_s,
            ..Tick::default()
        };
        let mut ticks = vec![tick(0.5), tick(1.5), tick(2.0), tick(2.5), tick(9.0)];
        merge_rates(&mut ticks, &[(1.0, 10.0), (2.0, 20.0)], 1.0);
        let ops: Vec<_> = ticks.iter().map(|t| t.ops_per_s).collect();
        assert_eq!(ops, [None, Some(10.0), Some(10.0), Some(20.0), None]);
        let mut none = Vec::new();
        merge_rates(&mut none, &[(1.0, 10.0)], 0.5);
        assert_eq!((none[0].at_s, none[0].ops_per_s), (1.5, Some(10.0)));
    }

    #[test]
    fn reads_of_a_part_are_told_from_those_before_and_after() {
        let look = |at_s, fast, slow| {
            let mut reads = [0; BUCKETS];
            reads[bucket_of(1000)] = fast;
            reads[bucket_of(1_000_000)] = slow;
            (at_s, reads)
        };
        let seen = [
            look(1.0, 0, 500),
            look(2.0, 0, 500),
            look(3.0, 60, 501),
            look(4.0, 98, 502),
            look(5.0, 98, 9000),
        ];
        let q = reads_between(&seen, 1.5, 4.5).unwrap();
        assert!((800.0..1200.0).contains(&q.p50), "{q:?}");
        assert!(q.p99 > 8e5 && q.max.is_none(), "{q:?}");
        assert_eq!(
            reads_between(&seen, 1.5, 2.5),
            None,
            "one look tells nothing"
        );
        assert_eq!(reads_between(&seen, 1.0, 2.0), None, "there were none");
    }

    #[test]
    fn what_moves_beyond_the_pool_is_seen() {
        use canvas_shm::Far;
        let _only = ONLY_SEGMENT.lock();
        let (fd, segment) = Segment::create(true).unwrap();
        let stats = &Far::map(&fd).unwrap().stats;
        let me = std::process::id();
        let watch = Watch {
            group: None,
            pid: me,
            start_ticks: processes::stat(me).unwrap().start_ticks,
            is_canvas: true,
            is_far: true,
            swap: None,
        };
        let mut s = Sampler::new(watch, Instant::now(), Duration::from_millis(1));
        s.tenant = Some(Lease::map(&fd).unwrap());
        s.segment = Some(segment);
        s.sample();
        stats.bytes_in.store(1 << 20, Relaxed);
        stats.bytes_out.store(1 << 10, Relaxed);
        segment.count(0, Counter::FaultBeyondPool, 3);
        segment.count(1, Counter::PagesPromoted, 4);
        stats.read_ns.record(5000);
        std::thread::sleep(Duration::from_millis(5));
        s.sample();
        let far = s.ticks.last().unwrap().far.unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(
            close(far.in_bytes_per_s, 1024.0 * far.out_bytes_per_s),
            "{far:?}"
        );
        assert!(close(
            far.in_bytes_per_s / f64::from(1 << 20),
            far.in_pages_per_s / 7.0
        ));
        let read = s.reads_between(0.0, 60.0).unwrap();
        assert!((4000.0..6000.0).contains(&read.p50), "{read:?}");
    }

    #[test]
    fn a_process_of_ours_is_sampled() {
        let me = std::process::id();
        let watch = Watch {
            group: None,
            pid: me,
            start_ticks: processes::stat(me).unwrap().start_ticks,
            is_canvas: false,
            is_far: false,
            swap: None,
        };
        let mut s = Sampler::new(watch, Instant::now(), Duration::from_millis(1));
        s.sample();
        assert!(s.memory_peak_bytes > 0);
        assert_eq!(s.swapped(), None, "nobody counts that for it");
        assert!(s.ticks.is_empty() && s.far_peak_bytes.is_none());
    }

    #[test]
    fn the_counters_of_another_process_are_found() {
        let _only = ONLY_SEGMENT.lock();
        let (_fd, segment) = Segment::create(false).unwrap();
        segment.count(0, Counter::PagesIn, 42);
        let seen = Segment::map(shared_memory(std::process::id()).unwrap()).unwrap();
        assert_eq!(seen.total(Counter::PagesIn), 42);
    }

    proptest! {
        #[test]
        fn joining_keeps_the_sum(spans in prop::collection::vec(0.1f64..2.0, TICKS_MAX..TICKS_MAX + 3),
                                 rate in 0.0f64..1e6) {
            let mut at_s = 0.0;
            let mut ticks: Vec<Tick> = spans.iter().enumerate().map(|(i, span)| {
                at_s += span;
                Tick { at_s, in_pages_per_s: rate * (i % 7) as f64, ..Tick::default() }
            }).collect();
            let total = |ticks: &[Tick]| {
                let mut from = 0.0;
                ticks.iter().map(|t| { let d = t.at_s - from; from = t.at_s; d * t.in_pages_per_s }).sum::<f64>()
            };
            let before = total(&ticks);
            join_neighbours(&mut ticks);
            prop_assert!(ticks.len() <= TICKS_MAX / 2 + 2);
            prop_assert!((total(&ticks) - before).abs() <= 1e-6 * before.max(1.0));
        }
    }
}
