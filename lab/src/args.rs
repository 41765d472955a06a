//! Command line of `lab`.

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

/// Measure canvas against the kernel's swap and all-local memory.
#[derive(Parser)]
#[command(
    name = "lab",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `lab`.
#[derive(Subcommand)]
pub enum Command {
    /// Run experiments, or workloads by name, and append the measurements to a results file.
    ///
    /// Runs each workload under every variant at every local ratio, interleaved and repeated, and checks its
    /// answer against the local run's. Start with `lab run quick`; `lab run --list` shows all names.
    #[command(after_long_help = RUN_NOTES)]
    Run(RunArgs),
    /// Compare two results files: is the new one faster, and how sure is that?
    ///
    /// Prints a row for each program, variant and local ratio that both files have: medians, the ratio of
    /// speeds (new over old), its 95 % confidence interval, and a verdict. Runs nothing.
    Compare {
        /// Results from before the change.
        old: PathBuf,
        /// Results from after the change.
        new: PathBuf,
    },
    /// Make one page with plots and tables from results.
    ///
    /// The page is a single HTML file without scripts and without links to the network. Figures of different
    /// machines, versions and sizes stay apart when several files are given.
    Report(ReportArgs),
    /// Compare compressors over pages of real programs, on one processor.
    ///
    /// Prints compression and decompression time, the ratio, and the saving of predicting which pages are
    /// incompressible.
    Codec(CodecArgs),
    /// Run one of the built-in workloads.
    ///
    /// Prints one JSON object: the answer, and the speed. Exits with code 1 when the data or the result is
    /// wrong.
    Workload(WorkloadArgs),
    /// Replay a trace through the eviction policies and print their miss ratios.
    ///
    /// Compares the pager's own policy code with FIFO, LRU, S3-FIFO, SIEVE and Belady's optimum over a trace
    /// made by `canvas run -o trace`, at 10 to 90 % local memory.
    Replay(ReplayArgs),
    /// Simulate pools of many hosts, and print the figures of lab/SIMULATION.md.
    Sim(SimArgs),
    /// Undo a killed run's changes to the host.
    #[command(hide = true)]
    Guardian {
        /// Journal of the run.
        journal: PathBuf,
    },
    /// Work until standard input ends, and report progress ten times a second.
    #[command(hide = true)]
    Steady {
        /// Size of the data in MiB.
        mib: u64,
        /// Seed of the generated data.
        seed: u64,
    },
    /// Serve a file as a disk whose reads take 100 us.
    #[command(hide = true)]
    Disk {
        /// Path of the file.
        place: PathBuf,
        /// Size of the disk in bytes.
        bytes: u64,
    },
}

/// Flags of `lab run`.
#[derive(Args)]
pub struct RunArgs {
    /// Experiments, or workloads for a sweep (`--list` shows both).
    #[arg(value_name = "EXPERIMENT|WORKLOAD")]
    pub names: Vec<String>,
    /// Swap backends to compare, separated by commas [default: the experiment's].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum)]
    pub variants: Vec<VariantArg>,
    /// Flags of `canvas run` for the canvas variant, as one word ('-o prefetch=none'); each use adds a
    /// variant, and '' is canvas without flags.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub canvas_flags: Vec<String>,
    /// Local memory in percent of the measured working set, separated by commas [default: the
    /// experiment's].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub ratios: Vec<u32>,
    /// Run the named workloads at the same time, each with its own limit, and each alone as well.
    #[arg(long)]
    pub co_run: bool,
    /// Repeats of each cell [default: the experiment's, usually 5].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// Size of the workloads, relative to their design size [default: the experiment's].
    #[arg(long, value_name = "X", value_parser = scale)]
    pub scale: Option<f64>,
    /// Stop after this time ('90s', '3m', '1h'): start nothing more, end what runs, and name the cells left
    /// out [default: none; quick: 3m].
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
    /// List experiments, variants and workloads, and what each lacks on this host.
    #[arg(long)]
    pub list: bool,
    /// Run only the parts of experiments with one of these workloads, alone or as a company
    /// (random-read+sequential), separated by commas [default: all parts].
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    pub with: Vec<String>,
    /// Links between this host and the donors of canvas-far, separated by commas: a rate (200mbit, 2.5gbit),
    /// a delay (25us), or both (1gbit+25us), for each direction. Each adds a variant, in a network namespace
    /// of the bench; needs root [default: the experiment's, usually the loopback device].
    #[arg(long, value_name = "LINK,...", value_delimiter = ',')]
    pub far_link: Vec<Link>,
    /// The measured command and the cache.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// The measured command and the cache.
#[derive(Args)]
pub struct PlaceArgs {
    /// The canvas command to measure [default: the one in the directory of this command].
    #[arg(long, env = "CANVAS", hide_env_values = true, value_name = "PATH")]
    pub canvas: Option<PathBuf>,
    /// Directory of downloads and generated data [default: ~/.cache/canvas/bench].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Flags of `lab codec`.
#[derive(Args)]
pub struct CodecArgs {
    /// Workloads to take pages from [default: random-read, redis-get95, java, sklearn-kmeans, spark-lr].
    #[arg(value_name = "WORKLOAD")]
    pub names: Vec<String>,
    /// Pages to take from each workload, evenly spread over its memory.
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
    /// Seed of the data and of the choice of pages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where results are appended, as JSON lines.
    #[arg(short, long, value_name = "FILE", default_value = "codec.jsonl")]
    pub out: PathBuf,
    /// The measured command and the cache.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where a program's memory may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum VariantArg {
    /// All in local memory.
    Local,
    /// `canvas run`.
    Canvas,
    /// `canvas run` with far memory on donors that the bench starts.
    CanvasFar,
    /// Kernel swap on zram.
    Zram,
    /// Kernel swap on zram, with memory in folios of 64 KiB.
    #[value(name = "zram-64k")]
    Zram64k,
    /// Kernel swap on a file behind zswap.
    Zswap,
    /// Kernel swap on a file.
    Disk,
    /// Kernel swap on a disk made by the bench whose reads take 100 us.
    #[value(name = "disk-100us")]
    SlowDisk,
    /// Kernel swap on zram driven by TMO's loop, at each target of the experiment (5 % by default); no limit.
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
    /// Path of the page.
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
    /// Name of the workload.
    #[arg(value_parser = workload_names())]
    pub name: String,
    /// Factor on the default size.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub scale: f64,
    /// Seed of the generated data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Size of the data in MiB; overrides --scale.
    #[arg(long, value_name = "N")]
    pub mib: Option<u64>,
    /// Duration of the measured part of a pattern.
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Number of worker threads.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Rounds of a workload that does a fixed amount of work.
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Pages from one touch to the next (strided).
    #[arg(long, value_name = "PAGES")]
    pub stride: Option<u32>,
    /// Leave the host's setting of huge pages; without this flag they are off.
    #[arg(long)]
    pub huge_pages: bool,
    /// Also take all that far memory's links give, as a hostile tenant would.
    #[arg(long, requires = "seconds")]
    pub cheat: bool,
}

/// Flags of `lab replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// A trace written by `canvas run -o trace`.
    #[arg(required_unless_present = "synthetic", conflicts_with = "synthetic")]
    pub file: Option<PathBuf>,
    /// A generated access string instead of a file.
    #[arg(long, value_name = "NAME", value_parser = synthetic_names())]
    pub synthetic: Option<String>,
    /// Memory that a generated string touches.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "128M",
        requires = "synthetic"
    )]
    pub memory: Size,
    /// Number of touches in a generated string.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        requires = "synthetic"
    )]
    pub accesses: usize,
    /// Seed of a generated string.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "synthetic")]
    pub seed: u64,
    /// Prefetcher of the columns with prefetch.
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
    /// Full size: takes minutes, simulates up to 10,000 hosts.
    #[arg(long, conflicts_with = "hosts")]
    pub full: bool,
    /// Hosts of a pool, from 8 to 10000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(8..=HOSTS_MAX as u64))]
    pub hosts: Option<u64>,
}

/// Parser for the names of generated access strings, with a description of each.
fn synthetic_names() -> PossibleValuesParser {
    let value = |(name, what): &(&'static str, &'static str)| PossibleValue::new(*name).help(*what);
    synthetic::NAMES
        .iter()
        .map(value)
        .collect::<Vec<_>>()
        .into()
}

/// Parser for the names of built-in workloads, with a description of each.
fn workload_names() -> PossibleValuesParser {
    let value = |p: &canvas_workloads::Program| PossibleValue::new(p.name).help(p.about);
    let values = canvas_workloads::PROGRAMS.iter().map(value);
    values.collect::<Vec<_>>().into()
}

/// Parser for prefetchers, named as in `canvas run -o prefetch`.
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

/// Parses a factor on the size of workloads.
fn scale(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(x) if (0.001..=1000.0).contains(&x) => Ok(x),
        Ok(_) => Err("it is out of range; write 0.001 to 1000"),
        Err(_) => Err("it is not a number; write one such as 0.5"),
    }
}

/// Parses the longest duration of a run, at most a week.
fn time_max(text: &str) -> Result<Duration, String> {
    let time = Duration::from(text.parse::<Span>().map_err(|e| e.to_string())?);
    if (1..=7 * 86400).contains(&time.as_secs()) {
        Ok(time)
    } else {
        Err("it is out of range; write 1s to 168h".to_owned())
    }
}

/// `~/.cache/canvas/bench`, or the same below XDG_CACHE_HOME.
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
    /// Absolute path of the measured command.
    pub fn canvas(&self, lab: &Path) -> std::io::Result<PathBuf> {
        let beside = || lab.with_file_name("canvas");
        std::path::absolute(self.canvas.clone().unwrap_or_else(beside))
    }

    /// Absolute path of the cache.
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
