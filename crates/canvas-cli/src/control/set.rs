//! Changing a tenant's bounds while it runs: what was written becomes a list of changes, or one
//! sentence and nothing.

use canvas_shm::far::{SLAB_BYTES, SLABS_MAX};
use canvas_types::Prefetch;
use canvas_types::units::{Amount, Size, Span};

use crate::options::{LOCAL_MIN, SMALL_MIN};

/// What can be changed, for people.
pub const KEYS: &str = "local, pool, far, spill-at, far-wait and prefetch";

/// One change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `--local`.
    Local(Amount),
    /// `--pool`, in bytes.
    Pool(u64),
    /// `--far`, in slabs.
    Far(u64),
    /// `--spill-at`, in percent.
    SpillAt(u64),
    /// `--far-wait`, in ms.
    FarWait(u64),
    /// `--prefetch`.
    Prefetch(Prefetch),
}

/// What the changes depend on.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The tenant has a bound on local memory.
    pub has_limit: bool,
    /// Bytes in the pool.
    pub pool_used: u64,
    /// Slabs of far memory: used, and at most; `None` without far memory.
    pub slabs: Option<(u64, u64)>,
}

/// The pairs as changes; the error is one sentence.
pub fn plan(pairs: &[(String, String)], now: Now) -> Result<Vec<Change>, String> {
    if pairs.is_empty() {
        return Err(format!(
            "nothing is to be changed; write KEY=VALUE, where KEY is one of {KEYS}"
        ));
    }
    let mut changes = Vec::new();
    for (i, (key, value)) in pairs.iter().enumerate() {
        if pairs[..i].iter().any(|(k, _)| k == key) {
            return Err(format!("{key} is given twice; write it once"));
        }
        changes.push(change(key, value, now)?);
    }
    fits(&changes, now)?;
    Ok(changes)
}

fn change(key: &str, value: &str, now: Now) -> Result<Change, String> {
    let bad = |why: &dyn std::fmt::Display| format!("{key}={value}: {why}");
    let size = |min: Size| match value.parse::<Size>() {
        Err(e) => Err(bad(&e)),
        Ok(size) if size < min => Err(bad(&format!(
            "it is too little to work with; write {min} or more"
        ))),
        Ok(size) => Ok(size),
    };
    let with_far = || match now.slabs {
        Some(_) => Ok(()),
        None => Err(bad(
            &"this run has no far memory, which must be there from the start (canvas run --far SIZE)",
        )),
    };
    match key {
        "local" if !now.has_limit => Err(bad(
            &"this run has no bound on local memory, which must be there from the start (canvas run --local SIZE)",
        )),
        "local" => match value.parse().map_err(|e| bad(&e))? {
            Amount::Size(_) => Ok(Change::Local(Amount::Size(size(LOCAL_MIN)?))),
            share => Ok(Change::Local(share)),
        },
        "pool" => Ok(Change::Pool(size(SMALL_MIN)?.bytes)),
        "far" => {
            with_far()?;
            let slabs = size(SMALL_MIN)?.bytes.div_ceil(SLAB_BYTES as u64);
            let most = Size::from_bytes((SLAB_BYTES * SLABS_MAX) as u64);
            if slabs > SLABS_MAX as u64 {
                return Err(bad(&format!(
                    "it is more than canvas can number; write {most} or less"
                )));
            }
            Ok(Change::Far(slabs))
        }
        "spill-at" => {
            with_far()?;
            match value.parse() {
                Ok(percent @ 1..=99) => Ok(Change::SpillAt(percent)),
                _ => Err(bad(&"it is no part of the pool; write 1 to 99 percent")),
            }
        }
        "far-wait" => {
            with_far()?;
            match value.parse::<Span>() {
                Ok(wait) if wait.ns >= 1_000_000 => Ok(Change::FarWait(wait.ns / 1_000_000)),
                Ok(_) => Err(bad(
                    &"it is too short for any answer; write a time such as 30s",
                )),
                Err(e) => Err(bad(&e)),
            }
        }
        "prefetch" => Prefetch::ALL
            .into_iter()
            .find(|p| p.name() == value)
            .map(Change::Prefetch)
            .ok_or_else(|| {
                let names = Prefetch::ALL.map(Prefetch::name).join(", ");
                bad(&format!("write one of {names}"))
            }),
        _ => Err(format!(
            "there is no key {key}; what can be changed is {KEYS}"
        )),
    }
}

/// Is there room for what is there already?
fn fits(changes: &[Change], now: Now) -> Result<(), String> {
    let slab = SLAB_BYTES as u64;
    let far = changes.iter().find_map(|c| match c {
        Change::Far(slabs) => Some(*slabs),
        _ => None,
    });
    if let (Some(max), Some((used, _))) = (far, now.slabs)
        && max < used
    {
        let least = Size::from_bytes(used * slab);
        return Err(format!(
            "far={}: {least} of far memory are in use; write {least} or more",
            Size::from_bytes(max * slab)
        ));
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
        return Err(format!(
            "pool={}: what is in the pool has no other place to go to; write {least} or more",
            Size::from_bytes(pool)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now {
        has_limit: true,
        pool_used: 100 << 20,
        slabs: Some((3, 4)),
    };

    fn ask(pairs: &[(&str, &str)], now: Now) -> Result<Vec<Change>, String> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        plan(&pairs.iter().map(own).collect::<Vec<_>>(), now)
    }

    #[test]
    fn each_key_is_known() {
        let all = [
            ("local", "25%"),
            ("pool", "1G"),
            ("far", "300M"),
            ("spill-at", "70"),
            ("far-wait", "1.5s"),
            ("prefetch", "leap"),
        ];
        let want = [
            Change::Local(Amount::Share("25%".parse().unwrap())),
            Change::Pool(1 << 30),
            Change::Far(5),
            Change::SpillAt(70),
            Change::FarWait(1500),
            Change::Prefetch(Prefetch::Leap),
        ];
        assert_eq!(ask(&all, NOW).unwrap(), want);
        for (key, _) in all {
            assert!(KEYS.contains(key));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let bare = Now {
            has_limit: false,
            slabs: None,
            ..NOW
        };
        for (pairs, now, want) in [
            (&[][..], NOW, "nothing is to be changed"),
            (
                &[("x", "1")],
                NOW,
                "there is no key x; what can be changed is local, pool, far",
            ),
            (
                &[("local", "1G"), ("local", "2G")],
                NOW,
                "local is given twice",
            ),
            (
                &[("local", "1M")],
                NOW,
                "local=1M: it is too little to work with; write 8M or more",
            ),
            (&[("local", "")], NOW, "local=: nothing is written there"),
            (&[("local", "1G")], bare, "has no bound on local memory"),
            (&[("pool", "5KB")], NOW, "pool=5KB: KB, MB"),
            (&[("far", "1G")], bare, "has no far memory"),
            (&[("far", "3T")], NOW, "write 2T or less"),
            (
                &[("far", "128M")],
                NOW,
                "far=128M: 192M of far memory are in use; write 192M or more",
            ),
            (&[("spill-at", "100")], NOW, "write 1 to 99"),
            (&[("far-wait", "1us")], NOW, "too short"),
            (
                &[("prefetch", "all")],
                NOW,
                "write one of streams, leap, readahead, none",
            ),
            (
                &[("pool", "35M")],
                NOW,
                "pool=35M: what is in the pool has no other place to go to; write 36M or more",
            ),
            (&[("pool", "99M")], bare, "write 100M or more"),
            (&[("pool", "40M"), ("far", "192M")], NOW, "no other place"),
        ] {
            let why = ask(pairs, now).unwrap_err();
            assert!(why.contains(want), "{pairs:?}: {why}");
        }
        assert!(ask(&[("pool", "36M")], NOW).is_ok());
        assert!(ask(&[("pool", "1M"), ("far", "1G")], NOW).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn anything_is_a_change_or_a_sentence(
            pairs in proptest::collection::vec(("[a-z-]{0,9}|local|pool|far|spill-at", ".{0,9}"), 0..4),
            pool_used: u32, used in 0u64..10, max in 0u64..10,
        ) {
            let now = Now { has_limit: true, pool_used: pool_used.into(), slabs: Some((used, max)) };
            if let Ok(changes) = plan(&pairs, now) {
                proptest::prop_assert_eq!(changes.len(), pairs.len());
            }
        }
    }
}
