//! Requests of one process to the agent: a fixed table, claimed, posted and completed by atomics alone, so that either
//! side may die at any instruction.
//!
//! ```text
//!         program          program          agent           agent          program
//!  Free ──────────► Claimed ──────► Posted ──────► Taken ──────────► Done ────────► Free
//!                                     │              │ gave up waiting               ▲
//!                                     └──────────────┴────► Abandoned ───────────────┘
//!                                                              agent, when it is done
//! ```
//!
//! A request has a buffer of its own. While it is Posted or Taken the agent owns the buffer, so a request for which
//! nobody waits any more (Abandoned) is not claimed again before the agent has finished: a late answer never lands in
//! another request.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Most requests of a process at one time.
pub const REQUESTS: usize = 64;
/// The requests that write; all others read.
pub const WRITES: u64 = 0xff << (REQUESTS - 8);
/// The requests for demand reads.
pub const DEMANDS: u64 = 0xffff_ffff;
/// The requests for prefetches.
pub const FETCHES: u64 = !(WRITES | DEMANDS);

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes `offset..offset + len` of the extent, into the same place of the buffer.
    Read,
    /// The whole extent, of which the first `len` bytes are in use, from the buffer.
    Write,
}

/// A copy of a request for the agent, its fields not yet validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestFields {
    /// Read or write.
    pub kind: Kind,
    /// Number of the extent in the tenant's far memory.
    pub extent: u32,
    /// First byte within the extent.
    pub offset: u32,
    /// Length in bytes, at most that of an extent.
    pub len: u32,
}

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// Read: the bytes are in the buffer, and are the last ones written. Write: durable by the tenant's policy.
    Ok = 1,
    /// No copy can be reached now.
    Unreachable = 2,
    /// All reachable copies are damaged, or are not the last version written.
    Corrupt = 3,
    /// Write: there is no room in far memory.
    NoRoom = 4,
    /// The request is invalid.
    Refused = 5,
    /// Read: no copy is left; those that held it have lost it for good.
    Lost = 6,
    /// Prefetch: it was dropped, because it would have come too late.
    Late = 7,
}

impl Status {
    fn from_raw(raw: u32) -> Status {
        match raw {
            1 => Status::Ok,
            2 => Status::Unreachable,
            3 => Status::Corrupt,
            4 => Status::NoRoom,
            6 => Status::Lost,
            7 => Status::Late,
            _ => Status::Refused,
        }
    }
}

const FREE: u32 = 0;
const POSTED: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;
const ABANDONED: u32 = 4;

const KIND_READ: u32 = 0;
const KIND_WRITE: u32 = 1;

/// A place for one request to the agent: its state, its fields and its result.
#[repr(C, align(64))]
pub struct Request {
    state: AtomicU32,
    /// A thread sleeps on `state` (futex), or is about to.
    waits: AtomicU32,
    kind: AtomicU32,
    extent: AtomicU32,
    offset: AtomicU32,
    len: AtomicU32,
    status: AtomicU32,
    /// When it was posted (CLOCK_MONOTONIC), for the agent's statistics.
    posted_ns: AtomicU64,
}

/// The requests of one process.
#[repr(C, align(128))]
pub struct Mailbox {
    /// A bit for each request that is posted and not yet seen by the agent.
    posted: AtomicU64,
    /// A bit for each request in use.
    used: AtomicU64,
    /// A bit for each prefetch for which a thread waits.
    escalated: AtomicU64,
    requests: [Request; REQUESTS],
}

impl Mailbox {
    /// An empty mailbox. All-zero memory is the same.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Mailbox {
        Mailbox {
            posted: AtomicU64::new(0),
            used: AtomicU64::new(0),
            escalated: AtomicU64::new(0),
            requests: core::array::from_fn(|_| Request {
                state: AtomicU32::new(FREE),
                waits: AtomicU32::new(0),
                kind: AtomicU32::new(0),
                extent: AtomicU32::new(0),
                offset: AtomicU32::new(0),
                len: AtomicU32::new(0),
                status: AtomicU32::new(0),
                posted_ns: AtomicU64::new(0),
            }),
        }
    }

    /// Program: claims a request among those in `among`; `None` when all are in use.
    pub fn claim(&self, among: u64) -> Option<usize> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let free = !used & among;
            if free == 0 {
                return None;
            }
            let bit = free & free.wrapping_neg();
            match self.used.compare_exchange_weak(
                used,
                used | bit,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(bit.trailing_zeros() as usize),
                Err(now) => used = now,
            }
        }
    }

    /// Program: posts a claimed request. The caller then notifies the agent ([`crate::far::Far::notify`]).
    pub fn post(&self, i: usize, ask: RequestFields, now_ns: u64) {
        let r = &self.requests[i];
        let kind = match ask.kind {
            Kind::Read => KIND_READ,
            Kind::Write => KIND_WRITE,
        };
        r.kind.store(kind, Ordering::Relaxed);
        r.extent.store(ask.extent, Ordering::Relaxed);
        r.offset.store(ask.offset, Ordering::Relaxed);
        r.len.store(ask.len, Ordering::Relaxed);
        r.posted_ns.store(now_ns, Ordering::Relaxed);
        r.waits.store(0, Ordering::Relaxed);
        if FETCHES & 1 << i != 0 {
            // An old escalation was for the previous request at this index.
            self.escalated.fetch_and(!(1 << i), Ordering::Relaxed);
        }
        r.state.store(POSTED, Ordering::Release);
        self.posted.fetch_or(1 << i, Ordering::SeqCst);
    }

    /// Program: the result of the request; `None` while it is under way.
    pub fn ended(&self, i: usize) -> Option<Status> {
        let r = &self.requests[i];
        (r.state.load(Ordering::Acquire) == DONE)
            .then(|| Status::from_raw(r.status.load(Ordering::Relaxed)))
    }

    /// Program: a thread waits for a prefetch. True when the agent must be notified ([`crate::far::Far::notify`]). An
    /// escalation of a request that has ended meanwhile may speed up the next one at this index, and has no other
    /// effect.
    pub fn escalate(&self, i: usize) -> bool {
        self.escalated.fetch_or(1 << i, Ordering::SeqCst) & 1 << i == 0
    }

    /// Agent: the requests posted since the last call, and those that were escalated, a bit each. Reads `escalated`
    /// before `posted`: an escalation always follows its post, so the reverse order could miss the post and lose it.
    pub fn take_new(&self) -> (u64, u64) {
        let escalated = self.take_escalated();
        (self.collect(), escalated)
    }

    fn take_escalated(&self) -> u64 {
        if self.escalated.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.escalated.swap(0, Ordering::SeqCst)
    }

    /// Program: the word to sleep on, and its value while the request is under way; `None` when it is not, also because
    /// another thread of the process has released it. The caller then sleeps only while the word has this value.
    pub fn about_to_sleep(&self, i: usize) -> Option<(&AtomicU32, u32)> {
        let r = &self.requests[i];
        r.waits.store(1, Ordering::SeqCst);
        let state = r.state.load(Ordering::SeqCst);
        matches!(state, POSTED | TAKEN).then_some((&r.state, state))
    }

    /// Program: releases a request that was claimed and not posted, or that has ended.
    pub fn release(&self, i: usize) {
        self.requests[i].state.store(FREE, Ordering::Relaxed);
        self.used.fetch_and(!(1 << i), Ordering::Release);
    }

    /// Program: stops waiting for a request. The agent releases it when it is done; if it has ended already, this call
    /// does.
    pub fn abandon(&self, i: usize) {
        let r = &self.requests[i];
        for from in [POSTED, TAKEN] {
            // Posted may become taken between the two attempts; taken can only become done.
            if r.state
                .compare_exchange(from, ABANDONED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return;
            }
        }
        self.release(i);
    }

    /// A new process takes the mailbox of one that has ended: requests that the agent is working on are abandoned,
    /// everything else is released.
    pub fn reset(&self) {
        let unseen = self.posted.swap(0, Ordering::SeqCst);
        let used = self.used.load(Ordering::Acquire);
        for i in (0..REQUESTS).filter(|i| used & 1 << i != 0) {
            if unseen & 1 << i != 0 {
                // The agent finds requests by these bits, so it never saw this one.
                self.release(i);
            } else {
                match self.requests[i].state.load(Ordering::Acquire) {
                    // Collected a moment ago, or being worked on.
                    POSTED | TAKEN => self.abandon(i),
                    ABANDONED => {}
                    _ => self.release(i),
                }
            }
        }
    }

    /// Program: continues with a request of a process that has died, in a mailbox that belongs to no single process.
    /// True when it was posted: the agent must be notified again, as it may not have been. A request that was not
    /// posted is released.
    pub fn take_over(&self, i: usize) -> bool {
        match self.requests[i].state.load(Ordering::Acquire) {
            FREE => {
                self.release(i);
                false
            }
            POSTED => {
                // A surplus bit does no harm: the agent takes a posted request only once.
                self.posted.fetch_or(1 << i, Ordering::SeqCst);
                true
            }
            _ => true,
        }
    }

    /// Agent: the requests posted since the last call, a bit each.
    pub fn collect(&self) -> u64 {
        if self.posted.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.posted.swap(0, Ordering::SeqCst)
    }

    /// Agent that takes over from a dead one: returns all requests that the dead one may have been working on, and
    /// releases those for which nobody waits.
    pub fn recover(&self) -> u64 {
        self.posted.swap(0, Ordering::SeqCst);
        let used = self.used.load(Ordering::Acquire);
        let mut again = 0;
        for i in (0..REQUESTS).filter(|i| used & 1 << i != 0) {
            let r = &self.requests[i];
            match r.state.load(Ordering::Acquire) {
                ABANDONED => self.release(i),
                TAKEN => {
                    let _ = r.state.compare_exchange(
                        TAKEN,
                        POSTED,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    again |= 1 << i;
                }
                POSTED => again |= 1 << i,
                _ => {}
            }
        }
        again
    }

    /// Agent: takes a collected request; `None` when nobody waits for it any more. From here on it must be completed.
    pub fn take(&self, i: usize) -> Option<(RequestFields, u64)> {
        let r = &self.requests[i];
        if let Err(now) =
            r.state
                .compare_exchange(POSTED, TAKEN, Ordering::AcqRel, Ordering::Acquire)
        {
            if now == ABANDONED {
                self.release(i);
            }
            return None;
        }
        let kind = match r.kind.load(Ordering::Relaxed) {
            KIND_WRITE => Kind::Write,
            _ => Kind::Read,
        };
        let ask = RequestFields {
            kind,
            extent: r.extent.load(Ordering::Relaxed),
            offset: r.offset.load(Ordering::Relaxed),
            len: r.len.load(Ordering::Relaxed),
        };
        Some((ask, r.posted_ns.load(Ordering::Relaxed)))
    }

    /// Agent: whether a thread still waits for a taken request. Otherwise no answer is needed.
    pub fn is_awaited(&self, i: usize) -> bool {
        self.requests[i].state.load(Ordering::Acquire) == TAKEN
    }

    /// Agent: ends a taken request. True when a thread sleeps on it and must be woken ([`Mailbox::word`]).
    pub fn complete(&self, i: usize, status: Status) -> bool {
        let r = &self.requests[i];
        r.status.store(status as u32, Ordering::Relaxed);
        if r.state
            .compare_exchange(TAKEN, DONE, Ordering::SeqCst, Ordering::Acquire)
            .is_err()
        {
            self.release(i);
            return false;
        }
        r.waits.load(Ordering::SeqCst) != 0
    }

    /// The futex word of a request.
    pub fn word(&self, i: usize) -> &AtomicU32 {
        &self.requests[i].state
    }

    /// Requests in use, a bit each.
    pub fn in_use(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: RequestFields = RequestFields {
        kind: Kind::Read,
        extent: 7,
        offset: 48,
        len: 100,
    };

    #[test]
    fn a_request_goes_round() {
        let m = Mailbox::new();
        let i = m.claim(DEMANDS).unwrap();
        m.post(i, ASK, 11);
        assert_eq!(m.ended(i), None);
        assert_eq!(m.collect(), 1 << i);
        assert_eq!(m.collect(), 0);
        assert_eq!(m.take(i), Some((ASK, 11)));
        assert_eq!(m.take(i), None, "once");
        assert!(!m.complete(i, Status::Ok), "nobody sleeps");
        assert_eq!(m.ended(i), Some(Status::Ok));
        assert!(m.about_to_sleep(i).is_none());
        m.release(i);
        assert_eq!(m.in_use(), 0);
        assert!(m.about_to_sleep(i).is_none(), "nothing is under way");
    }

    #[test]
    fn sleepers_are_named() {
        let m = Mailbox::new();
        let i = m.claim(WRITES).unwrap();
        assert!(1u64 << i & WRITES != 0);
        m.post(i, ASK, 0);
        assert!(m.about_to_sleep(i).is_some());
        m.take(m.collect().trailing_zeros() as usize).unwrap();
        assert!(m.complete(i, Status::NoRoom));
        assert_eq!(m.ended(i), Some(Status::NoRoom));
    }

    #[test]
    fn who_waits_for_what_is_read_ahead_says_so_once() {
        let m = Mailbox::new();
        let i = m.claim(FETCHES).unwrap();
        m.post(i, ASK, 0);
        assert_eq!(m.take_escalated(), 0);
        assert!(m.escalate(i) && !m.escalate(i));
        assert_eq!((m.take_escalated(), m.take_escalated()), (1 << i, 0));
        assert!(m.escalate(i), "another thread, later");
        m.collect();
        m.take(i).unwrap();
        m.complete(i, Status::Late);
        assert_eq!(m.ended(i), Some(Status::Late));
        m.release(i);
        assert_eq!(m.claim(FETCHES), Some(i));
        m.post(i, ASK, 0);
        assert_eq!(m.take_escalated(), 0, "it was for the one before");
    }

    #[test]
    fn who_takes_over_from_a_dead_process_goes_on_where_it_was() {
        let m = Mailbox::new();
        let i = m.claim(WRITES).unwrap();
        assert!(!m.take_over(i), "it was not posted");
        assert_eq!(m.in_use(), 0);
        let i = m.claim(WRITES).unwrap();
        m.post(i, ASK, 3);
        assert_eq!(m.collect(), 1 << i, "lost with an agent, or never said");
        assert!(m.take_over(i));
        assert_eq!(m.collect(), 1 << i);
        assert_eq!(m.take(i), Some((ASK, 3)));
        assert!(m.take_over(i) && m.collect() == 0, "the agent has it");
        m.complete(i, Status::Ok);
        assert!(m.take_over(i));
        assert_eq!(m.ended(i), Some(Status::Ok));
    }

    #[test]
    fn kinds_of_requests_do_not_take_each_others_places() {
        let m = Mailbox::new();
        let n = |among| core::iter::from_fn(|| m.claim(among)).count();
        assert_eq!((n(DEMANDS), n(FETCHES), n(WRITES)), (32, 24, 8));
    }

    #[test]
    fn an_abandoned_request_is_not_claimed_before_the_agent_is_through() {
        let m = Mailbox::new();
        let only = 1;
        for taken in [false, true] {
            let i = m.claim(only).unwrap();
            m.post(i, ASK, 0);
            let seen = m.collect();
            if taken {
                assert!(m.take(i).is_some() && m.is_awaited(i));
            }
            m.abandon(i);
            assert_eq!(m.claim(only), None);
            assert!(!m.is_awaited(i));
            if taken {
                assert!(!m.complete(i, Status::Ok));
            } else {
                assert_eq!((seen, m.take(i)), (1, None));
            }
            assert_eq!(m.claim(only), Some(0));
            m.release(0);
        }
        // Ended meanwhile: released at once.
        let i = m.claim(only).unwrap();
        m.post(i, ASK, 0);
        m.collect();
        m.take(i);
        m.complete(i, Status::Ok);
        m.abandon(i);
        assert_eq!(m.in_use(), 0);
    }

    #[test]
    fn a_new_process_finds_all_free_but_what_the_agent_is_at_work_on() {
        let m = Mailbox::new();
        for _ in 0..5 {
            m.claim(DEMANDS).unwrap();
        }
        for i in 0..4 {
            m.post(i, ASK, 0);
            if i < 3 {
                m.collect();
            }
            if i < 2 {
                m.take(i);
            }
        }
        m.complete(0, Status::Ok);
        // 0 has ended, 1 is being worked on, 2 was seen, 3 was not, 4 was never posted.
        m.reset();
        assert_eq!(m.in_use(), 0b110);
        assert_eq!(m.take(2), None);
        m.complete(1, Status::Ok);
        assert_eq!(m.in_use(), 0);
    }

    #[test]
    fn an_agent_that_takes_over_does_again_what_the_dead_one_may_have_begun() {
        let m = Mailbox::new();
        for i in 0..5 {
            assert_eq!(m.claim(DEMANDS), Some(i));
            m.post(i, ASK, 0);
        }
        m.collect();
        m.take(1);
        m.take(2);
        m.abandon(2);
        m.take(3);
        m.complete(3, Status::Ok);
        assert_eq!(m.recover(), 0b10011);
        for i in [0, 1, 4] {
            assert!(m.take(i).is_some());
            m.complete(i, Status::Ok);
            m.release(i);
        }
        assert_eq!(m.in_use(), 1 << 3);
    }
}
