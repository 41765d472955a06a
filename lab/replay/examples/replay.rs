//! Prints the replay table of synthetic strings: `cargo run --release -p canvas-replay
//! --example replay -- [NAME|all] [SEED] [PAGES] [ACCESSES]`. The figures of
//! docs/REPLACEMENT.md come from it.

use canvas_replay::synthetic;
use canvas_types::Prefetch;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize, default: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let want = args.first().map_or("all", String::as_str);
    let (seed, pages, accesses) = (
        number(1, 1),
        number(2, 32768) as usize,
        number(3, 1_000_000) as usize,
    );
    for name in synthetic::names().filter(|n| want == "all" || want == *n) {
        if let Some(trace) = synthetic::generate(name, seed, pages, accesses) {
            println!(
                "{}",
                canvas_replay::run(&trace, &[10, 25, 50, 75, 90], Prefetch::Streams)
            );
        }
    }
}
