//! Shared by the tests of the pool: one over plain vectors, and pages of every kind.
#![allow(dead_code)]

use canvas_core::swap::classes::{SLAB_BYTES, region_bytes};
use canvas_core::swap::digests::words_for;
use canvas_core::swap::hash::{PageHash, portable};
use canvas_core::swap::pool::NodeSlabs;
use canvas_core::swap::slots::SLAB_WORDS;
use canvas_core::swap::{Chosen, LocalPool, Lz, LzScratch, PoolArrays, PoolBudget, SlotMem};
use canvas_types::sync::{AtomicBool, AtomicI64, AtomicU64, Ordering, Threads};
use canvas_types::{Codec, ExtentRef, PAGE_SIZE, PageBuf};
use std::sync::Mutex;

/// lz4 in safe Rust.
pub struct Lz4;

impl Lz for Lz4 {
    fn compress(&self, src: &PageBuf, dst: &mut [u8], _: &mut LzScratch) -> Option<usize> {
        let mut out = vec![0; lz4_flex::block::get_maximum_output_size(PAGE_SIZE)];
        let n = lz4_flex::block::compress_into(src, &mut out).unwrap();
        dst.get_mut(..n)?.copy_from_slice(&out[..n]);
        Some(n)
    }
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        matches!(lz4_flex::block::decompress_into(src, dst), Ok(PAGE_SIZE))
    }
}

/// Slot memory, and how many slabs were released: those are filled with junk, since nobody may read them.
pub struct Mem(Mutex<Vec<u8>>, pub AtomicU64);

impl Mem {
    pub fn new(slabs: usize) -> Mem {
        Mem(Mutex::new(vec![0; region_bytes(slabs)]), AtomicU64::new(0))
    }
    pub fn flip(&self, off: usize, bit: u32) {
        self.0.lock().unwrap()[off] ^= 1 << bit;
    }
}

impl SlotMem for &Mem {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        dst.copy_from_slice(&self.0.lock().unwrap()[off..off + dst.len()]);
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        self.0.lock().unwrap()[off..off + src.len()].copy_from_slice(src);
    }
    fn release(&self, off: usize, len: usize) {
        assert!(off.is_multiple_of(SLAB_BYTES) && len.is_multiple_of(SLAB_BYTES));
        self.1
            .fetch_add((len / SLAB_BYTES) as u64, Ordering::Relaxed);
        self.0.lock().unwrap()[off..off + len].fill(0xdb);
    }
}

/// A limit in bytes.
pub struct Budget {
    pub used: AtomicI64,
    pub limit: AtomicI64,
    /// Extents of far copies that are no longer needed, one for each page.
    pub dropped_refs: Mutex<Vec<u32>>,
    /// The limits of nodes.
    pub node_used: [AtomicI64; NODES],
    pub node_limit: [AtomicI64; NODES],
    /// New slabs on a node are placed elsewhere.
    pub elsewhere: AtomicBool,
    /// Loads from nodes.
    pub node_loads: AtomicU64,
}

/// Nodes of a world, and slabs of each.
pub const NODES: usize = 2;
pub const NODE_SLABS: usize = 3;

impl Budget {
    pub fn new(limit: i64) -> Budget {
        Budget {
            used: AtomicI64::new(0),
            limit: AtomicI64::new(limit),
            dropped_refs: Mutex::default(),
            node_used: Default::default(),
            node_limit: Default::default(),
            elsewhere: AtomicBool::new(false),
            node_loads: AtomicU64::new(0),
        }
    }
}

impl PoolBudget for Budget {
    fn charge(&self, bytes: i64) -> bool {
        let now = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes > 0 && now > self.limit.load(Ordering::Relaxed) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
    fn charge_past_bound(&self, bytes: i64) -> bool {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        true
    }
    fn drop_extent_ref(&self, place: ExtentRef) {
        self.dropped_refs.lock().unwrap().push(place.extent);
    }
    fn charge_node(&self, node: usize, bytes: i64) -> bool {
        let used = &self.node_used[node];
        let now = used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes > 0 && now > self.node_limit[node].load(Ordering::Relaxed) {
            used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
    fn node_is_over(&self, node: usize) -> bool {
        let used = self.node_used[node].load(Ordering::Relaxed);
        used > self.node_limit[node].load(Ordering::Relaxed)
    }
    fn lies_on_node(&self, _: usize, _: usize) -> bool {
        !self.elsewhere.load(Ordering::Relaxed)
    }
    fn loaded_from_node(&self) {
        self.node_loads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything a pool borrows.
pub struct World {
    pub entries: Vec<AtomicU64>,
    pub slab_words: Vec<AtomicU64>,
    pub class_bytes: Vec<AtomicI64>,
    pub digests: Vec<AtomicU64>,
    pub key: PageBuf,
    pub mem: Mem,
    pub budget: Budget,
    /// Slabs of the pool itself, where there are nodes.
    pub own_slabs: Option<usize>,
}

pub type Pool<'a> = LocalPool<'a, Chosen<Lz4>, &'a Mem, &'a Budget>;

impl World {
    pub fn new(entries: usize, slabs: usize, budget_bytes: i64) -> World {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        World {
            entries: words(entries + 1),
            slab_words: words(slabs * SLAB_WORDS),
            digests: words(words_for(entries)),
            class_bytes: (0..32).map(|_| AtomicI64::new(0)).collect(),
            key: page_of(0x6b_6579, PAGE_SIZE),
            mem: Mem::new(slabs),
            budget: Budget::new(budget_bytes),
            own_slabs: None,
        }
    }
    /// As above, with nodes without a limit yet above this many slabs.
    pub fn with_nodes(entries: usize, slabs: usize, budget_bytes: i64) -> World {
        let all = slabs + NODES * NODE_SLABS;
        World {
            own_slabs: Some(slabs),
            ..World::new(entries, all, budget_bytes)
        }
    }
    pub fn pool(&self) -> Pool<'_> {
        self.pool_with(Codec::Lz4)
    }
    pub fn pool_with(&self, codec: Codec) -> Pool<'_> {
        let arrays = PoolArrays {
            entries: &self.entries,
            slab_words: &self.slab_words,
            class_bytes: &self.class_bytes,
            digests: &self.digests,
        };
        let lz = Chosen { lz: Lz4, codec };
        let hash = PageHash::new(&self.key, portable);
        let threads = Threads {
            yield_now: std::thread::yield_now,
            number: || 0,
        };
        let pool = LocalPool::new(arrays, hash, lz, &self.mem, &self.budget, threads);
        match self.own_slabs {
            None => pool,
            Some(first) => pool.with_nodes(
                NodeSlabs {
                    first,
                    each: NODE_SLABS,
                    count: NODES,
                },
                &self.class_bytes,
            ),
        }
    }
}

/// A small generator, so that a number stands for a page.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A page: `random_bytes` of noise, at its start, and the rest repeated from a short phrase.
pub fn page_of(seed: u64, random_bytes: usize) -> PageBuf {
    let mut rng = Rng(seed);
    let phrase = rng.next().to_le_bytes();
    core::array::from_fn(|i| {
        if i < random_bytes {
            rng.next() as u8
        } else {
            phrase[i % 7]
        }
    })
}

/// A page of one value.
pub fn same(pattern: u64) -> PageBuf {
    core::array::from_fn(|i| pattern.to_ne_bytes()[i % 8])
}
