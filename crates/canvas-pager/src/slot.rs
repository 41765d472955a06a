//! The slots of the swap cache: pages that reclaim has unmapped and not yet written out.
//!
//! A slot is a page of native memory. Reclaim copies a victim into a slot and unmaps it; a touch
//! while it is here is a *second chance* and costs a copy back, nothing else. The oldest slots are
//! written out (hash, compress, store) from their stable copy, while the page itself is in no busy
//! state: a fault never waits for the compressor. Who may make which transition is the table in
//! [`SlotState::may_become`].
//!
//! ```text
//!              reclaim            writer                writer: word Cached -> Far
//!  Free ─────► Owned ─────► Full ──────► Writing ───────────────────────────────► Free
//!                            │              │ └─ word gone ─► Stored ─ taker ─► Free
//!                    taker   │              │ taker
//!                            ▼              ▼
//!                          Taken ─► Free   Detached ─► whichever of the two ends last frees
//! ```
//! While a page is [`State::Cached`] its word's entry field holds `slot + 1`, and the slot holds
//! the page's swap entry. The *taker* is the one thread that moved the word out of Cached (a
//! fault, or a mapping call).
//!
//! Full slots wait in a FIFO of `slot | generation << 32`. A slot that is taken leaves its place
//! behind; the generation, counted up at every release, tells such a stale place from a later one.

use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin};

use crate::word::{self, State, Word};

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
    /// Written out, but the word could not be moved: its taker will come.
    Stored = 5,
    /// Taken while the writer reads it: both read.
    Detached = 6,
    /// Was detached; the writer is done, the taker frees it.
    WriterDone = 7,
    /// Was detached; the taker is done, the writer frees it.
    TakerDone = 8,
}

impl SlotState {
    /// Decodes a slot's state.
    #[inline(always)]
    pub fn of(raw: u32) -> SlotState {
        match raw {
            0 => SlotState::Free,
            1 => SlotState::Owned,
            2 => SlotState::Full,
            3 => SlotState::Writing,
            4 => SlotState::Taken,
            5 => SlotState::Stored,
            6 => SlotState::Detached,
            7 => SlotState::WriterDone,
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
            Writing => matches!(next, Full | Free | Stored | Detached),
            Taken => matches!(next, Full | Free),
            Stored => matches!(next, Taken),
            Detached => matches!(next, WriterDone | TakerDone),
            WriterDone | TakerDone => matches!(next, Free),
        }
    }
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

/// What the threads share besides the arrays of a [`SlotTable`].
pub struct Control {
    /// Guards the free stack and the FIFO.
    lock: RawSpin,
    free_top: AtomicU32,
    /// Slots ever handed out: their buffers have memory.
    high: AtomicU32,
    capacity: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
}

macro_rules! control_new {
    () => {
        Control {
            lock: RawSpin::new(),
            free_top: AtomicU32::new(0),
            high: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
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
    /// State of each slot; all arrays but `ring` have one element a slot.
    pub states: &'a [AtomicU32],
    /// The page that a slot holds.
    pub pages: &'a [AtomicU32],
    /// Its page's entry in the low half, "has a far copy" in bit 32.
    pub entries: &'a [AtomicU64],
    /// Releases of each slot.
    pub generations: &'a [AtomicU32],
    /// Free slots.
    pub free_stack: &'a [AtomicU32],
    /// The FIFO: a power of two, and twice the slots, because stale places are in it too.
    pub ring: &'a [AtomicU64],
    /// For waiting long for the lock.
    pub yield_now: fn(),
}

/// A page to be written out; its slot is the caller's until [`SlotTable::end_write`].
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The slot.
    pub slot: u32,
    /// The page.
    pub page: u32,
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
    fn state(&self, slot: u32) -> SlotState {
        SlotState::of(self.states[slot as usize].load(Ordering::Acquire))
    }
    /// Moves a slot from `old` to `new`; false when another thread was faster.
    #[inline(always)]
    fn step(&self, slot: u32, old: SlotState, new: SlotState) -> bool {
        debug_assert!(old.may_become(new));
        self.states[slot as usize]
            .compare_exchange(old as u32, new as u32, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
    /// Moves a slot that no other thread can move now.
    #[inline(always)]
    fn set(&self, slot: u32, new: SlotState) {
        debug_assert!(self.state(slot).may_become(new));
        self.states[slot as usize].store(new as u32, Ordering::Release);
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
        &self.ring[i as usize & (self.ring.len() - 1)]
    }
    #[inline(always)]
    fn lock(&self) -> RawGuard<'a> {
        self.control.lock.lock(self.yield_now)
    }

    /// Bounds the slots in use. The cache grows at once and shrinks as slots become free.
    pub fn set_capacity(&self, slots: usize) {
        self.control
            .capacity
            .store(slots.min(self.states.len()) as u32, Ordering::Relaxed);
    }
    /// The bound.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.control.capacity.load(Ordering::Relaxed)
    }
    /// Slots in use.
    #[inline]
    pub fn used(&self) -> u32 {
        self.control
            .high
            .load(Ordering::Relaxed)
            .saturating_sub(self.control.free_top.load(Ordering::Relaxed))
    }
    /// Slots that can be had without writing out.
    #[inline]
    pub fn available(&self) -> u32 {
        self.capacity().saturating_sub(self.used())
    }

    /// Takes up to `out.len()` free slots; returns how many, and how many of them are new (their
    /// buffers cost memory from now on: the caller charges them).
    #[inline]
    pub fn alloc(&self, out: &mut [u32]) -> (usize, usize) {
        let c = self.control;
        let _g = self.lock();
        let (mut n, mut fresh) = (0, 0);
        while n < out.len() {
            let top = c.free_top.load(Ordering::Relaxed);
            let high = c.high.load(Ordering::Relaxed);
            let slot = if high - top >= self.capacity() {
                break;
            } else if top > 0 {
                c.free_top.store(top - 1, Ordering::Relaxed);
                self.free_stack[top as usize - 1].load(Ordering::Relaxed)
            } else {
                c.high.store(high + 1, Ordering::Relaxed);
                fresh += 1;
                high
            };
            self.set(slot, SlotState::Owned);
            out[n] = slot;
            n += 1;
        }
        (n, fresh)
    }

    /// Gives slots back that were allocated and not used.
    pub fn give_back(&self, slots: &[u32]) {
        let g = self.lock();
        for s in slots {
            self.free_locked(*s, &g);
        }
    }

    #[inline]
    fn free_locked(&self, slot: u32, _lock: &RawGuard<'_>) {
        self.generations[slot as usize].fetch_add(1, Ordering::Relaxed);
        self.set(slot, SlotState::Free);
        let top = self.control.free_top.load(Ordering::Relaxed);
        self.free_stack[top as usize].store(slot, Ordering::Relaxed);
        self.control.free_top.store(top + 1, Ordering::Relaxed);
    }

    #[inline]
    fn free(&self, slot: u32) {
        let g = self.lock();
        self.free_locked(slot, &g);
    }

    /// Marks an owned slot, whose buffer now holds `page`, as full. Call before the page's word
    /// says Cached; afterwards call [`SlotTable::enqueue`].
    #[inline]
    pub fn fill(&self, slot: u32, page: u32, entry: SwapEntry, far_copy: bool) {
        self.pages[slot as usize].store(page, Ordering::Relaxed);
        self.set_entry(slot, entry, far_copy);
        self.set(slot, SlotState::Full);
    }

    /// Puts full slots at the end of the FIFO, after their words were published.
    #[inline]
    pub fn enqueue(&self, slots: &[u32]) {
        let g = self.lock();
        for s in slots {
            self.push(*s, &g);
        }
    }

    fn push(&self, slot: u32, _lock: &RawGuard<'_>) {
        let (head, tail) = (&self.control.head, &self.control.tail);
        if tail.load(Ordering::Relaxed) - head.load(Ordering::Relaxed) >= self.ring.len() as u64 - 1
        {
            self.compact();
        }
        let end = tail.load(Ordering::Relaxed);
        let generation = self.generations[slot as usize].load(Ordering::Relaxed);
        self.ring(end).store(
            u64::from(slot) | (u64::from(generation) << 32),
            Ordering::Relaxed,
        );
        tail.store(end + 1, Ordering::Relaxed);
        // Drop stale places at the head, so that the ring stays as short as the cache.
        let mut first = head.load(Ordering::Relaxed);
        while first < end && self.is_stale(self.ring(first).load(Ordering::Relaxed)) {
            first += 1;
        }
        head.store(first, Ordering::Relaxed);
    }

    /// Takes the stale places out of a full ring; at most half of it is live.
    #[cold]
    fn compact(&self) {
        let head = self.control.head.load(Ordering::Relaxed);
        let tail = self.control.tail.load(Ordering::Relaxed);
        let mut to = head;
        for i in head..tail {
            let tagged = self.ring(i).load(Ordering::Relaxed);
            if !self.is_stale(tagged) {
                self.ring(to).store(tagged, Ordering::Relaxed);
                to += 1;
            }
        }
        self.control.tail.store(to, Ordering::Relaxed);
    }

    #[inline]
    fn is_current(&self, tagged: u64) -> bool {
        let slot = tagged as u32 as usize;
        self.generations[slot].load(Ordering::Relaxed) == (tagged >> 32) as u32
    }

    #[inline]
    fn is_stale(&self, tagged: u64) -> bool {
        let slot = tagged as u32 as usize;
        !self.is_current(tagged)
            || self.states[slot].load(Ordering::Relaxed) != SlotState::Full as u32
    }

    /// Takes the oldest full slot for writing out.
    pub fn begin_write(&self) -> Option<Job> {
        let _g = self.lock();
        let mut head = self.control.head.load(Ordering::Relaxed);
        let tail = self.control.tail.load(Ordering::Relaxed);
        let mut job = None;
        while head < tail && job.is_none() {
            let tagged = self.ring(head).load(Ordering::Relaxed);
            head += 1;
            let slot = tagged as u32;
            if self.is_current(tagged) && self.step(slot, SlotState::Full, SlotState::Writing) {
                let (entry, far_copy) = self.entry(slot);
                job = Some(Job {
                    slot,
                    page: self.pages[slot as usize].load(Ordering::Relaxed),
                    entry,
                    far_copy,
                });
            }
        }
        self.control.head.store(head, Ordering::Relaxed);
        job
    }

    /// Ends a write-out. `published`: the writer moved the word from Cached to Far. Otherwise the
    /// page was taken meanwhile: then its entry (`entry`, holding a copy if `far_copy`) goes to the
    /// taker if that still waits for it, else it is returned and the caller must release it.
    pub fn end_write(
        &self,
        slot: u32,
        published: bool,
        entry: SwapEntry,
        far_copy: bool,
    ) -> Option<SwapEntry> {
        if published {
            self.free(slot);
            return None;
        }
        self.set_entry(slot, entry, far_copy);
        if self.step(slot, SlotState::Writing, SlotState::Stored) {
            return None;
        }
        if !self.step(slot, SlotState::Detached, SlotState::WriterDone) {
            debug_assert_eq!(self.state(slot), SlotState::TakerDone);
            self.free(slot);
        }
        entry.is_some().then_some(entry)
    }

    /// Ends a write-out that could not be done: the page stays cached, at the end of the FIFO.
    /// Returns the entry to release when the page was taken meanwhile.
    pub fn abort_write(&self, slot: u32, entry: SwapEntry, far_copy: bool) -> Option<SwapEntry> {
        self.set_entry(slot, entry, far_copy);
        if self.step(slot, SlotState::Writing, SlotState::Full) {
            self.enqueue(&[slot]);
            return None;
        }
        self.end_write(slot, false, entry, far_copy)
    }

    /// Takes a slot whose page the caller has just moved out of Cached. The contents stay valid
    /// until [`SlotTable::finish`].
    #[inline]
    pub fn take(&self, slot: u32) -> Taken {
        loop {
            let s = self.state(slot);
            match s {
                SlotState::Full | SlotState::Stored => {
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

    /// Puts a taken slot back: its page could not be brought in and is Cached again.
    pub fn untake(&self, t: Taken) -> bool {
        if t.detached {
            return false;
        }
        self.set_entry(t.slot, t.entry, t.far_copy);
        self.set(t.slot, SlotState::Full);
        // Its old place in the FIFO may have been dropped as stale.
        self.enqueue(&[t.slot]);
        true
    }
}
