//! Completes requests that the agent has answered: moves the pages of their extents.

use canvas_shm::Counter;
use canvas_shm::mailbox::{FETCHES, Status, WRITES};
use canvas_types::{ExtentRef, PAGE_SIZE};

use crate::far::channel;
use crate::far::fetch;
use crate::far::job::{Ended, JobKind, SinglePageRead};
use crate::far::moves;
use crate::far::room;
use crate::far::traits::{FarStore, Host, Owner, Request};

/// Completes all jobs whose requests have ended. True when room was made, or pages were promoted.
pub fn finish_all(far: &impl FarStore) -> bool {
    let mut used = far.mailbox().in_use() & (WRITES | FETCHES);
    let mut any = false;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        any |= finish(far, i);
    }
    any
}

/// Completes job `i` if its request has ended.
pub(crate) fn finish(far: &impl FarStore, i: usize) -> bool {
    let (m, job, owner) = (far.mailbox(), channel::job(far, i), far.owner());
    let Some(Ended {
        kind,
        extent,
        bytes,
        status,
    }) = job.end(|| m.ended(i))
    else {
        return false;
    };
    let (request, state) = (Request::ended(i), owner.state());
    // Nothing can be demoted before an extent is free.
    let past_bound = kind == JobKind::Compact && state.writes.have_failed();
    let done = match status {
        Status::Ok if kind == JobKind::Page => u64::from(moves::promote_alone(
            far,
            &request,
            extent,
            SinglePageRead::of(bytes),
        )),
        Status::Ok => channel::for_each_line(far, &request, |line, stored| match kind {
            JobKind::Demote => moves::demote(far, &line, extent, stored),
            JobKind::Fetch | JobKind::Page => moves::promote(far, &line, extent, stored),
            JobKind::Compact => moves::vacate(far, &line, extent, stored, past_bound),
        }),
        Status::Late if kind == JobKind::Compact => 0,
        Status::Late => {
            owner.count(Counter::PrefetchDropped, 1);
            0
        }
        failed => {
            owner.count(Counter::BeyondPoolFailure, 1);
            if kind == JobKind::Demote {
                room::pause_writes(owner, failed);
            }
            0
        }
    };
    match kind {
        JobKind::Demote => {
            state.writes.note_written(status == Status::Ok, done);
            owner.count(Counter::PagesDemoted, done);
            far.book().written(extent, done);
            state.writes.add_bytes(-bytes);
        }
        JobKind::Fetch => {
            learn(owner, false);
            owner.count(Counter::PagesPromoted, done);
            if status == Status::Ok {
                fetch::arrived(far, extent, bytes);
            }
        }
        JobKind::Page => owner.count(Counter::PagesPromoted, done),
        JobKind::Compact => owner.count(Counter::ExtentsCompacted, u64::from(done > 0)),
    }
    // In this order: a thread that sees the request free may use the job again.
    far.unhold(extent);
    job.through();
    channel::release(far, request);
    if kind == JobKind::Fetch {
        fetch::fetch_rest(far);
    }
    done > 0
}

/// Waits for the prefetch that brings the page, and promotes what it brings. The caller must not have claimed the page,
/// and looks at it again afterwards.
pub fn wait_for_arrival<F: FarStore>(far: &F, page: u32, place: ExtentRef) {
    let Some(i) = channel::under_way(far, page, place) else {
        return;
    };
    let job = channel::job(far, i);
    // It is a demand read now: if the agent has not started it, it goes before prefetches.
    if far.mailbox().escalate(i) {
        if job.kind() != JobKind::Compact {
            learn(far.owner(), true);
        }
        far.notify_agent();
    }
    let ours = || job.is_open(place.extent);
    if channel::wait(far, i, false, ours).is_some() {
        finish(far, i);
    } else if ours() {
        give_up(far, i, place.extent);
    } else {
        // Another thread completes it.
        F::Owner::yield_now();
    }
}

/// Gives up a fetch that takes too long: the page is read alone, which may fail with a reason.
fn give_up(far: &impl FarStore, i: usize, extent: u32) {
    let job = channel::job(far, i);
    if job.give_up(extent) {
        far.owner().count(Counter::BeyondPoolFailure, 1);
        job.through();
        far.mailbox().abandon(i);
        far.unhold(extent);
    }
}

/// An extent has arrived, or (`late`) a thread waits for it.
fn learn(owner: &impl Owner, late: bool) {
    let pool_pages = owner.pool_configured_bytes() / PAGE_SIZE as u64;
    owner.state().lead_time.learn(late, pool_pages);
}
