//! What a run says that joins a tenant, beside what the tenant has.
//!
//! What a run says about its tenant must be what the tenant has: nobody's bounds change because somebody
//! else comes along.

use std::sync::atomic::Ordering::Relaxed;

use canvas_agent::Share;
use canvas_agent::replicas::Policy;
use canvas_control::hello::{Settled, Wanted};
use canvas_shm::Far;
use canvas_shm::far::SLAB_BYTES;
use canvas_shm::nodes::NodeBook;
use canvas_shm::segment::{Config, Mode, Segment, config_flag};
use canvas_types::units::{Amount, RateLimit, Share as Part, Size};
use canvas_types::{AppTier, NodeBound, PAGE_SIZE, ReadUnit, Threshold};
use clap::ValueEnum;

use crate::args::{AppTierArg, CodecArg, RunArgs, SwitchArg};
use crate::error::Failure;
use crate::options::copies_of;
use canvas_runner::join::Joined;
use canvas_runner::mode_name;
use canvas_runner::options::{PROACTIVE_BATCH, batch_pages, pid_namespace};

/// The run's flags with the tenant's bounds in them, when they say nothing else.
pub fn fill(joined: &Joined, mut args: RunArgs) -> Result<RunArgs, Failure> {
    let (segment, far) = joined.map()?;
    let config = &segment.config;
    let name = &joined.host.name;
    let refuse = |why: String| Err(Failure::run(format!("tenant {name} is there: {why}")));
    if config.pid_namespace.load(Relaxed) != pid_namespace() {
        return refuse(
            "it runs in another container (PID namespace), and programs of two cannot share it; write another name after --tenant"
                .to_owned(),
        );
    }
    if config.trace_fd.load(Relaxed) != 0 || args.trace.is_some() {
        return refuse("a trace is of one run alone; write another name after --tenant".to_owned());
    }
    if args.learn.learn.is_some() {
        return refuse("recordings are of one run alone; leave --learn out, or write another name after --tenant".to_owned());
    }
    if let Some(asked) = args.shared {
        return refuse(format!(
            "--shared {asked} is for the run that begins a tenant, whose forks alone can share memory with each other; leave --shared out, or write another name after --tenant"
        ));
    }
    let share = joined.share();
    let mut there = There::of(segment, &joined.settled, share);
    if let Some(pool) = joined.pool() {
        // What is granted now is no run's wish.
        there.pool = Size::from_bytes(pool.ceiling_bytes);
    }
    if let Some((flag, asked, has)) = there.differs(&args, far) {
        return refuse(format!(
            "{flag} {asked} is not what it has, {has}; leave {flag} out, or change the tenant with `canvas set`"
        ));
    }
    args.local = there.local;
    args.pool = Some(there.pool);
    args.beyond.far = Some(there.far);
    Ok(args)
}

/// A tenant's bounds.
struct There<'a> {
    config: &'a Config,
    nodes: Vec<NodeBound>,
    local: Option<Amount>,
    pool: Size,
    far: Size,
    copies: Wanted,
    share: Share,
}

/// A flag, what is written behind it, and what the tenant has.
type Difference = (&'static str, String, String);

impl There<'_> {
    fn of<'a>(segment: &'a Segment, settled: &Settled, share: Share) -> There<'a> {
        let config = &segment.config;
        let bound = |book: &NodeBook| {
            Some(NodeBound {
                node: book.number()?,
                size: Size::from_bytes(book.bound_bytes.load(Relaxed)),
            })
        };
        let ppm = u32::try_from(config.local_ppm.load(Relaxed)).ok();
        There {
            config,
            nodes: segment.nodes().iter().filter_map(bound).collect(),
            local: match config.local_bytes.load(Relaxed) {
                0 => ppm.and_then(Part::from_ppm).map(Amount::Share),
                bytes => Some(Amount::Size(Size::from_bytes(bytes))),
            },
            pool: Size::from_bytes(config.pool_bytes.load(Relaxed)),
            far: Size::from_bytes((settled.slabs * SLAB_BYTES) as u64),
            copies: settled.copies,
            share,
        }
    }

    /// The first thing that a run says and the tenant has otherwise.
    fn differs(&self, args: &RunArgs, far: &Far) -> Option<Difference> {
        self.bounds(args).or_else(|| self.habits(args, far))
    }

    fn bounds(&self, args: &RunArgs) -> Option<Difference> {
        let far_slabs = |size: Size| size.bytes.div_ceil(SLAB_BYTES as u64);
        let amount = |a: Option<Amount>| a.map_or("none".to_owned(), |a| a.to_string());
        if args.local.is_some() && args.local != self.local {
            return Some(("--local", amount(args.local), amount(self.local)));
        }
        let cache = Size::from_bytes(self.config.swap_cache_bytes.load(Relaxed));
        for (flag, asked, has) in [
            ("--pool", args.pool, self.pool),
            ("--swap-cache", args.swap_cache, cache),
        ] {
            if let Some(asked) = asked.filter(|asked| *asked != has) {
                return Some((flag, asked.to_string(), has.to_string()));
            }
        }
        let asked = &args.nodes.numa;
        if !asked.is_empty() && *asked != self.nodes {
            let list = |nodes: &[NodeBound]| {
                let all: Vec<_> = nodes.iter().map(NodeBound::to_string).collect();
                if all.is_empty() {
                    "none".to_owned()
                } else {
                    all.join(",")
                }
            };
            return Some(("--numa", list(asked), list(&self.nodes)));
        }
        if let Some(asked) = args
            .beyond
            .far
            .filter(|a| far_slabs(*a) != far_slabs(self.far))
        {
            return Some(("--far", asked.to_string(), self.far.to_string()));
        }
        if let Some(asked) = args.beyond.copies
            && Wanted::from(copies_of(asked)) != self.copies
        {
            let has = Policy::from(self.copies).to_string();
            return Some(("--copies", written(asked), has));
        }
        let (share, asked) = (self.share, &args.beyond.share);
        if let Some(weight) = asked.weight.filter(|w| *w != share.weight) {
            let has = share.weight.to_string();
            return Some(("--weight", weight.to_string(), has));
        }
        for (flag, asked, has) in [
            ("--swap-in-limit", asked.swap_in_limit, share.swap_in_limit),
            (
                "--swap-out-limit",
                asked.swap_out_limit,
                share.swap_out_limit,
            ),
        ] {
            let has = RateLimit { bytes_per_s: has };
            if let Some(asked) = asked.filter(|asked| *asked != has) {
                return Some((flag, asked.to_string(), has.to_string()));
            }
        }
        None
    }

    /// What has a default: only another value than that is taken for a wish.
    fn habits(&self, args: &RunArgs, far: &Far) -> Option<Difference> {
        let config = self.config;
        let mode = config.mode.load(Relaxed);
        let modes = [Mode::Signal, Mode::Thread];
        let has = modes.into_iter().find(|m| *m as u32 == mode);
        let asked = args.mode.wanted();
        if asked.is_some() && asked != has {
            let has = has.map_or("none", mode_name).to_owned();
            return Some(("--mode", written(args.mode), has));
        }
        let codec = config.codec();
        if args.codec != CodecArg::Lz4 && codec != args.codec.into() {
            return Some(("--codec", written(args.codec), "lz4".to_owned()));
        }
        if args.reservations == SwitchArg::Off && config.reservations() {
            return Some(("--reservations", "off".to_owned(), "on".to_owned()));
        }
        if !args.native_swap.is_on() && config.native_swap() {
            return Some(("--native-swap", "off".to_owned(), "on".to_owned()));
        }
        let flags = config.flags.load(Relaxed);
        if args.require && flags & config_flag::REQUIRE == 0 {
            return Some(("--require", "1".to_owned(), "0".to_owned()));
        }
        let prefetch = config.prefetch();
        if let Some(asked) = args.prefetch
            && prefetch != asked.into()
        {
            return Some(("--prefetch", written(asked), prefetch.name().to_owned()));
        }
        if args.no_prefetch && prefetch != canvas_types::Prefetch::None {
            return Some(("--no-prefetch", "1".to_owned(), prefetch.name().to_owned()));
        }
        let (asked, has) = (args.app_tier.app_tier, config.app_tier());
        if asked != AppTierArg::Auto && AppTier::from(asked) != has {
            return Some(("--app-tier", written(asked), has.name().to_owned()));
        }
        let proactive = &args.proactive;
        let (asked, has) = (proactive.proactive_threshold, config.proactive_threshold());
        if asked != Threshold::default() && asked != has {
            return Some(("--proactive-threshold", asked.to_string(), has.to_string()));
        }
        let asked = proactive.proactive_batch;
        let has = config.proactive_batch_pages.load(Relaxed);
        if asked != PROACTIVE_BATCH && batch_pages(asked) != has {
            let has = Size::from_bytes(u64::from(has) * PAGE_SIZE as u64);
            return Some(("--proactive-batch", asked.to_string(), has.to_string()));
        }
        let (asked, has) = (proactive.slo, config.slo());
        if asked.is_on() && asked != has {
            return Some(("--slo", asked.to_string(), has.to_string()));
        }
        let (spill, wait) = (
            far.spill_percent.load(Relaxed),
            far.wait_ms_max.load(Relaxed),
        );
        if args.beyond.spill_at != SPILL_AT && u64::from(args.beyond.spill_at) != spill {
            return Some((
                "--spill-at",
                args.beyond.spill_at.to_string(),
                spill.to_string(),
            ));
        }
        let has = ReadUnit::from_number(far.unit_bytes.load(Relaxed));
        if args.beyond.unit != ReadUnit::Auto && args.beyond.unit != has {
            return Some(("--unit", args.beyond.unit.to_string(), has.to_string()));
        }
        let has = far.lanes.is_wanted();
        if !args.beyond.lanes.lanes.is_on() && has {
            return Some(("--lanes", "off".to_owned(), "on".to_owned()));
        }
        let asked = args.beyond.far_wait.ns / 1_000_000;
        if asked != FAR_WAIT_MS && asked != wait {
            return Some((
                "--far-wait",
                args.beyond.far_wait.to_string(),
                format!("{wait}ms"),
            ));
        }
        None
    }
}

/// Defaults of `--spill-at` and `--far-wait`.
const SPILL_AT: u8 = 80;
const FAR_WAIT_MS: u64 = 30_000;

/// A value as it is written behind its flag.
fn written(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |v| v.get_name().to_owned())
}
