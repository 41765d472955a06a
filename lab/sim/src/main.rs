//! `canvas-sim [--seed N] [--full | --hosts N] [SCENARIO...]`: runs experiments and prints their figures.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use canvas_sim::scenario::{
    Size, balance, contention, erasure, failures, pressure, slabs, utilization,
};
use canvas_sim::world::HOSTS_MAX;

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

fn main() -> ExitCode {
    let (mut seed, mut size, mut wanted) = (1, Size::Short, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--full" => size = Size::Full,
            "--hosts" => match args.next().and_then(|n| n.parse().ok()) {
                Some(n) if (8..=HOSTS_MAX).contains(&n) => size = Size::Hosts(n),
                _ => return bad("--hosts wants a number from 8 to 10000"),
            },
            "--seed" => match args.next().and_then(|n| n.parse().ok()) {
                Some(n) => seed = n,
                None => return bad("--seed wants a number"),
            },
            name => match ALL.iter().find(|(n, _)| *n == name) {
                Some(one) => wanted.push(*one),
                None => return bad(&format!("there is no `{name}`")),
            },
        }
    }
    if wanted.is_empty() {
        wanted = ALL.to_vec();
    }
    for (_, report) in wanted {
        println!("{}", report(seed, size));
    }
    ExitCode::SUCCESS
}

fn bad(what: &str) -> ExitCode {
    eprintln!(
        "canvas-sim: {what}; write canvas-sim [--seed N] [--full | --hosts N] [utilization|balance|pressure|failures|erasure|slabs|contention]..."
    );
    ExitCode::from(2)
}
