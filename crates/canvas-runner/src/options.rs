//! What `canvas run` was asked, with the defaults filled in and the values checked.

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

/// A batch in whole pages.
pub fn batch_pages(batch: Size) -> u32 {
    (batch.bytes / PAGE_SIZE as u64) as u32
}

/// Why `--shared` is refused in thread mode.
pub const THREAD_MODE_SHARES_NOTHING: &str =
    "--shared works in signal mode only; leave it out, or see `canvas doctor` for signal mode";

/// What `canvas run` was asked.
#[derive(Debug)]
pub struct Options {
    /// CMD and its arguments.
    pub command: Vec<OsString>,
    /// What the run is called; `None` for CMD's name.
    pub tenant: Option<String>,
    /// Where metrics are offered.
    pub metrics: Option<SocketAddr>,
    /// What is left to the host; `None` for nothing.
    pub host_reserve: Option<Amount>,
    /// Bound on local memory; `None` for no bound.
    pub local: Option<Amount>,
    /// Bound on the pool.
    pub pool: Size,
    /// Swap cache at start.
    pub swap_cache: Size,
    /// How faults are delivered; `None` for what works best here.
    pub mode: Option<Mode>,
    /// Where the report goes.
    pub stats: Option<PathBuf>,
    /// Where the trace goes.
    pub trace: Option<PathBuf>,
    /// Where recordings of resumptions are kept.
    pub learn: Option<PathBuf>,
    /// A program that cannot be managed is an error.
    pub require: bool,
    /// How far pages are stored.
    pub codec: Codec,
    /// A page keeps its swap entry when it comes in.
    pub reservations: bool,
    /// Native memory may leave through the host's swap.
    pub native_swap: bool,
    /// Who prefetches.
    pub prefetch: Prefetch,
    /// `app-tier`.
    pub app_tier: AppTier,
    /// How far below the limit local memory has to be for pages to come back by themselves.
    pub proactive_threshold: Threshold,
    /// How much of them at a time.
    pub proactive_batch: Size,
    /// What paging may slow the program by.
    pub slo: Slo,
    /// NUMA nodes that pages go to before they go into the pool, in this order.
    pub numa: Vec<NodeBound>,
    /// Bound on memory that forks share; `None`: it stays native.
    pub shared: Option<Size>,
    /// Far memory beyond the pool.
    pub far: Option<FarOptions>,
    /// It is wanted what the run has shown of its program.
    pub learns: bool,
}

/// Far memory beyond the pool.
#[derive(Debug)]
pub struct FarOptions {
    /// Slabs that the tenant may fill.
    pub slabs: usize,
    /// Directories of the disk copy, on a disk each; none for the default.
    pub dirs: Vec<PathBuf>,
    /// What stays free on its disk.
    pub reserve: Option<Amount>,
    /// Longest that a fault may wait.
    pub wait: Duration,
    /// The pool's oldest pages leave it past this part of its bound (FastSwap §IV).
    pub spill_percent: u64,
    /// What comes back with a page that is read beyond the pool.
    pub unit: ReadUnit,
    /// Whether threads may read from donors by themselves.
    pub lanes: bool,
    /// How long the agent looks for requests before it sleeps.
    pub spin: Span,
    /// What is read ahead and would come too late is not done.
    pub timeliness: bool,
    /// Hosts that lend memory.
    pub servers: Vec<Address>,
    /// How many copies, and where; `None` for what the host agent does.
    pub policy: Option<Policy>,
    /// The servers' key; `None` for servers on this host that have none.
    pub key: Option<ClusterKey>,
    /// Connections to each server.
    pub links: u8,
    /// Members of the servers' gossip.
    pub seeds: Vec<String>,
    /// The host's agent keeps it; `None` for one of the run's own.
    pub host: Option<HostOptions>,
    /// What of its share the tenant asks for.
    pub asked: Asked,
}

/// A host agent.
#[derive(Debug)]
pub struct HostOptions {
    /// Where it listens.
    pub path: PathBuf,
    /// What the tenant is called there.
    pub name: String,
    /// Its user named it.
    pub is_named: bool,
}

/// This host's memory, of which the defaults are parts.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    /// Of the machine.
    pub ram_bytes: u64,
    /// Of that, what the control groups of this process let it use.
    pub usable_bytes: u64,
}

impl Options {
    /// Writes what the processes of the tenant need to know, all but the mode and the trace.
    pub fn write_to(&self, config: &Config) {
        config.pool_bytes.store(self.pool.bytes, Relaxed);
        self.write_but_pool_to(config);
    }

    /// The same without the pool, of which an agent may have said something.
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

/// Where the numbers of this process's children hold; 0 when it cannot be known.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}
