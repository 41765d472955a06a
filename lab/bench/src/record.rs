//! Schema of a results file: JSON lines that accumulate, the only input of reports.
//!
//! Names end in their unit. Unknown or inapplicable values are absent.

use std::collections::BTreeMap;

pub use canvas_workloads::Quantiles;
use serde::{Deserialize, Serialize};

use crate::variant::Variant;

/// Name of the schema; lines with another one are refused.
pub const SCHEMA: &str = "canvas-bench/1";

/// One line of a results file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// Begins a run of the bench; later lines refer to it.
    Run(Run),
    /// One run of a program.
    Sample(Box<Sample>),
    /// A cell that was not run, and why.
    Skip(Skip),
    /// An experiment, or part of one, that needs a feature canvas does not have yet.
    NotYet(NotYet),
}

/// One run of the bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Identifier that is unique over all files: time and pid.
    pub run_id: String,
    /// Start time, in seconds since 1970.
    pub started_unix_s: u64,
    /// Version of the `canvas` command.
    pub canvas_version: String,
    /// Command line of the bench.
    pub argv: Vec<String>,
    /// Size of the workloads; 1 is the default.
    pub scale: f64,
    /// Repeats of each cell.
    pub repeats: u32,
    /// Seed of all generated data.
    pub seed: u64,
    /// The machine of the run.
    pub machine: Machine,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name from /proc/cpuinfo.
    pub cpu: String,
    /// Number of processors online.
    pub cpus: u32,
    /// Whether the machine is virtual.
    pub is_virtual: bool,
    /// Memory of the host, in bytes.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel: String,
    /// Version of cgroups that limits the kernel's variants: 1 or 2.
    pub cgroup_version: Option<u32>,
    /// Settings and features by name (thp, swappiness, damon, MGLRU, uffd ...), in the kernel's format.
    pub features: BTreeMap<String, String>,
    /// One-minute load average at the start.
    pub load_average: f64,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Finished with the right answer.
    #[default]
    Ok,
    /// Killed by the kernel because memory was short: a result, not a failure of the bench.
    Oom,
    /// Did not finish in time.
    Timeout,
    /// Finished with an answer different from the local run's.
    Wrong,
    /// Any other failure, as a sentence.
    Failed(String),
}

/// One run of a program under one variant. The default has no figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Identifier of its [`Run`].
    pub run_id: String,
    /// Name of the experiment ("quick", "canvas-fig2" ...).
    pub experiment: String,
    /// Name of the workload ("redis-ycsb-a", "xgboost" ...).
    pub workload: String,
    /// Parameters that distinguish this run of the workload within the experiment (threads=4, prefetcher=leap
    /// ...).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// The variant.
    pub variant: Variant,
    /// Limit in percent of the measured working set; absent without a limit.
    pub local_percent: Option<u32>,
    /// Limit in bytes.
    pub limit_bytes: Option<u64>,
    /// All programs of a co-run, joined by '+'; absent when the program ran alone.
    pub co_run: Option<String>,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    /// Start of the program, in seconds since the run began.
    pub at_s: f64,
    /// Outcome. Only figures of `Ok` runs may be compared.
    pub outcome: Outcome,
    /// Duration of the measured part (without loading data if the program separates it).
    pub seconds: Option<f64>,
    /// Begin and end of the measured part, in seconds since the program's start, if the program reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<(f64, f64)>,
    /// Counts over the measured part: `measured_s`, or for a server the time of its last client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Throughput, for workloads that have one (requests, pages ...).
    pub ops_per_s: Option<f64>,
    /// Latency of requests.
    pub latency_ns: Option<Quantiles>,
    /// Histogram of `latency_ns` as (upper bound in ns, count), for distribution plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_histogram: Vec<(u64, u64)>,
    /// Time of page-touching accesses, measured by the program itself in the same way under all variants.
    pub access_ns: Option<Quantiles>,
    /// Histogram of `access_ns` as (upper bound in ns, count).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_histogram: Vec<(u64, u64)>,
    /// Canvas's fault delivery ("signal", "thread"); absent for other variants and in older samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Major faults under the kernel's variants; demand faults under canvas.
    pub faults: Option<u64>,
    /// Time lost to paging over the time without it, in the whole run, as canvas reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_slowdown: Option<f64>,
    /// Latency of faults, where the variant measures it.
    pub fault_ns: Option<Quantiles>,
    /// Histogram of `fault_ns` as (upper bound in ns, count), where the variant reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault_histogram: Vec<(u64, u64)>,
    /// Pages swapped in, with prefetched ones.
    pub swap_in_pages: Option<u64>,
    /// Pages swapped out.
    pub swap_out_pages: Option<u64>,
    /// Processor time in user mode.
    pub cpu_user_s: Option<f64>,
    /// Processor time in system mode.
    pub cpu_system_s: Option<f64>,
    /// Peak of anonymous memory.
    pub memory_peak_bytes: Option<u64>,
    /// Peak of local memory under canvas, measured from outside once per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_sampled_peak_bytes: Option<u64>,
    /// Contents of local memory under canvas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Peak bytes on the far side: pool, zram device, zswap pool, swap file.
    pub far_peak_bytes: Option<u64>,
    /// Mean latency of reads of the slow disk in the whole run, as the kernel counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_read_ns: Option<f64>,
    /// Canvas's prefetcher, or the kernel's readahead if it is counted.
    pub prefetch: Option<Prefetch>,
    /// The application tier of prefetching, if it was on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_tier: Option<AppTier>,
    /// Pages swapped in proactively, because local memory was free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<Proactive>,
    /// Swap entries allocated.
    pub entries: Option<Entries>,
    /// Far memory beyond the pool, for runs over donors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Far>,
    /// Total bytes from the donors' link to this host, with all headers, as (seconds since the run began,
    /// bytes). Only in the first sample of a co-run whose programs share an agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_to_host: Vec<(f64, u64)>,
    /// Work of a shared agent while all programs were measured. Only in the first sample of a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentWork>,
    /// Rates over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Tick>,
    /// Figures that only this experiment has, by a name that ends in the unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// Summary of the computed result; equal under all variants of a workload.
    pub answer: Option<String>,
}

/// Counts over a part of a run, from samples taken ten times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Begin, in seconds since the program's start.
    pub from_s: f64,
    /// End, in seconds since the program's start.
    pub to_s: f64,
    /// Faults, as in [`Sample::faults`].
    pub faults: Option<f64>,
    /// Processor time of all processes in the run's control group, including `canvas run`.
    pub cpu_s: Option<f64>,
    /// Mean of the program's local memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<f64>,
    /// Mean of all memory that the program takes, including far copies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
}

/// Contents of local memory when a program under canvas ended, from its report (docs/STATS.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Mapped managed pages.
    pub resident_bytes: u64,
    /// Pages in the swap cache.
    pub cache_bytes: u64,
    /// Anonymous memory that canvas does not manage, its own metadata included.
    pub native_bytes: u64,
    /// Canvas's metadata, if the kernel reports it.
    pub metadata_bytes: Option<u64>,
    /// Peak of memory shared by the processes and the agent, which is not limited.
    pub segment_peak_bytes: u64,
}

/// Prefetch figures as defined in Canvas §6.3.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prefetch {
    /// Pages prefetched.
    pub issued: u64,
    /// Prefetched pages that were used.
    pub used: u64,
    /// Share of faults on prefetched pages, 0 to 1.
    pub contribution: Option<f64>,
    /// Share of prefetched pages that were used, 0 to 1.
    pub accuracy: Option<f64>,
}

/// Work of the application tier of prefetching: counters `app_*` of the report (docs/STATS.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppTier {
    /// Faults forwarded to it.
    pub forwarded: u64,
    /// Faults of garbage collector and compiler threads, which are not forwarded.
    pub kept_out: u64,
    /// Pages prefetched by a thread's deltas in an array; included in [`Prefetch::issued`].
    pub by_arrays: u64,
    /// Pages read into the pool ahead by links.
    pub by_links: u64,
    /// Pages read ahead by links and then faulted in.
    pub by_links_used: u64,
    /// Pages read into the pool ahead by references.
    pub by_refs: u64,
    /// Pages read ahead by references and then faulted in.
    pub by_refs_used: u64,
}

/// Proactive swap-in (FastSwap §V).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proactive {
    /// Number of pages.
    pub pages: u64,
    /// Total time, in ns.
    pub ns: u64,
    /// Pages that were used.
    pub used: u64,
}

impl Proactive {
    /// Mean time per page, in ns.
    pub fn page_ns(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.ns as f64 / self.pages as f64)
    }
}

/// Far memory over donors that the bench starts, and plain TCP on the same host just after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Far {
    /// Number of donors at the start.
    pub donors: u32,
    /// Size of the pool (`--pool`).
    pub pool_bytes: u64,
    /// Pages demoted from the pool.
    pub pages_demoted: Option<u64>,
    /// Demoted pages that were promoted with their neighbours.
    pub pages_promoted: Option<u64>,
    /// Faults that waited for a page beyond the pool.
    pub faults: Option<u64>,
    /// Latency of these faults, from the request to the decoded page.
    pub read_ns: Option<Quantiles>,
    /// Latency of faults beyond the pool in the measured part, if the program reports it, in whole sample
    /// intervals (four per second); without the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_read_ns: Option<Quantiles>,
    /// Reads ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// Reads that the agent answered, of single pages and of extents.
    pub reads: Option<u64>,
    /// Bytes of these reads.
    pub in_bytes: Option<u64>,
    /// Extents written.
    pub extents_out: Option<u64>,
    /// Bytes written to the first copy.
    pub out_bytes: Option<u64>,
    /// Reads that the first copy did not answer, or not in time.
    pub failovers: Option<u64>,
    /// Slabs whose lost copy was restored.
    pub repairs: Option<u64>,
    /// Processor time of the donors, user and system, from their start to their end.
    pub donors_cpu_s: Option<f64>,
    /// Bytes that the donors read and wrote for their clients, by their own count.
    pub donors_bytes: Option<u64>,
    /// Processor time of a shared agent, in the sample of a program that runs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_cpu_s: Option<f64>,
    /// Peak of the agent's anonymous memory, sampled once per second.
    pub agent_peak_bytes: Option<u64>,
    /// Time from the death of a donor until no slab had too few copies.
    pub recovery_s: Option<f64>,
    /// Plain TCP over the loopback device; absent in co-runs.
    pub tcp: Option<Tcp>,
}

/// Work of a shared agent in a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentWork {
    /// Processor time of all its threads, in seconds.
    pub cpu_s: f64,
    /// Share of the time in which each serving thread ran.
    pub busy: Vec<f64>,
    /// Reads answered.
    pub reads: u64,
    /// Bytes of these reads, per second.
    pub in_bytes_per_s: f64,
}

impl AgentWork {
    /// Processor time per read, in ns.
    pub fn read_ns(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.cpu_s * 1e9 / self.reads as f64)
    }
}

/// Reads ahead of extents beyond the pool (Canvas §5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ahead {
    /// Reads ahead that completed.
    pub done: u64,
    /// Reads ahead that were dropped, because they would have completed too late.
    pub dropped: u64,
    /// Reads ahead that a thread faulted on before they were started, or completed.
    pub promoted: u64,
    /// Median latency of completed reads ahead, in ns; absent if there were none.
    pub p50_ns: Option<f64>,
    /// 90th percentile of that latency, in ns.
    pub p90_ns: Option<f64>,
}

/// Plain TCP between two threads of an otherwise idle bench.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Bytes of an answer: the mean read of the run.
    pub answer_bytes: u64,
    /// Median round trip of such an answer, in ns, with both ends blocking.
    pub blocking_ns: f64,
    /// Median round trip in ns with both ends polling, as agent and donor do at first.
    pub busy_ns: f64,
    /// Throughput of a stream in one direction.
    pub stream_bytes_per_s: f64,
}

/// Allocation of swap entries (Canvas §5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entries {
    /// Allocated under the allocator's lock.
    pub locked: u64,
    /// Allocated from the allocator's magazines, without its lock; 0 in results of older versions.
    #[serde(default)]
    pub stocked: u64,
    /// Allocated by reservation, without a lock.
    pub reserved: u64,
    /// Reservations dropped from hot pages.
    #[serde(default)]
    pub dropped: u64,
}

/// A sample of a run's rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Time in seconds since the program's start.
    pub at_s: f64,
    /// Pages swapped in per second since the previous tick.
    pub in_pages_per_s: f64,
    /// Pages swapped out per second since the previous tick.
    pub out_pages_per_s: f64,
    /// Throughput since the previous tick, if the workload reports it while it runs.
    pub ops_per_s: Option<f64>,
    /// Traffic beyond the pool since the previous tick, for runs over donors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<FarTick>,
}

/// Traffic beyond the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarTick {
    /// Stored bytes read, per second.
    pub in_bytes_per_s: f64,
    /// Stored bytes written to the first copy, per second.
    pub out_bytes_per_s: f64,
    /// Pages promoted per second, by faults and as their neighbours.
    pub in_pages_per_s: f64,
    /// Reads that the agent answered, per second; 0 in results of older versions.
    #[serde(default)]
    pub reads_per_s: f64,
}

/// A cell that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// Identifier of its [`Run`].
    pub run_id: String,
    /// Experiment.
    pub experiment: String,
    /// Workload, if the reason concerns only one.
    pub workload: Option<String>,
    /// Variant, if the reason concerns only one.
    pub variant: Option<Variant>,
    /// Reason, as one sentence.
    pub reason: String,
}

/// A part of an experiment that is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotYet {
    /// Identifier of its [`Run`].
    pub run_id: String,
    /// Experiment.
    pub experiment: String,
    /// The missing feature, as one sentence.
    pub waits_for: String,
}
