//! The table of settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use canvas_place::paths::PATHS_MAX;
use canvas_place::replicas::Policy;
use canvas_shm::far::{SLAB_BYTES, SLABS_MAX};
use canvas_shm::segment::LOCAL_PAGES_MIN;
use canvas_types::layout::NODES_MAX;
use canvas_types::numa::NODE_MIN;
use canvas_types::units::{Amount, RateLimit, Size, Span};
use canvas_types::{AppTier, Codec, NodeBound, PAGE_SIZE, Prefetch, ReadUnit, Slo, Threshold};

use super::value::{self, Destination, Faults, Reserve, Switch, Threads, Value, number};
use super::{Command, Key, QUEUES_MAX, Setting, WARM_MAX};
use crate::hello::SMALL_MIN;
use crate::names::judge_name;
use crate::share::{WEIGHT_MAX, rate_limit};

/// Smallest `--local`, also if it is given as a share.
pub const LOCAL_MIN: Size = Size::from_bytes(LOCAL_PAGES_MIN as u64 * PAGE_SIZE as u64);
/// Most far memory that the format of slab numbers allows.
pub const FAR_MAX: Size = Size::from_bytes((SLAB_BYTES * SLABS_MAX) as u64);
/// Smallest and largest batch of proactive swap-in.
const BATCH_MIN: Size = Size::from_bytes(PAGE_SIZE as u64);
const BATCH_MAX: Size = Size::from_bytes(64 << 20);
/// Largest part of a host that can be reserved, in millionths.
const HOST_RESERVE_PPM_MAX: u32 = 500_000;
const NO_MAX: Size = Size::from_bytes(u64::MAX);

const RUN: u8 = Command::Run as u8;
const DISK: u8 = Command::Disk as u8;
const AGENT: u8 = Command::Agent as u8;
const SERVE: u8 = Command::Serve as u8;
const OPERATOR: u8 = Command::Operator as u8;

/// Keys to read values by.
macro_rules! keys {
    ($($key:ident: $type:ty = $name:literal;)*) => {$(
        #[doc = concat!("`", $name, "`.")]
        pub const $key: Key<$type> = Key::new($name);
    )*};
}

keys! {
    LOCAL: Amount = "local";
    POOL: Size = "pool";
    FAR: Size = "far";
    TO: Vec<Destination> = "to";
    COPIES: Policy = "copies";
    KEY_FILE: PathBuf = "key-file";
    TENANT: String = "tenant";
    SLO: Slo = "slo";
    SHARED: Size = "shared";
    NUMA: Vec<NodeBound> = "numa";
    STATS: PathBuf = "stats";
    METRICS: SocketAddr = "metrics";
    MODE: Faults = "mode";
    REQUIRE: Switch = "require";
    HOST_RESERVE: Reserve = "host-reserve";
    SWAP_CACHE: Size = "swap-cache";
    CODEC: Codec = "codec";
    RESERVATIONS: Switch = "reservations";
    NATIVE_SWAP: Switch = "native-swap";
    PREFETCH: Prefetch = "prefetch";
    APP_TIER: AppTier = "app-tier";
    PROACTIVE_THRESHOLD: Threshold = "proactive-threshold";
    PROACTIVE_BATCH: Size = "proactive-batch";
    SPILL_AT: u8 = "spill-at";
    UNIT: ReadUnit = "unit";
    LANES: Switch = "lanes";
    LINKS: u8 = "links";
    SPIN: Span = "spin";
    TIMELINESS: Switch = "timeliness";
    FAR_WAIT: Span = "far-wait";
    FAR_RESERVE: Amount = "far-reserve";
    WEIGHT: u32 = "weight";
    SWAP_IN_LIMIT: RateLimit = "swap-in-limit";
    SWAP_OUT_LIMIT: RateLimit = "swap-out-limit";
    LEARN: PathBuf = "learn";
    TRACE: PathBuf = "trace";
    SIZE: Size = "size";
    VHOST_USER: PathBuf = "vhost-user";
    NBD: PathBuf = "nbd";
    SWAP_HOST: Switch = "swap-host";
    QUEUES: u16 = "queues";
    GROUP: String = "group";
    RESTARTS: u32 = "restarts";
    STATE_JSON: PathBuf = "state-json";
    SOCKET: PathBuf = "socket";
    WARM: u8 = "warm";
    THREADS: Threads = "threads";
    LISTEN: SocketAddr = "listen";
    MEMORY: Size = "memory";
    RESERVE: Size = "reserve";
    GOSSIP: SocketAddr = "gossip";
    JOIN: Vec<String> = "join";
    RDMA: Switch = "rdma";
    LEASE: Span = "lease";
    EVICT_WITHIN: Span = "evict-within";
    DRAIN: Span = "drain";
    CONNECTIONS: u16 = "connections";
    PROCFS: PathBuf = "procfs";
    POOL_FLOOR: Size = "pool-floor";
    SHARED_FLOOR: Size = "shared-floor";
}

/// All settings, in the order in which help lists them.
pub static TABLE: &[Setting] = &[
    // Memory of this host.
    Setting::new(
        LOCAL,
        "SIZE|N%",
        "Limit on local memory: a size, or a share of the largest footprint so far. It applies to the anonymous \
         memory of CMD and all its children together; without it nothing is evicted.",
    )
    .read_by(|text| match Amount::read(text)? {
        Amount::Size(size) if size < LOCAL_MIN => Err(format!(
            "{}, or a share such as 25%",
            value::too_little(&LOCAL_MIN)
        )),
        amount => Ok(amount.write()),
    })
    .variable("CANVAS_LOCAL")
    .flag(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        POOL,
        "SIZE",
        "Limit on the compressed pool, which holds evicted pages in this host's memory.",
    )
    .default("half of this host's memory, or of the control group's limit where that is smaller")
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .flag(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        SIZE,
        "SIZE",
        "Size of the disk, in pages of 4K.",
    )
    .flag(DISK),
    Setting::new(
        VHOST_USER,
        "PATH",
        "Serve a virtio block device over vhost-user at this UNIX socket. The guest's memory must be shared (qemu: \
         -object memory-backend-memfd,share=on).",
    )
    .flag(DISK),
    Setting::new(
        QUEUES,
        "N",
        "Queues of the virtio device, each with a thread; one for each processor of the guest is best.",
    )
    .default("1")
    .read_by(|text| number(text, 1..=QUEUES_MAX).map(|n| n.write()))
    .flag(DISK),
    Setting::new(NBD, "PATH", "Serve the disk over NBD at this UNIX socket.").flag(DISK),
    Setting::new(
        SWAP_HOST,
        "",
        "Serve a block device of this host, /dev/ublkbN, onto which its own kernel may swap. The disk allocates and \
         locks all its memory at the start. It needs root and Linux 6.4, and excludes far memory.",
    )
    .default("off")
    .switch()
    .flag(DISK),
    Setting::new(
        POOL,
        "SIZE",
        "Limit on the compressed pool, which holds the pages.",
    )
    .default("the disk's size, at most half of this host's memory or of the control group's limit")
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .flag(DISK)
    .live(DISK),
    Setting::new(
        LISTEN,
        "ADDR:PORT",
        "Address and port to listen on; port 0 takes a free one.",
    )
    .flag(SERVE),
    Setting::new(
        MEMORY,
        "SIZE",
        "Most memory to lend, in slabs of 64 MiB.",
    )
    .flag(SERVE),
    Setting::new(
        RESERVE,
        "SIZE",
        "Memory that always stays free for this host.",
    )
    .default("a tenth of its RAM")
    .flag(SERVE),
    Setting::new(
        SOCKET,
        "PATH",
        "Where to listen for runs and disks.",
    )
    .default("/run/canvas/agent.sock for root, else canvas/agent.sock in XDG_RUNTIME_DIR")
    .flag(AGENT),
    Setting::new(
        GROUP,
        "GROUP",
        "Let members of this group connect as well.",
    )
    .default("this user only")
    .flag(DISK | AGENT),
    Setting::new(
        POOL,
        "SIZE",
        "Limit on the compressed memory of all tenants together: each keeps a floor, and the rest goes to those that \
         swap.",
    )
    .default("each tenant has its own --pool")
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .flag(AGENT),
    Setting::new(
        SHARED,
        "SIZE",
        "Manage memory that CMD's forks share (MAP_SHARED|MAP_ANONYMOUS), with this separate limit on its resident \
         pages. It needs --local and signal mode.",
    )
    .default("such memory stays native")
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .flag(RUN)
    .live(RUN),
    Setting::new(
        NUMA,
        "N=SIZE,...",
        "Put evicted pages on NUMA node N first, uncompressed, up to SIZE; several nodes are filled in the given \
         order. The oldest pages there are demoted to the pool.",
    )
    .read_by(nodes)
    .list()
    .flag(RUN)
    .live(RUN)
    .of_tenants(),
    // Far memory.
    Setting::new(
        FAR,
        "SIZE",
        "Far memory beyond the pool: the oldest pages of a full pool are demoted there, encrypted.",
    )
    .default("as much as this host has memory with a donor in --to, else none")
    .read_by(|text| value::size(text, SMALL_MIN..=FAR_MAX).map(|s| s.write()))
    .same_by(|a, b| slabs(a) == slabs(b))
    .variable("CANVAS_FAR")
    .flag(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        FAR,
        "SIZE",
        "Limit on the far memory of all tenants together.",
    )
    .default("no bound")
    .read_by(|text| match Size::read(text)? {
        size if size.bytes < SLAB_BYTES as u64 => {
            Err("it is less than a tenant can have; write 64M or more".to_owned())
        }
        size => Ok(size.write()),
    })
    .flag(AGENT),
    Setting::new(
        TO,
        "DEST,...",
        "Where far memory goes: disk:DIR, a donor (HOST:PORT or rdma://HOST:PORT, where `canvas serve` runs), \
         gossip:HOST:PORT to learn of all donors from one, or agent[:PATH] to leave it to the host's agent.",
    )
    .default("disk:~/.cache/canvas/far")
    .read_by(destinations)
    .list()
    .flag(RUN | DISK),
    Setting::new(
        TO,
        "DEST,...",
        "Where far memory goes: disk:DIR, a donor (HOST:PORT or rdma://HOST:PORT, where `canvas serve` runs), or \
         gossip:HOST:PORT to learn of all donors from one.",
    )
    .default("disk:~/.cache/canvas/far")
    .read_by(|text| {
        let all = destinations(text)?;
        match text.split(',').any(|to| to == "agent" || to.starts_with("agent:")) {
            true => Err("an agent keeps far memory by itself; write disk:DIR, HOST:PORT or gossip:HOST:PORT".to_owned()),
            false => Ok(all),
        }
    })
    .list()
    .flag(AGENT),
    Setting::new(
        COPIES,
        "1|2|3|1+disk|1+disk-async|disk|K+M",
        "Copies of far memory: at that number of donors; at a donor and on disk (async: the disk may lag by 64 MiB); \
         on disk alone; or in K data and M parity shards, 2+1 to 8+2.",
    )
    .default("1+disk with a donor in --to, else disk")
    .flag(RUN | DISK | AGENT)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        KEY_FILE,
        "FILE",
        "The cluster key (`canvas keygen`); without one only this host can be reached.",
    )
    .flag(RUN | DISK | AGENT | SERVE),
    Setting::new(
        GOSSIP,
        "ADDR:PORT",
        "Announce by gossip (UDP) on this address what this donor lends; port 0 takes a free one.",
    )
    .flag(SERVE),
    Setting::new(
        JOIN,
        "HOST:PORT,...",
        "Known members of the gossip; the first donor needs none.",
    )
    .list()
    .flag(SERVE),
    Setting::new(
        RDMA,
        "",
        "Lend over RDMA as well, to clients that request it (rdma://); each slab that they use is pinned.",
    )
    .default("off")
    .switch()
    .flag(SERVE),
    Setting::new(
        TENANT,
        "NAME",
        "Name of the run (`canvas status`), and of the section of the configuration file with its settings. With --to \
         agent, a run joins the tenant of that name if it exists.",
    )
    .default("CMD's name")
    .read_by(|text| judge_name(text).map(|()| text.to_owned()).map_err(|e| e.to_string()))
    .variable("CANVAS_TENANT")
    .flag(RUN | DISK),
    Setting::new(
        WARM,
        "N",
        "Number of tenants to keep prepared for `canvas dispatch`, up to 16.",
    )
    .default("0")
    .read_by(|text| number(text, 0..=WARM_MAX).map(|n| n.write()))
    .flag(AGENT),
    // Goals, modes and reports.
    Setting::new(
        SLO,
        "N%|p99=TIME|off",
        "Evict pages that the program can do without: paging may slow it by N % (0.1% to 50%), or 99 of 100 faults \
         may take up to TIME. Without --local there is no other limit.",
    )
    .default("off")
    .flag(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        MODE,
        "auto|signal|thread",
        "How faults are delivered: to a signal handler of the faulting thread, which needs no privilege, or to threads of \
         canvas's own, which need some. `canvas doctor` says which work here.",
    )
    .default("auto")
    .same_by(|asked, has| asked == "auto" || asked == has)
    .flag(RUN)
    .of_tenants(),
    Setting::new(
        REQUIRE,
        "",
        "Fail with exit code 125 when CMD cannot be managed, instead of running it unmanaged.",
    )
    .default("off")
    .switch()
    .flag(RUN)
    .of_tenants(),
    Setting::new(
        STATS,
        "FILE.json",
        "Write a report when CMD ends (docs/STATS.md).",
    )
    .flag(RUN),
    Setting::new(
        STATE_JSON,
        "FILE.json",
        "Write the state once a second (docs/OPERATING.md).",
    )
    .flag(DISK | SERVE),
    Setting::new(
        METRICS,
        "ADDR:PORT",
        "Serve metrics for Prometheus at http://ADDR:PORT/metrics, to anyone who can connect.",
    )
    .flag(RUN | DISK | SERVE),
    // Tunables: local memory.
    Setting::new(
        HOST_RESERVE,
        "SIZE|N%|0",
        "Memory that stays free on this host, or in the control group: the pool stops growing before it is touched. \
         At most half.",
    )
    .default("5%")
    .read_by(|text| match Reserve::read(text)? {
        Reserve(Some(Amount::Share(share))) if share.ppm() > HOST_RESERVE_PPM_MAX => {
            Err("it is more than half of the host; write 50% or less".to_owned())
        }
        reserve => Ok(reserve.write()),
    })
    .option(RUN),
    Setting::new(
        SWAP_CACHE,
        "SIZE",
        "Size of the swap cache at the start; it is part of local memory.",
    )
    .default("32M, or a sixteenth of a smaller --local")
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .option(RUN)
    .of_tenants(),
    Setting::new(
        NATIVE_SWAP,
        "on|off",
        "Whether memory that canvas does not manage may be evicted to the host's swap when --local is too small for \
         it.",
    )
    .default("on")
    .option(RUN)
    .of_tenants(),
    Setting::new(
        CODEC,
        "lz4|none",
        "How evicted pages are stored: compressed where that saves enough, or not.",
    )
    .default("lz4")
    .option(RUN | DISK)
    .of_tenants(),
    Setting::new(
        RESERVATIONS,
        "on|off",
        "Whether a page keeps its swap entry when it comes back, so that its next eviction takes no lock (Canvas §5.1).",
    )
    .default("on")
    .option(RUN)
    .of_tenants()
    .experimental(),
    Setting::new(
        PREFETCH,
        "streams|leap|readahead|none|auto",
        "Which pages are prefetched: streams of each thread, Leap's majority of the last fault deltas, the kernel's \
         readahead, none, or (auto) streams, and neighbours where they are found used.",
    )
    .default("streams")
    .option(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        APP_TIER,
        "auto|off|threads|refs",
        "How to prefetch where the prefetcher has nothing: by deltas of each thread in each array (threads), also by \
         pointers (refs), or by both while the program is measured to be faster (auto).",
    )
    .default("auto")
    .option(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        PROACTIVE_THRESHOLD,
        "SIZE|N%|off",
        "Bring back the pages evicted last while at least this much of --local stays free: a size, or a share of \
         --local.",
    )
    .default("5%")
    .option(RUN)
    .live(RUN)
    .of_tenants(),
    Setting::new(
        PROACTIVE_BATCH,
        "SIZE",
        "Size of a batch of such pages, 4K to 64M; faults and reclaim go first between batches.",
    )
    .default("256K")
    .read_by(|text| match Size::read(text)? {
        size if (BATCH_MIN..=BATCH_MAX).contains(&size) => Ok(size.write()),
        _ => Err(format!(
            "it is out of range; write {BATCH_MIN} to {BATCH_MAX}"
        )),
    })
    .same_by(|a, b| pages(a) == pages(b))
    .option(RUN)
    .live(RUN)
    .of_tenants()
    .experimental(),
    // Tunables: far memory.
    Setting::new(
        SPILL_AT,
        "PERCENT",
        "Part of --pool, 1 to 99 percent, above which its oldest pages are demoted to far memory.",
    )
    .default("80")
    .read_by(|text| match text.parse::<u8>() {
        Ok(percent @ 1..=99) => Ok(percent.write()),
        _ => Err("it is not a part of the pool; write 1 to 99 percent".to_owned()),
    })
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        UNIT,
        "SIZE|auto",
        "Far read size, promoted with a page that is read beyond the pool: 4K for the page alone, 32K to 2M of the \
         pages demoted together with it, or as much as is found used (auto).",
    )
    .default("auto")
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        LANES,
        "on|off",
        "Whether a faulting thread reads its page directly from the donor, over a connection of the program's own.",
    )
    .default("on")
    .option(RUN | DISK)
    .live(RUN)
    .of_tenants()
    .experimental(),
    Setting::new(
        LINKS,
        "N",
        "Connections to each donor, 1 to 4: with 2 or more, demand reads do not queue behind writes and repairs.",
    )
    .default("2")
    .read_by(|text| number(text, 1..=4_u8).map(|n| n.write()))
    .option(RUN | DISK)
    .experimental(),
    Setting::new(
        SPIN,
        "TIME",
        "How long to poll for requests after the last one before sleeping; 0s saves processor time.",
    )
    .default("50us")
    .option(RUN | DISK | AGENT | SERVE)
    .experimental(),
    Setting::new(
        TIMELINESS,
        "on|off",
        "Whether prefetches that would come too late are dropped (Canvas §5.3).",
    )
    .default("on")
    .option(RUN | DISK | AGENT)
    .experimental(),
    Setting::new(
        FAR_WAIT,
        "TIME",
        "How long a fault waits for far memory that cannot be reached, before SIGBUS (a disk: EIO).",
    )
    .default("30s")
    .read_by(|text| match Span::read(text)? {
        wait if wait.ns < 1_000_000 => {
            Err("it is too short for any answer; write a time such as 30s".to_owned())
        }
        wait => Ok(wait.write()),
    })
    .same_by(|a, b| ms(a) == ms(b))
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        FAR_RESERVE,
        "SIZE|N%|0",
        "Space that far memory leaves free on the disk of its directory.",
    )
    .default("5%, 1G at most")
    .option(RUN | DISK | AGENT),
    Setting::new(
        WEIGHT,
        "N",
        "Share of contended links, disks and pool, relative to the agent's other tenants: 1 to 1000.",
    )
    .default("100")
    .read_by(|text| match text.parse::<u32>() {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight.write()),
        _ => Err(format!("it is not a weight; write 1 to {WEIGHT_MAX}")),
    })
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        SWAP_IN_LIMIT,
        "RATE|none",
        "Limit on reads from far memory, such as 200M/s.",
    )
    .default("none")
    .read_by(rate)
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    Setting::new(
        SWAP_OUT_LIMIT,
        "RATE|none",
        "Limit on writes to far memory, such as 200M/s.",
    )
    .default("none")
    .read_by(rate)
    .option(RUN | DISK)
    .live(RUN | DISK)
    .of_tenants(),
    // Tunables: the rest.
    Setting::new(
        LEARN,
        "FILE",
        "Record in FILE which far pages CMD needs when it resumes after an idle time, and prefetch them when it does \
         so again, in this run or a later one.",
    )
    .option(RUN),
    Setting::new(
        TRACE,
        "FILE",
        "Record faults and sampled touches to FILE.",
    )
    .option(RUN),
    Setting::new(
        RESTARTS,
        "N",
        "How often per minute another server takes over from one that was killed or crashed; with 0 the disk dies \
         with its server.",
    )
    .default("5")
    .read_by(|text| number(text, 0..=1000_u32).map(|n| n.write()))
    .option(DISK),
    Setting::new(
        THREADS,
        "auto|N",
        "Serving threads, 64 at most: auto begins with one, and adds another when one is busy and a processor idle.",
    )
    .default("auto")
    .option(AGENT),
    Setting::new(
        LEASE,
        "TIME",
        "How long a client's memory is kept after its last sign of life.",
    )
    .default("30s")
    .read_by(|text| match Span::read(text)? {
        lease if lease.ns == 0 => {
            Err("it would free everything at once; write a duration such as 30s".to_owned())
        }
        lease => Ok(lease.write()),
    })
    .option(SERVE),
    Setting::new(
        EVICT_WITHIN,
        "TIME",
        "How long clients have to move slabs that the donor evicts.",
    )
    .default("10s")
    .option(SERVE),
    Setting::new(
        DRAIN,
        "TIME",
        "How long clients have to move their slabs when the donor ends.",
    )
    .default("5s")
    .option(SERVE),
    Setting::new(
        CONNECTIONS,
        "N",
        "Concurrent connections, 1 to 4096.",
    )
    .default("1024")
    .read_by(|text| number(text, 1..=4096_u16).map(|n| n.write()))
    .option(SERVE),
    Setting::new(
        PROCFS,
        "DIR",
        "Where to find meminfo and self/cgroup, for a donor whose container has them elsewhere.",
    )
    .default("/proc")
    .option(SERVE)
    .experimental(),
    // Only in the file.
    Setting::new(
        POOL_FLOOR,
        "SIZE",
        "Part of the agent's pool that the tenant always keeps.",
    )
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .option(OPERATOR),
    Setting::new(
        SHARED_FLOOR,
        "SIZE",
        "Part of the agent's limit on shared memory that the tenant always keeps.",
    )
    .read_by(|text| value::size(text, SMALL_MIN..=NO_MAX).map(|s| s.write()))
    .option(OPERATOR),
];

fn slabs(text: &str) -> Option<u64> {
    let size = Size::read(text).ok()?;
    Some(size.bytes.div_ceil(SLAB_BYTES as u64))
}

fn pages(text: &str) -> Option<u64> {
    Some(Size::read(text).ok()?.bytes / PAGE_SIZE as u64)
}

fn ms(text: &str) -> Option<u64> {
    Some(Span::read(text).ok()?.ns / 1_000_000)
}

fn rate(text: &str) -> Result<String, String> {
    rate_limit(text)
        .map(|rate| rate.write())
        .map_err(|e| e.to_string())
}

/// Parses NUMA nodes: not too many, each only once.
fn nodes(text: &str) -> Result<String, String> {
    let nodes = Vec::<NodeBound>::read(text)?;
    if nodes.len() > NODES_MAX {
        let n = nodes.len();
        return Err(format!("it names {n} nodes; write {NODES_MAX} at most"));
    }
    for (i, bound) in nodes.iter().enumerate() {
        if nodes[..i].iter().any(|n| n.node == bound.node) {
            let node = bound.node;
            return Err(format!("it names node {node} twice; write it once"));
        }
        if bound.size.bytes == 0 {
            return Err(format!(
                "{bound} leaves no room there; write {NODE_MIN} or more"
            ));
        }
    }
    Ok(nodes.write())
}

/// Parses destinations of far memory: not too many disks, and an agent only alone.
fn destinations(text: &str) -> Result<String, String> {
    let all = Vec::<Destination>::read(text)?;
    let disks = all.iter().filter(|to| matches!(to, Destination::Disk(_)));
    match disks.count() {
        ..=PATHS_MAX => {}
        n => {
            return Err(format!(
                "it names {n} directories; write {PATHS_MAX} at most"
            ));
        }
    }
    let has_agent = all.iter().any(|to| matches!(to, Destination::Agent(_)));
    if has_agent && all.len() > 1 {
        return Err(
            "the host's agent has destinations of its own; write agent alone, or leave it out"
                .to_owned(),
        );
    }
    Ok(all.write())
}
