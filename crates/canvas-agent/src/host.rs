//! Serves many tenants from one thread, in turn. There may be several such threads on one dispatcher, each with its own
//! tenants.
//!
//! A round is bounded, so no tenant delays another for long: each may use the thread's time by its weight and by the
//! recent cost of its requests ([`crate::round_robin`]), and at most its operations under way can end. The thread's
//! time is charged to the tenant that it works for. The shared dispatcher ([`crate::dispatch`]) decides which of the
//! requests taken are started, and in which order. Each tenant can be *asleep* by itself, when it has been quiet for a
//! while: its programs must then notify, and checking it costs one load. When all tenants are asleep the thread sleeps
//! on all their futexes together, and on [`crate::bell`], by which the listener and the other threads reach it. A
//! tenant that repeatedly notifies without work is polled only once in [`VAIN_PAUSE`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_sched::Decision;
use canvas_shm::Far;
use canvas_sys::proc::{WAIT_ANY_MAX, WaitOn, futex_wait_any, thread_ns};

use crate::direct::{Direct, One, Reads};
use crate::dispatch::{Dispatch, Lane};
use crate::idle::{AWAIT, EXPECT, SLEEP_MAX, is_contended, looking, relax};
use crate::round_robin::{Rings, RoundRobin, VAIN_PAUSE};
use crate::share::{Live, Share};

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
pub struct Found {
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
pub trait Served: Send {
    /// See [`crate::Agent::gather`].
    fn gather(&mut self, dispatch: &mut Dispatch, id: u64, most: usize) -> Found;
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
    /// See [`crate::Agent::leave`].
    fn leave(&mut self);
    /// The tenant's far area.
    fn far(&self) -> &'static Far;
    /// The tenant's share.
    fn share(&self) -> &Live;
}

/// One tenant.
pub struct Seat {
    id: u64,
    agent: Box<dyn Served>,
    last_work: Instant,
    /// Since its last work, waiting for an answer timed out.
    in_vain: bool,
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
    rings: Rings,
    /// It is polled because it notified, or appeared ready when it was to sleep.
    roused: bool,
    /// When it last notified without work.
    vain: Instant,
    /// It notified without work too often: it is not polled before this time.
    barred: Option<Instant>,
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
    fn look(&mut self, direct_bytes: u64, sent_bytes: u64, now: Instant) {
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

impl Seat {
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
        if let Some(until) = self.barred {
            if now < until {
                return false;
            }
            self.barred = None;
            self.roused = true;
            self.wake();
            return true;
        }
        let Some(since) = self.asleep else {
            return true;
        };
        self.roused = self.agent.far().asleep.load(Acquire) == 0;
        let is_due = self.due.is_some_and(|due| due <= now);
        if !self.roused && !is_due && now.duration_since(since) < SLEEP_MAX {
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
    fn rest(&mut self, now: Instant, (spin, expect): (Duration, Duration), alone: bool) {
        if std::mem::take(&mut self.roused) && !self.agent.is_busy() {
            let since = now.saturating_duration_since(self.vain);
            self.vain = now;
            if self.rings.in_vain(since) {
                self.barred = Some(now + VAIN_PAUSE);
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
        if alone && expects && !self.in_vain {
            let time = self.agent.due_in().map_or(AWAIT, |due| due.min(AWAIT));
            self.in_vain = !self.agent.await_answer(time);
            return;
        }
        if !far.about_to_sleep() {
            self.roused = true;
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
pub struct Host {
    seats: Vec<Seat>,
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

impl Host {
    /// Without tenants, on an empty dispatcher. Each tenant is polled for `spin` after its last work.
    pub fn new(spin: Duration, dispatch: Dispatch) -> Host {
        Host {
            seats: Vec::new(),
            dispatch,
            spin: looking(spin),
            expect: looking(EXPECT),
            first: 0,
            used_ns: None,
            rates: None,
            holds: false,
        }
    }

    /// Stops (`holds`) or resumes starting operations. Those under way continue; true when none of them is at a disk.
    pub fn hold(&mut self, holds: bool) -> bool {
        self.holds = holds;
        self.seats.iter().all(|seat| seat.agent.is_quiet())
    }

    /// Adds a tenant, by a number that was never used before. The time that it is served is added to `served_ns`.
    pub fn add(&mut self, id: u64, agent: Box<dyn Served>, served_ns: Arc<AtomicU64>) {
        // The version first: a change between the two is seen later.
        let version = agent.share().version();
        let share = agent.share().get();
        self.dispatch.add(id, share.into());
        self.seats.push(Seat {
            id,
            agent,
            last_work: Instant::now(),
            in_vain: false,
            asleep: None,
            due: None,
            worked: false,
            began: false,
            more: false,
            held_back: false,
            round_robin: RoundRobin::new(),
            rings: Rings::default(),
            roused: false,
            vain: Instant::now(),
            barred: None,
            time: Duration::ZERO,
            served_ns,
            weight: (share.weight, version),
            used: None,
            is_ahead: false,
            read: Read::default(),
        });
    }

    /// Removes a tenant. Dropping its agent may wait for a disk, so do not do it on this thread.
    pub fn remove(&mut self, id: u64) -> Option<Box<dyn Served>> {
        let at = self.seats.iter().position(|s| s.id == id)?;
        self.dispatch.remove(id);
        Some(self.seats.swap_remove(at).agent)
    }

    /// Removes a tenant for another thread, which takes it with [`Host::settle`]. Its programs' requests wait
    /// meanwhile.
    pub fn part(&mut self, id: u64) -> Option<Seat> {
        let at = self.seats.iter().position(|s| s.id == id)?;
        self.dispatch.part(id);
        let mut seat = self.seats.swap_remove(at);
        seat.wake();
        Some(seat)
    }

    /// Takes a tenant from another thread.
    pub fn settle(&mut self, seat: Seat) {
        self.dispatch.settle(seat.id);
        self.seats.push(seat);
    }

    /// Changes a tenant's share.
    pub fn set_share(&mut self, id: u64, share: Share) {
        if let Some(seat) = self.seats.iter().find(|s| s.id == id) {
            seat.agent.share().set(share);
        }
    }

    /// Removes all tenants.
    pub fn remove_all(&mut self) -> Vec<Box<dyn Served>> {
        for seat in &self.seats {
            self.dispatch.remove(seat.id);
        }
        self.seats.drain(..).map(|s| s.agent).collect()
    }

    /// Serves until `on_bell` returns false; it is called before the first round and after each notification.
    pub fn serve(&mut self, mut on_bell: impl FnMut(&mut Host) -> bool) {
        let bell = self.dispatch.bell().clone();
        let mut heard = bell.count();
        let mut go_on = on_bell(self);
        while go_on {
            if !self.round() {
                self.pause(heard);
            } else if self.holds {
                // The only thing to wait for is the end of operations at a disk.
                std::thread::sleep(HOLD_PAUSE);
            }
            let rung = bell.count();
            if rung != heard {
                heard = rung;
                go_on = on_bell(self);
            }
        }
    }

    /// One turn of each tenant that is up. True when there was work, or some is left.
    fn round(&mut self) -> bool {
        let mut lap = Lap(Instant::now());
        let now = lap.0;
        self.dispatch.look();
        let n = self.seats.len();
        let working = self.seats.iter_mut().filter(|s| s.worked || s.more);
        let heaviest = working.map(Seat::weight).max().unwrap_or(0);
        for k in 0..n {
            let seat = &mut self.seats[(self.first + k) % n];
            seat.worked = false;
            if !seat.is_up(now) {
                (seat.more, seat.held_back) = (false, false);
                continue;
            }
            let weight = seat.weight();
            seat.round_robin
                .refill(weight, heaviest.max(weight), seat.held_back);
            let most = seat.round_robin.most();
            if most == 0 || self.holds {
                (seat.more, seat.held_back) = (true, true);
                continue;
            }
            let found = seat.agent.gather(&mut self.dispatch, seat.id, most);
            seat.round_robin.took(found.taken);
            (seat.worked, seat.more) = (found.work, found.more);
            seat.held_back = found.held_back && found.taken == most;
            if found.work || found.more || seat.roused {
                seat.time += lap.time();
            }
        }
        self.first = if n == 0 { 0 } else { (self.first + 1) % n };
        self.begin(&mut lap);
        for seat in &mut self.seats {
            if (seat.asleep.is_none() || seat.barred.is_some())
                && seat.agent.reap(&mut self.dispatch, seat.id)
            {
                seat.worked = true;
                seat.time += lap.time();
            }
        }
        // Operations that have ended made room on the links.
        self.begin(&mut lap);
        // While waiting for an answer, this thread would not notice decisions that another thread makes for it.
        let alone = n == 1 && self.dispatch.is_lonely();
        for seat in &mut self.seats {
            if seat.worked {
                (seat.last_work, seat.in_vain) = (now, false);
                seat.roused = false;
                seat.rings.answered();
            } else if seat.asleep.is_none() && !seat.more {
                seat.rest(now, (self.spin, self.expect), alone);
            }
        }
        self.look_at_rates(now);
        self.charge(now);
        self.seats.iter().any(|s| s.worked || s.more)
    }

    /// Updates how much each tenant's processes may read directly: without limit when it is alone; otherwise its share
    /// of the links by weight, and nothing while it is ahead of others that wait.
    fn look_at_rates(&mut self, now: Instant) {
        let uses = |s: &Seat| {
            s.used
                .is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
        };
        self.seats
            .iter_mut()
            .filter(|s| s.worked)
            .for_each(|s| s.used = Some(now));
        let n = self.seats.iter().filter(|s| uses(s)).count();
        let version = self.dispatch.uses_version();
        if let Some((at, before, known)) = self.rates
            && now.saturating_duration_since(at) < RATES
            && (before, known) == (n, version)
        {
            return;
        }
        for seat in &mut self.seats {
            let bytes = seat.agent.take_direct_bytes();
            if bytes > 0 {
                seat.used = Some(now);
            }
            let sent_bytes = self.dispatch.sent_bytes(seat.id, Lane::In);
            seat.read.look(bytes, sent_bytes, now);
            let ahead = self.dispatch.charge(seat.id, Lane::In, bytes);
            let most = if seat.is_ahead {
                AHEAD_BYTES.1
            } else {
                AHEAD_BYTES.0
            };
            seat.is_ahead = ahead.is_some_and(|bytes| bytes > most);
        }
        let mine: Vec<(u64, One)> = self
            .seats
            .iter_mut()
            .map(|seat| {
                let one = One {
                    uses: uses(seat),
                    weight: seat.weight(),
                    is_ahead: seat.is_ahead,
                    reads: seat.read.rates,
                };
                (seat.id, one)
            })
            .collect();
        let parts = self.dispatch.divide(&mine);
        self.rates = Some((now, n, version));
        for (seat, direct) in self.seats.iter_mut().zip(parts) {
            seat.agent.set_direct(direct);
        }
    }

    /// Charges a round that began at `began` to the tenants that had work.
    fn charge(&mut self, began: Instant) {
        if self.seats.iter().all(|s| s.time.is_zero()) {
            return;
        }
        let used_ns = thread_ns();
        let before_ns = self.used_ns.replace(used_ns);
        let round_ns = (began.elapsed().as_nanos() as u64).max(1);
        // The time in which this thread only waited for a processor is charged to nobody.
        let busy_ns = before_ns.map_or(round_ns, |ns| used_ns.saturating_sub(ns).min(round_ns));
        for seat in &mut self.seats {
            let time = std::mem::take(&mut seat.time);
            if time.is_zero() {
                continue;
            }
            let time = time.mul_f64(busy_ns as f64 / round_ns as f64);
            seat.round_robin.spent(time);
            let ns = time.as_nanos() as u64;
            seat.agent.far().stats.agent_ns.fetch_add(ns, Relaxed);
            seat.served_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Starts what the dispatcher allows.
    fn begin(&mut self, lap: &mut Lap) {
        if self.holds {
            return;
        }
        self.dispatch.look();
        while let Some(decision) = self.dispatch.decide() {
            let id = decision.request().tenant.0;
            // A linear search is enough: there are as many decisions as requests, and few tenants work at a time.
            if let Some(seat) = self.seats.iter_mut().find(|s| s.id == id) {
                seat.wake();
                seat.agent.start(decision, self.dispatch.now_ns());
                seat.worked = true;
                seat.began = true;
                seat.time += lap.time();
            }
        }
        // Before anybody's answers are processed, so that reads do not wait for that.
        for seat in self.seats.iter_mut().filter(|s| s.began) {
            seat.began = false;
            seat.agent.flush();
            seat.time += lap.time();
        }
    }

    /// How long to sleep at most, given that `bells` tenants' futexes can wake the thread.
    fn rest_in(&self, bells: usize, now: Instant) -> Duration {
        let barred = self.seats.iter().filter(|s| s.barred.is_some()).count();
        let all = bells + barred == self.seats.len();
        let long = if all { SLEEP_MAX } else { CONTENDED };
        let long = if barred > 0 {
            long.min(VAIN_PAUSE)
        } else {
            long
        };
        // A rate limit may allow a request earlier, or another copy may be due to be asked.
        let due = self.seats.iter().filter_map(|s| s.due).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        let dues = [self.dispatch.due_in(), due].into_iter().flatten();
        dues.fold(long, Duration::min)
    }

    /// Waits until it is time for the next round.
    fn pause(&mut self, heard: u32) {
        self.used_ns = None;
        if self.seats.iter().any(|s| s.asleep.is_none()) {
            relax();
            return;
        }
        let bells = self
            .seats
            .iter()
            .filter(|s| s.barred.is_none())
            .map(|s| WaitOn::new(&s.agent.far().asleep, 1));
        let bell = self.dispatch.bell().clone();
        let mut words = vec![bell.wait_on(heard)];
        words.extend(bells.take(WAIT_ANY_MAX - 1));
        let long = self.rest_in(words.len() - 1, Instant::now());
        if futex_wait_any(&words, long.as_nanos() as u64).is_err() {
            // The kernel has no futex_waitv: poll every tenant instead of sleeping on its futex.
            std::thread::sleep(CONTENDED);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
