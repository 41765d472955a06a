//! An RMAT graph in compressed sparse rows.
//!
//! The quadrants have Graph500's probabilities (0.57, 0.19, 0.19, 0.05) and a bijection scatters the labels.
//! Each edge is an arc in both directions; loops and repeated edges stay. The list of edges is not stored:
//! each part of the rows regenerates it from the seed, so the graph is the only memory, and is filled part by
//! part.

use crate::Failure;
use crate::rng::{Rng, RngExt, Stream, mix64, stream};

/// Probabilities in 1/256, from the top left; they sum to 256.
const QUADRANTS: [u32; 4] = [146, 49, 49, 12];
/// Levels of the recursion per draw.
const LEVELS: u32 = 2;
/// Parts in which the rows are filled.
const PARTS: usize = 8;

/// Vertices and their neighbours.
pub struct Graph {
    /// Begin of each vertex's neighbours, and the end of the last.
    offsets: Vec<u32>,
    targets: Vec<u32>,
}

impl Graph {
    /// A graph whose neighbours take about `bytes`: 16 to 32 edges per vertex. Fails if there is not enough
    /// memory.
    pub fn of_bytes(bytes: usize, seed: u64) -> Result<Graph, Failure> {
        // Two arcs per edge, four bytes each; the number of arcs must fit in 32 bits.
        let edges = bytes / 8;
        if edges >= 1 << 31 {
            return Err(Failure::Usage(
                "a graph takes at most 16383 MiB; write a smaller --scale or --mib".to_owned(),
            ));
        }
        Graph::new((edges / 16).ilog2(), edges, seed)
    }

    /// A graph of 2^`levels` vertices and `edges` edges.
    pub fn new(levels: u32, edges: usize, seed: u64) -> Result<Graph, Failure> {
        let vertices = 1usize << levels;
        let edge_list = || Edges::new(levels, edges, seed);
        let mut offsets = crate::filled(vertices + 1, 0u32)?;
        edge_list().for_each(|(x, y)| {
            offsets[x as usize + 1] += 1;
            offsets[y as usize + 1] += 1;
        });
        for v in 0..vertices {
            offsets[v + 1] += offsets[v];
        }
        let mut targets = crate::filled(2 * edges, 0u32)?;
        let mut ends = crate::room(vertices)?;
        ends.extend_from_slice(&offsets[..vertices]);
        let shift = levels.saturating_sub(PARTS.ilog2());
        for part in 0..(vertices >> shift) as u32 {
            edge_list().for_each(|(x, y)| {
                for (from, to) in [(x, y), (y, x)] {
                    if from >> shift == part {
                        let end = &mut ends[from as usize];
                        targets[*end as usize] = to;
                        *end += 1;
                    }
                }
            });
        }
        Ok(Graph { offsets, targets })
    }

    /// A graph of the given edges, in both directions.
    #[cfg(test)]
    pub fn of_edges(vertices: usize, edges: &[(u32, u32)]) -> Graph {
        let mut rows = vec![Vec::new(); vertices];
        for &(x, y) in edges {
            rows[x as usize].push(y);
            rows[y as usize].push(x);
        }
        let mut offsets = vec![0];
        for row in &rows {
            offsets.push(offsets.last().unwrap() + row.len() as u32);
        }
        Graph {
            offsets,
            targets: rows.concat(),
        }
    }

    /// Number of vertices.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of arcs, twice that of the edges.
    pub fn arcs(&self) -> usize {
        self.targets.len()
    }

    /// Neighbours of a vertex, with repetitions.
    #[inline]
    pub fn neighbours(&self, v: u32) -> &[u32] {
        &self.targets[self.offsets[v as usize] as usize..self.offsets[v as usize + 1] as usize]
    }
}

/// Generator of the edges, in an order that the seed fixes.
struct Edges {
    rng: Stream,
    levels: u32,
    left: usize,
    seed: u64,
    /// Bits of both ends of an edge for each draw.
    table: Vec<(u8, u8)>,
}

impl Edges {
    fn new(levels: u32, edges: usize, seed: u64) -> Edges {
        Edges {
            rng: stream(seed, 0),
            levels,
            left: edges,
            seed,
            table: table(),
        }
    }

    /// Draws one edge; the labels of its ends are not scattered yet.
    #[inline]
    fn draw(&mut self) -> (u32, u32) {
        let (mut x, mut y) = (0u32, 0u32);
        let (mut bits, mut decided) = (0u64, 0);
        while decided < self.levels {
            if decided % (4 * LEVELS) == 0 {
                bits = self.rng.next_u64();
            }
            let (dx, dy) = self.table[(bits & 0xffff) as usize];
            bits >>= 16;
            (x, y) = (x << LEVELS | u32::from(dx), y << LEVELS | u32::from(dy));
            decided += LEVELS;
        }
        let extra = decided - self.levels;
        (x >> extra, y >> extra)
    }
}

impl Iterator for Edges {
    type Item = (u32, u32);

    #[inline]
    fn next(&mut self) -> Option<(u32, u32)> {
        self.left = self.left.checked_sub(1)?;
        let (x, y) = self.draw();
        let label = |v| scatter(v, self.levels, self.seed);
        Some((label(x), label(y)))
    }
}

/// For each of 2^16 draws the next [`LEVELS`] bits of both ends.
fn table() -> Vec<(u8, u8)> {
    let mut table = Vec::with_capacity(1 << 16);
    for (first, p) in QUADRANTS.iter().enumerate() {
        for (second, q) in QUADRANTS.iter().enumerate() {
            let (first, second) = (first as u8, second as u8);
            let x = (first >> 1) << 1 | second >> 1;
            let y = (first & 1) << 1 | second & 1;
            table.extend((0..p * q).map(|_| (x, y)));
        }
    }
    table
}

/// A bijection of numbers of `bits` bits, so that hubs are not neighbours in memory.
#[inline]
fn scatter(v: u32, bits: u32, seed: u64) -> u32 {
    let mask = (1u32 << bits) - 1;
    let odd = (mix64(seed ^ 0x5ca7) as u32) | 1;
    let half = (bits / 2).max(1);
    let mut x = v.wrapping_mul(odd) & mask;
    x ^= x >> half;
    x = x.wrapping_mul(0x9e37_79b1) & mask;
    x ^ (x >> half)
}

/// Draws a vertex with neighbours.
pub fn root(graph: &Graph, rng: &mut Stream) -> u32 {
    loop {
        let v = rng.random_range(0..graph.len() as u32);
        if !graph.neighbours(v).is_empty() {
            return v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rows_hold_the_edges_and_no_other(
            levels in 1u32..10, edges in 1usize..3000, seed in any::<u64>()
        ) {
            let graph = Graph::new(levels, edges, seed).unwrap();
            let mut want = vec![Vec::new(); 1 << levels];
            for (x, y) in Edges::new(levels, edges, seed) {
                want[x as usize].push(y);
                want[y as usize].push(x);
            }
            prop_assert_eq!(graph.arcs(), 2 * edges);
            for (v, row) in want.iter().enumerate() {
                prop_assert_eq!(graph.neighbours(v as u32), row.as_slice());
            }
        }

        #[test]
        fn labels_are_a_permutation(bits in 1u32..14, seed in any::<u64>()) {
            let mut all: Vec<u32> = (0..1 << bits).map(|v| scatter(v, bits, seed)).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..1 << bits));
        }
    }

    #[test]
    fn quadrants_have_their_shares_at_each_level() {
        let (levels, n) = (5, 200_000);
        let mut edges = Edges::new(levels, n, 11);
        let mut counts = vec![[0f64; 4]; levels as usize];
        for _ in 0..n {
            let (x, y) = edges.draw();
            for (level, count) in counts.iter_mut().enumerate() {
                count[((x >> level) & 1) as usize * 2 + ((y >> level) & 1) as usize] += 1.0;
            }
        }
        for count in counts {
            for (got, want) in count.iter().zip([0.57, 0.19, 0.19, 0.05]) {
                assert!((got / n as f64 - want).abs() < 0.01, "{count:?}");
            }
        }
    }

    #[test]
    fn few_vertices_have_many_neighbours_and_many_few() {
        let (levels, per_vertex) = (14, 16);
        let graph = Graph::new(levels, per_vertex << levels, 3).unwrap();
        let mut degrees: Vec<usize> = (0..graph.len() as u32)
            .map(|v| graph.neighbours(v).len())
            .collect();
        degrees.sort_unstable();
        assert_eq!(degrees.iter().sum::<usize>(), (2 * per_vertex) << levels);
        let top: usize = degrees.iter().rev().take(graph.len() / 100).sum();
        let share = top as f64 / graph.arcs() as f64;
        // A uniform graph would have about a seventieth.
        assert!((0.15..0.5).contains(&share), "{share}");
        assert!(
            degrees[graph.len() / 2] < 2 * per_vertex,
            "the median is below the mean"
        );
        // The hub is the first vertex before scattering: about 0.76^14 of the ends of edges.
        let most = *degrees.last().unwrap() as f64;
        let want = ((2 * per_vertex) << levels) as f64 * 0.76f64.powi(levels as i32);
        assert!((most / want - 1.0).abs() < 0.1, "{most} {want}");
    }

    #[test]
    fn bytes_are_the_neighbours() {
        let graph = Graph::of_bytes(4 << 20, 1).unwrap();
        assert_eq!(graph.arcs() * 4, 4 << 20);
        let each = graph.arcs() / 2 / graph.len();
        assert!((16..=32).contains(&each), "{each}");
        assert!(Graph::of_bytes(1 << 34, 1).is_err());
    }
}
