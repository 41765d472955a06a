//! Pages in memory of NUMA nodes: uncompressed, in slots of the raw class, in slabs above the pool's own. Pages go
//! there first, as far as a node's limit allows; the pool's owner demotes the oldest of them to the pool.

use core::cell::Cell;

use canvas_types::layout::NODES_MAX;

use crate::swap::classes::RAW_SLOTS;
use crate::swap::slots::{PoolBudget, SLAB_CHARGE_BYTES, SlotForkGuard, SlotId, SlotPool};

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

/// The slots on nodes.
pub(super) struct Nodes<'a> {
    /// The first node's first slab; above all slabs where there are no nodes.
    pub(super) first: usize,
    pub(super) each: usize,
    pub(super) count: usize,
    pub(super) slots: [SlotPool<'a>; NODES_MAX],
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
pub(super) struct NodeBudget<'b, B> {
    pub(super) budget: &'b B,
    pub(super) node: usize,
    /// Whether a slab was charged.
    pub(super) charged: Cell<bool>,
}

impl<B: PoolBudget> PoolBudget for NodeBudget<'_, B> {
    fn charge(&self, bytes: i64) -> bool {
        let ok = self.budget.charge_node(self.node, bytes);
        self.charged.set(self.charged.get() || ok && bytes > 0);
        ok
    }
    fn open_slab(&self, slab: u32) -> bool {
        self.budget.open_slab(slab)
    }
}
