//! Estimates what observing hits on resident pages would gain: far faults of generated access strings, in
//! percent of the touches, when the policy sees the touches of none, some or all resident pages. `cargo run
//! --release -p canvas-replay --example read_heat -- [SEED] [PAGES] [ACCESSES]`. Source of the figure in
//! docs/design/decisions.md.

use canvas_replay::ours::{Setup, replay};
use canvas_replay::synthetic;

const SEEN_PERCENT: [u32; 5] = [0, 2, 10, 30, 100];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize, default: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let (seed, pages, accesses) = (
        number(0, 1),
        number(1, 32768) as usize,
        number(2, 1_000_000) as usize,
    );
    println!("string local, far faults in % by share of pages seen: {SEEN_PERCENT:?} %");
    for name in synthetic::names() {
        let Some(trace) = synthetic::generate(name, seed, pages, accesses) else {
            continue;
        };
        // The first pass touches every page once and is not counted.
        let touches = trace.events.len().saturating_sub(trace.pages).max(1);
        for local_percent in [25, 50, 75] {
            let faults = SEEN_PERCENT.map(|seen_percent| {
                let setup = Setup {
                    seen_percent,
                    ..Setup::default()
                };
                let out = replay(&trace, trace.pages * local_percent / 100, &setup);
                out.misses as f64 * 100.0 / touches as f64
            });
            let row = faults.map(|f| format!("{f:.2}")).join(" | ");
            println!("| {name} | {local_percent}% | {row} |");
        }
    }
}
