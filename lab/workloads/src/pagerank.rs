//! PageRank over an RMAT graph, a fixed number of iterations.
//!
//! Each vertex pulls from its neighbours in the order of its row, so each sum has a fixed order and the ranks
//! agree to the last bit on every host. An operation is an arc.

use std::time::Instant;

use crate::digest::Digest;
use crate::output::Output;
use crate::rmat::Graph;
use crate::{Failure, Job};

const DAMPING: f64 = 0.85;
/// The answer has the ranks rounded to this fraction of the mean rank.
const STEPS: f64 = 1e6;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let graph = Graph::of_bytes(job.bytes(), job.seed)?;
    let began = Instant::now();
    let ranks = rank(&graph, job.rounds)?;
    let seconds = began.elapsed().as_secs_f64();
    check(&ranks)?;
    let n = graph.len() as f64;
    let mut digest = Digest::default();
    for (v, r) in ranks.iter().enumerate() {
        digest.add(v as u64, (r * n * STEPS).round() as u64);
    }
    let top = (0..ranks.len()).max_by(|x, y| ranks[*x].total_cmp(&ranks[*y]));
    let answer = format!(
        "pagerank vertices={} arcs={} rounds={} top={} digest={digest}",
        graph.len(),
        graph.arcs(),
        job.rounds,
        top.unwrap_or_default()
    );
    let arcs = graph.arcs() as f64 * f64::from(job.rounds);
    Ok(Output::of_work(answer, arcs, seconds))
}

/// Computes the ranks after `rounds` iterations. All vertices share the rank of those without neighbours.
fn rank(graph: &Graph, rounds: u32) -> Result<Vec<f64>, Failure> {
    let n = graph.len();
    let mut ranks = crate::filled(n, 1.0 / n as f64)?;
    let mut gives = crate::filled(n, 0.0f64)?;
    for _ in 0..rounds {
        let mut idle = 0.0;
        for (v, give) in gives.iter_mut().enumerate() {
            let degree = graph.neighbours(v as u32).len();
            if degree == 0 {
                idle += ranks[v];
            }
            *give = ranks[v] / degree.max(1) as f64;
        }
        let base = (1.0 - DAMPING + DAMPING * idle) / n as f64;
        for (v, rank) in ranks.iter_mut().enumerate() {
            let neighbours = graph.neighbours(v as u32);
            let pulled: f64 = neighbours.iter().map(|w| gives[*w as usize]).sum();
            *rank = base + DAMPING * pulled;
        }
    }
    Ok(ranks)
}

fn check(ranks: &[f64]) -> Result<(), Failure> {
    let sum: f64 = ranks.iter().sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(Failure::Wrong(format!(
            "the ranks sum to {sum} and must sum to 1"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranks computed with a dense matrix.
    fn oracle(n: usize, edges: &[(u32, u32)], rounds: u32) -> Vec<f64> {
        let mut arcs = vec![vec![0.0; n]; n];
        for &(x, y) in edges {
            arcs[x as usize][y as usize] += 1.0;
            arcs[y as usize][x as usize] += 1.0;
        }
        for row in &mut arcs {
            let sum: f64 = row.iter().sum();
            row.iter_mut()
                .for_each(|x| *x = if sum > 0.0 { *x / sum } else { 1.0 / n as f64 });
        }
        let mut ranks = vec![1.0 / n as f64; n];
        for _ in 0..rounds {
            ranks = (0..n)
                .map(|v| {
                    let pulled: f64 = (0..n).map(|w| ranks[w] * arcs[w][v]).sum();
                    (1.0 - DAMPING) / n as f64 + DAMPING * pulled
                })
                .collect();
        }
        ranks
    }

    proptest! {
        #[test]
        fn ranks_are_those_of_the_matrix_and_sum_to_one(
            n in 1usize..30, pairs in prop::collection::vec((0u32..30, 0u32..30), 0..80), rounds in 1u32..8
        ) {
            let edges: Vec<_> = pairs.into_iter().map(|(x, y)| (x % n as u32, y % n as u32)).collect();
            let ranks = rank(&Graph::of_edges(n, &edges), rounds).unwrap();
            prop_assert!(check(&ranks).is_ok());
            for (got, want) in ranks.iter().zip(oracle(n, &edges, rounds)) {
                prop_assert!((got - want).abs() < 1e-12, "{} {}", got, want);
            }
        }
    }

    #[test]
    fn a_lost_rank_is_found() {
        let mut ranks = rank(&Graph::of_edges(4, &[(0, 1), (1, 2)]), 5).unwrap();
        ranks[2] = 0.0;
        assert!(check(&ranks).is_err());
    }
}
