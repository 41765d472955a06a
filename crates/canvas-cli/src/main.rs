//! The `canvas` command.
#![forbid(unsafe_code)]

mod advise;
mod agent;
mod args;
mod config;
mod control;
mod disk;
mod dispatch;
mod doctor;
mod end;
mod error;
mod inspect;
mod joined_flags;
mod keygen;
mod log;
mod manual;
mod options;
mod run;
mod serve;
mod set;
mod signals;
mod stat;
mod status;
mod swap_in;
mod table;
mod tenant_flags;
mod top;
mod tune;
mod worker;

use args::Command;
use canvas_control::text::reason;
use error::Failure;

fn main() {
    let argv: Vec<_> = std::env::args_os().collect();
    if let [_, help, topic] = &argv[..]
        && help == "help"
        && topic == "tunables"
    {
        table::print(&canvas_control::settings::text::help());
        return;
    }
    let result = match config::parse(&argv) {
        Err(config::Wrong::Arguments(e)) => Ok(error::parser_answer(&e, &argv)),
        Err(config::Wrong::File(failure)) => Err(failure),
        Ok(cli) => {
            log::start(&cli.command);
            run_command(&cli.command)
        }
    };
    let code = result.unwrap_or_else(|failure| {
        log::fatal(&failure.sentence);
        failure.code
    });
    std::process::exit(code);
}

fn run_command(command: &Command) -> Result<i32, Failure> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => Ok(doctor::run(args)),
        Command::AgentWorker(args) => worker::serve(args),
        Command::Serve(args) => serve::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Disk(args) => disk::run(args),
        Command::DiskServer(args) => disk::serve_held(args),
        Command::Config(args) => config::run(args),
        Command::Status(args) => status::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Top(args) => top::run(args),
        Command::Set(args) => set::run(args),
        Command::Advise(args) => advise::run(args),
        Command::Dispatch(args) => dispatch::run(args),
        Command::Tune(args) => tune::run(args),
        Command::SwapIn(args) => swap_in::run(args),
        Command::Read(args) => inspect::read(args),
        Command::Dump(args) => inspect::dump(args),
        Command::End(args) => end::run(args),
        Command::Keygen(args) => keygen::run(args),
        Command::Man(args) => manual::man(args.dir.as_deref()),
        Command::Completions(args) => Ok(manual::completions(args.shell)),
    }
}
