//! Which extents hold far copies of shared pages beyond the pool, and the requests that write them.
//!
//! Slabs and requests belong to [`far::SHARED`], which is no process: they outlive every process. All of this runs
//! under the shared lock.

use canvas_core::swap::hash::Hash;
use canvas_core::swap::uses::Uses;
use canvas_shm::far::{self, Far, SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_shm::mailbox::{Mailbox, WRITES};
use canvas_sys::proc;
use core::sync::atomic::Ordering;

use crate::shared::partition::{Held, control, map};
use crate::tenant::far_area::{far, ring};

fn uses() -> Uses<'static> {
    Uses {
        counts: map().uses(),
        next: &control().next_extent,
        slab_extents: SLAB_EXTENTS as u32,
    }
}

/// The mailbox of shared memory.
pub(super) fn mailbox(f: &Far) -> &Mailbox {
    &f.mailboxes[far::SHARED]
}

fn is_ours(f: &Far, slab: u32) -> bool {
    f.slabs.get(slab as usize).is_some_and(|s| {
        s.refers(far::SHARED) && s.state.load(Ordering::Acquire) == slab_state::USED
    })
}

fn slabs(f: &Far) -> impl Iterator<Item = u32> + '_ {
    let high = f.slabs_high.load(Ordering::Acquire).min(SLABS_MAX as u32);
    (0..high).filter(|slab| is_ours(f, *slab))
}

/// Takes a free extent and holds it.
pub(super) fn take_extent(f: &Far) -> Option<u32> {
    let u = uses();
    let current = u.current_slab();
    let there = is_ours(f, current).then(|| u.take(current)).flatten();
    there
        .or_else(|| slabs(f).find_map(|slab| u.take(slab)))
        .or_else(|| {
            let slab = f.take_slab(far::SHARED)?;
            u.forget(slab);
            u.take(slab)
        })
}

/// Drops a use of the extent: by an entry, or by a request that has ended.
pub fn unhold(extent: u32) {
    let u = uses();
    let slab = u.slab_of(extent);
    // An empty current slab may be filled again soon.
    if u.unhold(extent)
        && slab != u.current_slab()
        && let Some(f) = far()
    {
        give_back(f, slab);
    }
}

/// Adds a use of the extent by an entry.
pub fn hold(extent: u32) {
    uses().hold(extent);
}

fn give_back(f: &'static Far, slab: u32) {
    if uses().is_empty(slab) && f.drop_slab(slab, far::SHARED) {
        ring(f);
    }
}

/// Frees all slabs without a use, after regions have ended.
pub fn give_back_empty(_held: &Held) {
    if let Some(f) = far() {
        slabs(f).for_each(|slab| give_back(f, slab));
    }
}

/// After a death: recounts uses, starting from those of requests in progress, and continues these requests.
pub fn recover() {
    let Some(f) = far() else { return };
    let u = uses();
    if f.take_over_slabs(far::SHARED, |slab| u.forget(slab)) {
        ring(f);
    }
    let m = mailbox(f);
    let mut posted = false;
    for i in requests(m) {
        if m.take_over(i) {
            u.hold(control().request_extents[i].load(Ordering::Relaxed));
            posted = true;
        }
    }
    if posted {
        ring_for_shared(f);
    }
}

/// The requests in use.
pub(super) fn requests(m: &Mailbox) -> impl Iterator<Item = usize> {
    let used = m.in_use() & WRITES;
    (0..u64::BITS as usize).filter(move |i| used & 1 << i != 0)
}

/// Notifies the agent of a post.
pub(super) fn ring_for_shared(f: &Far) {
    if f.notify(far::SHARED) {
        proc::futex_wake(&f.asleep, 1);
    }
}

/// The hash of a page whose copy lies beyond the pool.
pub fn hash_of(page: u32) -> Hash {
    let mut hash = Hash::default();
    for (bytes, word) in hash.as_chunks_mut::<8>().0.iter_mut().zip(map().hash(page)) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    hash
}

/// Records it.
pub(super) fn note_hash(page: u32, hash: &Hash) {
    for (bytes, word) in hash.as_chunks::<8>().0.iter().zip(map().hash(page)) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}
