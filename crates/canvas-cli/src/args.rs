//! Every flag of the `canvas` command, defined once: the parser, the help, the man pages and the
//! completions all come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use canvas_control::settings::{Switch, Value};
use canvas_link::Address;
use canvas_types::units::{Amount, Span};
use clap::{Args, Parser, Subcommand};

mod advise;
mod disk;
mod dispatch;
mod end;
mod inspect;
mod settings;
mod swap_in;
mod times;
mod tools;
mod tune;

pub use advise::AdviseArgs;
pub use disk::{DiskArgs, HeldArgs};
pub use dispatch::DispatchArgs;
pub use end::EndArgs;
pub use inspect::{DumpArgs, ReadArgs};
pub use settings::{AgentSettings, DiskSettings, RunSettings, ServeSettings, words};
pub use swap_in::SwapInArgs;
pub use tools::{DoctorArgs, KeygenArgs, ManArgs};
pub use tune::TuneArgs;

/// Far memory for unmodified Linux programs.
///
/// canvas lets a program use more memory than it is given: pages in use stay in local memory, the
/// rest is compressed or moved elsewhere, and faulted in on access. It needs no change to the
/// program, no daemon, and in the default mode no root.
#[derive(Parser)]
#[command(name = "canvas", version, max_term_width = 100, after_long_help = NOTES)]
#[command(
    disable_help_subcommand = false,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `canvas` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program with its memory managed.
    ///
    /// CMD and all its children share one budget of local memory. CMD's input, output, exit code
    /// and signals are its own: canvas writes nothing to standard output, and one line to standard
    /// error only when something is wrong.
    #[command(after_long_help = RUN_NOTES)]
    Run(RunArgs),
    /// Report what this kernel and user allow, and which mode `canvas run` will choose.
    ///
    /// Prints one line for each thing that canvas depends on, the mode and why, and one line of
    /// advice for each limit that stands in the way. Exit code 0 when `canvas run` works in some
    /// mode, 1 when it does not.
    Doctor(DoctorArgs),
    /// Keeps the far memory of one `canvas run`, which starts it.
    #[command(hide = true)]
    AgentWorker(WorkerArgs),
    /// Lend memory of this host to programs on other hosts.
    ///
    /// Takes memory only where clients write, returns it when they free it or disappear, and takes
    /// it back before its host runs short. Logs events that an operator cares about to standard
    /// error, one line each.
    #[command(after_long_help = SERVE_NOTES)]
    Serve(ServeArgs),
    /// Keep the far memory of all tenants of this host.
    ///
    /// One process for every `canvas run --to agent` on this host: it holds the donors, the cluster key
    /// and the far directory, which users need not know. When it is killed, programs wait for the next
    /// one; with --replace a new one takes over without a gap.
    #[command(after_long_help = AGENT_NOTES)]
    Agent(AgentArgs),
    /// Serve a disk of pages compressed in this host's memory, for a guest to swap onto.
    ///
    /// A virtual machine monitor attaches the disk, and the guest, of any kernel, uses it as swap; it
    /// needs nothing of canvas's inside.
    #[command(after_long_help = disk::DISK_NOTES)]
    Disk(DiskArgs),
    /// Serves the disk of a `canvas disk`, which starts it.
    #[command(hide = true)]
    DiskServer(HeldArgs),
    /// Check a configuration file.
    ///
    /// The file's keys are the settings of `canvas agent`, `serve`, `run` and `disk`, in TOML
    /// (docs/CONFIG.md).
    Config(ConfigArgs),
    /// Show the state of this user's runs and disks, or of one; for root: of all users.
    ///
    /// Exit code 0 when nothing is wrong, 1 when something is (its code says what: docs/OPERATING.md),
    /// 2 when the question cannot be answered.
    Status(StatusArgs),
    /// Print rates of runs and disks, a line for each per interval, as vmstat does.
    #[command(after_long_help = STAT_NOTES)]
    Stat(StatArgs),
    /// Show runs, disks and donors on the terminal, live; q ends it.
    Top(TopArgs),
    /// Change limits of a run or disk while it runs: all that are given, or none.
    #[command(after_long_help = SET_NOTES)]
    Set(SetArgs),
    /// Find how much local memory a program needs for a given speed.
    ///
    /// Prints the speed at several sizes of local memory, measured or predicted, and the smallest size
    /// for each wanted speed.
    #[command(after_long_help = advise::ADVISE_NOTES)]
    Advise(AdviseArgs),
    /// Run a program with settings and in a tenant chosen from its earlier runs.
    #[command(after_long_help = dispatch::DISPATCH_NOTES)]
    Dispatch(DispatchArgs),
    /// Change settings of runs where that makes them faster, and report what and why.
    ///
    /// Prints a line for each run per interval: the cost of reads beyond the pool, and what was changed
    /// or why nothing was.
    #[command(after_long_help = tune::TUNE_NOTES)]
    Tune(TuneArgs),
    /// Bring back what the kernel has swapped out, ahead of need: in a guest on a canvas disk, or anywhere.
    ///
    /// Reads swapped pages of processes into memory, in batches, until free memory is down to --free, or
    /// no page is left. Prints a summary in one line.
    #[command(after_long_help = swap_in::SWAP_IN_NOTES)]
    SwapIn(SwapInArgs),
    /// Print memory of a managed process, far pages included.
    ///
    /// The process may run, be stopped or be held by a debugger. Exit code 1 when a page's far copy is
    /// damaged or cannot be reached, 2 when there is no such process or memory, it is not managed, or
    /// this user lacks the rights of a debugger.
    #[command(after_long_help = inspect::READ_NOTES)]
    Read(ReadArgs),
    /// Write a core dump of a managed process, far pages included; the process goes on.
    ///
    /// The process is stopped while the dump is written. Exit code 0 when the dump is whole; 1 when it lacks
    /// pages whose far copies are damaged or cannot be reached; 2 when there is no dump.
    #[command(after_long_help = inspect::DUMP_NOTES)]
    Dump(DumpArgs),
    /// End a tenant of the host's agent that has no run any more, and free what it holds.
    #[command(after_long_help = end::END_NOTES)]
    End(EndArgs),
    /// Make a cluster key.
    ///
    /// All hosts of a far pool share one: whoever has it may store, read and free in the pool. Copy the
    /// file to each host securely, readable by its owner only.
    Keygen(KeygenArgs),
    /// Print the manual page.
    ///
    /// Prints canvas(1) in roff, or writes the pages of all commands into a directory.
    Man(ManArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

/// Flags of `canvas run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub settings: RunSettings,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", num_args = 1..)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Flags of the agent that `canvas run` starts. The descriptors are at fixed numbers.
#[derive(Args)]
pub struct WorkerArgs {
    /// Slabs that the tenant may fill.
    #[arg(long)]
    pub slabs: usize,
    /// Donors.
    #[arg(long = "donor")]
    pub donors: Vec<Address>,
    /// Files for copies on disk.
    #[arg(long, default_value_t = 0)]
    pub disks: usize,
    /// `--to disk:DIR` named the directories of these files: the disk keeps what too few donors take.
    #[arg(long)]
    pub disks_keep: bool,
    /// What stays free on the disk.
    #[arg(long)]
    pub far_reserve: Option<Amount>,
    /// How long to poll for requests after the last one.
    #[arg(long, default_value = "50us")]
    pub spin: Span,
    /// Whether prefetches that would come too late are dropped.
    #[arg(long, value_parser = Switch::read, default_value = "on")]
    pub timeliness: Switch,
    /// Connections to each donor.
    #[arg(long, default_value_t = 1)]
    pub links: usize,
    /// Known members of the gossip.
    #[arg(long)]
    pub gossip: Vec<String>,
    /// It serves a daemon (`canvas disk`), and logs as a daemon does.
    #[arg(long)]
    pub of_daemon: bool,
}

/// Flags of `canvas serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: ServeSettings,
    /// Take settings that are not written here from section [serve] of FILE.
    #[arg(long, env = "CANVAS_CONFIG", hide_env_values = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

/// Flags of `canvas agent`.
#[derive(Args, Debug)]
pub struct AgentArgs {
    #[command(flatten)]
    pub settings: AgentSettings,
    /// Take settings that are not written here from section [agent] of FILE.
    #[arg(long, env = "CANVAS_CONFIG", hide_env_values = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Take over from the agent that listens there, with its tenants, and have it end.
    #[arg(long)]
    pub replace: bool,
}

/// Flags of `canvas config`.
#[derive(Args, Debug)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct ConfigArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// What `canvas config` does.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Print `ok`, or one line for each error with its line number; exit code 2.
    Check {
        /// The file [default: CANVAS_CONFIG, else /etc/canvas/canvas.toml].
        #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
}

/// Flags of `canvas status`.
#[derive(Args)]
pub struct StatusArgs {
    /// A run or disk, by its name or the number of its process [default: all].
    pub tenant: Option<String>,
    /// Print JSON, one object each (its fields: docs/OPERATING.md).
    #[arg(long)]
    pub json: bool,
}

/// Flags of `canvas stat`.
#[derive(Args)]
pub struct StatArgs {
    /// A run, by its name or the number of its process [default: all].
    pub tenant: Option<String>,
    /// Time between two lines, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = times::interval)]
    pub interval: Duration,
    /// End after N lines of each run.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print page features instead: the kinds of pages, and the cost of paging.
    #[arg(long)]
    pub features: bool,
    /// Print instead pages that come back ahead of need, by who asks for them.
    #[arg(long, conflicts_with = "features")]
    pub prefetch: bool,
    /// Print JSON, one object a line (its fields: docs/OPERATING.md).
    #[arg(long, conflicts_with_all = ["features", "prefetch"])]
    pub json: bool,
}

/// Flags of `canvas top`.
#[derive(Args)]
pub struct TopArgs {
    /// Time between two updates, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = times::interval)]
    pub interval: Duration,
}

/// Flags of `canvas set`.
#[derive(Args)]
pub struct SetArgs {
    /// The run or disk, by its name or the number of its process.
    pub tenant: String,
    /// Settings and their new values.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
}

/// Flags of `canvas completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

const NOTES: &str = "\
Exit codes (each command's help has its own):
  0      success; of `run` and `dispatch`: CMD's own code
  1      the check failed, or only part was done
  2      bad arguments, configuration or input; a daemon could not start
  125    `run` or `dispatch` itself failed, also by bad arguments
  126    CMD was found but could not be executed
  127    CMD was not found
  128+n  signal n ended CMD, or stopped a command that watches

Errors are one sentence on standard error that begins with `canvas: `.

Sizes are bytes, or a number with K, M, G, T (or KiB, MiB, ...), all powers of 1024: 4G, 1.5GiB.
KB and MB are ambiguous and refused. Shares are percentages (25%), durations have a unit (10ms,
1.5s), rates are sizes per second (200M/s). A run or disk is named by its tenant's name, the number
of its process, or NAME.NUMBER.";

const AGENT_NOTES: &str = "\
Flags win over the file of --config.

Only the agent's own user may connect; --group opens the socket to a group. Users of programs cannot
choose destinations and key, which are the agent's.

SIGTERM, SIGINT and SIGHUP end the agent; its tenants wait for the next one (-o far-wait of each).

Exit codes: 0 ended by a signal, or replaced; 1 --replace failed and the other agent goes on; 2 it
could not start.

Example:
  canvas agent --to disk:/srv/canvas,10.0.0.5:7070 --key-file /etc/canvas/key
  canvas agent --config /etc/canvas/canvas.toml --replace";

const STAT_NOTES: &str = "\
Columns: faults per second on new pages (new), in the swap cache (cache), on far copies (far),
and of those beyond the pool (deep); pages per second swapped in and out, and prefetch hits;
median and 99th percentile of fault times; local memory, pool and far memory in use; MiB per
second read from and written to far memory beyond the pool.

With --features: the part of 2 MiB blocks never touched (frag), of evicted pages those that had
been written to (store), of pages that came back those of a stream (seq), of faults on evicted
pages those that twice the local memory would have avoided (hot), the compression ratio (comp),
the part of files in all memory (file), the slowdown by paging (slow), and the part of the time
with a thread in a fault (stall).

Exit codes: 0 after COUNT lines, or when the last run has ended; 2 there is no such run.

Example:
  canvas stat redis -i 1 -n 10";

const SET_NOTES: &str = "\
Keys: local, pool, shared, numa, far, copies and slo, which mean what the flags of `canvas run`
mean; and the tunables that `canvas help tunables` marks with `canvas set`.

Lowering local, shared, pool or a node evicts the excess. When copies change, far memory moves while
the program goes on; `canvas status` shows C002 until it has. What the run was started without
(--local, --shared, --far, a node, a donor for more copies) cannot be set later.

Exit codes: 0 done; 1 no answer in time, the change may still be made; 2 nothing was changed.

Example:
  canvas set redis local=4G spill-at=70";

const SERVE_NOTES: &str = "\
Without --key-file it listens on loopback addresses only. All traffic between hosts is encrypted and
authenticated by the cluster key.

SIGTERM, SIGINT and SIGHUP end it: it lends nothing more, asks its clients to move their pages, and
ends when they have, or after 5s (-o drain). A second signal ends it at once.

Exit codes: 0 ended by a signal; 2 it could not start.

Example:
  canvas keygen /etc/canvas/key
  canvas serve --listen 10.0.0.5:7070 --memory 32G --key-file /etc/canvas/key";

const RUN_NOTES: &str = "\
Flags win over CANVAS_LOCAL, CANVAS_FAR and CANVAS_TENANT, those over CANVAS_OPTIONS, and that over
the configuration file. `canvas help tunables` lists settings that canvas usually decides by itself.

A program that cannot be managed (statically linked, set-user-ID, for another C library or
processor) runs unmanaged after one line of warning; --require makes that an error. Signals reach
CMD as if canvas were not there.

Exit codes: CMD's own; 128+n when signal n ended it; 125 when canvas itself failed; 126 when CMD
could not be executed; 127 when it was not found.

Examples:
  canvas run --local 25% --stats report.json -- redis-server --port 7777
  canvas run --local 2G --far 16G --to disk:/mnt/nvme -- ./simulation
  canvas run --local 2G --to 10.0.0.5:7070 --key-file /etc/canvas/key -- ./simulation";
