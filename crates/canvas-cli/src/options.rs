//! The flags of `canvas run`, checked, and with the defaults filled in.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_agent::replicas::{Policy, SERVERS_MAX};
use canvas_link::Address;
use canvas_place::paths::PATHS_MAX;
use canvas_shm::far::{SLAB_BYTES, SLABS_MAX};
use canvas_types::layout::NODES_MAX;
use canvas_types::numa::NODE_MIN;
use canvas_types::units::{Amount, Size};
use canvas_types::{NodeBound, Prefetch, Slo};
use canvas_wire::key::ClusterKey;
use clap::ValueEnum;

use crate::args::{BeyondArgs, CopiesArg, ModeArg, RunArgs, SwitchArg};
use crate::error::Failure;
use crate::tenant_flags as flags;
use canvas_control::hello::SMALL_MIN;
use canvas_control::names::{Name, name_of};
use canvas_runner::options::{
    FarOptions, HostMemory, HostOptions, LOCAL_MIN, Options, THREAD_MODE_SHARES_NOTHING,
    batch_error,
};

/// The swap cache at start.
const SWAP_CACHE: Size = Size::from_bytes(32 << 20);

/// Checks `args` and fills in the defaults.
pub fn of_run(args: &RunArgs, host: HostMemory) -> Result<Options, Failure> {
    at_least(
        "--local",
        args.local.and_then(size_of),
        LOCAL_MIN,
        ", or a share such as 25%",
    )?;
    at_least("--pool", args.pool, SMALL_MIN, "")?;
    at_least("--swap-cache", args.swap_cache, SMALL_MIN, "")?;
    let swap_cache = match (args.swap_cache, args.local.and_then(size_of)) {
        (Some(cache), Some(local)) if cache >= local => {
            return Err(Failure::run(format!(
                "--swap-cache {cache} is part of --local {local}; write less than that, a sixteenth of it for example"
            )));
        }
        (Some(cache), _) => cache,
        (None, Some(local)) => SWAP_CACHE.min(Size::from_bytes(local.bytes / 16)),
        (None, None) => SWAP_CACHE,
    };
    Ok(Options {
        command: args.command.clone(),
        tenant: args.beyond.tenant.clone(),
        metrics: args.metrics,
        host_reserve: args.reserve.host_reserve.0,
        local: args
            .local
            .or_else(|| without_limit(args.proactive.slo, host)),
        pool: args.pool.unwrap_or(Size::from_bytes(host.usable_bytes / 2)),
        swap_cache,
        mode: args.mode.wanted(),
        stats: args.stats.clone(),
        trace: args.trace.clone(),
        learn: learn(args)?,
        require: args.require,
        codec: args.codec.into(),
        reservations: args.reservations == SwitchArg::On,
        native_swap: args.native_swap.is_on(),
        prefetch: prefetch(args)?,
        app_tier: args.app_tier.app_tier.into(),
        proactive_threshold: args.proactive.proactive_threshold,
        proactive_batch: proactive_batch(args.proactive.proactive_batch)?,
        slo: args.proactive.slo,
        numa: numa(args)?,
        shared: shared(args)?,
        far: far(args, host.ram_bytes)?,
        learns: false,
    })
}

/// Where recordings are kept, where anything can leave memory.
fn learn(args: &RunArgs) -> Result<Option<PathBuf>, Failure> {
    let file = args.learn.learn.clone();
    if file.is_some() && args.local.is_none() && !args.proactive.slo.is_on() {
        return Err(Failure::run(
            "--learn without --local has no use: nothing leaves memory without a bound; write --local SIZE too",
        ));
    }
    Ok(file)
}

/// Where only a target bounds local memory: all that there is.
fn without_limit(slo: Slo, host: HostMemory) -> Option<Amount> {
    slo.is_on()
        .then(|| Amount::Size(Size::from_bytes(host.ram_bytes)))
}

/// `--no-prefetch` is `--prefetch none` by another name.
fn prefetch(args: &RunArgs) -> Result<Prefetch, Failure> {
    match (args.no_prefetch, args.prefetch.map(Prefetch::from)) {
        (true, None | Some(Prefetch::None)) => Ok(Prefetch::None),
        (true, Some(other)) => Err(Failure::run(format!(
            "--no-prefetch and --prefetch {} exclude each other; write one of them",
            other.name()
        ))),
        (false, chosen) => Ok(chosen.unwrap_or(Prefetch::Streams)),
    }
}

/// A batch of proactive swap-in.
fn proactive_batch(batch: Size) -> Result<Size, Failure> {
    match batch_error(batch) {
        None => Ok(batch),
        Some(why) => Err(Failure::run(format!("--proactive-batch {batch}: {why}"))),
    }
}

/// NUMA nodes for pages: not too many, each once.
fn numa(args: &RunArgs) -> Result<Vec<NodeBound>, Failure> {
    let nodes = &args.nodes.numa;
    if nodes.len() > NODES_MAX {
        return Err(Failure::run(format!(
            "--numa names {} nodes; write {NODES_MAX} at most",
            nodes.len()
        )));
    }
    for (i, bound) in nodes.iter().enumerate() {
        if nodes[..i].iter().any(|n| n.node == bound.node) {
            return Err(Failure::run(format!(
                "--numa names node {} twice; write it once",
                bound.node
            )));
        }
        if bound.size.bytes == 0 {
            return Err(Failure::run(format!(
                "--numa {bound} lets nothing go there; write {NODE_MIN} or more"
            )));
        }
    }
    if let (Some(bound), None) = (nodes.first(), args.local) {
        return Err(Failure::run(format!(
            "--numa {bound} without --local has no use: nothing leaves memory without a bound; write --local SIZE too"
        )));
    }
    Ok(nodes.clone())
}

/// Shared memory, where it can be managed.
fn shared(args: &RunArgs) -> Result<Option<Size>, Failure> {
    at_least("--shared", args.shared, SMALL_MIN, "")?;
    if args.shared.is_some() && args.local.is_none() {
        return Err(Failure::run(
            "--shared without --local has no use: canvas stands aside without a bound; write --local SIZE too",
        ));
    }
    if args.shared.is_some() && args.mode == ModeArg::Thread {
        return Err(Failure::run(THREAD_MODE_SHARES_NOTHING));
    }
    Ok(args.shared)
}

/// Far memory of a run, which wants a bound on local memory.
fn far(args: &RunArgs, ram_bytes: u64) -> Result<Option<FarOptions>, Failure> {
    let Some(wanted) = far_wanted(&args.beyond, ram_bytes)? else {
        return Ok(None);
    };
    if args.local.is_none() {
        let flag = wanted.flag;
        return Err(Failure::run(format!(
            "{flag} without --local has no use: nothing leaves memory without a bound; write --local SIZE too"
        )));
    }
    far_options(&args.beyond, &wanted, || own_name(args)).map(Some)
}

/// How much far memory is wanted.
pub struct FarWanted {
    slabs: u64,
    /// The flag that says so.
    flag: &'static str,
}

/// Far memory in whole slabs. Servers lend as much as this host has memory, unless the user says how
/// much.
pub fn far_wanted(args: &BeyondArgs, ram_bytes: u64) -> Result<Option<FarWanted>, Failure> {
    let most = Size::from_bytes((SLAB_BYTES * SLABS_MAX) as u64);
    let lenders = [
        ("--server", !args.servers.is_empty()),
        ("--seed", !args.seeds.is_empty()),
    ];
    let lender = lenders.iter().find(|(_, given)| *given);
    let lent = lender
        .filter(|_| args.agent.is_none())
        .map(|_| Size::from_bytes(ram_bytes).max(SMALL_MIN).min(most));
    let Some(size) = args.far.or(lent) else {
        let unused = [
            (
                args.about_far.as_deref().unwrap_or_default(),
                args.about_far.is_some(),
            ),
            ("--agent", args.agent.is_some()),
            ("--far-timeliness", !args.far_timeliness.is_on()),
            ("--weight", args.share.weight.is_some()),
            ("--swap-in-limit", args.share.swap_in_limit.is_some()),
            ("--swap-out-limit", args.share.swap_out_limit.is_some()),
        ];
        return match unused.iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((flag, _)) => Err(Failure::run(format!(
                "{flag} without --far has no use; write --far SIZE for how much memory may go there"
            ))),
        };
    };
    at_least("--far", Some(size), SMALL_MIN, "")?;
    let slabs = size.bytes.div_ceil(SLAB_BYTES as u64);
    if slabs > SLABS_MAX as u64 {
        return Err(Failure::run(format!(
            "--far {size} is more than canvas can number; write {most} or less"
        )));
    }
    let flag = match (args.far, lender) {
        (None, Some((flag, _))) => flag,
        _ => "--far",
    };
    Ok(Some(FarWanted { slabs, flag }))
}

/// Where it is to be, and who keeps it.
pub fn far_options(
    args: &BeyondArgs,
    wanted: &FarWanted,
    own_name: impl FnOnce() -> String,
) -> Result<FarOptions, Failure> {
    if args.far_wait.ns < 1_000_000 {
        return Err(Failure::run(
            "--far-wait is too short for any answer; write a time such as 30s",
        ));
    }
    let host = host_of(args, own_name)?;
    let servers = servers(&args.servers, args.key_file.is_some())?;
    let seeds = seeds(&args.seeds, args.key_file.is_some())?;
    let policy = match &host {
        // The agent's servers are not known here: it judges.
        Some(_) => args.copies.map(copies_of),
        None => Some(policy(args.copies, servers.len(), !seeds.is_empty())?),
    };
    let key = match &args.key_file {
        Some(file) if !servers.is_empty() || !seeds.is_empty() => {
            Some(ClusterKey::read(file).map_err(Failure::run)?)
        }
        _ => None,
    };
    Ok(FarOptions {
        servers,
        policy,
        key,
        slabs: wanted.slabs as usize,
        dirs: far_dirs(&args.far_dir).map_err(Failure::run)?,
        reserve: args.disk_reserve.far_reserve,
        wait: Duration::from_nanos(args.far_wait.ns),
        spill_percent: args.spill_at.into(),
        unit: args.unit,
        lanes: args.lanes.lanes.is_on(),
        spin: args.far_spin,
        timeliness: args.far_timeliness.is_on(),
        links: args.links,
        seeds,
        host,
        asked: flags::asked_of(args),
    })
}

/// Far directories, not too many of them.
pub fn far_dirs(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    match dirs.len() {
        ..=PATHS_MAX => Ok(dirs.to_vec()),
        n => Err(format!(
            "--far-dir names {n} directories; write {PATHS_MAX} at most"
        )),
    }
}

/// The host agent that a run asks for.
pub fn host(args: &RunArgs) -> Result<Option<HostOptions>, Failure> {
    host_of(&args.beyond, || own_name(args))
}

/// What a run is called that is not named. Two runs of one program are two tenants of the agent.
fn own_name(args: &RunArgs) -> String {
    let name = Name {
        tenant: name_of(args.command.first().map_or(Path::new(""), Path::new)),
        pid: std::process::id(),
        namesake: 0,
    };
    name.to_string()
}

/// The host agent that the flags ask for.
pub fn host_of(
    args: &BeyondArgs,
    own_name: impl FnOnce() -> String,
) -> Result<Option<HostOptions>, Failure> {
    let Some(path) = &args.agent else {
        return Ok(None);
    };
    let its_own = [
        ("--server", !args.servers.is_empty()),
        ("--seed", !args.seeds.is_empty()),
        ("--key-file", args.key_file.is_some()),
        ("--far-dir", !args.far_dir.is_empty()),
        ("--far-reserve", args.disk_reserve.far_reserve.is_some()),
        ("--far-timeliness", !args.far_timeliness.is_on()),
    ];
    if let Some((flag, _)) = its_own.iter().find(|(_, given)| *given) {
        return Err(Failure::run(format!(
            "{flag} and --agent exclude each other: the agent has its own; leave out one of them"
        )));
    }
    let path = match path {
        Some(path) => path.clone(),
        None => canvas_agent::daemon::socket::path_to_ask(),
    };
    Ok(Some(HostOptions {
        path,
        name: args.tenant.clone().unwrap_or_else(own_name),
        is_named: args.tenant.is_some(),
    }))
}

/// The addresses of servers; those of other hosts want a key.
pub fn servers(names: &[String], have_key: bool) -> Result<Vec<Address>, Failure> {
    names
        .iter()
        .map(|name| {
            let (host, rdma) = Address::split(name);
            let addr = address("--server", host, have_key)?;
            if rdma {
                canvas_rdma::check().map_err(|why| {
                    Failure::run(format!(
                        "--server {name}: {why}; write {host} to go over TCP"
                    ))
                })?;
            }
            Ok(Address { addr, rdma })
        })
        .collect()
}

/// Members of the gossip; those of other hosts want a key. Names stay names: what they mean may change.
pub fn seeds(names: &[String], have_key: bool) -> Result<Vec<String>, Failure> {
    names
        .iter()
        .map(|name| {
            let addr = address("--seed", name, have_key)?;
            Ok(match have_key {
                true => name.clone(),
                // Not even another time is it another host.
                false => addr.to_string(),
            })
        })
        .collect()
}

/// The first of a name's addresses that there is a route to; the first one without any.
fn preferred(all: &[SocketAddr]) -> Option<SocketAddr> {
    let routed = |addr: &&SocketAddr| canvas_gossip::reached_from(**addr).is_some();
    all.iter().find(routed).or(all.first()).copied()
}

/// The address that a flag names.
fn address(flag: &str, name: &str, have_key: bool) -> Result<SocketAddr, Failure> {
    let found = name.to_socket_addrs().map_err(|e| {
        Failure::run(format!(
            "{flag} {name} is no host that can be found: {}; write a host and a port such as 10.0.0.5:7070",
            crate::reason(&e)
        ))
    })?;
    let addr = preferred(&found.collect::<Vec<_>>())
        .ok_or_else(|| Failure::run(format!("{flag} {name} has no address")))?;
    if !have_key && !addr.ip().is_loopback() {
        return Err(Failure::run(format!(
            "{flag} {addr} is another host, which is only talked to with a key; write --key-file FILE (`canvas keygen` makes one)"
        )));
    }
    Ok(addr)
}

/// How many copies, and where.
pub fn copies_of(copies: CopiesArg) -> Policy {
    let value = copies.to_possible_value();
    let policy = value.and_then(|v| Policy::named(v.get_name()));
    policy.expect("each value of the flag is the name of a policy")
}

/// The copies that were asked for, if there are servers enough.
pub fn policy(copies: Option<CopiesArg>, servers: usize, gossip: bool) -> Result<Policy, Failure> {
    let default = if servers == 0 && !gossip {
        CopiesArg::DISK
    } else {
        CopiesArg::ONE_AND_DISK
    };
    let policy = copies_of(copies.unwrap_or(default));
    // Gossip may find more at any time.
    if servers < policy.donors && !gossip {
        let donors = policy.donors;
        return Err(Failure::run(format!(
            "--copies {policy} needs {donors} servers and there are {servers}; write more after --server"
        )));
    }
    if servers > SERVERS_MAX {
        return Err(Failure::run(format!(
            "there are {servers} servers; write {SERVERS_MAX} at most after --server"
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

fn at_least(flag: &str, size: Option<Size>, min: Size, or: &str) -> Result<(), Failure> {
    match size {
        Some(size) if size < min => Err(Failure::run(format!(
            "{flag} {size} is too little to work with; write {min} or more{or}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names have addresses of both kinds where only one of them leads anywhere.
    #[test]
    fn an_address_that_can_be_reached_is_preferred() {
        // Only who asks for it may send to all.
        let [nowhere, here] = ["255.255.255.255:1", "127.0.0.1:1"].map(|a| a.parse().unwrap());
        assert_eq!(preferred(&[nowhere, here]), Some(here));
        assert_eq!(preferred(&[nowhere]), Some(nowhere));
        assert_eq!(preferred(&[]), None);
        let by_name = seeds(&["localhost:1".to_owned()], true).map_err(|f| f.sentence);
        assert_eq!(by_name, Ok(vec!["localhost:1".to_owned()]));
        let without_key = seeds(&["localhost:1".to_owned()], false).map_err(|f| f.sentence);
        assert!(without_key.unwrap()[0].parse::<SocketAddr>().is_ok());
    }
    use crate::args::{Cli, Command};
    use canvas_place::replicas::Code;
    use canvas_shm::segment::config_flag;
    use canvas_types::{Codec, Threshold};
    use clap::Parser;
    use std::sync::atomic::Ordering::Relaxed;

    fn of(ram_bytes: u64) -> HostMemory {
        HostMemory {
            ram_bytes,
            usable_bytes: ram_bytes,
        }
    }

    fn run_args(flags: &[&str]) -> RunArgs {
        let argv = [&["canvas", "run"], flags, &["--", "true"]].concat();
        let Command::Run(args) = Cli::try_parse_from(argv).unwrap().command else {
            unreachable!()
        };
        args
    }

    fn options(flags: &[&str]) -> Result<Options, Failure> {
        of_run(&run_args(flags), of(8 << 30))
    }

    #[test]
    fn each_value_of_copies_is_a_policy_and_none_is_left_out() {
        let all: Vec<Policy> = CopiesArg::value_variants()
            .iter()
            .map(|c| copies_of(*c))
            .collect();
        for (name, policy) in Policy::NAMED {
            assert!(all.contains(&policy), "{name}");
        }
        let codes = (0..10).flat_map(|data| (0..4).filter_map(move |m| Code::new(data, m)));
        let codes: Vec<Code> = codes.collect();
        for code in &codes {
            assert!(all.contains(&Policy::coded(*code)), "{code}");
        }
        assert_eq!(all.len(), Policy::NAMED.len() + codes.len());
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
                "--local 0 is too little to work with; write 8M or more, or a share such as 25%",
            ),
            (
                &["--pool", "4K"][..],
                "--pool 4K is too little to work with; write 1M or more",
            ),
            (
                &["--proactive-batch", "1K"][..],
                "--proactive-batch 1K: it is no part of memory to bring back at a time; write 4K to 64M",
            ),
            (
                &["--proactive-batch", "65M"],
                "--proactive-batch 65M: it is no part of memory to bring back at a time; write 4K to 64M",
            ),
            (
                &["--local", "16M", "--swap-cache", "16M"],
                "--swap-cache 16M is part of --local 16M; write less than that, a sixteenth of it for example",
            ),
            (
                &["--local", "16M", "--far", "1K"][..],
                "--far 1K is too little to work with; write 1M or more",
            ),
            (
                &["--local", "16M", "--far", "3T"][..],
                "--far 3T is more than canvas can number; write 2T or less",
            ),
            (
                &["--local", "16M", "--far", "1G", "--far-wait", "1us"][..],
                "--far-wait is too short for any answer; write a time such as 30s",
            ),
            (
                &[
                    "--local",
                    "16M",
                    "--far",
                    "1G",
                    "--server",
                    "127.0.0.1:7",
                    "--copies",
                    "2",
                ][..],
                "--copies 2 needs 2 servers and there are 1; write more after --server",
            ),
            (
                &["--local", "16M", "--far", "1G", "--server", "192.0.2.1:7"][..],
                "--server 192.0.2.1:7 is another host, which is only talked to with a key; write --key-file FILE (`canvas keygen` makes one)",
            ),
            (
                &["--local", "16M", "--far", "1G", "--copies", "none"][..],
                "--copies none needs 1 servers and there are 0; write more after --server",
            ),
            (
                &["--shared", "1G"][..],
                "--shared without --local has no use: canvas stands aside without a bound; write --local SIZE too",
            ),
            (
                &["--local", "64M", "--shared", "1K"][..],
                "--shared 1K is too little to work with; write 1M or more",
            ),
            (
                &["--local", "64M", "--shared", "16M", "--mode", "thread"][..],
                THREAD_MODE_SHARES_NOTHING,
            ),
            (
                &["--far", "1G"][..],
                "--far without --local has no use: nothing leaves memory without a bound; write --local SIZE too",
            ),
            (
                &["--server", "127.0.0.1:7"][..],
                "--server without --local has no use: nothing leaves memory without a bound; write --local SIZE too",
            ),
            (
                &["--local", "64M", "--agent=/x"][..],
                "--agent without --far has no use; write --far SIZE for how much memory may go there",
            ),
        ] {
            let f = options(flags).unwrap_err();
            assert_eq!((f.code, f.sentence.as_str()), (125, want));
        }
    }

    /// Whatever the reason on the host that runs this: no library, no device.
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
            "--server",
            "127.0.0.1:7,rdma://127.0.0.1:7",
        ];
        let f = options(&flags).unwrap_err();
        let want = format!("--server rdma://127.0.0.1:7: {why}; write 127.0.0.1:7 to go over TCP");
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
    fn servers_lend_as_much_as_this_host_has_memory_unless_told_otherwise() {
        let slabs = |flags: &[&str], ram_bytes| {
            let args = run_args(&[&["--local", "64M"], flags].concat());
            let far = of_run(&args, of(ram_bytes)).unwrap().far;
            far.map(|far| far.slabs)
        };
        let server = ["--server", "127.0.0.1:7"];
        assert_eq!(slabs(&server, 1 << 30), Some(16));
        assert_eq!(slabs(&["--seed", "127.0.0.1:7"], 1 << 30), Some(16));
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
            "--no-prefetch",
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
        let proactive = ["--proactive-threshold", "off", "--proactive-batch", "1M"];
        options(&proactive).unwrap().write_to(c);
        assert_eq!(c.proactive_threshold(), Threshold::Off);
        assert_eq!(c.proactive_batch_pages.load(Relaxed), 256);
        let off = ["--reservations", "off", "--native-swap", "off"];
        options(&[&["--codec", "none"], &off[..]].concat())
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
            let always = ["--local", "64M", "--far", "64M", "--agent=/x"];
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
        assert!(is_on(&[]).unwrap() && is_on(&["--far-timeliness", "on"]).unwrap());
        assert!(!is_on(&["--far-timeliness", "off"]).unwrap());
        assert!(is_on(&["--agent=/x", "--far-timeliness", "on"]).unwrap());
        let f = is_on(&["--agent=/x", "--far-timeliness", "off"]).unwrap_err();
        let want = "--far-timeliness and --agent exclude each other: the agent has its own; leave out one of them";
        assert_eq!((f.code, f.sentence.as_str()), (125, want));
        let f = options(&["--far-timeliness", "off"]).unwrap_err();
        let want = "--far-timeliness without --far has no use; write --far SIZE for how much memory may go there";
        assert_eq!((f.code, f.sentence.as_str()), (125, want));
    }

    #[test]
    fn no_prefetch_is_another_name_for_none() {
        let who = |flags: &[&str]| options(flags).map(|o| o.prefetch);
        for (flags, want) in [
            (&["--prefetch", "leap"][..], Prefetch::Leap),
            (&["--prefetch", "readahead"], Prefetch::Readahead),
            (&["--prefetch", "none"], Prefetch::None),
            (&["--no-prefetch"], Prefetch::None),
            (&["--no-prefetch", "--prefetch", "none"], Prefetch::None),
        ] {
            assert_eq!(who(flags).unwrap(), want, "{flags:?}");
        }
        let f = who(&["--no-prefetch", "--prefetch", "leap"]).unwrap_err();
        assert_eq!(
            (f.code, f.sentence.as_str()),
            (
                125,
                "--no-prefetch and --prefetch leap exclude each other; write one of them"
            )
        );
    }
}
