//! Messages on a control socket; docs/OPERATING.md has the schema.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use canvas_shm::far::class;
use canvas_types::{PAGE_SIZE, ReadUnit};
use serde::{Deserialize, Serialize};

/// Version of the messages. Adding a field to an answer keeps the version.
pub const VERSION: u32 = 1;
/// Most bytes of a request, its newline included.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Most bytes of an answer.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A request.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub canvas: u32,
    /// The question.
    pub ask: Ask,
}

/// The kinds of requests.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// The tenant's status.
    Status,
    /// The tenant's status and counters.
    Stat,
    /// Change these settings: keys and values as the user wrote them.
    Set(Vec<(String, String)>),
}

/// An answer.
#[derive(Serialize, Deserialize, Debug)]
pub struct Answer {
    /// [`VERSION`].
    pub canvas: u32,
    /// The content of the answer.
    pub answer: Reply,
}

/// The kinds of answers.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Answer to [`Ask::Status`].
    Status(Box<Status>),
    /// Answer to [`Ask::Stat`].
    Stat(Box<Stat>),
    /// Answer to [`Ask::Set`]: all changes are made.
    Done,
    /// Nothing was done; the reason, in one sentence.
    Refused(String),
    /// Answer to [`Ask::Set`]: the changes may be made later; the reason, in one sentence.
    Unsure(String),
}

/// Why a request is refused: one sentence for the client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuestionError {
    /// It has the right version, but is not one of its requests; the text is the decoder's.
    #[error("this is not a request that canvas knows: {0}")]
    Unknown(String),
    /// It has another version.
    #[error(
        "this run speaks version {ours} and the request has version {0}; use the same release of canvas for both",
        ours = VERSION
    )]
    Version(u32),
    /// It has no version.
    #[error("this is not a request to canvas: {0}")]
    Alien(String),
}

impl Request {
    /// Decodes a request.
    pub fn decode(line: &[u8]) -> Result<Request, QuestionError> {
        /// The field that every version has.
        #[derive(Deserialize)]
        struct Any {
            canvas: u32,
        }
        let version = |line| serde_json::from_slice::<Any>(line).map(|any| any.canvas);
        match version(line) {
            Ok(VERSION) => {
                serde_json::from_slice(line).map_err(|e| QuestionError::Unknown(e.to_string()))
            }
            Ok(other) => Err(QuestionError::Version(other)),
            Err(e) => Err(QuestionError::Alien(e.to_string())),
        }
    }
}

/// The answer to a request, as a line.
pub fn answer(line: &[u8], on: impl FnOnce(Ask) -> Reply) -> String {
    let answer = match Request::decode(line) {
        Err(why) => Reply::Refused(why.to_string()),
        Ok(request) => on(request.ask),
    };
    let canvas = VERSION;
    // Numbers and strings can always be encoded as JSON.
    serde_json::to_string(&Answer { canvas, answer }).unwrap_or_default()
}

/// A tenant's status.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Status {
    /// `canvas-status/1`.
    pub schema: String,
    /// The tenant's name.
    pub tenant: String,
    /// Its `canvas run`; of a disk, the process that serves it.
    pub pid: u32,
    /// CMD, without its arguments; of a disk, its socket.
    pub program: String,
    /// Version of its `canvas run`.
    pub canvas_version: String,
    /// Seconds since CMD was started.
    pub uptime_s: f64,
    /// How faults are delivered; `null` when CMD is not managed.
    pub mode: Option<String>,
    /// Whether there are no problems.
    pub healthy: bool,
    /// Problems.
    pub health: Vec<Problem>,
    /// Limits.
    pub limits: Limits,
    /// Usage.
    pub used: Used,
    /// Its processes.
    pub processes: Vec<u32>,
    /// Far memory; `null` without `--far`.
    pub far: Option<Far>,
    /// NUMA nodes with pages, in their configured order.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Donors.
    pub donors: Vec<Donor>,
    /// Equal for all runs of one tenant at the host's agent; `null` for a run without an agent.
    #[serde(default)]
    pub shared: Option<String>,
    /// The part for disks; `null` for a run.
    #[serde(default)]
    pub disk: Option<Disk>,
    /// Faults that took 1 ms or longer.
    #[serde(default)]
    pub slow_faults: SlowFaults,
}

/// Faults that took 1 ms or longer, and their causes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct SlowFaults {
    /// Since the start, by cause; only causes that occurred.
    pub causes: BTreeMap<String, SlowSum>,
    /// The latest ones, newest first.
    pub last: Vec<SlowFault>,
}

/// Slow faults of one cause.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct SlowSum {
    /// Number of faults.
    pub faults: u64,
    /// Their total time.
    pub ns: u64,
}

/// One slow fault.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct SlowFault {
    /// Address of the page, in hexadecimal.
    pub page: String,
    /// Its main cause.
    pub cause: String,
    /// The process.
    pub pid: u32,
    /// Its duration.
    pub ns: u64,
    /// Time since its end.
    pub ago_s: f64,
}

impl SlowFaults {
    /// The slow faults in the segment at `now_ns` (CLOCK_MONOTONIC).
    pub fn of(slow: &canvas_shm::slow::SlowFaults, now_ns: u64) -> SlowFaults {
        let sums = canvas_shm::slow::Cause::ALL.iter().map(|cause| {
            let (faults, ns) = slow.sum(*cause);
            (cause.name().to_owned(), SlowSum { faults, ns })
        });
        let last = slow.last().map(|f| SlowFault {
            page: format!("{:#x}", f.page),
            cause: f.cause.name().to_owned(),
            pid: f.pid,
            ns: f.ns,
            ago_s: (now_ns.saturating_sub(f.when_ns) / 1_000_000) as f64 / 1000.0,
        });
        SlowFaults {
            causes: sums.filter(|(_, sum)| sum.faults > 0).collect(),
            last: last.collect(),
        }
    }
}

/// A disk (`canvas disk`).
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct Disk {
    /// Size that clients see.
    pub size_bytes: u64,
    /// Pages stored, in the pool or beyond it.
    pub stored_pages: u64,
    /// Compression ratio of the pages in the pool; `null` while there are none.
    pub ratio: Option<f64>,
    /// Connected clients.
    pub clients: u64,
    /// Pages read in the last second.
    pub reads_per_s: f64,
    /// Pages written in the last second.
    pub writes_per_s: f64,
    /// Pages read since the start.
    pub reads: u64,
    /// Pages written since the start.
    pub writes: u64,
    /// Pages that clients waited for from beyond the pool.
    pub far_reads: u64,
    /// Writes refused because there was no room.
    pub refused: u64,
    /// Reads that found no copy within `far-wait`.
    pub unreachable: u64,
    /// Reads of damaged pages.
    pub damaged: u64,
}

/// A NUMA node with pages of a tenant (`--numa`).
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The kernel's number of the node.
    pub node: u32,
    /// Limit on memory there.
    pub limit_bytes: u64,
    /// Memory used there.
    pub used_bytes: u64,
}

/// A problem; docs/OPERATING.md has the table.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Its code, which never changes.
    pub code: String,
    /// Its name, which never changes.
    pub name: String,
    /// One sentence for people.
    pub text: String,
}

/// Limits of a tenant.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Limits {
    /// `--local` as a size.
    pub local_bytes: Option<u64>,
    /// `--local` as a share.
    pub local_percent: Option<f64>,
    /// The size that `--local` amounts to now.
    pub local_effective_bytes: Option<u64>,
    /// The least sensible value, while `--local` is below native memory and the minimum of each
    /// process.
    #[serde(default)]
    pub local_needed_bytes: Option<u64>,
    /// `--pool`.
    pub pool_bytes: u64,
    /// `--far`, in whole slabs.
    pub far_bytes: Option<u64>,
    /// `spill-at`.
    pub spill_at_percent: Option<u64>,
    /// `far-wait`.
    pub far_wait_ms: Option<u64>,
    /// `unit`; `null` without far memory.
    #[serde(default)]
    pub unit: Option<String>,
    /// `lanes`; `null` without far memory.
    #[serde(default)]
    pub lanes: Option<bool>,
    /// `prefetch`.
    pub prefetch: String,
    /// `app-tier`; empty from an older run.
    #[serde(default)]
    pub app_tier: String,
    /// `--copies`; `null` without far memory.
    #[serde(default)]
    pub copies: Option<String>,
    /// `weight`; `null` without far memory.
    #[serde(default)]
    pub weight: Option<u32>,
    /// `swap-in-limit`.
    #[serde(default)]
    pub swap_in_limit_bytes_per_s: Option<u64>,
    /// `swap-out-limit`.
    #[serde(default)]
    pub swap_out_limit_bytes_per_s: Option<u64>,
    /// The part of `--pool` that the host's agent grants now; `null` if it limits no pools.
    #[serde(default)]
    pub pool_grant_bytes: Option<u64>,
    /// `--shared`; `null` if the kernel manages memory that forks share.
    #[serde(default)]
    pub shared_bytes: Option<u64>,
    /// The part of `--shared` that the host's agent grants now; `null` if it does not limit shared
    /// memory.
    #[serde(default)]
    pub shared_grant_bytes: Option<u64>,
    /// The size that `proactive-threshold` amounts to; `null` when it is off.
    #[serde(default)]
    pub proactive_threshold_bytes: Option<u64>,
    /// `--slo`; `null` when it is off.
    #[serde(default)]
    pub slo: Option<String>,
    /// `proactive-batch`.
    #[serde(default)]
    pub proactive_batch_bytes: u64,
}

impl Limits {
    /// The limit on the pool in effect.
    pub fn pool_now_bytes(&self) -> u64 {
        self.pool_grant_bytes.unwrap_or(self.pool_bytes)
    }
    /// The limit on resident shared memory in effect.
    pub fn shared_now_bytes(&self) -> Option<u64> {
        let granted = self.shared_grant_bytes.unwrap_or(u64::MAX);
        self.shared_bytes.map(|own| own.min(granted))
    }
}

/// A tenant's usage.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
pub struct Used {
    /// Local memory: the sum of the next three.
    pub local_bytes: u64,
    /// Pages mapped.
    pub resident_bytes: u64,
    /// Pages in the swap cache.
    pub cache_bytes: u64,
    /// Memory that canvas does not page, its own included.
    pub native_bytes: u64,
    /// Of that, canvas's own: tables, stacks, its library's data, patched code; `null` where the
    /// kernel does not report it.
    #[serde(default)]
    pub metadata_bytes: Option<u64>,
    /// Memory of its processes in the host's swap; not part of local memory.
    #[serde(default)]
    pub swapped_bytes: u64,
    /// Pages that exist only as far copies, at their full size.
    pub far_pages_bytes: u64,
    /// Memory of the pool in use.
    pub pool_bytes: u64,
    /// Far memory in use, in whole slabs.
    pub far_bytes: u64,
    /// Local and far pages together.
    pub footprint_bytes: u64,
    /// Resident shared memory of forks, each page counted once.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Far copies of shared pages; part of the pool.
    #[serde(default)]
    pub shared_store_bytes: u64,
    /// Uncompressed pages on NUMA nodes.
    #[serde(default)]
    pub nodes_bytes: u64,
    /// Memory that its processes and the agent share: counters, requests, buffers.
    #[serde(default)]
    pub segment_bytes: u64,
    /// Memory of its own agent.
    #[serde(default)]
    pub agent_bytes: u64,
    /// All memory of this host that it uses ([`Used::sum`]).
    #[serde(default)]
    pub memory_bytes: u64,
}

impl Used {
    /// All memory: what `--local`, `--pool`, `--numa` and `--shared` limit, and the rest.
    pub fn sum(&self) -> u64 {
        let parts = [
            self.local_bytes,
            self.pool_bytes,
            self.shared_bytes,
            self.shared_store_bytes,
            self.nodes_bytes,
            self.segment_bytes,
            self.agent_bytes,
        ];
        // The program can write some of these numbers, so the sum saturates.
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// Far memory beyond the pool, since the start.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
pub struct Far {
    /// Extents written.
    pub extents_out: u64,
    /// Bytes written to the first copy.
    pub bytes_out: u64,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read by them.
    pub bytes_in: u64,
    /// Of the reads, those that faulting threads made directly from a donor.
    #[serde(default)]
    pub lane_reads: u64,
    /// Of these, reads by RDMA.
    #[serde(default)]
    pub lane_pair_reads: u64,
    /// Direct read channels opened.
    #[serde(default)]
    pub lanes_opened: u64,
    /// Reads that the first copy could not serve.
    pub failovers: u64,
    /// Copies that did not verify.
    pub corrupt: u64,
    /// Slabs whose lost copy was replaced.
    pub repairs: u64,
    /// Slabs with too few copies now.
    pub degraded_slabs: u64,
    /// Bytes not yet on the disk (`--copies 1+disk-async`).
    #[serde(default)]
    pub disk_behind_bytes: u64,
    /// Agents started so far.
    pub agents: u32,
    /// Requests that a thread waits for.
    #[serde(default)]
    pub demand: Class,
    /// Prefetches.
    #[serde(default)]
    pub prefetch: Class,
    /// Writes.
    #[serde(default)]
    pub swap_out: Class,
    /// Single reads that a fault waited for, as the program counts them.
    #[serde(default)]
    pub fault_reads: u64,
    /// Their total time, in ns.
    #[serde(default)]
    pub fault_read_ns: u64,
    /// Prefetches dropped because they would have come too late.
    #[serde(default)]
    pub dropped: u64,
    /// Prefetches moved to the front because a thread began to wait for them.
    #[serde(default)]
    pub promoted: u64,
    /// Processor time of the agent's thread for the tenant, in seconds.
    #[serde(default)]
    pub agent_cpu_s: f64,
    /// Far read size now: configured, or as a process last chose.
    #[serde(default)]
    pub unit_bytes: u64,
    /// Of the reads of extents that are both on a donor and on disk, those that went to the disk.
    #[serde(default)]
    pub reads_by_disk: u64,
    /// Of the reads, those reconstructed from other shards.
    #[serde(default)]
    pub decoded: u64,
    /// Most concurrent operations on a far directory.
    #[serde(default)]
    pub disk_width: u64,
}

/// Requests of one kind that the agent's scheduler issued.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Debug)]
pub struct Class {
    /// Number of requests.
    pub requests: u64,
    /// Bytes charged for them, of all copies.
    pub bytes: u64,
    /// Mean time that they waited in the agent before.
    pub waited_us_mean: u64,
}

impl Class {
    fn of(stats: &canvas_shm::far::FarStats, class: usize) -> Class {
        let requests = stats.sent[class].load(Relaxed);
        let waited_us = stats.waited_ns[class].load(Relaxed) / 1000;
        Class {
            requests,
            bytes: stats.sent_bytes[class].load(Relaxed),
            waited_us_mean: waited_us.checked_div(requests).unwrap_or_default(),
        }
    }
}

impl Far {
    /// The counters of the tenant's far area, with the caller's number of degraded slabs.
    pub fn of(area: &canvas_shm::Far, degraded_slabs: u64) -> Far {
        let s = &area.stats;
        let mut read_ns = [0; canvas_shm::histogram::BUCKETS];
        s.read_ns.add_to(&mut read_ns);
        let (lane_reads, lane_bytes) = (s.lane_reads.load(Relaxed), s.lane_bytes.load(Relaxed));
        let count = read_ns.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        Far {
            extents_out: s.extents_out.load(Relaxed),
            bytes_out: s.bytes_out.load(Relaxed),
            reads: s.reads.load(Relaxed).saturating_add(lane_reads),
            bytes_in: s.bytes_in.load(Relaxed).saturating_add(lane_bytes),
            lane_reads,
            lane_pair_reads: s.lane_pair_reads.load(Relaxed),
            lanes_opened: s.lanes_opened.load(Relaxed),
            failovers: s.failovers.load(Relaxed),
            corrupt: s.corrupt.load(Relaxed),
            repairs: s.repairs.load(Relaxed),
            degraded_slabs,
            disk_behind_bytes: 0,
            agents: area.agent.load(Relaxed),
            demand: Class::of(s, class::DEMAND),
            prefetch: Class::of(s, class::PREFETCH),
            swap_out: Class::of(s, class::SWAP_OUT),
            fault_reads: count,
            fault_read_ns: s.read_ns.sum_ns(),
            dropped: s.dropped.load(Relaxed),
            promoted: s.promoted.load(Relaxed),
            agent_cpu_s: (s.agent_ns.load(Relaxed) / 1000) as f64 / 1e6,
            unit_bytes: match ReadUnit::from_number(area.unit_bytes.load(Relaxed)) {
                ReadUnit::Auto => s.unit_bytes.load(Relaxed).max(PAGE_SIZE as u64),
                ReadUnit::Bytes(bytes) => bytes,
            },
            reads_by_disk: s.reads_by_disk.load(Relaxed),
            decoded: s.decoded.load(Relaxed),
            disk_width: s.disk_width.load(Relaxed),
        }
    }
}

/// A donor.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Donor {
    /// Where it listens.
    pub address: String,
    /// `down`, `listing`, `up` or `pressure`.
    pub state: String,
    /// Number of the tenant's slabs with a copy there.
    pub slabs: u32,
    /// Memory that it could lend, as it last reported.
    pub free_bytes: u64,
    /// Median of its latest ping times; `null` before the first.
    pub round_trip_us: Option<u32>,
    /// Median of its latest demand read times; `null` before the first.
    #[serde(default)]
    pub read_p50_us: Option<u32>,
    /// 99th percentile of all its demand read times.
    #[serde(default)]
    pub read_p99_us: Option<u32>,
    /// It is silent for longer than usual, and is read only after others until it answers.
    #[serde(default)]
    pub suspect: bool,
    /// It is many times slower than the fastest donor of the run, or is suspect.
    #[serde(default)]
    pub slow: bool,
    /// Reads sent to another copy because it was silent or failed.
    #[serde(default)]
    pub failovers: u64,
    /// Requests that wait for its answer.
    #[serde(default)]
    pub outstanding: u32,
    /// Age of the oldest of these requests.
    #[serde(default)]
    pub waits_us: u32,
}

/// A tenant's status and counters at one time.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Stat {
    /// The time (CLOCK_MONOTONIC).
    pub at_ns: u64,
    /// The tenant's status.
    pub status: Status,
    /// Counters since the start, by their names in docs/STATS.md.
    pub counters: BTreeMap<String, u64>,
    /// Faults by duration, in [`canvas_shm::histogram`]'s buckets.
    pub fault_ns: Vec<u64>,
    /// The longest fault.
    pub fault_ns_max: u64,
    /// Sums for page features; empty from a run of an older version.
    #[serde(default)]
    pub features: crate::features::Sums,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<Ask, QuestionError> {
        Request::decode(text.as_bytes()).map(|r| r.ask)
    }

    #[test]
    fn questions_are_read() {
        assert_eq!(decode(r#"{"canvas":1,"ask":"status"}"#), Ok(Ask::Status));
        assert_eq!(decode(r#" {"ask":"stat","canvas":1} "#), Ok(Ask::Stat));
        let set = Ask::Set(vec![("local".to_owned(), "1G".to_owned())]);
        assert_eq!(
            decode(r#"{"canvas":1,"ask":{"set":[["local","1G"]]}}"#),
            Ok(set)
        );
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (text, want) in [
            ("", "this is not a request to canvas"),
            ("{}", "missing field `canvas`"),
            (r#"{"canvas":2,"ask":"dance"}"#, "the request has version 2"),
            (r#"{"canvas":1,"ask":"dance"}"#, "unknown variant `dance`"),
            (r#"{"canvas":1,"ask":"stat","x":1}"#, "unknown field `x`"),
            (
                r#"{"canvas":1,"ask":{"set":[["a"]]}}"#,
                "not a request that canvas knows",
            ),
            (r#"{"canvas":1,"ask":"stat"} {}"#, "trailing characters"),
            (&"[".repeat(4000), "not a request to canvas"),
        ] {
            let why = decode(text).unwrap_err().to_string();
            assert!(why.contains(want), "{text}: {why}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = Request::decode(&bytes);
        }

        #[test]
        fn a_question_that_was_changed_is_read_or_refused(
            at in 0usize..60, with: u8, cut in 0usize..60,
        ) {
            let mut line = br#"{"canvas":1,"ask":{"set":[["local","1G"],["pool","2G"]]}}"#.to_vec();
            let at = at % line.len();
            line[at] = with;
            line.truncate(line.len() - cut.min(line.len()));
            let _ = Request::decode(&line);
        }

        #[test]
        fn what_was_written_is_read(pairs: Vec<(String, String)>) {
            let request = Request { canvas: VERSION, ask: Ask::Set(pairs) };
            let line = serde_json::to_vec(&request).unwrap();
            proptest::prop_assert!(!line.contains(&b'\n'));
            proptest::prop_assert_eq!(Request::decode(&line), Ok(request));
        }
    }
}
