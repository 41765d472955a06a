//! The options of `canvas run`, with defaults filled in and values checked.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use canvas_agent::replicas::Policy;
use canvas_control::hello::Asked;
use canvas_link::Address;
use canvas_shm::segment::{Config, Mode, config_flag};
use canvas_types::units::{Amount, Size, Span};
use canvas_types::{AppTier, Codec, NodeBound, PAGE_SIZE, Prefetch, ReadUnit, Slo, Threshold};
use canvas_wire::key::ClusterKey;

/// The batch in whole pages.
pub fn batch_pages(batch: Size) -> u32 {
    (batch.bytes / PAGE_SIZE as u64) as u32
}

/// Why `--shared` is refused in thread mode.
pub const THREAD_MODE_SHARES_NOTHING: &str =
    "--shared works in signal mode only; leave it out, or see `canvas doctor` for signal mode";

/// The options of `canvas run`.
#[derive(Debug)]
pub struct Options {
    /// CMD and its arguments.
    pub command: Vec<OsString>,
    /// Name of the run; `None` for CMD's name.
    pub tenant: Option<String>,
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// Memory left to the host; `None` for nothing.
    pub host_reserve: Option<Amount>,
    /// Limit on local memory; `None` for no limit.
    pub local: Option<Amount>,
    /// Limit on the pool.
    pub pool: Size,
    /// Size of the swap cache at the start.
    pub swap_cache: Size,
    /// How faults are delivered; `None` for the best mode here.
    pub mode: Option<Mode>,
    /// File of the report.
    pub stats: Option<PathBuf>,
    /// File of the trace.
    pub trace: Option<PathBuf>,
    /// File of recordings of resumptions.
    pub learn: Option<PathBuf>,
    /// Whether a program that cannot be managed is an error.
    pub require: bool,
    /// How evicted pages are stored.
    pub codec: Codec,
    /// Whether a page keeps its swap entry when it is faulted in.
    pub reservations: bool,
    /// Whether native memory may be evicted to the host's swap.
    pub native_swap: bool,
    /// The prefetcher.
    pub prefetch: Prefetch,
    /// `app-tier`.
    pub app_tier: AppTier,
    /// How far local memory must be below its limit for proactive swap-in.
    pub proactive_threshold: Threshold,
    /// Batch of proactive swap-in.
    pub proactive_batch: Size,
    /// Target for the slowdown by paging.
    pub slo: Slo,
    /// NUMA nodes that take evicted pages before the pool, in this order.
    pub numa: Vec<NodeBound>,
    /// Limit on shared memory; `None` leaves shared memory native.
    pub shared: Option<Size>,
    /// Far memory beyond the pool.
    pub far: Option<FarOptions>,
    /// Whether the run's measurements are wanted.
    pub learns: bool,
}

/// Options of far memory.
#[derive(Debug)]
pub struct FarOptions {
    /// Most slabs of the tenant.
    pub slabs: usize,
    /// Directories for copies on disk, one per disk; empty for the default.
    pub dirs: Vec<PathBuf>,
    /// Space to leave free on their disks.
    pub reserve: Option<Amount>,
    /// Longest wait of a fault.
    pub wait: Duration,
    /// Part of the pool's limit above which its oldest pages are demoted (FastSwap §IV).
    pub spill_percent: u64,
    /// Far read size.
    pub unit: ReadUnit,
    /// Whether faulting threads may read directly from donors.
    pub lanes: bool,
    /// How long the agent polls for requests before it sleeps.
    pub spin: Span,
    /// Whether prefetches that would come too late are dropped.
    pub timeliness: bool,
    /// Donors.
    pub servers: Vec<Address>,
    /// Number and places of copies; `None` for the host agent's default.
    pub policy: Option<Policy>,
    /// The cluster key; `None` for donors on this host without one.
    pub key: Option<ClusterKey>,
    /// Connections to each donor.
    pub links: u8,
    /// Members of the donors' gossip.
    pub seeds: Vec<String>,
    /// The host's agent; `None` for an agent of the run's own.
    pub host: Option<HostOptions>,
    /// The share that the tenant requests.
    pub asked: Asked,
    /// Whether the tenant is a daemon, and its agent logs as a daemon does.
    pub of_daemon: bool,
}

/// A host agent.
#[derive(Debug)]
pub struct HostOptions {
    /// Its socket.
    pub path: PathBuf,
    /// Name of the tenant there.
    pub name: String,
    /// Whether the user chose the name.
    pub is_named: bool,
}

/// This host's memory, from which defaults follow.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    /// Memory of the machine.
    pub ram_bytes: u64,
    /// The part of it that this process's control groups allow.
    pub usable_bytes: u64,
}

impl Options {
    /// Writes the configuration that the tenant's processes need, except mode and trace.
    pub fn write_to(&self, config: &Config) {
        config.pool_bytes.store(self.pool.bytes, Relaxed);
        self.write_but_pool_to(config);
    }

    /// Like [`Options::write_to`], without the pool, on which an agent may have decided already.
    pub(crate) fn write_but_pool_to(&self, config: &Config) {
        match self.local {
            None => {}
            Some(Amount::Size(size)) => config.local_bytes.store(size.bytes, Relaxed),
            Some(Amount::Share(share)) => config.local_ppm.store(share.ppm().into(), Relaxed),
        }
        config
            .shared_bytes
            .store(self.shared.map_or(0, |s| s.bytes), Relaxed);
        config
            .swap_cache_bytes
            .store(self.swap_cache.bytes, Relaxed);
        let flags = [
            (self.require, config_flag::REQUIRE),
            (self.trace.is_some(), config_flag::TRACE),
            (self.learn.is_some(), config_flag::LEARN),
            (!self.reservations, config_flag::NO_RESERVATIONS),
            (!self.native_swap, config_flag::NATIVE_STAYS),
            (self.far.is_some(), config_flag::FAR),
        ];
        let bits = flags
            .iter()
            .filter(|(set, _)| *set)
            .fold(0, |bits, (_, bit)| bits | bit);
        config.flags.store(bits, Relaxed);
        config.codec.store(self.codec as u32, Relaxed);
        config.prefetch.store(self.prefetch as u32, Relaxed);
        config.app_tier.store(self.app_tier as u32, Relaxed);
        config
            .proactive_threshold
            .store(self.proactive_threshold.number(), Relaxed);
        config
            .proactive_batch_pages
            .store(batch_pages(self.proactive_batch), Relaxed);
        config.slo.store(self.slo.number(), Relaxed);
        config.runner_pid.store(std::process::id(), Relaxed);
        config.pid_namespace.store(pid_namespace(), Relaxed);
    }
}

/// Identifies the PID namespace of this process's children; 0 if unknown.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}
