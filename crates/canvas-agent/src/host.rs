//! Many tenants, served by one thread: a turn of each after the other.
//!
//! A round is bounded, so no tenant keeps another one waiting for long: each takes what it may use of this
//! thread's time by its weight and by what its requests cost lately ([`crate::round_robin`]), and no more is ended than
//! may be under way. The thread's time is charged to whom it is used for. What is begun of what was taken, and in which order, says the
//! dispatcher that they share ([`crate::dispatch`]). A tenant that has been quiet for a while is *asleep* by itself: its
//! programs must ring, and until they do a look at it is one load. When all are asleep the thread sleeps
//! on all their bells at one time, and on [`Bell`], by which its owner reaches it. A tenant that rings for nothing
//! again and again is looked at once in [`VAIN_PAUSE`] only.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_sched::Decision;
use canvas_shm::Far;
use canvas_sys::proc::{WAIT_ANY_MAX, WaitOn, futex_wait_any, futex_wake, thread_ns};

use crate::direct::{Direct, One, divide};
use crate::dispatch::{Dispatch, Lane};
use crate::idle::{AWAIT, EXPECT, SLEEP_MAX, is_contended, looking, relax};
use crate::round_robin::{Rings, RoundRobin, VAIN_PAUSE};
use crate::share::{Live, Share};

/// Sleep when there are more tenants than the kernel lets one thread wait for.
const CONTENDED: Duration = Duration::from_millis(2);

/// A tenant uses the links when it has worked, or read by itself, in this time.
const ACTIVE: Duration = Duration::from_secs(2);
/// Rates of lanes are looked at so often.
const RATES: Duration = Duration::from_millis(20);
/// A tenant takes its turns here when it is so many bytes ahead of others who wait, until it is as few.
const AHEAD_BYTES: (u64, u64) = (256 << 10, 64 << 10);

/// What a look at a tenant has found.
#[derive(Clone, Copy, Default, Debug)]
pub struct Found {
    /// There was something to do.
    pub work: bool,
    /// There is something left to do.
    pub more: bool,
    /// Requests were left only because no more were to be taken.
    pub held_back: bool,
    /// Requests taken.
    pub taken: usize,
}

/// A tenant's agent, whatever its store.
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
    /// Is something of it under way?
    fn is_busy(&self) -> bool;
    /// See [`crate::Agent::leave`].
    fn leave(&mut self);
    /// The tenant's far area.
    fn far(&self) -> &'static Far;
    /// What the tenant gets where it is not alone.
    fn share(&self) -> &Live;
}

/// Wakes the thread that serves.
#[derive(Debug, Default)]
pub struct Bell {
    /// Counts rings.
    rung: AtomicU32,
}

impl Bell {
    /// Call it after what is to be seen is there to see.
    pub fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        futex_wake(&self.rung, 1);
    }
}

/// One tenant.
struct Seat {
    id: u64,
    agent: Box<dyn Served>,
    last_work: Instant,
    /// Since then an answer was waited for in vain.
    in_vain: bool,
    /// Its programs must ring, since then.
    asleep: Option<Instant>,
    /// While it is asleep: when its store has something to do that nobody rings for.
    due: Option<Instant>,
    /// It has worked in this round.
    worked: bool,
    /// Something of it was begun in this round.
    began: bool,
    /// It had something left to do in its last turn.
    more: bool,
    /// It could not take all that it had, in its last turn.
    held_back: bool,
    round_robin: RoundRobin,
    rings: Rings,
    /// Why it is looked at is that it was rung for, or said so when it was to rest.
    roused: bool,
    /// When it was last rung for nothing.
    vain: Instant,
    /// It rang for nothing again and again: it is left alone until then.
    barred: Option<Instant>,
    /// Time that this thread was at work for it in this round.
    time: Duration,
    /// Its weight, and the version of its share that says so.
    weight: (u32, u32),
    /// When it last used the links.
    used: Option<Instant>,
    /// It has read by itself more than its turn.
    is_ahead: bool,
}

impl Seat {
    /// Its weight. One load while nobody changes it.
    fn weight(&mut self) -> u32 {
        let share = self.agent.share();
        // Before the share, for a change between the two.
        let version = share.version();
        if self.weight.1 != version {
            self.weight = (share.get().weight, version);
        }
        self.weight.0
    }

    /// True when it may have work now: after a ring, when something of its store is due, or after a while.
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

    /// After a turn without work: asleep, if it has been quiet for long enough. Of one that is `alone` an answer is
    /// waited for first: nobody else has to wait for that.
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
            // Nothing begins while it sleeps, so this stays true.
            self.due = self.agent.due_in().map(|due| Instant::now() + due);
        }
    }
}

/// The tenants of one thread.
pub struct Host {
    seats: Vec<Seat>,
    dispatch: Dispatch,
    spin: Duration,
    /// The same while an answer is on its way. What the host has of processors is asked once: it is read from files.
    expect: Duration,
    /// Who is first in the next round.
    first: usize,
    /// What this thread had used of a processor after the last round, if it has not rested since.
    used_ns: Option<u64>,
    /// When rates of lanes were last looked at, and how many tenants used the links then.
    rates: Option<(Instant, usize)>,
}

/// Tells what a round's time went to.
struct Lap(Instant);

impl Lap {
    /// Time since the last call.
    fn time(&mut self) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(std::mem::replace(&mut self.0, now))
    }
}

impl Host {
    /// Nobody yet, on `dispatch` without tenants. Each is looked at for `spin` after its last work.
    pub fn new(spin: Duration, dispatch: Dispatch) -> Host {
        Host {
            seats: Vec::new(),
            dispatch,
            spin: looking(spin),
            expect: looking(EXPECT),
            first: 0,
            used_ns: None,
            rates: None,
        }
    }

    /// One more tenant, by a number that was never used before.
    pub fn add(&mut self, id: u64, agent: Box<dyn Served>) {
        // The version first: a change between the two is seen again.
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
            weight: (share.weight, version),
            used: None,
            is_ahead: false,
        });
    }

    /// Serves a tenant no more. Dropping its agent may wait for a disk: better not on this thread.
    pub fn remove(&mut self, id: u64) -> Option<Box<dyn Served>> {
        let at = self.seats.iter().position(|s| s.id == id)?;
        self.dispatch.remove(id);
        Some(self.seats.swap_remove(at).agent)
    }

    /// Changes what a tenant gets where it is not alone.
    pub fn set_share(&mut self, id: u64, share: Share) {
        if let Some(seat) = self.seats.iter().find(|s| s.id == id) {
            seat.agent.share().set(share);
        }
    }

    /// Serves nobody any more.
    pub fn remove_all(&mut self) -> Vec<(u64, Box<dyn Served>)> {
        for seat in &self.seats {
            self.dispatch.remove(seat.id);
        }
        self.seats.drain(..).map(|s| (s.id, s.agent)).collect()
    }

    /// Serves until `on_bell`, which is called before the first round and after each ring, says false.
    pub fn serve(&mut self, bell: &Bell, mut on_bell: impl FnMut(&mut Host) -> bool) {
        let mut heard = bell.rung.load(SeqCst);
        let mut go_on = on_bell(self);
        while go_on {
            if !self.round() {
                self.pause(bell, heard);
            }
            let rung = bell.rung.load(SeqCst);
            if rung != heard {
                heard = rung;
                go_on = on_bell(self);
            }
        }
    }

    /// A look at each tenant that is up. True when there was something to do, or is.
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
            if most == 0 {
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
        // What has ended made room on the links.
        self.begin(&mut lap);
        let alone = n == 1;
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

    /// What each tenant's processes may read by themselves: who is alone all that they can; beside others its share of
    /// what the link moves, by the weights, and nothing while it is ahead of others who wait.
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
        if let Some((at, before)) = self.rates
            && now.saturating_duration_since(at) < RATES
            && before == n
        {
            return;
        }
        for seat in &mut self.seats {
            let bytes = seat.agent.take_direct_bytes();
            if bytes > 0 {
                seat.used = Some(now);
            }
            let ahead = self.dispatch.charge(seat.id, Lane::In, bytes);
            let most = if seat.is_ahead {
                AHEAD_BYTES.1
            } else {
                AHEAD_BYTES.0
            };
            seat.is_ahead = ahead.is_some_and(|bytes| bytes > most);
        }
        let link = self.dispatch.lane(Lane::In).map_or(0, |l| l.rate_bytes_s);
        let all: Vec<One> = self
            .seats
            .iter_mut()
            .map(|seat| One {
                uses: uses(seat),
                weight: seat.weight(),
                is_ahead: seat.is_ahead,
            })
            .collect();
        self.rates = Some((now, all.iter().filter(|one| one.uses).count()));
        for (seat, direct) in self.seats.iter_mut().zip(divide(link, &all)) {
            seat.agent.set_direct(direct);
        }
    }

    /// Charges a round that began at `began` to those for whom there was something to do.
    fn charge(&mut self, began: Instant) {
        if self.seats.iter().all(|s| s.time.is_zero()) {
            return;
        }
        let used_ns = thread_ns();
        let before_ns = self.used_ns.replace(used_ns);
        let round_ns = (began.elapsed().as_nanos() as u64).max(1);
        // The time in which this thread only waited for a processor is nobody's.
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
        }
    }

    /// Begins what the dispatcher lets go.
    fn begin(&mut self, lap: &mut Lap) {
        self.dispatch.look();
        while let Some(decision) = self.dispatch.decide() {
            let id = match decision {
                Decision::Send(r) | Decision::Drop(r) => r.tenant.0,
            };
            // A linear search: there are as many decisions as requests, and few tenants work at a time.
            if let Some(seat) = self.seats.iter_mut().find(|s| s.id == id) {
                seat.wake();
                seat.agent.start(decision, self.dispatch.now_ns());
                seat.worked = true;
                seat.began = true;
                seat.time += lap.time();
            }
        }
        // Before anybody's answers are looked at: what is read now is not to wait for that.
        for seat in self.seats.iter_mut().filter(|s| s.began) {
            seat.began = false;
            seat.agent.flush();
            seat.time += lap.time();
        }
    }

    /// How long to sleep on `bells` tenants' bells at most.
    fn rest_in(&self, bells: usize, now: Instant) -> Duration {
        let barred = self.seats.iter().filter(|s| s.barred.is_some()).count();
        let all = bells + barred == self.seats.len();
        let long = if all { SLEEP_MAX } else { CONTENDED };
        let long = if barred > 0 {
            long.min(VAIN_PAUSE)
        } else {
            long
        };
        // A limit may let something go before, or another copy be due to be asked.
        let due = self.seats.iter().filter_map(|s| s.due).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        let dues = [self.dispatch.due_in(), due].into_iter().flatten();
        dues.fold(long, Duration::min)
    }

    /// Until it is time to look again.
    fn pause(&mut self, bell: &Bell, heard: u32) {
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
        let mut words = vec![WaitOn::new(&bell.rung, heard)];
        words.extend(bells.take(WAIT_ANY_MAX - 1));
        let long = self.rest_in(words.len() - 1, Instant::now());
        if futex_wait_any(&words, long.as_nanos() as u64).is_err() {
            // An old kernel: everybody's bell is looked at, and not slept on.
            std::thread::sleep(CONTENDED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_robin::REQUESTS_MAX;
    use canvas_sched::Class;
    use canvas_shm::Segment;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};

    /// Answers rings, and writes down who was served.
    struct Counts {
        id: u64,
        far: &'static Far,
        /// Requests that are left.
        left: Arc<AtomicUsize>,
        order: Arc<Mutex<Vec<(u64, usize)>>>,
        share: Live,
        /// Of the thread's time, for each request.
        cost: Duration,
        /// See [`Served::due_in`].
        due_in: Option<Duration>,
        /// Looks at the store.
        reaped: Arc<AtomicUsize>,
        /// What its processes may read by themselves, and bytes that they have.
        direct: Arc<Mutex<Direct>>,
        read: Arc<AtomicUsize>,
    }

    impl Served for Counts {
        fn start(&mut self, _: Decision, _: u64) {}
        fn flush(&mut self) {}
        fn reap(&mut self, _: &mut Dispatch, _: u64) -> bool {
            self.reaped.fetch_add(1, Relaxed);
            false
        }
        fn due_in(&self) -> Option<Duration> {
            self.due_in
        }
        fn gather(&mut self, _: &mut Dispatch, _: u64, most: usize) -> Found {
            self.far.rung(|_| ());
            let left = self.left.load(Relaxed);
            let done = left.min(most);
            self.left.store(left - done, Relaxed);
            if done > 0 {
                self.order.lock().unwrap().push((self.id, done));
                let until = Instant::now() + self.cost * done as u32;
                while Instant::now() < until {}
            }
            Found {
                work: done > 0,
                more: left > done,
                held_back: left > done,
                taken: done,
            }
        }
        fn set_direct(&mut self, direct: Direct) {
            *self.direct.lock().unwrap() = direct;
        }
        fn take_direct_bytes(&mut self) -> u64 {
            self.read.swap(0, Relaxed) as u64
        }
        fn is_busy(&self) -> bool {
            false
        }
        fn expects(&self) -> bool {
            false
        }
        fn await_answer(&self, _: Duration) -> bool {
            false
        }
        fn is_ready(&self) -> bool {
            self.left.load(Relaxed) > 0
        }
        fn leave(&mut self) {}
        fn far(&self) -> &'static Far {
            self.far
        }
        fn share(&self) -> &Live {
            &self.share
        }
    }

    struct Tenants {
        host: Host,
        share: Vec<Live>,
        far: Vec<&'static Far>,
        left: Vec<Arc<AtomicUsize>>,
        order: Arc<Mutex<Vec<(u64, usize)>>>,
        direct: Vec<Arc<Mutex<Direct>>>,
        read: Vec<Arc<AtomicUsize>>,
    }

    fn tenants(n: u64) -> Tenants {
        costly(&vec![Duration::ZERO; n as usize])
    }

    /// Tenants with requests that cost so much each.
    fn costly(costs: &[Duration]) -> Tenants {
        let mut t = Tenants {
            host: Host::new(Duration::ZERO, Dispatch::new()),
            share: Vec::new(),
            far: Vec::new(),
            left: Vec::new(),
            order: Arc::default(),
            direct: costs.iter().map(|_| Arc::default()).collect(),
            read: costs.iter().map(|_| Arc::default()).collect(),
        };
        for (id, cost) in (0..).zip(costs) {
            let (fd, _) = Segment::create(true).unwrap();
            let far = Far::map(&fd).unwrap();
            let left = Arc::new(AtomicUsize::new(0));
            let share = Live::default();
            t.host.add(
                id,
                Box::new(Counts {
                    id,
                    far,
                    left: left.clone(),
                    order: t.order.clone(),
                    share: share.clone(),
                    cost: *cost,
                    due_in: None,
                    reaped: Arc::default(),
                    direct: t.direct[id as usize].clone(),
                    read: t.read[id as usize].clone(),
                }),
            );
            t.far.push(far);
            t.left.push(left);
            t.share.push(share);
        }
        t
    }

    #[test]
    fn a_share_is_changed_of_one_tenant() {
        let mut t = tenants(2);
        let more = Share {
            weight: 300,
            ..Share::default()
        };
        let before = t.share[1].version();
        t.host.set_share(1, more);
        t.host.set_share(9, more);
        assert_eq!(
            (t.share[0].get(), t.share[1].get()),
            (Share::default(), more)
        );
        assert_ne!(t.share[1].version(), before);
    }

    #[test]
    fn a_busy_tenant_does_not_keep_the_others_waiting() {
        let mut t = tenants(3);
        t.left[0].store(REQUESTS_MAX * 4, Relaxed);
        t.left[1].store(1, Relaxed);
        t.left[2].store(REQUESTS_MAX + 1, Relaxed);
        while t.host.round() {}
        let order = t.order.lock().unwrap();
        let of = |id| order.iter().position(|(who, _)| *who == id).unwrap();
        assert!(of(1) < 3 && of(2) < 3, "{order:?}");
        let most = order.iter().map(|(_, done)| *done).max();
        assert!(most <= Some(REQUESTS_MAX), "{order:?}");
        let of = |id| {
            order
                .iter()
                .filter(move |(who, _)| *who == id)
                .map(|(_, n)| n)
        };
        assert_eq!(of(0).sum::<usize>(), REQUESTS_MAX * 4);
        assert_eq!(of(2).sum::<usize>(), REQUESTS_MAX + 1);
    }

    #[test]
    fn a_tenant_whose_requests_are_dear_leaves_the_others_their_time() {
        let us = Duration::from_micros;
        let mut t = costly(&[us(200), us(5), us(5)]);
        let heavy = Share {
            weight: 2 * Share::default().weight,
            ..Share::default()
        };
        t.host.set_share(2, heavy);
        for left in &t.left {
            left.store(1_000_000, Relaxed);
        }
        for _ in 0..400 {
            assert!(t.host.round());
        }
        let done = |id: usize| 1_000_000 - t.left[id].load(Relaxed) as u64;
        let ns = |id: usize| t.far[id].stats.agent_ns.load(Relaxed);
        // By requests the dear one would have nearly all of the time: 40 times the others'.
        assert!(done(1) > 10 * done(0), "{} and {}", done(1), done(0));
        assert!(
            ns(0) < 3 * ns(1) && ns(1) < 3 * ns(0),
            "{} {}",
            ns(0),
            ns(1)
        );
        assert!(done(2) > done(1), "{} and {}", done(2), done(1));
        assert!(done(0) > 0);
    }

    #[test]
    fn a_tenant_that_rings_for_nothing_does_not_keep_the_thread_awake() {
        let mut t = tenants(2);
        let mut seen = 0;
        for _ in 0..10_000 {
            t.far[0].ring(5);
            t.host.round();
            seen += usize::from(t.host.seats[0].barred.is_some());
        }
        assert!(seen > 5_000, "{seen} of 10000 rounds");
        // What it has is found all the same, and then it is heard at once.
        t.left[0].store(1, Relaxed);
        while t.left[0].load(Relaxed) > 0 {
            t.host.round();
        }
        assert!(t.host.seats[0].barred.is_none());
        // One that rings for what is there is never left alone.
        for _ in 0..1000 {
            t.left[1].store(1, Relaxed);
            t.far[1].ring(5);
            while t.left[1].load(Relaxed) > 0 {
                assert!(t.host.seats[1].barred.is_none());
                t.host.round();
            }
        }
    }

    #[test]
    fn a_quiet_tenant_is_looked_at_when_it_rings() {
        let mut t = tenants(2);
        while t.host.seats.iter().any(|s| s.asleep.is_none()) {
            t.host.round();
        }
        t.left[1].store(5, Relaxed);
        t.host.round();
        assert_eq!(t.left[1].load(Relaxed), 5, "nobody rang");
        assert!(t.far[1].ring(7), "it must be woken");
        assert!(t.host.round());
        assert_eq!(t.left[1].load(Relaxed), 0);
    }

    /// A read that is to be asked of another copy, for example: nobody rings when its time has come.
    #[test]
    fn what_a_store_is_due_to_do_is_done_while_its_tenant_sleeps() {
        let mut t = tenants(1);
        let reaped: Vec<Arc<AtomicUsize>> = (1..4).map(|_| Arc::default()).collect();
        let dues = [Some(Duration::from_secs(3600)), Some(Duration::ZERO), None];
        for (id, (due_in, reaped)) in (1..).zip(dues.into_iter().zip(&reaped)) {
            let (fd, _) = Segment::create(true).unwrap();
            let agent = Counts {
                id,
                far: Far::map(&fd).unwrap(),
                left: Arc::default(),
                order: t.order.clone(),
                share: Live::default(),
                cost: Duration::ZERO,
                due_in,
                reaped: reaped.clone(),
                direct: Arc::default(),
                read: Arc::default(),
            };
            t.host.add(id, Box::new(agent));
        }
        let bells = t.host.seats.len();
        while t.host.seats.iter().any(|s| s.asleep.is_none()) {
            t.host.round();
        }
        let looks = || reaped.iter().map(|r| r.load(Relaxed)).collect::<Vec<_>>();
        let now = Instant::now();
        assert_eq!(t.host.rest_in(bells, now), Duration::ZERO);
        let before = looks();
        t.host.round();
        assert_eq!(looks(), [before[0], before[1] + 1, before[2]]);
        // Without it the thread sleeps as long as ever; with one that is due later, until then.
        t.host.remove(2);
        let asleep = |t: &Tenants| t.host.rest_in(bells - 1, now);
        assert_eq!(asleep(&t), SLEEP_MAX);
        t.host.seats[1].due = Some(now + Duration::from_millis(7));
        assert_eq!(asleep(&t), Duration::from_millis(7));
    }

    #[test]
    fn all_bells_wake_the_thread() {
        // More than one call can wait for, too.
        for n in [0, 1, 3, 200] {
            let mut t = tenants(n);
            let (far, left) = (t.far.clone(), t.left.clone());
            let bell = Bell::default();
            std::thread::scope(|s| {
                let bell = &bell;
                let host = &mut t.host;
                let mut calls = 0;
                let serving = s.spawn(move || {
                    host.serve(bell, |_| {
                        calls += 1;
                        calls < 3
                    });
                });
                for (far, left) in far.iter().zip(&left).take(150) {
                    left.store(3, SeqCst);
                    if far.ring(0) {
                        futex_wake(&far.asleep, 1);
                    }
                    while left.load(SeqCst) > 0 {
                        std::thread::yield_now();
                    }
                }
                // The second ring may be heard with the first.
                while !serving.is_finished() {
                    bell.ring();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    }

    #[test]
    fn tenants_that_come_and_go_leave_nothing_on_the_lanes() {
        const LANES: [Lane; 4] = [Lane::In, Lane::Out, Lane::Disk(0), Lane::Disk(7)];
        let mut t = tenants(1);
        for id in 0..1000 {
            let dispatch = &mut t.host.dispatch;
            for lane in LANES {
                for class in Class::ALL {
                    let taken = dispatch.submit(id, class, lane, 32 << 10, 7, 0);
                    assert!(taken.is_some());
                }
            }
            let mut begun = 0;
            while dispatch.decide().is_some() {
                begun += 1;
            }
            assert_eq!(
                begun,
                3 * LANES.len(),
                "the links have room for tenant {id}"
            );
            // What it has under way nobody will say has ended.
            let agent = t.host.remove(id).unwrap();
            t.host.add(id + 1, agent);
        }
        for lane in LANES {
            assert_eq!(t.host.dispatch.lane(lane).unwrap().under_way_bytes, 0);
        }
    }

    #[test]
    fn a_tenant_that_leaves_is_given_back() {
        let mut t = tenants(3);
        t.host.round();
        assert!(t.host.remove(1).is_some() && t.host.remove(1).is_none());
        t.host.round();
        assert_eq!(t.host.remove_all().len(), 2);
        assert!(!t.host.round());
    }

    #[test]
    fn a_tenant_is_alone_until_another_one_uses_the_links() {
        let Tenants {
            mut host,
            direct,
            read,
            ..
        } = tenants(3);
        let began = Instant::now();
        // Who works, and who reads by itself, after how many tenths of ACTIVE; and who is alone then.
        for (at, works, reads, alone) in [
            (0, vec![0], vec![], [true, false, false]),
            (1, vec![], vec![0], [true, false, false]),
            (2, vec![1], vec![0], [false; 3]),
            (11, vec![], vec![0], [false; 3]),
            (13, vec![], vec![0], [true, false, false]),
            (14, vec![1, 2], vec![], [false; 3]),
            (25, vec![2], vec![1], [false; 3]),
            (33, vec![], vec![1], [false; 3]),
            (37, vec![], vec![1], [false, true, false]),
        ] {
            for seat in &mut host.seats {
                seat.worked = works.contains(&(seat.id as usize));
            }
            reads
                .iter()
                .for_each(|id: &usize| read[*id].store(4096, Relaxed));
            host.look_at_rates(began + ACTIVE * at / 10);
            let all = |i: usize| *direct[i].lock().unwrap() == Direct::All;
            assert_eq!([0, 1, 2].map(all), alone, "{at}");
        }
    }
}
