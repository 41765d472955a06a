//! STREAM: copy, scale, add, triad over three arrays, every element checked.
//!
//! The first array has whole numbers with repetitions, as in other programs' data (2.4 to 3.5:1 under lz4),
//! not one constant: pages of one value would cost far memory nothing. A round multiplies each element by 15,
//! which is exact for the permitted number of rounds. An operation is one byte moved, counted as STREAM
//! counts them.

use std::thread;
use std::time::Instant;

use crate::digest::Digest;
use crate::output::Output;
use crate::rng::mix64;
use crate::{Failure, Job};

/// STREAM's default; with more rounds the values would exceed the integers that doubles represent exactly.
pub const ROUNDS_MAX: u32 = 10;
/// STREAM's factor of scale and triad.
const SCALAR: f64 = 3.0;
/// Bytes that the four kernels move per element.
const MOVED_BYTES: f64 = 80.0;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let n = job.bytes() / 3 / size_of::<f64>();
    let mut a: Vec<f64> = crate::room(n)?;
    a.extend((0..n).map(|i| initial(job.seed, i)));
    // STREAM's initial values; the first round overwrites both arrays.
    let mut b = crate::filled(n, 2.0f64)?;
    let mut c = crate::filled(n, 0.0f64)?;
    let began = Instant::now();
    for _ in 0..job.rounds {
        each(job.threads, &mut c, &a, &a, |a, _| a);
        each(job.threads, &mut b, &c, &c, |c, _| SCALAR * c);
        each(job.threads, &mut c, &a, &b, |a, b| a + b);
        each(job.threads, &mut a, &b, &c, |b, c| b + SCALAR * c);
    }
    let seconds = began.elapsed().as_secs_f64();
    let digest = check(job, &a, &b, &c)?;
    let rounds = job.rounds;
    let answer = format!("stream elements={n} rounds={rounds} digest={digest}");
    let moved = MOVED_BYTES * n as f64 * f64::from(rounds);
    Ok(Output::of_work(answer, moved, seconds))
}

/// Initial element `i` of the first array: of eight elements, three are fresh and five repeat others of their
/// page.
fn initial(seed: u64, i: usize) -> f64 {
    let (page, line, at) = (i / 512, i / 8, i % 8);
    let x = if at < 3 {
        mix64(seed ^ mix64(i as u64))
    } else {
        let run = mix64(seed ^ !(line as u64)) % 4;
        mix64(seed ^ mix64((page as u64) << 8 | run << 3 | at as u64).rotate_left(17))
    };
    (1 + x % 8191) as f64
}

/// Computes `to[i] = f(x[i], y[i])`, divided among threads.
fn each(threads: usize, to: &mut [f64], x: &[f64], y: &[f64], f: impl Fn(f64, f64) -> f64 + Sync) {
    let part = to.len().div_ceil(threads).max(1);
    let kernel = |(to, (x, y)): (&mut [f64], (&[f64], &[f64]))| {
        for (to, (x, y)) in to.iter_mut().zip(x.iter().zip(y)) {
            *to = f(*x, *y);
        }
    };
    let parts = to.chunks_mut(part).zip(x.chunks(part).zip(y.chunks(part)));
    if threads == 1 {
        parts.for_each(kernel);
    } else {
        thread::scope(|scope| {
            let kernel = &kernel;
            parts.for_each(|p| drop(scope.spawn(move || kernel(p))));
        });
    }
}

/// Checks each element after the rounds to the last bit; returns a digest.
fn check(job: &Job, a: &[f64], b: &[f64], c: &[f64]) -> Result<Digest, Failure> {
    let mut digest = Digest::default();
    let growth = 15f64.powi(job.rounds as i32 - 1);
    for (i, ((a, b), c)) in a.iter().zip(b).zip(c).enumerate() {
        let before = initial(job.seed, i) * growth;
        if (*a, *b, *c) != (15.0 * before, 3.0 * before, 4.0 * before) {
            return Err(Failure::Wrong(format!(
                "element {i} of the arrays is ({a}, {b}, {c}); memory was damaged"
            )));
        }
        digest.add(i as u64, a.to_bits());
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rounds: u32, threads: usize) -> Job {
        Job {
            name: "stream",
            mib: 4,
            seed: 1,
            seconds: 1.0,
            threads,
            rounds,
            stride: 1,
        }
    }

    #[test]
    fn the_most_rounds_are_exact_whatever_the_threads() {
        let one = run(&job(ROUNDS_MAX, 1)).unwrap();
        assert_eq!(run(&job(ROUNDS_MAX, 5)).unwrap().answer, one.answer);
        assert_ne!(run(&job(1, 1)).unwrap().answer, one.answer);
    }

    #[test]
    fn a_damaged_element_is_found() {
        let job = job(1, 1);
        let a: Vec<f64> = (0..2000).map(|i| 15.0 * initial(1, i)).collect();
        let b: Vec<f64> = a.iter().map(|a| a / 5.0).collect();
        let mut c: Vec<f64> = a.iter().map(|a| a / 15.0 * 4.0).collect();
        assert!(check(&job, &a, &b, &c).is_ok());
        c[1999] += 1.0;
        assert!(check(&job, &a, &b, &c).is_err());
    }

    #[test]
    fn arrays_shrink_as_data_does() {
        // Doubles of small whole numbers have more zero bits than those of large ones.
        for (round, shares) in [(1.0, 3.2..3.8), (15f64.powi(5), 2.0..3.2)] {
            let (mut stored, mut whole) = (0, 0);
            for page in 0..64 {
                let bytes: Vec<u8> = (page * 512..(page + 1) * 512)
                    .flat_map(|i| (round * initial(9, i)).to_le_bytes())
                    .collect();
                stored += lz4_flex::block::compress(&bytes).len();
                whole += bytes.len();
            }
            let ratio = whole as f64 / stored as f64;
            assert!(shares.contains(&ratio), "{ratio}");
        }
    }
}
