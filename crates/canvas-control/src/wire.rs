//! What is said over a control socket; docs/OPERATING.md is the schema.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use canvas_shm::far::class;
use canvas_types::{PAGE_SIZE, ReadUnit};
use serde::{Deserialize, Serialize};

/// Version of everything here. A field may be added to an answer without a new one.
pub const VERSION: u32 = 1;
/// Bytes of a question at most, its newline included.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Bytes of an answer at most.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A question.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub canvas: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What can be asked.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// How the tenant is.
    Status,
    /// The same, and its counters.
    Stat,
    /// Change these: keys and values as the user wrote them.
    Set(Vec<(String, String)>),
}

/// An answer.
#[derive(Serialize, Deserialize, Debug)]
pub struct Answer {
    /// [`VERSION`].
    pub canvas: u32,
    /// What is answered.
    pub answer: Reply,
}

/// What can be answered.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Ask::Status`].
    Status(Box<Status>),
    /// To [`Ask::Stat`].
    Stat(Box<Stat>),
    /// To [`Ask::Set`]: all of it was done.
    Done,
    /// Nothing was done, for this reason: one sentence.
    Refused(String),
    /// To [`Ask::Set`]: it may be done later, for this reason: one sentence.
    Unsure(String),
}

/// Why a question is not answered: one sentence for who asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuestionError {
    /// It is of this version, and none of its questions; the decoder's words.
    #[error("this is not a request that canvas knows: {0}")]
    Unknown(String),
    /// It is of another version.
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
    /// Reads a question.
    pub fn decode(line: &[u8]) -> Result<Request, QuestionError> {
        /// What every version has.
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

/// The line that answers a question.
pub fn answer(line: &[u8], on: impl FnOnce(Ask) -> Reply) -> String {
    let answer = match Request::decode(line) {
        Err(why) => Reply::Refused(why.to_string()),
        Ok(request) => on(request.ask),
    };
    let canvas = VERSION;
    // Numbers and strings always become JSON.
    serde_json::to_string(&Answer { canvas, answer }).unwrap_or_default()
}

/// How a tenant is.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Status {
    /// `canvas-status/1`.
    pub schema: String,
    /// Its name.
    pub tenant: String,
    /// Its `canvas run`; of a disk, the process that serves it.
    pub pid: u32,
    /// CMD, without its arguments; of a disk, its socket.
    pub program: String,
    /// Version of its `canvas run`.
    pub canvas_version: String,
    /// Since CMD was started.
    pub uptime_s: f64,
    /// How faults are delivered; `null` when CMD is not managed.
    pub mode: Option<String>,
    /// Nothing is wrong.
    pub healthy: bool,
    /// What is wrong.
    pub health: Vec<Problem>,
    /// Bounds.
    pub limits: Limits,
    /// What is used of them.
    pub used: Used,
    /// Processes.
    pub processes: Vec<u32>,
    /// Far memory; `null` without `--far`.
    pub far: Option<Far>,
    /// NUMA nodes that have pages, in their order.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Hosts that lend memory.
    pub donors: Vec<Donor>,
    /// The same for all runs of one tenant at the host's agent; `null` for a run of its own.
    #[serde(default)]
    pub shared: Option<String>,
    /// What a disk has beside; `null` for a run.
    #[serde(default)]
    pub disk: Option<Disk>,
    /// Faults that took 1 ms or longer.
    #[serde(default)]
    pub slow_faults: SlowFaults,
}

/// Faults that took 1 ms or longer, and what they waited for.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct SlowFaults {
    /// Since the beginning, by cause; causes that there were.
    pub causes: BTreeMap<String, SlowSum>,
    /// The last of them, the newest first.
    pub last: Vec<SlowFault>,
}

/// Slow faults of one cause.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct SlowSum {
    /// How many.
    pub faults: u64,
    /// How long they took together.
    pub ns: u64,
}

/// One slow fault.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct SlowFault {
    /// Address of its page, in hexadecimal.
    pub page: String,
    /// What it waited for most.
    pub cause: String,
    /// The process.
    pub pid: u32,
    /// How long it took.
    pub ns: u64,
    /// How long ago it ended.
    pub ago_s: f64,
}

impl SlowFaults {
    /// What the segment has of them at `now_ns` (CLOCK_MONOTONIC).
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
    /// What its clients see.
    pub size_bytes: u64,
    /// Pages that are stored, in the pool or beyond it.
    pub stored_pages: u64,
    /// Bytes of those pages, by what the pool takes; `null` while that is nothing.
    pub ratio: Option<f64>,
    /// Clients that are connected.
    pub clients: u64,
    /// Pages that were read and written in the last second.
    pub reads_per_s: f64,
    /// The same.
    pub writes_per_s: f64,
    /// Since its start: pages that were read.
    pub reads: u64,
    /// Pages that were written.
    pub writes: u64,
    /// Pages that clients waited for beyond the pool.
    pub far_reads: u64,
    /// Writes that found no room.
    pub refused: u64,
    /// Reads that found no copy within `far-wait`.
    pub unreachable: u64,
    /// Reads of damaged pages.
    pub damaged: u64,
}

/// A NUMA node that a tenant has pages on (`--numa`).
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The kernel's number of it.
    pub node: u32,
    /// Bound on what lies there.
    pub limit_bytes: u64,
    /// What lies there.
    pub used_bytes: u64,
}

/// Something that is wrong; docs/OPERATING.md has the table.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Stays the same for ever.
    pub code: String,
    /// So does this.
    pub name: String,
    /// One sentence for people.
    pub text: String,
}

/// Bounds of a tenant.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Limits {
    /// `--local` as a size.
    pub local_bytes: Option<u64>,
    /// `--local` as a share.
    pub local_percent: Option<f64>,
    /// What it comes to now.
    pub local_effective_bytes: Option<u64>,
    /// What it would have to be, while native memory and the least that each process needs are more.
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
    /// Of `--pool`, what the host's agent grants now; `null` where it bounds no pools.
    #[serde(default)]
    pub pool_grant_bytes: Option<u64>,
    /// `--shared`; `null` where memory that forks share is the kernel's.
    #[serde(default)]
    pub shared_bytes: Option<u64>,
    /// Of `--shared`, what the host's agent grants now; `null` where it bounds no memory that forks share.
    #[serde(default)]
    pub shared_grant_bytes: Option<u64>,
    /// What `proactive-threshold` comes to; `null` when it is off.
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
    /// The bound on the pool that is in force.
    pub fn pool_now_bytes(&self) -> u64 {
        self.pool_grant_bytes.unwrap_or(self.pool_bytes)
    }
    /// The bound on pages that forks share that is in force.
    pub fn shared_now_bytes(&self) -> Option<u64> {
        let granted = self.shared_grant_bytes.unwrap_or(u64::MAX);
        self.shared_bytes.map(|own| own.min(granted))
    }
}

/// What a tenant uses.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
pub struct Used {
    /// Local memory: the next three.
    pub local_bytes: u64,
    /// Pages that are mapped.
    pub resident_bytes: u64,
    /// Pages in the swap cache.
    pub cache_bytes: u64,
    /// Memory that canvas does not page, its own included.
    pub native_bytes: u64,
    /// Of that, canvas's own: tables, stacks, its library's data, code that it changed; `null` where a kernel does
    /// not tell.
    #[serde(default)]
    pub metadata_bytes: Option<u64>,
    /// Memory of its processes in the host's swap; no part of the local memory.
    #[serde(default)]
    pub swapped_bytes: u64,
    /// Pages that exist only as far copies, at their full size.
    pub far_pages_bytes: u64,
    /// What the pool takes.
    pub pool_bytes: u64,
    /// Slabs of far memory, counted whole.
    pub far_bytes: u64,
    /// Local and far pages together.
    pub footprint_bytes: u64,
    /// Memory that forks share: pages that are in memory, each counted once.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Far copies of the others; part of the pool.
    #[serde(default)]
    pub shared_store_bytes: u64,
    /// What lies uncompressed on NUMA nodes.
    #[serde(default)]
    pub nodes_bytes: u64,
    /// What its processes and the agent share: counters, requests, buffers of far memory.
    #[serde(default)]
    pub segment_bytes: u64,
    /// Memory of the agent of its own.
    #[serde(default)]
    pub agent_bytes: u64,
    /// All of this host's memory that it takes ([`Used::sum`]).
    #[serde(default)]
    pub memory_bytes: u64,
}

impl Used {
    /// All memory: what is bounded by `--local`, `--pool`, `--numa` and `--shared`, and what is beside them.
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
        // Some of them stand where the program can write.
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// Far memory beyond the pool, since the beginning.
#[derive(Serialize, Deserialize, Clone, Copy, Default, Debug)]
pub struct Far {
    /// Extents written.
    pub extents_out: u64,
    /// Bytes written to the first copy.
    pub bytes_out: u64,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read for them.
    pub bytes_in: u64,
    /// Of the reads, those that programs did by themselves over lanes.
    #[serde(default)]
    pub lane_reads: u64,
    /// Of these, those by queue pairs (RDMA).
    #[serde(default)]
    pub lane_pair_reads: u64,
    /// Lanes that were opened.
    #[serde(default)]
    pub lanes_opened: u64,
    /// Reads that a lane could not do, and the agent did.
    #[serde(default)]
    pub lane_failures: u64,
    /// Reads that the first copy could not serve.
    pub failovers: u64,
    /// Copies that did not verify.
    pub corrupt: u64,
    /// Slabs whose lost copy was made anew.
    pub repairs: u64,
    /// Slabs with too few copies now.
    pub degraded_slabs: u64,
    /// What the disk lacks now because it is written there late (`--copies 1+disk-async`), in bytes.
    #[serde(default)]
    pub disk_behind_bytes: u64,
    /// Agents so far.
    pub agents: u32,
    /// What was asked for because a thread waits for it.
    #[serde(default)]
    pub demand: Class,
    /// What was asked for ahead.
    #[serde(default)]
    pub prefetch: Class,
    /// What was written.
    #[serde(default)]
    pub swap_out: Class,
    /// Single reads that a fault waited for, as the program counts them.
    #[serde(default)]
    pub fault_reads: u64,
    /// How long these took in all, in ns.
    #[serde(default)]
    pub fault_read_ns: u64,
    /// Of what was asked for ahead: not done, because it would have come too late.
    #[serde(default)]
    pub dropped: u64,
    /// Of what was asked for ahead: put before the rest, because a thread came to wait for it.
    #[serde(default)]
    pub promoted: u64,
    /// Seconds that the agent's thread was at work for the tenant.
    #[serde(default)]
    pub agent_cpu_s: f64,
    /// What comes back with a page that is read there: as was asked for, or as a process has learned last.
    #[serde(default)]
    pub unit_bytes: u64,
    /// Of the reads, those of what a donor and the disk both have that the disk was asked for.
    #[serde(default)]
    pub reads_by_disk: u64,
    /// Of the reads, those that were computed from other shards than those that have their bytes.
    #[serde(default)]
    pub decoded: u64,
    /// Operations that may be under way on a far directory at a time.
    #[serde(default)]
    pub disk_width: u64,
}

/// Requests of one kind that the agent's scheduler let go.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Debug)]
pub struct Class {
    /// How many.
    pub requests: u64,
    /// Bytes that they were charged with: those of all copies.
    pub bytes: u64,
    /// How long they waited in the agent before, on average.
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
    /// What the tenant's far area counts, and what its caller knows of degraded slabs.
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
            lane_failures: s.lane_failures.load(Relaxed),
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

/// A host that lends memory.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Donor {
    /// Where it listens.
    pub address: String,
    /// `down`, `listing`, `up` or `pressure`.
    pub state: String,
    /// Slabs of the tenant that have a copy there.
    pub slabs: u32,
    /// What it could lend, as it said last.
    pub free_bytes: u64,
    /// Half of its last answers to a ping take no longer; `null` before the first.
    pub round_trip_us: Option<u32>,
    /// Half of its last answers to reads that a thread waits for take no longer; `null` before the first.
    #[serde(default)]
    pub read_p50_us: Option<u32>,
    /// 99 of 100 of all its answers to such reads take no longer.
    #[serde(default)]
    pub read_p99_us: Option<u32>,
    /// It is silent for longer than usual, and read after others until it answers.
    #[serde(default)]
    pub suspect: bool,
    /// It takes many times as long as another donor of the run, or is suspect.
    #[serde(default)]
    pub slow: bool,
    /// Reads that another copy was asked for since it was silent, or failed.
    #[serde(default)]
    pub failovers: u64,
    /// Requests that wait for its answer.
    #[serde(default)]
    pub outstanding: u32,
    /// How long the oldest of these waits.
    #[serde(default)]
    pub waits_us: u32,
}

/// A tenant's status and counters at one moment.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Stat {
    /// The moment (CLOCK_MONOTONIC).
    pub at_ns: u64,
    /// How the tenant is.
    pub status: Status,
    /// Counters since the beginning, by their names in docs/STATS.md.
    pub counters: BTreeMap<String, u64>,
    /// Faults by how long they took: [`canvas_shm::histogram`]'s buckets.
    pub fault_ns: Vec<u64>,
    /// The longest.
    pub fault_ns_max: u64,
    /// What page features follow from; a run of before they were says none.
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
            (r#"{"canvas":2,"ask":"dance"}"#, "was asked in version 2"),
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
