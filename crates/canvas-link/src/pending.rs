//! Requests that wait for answers.
//!
//! All deadlines lie the same span after submission, so requests expire in the order of submission,
//! and a queue suffices to find the next one.

use std::collections::VecDeque;
use std::time::Instant;

use canvas_wire::frame::{Answer, Request, total_bytes};

use crate::completions::Completions;
use crate::error::{LinkError, SubmitError};

/// Bits of an id that are the slot; the bits above count up.
const SLOT_BITS: u32 = 12;
/// Most requests outstanding at a time.
const WINDOW_MAX: usize = 1 << SLOT_BITS;

/// Which answer fits a request; an error always fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    Allocated,
    Done,
    /// Data of this many bytes.
    Data(u64),
    Handles,
    Pong,
    Joined,
    Exposed,
    Ticket,
    LaneUsed,
}

impl Expect {
    fn of(request: &Request<'_>) -> Option<Expect> {
        Some(match request {
            Request::Hello(_) => return None,
            Request::Alloc(_) => Expect::Allocated,
            Request::Write { .. } | Request::Free { .. } | Request::Worth { .. } => Expect::Done,
            Request::Read { range, .. } => Expect::Data(u64::from(range.len)),
            Request::ReadMany { ranges, .. } => Expect::Data(total_bytes(ranges)),
            Request::List { .. } => Expect::Handles,
            Request::Ping => Expect::Pong,
            Request::Join(_) => Expect::Joined,
            Request::Expose { .. } => Expect::Exposed,
            Request::Lane(_) => Expect::Ticket,
            Request::LaneRate { .. } | Request::LaneEnd { .. } => Expect::LaneUsed,
        })
    }

    fn fits(self, answer: &Answer<'_>) -> bool {
        match (self, answer) {
            (_, Answer::Error { .. }) => true,
            (Expect::Data(len), Answer::Data(bytes)) => bytes.len() as u64 == len,
            (Expect::Allocated, Answer::Allocated { .. })
            | (Expect::Done, Answer::Done)
            | (Expect::Handles, Answer::Handles { .. })
            | (Expect::Pong, Answer::Pong(_))
            | (Expect::Joined, Answer::Joined(_))
            | (Expect::Exposed, Answer::Exposed(_))
            | (Expect::Ticket, Answer::Ticket { .. })
            | (Expect::LaneUsed, Answer::LaneUsed { .. }) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    id: u64,
    tag: u64,
    expect: Expect,
    /// Completed as timed out: the slot is kept for the late answer, which is dropped.
    expired: bool,
}

/// Classification of an arrived answer.
pub(crate) enum Arrival {
    /// The answer to the request with this tag.
    Answer(u64),
    /// The answer to a request that has timed out.
    Late,
    /// A call of the donor.
    Call,
}

pub(crate) struct Pending {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Ids and deadlines in the order of submission. Answered requests are included until they
    /// reach the front.
    deadlines: VecDeque<(u64, Instant)>,
    lost: Vec<u64>,
    next: u64,
    /// Number of slots in use that have not expired.
    waiting: usize,
}

impl Pending {
    pub fn new(window: usize) -> Pending {
        let window = window.clamp(1, WINDOW_MAX);
        Pending {
            slots: vec![None; window],
            free: (0..window).rev().collect(),
            deadlines: VecDeque::with_capacity(window),
            lost: Vec::new(),
            next: 1,
            waiting: 0,
        }
    }

    /// Allocates a slot for a request and returns the request's id.
    pub fn begin(
        &mut self,
        tag: u64,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<u64, SubmitError> {
        let expect = Expect::of(request).ok_or(SubmitError::Invalid)?;
        let slot = self.free.pop().ok_or(SubmitError::Full)?;
        let id = self.next << SLOT_BITS | slot as u64;
        self.next += 1;
        self.slots[slot] = Some(Slot {
            id,
            tag,
            expect,
            expired: false,
        });
        self.drop_answered();
        self.deadlines.push_back((id, deadline));
        self.waiting += 1;
        Ok(id)
    }

    /// Removes a request that was not sent.
    pub fn withdraw(&mut self, id: u64) {
        if self.take(id).is_some_and(|s| !s.expired) {
            self.waiting -= 1;
        }
    }

    fn index(id: u64) -> usize {
        (id & (WINDOW_MAX as u64 - 1)) as usize
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(Pending::index(id))?.as_mut()?;
        (slot.id == id).then_some(slot)
    }

    fn take(&mut self, id: u64) -> Option<Slot> {
        let slot = *self.slot(id)?;
        self.slots[Pending::index(id)] = None;
        self.free.push(Pending::index(id));
        Some(slot)
    }

    /// Handles the arrival of an answer.
    pub fn complete(&mut self, id: u64, answer: Answer<'_>) -> Result<Arrival, LinkError> {
        let slot = self
            .take(id)
            .ok_or(LinkError::Protocol("an answer without a request"))?;
        if slot.expired {
            return Ok(Arrival::Late);
        }
        self.waiting -= 1;
        if !slot.expect.fits(&answer) {
            self.lost.push(slot.tag);
            return Err(LinkError::Protocol(
                "an answer that does not fit its request",
            ));
        }
        Ok(Arrival::Answer(slot.tag))
    }

    /// Removes answered requests from the front of the deadlines.
    fn drop_answered(&mut self) {
        while let Some(&(id, _)) = self.deadlines.front() {
            if self.slot(id).is_some_and(|s| !s.expired) {
                break;
            }
            self.deadlines.pop_front();
        }
        // Requests answered behind an unanswered one: their number is bounded by the window, not by
        // time.
        if self.deadlines.len() > 2 * self.slots.len() {
            let mut kept = std::mem::take(&mut self.deadlines);
            kept.retain(|&(id, _)| self.slot(id).is_some_and(|s| !s.expired));
            self.deadlines = kept;
        }
    }

    /// Completes expired requests as timed out.
    pub fn expire(&mut self, now: Instant, completions: &mut Completions) {
        self.drop_answered();
        while let Some(&(id, deadline)) = self.deadlines.front() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            if let Some(slot) = self.slot(id) {
                slot.expired = true;
                let tag = slot.tag;
                self.waiting -= 1;
                completions.timed_out(tag);
            }
            self.drop_answered();
        }
    }

    /// The next deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(_, deadline)| deadline)
    }

    /// Marks all requests as lost with the connection.
    pub fn lose_all(&mut self) {
        let mut waiting: Vec<Slot> = self.slots.iter().flatten().copied().collect();
        // In the order of submission: ids count up.
        waiting.sort_by_key(|s| s.id);
        self.lost
            .extend(waiting.iter().filter(|s| !s.expired).map(|s| s.tag));
        self.slots.fill(None);
        self.free = (0..self.slots.len()).rev().collect();
        self.deadlines.clear();
        self.waiting = 0;
    }

    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Appends the lost requests to `completions`.
    pub fn take_lost(&mut self, completions: &mut Completions) {
        for tag in self.lost.drain(..) {
            completions.lost(tag);
        }
    }

    /// Number of requests whose completion has not been returned.
    pub fn outstanding(&self) -> usize {
        self.waiting + self.lost.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use canvas_wire::error::ErrorCode;

    use super::*;
    use crate::completions::Completion;

    fn tags(completions: &Completions) -> Vec<(char, u64)> {
        completions
            .iter()
            .map(|c| match c {
                Completion::TimedOut { tag } => ('t', tag),
                Completion::Lost { tag } => ('l', tag),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn late_answers_are_thrown_away_and_free_their_place() {
        let (mut p, start) = (Pending::new(3), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let a = p.begin(1, &Request::Ping, at(10)).unwrap();
        let b = p.begin(2, &Request::Free { handle: 1 }, at(20)).unwrap();
        p.begin(3, &Request::Free { handle: 2 }, at(30)).unwrap();
        assert_eq!(p.begin(4, &Request::Ping, at(30)), Err(SubmitError::Full));
        assert!(matches!(
            p.complete(b, Answer::Done),
            Ok(Arrival::Answer(2))
        ));
        assert_eq!(p.next_deadline(), Some(at(10)));
        let mut c = Completions::new();
        p.expire(at(9), &mut c);
        assert!(c.is_empty());
        p.expire(at(25), &mut c);
        assert_eq!(tags(&c), [('t', 1)]);
        // The answered one between them causes no wake-up.
        assert_eq!(p.next_deadline(), Some(at(30)));
        assert_eq!(p.outstanding(), 1);
        // Any late answer is accepted unchecked.
        assert!(matches!(p.complete(a, Answer::Done), Ok(Arrival::Late)));
        assert!(p.complete(a, Answer::Done).is_err(), "answered twice");
        p.begin(5, &Request::Ping, at(40)).unwrap();
        p.begin(6, &Request::Ping, at(40)).unwrap();
        assert_eq!(p.outstanding(), 3);
        p.lose_all();
        c.clear();
        p.take_lost(&mut c);
        assert_eq!(tags(&c), [('l', 3), ('l', 5), ('l', 6)]);
        assert_eq!((p.outstanding(), p.next_deadline()), (0, None));
    }

    #[test]
    fn answers_that_do_not_fit_break_the_link_and_errors_always_fit() {
        let until = Instant::now() + Duration::from_secs(1);
        let range = canvas_wire::frame::Range { offset: 0, len: 4 };
        let read = Request::Read { handle: 1, range };
        let error = Answer::Error {
            code: ErrorCode::UnknownHandle,
            text: "",
        };
        for (answer, fits) in [
            (Answer::Data(b"four"), true),
            (error, true),
            (Answer::Data(b"three"), false),
            (Answer::Data(b""), false),
            (Answer::Done, false),
        ] {
            let mut p = Pending::new(8);
            let id = p.begin(7, &read, until).unwrap();
            assert_eq!(p.complete(id, answer).is_ok(), fits, "{answer:?}");
            // A request whose answer does not fit is lost, not forgotten.
            assert_eq!(p.outstanding(), usize::from(!fits));
        }
        let mut p = Pending::new(8);
        assert!(p.complete(1, Answer::Done).is_err(), "an answer to nothing");
        assert!(p.complete(u64::MAX, Answer::Done).is_err());
    }

    /// The queue of deadlines stays bounded behind one request that is never answered.
    #[test]
    fn deadlines_are_bounded_by_the_window() {
        let until = Instant::now() + Duration::from_secs(1);
        let mut p = Pending::new(4);
        p.begin(0, &Request::Ping, until).unwrap();
        for tag in 1..1000 {
            let id = p.begin(tag, &Request::Free { handle: 1 }, until).unwrap();
            p.complete(id, Answer::Done).ok().unwrap();
        }
        assert!(p.deadlines.len() <= 9, "{}", p.deadlines.len());
        let mut c = Completions::new();
        p.expire(until, &mut c);
        assert_eq!(tags(&c), [('t', 0)]);
    }
}
