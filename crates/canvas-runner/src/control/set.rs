//! Changing a tenant's settings at run time: turns requests into a list of changes, or into a
//! reason for changing nothing.

use canvas_control::hello;
use canvas_control::settings::table::{
    APP_TIER, COPIES, FAR, FAR_WAIT, LANES, LOCAL, POOL, PREFETCH, PROACTIVE_BATCH,
    PROACTIVE_THRESHOLD, SHARED, SLO, SPILL_AT, SWAP_IN_LIMIT, SWAP_OUT_LIMIT, UNIT, WEIGHT,
};
use canvas_control::settings::{Command, Settings, Source, find, live_in};
use canvas_control::terms::{Terms, TermsError, check_local, check_size};
use canvas_control::wire::Reply;
use canvas_place::replicas::Policy;
use canvas_shm::far::SLAB_BYTES;
use canvas_types::layout::NODES_MAX;
use canvas_types::units::{Amount, RateLimit, Size};
use canvas_types::{
    AppTier, NodeBound, NodeBoundError, PAGE_SIZE, Prefetch, ReadUnit, Slo, Threshold,
};

use crate::error::ChangeError;
use crate::options::batch_pages;

/// The settings that can be changed, as a list for users.
pub fn keys(command: Command) -> String {
    let all = live_in(command);
    let (last, first) = all.split_last().unwrap_or((&"", &[]));
    format!("{} and {last}", first.join(", "))
}

/// One change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `--local`.
    Local(Amount),
    /// `--shared`, in pages.
    Shared(i64),
    /// `--pool`, in bytes.
    Pool(u64),
    /// `--far`, in slabs.
    Far(u64),
    /// `spill-at`, in percent.
    SpillAt(u64),
    /// `far-wait`, in ms.
    FarWait(u64),
    /// `prefetch`.
    Prefetch(Prefetch),
    /// `app-tier`.
    AppTier(AppTier),
    /// `proactive-threshold`.
    ProactiveThreshold(Threshold),
    /// `proactive-batch`, in pages.
    ProactiveBatch(u32),
    /// `--slo`.
    Slo(Slo),
    /// `unit`.
    Unit(ReadUnit),
    /// `lanes`.
    Lanes(bool),
    /// `--numa`: limits in bytes, by the nodes' positions; `None` for unchanged ones.
    Numa([Option<u64>; NODES_MAX]),
    /// `--copies`.
    Copies(Policy),
    /// `weight`.
    Weight(u32),
    /// `swap-in-limit`.
    SwapIn(RateLimit),
    /// `swap-out-limit`.
    SwapOut(RateLimit),
}

/// Facts that decide whether changes are possible.
#[derive(Clone, Debug)]
pub struct Now {
    /// Whether the tenant has a limit on local memory.
    pub has_limit: bool,
    /// Bytes in the pool.
    pub pool_used: u64,
    /// Slabs of far memory: used, and at most; `None` without far memory.
    pub slabs: Option<(u64, u64)>,
    /// Possible destinations of far memory; `None` if only the host's agent knows them.
    pub places: Option<Places>,
    /// Terms of the host agent's operator.
    pub terms: Terms,
    /// The granted part of the host's pool, in bytes, if that is limited.
    pub pool_grant: Option<u64>,
    /// Whether shared memory is managed.
    pub has_shared: bool,
    /// The kernel's numbers of the run's nodes.
    pub nodes: Vec<u32>,
}

/// Possible destinations of a run's far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Number of donors named at the start.
    pub servers: usize,
    /// Whether gossip may find more donors.
    pub gossip: bool,
    /// Whether there is a file on a disk of this host.
    pub disk: bool,
}

/// Why nothing is changed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// No setting is given.
    #[error(
        "no change is given; write KEY=VALUE, where KEY is one of {}",
        keys(Command::Run)
    )]
    Nothing,
    /// A key is given twice.
    #[error("{0} is given twice; write it once")]
    Twice(String),
    /// There is no such key.
    #[error("there is no key {0}; what can be changed is {keys}", keys = keys(Command::Run))]
    UnknownKey(String),
    /// A value is not possible.
    #[error("{key}={value}: {why}")]
    Value {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What is wrong with it.
        why: ValueError,
    },
    /// A value exceeds the terms of the host agent's operator.
    #[error("{key}={why}")]
    Terms {
        /// The key.
        key: &'static str,
        /// The value and the terms.
        why: TermsError,
    },
    /// The operator's terms are not valid.
    #[error(transparent)]
    Settled(#[from] TermsError),
    /// More far memory is in use than the new limit.
    #[error("far={wanted}: {least} of far memory are in use; write {least} or more")]
    FarInUse {
        /// The requested limit.
        wanted: Size,
        /// The least possible limit.
        least: Size,
    },
    /// More of the pool is in use than the new limit, and cannot leave it.
    #[error("pool={wanted}: the pool's pages have nowhere else to go; write {least} or more")]
    PoolInUse {
        /// The requested limit.
        wanted: Size,
        /// The least possible limit.
        least: Size,
    },
    /// A disk's pool cannot grow beyond its initial size.
    #[error(
        "pool={wanted}: a disk's pool grows no larger than it was when it began; write {most} or less"
    )]
    PoolOfDisk {
        /// The requested limit.
        wanted: Size,
        /// The largest possible limit.
        most: Size,
    },
    /// A disk does not have this setting.
    #[error("a disk has no setting {0}; what can be changed is {keys}", keys = keys(Command::Disk))]
    NotOfDisk(String),
    /// The disk has no setting that can be changed.
    #[error(
        "this disk has no far memory, and its pool cannot be changed; with far memory from the start (canvas disk --far SIZE) its limits can be"
    )]
    DiskWithoutFar,
    /// Nothing can be changed, because the disk's holder does not answer.
    #[error(
        "the `canvas disk` that holds this disk does not answer, and only that command can change its far memory; nothing was changed"
    )]
    DiskWithoutHolder,
    /// The agent of far memory failed to make the change.
    #[error(transparent)]
    Far(#[from] ChangeError),
}

impl SetError {
    /// As the answer to the client.
    pub fn reply(&self) -> Reply {
        match self {
            SetError::Far(ChangeError::Unsure(_)) => Reply::Unsure(self.to_string()),
            why => Reply::Refused(why.to_string()),
        }
    }
}

/// What is wrong with a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ValueError {
    /// The table of settings refuses it.
    #[error("{0}")]
    Refused(String),
    /// The run has no far memory.
    #[error(
        "this run has no far memory, which must be configured at the start (canvas run --far SIZE)"
    )]
    NoFar,
    /// It is not a node with a limit.
    #[error(transparent)]
    NodeBound(#[from] NodeBoundError),
    /// The run does not use this node.
    #[error(
        "this run has no pages on node {0}, which must be named at the start (canvas run --numa N=SIZE)"
    )]
    NoNode(u32),
    /// A node is given twice.
    #[error("node {0} is given twice; write it once")]
    NodeTwice(u32),
    /// The run has no limit on local memory.
    #[error(
        "this run has no limit on local memory, which must be set at the start (canvas run --local SIZE)"
    )]
    NoLocal,
    /// The run does not manage shared memory.
    #[error(
        "canvas does not manage this run's shared memory, which it must do from the start (canvas run --shared SIZE)"
    )]
    NoShared,
    /// There are too few donors.
    #[error(
        "it needs {needed} donors and this run knows {there}; they must be named at the start (canvas run --to HOST:PORT)"
    )]
    FewServers {
        /// Number of donors needed.
        needed: usize,
        /// Number of donors known.
        there: usize,
    },
    /// There is no file in a far directory.
    #[error(
        "this run has no file in a far directory, which must be named at the start (canvas run --to disk:DIR)"
    )]
    NoDisk,
}

impl Places {
    /// Checks whether copies of this kind are possible.
    fn can_hold(self, policy: Policy) -> Result<(), ValueError> {
        let Policy {
            donors,
            disk,
            late: _,
            code: _,
        } = policy;
        if donors > self.servers && !self.gossip {
            return Err(ValueError::FewServers {
                needed: donors,
                there: self.servers,
            });
        }
        if disk && !self.disk {
            return Err(ValueError::NoDisk);
        }
        Ok(())
    }
}

/// Turns keys and values into changes.
pub fn plan(pairs: &[(String, String)], now: &Now) -> Result<Vec<Change>, SetError> {
    if pairs.is_empty() {
        return Err(SetError::Nothing);
    }
    let mut changes = Vec::new();
    for (i, (key, value)) in pairs.iter().enumerate() {
        if pairs[..i].iter().any(|(k, _)| k == key) {
            return Err(SetError::Twice(key.clone()));
        }
        changes.push(change(key, value, now)?);
    }
    fits(&changes, now)?;
    Ok(changes)
}

fn change(key: &str, value: &str, now: &Now) -> Result<Change, SetError> {
    let row = find(Command::Run, key).filter(|row| row.is_live_in(Command::Run));
    let row = row.ok_or_else(|| SetError::UnknownKey(key.to_owned()))?;
    let bad = |why| SetError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        why,
    };
    must_be_there(row.name, now).map_err(bad)?;
    if row.name == "numa" {
        return numa(value, &now.nodes).map_err(bad);
    }
    let text = row.read(value).map_err(ValueError::Refused).map_err(bad)?;
    let mut asked = Settings::of(Command::Run);
    // It was checked above.
    let _ = asked.give(row.name, &text, Source::CommandLine);
    let change = change_in(&asked).ok_or_else(|| SetError::UnknownKey(key.to_owned()))?;
    let terms = |why| SetError::Terms { key: row.name, why };
    match change {
        Change::Local(amount) => {
            if let Some(most) = now.terms.local()? {
                check_local(amount, most).map_err(terms)?;
            }
        }
        Change::Pool(bytes) => {
            if let Some(most) = now.terms.pool_bytes {
                let [asked, most] = [bytes, most].map(Size::from_bytes);
                check_size(asked, most).map_err(terms)?;
            }
        }
        Change::Copies(policy) => {
            if let Some(places) = now.places {
                places.can_hold(policy).map_err(bad)?;
            }
            (now.terms.allow_copies(Some(policy.into()))).map_err(terms)?;
        }
        _ => {}
    }
    Ok(change)
}

/// Checks that what cannot be added later exists.
fn must_be_there(key: &str, now: &Now) -> Result<(), ValueError> {
    const OF_FAR: [&str; 9] = [
        "far",
        "spill-at",
        "far-wait",
        "unit",
        "lanes",
        "copies",
        "weight",
        "swap-in-limit",
        "swap-out-limit",
    ];
    match key {
        "local" | "slo" if !now.has_limit => Err(ValueError::NoLocal),
        "shared" if !now.has_shared => Err(ValueError::NoShared),
        key if OF_FAR.contains(&key) && now.slabs.is_none() => Err(ValueError::NoFar),
        _ => Ok(()),
    }
}

/// The change for the only setting that is given.
fn change_in(asked: &Settings) -> Option<Change> {
    let slab = SLAB_BYTES as u64;
    let page = PAGE_SIZE as u64;
    let all = [
        asked.get(LOCAL).map(Change::Local),
        (asked.get(SHARED)).map(|size| Change::Shared((size.bytes / page) as i64)),
        asked.get(POOL).map(|size| Change::Pool(size.bytes)),
        (asked.get(FAR)).map(|size| Change::Far(size.bytes.div_ceil(slab))),
        asked.get(SPILL_AT).map(|n| Change::SpillAt(n.into())),
        (asked.get(FAR_WAIT)).map(|wait| Change::FarWait(wait.ns / 1_000_000)),
        asked.get(PREFETCH).map(Change::Prefetch),
        asked.get(APP_TIER).map(Change::AppTier),
        (asked.get(PROACTIVE_THRESHOLD)).map(Change::ProactiveThreshold),
        (asked.get(PROACTIVE_BATCH)).map(|size| Change::ProactiveBatch(batch_pages(size))),
        asked.get(SLO).map(Change::Slo),
        asked.get(UNIT).map(Change::Unit),
        asked.get(LANES).map(|lanes| Change::Lanes(lanes.0)),
        asked.get(COPIES).map(Change::Copies),
        asked.get(WEIGHT).map(Change::Weight),
        asked.get(SWAP_IN_LIMIT).map(Change::SwapIn),
        asked.get(SWAP_OUT_LIMIT).map(Change::SwapOut),
    ];
    all.into_iter().flatten().next()
}

/// Parses limits of nodes, separated by commas.
fn numa(value: &str, nodes: &[u32]) -> Result<Change, ValueError> {
    let mut bounds = [None; NODES_MAX];
    for text in value.split(',') {
        let NodeBound { node, size } = text.parse::<NodeBound>()?;
        let place = nodes.iter().position(|n| *n == node);
        let bound = place.and_then(|at| bounds.get_mut(at));
        match bound.ok_or(ValueError::NoNode(node))? {
            Some(_) => return Err(ValueError::NodeTwice(node)),
            none => *none = Some(size.bytes),
        }
    }
    Ok(Change::Numa(bounds))
}

/// The changes that the agent of far memory makes; `None` if there are none. The limit on the pool
/// is one of them if the agent grants pools (`is_pool_granted`).
pub fn for_agent(changes: &[Change], is_pool_granted: bool) -> Option<hello::Change> {
    let rate = |limit: RateLimit| Some(limit.bytes_per_s.unwrap_or(0));
    let mut all = hello::Change {
        version: hello::VERSION,
        ..hello::Change::default()
    };
    let nothing = all;
    for change in changes {
        match *change {
            Change::Far(slabs) => all.slabs = Some(slabs as usize),
            Change::Weight(weight) => all.weight = Some(weight),
            Change::Copies(policy) => all.copies = Some(policy.into()),
            Change::SwapIn(limit) => all.swap_in_limit = rate(limit),
            Change::SwapOut(limit) => all.swap_out_limit = rate(limit),
            Change::Pool(bytes) if is_pool_granted => all.pool_bytes = Some(bytes),
            _ => {}
        }
    }
    (all != nothing).then_some(all)
}

/// Checks that new limits leave room for what is in use.
fn fits(changes: &[Change], now: &Now) -> Result<(), SetError> {
    let slab = SLAB_BYTES as u64;
    let far = changes.iter().find_map(|c| match c {
        Change::Far(slabs) => Some(*slabs),
        _ => None,
    });
    if let (Some(max), Some((used, _))) = (far, now.slabs)
        && max < used
    {
        let least = Size::from_bytes(used * slab);
        return Err(SetError::FarInUse {
            wanted: Size::from_bytes(max * slab),
            least,
        });
    }
    let Some(pool) = changes.iter().find_map(|c| match c {
        Change::Pool(bytes) => Some(*bytes),
        _ => None,
    }) else {
        return Ok(());
    };
    let beyond = now
        .slabs
        .map_or(0, |(used, max)| (far.unwrap_or(max) - used.min(max)) * slab);
    let over = now.pool_used.saturating_sub(pool);
    if over > beyond {
        let least = Size::from_bytes((now.pool_used - beyond).next_multiple_of(1 << 20));
        return Err(SetError::PoolInUse {
            wanted: Size::from_bytes(pool),
            least,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Now {
        Now {
            has_limit: true,
            pool_used: 100 << 20,
            slabs: Some((3, 4)),
            places: Some(Places {
                servers: 2,
                gossip: false,
                disk: true,
            }),
            terms: Terms::default(),
            pool_grant: None,
            has_shared: true,
            nodes: vec![0, 3],
        }
    }

    #[test]
    fn bounds_of_nodes_that_the_run_has() {
        let change = |value: &str| ask(&[("numa", value)], &now());
        let bounds = |a, b| vec![Change::Numa([a, b, None, None])];
        assert_eq!(change("3=16M").unwrap(), bounds(None, Some(16 << 20)));
        assert_eq!(change("3=0,0=1G").unwrap(), bounds(Some(1 << 30), Some(0)));
        for (value, want) in [
            (
                "1=16M",
                "no pages on node 1, which must be named at the start",
            ),
            ("3=16M,3=0", "node 3 is given twice"),
            ("16M", "write N=SIZE"),
            ("0=4K", "write 1M or more"),
            ("", "write N=SIZE"),
        ] {
            let why = change(value).unwrap_err().to_string();
            assert!(why.contains(want), "{value}: {why}");
        }
    }

    fn ask(pairs: &[(&str, &str)], now: &Now) -> Result<Vec<Change>, SetError> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        plan(&pairs.iter().map(own).collect::<Vec<_>>(), now)
    }

    #[test]
    fn what_the_agents_operator_settled_holds() {
        let terms = Terms {
            local: Some("1G".to_owned()),
            pool_bytes: Some(1 << 30),
            ..Terms::default()
        };
        let now = Now { terms, ..now() };
        assert!(ask(&[("local", "1G"), ("pool", "1G")], &now).is_ok());
        for (pair, want) in [
            (("local", "1025M"), "local=1025M is more than the agent's"),
            (("local", "25%"), "local=25% cannot be compared"),
            (("pool", "2G"), "pool=2G is more than the agent's"),
        ] {
            let why = ask(&[pair], &now).unwrap_err().to_string();
            assert!(why.starts_with(want), "{why}");
        }
    }

    #[test]
    fn the_agent_is_asked_for_its_own_changes_only() {
        let plan = ask(&[("local", "1G"), ("pool", "1G")], &now()).unwrap();
        assert_eq!(for_agent(&plan, false), None);
        let pool = for_agent(&plan, true).and_then(|c| c.pool_bytes);
        assert_eq!(pool, Some(1 << 30));
        let plan = ask(&[("far", "300M"), ("swap-in-limit", "none")], &now()).unwrap();
        let want = hello::Change {
            version: hello::VERSION,
            slabs: Some(5),
            swap_in_limit: Some(0),
            ..hello::Change::default()
        };
        assert_eq!(for_agent(&plan, true), Some(want));
    }

    #[test]
    fn each_key_is_known() {
        let all = [
            ("local", "25%"),
            ("shared", "5000K"),
            ("pool", "1G"),
            ("far", "300M"),
            ("spill-at", "70"),
            ("far-wait", "1.5s"),
            ("prefetch", "leap"),
            ("app-tier", "refs"),
            ("proactive-threshold", "off"),
            ("proactive-batch", "1M"),
            ("slo", "2%"),
            ("unit", "64K"),
            ("lanes", "off"),
            ("copies", "2"),
            ("weight", "300"),
            ("swap-in-limit", "200M/s"),
            ("swap-out-limit", "none"),
        ];
        let want = [
            Change::Local(Amount::Share("25%".parse().unwrap())),
            Change::Shared(1250),
            Change::Pool(1 << 30),
            Change::Far(5),
            Change::SpillAt(70),
            Change::FarWait(1500),
            Change::Prefetch(Prefetch::Leap),
            Change::AppTier(AppTier::Refs),
            Change::ProactiveThreshold(Threshold::Off),
            Change::ProactiveBatch(256),
            Change::Slo(Slo::Slowdown(20_000)),
            Change::Unit(ReadUnit::Bytes(64 << 10)),
            Change::Lanes(false),
            Change::Copies(Policy {
                donors: 2,
                disk: false,
                late: false,
                code: None,
            }),
            Change::Weight(300),
            Change::SwapIn(RateLimit::bytes_per_s(200 << 20)),
            Change::SwapOut(RateLimit::NONE),
        ];
        assert_eq!(ask(&all, &now()).unwrap(), want);
        for (key, _) in all {
            assert!(live_in(Command::Run).contains(&key));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let nowhere = Places {
            servers: 1,
            gossip: false,
            disk: false,
        };
        let few = Now {
            places: Some(nowhere),
            ..now()
        };
        let bare = Now {
            has_limit: false,
            has_shared: false,
            slabs: None,
            ..now()
        };
        for (pairs, now, want) in [
            (&[][..], now(), "no change is given"),
            (
                &[("x", "1")],
                now(),
                "there is no key x; what can be changed is local, pool, shared, numa, far",
            ),
            (
                &[("local", "1G"), ("local", "2G")],
                now(),
                "local is given twice",
            ),
            (
                &[("local", "1M")],
                now(),
                "local=1M: it is too small; write 8M or more",
            ),
            (&[("local", "")], now(), "local=: nothing is written there"),
            (
                &[("local", "1G")],
                bare.clone(),
                "has no limit on local memory",
            ),
            (&[("pool", "5KB")], now(), "pool=5KB: KB, MB"),
            (&[("shared", "1023K")], now(), "write 1M or more"),
            (
                &[("shared", "1G")],
                bare.clone(),
                "does not manage this run's shared memory",
            ),
            (&[("far", "1G")], bare.clone(), "has no far memory"),
            (&[("far", "3T")], now(), "write 2T or less"),
            (
                &[("far", "128M")],
                now(),
                "far=128M: 192M of far memory are in use; write 192M or more",
            ),
            (&[("spill-at", "100")], now(), "write 1 to 99"),
            (&[("far-wait", "1us")], now(), "too short"),
            (
                &[("prefetch", "all")],
                now(),
                "write one of streams, leap, readahead, none, auto",
            ),
            (
                &[("app-tier", "on")],
                now(),
                "write one of auto, off, threads, refs",
            ),
            (
                &[("proactive-threshold", "on")],
                now(),
                "a share such as 25%, or off",
            ),
            (&[("slo", "99%")], now(), "write a share of 0.1% to 50%"),
            (&[("slo", "p99=5")], now(), "a duration such as"),
            (
                &[("unit", "3M")],
                now(),
                "unit=3M: it is no read unit; write auto, 4K",
            ),
            (&[("unit", "4K")], bare.clone(), "has no far memory"),
            (
                &[("lanes", "auto")],
                now(),
                "lanes=auto: it is neither; write on or off",
            ),
            (&[("lanes", "on")], bare.clone(), "has no far memory"),
            (
                &[("copies", "4")],
                now(),
                "write one of 1+disk, 1+disk-async, 2, 3, 1, disk, or a code from 2+1 to 8+2",
            ),
            (
                &[("copies", "3")],
                now(),
                "copies=3: it needs 3 donors and this run knows 2",
            ),
            (
                &[("copies", "1+disk")],
                few.clone(),
                "this run has no file in a far directory",
            ),
            (&[("copies", "2")], few, "knows 1"),
            (&[("copies", "disk")], bare.clone(), "has no far memory"),
            (&[("proactive-batch", "4000")], now(), "write 4K to 64M"),
            (&[("proactive-batch", "5%")], now(), "write a size such as"),
            (
                &[("pool", "35M")],
                now(),
                "pool=35M: the pool's pages have nowhere else to go; write 36M or more",
            ),
            (&[("pool", "99M")], bare, "write 100M or more"),
            (
                &[("pool", "40M"), ("far", "192M")],
                now(),
                "nowhere else to go",
            ),
        ] {
            let why = ask(pairs, &now).unwrap_err().to_string();
            assert!(why.contains(want), "{pairs:?}: {why}");
        }
        assert!(ask(&[("pool", "36M")], &now()).is_ok());
        assert!(ask(&[("pool", "1M"), ("far", "1G")], &now()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn anything_is_a_change_or_a_sentence(
            pairs in proptest::collection::vec(("[a-z-]{0,9}|local|pool|far|spill-at", ".{0,9}"), 0..4),
            pool_used: u32, used in 0u64..10, max in 0u64..10,
        ) {
            let now = Now { has_limit: true, pool_used: pool_used.into(), slabs: Some((used, max)), places: None, terms: Terms::default(), pool_grant: None, has_shared: used % 2 == 0, nodes: Vec::new() };
            if let Ok(changes) = plan(&pairs, &now) {
                proptest::prop_assert_eq!(changes.len(), pairs.len());
            }
        }
    }
}
