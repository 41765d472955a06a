//! Synthetic patterns: threads touch a heap of pages, and check every word they read.
//!
//! Filling the heap and a warm-up of a quarter of the time are not measured. An operation is one page
//! touched. At the end the program checks every word of the heap and computes the answer from them.

mod walk;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::data::{Pages, Shared, Templates, WORDS, wrong_word};
use crate::digest::Digest;
use crate::output::{Output, Times, round};
use crate::{Failure, Job};
use walk::{Chain, Kind, Walk};

pub fn sequential(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Sequential)
}

pub fn strided(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Strided(job.stride))
}

pub fn random_read(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Uniform)
}

pub fn random_write(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Write)
}

pub fn sequential_write(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::WriteOn)
}

pub fn zipf(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Zipf)
}

pub fn chase(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Chase)
}

pub fn phases(job: &Job) -> Result<Output, Failure> {
    run(job, &Kind::Phases)
}

/// Mask that a write XORs into a word; a second write restores the word.
const FLIP: u64 = 0x0101_0101_0101_0101;

/// State shared by all threads of a run.
struct Arena<'a> {
    job: &'a Job,
    kind: &'a Kind,
    templates: Templates,
    heap: Shared,
    /// Number of writes to each page, modulo 256, to detect a lost write.
    writes: Vec<AtomicU8>,
    measuring: AtomicBool,
    over: AtomicBool,
}

/// A thread's count of operations, in its own cache line.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// Interval between two samples of the rate.
const TICK: Duration = Duration::from_millis(250);
/// Shortest wait for the threads.
const BREATH: Duration = Duration::from_millis(1);

fn run(job: &Job, kind: &Kind) -> Result<Output, Failure> {
    let pages = job.bytes() / (8 * WORDS);
    let templates = Templates::new(job.seed);
    let heap = Shared::heap(pages, &templates)?;
    if matches!(kind, Kind::Chase) {
        let chain = Chain::new(pages, job.seed)?;
        for p in 0..pages {
            heap.page(p)[1].store(chain.next(p), Relaxed);
        }
    }
    let mut writes = Vec::new();
    if kind.writes() {
        writes = crate::room(pages)?;
        writes.resize_with(pages, || AtomicU8::new(0));
    }
    let arena = Arena {
        job,
        kind,
        templates,
        heap,
        writes,
        measuring: AtomicBool::new(false),
        over: AtomicBool::new(false),
    };
    let mut output = measure(&arena)?;
    output.answer = answer(&arena)?;
    Ok(output)
}

/// Runs the threads for the given time and measures them.
fn measure(arena: &Arena) -> Result<Output, Failure> {
    let job = arena.job;
    let counts: Vec<Count> = (0..job.threads).map(|_| Count::default()).collect();
    let done = || counts.iter().map(|c| c.0.load(Relaxed)).sum::<u64>();
    let mut rates = Vec::new();
    let (times, seconds, ops, ended_s) = thread::scope(|scope| {
        let threads: Vec<_> = (0..job.threads)
            .map(|id| {
                let count = &counts[id];
                scope.spawn(move || work(arena, id, count))
            })
            .collect();
        thread::sleep(Duration::from_secs_f64(job.seconds / 4.0));
        // On a loaded machine threads may start later than the warm-up ends.
        while counts.iter().any(|c| c.0.load(Relaxed) == 0) && !arena.over.load(Relaxed) {
            thread::sleep(BREATH);
        }
        arena.measuring.store(true, Relaxed);
        let began = Instant::now();
        let (first, mut before, mut then) = (done(), done(), began);
        loop {
            let left = Duration::from_secs_f64(job.seconds).saturating_sub(began.elapsed());
            // At least one operation must have been measured.
            if left.is_zero() && before > first || arena.over.load(Relaxed) {
                break;
            }
            thread::sleep(left.clamp(BREATH, TICK));
            let (now, count) = (Instant::now(), done());
            let rate = (count - before) as f64 / (now - then).as_secs_f64();
            rates.push((round((now - began).as_secs_f64(), 1e3), rate.round()));
            (then, before) = (now, count);
        }
        let (seconds, ops) = ((then - began).as_secs_f64(), before - first);
        let ended = SystemTime::now().duration_since(UNIX_EPOCH);
        let ended_s = ended.unwrap_or_default().as_secs_f64() - then.elapsed().as_secs_f64();
        arena.over.store(true, Relaxed);
        let mut times = Times::new();
        for t in threads {
            times.merge(&t.join().expect("a worker does not panic")?);
        }
        Ok::<_, Failure>((times, seconds, ops, ended_s))
    })?;
    let mut output = Output::of_work(String::new(), ops as f64, seconds).with_accesses(&times);
    output.rates = rates;
    output.measured_unix_s = Some((round(ended_s - seconds, 1e6), round(ended_s, 1e6)));
    Ok(output)
}

/// One access of this number is timed, since reading the clock waits for earlier accesses, which local
/// accesses otherwise overlap. Not a power of two, which could fall in step with readahead.
const TIMED: u32 = 31;

/// Body of a thread: touches pages until the run is over; returns the access times of the measured part.
fn work(arena: &Arena, id: usize, count: &Count) -> Result<Times, Failure> {
    let mut times = Times::new();
    let mut walk = Walk::new(arena.kind, arena.heap.len(), arena.job, id);
    let mut ops = 0;
    let mut until_timed = 1;
    let began = Instant::now();
    let mut elapsed = Duration::ZERO;
    while !arena.over.load(Relaxed) {
        let p = walk.page(elapsed);
        until_timed -= 1;
        let touched = if until_timed == 0 {
            until_timed = TIMED;
            let before = Instant::now();
            let touched = touch(arena, &mut walk, p);
            let after = Instant::now();
            elapsed = after - began;
            if arena.measuring.load(Relaxed) {
                times.add((after - before).as_nanos() as u64);
            }
            touched
        } else {
            touch(arena, &mut walk, p)
        };
        if touched.is_err() {
            // End the other threads as well.
            arena.over.store(true, Relaxed);
            touched?;
        }
        ops += 1;
        count.0.store(ops, Relaxed);
    }
    Ok(times)
}

/// Touches page `p` and checks the word read.
#[inline]
fn touch(arena: &Arena, walk: &mut Walk, p: usize) -> Result<(), Failure> {
    let (heap, templates) = (&arena.heap, &arena.templates);
    let check = |p: usize, word: usize, got: u64| {
        let want = templates.expected(p, word);
        if got == want {
            Ok(())
        } else {
            Err(wrong_word(p, word, got, want))
        }
    };
    match arena.kind {
        Kind::Sequential => {
            for word in (1..WORDS).step_by(64) {
                check(p, word, heap.load(p, word))?;
            }
            Ok(())
        }
        Kind::Chase => {
            check(p, 0, heap.load(p, 0))?;
            let next = heap.load(p, 1);
            if next >= heap.len() as u64 {
                return Err(Failure::Wrong(format!(
                    "page {p} names page {next} as the next, which does not exist; memory was damaged"
                )));
            }
            walk.go_to(next as usize);
            Ok(())
        }
        Kind::Write | Kind::WriteOn => {
            let word = walk.word();
            let got = heap.page(p)[word].fetch_xor(FLIP, Relaxed);
            arena.writes[p].fetch_add(1, Relaxed);
            // Both states are valid here; the parity of the writes is checked at the end.
            if got ^ FLIP == templates.expected(p, word) {
                return Ok(());
            }
            check(p, word, got)
        }
        _ => {
            let word = walk.word();
            check(p, word, heap.load(p, word))
        }
    }
}

/// Checks every word, and digests the initial values.
fn answer(arena: &Arena) -> Result<String, Failure> {
    let chain = match arena.kind {
        Kind::Chase => Some(Chain::new(arena.heap.len(), arena.job.seed)?),
        _ => None,
    };
    let mut digest = Digest::default();
    for p in 0..arena.heap.len() {
        let mut flipped = 0u8;
        for word in 0..WORDS {
            let mut got = arena.heap.load(p, word);
            let want = match &chain {
                Some(chain) if word == 1 => chain.next(p),
                _ => arena.templates.expected(p, word),
            };
            if arena.kind.writes() && got == want ^ FLIP {
                got ^= FLIP;
                flipped = flipped.wrapping_add(1);
            }
            if got != want {
                return Err(wrong_word(p, word, got, want));
            }
            digest.add((p * WORDS + word) as u64, got);
        }
        // Each write flips one word, so the numbers of writes and of flipped words have the same parity.
        if let Some(writes) = arena.writes.get(p)
            && (writes.load(Relaxed) ^ flipped) & 1 != 0
        {
            return Err(Failure::Wrong(format!(
                "page {p} has lost a write; memory was damaged"
            )));
        }
    }
    let pages = arena.heap.len();
    Ok(format!("{} pages={pages} digest={digest}", arena.job.name))
}

/// First touch of fresh memory, in rounds; each round frees the memory of the one before.
pub fn fill(job: &Job) -> Result<Output, Failure> {
    let templates = Templates::new(job.seed);
    let pages = job.bytes() / (8 * WORDS);
    let mut times = Times::new();
    let mut seconds = 0.0;
    let mut digest = Digest::default();
    for _ in 0..job.rounds {
        let began = Instant::now();
        let parts = thread::scope(|scope| {
            let threads: Vec<_> = (0..job.threads)
                .map(|id| {
                    let range = pages * id / job.threads..pages * (id + 1) / job.threads;
                    let templates = &templates;
                    scope.spawn(move || fill_part(range, templates))
                })
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("a worker does not panic"))
                .collect::<Result<Vec<_>, _>>()
        })?;
        seconds += began.elapsed().as_secs_f64();
        digest = Digest::default();
        let mut p = 0;
        for (part, part_times) in &parts {
            times.merge(part_times);
            for i in 0..part.len() {
                for (word, got) in part.page(i).iter().enumerate() {
                    let want = templates.expected(p, word);
                    if *got != want {
                        return Err(wrong_word(p, word, *got, want));
                    }
                    digest.add((p * WORDS + word) as u64, *got);
                }
                p += 1;
            }
        }
    }
    let answer = format!("fill pages={pages} digest={digest}");
    let ops = pages as f64 * f64::from(job.rounds);
    Ok(Output::of_work(answer, ops, seconds).with_accesses(&times))
}

fn fill_part(
    range: std::ops::Range<usize>,
    templates: &Templates,
) -> Result<(Pages<u64>, Times), Failure> {
    let mut times = Times::new();
    let mut part = Pages::with_room(range.len(), || 0u64)?;
    for (n, p) in range.enumerate() {
        if n % TIMED as usize == 0 {
            let before = Instant::now();
            part.push(p, templates, |w| w);
            times.add(before.elapsed().as_nanos() as u64);
        } else {
            part.push(p, templates, |w| w);
        }
    }
    Ok((part, times))
}

#[cfg(test)]
mod tests;
