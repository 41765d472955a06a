//! The far tier of this process, for other modules: [`canvas_far`], if the tenant has far memory.

use canvas_core::far::fetch::{Lost, Stored};
use canvas_core::far::{
    Owner, channel, compact, completion, fetch, lead_time, resident_copies, room, spill, unit,
};
use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_types::{DeepPlace, PageBuf, PageId, SwapEntry};
use core::sync::atomic::Ordering;

use crate::base::state;
use crate::far_tier::{
    extents::unhold,
    ours::{Ours, beyond},
};

/// Whether there is far memory beyond the pool.
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

/// Reads a record of a shared page.
pub fn read(
    place: DeepPlace,
    scratch: &mut Stored,
    decode: impl FnMut(&[u8]) -> bool,
) -> Result<(), Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read(&b, place, scratch, decode)
    })
}

/// Reads a whole extent, a shared page of which is needed now, and calls `on` with its bytes.
pub fn read_whole<R>(extent: u32, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> Result<R, Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read_whole(&b, extent, on)
    })
}

/// After a page of the extent was read alone, and while its entry still names the extent: requests its neighbours, in
/// the background.
#[inline]
pub fn comes_beside(extent: u32) {
    if let Some(b) = beyond() {
        unit::comes_beside(&b, extent);
    }
}

/// Records the use of a page that came into the pool beside another one.
#[inline]
pub fn used_beside() {
    unit::used(&Ours);
}

/// Keeps in the pool what [`load`] has read, if there is room.
#[inline]
pub fn keep(entry: SwapEntry, place: DeepPlace, stored: &Stored) {
    if let Some(b) = beyond() {
        fetch::keep(&b, entry, place, stored);
    }
}

/// Whether the page is on its way, alone or with its extent.
#[inline]
pub fn is_on_its_way(page: PageId, place: DeepPlace) -> bool {
    beyond().is_some_and(|b| channel::is_on_its_way(&b, page.0, place))
}

/// Brings a page into the pool ahead of its need, alone and in the background. The caller has claimed the page, and its
/// entry names the place.
#[inline]
pub fn read_ahead(page: PageId, place: DeepPlace) -> bool {
    beyond().is_some_and(|b| fetch::ahead(&b, page.0, place))
}

/// Brings a whole extent back, in the background. The caller has claimed a page whose entry names it.
#[inline]
pub fn fetch(extent: u32) {
    if let Some(b) = beyond() {
        fetch::fetch(&b, extent);
    }
}

/// Waits for the read-ahead that a page comes with. The caller must not own the page's word.
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

/// Records that a page was brought in from the pool.
#[inline]
pub fn used(entry: SwapEntry) {
    if let Some(b) = beyond() {
        lead_time::used(&b, entry);
    }
}

/// Completes fetches that have arrived.
#[inline]
pub fn absorb() {
    if let Some(b) = beyond() {
        completion::finish_all(&b);
    }
}

/// Whether the pool has, or can make, room for pages on their way to local memory.
#[inline]
pub fn pool_makes_way() -> bool {
    beyond().is_some_and(|b| room::pool_makes_way(&b))
}

/// Whether far memory has stopped answering, or takes no pages.
pub fn is_stalled() -> bool {
    room::is_stalled(&Ours) || is_closed()
}

/// Whether nothing can be written beyond the pool, although what is there can be read.
pub fn is_closed() -> bool {
    is_there() && room::is_closed(&Ours)
}

/// Whether a closed far tier may open again while a thread waits that has no other choice.
pub fn may_open() -> bool {
    beyond().is_some_and(|b| room::may_open(&b))
}

/// Bytes used beyond the pool, and their limit.
pub fn used_and_limit() -> (u64, u64) {
    beyond().map_or((0, 0), |b| room::used_and_limit(&b))
}

/// Makes room in a full pool by dropping copies of resident pages. Returns true if a store may fit now.
pub fn drop_copies() -> bool {
    resident_copies::make_room(&Ours)
}

/// Waits until something has left the full pool, demoted or dropped. Returns false if nothing will. While nothing can
/// be written, it does not wait for writing: pages that already have a copy beyond the pool can leave all the same.
#[cold]
pub fn make_room() -> bool {
    match beyond() {
        Some(b) if is_closed() => spill::make_room_unwritten(&b),
        Some(b) => spill::make_room(&b),
        None => spill::others_give(&Ours),
    }
}

/// Runs one round of the reclaim thread's part. Returns whether it did anything.
pub fn background_round() -> bool {
    beyond().is_some_and(|b| spill::background_round(&b))
}

/// Whether pages in the swap cache keep a slab from being freed.
pub fn waits_for_cached() -> bool {
    compact::waits_for_cached(&Ours)
}

/// How long the reclaim thread may sleep.
pub fn idle_ns() -> u64 {
    spill::idle_ns(&Ours)
}

/// Frees what other processes of the tenant ask for: empty slabs first, then slabs with copies of resident pages, then
/// those of the pages evicted longest ago, once they have been written. Returns true if something was freed, or will
/// be.
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

/// In a fork's child: forgets the parent's requests.
pub fn forget() {
    channel::forget(Ours.state(), unhold);
    room::after_fork_in_child(&Ours);
}
