//! Every flag of the `canvas` command, defined once: the parser, the help, the man pages and the
//! completions all come from here.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use canvas_agent::daemon::prepared::WARM_MAX;
use canvas_link::Address;
use canvas_types::units::{Amount, Size, Span};
use clap::builder::ValueParser;
use clap::{Args, Parser, Subcommand};

mod advise;
mod beyond;
mod disk;
mod dispatch;
mod end;
mod inspect;
mod native;
mod numa;
mod proactive;
mod reserve;
mod run_values;
mod share;
mod swap_in;
mod times;
mod tools;
mod tune;

pub use advise::AdviseArgs;
pub use beyond::BeyondArgs;
pub use disk::{DiskArgs, HeldArgs};
pub use dispatch::DispatchArgs;
pub use end::EndArgs;
pub use inspect::{DumpArgs, ReadArgs};
pub use native::NativeSwapArgs;
pub use numa::NumaArgs;
pub use proactive::ProactiveArgs;
pub use reserve::FarReserveArgs;
use run_values::threads;
pub use run_values::{
    AppTierArg, AppTierArgs, CodecArg, CopiesArg, LanesArgs, LearnArgs, ModeArg, PrefetchArg,
    SwitchArg, ThreadsArg, TimelinessArg,
};
pub use share::ShareArgs;
pub use swap_in::SwapInArgs;
pub use tools::{DoctorArgs, KeygenArgs, ManArgs};
pub use tune::TuneArgs;

/// Far memory for unmodified Linux programs.
///
/// canvas lets a program use more memory than it is given: what it touches stays in local memory,
/// the rest is kept compressed elsewhere and comes back when it is touched again. No change to the
/// program, no daemon, and in the default mode no root.
#[derive(Parser)]
#[command(name = "canvas", version, max_term_width = 100, after_long_help = EXIT_CODES)]
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
    /// Say what this kernel and user allow, and which mode `canvas run` will choose.
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
    /// Takes memory only where clients write, gives it back when they free it or vanish, and takes
    /// back what it lent before its host runs short. One line on standard error for each thing that
    /// an operator cares about.
    #[command(after_long_help = SERVE_NOTES)]
    Serve(ServeArgs),
    /// Keep the far memory of all tenants of this host.
    ///
    /// One process for every `canvas run --agent` on this host: it has the servers, the cluster key and
    /// the far directory, which the programs' users need not know. When it is killed programs wait for
    /// the next one; with --replace a new one takes over without a gap.
    #[command(after_long_help = AGENT_NOTES)]
    Agent(AgentArgs),
    /// Serve a disk whose pages lie compressed in memory of this host, for a guest to swap onto.
    ///
    /// A guest of any kernel has far memory that way, with nothing of canvas's in it: a virtual machine
    /// monitor attaches the disk, and the guest uses it as swap.
    #[command(after_long_help = disk::DISK_NOTES)]
    Disk(DiskArgs),
    /// Serves the disk of a `canvas disk`, which starts it.
    #[command(hide = true)]
    DiskServer(HeldArgs),
    /// Look at a configuration file.
    ///
    /// The file's keys are the flags of `canvas agent`, `canvas serve` and `canvas run`, in TOML
    /// (docs/CONFIG.md).
    Config(ConfigArgs),
    /// Say how the runs and disks of this user are, or one of them; for root: of all users.
    ///
    /// Exit code 0 when nothing is wrong, 1 when something is (its code says what: docs/OPERATING.md),
    /// 2 when the question cannot be answered.
    Status(StatusArgs),
    /// Print what happens in runs and disks, a line for each in every interval, as vmstat does.
    #[command(after_long_help = STAT_NOTES)]
    Stat(StatArgs),
    /// Show runs, disks and donors on the terminal, live; q ends it.
    Top(TopArgs),
    /// Change the bounds of a run, or a disk, while it runs: all of what is written, or nothing.
    #[command(after_long_help = SET_NOTES)]
    Set(SetArgs),
    /// Say how much local memory a program needs for a wanted speed.
    ///
    /// Prints the speed at several sizes of local memory, measured or foretold, and the smallest size for
    /// each wanted speed.
    #[command(after_long_help = advise::ADVISE_NOTES)]
    Advise(AdviseArgs),
    /// Run a program where it suits: settings and tenant follow from its earlier runs.
    #[command(after_long_help = dispatch::DISPATCH_NOTES)]
    Dispatch(DispatchArgs),
    /// Change runs while they run, where that makes them faster, and say what and why.
    ///
    /// Prints a line for each run in every interval: what reads beyond the pool cost, and what was changed
    /// or why nothing was.
    #[command(after_long_help = tune::TUNE_NOTES)]
    Tune(TuneArgs),
    /// Bring back what the kernel has swapped out, ahead of need: in a guest on a canvas disk, or anywhere.
    ///
    /// Reads swapped pages of processes into memory, in batches, until as much memory is free as should stay so,
    /// or nothing is left. Says what it did in one line.
    #[command(after_long_help = swap_in::SWAP_IN_NOTES)]
    SwapIn(SwapInArgs),
    /// Print memory of a managed process, far pages included.
    ///
    /// The process may run, be stopped or be in a debugger's hands; it takes no part. Exit code 1 when a
    /// page's far copy is damaged or cannot be reached, 2 when there is no such process or memory, it is
    /// not managed, or it may not be read: the rights that a debugger needs are needed.
    #[command(after_long_help = inspect::READ_NOTES)]
    Read(ReadArgs),
    /// Write a core dump of a managed process, far pages included; the process goes on.
    ///
    /// It is stopped while the dump is written. Exit code 0 when the dump is whole; 1 when pages are
    /// missing in it, whose far copies are damaged or cannot be reached; 2 when there is no dump.
    #[command(after_long_help = inspect::DUMP_NOTES)]
    Dump(DumpArgs),
    /// End a tenant of the host's agent that no run has any more: what it has is given back.
    End(EndArgs),
    /// Make a cluster key.
    ///
    /// All hosts of a far pool share one: who has it may store, read and free in the pool. Copy the
    /// file to each of them by a safe way; only its owner may be able to read it.
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
    /// Bound on local memory: a size (2G, 512M, 1.5GiB) or a share of the footprint (25%).
    ///
    /// The bound holds for the anonymous memory of CMD and all its children together, with canvas's
    /// own metadata and swap cache. A share is taken of the largest footprint so far. Without this
    /// flag nothing is evicted, and canvas stands aside, which it says in one line.
    #[arg(
        long,
        env = "CANVAS_LOCAL",
        value_name = "SIZE|N%",
        hide_env_values = true
    )]
    pub local: Option<Amount>,

    /// Bound on the compressed pool that holds evicted pages [default: half of this host's memory, or of the control
    /// group's limit where that is smaller].
    #[arg(long, env = "CANVAS_POOL", value_name = "SIZE", hide_env_values = true)]
    pub pool: Option<Size>,

    /// Manage memory that CMD's forks share (MAP_SHARED|MAP_ANONYMOUS), with this bound of its own on what of it is
    /// in local memory [default: such memory stays native].
    ///
    /// Its compressed pages count toward --pool. Needs --local and signal mode. At the host's agent, the run that
    /// begins a tenant says it.
    #[arg(
        long,
        env = "CANVAS_SHARED",
        value_name = "SIZE",
        hide_env_values = true
    )]
    pub shared: Option<Size>,

    #[command(flatten)]
    pub beyond: BeyondArgs,

    /// What is left to the host.
    #[command(flatten)]
    pub reserve: inspect::HostReserveArgs,

    /// How faults are delivered.
    #[arg(long, env = "CANVAS_MODE", value_enum, default_value_t = ModeArg::Auto, hide_env_values = true)]
    pub mode: ModeArg,

    /// Write a report as JSON to FILE when CMD ends (its fields: docs/STATS.md).
    #[arg(
        long,
        env = "CANVAS_STATS",
        value_name = "FILE.json",
        hide_env_values = true
    )]
    pub stats: Option<PathBuf>,

    /// Record faults and sampled touches to FILE, for `lab replay`.
    #[arg(
        long,
        env = "CANVAS_TRACE",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub learn: LearnArgs,

    /// Fail with exit code 125 when CMD cannot be managed, instead of running it unmanaged.
    #[arg(long, env = "CANVAS_REQUIRE", value_parser = switch(), hide_env_values = true)]
    pub require: bool,

    /// How evicted pages are stored.
    #[arg(long, env = "CANVAS_CODEC", value_enum, default_value_t = CodecArg::Lz4, hide_env_values = true)]
    pub codec: CodecArg,

    /// Whether a page keeps its swap entry when it comes back, so that its next eviction takes no
    /// lock.
    #[arg(long, env = "CANVAS_RESERVATIONS", value_enum, default_value_t = SwitchArg::On, hide_env_values = true)]
    pub reservations: SwitchArg,

    #[command(flatten)]
    pub native_swap: NativeSwapArgs,

    #[command(flatten)]
    pub nodes: NumaArgs,

    /// Who decides which pages are brought back before they are touched [default: streams].
    #[arg(long, env = "CANVAS_PREFETCH", value_enum, hide_env_values = true)]
    pub prefetch: Option<PrefetchArg>,

    /// The same as --prefetch none: never bring pages back before they are touched.
    #[arg(long, env = "CANVAS_NO_PREFETCH", value_parser = switch(), hide_env_values = true)]
    pub no_prefetch: bool,

    #[command(flatten)]
    pub app_tier: AppTierArgs,

    #[command(flatten)]
    pub proactive: ProactiveArgs,

    /// Size of the swap cache at start, part of local memory [default: 32M, or a sixteenth of
    /// a smaller --local].
    #[arg(
        long,
        env = "CANVAS_SWAP_CACHE",
        value_name = "SIZE",
        hide_env_values = true
    )]
    pub swap_cache: Option<Size>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", num_args = 1..)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// Offer metrics for Prometheus at http://ADDR:PORT/metrics, to whoever can connect there.
    #[arg(long, env = "CANVAS_METRICS", value_name = "ADDR:PORT", value_parser = address, hide_env_values = true)]
    pub metrics: Option<SocketAddr>,
}

/// Flags of the agent that `canvas run` starts. The descriptors are at fixed numbers.
#[derive(Args)]
pub struct WorkerArgs {
    /// Slabs that the tenant may fill.
    #[arg(long)]
    pub slabs: usize,
    /// Servers.
    #[arg(long = "server")]
    pub servers: Vec<Address>,
    /// Files for copies on disk.
    #[arg(long, default_value_t = 0)]
    pub disks: usize,
    /// `--far-dir` named the directories of these files: the disk keeps what too few donors take.
    #[arg(long)]
    pub disks_keep: bool,
    #[command(flatten)]
    pub disk_reserve: FarReserveArgs,
    /// How long to look for requests after the last one.
    #[arg(long, default_value = "50us")]
    pub spin: Span,
    /// Whether what would come too late is left out.
    #[arg(long, value_enum, default_value_t = TimelinessArg::On)]
    pub timeliness: TimelinessArg,
    /// Connections to each server.
    #[arg(long, default_value_t = 1)]
    pub links: usize,
    /// Members of the gossip that are known.
    #[arg(long = "seed")]
    pub seeds: Vec<String>,
}

/// Flags of `canvas serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Take flags that are not written here from section [serve] of FILE.
    #[arg(long, env = "CANVAS_CONFIG", hide_env_values = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,
    /// Most memory that is lent, in slabs of 64 MiB.
    #[arg(long, value_name = "SIZE")]
    pub memory: Size,
    /// Memory that is always left to this host [default: a tenth of its RAM].
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<Size>,
    /// The cluster key; without one only clients on this host are served.
    #[arg(
        long,
        env = "CANVAS_KEY_FILE",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub key_file: Option<PathBuf>,
    /// How long a client's memory is kept after its last sign of life, at most.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub lease: Span,
    /// How long clients have to move memory that is taken back.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub evict_within: Span,
    /// How long clients have to move their memory when the server is told to end.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub drain: Span,
    /// How long a connection's thread looks for more after traffic before it sleeps; 0s saves CPU. Where programs read
    /// pages over a connection of their own, up to eight times as long, as their requests come.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub spin: Span,
    /// Write the state to FILE once a second (its fields: docs/STATS.md).
    #[arg(long, value_name = "FILE.json")]
    pub state_json: Option<PathBuf>,
    /// Connections at one time.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub links: u16,
    /// Where meminfo and self/cgroup are, for a server in a container that sees its own elsewhere.
    #[arg(long, value_name = "DIR", default_value = "/proc", hide = true)]
    pub procfs: PathBuf,
    /// Lend over RDMA, too, to clients that ask for it (rdma://); each slab that they use is pinned.
    #[arg(long)]
    pub rdma: bool,
    /// Tell others by gossip (UDP) on this address what is lent here; port 0 takes any free one.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub gossip: Option<SocketAddr>,
    /// Members of the gossip, separated by commas; the first server needs none.
    #[arg(
        long = "seed",
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        requires = "gossip"
    )]
    pub seeds: Vec<String>,
    /// Offer metrics for Prometheus at http://ADDR:PORT/metrics, to whoever can connect there.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub metrics: Option<SocketAddr>,
}

/// Flags of `canvas agent`.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// Take flags that are not written here from section [agent] of FILE.
    #[arg(long, env = "CANVAS_CONFIG", hide_env_values = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Where to listen [default: /run/canvas/agent.sock for root, else canvas/agent.sock in
    /// XDG_RUNTIME_DIR].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Take over from the agent that listens there, with its tenants, and have it end.
    #[arg(long)]
    pub replace: bool,
    /// Let members of this group connect too [default: the agent's own user only].
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// How long a tenant's requests are looked for after its last one before sleeping; 0s saves CPU.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub spin: Span,
    /// Threads that serve: `auto` begins with one, and adds another when one is full and a processor idle; N are
    /// there from the start, 64 at most, and tenants are divided among them.
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = threads)]
    pub threads: ThreadsArg,
    /// Whether what tenants asked for ahead and would come too late is left out.
    #[arg(long, value_enum, default_value_t = TimelinessArg::On)]
    pub timeliness: TimelinessArg,
    /// Directory of the disk copies, best on a disk of its own; with several, each on another disk, each
    /// takes a part [default: ~/.cache/canvas/far].
    #[arg(long, value_name = "DIR,...", value_delimiter = ',')]
    pub far_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub disk_reserve: FarReserveArgs,
    /// Hosts that lend memory (`canvas serve`), separated by commas.
    #[arg(long = "server", value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Copies of far memory of a tenant that asks for nothing else [default: 1+disk with --server, else
    /// disk].
    #[arg(long, value_enum)]
    pub copies: Option<CopiesArg>,
    /// The cluster key of the servers; without one only servers on this host can be used.
    #[arg(
        long,
        env = "CANVAS_KEY_FILE",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub key_file: Option<PathBuf>,
    /// Far memory of all tenants together, at most [default: no bound].
    #[arg(long, value_name = "SIZE")]
    pub far_max: Option<Size>,
    /// Members of the servers' gossip (`canvas serve --gossip`), separated by commas: one that lives is
    /// enough to learn of all servers, also of those that come later.
    #[arg(long = "seed", value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub seeds: Vec<String>,
    /// Compressed memory of all tenants together, at most: each keeps a floor, and the rest goes to those
    /// that swap [default: each tenant has its own --pool].
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    /// Tenants that are prepared for programs to come (`canvas dispatch`), up to 16.
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(..=i64::from(WARM_MAX)))]
    pub warm: u8,
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
    /// Say `ok`, or what is wrong in it and in which line: one line for each error, exit code 2.
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
    /// End after so many lines of each run.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print page features instead: what the pages are like, and what paging costs.
    #[arg(long)]
    pub features: bool,
    /// Print instead what comes back ahead of need, by who asks for it.
    #[arg(long, conflicts_with = "features")]
    pub prefetch: bool,
    /// Print JSON, one object a line (its fields: docs/OPERATING.md).
    #[arg(long, conflicts_with_all = ["features", "prefetch"])]
    pub json: bool,
}

/// Flags of `canvas top`.
#[derive(Args)]
pub struct TopArgs {
    /// Time between two looks, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = times::interval)]
    pub interval: Duration,
}

/// Flags of `canvas set`.
#[derive(Args)]
pub struct SetArgs {
    /// The run or disk, by its name or the number of its process.
    pub tenant: String,
    /// What to change, and to what.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
}

/// Flags of `canvas completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// A flag without a value; its environment variable holds 1 or 0.
fn switch() -> ValueParser {
    ValueParser::new(|text: &str| match text {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("it is neither on nor off; write 1 or 0"),
    })
}

/// An address to listen on.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "it is no address with a port; write one such as 10.0.0.5:7070 or [::1]:7070")
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the answer is no: `doctor` found no mode that works, `status` found something wrong
  2    bad arguments, configuration or input (`canvas run` and `dispatch`: 125)
  125  `canvas run` or `dispatch` itself failed
  126  CMD was found but could not be executed
  127  CMD was not found
  128+n  CMD was ended by signal n
  else CMD's own exit code";

const AGENT_NOTES: &str = "\
Flags win over CANVAS_* variables, and those over the file of --config.

The socket is for the agent's own user; --group opens it for a group. Servers, key and far directory are
the agent's: who runs a program cannot choose them.

SIGTERM, SIGINT and SIGHUP end the agent; its tenants wait for the next one, each for its own time.

Exit codes: 0 ended by a signal, or replaced; 1 --replace: the other agent does not leave, and goes on;
2 it could not start.

Example:
  canvas agent --config /etc/canvas/canvas.toml --replace";

const STAT_NOTES: &str = "\
Columns: faults a second on new pages (new), in the swap cache (cache), on far copies (far), of those
beyond the pool (deep); pages a second swapped in and out, and prefetch hits; the median and 99th
percentile of fault times; local memory, pool and far memory in use; MiB a second read from and
written to far memory beyond the pool.

With --features: the part of blocks of 2 MiB that was never touched (frag), of pages that left those
that had been written to (store), of pages that came back those of a stream (seq), of faults on pages
that had left those that twice the local memory would have spared (hot), what compression gives
(comp), the part of files in all memory (file), by how much paging slows the program (slow), and the
part of the time in which a thread of it was in a fault (stall).

Exit codes: 0 after COUNT lines, or when the last run has ended; 2 there is no such run.

Example:
  canvas stat redis -i 1 -n 10";

const SET_NOTES: &str = "\
Keys: local=SIZE|N%, shared=SIZE, pool=SIZE, far=SIZE, spill-at=PERCENT, far-wait=TIME,
prefetch=streams|leap|readahead|none|auto, app-tier=auto|off|threads|refs,
proactive-threshold=SIZE|N%|off, proactive-batch=SIZE, slo=N%|p99=TIME|off, unit=SIZE|auto,
numa=N=SIZE,...,
copies=1+disk|1+disk-async|2|3|none|disk|4+2, weight=N, swap-in-limit=RATE|none,
swap-out-limit=RATE|none; they mean what the flags of `canvas run` mean.
When local, shared, pool or a node shrinks, what is too much is moved away. When copies change, far memory
moves while the program goes on; `canvas status` tells when it has. What was not there from the
start (--local, --shared, --far, a node, a server for more copies) cannot be set later.

Exit codes: 0 done; 1 no answer in time, it may still be done; 2 nothing was changed.

Example:
  canvas set redis local=4G spill-at=70";

const SERVE_NOTES: &str = "\
Without --key-file (or CANVAS_KEY_FILE) there is no secret, and only addresses of the loopback device
are listened on. Everything between hosts is encrypted and authenticated by the cluster key.

SIGTERM, SIGINT and SIGHUP end the server: it lends nothing more, tells its clients to move what they
have here, and ends when they have, or after --drain. A second signal ends it at once.

Exit codes: 0 ended by a signal; 2 it could not start.

Example:
  canvas keygen /etc/canvas/key
  canvas serve --listen 10.0.0.5:7070 --memory 32G --key-file /etc/canvas/key";

const RUN_NOTES: &str = "\
Flags win over the CANVAS_* variables named above, and those over the defaults. A flag without a
value takes 1 or 0 from its variable. CANVAS_PRELOAD_SO=FILE replaces the built-in library, for
development.

Signals: what a terminal sends reaches CMD directly. SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1,
SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT sent to canvas by another process are passed on to CMD.

A program that cannot be managed (statically linked, set-user-ID, of another C library or
processor) runs all the same, after one line of warning; --require makes that an error.

Exit codes: CMD's own; 128+n when signal n ended it; 125 when canvas itself failed; 126 when CMD
could not be executed; 127 when it was not found.

Example:
  canvas run --local 25% --stats report.json -- redis-server --port 7777";
