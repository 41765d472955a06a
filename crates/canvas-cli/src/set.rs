//! `canvas set`.

use canvas_types::exit;

use crate::args::SetArgs;
use crate::control::client::{NoAnswer, Runs, nobody};
use crate::error::Failure;
use canvas_control::wire::{Ask, Reply};
use canvas_runner::KEYS;

/// Changes one run.
pub fn run(args: &SetArgs) -> Result<i32, Failure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!(
            "{text} is no change; write KEY=VALUE, where KEY is one of {KEYS}"
        ))),
    };
    let pairs = args.changes.iter().map(pair).collect::<Result<_, _>>()?;
    let runs = Runs::look();
    let wanted = Some(args.tenant.as_str());
    // Files of runs that have ended tell nothing.
    let mut found = runs.find(wanted);
    if found.len() > 1 {
        let mut tenants: Vec<String> = Vec::new();
        found.retain(|f| match runs.ask(f, Ask::Status) {
            Err(NoAnswer::Gone) => false,
            // Of the runs of one tenant any will do.
            Ok(Reply::Status(s)) => s.shared.is_none_or(|id| {
                let is_first = !tenants.contains(&id);
                tenants.push(id);
                is_first
            }),
            _ => true,
        });
    }
    let found = match &found[..] {
        [] => return Err(nobody(wanted)),
        [one] => one,
        several => {
            let pids: Vec<_> = several.iter().map(|f| f.name.pid.to_string()).collect();
            return Err(Failure::usage(format!(
                "there are {} runs called {}; write the number of one: {}",
                several.len(),
                args.tenant,
                pids.join(", ")
            )));
        }
    };
    match runs.ask(found, Ask::Set(pairs)) {
        Ok(Reply::Done) => Ok(exit::OK),
        Ok(Reply::Refused(why)) => Err(Failure::usage(why)),
        Ok(_) => Err(Failure::usage("the run's answer makes no sense")),
        Err(NoAnswer::Gone) => Err(nobody(wanted)),
        Err(e) => Err(Failure::usage(
            e.problem().map(|p| p.text).unwrap_or_default(),
        )),
    }
}
