//! Terms of the host agent's operator as settings of `canvas run` and `canvas disk`: read from the
//! agent's file, and applied to the settings that were given.

use canvas_control::hello::{Asked, Wanted};
use canvas_control::settings::table::*;
use canvas_control::settings::{Key, Settings};
use canvas_control::terms::{Terms, check_local, check_size, too_much_in_s};
use canvas_types::units::{RateLimit, Size};

use crate::args::RunArgs;
use crate::error::Failure;

/// The keys that apply to a disk, too.
pub const KEYS_OF_DISKS: &[&str] = &[
    "pool",
    "pool_floor",
    "far",
    "copies",
    "weight",
    "swap_in_limit",
    "swap_out_limit",
];

/// Terms from a section of the agent's file; other settings are up to the runs.
pub fn terms_of(section: &Settings, floors: &Settings) -> Terms {
    let bytes = |settings: &Settings, key: Key<Size>| settings.get(key).map(|size| size.bytes);
    let rate = |key: Key<RateLimit>| section.get(key).and_then(|r| r.bytes_per_s);
    Terms {
        local: section.get(LOCAL).map(|local| local.to_string()),
        pool_bytes: bytes(section, POOL),
        far_bytes: bytes(section, FAR),
        copies: section.get(COPIES).map(Wanted::from),
        weight: section.get(WEIGHT),
        swap_in_limit: rate(SWAP_IN_LIMIT),
        swap_out_limit: rate(SWAP_OUT_LIMIT),
        pool_floor_bytes: bytes(floors, POOL_FLOOR),
        shared_floor_bytes: bytes(floors, SHARED_FLOOR),
    }
}

/// A run's settings, completed by the terms; an error if they exceed the terms.
pub fn fill(terms: &Terms, mut args: RunArgs) -> Result<RunArgs, Failure> {
    if let Some(local) = terms.local().map_err(Failure::run)? {
        let asked = args.settings.get(LOCAL).unwrap_or(local);
        args.settings.put(LOCAL, &asked);
        check_local(asked, local).map_err(|why| Failure::run(format!("--local {why}")))?;
    }
    fill_beyond(terms, &mut args.settings)?;
    Ok(args)
}

/// Applies the terms on pool and far memory, for a disk.
pub fn fill_beyond(terms: &Terms, given: &mut Settings) -> Result<(), Failure> {
    for (key, most) in [(POOL, terms.pool_bytes), (FAR, terms.far_bytes)] {
        let Some(most) = most.map(Size::from_bytes) else {
            continue;
        };
        let asked = given.get(key).unwrap_or(most);
        given.put(key, &asked);
        check_size(asked, most).map_err(|why| Failure::run(format!("--{} {why}", key.name)))?;
    }
    let asked = asked_of(given);
    terms
        .allow_copies(given.get(COPIES).map(Wanted::from))
        .and_then(|()| terms.allow(&asked, true))
        .map_err(Failure::run)?;
    for (key, most) in [
        (SWAP_IN_LIMIT, terms.swap_in_limit),
        (SWAP_OUT_LIMIT, terms.swap_out_limit),
    ] {
        if let (Some(RateLimit::NONE), Some(most)) = (given.get(key), most) {
            return Err(Failure::run(too_much_in_s(
                &given.written(key),
                RateLimit::bytes_per_s(most),
            )));
        }
    }
    Ok(())
}

/// The share that a run requests.
pub fn asked_of(given: &Settings) -> Asked {
    let rate = |key: Key<RateLimit>| given.get(key).and_then(|r| r.bytes_per_s);
    Asked {
        weight: given.get(WEIGHT),
        swap_in_limit: rate(SWAP_IN_LIMIT),
        swap_out_limit: rate(SWAP_OUT_LIMIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use canvas_control::settings::{Command as Owner, Source};
    use clap::Parser;

    fn args(flags: &[&str]) -> RunArgs {
        let argv = [&["canvas", "run"], flags, &["--", "true"]].concat();
        match Cli::try_parse_from(argv).unwrap().command {
            Command::Run(args) => args,
            _ => unreachable!(),
        }
    }

    fn terms() -> Terms {
        let mut section = Settings::of(Owner::Run);
        for (name, value) in [
            ("local", "64M"),
            ("pool", "128M"),
            ("far", "1G"),
            ("copies", "disk"),
            ("weight", "50"),
            ("swap-in-limit", "10M/s"),
            ("swap-out-limit", "none"),
            ("prefetch", "leap"),
        ] {
            section.give(name, value, Source::File).unwrap();
        }
        terms_of(&section, &Settings::of(Owner::Operator))
    }

    fn why(flags: &[&str]) -> String {
        fill(&terms(), args(flags)).unwrap_err().sentence
    }

    #[test]
    fn what_a_run_does_not_say_is_the_operators() {
        let filled = fill(&terms(), args(&[])).unwrap();
        assert_eq!(filled.settings.get(LOCAL).unwrap().to_string(), "64M");
        assert_eq!(filled.settings.get(POOL).unwrap().to_string(), "128M");
        assert_eq!(filled.settings.get(FAR).unwrap().to_string(), "1G");
        // The agent has these terms, and applies them also when its file changes.
        assert_eq!(asked_of(&filled.settings), Asked::default());
        let share = terms().share(&Asked::default());
        assert_eq!((share.weight, share.swap_in_limit), (50, Some(10 << 20)));
        let less = [
            "--local",
            "32M",
            "--far",
            "64M",
            "-o",
            "weight=7,swap-in-limit=1M/s",
        ];
        let filled = fill(&terms(), args(&less)).unwrap();
        assert_eq!(filled.settings.get(LOCAL).unwrap().to_string(), "32M");
        let share = terms().share(&asked_of(&filled.settings));
        assert_eq!((share.weight, share.swap_in_limit), (7, Some(1 << 20)));
        let free = fill(&Terms::default(), args(&[])).unwrap();
        assert!(!free.settings.has(LOCAL) && !free.settings.has(FAR));
    }

    #[test]
    fn nobody_gets_more_than_the_operator_gives() {
        for (flags, want) in [
            (["--local", "65M"], "--local 65M is more than"),
            (["--local", "10%"], "--local 10% cannot be compared"),
            (["--pool", "1G"], "--pool 1G is more than"),
            (["--far", "1025M"], "--far 1025M is more than"),
            (["--copies", "1+disk"], "its copies are set"),
            (["-o", "weight=51"], "weight 51 is more than"),
            (
                ["-o", "swap-in-limit=11M/s"],
                "a swap-in limit of 11M/s is more than",
            ),
            (
                ["-o", "swap-in-limit=none"],
                "-o swap-in-limit=none is more than",
            ),
        ] {
            let why = why(&flags);
            assert!(why.starts_with(want) && why.contains("; "), "{why}");
        }
        assert!(fill(&terms(), args(&["-o", "swap-out-limit=none"])).is_ok());
        assert!(terms().allow_slabs(16).is_ok() && terms().allow_slabs(17).is_err());
    }
}
