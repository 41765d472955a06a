//! Flags about far memory: what may lie beyond the pool, where, and who keeps it. `canvas run` and `canvas disk`
//! have them.

use std::path::PathBuf;

use canvas_control::names::{NameError, judge_name};
use canvas_types::ReadUnit;
use canvas_types::units::{Size, Span};
use clap::Args;
use clap::builder::ValueParser;

use super::{CopiesArg, FarReserveArgs, LanesArgs, ShareArgs, TimelinessArg};

/// Flags about far memory.
#[derive(Args, Clone, Debug)]
pub struct BeyondArgs {
    /// Far memory beyond the pool: what has been in the full pool longest goes there, encrypted
    /// [default: with --server or --seed as much as this host has memory, else none].
    #[arg(long, env = "CANVAS_FAR", value_name = "SIZE", hide_env_values = true)]
    pub far: Option<Size>,

    /// Directory of the disk copy of far memory, best on a disk of its own; with several, each on another
    /// disk, each takes a part [default: ~/.cache/canvas/far].
    ///
    /// The files have no name and are gone when the last process of the tenant ends. A directory in memory (tmpfs)
    /// works, but gains nothing. Which one takes what is new follows the times that they take under load.
    #[arg(
        long,
        env = "CANVAS_FAR_DIR",
        value_name = "DIR,...",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub far_dir: Vec<PathBuf>,

    #[command(flatten)]
    pub disk_reserve: FarReserveArgs,

    /// How long the agent looks for requests after the last one before it sleeps; 0s saves CPU.
    #[arg(
        long,
        env = "CANVAS_FAR_SPIN",
        value_name = "TIME",
        default_value = "50us",
        hide_env_values = true
    )]
    pub far_spin: Span,

    /// Whether the agent leaves out what was asked for ahead and would come too late.
    #[arg(long, env = "CANVAS_FAR_TIMELINESS", value_enum, default_value_t = TimelinessArg::On, hide_env_values = true)]
    pub far_timeliness: TimelinessArg,

    /// Hosts that lend memory (`canvas serve`), separated by commas; rdma://HOST:PORT for pages over
    /// RDMA (`canvas serve --rdma`).
    #[arg(
        long = "server",
        env = "CANVAS_SERVER",
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub servers: Vec<String>,

    /// Copies of far memory [default: 1+disk with --server, else disk].
    #[arg(long, env = "CANVAS_COPIES", value_enum, hide_env_values = true)]
    pub copies: Option<CopiesArg>,

    /// The cluster key of the servers; without one only servers on this host can be used.
    #[arg(
        long,
        env = "CANVAS_KEY_FILE",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub key_file: Option<PathBuf>,

    /// How long a fault waits for far memory that cannot be reached, before SIGBUS.
    #[arg(
        long,
        env = "CANVAS_FAR_WAIT",
        value_name = "TIME",
        default_value = "30s",
        hide_env_values = true
    )]
    pub far_wait: Span,

    /// Part of --pool, in percent, past which its oldest pages go to far memory.
    #[arg(
        long,
        env = "CANVAS_SPILL_AT",
        value_name = "PERCENT",
        default_value_t = 80,
        value_parser = clap::value_parser!(u8).range(1..=99),
        hide_env_values = true
    )]
    pub spill_at: u8,

    /// What comes back with a page that is read beyond the pool: 4K for the page alone, 32K to 2M of
    /// what left together with it, or as much as is seen to be used (auto).
    #[arg(
        long,
        env = "CANVAS_UNIT",
        value_name = "SIZE|auto",
        default_value_t = ReadUnit::Auto,
        hide_env_values = true
    )]
    pub unit: ReadUnit,

    #[command(flatten)]
    pub lanes: LanesArgs,

    /// Connections to each server: with 2 or more, pages that are waited for do not queue behind
    /// those that are written or repaired.
    #[arg(
        long,
        env = "CANVAS_LINKS",
        value_name = "N",
        default_value_t = canvas_agent::replicas::LINKS,
        value_parser = clap::value_parser!(u8).range(1..=4),
        hide_env_values = true
    )]
    pub links: u8,

    /// Members of the servers' gossip (`canvas serve --gossip`), separated by commas: one that lives
    /// is enough to learn of all servers, also of those that come later.
    #[arg(
        long = "seed",
        env = "CANVAS_SEED",
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub seeds: Vec<String>,

    /// Have the host's agent (`canvas agent`) keep far memory, instead of one of this run's own [default
    /// PATH: the user's own agent if there is one, else /run/canvas/agent.sock].
    #[arg(
        long,
        env = "CANVAS_AGENT",
        value_name = "PATH",
        num_args = 0..=1,
        require_equals = true,
        value_parser = agent_path(),
        default_missing_value = "",
        hide_env_values = true
    )]
    pub agent: Option<AgentPath>,

    /// What the run is called (`canvas status`, the host's agent); section [tenant.NAME] of the
    /// configuration file has flags that are not written here [default: CMD's name].
    ///
    /// With --agent, a run whose NAME is there already joins it: one budget for all programs of the
    /// tenant, which is over when the last of them has ended.
    #[arg(long, env = "CANVAS_TENANT", value_name = "NAME", value_parser = tenant_name, hide_env_values = true)]
    pub tenant: Option<String>,

    /// What it gets where it is not alone.
    #[command(flatten)]
    pub share: ShareArgs,

    /// A flag of the command line itself that says how far memory is kept, and nothing without any.
    #[arg(skip)]
    pub about_far: Option<String>,
}

/// The host agent's socket.
pub type AgentPath = Option<PathBuf>;

/// `--agent`'s value; without one, and for 1 in the environment, the default path.
fn agent_path() -> ValueParser {
    ValueParser::new(|text: &str| match text {
        "" | "1" | "true" | "yes" | "on" => Ok::<AgentPath, &str>(None),
        path if path.contains('/') => Ok(Some(PathBuf::from(path))),
        _ => Err("it is no path of a socket; write one such as /run/canvas/agent.sock"),
    })
}

/// A tenant's name.
fn tenant_name(text: &str) -> Result<String, NameError> {
    judge_name(text).map(|()| text.to_owned())
}
