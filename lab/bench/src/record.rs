//! A results file: JSON lines that accumulate. What is written here is all that reports know.
//!
//! Units are last in names. A value that is not known or does not apply is absent.

use std::collections::BTreeMap;

pub use canvas_workloads::Quantiles;
use serde::{Deserialize, Serialize};

use crate::variant::Variant;

/// Name of this form of file; a line with another one is refused with a sentence.
pub const SCHEMA: &str = "canvas-bench/1";

/// One line of a results file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// Begins a run of the bench; later lines name it.
    Run(Run),
    /// One program, run once.
    Sample(Box<Sample>),
    /// A cell that was not run, and why.
    Skip(Skip),
    /// An experiment, or part of one, whose feature canvas does not have yet.
    NotYet(NotYet),
}

/// One run of the bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Unique in any file: time and pid.
    pub run_id: String,
    /// When it began.
    pub started_unix_s: u64,
    /// Version of the `canvas` command.
    pub canvas_version: String,
    /// How the bench was called.
    pub argv: Vec<String>,
    /// Size of the workloads; 1 is the default.
    pub scale: f64,
    /// Repeats of each cell.
    pub repeats: u32,
    /// Seed of all generated data.
    pub seed: u64,
    /// What the figures depend on.
    pub machine: Machine,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name from /proc/cpuinfo.
    pub cpu: String,
    /// Processors online.
    pub cpus: u32,
    /// Whether a hypervisor is below.
    pub is_virtual: bool,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel: String,
    /// 1 or 2: the version of cgroups that limits the kernel's variants.
    pub cgroup_version: Option<u32>,
    /// Settings and features by name (thp, swappiness, damon, MGLRU, uffd ...), as the kernel writes them.
    pub features: BTreeMap<String, String>,
    /// One-minute load average at the beginning.
    pub load_average: f64,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Finished, and its answer was right.
    #[default]
    Ok,
    /// Ended by the kernel for want of memory: a result, not a failure of the bench.
    Oom,
    /// Did not finish in time.
    Timeout,
    /// Finished with another answer than the local run.
    Wrong,
    /// Anything else, as a sentence.
    Failed(String),
}

/// One program, run once under one variant. The default says nothing yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The [`Run`] that it belongs to.
    pub run_id: String,
    /// Experiment, by name ("quick", "canvas-fig2" ...).
    pub experiment: String,
    /// Workload, by name ("redis-ycsb-a", "xgboost" ...).
    pub workload: String,
    /// What distinguishes this workload's run inside the experiment (threads=4, prefetcher=leap ...).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// What was below the program.
    pub variant: Variant,
    /// Limit as a share of the measured working set; absent for unlimited runs.
    pub local_percent: Option<u32>,
    /// The limit.
    pub limit_bytes: Option<u64>,
    /// The programs that ran beside it, joined by '+', itself included; absent when alone.
    pub co_run: Option<String>,
    /// 0-based.
    pub repeat: u32,
    /// Seconds since the run began when this program started.
    pub at_s: f64,
    /// How it ended. Figures of runs that are not `Ok` are not to be compared.
    pub outcome: Outcome,
    /// Time of the part of the program that is measured (loading data excluded where it says so).
    pub seconds: Option<f64>,
    /// When the measured part began and ended, in seconds since the program's start, where the program
    /// says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<(f64, f64)>,
    /// What was counted in the measured part: that of `measured_s`, or else, of a server, the time of its last
    /// client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Throughput, for workloads that have one (requests, pages ...).
    pub ops_per_s: Option<f64>,
    /// Latency of requests.
    pub latency_ns: Option<Quantiles>,
    /// The same as (upper bound in ns, count), for distribution plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_histogram: Vec<(u64, u64)>,
    /// Time of accesses that touch a page, timed by the program itself: the same under all variants.
    pub access_ns: Option<Quantiles>,
    /// The same as (upper bound in ns, count).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_histogram: Vec<(u64, u64)>,
    /// How canvas delivered faults ("signal", "thread"); absent of others and of older samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Major faults for the kernel's variants; demand faults for canvas.
    pub faults: Option<u64>,
    /// Time lost to paging over the time without it in the whole run, as canvas reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_slowdown: Option<f64>,
    /// Time of a fault, where the variant measures it.
    pub fault_ns: Option<Quantiles>,
    /// The same as (upper bound in ns, count), where the variant reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault_histogram: Vec<(u64, u64)>,
    /// Pages brought in, prefetched ones included.
    pub swap_in_pages: Option<u64>,
    /// Pages put out.
    pub swap_out_pages: Option<u64>,
    /// Processor time in user mode.
    pub cpu_user_s: Option<f64>,
    /// Processor time in the kernel.
    pub cpu_system_s: Option<f64>,
    /// Most anonymous memory at one time.
    pub memory_peak_bytes: Option<u64>,
    /// Most local memory of a program under canvas, looked at from outside once a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_sampled_peak_bytes: Option<u64>,
    /// What local memory held under canvas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Most bytes of the far side: pool, zram device, zswap pool, swap file.
    pub far_peak_bytes: Option<u64>,
    /// Mean time of a read of a disk of the bench's own in the whole run, as the kernel counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_read_ns: Option<f64>,
    /// Canvas's prefetcher, or the kernel's readahead where it counts.
    pub prefetch: Option<Prefetch>,
    /// The application tier of prefetching, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_tier: Option<AppTier>,
    /// Pages that came back before they were touched, because local memory was free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<Proactive>,
    /// Swap entries allocated.
    pub entries: Option<Entries>,
    /// Far memory beyond the pool, for runs over donors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Far>,
    /// What the link to the donors has carried to this host, all headers included: seconds since the run
    /// began, and bytes. In the first sample of a co-run whose programs share an agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_to_host: Vec<(f64, u64)>,
    /// What an agent that programs share did for all of them while all were measured. In the first sample of a
    /// cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentWork>,
    /// Rates over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Tick>,
    /// Figures of this experiment alone, by a name that ends in their unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// What the program computed, in short; the same for all variants of a workload.
    pub answer: Option<String>,
}

/// Counted in a part of a run, from looks ten times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// When it began, in seconds since the program's start.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// As `faults` of the whole run.
    pub faults: Option<f64>,
    /// Processor time of all processes of the run's control group, `canvas run` among them.
    pub cpu_s: Option<f64>,
    /// Mean of the program's local memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<f64>,
    /// Mean of all memory that it takes, with what is stored of it in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
}

/// What local memory held when a program under canvas ended, by its report (docs/STATS.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Managed pages that were mapped.
    pub resident_bytes: u64,
    /// Pages in the swap cache.
    pub cache_bytes: u64,
    /// Anonymous memory that canvas does not manage, its own metadata included.
    pub native_bytes: u64,
    /// Canvas's metadata, where the kernel tells.
    pub metadata_bytes: Option<u64>,
    /// Most memory that the processes and the agent shared, beside the bound.
    pub segment_peak_bytes: u64,
}

/// As Canvas §6.3.2 defines them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prefetch {
    /// Pages prefetched.
    pub issued: u64,
    /// Of those, found used.
    pub used: u64,
    /// Share of faults that prefetching answered, 0 to 1.
    pub contribution: Option<f64>,
    /// Share of prefetched pages that were used, 0 to 1.
    pub accuracy: Option<f64>,
}

/// What the application tier of prefetching was asked and gave: counters `app_*` of the report
/// (docs/STATS.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppTier {
    /// Faults that were forwarded to it.
    pub forwarded: u64,
    /// Those of threads that collect garbage or compile, which were not.
    pub kept_out: u64,
    /// Pages by deltas of a thread in an array; part of [`Prefetch::issued`].
    pub by_arrays: u64,
    /// Pages by links, read into the pool ahead.
    pub by_links: u64,
    /// Of those, faulted on then.
    pub by_links_used: u64,
    /// Pages by references, read into the pool ahead.
    pub by_refs: u64,
    /// Of those, faulted on then.
    pub by_refs_used: u64,
}

/// Pages that came back before they were touched (FastSwap §V).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proactive {
    /// How many.
    pub pages: u64,
    /// Time that it took, all together.
    pub ns: u64,
    /// Of the pages, found used.
    pub used: u64,
}

impl Proactive {
    /// Time of one page.
    pub fn page_ns(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.ns as f64 / self.pages as f64)
    }
}

/// Far memory over donors of the bench's own, and plain TCP on the same host just after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Far {
    /// Donors at the start.
    pub donors: u32,
    /// `--pool`.
    pub pool_bytes: u64,
    /// Pages that left the pool.
    pub pages_demoted: Option<u64>,
    /// Of those, brought back with their neighbours.
    pub pages_promoted: Option<u64>,
    /// Faults that waited for a page beyond the pool.
    pub faults: Option<u64>,
    /// What they waited for it, from the request to the decoded page.
    pub read_ns: Option<Quantiles>,
    /// The same of the measured part alone, where the program says when that was, in whole looks (four a
    /// second); without the longest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_read_ns: Option<Quantiles>,
    /// What was asked for ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// Reads that the agent answered: of single pages and of extents.
    pub reads: Option<u64>,
    /// Bytes read for them.
    pub in_bytes: Option<u64>,
    /// Extents written.
    pub extents_out: Option<u64>,
    /// Bytes written to the first copy.
    pub out_bytes: Option<u64>,
    /// Reads that the first copy did not serve, or not in time.
    pub failovers: Option<u64>,
    /// Slabs whose lost copy was made anew.
    pub repairs: Option<u64>,
    /// Processor time of the donors, user and kernel, from their start to their end.
    pub donors_cpu_s: Option<f64>,
    /// Bytes that they read and wrote for their clients, as they count.
    pub donors_bytes: Option<u64>,
    /// Processor time of an agent that programs share, of a program that has it to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_cpu_s: Option<f64>,
    /// Most anonymous memory of the agent, looked at once a second.
    pub agent_peak_bytes: Option<u64>,
    /// From the death of a donor to the moment when no slab has too few copies.
    pub recovery_s: Option<f64>,
    /// Plain TCP over the loopback device; absent in co-runs.
    pub tcp: Option<Tcp>,
}

/// What an agent that programs share did in a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentWork {
    /// Processor time of all of its threads.
    pub cpu_s: f64,
    /// Of each serving thread, the share of the time in which it ran.
    pub busy: Vec<f64>,
    /// Reads that it answered.
    pub reads: u64,
    /// Bytes read for them in a second.
    pub in_bytes_per_s: f64,
}

impl AgentWork {
    /// Processor time of one read.
    pub fn read_ns(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.cpu_s * 1e9 / self.reads as f64)
    }
}

/// Extents asked for ahead beyond the pool (Canvas §5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ahead {
    /// Those that came.
    pub done: u64,
    /// Those that were not read, because they would have come too late.
    pub dropped: u64,
    /// Those that a thread came to wait for before they were begun, or all of them was.
    pub promoted: u64,
    /// Median time of those that came, from the request to the answer; absent where none came.
    pub p50_ns: Option<f64>,
    /// The 90th percentile.
    pub p90_ns: Option<f64>,
}

/// Plain TCP between two threads of the bench, with nothing else to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Bytes of an answer: what a read of the run came to.
    pub answer_bytes: u64,
    /// Median round trip of such an answer; both ends sleep while they wait.
    pub blocking_ns: f64,
    /// The same while both ends look all the time, as agent and donor do at first.
    pub busy_ns: f64,
    /// A stream in one direction.
    pub stream_bytes_per_s: f64,
}

/// Allocation of swap entries (Canvas §5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entries {
    /// Under the allocator's lock.
    pub locked: u64,
    /// By the allocator without its lock; 0 in results of before there was that.
    #[serde(default)]
    pub stocked: u64,
    /// By reservation, without a lock.
    pub reserved: u64,
    /// Reservations taken from hot pages.
    #[serde(default)]
    pub dropped: u64,
}

/// A moment of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Since the program started.
    pub at_s: f64,
    /// Pages in a second since the tick before.
    pub in_pages_per_s: f64,
    /// Pages out a second since the tick before.
    pub out_pages_per_s: f64,
    /// Throughput since the tick before, where the workload reports it as it goes.
    pub ops_per_s: Option<f64>,
    /// What moved beyond the pool since the tick before, for runs over donors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<FarTick>,
}

/// What moves beyond the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarTick {
    /// Bytes read, as they are stored.
    pub in_bytes_per_s: f64,
    /// Bytes written to the first copy.
    pub out_bytes_per_s: f64,
    /// Pages that came back: those that faults waited for, and their neighbours.
    pub in_pages_per_s: f64,
    /// Reads that the agent answered; 0 in results of before they were counted.
    #[serde(default)]
    pub reads_per_s: f64,
}

/// A cell that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The [`Run`] that it belongs to.
    pub run_id: String,
    /// Experiment.
    pub experiment: String,
    /// Workload, when only one is concerned.
    pub workload: Option<String>,
    /// Variant, when only one is concerned.
    pub variant: Option<Variant>,
    /// One sentence: what is missing.
    pub reason: String,
}

/// What of an experiment is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotYet {
    /// The [`Run`] that it belongs to.
    pub run_id: String,
    /// Experiment.
    pub experiment: String,
    /// One sentence: what is left out.
    pub waits_for: String,
}
