//! Which far extents hold copies of shared pages: a count for each, in memory that processes share. The caller holds
//! their lock. The counts can be rebuilt from the entries of all pages and the writes under way.

use canvas_types::sync::{AtomicU8, AtomicU32, Ordering};

/// Counts of extents, by their numbers, in slabs of `slab_extents`.
#[derive(Clone, Copy)]
pub struct Uses<'a> {
    /// How many entries name each extent; a write of it under way counts as one.
    pub counts: &'a [AtomicU8],
    /// The extent at which the next search starts.
    pub next: &'a AtomicU32,
    /// Extents of a slab.
    pub slab_extents: u32,
}

impl Uses<'_> {
    /// Adds an entry that names the extent.
    pub fn hold(&self, extent: u32) {
        if let Some(count) = self.counts.get(extent as usize) {
            let now = count.load(Ordering::Relaxed);
            debug_assert!(now < u8::MAX);
            count.store(now.saturating_add(1), Ordering::Relaxed);
        }
    }
    /// Removes an entry. True when the extent is free now.
    pub fn unhold(&self, extent: u32) -> bool {
        self.counts.get(extent as usize).is_some_and(|count| {
            let now = count.load(Ordering::Relaxed);
            debug_assert!(now > 0);
            count.store(now.saturating_sub(1), Ordering::Relaxed);
            now <= 1
        })
    }
    /// The slab of an extent.
    pub fn slab_of(&self, extent: u32) -> u32 {
        extent / self.slab_extents
    }
    /// The slab in which the last extent was taken.
    pub fn current_slab(&self) -> u32 {
        self.slab_of(self.next.load(Ordering::Relaxed))
    }
    fn of_slab(&self, slab: u32) -> &[AtomicU8] {
        let n = self.slab_extents as usize;
        let from = (slab as usize).saturating_mul(n);
        self.counts.get(from..from + n).unwrap_or(&[])
    }
    /// Whether no extent of the slab is in use.
    pub fn is_empty(&self, slab: u32) -> bool {
        let counts = self.of_slab(slab);
        counts.iter().all(|c| c.load(Ordering::Relaxed) == 0)
    }
    /// Takes a free extent of the slab and holds it: in the slab of the last one, starting after it.
    pub fn take(&self, slab: u32) -> Option<u32> {
        let counts = self.of_slab(slab);
        let first = slab * self.slab_extents;
        let next = self.next.load(Ordering::Relaxed);
        let from = match self.slab_of(next) == slab {
            true => (next - first) as usize,
            false => 0,
        };
        let is_free = |i: &usize| counts[*i].load(Ordering::Relaxed) == 0;
        let i = (from..counts.len())
            .chain(0..from.min(counts.len()))
            .find(is_free)?;
        let extent = first + i as u32;
        self.hold(extent);
        // Not into the next slab, because that would change which slab is current.
        let after = (i as u32 + 1) % self.slab_extents;
        self.next.store(first + after, Ordering::Relaxed);
        Some(extent)
    }
    /// Marks all extents of the slab as free.
    pub fn forget(&self, slab: u32) {
        for count in self.of_slab(slab) {
            if count.load(Ordering::Relaxed) != 0 {
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}
