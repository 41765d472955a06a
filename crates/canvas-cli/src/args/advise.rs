//! Flags of `canvas advise`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::ValueParser;

use super::times;

/// Flags of `canvas advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// A run, by its name or the number of its process.
    #[arg(required_unless_present = "cmd", conflicts_with = "cmd")]
    pub tenant: Option<String>,
    /// Speeds that are wanted, in percent of the speed with all memory local (50 to 99).
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "95,80",
        value_parser = speed()
    )]
    pub speed: Vec<f64>,
    /// Measure by changing the run's --local for a while; it is restored at the end.
    #[arg(long, requires = "tenant")]
    pub check: bool,
    /// How long the run is watched at each size, in seconds or as a duration (500ms).
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "10",
        value_parser = times::interval,
        requires = "tenant"
    )]
    pub interval: Duration,
    /// Try N sizes at most.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub tries: u32,
    /// Print JSON (its fields: docs/OPERATING.md).
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments: it is run repeatedly, and its output is discarded.
    #[arg(last = true, value_name = "CMD")]
    pub cmd: Vec<OsString>,
}

/// Parses a speed in percent, as a part of 1.
fn speed() -> ValueParser {
    ValueParser::new(
        |text: &str| match text.trim_end_matches('%').parse::<f64>() {
            Ok(percent) if (50.0..=99.0).contains(&percent) => Ok(percent / 100.0),
            Ok(_) => Err("it is out of range; write 50 to 99"),
            Err(_) => Err("it is not a number; write percent of full speed such as 95"),
        },
    )
}

/// Shown after the flags.
pub const ADVISE_NOTES: &str = "\
With CMD it runs CMD alone, then with a quarter of its memory local, and then at sizes that
follow from that, until the answer is found; CMD has to end by itself. CANVAS_* variables apply
to all but the first.

With a run it measures how long evicted pages stay away, and predicts the speed at larger sizes.
With --check it sets these sizes, one after the other, and smaller ones where the run is fast
enough; that slows the run.

Exit codes: 0 done; 1 CMD failed; 2 there is no such run or program, or no prediction is possible;
128+n stopped by signal n.

Examples:
  canvas advise redis --check
  canvas advise --speed 90 -- python3 train.py";
