//! Targets of far memory over donors, as data, and whether they were met.

use canvas_shm::far::{SLAB_EXTENTS, Slab};

use crate::cells::{Cell, peer_of};
use crate::link::Delay;
use crate::moved::measured;
use crate::rate::Rate;
use crate::record::{Far, Sample};
use crate::targets::judged::{Judged, Verdict};
use crate::variant::{FarBelow, Variant};
use crate::words::{bytes, nanoseconds, seconds, times};

/// Experiment of the targets.
pub const EXPERIMENT: &str = "far";

/// Kind of a target; some only report a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Least speed over that of a swap file.
    OverDisk(f64),
    /// Least speed over that of a disk whose reads take 100 us.
    OverSlowDisk(f64),
    /// Least speed over that of zram.
    OverZram(f64),
    /// Median latency of faults beyond the pool, as a multiple of the faster round trip of plain TCP, at
    /// most.
    ReadOverTcp(f64),
    /// Stored bytes read per second, as a share of a plain TCP stream's, at least.
    StreamOfTcp(f64),
    /// Bytes of promoted pages (4096 each) per second, as a share of a plain TCP stream's.
    PagesOfTcp,
    /// Processor seconds of the donors per 10^9 bytes moved.
    DonorCpu,
    /// Time from a donor's death until no slab has too few copies.
    Recovery,
    /// Longest fault beyond the pool, in seconds, at most.
    LongestRead(f64),
    /// Bytes of metadata on the host per page beyond the pool, from the layout.
    HostBytesAPage,
    /// The agent's memory per page that is not local.
    AgentBytesAPage,
}

/// A target of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Number of the target.
    pub number: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// Local memory in percent of the working set.
    pub percent: u32,
    /// `--copies`.
    pub copies: &'static str,
    /// Whether a donor is killed.
    pub donor_dies: bool,
    /// Rate of the link to the donors.
    pub link: Option<Rate>,
    /// One-way delay of the link to the donors.
    pub delay: Option<Delay>,
    /// Condition to meet.
    pub promise: Promise,
}

const fn at(
    number: &'static str,
    workload: &'static str,
    percent: u32,
    copies: &'static str,
    promise: Promise,
) -> Target {
    Target {
        number,
        workload,
        percent,
        copies,
        donor_dies: matches!(promise, Promise::Recovery | Promise::LongestRead(_)),
        link: None,
        delay: None,
        promise,
    }
}

/// One copy over donors behind a link of `mbit` Mbit/s.
const fn behind(
    mbit: u32,
    number: &'static str,
    workload: &'static str,
    percent: u32,
    promise: Promise,
) -> Target {
    Target {
        link: Some(Rate::mbit(mbit)),
        ..at(number, workload, percent, "none", promise)
    }
}

/// One copy over donors with a one-way delay of `ns`.
const fn away(ns: u32, promise: Promise) -> Target {
    Target {
        delay: Some(Delay::ns(ns)),
        ..at("F7", "random-read", 50, "none", promise)
    }
}

/// A round trip over the loopback device is so short that decryption and decompression matter.
const READ: Promise = Promise::ReadOverTcp(1.9);
const READ_BEHIND: Promise = Promise::ReadOverTcp(1.5);
const LONGEST_READ: Promise = Promise::LongestRead(0.4);

/// All targets.
pub const TARGETS: &[Target] = &[
    at("F1", "redis-get95", 50, "2", Promise::OverDisk(5.0)),
    at("F1", "redis-set-get", 50, "2", Promise::OverDisk(5.0)),
    at("F2", "random-read", 50, "none", READ),
    behind(1000, "F2", "random-read", 50, READ_BEHIND),
    behind(2500, "F2", "random-read", 50, READ_BEHIND),
    at("F3", "sequential", 10, "none", Promise::StreamOfTcp(0.4)),
    at("F3", "sequential", 10, "none", Promise::PagesOfTcp),
    behind(1000, "F3", "sequential", 10, Promise::StreamOfTcp(0.95)),
    behind(1000, "F3", "sequential", 10, Promise::PagesOfTcp),
    behind(2500, "F3", "sequential", 10, Promise::StreamOfTcp(0.9)),
    behind(2500, "F3", "sequential", 10, Promise::PagesOfTcp),
    at("F4", "random-read", 50, "2", Promise::DonorCpu),
    at("F4", "sequential", 10, "none", Promise::DonorCpu),
    at("F5", "random-read", 50, "2", Promise::Recovery),
    at("F5", "random-read", 50, "2", LONGEST_READ),
    at("F5", "redis-get95", 50, "2", Promise::Recovery),
    at("F5", "redis-get95", 50, "2", LONGEST_READ),
    at("F6", "random-read", 50, "2", Promise::HostBytesAPage),
    at("F6", "random-read", 50, "2", Promise::AgentBytesAPage),
    at("F8", "redis-get95", 50, "2", Promise::OverZram(0.8)),
    at("F8", "redis-get95", 50, "2", Promise::OverSlowDisk(2.0)),
    at("F8", "redis-set-get", 50, "2", Promise::OverZram(0.8)),
    at("F8", "redis-set-get", 50, "2", Promise::OverSlowDisk(2.0)),
    at("F8", "memcached-get95", 50, "2", Promise::OverZram(0.8)),
    at("F8", "memcached-get95", 50, "2", Promise::OverSlowDisk(2.0)),
    away(12_500, Promise::ReadOverTcp(1.2)),
    away(25_000, Promise::ReadOverTcp(1.2)),
];

/// Median latency of faults beyond the pool in the measured part, over the faster of the two round trips of
/// plain TCP.
pub fn read_over_tcp(far: &Far) -> Option<f64> {
    let tcp = far.tcp?;
    let least = tcp.busy_ns.min(tcp.blocking_ns);
    (least > 0.0).then_some(far.measured_read_ns?.p50 / least)
}

/// Bytes per second as a share of a plain stream's.
fn of_stream(sample: &Sample, bytes_per_s: f64) -> Option<f64> {
    let tcp = sample.far.as_ref()?.tcp?;
    (tcp.stream_bytes_per_s > 0.0).then(|| bytes_per_s / tcp.stream_bytes_per_s)
}

/// Stored bytes read beyond the pool per second of the measured part, as a share of a plain stream's.
pub fn stream_of_tcp(sample: &Sample) -> Option<f64> {
    let moved = measured(sample)?;
    of_stream(sample, moved.in_bytes / moved.seconds)
}

/// Uncompressed bytes of promoted pages per second of the measured part, as a share of a plain stream's.
pub fn pages_of_tcp(sample: &Sample) -> Option<f64> {
    let moved = measured(sample)?;
    of_stream(sample, moved.in_pages * 4096.0 / moved.seconds)
}

/// Processor seconds of the donors per 10^9 bytes moved.
pub fn donor_cpu_s_a_gb(far: &Far) -> Option<f64> {
    let moved = far.donors_bytes.filter(|b| *b > 0)?;
    Some(far.donors_cpu_s? / (moved as f64 / 1e9))
}

/// A page's word and its swap entry, in the program.
const BYTES_A_PAGE: f64 = 8.0 + 8.0;
/// An extent's reference count and forks in the program, and its seal in the shared segment.
const BYTES_AN_EXTENT: f64 = 1.0 + 8.0 + 8.0;
/// A slab in the shared segment, its two words in the program, and its line in the agent's journal.
const BYTES_A_SLAB: f64 = size_of::<Slab>() as f64 + 8.0 + 32.0 * 4.0;

/// Metadata on the host per page beyond the pool: from the layout, and the number of pages per extent in this
/// run. Slabs are taken as full.
fn host_bytes_a_page(far: &Far) -> Option<f64> {
    let (pages, extents) = (far.pages_demoted?, far.extents_out?);
    if pages == 0 || extents == 0 {
        return None;
    }
    let pages_an_extent = pages as f64 / extents as f64;
    let extent = BYTES_AN_EXTENT + BYTES_A_SLAB / SLAB_EXTENTS as f64;
    Some(BYTES_A_PAGE + extent / pages_an_extent)
}

/// The agent's peak memory over the peak number of pages that are not local.
fn agent_bytes_a_page(sample: &Sample) -> Option<f64> {
    let far = sample.far.as_ref()?;
    let (limit, percent) = (sample.limit_bytes?, sample.local_percent?);
    let cold = limit as f64 * (100.0 / f64::from(percent.max(1)) - 1.0);
    (cold > 0.0).then_some(far.agent_peak_bytes? as f64 / (cold / 4096.0))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn far_of(sample: &Sample) -> Option<&Far> {
    sample.far.as_ref()
}

impl Target {
    fn variant(&self) -> Variant {
        Variant::CanvasFar(FarBelow {
            donor_dies: self.donor_dies,
            link: self.link,
            delay: self.delay,
            ..FarBelow::copies(self.copies)
        })
    }

    fn is_of(&self, cell: &Cell) -> bool {
        let key = &cell.key;
        key.experiment == EXPERIMENT
            && key.workload == self.workload
            && key.co_run.is_none()
            && key.local_percent == Some(self.percent)
            && key.variant == self.variant()
    }

    /// Whether the target is met (`None` if it only reports), and the figure as text.
    fn measure(&self, cells: &[Cell], ours: &Cell) -> Option<(Option<bool>, String)> {
        let over = |peer: &Variant| {
            let ratio = ours.speed_over(peer_of(cells, &ours.key, peer)?)?;
            Some(ratio.ratio)
        };
        Some(match self.promise {
            Promise::OverDisk(least) => {
                let ratio = over(&Variant::Disk)?;
                (Some(ratio >= least), times(ratio))
            }
            Promise::OverSlowDisk(least) => {
                let ratio = over(&Variant::SlowDisk)?;
                let disk = peer_of(cells, &ours.key, &Variant::SlowDisk)?;
                let read = disk.median(|s| s.disk_read_ns);
                let took = read.map(|ns| format!(", whose reads took {}", nanoseconds(ns)));
                let words = times(ratio) + &took.unwrap_or_default();
                (Some(ratio >= least), words)
            }
            Promise::OverZram(least) => {
                let ratio = over(&Variant::Zram)?;
                (Some(ratio >= least), times(ratio))
            }
            Promise::ReadOverTcp(most) => {
                let ratio = ours.median(|s| read_over_tcp(far_of(s)?))?;
                (Some(ratio <= most), times(ratio))
            }
            Promise::StreamOfTcp(least) => {
                let share = ours.median(stream_of_tcp)?;
                (Some(share >= least), percent(share))
            }
            Promise::PagesOfTcp => (None, percent(ours.median(pages_of_tcp)?)),
            Promise::DonorCpu => {
                let cpu_s = ours.median(|s| donor_cpu_s_a_gb(far_of(s)?))?;
                (None, format!("{} a GB", seconds(cpu_s)))
            }
            Promise::Recovery => (None, seconds(ours.median(|s| far_of(s)?.recovery_s)?)),
            Promise::LongestRead(most_s) => {
                let ns = ours.median(|s| far_of(s)?.read_ns?.max)?;
                (Some(ns <= most_s * 1e9), nanoseconds(ns))
            }
            Promise::HostBytesAPage => {
                let each = ours.median(|s| host_bytes_a_page(far_of(s)?))?;
                (None, format!("{each:.1} B"))
            }
            Promise::AgentBytesAPage => (None, bytes(ours.median(agent_bytes_a_page)?)),
        })
    }

    fn judge(&self, cells: &[Cell]) -> Judged {
        let ours = cells.iter().find(|c| self.is_of(c));
        let found = ours.and_then(|c| self.measure(cells, c));
        Judged {
            number: self.number,
            place: format!(
                "{} at {} %, {}",
                self.workload,
                self.percent,
                self.variant()
            ),
            promise: self.promise.words(),
            verdict: match &found {
                Some((Some(true), _)) => Verdict::Met,
                Some((Some(false), _)) => Verdict::Missed,
                Some((None, _)) => Verdict::Told,
                None => Verdict::Unknown,
            },
            measured: found.map(|(_, words)| words),
        }
    }
}

impl Promise {
    fn words(self) -> String {
        match self {
            Promise::OverDisk(n) => format!("at least {} disk", times(n)),
            Promise::OverSlowDisk(n) => format!("at least {} disk-100us", times(n)),
            Promise::OverZram(n) => format!("at least {} zram", times(n)),
            Promise::ReadOverTcp(n) => {
                format!("median read at most {} a plain TCP round trip", times(n))
            }
            Promise::StreamOfTcp(least) => {
                format!(
                    "stored bytes: at least {} of a plain TCP stream",
                    percent(least)
                )
            }
            Promise::PagesOfTcp => "page bytes over a plain TCP stream".to_owned(),
            Promise::DonorCpu => "processor time of the donors".to_owned(),
            Promise::Recovery => "from the death until all copies are there".to_owned(),
            Promise::LongestRead(most_s) => {
                format!(
                    "longest read that a fault waited for: at most {}",
                    seconds(most_s)
                )
            }
            Promise::HostBytesAPage => "what the host keeps to find a far page".to_owned(),
            Promise::AgentBytesAPage => "the agent's memory a page that is not local".to_owned(),
        }
    }
}

/// All targets with their verdicts.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    TARGETS.iter().map(|t| t.judge(cells)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::gather;
    use crate::engine::plan::resolve;
    use crate::experiments;
    use crate::fixture;
    use crate::record::{FarTick, Quantiles, Tcp, Tick};

    fn sample(workload: &str, variant: Variant, percent: u32, rate: f64) -> Sample {
        let mut s = fixture::sample(workload, variant, Some(percent), 0, 2.0);
        s.experiment = EXPERIMENT.into();
        s.ops_per_s = Some(rate);
        s
    }

    fn over_donors(copies: &str, donor_dies: bool) -> Variant {
        Variant::CanvasFar(FarBelow {
            donor_dies,
            ..FarBelow::copies(copies)
        })
    }

    fn judged(samples: &[Sample], workload: &str, promise: &str) -> (Verdict, Option<String>) {
        let all = judge(&gather(samples));
        let of = |j: &&Judged| j.place.starts_with(workload) && j.promise.contains(promise);
        let j = all.iter().find(of).expect(promise);
        (j.verdict, j.measured.clone())
    }

    /// Otherwise the target would remain "not measured" for good.
    #[test]
    fn every_target_is_of_a_cell_that_runs() {
        let e = experiments::find(EXPERIMENT).unwrap();
        for t in TARGETS {
            let runs = |variant: &Variant| {
                e.parts.iter().any(|part| {
                    part.percents.contains(&t.percent)
                        && part.programs.iter().any(|p| p.workload == t.workload)
                        && part.variants.iter().any(|b| resolve(*b) == *variant)
                })
            };
            assert!(runs(&t.variant()), "{t:?}");
            match t.promise {
                Promise::OverDisk(_) => assert!(runs(&Variant::Disk), "{t:?}"),
                Promise::OverSlowDisk(_) => assert!(runs(&Variant::SlowDisk), "{t:?}"),
                Promise::OverZram(_) => assert!(runs(&Variant::Zram), "{t:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn speeds_are_set_against_the_kernels() {
        let all = [
            sample("redis-get95", over_donors("2", false), 50, 520.0),
            sample("redis-get95", Variant::Disk, 50, 100.0),
            sample("redis-get95", Variant::Zram, 50, 400.0),
            Sample {
                disk_read_ns: Some(104e3),
                ..sample("redis-get95", Variant::SlowDisk, 50, 270.0)
            },
        ];
        let disk = judged(&all, "redis-get95", "5.00× disk");
        assert_eq!(disk, (Verdict::Met, Some("5.20×".into())));
        let zram = judged(&all, "redis-get95", "zram");
        assert_eq!(zram, (Verdict::Met, Some("1.30×".into())));
        let slow = judged(&all, "redis-get95", "disk-100us");
        let words = "1.93×, whose reads took 104 µs";
        assert_eq!(slow, (Verdict::Missed, Some(words.into())));
        let none = judged(&all, "redis-set-get", "disk");
        assert_eq!(none, (Verdict::Unknown, None));
    }

    #[test]
    fn reads_and_streams_are_set_against_plain_tcp() {
        let far = Far {
            measured_read_ns: Some(Quantiles {
                p50: 38_000.0,
                ..Quantiles::default()
            }),
            in_bytes: Some(3_200_000_000),
            donors_cpu_s: Some(1.5),
            donors_bytes: Some(3_000_000_000),
            tcp: Some(Tcp {
                answer_bytes: 4000,
                blocking_ns: 30_000.0,
                busy_ns: 20_000.0,
                stream_bytes_per_s: 2e9,
            }),
            ..Far::default()
        };
        let mut random = sample("random-read", over_donors("none", false), 50, 1.0);
        random.far = Some(far);
        let read = judged(&[random.clone()], "random-read", "median read");
        assert_eq!(read.0, Verdict::Met, "the busy one is the faster: {read:?}");
        let tcp = &mut random.far.as_mut().unwrap().tcp;
        tcp.as_mut().unwrap().busy_ns = 19_000.0;
        assert_eq!(
            judged(&[random], "random-read", "median read").0,
            Verdict::Missed
        );
        assert_eq!(donor_cpu_s_a_gb(&far), Some(0.5));
        assert_eq!(donor_cpu_s_a_gb(&Far::default()), None);
    }

    /// Bytes outside of the measured part do not count.
    #[test]
    fn a_stream_is_that_of_the_measured_part() {
        let behind = |link| {
            Variant::CanvasFar(FarBelow {
                link,
                ..FarBelow::copies("none")
            })
        };
        let tick = |at_s, in_bytes_per_s| Tick {
            at_s,
            far: Some(FarTick {
                in_bytes_per_s,
                out_bytes_per_s: 0.0,
                in_pages_per_s: in_bytes_per_s / 2048.0,
                ..FarTick::default()
            }),
            ..Tick::default()
        };
        let mut s = sample("sequential", behind(Some(Rate::mbit(1000))), 10, 1.0);
        s.timeline = vec![
            tick(1.0, 9e9),
            tick(2.0, 114e6),
            tick(3.0, 114e6),
            tick(4.0, 9e9),
        ];
        s.measured_s = Some((1.0, 3.0));
        s.far = Some(Far {
            tcp: Some(Tcp {
                stream_bytes_per_s: 120e6,
                ..Tcp::default()
            }),
            ..Far::default()
        });
        let place = "sequential at 10 %, canvas-far[none, link 1gbit]";
        let stored = judged(&[s.clone()], place, "stored bytes");
        assert_eq!(stored, (Verdict::Met, Some("95 %".into())));
        let pages = judged(&[s.clone()], place, "page bytes");
        assert_eq!(pages, (Verdict::Told, Some("190 %".into())));
        s.timeline[1] = tick(2.0, 113e6);
        assert_eq!(judged(&[s.clone()], place, "stored").0, Verdict::Missed);
        s.variant = behind(None);
        let loopback = judged(
            &[s.clone()],
            "sequential at 10 %, canvas-far[none]",
            "stored",
        );
        assert_eq!(loopback.0, Verdict::Met, "less is promised there");
        s.measured_s = None;
        assert_eq!(stream_of_tcp(&s), None);
    }

    #[test]
    fn a_death_is_told_of_the_run_in_which_it_was() {
        let mut s = sample("random-read", over_donors("2", true), 50, 1.0);
        s.far = Some(Far {
            recovery_s: Some(3.0),
            ..Far::default()
        });
        let told = judged(&[s.clone()], "random-read", "from the death");
        assert_eq!(told.0, Verdict::Told);
        for (max, verdict) in [(400e6, Verdict::Met), (401e6, Verdict::Missed)] {
            s.far.as_mut().unwrap().read_ns = Some(Quantiles {
                max: Some(max),
                ..Quantiles::default()
            });
            let longest = judged(&[s.clone()], "random-read", "longest read");
            assert_eq!(longest.0, verdict, "{max}");
        }
        s.variant = over_donors("2", false);
        let other = judged(&[s], "random-read", "from the death");
        assert_eq!(other, (Verdict::Unknown, None));
    }

    #[test]
    fn what_a_host_keeps_is_shared_by_the_pages_of_an_extent() {
        let with = |pages, extents| Far {
            pages_demoted: Some(pages),
            extents_out: Some(extents),
            ..Far::default()
        };
        let one = host_bytes_a_page(&with(100, 100)).unwrap();
        let twenty = host_bytes_a_page(&with(2000, 100)).unwrap();
        assert!(((one - 16.0) - (twenty - 16.0) * 20.0).abs() < 1e-9);
        assert!((16.8..17.0).contains(&twenty), "{twenty}");
        assert_eq!(host_bytes_a_page(&with(0, 0)), None);
    }

    #[test]
    fn memory_of_the_agent_is_divided_by_what_is_not_local() {
        let mut s = sample("random-read", over_donors("2", false), 25, 1.0);
        s.limit_bytes = Some(1 << 20);
        s.far = Some(Far {
            agent_peak_bytes: Some(768 * 100),
            ..Far::default()
        });
        // A quarter is 256 pages, so 768 are not local.
        assert_eq!(agent_bytes_a_page(&s), Some(100.0));
        s.local_percent = Some(100);
        assert_eq!(agent_bytes_a_page(&s), None);
    }
}
