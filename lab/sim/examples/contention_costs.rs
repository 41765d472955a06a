//! Measures the parameters of the scenario `contention`: how long a cache line takes from one processor to
//! another, and how long sections under locks take with their data in cache. Needs an otherwise idle machine
//! with two processors.

use std::hint::{black_box, spin_loop};
use std::time::Instant;

use canvas_core::pager::slot::{Control, SlotRef, SlotTable, WRITES};
use canvas_core::swap::entry::EntryTable;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawSpin, Threads};
use canvas_types::{PageId, SwapEntry};

const THREADS: Threads = Threads {
    yield_now: std::thread::yield_now,
    number: || 0,
};
const ROUNDS: u64 = 200_000;

/// Time per operation in ns, the best of five runs.
fn best_ns(per: u64, mut f: impl FnMut()) -> f64 {
    let one = |_| {
        let begun = Instant::now();
        f();
        begun.elapsed().as_nanos() as f64 / per as f64
    };
    (0..5).map(one).fold(f64::INFINITY, f64::min)
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}
fn halves(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

/// Time of a cache-line transfer: two threads increment a counter in turn.
fn transfer_ns() -> f64 {
    let turn = AtomicU64::new(0);
    let side = |odd: u64| {
        for i in 0..ROUNDS {
            while turn.load(Ordering::Acquire) != 2 * i + odd {
                spin_loop();
            }
            turn.store(2 * i + odd + 1, Ordering::Release);
        }
    };
    best_ns(2 * ROUNDS, || {
        turn.store(0, Ordering::Relaxed);
        std::thread::scope(|s| {
            s.spawn(|| side(1));
            side(0);
        });
    })
}

fn main() {
    println!(
        "line to another processor and back, half: {:.0} ns",
        transfer_ns()
    );
    let number = AtomicU64::new(0);
    let add = best_ns(ROUNDS, || {
        for _ in 0..ROUNDS {
            number.fetch_add(1, Ordering::AcqRel);
        }
    });
    println!("atomic operation on a line at hand: {add:.1} ns");
    let lock = RawSpin::new();
    let section = best_ns(ROUNDS, || {
        for _ in 0..ROUNDS {
            let _held = lock.lock(std::thread::yield_now);
            black_box(&number).store(1, Ordering::Relaxed);
        }
    });
    println!("lock and unlock: {section:.1} ns");

    let all = words(4096);
    let table = EntryTable::new(&all, THREADS);
    let entries = best_ns(ROUNDS, || {
        let mut mine = [SwapEntry::NONE; 64];
        for _ in 0..ROUNDS / 64 {
            mine.fill_with(|| table.alloc().expect("there are more").entry);
            mine.iter().for_each(|e| assert!(table.free(*e)));
        }
    });
    println!("an entry allocated and freed: {entries:.1} ns");
    cache();
}

/// Time of the steps of one page through the swap cache.
fn cache() {
    const SLOTS: usize = 1024;
    let control = Control::new();
    let (states, pages, free_stack) = (halves(SLOTS), halves(SLOTS), halves(SLOTS));
    let (entries, ring) = (words(SLOTS), words(2 * SLOTS));
    let t = SlotTable {
        control: &control,
        states: &states,
        pages: &pages,
        entries: &entries,
        free_stack: &free_stack,
        ring: &ring,
        threads: THREADS,
    };
    t.set_capacity(SLOTS);
    let mut out = [SlotRef::default(); 64];
    let mut took = [0.0; 5];
    for _ in 0..ROUNDS / 64 {
        let mut at = Instant::now();
        let mut note = |i: usize| {
            took[i] += at.elapsed().as_nanos() as f64;
            at = Instant::now();
        };
        assert_eq!(t.alloc(&mut out).0, 64);
        note(0);
        for (i, place) in out.iter().enumerate() {
            t.fill(*place, PageId(i as u32), SwapEntry::NONE, false);
        }
        note(1);
        t.enqueue(&out);
        note(2);
        for some in out.chunks_mut(WRITES) {
            assert_eq!(t.oldest(some), WRITES);
        }
        note(3);
        for place in &out {
            let job = t.begin_write(*place).expect("nobody takes it");
            t.end_write(job.slot);
        }
        note(4);
    }
    let names = [
        "64 slots allocated",
        "64 slots filled",
        "64 places made",
        "64 places taken, 16 at a time",
        "64 write-outs begun and ended",
    ];
    for (name, ns) in names.iter().zip(took) {
        println!("{name}: {:.0} ns", ns / (ROUNDS / 64) as f64);
    }
}
