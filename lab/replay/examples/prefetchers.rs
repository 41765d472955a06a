//! Compares the prefetchers over traces (`canvas run -o trace`) or generated access strings: `cargo run
//! --release -p canvas-replay --example prefetchers -- [NAME|FILE...]`. Contribution is the share of uses of
//! far pages that found their page in memory, accuracy the share of prefetched pages that were used (Canvas,
//! section 6.3.2).

use canvas_replay::ours::{Costs, Setup, replay};
use canvas_replay::{Trace, synthetic};
use canvas_types::Prefetch;

fn main() {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = synthetic::names().map(str::to_owned).collect();
    }
    println!("string, local: prefetcher, faults in %, contribution, accuracy, us a touch");
    for name in names {
        let Some(trace) = synthetic::generate(&name, 1, 32768, 1_000_000).or_else(|| read(&name))
        else {
            eprintln!("{name} is neither a generated string nor a trace");
            continue;
        };
        for percent in [25, 50] {
            compare(&trace, percent);
        }
    }
}

fn read(file: &str) -> Option<Trace> {
    Trace::read(file, &std::fs::read(file).ok()?).ok()
}

fn compare(trace: &Trace, percent: usize) {
    let (local, reuses) = (trace.footprint() * percent / 100, trace.reuses());
    for prefetch in Prefetch::ALL {
        let setup = Setup {
            prefetch,
            ..Setup::default()
        };
        let out = replay(trace, local.max(1), &setup);
        println!(
            "{}, {percent} %: {:<9} {:6.2} {:.3} {:.3} {:6.2}",
            trace.name,
            prefetch.name(),
            out.misses as f64 * 100.0 / reuses.max(1) as f64,
            out.contribution_percent() / 100.0,
            out.accuracy_percent() / 100.0,
            out.us_per(reuses, &Costs::DEFAULT),
        );
    }
}
