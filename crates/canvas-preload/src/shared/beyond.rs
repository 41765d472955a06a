//! Far copies of shared pages beyond the pool: the requests that carry them there, and when.
//!
//! All of this runs under the shared lock, except reads, which each process does on its own.

use canvas_core::far::Host;
use canvas_core::pager::shared::demotion::{DemotedCopy, Demoter};
use canvas_core::pager::shared::word::Entry;
use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::extent::{self, Packer};
use canvas_core::swap::hash::{self, Hash};
use canvas_core::swap::units::{FarCopy, StoreRef};
use canvas_shm::Counter;
use canvas_shm::far::{self, EXTENT_BYTES, Far};
use canvas_shm::mailbox::{Kind, RequestFields, Status, WRITES};
use canvas_shm::segment::shared_fd;
use canvas_sys::{proc, shmem};
use canvas_types::{ExtentRef, SwapEntry};
use core::sync::atomic::Ordering;

use crate::far_tier::ours::Ours;
use crate::runtime::state::{self, count};
use crate::shared::{
    extents::{
        give_back_empty, hold, mailbox, note_hash, requests, ring_for_shared, take_extent, unhold,
    },
    kernel::Here,
    lock::note_store,
    partition::{Held, control, end, fd, is_on, me, partition, try_lock},
};
use crate::tenant::{far_area::far, members};

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

fn place_of(entry: Entry) -> Option<StoreRef> {
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
fn head(bytes: &[u8; EXTENT_BYTES], place: ExtentRef) -> Option<Hash> {
    let from = place.offset as usize;
    bytes.get(from..)?.first_chunk::<HEADER_BYTES>().copied()
}

impl Demoter for Here {
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
        let ask = RequestFields {
            kind: Kind::Write,
            extent: control().request_extents[request].load(Ordering::Relaxed),
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        mailbox(f).post(request, ask, proc::now_ns());
        control().demoter.store(me() as u32 + 1, Ordering::Relaxed);
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
    fn each_copy(&self, request: usize, mut on: impl FnMut(DemotedCopy)) {
        let Some(f) = far() else { return };
        let extent = control().request_extents[request].load(Ordering::Relaxed);
        let records = buffer(f, request, |bytes| extent::records(&bytes[..])).unwrap_or(0);
        for k in 0..records {
            let line = buffer(f, request, |bytes| extent::line(&bytes[..], records, k));
            if let Some(line) = line {
                let from = StoreRef {
                    unit: line.entry.0,
                    bytes: line.len.into(),
                };
                on(DemotedCopy {
                    page: line.page,
                    from: Entry(FarCopy::Stored(from).number()),
                    to: Entry(FarCopy::InExtent(line.place(extent)).number()),
                });
            }
        }
    }
    fn confirm(&self, request: usize, copy: DemotedCopy) -> bool {
        let (Some(f), Some(from)) = (far(), place_of(copy.from)) else {
            return false;
        };
        let FarCopy::InExtent(to) = FarCopy::of(copy.to.0) else {
            return false;
        };
        let mut stored = Hash::default();
        let was = buffer(f, request, |bytes| head(bytes, to));
        let is_same = shmem::read_at(fd(shared_fd::STORE), from.offset(), &mut stored)
            && was.is_some_and(|was| hash::same(&was, &stored));
        if is_same {
            note_hash(copy.page, &stored);
            hold(to.extent);
        }
        is_same
    }
    fn retract(&self, copy: DemotedCopy) {
        if let FarCopy::InExtent(to) = FarCopy::of(copy.to.0) {
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
    if members::once_in(&c.told_ns, TELL_NS, now) {
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
    while excess_bytes(f) > 0 && partition().demote(&Here, LOOK_MAX, end()) > 0 {
        worked = true;
    }
    worked
}

/// Completes requests that have ended; returns how many copies have left the store.
fn settle() -> u32 {
    let gone = partition().complete_demotions(&Here, || count(Counter::BeyondPoolFailure, 1));
    count(Counter::SharedDemoted, gone.into());
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
        is_on() && control().demoter.load(Ordering::Relaxed) == me() as u32 + 1 && is_writing();
    if is_its { 300_000 } else { u64::MAX }
}

/// Makes room in a full pool: moves copies out of the store as fast as requests allow, and drops those of resident
/// pages. Returns true if the store has room now, or will have.
#[cold]
pub fn make_room(held: &Held) -> bool {
    let given = partition().drop_copies(&Here, COPIES, LOOK_MAX, end()) > 0;
    given | far().is_some_and(|f| work(held, f))
}
