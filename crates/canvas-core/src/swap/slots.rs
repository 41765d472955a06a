//! Slots for compressed pages: a size-class allocator over slabs of one region (FastSwap §III).
//!
//! FastSwap keeps four pools of 4 KiB pages with a header (BUD) and a full and a free list each. Here a slab is
//! [`SLAB_BYTES`], there are [`CLASSES`] classes, and the free list is four lists by fullness, so that new pages go to
//! the fullest slab and the emptiest slabs drain; full slabs are on no list, because a slot's id names its slab.
//!
//! The allocator handles only offsets and never touches the region. Its metadata are [`SLAB_WORDS`] words (48 B) for
//! each slab, 0.15 % of the pool, and charged to it; they are touched slab by slab, lowest index first. (Outside the
//! pool a page costs 16 B: its word and its entry.)
//!
//! Up to [`EMPTY_KEEP`] empty slabs are kept, still charged, for any class; beyond that half of them are given back in
//! one batch through [`SlabRelease`]. [`SlotPool::trim`] gives all back.
//!
//! Several allocators can share a region: the pool's own, and one for each node ([`SlotPool::part`]).
//!
//! Locks: one for each class, then one for the slabs; none is held while memory is released.

use core::ops::Range;

use canvas_types::ExtentRef;
use canvas_types::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin, backoff};

use crate::swap::classes::{
    CLASS_BYTES, CLASSES, RAW_CLASS, RAW_HEADER_BYTES, RAW_HEADERS_BYTES, SLAB_BYTES, SLOTS_MAX,
    slots_per_slab,
};

/// Words of metadata for each slab.
pub const SLAB_WORDS: usize = BITMAP_WORDS + 2;
/// Most empty slabs kept for reuse (512 KiB); with more, half are given back.
pub const EMPTY_KEEP: u32 = 16;
/// The charge for a slab: its bytes, its part of the strip of raw headers, its metadata.
pub const SLAB_CHARGE_BYTES: i64 = (SLAB_BYTES + RAW_HEADERS_BYTES + SLAB_WORDS * 8) as i64;
/// Most slabs that ids can name: 4 TiB of pool.
pub const SLABS_MAX: usize = 1 << SLAB_BITS;

const BITMAP_WORDS: usize = SLOTS_MAX / 64;
const LINK: usize = BITMAP_WORDS;
const INFO: usize = BITMAP_WORDS + 1;
/// Slabs given back in one batch.
const BATCH: usize = 16;
/// Number of lists of partly filled slabs, by quarters of fullness.
const GROUPS: usize = 4;

const INDEX_BITS: u32 = 8;
const SLAB_BITS: u32 = 27;

/// A slot: its index in the slab (8 bits), the slab (27), the class (5). The class is part of the id so that a load
/// needs no slab metadata.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u64);

impl SlotId {
    #[inline(always)]
    fn new(class: usize, slab: u32, index: usize) -> SlotId {
        SlotId(
            index as u64
                | ((slab as u64) << INDEX_BITS)
                | ((class as u64) << (INDEX_BITS + SLAB_BITS)),
        )
    }
    /// Index in its slab.
    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }
    /// Number of its slab.
    #[inline(always)]
    pub fn slab(self) -> usize {
        ((self.0 >> INDEX_BITS) & ((1 << SLAB_BITS) - 1)) as usize
    }
    /// Number of its size class.
    #[inline(always)]
    pub fn class(self) -> usize {
        (self.0 >> (INDEX_BITS + SLAB_BITS)) as usize
    }
    /// Offset of the slot in the region.
    #[inline(always)]
    pub fn offset(self) -> usize {
        self.slab() * SLAB_BYTES + self.index() * CLASS_BYTES[self.class()] as usize
    }
    /// Bytes in the slot.
    #[inline(always)]
    pub fn bytes(self) -> usize {
        CLASS_BYTES[self.class()] as usize
    }
}

const _: () =
    assert!(SLOTS_MAX <= 1 << INDEX_BITS && CLASSES <= 32 && SLOTS_MAX.is_multiple_of(64));

/// Offset of a raw slot's header in a region of `slabs` slabs; the header of any other slot is at its start.
#[inline(always)]
pub fn raw_header_offset(slabs: usize, slot: SlotId) -> usize {
    debug_assert!(slot.class() == RAW_CLASS);
    slabs * SLAB_BYTES + slot.slab() * RAW_HEADERS_BYTES + slot.index() * RAW_HEADER_BYTES
}

/// The limit on pool memory, shared with other pools.
pub trait PoolBudget {
    /// Changes the charge by `bytes` (a slab's worth, up or down). False, with nothing charged, when that would exceed
    /// the limit; never for a decrease. Called under a lock: must not block.
    fn charge(&self, bytes: i64) -> bool;
    /// As [`PoolBudget::charge`], past the limit if necessary; a budget with a hard limit enforces it.
    fn charge_past_bound(&self, bytes: i64) -> bool {
        self.charge(bytes)
    }
    /// The region's slab with this number, and its metadata, are about to be used for the first time; false when there
    /// is no memory for it. Called under a lock: must not block.
    fn open_slab(&self, slab: u32) -> bool {
        let _ = slab;
        true
    }
    /// A copy in far memory is no longer needed. Not called under a lock.
    fn drop_extent_ref(&self, place: ExtentRef) {
        let _ = place;
    }
    /// As [`PoolBudget::charge`], for a slab on a node, by the node's index among the pool's nodes.
    fn charge_node(&self, node: usize, bytes: i64) -> bool {
        let _ = (node, bytes);
        false
    }
    /// Whether the node is charged more than its limit, because that was lowered.
    fn node_is_over(&self, node: usize) -> bool {
        let _ = node;
        false
    }
    /// The first page of a slab that was just charged to a node is written, at offset `off` of the region: whether its
    /// memory is on that node. Not called under a lock.
    fn lies_on_node(&self, node: usize, off: usize) -> bool {
        let _ = (node, off);
        true
    }
    /// A page was loaded from a node.
    fn loaded_from_node(&self) {}
}

impl<T: PoolBudget + ?Sized> PoolBudget for &T {
    fn charge(&self, bytes: i64) -> bool {
        (**self).charge(bytes)
    }
    fn charge_past_bound(&self, bytes: i64) -> bool {
        (**self).charge_past_bound(bytes)
    }
    fn open_slab(&self, slab: u32) -> bool {
        (**self).open_slab(slab)
    }
    fn drop_extent_ref(&self, place: ExtentRef) {
        (**self).drop_extent_ref(place)
    }
    fn charge_node(&self, node: usize, bytes: i64) -> bool {
        (**self).charge_node(node, bytes)
    }
    fn node_is_over(&self, node: usize) -> bool {
        (**self).node_is_over(node)
    }
    fn lies_on_node(&self, node: usize, off: usize) -> bool {
        (**self).lies_on_node(node, off)
    }
    fn loaded_from_node(&self) {
        (**self).loaded_from_node()
    }
}

/// Releases region memory of empty slabs.
pub trait SlabRelease {
    /// The bytes `off..off + len` of the region are unused. Called without a lock; the range stays out of use until it
    /// returns.
    fn release_range(&self, off: usize, len: usize);
}

/// Result of claiming a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claimed {
    /// The slot is in use now.
    Yes,
    /// It was already in use.
    Before,
    /// Its slab has no such slot.
    Never,
}

#[repr(align(128))]
struct Class {
    lock: RawSpin,
    /// First slab (index + 1, 0 for none) of each list, by fullness.
    heads: [AtomicU32; GROUPS],
    slabs: AtomicU64,
    live: AtomicU64,
}

/// The allocator. The module's documentation describes it.
pub struct SlotPool<'a> {
    meta: &'a [AtomicU64],
    /// Its first slab in the region, and its number of slabs.
    first: u32,
    slabs: u32,
    /// Slabs of the region.
    region_slabs: u32,
    class_bytes: &'a [AtomicI64],
    classes: [Class; CLASSES],
    /// Guards the following fields.
    lock: RawSpin,
    /// Empty slabs still charged and backed by memory.
    empty_head: AtomicU32,
    empties: AtomicU32,
    /// Empty slabs that were given back.
    clean_head: AtomicU32,
    /// Slabs ever used.
    high: AtomicU32,
    /// Batches being given back now.
    releasing: AtomicU32,
    charged: AtomicI64,
    yield_now: fn(),
}

impl<'a> SlotPool<'a> {
    /// A pool of `meta.len() / SLAB_WORDS` slabs over a region of [`crate::swap::classes::region_bytes`]. `meta` must be all
    /// zero. `class_bytes[class]` is kept at the bytes of that class's slots in use; it may be shared with other pools,
    /// and shorter than [`CLASSES`] or empty. `yield_now` is called while waiting long for a lock.
    pub fn new(
        meta: &'a [AtomicU64],
        class_bytes: &'a [AtomicI64],
        yield_now: fn(),
    ) -> SlotPool<'a> {
        let slabs = (meta.len() / SLAB_WORDS).min(SLABS_MAX) as u32;
        SlotPool::over(meta, 0, slabs, class_bytes, yield_now)
    }

    /// A pool over the slabs `range` of this one's region, with their part of its metadata; `class_bytes` as for
    /// [`SlotPool::new`]. Only for a pool that was never used: it must not be used afterwards, and parts must not
    /// overlap.
    pub fn part(&self, range: Range<usize>, class_bytes: &'a [AtomicI64]) -> SlotPool<'a> {
        let end = range.end.min(self.region_slabs as usize);
        let first = range.start.min(end);
        let meta = &self.meta[first * SLAB_WORDS..end * SLAB_WORDS];
        let (first, whole) = (first as u32, self.region_slabs);
        SlotPool::over(meta, first, whole, class_bytes, self.yield_now)
    }

    fn over(
        meta: &'a [AtomicU64],
        first: u32,
        region_slabs: u32,
        class_bytes: &'a [AtomicI64],
        yield_now: fn(),
    ) -> SlotPool<'a> {
        SlotPool {
            meta,
            first,
            slabs: (meta.len() / SLAB_WORDS).min(SLABS_MAX) as u32,
            region_slabs,
            class_bytes,
            classes: core::array::from_fn(|_| Class {
                lock: RawSpin::new(),
                heads: core::array::from_fn(|_| AtomicU32::new(0)),
                slabs: AtomicU64::new(0),
                live: AtomicU64::new(0),
            }),
            lock: RawSpin::new(),
            empty_head: AtomicU32::new(0),
            empties: AtomicU32::new(0),
            clean_head: AtomicU32::new(0),
            high: AtomicU32::new(0),
            releasing: AtomicU32::new(0),
            charged: AtomicI64::new(0),
            yield_now,
        }
    }

    /// Allocates a slot of `class`. `None` when it needs a new slab and the budget or the region is exhausted.
    pub fn alloc(&self, class: usize, budget: &impl PoolBudget) -> Option<SlotId> {
        self.take(class, || self.take_slab(budget))
    }

    /// Allocates a free slot of the smallest larger class that has one in a slab already charged: room that is left
    /// when the budget is exhausted.
    pub fn alloc_larger(&self, class: usize) -> Option<SlotId> {
        (class + 1..CLASSES).find_map(|c| self.take(c, || None))
    }

    /// Allocates a slot from the fullest slab that has one, or from a new one.
    fn take(&self, class: usize, new_slab: impl FnOnce() -> Option<u32>) -> Option<SlotId> {
        let c = &self.classes[class];
        let slots = slots_per_slab(class);
        let _held = c.lock.lock(self.yield_now);
        let fullest = c
            .heads
            .iter()
            .rev()
            .map(|h| h.load(Ordering::Relaxed))
            .find(|&h| h != 0);
        let slab = match fullest {
            Some(linked) => linked - 1,
            None => {
                let slab = new_slab()?;
                // A slab is returned with all bits clear, so only class and count need setting.
                self.set_info(slab, class, 0);
                self.link(c, 0, slab);
                c.slabs
                    .store(c.slabs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                slab
            }
        };
        let index = self.claim(slab, slots)?;
        let used = self.used(slab);
        self.set_info(slab, class, used + 1);
        self.regroup(c, slab, group(used, slots), group(used + 1, slots));
        c.live
            .store(c.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.count_class(class, 1);
        Some(SlotId::new(class, self.first + slab, index))
    }

    /// Frees a slot, in constant time except for the release of empty slabs. False, with nothing changed, when it is
    /// not in use.
    pub fn free(&self, slot: SlotId, budget: &impl PoolBudget, memory: &impl SlabRelease) -> bool {
        let (class, index) = (slot.class(), slot.index());
        // Below the first slab this wraps around to a number that is too large.
        let slab = (slot.slab() as u32).wrapping_sub(self.first);
        if class >= CLASSES || slab >= self.slabs || index >= slots_per_slab(class) {
            return false;
        }
        let c = &self.classes[class];
        let slots = slots_per_slab(class);
        let too_many = {
            let _held = c.lock.lock(self.yield_now);
            let bits = &self.meta[slab as usize * SLAB_WORDS + index / 64];
            let bit = 1u64 << (index % 64);
            let now = bits.load(Ordering::Relaxed);
            // Under the class's lock the slab cannot change into or out of this class.
            if now & bit == 0 || self.class_of(slab) != Some(class) {
                return false;
            }
            bits.store(now & !bit, Ordering::Relaxed);
            let used = self.used(slab) - 1;
            c.live
                .store(c.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            self.count_class(class, -1);
            if used == 0 {
                if let Some(g) = group(1, slots) {
                    self.unlink(c, g, slab);
                }
                c.slabs
                    .store(c.slabs.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                self.meta[slab as usize * SLAB_WORDS + INFO].store(0, Ordering::Relaxed);
                self.put_empty(slab)
            } else {
                self.set_info(slab, class, used);
                self.regroup(c, slab, group(used + 1, slots), group(used, slots));
                false
            }
        };
        if too_many {
            self.give_back(EMPTY_KEEP / 2, budget, memory);
        }
        true
    }

    /// Whether there is such a slot.
    pub(crate) fn has(&self, slot: SlotId) -> bool {
        let (class, index) = (slot.class(), slot.index());
        let slab = (slot.slab() as u32).wrapping_sub(self.first);
        class < CLASSES && slab < self.slabs && index < slots_per_slab(class)
    }

    /// Claims a slot that an entry names, before [`SlotPool::rebuild`] and with no other call under way.
    pub(crate) fn claim_slot(&self, slot: SlotId) -> Claimed {
        if !self.has(slot) {
            return Claimed::Never;
        }
        let (class, index) = (slot.class(), slot.index());
        let slab = slot.slab() as u32 - self.first;
        if self.class_of(slab).is_some_and(|c| c != class) {
            return Claimed::Never;
        }
        let bits = &self.meta[slab as usize * SLAB_WORDS + index / 64];
        let bit = 1u64 << (index % 64);
        if bits.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return Claimed::Before;
        }
        self.set_info(slab, class, self.used(slab) + 1);
        Claimed::Yes
    }

    /// Reverts [`SlotPool::claim_slot`].
    pub(crate) fn disclaim_slot(&self, slot: SlotId) {
        if !self.has(slot) {
            return;
        }
        let (class, index) = (slot.class(), slot.index());
        let slab = slot.slab() as u32 - self.first;
        let bits = &self.meta[slab as usize * SLAB_WORDS + index / 64];
        let bit = 1u64 << (index % 64);
        if self.class_of(slab) == Some(class) && bits.fetch_and(!bit, Ordering::Relaxed) & bit != 0
        {
            self.set_info(slab, class, self.used(slab) - 1);
        }
    }

    /// Rebuilds lists and sums from the claimed slots, and charges their slabs. All other slabs become free and their
    /// memory is released.
    pub(crate) fn rebuild(&self, budget: &impl PoolBudget, memory: &impl SlabRelease) {
        let mut high = 0;
        for slab in 0..self.slabs {
            if self.used(slab) > 0 {
                high = slab + 1;
            }
        }
        self.high.store(high, Ordering::Relaxed);
        let at = |slab: u32| (self.first + slab) as usize * SLAB_BYTES;
        let release = |from: u32, to: u32| {
            if from < to {
                memory.release_range(at(from), (to - from) as usize * SLAB_BYTES);
            }
        };
        release(high, self.slabs);
        // Highest first, so that the lists yield the lowest.
        let mut end = high;
        for slab in (0..high).rev() {
            let used = self.used(slab);
            let Some(class) = self.class_of(slab).filter(|_| used > 0) else {
                self.meta[slab as usize * SLAB_WORDS + INFO].store(0, Ordering::Relaxed);
                self.push(&self.clean_head, slab);
                continue;
            };
            release(slab + 1, end);
            end = slab;
            let c = &self.classes[class];
            if let Some(g) = group(used, slots_per_slab(class)) {
                self.link(c, g, slab);
            }
            c.slabs.fetch_add(1, Ordering::Relaxed);
            c.live.fetch_add(used as u64, Ordering::Relaxed);
            self.count_class(class, used as i64);
            self.charge(budget, SLAB_CHARGE_BYTES);
        }
        release(0, end);
    }

    /// Gives back all empty slabs.
    pub fn trim(&self, budget: &impl PoolBudget, memory: &impl SlabRelease) {
        self.give_back(0, budget, memory);
    }

    /// Gives back empty slabs, in batches, until `keep` are left.
    fn give_back(&self, keep: u32, budget: &impl PoolBudget, memory: &impl SlabRelease) {
        loop {
            let mut batch = [0u32; BATCH];
            let mut n = 0;
            {
                let _held = self.lock.lock(self.yield_now);
                while n < BATCH && self.empties.load(Ordering::Relaxed) > keep {
                    batch[n] = self.pop(&self.empty_head);
                    self.empties
                        .store(self.empties.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                    n += 1;
                }
                if n == 0 {
                    return;
                }
                self.releasing.fetch_add(1, Ordering::Relaxed);
            }
            let batch = &mut batch[..n];
            batch.sort_unstable();
            for run in batch.chunk_by(|a, b| a + 1 == *b) {
                let at = (self.first + run[0]) as usize * SLAB_BYTES;
                memory.release_range(at, run.len() * SLAB_BYTES);
            }
            self.charge(budget, -(n as i64) * SLAB_CHARGE_BYTES);
            let _held = self.lock.lock(self.yield_now);
            // Highest first, so that the list yields the lowest and the pool stays dense.
            for &slab in batch.iter().rev() {
                self.push(&self.clean_head, slab);
            }
            self.releasing.fetch_sub(1, Ordering::Release);
        }
    }

    /// An empty slab for any class: one still backed, otherwise a released one, otherwise a new one.
    fn take_slab(&self, budget: &impl PoolBudget) -> Option<u32> {
        let _held = self.lock.lock(self.yield_now);
        let empties = self.empties.load(Ordering::Relaxed);
        if empties != 0 {
            self.empties.store(empties - 1, Ordering::Relaxed);
            return Some(self.pop(&self.empty_head));
        }
        let clean = self.clean_head.load(Ordering::Relaxed) != 0;
        let high = self.high.load(Ordering::Relaxed);
        if !clean && (high >= self.slabs || !budget.open_slab(self.first + high))
            || !self.charge(budget, SLAB_CHARGE_BYTES)
        {
            return None;
        }
        if clean {
            return Some(self.pop(&self.clean_head));
        }
        self.high.store(high + 1, Ordering::Relaxed);
        Some(high)
    }

    /// Keeps an empty slab; true when there are too many now.
    fn put_empty(&self, slab: u32) -> bool {
        let _held = self.lock.lock(self.yield_now);
        self.push(&self.empty_head, slab);
        let empties = self.empties.load(Ordering::Relaxed) + 1;
        self.empties.store(empties, Ordering::Relaxed);
        empties > EMPTY_KEEP
    }

    fn charge(&self, budget: &impl PoolBudget, bytes: i64) -> bool {
        let ok = budget.charge(bytes);
        if ok {
            self.charged.fetch_add(bytes, Ordering::Relaxed);
        }
        ok
    }

    fn count_class(&self, class: usize, slots: i64) {
        if let Some(bytes) = self.class_bytes.get(class) {
            bytes.fetch_add(slots * CLASS_BYTES[class] as i64, Ordering::Relaxed);
        }
    }

    /// Sets the first clear bit of a slab; `None` only if the slab is full, which no listed slab is.
    fn claim(&self, slab: u32, slots: usize) -> Option<usize> {
        let base = slab as usize * SLAB_WORDS;
        for w in 0..slots.div_ceil(64) {
            let bits = self.meta[base + w].load(Ordering::Relaxed);
            let index = w * 64 + bits.trailing_ones() as usize;
            if bits != u64::MAX && index < slots {
                self.meta[base + w].store(bits | 1 << (index % 64), Ordering::Relaxed);
                return Some(index);
            }
        }
        None
    }

    // --- metadata of one slab: class + 1 in the low byte of INFO, slots in use above ---

    fn class_of(&self, slab: u32) -> Option<usize> {
        let info = self.meta[slab as usize * SLAB_WORDS + INFO].load(Ordering::Relaxed);
        (info as u8 as usize).checked_sub(1)
    }
    fn used(&self, slab: u32) -> usize {
        (self.meta[slab as usize * SLAB_WORDS + INFO].load(Ordering::Relaxed) >> 8) as usize
    }
    fn set_info(&self, slab: u32, class: usize, used: usize) {
        let info = (class as u64 + 1) | ((used as u64) << 8);
        self.meta[slab as usize * SLAB_WORDS + INFO].store(info, Ordering::Relaxed);
    }

    // --- lists: previous << 32 | next in LINK, as index + 1; single lists use only next ---

    fn link_word(&self, slab: u32) -> &AtomicU64 {
        &self.meta[slab as usize * SLAB_WORDS + LINK]
    }
    fn push(&self, head: &AtomicU32, slab: u32) {
        self.link_word(slab)
            .store(head.load(Ordering::Relaxed) as u64, Ordering::Relaxed);
        head.store(slab + 1, Ordering::Relaxed);
    }
    /// The list must not be empty.
    fn pop(&self, head: &AtomicU32) -> u32 {
        let slab = head.load(Ordering::Relaxed) - 1;
        head.store(
            self.link_word(slab).load(Ordering::Relaxed) as u32,
            Ordering::Relaxed,
        );
        slab
    }
    fn link(&self, c: &Class, g: usize, slab: u32) {
        let next = c.heads[g].load(Ordering::Relaxed);
        self.link_word(slab).store(next as u64, Ordering::Relaxed);
        if next != 0 {
            let w = self.link_word(next - 1);
            w.store(
                (w.load(Ordering::Relaxed) & 0xffff_ffff) | ((slab as u64 + 1) << 32),
                Ordering::Relaxed,
            );
        }
        c.heads[g].store(slab + 1, Ordering::Relaxed);
    }
    fn unlink(&self, c: &Class, g: usize, slab: u32) {
        let word = self.link_word(slab).load(Ordering::Relaxed);
        let (prev, next) = ((word >> 32) as u32, word as u32);
        match prev {
            0 => c.heads[g].store(next, Ordering::Relaxed),
            p => {
                let w = self.link_word(p - 1);
                w.store(
                    (w.load(Ordering::Relaxed) & !0xffff_ffff) | next as u64,
                    Ordering::Relaxed,
                );
            }
        }
        if next != 0 {
            let w = self.link_word(next - 1);
            w.store(
                (w.load(Ordering::Relaxed) & 0xffff_ffff) | ((prev as u64) << 32),
                Ordering::Relaxed,
            );
        }
    }
    /// Moves a slab between lists; a full slab is on none.
    fn regroup(&self, c: &Class, slab: u32, from: Option<usize>, to: Option<usize>) {
        if from != to {
            if let Some(g) = from {
                self.unlink(c, g, slab);
            }
            if let Some(g) = to {
                self.link(c, g, slab);
            }
        }
    }

    // --- for the caller ---

    /// Offset of a raw slot's header in the region; the header of any other slot is at its start.
    #[inline(always)]
    pub fn raw_header_offset(&self, slot: SlotId) -> usize {
        raw_header_offset(self.region_slabs as usize, slot)
    }
    /// Slots of `class` in use.
    pub fn class_live(&self, class: usize) -> u64 {
        self.classes[class].live.load(Ordering::Relaxed)
    }
    /// Slabs that hold slots in use.
    pub fn slabs_in_use(&self) -> u64 {
        self.classes
            .iter()
            .map(|c| c.slabs.load(Ordering::Relaxed))
            .sum()
    }
    /// Empty slabs kept for reuse.
    pub fn slabs_empty(&self) -> u64 {
        self.empties.load(Ordering::Relaxed) as u64
    }
    /// Bytes charged to the budget.
    pub fn charged_bytes(&self) -> i64 {
        self.charged.load(Ordering::Relaxed)
    }
    /// Adds this pool's slots to `class_bytes` (`sign` 1) or removes them (`sign` -1): a forked child must add its
    /// copy, a process that ends must remove its own.
    pub fn publish_class_bytes(&self, sign: i64) {
        for class in 0..CLASSES {
            self.count_class(class, sign * self.class_live(class) as i64);
        }
    }
    /// Locks the allocator across a fork, with no slab being released. Dropping the guard in the parent and in the
    /// child unlocks each one's own copy.
    pub fn fork_guard(&self) -> SlotForkGuard<'_> {
        let mut spins = 0;
        loop {
            let classes = core::array::from_fn(|i| self.classes[i].lock.lock(self.yield_now));
            let slabs = self.lock.lock(self.yield_now);
            if self.releasing.load(Ordering::Acquire) == 0 {
                return SlotForkGuard {
                    _slabs: slabs,
                    _classes: classes,
                };
            }
            drop(slabs);
            drop(classes);
            backoff(&mut spins, self.yield_now);
        }
    }
}

/// Holds all locks of a [`SlotPool`].
pub struct SlotForkGuard<'p> {
    _slabs: RawGuard<'p>,
    _classes: [RawGuard<'p>; CLASSES],
}

/// The list for a slab with `used` of `slots` in use; `None` when full.
#[inline]
fn group(used: usize, slots: usize) -> Option<usize> {
    if used >= slots {
        None
    } else {
        Some(used * GROUPS / slots)
    }
}
