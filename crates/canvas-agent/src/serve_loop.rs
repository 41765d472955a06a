//! Serves many tenants from one thread, in turn. There may be several such threads on one dispatcher, each with its own
//! tenants.
//!
//! A round is bounded, so no tenant delays another for long: each may use the thread's time by its weight and by the
//! recent cost of its requests ([`crate::round_robin`]), and at most its operations under way can end. The thread's
//! time is charged to the tenant that it works for. The shared dispatcher ([`crate::dispatch`]) decides which of the
//! requests taken are started, and in which order. Each tenant can be *asleep* by itself, when it has been quiet for a
//! while: its programs must then notify, and checking it costs one load. When all tenants are asleep the thread sleeps
//! on all their futexes together, and on [`crate::notifier`], by which the listener and the other threads reach it. A
//! tenant that repeatedly notifies without work is polled only once in [`SPURIOUS_PAUSE`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_sched::Decision;
use canvas_shm::Far;
use canvas_sys::proc::{WAIT_ANY_MAX, WaitOn, futex_wait_any, thread_ns};

use crate::direct::{Direct, Reads, TenantUse};
use crate::dispatch::{Dispatch, IoLink};
use crate::idle::{AWAIT, EXPECT, SLEEP_MAX, is_contended, relax, spin_time};
use crate::round_robin::{NotifyThrottle, RoundRobin, SPURIOUS_PAUSE};
use crate::share::{LiveShare, Share};

/// Sleep time when there are more tenants than the kernel lets one thread wait for.
const CONTENDED: Duration = Duration::from_millis(2);

/// A tenant uses the links if it has worked, or read directly, within this time.
const ACTIVE: Duration = Duration::from_secs(2);
/// How often the rates of direct read channels are updated.
const RATES: Duration = Duration::from_millis(20);
/// Pause between two rounds while nothing may be started.
const HOLD_PAUSE: Duration = Duration::from_millis(1);
/// A tenant reads only through the agent from when it is this many bytes ahead of others that wait, until it is down to
/// the second number.
const AHEAD_BYTES: (u64, u64) = (256 << 10, 64 << 10);

/// Result of gathering a tenant's requests.
#[derive(Clone, Copy, Default, Debug)]
pub struct Gathered {
    /// There was work.
    pub work: bool,
    /// Work is left.
    pub more: bool,
    /// Requests were left only because `most` was reached.
    pub held_back: bool,
    /// Requests taken.
    pub taken: usize,
}

/// A tenant's agent, with any store.
pub trait TenantAgent: Send {
    /// See [`crate::Agent::gather`].
    fn gather(&mut self, dispatch: &mut Dispatch, id: u64, most: usize) -> Gathered;
    /// See [`crate::Agent::start`].
    fn start(&mut self, decision: Decision, now_ns: u64);
    /// See [`crate::store::Store::flush`].
    fn flush(&mut self);
    /// See [`crate::Agent::reap`].
    fn reap(&mut self, dispatch: &mut Dispatch, id: u64) -> bool;
    /// See [`crate::store::Store::expects`].
    fn expects(&self) -> bool;
    /// See [`crate::store::Store::await_answer`].
    fn await_answer(&self, time: Duration) -> bool;
    /// See [`crate::store::Store::is_ready`].
    fn is_ready(&self) -> bool;
    /// See [`crate::store::Store::due_in`].
    fn due_in(&self) -> Option<Duration>;
    /// See [`crate::store::Store::set_direct`].
    fn set_direct(&mut self, direct: Direct);
    /// See [`crate::store::Store::take_direct_bytes`].
    fn take_direct_bytes(&mut self) -> u64;
    /// Whether it has operations under way.
    fn is_busy(&self) -> bool;
    /// See [`crate::store::Store::is_quiet`].
    fn is_quiet(&self) -> bool;
    /// See [`crate::Agent::free_all`].
    fn free_all(&mut self);
    /// The tenant's far area.
    fn far(&self) -> &'static Far;
    /// The tenant's share.
    fn share(&self) -> &LiveShare;
}

/// One tenant.
pub struct TenantSlot {
    id: u64,
    agent: Box<dyn TenantAgent>,
    last_work: Instant,
    /// Since its last work, waiting for an answer timed out.
    timed_out: bool,
    /// Its programs must notify, since then.
    asleep: Option<Instant>,
    /// While it is asleep: when its store has work for which nobody notifies.
    due: Option<Instant>,
    /// It has worked in this round.
    worked: bool,
    /// An operation of it was started in this round.
    began: bool,
    /// It had work left after its last turn.
    more: bool,
    /// It could not take all its requests in its last turn.
    held_back: bool,
    round_robin: RoundRobin,
    throttle: NotifyThrottle,
    /// It is polled because it notified, or appeared ready when it was to sleep.
    notified: bool,
    /// When it last notified without work.
    last_spurious: Instant,
    /// It notified without work too often: it is not polled before this time.
    throttled_until: Option<Instant>,
    /// Time that this thread worked for it in this round.
    time: Duration,
    /// Total time that any thread worked for it, in ns.
    served_ns: Arc<AtomicU64>,
    /// Its weight, and the version of the share it comes from.
    weight: (u32, u32),
    /// When it last used the links.
    used: Option<Instant>,
    /// It has read more than its share directly.
    is_ahead: bool,
    read: Read,
}

/// What a tenant has read from donors.
#[derive(Clone, Copy, Default)]
struct Read {
    /// Rates at the last update.
    rates: Reads,
    /// Time of the last update.
    at: Option<Instant>,
    /// Bytes that the dispatcher had started then.
    sent_bytes: u64,
    /// Bytes its processes have read directly since then.
    direct_bytes: u64,
}

impl Read {
    /// Adds what was read, and updates the rates if the last update is long enough ago.
    fn add(&mut self, direct_bytes: u64, sent_bytes: u64, now: Instant) {
        self.direct_bytes += direct_bytes;
        let time = self.at.map(|at| now.saturating_duration_since(at));
        if time.is_some_and(|time| time < RATES) {
            return;
        }
        if let Some(time) = time {
            let agent_bytes = sent_bytes.saturating_sub(self.sent_bytes);
            self.rates = self.rates.with(agent_bytes, self.direct_bytes, time);
        }
        (self.at, self.sent_bytes, self.direct_bytes) = (Some(now), sent_bytes, 0);
    }
}

impl TenantSlot {
    /// Its weight. One load while nobody changes it.
    fn weight(&mut self) -> u32 {
        let share = self.agent.share();
        // The version first, in case the share changes between the two.
        let version = share.version();
        if self.weight.1 != version {
            self.weight = (share.get().weight, version);
        }
        self.weight.0
    }

    /// Whether it may have work now: after a notification, when its store has something due, or after a while.
    fn is_up(&mut self, now: Instant) -> bool {
        if let Some(until) = self.throttled_until {
            if now < until {
                return false;
            }
            self.throttled_until = None;
            self.notified = true;
            self.wake();
            return true;
        }
        let Some(since) = self.asleep else {
            return true;
        };
        self.notified = self.agent.far().asleep.load(Acquire) == 0;
        let is_due = self.due.is_some_and(|due| due <= now);
        if !self.notified && !is_due && now.duration_since(since) < SLEEP_MAX {
            return false;
        }
        self.wake();
        true
    }

    fn wake(&mut self) {
        self.due = None;
        if self.asleep.take().is_some() {
            self.agent.far().asleep.store(0, SeqCst);
        }
    }

    /// After a turn without work: puts it to sleep if it has been quiet for long enough. If it is `alone`, first blocks
    /// for its answer: no other tenant is delayed.
    fn sleep_if_quiet(&mut self, now: Instant, (spin, expect): (Duration, Duration), alone: bool) {
        if std::mem::take(&mut self.notified) && !self.agent.is_busy() {
            let since = now.saturating_duration_since(self.last_spurious);
            self.last_spurious = now;
            if self.throttle.found_nothing(since) {
                self.throttled_until = Some(now + SPURIOUS_PAUSE);
                (self.asleep, self.due) = (Some(now), None);
                return;
            }
        }
        let expects = self.agent.expects();
        let spin = if expects { expect } else { spin };
        let far = self.agent.far();
        if now.saturating_duration_since(self.last_work) < spin && !is_contended() {
            return;
        }
        if alone && expects && !self.timed_out {
            let time = self.agent.due_in().map_or(AWAIT, |due| due.min(AWAIT));
            self.timed_out = !self.agent.await_answer(time);
            return;
        }
        if !far.about_to_sleep() {
            self.notified = true;
            return;
        }
        if self.agent.is_ready() {
            far.asleep.store(0, SeqCst);
        } else {
            self.asleep = Some(now);
            // Nothing starts while it sleeps, so this stays valid.
            self.due = self.agent.due_in().map(|due| Instant::now() + due);
        }
    }
}

/// The tenants of one thread.
pub struct ServeLoop {
    slots: Vec<TenantSlot>,
    dispatch: Dispatch,
    spin: Duration,
    /// Polling time while an answer is on its way. The number of processors is read once, because it comes from files.
    expect: Duration,
    /// Index of the tenant that is first in the next round.
    first: usize,
    /// CPU time of this thread after the last round, if it has not slept since.
    used_ns: Option<u64>,
    /// When the rates of direct read channels were last updated, how many tenants of this thread used the links then,
    /// and the version of the number of all that do.
    rates: Option<(Instant, usize, u64)>,
    /// Nothing new is started.
    holds: bool,
}

/// Measures where a round's time goes.
struct Lap(Instant);

impl Lap {
    /// Time since the last call.
    fn time(&mut self) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(std::mem::replace(&mut self.0, now))
    }
}

impl ServeLoop {
    /// Without tenants, on an empty dispatcher. Each tenant is polled for `spin` after its last work.
    pub fn new(spin: Duration, dispatch: Dispatch) -> ServeLoop {
        ServeLoop {
            slots: Vec::new(),
            dispatch,
            spin: spin_time(spin),
            expect: spin_time(EXPECT),
            first: 0,
            used_ns: None,
            rates: None,
            holds: false,
        }
    }

    /// Stops (`holds`) or resumes starting operations. Those under way continue; true when none of them is at a disk.
    pub fn hold(&mut self, holds: bool) -> bool {
        self.holds = holds;
        self.slots.iter().all(|slot| slot.agent.is_quiet())
    }

    /// Adds a tenant, by a number that was never used before. The time that it is served is added to `served_ns`.
    pub fn add(&mut self, id: u64, agent: Box<dyn TenantAgent>, served_ns: Arc<AtomicU64>) {
        // The version first: a change between the two is seen later.
        let version = agent.share().version();
        let share = agent.share().get();
        self.dispatch.add(id, share.into());
        self.slots.push(TenantSlot {
            id,
            agent,
            last_work: Instant::now(),
            timed_out: false,
            asleep: None,
            due: None,
            worked: false,
            began: false,
            more: false,
            held_back: false,
            round_robin: RoundRobin::new(),
            throttle: NotifyThrottle::default(),
            notified: false,
            last_spurious: Instant::now(),
            throttled_until: None,
            time: Duration::ZERO,
            served_ns,
            weight: (share.weight, version),
            used: None,
            is_ahead: false,
            read: Read::default(),
        });
    }

    /// Removes a tenant. Dropping its agent may wait for a disk, so do not do it on this thread.
    pub fn remove(&mut self, id: u64) -> Option<Box<dyn TenantAgent>> {
        let at = self.slots.iter().position(|s| s.id == id)?;
        self.dispatch.remove(id);
        Some(self.slots.swap_remove(at).agent)
    }

    /// Removes a tenant for another thread, which takes it with [`ServeLoop::attach`]. Its programs' requests wait
    /// meanwhile.
    pub fn detach(&mut self, id: u64) -> Option<TenantSlot> {
        let at = self.slots.iter().position(|s| s.id == id)?;
        self.dispatch.detach(id);
        let mut slot = self.slots.swap_remove(at);
        slot.wake();
        Some(slot)
    }

    /// Takes a tenant from another thread.
    pub fn attach(&mut self, slot: TenantSlot) {
        self.dispatch.attach(slot.id);
        self.slots.push(slot);
    }

    /// Changes a tenant's share.
    pub fn set_share(&mut self, id: u64, share: Share) {
        if let Some(slot) = self.slots.iter().find(|s| s.id == id) {
            slot.agent.share().set(share);
        }
    }

    /// Removes all tenants.
    pub fn remove_all(&mut self) -> Vec<Box<dyn TenantAgent>> {
        for slot in &self.slots {
            self.dispatch.remove(slot.id);
        }
        self.slots.drain(..).map(|s| s.agent).collect()
    }

    /// Serves until `on_notify` returns false; it is called before the first round and after each notification.
    pub fn serve(&mut self, mut on_notify: impl FnMut(&mut ServeLoop) -> bool) {
        let notifier = self.dispatch.notifier().clone();
        let mut seen = notifier.count();
        let mut go_on = on_notify(self);
        while go_on {
            if !self.round() {
                self.pause(seen);
            } else if self.holds {
                // The only thing to wait for is the end of operations at a disk.
                std::thread::sleep(HOLD_PAUSE);
            }
            let count = notifier.count();
            if count != seen {
                seen = count;
                go_on = on_notify(self);
            }
        }
    }

    /// One turn of each tenant that is up. True when there was work, or some is left.
    fn round(&mut self) -> bool {
        let mut lap = Lap(Instant::now());
        let now = lap.0;
        self.dispatch.tick();
        let n = self.slots.len();
        let working = self.slots.iter_mut().filter(|s| s.worked || s.more);
        let heaviest = working.map(TenantSlot::weight).max().unwrap_or(0);
        for k in 0..n {
            let slot = &mut self.slots[(self.first + k) % n];
            slot.worked = false;
            if !slot.is_up(now) {
                (slot.more, slot.held_back) = (false, false);
                continue;
            }
            let weight = slot.weight();
            slot.round_robin
                .refill(weight, heaviest.max(weight), slot.held_back);
            let most = slot.round_robin.most();
            if most == 0 || self.holds {
                (slot.more, slot.held_back) = (true, true);
                continue;
            }
            let found = slot.agent.gather(&mut self.dispatch, slot.id, most);
            slot.round_robin.took(found.taken);
            (slot.worked, slot.more) = (found.work, found.more);
            slot.held_back = found.held_back && found.taken == most;
            if found.work || found.more || slot.notified {
                slot.time += lap.time();
            }
        }
        self.first = if n == 0 { 0 } else { (self.first + 1) % n };
        self.begin(&mut lap);
        for slot in &mut self.slots {
            if (slot.asleep.is_none() || slot.throttled_until.is_some())
                && slot.agent.reap(&mut self.dispatch, slot.id)
            {
                slot.worked = true;
                slot.time += lap.time();
            }
        }
        // Operations that have ended made room on the links.
        self.begin(&mut lap);
        // While waiting for an answer, this thread would not notice decisions that another thread makes for it.
        let alone = n == 1 && self.dispatch.has_one_tenant();
        for slot in &mut self.slots {
            if slot.worked {
                (slot.last_work, slot.timed_out) = (now, false);
                slot.notified = false;
                slot.throttle.found_work();
            } else if slot.asleep.is_none() && !slot.more {
                slot.sleep_if_quiet(now, (self.spin, self.expect), alone);
            }
        }
        self.update_rates(now);
        self.charge(now);
        self.slots.iter().any(|s| s.worked || s.more)
    }

    /// Updates how much each tenant's processes may read directly: without limit when it is alone; otherwise its share
    /// of the links by weight, and nothing while it is ahead of others that wait.
    fn update_rates(&mut self, now: Instant) {
        let uses = |s: &TenantSlot| {
            s.used
                .is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
        };
        self.slots
            .iter_mut()
            .filter(|s| s.worked)
            .for_each(|s| s.used = Some(now));
        let n = self.slots.iter().filter(|s| uses(s)).count();
        let version = self.dispatch.uses_version();
        if let Some((at, before, known)) = self.rates
            && now.saturating_duration_since(at) < RATES
            && (before, known) == (n, version)
        {
            return;
        }
        for slot in &mut self.slots {
            let bytes = slot.agent.take_direct_bytes();
            if bytes > 0 {
                slot.used = Some(now);
            }
            let sent_bytes = self.dispatch.sent_bytes(slot.id, IoLink::In);
            slot.read.add(bytes, sent_bytes, now);
            let ahead = self.dispatch.charge(slot.id, IoLink::In, bytes);
            let most = if slot.is_ahead {
                AHEAD_BYTES.1
            } else {
                AHEAD_BYTES.0
            };
            slot.is_ahead = ahead.is_some_and(|bytes| bytes > most);
        }
        let mine: Vec<(u64, TenantUse)> = self
            .slots
            .iter_mut()
            .map(|slot| {
                let one = TenantUse {
                    uses: uses(slot),
                    weight: slot.weight(),
                    is_ahead: slot.is_ahead,
                    reads: slot.read.rates,
                };
                (slot.id, one)
            })
            .collect();
        let parts = self.dispatch.divide(&mine);
        self.rates = Some((now, n, version));
        for (slot, direct) in self.slots.iter_mut().zip(parts) {
            slot.agent.set_direct(direct);
        }
    }

    /// Charges a round that began at `began` to the tenants that had work.
    fn charge(&mut self, began: Instant) {
        if self.slots.iter().all(|s| s.time.is_zero()) {
            return;
        }
        let used_ns = thread_ns();
        let before_ns = self.used_ns.replace(used_ns);
        let round_ns = (began.elapsed().as_nanos() as u64).max(1);
        // The time in which this thread only waited for a processor is charged to nobody.
        let busy_ns = before_ns.map_or(round_ns, |ns| used_ns.saturating_sub(ns).min(round_ns));
        for slot in &mut self.slots {
            let time = std::mem::take(&mut slot.time);
            if time.is_zero() {
                continue;
            }
            let time = time.mul_f64(busy_ns as f64 / round_ns as f64);
            slot.round_robin.spent(time);
            let ns = time.as_nanos() as u64;
            slot.agent.far().stats.agent_ns.fetch_add(ns, Relaxed);
            slot.served_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Starts what the dispatcher allows.
    fn begin(&mut self, lap: &mut Lap) {
        if self.holds {
            return;
        }
        self.dispatch.tick();
        while let Some(decision) = self.dispatch.decide() {
            let id = decision.request().tenant.0;
            // A linear search is enough: there are as many decisions as requests, and few tenants work at a time.
            if let Some(slot) = self.slots.iter_mut().find(|s| s.id == id) {
                slot.wake();
                slot.agent.start(decision, self.dispatch.now_ns());
                slot.worked = true;
                slot.began = true;
                slot.time += lap.time();
            }
        }
        // Before anybody's answers are processed, so that reads do not wait for that.
        for slot in self.slots.iter_mut().filter(|s| s.began) {
            slot.began = false;
            slot.agent.flush();
            slot.time += lap.time();
        }
    }

    /// How long to sleep at most, given that `armed` tenants' futexes can wake the thread.
    fn sleep_max(&self, armed: usize, now: Instant) -> Duration {
        let throttled = self
            .slots
            .iter()
            .filter(|s| s.throttled_until.is_some())
            .count();
        let all = armed + throttled == self.slots.len();
        let long = if all { SLEEP_MAX } else { CONTENDED };
        let long = if throttled > 0 {
            long.min(SPURIOUS_PAUSE)
        } else {
            long
        };
        // A rate limit may allow a request earlier, or another copy may be due to be asked.
        let due = self.slots.iter().filter_map(|s| s.due).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        let dues = [self.dispatch.due_in(), due].into_iter().flatten();
        dues.fold(long, Duration::min)
    }

    /// Waits until it is time for the next round.
    fn pause(&mut self, seen: u32) {
        self.used_ns = None;
        if self.slots.iter().any(|s| s.asleep.is_none()) {
            relax();
            return;
        }
        let armed = self
            .slots
            .iter()
            .filter(|s| s.throttled_until.is_none())
            .map(|s| WaitOn::new(&s.agent.far().asleep, 1));
        let notifier = self.dispatch.notifier().clone();
        let mut words = vec![notifier.wait_on(seen)];
        words.extend(armed.take(WAIT_ANY_MAX - 1));
        let long = self.sleep_max(words.len() - 1, Instant::now());
        if futex_wait_any(&words, long.as_nanos() as u64).is_err() {
            // The kernel has no futex_waitv: poll every tenant instead of sleeping on its futex.
            std::thread::sleep(CONTENDED);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
