//! A tenant's memory on NUMA nodes (`canvas run --numa`): limits, charges, and which node is full for now.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::segment::{ProcSlot, Segment};

/// How long a node counts as full after the kernel refused memory there.
pub const FULL_NS: u64 = 1_000_000_000;

/// A node.
#[repr(C, align(64))]
pub struct NodeBook {
    /// The kernel's number of the node + 1; 0 where there is none. Written before the first process starts.
    number_1: AtomicU32,
    _pad: u32,
    /// Limit on the tenant's memory there, in bytes.
    pub bound_bytes: AtomicU64,
    /// Memory there charged by all processes, in bytes.
    pub bytes: AtomicI64,
    /// Highest value of `bytes`.
    pub bytes_peak: AtomicI64,
    /// Part of `bytes` that was charged by processes that have ended and had relatives, which may still hold it.
    pub orphan_bytes: AtomicI64,
    /// Until this time the node is full, whatever the limit says (CLOCK_MONOTONIC).
    full_until_ns: AtomicU64,
}

impl NodeBook {
    /// Sets the node and its limit. Before the first process starts.
    pub fn begin(&self, number: u32, bound_bytes: u64) {
        self.bound_bytes.store(bound_bytes, Ordering::Relaxed);
        self.number_1
            .store(number.saturating_add(1), Ordering::Relaxed);
    }
    /// The kernel's number of the node; `None` where there is no node.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        self.number_1.load(Ordering::Relaxed).checked_sub(1)
    }
    /// Limit on the tenant's memory there, in bytes.
    #[inline]
    pub fn bound(&self) -> i64 {
        i64::try_from(self.bound_bytes.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
    /// Whether the tenant exceeds the limit there, because it was lowered.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bound()
    }
    /// The kernel has no memory there: the node is full for a while.
    pub fn note_full(&self, now_ns: u64) {
        self.full_until_ns
            .store(now_ns.saturating_add(FULL_NS), Ordering::Relaxed);
    }
    /// Whether the node is full. `now_ns` is called only where it may be.
    #[inline]
    pub fn is_full(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until = self.full_until_ns.load(Ordering::Relaxed);
        until != 0 && now_ns() < until
    }
}

impl Segment {
    /// The nodes of the tenant.
    pub fn nodes(&self) -> &[NodeBook] {
        let there = self.nodes.iter().take_while(|n| n.number().is_some());
        &self.nodes[..there.count()]
    }
    /// Changes the charge of the node at `place` by `bytes`; false, with nothing charged, past its limit.
    pub fn charge_node(&self, slot: &ProcSlot, place: usize, bytes: i64) -> bool {
        let node = &self.nodes[place];
        let now = node
            .bytes
            .fetch_add(bytes, Ordering::Relaxed)
            .wrapping_add(bytes);
        if bytes > 0 && now > node.bound() {
            node.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        slot.node_bytes[place].fetch_add(bytes, Ordering::Relaxed);
        slot.node_whole_bytes[place].fetch_add(bytes, Ordering::Relaxed);
        node.bytes_peak.fetch_max(now, Ordering::Relaxed);
        true
    }
    /// Corrects the charge by `bytes`, whatever the limit: the memory is allocated already.
    pub fn correct_node(&self, slot: &ProcSlot, place: usize, bytes: i64) {
        if bytes != 0 {
            let node = &self.nodes[place];
            slot.node_bytes[place].fetch_add(bytes, Ordering::Relaxed);
            let before = node.bytes.fetch_add(bytes, Ordering::Relaxed);
            node.bytes_peak
                .fetch_max(before.wrapping_add(bytes), Ordering::Relaxed);
        }
    }
    /// Releases the charges of a dead process; memory that relatives may hold waits for a measurement of all.
    pub(crate) fn release_nodes(&self, slot: &ProcSlot, has_relatives: bool) {
        for (place, node) in self.nodes.iter().enumerate() {
            slot.node_whole_bytes[place].store(0, Ordering::Relaxed);
            let bytes = slot.node_bytes[place].swap(0, Ordering::Relaxed);
            let sum = match has_relatives {
                true => &node.orphan_bytes,
                false => &node.bytes,
            };
            let change = if has_relatives {
                bytes
            } else {
                bytes.wrapping_neg()
            };
            if change != 0 {
                sum.fetch_add(change, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_bound_holds_for_all_processes_together() {
        let (s, _) = crate::tenant();
        assert!(s.nodes().is_empty());
        s.nodes[0].begin(0, 100);
        s.nodes[1].begin(7, 50);
        let numbers: std::vec::Vec<_> = s.nodes().iter().map(NodeBook::number).collect();
        assert_eq!(numbers, [Some(0), Some(7)]);
        let (a, b) = (&s.procs[0], &s.procs[1]);
        assert!(s.charge_node(a, 0, 60) && !s.charge_node(b, 0, 60) && s.charge_node(b, 0, 40));
        assert!(!s.nodes[0].is_over());
        s.nodes[0].bound_bytes.store(99, Ordering::Relaxed);
        assert!(s.nodes[0].is_over() && s.charge_node(b, 0, -1) && !s.nodes[0].is_over());
        assert_eq!(s.nodes[0].bytes_peak.load(Ordering::Relaxed), 100);
        assert_eq!(s.nodes[1].bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_the_dead_had_is_free_unless_relatives_may_hold_it() {
        let (s, _) = crate::tenant();
        s.nodes[0].begin(1, 1000);
        for (i, slot) in s.procs[..2].iter().enumerate() {
            slot.id.store(10 + i as u64, Ordering::Relaxed);
            assert!(s.charge_node(slot, 0, 100));
        }
        s.procs[1].shares.store(1, Ordering::Relaxed);
        s.release_slot(&s.procs[0], 10, |_| ());
        s.release_slot(&s.procs[1], 11, |_| ());
        let book = &s.nodes[0];
        assert_eq!(book.bytes.load(Ordering::Relaxed), 100);
        assert_eq!(book.orphan_bytes.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn a_node_without_memory_is_full_for_a_while() {
        let (s, _) = crate::tenant();
        let node = &s.nodes[0];
        assert!(!node.is_full(|| unreachable!()));
        node.note_full(5);
        assert!(node.is_full(|| 5 + FULL_NS - 1) && !node.is_full(|| 5 + FULL_NS));
    }
}
