//! Linpack: a dense system of equations, solved by blocked LU with partial pivoting.
//!
//! The matrix is one vector of rows; ndarray's matrix product updates its trailing part. The right side is
//! made from a known solution, and the residual is judged as in HPL. An operation is one floating-point
//! operation, counted as HPL counts them.

use std::ops::Range;
use std::time::Instant;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, Slice};

use crate::digest::Digest;
use crate::output::Output;
use crate::rng::{RngExt, Stream, stream};
use crate::{Failure, Job};

/// Columns eliminated together.
const BLOCK: usize = 96;
/// HPL's bound on the scaled residual.
const RESIDUAL_MAX: f64 = 16.0;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let n = (job.bytes() / size_of::<f64>()).isqrt();
    let mut values = crate::room(n * n)?;
    values.extend((0..n).flat_map(|i| row(job.seed, i, n)));
    let mut a = Array2::from_shape_vec((n, n), values).expect("n times n values");
    let want: Vec<f64> = (0..n).map(|i| solution(job.seed, i)).collect();
    let b = product(&a, &want);

    let began = Instant::now();
    let pivots = factor(&mut a)?;
    let x = solve(&a, &pivots, &b);
    let seconds = began.elapsed().as_secs_f64();
    drop(a);

    let scaled = residual(job.seed, &x, &b);
    if scaled.is_nan() || scaled > RESIDUAL_MAX {
        return Err(Failure::Wrong(format!(
            "the scaled residual of the solution is {scaled:.3e} and must be at most {RESIDUAL_MAX}"
        )));
    }
    // The solution has whole numbers, so rounding errors cannot change the answer.
    let mut digest = Digest::default();
    for (i, (x, want)) in x.iter().zip(&want).enumerate() {
        if (x - want).abs() > 0.25 {
            return Err(Failure::Wrong(format!(
                "unknown {i} is {x} and must be {want}"
            )));
        }
        digest.add(i as u64, x.round() as i64 as u64);
    }
    let (n, m) = (n as f64, n);
    let flops = 2.0 / 3.0 * n * n * n + 1.5 * n * n;
    let answer = format!("linpack unknowns={m} digest={digest}");
    Ok(Output::of_work(answer, flops, seconds))
}

/// Row `i` of the matrix.
fn row(seed: u64, i: usize, n: usize) -> impl Iterator<Item = f64> {
    let mut rng: Stream = stream(seed, i as u64);
    (0..n).map(move |_| rng.random::<f64>() - 0.5)
}

/// Unknown `i`: a whole number from 1 to 9.
fn solution(seed: u64, i: usize) -> f64 {
    f64::from(stream(!seed, i as u64).random_range(1..10u32))
}

/// The matrix times `x`.
fn product(a: &Array2<f64>, x: &[f64]) -> Vec<f64> {
    let row = |row: ndarray::ArrayView1<f64>| row.iter().zip(x).map(|(a, x)| a * x).sum();
    a.rows().into_iter().map(row).collect()
}

/// Replaces `a` by its LU factors; returns for each row the row exchanged with it.
fn factor(a: &mut Array2<f64>) -> Result<Vec<usize>, Failure> {
    let n = a.nrows();
    let mut pivots = Vec::with_capacity(n);
    for k in (0..n).step_by(BLOCK) {
        let next = (k + BLOCK).min(n);
        // Eliminates the panel in a contiguous copy.
        let mut panel = part(a, k..n, k..next).to_owned();
        for j in 0..next - k {
            let values = panel.as_slice_mut().expect("a copy in rows");
            let p = eliminate(values, next - k, j).ok_or_else(|| {
                Failure::Wrong(format!("column {} of the matrix has no pivot", k + j))
            })?;
            pivots.push(k + p);
            exchange(rows(a), n, k + j, k + p);
        }
        part_mut(a, k..n, k..next).assign(&panel);
        if next == n {
            break;
        }
        let (lower, below) = panel.view().split_at(Axis(0), next - k);
        // The block row of U: forward substitution, a row at a time.
        let mut upper = part(a, k..next, next..n).to_owned();
        for i in 1..next - k {
            let (above, mut rest) = upper.view_mut().split_at(Axis(0), i);
            let mut row = rest.row_mut(0);
            for (l, done) in above.rows().into_iter().enumerate() {
                row.scaled_add(-lower[[i, l]], &done);
            }
        }
        part_mut(a, k..next, next..n).assign(&upper);
        let mut trailing = part_mut(a, next..n, next..n);
        general_mat_mul(-1.0, &below, &upper, 1.0, &mut trailing);
    }
    Ok(pivots)
}

/// A view of a part of a matrix. (The compiler counts ndarray's `s!` as unsafe code.)
fn part(a: &Array2<f64>, rows: Range<usize>, columns: Range<usize>) -> ArrayView2<'_, f64> {
    a.slice_each_axis(|axis| Slice::from([&rows, &columns][axis.axis.index()].clone()))
}

/// A mutable view of a part of a matrix.
fn part_mut(
    a: &mut Array2<f64>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> ArrayViewMut2<'_, f64> {
    a.slice_each_axis_mut(|axis| Slice::from([&rows, &columns][axis.axis.index()].clone()))
}

/// All elements, row after row.
fn rows(a: &mut Array2<f64>) -> &mut [f64] {
    a.as_slice_mut().expect("the matrix lies in rows")
}

/// Eliminates column `j` of a panel of rows of `width`; returns the row exchanged with row `j`.
fn eliminate(panel: &mut [f64], width: usize, j: usize) -> Option<usize> {
    let size = |i: &usize| panel[i * width + j].abs();
    let p = (j..panel.len() / width).max_by(|x, y| size(x).total_cmp(&size(y)))?;
    if size(&p) == 0.0 || !size(&p).is_finite() {
        return None;
    }
    exchange(panel, width, j, p);
    let (above, below) = panel.split_at_mut((j + 1) * width);
    let right = &above[j * width + j..];
    for row in below.chunks_exact_mut(width) {
        let (factor, rest) = row[j..].split_first_mut()?;
        *factor /= right[0];
        for (x, r) in rest.iter_mut().zip(&right[1..]) {
            *x -= *factor * r;
        }
    }
    Some(p)
}

/// Exchanges two rows of `width`.
fn exchange(values: &mut [f64], width: usize, i: usize, p: usize) {
    if i != p {
        let (upper, lower) = values.split_at_mut(i.max(p) * width);
        upper[i.min(p) * width..][..width].swap_with_slice(&mut lower[..width]);
    }
}

/// Solves the system with its LU factors.
fn solve(lu: &Array2<f64>, pivots: &[usize], b: &[f64]) -> Vec<f64> {
    let n = b.len();
    let mut x = b.to_vec();
    for (i, p) in pivots.iter().enumerate() {
        x.swap(i, *p);
    }
    let values = lu.as_slice().expect("the matrix lies in rows");
    let dot = |row: &[f64], x: &[f64]| -> f64 { row.iter().zip(x).map(|(a, x)| a * x).sum() };
    for (i, row) in values.chunks_exact(n).enumerate() {
        x[i] -= dot(&row[..i], &x[..i]);
    }
    for (i, row) in values.chunks_exact(n).enumerate().rev() {
        x[i] = (x[i] - dot(&row[i + 1..], &x[i + 1..])) / row[i];
    }
    x
}

/// HPL's scaled residual, with a freshly generated matrix.
fn residual(seed: u64, x: &[f64], b: &[f64]) -> f64 {
    let n = b.len();
    let largest = |v: &[f64]| v.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let (mut worst, mut norm_a) = (0.0f64, 0.0f64);
    for (i, b) in b.iter().enumerate() {
        let (mut sum, mut norm) = (0.0, 0.0);
        for (a, x) in row(seed, i, n).zip(x) {
            sum += a * x;
            norm += a.abs();
        }
        // `f64::max` would drop a NaN.
        if sum.is_nan() {
            return f64::NAN;
        }
        worst = worst.max((sum - b).abs());
        norm_a = norm_a.max(norm);
    }
    worst / (f64::EPSILON * (norm_a * largest(x) + largest(b)) * n as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(seed: u64, n: usize) -> Array2<f64> {
        Array2::from_shape_vec((n, n), (0..n).flat_map(|i| row(seed, i, n)).collect()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Sizes around the block's, to cover full and partial blocks.
        #[test]
        fn the_factors_multiply_to_the_matrix(n in 1usize..260, seed in any::<u64>()) {
            let a = matrix(seed, n);
            let mut lu = a.clone();
            let pivots = factor(&mut lu).unwrap();
            let lower = Array2::from_shape_fn((n, n), |(i, j)| match i.cmp(&j) {
                std::cmp::Ordering::Greater => lu[[i, j]],
                std::cmp::Ordering::Equal => 1.0,
                std::cmp::Ordering::Less => 0.0,
            });
            let upper = Array2::from_shape_fn((n, n), |(i, j)| if i <= j { lu[[i, j]] } else { 0.0 });
            let mut permuted = a;
            for (i, p) in pivots.iter().enumerate() {
                exchange(rows(&mut permuted), n, i, *p);
            }
            let product = lower.dot(&upper);
            for (got, want) in product.iter().zip(&permuted) {
                prop_assert!((got - want).abs() < 1e-10 * n as f64, "{} {}", got, want);
            }
            prop_assert!(lower.iter().all(|x| x.abs() <= 1.0), "the pivot is the largest");
        }
    }

    #[test]
    fn a_wrong_solution_has_a_large_residual() {
        let n = 120;
        let mut a = matrix(4, n);
        let want: Vec<f64> = (0..n).map(|i| solution(4, i)).collect();
        let b = product(&a, &want);
        let pivots = factor(&mut a).unwrap();
        let mut x = solve(&a, &pivots, &b);
        assert!(residual(4, &x, &b) < RESIDUAL_MAX);
        x[60] += 1e-6;
        assert!(residual(4, &x, &b) > RESIDUAL_MAX);
        x[60] = f64::NAN;
        assert!(residual(4, &x, &b).is_nan());
    }

    #[test]
    fn a_singular_matrix_is_refused() {
        let mut a = matrix(4, 100);
        let twin = a.row(3).to_owned();
        a.row_mut(50).assign(&twin);
        a.column_mut(7).fill(0.0);
        assert!(factor(&mut a).is_err());
    }
}
