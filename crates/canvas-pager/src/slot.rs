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
//! generation, counted up whenever a slot is freed or gets another place, tells which is stale. A
//! slot never has two that count, and none before its page's word was published as Cached.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin};
use canvas_types::{PageId, SwapEntry};

use crate::word::{self, State, Word};

/// Places of the FIFO at first: it goes round in them, and the rest of its memory stays untouched, until
/// more slots are in use.
const RING_START: usize = if cfg!(test) { 2 } else { 512 };

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
    /// Decodes a slot's state.
    #[inline(always)]
    pub fn of(raw: u32) -> SlotState {
        match raw {
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
    #[inline(always)]
    fn new(slot: u32, generation: u32) -> Place {
        Place(u64::from(slot) | (u64::from(generation) << 32))
    }
    /// Number of the slot.
    #[inline(always)]
    pub fn slot(self) -> u32 {
        self.0 as u32
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
    /// Counts the places that each slot has had.
    pub generations: &'a [AtomicU32],
    /// Free slots: those with a buffer from the start, those whose buffers were given back from the end.
    pub free_stack: &'a [AtomicU32],
    /// The FIFO: a power of two, and at least twice the slots, because stale places are in it too.
    pub ring: &'a [AtomicU64],
    /// For waiting long for the lock.
    pub yield_now: fn(),
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
    /// The place that counts for a slot; changes only under the lock.
    #[inline(always)]
    fn place(&self, slot: u32) -> Place {
        Place::new(
            slot,
            self.generations[slot as usize].load(Ordering::Relaxed),
        )
    }
    #[inline(always)]
    fn place_at(&self, i: u64) -> Place {
        Place(self.ring(i).load(Ordering::Relaxed))
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
    /// The bound in slots that is in force.
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
            .saturating_sub(self.control.bare_top.load(Ordering::Relaxed))
    }
    /// Slots that can be had without writing out.
    #[inline]
    pub fn available(&self) -> u32 {
        self.capacity().saturating_sub(self.used())
    }

    /// Takes up to `out.len()` free slots; returns how many, and how many of them are new (their
    /// buffers cost memory from now on: the caller charges them).
    #[inline]
    pub fn alloc(&self, out: &mut [Place]) -> (usize, usize) {
        let c = self.control;
        let _g = self.lock();
        let (mut n, mut fresh) = (0, 0);
        while n < out.len() {
            let top = c.free_top.load(Ordering::Relaxed);
            let bare = c.bare_top.load(Ordering::Relaxed);
            let high = c.high.load(Ordering::Relaxed);
            let slot = if high - top - bare >= self.capacity() {
                break;
            } else if top > 0 {
                c.free_top.store(top - 1, Ordering::Relaxed);
                if top - 1 < c.free_low.load(Ordering::Relaxed) {
                    c.free_low.store(top - 1, Ordering::Relaxed);
                }
                self.free_stack[top as usize - 1].load(Ordering::Relaxed)
            } else if bare > 0 {
                c.bare_top.store(bare - 1, Ordering::Relaxed);
                fresh += 1;
                self.bare_place(bare - 1).load(Ordering::Relaxed)
            } else {
                c.high.store(high + 1, Ordering::Relaxed);
                fresh += 1;
                high
            };
            self.set(slot, SlotState::Owned);
            out[n] = self.place(slot);
            n += 1;
        }
        (n, fresh)
    }

    /// Gives slots back that were allocated and not used.
    pub fn give_back(&self, slots: &[Place]) {
        let g = self.lock();
        for s in slots {
            self.free_locked(s.slot(), &g);
        }
    }

    /// Takes slots that were free, with a buffer, all the time since this was last called; returns how
    /// many. When `out` is full there may be more. The caller gives their buffers' memory back, and then
    /// the slots, by [`SlotTable::give_back_bare`].
    pub fn take_idle(&self, out: &mut [Place]) -> usize {
        let c = self.control;
        let _g = self.lock();
        let top = c.free_top.load(Ordering::Relaxed);
        let idle = c.free_low.load(Ordering::Relaxed).min(top);
        let n = (idle as usize).min(out.len());
        for (i, place) in out[..n].iter_mut().enumerate() {
            let slot = self.free_stack[top as usize - 1 - i].load(Ordering::Relaxed);
            self.set(slot, SlotState::Owned);
            *place = self.place(slot);
        }
        let top = top - n as u32;
        c.free_top.store(top, Ordering::Relaxed);
        let all = n < out.len();
        c.free_low
            .store(if all { top } else { idle - n as u32 }, Ordering::Relaxed);
        n
    }

    /// Gives slots back whose buffers have no memory any more.
    pub fn give_back_bare(&self, slots: &[Place]) {
        let _g = self.lock();
        for s in slots {
            let slot = s.slot();
            self.generations[slot as usize].fetch_add(1, Ordering::Relaxed);
            self.set(slot, SlotState::Free);
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
    pub fn fill(&self, slot: Place, page: PageId, entry: SwapEntry, far_copy: bool) {
        let slot = slot.slot();
        self.pages[slot as usize].store(page.0, Ordering::Relaxed);
        self.set_entry(slot, entry, far_copy);
        self.set(slot, SlotState::Full);
    }

    /// Puts full slots at the end of the FIFO, after their words were published. A slot that was
    /// taken since then is left out, even if it has another page by now.
    #[inline]
    pub fn enqueue(&self, slots: &[Place]) {
        let g = self.lock();
        for s in slots {
            if !self.is_stale(*s) {
                self.push(*s, &g);
            }
        }
    }

    /// Makes a slot full that was being written or taken, at the end of the FIFO; false when it is
    /// not in state `old` any more. In one step: between the two it could be taken, freed, and
    /// handed out again, and then have a place before its next page is Cached.
    fn put_back(&self, slot: u32, old: SlotState) -> bool {
        let g = self.lock();
        if !self.step(slot, old, SlotState::Full) {
            return false;
        }
        // An older place may be in the FIFO still.
        self.generations[slot as usize].fetch_add(1, Ordering::Relaxed);
        self.push(self.place(slot), &g);
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
        // Drop stale places at the head, so that the ring stays as short as the cache.
        let mut first = head.load(Ordering::Relaxed);
        while first < end && self.is_stale(self.place_at(first)) {
            first += 1;
        }
        head.store(first, Ordering::Relaxed);
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
        place != self.place(place.slot()) || self.state(place.slot()) != SlotState::Full
    }

    /// Takes the oldest full slot for writing out.
    pub fn begin_write(&self) -> Option<Job> {
        let _g = self.lock();
        let mut head = self.control.head.load(Ordering::Relaxed);
        let tail = self.control.tail.load(Ordering::Relaxed);
        let mut job = None;
        while head < tail && job.is_none() {
            let place = self.place_at(head);
            head += 1;
            let slot = place.slot();
            if place == self.place(slot) && self.step(slot, SlotState::Full, SlotState::Writing) {
                let (entry, far_copy) = self.entry(slot);
                job = Some(Job {
                    slot,
                    page: PageId(self.pages[slot as usize].load(Ordering::Relaxed)),
                    entry,
                    far_copy,
                });
            }
        }
        self.control.head.store(head, Ordering::Relaxed);
        job
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
