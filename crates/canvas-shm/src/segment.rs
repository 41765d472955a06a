//! The tenant segment: configuration, limits, counters and one slot for each process.
//!
//! `canvas run` writes [`Config`] before any process maps the segment; afterwards only atomics change. Sizes are in
//! bytes or pages, as the names say.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use canvas_types::layout::{Bases, NODES_MAX};
use canvas_types::units::Amount;
use canvas_types::{AppTier, Codec, PAGE_SIZE, Prefetch, Slo, Threshold};

use crate::histogram::{BUCKETS, Histogram};
use crate::host::HostWatch;
use crate::learn::Recordings;
use crate::lend::RequestCell;
use crate::lives::LEAVING;
use crate::nodes::NodeBook;
use crate::slow::SlowFaults;

/// "CANVAS" and the layout's version; a process that finds another value stays unmanaged.
pub const MAGIC: u64 = 0x4341_4e56_4153_0017;
/// Environment variable that carries the segment's file descriptor number to every process.
pub const ENV_SEGMENT_FD: &str = "CANVAS_SEGMENT_FD";
/// Environment variable that carries the preload library's file descriptor number.
pub const ENV_PRELOAD_FD: &str = "CANVAS_PRELOAD_FD";
/// Process slots of a tenant; one is reserved for shared memory ([`crate::far::SHARED`]).
pub const PROCS_MAX: usize = 1024;
/// Generations of pages that a process publishes.
pub const GENERATIONS: usize = 16;
/// Copies of the counters; a thread adds to one of them, a reader sums them.
pub const STRIPES: usize = 8;
/// Number of refault distance buckets ([`refault_bucket`]).
pub const REFAULT_BUCKETS: usize = 9;
/// Most size classes that are counted (canvas-core has their sizes).
pub const CLASSES_MAX: usize = 32;

/// How faults are delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// The faulting thread resolves its own fault in a SIGBUS handler.
    Signal = 1,
    /// Handler threads read the userfaultfd.
    Thread = 2,
}

/// Bits of [`Config::flags`].
pub mod config_flag {
    /// A program that cannot be managed is an error.
    pub const REQUIRE: u32 = 1;
    /// Record faults and sampled touches to the trace file descriptor.
    pub const TRACE: u32 = 2;
    /// Pages release their swap entry when they come in (no reservations, Canvas §5.1).
    pub const NO_RESERVATIONS: u32 = 8;
    /// The far area ([`crate::far`]) follows the segment.
    pub const FAR: u32 = 16;
    /// Native memory must not go to the kernel's swap.
    pub const NATIVE_STAYS: u32 = 32;
    /// A run has joined the tenant.
    pub const JOINED: u32 = 64;
    /// Resumptions are recorded and replayed ([`crate::learn`]).
    pub const LEARN: u32 = 128;
}

/// The user's configuration; written before the program starts. The sizes ([`Segment::set_local`]) and the prefetcher
/// may change while it runs; they are read here at each use.
#[repr(C, align(64))]
pub struct Config {
    /// Local memory in bytes; 0 when `local_ppm` holds or there is no limit.
    pub local_bytes: AtomicU64,
    /// Local memory as parts per million of the footprint so far; 0 when unused.
    pub local_ppm: AtomicU64,
    /// Limit on the compressed pool in bytes.
    pub pool_bytes: AtomicU64,
    /// `--shared` in bytes; 0 where the kernel manages memory that forks share.
    pub shared_bytes: AtomicU64,
    /// Initial size of the swap cache in bytes.
    pub swap_cache_bytes: AtomicU64,
    /// [`Mode`] as a number.
    pub mode: AtomicU32,
    /// Bits of [`config_flag`], written before the first process starts.
    pub flags: AtomicU32,
    /// [`Codec`] as a number.
    pub codec: AtomicU32,
    /// [`Prefetch`] as a number.
    pub prefetch: AtomicU32,
    /// [`AppTier`] as a number.
    pub app_tier: AtomicU32,
    /// Pages of a batch of proactive swap-in.
    pub proactive_batch_pages: AtomicU32,
    /// Distance below the limit at which proactive swap-in starts: [`Threshold`] as a number.
    pub proactive_threshold: AtomicU64,
    /// Allowed slowdown by paging: [`Slo`] as a number.
    pub slo: AtomicU64,
    /// File descriptor of the trace, or 0.
    pub trace_fd: AtomicU32,
    /// PID of the `canvas run` process that created the segment.
    pub runner_pid: AtomicU32,
    /// The PID namespace of that process (inode of /proc/PID/ns/pid); 0 when unknown.
    pub pid_namespace: AtomicU64,
    /// First byte of the managed range in all processes of the tenant ([`canvas_types::layout::Bases`]).
    pub window_base: AtomicU64,
    /// The page of the call gate in all processes of the tenant.
    pub gate_page: AtomicU64,
    /// File descriptors of shared memory, by [`shared_fd`]; 0 when there is none.
    pub shared_fds: [AtomicU32; shared_fd::COUNT],
    /// The inode of the control file: in programs of another run of the tenant, these descriptor numbers may refer to
    /// other files.
    pub shared_inode: AtomicU64,
}

/// Indices into [`Config::shared_fds`].
pub mod shared_fd {
    /// The control file ([`crate::shared`]).
    pub const CONTROL: usize = 0;
    /// The partition's pages.
    pub const PARTITION: usize = 1;
    /// The memory file with the compressed pages.
    pub const STORE: usize = 2;
    /// The pipe's read end.
    pub const PIPE_OUT: usize = 3;
    /// The pipe's write end.
    pub const PIPE_IN: usize = 4;
    /// Number of descriptors.
    pub const COUNT: usize = 5;
}

impl Config {
    /// The codec of stored pages.
    pub fn codec(&self) -> Codec {
        Codec::from_number(self.codec.load(Ordering::Relaxed))
    }
    /// The current prefetcher; `canvas set` can change it while programs run.
    pub fn prefetch(&self) -> Prefetch {
        Prefetch::from_number(self.prefetch.load(Ordering::Relaxed))
    }
    /// What is tried where the prefetcher has no prediction; `canvas set` can change it while programs run.
    pub fn app_tier(&self) -> AppTier {
        AppTier::from_number(self.app_tier.load(Ordering::Relaxed))
    }
    /// How far below the limit local memory must be for proactive swap-in.
    pub fn proactive_threshold(&self) -> Threshold {
        Threshold::from_number(self.proactive_threshold.load(Ordering::Relaxed))
    }
    /// Allowed slowdown by paging; pages are evicted ahead of need as far as it allows.
    pub fn slo(&self) -> Slo {
        Slo::from_number(self.slo.load(Ordering::Relaxed))
    }
    /// Where the tenant's processes have the managed range and the gate.
    pub fn bases(&self) -> Bases {
        Bases {
            window: self.window_base.load(Ordering::Relaxed) as usize,
            gate: self.gate_page.load(Ordering::Relaxed) as usize,
        }
    }
    /// Sets the bases. Before the first program starts: they hold for as long as the tenant lives.
    pub fn set_bases(&self, bases: Bases) {
        self.window_base
            .store(bases.window as u64, Ordering::Relaxed);
        self.gate_page.store(bases.gate as u64, Ordering::Relaxed);
    }
    /// Whether native memory may go to the kernel's swap.
    pub fn native_swap(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & config_flag::NATIVE_STAYS == 0
    }
    /// Whether a page keeps its swap entry when it comes in.
    pub fn reservations(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & config_flag::NO_RESERVATIONS == 0
    }
}

macro_rules! counters {
    ($($name:ident = $json:literal : $doc:literal),* $(,)?) => {
        /// A counter; its name in the stats file is [`Counter::json_name`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        #[allow(missing_docs)]
        pub enum Counter { $(#[doc = $doc] $name),* }
        impl Counter {
            /// All counters, in order.
            pub const ALL: &'static [Counter] = &[$(Counter::$name),*];
            /// Key in the stats file.
            pub fn json_name(self) -> &'static str {
                match self { $(Counter::$name => $json),* }
            }
            /// One sentence for the schema.
            pub fn describe(self) -> &'static str {
                match self { $(Counter::$name => $doc),* }
            }
        }
    };
}

counters! {
    FaultFirstTouch = "faults_first_touch": "Faults on pages never touched before.",
    CacheHitVictim = "cache_hits_victim": "Swap-cache hits: faults on pages that reclaim had unmapped and that were still in memory.",
    FaultFar = "faults_far": "Faults that read a far copy (demand swap-ins).",
    FaultBeyondPool = "faults_beyond_pool": "Of faults_far, those that waited for a read beyond the pool.",
    PagesDemoted = "pages_demoted": "Far copies demoted from the pool to far memory.",
    PagesDemotedUnwritten = "pages_demoted_unwritten": "Far copies that left the pool without a write, because far memory already had them.",
    PoolCopiesDropped = "pool_copies_dropped": "Copies of local pages, dropped from the pool or a NUMA node to make room.",
    PoolCopiesStale = "pool_copies_stale": "Copies in the pool made stale by the first write to their page, and freed at once because far memory, the pool or the host was short.",
    PoolCopiesHot = "pool_copies_hot": "Copies in the pool freed because their page was too hot to be evicted soon.",
    ExtentsCompacted = "extents_compacted": "Extents whose pages were promoted to the pool, because no more slabs were available or to give their slab back.",
    PagesPromoted = "pages_promoted": "Far copies promoted to the pool with their neighbours.",
    BeyondPoolFailure = "beyond_pool_failures": "Reads and writes beyond the pool that failed or were given up.",
    FaultFirstWrite = "faults_first_write": "First writes to pages that had come in write-protected.",
    PagesIn = "pages_in": "Pages brought back from far copies, on demand and by prefetch.",
    PagesInStream = "pages_in_stream": "Of pages_in, those that the prefetcher saw as part of a stream.",
    PagesProactive = "pages_in_proactive": "Of pages_in, pages brought back before a fault because local memory was free.",
    ProactiveUsed = "pages_in_proactive_used": "Of pages_in_proactive, those found used (estimated from one in 32, sampled while the swap cache is half empty).",
    ProactiveNs = "pages_in_proactive_ns": "Time that reclaim threads spent on proactive swap-in, in ns.",
    HintPagesIn = "hint_pages_in": "Of pages_in, pages that the program asked for (MADV_WILLNEED, canvas_prefetch).",
    HintPagesOut = "hint_pages_out": "Pages unmapped at the program's request (MADV_PAGEOUT).",
    HintsDropped = "hints_dropped": "Hints not carried out, in whole or in part: superseded, beyond an eighth of the limit, or without room.",
    LearnPagesIn = "learn_pages_in": "Of pages_in, pages in a recording of an earlier resumption (-o learn).",
    LearnReplays = "learn_replays": "Resumptions whose first faults matched a recording, which was replayed.",
    LearnStopped = "learn_stopped": "Of learn_replays, those that ended early because most faults missed the recording.",
    PagesOut = "pages_out": "Pages evicted: reclaim released their frame.",
    PagesOutClean = "pages_out_clean": "Of pages_out, clean pages: their far copy was current, so nothing was compressed or written.",
    PagesOutProtected = "pages_out_protected": "Of pages_out_clean, those write-protected since they came in, so that nothing was compared.",
    PagesOutZero = "pages_out_zero": "Of pages_out, pages of zeros: nothing stored.",
    PagesOutSameFilled = "pages_out_same_filled": "Of pages_out, pages filled with one value: nothing stored.",
    PagesOutRaw = "pages_out_raw": "Of pages_out, pages stored uncompressed: they did not shrink, or -o codec=none.",
    PagesOutDelta = "pages_out_delta": "Of pages_out, pages stored as the few words in which they differ from their previous copy.",
    PagesOutNode = "pages_out_node": "Of pages_out, pages stored uncompressed in memory of a NUMA node (--numa).",
    PagesInNode = "pages_in_node": "Pages read from memory of a NUMA node, on demand and by prefetch.",
    NodePagesDemoted = "node_pages_demoted": "Far copies demoted from a NUMA node to the pool.",
    NodePagesElsewhere = "node_pages_elsewhere": "Pages that the kernel placed on another NUMA node because theirs was full; they went to the next node or the pool.",
    PagesZeroFilled = "pages_zero_filled": "Pages given to the program as zeros on first touch.",
    PrefetchIssued = "prefetch_issued": "Pages prefetched.",
    PrefetchUsed = "prefetch_used": "Prefetched pages found used (sampled pages stand for their share).",
    AppForwarded = "app_faults_forwarded": "Faults forwarded to the application tier: the prefetcher had nothing three times in a row.",
    AppKeptOut = "app_faults_kept_out": "Such faults of garbage-collector and compiler threads, which are not forwarded.",
    AppIssuedArrays = "app_issued_arrays": "Of prefetch_issued, pages chosen by a thread's deltas in an array.",
    AppIssuedLinks = "app_issued_links": "Pages read ahead into the pool because a thread had faulted on them in this order before.",
    AppUsedLinks = "app_used_links": "Of app_issued_links, pages that were then faulted on.",
    AppIssuedRefs = "app_issued_refs": "Pages read ahead into the pool because a pointer to them was found.",
    AppUsedRefs = "app_used_refs": "Of app_issued_refs, pages that were then faulted on.",
    AppTrials = "app_trials": "Comparisons of fault rates with and without links and references (-o app-tier=auto).",
    PrefetchIssuedNearby = "prefetch_issued_nearby": "Of prefetch_issued, neighbours of a fault outside any stream (-o prefetch=auto).",
    PrefetchUsedNearby = "prefetch_used_nearby": "Of prefetch_used, neighbours of a fault outside any stream (-o prefetch=auto).",
    PrefetchUnused = "prefetch_unused": "Prefetched pages evicted without being found used.",
    PrefetchDropped = "prefetch_dropped": "Prefetch batches that the agent dropped because they would have come too late.",
    CacheHitPrefetch = "cache_hits_prefetch": "Faults served from the swap cache by a prefetched page.",
    ReclaimBackground = "reclaim_pages_background": "Pages unmapped by the reclaim thread.",
    ReclaimInLine = "reclaim_pages_in_line": "Pages unmapped ahead of need by a thread that took memory, because recent victims were clean.",
    ReclaimDirect = "reclaim_pages_direct": "Pages unmapped by a faulting thread over the limit (direct reclaim).",
    EntryAllocLocked = "entry_allocs_locked": "Swap entries allocated under the allocator's lock, which fetches a batch of them.",
    EntryAllocStocked = "entry_allocs_stocked": "Swap entries allocated without a lock, left over from a batch or given up by a page.",
    EntryAllocReserved = "entry_allocs_reserved": "Swap-outs that used the page's reserved entry without a lock.",
    EntryReservationDropped = "entry_reservations_dropped": "Reservations taken from hot pages under far-memory pressure.",
    VerifyFailure = "verify_failures": "Far copies that failed verification when read.",
    Anomaly = "anomalies": "Pages whose kernel state contradicted ours and were resolved from the truth.",
    Forks = "forks": "Forks of managed processes.",
    Execs = "execs": "Program images that became managed.",
    NativeOut = "native_pages_out": "Native pages moved to the kernel's swap, because they filled the limit.",
    MmapRefused = "mmaps_refused": "Mappings refused with ENOMEM because far memory was full.",
    PagesOffload = "pages_offload_asked": "Pages that processes were asked to evict ahead of need (--slo); some may have stayed.",
    FaultSleepNs = "fault_sleep_ns": "Time that threads slept in faults, waiting for a read beyond the pool, other processes, or room in the pool, in ns.",
    FaultCpuNs = "fault_cpu_ns": "Processor time of faults, in ns (estimated from one in 32).",
    ReclaimCpuNs = "reclaim_cpu_ns": "Processor time of the reclaim threads, in ns.",
    ReclaimWantedNs = "reclaim_wanted_ns": "Of reclaim_cpu_ns, what was used while no processor was idle; estimated twice a second from /proc/stat.",
    SharedNew = "shared_pages_new": "Shared pages given to the program as zeros on first touch.",
    SharedIn = "shared_pages_in": "Shared pages brought back from their far copies, once for all processes.",
    SharedOut = "shared_pages_out": "Shared pages evicted, from all processes at once.",
    SharedOutClean = "shared_pages_out_clean": "Of shared_pages_out, those whose far copy was current.",
    SharedInBeyondPool = "shared_pages_in_beyond_pool": "Of shared_pages_in, those read beyond the pool.",
    SharedAhead = "shared_pages_ahead": "Of shared_pages_in, those that came with another one, behind it.",
    SharedAheadHits = "shared_pages_ahead_hits": "Of shared_pages_ahead, those behind which the faults of their process went on.",
    SharedDemoted = "shared_pages_demoted": "Shared pages whose far copies were demoted beyond the pool.",
    SharedNative = "shared_mappings_native": "Shared mappings left to the kernel because the partition had no room.",
    TraceDropped = "trace_records_dropped": "Records missing from a trace because its ring or its file was full.",
}

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();

/// One copy of the counters.
#[repr(C, align(128))]
pub struct Stripe {
    counts: [AtomicU64; COUNTERS],
    /// Time from the fault's delivery to its resolution.
    pub fault_ns: Histogram,
    /// Refaults by distance ([`refault_bucket`]).
    pub refaults: [AtomicU64; REFAULT_BUCKETS],
}

/// The index in [`Stripe::refaults`] of a page that came back after `epochs`: 0 for the same epoch, then one for each
/// power of two. In an epoch a sixteenth of local memory is evicted; epochs are counted modulo 256.
#[inline]
pub fn refault_bucket(epochs: u8) -> usize {
    (u8::BITS - epochs.leading_zeros()) as usize
}

/// One process of the tenant. All sizes in pages; a slot with identity 0 is free.
#[repr(C, align(128))]
pub struct ProcSlot {
    /// Unique identity of the process ([`crate::lives`]); 0 when free.
    pub id: AtomicU64,
    /// PID of the process in its own namespace, for display only; 0 while unknown.
    pub pid: AtomicU32,
    /// Futex: other processes write here to request reclaim.
    pub wake: AtomicU32,
    /// Pages that other processes ask this process to evict.
    pub reclaim_wanted: AtomicU32,
    /// Whether relatives may map pages that it has charged ([`shares`]).
    pub shares: AtomicU32,
    /// Pages that the runner asks this process to evict ahead of need, of any kind.
    pub offload_wanted: AtomicU32,
    /// All that this process has charged to the tenant's local memory.
    pub charged_pages: AtomicI64,
    /// Part of it that is mapped in the managed range.
    pub resident_pages: AtomicI64,
    /// Part of it that is in the swap cache.
    pub cached_pages: AtomicI64,
    /// Part of it that is anonymous memory outside the managed range, and canvas's own metadata.
    pub native_pages: AtomicI64,
    /// Pages that exist only as far copies.
    pub far_pages: AtomicI64,
    /// Pages that are never evicted, because the program or the kernel needs them in memory at any moment.
    pub locked_pages: AtomicI64,
    /// Bytes that this process has charged to the pool.
    pub pool_bytes: AtomicI64,
    /// Bytes that its pool would take if no relative shared any of it.
    pub pool_whole_bytes: AtomicI64,
    /// Bytes charged on each NUMA node, in the order in which the nodes were given.
    pub node_bytes: [AtomicI64; NODES_MAX],
    /// Bytes that it would take on each node if no relative shared any of it.
    pub node_whole_bytes: [AtomicI64; NODES_MAX],
    /// Bytes of the pool that other processes ask this process to release; 0 when it has done so.
    pub pool_wanted_bytes: AtomicI64,
    /// Requests of other processes to keep pages present while they copy.
    pub lend: RequestCell,
    /// Refaults of this process so far.
    pub came_back: AtomicU64,
    /// Demand for local memory by those refaults, in pages; 0 when unknown.
    pub demand_pages: AtomicI64,
    /// Part of its charge that relatives map too, as last measured ([`shares::CHILD`]).
    pub borrowed_pages: AtomicI64,
    /// 1 when it is ending, and has released what it alone had charged.
    pub ending: AtomicU32,
    /// Part of the native pages that is canvas's own, as last counted; [`ProcSlot::UNKNOWN`] where the kernel does not
    /// report it.
    pub metadata_pages: AtomicI64,
    /// Its anonymous memory in the host's swap, which is not charged.
    pub swapped_pages: AtomicI64,
    /// Blocks of 2 MiB with a touched page.
    pub touched_blocks: AtomicI64,
    /// Time in which at least one of its threads was in a fault, in ns.
    pub stalled_ns: AtomicU64,
    /// Up to this time `stalled_ns` is counted (CLOCK_MONOTONIC).
    pub stalled_until_ns: AtomicU64,
}

/// Values of [`ProcSlot::shares`].
pub mod shares {
    /// No relatives.
    pub const NOBODY: u32 = 0;
    /// Its parent may map the pages that it began with; nobody else maps what it has charged since.
    pub const CHILD: u32 = 1;
    /// It has forked: its children may map any of its pages.
    pub const PARENT: u32 = 2;
}

impl ProcSlot {
    /// In place of an unknown number of pages.
    pub const UNKNOWN: i64 = -1;

    /// Adds a fault that lasted from `from_ns` to `to_ns`. Time in which several threads are in faults counts once: if
    /// another thread's fault ended during this one, only the time after that counts.
    #[inline]
    pub fn note_stall(&self, from_ns: u64, to_ns: u64) {
        let counted = self.stalled_until_ns.fetch_max(to_ns, Ordering::Relaxed);
        let new = to_ns.saturating_sub(from_ns.max(counted));
        self.stalled_ns.fetch_add(new, Ordering::Relaxed);
    }

    /// Local pages that reclaim could take from this process, without locked ones; of pages shared with relatives, each
    /// process must evict its own mapping.
    pub fn held_pages(&self) -> i64 {
        let cached = self.cached_pages.load(Ordering::Relaxed);
        let held = self
            .resident_pages
            .load(Ordering::Relaxed)
            .saturating_add(cached);
        let kept_pages = self.locked_pages.load(Ordering::Relaxed);
        held.saturating_sub(kept_pages).max(0)
    }

    /// Part of its charge that is free when it ends, because nobody else maps it. Unknown for a process that has
    /// forked.
    fn own_pages(&self) -> i64 {
        let charged = self.charged_pages.load(Ordering::Relaxed);
        match self.shares.load(Ordering::Relaxed) {
            shares::NOBODY => charged,
            shares::CHILD => charged
                .saturating_sub(self.borrowed_pages.load(Ordering::Relaxed))
                .max(0),
            _ => 0,
        }
    }
}

/// Ages of the pages of one process (canvas-core's `ages`).
#[repr(C, align(64))]
pub struct PageAges {
    /// Pages in each generation, the oldest first; 0 where there is none.
    pub generations: [AtomicU64; GENERATIONS],
    /// When its program last ran (CLOCK_MONOTONIC, in ms).
    pub ran_ms: AtomicU64,
    /// Since when other processes wait for what they asked it to evict, in ms; 0 when nobody does.
    pub asked_ms: AtomicU64,
}

impl PageAges {
    /// For a process that has ended.
    fn clear(&self) {
        // Pages that were never written stay unallocated.
        if self.generations[0].load(Ordering::Relaxed) != 0 {
            for g in &self.generations {
                g.store(0, Ordering::Relaxed);
            }
        }
        for n in [&self.ran_ms, &self.asked_ms] {
            if n.load(Ordering::Relaxed) != 0 {
                n.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Limits and usage of resident memory that forks share, between the tenant's processes and the host's agent, which
/// divides one limit among its tenants.
#[repr(C)]
pub struct SharedGrant {
    /// The agent's grant, in bytes; 0 where it sets no limit, or there is no agent. The grant of an agent that ends
    /// stays in force.
    pub bytes: AtomicU64,
    /// Resident bytes, as last measured by a process, to within [`SharedGrant::NOTED_PAGES`]. Stored, never added to,
    /// because its writer may die.
    pub used_bytes: AtomicU64,
}

impl SharedGrant {
    /// Smaller changes are not stored, because other processes read this cache line.
    pub const NOTED_PAGES: i64 = 16;

    /// The limit in pages that is in force, where the tenant's own is `own`; at least one.
    #[inline]
    pub fn limit_pages(&self, own: i64) -> i64 {
        match self.bytes.load(Ordering::Relaxed) {
            0 => own,
            bytes => own.min((bytes / PAGE_SIZE as u64).max(1) as i64),
        }
    }
    /// Stores the number of resident pages.
    #[inline]
    pub fn note_used(&self, pages: i64) {
        let bytes = (pages.max(0) as u64).saturating_mul(PAGE_SIZE as u64);
        let slack = Self::NOTED_PAGES as u64 * PAGE_SIZE as u64;
        if self.used_bytes.load(Ordering::Relaxed).abs_diff(bytes) >= slack {
            self.used_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

/// The tenant segment.
#[repr(C)]
pub struct Segment {
    /// [`MAGIC`]; anything else is a segment of another version.
    pub magic: AtomicU64,
    /// The user's configuration.
    pub config: Config,
    /// Local memory charged by all processes, in pages.
    pub local_pages: AtomicI64,
    /// Highest value of `local_pages`.
    pub local_pages_peak: AtomicI64,
    /// Pool memory charged by all processes, in bytes.
    pub pool_bytes: AtomicI64,
    /// Highest value of `pool_bytes`.
    pub pool_bytes_peak: AtomicI64,
    /// Bytes of the store of shared memory, which count towards the pool's limit. Stored, never added to, because its
    /// writer may die.
    pub shared_store_bytes: AtomicI64,
    /// Footprint now: local pages and far-only pages of all processes.
    pub footprint_pages: AtomicI64,
    /// Highest value of `footprint_pages`, of which `--local N%` is a share.
    pub footprint_pages_peak: AtomicI64,
    /// Part of the local pages: native memory of all processes, which canvas does not page.
    pub native_pages: AtomicI64,
    /// 1 while native memory is to leave through the kernel's swap, where the host has some.
    pub native_in_the_way: AtomicU32,
    /// No process has ever had a slot from this index on.
    pub procs_end: AtomicU32,
    /// Number of identities drawn ([`Segment::draw_identity`]).
    pub identities: AtomicU64,
    /// Largest floor of a process at the last division of local memory (canvas-core's `floor`).
    pub floor_level_pages: AtomicI64,
    /// Sum of all floors.
    pub floor_pages: AtomicI64,
    /// When local memory was last divided (CLOCK_MONOTONIC).
    pub divided_ns: AtomicU64,
    /// Limit that the tenant would need, in pages, while the current one cannot be kept; otherwise 0.
    pub needed_pages: AtomicI64,
    /// Highest value of `needed_pages`.
    pub needed_pages_peak: AtomicI64,
    /// Part of the local pages: charged by processes that have ended and shared pages with relatives, which may still
    /// hold them. Until the next measurement of all.
    pub orphan_pages: AtomicI64,
    /// [`ProcSlot::stalled_ns`] of the process that had most of it, of those that have ended.
    pub ended_stalled_ns: AtomicU64,
    /// Bytes of the pool that ended processes have left to relatives.
    pub orphan_pool_bytes: AtomicI64,
    /// When a process last forked, was forked (CLOCK_MONOTONIC).
    pub last_fork_ns: AtomicU64,
    /// When the processes were last measured together.
    pub measured_ns: AtomicU64,
    /// Processor time that the last such measurement took.
    pub measure_took_ns: AtomicU64,
    /// Such measurements in a row that a fork spoilt. Of all processes: where each lives for a few milliseconds, none
    /// fails often by itself.
    pub measures_spoilt: AtomicU64,
    /// Identity of the process that measures them now: two at one time would settle the same differences twice. 0 when
    /// none does.
    pub measurer: AtomicU64,
    /// Highest sum of swap-cache pages.
    pub cached_pages_peak: AtomicI64,
    /// What the host has left, and what that allows.
    pub host: HostWatch,
    /// What the host's agent bounds of the memory that forks share.
    pub shared: SharedGrant,
    /// 1 while the far limit is reached and reclaim has stopped.
    pub far_full: AtomicU32,
    /// Processes that stayed unmanaged (static, or start-up failed).
    pub unmanaged: AtomicU32,
    /// Processes that became managed so far: by their first image here, or by a fork.
    pub managed: AtomicU32,
    /// Set by a process that refuses to run unmanaged under `--require`.
    pub refused: AtomicU32,
    /// 1 when it was logged that processes of the tenant run as different users.
    pub told_user: AtomicU32,
    /// Bytes stored now, by size class.
    pub class_bytes: [AtomicI64; CLASSES_MAX],
    /// The tenant's NUMA nodes, in the order in which they were given.
    pub nodes: [NodeBook; NODES_MAX],
    /// The counters, in stripes so that threads rarely write to one cache line; a counter is the sum over all.
    pub stripes: [Stripe; STRIPES],
    /// Slow faults.
    pub slow: SlowFaults,
    /// A slot for each process of the tenant.
    pub procs: [ProcSlot; PROCS_MAX],
    /// By the same index: the ages of their pages.
    pub page_ages: [PageAges; PROCS_MAX],
    /// Pages that a process needs when it resumes. Untouched, and so unallocated, without `learn`.
    pub recordings: Recordings,
}

// What each charge reads and writes is in one cache line, with nothing else that is written often: two lines cost 4 %
// of the speed of two processors that fault and reclaim.
const _: () = assert!(
    core::mem::offset_of!(Segment, local_pages).is_multiple_of(64)
        && core::mem::offset_of!(Segment, native_pages) / 64
            == core::mem::offset_of!(Segment, local_pages) / 64
);

/// Bytes to give the segment's file.
pub const SEGMENT_BYTES: usize = core::mem::size_of::<Segment>().next_multiple_of(PAGE_SIZE);

impl Segment {
    /// The segment at `addr`.
    ///
    /// # Safety
    /// `addr` must be the start of a mapping of at least [`SEGMENT_BYTES`] bytes, page-aligned,
    /// shared, writable, and never unmapped. Any contents are valid: every field is an atomic.
    pub unsafe fn at(addr: usize) -> &'static Segment {
        assert!(addr.is_multiple_of(PAGE_SIZE));
        // SAFETY: a mapping of the full size that stays, the caller's promise; all fields are atomics, for which any
        // bits are valid, and to which other processes may write.
        unsafe { &*(addr as *const Segment) }
    }
    /// Adds to a counter. `stripe` is any number; a thread should always use the same one.
    #[inline(always)]
    pub fn count(&self, stripe: usize, c: Counter, n: u64) {
        self.stripes[stripe % STRIPES].counts[c as usize].fetch_add(n, Ordering::Relaxed);
    }
    /// A counter's sum.
    pub fn total(&self, c: Counter) -> u64 {
        self.stripes
            .iter()
            .map(|s| s.counts[c as usize].load(Ordering::Relaxed))
            .sum()
    }
    /// Refaults by distance ([`refault_bucket`]).
    pub fn refaults(&self) -> [u64; REFAULT_BUCKETS] {
        let mut sums = [0u64; REFAULT_BUCKETS];
        for stripe in &self.stripes {
            for (sum, n) in sums.iter_mut().zip(&stripe.refaults) {
                // A program can have written any number here.
                *sum = sum.saturating_add(n.load(Ordering::Relaxed));
            }
        }
        sums
    }
    /// All measured faults by duration, and the longest, in ns.
    pub fn fault_times(&self) -> ([u64; BUCKETS], u64) {
        let mut sums = [0; BUCKETS];
        let stripes = self.stripes.iter();
        let longest = stripes.map(|s| s.fault_ns.add_to(&mut sums)).max();
        (sums, longest.unwrap_or(0))
    }
    /// Sum of the times of all measured faults, in ns.
    pub fn fault_ns_sum(&self) -> u64 {
        let sums = self.stripes.iter().map(|s| s.fault_ns.sum_ns());
        sums.fold(0, u64::saturating_add)
    }
    /// Whether local memory is limited.
    pub fn has_limit(&self) -> bool {
        let config = &self.config;
        config.local_bytes.load(Ordering::Relaxed) | config.local_ppm.load(Ordering::Relaxed) != 0
    }
    /// Whether nothing can become far and nothing is recorded: then the library does nothing, and processes charge
    /// nothing themselves.
    pub fn stands_aside(&self) -> bool {
        !self.has_limit() && self.config.trace_fd.load(Ordering::Relaxed) == 0
    }
    /// The current limit on local memory, in pages; `None` when there is none. While the host is short of memory it may
    /// be lower than configured.
    #[inline]
    pub fn local_limit_pages(&self) -> Option<i64> {
        let asked = self.local_asked_pages()?;
        Some(self.host.local_max().map_or(asked, |most| asked.min(most)))
    }
    /// The current limit on the pool, in bytes; while the host is short of memory it may be lower than configured.
    #[inline]
    pub fn pool_bound(&self) -> i64 {
        let asked = self.config.pool_bytes.load(Ordering::Relaxed) as i64;
        self.host.pool_max().map_or(asked, |most| asked.min(most))
    }
    #[inline]
    fn local_asked_pages(&self) -> Option<i64> {
        let bytes = self.config.local_bytes.load(Ordering::Relaxed);
        if bytes != 0 {
            return Some((bytes / 4096) as i64);
        }
        let ppm = self.config.local_ppm.load(Ordering::Relaxed);
        if ppm == 0 {
            return None;
        }
        let peak = self.footprint_pages_peak.load(Ordering::Relaxed).max(0) as u64;
        Some(((peak * ppm / 1_000_000) as i64).max(LOCAL_PAGES_MIN))
    }
    /// Changes the limit on local memory while the tenant runs; some limit is in force at every moment. Only for a
    /// tenant that has one ([`Segment::has_limit`]): without one its processes charge nothing. Afterwards the caller
    /// wakes those that sleep on [`ProcSlot::wake`].
    pub fn set_local(&self, amount: Amount) {
        let config = &self.config;
        match amount {
            Amount::Size(size) => {
                config.local_bytes.store(size.bytes, Ordering::Relaxed);
                config.local_ppm.store(0, Ordering::Relaxed);
            }
            Amount::Share(share) => {
                // A size takes precedence over a share.
                config
                    .local_ppm
                    .store(share.ppm().into(), Ordering::Relaxed);
                config.local_bytes.store(0, Ordering::Release);
            }
        }
    }
    /// Changes the local charge of `slot` and of the tenant by `pages`; returns the tenant's sum.
    #[inline]
    pub fn charge_local(&self, slot: &ProcSlot, pages: i64) -> i64 {
        slot.charged_pages.fetch_add(pages, Ordering::Relaxed);
        let before = self.local_pages.fetch_add(pages, Ordering::Relaxed);
        before.wrapping_add(pages)
    }
    /// Adds `pages` to the local charge of `slot` and of the tenant, unless the tenant's sum would exceed `most`: then
    /// nothing is charged, and the result is false.
    pub fn charge_local_within(&self, slot: &ProcSlot, pages: i64, most: i64) -> bool {
        let room = |sum: i64| Some(sum.wrapping_add(pages)).filter(|sum| *sum <= most);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let ok = self.local_pages.fetch_update(set, fetch, room).is_ok();
        if ok {
            slot.charged_pages.fetch_add(pages, Ordering::Relaxed);
        }
        ok
    }
    /// How far below the limit of `limit` pages local memory must be for proactive swap-in, in pages; `None` when there
    /// is none.
    pub fn proactive_pages(&self, limit: i64) -> Option<i64> {
        if self.config.slo().is_on() {
            // The pages were evicted on purpose.
            return None;
        }
        let threshold = self.config.proactive_threshold();
        let pages = threshold.of(limit.max(0) as u64, PAGE_SIZE as u64)?;
        Some(i64::try_from(pages).unwrap_or(i64::MAX))
    }
    /// Changes the native memory of `slot`, part of its local charge, by `pages`.
    pub fn charge_native(&self, slot: &ProcSlot, pages: i64) {
        slot.native_pages.fetch_add(pages, Ordering::Relaxed);
        self.native_pages.fetch_add(pages, Ordering::Relaxed);
        self.charge_local(slot, pages);
        self.charge_footprint(pages);
    }
    /// Sets how much of the local charge of `slot` is native memory.
    pub fn note_native(&self, slot: &ProcSlot, pages: i64) {
        let before = slot.native_pages.swap(pages, Ordering::Relaxed);
        self.native_pages
            .fetch_add(pages.wrapping_sub(before), Ordering::Relaxed);
    }
    /// Records a sum of local pages, after the reclaim that it caused.
    #[inline]
    pub fn note_local_peak(&self, pages: i64) {
        if pages > self.local_pages_peak.load(Ordering::Relaxed) {
            self.local_pages_peak.fetch_max(pages, Ordering::Relaxed);
        }
    }
    /// Bytes that count towards the pool's limit: all processes' pools, and the store of shared memory.
    pub fn pool_used(&self) -> u64 {
        let store = self.shared_store_bytes.load(Ordering::Relaxed).max(0);
        let pools = self.pool_bytes.load(Ordering::Relaxed).max(0);
        pools.saturating_add(store) as u64
    }
    /// What the store of shared memory leaves of the pool's limit.
    #[inline]
    pub fn pool_bound_of_processes(&self) -> i64 {
        self.pool_bound() - self.shared_store_bytes.load(Ordering::Relaxed)
    }
    /// Changes the pool charge by `bytes`; returns false, with nothing charged, past the limit.
    #[inline]
    pub fn charge_pool(&self, slot: &ProcSlot, bytes: i64) -> bool {
        let now = self.pool_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = now + self.shared_store_bytes.load(Ordering::Relaxed);
        if bytes > 0 && (all > self.pool_bound() || self.host.is_past_step(all)) {
            self.pool_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.charged_pool(slot, bytes, now);
        true
    }
    /// As [`Segment::charge_pool`], past the limit if necessary.
    pub fn charge_pool_past_bound(&self, slot: &ProcSlot, bytes: i64) {
        let now = self.pool_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.charged_pool(slot, bytes, now);
    }
    fn charged_pool(&self, slot: &ProcSlot, bytes: i64, now: i64) {
        slot.pool_bytes.fetch_add(bytes, Ordering::Relaxed);
        slot.pool_whole_bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes > 0 {
            self.pool_bytes_peak.fetch_max(now, Ordering::Relaxed);
        }
    }
    /// Corrects the pool charge by `bytes`, whatever the limit: the memory is allocated already.
    pub fn correct_pool(&self, slot: &ProcSlot, bytes: i64) {
        slot.pool_bytes.fetch_add(bytes, Ordering::Relaxed);
        let now = self.pool_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.pool_bytes_peak.fetch_max(now, Ordering::Relaxed);
    }
    /// Records what processes hold that charge nothing themselves, in a run without a limit, where the caller is the
    /// only writer.
    pub fn note_unlimited(&self, pages: i64) {
        for (now, peak) in [
            (&self.local_pages, &self.local_pages_peak),
            (&self.footprint_pages, &self.footprint_pages_peak),
        ] {
            now.store(pages, Ordering::Relaxed);
            peak.fetch_max(pages, Ordering::Relaxed);
        }
    }
    /// Changes the footprint (pages that exist anywhere) by `pages`.
    #[inline]
    pub fn charge_footprint(&self, pages: i64) {
        let before = self.footprint_pages.fetch_add(pages, Ordering::Relaxed);
        let now = before.wrapping_add(pages);
        if pages > 0 && now > self.footprint_pages_peak.load(Ordering::Relaxed) {
            self.footprint_pages_peak.fetch_max(now, Ordering::Relaxed);
        }
    }
    /// A process that ends, or has ended, releases what it alone had charged, `most` pages at most.
    pub fn give_back_own(&self, slot: &ProcSlot, most: i64) {
        // The tenant can write any numbers there: sums that others keep can only wrap.
        let back = slot.own_pages().min(most).wrapping_neg();
        self.charge_local(slot, back);
        self.charge_footprint(back);
    }
    /// Releases all charges of a dead process, and frees its slot. The caller knows that no thread of that process runs
    /// any more. Of several callers, one does the work; it also calls `also`, with the slot's index, before anybody can
    /// take the slot again.
    pub fn release_slot(&self, slot: &ProcSlot, id: u64, also: impl FnOnce(usize)) {
        if slot
            .id
            .compare_exchange(id, LEAVING, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        self.give_back_own(slot, i64::MAX);
        let local = slot.charged_pages.swap(0, Ordering::Relaxed);
        let pool = slot.pool_bytes.swap(0, Ordering::Relaxed);
        let far = slot.far_pages.swap(0, Ordering::Relaxed);
        slot.pool_whole_bytes.store(0, Ordering::Relaxed);
        let shares = slot.shares.swap(0, Ordering::Relaxed);
        self.release_nodes(slot, shares != 0);
        if shares != 0 {
            self.orphan_pages.fetch_add(local, Ordering::Relaxed);
            self.orphan_pool_bytes.fetch_add(pool, Ordering::Relaxed);
            self.footprint_pages.fetch_sub(far, Ordering::Relaxed);
        } else {
            self.local_pages.fetch_sub(local, Ordering::Relaxed);
            self.pool_bytes.fetch_sub(pool, Ordering::Relaxed);
            self.footprint_pages
                .fetch_sub(local.wrapping_add(far), Ordering::Relaxed);
        }
        self.note_native(slot, 0);
        for n in [&slot.resident_pages, &slot.cached_pages, &slot.locked_pages] {
            n.store(0, Ordering::Relaxed);
        }
        slot.reclaim_wanted.store(0, Ordering::Relaxed);
        slot.offload_wanted.store(0, Ordering::Relaxed);
        slot.pool_wanted_bytes.store(0, Ordering::Relaxed);
        slot.lend.clear();
        let index = self.index_of(slot) as u32;
        (self.procs_used().iter()).for_each(|p| p.lend.forget(index));
        slot.demand_pages.store(0, Ordering::Relaxed);
        slot.came_back.store(0, Ordering::Relaxed);
        slot.borrowed_pages.store(0, Ordering::Relaxed);
        slot.ending.store(0, Ordering::Relaxed);
        slot.metadata_pages.store(0, Ordering::Relaxed);
        slot.swapped_pages.store(0, Ordering::Relaxed);
        slot.touched_blocks.store(0, Ordering::Relaxed);
        let stalled_ns = slot.stalled_ns.swap(0, Ordering::Relaxed);
        (self.ended_stalled_ns).fetch_max(stalled_ns, Ordering::Relaxed);
        slot.stalled_until_ns.store(0, Ordering::Relaxed);
        slot.pid.store(0, Ordering::Relaxed);
        also(self.index_of(slot));
        self.page_ages[self.index_of(slot)].clear();
        slot.id.store(0, Ordering::Release);
    }
    /// The slots that have ever been taken.
    pub fn procs_used(&self) -> &[ProcSlot] {
        let end = self.procs_end.load(Ordering::Relaxed) as usize;
        &self.procs[..end.min(PROCS_MAX)]
    }
    /// The index of a slot in [`Segment::procs`].
    pub fn index_of(&self, slot: &ProcSlot) -> usize {
        let bytes = (slot as *const ProcSlot).addr() - self.procs.as_ptr().addr();
        bytes / core::mem::size_of::<ProcSlot>()
    }
}

/// Smallest local limit to which `--local N%` comes (8 MiB): a program needs that much to start.
pub const LOCAL_PAGES_MIN: i64 = 2048;

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_refault_bucket_ends_at_a_power_of_two() {
        for epochs in 0..=u8::MAX {
            let bucket = refault_bucket(epochs);
            assert!(bucket < REFAULT_BUCKETS && u32::from(epochs) < 1 << bucket);
            assert!(bucket == 0 || u32::from(epochs) >= 1 << (bucket - 1));
        }
    }

    #[test]
    fn a_grant_lowers_the_tenants_own_bound_and_never_raises_it() {
        let grant = SharedGrant {
            bytes: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
        };
        let with = |bytes| {
            grant.bytes.store(bytes, Ordering::Relaxed);
            grant.limit_pages(1000)
        };
        assert_eq!(with(0), 1000, "nobody bounds it");
        assert_eq!(with(100 << 12), 100);
        assert_eq!(with(5000 << 12), 1000);
        // Whatever number is there, one page may be resident.
        assert_eq!((with(7), with(u64::MAX)), (1, 1000));
        let noted = |pages| {
            grant.note_used(pages);
            grant.used_bytes.load(Ordering::Relaxed) >> 12
        };
        assert_eq!([15, 16, 30, 32].map(noted), [0, 16, 16, 32]);
        assert_eq!(noted(-3), 0);
    }

    fn slot() -> std::boxed::Box<ProcSlot> {
        // SAFETY: a slot consists of atomics, for which zeros are valid.
        std::boxed::Box::new(unsafe { core::mem::zeroed() })
    }

    #[test]
    fn stalls_of_several_threads_count_once() {
        let slot = slot();
        let stalled = |from, to| {
            slot.note_stall(from, to);
            slot.stalled_ns.load(Ordering::Relaxed)
        };
        assert_eq!(stalled(100, 200), 100);
        // Within it; half within it; long after it.
        assert_eq!(stalled(120, 190), 100);
        assert_eq!(stalled(150, 250), 150);
        assert_eq!(stalled(1000, 1001), 151);
        // Time before the last end is not counted.
        assert_eq!(stalled(900, 1101), 251);
        // A clock that goes back counts nothing.
        assert_eq!(stalled(2000, 1500), 251);
    }
}
