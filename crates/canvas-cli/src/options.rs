//! Checks the settings of `canvas run` against each other and fills in the defaults.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_agent::replicas::{Policy, SERVERS_MAX};
use canvas_link::Address;
use canvas_shm::Mode;
use canvas_shm::far::SLAB_BYTES;
use canvas_types::Slo;
use canvas_types::units::{Amount, Size};
use canvas_wire::key::ClusterKey;

use crate::args::RunArgs;
use crate::error::Failure;
use crate::tenant_flags as flags;
use canvas_control::hello::SMALL_MIN;
use canvas_control::names::{Name, name_of};
use canvas_control::settings::table::*;
use canvas_control::settings::{Destination, Key, Settings, Source, Switch};
use canvas_runner::options::{
    FarOptions, HostMemory, HostOptions, Options, THREAD_MODE_SHARES_NOTHING,
};

/// Default size of the swap cache.
const SWAP_CACHE_DEFAULT: Size = Size::from_bytes(32 << 20);

/// Checks the given settings and fills in the defaults.
pub fn of_run(args: &RunArgs, host: HostMemory) -> Result<Options, Failure> {
    let given = &args.settings;
    let local = given.get(LOCAL);
    let swap_cache = match (given.get(SWAP_CACHE), local.and_then(size_of)) {
        (Some(cache), Some(local)) if cache >= local => {
            return Err(Failure::run(format!(
                "{} is part of {}; write less than that, a sixteenth of it for example",
                given.written(SWAP_CACHE),
                given.written(LOCAL)
            )));
        }
        (Some(cache), _) => cache,
        (None, Some(local)) => SWAP_CACHE_DEFAULT.min(Size::from_bytes(local.bytes / 16)),
        (None, None) => SWAP_CACHE_DEFAULT,
    };
    let slo = given.value(SLO);
    if given.has(LEARN) && !slo.is_on() {
        needs_local(given, LEARN, NOTHING_LEAVES)?;
    }
    needs_local(given, NUMA, NOTHING_LEAVES)?;
    needs_local(given, SHARED, "without a limit canvas manages nothing")?;
    let mode = given.value(MODE).0;
    if given.has(SHARED) && mode == Some(Mode::Thread) {
        return Err(Failure::run(THREAD_MODE_SHARES_NOTHING));
    }
    Ok(Options {
        command: args.command.clone(),
        tenant: given.get(TENANT),
        metrics: given.get(METRICS),
        host_reserve: given.value(HOST_RESERVE).0,
        local: local.or_else(|| without_limit(slo, host)),
        pool: (given.get(POOL)).unwrap_or(Size::from_bytes(host.usable_bytes / 2)),
        swap_cache,
        mode,
        stats: given.get(STATS),
        trace: given.get(TRACE),
        learn: given.get(LEARN),
        require: given.value(REQUIRE).0,
        codec: given.value(CODEC),
        reservations: given.value(RESERVATIONS).0,
        native_swap: given.value(NATIVE_SWAP).0,
        prefetch: given.value(PREFETCH),
        app_tier: given.value(APP_TIER),
        proactive_threshold: given.value(PROACTIVE_THRESHOLD),
        proactive_batch: given.value(PROACTIVE_BATCH),
        slo,
        numa: given.get(NUMA).unwrap_or_default(),
        shared: given.get(SHARED),
        far: far(args, host.ram_bytes)?,
        learns: false,
    })
}

const NOTHING_LEAVES: &str = "nothing is evicted without a limit";

/// Refuses a setting that has no effect without a limit on local memory.
fn needs_local<T>(given: &Settings, key: Key<T>, why: &str) -> Result<(), Failure> {
    if !given.has(key) || given.has(LOCAL) {
        return Ok(());
    }
    Err(Failure::run(format!(
        "{} without --local has no effect: {why}; write --local SIZE too",
        given.spelled(key)
    )))
}

/// With a target as the only limit: all memory.
fn without_limit(slo: Slo, host: HostMemory) -> Option<Amount> {
    slo.is_on()
        .then(|| Amount::Size(Size::from_bytes(host.ram_bytes)))
}

/// Far memory of a run, which needs a limit on local memory.
fn far(args: &RunArgs, ram_bytes: u64) -> Result<Option<FarOptions>, Failure> {
    let given = &args.settings;
    let Some(slabs) = far_slabs(given, ram_bytes)? else {
        return Ok(None);
    };
    match given.has(FAR) {
        true => needs_local(given, FAR, NOTHING_LEAVES)?,
        false => needs_local(given, TO, NOTHING_LEAVES)?,
    }
    far_options(given, slabs, || own_name(args)).map(Some)
}

/// Far memory in whole slabs. With donors, the default is the size of this host's memory.
pub fn far_slabs(given: &Settings, ram_bytes: u64) -> Result<Option<usize>, Failure> {
    let to = Places::of(given);
    let is_lent = to.has_donors().then(|| {
        let ram = Size::from_bytes(ram_bytes);
        ram.clamp(SMALL_MIN, FAR_MAX)
    });
    match given.get(FAR).or(is_lent) {
        Some(size) => Ok(Some(size.bytes.div_ceil(SLAB_BYTES as u64) as usize)),
        None => match written_about_far(given) {
            None => Ok(None),
            Some(setting) => Err(Failure::run(format!(
                "{setting} without --far has no effect; write --far SIZE to say how much memory may go there"
            ))),
        },
    }
}

/// A setting of the command line about far memory, which has no effect without any. In the file or
/// the environment such settings are for runs with far memory.
fn written_about_far(given: &Settings) -> Option<String> {
    fn named<T>(given: &Settings, key: Key<T>) -> Option<String> {
        (given.source(key) == Some(Source::CommandLine)).then(|| given.spelled(key))
    }
    let all = [
        named(given, TO),
        named(given, COPIES),
        named(given, FAR_RESERVE),
        named(given, SPIN),
        named(given, FAR_WAIT),
        named(given, KEY_FILE),
        named(given, LANES),
        named(given, LINKS),
        named(given, SPILL_AT),
        named(given, TIMELINESS),
        named(given, UNIT),
        named(given, WEIGHT),
        named(given, SWAP_IN_LIMIT),
        named(given, SWAP_OUT_LIMIT),
    ];
    all.into_iter().flatten().next()
}

/// The destinations of `--to`, by kind.
#[derive(Default)]
pub struct Places {
    /// Donors.
    pub donors: Vec<String>,
    /// Members of the donors' gossip.
    pub gossip: Vec<String>,
    /// Directories on disks of this host.
    pub dirs: Vec<PathBuf>,
    /// The host's agent, at this socket or the usual one.
    pub agent: Option<Option<PathBuf>>,
}

impl Places {
    /// Reads the given destinations.
    pub fn of(given: &Settings) -> Places {
        let mut places = Places::default();
        for to in given.get(TO).unwrap_or_default() {
            match to {
                Destination::Disk(dir) => places.dirs.push(dir),
                Destination::Donor(host) => places.donors.push(host),
                Destination::Gossip(host) => places.gossip.push(host),
                Destination::Agent(path) => places.agent = Some(path),
            }
        }
        places
    }

    /// Whether there are donors, or may be through gossip.
    pub fn has_donors(&self) -> bool {
        !self.donors.is_empty() || !self.gossip.is_empty()
    }
}

/// Destinations of far memory, and its agent.
pub fn far_options(
    given: &Settings,
    slabs: usize,
    own_name: impl FnOnce() -> String,
) -> Result<FarOptions, Failure> {
    let host = host_of(given, own_name)?;
    let to = Places::of(given);
    let key_file = given.get(KEY_FILE);
    let servers = donors(&to.donors, key_file.is_some())?;
    let seeds = members("--to gossip:", &to.gossip, key_file.is_some())?;
    let policy = match &host {
        // The agent checks the copies, because its donors are not known here.
        Some(_) => given.get(COPIES),
        None => Some(policy(given.get(COPIES), servers.len(), !seeds.is_empty())?),
    };
    let key = match &key_file {
        Some(file) if to.has_donors() => Some(ClusterKey::read(file).map_err(Failure::run)?),
        _ => None,
    };
    Ok(FarOptions {
        servers,
        policy,
        key,
        slabs,
        dirs: to.dirs,
        reserve: given.get(FAR_RESERVE),
        wait: Duration::from_nanos(given.value(FAR_WAIT).ns),
        spill_percent: given.value(SPILL_AT).into(),
        unit: given.value(UNIT),
        lanes: given.value(LANES).0,
        spin: given.value(SPIN),
        timeliness: given.value(TIMELINESS).0,
        links: given.value(LINKS),
        seeds,
        host,
        asked: flags::asked_of(given),
        of_daemon: false,
    })
}

/// The host agent that a run requests.
pub fn host(args: &RunArgs) -> Result<Option<HostOptions>, Failure> {
    host_of(&args.settings, || own_name(args))
}

/// Default name of a run. Two runs of one program are two tenants of the agent.
fn own_name(args: &RunArgs) -> String {
    let name = Name {
        tenant: name_of(args.command.first().map_or(Path::new(""), Path::new)),
        pid: std::process::id(),
        namesake: 0,
    };
    name.to_string()
}

/// The host agent that was requested.
pub fn host_of(
    given: &Settings,
    own_name: impl FnOnce() -> String,
) -> Result<Option<HostOptions>, Failure> {
    let Some(path) = Places::of(given).agent else {
        return Ok(None);
    };
    let its_own = [
        given.has(KEY_FILE).then(|| given.spelled(KEY_FILE)),
        given.has(FAR_RESERVE).then(|| given.spelled(FAR_RESERVE)),
        (given.get(TIMELINESS) == Some(Switch(false))).then(|| given.spelled(TIMELINESS)),
    ];
    if let Some(setting) = its_own.into_iter().flatten().next() {
        return Err(Failure::run(format!(
            "{setting} and --to agent exclude each other: the agent has its own; leave out one of them"
        )));
    }
    let tenant = given.get(TENANT);
    Ok(Some(HostOptions {
        path: path.unwrap_or_else(canvas_agent::daemon::socket::path_to_ask),
        is_named: tenant.is_some(),
        name: tenant.unwrap_or_else(own_name),
    }))
}

/// Resolves the addresses of donors; those on other hosts need a key.
pub fn donors(names: &[String], have_key: bool) -> Result<Vec<Address>, Failure> {
    names
        .iter()
        .map(|name| {
            let (host, rdma) = Address::split(name);
            let addr = address("--to ", host, have_key)?;
            if rdma {
                canvas_rdma::check().map_err(|why| {
                    Failure::run(format!("--to {name}: {why}; write {host} to go over TCP"))
                })?;
            }
            Ok(Address { addr, rdma })
        })
        .collect()
}

/// Checks members of the gossip; those on other hosts need a key. Names are kept, as their
/// addresses may change.
pub fn members(flag: &str, names: &[String], have_key: bool) -> Result<Vec<String>, Failure> {
    names
        .iter()
        .map(|name| {
            let addr = address(flag, name, have_key)?;
            Ok(match have_key {
                true => name.clone(),
                // An address of this host is kept as resolved, so that it never becomes another
                // host's.
                false => addr.to_string(),
            })
        })
        .collect()
}

/// The first of a name's addresses with a route to it; without any, the first one.
fn preferred(all: &[SocketAddr]) -> Option<SocketAddr> {
    let routed = |addr: &&SocketAddr| canvas_gossip::reached_from(**addr).is_some();
    all.iter().find(routed).or(all.first()).copied()
}

/// Resolves the address in a flag.
fn address(flag: &str, name: &str, have_key: bool) -> Result<SocketAddr, Failure> {
    let found = name.to_socket_addrs().map_err(|e| {
        Failure::run(format!(
            "{flag}{name} cannot be found: {}; write a host and a port such as 10.0.0.5:7070",
            crate::reason(&e)
        ))
    })?;
    let addr = preferred(&found.collect::<Vec<_>>())
        .ok_or_else(|| Failure::run(format!("{flag}{name} has no address")))?;
    if !have_key && !addr.ip().is_loopback() {
        return Err(Failure::run(format!(
            "{flag}{addr} is another host, which takes a cluster key; write --key-file FILE (`canvas keygen` makes one)"
        )));
    }
    Ok(addr)
}

/// The requested copies, if there are enough donors.
pub fn policy(copies: Option<Policy>, donors: usize, gossip: bool) -> Result<Policy, Failure> {
    let default = Policy::new(usize::from(donors > 0 || gossip), true);
    let policy = copies.unwrap_or(default);
    // Gossip may find more donors at any time.
    if donors < policy.donors && !gossip {
        let needed = policy.donors;
        return Err(Failure::run(format!(
            "--copies {policy} needs {needed} donors and there are {donors}; write more after --to"
        )));
    }
    if donors > SERVERS_MAX {
        return Err(Failure::run(format!(
            "there are {donors} donors; write {SERVERS_MAX} at most after --to"
        )));
    }
    Ok(policy)
}

fn size_of(amount: Amount) -> Option<Size> {
    match amount {
        Amount::Size(size) => Some(size),
        Amount::Share(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names may have addresses of both kinds of which only one is reachable.
    #[test]
    fn an_address_that_can_be_reached_is_preferred() {
        // Sending to a broadcast address needs an option, so it is unreachable.
        let [nowhere, here] = ["255.255.255.255:1", "127.0.0.1:1"].map(|a| a.parse().unwrap());
        assert_eq!(preferred(&[nowhere, here]), Some(here));
        assert_eq!(preferred(&[nowhere]), Some(nowhere));
        assert_eq!(preferred(&[]), None);
        let by_name =
            members("--to gossip:", &["localhost:1".to_owned()], true).map_err(|f| f.sentence);
        assert_eq!(by_name, Ok(vec!["localhost:1".to_owned()]));
        let without_key =
            members("--to gossip:", &["localhost:1".to_owned()], false).map_err(|f| f.sentence);
        assert!(without_key.unwrap()[0].parse::<SocketAddr>().is_ok());
    }
    use crate::args::{Cli, Command};
    use canvas_control::settings::Command as Owner;
    use canvas_shm::far::SLABS_MAX;
    use canvas_shm::segment::config_flag;
    use canvas_types::{Codec, Prefetch, Threshold};
    use clap::Parser;
    use std::sync::atomic::Ordering::Relaxed;

    fn of(ram_bytes: u64) -> HostMemory {
        HostMemory {
            ram_bytes,
            usable_bytes: ram_bytes,
        }
    }

    fn parsed(flags: &[&str]) -> Result<RunArgs, Failure> {
        let argv = [&["canvas", "run"], flags, &["--", "true"]].concat();
        let argv: Vec<_> = argv.into_iter().map(Into::into).collect();
        match Cli::try_parse_from(&argv) {
            Ok(Cli {
                command: Command::Run(args),
            }) => Ok(args),
            Ok(_) => unreachable!(),
            Err(e) => Err(Failure::run(crate::error::sentence(&e, &argv))),
        }
    }

    fn run_args(flags: &[&str]) -> RunArgs {
        parsed(flags).map_err(|f| f.sentence).unwrap()
    }

    fn options(flags: &[&str]) -> Result<Options, Failure> {
        of_run(&parsed(flags)?, of(8 << 30))
    }

    /// The table cannot use the crates that define these limits.
    #[test]
    fn bounds_of_the_table_are_those_of_what_has_them() {
        use canvas_control::settings::{QUEUES_MAX, THREADS_MAX, WARM_MAX};
        assert_eq!(QUEUES_MAX, canvas_disk::virtio::QUEUES_MAX);
        assert_eq!(THREADS_MAX, canvas_agent::dispatch::THREADS_MAX);
        assert_eq!(WARM_MAX, canvas_agent::daemon::prepared::WARM_MAX);
        let links = Settings::of(Owner::Run).value(LINKS);
        assert_eq!(links, canvas_agent::replicas::LINKS);
    }

    #[test]
    fn defaults() {
        let o = options(&[]).unwrap();
        assert_eq!(
            (o.local, o.pool.bytes, o.swap_cache.bytes),
            (None, 4 << 30, 32 << 20)
        );
        assert_eq!(o.mode, None);
        assert_eq!(
            (o.codec, o.reservations, o.prefetch, o.native_swap),
            (Codec::Lz4, true, Prefetch::Streams, true)
        );
        assert_eq!(
            (o.proactive_threshold, o.proactive_batch),
            (Threshold::default(), Size::from_bytes(256 << 10))
        );
    }

    #[test]
    fn the_default_swap_cache_leaves_most_of_a_small_limit() {
        assert_eq!(
            options(&["--local", "64M"]).unwrap().swap_cache.bytes,
            4 << 20
        );
        assert_eq!(
            options(&["--local", "1G"]).unwrap().swap_cache.bytes,
            32 << 20
        );
        assert_eq!(
            options(&["--local", "25%"]).unwrap().swap_cache.bytes,
            32 << 20
        );
    }

    #[test]
    fn too_little_is_refused_with_advice() {
        for (flags, want) in [
            (
                &["--local", "0"][..],
                "--local 0: it is too small; write 8M or more, or a share such as 25%",
            ),
            (
                &["--pool", "4K"][..],
                "--pool 4K: it is too small; write 1M or more",
            ),
            (
                &["-o", "proactive-batch=1K"][..],
                "-o proactive-batch=1K: it is out of range; write 4K to 64M",
            ),
            (
                &["-o", "proactive-batch=65M"],
                "-o proactive-batch=65M: it is out of range; write 4K to 64M",
            ),
            (
                &["--local", "16M", "-o", "swap-cache=16M"],
                "-o swap-cache=16M is part of --local 16M; write less than that, a sixteenth of it for example",
            ),
            (
                &["--local", "16M", "--far", "1K"][..],
                "--far 1K: it is too small; write 1M or more",
            ),
            (
                &["--local", "16M", "--far", "3T"][..],
                "--far 3T: it is too large; write 2T or less",
            ),
            (
                &["--local", "16M", "--far", "1G", "-o", "far-wait=1us"][..],
                "-o far-wait=1us: it is too short for any answer; write a time such as 30s",
            ),
            (
                &[
                    "--local",
                    "16M",
                    "--far",
                    "1G",
                    "--to",
                    "127.0.0.1:7",
                    "--copies",
                    "2",
                ][..],
                "--copies 2 needs 2 donors and there are 1; write more after --to",
            ),
            (
                &["--local", "16M", "--far", "1G", "--to", "192.0.2.1:7"][..],
                "--to 192.0.2.1:7 is another host, which takes a cluster key; write --key-file FILE (`canvas keygen` makes one)",
            ),
            (
                &["--local", "16M", "--far", "1G", "--copies", "1"][..],
                "--copies 1 needs 1 donors and there are 0; write more after --to",
            ),
            (
                &["--shared", "1G"][..],
                "--shared without --local has no effect: without a limit canvas manages nothing; write --local SIZE too",
            ),
            (
                &["--local", "64M", "--shared", "1K"][..],
                "--shared 1K: it is too small; write 1M or more",
            ),
            (
                &["--local", "64M", "--shared", "16M", "--mode", "thread"][..],
                THREAD_MODE_SHARES_NOTHING,
            ),
            (
                &["--far", "1G"][..],
                "--far without --local has no effect: nothing is evicted without a limit; write --local SIZE too",
            ),
            (
                &["--to", "127.0.0.1:7"][..],
                "--to without --local has no effect: nothing is evicted without a limit; write --local SIZE too",
            ),
            (
                &["--local", "64M", "--to=agent:/x"][..],
                "--to without --far has no effect; write --far SIZE to say how much memory may go there",
            ),
        ] {
            let f = options(flags).unwrap_err();
            assert_eq!((f.code, f.sentence.as_str()), (125, want));
        }
    }

    /// For any reason on the host that runs this test: no library, no device.
    #[test]
    fn rdma_that_cannot_be_had_is_one_sentence() {
        let Err(why) = canvas_rdma::check() else {
            canvas_testing::skip("RDMA can be had here");
            return;
        };
        let flags = [
            "--local",
            "16M",
            "--far",
            "1G",
            "--to",
            "127.0.0.1:7,rdma://127.0.0.1:7",
        ];
        let f = options(&flags).unwrap_err();
        let want = format!("--to rdma://127.0.0.1:7: {why}; write 127.0.0.1:7 to go over TCP");
        assert_eq!((f.code, f.sentence), (125, want));
        let why = why.to_string();
        assert!(why.contains("RDMA") && !why.ends_with('.'), "{why}");
    }

    #[test]
    fn the_pool_is_half_of_what_can_be_used() {
        let host = HostMemory {
            usable_bytes: 1 << 30,
            ..of(8 << 30)
        };
        let pool = |flags: &[&str]| of_run(&run_args(flags), host).unwrap().pool;
        assert_eq!(pool(&[]).bytes, 512 << 20);
        assert_eq!(pool(&["--pool", "3G"]).bytes, 3 << 30);
    }

    #[test]
    fn donors_lend_as_much_as_this_host_has_memory_unless_told_otherwise() {
        let slabs = |flags: &[&str], ram_bytes| {
            let args = run_args(&[&["--local", "64M"], flags].concat());
            let far = of_run(&args, of(ram_bytes)).unwrap().far;
            far.map(|far| far.slabs)
        };
        let server = ["--to", "127.0.0.1:7"];
        assert_eq!(slabs(&server, 1 << 30), Some(16));
        assert_eq!(slabs(&["--to", "gossip:127.0.0.1:7"], 1 << 30), Some(16));
        assert_eq!(slabs(&server, 1 << 60), Some(SLABS_MAX));
        assert_eq!(
            slabs(&[&server[..], &["--far", "128M"]].concat(), 1 << 30),
            Some(2)
        );
        assert_eq!(slabs(&[], 1 << 30), None);
    }

    #[test]
    fn far_memory_comes_in_whole_slabs() {
        let far = |size| options(&["--local", "1G", "--far", size]).unwrap().far;
        assert_eq!(far("1M").unwrap().slabs, 1);
        assert_eq!(far("64M").unwrap().slabs, 1);
        assert_eq!(far("65M").unwrap().slabs, 2);
        assert_eq!(far("2T").unwrap().slabs, SLABS_MAX);
        assert_eq!(far("1M").unwrap().wait, Duration::from_secs(30));
    }

    #[test]
    fn the_config_says_what_the_flags_say() {
        let (_fd, segment) = canvas_shm::Segment::create(false).unwrap();
        options(&[
            "--local",
            "12.5%",
            "--pool",
            "1G",
            "-o",
            "prefetch=none",
            "--require",
        ])
        .unwrap()
        .write_to(&segment.config);
        let c = &segment.config;
        assert_eq!(
            (c.local_bytes.load(Relaxed), c.local_ppm.load(Relaxed)),
            (0, 125_000)
        );
        assert_eq!(
            (c.pool_bytes.load(Relaxed), c.swap_cache_bytes.load(Relaxed)),
            (1 << 30, 32 << 20)
        );
        assert_eq!(c.flags.load(Relaxed), config_flag::REQUIRE);
        assert_eq!(
            (c.codec(), c.reservations(), c.prefetch()),
            (Codec::Lz4, true, Prefetch::None)
        );
        assert!(c.native_swap());
        assert_eq!(c.proactive_threshold(), Threshold::default());
        assert_eq!(c.proactive_batch_pages.load(Relaxed), 64);
        let proactive = ["-o", "proactive-threshold=off", "-o", "proactive-batch=1M"];
        options(&proactive).unwrap().write_to(c);
        assert_eq!(c.proactive_threshold(), Threshold::Off);
        assert_eq!(c.proactive_batch_pages.load(Relaxed), 256);
        let off = ["-o", "reservations=off", "-o", "native-swap=off"];
        options(&[&["-o", "codec=none"], &off[..]].concat())
            .unwrap()
            .write_to(c);
        assert!(!c.native_swap());
        assert_eq!(
            (c.codec(), c.reservations(), c.prefetch()),
            (Codec::None, false, Prefetch::Streams)
        );
    }

    #[test]
    fn the_host_agent_calls_a_run_as_canvas_status_takes_it() {
        let name = |flags: &[&str]| {
            let always = ["--local", "64M", "--far", "64M", "--to=agent:/x"];
            let far = options(&[&always, flags].concat()).unwrap().far;
            far.and_then(|far| far.host).unwrap().name
        };
        assert_eq!(name(&[]), format!("true.{}", std::process::id()));
        assert_eq!(name(&["--tenant", "web"]), "web");
    }

    #[test]
    fn the_rule_of_timeliness_is_the_agents_that_keeps_far_memory() {
        let far = ["--local", "64M", "--far", "64M"];
        let is_on = |flags: &[&str]| {
            let options = options(&[&far, flags].concat())?;
            Ok::<_, Failure>(options.far.unwrap().timeliness)
        };
        assert!(is_on(&[]).unwrap() && is_on(&["-o", "timeliness=on"]).unwrap());
        assert!(!is_on(&["-o", "timeliness=off"]).unwrap());
        assert!(is_on(&["--to=agent:/x", "-o", "timeliness=on"]).unwrap());
        let f = is_on(&["--to=agent:/x", "-o", "timeliness=off"]).unwrap_err();
        let want = "-o timeliness and --to agent exclude each other: the agent has its own; leave out one of them";
        assert_eq!((f.code, f.sentence.as_str()), (125, want));
        let f = options(&["-o", "timeliness=off"]).unwrap_err();
        let want = "-o timeliness without --far has no effect; write --far SIZE to say how much memory may go there";
        assert_eq!((f.code, f.sentence.as_str()), (125, want));
    }
}
