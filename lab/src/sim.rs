//! `lab sim`: runs experiments of the simulator and prints their figures.

use canvas_sim::scenario::{
    Size, balance, contention, erasure, failures, pressure, slabs, utilization,
};
use canvas_types::exit;
use clap::builder::PossibleValuesParser;

use crate::args::SimArgs;

type Report = fn(u64, Size) -> String;

const ALL: [(&str, Report); 7] = [
    ("utilization", utilization::report),
    ("balance", balance::report),
    ("pressure", pressure::report),
    ("failures", failures::report),
    ("erasure", erasure::report),
    ("slabs", slabs::report),
    ("contention", contention::report),
];

/// Parser for the names of experiments.
pub fn names() -> PossibleValuesParser {
    ALL.map(|(name, _)| name).into()
}

/// Runs the named experiments, or all; returns the exit code.
pub fn run(args: &SimArgs) -> i32 {
    let size = match (args.full, args.hosts) {
        (true, _) => Size::Full,
        (_, Some(hosts)) => Size::Hosts(hosts as usize),
        _ => Size::Short,
    };
    let is_wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| n == name);
    for (_, report) in ALL.iter().filter(|(name, _)| is_wanted(name)) {
        println!("{}", report(args.seed, size));
    }
    exit::OK
}
