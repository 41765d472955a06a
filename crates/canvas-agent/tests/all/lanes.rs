//! Direct read channels that an agent requests from donors, and a process that wants more of them than allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use canvas_agent::replicas::Policy;
use canvas_agent::store::{Direct, Store};
use canvas_wire::frame::{Answer, Items, Request};

use crate::rig::{PATIENCE, Rig, pretender, seed};

/// Bytes read over channels.
const USED: Answer<'_> = Answer::LaneUsed { reads: 0, bytes: 0 };

/// Requests to a donor that grants every channel.
#[derive(Default)]
struct Counts {
    lanes: AtomicUsize,
    ends: AtomicUsize,
    /// It does not answer for now.
    held: AtomicBool,
}

impl Counts {
    fn answer(&self, request: &Request<'_>, say: &mut dyn FnMut(Answer<'_>)) {
        let answer = match request {
            Request::Alloc(_) => Answer::Allocated { handle: 1 },
            Request::List { .. } => Answer::Handles {
                more: false,
                slabs: Items::from(&[][..]),
            },
            Request::Lane(_) => Answer::Ticket {
                lane: self.lanes.fetch_add(1, SeqCst) as u64,
                ticket: [4; 16],
            },
            Request::LaneRate { .. } => USED,
            Request::LaneEnd { .. } => {
                self.ends.fetch_add(1, SeqCst);
                USED
            }
            _ => Answer::Done,
        };
        while self.held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        say(answer);
    }
}

/// An agent over such a donor.
fn rig() -> (Rig, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let its = counts.clone();
    let addr = pretender(move || {
        let its = its.clone();
        move |request: &Request<'_>, say: &mut dyn FnMut(Answer<'_>)| its.answer(request, say)
    });
    (
        Rig::over(&[addr], Policy::new(1, false), None, seed()),
        counts,
    )
}

/// Wants tickets of the donor, whatever the agent publishes, until a condition holds.
fn want(rig: &mut Rig, what: &str, mut until: impl FnMut(bool) -> bool) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "{what}");
        rig.poll();
        if until(rig.far.lanes.donors[0].take_ticket().is_some()) {
            return;
        }
    }
}

/// A donor has a limited number of channels for an agent, and one that is not offered to any process is lost until its
/// ticket expires.
#[test]
fn no_lane_is_asked_for_while_none_may_be_used() {
    let (mut rig, counts) = rig();
    rig.store.set_direct(Direct::All);
    want(&mut rig, "no ticket", |taken| taken);
    rig.store.set_direct(Direct::Rate(0));
    // One may be under way.
    let began = Instant::now();
    want(&mut rig, "", |_| {
        began.elapsed() > Duration::from_millis(200)
    });
    let before = counts.lanes.load(SeqCst);
    want(&mut rig, "", |_| began.elapsed() > Duration::from_secs(1));
    assert_eq!(counts.lanes.load(SeqCst), before);
    rig.store.set_direct(Direct::All);
    want(&mut rig, "no ticket any more", |taken| taken);
}

#[test]
fn a_lane_that_is_granted_too_late_is_given_back() {
    let (mut rig, counts) = rig();
    rig.store.set_direct(Direct::All);
    counts.held.store(true, SeqCst);
    want(&mut rig, "nothing is asked", |_| {
        counts.lanes.load(SeqCst) > 0
    });
    rig.store.set_direct(Direct::Rate(0));
    let far = rig.far;
    want(&mut rig, "still direct", |_| !far.lanes.is_direct());
    counts.held.store(false, SeqCst);
    want(&mut rig, "the lane is kept", |taken| {
        assert!(!taken, "a ticket that is of no use");
        counts.ends.load(SeqCst) > 0
    });
}
