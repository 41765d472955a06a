//! The slots of the swap cache: pages that reclaim has unmapped and not yet written out.
//!
//! A slot is a page of native memory. Reclaim copies a victim into a slot and unmaps it; a touch while the page is in
//! its slot is a *swap-cache hit* and costs only a copy back. The oldest slots are written out (hash, compress, store)
//! from their stable copy, while the page itself is in no busy state: a fault never waits for the compressor.
//! [`SlotState::may_become`] lists which transitions are legal.
//!
//! ```text
//!           reclaim          writer               writer: word Cached -> Far
//!  Free ───► Owned ───► Full ─────────► Writing ──────────────────────────────► Free
//!                       │ ▲ ▲             │ │ ▲
//!                       │ │ └─────────────┘ │ │
//!                 taker │ │ not moved       │ │ fill failed
//!                       ▼ │ fill failed     ▼ │
//!                      Taken ─► Free      Detached ─► WriterDone, TakerDone ─► Free
//! ```
//! While a page is [`State::Cached`] its word's entry field holds `slot + 1`, and the slot holds the page's swap entry.
//! The *taker* is the one thread that moved the word out of Cached (a fault, or a mapping call).
//!
//! Both the writer and the taker of a detached slot read it; the one that ends last frees it. A fill that fails puts
//! its slot back from either state, and from WriterDone too.
//!
//! Full slots wait in a FIFO of [`SlotRef`]s. Taking a slot leaves its place in the FIFO; the slot's generation,
//! incremented whenever a slot is freed or gets another place, tells which places are stale. State and generation share
//! one word, so that one compare-and-swap decides whether a place is valid. A slot never has two valid places, and none
//! before its page's word was published as Cached.
//!
//! The lock guards the free stacks and the FIFO. It is taken once per batch: of places that are made, of places that a
//! writer takes ([`SlotTable::oldest`]), of slots that are allocated. Single slots are taken from and returned to a
//! magazine ([`Magazines`]) without the lock; a full magazine goes to the free stack in one piece. Slots in magazines
//! have buffers and count as free: a thread that finds the stack empty takes slots from any magazine before it starts a
//! new buffer or fails.

use canvas_types::magazine::Magazines;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin, Threads};
use canvas_types::{PageId, SwapEntry};

use crate::pager::word::{self, State, Word};

/// Initial length of the FIFO. It wraps there, so that the rest of its memory stays untouched until more slots are in
/// use.
const RING_START: usize = if cfg!(test) { 2 } else { 512 };

/// Capacity of a magazine. As many slots move between it and the free stack under one lock.
const MAGAZINE_SLOTS: usize = if cfg!(any(test, feature = "shuttle")) {
    2
} else {
    16
};
/// Places that a writer takes from the FIFO under one lock.
pub const WRITES: usize = 16;

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SlotState {
    /// On the free stack, in a magazine, or never handed out.
    Free = 0,
    /// A reclaimer is copying a page into it.
    Owned = 1,
    /// Holds a page; waits in the FIFO.
    Full = 2,
    /// The writer is reading it.
    Writing = 3,
    /// A taker is reading it.
    Taken = 4,
    /// Taken while the writer is reading it: both read.
    Detached = 5,
    /// Was detached; the writer is done, the taker frees it.
    WriterDone = 6,
    /// Was detached; the taker is done, the writer frees it.
    TakerDone = 7,
}

impl SlotState {
    /// The state in a slot's word of [`SlotTable::states`].
    #[inline(always)]
    pub fn of(word: u32) -> SlotState {
        match word & STATE_MASK {
            0 => SlotState::Free,
            1 => SlotState::Owned,
            2 => SlotState::Full,
            3 => SlotState::Writing,
            4 => SlotState::Taken,
            5 => SlotState::Detached,
            6 => SlotState::WriterDone,
            _ => SlotState::TakerDone,
        }
    }
    /// The legal transitions; debug builds and tests check them.
    pub fn may_become(self, next: SlotState) -> bool {
        use SlotState::*;
        match self {
            Free => matches!(next, Owned),
            Owned => matches!(next, Full | Free),
            Full => matches!(next, Writing | Taken),
            Writing => matches!(next, Full | Free | Detached),
            Taken | WriterDone => matches!(next, Full | Free),
            Detached => matches!(next, Writing | WriterDone | TakerDone),
            TakerDone => matches!(next, Free),
        }
    }
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;
/// Added to a slot's word to get the next generation.
const NEXT_LIFE: u32 = 1 << STATE_BITS;

/// The word of a slot in the next generation.
#[inline(always)]
fn next_life(word: u32, state: SlotState) -> u32 {
    (word & !STATE_MASK).wrapping_add(NEXT_LIFE) | state as u32
}

/// The entry field of a Cached word whose page lies in `slot`.
#[inline(always)]
pub fn in_word(slot: u32) -> SwapEntry {
    SwapEntry(slot + 1)
}

/// The slot that a Cached word names.
#[inline(always)]
pub fn of_word(cached: Word) -> u32 {
    cached.entry().0 - 1
}

/// A slot and its generation: as it is handed out, and as it waits in the FIFO.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct SlotRef(u64);

impl SlotRef {
    /// `word`: the slot's word, of which the generation counts.
    #[inline(always)]
    fn new(slot: u32, word: u32) -> SlotRef {
        SlotRef(u64::from(slot) | (u64::from(word & !STATE_MASK) << 32))
    }
    /// Number of the slot.
    #[inline(always)]
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
    /// The word that the slot has if this place is valid and the slot is in `state`.
    #[inline(always)]
    fn word(self, state: SlotState) -> u32 {
        (self.0 >> 32) as u32 | state as u32
    }
}

/// State that all threads share, apart from the arrays of a [`SlotTable`].
pub struct Control {
    /// Guards the free stacks and the FIFO.
    lock: RawSpin,
    free_top: AtomicU32,
    /// Lowest value of `free_top` since idle slots were last taken.
    free_low: AtomicU32,
    /// Free slots whose buffers were given back.
    bare_top: AtomicU32,
    /// Slots ever handed out.
    high: AtomicU32,
    /// Length of the FIFO in use; 0 stands for [`RING_START`].
    ring_len: AtomicU32,
    capacity: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
    /// Free slots with buffers, by number + 1.
    magazines: Magazines<MAGAZINE_SLOTS>,
}

impl Control {
    /// No slot in use, and none available before [`SlotTable::set_capacity`].
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Control {
        Control {
            lock: RawSpin::new(),
            free_top: AtomicU32::new(0),
            free_low: AtomicU32::new(0),
            bare_top: AtomicU32::new(0),
            high: AtomicU32::new(0),
            ring_len: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            magazines: Magazines::new(),
        }
    }
}

/// All slots of a process, in memory that the caller provides, zeroed at start. A copy refers to the same slots.
#[derive(Clone, Copy)]
pub struct SlotTable<'a> {
    /// Lock and counters.
    pub control: &'a Control,
    /// Each slot's state and, above [`SlotState::of`]'s bits, its generation. All arrays except `ring` have one element
    /// per slot.
    pub states: &'a [AtomicU32],
    /// The page that a slot holds.
    pub pages: &'a [AtomicU32],
    /// The page's entry in the low half, "has a far copy" in bit 32.
    pub entries: &'a [AtomicU64],
    /// Free slots: those with a buffer from the start, those whose buffers were given back from the end.
    pub free_stack: &'a [AtomicU32],
    /// The FIFO. Its length is a power of two and at least twice the slots, because it also contains stale places.
    pub ring: &'a [AtomicU64],
    /// How to number and yield threads.
    pub threads: Threads,
}

/// A page to be written out. The caller owns its slot until [`SlotTable::end_write`] or [`SlotTable::abort_write`].
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Number of the slot.
    pub slot: u32,
    /// The page that it holds.
    pub page: PageId,
    /// Entry that the page owns.
    pub entry: SwapEntry,
    /// Whether the entry holds an earlier copy.
    pub far_copy: bool,
}

impl Job {
    /// Moves the page's word `w`, read as `cur`, to `far`; returns false if the page has left the slot or is being
    /// taken.
    #[inline]
    pub fn publish(&self, w: &AtomicU64, cur: Word, far: Word) -> bool {
        cur.state() == State::Cached
            && cur.entry() == in_word(self.slot)
            && word::transition(w, cur, far)
    }
}

/// A taken slot.
#[derive(Clone, Copy, Debug)]
pub struct TakenSlot {
    slot: u32,
    /// The entry that the page owns from now on (none if a writer is using it).
    pub entry: SwapEntry,
    /// Whether the entry holds a copy of an earlier content (or, after a write-out, of this one).
    pub far_copy: bool,
    detached: bool,
}

impl<'a> SlotTable<'a> {
    #[inline(always)]
    fn word(&self, slot: u32) -> u32 {
        self.states[slot as usize].load(Ordering::Acquire)
    }
    #[inline(always)]
    fn state(&self, slot: u32) -> SlotState {
        SlotState::of(self.word(slot))
    }
    /// Moves a slot's word from `old` to `new`; returns false if another thread was faster.
    #[inline(always)]
    fn swap(&self, slot: u32, old: u32, new: u32) -> bool {
        debug_assert!(SlotState::of(old).may_become(SlotState::of(new)));
        self.states[slot as usize]
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
    /// Moves a slot from `old` to `new`; returns false if another thread was faster.
    #[inline(always)]
    fn step(&self, slot: u32, old: SlotState, new: SlotState) -> bool {
        let word = self.word(slot);
        SlotState::of(word) == old && self.swap(slot, word, word & !STATE_MASK | new as u32)
    }
    /// Moves a slot that no other thread can move now; returns its valid place.
    #[inline(always)]
    fn set(&self, slot: u32, new: SlotState) -> SlotRef {
        let word = self.word(slot);
        debug_assert!(SlotState::of(word).may_become(new));
        self.states[slot as usize].store(word & !STATE_MASK | new as u32, Ordering::Release);
        SlotRef::new(slot, word)
    }
    #[inline(always)]
    fn set_entry(&self, slot: u32, entry: SwapEntry, far_copy: bool) {
        self.entries[slot as usize].store(
            u64::from(entry.0) | (u64::from(far_copy) << 32),
            Ordering::Relaxed,
        );
    }
    #[inline(always)]
    fn entry(&self, slot: u32) -> (SwapEntry, bool) {
        let e = self.entries[slot as usize].load(Ordering::Relaxed);
        (SwapEntry(e as u32), e >> 32 != 0)
    }
    #[inline(always)]
    fn ring(&self, i: u64) -> &'a AtomicU64 {
        &self.ring[i as usize & (self.ring_len() - 1)]
    }
    /// Length of the FIFO in use, a power of two. Changes only under the lock.
    #[inline(always)]
    fn ring_len(&self) -> usize {
        debug_assert!(self.ring.len().is_power_of_two());
        match self.control.ring_len.load(Ordering::Relaxed) {
            0 => RING_START.min(self.ring.len()),
            n => n as usize,
        }
    }
    #[inline(always)]
    fn ref_at(&self, i: u64) -> SlotRef {
        SlotRef(self.ring(i).load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn lock(&self) -> RawGuard<'a> {
        self.control.lock.lock(self.threads.yield_now)
    }

    /// Bounds the slots in use. The cache grows at once and shrinks as slots become free.
    pub fn set_capacity(&self, slots: usize) {
        self.control
            .capacity
            .store(slots.min(self.states.len()) as u32, Ordering::Relaxed);
    }
    /// The current bound in slots.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.control.capacity.load(Ordering::Relaxed)
    }
    /// Slots that are not on the stacks: in use, or in a magazine.
    #[inline]
    fn out(&self) -> u32 {
        self.buffers()
            .saturating_sub(self.control.free_top.load(Ordering::Relaxed))
    }
    /// Slots in use.
    #[inline]
    pub fn used(&self) -> u32 {
        self.out().saturating_sub(self.control.magazines.len())
    }
    /// Slots that are available without writing out.
    #[inline]
    pub fn available(&self) -> u32 {
        self.capacity().saturating_sub(self.used())
    }
    /// Slots whose buffers have memory, or had it when they were last used.
    #[inline]
    pub fn buffers(&self) -> u32 {
        let c = self.control;
        c.high
            .load(Ordering::Relaxed)
            .saturating_sub(c.bare_top.load(Ordering::Relaxed))
    }

    /// Takes up to `out.len()` free slots. Returns how many, and how many of them are new: their buffers use memory
    /// from now on, and the caller charges them.
    #[inline]
    pub fn alloc(&self, out: &mut [SlotRef]) -> (usize, usize) {
        let magazines = &self.control.magazines;
        let me = (self.threads.number)();
        let mut n = 0;
        // Above the bound (it may have been lowered), the slots in magazines are not available.
        if self.out() <= self.capacity() {
            n = self.alloc_from_magazines(&mut out[..], || magazines.take(me));
        }
        if n < out.len() {
            n += self.alloc_stacked(&mut out[n..], me);
        }
        if n < out.len() && self.out() <= self.capacity() {
            n += self.alloc_from_magazines(&mut out[n..], || magazines.take_any(me));
        }
        let mut fresh = 0;
        if n < out.len() {
            n += self.alloc_fresh(&mut out[n..], &mut fresh);
        }
        (n, fresh)
    }

    /// Takes slots from magazines.
    fn alloc_from_magazines(&self, out: &mut [SlotRef], take: impl Fn() -> Option<u32>) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some(number) = take()
        {
            out[n] = self.set(number - 1, SlotState::Owned);
            n += 1;
        }
        n
    }

    /// Takes slots with buffers from the free stack, and if one was asked for a few more for the magazine.
    fn alloc_stacked(&self, out: &mut [SlotRef], me: usize) -> usize {
        let magazines = &self.control.magazines;
        let mut n = 0;
        {
            let g = self.lock();
            if self.out() > self.capacity() {
                // Slots in magazines count as free, but only the stacks enforce the bound.
                while let Some(number) = magazines.take_any(me) {
                    self.stack(number - 1, &g);
                }
            }
            while n < out.len()
                && let Some(slot) = self.unstack(&g)
            {
                out[n] = SlotRef::new(slot, 0);
                n += 1;
            }
            if out.len() == 1 {
                for _ in 0..MAGAZINE_SLOTS / 2 {
                    let Some(slot) = self.unstack(&g) else { break };
                    if !magazines.put(me, slot + 1) {
                        self.stack(slot, &g);
                        break;
                    }
                }
            }
        }
        self.own(&mut out[..n]);
        n
    }

    /// Takes slots without a buffer (never used, or given back) unless one with a buffer was freed meanwhile; counts
    /// them in `fresh`.
    fn alloc_fresh(&self, out: &mut [SlotRef], fresh: &mut usize) -> usize {
        let c = self.control;
        let mut n = 0;
        {
            let g = self.lock();
            while n < out.len() && self.out() < self.capacity() {
                let bare = c.bare_top.load(Ordering::Relaxed);
                let high = c.high.load(Ordering::Relaxed);
                let slot = if let Some(slot) = self.unstack(&g) {
                    slot
                } else if bare > 0 {
                    *fresh += 1;
                    c.bare_top.store(bare - 1, Ordering::Relaxed);
                    self.bare_place(bare - 1).load(Ordering::Relaxed)
                } else {
                    *fresh += 1;
                    c.high.store(high + 1, Ordering::Relaxed);
                    high
                };
                out[n] = SlotRef::new(slot, 0);
                n += 1;
            }
        }
        self.own(&mut out[..n]);
        n
    }

    /// Marks slots just taken from the stacks as owned by this thread. This is done outside the lock because it loads
    /// their words.
    fn own(&self, slots: &mut [SlotRef]) {
        for place in slots {
            *place = self.set(place.slot(), SlotState::Owned);
        }
    }

    /// Returns slots that were allocated and not used.
    pub fn give_back(&self, slots: &[SlotRef]) {
        slots.iter().for_each(|s| self.end_life(s.slot()));
        let g = self.lock();
        slots.iter().for_each(|s| self.stack(s.slot(), &g));
    }

    /// Takes slots with a buffer that were free ever since the last call; returns how many. If `out` is full there may
    /// be more. Slots in magazines count as idle by the next call, if no thread needs them. The caller frees their
    /// buffers' memory and then returns the slots by [`SlotTable::give_back_bare`].
    pub fn take_idle(&self, out: &mut [SlotRef]) -> usize {
        let c = self.control;
        let g = self.lock();
        let top = c.free_top.load(Ordering::Relaxed);
        let idle = c.free_low.load(Ordering::Relaxed).min(top);
        let n = (idle as usize).min(out.len());
        for (i, place) in out[..n].iter_mut().enumerate() {
            let slot = self.free_stack[top as usize - 1 - i].load(Ordering::Relaxed);
            *place = self.set(slot, SlotState::Owned);
        }
        c.free_top.store(top - n as u32, Ordering::Relaxed);
        let left = match n < out.len() {
            true => self.unload_magazines(&g),
            false => idle - n as u32,
        };
        c.free_low.store(left, Ordering::Relaxed);
        n
    }

    /// Marks all free slots as idle, even if they were in use until now.
    pub fn make_idle(&self) {
        let g = self.lock();
        let free = self.unload_magazines(&g);
        self.control.free_low.store(free, Ordering::Relaxed);
    }

    /// Moves the slots in magazines to the free stack; returns how many are there then.
    fn unload_magazines(&self, lock: &RawGuard<'_>) -> u32 {
        while let Some(number) = self.control.magazines.take_any(0) {
            self.stack(number - 1, lock);
        }
        self.control.free_top.load(Ordering::Relaxed)
    }

    /// Returns slots whose buffers have no memory any more.
    pub fn give_back_bare(&self, slots: &[SlotRef]) {
        let _g = self.lock();
        for s in slots {
            let slot = s.slot();
            self.end_life(slot);
            let bare = self.control.bare_top.load(Ordering::Relaxed);
            self.bare_place(bare).store(slot, Ordering::Relaxed);
            self.control.bare_top.store(bare + 1, Ordering::Relaxed);
        }
    }

    /// The stack cell of the `i`-th slot without a buffer. The two stacks never meet, because a slot is on one of them.
    #[inline(always)]
    fn bare_place(&self, i: u32) -> &'a AtomicU32 {
        &self.free_stack[self.free_stack.len() - 1 - i as usize]
    }

    /// Frees a slot that only this thread knows of; its places become stale.
    #[inline]
    fn end_life(&self, slot: u32) {
        let word = self.word(slot);
        debug_assert!(SlotState::of(word).may_become(SlotState::Free));
        self.states[slot as usize].store(next_life(word, SlotState::Free), Ordering::Release);
    }

    /// Puts a free slot on the stack.
    #[inline]
    fn stack(&self, slot: u32, _lock: &RawGuard<'_>) {
        let top = self.control.free_top.load(Ordering::Relaxed);
        self.free_stack[top as usize].store(slot, Ordering::Relaxed);
        self.control.free_top.store(top + 1, Ordering::Relaxed);
    }

    /// Takes a slot from the stack if the bound allows it.
    #[inline]
    fn unstack(&self, _lock: &RawGuard<'_>) -> Option<u32> {
        let c = self.control;
        let top = c.free_top.load(Ordering::Relaxed).checked_sub(1)?;
        if self.out() >= self.capacity() {
            return None;
        }
        c.free_top.store(top, Ordering::Relaxed);
        if top < c.free_low.load(Ordering::Relaxed) {
            c.free_low.store(top, Ordering::Relaxed);
        }
        Some(self.free_stack[top as usize].load(Ordering::Relaxed))
    }

    #[inline]
    fn free(&self, slot: u32) {
        self.end_life(slot);
        let me = (self.threads.number)();
        let magazines = &self.control.magazines;
        if self.out() <= self.capacity() && magazines.put(me, slot + 1) {
            return;
        }
        // The magazine is full, or too many slots are in use: move all of it to the stack under one lock.
        let g = self.lock();
        self.stack(slot, &g);
        while let Some(number) = magazines.take(me) {
            self.stack(number - 1, &g);
        }
    }

    /// Marks an owned slot, whose buffer now holds `page`, as full. Call it before the page's word says Cached, and
    /// [`SlotTable::enqueue`] afterwards.
    #[inline]
    pub fn fill(&self, slot: SlotRef, page: PageId, entry: SwapEntry, far_copy: bool) {
        let slot = slot.slot();
        self.pages[slot as usize].store(page.0, Ordering::Relaxed);
        self.set_entry(slot, entry, far_copy);
        self.set(slot, SlotState::Full);
    }

    /// Appends full slots to the FIFO, after their words were published, or when a writer returns them. If a slot was
    /// taken since then its place is stale, even if it holds another page by now.
    #[inline]
    pub fn enqueue(&self, slots: &[SlotRef]) {
        if !slots.is_empty() {
            let g = self.lock();
            self.trim_head(&g);
            slots.iter().for_each(|s| self.push(*s, &g));
        }
    }

    /// Drops stale places at the head, so that the ring stays as short as the cache.
    fn trim_head(&self, _lock: &RawGuard<'_>) {
        let (head, tail) = (&self.control.head, &self.control.tail);
        let mut first = head.load(Ordering::Relaxed);
        while first < tail.load(Ordering::Relaxed) && self.is_stale(self.ref_at(first)) {
            first += 1;
        }
        head.store(first, Ordering::Relaxed);
    }

    /// Makes a slot that was being written or taken full again, at the end of the FIFO; returns false if it is not in
    /// state `old` any more. A single step makes it full and its older places stale. If it is taken before its new
    /// place is made, that place is stale as well.
    fn put_back(&self, slot: u32, old: SlotState) -> bool {
        let word = self.word(slot);
        let full = next_life(word, SlotState::Full);
        if SlotState::of(word) != old || !self.swap(slot, word, full) {
            return false;
        }
        self.enqueue(&[SlotRef::new(slot, full)]);
        true
    }

    fn push(&self, place: SlotRef, _lock: &RawGuard<'_>) {
        let (head, tail) = (&self.control.head, &self.control.tail);
        if tail.load(Ordering::Relaxed) - head.load(Ordering::Relaxed) >= self.ring_len() as u64 - 1
        {
            self.compact();
        }
        let end = tail.load(Ordering::Relaxed);
        self.ring(end).store(place.0, Ordering::Relaxed);
        tail.store(end + 1, Ordering::Relaxed);
    }

    /// Removes stale places from a full ring, and makes the ring larger if more than half of it is valid (of the whole
    /// ring at most half is).
    #[cold]
    fn compact(&self) {
        let mut head = self.control.head.load(Ordering::Relaxed);
        let tail = self.control.tail.load(Ordering::Relaxed);
        let mut to = head;
        for i in head..tail {
            let place = self.ref_at(i);
            if !self.is_stale(place) {
                self.ring(to).store(place.0, Ordering::Relaxed);
                to += 1;
            }
        }
        let len = self.ring_len();
        if (to - head) as usize > len / 2 && len < self.ring.len() {
            // Indices from the head on are mapped to the longer ring: places that had wrapped move behind the old end.
            let live = to - head;
            let first = head & (len as u64 - 1);
            for i in (first..first + live).filter(|i| *i >= len as u64) {
                let place = self.ring[i as usize - len].load(Ordering::Relaxed);
                self.ring[i as usize].store(place, Ordering::Relaxed);
            }
            self.control
                .ring_len
                .store(2 * len as u32, Ordering::Relaxed);
            head = first;
            to = first + live;
            self.control.head.store(head, Ordering::Relaxed);
        }
        self.control.tail.store(to, Ordering::Relaxed);
    }

    #[inline]
    fn is_stale(&self, place: SlotRef) -> bool {
        self.word(place.slot()) != place.word(SlotState::Full)
    }

    /// Takes the oldest valid places, up to `out.len()`, for writing out; returns how many. Give each to
    /// [`SlotTable::begin_write`], or back by [`SlotTable::enqueue`]. Until then their pages can be taken, but no other
    /// thread writes them out.
    pub fn oldest(&self, out: &mut [SlotRef]) -> usize {
        let mut n = 0;
        while n < out.len() {
            let taken = self.pop(&mut out[n..]);
            if taken == 0 {
                break;
            }
            let mut live = n;
            for i in n..n + taken {
                if !self.is_stale(out[i]) {
                    out[live] = out[i];
                    live += 1;
                }
            }
            n = live;
        }
        n
    }

    /// Takes places from the head, including stale ones.
    fn pop(&self, out: &mut [SlotRef]) -> usize {
        let _g = self.lock();
        let head = self.control.head.load(Ordering::Relaxed);
        let n = (self.control.tail.load(Ordering::Relaxed) - head).min(out.len() as u64);
        for (i, place) in (head..head + n).zip(&mut *out) {
            *place = self.ref_at(i);
        }
        self.control.head.store(head + n, Ordering::Relaxed);
        n as usize
    }

    /// Begins to write out the slot of a place; `None` if it was taken meanwhile. Needs no lock: the generation tells
    /// whether the place is still valid.
    #[inline]
    pub fn begin_write(&self, place: SlotRef) -> Option<Job> {
        let slot = place.slot();
        let (full, writing) = (place.word(SlotState::Full), place.word(SlotState::Writing));
        if !self.swap(slot, full, writing) {
            return None;
        }
        let (entry, far_copy) = self.entry(slot);
        Some(Job {
            slot,
            page: PageId(self.pages[slot as usize].load(Ordering::Relaxed)),
            entry,
            far_copy,
        })
    }

    /// Ends a write-out after the writer has moved the word from Cached to Far ([`Job::publish`]).
    pub fn end_write(&self, slot: u32) {
        debug_assert_eq!(self.state(slot), SlotState::Writing);
        self.free(slot);
    }

    /// Ends a write-out that did not move the word: the page was busy at that moment (and may be Cached again, if a
    /// mapping call had it), or there is no room. The slot goes to the end of the FIFO, with `entry`, which holds a
    /// copy if `far_copy`. If the page has been taken, returns the entry, which the caller must release.
    pub fn abort_write(&self, slot: u32, entry: SwapEntry, far_copy: bool) -> Option<SwapEntry> {
        self.set_entry(slot, entry, far_copy);
        loop {
            match self.state(slot) {
                SlotState::Writing => {
                    if self.put_back(slot, SlotState::Writing) {
                        return None;
                    }
                }
                SlotState::Detached => {
                    if self.step(slot, SlotState::Detached, SlotState::WriterDone) {
                        break;
                    }
                }
                s => {
                    debug_assert_eq!(s, SlotState::TakerDone);
                    self.free(slot);
                    break;
                }
            }
        }
        entry.is_some().then_some(entry)
    }

    /// Takes a slot whose page the caller has just moved out of Cached. The contents stay valid until
    /// [`SlotTable::finish`].
    #[inline]
    pub fn take(&self, slot: u32) -> TakenSlot {
        loop {
            let s = self.state(slot);
            match s {
                SlotState::Full => {
                    if self.step(slot, s, SlotState::Taken) {
                        let (entry, far_copy) = self.entry(slot);
                        return TakenSlot {
                            slot,
                            entry,
                            far_copy,
                            detached: false,
                        };
                    }
                }
                SlotState::Writing => {
                    if self.step(slot, s, SlotState::Detached) {
                        return TakenSlot {
                            slot,
                            entry: SwapEntry::NONE,
                            far_copy: false,
                            detached: true,
                        };
                    }
                }
                _ => unreachable!("a cached page's slot is full or being written"),
            }
        }
    }

    /// Ends the use of a taken slot's contents.
    #[inline]
    pub fn finish(&self, t: TakenSlot) {
        if !(t.detached && self.step(t.slot, SlotState::Detached, SlotState::TakerDone)) {
            self.free(t.slot);
        }
    }

    /// Puts a taken slot back: its page could not be brought in, and the caller is about to make its word Cached again.
    pub fn undo_take(&self, t: TakenSlot) {
        let mut old = SlotState::Taken;
        if t.detached {
            // The writer is still reading: it never learns that the slot was taken.
            if self.step(t.slot, SlotState::Detached, SlotState::Writing) {
                return;
            }
            // The writer has ended: the entry is gone, but the contents are still intact.
            old = SlotState::WriterDone;
        }
        self.set_entry(t.slot, t.entry, t.far_copy);
        let done = self.put_back(t.slot, old);
        debug_assert!(done);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
