//! Reading far pages: a fault reads its page's record alone, from whichever copy the agent finds; a stream, a pool with
//! room, or a far read size of whole extents ([`crate::far::unit`]) fetches extents and promotes their pages into the pool,
//! still compressed.

use crate::swap::classes::HEADER_BYTES;
use crate::swap::extent::{EXTENT_BYTES, record_bytes};
use canvas_shm::Counter;
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, RequestFields, Status};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use crate::far::channel;
use crate::far::job::{JobKind, SinglePageRead};
use crate::far::room;
use crate::far::traits::{FarStore, Host, Owner, PageLocation, PageOutcome, Pages, Request};
use crate::far::unit;

/// Why a far copy could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// No copy can be reached now: it may come back later.
    Unreachable,
    /// All copies are damaged.
    Damaged,
    /// No copy is left: the donors that held one have lost it.
    Gone,
}

/// Reads the record at `place`, which `entry` names, and decodes it into `out`. The caller has claimed the page, so the
/// extent is kept meanwhile.
pub fn load(
    far: &impl FarStore,
    entry: SwapEntry,
    place: ExtentRef,
    out: &mut PageBuf,
    scratch: &mut Stored,
) -> Result<(), Lost> {
    far.owner().count(Counter::FaultBeyondPool, 1);
    let pool = far.owner().pool();
    read(far, place, scratch, |stored| {
        pool.decode(entry, stored, out).is_ok()
    })
}

/// Reads the record at `place` and passes it to `decode`, which returns whether it is valid. The caller ensures that
/// the extent is kept meanwhile.
pub fn read(
    far: &impl FarStore,
    place: ExtentRef,
    scratch: &mut Stored,
    mut decode: impl FnMut(&[u8]) -> bool,
) -> Result<(), Lost> {
    let owner = far.owner();
    let len = HEADER_BYTES + place.len as usize;
    let ask = RequestFields {
        kind: Kind::Read,
        extent: place.extent,
        offset: place.offset,
        len: record_bytes(place.len as usize) as u32,
    };
    let begun = owner.now_ns();
    let stored = &mut scratch.0[..len];
    // If the result is not valid, ask the agent, which reports why.
    if far.read_directly(&ask, stored) && decode(stored) {
        far.note_read(owner.now_ns().saturating_sub(begun));
        return Ok(());
    }
    let result = demand(far, ask, begun, |request| {
        let stored = &mut scratch.0[..len];
        far.copy_out(request, place.offset as usize, stored);
        if !decode(stored) {
            return Err(Lost::Damaged);
        }
        far.note_read(owner.now_ns().saturating_sub(begun));
        Ok(())
    });
    if result.is_err() {
        owner.count(Counter::BeyondPoolFailure, 1);
    }
    result
}

/// Asks the agent for a demand read, and returns what `on` makes of the request that brings it.
fn demand<R>(
    far: &impl FarStore,
    ask: RequestFields,
    begun: u64,
    on: impl FnOnce(&Request) -> Result<R, Lost>,
) -> Result<R, Lost> {
    let m = far.mailbox();
    let request = channel::claim_demand(far, begun).ok_or(Lost::Unreachable)?;
    let i = channel::post(far, request, ask, begun);
    // Only one thread of a process spins: many that yield would starve the thread for which they wait.
    let spins = (m.in_use() & DEMANDS).is_power_of_two();
    let Some(status) = channel::wait(far, i, spins, || true) else {
        m.abandon(i);
        return Err(Lost::Unreachable);
    };
    let request = Request::ended(i);
    let result = match status {
        Status::Ok => on(&request),
        Status::Corrupt => Err(Lost::Damaged),
        Status::Lost => Err(Lost::Gone),
        _ => Err(Lost::Unreachable),
    };
    channel::release(far, request);
    result
}

/// Reads a whole extent for a page of it that is needed now, and calls `on` with its unverified bytes. The caller
/// ensures that the extent is kept meanwhile.
pub fn read_whole<R>(
    far: &impl FarStore,
    extent: u32,
    on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R,
) -> Result<R, Lost> {
    let ask = RequestFields {
        kind: Kind::Read,
        extent,
        offset: 0,
        len: EXTENT_BYTES as u32,
    };
    demand(far, ask, far.owner().now_ns(), |request| {
        Ok(far.read(request, on))
    })
}

/// A buffer for one record. All-zero memory is valid.
#[repr(C, align(64))]
pub struct Stored([u8; HEADER_BYTES + PAGE_SIZE]);

impl Stored {
    /// A buffer of zeros.
    pub const fn new() -> Stored {
        Stored([0; HEADER_BYTES + PAGE_SIZE])
    }
}

impl Default for Stored {
    fn default() -> Stored {
        Stored::new()
    }
}

/// Also stores a page that was read alone ([`load`] left its record in `stored`) in the pool, where that has room:
/// otherwise it would be read from far memory each time that it leaves unchanged. The caller still holds the page.
pub fn keep(far: &impl FarStore, entry: SwapEntry, place: ExtentRef, stored: &Stored) -> bool {
    let owner = far.owner();
    if owner.state().writes.have_failed() || !room::pool_has_room(far) {
        return false;
    }
    let record = &stored.0[..HEADER_BYTES + place.len as usize];
    (owner.pool()).promote(entry, place, record, owner.keeps_far_copies())
}

/// Values of a fetch job's bytes: it is for a stream or a plan, or it comes beside a page ([`crate::far::unit`]).
const AHEAD: i64 = 0;
const BESIDE: i64 = 1;
/// Requests for neighbours at one time: streams and others need some, too.
const AT_ONCE: u32 = 16;
/// An extent requested within this time is not requested again as a neighbour.
const LATELY_NS: u64 = 1_000_000_000;

/// Fetches a whole extent in the background, unless that is under way. The caller has claimed a page whose entry names
/// it, so the extent is kept.
pub fn fetch(far: &impl FarStore, extent: u32) {
    begin(far, extent, AHEAD);
}

fn begin(far: &impl FarStore, extent: u32, why: i64) {
    let state = far.owner().state();
    // Nothing can be demoted, so nothing can be promoted into the pool either.
    if state.writes.have_failed() || channel::is_under_way(far, extent) {
        return;
    }
    let Some(request) = channel::claim(far, FETCHES) else {
        return;
    };
    far.book().hold(extent);
    channel::begin(far, request, JobKind::Fetch, extent, why);
    state.lead_time.note_requested(extent, far.owner().now_ns());
}

/// Reads the record of one page into the pool ahead of need, in the background, unless it is on its way. The caller has
/// claimed the page, whose entry names `place`. False where no request is possible now.
pub fn ahead(far: &impl FarStore, page: u32, place: ExtentRef) -> bool {
    let state = far.owner().state();
    if state.writes.have_failed() || channel::is_in_flight(far, page, place) {
        return false;
    }
    let Some(request) = channel::claim(far, FETCHES) else {
        return false;
    };
    far.book().hold(place.extent);
    channel::begin_alone(far, request, place.extent, SinglePageRead::at(page, place));
    true
}

/// Fetches what a stream needs after the `n` pages from `start` on, so that it is in the pool when it is mapped ahead.
pub fn fetch_for_stream<F: FarStore>(far: &F, start: u32, stride: i32, n: u32) {
    let owner = far.owner();
    let (from, ahead) = owner.state().lead_time.pages_from_and_to();
    for i in from..ahead + i64::from(n) {
        let page = i64::from(start) + i * i64::from(stride);
        let Ok(page) = u32::try_from(page) else {
            return;
        };
        let Some(seen) = owner.read_state(page) else {
            return;
        };
        if F::Owner::location(seen) != (PageLocation::Far { in_far_tier: true })
            || !owner.claim(page, seen)
        {
            continue;
        }
        if let Some(place) = owner.pool().extent_ref(F::Owner::entry(seen)) {
            fetch(far, place.extent);
        }
        owner.publish(page, seen, PageOutcome::Unchanged);
    }
}

/// A fault has read a page of the extent alone, which the page's entry still names: fetches the rest in the background.
pub fn fetch_neighbours(far: &impl FarStore, extent: u32) {
    let fixed = match far.unit_bytes() {
        0 => None,
        bytes => Some(unit::level(bytes)),
    };
    let unit = &far.owner().state().unit;
    let n = unit.extents(fixed, room::pool_has_room(far));
    if n == 0 {
        return;
    }
    begin(far, extent, BESIDE);
    if n > 1 {
        // Within its slab.
        let (first, per_slab) = (extent / n * n, far.book().slab_extents);
        let slab = extent / per_slab * per_slab;
        fetch_some(far, first.max(slab), (first + n).min(slab + per_slab));
    }
}

/// A page is needed that came beside another one.
pub fn neighbour_used(owner: &impl Owner) {
    owner.state().unit.note_used();
}

/// An extent came, for `why` it was fetched.
pub(crate) fn arrived(far: &impl FarStore, extent: u32, why: i64) {
    if why != BESIDE {
        return;
    }
    let owner = far.owner();
    let pages = far.book().pages_written(extent);
    let level_max = unit::level_max(owner.pool_configured_bytes());
    if let Some(now) = owner.state().unit.note_fetched(pages, level_max) {
        far.note_unit(unit::bytes(now));
    }
}

/// Fetches the remaining extents, as far as there are requests.
pub(crate) fn fetch_rest(far: &impl FarStore) {
    if let Some((from, to)) = far.owner().state().unit.take_rest() {
        fetch_some(far, from, to);
    }
}

/// Fetches extents of this process, for the far read size.
fn fetch_some(far: &impl FarStore, from: u32, to: u32) {
    let state = far.owner().state();
    for extent in from..to {
        let under_way = (far.mailbox().in_use() & FETCHES).count_ones();
        let asked = |ns: u64| ns < LATELY_NS;
        if under_way >= AT_ONCE {
            state.unit.keep_rest(extent, to);
            return;
        }
        let ago_ns = (state.lead_time).ago_ns(extent, || far.owner().now_ns());
        if !ago_ns.is_some_and(asked) && far.book().hold_if_durable(extent, &far.slabs()) {
            // Held, so that it cannot go to another process before the fetch holds it as well.
            begin(far, extent, BESIDE);
            far.unhold(extent);
        }
    }
}

/// A page was read from the pool: if it came there with a recently prefetched extent, this records how far ahead that
/// was. Every page counts: an extent is too late when most of its pages were needed before.
pub fn used(far: &impl FarStore, entry: SwapEntry) {
    let owner = far.owner();
    let Some(place) = owner.pool().home_ref(entry) else {
        return;
    };
    let lead_time = &owner.state().lead_time;
    if let Some(ns) = lead_time.ago_ns(place.extent, || owner.now_ns()) {
        far.note_ahead(ns);
    }
}
