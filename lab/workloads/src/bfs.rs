//! Breadth-first search over an RMAT graph, checked as Graph500 checks.
//!
//! An operation is one arc traversed.

use std::time::Instant;

use crate::digest::Digest;
use crate::output::Output;
use crate::rmat::{Graph, root};
use crate::rng::stream;
use crate::{Failure, Job};

/// Parent of a vertex that was not reached.
const NONE: u32 = u32::MAX;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let graph = Graph::of_bytes(job.bytes(), job.seed)?;
    let mut rng = stream(job.seed, 1);
    let mut digest = Digest::default();
    let (mut seconds, mut arcs, mut reached) = (0.0, 0u64, 0u64);
    let mut parents = crate::filled(graph.len(), NONE)?;
    let mut order = crate::room(graph.len())?;
    for round in 0..job.rounds {
        let root = root(&graph, &mut rng);
        let began = Instant::now();
        arcs += search(&graph, root, &mut parents, &mut order);
        seconds += began.elapsed().as_secs_f64();
        let levels = check(&graph, root, &parents, &order)?;
        reached += order.len() as u64;
        for (v, level) in levels.iter().enumerate() {
            digest.add(u64::from(round) << 32 | v as u64, u64::from(*level));
        }
    }
    let answer = format!(
        "bfs vertices={} arcs={} reached={reached} digest={digest}",
        graph.len(),
        graph.arcs()
    );
    Ok(Output::of_work(answer, arcs as f64, seconds))
}

/// Finds every vertex reachable from `root`. Appends the vertices to `order`, sets the parent of each (the
/// root's is itself), and returns the number of arcs traversed.
fn search(graph: &Graph, root: u32, parents: &mut [u32], order: &mut Vec<u32>) -> u64 {
    parents.fill(NONE);
    order.clear();
    parents[root as usize] = root;
    order.push(root);
    let (mut next, mut arcs) = (0, 0);
    while let Some(&v) = order.get(next) {
        next += 1;
        let neighbours = graph.neighbours(v);
        arcs += neighbours.len() as u64;
        for &w in neighbours {
            let parent = &mut parents[w as usize];
            if *parent == NONE {
                *parent = v;
                order.push(w);
            }
        }
    }
    arcs
}

/// Checks the tree and returns each vertex's distance from the root ([`NONE`] if not reached). Every parent
/// must be a neighbour one level nearer, and no arc may span more than one level or leave the reached part.
fn check(graph: &Graph, root: u32, parents: &[u32], order: &[u32]) -> Result<Vec<u32>, Failure> {
    let wrong = |what: String| Err(Failure::Wrong(format!("the search from {root}: {what}")));
    let mut levels = crate::filled(graph.len(), NONE)?;
    for &v in order {
        let parent = parents[v as usize];
        levels[v as usize] = if v == root {
            0
        } else if parent != NONE && levels[parent as usize] != NONE {
            levels[parent as usize] + 1
        } else {
            return wrong(format!("vertex {v} was found before its parent {parent}"));
        };
    }
    for v in 0..graph.len() as u32 {
        let (level, parent) = (levels[v as usize], parents[v as usize]);
        let mut has_parent = v == root || level == NONE;
        for &w in graph.neighbours(v) {
            has_parent |= w == parent;
            let other = levels[w as usize];
            if (level == NONE) != (other == NONE) || level.abs_diff(other) > 1 {
                return wrong(format!("the edge {v}-{w} spans levels {level} and {other}"));
            }
        }
        if !has_parent {
            return wrong(format!(
                "vertex {v} is not a neighbour of its parent {parent}"
            ));
        }
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Distances by a textbook search over the list of edges.
    fn oracle(n: usize, edges: &[(u32, u32)], root: u32) -> Vec<u32> {
        let mut levels = vec![NONE; n];
        levels[root as usize] = 0;
        let mut queue = VecDeque::from([root]);
        while let Some(v) = queue.pop_front() {
            for &(x, y) in edges {
                for (from, to) in [(x, y), (y, x)] {
                    if from == v && levels[to as usize] == NONE {
                        levels[to as usize] = levels[v as usize] + 1;
                        queue.push_back(to);
                    }
                }
            }
        }
        levels
    }

    fn graphs() -> impl Strategy<Value = (usize, Vec<(u32, u32)>)> {
        (1usize..40).prop_flat_map(|n| {
            let vertex = 0..n as u32;
            let edges = prop::collection::vec((vertex.clone(), vertex), 0..100);
            (Just(n), edges)
        })
    }

    proptest! {
        #[test]
        fn distances_are_those_of_a_queue((n, edges) in graphs(), at in any::<prop::sample::Index>()) {
            let root = at.index(n) as u32;
            let graph = Graph::of_edges(n, &edges);
            let (mut parents, mut order) = (vec![NONE; n], Vec::new());
            let arcs = search(&graph, root, &mut parents, &mut order);
            let levels = check(&graph, root, &parents, &order).unwrap();
            prop_assert_eq!(&levels, &oracle(n, &edges, root));
            let looked: usize = order.iter().map(|v| graph.neighbours(*v).len()).sum();
            prop_assert_eq!(arcs, looked as u64);
        }
    }

    #[test]
    fn wrong_trees_are_found() {
        // A path 0-1-2-3 and an isolated vertex.
        let graph = Graph::of_edges(5, &[(0, 1), (1, 2), (2, 3)]);
        let right = [0, 0, 1, 2, NONE];
        assert_eq!(
            check(&graph, 0, &right, &[0, 1, 2, 3]).unwrap(),
            [0, 1, 2, 3, NONE]
        );
        for (parents, order) in [
            ([0, 0, 1, 1, NONE], &[0, 1, 2, 3][..]),
            ([0, 0, 1, NONE, NONE], &[0, 1, 2]),
            ([0, 0, 1, 2, 3], &[0, 1, 2, 3, 4]),
            ([0, 2, 1, 2, NONE], &[0, 1, 2, 3]),
        ] {
            assert!(check(&graph, 0, &parents, order).is_err(), "{parents:?}");
        }
    }
}
