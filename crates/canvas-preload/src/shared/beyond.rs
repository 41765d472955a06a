//! Far copies of shared pages beyond the pool: which extents they use, the requests that carry them there, and when.
//!
//! Slabs and requests belong to [`far::SHARED`], which is no process: they outlive every process. All of this runs
//! under the shared lock, except reads, which each process does on its own.

use canvas_core::far::Host;
use canvas_core::pager::shared::beyond::{Carried, Carrier};
use canvas_core::pager::shared::word::Entry;
use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::extent::{self, Packer};
use canvas_core::swap::hash::{self, Hash};
use canvas_core::swap::units::{FarCopy, Place};
use canvas_core::swap::uses::Uses;
use canvas_shm::Counter;
use canvas_shm::far::{self, EXTENT_BYTES, Far, SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_shm::mailbox::{Ask, Kind, Mailbox, Status, WRITES};
use canvas_shm::segment::shared_fd;
use canvas_sys::{proc, shmem};
use canvas_types::{DeepPlace, SwapEntry};
use core::sync::atomic::Ordering;

use crate::base::{
    far_area::{far, ring},
    state::{self, count},
    tenant,
};
use crate::far_tier::ours::Ours;
use crate::shared::{
    kernel::Here,
    pages::{Held, control, end, fd, is_on, map, me, note_store, partition, try_lock},
};

/// Pause after a failed write.
const REST_NS: u64 = 200_000_000;
/// Earliest time between two reports of the reason.
const TELL_NS: u64 = 10_000_000_000;
/// Excess of the store from which on faulting threads write it out.
const BEHIND_BYTES: i64 = 4 * EXTENT_BYTES as i64;
/// Pages that one search for copies examines.
const LOOK_MAX: u32 = 1 << 18;
/// Copies of resident pages that are dropped at a time.
const COPIES: u32 = 64;

fn uses() -> Uses<'static> {
    Uses {
        counts: map().uses(),
        next: &control().next_extent,
        slab_extents: SLAB_EXTENTS as u32,
    }
}

fn mailbox(f: &Far) -> &Mailbox {
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
fn take_extent(f: &Far) -> Option<u32> {
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
fn requests(m: &Mailbox) -> impl Iterator<Item = usize> {
    let used = m.in_use() & WRITES;
    (0..u64::BITS as usize).filter(move |i| used & 1 << i != 0)
}

fn ring_for_shared(f: &Far) {
    if f.ring(far::SHARED) {
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

fn note_hash(page: u32, hash: &Hash) {
    for (bytes, word) in hash.as_chunks::<8>().0.iter().zip(map().hash(page)) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

fn place_of(entry: Entry) -> Option<Place> {
    match FarCopy::of(entry.0) {
        FarCopy::Stored(place) if entry.is_some() => Some(place),
        _ => None,
    }
}

/// Calls `on` with the buffer of a request that is in use and not with the agent.
fn buffer<R>(f: &'static Far, i: usize, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R {
    let at: *mut [u8; EXTENT_BYTES] = f.buffer(far::SHARED, i).cast();
    // SAFETY: the far area is mapped for the life of the process. The pager calls this under the shared lock, for a
    // request that is claimed and not posted, or ended and not given back, which nobody else uses; `on` does not come
    // back here.
    on(unsafe { &mut *at })
}

/// The hash at the beginning of a record.
fn head(bytes: &[u8; EXTENT_BYTES], place: DeepPlace) -> Option<Hash> {
    let from = place.offset as usize;
    bytes.get(from..)?.first_chunk::<HEADER_BYTES>().copied()
}

impl Carrier for Here {
    fn is_in_store(&self, entry: Entry) -> bool {
        place_of(entry).is_some()
    }
    fn begin(&self) -> Option<usize> {
        let f = far()?;
        let (c, m) = (control(), mailbox(f));
        if rests() {
            return None;
        }
        let i = m.claim(WRITES)?;
        let Some(extent) = take_extent(f) else {
            m.release(i);
            rest(Status::NoRoom);
            return None;
        };
        c.request_extents[i].store(extent, Ordering::Relaxed);
        buffer(f, i, |bytes| Packer::new(bytes).finish());
        Some(i)
    }
    fn pack(&self, request: usize, page: u32, entry: Entry) -> bool {
        let (Some(f), Some(place)) = (far(), place_of(entry)) else {
            return false;
        };
        buffer(f, request, |bytes| {
            let packer = Packer::resume(bytes);
            let add = |mut p: Packer<'_>| {
                let unit = SwapEntry(place.unit);
                p.add(page, unit, place.bytes as u16, |to| {
                    if !shmem::read_at(fd(shared_fd::STORE), place.offset(), to) {
                        // A hash of zeros: it will not match the store's.
                        to.fill(0);
                    }
                })
            };
            packer.and_then(add).is_some()
        })
    }
    fn send(&self, request: usize) {
        let Some(f) = far() else { return };
        buffer(f, request, |bytes| {
            if let Some(packer) = Packer::resume(bytes) {
                packer.finish();
            }
        });
        let ask = Ask {
            kind: Kind::Write,
            extent: control().request_extents[request].load(Ordering::Relaxed),
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        mailbox(f).post(request, ask, proc::now_ns());
        control().carrier.store(me() as u32 + 1, Ordering::Relaxed);
        ring_for_shared(f);
    }
    fn release(&self, request: usize) {
        let Some(f) = far() else { return };
        unhold(control().request_extents[request].load(Ordering::Relaxed));
        mailbox(f).release(request);
    }
    fn ended(&self) -> Option<(usize, bool)> {
        let m = mailbox(far()?);
        let (i, status) = requests(m).find_map(|i| Some((i, m.ended(i)?)))?;
        match status {
            Status::Ok => control().rest_until_ns.store(0, Ordering::Relaxed),
            why => rest(why),
        }
        Some((i, status == Status::Ok))
    }
    fn each_carried(&self, request: usize, mut on: impl FnMut(Carried)) {
        let Some(f) = far() else { return };
        let extent = control().request_extents[request].load(Ordering::Relaxed);
        let records = buffer(f, request, |bytes| extent::records(&bytes[..])).unwrap_or(0);
        for k in 0..records {
            let line = buffer(f, request, |bytes| extent::line(&bytes[..], records, k));
            if let Some(line) = line {
                let from = Place {
                    unit: line.entry.0,
                    bytes: line.len.into(),
                };
                on(Carried {
                    page: line.page,
                    from: Entry(FarCopy::Stored(from).number()),
                    to: Entry(FarCopy::Beyond(line.place(extent)).number()),
                });
            }
        }
    }
    fn arrives(&self, request: usize, carried: Carried) -> bool {
        let (Some(f), Some(from)) = (far(), place_of(carried.from)) else {
            return false;
        };
        let FarCopy::Beyond(to) = FarCopy::of(carried.to.0) else {
            return false;
        };
        let mut stored = Hash::default();
        let was = buffer(f, request, |bytes| head(bytes, to));
        let is_same = shmem::read_at(fd(shared_fd::STORE), from.offset(), &mut stored)
            && was.is_some_and(|was| hash::same(&was, &stored));
        if is_same {
            note_hash(carried.page, &stored);
            hold(to.extent);
        }
        is_same
    }
    fn stays(&self, carried: Carried) {
        if let FarCopy::Beyond(to) = FarCopy::of(carried.to.0) {
            unhold(to.extent);
        }
    }
}

/// Whether writing is paused, because the last write failed.
fn rests() -> bool {
    control().rest_until_ns.load(Ordering::Relaxed) > proc::now_ns()
}

fn rest(why: Status) {
    let (c, now) = (control(), proc::now_ns());
    c.rest_until_ns.store(now + REST_NS, Ordering::Relaxed);
    let told = c.told_ns.load(Ordering::Relaxed);
    if (told == 0 || now > told + TELL_NS) && tenant::take_turn(&c.told_ns, told, now) {
        Ours.cannot_write(why);
    }
}

/// Bytes of the store that are being written.
fn writing_bytes(f: &Far) -> i64 {
    (requests(mailbox(f)).count() * EXTENT_BYTES) as i64
}

/// Whether something of the store is being written.
pub fn is_writing() -> bool {
    far().is_some_and(|f| writing_bytes(f) > 0)
}

/// Bytes by which the store should shrink: what exceeds its percentage of the room that the processes' pools leave. The
/// pools shrink by the same rule, so neither side displaces the other.
fn excess_bytes(f: &Far) -> i64 {
    let seg = state::seg();
    let percent = f.spill_percent.load(Ordering::Relaxed).min(100) as i64;
    let left = seg.pool_bound() - seg.pool_bytes.load(Ordering::Relaxed);
    let store = seg.shared_store_bytes.load(Ordering::Relaxed);
    match store - left.max(0) / 100 * percent {
        ..=0 => 0,
        over => over - writing_bytes(f),
    }
}

/// Completes requests that have ended, and writes the store's excess. Returns whether anything was done.
fn work(held: &Held, f: &Far) -> bool {
    let were_under_way = writing_bytes(f) > 0;
    let mut worked = settle() > 0;
    // Pages in these requests, and everything beside them, may have been freed meanwhile.
    if were_under_way && writing_bytes(f) == 0 {
        give_back_empty(held);
    }
    while excess_bytes(f) > 0 && partition().carry(&Here, LOOK_MAX, end()) > 0 {
        worked = true;
    }
    worked
}

/// Completes requests that have ended; returns how many copies have left the store.
fn settle() -> u32 {
    let gone = partition().settle(&Here, || count(Counter::BeyondPoolFailure, 1));
    count(Counter::SharedSunk, gone.into());
    gone
}

/// Runs one round of the reclaim thread's part: moves copies out of the store if it or the pool is too full. Returns
/// false if there is nothing to do.
pub fn background_round() -> bool {
    let Some(f) = far() else { return false };
    let m = mailbox(f);
    let has_ended = || requests(m).any(|i| m.ended(i).is_some());
    if (excess_bytes(f) <= 0 || rests()) && !has_ended() {
        return false;
    }
    try_lock().is_some_and(|held| {
        let worked = work(&held, f);
        note_store(&held);
        worked
    })
}

/// After pages came into the store: writes its excess out at once if no reclaim thread exists or keeps up.
pub fn keep_up(held: &Held) {
    if let Some(f) = far()
        && excess_bytes(f) > BEHIND_BYTES
        && !rests()
    {
        work(held, f);
    }
}

/// How long the reclaim thread may sleep: copies being written leave the store when it next looks.
pub fn idle_ns() -> u64 {
    let is_its =
        is_on() && control().carrier.load(Ordering::Relaxed) == me() as u32 + 1 && is_writing();
    if is_its { 300_000 } else { u64::MAX }
}

/// Makes room in a full pool: moves copies out of the store as fast as requests allow, and drops those of resident
/// pages. Returns true if the store has room now, or will have.
#[cold]
pub fn make_room(held: &Held) -> bool {
    let given = partition().give_up_copies(&Here, COPIES, LOOK_MAX, end()) > 0;
    given | far().is_some_and(|f| work(held, f))
}
