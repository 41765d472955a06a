//! What the operator of a host's agent settles, as flags of `canvas run` and `canvas disk`: read from the
//! agent's file, and filled into what these say.

use canvas_agent::replicas::Policy;
use canvas_types::units::{RateLimit, Size};

use canvas_control::hello::{Asked, Wanted};
use canvas_control::terms::{Terms, check_local, check_size, too_much_in_s};

use crate::args::{BeyondArgs, RunArgs};
use crate::error::Failure;
use crate::options::copies_of;

/// Those of the keys that are settled for a disk, too.
pub const KEYS_OF_DISKS: &[&str] = &[
    "pool",
    "pool_floor",
    "far",
    "copies",
    "weight",
    "swap_in_limit",
    "swap_out_limit",
];

/// From the keys and values of a section, which have been judged as flags of `canvas run`; keys that
/// bound nothing are the runs' own matter.
pub fn terms_of<'a>(section: impl Iterator<Item = (&'a str, &'a str)>) -> Terms {
    let mut terms = Terms::default();
    let size = |text: &str| text.parse::<Size>().ok().map(|s| s.bytes);
    let rate = |text: &str| text.parse::<RateLimit>().ok().and_then(|r| r.bytes_per_s);
    for (key, value) in section {
        match key {
            "local" => terms.local = Some(value.to_owned()),
            "pool" => terms.pool_bytes = size(value),
            "far" => terms.far_bytes = size(value),
            "copies" => terms.copies = Policy::named(value).map(Wanted::from),
            "weight" => terms.weight = value.parse().ok(),
            "swap_in_limit" => terms.swap_in_limit = rate(value),
            "swap_out_limit" => terms.swap_out_limit = rate(value),
            "pool_floor" => terms.pool_floor_bytes = size(value),
            "shared_floor" => terms.shared_floor_bytes = size(value),
            _ => {}
        }
    }
    terms
}

/// The flags of a run, with what it does not say; an error when it asks for too much.
pub fn fill(terms: &Terms, mut args: RunArgs) -> Result<RunArgs, Failure> {
    if let Some(local) = terms.local().map_err(Failure::run)? {
        let asked = *args.local.get_or_insert(local);
        check_local(asked, local).map_err(|why| Failure::run(format!("--local {why}")))?;
    }
    fill_beyond(terms, &mut args.pool, &mut args.beyond)?;
    Ok(args)
}

/// The same of pool and far memory alone, for a disk.
pub fn fill_beyond(
    terms: &Terms,
    pool: &mut Option<Size>,
    beyond: &mut BeyondArgs,
) -> Result<(), Failure> {
    for (flag, value, most) in [
        ("--pool", pool, terms.pool_bytes),
        ("--far", &mut beyond.far, terms.far_bytes),
    ] {
        let Some(most) = most.map(Size::from_bytes) else {
            continue;
        };
        let asked = *value.get_or_insert(most);
        check_size(asked, most).map_err(|why| Failure::run(format!("{flag} {why}")))?;
    }
    let asked = asked_of(beyond);
    terms
        .allow_copies(beyond.copies.map(|c| copies_of(c).into()))
        .and_then(|()| terms.allow(&asked, true))
        .map_err(Failure::run)?;
    let share = &beyond.share;
    for (flag, limit, most) in [
        ("--swap-in-limit", share.swap_in_limit, terms.swap_in_limit),
        (
            "--swap-out-limit",
            share.swap_out_limit,
            terms.swap_out_limit,
        ),
    ] {
        if let (Some(RateLimit::NONE), Some(most)) = (limit, most) {
            return Err(Failure::run(too_much_in_s(
                &format!("{flag} none"),
                RateLimit::bytes_per_s(most),
            )));
        }
    }
    Ok(())
}

/// What a run's flags ask for.
pub fn asked_of(args: &BeyondArgs) -> Asked {
    let share = &args.share;
    Asked {
        weight: share.weight,
        swap_in_limit: share.swap_in_limit.and_then(|r| r.bytes_per_s),
        swap_out_limit: share.swap_out_limit.and_then(|r| r.bytes_per_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(flags: &[&str]) -> RunArgs {
        let argv = [&["canvas", "run"], flags, &["--", "true"]].concat();
        match Cli::try_parse_from(argv).unwrap().command {
            Command::Run(args) => args,
            _ => unreachable!(),
        }
    }

    fn terms() -> Terms {
        terms_of(
            [
                ("local", "64M"),
                ("pool", "128M"),
                ("far", "1G"),
                ("copies", "disk"),
                ("weight", "50"),
                ("swap_in_limit", "10M/s"),
                ("swap_out_limit", "none"),
                ("prefetch", "leap"),
            ]
            .into_iter(),
        )
    }

    fn why(flags: &[&str]) -> String {
        fill(&terms(), args(flags)).unwrap_err().sentence
    }

    #[test]
    fn what_a_run_does_not_say_is_the_operators() {
        let filled = fill(&terms(), args(&[])).unwrap();
        assert_eq!(filled.local.unwrap().to_string(), "64M");
        assert_eq!(filled.pool.unwrap().to_string(), "128M");
        assert_eq!(filled.beyond.far.unwrap().to_string(), "1G");
        // The agent has these, and keeps them when its file changes.
        assert_eq!(asked_of(&filled.beyond), Asked::default());
        let share = terms().share(&Asked::default());
        assert_eq!((share.weight, share.swap_in_limit), (50, Some(10 << 20)));
        let less = [
            "--local",
            "32M",
            "--far",
            "64M",
            "--weight",
            "7",
            "--swap-in-limit",
            "1M/s",
        ];
        let filled = fill(&terms(), args(&less)).unwrap();
        assert_eq!(filled.local.unwrap().to_string(), "32M");
        let share = terms().share(&asked_of(&filled.beyond));
        assert_eq!((share.weight, share.swap_in_limit), (7, Some(1 << 20)));
        let free = fill(&Terms::default(), args(&[])).unwrap();
        assert!(free.local.is_none() && free.beyond.far.is_none());
    }

    #[test]
    fn nobody_gets_more_than_the_operator_gives() {
        for (flags, want) in [
            (["--local", "65M"], "--local 65M is more than"),
            (["--local", "10%"], "--local 10% cannot be compared"),
            (["--pool", "1G"], "--pool 1G is more than"),
            (["--far", "1025M"], "--far 1025M is more than"),
            (["--copies", "1+disk"], "its copies are settled"),
            (["--weight", "51"], "weight 51 is more than"),
            (
                ["--swap-in-limit", "11M/s"],
                "a swap-in limit of 11M/s is more than",
            ),
            (
                ["--swap-in-limit", "none"],
                "--swap-in-limit none is more than",
            ),
        ] {
            let why = why(&flags);
            assert!(why.starts_with(want) && why.contains("; "), "{why}");
        }
        assert!(fill(&terms(), args(&["--swap-out-limit", "none"])).is_ok());
        assert!(terms().allow_slabs(16).is_ok() && terms().allow_slabs(17).is_err());
    }
}
