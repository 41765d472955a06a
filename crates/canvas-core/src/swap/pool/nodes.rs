//! Pages in memory of NUMA nodes: uncompressed, in slots of the raw class, in slabs above the pool's own. Pages go
//! there first, as far as a node's limit allows; the pool's owner demotes the oldest of them to the pool.

use core::cell::Cell;

use canvas_types::layout::NODES_MAX;
use canvas_types::sync::{AtomicI64, Ordering};
use canvas_types::{PAGE_SIZE, PageBuf, SwapEntry};

use super::{Kind, LocalPool, Releaser, Scratch, SlotMem, stored_len};
use crate::swap::classes::{HEADER_BYTES, RAW_CLASS, RAW_SLOTS, class_for};
use crate::swap::entry::Record;
use crate::swap::hash::Hash;
use crate::swap::slots::{SLAB_CHARGE_BYTES, SlotForkGuard, SlotId, SlotPool};
use crate::swap::{Lz, PoolBudget};

/// Which slabs of the region are on nodes: those from `first` on, `each` for every node, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSlabs {
    /// The first slab of the first node; those below are the pool's own.
    pub first: usize,
    /// Slabs of a node.
    pub each: usize,
    /// Number of nodes, up to [`NODES_MAX`].
    pub count: usize,
}

/// A page's part of the charge for its slab.
pub const NODE_PAGE_BYTES: i64 = SLAB_CHARGE_BYTES / RAW_SLOTS as i64;

/// Result of demoting a page from a node ([`LocalPool::sink_node`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sank {
    /// It is in the pool now.
    Yes,
    /// The pool has no room for it: it stays.
    NoRoom,
    /// It is on no node, or is damaged, which its load will report.
    NotThis,
}

/// The slots on nodes.
pub(super) struct Nodes<'a> {
    /// The first node's first slab; above all slabs where there are no nodes.
    first: usize,
    each: usize,
    count: usize,
    slots: [SlotPool<'a>; NODES_MAX],
}

impl<'a> Nodes<'a> {
    pub(super) fn none(yield_now: fn()) -> Nodes<'a> {
        Nodes {
            first: usize::MAX,
            each: 1,
            count: 0,
            slots: core::array::from_fn(|_| SlotPool::new(&[], &[], yield_now)),
        }
    }
    #[inline(always)]
    pub(super) fn are_there(&self) -> bool {
        self.count > 0
    }
    pub(super) fn used(&self) -> &[SlotPool<'a>] {
        &self.slots[..self.count]
    }
    /// The node of a slot.
    #[inline(always)]
    pub(super) fn of(&self, slot: SlotId) -> Option<usize> {
        (slot.slab() >= self.first).then(|| (slot.slab() - self.first) / self.each)
    }
    pub(super) fn sum(&self, of: impl Fn(&SlotPool<'a>) -> i64) -> i64 {
        self.used().iter().map(of).sum()
    }
    pub(super) fn fork_guard(&self) -> [Option<SlotForkGuard<'_>>; NODES_MAX] {
        core::array::from_fn(|i| self.used().get(i).map(SlotPool::fork_guard))
    }
}

/// The limit of one node.
struct OfNode<'b, B> {
    budget: &'b B,
    node: usize,
    /// Whether a slab was charged.
    charged: Cell<bool>,
}

impl<B: PoolBudget> PoolBudget for OfNode<'_, B> {
    fn charge(&self, bytes: i64) -> bool {
        let ok = self.budget.charge_node(self.node, bytes);
        self.charged.set(self.charged.get() || ok && bytes > 0);
        ok
    }
    fn open_slab(&self, slab: u32) -> bool {
        self.budget.open_slab(slab)
    }
}

impl<'a, L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'a, L, M, B> {
    /// This pool, with some of its slabs on nodes. Only for a pool that has stored nothing yet.
    pub fn with_nodes(mut self, nodes: NodeSlabs, class_bytes: &'a [AtomicI64]) -> Self {
        let (first, each) = (nodes.first, nodes.each.max(1));
        let count = nodes.count.min(NODES_MAX);
        let whole = self.slots;
        self.slots = whole.part(0..first, class_bytes);
        self.nodes = Nodes {
            first: if count == 0 { usize::MAX } else { first },
            each,
            count,
            slots: core::array::from_fn(|i| {
                let at = first + i * each;
                whole.part(if i < count { at..at + each } else { 0..0 }, &[])
            }),
        };
        self
    }

    fn of_node(&self, node: usize) -> OfNode<'_, B> {
        OfNode {
            budget: &self.budget,
            node,
            charged: Cell::new(false),
        }
    }

    /// Frees a slot, on a node or not.
    pub(super) fn free(&self, slot: SlotId) -> bool {
        let memory = Releaser(&self.mem);
        match self.nodes.of(slot) {
            None => self.slots.free(slot, &self.budget, &memory),
            Some(node) => self
                .nodes
                .used()
                .get(node)
                .is_some_and(|slots| slots.free(slot, &self.of_node(node), &memory)),
        }
    }

    /// Releases the nodes' empty slabs.
    pub fn trim_nodes(&self) {
        for (node, slots) in self.nodes.used().iter().enumerate() {
            slots.trim(&self.of_node(node), &Releaser(&self.mem));
        }
    }

    /// The node of the entry's copy, by its index among the pool's nodes.
    #[inline]
    pub fn node_of(&self, entry: SwapEntry) -> Option<usize> {
        if !self.nodes.are_there() {
            return None;
        }
        match self.entries.get(entry) {
            Record::Stored { slot, .. } => self.nodes.of(slot),
            _ => None,
        }
    }

    /// Bytes charged to a node.
    pub fn node_charged_bytes(&self, node: usize) -> i64 {
        let slots = self.nodes.used().get(node);
        slots.map_or(0, SlotPool::charged_bytes)
    }

    /// Part of that charge that holds no page.
    pub fn node_free_bytes(&self, node: usize) -> i64 {
        self.nodes.used().get(node).map_or(0, |slots| {
            let pages = slots.class_live(RAW_CLASS) as i64;
            slots.charged_bytes() - pages * NODE_PAGE_BYTES
        })
    }

    /// Writes a page whose entry holds `old` to a node: where it is already, otherwise to the first with room. Returns
    /// whether a slot was allocated; `None`, with nothing changed, when no node has room.
    pub(super) fn write_to_node(
        &self,
        entry: SwapEntry,
        old: Record,
        page: &PageBuf,
        digest: &Hash,
    ) -> Option<bool> {
        if let Record::Stored { slot, len, .. } = old
            && let Some(node) = self.nodes.of(slot)
            && !self.budget.node_is_over(node)
        {
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
            self.put_raw(slot, page, digest);
            self.names(entry, slot, PAGE_SIZE as u16);
            return Some(false);
        }
        let slot = (0..self.nodes.count).find_map(|node| self.store_on(node, page, digest))?;
        self.free_slot(old);
        self.names(entry, slot, PAGE_SIZE as u16);
        Some(true)
    }

    /// A slot on a node, with the page in it.
    fn store_on(&self, node: usize, page: &PageBuf, digest: &Hash) -> Option<SlotId> {
        if self.budget.node_is_over(node) {
            return None;
        }
        let (slots, budget) = (&self.nodes.slots[node], self.of_node(node));
        let slot = slots.alloc(RAW_CLASS, &budget)?;
        self.put_raw(slot, page, digest);
        if budget.charged.get() && !self.budget.lies_on_node(node, slot.offset()) {
            // Release its memory at once, because it is ordinary memory of this host.
            slots.free(slot, &budget, &Releaser(&self.mem));
            slots.trim(&budget, &Releaser(&self.mem));
            return None;
        }
        Some(slot)
    }

    fn put_raw(&self, slot: SlotId, page: &PageBuf, digest: &Hash) {
        self.mem.copy_in(self.slots.raw_header_offset(slot), digest);
        self.mem.copy_in(slot.offset(), page);
    }

    /// Moves a copy from its node into the pool, verified and compressed.
    pub fn sink_node(&self, entry: SwapEntry, scratch: &mut Scratch) -> Sank {
        let old = self.entries.get(entry);
        let Record::Stored { slot, len, .. } = old else {
            return Sank::NotThis;
        };
        if self.nodes.of(slot).is_none() {
            return Sank::NotThis;
        }
        let Scratch { lz, base, stored } = scratch;
        let loaded = self.load_slot(slot, usize::from(len), base, stored);
        let (Ok(()), Some(digest)) = (loaded, self.stored_hash(old)) else {
            return Sank::NotThis;
        };
        let (kind, len) = self.compress(base, stored, lz);
        let class = match kind {
            Kind::Raw => RAW_CLASS,
            _ => class_for(HEADER_BYTES + len),
        };
        let room = self.slots.alloc(class, &self.budget);
        let Some(room) = room.or_else(|| self.slots.alloc_larger(class)) else {
            return Sank::NoRoom;
        };
        self.put(entry, room, &digest, kind, len, base, stored);
        self.free_slot(old);
        Sank::Yes
    }
}
