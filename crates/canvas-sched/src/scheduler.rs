//! The scheduler: tenants, links, and which request goes next.

use std::collections::BTreeMap;

use crate::heap::IndexHeap;
use crate::link::{Link, LinkConfig, LinkStats};
use crate::queue::{Choice, NONE};
use crate::tenant::{State, Tenant, TenantConfig, TenantStats};
use crate::{
    Class, Decision, Escalation, LINKS_MAX, LinkId, REQUEST_BYTES_MAX, Refused, Request,
    TENANTS_MAX, TenantError, TenantId, Ticket, WEIGHTS,
};

/// Virtual time of a byte at weight 1: rounding is then below a millionth of the smallest request.
const BYTE: u128 = 1 << 20;

/// Limit on a tenant's outstanding prefetches: its share of a link takes at most this time and two round trips for
/// them. More of them makes all of them later and moves no byte more: over 200 Mbit/s the 90th percentile of a stream's
/// prefetches was 75 ms without a limit, 55 with 10 ms here, and 31 with 5 (docs/design/decisions.md).
pub const AHEAD_NS_MAX: u64 = 5_000_000;
/// Credit of a tenant that has not used its share, when it comes back: its share of this time, beside the tenants with
/// waiting requests. A stream whose program, agent and threads wait for processors occasionally has nothing waiting for
/// some milliseconds; without credit a heavy one loses each time.
pub const CREDIT_NS: u64 = 50_000_000;
/// Least credit in bytes.
pub const CREDIT_BYTES: u64 = 256 << 10;
/// How far a tenant that is served while nobody else waits gets ahead of the link's clock: by what all others may have
/// as credit when they come back ([`CREDIT_NS`]), since more could not be theirs, but at least by this. The rest is
/// forgiven.
pub const DEBT_BYTES: u64 = 512 << 10;
/// The whole debt is forgiven when nobody else has used the link for this time, and not sooner, because other tenants
/// appear to want nothing for moments in which they do.
pub const ALONE_NS: u64 = 100_000_000;

/// The scheduler. The crate's documentation describes its rules.
#[derive(Debug)]
pub struct Scheduler {
    links: Vec<Link>,
    /// Tenants by index; unused indices are in `free`.
    tenants: Vec<Option<Box<Tenant>>>,
    free: Vec<u32>,
    /// Indices by tenant.
    by_id: BTreeMap<TenantId, u32>,
    /// Sum of the tenants' weights.
    weights: u64,
    /// Flows (`index * LINKS_MAX + link`) that wait for a limit, by the time when it allows them, then by arrival.
    held_back: IndexHeap<(u64, u64)>,
    /// The link to check first.
    turn: usize,
    /// Requests and turns so far.
    serial: u64,
    /// Prefetches that would come too late are dropped.
    timeliness: bool,
    strays: u64,
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler::new()
    }
}

impl Scheduler {
    /// No links and no tenants. Prefetches that would come too late are dropped.
    pub fn new() -> Scheduler {
        Scheduler {
            links: Vec::new(),
            tenants: Vec::new(),
            free: Vec::new(),
            by_id: BTreeMap::new(),
            weights: 0,
            held_back: IndexHeap::new(),
            turn: 0,
            serial: 0,
            timeliness: true,
            strays: 0,
        }
    }

    /// Adds a link; `None` when there are [`LINKS_MAX`]. Links are never removed.
    pub fn add_link(&mut self, config: LinkConfig) -> Option<LinkId> {
        if self.links.len() == LINKS_MAX {
            return None;
        }
        let mut link = Link::new(config);
        link.ready.reserve(self.tenants.len());
        self.links.push(link);
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.flows.push(Default::default());
        }
        Some(LinkId(self.links.len() as u8 - 1))
    }

    /// Switches the dropping of late prefetches off or on (Canvas fig. 13), also for those that wait already. Uses are
    /// recorded either way.
    pub fn set_timeliness(&mut self, on: bool) {
        self.timeliness = on;
    }

    /// Adds a tenant: all its storage is allocated here, some 100 KiB of addresses.
    ///
    /// # Errors
    /// [`TenantError::Exists`], [`TenantError::TooMany`], [`TenantError::Weight`].
    pub fn add_tenant(&mut self, id: TenantId, config: TenantConfig) -> Result<(), TenantError> {
        if !WEIGHTS.contains(&config.weight) {
            return Err(TenantError::Weight);
        }
        if self.by_id.contains_key(&id) {
            return Err(TenantError::Exists);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.tenants.len() == TENANTS_MAX => return Err(TenantError::TooMany),
            None => {
                self.tenants.push(None);
                let n = self.tenants.len();
                self.links.iter_mut().for_each(|l| l.ready.reserve(n));
                self.held_back.reserve(n * LINKS_MAX);
                n as u32 - 1
            }
        };
        let tenant = Tenant::new(id, config, self.links.len());
        self.tenants[index as usize] = Some(Box::new(tenant));
        self.by_id.insert(id, index);
        self.weights += u64::from(config.weight);
        Ok(())
    }

    /// Changes a tenant: weight and limits apply from now on, also to waiting requests.
    ///
    /// # Errors
    /// [`TenantError::Unknown`], [`TenantError::Weight`].
    pub fn set_tenant(
        &mut self,
        id: TenantId,
        config: TenantConfig,
        now_ns: u64,
    ) -> Result<(), TenantError> {
        if !WEIGHTS.contains(&config.weight) {
            return Err(TenantError::Weight);
        }
        let index = *self.by_id.get(&id).ok_or(TenantError::Unknown)?;
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        let old = std::mem::replace(&mut tenant.weight, config.weight);
        self.weights = self.weights - u64::from(old) + u64::from(config.weight);
        tenant.reads.set(config.swap_in_limit, now_ns);
        tenant.writes.set(config.swap_out_limit, now_ns);
        for link in 0..self.links.len() {
            let l = &mut self.links[link];
            if l.ready.contains(index) {
                l.ready_weight = l.ready_weight - u64::from(old) + u64::from(config.weight);
            }
            self.wake(index, link);
        }
        Ok(())
    }

    /// Removes a tenant, and returns its waiting requests, by class in order of arrival. Requests under way are removed
    /// from their links as if given up: nobody will report their end, and a link that counted them forever would be
    /// full one day. The number may be reused at once. `None`: no such tenant.
    pub fn remove_tenant(&mut self, id: TenantId) -> Option<Vec<Request>> {
        let index = self.by_id.remove(&id)?;
        let mut waiting = Vec::new();
        for link in 0..self.links.len() {
            self.unready(index, link);
            self.held_back.remove(flow_id(index, link));
            let tenant = self.tenants[index as usize]
                .as_mut()
                .expect("it has an index");
            for class in 0..Class::ALL.len() {
                loop {
                    let at = tenant.flows[link].lists[class].head;
                    if at == NONE {
                        break;
                    }
                    waiting.push(tenant.request(at, index));
                    tenant.unlink(at);
                    tenant.release(at);
                }
            }
        }
        let tenant = self.tenants[index as usize]
            .take()
            .expect("it has an index");
        self.weights -= u64::from(tenant.weight);
        for (link, bytes) in tenant.under_way() {
            self.links[link].lost(bytes);
        }
        self.free.push(index);
        Some(waiting)
    }

    /// Submits a tenant's request, posted at `posted_ns` on the clock of all the others. `tag` is the caller's and
    /// comes back with the decision.
    ///
    /// # Errors
    /// [`Refused`]; then the scheduler does not have the request.
    pub fn submit(
        &mut self,
        id: TenantId,
        class: Class,
        link: LinkId,
        bytes: u32,
        tag: u64,
        posted_ns: u64,
    ) -> Result<Ticket, Refused> {
        if bytes > REQUEST_BYTES_MAX {
            return Err(Refused::TooLarge);
        }
        let at = link.0 as usize;
        if at >= self.links.len() {
            return Err(Refused::NoLink);
        }
        let index = *self.by_id.get(&id).ok_or(Refused::NoTenant)?;
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        self.serial += 1;
        let serial = self.serial;
        let slot = tenant
            .push(class, link, bytes.max(1), tag, posted_ns, serial)
            .ok_or(Refused::Full)?;
        let flow = &tenant.flows[at];
        if flow.len() == 1 {
            self.make_ready(index, at);
        } else if flow.list(class).len == 1 {
            // The limit that holds the others back may not apply to this one.
            self.wake(index, at);
        }
        Ok(Ticket {
            index,
            slot,
            serial,
        })
    }

    /// Whether a prefetch of `bytes` would come too late, behind `ahead_bytes` of the tenant's other prefetches that
    /// have not arrived. The caller asks before submitting it, because a stream needs the newest one last. It would be
    /// too late when they are more than the tenant's share of the link moves in [`AHEAD_NS_MAX`] and two round trips,
    /// and more than the tenant's credit, which is served at once; a single one is never too much.
    pub fn is_too_far_ahead(
        &self,
        id: TenantId,
        link: LinkId,
        bytes: u32,
        ahead_bytes: u64,
    ) -> bool {
        if !self.timeliness || ahead_bytes == 0 {
            return false;
        }
        let at = link.0 as usize;
        let (Some(index), Some(link)) = (self.by_id.get(&id), self.links.get(at)) else {
            return false;
        };
        let tenant = self.tenants[*index as usize]
            .as_ref()
            .expect("it has an index");
        // A tenant that is behind because of its own limit is not served at once.
        let credit = match tenant.reads.is_limited() {
            true => 0,
            false => {
                let behind = link.clock.saturating_sub(tenant.flows[at].finish);
                bytes_in(behind, tenant.weight).min(credit_bytes(link, *index, tenant.weight))
            }
        };
        let all_bytes = ahead_bytes.saturating_add(bytes.into());
        let ns = link.ahead_ns(all_bytes.saturating_sub(credit), tenant.weight);
        ns > AHEAD_NS_MAX + 2 * link.arrival_ns(0)
    }

    /// Moves a waiting request before the tenant's others of its class and link: for the rest of a request of which
    /// pieces are done, so that it does not end later for being cut.
    pub fn put_first(&mut self, ticket: Ticket) {
        let Some(tenant) = self
            .tenants
            .get_mut(ticket.index as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        let Some(slot) = tenant.slot_of(ticket).filter(|s| s.state == State::Waiting) else {
            return;
        };
        let link = slot.link as usize;
        tenant.put_first(ticket.slot);
        // The limit that holds the former first one back may not apply to this one.
        self.wake(ticket.index, link);
    }

    /// Makes a flow ready: its start is its last finish, but not much earlier than the link's clock ([`CREDIT_NS`]).
    fn make_ready(&mut self, index: u32, link: usize) {
        let tenant = self.tenants[index as usize]
            .as_ref()
            .expect("it has an index");
        let l = &mut self.links[link];
        if l.ready.len() == 0 && l.under_way == 0 {
            // Nobody wanted anything: advantages between tenants are over.
            l.clock = l.clock.max(l.finish_max);
        }
        let start = tenant.flows[link]
            .finish
            .max(earliest(l, index, tenant.weight));
        self.serial += 1;
        l.ready.put(index, (start, self.serial));
        l.ready_weight += u64::from(tenant.weight);
    }

    /// Removes a flow from the ready ones.
    fn unready(&mut self, index: u32, link: usize) {
        let tenant = self.tenants[index as usize]
            .as_ref()
            .expect("it has an index");
        let l = &mut self.links[link];
        if l.ready.remove(index) {
            l.ready_weight -= u64::from(tenant.weight);
        }
    }

    /// Checks a flow again that a limit holds back.
    fn wake(&mut self, index: u32, link: usize) {
        if self.held_back.remove(flow_id(index, link)) {
            self.make_ready(index, link);
        }
    }

    /// Charges a tenant for bytes that it has moved over the link without a request here: its next turn comes later.
    /// While others wait for the link, returns how many bytes it is ahead of the one served now.
    pub fn charge(&mut self, id: TenantId, link: LinkId, bytes: u64) -> Option<u64> {
        let at = link.0 as usize;
        let (index, l) = (*self.by_id.get(&id)?, self.links.get_mut(at)?);
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        let flow = &mut tenant.flows[at];
        let start = flow.finish.max(earliest(l, index, tenant.weight));
        if bytes > 0 {
            l.was_used_by(id);
        }
        flow.finish = start + virtual_time(bytes, tenant.weight.into());
        l.finish_max = l.finish_max.max(flow.finish);
        let is_ready = l.ready.contains(index);
        if is_ready && bytes > 0 {
            self.serial += 1;
            l.ready.put(index, (flow.finish, self.serial));
        }
        let ahead = flow.finish.saturating_sub(l.clock);
        let others = l.ready.len() > usize::from(is_ready);
        others.then(|| bytes_in(ahead, tenant.weight))
    }

    /// Bytes of a tenant sent over the link so far.
    pub fn sent_bytes(&self, id: TenantId, link: LinkId) -> u64 {
        let index = self.by_id.get(&id);
        let tenant = index.and_then(|index| self.tenants[*index as usize].as_ref());
        let flow = tenant.and_then(|tenant| tenant.flows.get(link.0 as usize));
        flow.map_or(0, |flow| flow.sent_bytes)
    }

    /// The next decision; call it until there is none. `None`: links are full, limits forbid everything
    /// ([`Scheduler::next_due`] says until when), or nothing waits.
    pub fn next(&mut self, now_ns: u64) -> Option<Decision> {
        while let Some(((due, _), flow)) = self.held_back.first() {
            if due > now_ns {
                break;
            }
            self.wake(flow / LINKS_MAX as u32, flow as usize % LINKS_MAX);
        }
        let n = self.links.len();
        for k in 0..n {
            let link = (self.turn + k) % n;
            if let Some(decision) = self.next_of(link, now_ns) {
                self.turn = (link + 1) % n;
                return Some(decision);
            }
        }
        None
    }

    fn next_of(&mut self, link: usize, now_ns: u64) -> Option<Decision> {
        while self.links[link].has_room() {
            let ((start, _), index) = self.links[link].ready.first()?;
            let tenant = self.tenants[index as usize]
                .as_mut()
                .expect("it has an index");
            let head = tenant.heads(link as u8);
            if self.timeliness
                && head[Class::Prefetch as usize] > 0
                && !(tenant.flows[link].dropped && head[Class::Demand as usize] > 0)
                && is_late(tenant, &self.links[link], link, now_ns)
            {
                return Some(self.drop_prefetch(index, link));
            }
            match tenant.flows[link].choose(head, &tenant.reads, &tenant.writes, now_ns) {
                Choice::Send(class) => return Some(self.send(index, link, class, start, now_ns)),
                Choice::Wait(due) => {
                    debug_assert!(due > now_ns);
                    self.unready(index, link);
                    self.serial += 1;
                    self.held_back.put(flow_id(index, link), (due, self.serial));
                }
            }
        }
        None
    }

    fn drop_prefetch(&mut self, index: u32, link: usize) -> Decision {
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        let at = tenant.flows[link].list(Class::Prefetch).head;
        let request = tenant.request(at, index);
        tenant.unlink(at);
        tenant.release(at);
        tenant.stats.classes[Class::Prefetch as usize].dropped += 1;
        let flow = &mut tenant.flows[link];
        flow.dropped = true;
        flow.settle();
        if flow.is_empty() {
            self.unready(index, link);
        }
        Decision::Drop(request)
    }

    fn send(
        &mut self,
        index: u32,
        link: usize,
        class: Class,
        start: u128,
        now_ns: u64,
    ) -> Decision {
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        let at = tenant.flows[link].list(class).head;
        let request = tenant.request(at, index);
        let bytes = request.bytes;
        tenant.unlink(at);
        let bucket = match class {
            Class::SwapOut => &mut tenant.writes,
            _ => &mut tenant.reads,
        };
        bucket.take(bytes, now_ns);
        let flow = &mut tenant.flows[link];
        flow.sent(class, bytes);
        flow.finish = start + virtual_time(bytes.into(), tenant.weight.into());
        let (finish, empty) = (flow.finish, flow.is_empty());
        let (id, weight) = (tenant.id, tenant.weight);
        let alone_ns = self.links[link].used_by(id, now_ns);
        let clock = self.clock_after(link, (start, finish), weight, bytes, alone_ns);
        self.links[link].clock = clock;
        if empty {
            self.unready(index, link);
        } else {
            self.serial += 1;
            self.links[link].ready.put(index, (finish, self.serial));
        }
        let l = &mut self.links[link];
        l.finish_max = l.finish_max.max(finish);
        let mark = l.send(bytes, now_ns);
        let tenant = self.tenants[index as usize]
            .as_mut()
            .expect("it has an index");
        let slot = tenant.slot_mut(at);
        slot.state = State::UnderWay;
        slot.mark = mark;
        let waited = now_ns.saturating_sub(request.posted_ns);
        let stats = &mut tenant.stats.classes[class as usize];
        stats.under_way += 1;
        stats.sent += 1;
        stats.bytes += u64::from(bytes);
        stats.waited_ns = stats.waited_ns.saturating_add(waited);
        stats.waits.add(waited, 1);
        Decision::Send(request)
    }

    /// The clock of a link after a request was sent: the request's start. A flow that is further ahead than requests
    /// alone make it goes first only because nobody else waits at this moment; then the clock advances as if all
    /// tenants did, until the flow has been alone for [`ALONE_NS`].
    fn clock_after(
        &self,
        link: usize,
        (start, finish): (u128, u128),
        weight: u32,
        bytes: u32,
        alone_ns: u64,
    ) -> u128 {
        let l = &self.links[link];
        let weight = u64::from(weight);
        if start <= l.clock + virtual_time(CREDIT_BYTES, weight) || alone_ns >= ALONE_NS {
            return l.clock.max(start);
        }
        let others = l.share_bytes(CREDIT_NS, self.weights - weight, self.weights);
        let debt_bytes = others.max(DEBT_BYTES);
        let slow = l.clock + virtual_time(bytes.into(), self.weights);
        slow.max(finish.saturating_sub(virtual_time(debt_bytes, weight)))
    }

    /// A sent request has ended, well or not. False when the ticket is not of a request under way: that is counted
    /// ([`Scheduler::strays`]) and changes nothing else.
    pub fn done(&mut self, ticket: Ticket, now_ns: u64) -> bool {
        self.ended(ticket, Some(now_ns))
    }

    /// A sent request is probably not on the link any more, because a peer is silent, and the others must not wait for
    /// it. It counts as done, and says nothing about the link. False as for [`Scheduler::done`].
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        self.ended(ticket, None)
    }

    fn ended(&mut self, ticket: Ticket, at_ns: Option<u64>) -> bool {
        let entry = self.tenants.get_mut(ticket.index as usize);
        let Some(tenant) = entry.and_then(Option::as_mut) else {
            self.strays += 1;
            return false;
        };
        let (bytes, link, class, mark) = match tenant.slot_of(ticket) {
            Some(s) if s.state == State::UnderWay => (s.bytes, s.link, s.class, s.mark),
            _ => {
                self.strays += 1;
                return false;
            }
        };
        tenant.release(ticket.slot);
        let stats = &mut tenant.stats.classes[class as usize];
        stats.under_way -= 1;
        stats.done += 1;
        let link = &mut self.links[link as usize];
        match at_ns {
            Some(now_ns) => link.done(bytes, mark, now_ns),
            None => link.lost(bytes),
        }
        true
    }

    /// A thread waits for this request: a waiting prefetch becomes a demand. This records the prefetch's timeliness as
    /// well: do not call [`Scheduler::used_after`] for it.
    pub fn escalate(&mut self, ticket: Ticket, now_ns: u64) -> Escalation {
        let entry = self.tenants.get_mut(ticket.index as usize);
        let Some(tenant) = entry.and_then(Option::as_mut) else {
            return Escalation::Gone;
        };
        let Some(slot) = tenant.slot_of(ticket) else {
            return Escalation::Gone;
        };
        let (state, class, link) = (slot.state, slot.class, slot.link as usize);
        if class == Class::Prefetch {
            tenant.needed(ticket.slot, now_ns);
        }
        if state == State::UnderWay {
            return Escalation::UnderWay;
        }
        if class != Class::Prefetch {
            return Escalation::Already;
        }
        tenant.escalate(ticket.slot);
        self.wake(ticket.index, link);
        Escalation::Moved
    }

    /// Records that `count` prefetched pages of a tenant were used `ns` after their prefetch was posted. Pages that
    /// were needed before they came count too (dropped ones, and those whose waiter submitted them again).
    pub fn used_after(&mut self, id: TenantId, ns: u64, count: u32) {
        if let Some(index) = self.by_id.get(&id) {
            let tenant = self.tenants[*index as usize]
                .as_mut()
                .expect("it has an index");
            tenant.used_after(ns, count);
        }
    }

    /// When a limit next allows a waiting request: call [`Scheduler::next`] then. It must have returned `None` before.
    /// `None`: only a submission or an end can change anything.
    pub fn next_due(&self) -> Option<u64> {
        self.held_back.first().map(|((due, _), _)| due)
    }

    /// How long a request of `bytes` takes on the link when it is sent now; 0 while unknown.
    pub fn arrival_ns(&self, link: LinkId, bytes: u32) -> u64 {
        let link = self.links.get(link.0 as usize);
        link.map_or(0, |l| l.arrival_ns(bytes))
    }

    /// A tenant's counters.
    pub fn stats(&self, id: TenantId) -> Option<&TenantStats> {
        let index = self.by_id.get(&id)?;
        self.tenants[*index as usize].as_ref().map(|t| &t.stats)
    }

    /// A link's statistics.
    pub fn link_stats(&self, link: LinkId) -> Option<LinkStats> {
        self.links.get(link.0 as usize).map(Link::stats)
    }

    /// Number of reported ends of requests that were not under way.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Verifies all invariants between calls; for tests, because it visits all requests.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn check(&self) {
        let mut under_way = vec![0; self.links.len()];
        let mut ready = vec![(0, 0); self.links.len()];
        self.held_back.check();
        for (index, tenant) in self.tenants.iter().enumerate() {
            let Some(tenant) = tenant else { continue };
            let index = index as u32;
            tenant.check(&mut under_way);
            assert_eq!(self.by_id.get(&tenant.id), Some(&index));
            for (link, flow) in tenant.flows.iter().enumerate() {
                let is_ready = self.links[link].ready.contains(index);
                let is_held = self.held_back.contains(flow_id(index, link));
                assert_eq!(!flow.is_empty(), is_ready || is_held);
                assert!(!(is_ready && is_held));
                if is_ready {
                    ready[link].0 += 1;
                    ready[link].1 += u64::from(tenant.weight);
                }
            }
        }
        for (link, l) in self.links.iter().enumerate() {
            l.ready.check();
            assert_eq!(l.under_way, under_way[link]);
            assert_eq!((l.ready.len(), l.ready_weight), ready[link]);
            if let Some(((start, _), index)) = l.ready.first() {
                // Credit grows with the rate, once that is known.
                assert!(
                    l.stats().rate_bytes_s > 0 || start >= earliest(l, index, 1),
                    "nobody is far ahead of the clock"
                );
            }
        }
        assert_eq!(
            self.tenants.len(),
            self.free.len() + self.tenants.iter().flatten().count()
        );
        assert_eq!(self.by_id.len(), self.tenants.iter().flatten().count());
    }
}

/// The earliest virtual start of a flow that was idle.
fn earliest(link: &Link, index: u32, weight: u32) -> u128 {
    let credit = virtual_time(credit_bytes(link, index, weight), weight.into());
    link.clock.saturating_sub(credit)
}

/// Credit of a tenant that comes back.
fn credit_bytes(link: &Link, index: u32, weight: u32) -> u64 {
    let weight = u64::from(weight);
    let weights = match link.ready.contains(index) {
        true => link.ready_weight,
        false => link.ready_weight + weight,
    };
    let share = link.share_bytes(CREDIT_NS, weight, weights);
    share.max(CREDIT_BYTES)
}

/// Virtual time of `bytes` at this weight.
fn virtual_time(bytes: u64, weight: u64) -> u128 {
    u128::from(bytes) * BYTE / u128::from(weight)
}

/// Bytes for this virtual time, at this weight.
fn bytes_in(time: u128, weight: u32) -> u64 {
    u64::try_from(time * u128::from(weight) / BYTE).unwrap_or(u64::MAX)
}

fn flow_id(index: u32, link: usize) -> u32 {
    index * LINKS_MAX as u32 + link as u32
}

/// Whether the tenant's first prefetch would come too late, if its demands go before it.
fn is_late(tenant: &Tenant, link: &Link, at: usize, now_ns: u64) -> bool {
    let Some(threshold) = tenant.stats.timeliness_ns else {
        return false;
    };
    let slot = tenant.slot(tenant.flows[at].list(Class::Prefetch).head);
    let ahead = link.ahead_ns(tenant.flows[at].list(Class::Demand).bytes, tenant.weight);
    let waited = now_ns.saturating_sub(slot.posted_ns);
    let takes = link.arrival_ns(slot.bytes);
    let queued = waited.saturating_add(ahead);
    // If it waits here for less time than it takes afterwards, its lateness is not due to queueing: dropping it would
    // make room where there is enough.
    queued > takes && queued.saturating_add(takes) > threshold
}
