//! `lab`: measures canvas against the kernel's swap, and simulates clusters larger than one host.
#![forbid(unsafe_code)]

mod args;
mod error;
mod replay;
mod report;
mod run;
mod sim;
mod workload;

use args::{Cli, Command};
use clap::Parser;

fn main() {
    let result = match &Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Codec(args) => run::codec(args),
        Command::Compare { old, new } => run::compare(old, new),
        Command::Report(args) => report::run(args),
        Command::Workload(args) => workload::run(args),
        Command::Steady { mib, seed } => workload::steady(*mib, *seed),
        Command::Replay(args) => replay::run(args),
        Command::Sim(args) => Ok(sim::run(args)),
        Command::Guardian { journal } => Ok(run::guard(journal)),
        Command::Disk { place, bytes } => Ok(run::disk(place, *bytes)),
    };
    std::process::exit(result.unwrap_or_else(|failure| {
        error::say(&failure.sentence);
        failure.code
    }));
}
