//! The far tier of this process: [`canvas_far`], where the tenant has far memory. What other rooms call.

use canvas_far::fetch::{Lost, Stored};
use canvas_far::{
    Owner, channel, compact, completion, fetch, lead_time, resident_copies, room, spill, unit,
};
use canvas_swap::extent::EXTENT_BYTES;
use canvas_types::{DeepPlace, PageBuf, PageId, SwapEntry};
use core::sync::atomic::Ordering;

use crate::base::state;
use crate::far_tier::{
    extents::unhold,
    ours::{Ours, beyond},
};

/// Is there anything beyond the pool?
pub fn is_there() -> bool {
    beyond().is_some()
}

/// Reads the record at `place`, which `entry` names; the page's word is in our busy state.
#[inline]
pub fn load(
    entry: SwapEntry,
    place: DeepPlace,
    out: &mut PageBuf,
    scratch: &mut Stored,
) -> Result<(), Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::load(&b, entry, place, out, scratch)
    })
}

/// Reads a record that is not this process's own: of a page that processes share.
pub fn read(
    place: DeepPlace,
    scratch: &mut Stored,
    decode: impl FnMut(&[u8]) -> bool,
) -> Result<(), Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read(&b, place, scratch, decode)
    })
}

/// Reads a whole extent in which a page that processes share is needed now, and calls `on` with its bytes.
pub fn read_whole<R>(extent: u32, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> Result<R, Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read_whole(&b, extent, on)
    })
}

/// A page of the extent was read alone, and its entry names it still: what comes beside it, in the background.
#[inline]
pub fn comes_beside(extent: u32) {
    if let Some(b) = beyond() {
        unit::comes_beside(&b, extent);
    }
}

/// A page that came beside another one into the pool is needed.
#[inline]
pub fn used_beside() {
    unit::used(&Ours);
}

/// Keeps in the pool what [`load`] has read, if that has room.
#[inline]
pub fn keep(entry: SwapEntry, place: DeepPlace, stored: &Stored) {
    if let Some(b) = beyond() {
        fetch::keep(&b, entry, place, stored);
    }
}

/// Is the page on its way, alone or with its extent?
#[inline]
pub fn is_on_its_way(page: PageId, place: DeepPlace) -> bool {
    beyond().is_some_and(|b| channel::is_on_its_way(&b, page.0, place))
}

/// Brings a page into the pool ahead of its need, alone and in the background. It is in our hands, and its entry names
/// the place.
#[inline]
pub fn read_ahead(page: PageId, place: DeepPlace) -> bool {
    beyond().is_some_and(|b| fetch::ahead(&b, page.0, place))
}

/// Brings a whole extent back, in the background. A page whose entry names it is in our hands.
#[inline]
pub fn fetch(extent: u32) {
    if let Some(b) = beyond() {
        fetch::fetch(&b, extent);
    }
}

/// Waits for the read ahead that a page comes with. The caller must not have the page's word.
#[inline]
pub fn arrives(page: PageId, place: DeepPlace) {
    if let Some(b) = beyond() {
        fetch::arrives(&b, page.0, place);
    }
}

/// Fetches what a stream needs after the `n` pages from `start` on.
#[inline]
pub fn fetch_for_stream(start: u32, stride: i32, n: u32) {
    if let Some(b) = beyond() {
        fetch::fetch_for_stream(&b, start, stride, n);
    }
}

/// A page was brought in from the pool.
#[inline]
pub fn used(entry: SwapEntry) {
    if let Some(b) = beyond() {
        lead_time::used(&b, entry);
    }
}

/// Ends fetches that have arrived.
#[inline]
pub fn absorb() {
    if let Some(b) = beyond() {
        completion::finish_all(&b);
    }
}

/// Has it room, or finds some, for what is on its way to local memory?
#[inline]
pub fn pool_makes_way() -> bool {
    beyond().is_some_and(|b| room::pool_makes_way(&b))
}

/// Has far memory stopped answering, or does it take no pages?
pub fn is_stalled() -> bool {
    room::is_stalled(&Ours) || is_closed()
}

/// Can nothing be written beyond the pool, though what is there can be read?
pub fn is_closed() -> bool {
    is_there() && room::is_closed(&Ours)
}

/// Is it so, and may it end while a thread waits that has no other way?
pub fn may_open() -> bool {
    beyond().is_some_and(|b| room::may_open(&b))
}

/// What is used beyond the pool and what may be, in bytes.
pub fn used_and_limit() -> (u64, u64) {
    beyond().map_or((0, 0), |b| room::used_and_limit(&b))
}

/// The pool is full: lets go of copies of resident pages. True when a store may fit now.
pub fn drop_copies() -> bool {
    resident_copies::make_room(&Ours)
}

/// The pool is full: waits until something left it, for beyond it or for good. False when nothing will. Where nothing
/// can be written, it is not waited for: pages with a copy there can leave all the same.
#[cold]
pub fn make_room() -> bool {
    match beyond() {
        Some(b) if is_closed() => spill::make_room_unwritten(&b),
        Some(b) => spill::make_room(&b),
        None => spill::others_give(&Ours),
    }
}

/// The reclaim thread's round. True when it did something.
pub fn background_round() -> bool {
    beyond().is_some_and(|b| spill::background_round(&b))
}

/// Do pages in the swap cache keep a slab from being given back?
pub fn waits_for_cached() -> bool {
    compact::waits_for_cached(&Ours)
}

/// How long the reclaim thread may sleep.
pub fn idle_ns() -> u64 {
    spill::idle_ns(&Ours)
}

/// Gives back what others in the tenant ask for, if they do: empty slabs, then those that copies of resident
/// pages are in, then those of the pages that were swapped out longest ago, when they have been written.
/// True when something was given, or will be.
pub fn give_to_others() -> bool {
    let wanted = &state::slot().pool_wanted_bytes;
    let bytes = wanted.load(Ordering::Relaxed);
    if bytes <= 0 {
        return false;
    }
    let given = resident_copies::give_slabs(&Ours, bytes);
    let mut worked = given > 0;
    if given < bytes
        && let Some(b) = beyond()
    {
        worked |= spill::write_for_others(&b, bytes);
    }
    wanted.store(0, Ordering::Relaxed);
    worked
}

/// In a fork's child: forgets what the parent has under way.
pub fn forget() {
    channel::forget(Ours.state(), unhold);
    room::after_fork_in_child(&Ours);
}
