//! Settings of a run that joins an existing tenant.
//!
//! Settings of a whole tenant must equal the tenant's own: a joining run never changes another's
//! limits.

use std::sync::atomic::Ordering::Relaxed;

use canvas_agent::replicas::Policy;
use canvas_control::settings::table::*;
use canvas_control::settings::{Command, Faults, Settings, Switch};
use canvas_runner::join::Joined;
use canvas_runner::options::pid_namespace;
use canvas_shm::Far;
use canvas_shm::far::SLAB_BYTES;
use canvas_shm::nodes::NodeBook;
use canvas_shm::segment::{Mode, Segment, config_flag};
use canvas_types::units::{Amount, RateLimit, Share as Part, Size, Span};
use canvas_types::{NodeBound, PAGE_SIZE, ReadUnit};

use crate::args::RunArgs;
use crate::error::Failure;

/// The run's settings, completed by the tenant's limits.
pub fn fill(joined: &Joined, mut args: RunArgs) -> Result<RunArgs, Failure> {
    let (segment, far) = joined.map()?;
    let config = &segment.config;
    let name = &joined.host.name;
    let refuse = |why: String| Err(Failure::run(format!("tenant {name} exists already: {why}")));
    if config.pid_namespace.load(Relaxed) != pid_namespace() {
        return refuse(
            "it runs in another container (PID namespace), and programs in different containers cannot share it; write another name after --tenant"
                .to_owned(),
        );
    }
    let given = &mut args.settings;
    if config.trace_fd.load(Relaxed) != 0 || given.has(TRACE) {
        return refuse("a trace belongs to one run; write another name after --tenant".to_owned());
    }
    if given.has(LEARN) {
        return refuse(
            "recordings belong to one run; leave learn out, or write another name after --tenant"
                .to_owned(),
        );
    }
    if given.has(SHARED) {
        return refuse(format!(
            "{} is for the run that begins a tenant, whose forks alone can share memory with each other; leave {} out, or write another name after --tenant",
            given.written(SHARED),
            given.spelled(SHARED)
        ));
    }
    let there = there(joined, segment, far);
    if given.has(LOCAL) && !there.has(LOCAL) {
        return refuse(format!(
            "{} differs from the tenant's setting, none; leave it out",
            given.written(LOCAL)
        ));
    }
    if let Some(difference) = given.differs(&there) {
        return refuse(difference.to_string());
    }
    match there.get(LOCAL) {
        Some(local) => given.put(LOCAL, &local),
        None => given.remove(LOCAL),
    }
    for key in [POOL, FAR] {
        given.put(key, &there.value(key));
    }
    Ok(args)
}

/// The tenant's settings.
fn there(joined: &Joined, segment: &Segment, far: &Far) -> Settings {
    let config = &segment.config;
    let mut there = Settings::of(Command::Run);
    let size = |bytes: u64| Size::from_bytes(bytes);
    let ppm = u32::try_from(config.local_ppm.load(Relaxed)).ok();
    let local = match config.local_bytes.load(Relaxed) {
        0 => ppm.and_then(Part::from_ppm).map(Amount::Share),
        bytes => Some(Amount::Size(size(bytes))),
    };
    if let Some(local) = local {
        there.put(LOCAL, &local);
    }
    // The configured limit, not the current grant.
    let pool = joined.pool().map(|pool| pool.ceiling_bytes);
    let pool = pool.unwrap_or_else(|| config.pool_bytes.load(Relaxed));
    there.put(POOL, &size(pool));
    there.put(FAR, &size((joined.settled.slabs * SLAB_BYTES) as u64));
    there.put(SWAP_CACHE, &size(config.swap_cache_bytes.load(Relaxed)));
    let bound = |book: &NodeBook| {
        Some(NodeBound {
            node: book.number()?,
            size: size(book.bound_bytes.load(Relaxed)),
        })
    };
    there.put(NUMA, &segment.nodes().iter().filter_map(bound).collect());
    there.put(COPIES, &Policy::from(joined.settled.copies));
    let share = joined.share();
    let rate = |bytes_per_s| RateLimit { bytes_per_s };
    there.put(WEIGHT, &share.weight);
    there.put(SWAP_IN_LIMIT, &rate(share.swap_in_limit));
    there.put(SWAP_OUT_LIMIT, &rate(share.swap_out_limit));
    let mode = config.mode.load(Relaxed);
    let modes = [Mode::Signal, Mode::Thread];
    let mode = modes.into_iter().find(|m| *m as u32 == mode);
    there.put(MODE, &Faults(mode));
    there.put(CODEC, &config.codec());
    there.put(RESERVATIONS, &Switch(config.reservations()));
    there.put(NATIVE_SWAP, &Switch(config.native_swap()));
    let is_required = config.flags.load(Relaxed) & config_flag::REQUIRE != 0;
    there.put(REQUIRE, &Switch(is_required));
    there.put(PREFETCH, &config.prefetch());
    there.put(APP_TIER, &config.app_tier());
    there.put(PROACTIVE_THRESHOLD, &config.proactive_threshold());
    let batch = config.proactive_batch_pages.load(Relaxed);
    there.put(PROACTIVE_BATCH, &size(u64::from(batch) * PAGE_SIZE as u64));
    there.put(SLO, &config.slo());
    let spill = far.spill_percent.load(Relaxed);
    there.put(SPILL_AT, &u8::try_from(spill).unwrap_or(u8::MAX));
    there.put(UNIT, &ReadUnit::from_number(far.unit_bytes.load(Relaxed)));
    there.put(LANES, &Switch(far.lanes.is_wanted()));
    let ns = far.wait_ms_max.load(Relaxed).saturating_mul(1_000_000);
    there.put(FAR_WAIT, &Span { ns });
    there
}
