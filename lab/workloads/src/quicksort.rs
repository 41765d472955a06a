//! Quicksort of random ints.
//!
//! One thread sorts one vector of 64-bit words with the values of C's `rand` (31 bits). An operation is one
//! int sorted.

use std::time::Instant;

use crate::digest::Digest;
use crate::output::Output;
use crate::rng::{Rng, stream};
use crate::{Failure, Job};

/// Parts shorter than this are sorted by insertion, which is faster.
const SMALL: usize = 24;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let n = job.bytes() / size_of::<u64>();
    let mut rng = stream(job.seed, 0);
    let mut values = crate::room(n)?;
    values.extend((0..n).map(|_| rng.next_u64() >> 33));
    let before = sum(&values);
    let began = Instant::now();
    quicksort(&mut values);
    let seconds = began.elapsed().as_secs_f64();
    check(&values, before)?;
    let mut digest = Digest::default();
    for (i, v) in values.iter().enumerate() {
        digest.add(i as u64, *v);
    }
    let answer = format!("quicksort ints={n} digest={digest}");
    Ok(Output::of_work(answer, n as f64, seconds))
}

/// A digest that does not depend on the order.
fn sum(values: &[u64]) -> Digest {
    let mut digest = Digest::default();
    values.iter().for_each(|v| digest.add(0, *v));
    digest
}

/// Checks that the values are in order, and the same as `before`.
fn check(values: &[u64], before: Digest) -> Result<(), Failure> {
    if let Some(i) = values.windows(2).position(|w| w[0] > w[1]) {
        return Err(Failure::Wrong(format!(
            "the ints are out of order at place {i} after sorting"
        )));
    }
    if sum(values) != before {
        return Err(Failure::Wrong("sorting changed the ints".to_owned()));
    }
    Ok(())
}

/// Quicksort: Hoare's partition around the median of three, insertion sort for small parts.
fn quicksort(mut v: &mut [u64]) {
    while v.len() > SMALL {
        let at = partition(v);
        let (left, right) = std::mem::take(&mut v).split_at_mut(at);
        // Recursing into the smaller part keeps the stack logarithmic.
        let (small, large) = if left.len() < right.len() {
            (left, right)
        } else {
            (right, left)
        };
        quicksort(small);
        v = large;
    }
    for i in 1..v.len() {
        let x = v[i];
        let mut at = i;
        while at > 0 && v[at - 1] > x {
            v[at] = v[at - 1];
            at -= 1;
        }
        v[at] = x;
    }
}

/// Splits `v` into two non-empty parts; no value on the left is larger than one on the right.
fn partition(v: &mut [u64]) -> usize {
    let (mid, last) = (v.len() / 2, v.len() - 1);
    if v[mid] < v[0] {
        v.swap(mid, 0);
    }
    if v[last] < v[0] {
        v.swap(last, 0);
    }
    if v[last] < v[mid] {
        v.swap(last, mid);
    }
    let pivot = v[mid];
    // The ends bound both scans, and equal values stop them, so equal values split evenly.
    let (mut i, mut j) = (0, last);
    loop {
        i += 1;
        while v[i] < pivot {
            i += 1;
        }
        j -= 1;
        while v[j] > pivot {
            j -= 1;
        }
        if i >= j {
            return i;
        }
        v.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorts_as_the_library_does(
            mut v in prop_oneof![
                prop::collection::vec(any::<u64>(), 0..2000),
                prop::collection::vec(0u64..5, 0..2000),
            ]
        ) {
            let mut want = v.clone();
            want.sort_unstable();
            quicksort(&mut v);
            prop_assert_eq!(v, want);
        }
    }

    #[test]
    fn patterns_that_are_hard_for_quicksorts() {
        let n = 100_000u64;
        let cases: [Vec<u64>; 4] = [
            (0..n).collect(),
            (0..n).rev().collect(),
            vec![7; n as usize],
            (0..n).map(|i| (i % 1000) ^ (i / 7)).collect(),
        ];
        for mut v in cases {
            let mut want = v.clone();
            want.sort_unstable();
            quicksort(&mut v);
            assert!(v == want);
        }
    }

    #[test]
    fn disorder_and_loss_are_found() {
        let v = [1, 2, 3, 3, 9];
        assert!(check(&v, sum(&[9, 3, 3, 2, 1])).is_ok());
        assert!(check(&[1, 3, 2, 3, 9], sum(&v)).is_err());
        assert!(check(&[1, 2, 2, 3, 9], sum(&v)).is_err());
    }
}
