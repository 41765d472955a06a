//! What the operator of a host's agent settles, as flags of `canvas run`: read from the agent's file,
//! and filled into what a run says.

use canvas_types::units::{Amount, RateLimit, Size};
use clap::ValueEnum;

use super::hello::Asked;
use super::terms::{Terms, check_local, check_size, too_much_in_s};
use crate::args::{CopiesArg, RunArgs};
use crate::error::Failure;
use crate::options::copies_of;

impl Terms {
    /// From the keys and values of a section, which have been judged as flags of `canvas run`; keys that
    /// bound nothing are the runs' own matter.
    pub fn of<'a>(section: impl Iterator<Item = (&'a str, &'a str)>) -> Terms {
        let mut terms = Terms::default();
        let size = |text: &str| text.parse::<Size>().ok().map(|s| s.bytes);
        let rate = |text: &str| text.parse::<RateLimit>().ok().and_then(|r| r.bytes_per_s);
        for (key, value) in section {
            match key {
                "local" => terms.local = Some(value.to_owned()),
                "pool" => terms.pool_bytes = size(value),
                "far" => terms.far_bytes = size(value),
                "copies" => {
                    let copies = CopiesArg::from_str(value, false).ok();
                    terms.copies = copies.map(|c| copies_of(c).into());
                }
                "weight" => terms.weight = value.parse().ok(),
                "swap_in_limit" => terms.swap_in_limit = rate(value),
                "swap_out_limit" => terms.swap_out_limit = rate(value),
                "pool_floor" => terms.pool_floor_bytes = size(value),
                _ => {}
            }
        }
        terms
    }

    /// The flags of a run, with what it does not say; an error when it asks for too much.
    pub fn fill(&self, mut args: RunArgs) -> Result<RunArgs, Failure> {
        if let Some(local) = self.local()? {
            let asked = *args.local.get_or_insert(local);
            check_local(asked, local).map_err(|why| Failure::run(format!("--local {why}")))?;
        }
        for (flag, value, most) in [
            ("--pool", &mut args.pool, self.pool_bytes),
            ("--far", &mut args.far, self.far_bytes),
        ] {
            let Some(most) = most.map(Size::from_bytes) else {
                continue;
            };
            let asked = *value.get_or_insert(most);
            check_size(asked, most).map_err(|why| Failure::run(format!("{flag} {why}")))?;
        }
        let asked = Asked::of(&args);
        self.allow_copies(args.copies.map(|c| copies_of(c).into()))
            .and_then(|()| self.allow(&asked, true))
            .map_err(Failure::run)?;
        let share = &args.share;
        for (flag, limit, most) in [
            ("--swap-in-limit", share.swap_in_limit, self.swap_in_limit),
            (
                "--swap-out-limit",
                share.swap_out_limit,
                self.swap_out_limit,
            ),
        ] {
            if let (Some(RateLimit::NONE), Some(most)) = (limit, most) {
                return Err(Failure::run(too_much_in_s(
                    &format!("{flag} none"),
                    RateLimit::bytes_per_s(most),
                )));
            }
        }
        Ok(args)
    }

    /// The bound on local memory.
    pub fn local(&self) -> Result<Option<Amount>, Failure> {
        let read = |text: &String| {
            text.parse().map_err(|e| {
                Failure::run(format!(
                    "the agent's bound on local memory, {text}, makes no sense: {e}"
                ))
            })
        };
        self.local.as_ref().map(read).transpose()
    }
}

impl Asked {
    /// What a run's flags ask for.
    pub fn of(args: &RunArgs) -> Asked {
        let share = &args.share;
        Asked {
            weight: share.weight,
            swap_in_limit: share.swap_in_limit.and_then(|r| r.bytes_per_s),
            swap_out_limit: share.swap_out_limit.and_then(|r| r.bytes_per_s),
        }
    }
}
