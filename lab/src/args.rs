//! Every flag of `lab`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_bench::link::Link;
use canvas_bench::variant::{FarBelow, Variant};
use canvas_replay::synthetic;
use canvas_sim::world::HOSTS_MAX;
use canvas_types::Prefetch;
use canvas_types::units::{Size, Span};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measure canvas beside the kernel's swap and all-local memory.
#[derive(Parser)]
#[command(
    name = "lab",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `lab` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Run experiments, or workloads by name, and append what they took to a results file.
    ///
    /// Each workload runs under every variant at every local ratio, interleaved and repeated, with its
    /// answer checked against the local run's. `lab run quick` is a beginning; `lab run --list` shows
    /// all names.
    #[command(after_long_help = RUN_NOTES)]
    Run(RunArgs),
    /// Compare two results files: is the new one faster, and how sure is that?
    ///
    /// Prints a row for each program, variant and local ratio that both files have: medians, the ratio
    /// of speeds (new over old), where that lies with 95 % confidence, and a verdict. Nothing is run.
    Compare {
        /// Results from before a change.
        old: PathBuf,
        /// Results from after it.
        new: PathBuf,
    },
    /// Make one page with plots and tables from results.
    ///
    /// The page is a single HTML file that needs no network and has no script. Several files are put
    /// together; figures of other machines, versions and sizes are kept apart.
    Report(ReportArgs),
    /// Compare compressors over pages of real programs, on one processor.
    ///
    /// Prints the time out and in, the ratio, and what it would save to foresee which pages do not
    /// shrink.
    Codec(CodecArgs),
    /// Run one of the built-in workloads.
    ///
    /// Prints one JSON object: what was computed, and how fast. Exit code 1 when the data or the result
    /// is wrong.
    Workload(WorkloadArgs),
    /// Replay a trace through the eviction policies and print their miss ratios.
    ///
    /// Runs the pager's own policy code over a trace made by `canvas run -o trace`, with FIFO, LRU,
    /// S3-FIFO, SIEVE and Belady's optimum beside it, at 10 to 90 % local memory.
    Replay(ReplayArgs),
    /// Simulate pools of many hosts, and print the figures of lab/SIMULATION.md.
    Sim(SimArgs),
    /// Undoes what a run changed on the host when that run is killed.
    #[command(hide = true)]
    Guardian {
        /// The run's journal.
        journal: PathBuf,
    },
    /// Works until its standard input ends, and says what it does ten times a second.
    #[command(hide = true)]
    Steady {
        /// Data in MiB.
        mib: u64,
        /// Seed of all data.
        seed: u64,
    },
    /// Is a disk whose reads take 100 us, in place of a file.
    #[command(hide = true)]
    Disk {
        /// The file.
        place: PathBuf,
        /// How large the disk is.
        bytes: u64,
    },
}

/// Flags of `lab run`.
#[derive(Args)]
pub struct RunArgs {
    /// Experiments, or workloads for a sweep (`--list` shows both).
    #[arg(value_name = "EXPERIMENT|WORKLOAD")]
    pub names: Vec<String>,
    /// What lies below the programs, separated by commas [default: the experiment's].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum)]
    pub variants: Vec<VariantArg>,
    /// Flags of `canvas run` for the canvas variant, as one word ('-o prefetch=none'); each time it is
    /// written makes a variant of its own, and '' is canvas without flags.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub canvas_flags: Vec<String>,
    /// Local memory in percent of the measured working set, separated by commas [default: the
    /// experiment's].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub ratios: Vec<u32>,
    /// Run the named workloads at the same time, each with its own limit, and each alone too.
    #[arg(long)]
    pub co_run: bool,
    /// Repeats of each cell [default: the experiment's, mostly 5].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// Size of the workloads; 1 is the size that they are made for [default: the experiment's].
    #[arg(long, value_name = "X", value_parser = scale)]
    pub scale: Option<f64>,
    /// After this time ('90s', '3m', '1h') nothing further is begun, and what runs is ended; what was
    /// not run is named [default: none; quick: 3m].
    #[arg(long, value_name = "TIME", value_parser = time_max)]
    pub time_max: Option<Duration>,
    /// Seed of all generated data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where results are appended, as JSON lines.
    #[arg(
        short,
        long,
        visible_alias = "output",
        value_name = "FILE",
        default_value = "lab.jsonl"
    )]
    pub out: PathBuf,
    /// List experiments, variants and workloads, and what is missing for them here.
    #[arg(long)]
    pub list: bool,
    /// Of the experiments, only parts in which one of these workloads runs, or whose company one of
    /// these is (random-read+sequential), separated by commas [default: all parts].
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    pub with: Vec<String>,
    /// Links between this host and the donors of canvas-far, separated by commas: a rate (200mbit,
    /// 2.5gbit), a length (25us), or both (1gbit+25us), in either direction. A variant for each, in a
    /// network of the bench's own, as root [default: the experiment's, mostly the loopback device].
    #[arg(long, value_name = "LINK,...", value_delimiter = ',')]
    pub far_link: Vec<Link>,
    /// Which commands are used, and where files stay.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Which commands are used, and where files stay.
#[derive(Args)]
pub struct PlaceArgs {
    /// The canvas command that is measured [default: the one beside this command].
    #[arg(long, env = "CANVAS", hide_env_values = true, value_name = "PATH")]
    pub canvas: Option<PathBuf>,
    /// Where downloads and generated data stay [default: ~/.cache/canvas/bench].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Flags of `lab codec`.
#[derive(Args)]
pub struct CodecArgs {
    /// Workloads whose pages are taken [default: random-read, redis-get95, java, sklearn-kmeans,
    /// spark-lr].
    #[arg(value_name = "WORKLOAD")]
    pub names: Vec<String>,
    /// Pages of each, evenly spread over its memory.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub pages: u32,
    /// Rounds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Size of the workloads.
    #[arg(long, value_name = "X", value_parser = scale, default_value = "0.5")]
    pub scale: f64,
    /// Seed of data, and of which pages are taken.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where results are appended, as JSON lines.
    #[arg(short, long, value_name = "FILE", default_value = "codec.jsonl")]
    pub out: PathBuf,
    /// Which commands are used, and where files stay.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// What may lie below a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum VariantArg {
    /// All in memory.
    Local,
    /// `canvas run`.
    Canvas,
    /// `canvas run` with far memory on donors of the bench's own.
    CanvasFar,
    /// Kernel swap on zram.
    Zram,
    /// Kernel swap on zram, and memory in folios of 64 KiB.
    #[value(name = "zram-64k")]
    Zram64k,
    /// Kernel swap on a file behind zswap.
    Zswap,
    /// Kernel swap on a file.
    Disk,
    /// Kernel swap on a disk of the bench's own whose reads take 100 us.
    #[value(name = "disk-100us")]
    SlowDisk,
    /// Kernel swap on zram with TMO's loop, at each target of the experiment (5 % without one); no limit.
    Tmo,
}

impl From<VariantArg> for Variant {
    fn from(arg: VariantArg) -> Variant {
        match arg {
            VariantArg::Local => Variant::Local,
            VariantArg::Canvas => Variant::Canvas(Vec::new()),
            VariantArg::CanvasFar => Variant::CanvasFar(FarBelow::copies("2")),
            VariantArg::Zram => Variant::Zram,
            VariantArg::Zram64k => Variant::Zram64k,
            VariantArg::Zswap => Variant::Zswap,
            VariantArg::Disk => Variant::Disk,
            VariantArg::SlowDisk => Variant::SlowDisk,
            VariantArg::Tmo => Variant::Tmo(5),
        }
    }
}

/// Flags of `lab report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Files that `lab run` wrote.
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// Where the page goes.
    #[arg(
        short,
        long,
        visible_alias = "out",
        value_name = "FILE.html",
        default_value = "report.html"
    )]
    pub output: PathBuf,
}

/// Flags of `lab workload`.
#[derive(Args)]
pub struct WorkloadArgs {
    /// The workload.
    #[arg(value_parser = workload_names())]
    pub name: String,
    /// Factor on the default size.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub scale: f64,
    /// Seed of all data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Data in MiB, in place of what follows from --scale.
    #[arg(long, value_name = "N")]
    pub mib: Option<u64>,
    /// Measured time of a pattern.
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Threads that work at once.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Rounds of a workload that does a fixed amount of work.
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Pages from one touch to the next (strided).
    #[arg(long, value_name = "PAGES")]
    pub stride: Option<u32>,
    /// Leave huge pages as the host has them; without it there are none.
    #[arg(long)]
    pub huge_pages: bool,
    /// Meanwhile take all that far memory's links give, as a hostile tenant would.
    #[arg(long, requires = "seconds")]
    pub cheat: bool,
}

/// Flags of `lab replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// A trace written by `canvas run -o trace`.
    #[arg(required_unless_present = "synthetic", conflicts_with = "synthetic")]
    pub file: Option<PathBuf>,
    /// A made-up string of accesses instead of a file.
    #[arg(long, value_name = "NAME", value_parser = synthetic_names())]
    pub synthetic: Option<String>,
    /// Memory that a made-up string touches.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "128M",
        requires = "synthetic"
    )]
    pub memory: Size,
    /// Touches in a made-up string.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        requires = "synthetic"
    )]
    pub accesses: usize,
    /// Seed of a made-up string.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "synthetic")]
    pub seed: u64,
    /// Who prefetches in the columns with prefetch.
    #[arg(long, value_name = "NAME", value_parser = prefetchers(), default_value = "streams")]
    pub prefetch: Prefetch,
    /// Local memory in percent of the footprint, separated by commas.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "10,20,30,40,50,60,70,80,90"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub percent: Vec<u32>,
}

/// Flags of `lab sim`.
#[derive(Args)]
pub struct SimArgs {
    /// Experiments [default: all].
    #[arg(value_name = "EXPERIMENT", value_parser = crate::sim::names())]
    pub names: Vec<String>,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Full size: minutes, up to 10,000 hosts.
    #[arg(long, conflicts_with = "hosts")]
    pub full: bool,
    /// Hosts of a pool, from 8 to 10000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(8..=HOSTS_MAX as u64))]
    pub hosts: Option<u64>,
}

/// The made-up strings that the pager's replay knows, each with what it stands for.
fn synthetic_names() -> PossibleValuesParser {
    let value = |(name, what): &(&'static str, &'static str)| PossibleValue::new(*name).help(*what);
    synthetic::NAMES
        .iter()
        .map(value)
        .collect::<Vec<_>>()
        .into()
}

/// The built-in workloads, each with what it does.
fn workload_names() -> PossibleValuesParser {
    let value = |p: &canvas_workloads::Program| PossibleValue::new(p.name).help(p.about);
    let values = canvas_workloads::PROGRAMS.iter().map(value);
    values.collect::<Vec<_>>().into()
}

/// The prefetchers by the names that `canvas run -o prefetch` has for them.
fn prefetchers() -> impl TypedValueParser<Value = Prefetch> {
    const ALL: [(&str, Prefetch); 5] = [
        ("streams", Prefetch::Streams),
        ("leap", Prefetch::Leap),
        ("readahead", Prefetch::Readahead),
        ("none", Prefetch::None),
        ("auto", Prefetch::Auto),
    ];
    PossibleValuesParser::new(ALL.map(|(name, _)| name)).map(|name| {
        let found = ALL.iter().find(|(n, _)| *n == name);
        found.map_or(Prefetch::None, |(_, prefetch)| *prefetch)
    })
}

/// A size of workloads.
fn scale(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(x) if (0.001..=1000.0).contains(&x) => Ok(x),
        Ok(_) => Err("it is out of range; write 0.001 to 1000"),
        Err(_) => Err("it is not a number; write one such as 0.5"),
    }
}

/// Longest time of a run, at most a week.
fn time_max(text: &str) -> Result<Duration, String> {
    let time = Duration::from(text.parse::<Span>().map_err(|e| e.to_string())?);
    if (1..=7 * 86400).contains(&time.as_secs()) {
        Ok(time)
    } else {
        Err("it is out of range; write 1s to 168h".to_owned())
    }
}

/// `~/.cache/canvas/bench`, or where XDG_CACHE_HOME points.
fn default_cache() -> PathBuf {
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("canvas/bench")
}

impl PlaceArgs {
    /// The command that is measured, by an absolute path.
    pub fn canvas(&self, lab: &Path) -> std::io::Result<PathBuf> {
        let beside = || lab.with_file_name("canvas");
        std::path::absolute(self.canvas.clone().unwrap_or_else(beside))
    }

    /// The cache, by an absolute path.
    pub fn cache(&self) -> std::io::Result<PathBuf> {
        std::path::absolute(self.cache.clone().unwrap_or_else(default_cache))
    }
}

const RUN_NOTES: &str = "\
The kernel's variants need root, a memory controller of control groups, and no other swap; where one
is missing the variant is skipped with the reason. Every change of the host is undone at the end, on
Ctrl-C, and by a guardian process when this one is killed.

Exit codes: 0 done; 1 some run was wrong, failed or hung; 2 bad input, or nothing that was asked for
can run here; 128+n stopped by signal n.

Examples:
  lab run quick
  lab run zipf --ratios 50,25 --variants local,canvas,zram
  lab run zipf --canvas-flags '' --canvas-flags '-o prefetch=none'
  lab run zipf snappy --co-run --ratios 25
  lab compare old.jsonl new.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_of_one_piece() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_cache_is_below_a_cache_directory() {
        assert!(default_cache().ends_with("canvas/bench") && default_cache().is_absolute());
    }
}
