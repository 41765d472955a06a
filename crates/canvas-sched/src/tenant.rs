//! One tenant: its requests, limits, timeliness and counters.

use crate::bucket::Bucket;
use crate::histogram::Histogram;
use crate::link::Mark;
use crate::queue::{Flow, List, NONE};
use crate::{Class, LinkId, REQUESTS_MAX, Request, TenantId, Ticket, WEIGHT};

/// A prefetch is dropped when it would arrive later after its posting than this per mille of prefetched pages were
/// used. A thread that needs a page being prefetched waits for it and makes it a demand, so a late prefetch still
/// helps; one that nobody needed in the time in which nearly all are used most likely does not. Lower quantiles feed on
/// themselves, because dropped ones are not among the next samples: with the median, two of three reads of a stream
/// over 200 Mbit/s were dropped, its tenant was never backlogged, and so its weight counted for nothing. (Canvas, whose
/// late pages are useless, uses 90 % in its §3.)
pub const TIMELINESS_PER_MILLE: u32 = 990;
/// With fewer samples nothing is dropped.
pub const TIMELINESS_SAMPLES_MIN: u64 = 64;
/// With more, all counts are halved, because programs have phases.
const TIMELINESS_SAMPLES_MAX: u64 = 4096;
/// The threshold is recomputed after this many samples.
const TIMELINESS_SAMPLES_STEP: u32 = 32;

/// A tenant's weight and limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantConfig {
    /// Its weight, in [`crate::WEIGHTS`].
    pub weight: u32,
    /// Limit on bytes read a second, over all links (`None`: no limit).
    pub swap_in_limit: Option<u64>,
    /// Limit on bytes written a second, over all links (`None`: no limit).
    pub swap_out_limit: Option<u64>,
}

impl Default for TenantConfig {
    fn default() -> TenantConfig {
        TenantConfig {
            weight: WEIGHT,
            swap_in_limit: None,
            swap_out_limit: None,
        }
    }
}

/// Counters of a tenant's class. Waiting are `submitted + promoted (demand) - sent - dropped - promoted (prefetch)`.
#[derive(Clone, Default, Debug)]
pub struct ClassStats {
    /// Requests accepted from the caller.
    pub submitted: u64,
    /// Requests waiting.
    pub queued: u32,
    /// Requests sent and not done.
    pub under_way: u32,
    /// Requests sent.
    pub sent: u64,
    /// Requests that have ended.
    pub done: u64,
    /// Prefetches dropped because they would have come too late.
    pub dropped: u64,
    /// Prefetch: requests that became demands. Demand: requests that were prefetches.
    pub promoted: u64,
    /// Bytes of the sent requests.
    pub bytes: u64,
    /// Time from posting to sending, summed over all sent requests.
    pub waited_ns: u64,
    /// Histogram of the times from posting to sending.
    pub waits: Histogram,
}

/// Counters of a tenant.
#[derive(Clone, Default, Debug)]
pub struct TenantStats {
    /// Counters by [`Class`] as a number.
    pub classes: [ClassStats; 3],
    /// Prefetches that take longer are dropped; `None`: too few samples.
    pub timeliness_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    Waiting,
    UnderWay,
}

/// One request, waiting or under way.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) serial: u64,
    pub(crate) tag: u64,
    pub(crate) posted_ns: u64,
    pub(crate) mark: Mark,
    pub(crate) bytes: u32,
    next: u32,
    prev: u32,
    pub(crate) link: u8,
    pub(crate) class: Class,
    /// The class as submitted, against whose limit it counts.
    home: Class,
    /// A thread waits for this prefetch.
    needed: bool,
    pub(crate) state: State,
}

/// A tenant with its requests, its limits and its flow on each link.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) weight: u32,
    pub(crate) reads: Bucket,
    pub(crate) writes: Bucket,
    /// Waiting requests, by link.
    pub(crate) flows: Vec<Flow>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of requests, by home class.
    held: [u32; 3],
    uses: Histogram,
    uses_new: u32,
    pub(crate) stats: TenantStats,
}

impl Tenant {
    pub(crate) fn new(id: TenantId, config: TenantConfig, links: usize) -> Tenant {
        let slots = Class::ALL.len() * REQUESTS_MAX;
        Tenant {
            id,
            weight: config.weight,
            reads: Bucket::new(config.swap_in_limit),
            writes: Bucket::new(config.swap_out_limit),
            flows: vec![Flow::default(); links],
            slots: Vec::with_capacity(slots),
            free: Vec::with_capacity(slots),
            held: [0; 3],
            uses: Histogram::default(),
            uses_new: 0,
            stats: TenantStats::default(),
        }
    }

    /// Appends a request to its queue; `None` when the class is full.
    pub(crate) fn push(
        &mut self,
        class: Class,
        link: LinkId,
        bytes: u32,
        tag: u64,
        posted_ns: u64,
        serial: u64,
    ) -> Option<u32> {
        if self.held[class as usize] as usize >= REQUESTS_MAX {
            return None;
        }
        let slot = Slot {
            serial,
            tag,
            posted_ns,
            mark: Mark::default(),
            bytes,
            next: NONE,
            prev: NONE,
            link: link.0,
            class,
            home: class,
            needed: false,
            state: State::Waiting,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.held[class as usize] += 1;
        self.stats.classes[class as usize].submitted += 1;
        self.append(at);
        Some(at)
    }

    /// The slot of a ticket, if the ticket is still valid.
    pub(crate) fn slot_of(&self, ticket: Ticket) -> Option<&Slot> {
        let slot = self.slots.get(ticket.slot as usize)?;
        (slot.serial == ticket.serial && slot.state != State::Free).then_some(slot)
    }

    pub(crate) fn slot(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    pub(crate) fn slot_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    /// Sizes of the first request of each class; 0 where none waits.
    pub(crate) fn heads(&self, link: u8) -> [u32; 3] {
        let lists = &self.flows[link as usize].lists;
        lists.map(|l| match l.head {
            NONE => 0,
            at => self.slot(at).bytes,
        })
    }

    fn append(&mut self, at: u32) {
        let slot = &self.slots[at as usize];
        let (link, class, bytes) = (slot.link as usize, slot.class as usize, slot.bytes);
        let list: &mut List = &mut self.flows[link].lists[class];
        let tail = std::mem::replace(&mut list.tail, at);
        list.len += 1;
        list.bytes += u64::from(bytes);
        if tail == NONE {
            list.head = at;
        } else {
            self.slots[tail as usize].next = at;
        }
        let slot = &mut self.slots[at as usize];
        (slot.prev, slot.next) = (tail, NONE);
        self.stats.classes[class].queued += 1;
    }

    /// Moves a waiting request to the front of its queue.
    pub(crate) fn put_first(&mut self, at: u32) {
        self.unlink(at);
        let slot = &self.slots[at as usize];
        let (link, class, bytes) = (slot.link as usize, slot.class as usize, slot.bytes);
        let list: &mut List = &mut self.flows[link].lists[class];
        let head = std::mem::replace(&mut list.head, at);
        list.len += 1;
        list.bytes += u64::from(bytes);
        if head == NONE {
            list.tail = at;
        } else {
            self.slots[head as usize].prev = at;
        }
        let slot = &mut self.slots[at as usize];
        (slot.prev, slot.next) = (NONE, head);
        self.stats.classes[class].queued += 1;
    }

    /// Removes a waiting request from its queue.
    pub(crate) fn unlink(&mut self, at: u32) {
        let slot = &self.slots[at as usize];
        debug_assert_eq!(slot.state, State::Waiting);
        let (prev, next) = (slot.prev, slot.next);
        let (link, class, bytes) = (slot.link as usize, slot.class as usize, slot.bytes);
        let list = &mut self.flows[link].lists[class];
        list.len -= 1;
        list.bytes -= u64::from(bytes);
        if prev == NONE {
            list.head = next;
        }
        if next == NONE {
            list.tail = prev;
        }
        if prev != NONE {
            self.slots[prev as usize].next = next;
        }
        if next != NONE {
            self.slots[next as usize].prev = prev;
        }
        self.stats.classes[class].queued -= 1;
    }

    /// A waiting prefetch becomes a demand, at the end of their queue.
    pub(crate) fn escalate(&mut self, at: u32) {
        self.unlink(at);
        let slot = &mut self.slots[at as usize];
        debug_assert_eq!(slot.class, Class::Prefetch);
        slot.class = Class::Demand;
        let link = slot.link as usize;
        self.append(at);
        self.flows[link].settle();
        for class in [Class::Demand, Class::Prefetch] {
            self.stats.classes[class as usize].promoted += 1;
        }
    }

    /// A thread waits for this prefetch: this is the time of its use.
    pub(crate) fn needed(&mut self, at: u32, now_ns: u64) {
        let slot = &mut self.slots[at as usize];
        if !std::mem::replace(&mut slot.needed, true) {
            let ns = now_ns.saturating_sub(slot.posted_ns);
            self.used_after(ns, 1);
        }
    }

    /// Ends the request: its slot may be reused.
    pub(crate) fn release(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        debug_assert_ne!(slot.state, State::Free);
        slot.state = State::Free;
        self.held[slot.home as usize] -= 1;
        self.free.push(at);
    }

    pub(crate) fn request(&self, at: u32, index: u32) -> Request {
        let slot = self.slot(at);
        Request {
            ticket: Ticket {
                index,
                slot: at,
                serial: slot.serial,
            },
            tenant: self.id,
            tag: slot.tag,
            class: slot.class,
            link: LinkId(slot.link),
            bytes: slot.bytes,
            posted_ns: slot.posted_ns,
        }
    }

    /// Link and bytes of each request that is under way.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.slots.iter().filter(|s| s.state == State::UnderWay);
        slots.map(|s| (s.link as usize, s.bytes))
    }

    /// `count` prefetched pages were used `ns` after they were requested.
    pub(crate) fn used_after(&mut self, ns: u64, count: u32) {
        self.uses.add(ns, count);
        self.uses_new = self.uses_new.saturating_add(count);
        let total = self.uses.total();
        if self.uses_new < TIMELINESS_SAMPLES_STEP || total < TIMELINESS_SAMPLES_MIN {
            return;
        }
        self.uses_new = 0;
        self.stats.timeliness_ns = self.uses.quantile_ns(TIMELINESS_PER_MILLE);
        while self.uses.total() > TIMELINESS_SAMPLES_MAX {
            self.uses.halve();
        }
    }

    /// Everything that waits, and everything under way, by link: for [`crate::Scheduler::check`].
    ///
    /// # Panics
    /// When queues, slots and counters do not agree.
    pub(crate) fn check(&self, under_way: &mut [u64]) {
        let mut waiting = 0;
        for (link, flow) in self.flows.iter().enumerate() {
            for class in Class::ALL {
                let list = flow.list(class);
                let (mut at, mut prev, mut len, mut bytes) = (list.head, NONE, 0, 0);
                while at != NONE {
                    let slot = self.slot(at);
                    assert_eq!(slot.state, State::Waiting);
                    assert_eq!((slot.link as usize, slot.class), (link, class));
                    assert_eq!(slot.prev, prev);
                    len += 1;
                    bytes += u64::from(slot.bytes);
                    (prev, at) = (at, slot.next);
                }
                assert_eq!((list.tail, list.len, list.bytes), (prev, len, bytes));
                waiting += len as usize;
            }
        }
        let of = |state| self.slots.iter().filter(move |s| s.state == state);
        assert_eq!(of(State::Waiting).count(), waiting);
        assert_eq!(of(State::Free).count(), self.free.len());
        for (link, bytes) in self.under_way() {
            under_way[link] += u64::from(bytes);
        }
        for class in Class::ALL {
            let (at, s) = (class as usize, &self.stats.classes[class as usize]);
            let held = self
                .slots
                .iter()
                .filter(|s| s.state != State::Free && s.home == class);
            assert_eq!(held.count() as u32, self.held[at]);
            assert!(self.held[at] as usize <= REQUESTS_MAX);
            let queued = of(State::Waiting).filter(|s| s.class == class).count();
            assert_eq!(queued, s.queued as usize);
            let going = of(State::UnderWay).filter(|s| s.class == class).count();
            assert_eq!(going, s.under_way as usize);
            assert_eq!(s.sent, s.done + u64::from(s.under_way));
            assert!(s.sent >= s.waits.total());
            let (came, left) = match class {
                Class::Demand => (s.submitted + s.promoted, s.sent),
                _ => (s.submitted, s.sent + s.dropped + s.promoted),
            };
            assert_eq!(came, left + u64::from(s.queued), "{class:?} {s:?}");
        }
    }
}
