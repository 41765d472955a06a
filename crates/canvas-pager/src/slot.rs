//! The slots of the swap cache: pages that reclaim has unmapped and not yet written out.
//!
//! A slot is a page of native memory. Reclaim copies a victim into a slot and unmaps it; a touch
//! while it is here is a *second chance* and costs a copy back, nothing else. The oldest slots are
//! written out (hash, compress, store) from their stable copy, while the page itself is in no busy
//! state: a fault never waits for the compressor. Who may make which transition is the table in
//! [`SlotState::may_become`].
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
//! While a page is [`State::Cached`] its word's entry field holds `slot + 1`, and the slot holds
//! the page's swap entry. The *taker* is the one thread that moved the word out of Cached (a
//! fault, or a mapping call).
//!
//! Both the writer and the taker of a detached slot read it, and whichever ends last frees it. A
//! fill that fails puts its slot back from either state, and from WriterDone too.
//!
//! Full slots wait in a FIFO of [`Place`]s. A slot that is taken leaves its place behind; the
//! generation, counted up whenever a slot is freed or gets another place, tells which is stale. It
//! lies beside the state in one word, so that one compare-and-swap says whether a place counts. A
//! slot never has two that count, and none before its page's word was published as Cached.
//!
//! The lock guards the free stacks and the FIFO, and is taken for a batch: of places that are made,
//! of places that a writer takes ([`SlotTable::oldest`]), of slots that are allocated. Single slots
//! are taken from and given back to a shelf of a [`Stock`], without it; a shelf that is full goes to
//! the free stack in one piece. Slots on shelves have buffers and count as free: whoever finds the
//! stack empty takes them from any shelf before a new buffer is begun or nothing is to be had.

use canvas_types::stock::Stock;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin, Threads};
use canvas_types::{PageId, SwapEntry};

use crate::word::{self, State, Word};

/// Places of the FIFO at first: it goes round in them, and the rest of its memory stays untouched, until
/// more slots are in use.
const RING_START: usize = if cfg!(test) { 2 } else { 512 };

/// Slots on a shelf at most; so many go to the free stack, or come from it, under one lock.
const SHELF: usize = if cfg!(any(test, feature = "shuttle")) {
    2
} else {
    16
};
/// Places that a writer takes from the FIFO under one lock.
pub const WRITES: usize = 16;

/// Where a slot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SlotState {
    /// On the free stack, or never handed out.
    Free = 0,
    /// A reclaimer copies a page into it.
    Owned = 1,
    /// Holds a page; waits in the FIFO.
    Full = 2,
    /// The writer reads it.
    Writing = 3,
    /// A taker reads it.
    Taken = 4,
    /// Taken while the writer reads it: both read.
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
    /// The legal transitions; debug builds and tests hold the code to it.
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
/// What to add to a slot's word for the next generation.
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

/// A slot in one of its lives: as it is handed out, and as it waits in the FIFO.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Place(u64);

impl Place {
    /// `word`: the slot's; its generation is what counts.
    #[inline(always)]
    fn new(slot: u32, word: u32) -> Place {
        Place(u64::from(slot) | (u64::from(word & !STATE_MASK) << 32))
    }
    /// Number of the slot.
    #[inline(always)]
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
    /// The slot's word while this place counts and it is in `state`.
    #[inline(always)]
    fn word(self, state: SlotState) -> u32 {
        (self.0 >> 32) as u32 | state as u32
    }
}

/// What the threads share besides the arrays of a [`SlotTable`].
pub struct Control {
    /// Guards the free stacks and the FIFO.
    lock: RawSpin,
    free_top: AtomicU32,
    /// Least of `free_top` since idle slots were last asked for.
    free_low: AtomicU32,
    /// Free slots whose buffers were given back.
    bare_top: AtomicU32,
    /// Slots ever handed out.
    high: AtomicU32,
    /// Places of the FIFO in use; 0 for the first [`RING_START`].
    ring_len: AtomicU32,
    capacity: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
    /// Free slots with buffers, by number + 1.
    stock: Stock<SHELF>,
}

macro_rules! control_new {
    () => {
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
            stock: Stock::new(),
        }
    };
}

impl Control {
    /// No slot in use, and none to be had before [`SlotTable::set_capacity`].
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Control {
        control_new!()
    }
    /// No slot in use, and none to be had before [`SlotTable::set_capacity`].
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Control {
        control_new!()
    }
}

/// All slots of a process, over memory that the caller provides and that is zero at start. Copying
/// it copies references.
#[derive(Clone, Copy)]
pub struct SlotTable<'a> {
    /// Lock and counters.
    pub control: &'a Control,
    /// Each slot's state and, above [`SlotState::of`]'s bits, its generation: how many places it has had;
    /// all arrays but `ring` have one element a slot.
    pub states: &'a [AtomicU32],
    /// The page that a slot holds.
    pub pages: &'a [AtomicU32],
    /// Its page's entry in the low half, "has a far copy" in bit 32.
    pub entries: &'a [AtomicU64],
    /// Free slots: those with a buffer from the start, those whose buffers were given back from the end.
    pub free_stack: &'a [AtomicU32],
    /// The FIFO: a power of two, and at least twice the slots, because stale places are in it too.
    pub ring: &'a [AtomicU64],
    /// What is asked of threads.
    pub threads: Threads,
}

/// A page to be written out; its slot is the caller's until
/// [`SlotTable::end_write`] or [`SlotTable::abort_write`].
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Number of the slot.
    pub slot: u32,
    /// The page that lies in it.
    pub page: PageId,
    /// Entry that the page owns.
    pub entry: SwapEntry,
    /// The entry holds an earlier copy.
    pub far_copy: bool,
}

impl Job {
    /// Moves the page's word `w`, read as `cur`, to `far`; false when the page is not in the slot
    /// any more, or is being taken.
    #[inline]
    pub fn publish(&self, w: &AtomicU64, cur: Word, far: Word) -> bool {
        cur.state() == State::Cached
            && cur.entry() == in_word(self.slot)
            && word::transition(w, cur, far)
    }
}

/// What a taker got.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    slot: u32,
    /// The entry that the page owns from now on (none when a writer is using it).
    pub entry: SwapEntry,
    /// The entry holds a copy of an earlier content (or, after a write-out, of this one).
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
    /// Moves a slot's word from `old` to `new`; false when another thread was faster.
    #[inline(always)]
    fn swap(&self, slot: u32, old: u32, new: u32) -> bool {
        debug_assert!(SlotState::of(old).may_become(SlotState::of(new)));
        self.states[slot as usize]
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
    /// Moves a slot from `old` to `new`; false when another thread was faster.
    #[inline(always)]
    fn step(&self, slot: u32, old: SlotState, new: SlotState) -> bool {
        let word = self.word(slot);
        SlotState::of(word) == old && self.swap(slot, word, word & !STATE_MASK | new as u32)
    }
    /// Moves a slot that no other thread can move now; the place that counts for it.
    #[inline(always)]
    fn set(&self, slot: u32, new: SlotState) -> Place {
        let word = self.word(slot);
        debug_assert!(SlotState::of(word).may_become(new));
        self.states[slot as usize].store(word & !STATE_MASK | new as u32, Ordering::Release);
        Place::new(slot, word)
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
    /// Places of the FIFO in use: a power of two. Changes only under the lock.
    #[inline(always)]
    fn ring_len(&self) -> usize {
        debug_assert!(self.ring.len().is_power_of_two());
        match self.control.ring_len.load(Ordering::Relaxed) {
            0 => RING_START.min(self.ring.len()),
            n => n as usize,
        }
    }
    #[inline(always)]
    fn place_at(&self, i: u64) -> Place {
        Place(self.ring(i).load(Ordering::Relaxed))
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
    /// The bound in slots that is in force.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.control.capacity.load(Ordering::Relaxed)
    }
    /// Slots that are not on the stacks: in use, or on a shelf.
    #[inline]
    fn out(&self) -> u32 {
        self.buffers()
            .saturating_sub(self.control.free_top.load(Ordering::Relaxed))
    }
    /// Slots in use.
    #[inline]
    pub fn used(&self) -> u32 {
        self.out().saturating_sub(self.control.stock.len())
    }
    /// Slots that can be had without writing out.
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
    /// How often the lock was found taken, modulo 2^32.
    pub fn lock_waits(&self) -> u32 {
        self.control.lock.waits()
    }

    /// Takes up to `out.len()` free slots; returns how many, and how many of them are new (their
    /// buffers cost memory from now on: the caller charges them).
    #[inline]
    pub fn alloc(&self, out: &mut [Place]) -> (usize, usize) {
        let stock = &self.control.stock;
        let me = (self.threads.number)();
        let mut n = 0;
        // Above the bound, as when it was lowered, what lies on shelves is not to be had.
        if self.out() <= self.capacity() {
            n = self.alloc_shelved(&mut out[..], || stock.take(me));
        }
        if n < out.len() {
            n += self.alloc_stacked(&mut out[n..], me);
        }
        if n < out.len() && self.out() <= self.capacity() {
            n += self.alloc_shelved(&mut out[n..], || stock.take_any(me));
        }
        let mut fresh = 0;
        if n < out.len() {
            n += self.alloc_fresh(&mut out[n..], &mut fresh);
        }
        (n, fresh)
    }

    /// Takes slots from shelves.
    fn alloc_shelved(&self, out: &mut [Place], take: impl Fn() -> Option<u32>) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some(number) = take()
        {
            out[n] = self.set(number - 1, SlotState::Owned);
            n += 1;
        }
        n
    }

    /// Takes slots with buffers from the free stack, and a few more for the shelf where one was asked for.
    fn alloc_stacked(&self, out: &mut [Place], me: usize) -> usize {
        let stock = &self.control.stock;
        let mut n = 0;
        {
            let g = self.lock();
            if self.out() > self.capacity() {
                // They count as free, and the bound is kept by the stacks.
                while let Some(number) = stock.take_any(me) {
                    self.stack(number - 1, &g);
                }
            }
            while n < out.len()
                && let Some(slot) = self.unstack(&g)
            {
                out[n] = Place::new(slot, 0);
                n += 1;
            }
            if out.len() == 1 {
                for _ in 0..SHELF / 2 {
                    let Some(slot) = self.unstack(&g) else { break };
                    if !stock.put(me, slot + 1) {
                        self.stack(slot, &g);
                        break;
                    }
                }
            }
        }
        self.own(&mut out[..n]);
        n
    }

    /// Takes slots that have no buffer yet, or none any more, where none with a buffer was given back
    /// meanwhile; counts them.
    fn alloc_fresh(&self, out: &mut [Place], fresh: &mut usize) -> usize {
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
                out[n] = Place::new(slot, 0);
                n += 1;
            }
        }
        self.own(&mut out[..n]);
        n
    }

    /// Slots that were just taken from the stacks become this thread's: what else it costs to fetch their
    /// words is not paid under the lock.
    fn own(&self, slots: &mut [Place]) {
        for place in slots {
            *place = self.set(place.slot(), SlotState::Owned);
        }
    }

    /// Gives slots back that were allocated and not used.
    pub fn give_back(&self, slots: &[Place]) {
        slots.iter().for_each(|s| self.end_life(s.slot()));
        let g = self.lock();
        slots.iter().for_each(|s| self.stack(s.slot(), &g));
    }

    /// Takes slots that were free, with a buffer, all the time since this was last called; returns how
    /// many. When `out` is full there may be more. What lies on shelves is idle by the next call, if nobody
    /// needs it. The caller gives their buffers' memory back, and then the slots, by
    /// [`SlotTable::give_back_bare`].
    pub fn take_idle(&self, out: &mut [Place]) -> usize {
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
            true => self.unshelve(&g),
            false => idle - n as u32,
        };
        c.free_low.store(left, Ordering::Relaxed);
        n
    }

    /// All that is free is idle, whatever it was needed for until now.
    pub fn make_idle(&self) {
        let g = self.lock();
        let free = self.unshelve(&g);
        self.control.free_low.store(free, Ordering::Relaxed);
    }

    /// Puts what lies on shelves on the free stack; how many are there then.
    fn unshelve(&self, lock: &RawGuard<'_>) -> u32 {
        while let Some(number) = self.control.stock.take_any(0) {
            self.stack(number - 1, lock);
        }
        self.control.free_top.load(Ordering::Relaxed)
    }

    /// Gives slots back whose buffers have no memory any more.
    pub fn give_back_bare(&self, slots: &[Place]) {
        let _g = self.lock();
        for s in slots {
            let slot = s.slot();
            self.end_life(slot);
            let bare = self.control.bare_top.load(Ordering::Relaxed);
            self.bare_place(bare).store(slot, Ordering::Relaxed);
            self.control.bare_top.store(bare + 1, Ordering::Relaxed);
        }
    }

    /// Where the `i`-th slot without a buffer stands. The two stacks never meet: a slot is on one of them.
    #[inline(always)]
    fn bare_place(&self, i: u32) -> &'a AtomicU32 {
        &self.free_stack[self.free_stack.len() - 1 - i as usize]
    }

    /// A slot that only this thread knows of becomes free; its places are stale from now on.
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

    /// Takes one from the stack, below the bound.
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
        let stock = &self.control.stock;
        if self.out() <= self.capacity() && stock.put(me, slot + 1) {
            return;
        }
        // The shelf is full, or too many are out: all of it goes, for one lock.
        let g = self.lock();
        self.stack(slot, &g);
        while let Some(number) = stock.take(me) {
            self.stack(number - 1, &g);
        }
    }

    /// Marks an owned slot, whose buffer now holds `page`, as full. Call before the page's word
    /// says Cached; afterwards call [`SlotTable::enqueue`].
    #[inline]
    pub fn fill(&self, slot: Place, page: PageId, entry: SwapEntry, far_copy: bool) {
        let slot = slot.slot();
        self.pages[slot as usize].store(page.0, Ordering::Relaxed);
        self.set_entry(slot, entry, far_copy);
        self.set(slot, SlotState::Full);
    }

    /// Puts full slots at the end of the FIFO, after their words were published, or when a writer gives
    /// them back. Where a slot was taken since then its place is stale, even if it has another page by now.
    #[inline]
    pub fn enqueue(&self, slots: &[Place]) {
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
        while first < tail.load(Ordering::Relaxed) && self.is_stale(self.place_at(first)) {
            first += 1;
        }
        head.store(first, Ordering::Relaxed);
    }

    /// Makes a slot full that was being written or taken, at the end of the FIFO; false when it is
    /// not in state `old` any more. In one step it is full and older places are stale; should it be
    /// taken before its new place is made, that is stale as well.
    fn put_back(&self, slot: u32, old: SlotState) -> bool {
        let word = self.word(slot);
        let full = next_life(word, SlotState::Full);
        if SlotState::of(word) != old || !self.swap(slot, word, full) {
            return false;
        }
        self.enqueue(&[Place::new(slot, full)]);
        true
    }

    fn push(&self, place: Place, _lock: &RawGuard<'_>) {
        let (head, tail) = (&self.control.head, &self.control.tail);
        if tail.load(Ordering::Relaxed) - head.load(Ordering::Relaxed) >= self.ring_len() as u64 - 1
        {
            self.compact();
        }
        let end = tail.load(Ordering::Relaxed);
        self.ring(end).store(place.0, Ordering::Relaxed);
        tail.store(end + 1, Ordering::Relaxed);
    }

    /// Takes the stale places out of a full ring, and makes it larger when more than half of it is live
    /// (of the whole ring at most half is).
    #[cold]
    fn compact(&self) {
        let mut head = self.control.head.load(Ordering::Relaxed);
        let tail = self.control.tail.load(Ordering::Relaxed);
        let mut to = head;
        for i in head..tail {
            let place = self.place_at(i);
            if !self.is_stale(place) {
                self.ring(to).store(place.0, Ordering::Relaxed);
                to += 1;
            }
        }
        let len = self.ring_len();
        if (to - head) as usize > len / 2 && len < self.ring.len() {
            // Counted anew from where the head stands: what lies before it is past the old end then.
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
    fn is_stale(&self, place: Place) -> bool {
        self.word(place.slot()) != place.word(SlotState::Full)
    }

    /// Takes the oldest places that count, up to `out.len()`, for writing out; returns how many. Each is to
    /// be given to [`SlotTable::begin_write`], or back by [`SlotTable::enqueue`]; until then their pages can
    /// be taken, but not be written out by others.
    pub fn oldest(&self, out: &mut [Place]) -> usize {
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

    /// Takes places from the head, stale ones among them.
    fn pop(&self, out: &mut [Place]) -> usize {
        let _g = self.lock();
        let head = self.control.head.load(Ordering::Relaxed);
        let n = (self.control.tail.load(Ordering::Relaxed) - head).min(out.len() as u64);
        for (i, place) in (head..head + n).zip(&mut *out) {
            *place = self.place_at(i);
        }
        self.control.head.store(head + n, Ordering::Relaxed);
        n as usize
    }

    /// Begins to write out what stands at a place; `None` when it was taken meanwhile. Without a lock: the
    /// generation says whether it is the same still.
    #[inline]
    pub fn begin_write(&self, place: Place) -> Option<Job> {
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

    /// Ends a write-out whose writer has moved the word from Cached to Far ([`Job::publish`]).
    pub fn end_write(&self, slot: u32) {
        debug_assert_eq!(self.state(slot), SlotState::Writing);
        self.free(slot);
    }

    /// Ends a write-out after which the word still names the slot: it was busy just then (and may
    /// be Cached again, if it was a mapping call's), or there is no room. The slot waits at the end
    /// of the FIFO, with `entry`, which holds a copy if `far_copy`. When the page has been taken,
    /// the entry is returned and the caller must release it.
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

    /// Takes a slot whose page the caller has just moved out of Cached. The contents stay valid
    /// until [`SlotTable::finish`].
    #[inline]
    pub fn take(&self, slot: u32) -> Taken {
        loop {
            let s = self.state(slot);
            match s {
                SlotState::Full => {
                    if self.step(slot, s, SlotState::Taken) {
                        let (entry, far_copy) = self.entry(slot);
                        return Taken {
                            slot,
                            entry,
                            far_copy,
                            detached: false,
                        };
                    }
                }
                SlotState::Writing => {
                    if self.step(slot, s, SlotState::Detached) {
                        return Taken {
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

    /// The taker is done with the slot's contents.
    #[inline]
    pub fn finish(&self, t: Taken) {
        if !(t.detached && self.step(t.slot, SlotState::Detached, SlotState::TakerDone)) {
            self.free(t.slot);
        }
    }

    /// Puts a taken slot back: its page could not be brought in, and the caller is about to make
    /// its word Cached again.
    pub fn untake(&self, t: Taken) {
        let mut old = SlotState::Taken;
        if t.detached {
            // While the writer is at it, it never learns that the slot was taken.
            if self.step(t.slot, SlotState::Detached, SlotState::Writing) {
                return;
            }
            // It has ended: the entry is gone, but nothing else has become of the contents.
            old = SlotState::WriterDone;
        }
        self.set_entry(t.slot, t.entry, t.far_copy);
        let done = self.put_back(t.slot, old);
        debug_assert!(done);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
