//! The I/O scheduler's front end: decides which queued request of which tenant is started next ([`canvas_sched`],
//! Canvas §5.3).
//!
//! Each tenant has three queues ([`Class`]: demand, prefetch, swap-out), which begin in its mailboxes and end here. The
//! tenants share links: the network inbound, the network outbound (full duplex, so the two do not wait for each other),
//! and each far directory of this host. The bytes under way on a link are bounded by what it moves in a round trip; the
//! rest waits here, where the choice is fair.
//!
//! Several threads may serve, each some of the tenants. They share one scheduler, behind a lock that is held for one
//! step of it. A decision for a tenant of another thread goes into that thread's inbox, and that thread is notified.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canvas_place::paths::PATHS_MAX;
use canvas_sched::{
    Class, Decision, Escalation, LinkConfig, LinkId, LinkStats, Scheduler, TenantConfig, TenantId,
    Ticket,
};
use nix::time::{ClockId, clock_gettime};

use crate::direct::{Direct, TenantUse, divide};
use crate::notifier::Notifier;

/// The link that a request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoLink {
    /// From donors.
    In,
    /// To donors.
    Out,
    /// A far directory of this host, by its index.
    Disk(u8),
}

/// Links: inbound, outbound, and each directory.
const LINKS: usize = 2 + PATHS_MAX;

const _: () = assert!(LINKS <= canvas_sched::LINKS_MAX);

/// Most serving threads: a bit each in a word.
pub const THREADS_MAX: usize = 64;

impl IoLink {
    fn index(self) -> usize {
        match self {
            IoLink::In => 0,
            IoLink::Out => 1,
            IoLink::Disk(path) => 2 + usize::from(path) % PATHS_MAX,
        }
    }
}

/// Decisions that other threads have made for a serving thread.
#[derive(Debug, Default)]
struct Inbox {
    decided: VecDeque<Decision>,
    notifier: Arc<Notifier>,
}

/// State that all serving threads share.
#[derive(Debug)]
struct Core {
    sched: Scheduler,
    links: [LinkId; LINKS],
    /// The latest time that any thread has seen: the scheduler's time never goes back.
    now_ns: u64,
    /// The thread that serves each tenant; `None` while the tenant moves between threads.
    homes: BTreeMap<u64, Option<usize>>,
    inboxes: Vec<Inbox>,
    /// Decisions for tenants that no thread serves at the moment.
    between: Vec<Decision>,
    /// How each tenant uses the links, as its thread last reported.
    uses: BTreeMap<u64, TenantUse>,
}

/// The state shared by the dispatchers of all threads.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    /// Number of tenants.
    tenants: AtomicUsize,
    /// Counts changes of the number of tenants that use the links.
    uses_version: AtomicU64,
}

/// The dispatcher, as one serving thread has it.
#[derive(Debug)]
pub struct Dispatch {
    shared: Arc<Shared>,
    /// Index of this thread.
    thread: usize,
    notifier: Arc<Notifier>,
    now_ns: u64,
}

impl Default for Dispatch {
    fn default() -> Dispatch {
        Dispatch::new()
    }
}

/// Monotonic time in ns, on the clock of the programs' requests; without a system call where the kernel has a vDSO.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is always a monotonic clock");
    Duration::from(time).as_nanos() as u64
}

impl Core {
    /// The scheduler's time: `now_ns`, or a later time that another thread has seen.
    fn at(&mut self, now_ns: u64) -> u64 {
        self.now_ns = self.now_ns.max(now_ns);
        self.now_ns
    }

    /// Removes the pending decisions for a tenant from the inboxes.
    fn take_decided(&mut self, id: u64) -> Vec<Decision> {
        let mut taken = Vec::new();
        for inbox in &mut self.inboxes {
            let all = std::mem::take(&mut inbox.decided);
            let (its, rest): (VecDeque<_>, _) =
                all.into_iter().partition(|d| d.request().tenant.0 == id);
            inbox.decided = rest;
            taken.extend(its);
        }
        taken.extend(self.between.extract_if(.., |d| d.request().tenant.0 == id));
        taken
    }

    /// The next decision for `thread`. Those for other threads go into their inboxes; `ring` gets a bit for each such
    /// thread.
    fn decide(&mut self, thread: usize, now_ns: u64, ring: &mut u64) -> Option<Decision> {
        if let Some(decision) = self.inboxes[thread].decided.pop_front() {
            return Some(decision);
        }
        let now_ns = self.at(now_ns);
        loop {
            let decision = self.sched.next(now_ns)?;
            match self.homes.get(&decision.request().tenant.0) {
                Some(Some(home)) if *home != thread => {
                    self.inboxes[*home].decided.push_back(decision);
                    *ring |= 1 << home;
                }
                Some(None) => self.between.push(decision),
                _ => return Some(decision),
            }
        }
    }
}

impl Dispatch {
    /// A dispatcher without tenants, for the first thread.
    pub fn new() -> Dispatch {
        Dispatch::with(LinkConfig::default())
    }

    /// As [`Dispatch::new`], with other bounds on bytes under way.
    pub fn with(config: LinkConfig) -> Dispatch {
        let mut sched = Scheduler::new();
        let links = std::array::from_fn(|_| {
            let link = sched.add_link(config);
            link.expect("fewer links than a scheduler may have")
        });
        let now_ns = now_ns();
        let core = Core {
            sched,
            links,
            now_ns,
            homes: BTreeMap::new(),
            inboxes: Vec::new(),
            between: Vec::new(),
            uses: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            tenants: AtomicUsize::new(0),
            uses_version: AtomicU64::new(0),
        });
        Dispatch::for_thread(&shared)
    }

    /// The dispatcher of one more thread; at most [`THREADS_MAX`] threads.
    pub fn for_thread(shared: &Arc<Shared>) -> Dispatch {
        let notifier = Arc::new(Notifier::default());
        let inboxes = &mut lock(shared).inboxes;
        let thread = inboxes.len();
        assert!(thread < THREADS_MAX, "more threads than can serve");
        inboxes.push(Inbox {
            decided: VecDeque::new(),
            notifier: notifier.clone(),
        });
        Dispatch {
            shared: shared.clone(),
            thread,
            notifier,
            now_ns: now_ns(),
        }
    }

    /// The state shared with other threads.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sets whether prefetches that would arrive too late are dropped (the default) or done.
    pub fn with_timeliness(self, on: bool) -> Dispatch {
        self.core().sched.set_timeliness(on);
        self
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.shared)
    }

    /// Wakes this thread.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Adds a tenant of this thread; does nothing when there are too many tenants or one with this number: its requests
    /// then start without scheduling.
    pub fn add(&mut self, id: u64, config: TenantConfig) {
        let mut core = self.core();
        // Weights are validated where they are set.
        let _ = core.sched.add_tenant(TenantId(id), config);
        core.homes.insert(id, Some(self.thread));
        self.shared.tenants.store(core.homes.len(), SeqCst);
    }

    /// Changes a tenant's share.
    pub fn set(&mut self, id: u64, config: TenantConfig) {
        let mut core = self.core();
        let now_ns = core.at(self.now_ns);
        let _ = core.sched.set_tenant(TenantId(id), config, now_ns);
    }

    /// Removes a tenant and its requests, waiting or under way.
    pub fn remove(&mut self, id: u64) {
        let mut core = self.core();
        core.sched.remove_tenant(TenantId(id));
        core.take_decided(id);
        core.homes.remove(&id);
        core.uses.remove(&id);
        self.shared.tenants.store(core.homes.len(), SeqCst);
    }

    /// This thread stops serving a tenant, and another one is about to.
    pub fn detach(&mut self, id: u64) {
        let mut core = self.core();
        let decided = core.take_decided(id);
        core.between.extend(decided);
        core.homes.insert(id, None);
    }

    /// This thread starts serving a tenant that was another thread's.
    pub fn attach(&mut self, id: u64) {
        let mut core = self.core();
        let decided = core.take_decided(id);
        core.inboxes[self.thread].decided.extend(decided);
        core.homes.insert(id, Some(self.thread));
    }

    /// Whether there is at most one tenant in all threads.
    pub fn has_one_tenant(&self) -> bool {
        self.shared.tenants.load(SeqCst) <= 1
    }

    /// Reads the clock. Everything until the next call happens at this time.
    pub fn tick(&mut self) -> u64 {
        self.now_ns = now_ns();
        self.now_ns
    }

    /// The time of the last [`Dispatch::tick`], on the clock of the programs' requests.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Submits a request; [`Dispatch::decide`] returns it when it may start. `None`: it may start now, and is not
    /// counted.
    pub fn submit(
        &mut self,
        id: u64,
        class: Class,
        link: IoLink,
        bytes: u32,
        tag: u32,
        posted_ns: u64,
    ) -> Option<Ticket> {
        let posted_ns = posted_ns.min(self.now_ns);
        let mut core = self.core();
        let link = core.links[link.index()];
        core.sched
            .submit(TenantId(id), class, link, bytes, tag.into(), posted_ns)
            .ok()
    }

    /// Whether a prefetch would wait too long behind `ahead_bytes` that the tenant has requested before.
    pub fn is_too_far_ahead(&self, id: u64, link: IoLink, bytes: u32, ahead_bytes: u64) -> bool {
        let core = self.core();
        let link = core.links[link.index()];
        core.sched
            .is_too_far_ahead(TenantId(id), link, bytes, ahead_bytes)
    }

    /// Moves a waiting request, the rest of one that is partly done, before the tenant's others of its class.
    pub fn put_first(&mut self, ticket: Ticket) {
        self.core().sched.put_first(ticket);
    }

    /// How much of a request to transfer at a time, so that nobody waits long for it.
    pub fn piece_bytes(&self, link: IoLink) -> u32 {
        if let IoLink::Disk(_) = link {
            // A disk does each operation whole.
            return u32::MAX;
        }
        self.link_stats(link).map_or(u32::MAX, |s| s.piece_bytes)
    }

    /// The next decision for this thread.
    pub fn decide(&mut self) -> Option<Decision> {
        let mut ring = 0;
        let mut core = self.core();
        let decision = core.decide(self.thread, self.now_ns, &mut ring);
        if ring != 0 {
            let of = |thread: usize| core.inboxes[thread].notifier.clone();
            let notifiers: Vec<_> = (0..THREADS_MAX)
                .filter(|thread| ring & 1 << thread != 0)
                .map(of)
                .collect();
            // Notify after unlocking: a wake-up takes longer than all work under the lock.
            drop(core);
            notifiers.iter().for_each(|notifier| notifier.notify());
        }
        decision
    }

    /// A started request has ended.
    pub fn done(&mut self, ticket: Ticket) {
        let mut core = self.core();
        let now_ns = core.at(self.now_ns);
        core.sched.done(ticket, now_ns);
    }

    /// A started request is silent: it stops counting on its link.
    pub fn give_up(&mut self, ticket: Ticket) {
        self.core().sched.give_up(ticket);
    }

    /// A thread waits for this prefetch. True when it has moved to the demand queue.
    pub fn escalate(&mut self, ticket: Ticket) -> bool {
        let mut core = self.core();
        let now_ns = core.at(self.now_ns);
        core.sched.escalate(ticket, now_ns) == Escalation::Moved
    }

    /// Records that `count` of a tenant's pages were prefetched `ns` before their use.
    pub fn used_after(&mut self, id: u64, ns: u64, count: u32) {
        self.core().sched.used_after(TenantId(id), ns, count);
    }

    /// Charges a tenant for bytes that it has moved over a link without a request here. While others wait, returns how
    /// many bytes the tenant is ahead of its share.
    pub fn charge(&mut self, id: u64, link: IoLink, bytes: u64) -> Option<u64> {
        let mut core = self.core();
        let link = core.links[link.index()];
        core.sched.charge(TenantId(id), link, bytes)
    }

    /// Bytes started for a tenant on a link so far.
    pub fn sent_bytes(&self, id: u64, link: IoLink) -> u64 {
        let core = self.core();
        core.sched
            .sent_bytes(TenantId(id), core.links[link.index()])
    }

    /// Counts changes of the number of tenants that use the links.
    pub(crate) fn uses_version(&self) -> u64 {
        self.shared.uses_version.load(SeqCst)
    }

    /// Records how this thread's tenants use the links, and returns how much the processes of each may read directly,
    /// considering the tenants of all threads.
    pub(crate) fn divide(&mut self, mine: &[(u64, TenantUse)]) -> Vec<Direct> {
        let mut core = self.core();
        let using = |core: &Core| core.uses.values().filter(|one| one.uses).count();
        let before = using(&core);
        core.uses.extend(mine.iter().copied());
        let is_new = using(&core) != before;
        let link = core.sched.link_stats(core.links[IoLink::In.index()]);
        let all: Vec<TenantUse> = core.uses.values().copied().collect();
        let parts = divide(link.map_or(0, |l| l.rate_bytes_s), &all);
        let parts: BTreeMap<u64, Direct> = core.uses.keys().copied().zip(parts).collect();
        let of = |(id, _): &(u64, TenantUse)| parts.get(id).copied().unwrap_or_default();
        let mine = mine.iter().map(of).collect();
        if is_new {
            self.shared.uses_version.fetch_add(1, SeqCst);
            let others = core.inboxes.iter().enumerate();
            let others = others.filter(|(thread, _)| *thread != self.thread);
            let notifiers: Vec<_> = others.map(|(_, inbox)| inbox.notifier.clone()).collect();
            drop(core);
            notifiers.iter().for_each(|notifier| notifier.notify());
        }
        mine
    }

    /// Time until a rate limit allows a request; zero when a decision is pending.
    pub fn due_in(&self) -> Option<Duration> {
        let core = self.core();
        if !core.inboxes[self.thread].decided.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = core.sched.next_due()?;
        Some(Duration::from_nanos(due.saturating_sub(self.now_ns)))
    }

    /// A link's statistics.
    pub fn link_stats(&self, link: IoLink) -> Option<LinkStats> {
        let core = self.core();
        core.sched.link_stats(core.links[link.index()])
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Core> {
    shared.core.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const THREADS: usize = 3;
    const BYTES: u32 = 4096;

    /// An operation on three threads with one dispatcher.
    #[derive(Clone, Debug)]
    enum Op {
        Add(u64, usize),
        Remove(u64),
        Detach(u64),
        /// By this thread.
        Attach(u64, usize),
        Submit(u64),
        /// This thread starts all that it may.
        Decide(usize),
        /// This many requests under way end.
        Done(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let (id, thread) = (0..4u64, 0..THREADS);
        let op = prop_oneof![
            2 => (id.clone(), thread.clone()).prop_map(|(id, at)| Op::Add(id, at)),
            1 => id.clone().prop_map(Op::Remove),
            2 => id.clone().prop_map(Op::Detach),
            3 => (id.clone(), thread.clone()).prop_map(|(id, at)| Op::Attach(id, at)),
            12 => id.prop_map(Op::Submit),
            6 => thread.prop_map(Op::Decide),
            4 => (1..9usize).prop_map(Op::Done),
        ];
        prop::collection::vec(op, 1..200)
    }

    /// The naive model: the owner of each request, and the thread of each tenant.
    #[derive(Default)]
    struct Model {
        /// `None`: between two threads.
        homes: BTreeMap<u64, Option<usize>>,
        /// Submitted and not started, by tag: the tenant.
        waiting: BTreeMap<u64, u64>,
        /// Started and not ended.
        under_way: Vec<(u64, Ticket)>,
        tickets: BTreeMap<u64, Ticket>,
        next_tag: u32,
    }

    fn dispatchers() -> Vec<Dispatch> {
        // Two requests fit on the link.
        let first = Dispatch::with(LinkConfig {
            window_bytes_min: 2 * u64::from(BYTES),
            window_bytes_max: 2 * u64::from(BYTES),
            ..LinkConfig::default()
        });
        let shared = first.shared().clone();
        let more = (1..THREADS).map(|_| Dispatch::for_thread(&shared));
        std::iter::once(first).chain(more).collect()
    }

    fn apply(op: &Op, all: &mut [Dispatch], m: &mut Model) -> Result<(), TestCaseError> {
        match *op {
            Op::Add(id, at) if !m.homes.contains_key(&id) => {
                all[at].add(id, TenantConfig::default());
                m.homes.insert(id, Some(at));
            }
            Op::Remove(id) => {
                if let Some(Some(at)) = m.homes.get(&id).copied() {
                    all[at].remove(id);
                    m.homes.remove(&id);
                    m.waiting.retain(|_, whose| *whose != id);
                    m.under_way.retain(|(whose, _)| *whose != id);
                }
            }
            Op::Detach(id) => {
                if let Some(Some(at)) = m.homes.get(&id).copied() {
                    all[at].detach(id);
                    m.homes.insert(id, None);
                }
            }
            Op::Attach(id, at) if m.homes.get(&id) == Some(&None) => {
                all[at].attach(id);
                m.homes.insert(id, Some(at));
            }
            Op::Submit(id) => {
                if let Some(Some(at)) = m.homes.get(&id).copied() {
                    m.next_tag += 1;
                    let now_ns = all[at].tick();
                    let taken =
                        all[at].submit(id, Class::Demand, IoLink::In, BYTES, m.next_tag, now_ns);
                    m.tickets.insert(m.next_tag.into(), taken.unwrap());
                    m.waiting.insert(m.next_tag.into(), id);
                }
            }
            Op::Decide(at) => {
                all[at].tick();
                while let Some(decision) = all[at].decide() {
                    let Decision::Send(request) = decision else {
                        return Err(TestCaseError::fail("a demand is never dropped"));
                    };
                    let id = request.tenant.0;
                    prop_assert_eq!(m.homes.get(&id), Some(&Some(at)), "not this thread's");
                    prop_assert_eq!(m.waiting.remove(&request.tag), Some(id), "begun twice");
                    m.under_way.push((id, m.tickets[&request.tag]));
                }
            }
            Op::Done(n) => {
                for (id, ticket) in m.under_way.drain(..n.min(m.under_way.len())) {
                    if let Some(Some(at)) = m.homes.get(&id) {
                        all[*at].done(ticket);
                    } else {
                        // The tenant's answer has come while it is between threads; its next thread processes it.
                        all[0].done(ticket);
                    }
                }
            }
            Op::Add(..) | Op::Attach(..) => {}
        }
        Ok(())
    }

    proptest! {
        /// Each request is started once, by the thread that serves its tenant then; none is lost when tenants move
        /// between threads; and a thread with something in its inbox was notified.
        #[test]
        fn requests_are_begun_once_by_who_serves_the_tenant(ops in ops()) {
            let mut all = dispatchers();
            let mut m = Model::default();
            for op in &ops {
                let seen: Vec<u32> = all.iter().map(|d| d.notifier().count()).collect();
                let had: Vec<usize> = all[0].core().inboxes.iter().map(|i| i.decided.len()).collect();
                apply(op, &mut all, &mut m)?;
                if let Op::Decide(by) = op {
                    let has: Vec<usize> = all[0].core().inboxes.iter().map(|i| i.decided.len()).collect();
                    for at in (0..THREADS).filter(|at| at != by && has[*at] > had[*at]) {
                        prop_assert_ne!(all[at].notifier().count(), seen[at], "thread {} was not rung for", at);
                    }
                }
            }
            // Every tenant gets a thread, and everything ends.
            let between: BTreeSet<u64> = m.homes.iter().filter(|(_, at)| at.is_none()).map(|(id, _)| *id).collect();
            for id in between {
                apply(&Op::Attach(id, 1), &mut all, &mut m)?;
            }
            for _ in 0..ops.len() {
                for at in 0..THREADS {
                    apply(&Op::Decide(at), &mut all, &mut m)?;
                }
                apply(&Op::Done(usize::MAX), &mut all, &mut m)?;
            }
            prop_assert!(m.waiting.is_empty(), "forgotten: {:?}", m.waiting);
            prop_assert_eq!(all[0].link_stats(IoLink::In).unwrap().under_way_bytes, 0);
        }
    }

    #[test]
    fn who_is_alone_on_its_thread_is_not_alone_on_the_links() {
        let mut all = dispatchers();
        let one = |uses| TenantUse {
            weight: 100,
            uses,
            ..TenantUse::default()
        };
        all[0].add(1, TenantConfig::default());
        assert!(all[0].has_one_tenant());
        assert_eq!(all[0].divide(&[(1, one(true))]), [Direct::All]);
        all[1].add(2, TenantConfig::default());
        assert!(!all[0].has_one_tenant() && !all[1].has_one_tenant());
        let (seen, version) = (all[0].notifier().count(), all[0].uses_version());
        assert!(matches!(
            all[1].divide(&[(2, one(true))])[..],
            [Direct::Rate(_)]
        ));
        // The other thread is notified, and divides again.
        assert!(all[0].notifier().count() != seen && all[0].uses_version() != version);
        assert!(matches!(
            all[0].divide(&[(1, one(true))])[..],
            [Direct::Rate(_)]
        ));
        all[1].remove(2);
        assert_eq!(all[0].divide(&[(1, one(true))]), [Direct::All]);
    }
}
