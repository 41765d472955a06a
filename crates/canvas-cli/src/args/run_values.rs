//! Values of `canvas run`'s flags.

use canvas_agent::dispatch::THREADS_MAX;
use canvas_place::threads::Width;
use canvas_shm::Mode;
use canvas_types::{AppTier, Codec, Prefetch};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `--mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModeArg {
    /// Signal mode where it works, else thread mode.
    Auto,
    /// The faulting thread resolves its own fault in a signal handler; needs no privilege.
    Signal,
    /// Handler threads resolve faults; needs privilege, serves programs that signal mode cannot.
    Thread,
}

impl ModeArg {
    /// The mode that was asked for; `None` for what works best.
    pub fn wanted(self) -> Option<Mode> {
        match self {
            ModeArg::Auto => None,
            ModeArg::Signal => Some(Mode::Signal),
            ModeArg::Thread => Some(Mode::Thread),
        }
    }
}

/// `--codec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CodecArg {
    /// Compressed with lz4 where that saves enough.
    Lz4,
    /// As they are; pages of one repeated value take no room all the same.
    None,
}

/// `--reservations`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SwitchArg {
    /// Entries stay with their pages (Canvas, section 5.1).
    On,
    /// The entry is freed when its page comes in, and each eviction allocates one, as in Linux.
    Off,
}

/// `--far-timeliness`, and `--timeliness` of the host's agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum TimelinessArg {
    /// What would come later than nearly all that is read ahead is used is not read (Canvas, section 5.3).
    On,
    /// All is read, however late it comes.
    Off,
}

impl TimelinessArg {
    /// Is the rule on?
    pub fn is_on(self) -> bool {
        self == TimelinessArg::On
    }
}

/// `--threads` of the host's agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadsArg {
    /// As many as are needed, at most one for each processor.
    Auto,
    /// So many.
    Fixed(usize),
}

/// Reads it.
pub fn threads(text: &str) -> Result<ThreadsArg, String> {
    if text == "auto" {
        return Ok(ThreadsArg::Auto);
    }
    match text.parse() {
        Ok(n) if (1..=THREADS_MAX).contains(&n) => Ok(ThreadsArg::Fixed(n)),
        _ => Err(format!("write auto, or a number from 1 to {THREADS_MAX}")),
    }
}

impl ThreadsArg {
    /// What it means on this host.
    pub fn width(self) -> Width {
        match self {
            ThreadsArg::Auto => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                Width::Elastic(processors.min(THREADS_MAX))
            }
            ThreadsArg::Fixed(n) => Width::Fixed(n),
        }
    }
}

/// `--prefetch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PrefetchArg {
    /// Streams of each thread, gated by measured accuracy.
    Streams,
    /// Leap: the majority of the last 32 fault deltas of the process.
    Leap,
    /// The kernel's swap readahead: up to 8 pages around the fault, by the hits of the last ones.
    Readahead,
    /// Nobody.
    None,
    /// Streams and, where a fault belongs to none, the pages beside it in regions where they are used.
    Auto,
}

/// A warm start.
#[derive(Args, Clone, Debug)]
pub struct LearnArgs {
    /// Keep in FILE which far pages CMD needs when it resumes after an idle time, and bring them in ahead when it does
    /// so again, in this run or a later one.
    #[arg(
        long,
        env = "CANVAS_LEARN",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub learn: Option<PathBuf>,
}

/// Who reads from donors.
#[derive(Args, Clone, Copy, Debug)]
pub struct LanesArgs {
    /// Whether threads that wait for a page read it from its donor by themselves, over connections of its own.
    #[arg(long, env = "CANVAS_LANES", value_enum, default_value_t = LanesArg::On, hide_env_values = true)]
    pub lanes: LanesArg,
}

/// `--lanes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LanesArg {
    /// Within the tenant's share of the link.
    On,
    /// The agent does all reads.
    Off,
}

impl LanesArg {
    /// Are they wanted?
    pub fn is_on(self) -> bool {
        self == LanesArg::On
    }
}

/// What is tried where the prefetcher has nothing.
#[derive(Args, Clone, Copy, Debug)]
pub struct AppTierArgs {
    /// What is tried for faults that the prefetcher has nothing for three times in a row.
    #[arg(long, env = "CANVAS_APP_TIER", value_enum, default_value_t = AppTierArg::Auto, hide_env_values = true)]
    pub app_tier: AppTierArg,
}

/// `--app-tier`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AppTierArg {
    /// As refs, as long as the program is measured to be faster with it.
    Auto,
    /// Nothing.
    Off,
    /// Deltas of each thread in each array.
    Threads,
    /// The same and, for what lies beyond the pool, the order of earlier faults and pointers that have proven themselves.
    Refs,
}

impl From<AppTierArg> for AppTier {
    fn from(arg: AppTierArg) -> AppTier {
        match arg {
            AppTierArg::Auto => AppTier::Auto,
            AppTierArg::Off => AppTier::Off,
            AppTierArg::Threads => AppTier::Threads,
            AppTierArg::Refs => AppTier::Refs,
        }
    }
}

impl From<PrefetchArg> for Prefetch {
    fn from(arg: PrefetchArg) -> Prefetch {
        match arg {
            PrefetchArg::Streams => Prefetch::Streams,
            PrefetchArg::Leap => Prefetch::Leap,
            PrefetchArg::Readahead => Prefetch::Readahead,
            PrefetchArg::None => Prefetch::None,
            PrefetchArg::Auto => Prefetch::Auto,
        }
    }
}

impl From<CodecArg> for Codec {
    fn from(arg: CodecArg) -> Codec {
        match arg {
            CodecArg::Lz4 => Codec::Lz4,
            CodecArg::None => Codec::None,
        }
    }
}

/// `--copies`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiesArg(&'static str);

/// What `--copies` can be, with what it means where that is listed.
const COPIES: [(&str, Option<&str>); 20] = [
    ("1+disk", Some("One server, and a disk of this host")),
    (
        "1+disk-async",
        Some(
            "The same, where the disk may be behind by 64 MiB, which are lost when the server dies then",
        ),
    ),
    ("2", Some("Two servers")),
    ("3", Some("Three servers")),
    (
        "none",
        Some("One server, and nothing else: what it held is lost with it"),
    ),
    ("disk", Some("A disk of this host")),
    (
        "4+2",
        Some(
            "Six servers with a shard each, of which any four are enough; any code from 2+1 to 8+2 can be written so",
        ),
    ),
    ("2+1", None),
    ("3+1", None),
    ("4+1", None),
    ("5+1", None),
    ("6+1", None),
    ("7+1", None),
    ("8+1", None),
    ("2+2", None),
    ("3+2", None),
    ("5+2", None),
    ("6+2", None),
    ("7+2", None),
    ("8+2", None),
];

/// All values.
const ALL_COPIES: [CopiesArg; COPIES.len()] = {
    let mut all = [CopiesArg(""); COPIES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = CopiesArg(COPIES[i].0);
        i += 1;
    }
    all
};

impl CopiesArg {
    /// One server, and a disk of this host.
    pub const ONE_AND_DISK: CopiesArg = CopiesArg("1+disk");
    /// A disk of this host.
    pub const DISK: CopiesArg = CopiesArg("disk");
}

impl ValueEnum for CopiesArg {
    fn value_variants<'a>() -> &'a [CopiesArg] {
        &ALL_COPIES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = COPIES.iter().find(|(name, _)| *name == self.0)?;
        let value = PossibleValue::new(*name);
        Some(match help {
            Some(help) => value.help(*help),
            None => value.hide(true),
        })
    }
}
