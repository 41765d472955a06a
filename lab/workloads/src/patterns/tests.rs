use super::*;
use crate::{Options, run as run_by_name};

fn tiny(threads: u32, seed: u64) -> Options {
    Options {
        mib: Some(4),
        seconds: Some(0.05),
        threads: Some(threads),
        seed,
        ..Options::default()
    }
}

const NAMES: [&str; 8] = [
    "sequential",
    "sequential-write",
    "strided",
    "random-read",
    "random-write",
    "zipf",
    "pointer-chase",
    "phases",
];

#[test]
fn the_answer_depends_on_the_seed_and_not_on_threads_or_time() {
    for name in NAMES.into_iter().chain(["fill"]) {
        let mut options = tiny(1, 1);
        if name == "fill" {
            options.seconds = None;
        }
        let answer = |o: &Options| run_by_name(name, o).unwrap().answer;
        let first = answer(&options);
        options.threads = Some(3);
        options.seconds = options.seconds.map(|s| 2.0 * s);
        assert_eq!(answer(&options), first, "{name}");
        options.seed = 2;
        assert_ne!(answer(&options), first, "{name}");
    }
}

#[test]
fn operations_and_times_are_counted() {
    for name in NAMES {
        let out = run_by_name(name, &tiny(2, 1)).unwrap();
        let seconds = out.seconds.unwrap();
        assert!(seconds >= 0.05, "{name}: {seconds}");
        let ops = out.ops_per_s.unwrap() * seconds;
        let timed: u64 = out.access_histogram.iter().map(|b| b.1).sum();
        // Only a sample is timed. The two counts differ by at most the operations in flight at either end.
        assert!(ops > 0.5 && timed > 0, "{name}: {ops} {timed}");
        assert!(!out.rates.is_empty(), "{name}");
        let (from_s, to_s) = out.measured_unix_s.unwrap();
        assert!(
            (to_s - from_s - seconds).abs() < 1e-3,
            "{name}: {from_s} {to_s}"
        );
    }
}

fn arena<'a>(job: &'a Job, kind: &'a Kind) -> Arena<'a> {
    let templates = Templates::new(job.seed);
    let heap = Shared::heap(16, &templates).unwrap();
    Arena {
        job,
        kind,
        templates,
        heap,
        writes: (0..16).map(|_| AtomicU8::new(0)).collect(),
        measuring: AtomicBool::new(false),
        over: AtomicBool::new(false),
    }
}

fn job() -> Job {
    Job {
        name: "test",
        mib: 4,
        seed: 1,
        seconds: 0.1,
        threads: 1,
        rounds: 1,
        stride: 10,
    }
}

#[test]
fn a_damaged_word_is_found_by_a_touch_and_at_the_end() {
    let job = job();
    for kind in [Kind::Sequential, Kind::Uniform, Kind::Chase, Kind::Zipf] {
        let arena = arena(&job, &kind);
        for p in 0..16 {
            for word in 0..WORDS {
                arena.heap.page(p)[word].fetch_xor(4, Relaxed);
            }
        }
        let wrong = work(&arena, 0, &Count::default());
        assert!(matches!(wrong, Err(Failure::Wrong(_))), "{kind:?}");
        assert!(arena.over.load(Relaxed), "the others stop");
        assert!(answer(&arena).is_err());
    }
}

#[test]
fn a_lost_write_is_found_at_the_end() {
    let (job, kind) = (job(), Kind::Write);
    let arena = arena(&job, &kind);
    let mut walk = Walk::new(&kind, 16, &job, 0);
    for _ in 0..1000 {
        let p = walk.page(Duration::ZERO);
        touch(&arena, &mut walk, p).unwrap();
    }
    let right = answer(&arena).unwrap();
    arena.heap.page(7)[5].fetch_xor(FLIP, Relaxed);
    let lost = answer(&arena).unwrap_err().to_string();
    assert!(lost.contains("page 7 has lost a write"), "{lost}");
    arena.heap.page(7)[5].fetch_xor(FLIP, Relaxed);
    assert_eq!(answer(&arena).unwrap(), right);
}
