//! The swap cache: pages that reclaim has unmapped and not yet written out.
//!
//! A slot is a page of native memory. Reclaim copies a victim into a slot and unmaps it; a touch
//! while it is here is a *second chance* and costs a copy back, nothing else. The oldest slots are
//! written out (hash, compress, store) from their stable copy, while the page itself is in no busy
//! state: a fault never waits for the compressor.
//!
//! ```text
//!              reclaim            writer                writer: word Cached -> Far
//!  Free ─────► Owned ─────► Full ──────► Writing ───────────────────────────────► Free
//!                            │              │ └─ word gone ─► Stored ─ taker ─► Free
//!                    taker   │              │ taker
//!                            ▼              ▼
//!                          Taken ─► Free   Detached ─► whichever of the two ends last frees
//! ```
//! While a page is [`State::Cached`](canvas_pager::word::State::Cached) its word's entry field
//! holds `slot + 1`, and the slot holds the page's swap entry. The *taker* is the one thread that
//! moved the word out of Cached (a fault, or a mapping call).

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin};
use canvas_types::{PAGE_SIZE, PageBuf, SwapEntry};

use crate::areas::{self, CACHE_SLOTS_MAX};
use canvas_sys::gate::yield_now;

const FREE: u32 = 0;
const OWNED: u32 = 1;
const FULL: u32 = 2;
const WRITING: u32 = 3;
const TAKEN: u32 = 4;
const STORED: u32 = 5;
const DETACHED: u32 = 6;
const WRITER_DONE: u32 = 7;
const TAKER_DONE: u32 = 8;

/// Places in the FIFO; stale ones are skipped, so it is larger than the cache.
const RING: usize = CACHE_SLOTS_MAX * 2;

/// Guards the free stack and the FIFO.
static LOCK: RawSpin = RawSpin::new();
static FREE_TOP: AtomicU32 = AtomicU32::new(0);
/// Slots ever handed out: their buffers have memory.
static HIGH: AtomicU32 = AtomicU32::new(0);
static CAPACITY: AtomicU32 = AtomicU32::new(0);
static HEAD: AtomicU64 = AtomicU64::new(0);
static TAIL: AtomicU64 = AtomicU64::new(0);

fn state(slot: u32) -> &'static AtomicU32 {
    &areas::cache_meta32(0, CACHE_SLOTS_MAX)[slot as usize]
}
fn page_of(slot: u32) -> &'static AtomicU32 {
    &areas::cache_meta32(CACHE_SLOTS_MAX * 4, CACHE_SLOTS_MAX)[slot as usize]
}
/// Entry in the low half, "has a far copy" in bit 32.
fn entry_of(slot: u32) -> &'static AtomicU64 {
    &areas::cache_meta64(CACHE_SLOTS_MAX * 8, CACHE_SLOTS_MAX)[slot as usize]
}
fn generation(slot: u32) -> &'static AtomicU32 {
    &areas::cache_meta32(CACHE_SLOTS_MAX * 16, CACHE_SLOTS_MAX)[slot as usize]
}
fn free_stack(i: u32) -> &'static AtomicU32 {
    &areas::cache_meta32(CACHE_SLOTS_MAX * 20, CACHE_SLOTS_MAX)[i as usize]
}
fn ring(i: u64) -> &'static AtomicU64 {
    &areas::cache_meta64(CACHE_SLOTS_MAX * 24, RING)[i as usize % RING]
}

/// Address of a slot's buffer.
#[inline(always)]
pub fn buffer(slot: u32) -> usize {
    debug_assert!((slot as usize) < CACHE_SLOTS_MAX);
    areas::CACHE_BUFFERS + slot as usize * PAGE_SIZE
}

/// A slot's contents, for the thread that is its writer or taker.
#[inline(always)]
pub fn contents(slot: u32) -> &'static PageBuf {
    // SAFETY: slot buffers are mapped for the life of the process, and neither the writer's nor
    // the taker's slot is written to before both are done with it.
    unsafe { &*(buffer(slot) as *const PageBuf) }
}

/// Bounds the cache to `pages`. It grows at once and shrinks as slots become free.
pub fn set_capacity(pages: usize) {
    CAPACITY.store(pages.min(CACHE_SLOTS_MAX) as u32, Ordering::Relaxed);
}
/// The bound in pages.
pub fn capacity() -> u32 {
    CAPACITY.load(Ordering::Relaxed)
}
/// Slots in use.
pub fn used() -> u32 {
    HIGH.load(Ordering::Relaxed)
        .saturating_sub(FREE_TOP.load(Ordering::Relaxed))
}
/// Slots that can be had without writing out.
pub fn available() -> u32 {
    capacity().saturating_sub(used())
}

/// Takes up to `out.len()` free slots; returns how many, and how many of them are new (their
/// buffers cost memory from now on: the caller charges them).
pub fn alloc(out: &mut [u32]) -> (usize, usize) {
    let _g = LOCK.lock(yield_now);
    let (mut n, mut fresh) = (0, 0);
    while n < out.len() {
        let top = FREE_TOP.load(Ordering::Relaxed);
        let high = HIGH.load(Ordering::Relaxed);
        let slot = if high - top >= capacity() {
            break;
        } else if top > 0 {
            FREE_TOP.store(top - 1, Ordering::Relaxed);
            free_stack(top - 1).load(Ordering::Relaxed)
        } else {
            HIGH.store(high + 1, Ordering::Relaxed);
            fresh += 1;
            high
        };
        debug_assert_eq!(state(slot).load(Ordering::Relaxed), FREE);
        state(slot).store(OWNED, Ordering::Relaxed);
        out[n] = slot;
        n += 1;
    }
    (n, fresh)
}

/// Gives slots back that were allocated and not used.
pub fn give_back(slots: &[u32]) {
    let g = LOCK.lock(yield_now);
    for s in slots {
        free_locked(*s, &g);
    }
}

fn free_locked(slot: u32, _lock: &RawGuard<'_>) {
    generation(slot).fetch_add(1, Ordering::Relaxed);
    state(slot).store(FREE, Ordering::Release);
    let top = FREE_TOP.load(Ordering::Relaxed);
    free_stack(top).store(slot, Ordering::Relaxed);
    FREE_TOP.store(top + 1, Ordering::Relaxed);
}

fn free(slot: u32) {
    let g = LOCK.lock(yield_now);
    free_locked(slot, &g);
}

/// Marks an owned slot, whose buffer now holds `page`, as full. Call before the page's word says
/// Cached; afterwards call [`enqueue`].
pub fn fill(slot: u32, page: u32, entry: SwapEntry, far_copy: bool) {
    page_of(slot).store(page, Ordering::Relaxed);
    entry_of(slot).store(
        u64::from(entry.0) | (u64::from(far_copy) << 32),
        Ordering::Relaxed,
    );
    state(slot).store(FULL, Ordering::Release);
}

/// Puts full slots at the end of the FIFO, after their words were published.
pub fn enqueue(slots: &[u32]) {
    let _g = LOCK.lock(yield_now);
    for s in slots {
        push(*s);
    }
}

fn push(slot: u32) {
    let tail = TAIL.load(Ordering::Relaxed);
    if tail - HEAD.load(Ordering::Relaxed) >= RING as u64 - 1 {
        compact();
    }
    let tail = TAIL.load(Ordering::Relaxed);
    let tagged = u64::from(slot) | (u64::from(generation(slot).load(Ordering::Relaxed)) << 32);
    ring(tail).store(tagged, Ordering::Relaxed);
    TAIL.store(tail + 1, Ordering::Relaxed);
    // Drop stale places at the head, so that the ring stays as short as the cache.
    let mut head = HEAD.load(Ordering::Relaxed);
    while head < tail && is_stale(ring(head).load(Ordering::Relaxed)) {
        head += 1;
    }
    HEAD.store(head, Ordering::Relaxed);
}

/// Takes the stale places out of a full ring; at most half of it is live.
#[cold]
fn compact() {
    let (head, tail) = (HEAD.load(Ordering::Relaxed), TAIL.load(Ordering::Relaxed));
    let mut to = head;
    for i in head..tail {
        let tagged = ring(i).load(Ordering::Relaxed);
        if !is_stale(tagged) {
            ring(to).store(tagged, Ordering::Relaxed);
            to += 1;
        }
    }
    TAIL.store(to, Ordering::Relaxed);
}

fn is_stale(tagged: u64) -> bool {
    let slot = tagged as u32;
    generation(slot).load(Ordering::Relaxed) != (tagged >> 32) as u32
        || state(slot).load(Ordering::Relaxed) != FULL
}

/// A page to be written out; its slot is the caller's until [`end_write`].
#[derive(Clone, Copy)]
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

/// Takes the oldest full slot for writing out.
pub fn begin_write() -> Option<Job> {
    let _g = LOCK.lock(yield_now);
    let (mut head, tail) = (HEAD.load(Ordering::Relaxed), TAIL.load(Ordering::Relaxed));
    while head < tail {
        let tagged = ring(head).load(Ordering::Relaxed);
        head += 1;
        let slot = tagged as u32;
        if generation(slot).load(Ordering::Relaxed) == (tagged >> 32) as u32
            && state(slot)
                .compare_exchange(FULL, WRITING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            HEAD.store(head, Ordering::Relaxed);
            let e = entry_of(slot).load(Ordering::Relaxed);
            return Some(Job {
                slot,
                page: page_of(slot).load(Ordering::Relaxed),
                entry: SwapEntry(e as u32),
                far_copy: e >> 32 != 0,
            });
        }
    }
    HEAD.store(head, Ordering::Relaxed);
    None
}

/// Ends a write-out. `published`: the writer moved the word from Cached to Far. Otherwise the
/// page was taken meanwhile: then its entry (`entry`, holding a copy if `far_copy`) goes to the
/// taker if that still waits for it, else it is returned and the caller must release it.
pub fn end_write(
    slot: u32,
    published: bool,
    entry: SwapEntry,
    far_copy: bool,
) -> Option<SwapEntry> {
    if published {
        free(slot);
        return None;
    }
    entry_of(slot).store(
        u64::from(entry.0) | (u64::from(far_copy) << 32),
        Ordering::Relaxed,
    );
    if state(slot)
        .compare_exchange(WRITING, STORED, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        return None;
    }
    if state(slot)
        .compare_exchange(DETACHED, WRITER_DONE, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        debug_assert_eq!(state(slot).load(Ordering::Relaxed), TAKER_DONE);
        free(slot);
    }
    entry.is_some().then_some(entry)
}

/// Ends a write-out that could not be done: the page stays cached, at the end of the FIFO.
/// Returns the entry to release when the page was taken meanwhile.
pub fn abort_write(slot: u32, entry: SwapEntry, far_copy: bool) -> Option<SwapEntry> {
    entry_of(slot).store(
        u64::from(entry.0) | (u64::from(far_copy) << 32),
        Ordering::Relaxed,
    );
    if state(slot)
        .compare_exchange(WRITING, FULL, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        enqueue(&[slot]);
        return None;
    }
    end_write(slot, false, entry, far_copy)
}

/// What a taker got.
#[derive(Clone, Copy)]
pub struct Taken {
    slot: u32,
    /// The entry that the page owns from now on (none when a writer is using it).
    pub entry: SwapEntry,
    /// The entry holds a copy of an earlier content (or, after a write-out, of this one).
    pub far_copy: bool,
    detached: bool,
}

/// Takes a slot whose page the caller has just moved out of Cached. The contents stay valid until
/// [`finish`].
pub fn take(slot: u32) -> Taken {
    loop {
        let s = state(slot).load(Ordering::Acquire);
        match s {
            FULL | STORED => {
                if state(slot)
                    .compare_exchange(s, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    let e = entry_of(slot).load(Ordering::Relaxed);
                    return Taken {
                        slot,
                        entry: SwapEntry(e as u32),
                        far_copy: e >> 32 != 0,
                        detached: false,
                    };
                }
            }
            WRITING => {
                if state(slot)
                    .compare_exchange(s, DETACHED, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
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
pub fn finish(t: Taken) {
    if t.detached
        && state(t.slot)
            .compare_exchange(DETACHED, TAKER_DONE, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    {
        return;
    }
    free(t.slot);
}

/// Puts a taken slot back: its page could not be brought in and is Cached again.
pub fn untake(t: Taken) -> bool {
    if t.detached {
        return false;
    }
    entry_of(t.slot).store(
        u64::from(t.entry.0) | (u64::from(t.far_copy) << 32),
        Ordering::Relaxed,
    );
    state(t.slot).store(FULL, Ordering::Release);
    // Its old place in the FIFO may have been dropped as stale.
    enqueue(&[t.slot]);
    true
}
