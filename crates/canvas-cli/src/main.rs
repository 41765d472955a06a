//! The `canvas` command.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod config;
mod control;
mod doctor;
mod elf;
mod error;
mod facts;
mod far;
mod finder;
#[cfg(test)]
mod fuzz_short;
mod host;
mod keygen;
mod launch;
mod manual;
mod metrics;
mod options;
mod preload;
mod program;
mod replay;
mod report;
mod run;
mod serve;
mod set;
mod signals;
mod stat;
mod stats;
mod status;
mod supervise;
mod sweep;
mod table;
mod top;
mod tree;
mod worker;
mod workload;

use args::Command;

/// What the system says, without Rust's "(os error 2)".
fn reason(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => e.to_string(),
    }
}

fn main() {
    let argv: Vec<_> = std::env::args_os().collect();
    let result = match config::parse(&argv) {
        Err(config::Wrong::Arguments(e)) => Ok(error::parser_answer(&e, &argv)),
        Err(config::Wrong::File(failure)) => Err(failure),
        Ok(cli) => match &cli.command {
            Command::Run(args) => run::run(args),
            Command::Doctor(args) => Ok(doctor::run(args.json)),
            Command::Replay(args) => replay::run(args),
            Command::AgentWorker(args) => worker::serve(args),
            Command::Bench(args) => bench::run(args),
            Command::BenchGuardian { journal } => Ok(bench::guard(journal)),
            Command::Serve(args) => serve::run(args),
            Command::Agent(args) => host::run(args),
            Command::Config(args) => config::run(args),
            Command::Status(args) => status::run(args),
            Command::Stat(args) => stat::run(args),
            Command::Top(args) => top::run(args),
            Command::Set(args) => set::run(args),
            Command::Keygen(args) => keygen::run(args),
            Command::Man(args) => manual::man(args.dir.as_deref()),
            Command::Completions(args) => Ok(manual::completions(args.shell)),
            Command::Workload(args) => workload::run(args),
            Command::Report(args) => report::run(args),
        },
    };
    let code = result.unwrap_or_else(|failure| {
        error::say(&failure.sentence);
        failure.code
    });
    std::process::exit(code);
}
