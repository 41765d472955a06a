//! Completes requests that the agent has answered: moves the pages of their extents.

use canvas_shm::Counter;
use canvas_shm::mailbox::{FETCHES, Status, WRITES};

use crate::far::channel::{self, Request};
use crate::far::fetch;
use crate::far::job::{Alone, Ended, JobKind};
use crate::far::lead_time;
use crate::far::moves;
use crate::far::room;
use crate::far::traits::{Beyond, Host, Owner};
use crate::far::unhold;
use crate::far::unit;

/// Completes all jobs whose requests have ended. True when room was made, or pages were promoted.
pub fn finish_all(b: &impl Beyond) -> bool {
    let mut used = b.mailbox().in_use() & (WRITES | FETCHES);
    let mut any = false;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        any |= finish(b, i);
    }
    any
}

/// Completes job `i` if its request has ended.
pub(crate) fn finish(b: &impl Beyond, i: usize) -> bool {
    let (m, job, owner) = (b.mailbox(), channel::job(b, i), b.owner());
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
    let past_bound = kind == JobKind::Compact && state.room.has_no_place();
    let done = match status {
        Status::Ok if kind == JobKind::Page => {
            u64::from(moves::promote_alone(b, &request, extent, Alone::of(bytes)))
        }
        Status::Ok => channel::for_each_line(b, &request, |line, stored| match kind {
            JobKind::Spill => moves::demote(b, &line, extent, stored),
            JobKind::Fetch | JobKind::Page => moves::promote(b, &line, extent, stored),
            JobKind::Compact => moves::vacate(b, &line, extent, stored, past_bound),
        }),
        Status::Late if kind == JobKind::Compact => 0,
        Status::Late => {
            owner.count(Counter::PrefetchDropped, 1);
            0
        }
        failed => {
            owner.count(Counter::BeyondPoolFailure, 1);
            if kind == JobKind::Spill {
                room::rest(owner, failed);
            }
            0
        }
    };
    match kind {
        JobKind::Spill => {
            state.room.note_written(status == Status::Ok, done);
            owner.count(Counter::PagesDemoted, done);
            b.book().written(extent, done);
            state.room.writing(-bytes);
        }
        JobKind::Fetch => {
            lead_time::learn(owner, false);
            owner.count(Counter::PagesPromoted, done);
            if bytes == fetch::BESIDE && status == Status::Ok {
                unit::came(b, extent);
            }
        }
        JobKind::Page => owner.count(Counter::PagesPromoted, done),
        JobKind::Compact => owner.count(Counter::ExtentsCompacted, u64::from(done > 0)),
    }
    // In this order: a thread that sees the request free may use the job again.
    unhold(b, extent);
    job.through();
    channel::release(b, request);
    if kind == JobKind::Fetch {
        unit::go_on(b);
    }
    done > 0
}
