//! Requests to the agent: this process's requests in its mailbox ([`canvas_shm::mailbox`]), and the job that belongs to
//! each ([`crate::far::job`]).

use crate::swap::classes::HEADER_BYTES;
use crate::swap::extent::{self, EXTENT_BYTES};
use canvas_shm::Counter;
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, RequestFields, Status};
use canvas_types::ExtentRef;
use canvas_types::sync::backoff;

use crate::far::job::{Job, JobKind, SinglePageRead};
use crate::far::state::State;
use crate::far::traits::{Channel, FarStore, Host, Owner, Request};

const _: () = assert!(EXTENT_BYTES == canvas_shm::far::EXTENT_BYTES);

/// Claims one of the requests in `among`; `None` when all are in use.
pub(crate) fn claim(c: &impl Channel, among: u64) -> Option<Request> {
    c.mailbox().claim(among).map(Request)
}

/// Claims a request for a demand read that began at `begun`. There are as many as threads that may need one at a time;
/// `None` when a dead agent has kept all of them for longer than the tenant wants to wait.
pub(crate) fn claim_demand<F: FarStore>(far: &F, begun: u64) -> Option<Request> {
    let mut spins = 0;
    loop {
        if let Some(request) = claim(far, DEMANDS) {
            return Some(request);
        }
        if far.owner().now_ns() > begun.saturating_add(far.wait_ns_max()) {
            return None;
        }
        backoff(&mut spins, F::Owner::yield_now);
    }
}

/// Posts a request; returns its index in the mailbox.
pub(crate) fn post(c: &impl Channel, request: Request, ask: RequestFields, now_ns: u64) -> usize {
    c.mailbox().post(request.0, ask, now_ns);
    c.notify_agent();
    request.0
}

/// Releases a request.
pub(crate) fn release(c: &impl Channel, request: Request) {
    c.mailbox().release(request.0);
}

/// Begins a job and posts its request: for a whole extent, which is held for it, and `bytes` of the pool.
pub(crate) fn begin(
    far: &impl FarStore,
    request: Request,
    kind: JobKind,
    extent: u32,
    bytes: i64,
) -> usize {
    job(far, request.0).begin(kind, extent, bytes);
    let ask = RequestFields {
        kind: match kind {
            JobKind::Demote => Kind::Write,
            JobKind::Fetch | JobKind::Compact | JobKind::Page => Kind::Read,
        },
        extent,
        offset: 0,
        len: EXTENT_BYTES as u32,
    };
    post(far, request, ask, far.owner().now_ns())
}

/// Begins a job that reads the record of one page ahead of need, and posts its request.
pub(crate) fn begin_alone(
    far: &impl FarStore,
    request: Request,
    extent: u32,
    alone: SinglePageRead,
) {
    job(far, request.0).begin(JobKind::Page, extent, alone.bytes());
    let ask = RequestFields {
        kind: Kind::Read,
        extent,
        offset: alone.offset,
        len: extent::record_bytes(usize::from(alone.len)) as u32,
    };
    post(far, request, ask, far.owner().now_ns());
}

/// Calls `on` with each line of the extent that came with the request, and its record's hash and payload; returns how
/// often `on` returned true.
pub(crate) fn for_each_line(
    c: &impl Channel,
    request: &Request,
    mut on: impl FnMut(extent::Line, &[u8]) -> bool,
) -> u64 {
    c.read(request, |bytes| {
        let Some(records) = extent::records(bytes) else {
            return 0;
        };
        let mut n = 0;
        for k in 0..records {
            if let Some(line) = extent::line(bytes, records, k) {
                let stored = &bytes[line.range()][..HEADER_BYTES + line.len as usize];
                n += u64::from(on(line, stored));
            }
        }
        n
    })
}

/// Waits for request `i`: with `spins` it first polls for about as long as a near donor takes, then sleeps. `None` when
/// it takes longer than the tenant wants to wait, or when `ours` returns false because the request belongs to another
/// thread by now.
pub(crate) fn wait(
    far: &impl FarStore,
    i: usize,
    spins: bool,
    ours: impl Fn() -> bool,
) -> Option<Status> {
    const SPIN_NS: u64 = 60_000;
    const SLICE_NS: u64 = 20_000_000;
    let (m, owner) = (far.mailbox(), far.owner());
    let contention = &owner.state().contention;
    let begun = owner.now_ns();
    let mut slept_ns = 0;
    let ended = loop {
        if let Some(status) = m.ended(i) {
            break Some(status);
        }
        if !ours() {
            break None;
        }
        let waited = owner.now_ns() - begun;
        if spins && waited < SPIN_NS && !contention.is_contended(begun + waited) {
            // Where processors are few, the agent or its disk's thread may need this one.
            far.yield_cpu();
            contention.record_yield(begun + waited, owner.now_ns());
            continue;
        }
        if waited > far.wait_ns_max() {
            break m.ended(i);
        }
        if let Some((word, value)) = m.about_to_sleep(i) {
            let lay_down = owner.now_ns();
            far.sleep(word, value, SLICE_NS);
            slept_ns += owner.now_ns().saturating_sub(lay_down);
        }
    };
    if slept_ns > 0 {
        owner.count(Counter::FaultSleepNs, slept_ns);
    }
    ended
}

/// Finds a prefetch job for which `is_it` holds.
fn find(far: &impl FarStore, is_it: impl Fn(&Job) -> bool) -> Option<usize> {
    let mut used = far.mailbox().in_use() & FETCHES;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        if is_it(job(far, i)) {
            return Some(i);
        }
    }
    None
}

/// Whether the whole extent is on its way.
pub(crate) fn is_under_way(far: &impl FarStore, extent: u32) -> bool {
    find(far, |job| job.brings(extent)).is_some()
}

/// The job that brings this record of a page back, alone or with its extent.
pub(crate) fn under_way(far: &impl FarStore, page: u32, place: ExtentRef) -> Option<usize> {
    let alone = SinglePageRead::at(page, place);
    find(far, |job| {
        job.brings(place.extent) || job.brings_alone(place.extent, alone)
    })
}

/// Whether a page is on its way from this place.
pub fn is_in_flight(far: &impl FarStore, page: u32, place: ExtentRef) -> bool {
    under_way(far, page, place).is_some()
}

/// The job of request `i`.
pub(crate) fn job(far: &impl FarStore, i: usize) -> &Job {
    &far.owner().state().jobs[i]
}

/// How many jobs of this kind are under way.
pub(crate) fn count_of(state: &State, kind: JobKind) -> u32 {
    state.jobs.iter().filter(|job| job.is(kind)).count() as u32
}

/// In a fork's child: forgets the parent's jobs, for which the child must not wait. Calls `on` with each extent that
/// was held for them.
pub fn forget(state: &State, on: impl Fn(u32)) {
    state.jobs.iter().filter_map(Job::forget).for_each(on);
}
