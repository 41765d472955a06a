//! The bench's built-in programs, so that `lab` can measure without other software.
//!
//! A program keeps its data in plain vectors, checks what it reads, and returns an [`Output`] whose `answer`
//! depends on its data only: not on time, threads or the swap backend. Sizes follow from one number, the
//! mebibytes of data ([`Program::mib`] at scale 1).
#![forbid(unsafe_code)]

mod bfs;
mod data;
mod digest;
mod linpack;
mod nn;
mod output;
mod pagerank;
mod patterns;
mod quicksort;
mod rmat;
mod rng;
mod snappy;
pub mod steady;
mod stream;
mod text;

use std::fmt;

pub use output::{Output, Quantiles};

/// Reason why a program gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Wrong options; the sentence says what to write instead.
    Usage(String),
    /// The data or the result is wrong; the sentence says where.
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(sentence) | Failure::Wrong(sentence)) = self;
        f.write_str(sentence)
    }
}

impl std::error::Error for Failure {}

/// Size and seed of a run; `None` stands for the program's default.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Factor on the default size (and on the time of patterns, within limits).
    pub scale: f64,
    /// Seed of the generated data.
    pub seed: u64,
    /// Size of the data in MiB; overrides the scale.
    pub mib: Option<u64>,
    /// Duration of the measured part of a pattern, in seconds.
    pub seconds: Option<f64>,
    /// Number of worker threads.
    pub threads: Option<u32>,
    /// Iterations, images or rounds of a program with a fixed amount of work.
    pub rounds: Option<u32>,
    /// Distance of consecutive touches of the strided pattern, in pages.
    pub stride: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            scale: 1.0,
            seed: 1,
            mib: None,
            seconds: None,
            threads: None,
            rounds: None,
            stride: None,
        }
    }
}

/// An option that only some programs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knob {
    Seconds,
    Threads,
    Rounds,
    Stride,
}

/// Options of a run, with the defaults filled in.
#[derive(Clone, Debug)]
struct Job {
    name: &'static str,
    mib: u64,
    seed: u64,
    seconds: f64,
    threads: usize,
    rounds: u32,
    stride: usize,
}

/// A built-in program.
pub struct Program {
    /// Unique name in lower case.
    pub name: &'static str,
    /// Description of one line.
    pub about: &'static str,
    /// Data at scale 1, in MiB.
    pub mib: u64,
    /// Whether the program runs for a fixed time and counts operations, so that only rates can be compared.
    pub timed: bool,
    rounds: u32,
    rounds_max: u32,
    takes: &'static [Knob],
    run: fn(&Job) -> Result<Output, Failure>,
}

const PATTERN_MIB: u64 = 512;
const PATTERN: &[Knob] = &[Knob::Seconds, Knob::Threads];

const fn pattern(
    name: &'static str,
    about: &'static str,
    takes: &'static [Knob],
    run: fn(&Job) -> Result<Output, Failure>,
) -> Program {
    Program {
        name,
        about,
        mib: PATTERN_MIB,
        timed: true,
        rounds: 1,
        rounds_max: 1,
        takes,
        run,
    }
}

const fn kernel(
    name: &'static str,
    about: &'static str,
    mib: u64,
    rounds: (u32, u32),
    takes: &'static [Knob],
    run: fn(&Job) -> Result<Output, Failure>,
) -> Program {
    Program {
        name,
        about,
        mib,
        timed: false,
        rounds: rounds.0,
        rounds_max: rounds.1,
        takes,
        run,
    }
}

/// All programs, in the order of documents and reports.
pub static PROGRAMS: [Program; 16] = [
    pattern(
        "sequential",
        "reads pages in address order, 8 words each",
        PATTERN,
        patterns::sequential,
    ),
    pattern(
        "strided",
        "reads every tenth page, then their neighbours",
        &[Knob::Seconds, Knob::Threads, Knob::Stride],
        patterns::strided,
    ),
    pattern(
        "random-read",
        "reads a word of a random page",
        PATTERN,
        patterns::random_read,
    ),
    pattern(
        "random-write",
        "changes a word of a random page",
        PATTERN,
        patterns::random_write,
    ),
    pattern(
        "sequential-write",
        "changes a word of each page in address order",
        PATTERN,
        patterns::sequential_write,
    ),
    pattern(
        "zipf",
        "reads pages with the popularity of zipf 0.99, scattered",
        PATTERN,
        patterns::zipf,
    ),
    pattern(
        "pointer-chase",
        "follows one cycle through all pages, each naming the next",
        PATTERN,
        patterns::chase,
    ),
    pattern(
        "phases",
        "reads random pages of a fifth of the heap, which moves 8 times",
        PATTERN,
        patterns::phases,
    ),
    kernel(
        "fill",
        "touches fresh memory for the first time",
        PATTERN_MIB,
        (8, 1000),
        &[Knob::Rounds, Knob::Threads],
        patterns::fill,
    ),
    kernel(
        "quicksort",
        "sorts random ints by quicksort",
        512,
        (1, 1),
        &[],
        quicksort::run,
    ),
    kernel(
        "linpack",
        "solves a dense system by LU with partial pivoting",
        288,
        (1, 1),
        &[],
        linpack::run,
    ),
    kernel(
        "stream",
        "copies, scales, adds and triads three arrays",
        768,
        (stream::ROUNDS_MAX, stream::ROUNDS_MAX),
        &[Knob::Rounds, Knob::Threads],
        stream::run,
    ),
    kernel(
        "rmat-bfs",
        "searches an RMAT graph breadth first from several roots",
        256,
        (4, 10_000),
        &[Knob::Rounds],
        bfs::run,
    ),
    kernel(
        "rmat-pagerank",
        "ranks the vertices of an RMAT graph",
        256,
        (20, 10_000),
        &[Knob::Rounds],
        pagerank::run,
    ),
    kernel(
        "nn-inference",
        "infers images with a small convolutional network of 8-bit weights",
        384,
        (64, 1_000_000),
        &[Knob::Rounds],
        nn::run,
    ),
    kernel(
        "snappy",
        "compresses and decompresses text like Wikipedia's with Snappy",
        384,
        (4, 10_000),
        &[Knob::Rounds],
        snappy::run,
    ),
];

/// Runs a program by name. Fails if the name or an option is unknown, or if the data or the result is wrong.
pub fn run(name: &str, options: &Options) -> Result<Output, Failure> {
    let program = find(name)?;
    (program.run)(&program.job(options)?)
}

/// Finds a program by name. The error lists all names.
pub fn find(name: &str) -> Result<&'static Program, Failure> {
    PROGRAMS.iter().find(|p| p.name == name).ok_or_else(|| {
        let names: Vec<_> = PROGRAMS.iter().map(|p| p.name).collect();
        Failure::Usage(format!(
            "there is no workload {name}; write one of {}",
            names.join(", ")
        ))
    })
}

/// Least data of any program, in MiB; smaller data would not have the program's shape.
const MIB_MIN: u64 = 4;
/// Most data of any program: a tebibyte.
const MIB_MAX: u64 = 1 << 20;
const THREADS_MAX: u32 = 16;

impl Program {
    /// Data of a run at `scale`, in MiB.
    pub fn mib_at(&self, scale: f64) -> u64 {
        ((self.mib as f64 * scale).round() as u64).max(MIB_MIN)
    }

    fn job(&self, o: &Options) -> Result<Job, Failure> {
        let usage = |sentence: String| Err(Failure::Usage(sentence));
        for (flag, knob, given) in [
            ("--seconds", Knob::Seconds, o.seconds.is_some()),
            ("--threads", Knob::Threads, o.threads.is_some()),
            ("--rounds", Knob::Rounds, o.rounds.is_some()),
            ("--stride", Knob::Stride, o.stride.is_some()),
        ] {
            if given && !self.takes.contains(&knob) {
                return usage(format!("{} takes no {flag}; leave it out", self.name));
            }
        }
        if !(o.scale > 0.0 && o.scale <= 1000.0) {
            return usage(format!(
                "--scale {} is out of range; write more than 0 and at most 1000",
                o.scale
            ));
        }
        let mib = o.mib.unwrap_or_else(|| self.mib_at(o.scale));
        if !(MIB_MIN..=MIB_MAX).contains(&mib) {
            return usage(format!(
                "--mib {mib} is out of range; write {MIB_MIN} to {MIB_MAX}"
            ));
        }
        let seconds = o.seconds.unwrap_or((5.0 * o.scale).clamp(1.0, 5.0));
        if !(0.01..=86400.0).contains(&seconds) {
            return usage(format!(
                "--seconds {seconds} is out of range; write 0.01 to 86400"
            ));
        }
        let threads = o.threads.unwrap_or(1);
        if !(1..=THREADS_MAX).contains(&threads) {
            return usage(format!(
                "--threads {threads} is out of range; write 1 to {THREADS_MAX}"
            ));
        }
        let rounds = o.rounds.unwrap_or(self.rounds);
        if !(1..=self.rounds_max).contains(&rounds) {
            return usage(format!(
                "--rounds {rounds} is out of range; write 1 to {}",
                self.rounds_max
            ));
        }
        let stride = o.stride.unwrap_or(10) as usize;
        if !(1..=256 * mib as usize).contains(&stride) {
            return usage(format!(
                "--stride {stride} is out of range; write 1 to the number of pages, {}",
                256 * mib
            ));
        }
        Ok(Job {
            name: self.name,
            mib,
            seed: o.seed,
            seconds,
            threads: threads as usize,
            rounds,
            stride,
        })
    }
}

impl Job {
    /// Requested size of the data, in bytes.
    fn bytes(&self) -> usize {
        (self.mib as usize) << 20
    }
}

/// An empty vector with room for `n` values. Fails if there is not enough memory.
fn room<T>(n: usize) -> Result<Vec<T>, Failure> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| {
        let mib = n.saturating_mul(size_of::<T>()) >> 20;
        Failure::Usage(format!(
            "there is no memory for {mib} MiB of data; write a smaller --scale or --mib"
        ))
    })?;
    Ok(v)
}

/// A vector of `n` times `value`. Fails if there is not enough memory.
fn filled<T: Copy>(n: usize, value: T) -> Result<Vec<T>, Failure> {
    let mut v = room(n)?;
    v.resize(n, value);
    Ok(v)
}

#[cfg(test)]
mod tests;
