//! Many tenants, served by one thread: a turn of each after the other.
//!
//! A turn is bounded ([`REQUESTS`] begun, and no more ended than may be under way), so no tenant keeps
//! another one waiting for long. A tenant that has been quiet for a while is *asleep* by itself: its
//! programs must ring, and until they do a look at it is one load. When all are asleep the thread sleeps
//! on all their bells at one time, and on [`Bell`], by which its owner reaches it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_sys::proc::{WAIT_ANY_MAX, WaitOn, futex_wait_any, futex_wake};

use crate::idle::{EXPECT, SLEEP_MAX, looking, relax};

/// Requests begun in one turn of a tenant: some 32 x 10 us when all are writes to be sealed.
const REQUESTS: usize = 32;
/// Sleep when there are more tenants than the kernel lets one thread wait for.
const CROWDED: Duration = Duration::from_millis(2);

/// A tenant's agent, whatever its store.
pub trait Served: Send {
    /// Looks once at everything, and begins `most` requests at most. True when there was something.
    fn turn_of(&mut self, most: usize) -> bool;
    /// See [`crate::store::Store::expects`].
    fn expects(&self) -> bool;
    /// See [`crate::store::Store::is_ready`].
    fn is_ready(&self) -> bool;
    /// The tenant's far area.
    fn far(&self) -> &'static Far;
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
    /// Its programs must ring, since then.
    asleep: Option<Instant>,
}

impl Seat {
    /// True when it may have work now: after a ring, or a while.
    fn is_up(&mut self, now: Instant) -> bool {
        let Some(since) = self.asleep else {
            return true;
        };
        let far = self.agent.far();
        if far.asleep.load(Acquire) != 0 && now.duration_since(since) < SLEEP_MAX {
            return false;
        }
        far.asleep.store(0, SeqCst);
        self.asleep = None;
        true
    }

    /// After a turn without work: asleep, if it has been quiet for long enough.
    fn rest(&mut self, now: Instant, spin: Duration) {
        let spin = if self.agent.expects() {
            spin.max(EXPECT)
        } else {
            spin
        };
        let far = self.agent.far();
        if now.saturating_duration_since(self.last_work) < spin || !far.about_to_sleep() {
            return;
        }
        if self.agent.is_ready() {
            far.asleep.store(0, SeqCst);
        } else {
            self.asleep = Some(now);
        }
    }
}

/// The tenants of one thread.
pub struct Host {
    seats: Vec<Seat>,
    spin: Duration,
    /// Who is first in the next round.
    first: usize,
}

impl Host {
    /// Nobody yet. Each tenant is looked at for `spin` after its last work.
    pub fn new(spin: Duration) -> Host {
        Host {
            seats: Vec::new(),
            spin: looking(spin),
            first: 0,
        }
    }

    /// One more tenant.
    pub fn add(&mut self, id: u64, agent: Box<dyn Served>) {
        self.seats.push(Seat {
            id,
            agent,
            last_work: Instant::now(),
            asleep: None,
        });
    }

    /// Serves a tenant no more. Dropping its agent may wait for a disk: better not on this thread.
    pub fn remove(&mut self, id: u64) -> Option<Box<dyn Served>> {
        let at = self.seats.iter().position(|s| s.id == id)?;
        Some(self.seats.swap_remove(at).agent)
    }

    /// Serves nobody any more.
    pub fn remove_all(&mut self) -> Vec<(u64, Box<dyn Served>)> {
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

    /// A turn of each tenant that is up. True when there was something to do.
    fn round(&mut self) -> bool {
        let now = Instant::now();
        let n = self.seats.len();
        let mut worked = false;
        for k in 0..n {
            let seat = &mut self.seats[(self.first + k) % n];
            if !seat.is_up(now) {
                continue;
            }
            if seat.agent.turn_of(REQUESTS) {
                seat.last_work = now;
                worked = true;
            } else {
                seat.rest(now, self.spin);
            }
        }
        self.first = if n == 0 { 0 } else { (self.first + 1) % n };
        worked
    }

    /// Until it is time to look again.
    fn pause(&self, bell: &Bell, heard: u32) {
        if self.seats.iter().any(|s| s.asleep.is_none()) {
            relax();
            return;
        }
        let bells = self
            .seats
            .iter()
            .map(|s| WaitOn::new(&s.agent.far().asleep, 1));
        let mut words = vec![WaitOn::new(&bell.rung, heard)];
        words.extend(bells.take(WAIT_ANY_MAX - 1));
        let all = words.len() == self.seats.len() + 1;
        let long = if all { SLEEP_MAX } else { CROWDED };
        if futex_wait_any(&words, long.as_nanos() as u64).is_err() {
            // An old kernel: everybody's bell is looked at, and not slept on.
            std::thread::sleep(CROWDED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::Segment;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex};

    /// Answers rings, and writes down who was served.
    struct Counts {
        id: u64,
        far: &'static Far,
        /// Requests that are left.
        left: Arc<AtomicUsize>,
        order: Arc<Mutex<Vec<(u64, usize)>>>,
    }

    impl Served for Counts {
        fn turn_of(&mut self, most: usize) -> bool {
            let rung = self.far.rung(|_| ());
            let left = self.left.load(Relaxed);
            let done = left.min(most);
            self.left.store(left - done, Relaxed);
            if done > 0 {
                self.order.lock().unwrap().push((self.id, done));
            }
            rung || done > 0
        }
        fn expects(&self) -> bool {
            false
        }
        fn is_ready(&self) -> bool {
            self.left.load(Relaxed) > 0
        }
        fn far(&self) -> &'static Far {
            self.far
        }
    }

    struct Tenants {
        host: Host,
        far: Vec<&'static Far>,
        left: Vec<Arc<AtomicUsize>>,
        order: Arc<Mutex<Vec<(u64, usize)>>>,
    }

    fn tenants(n: u64) -> Tenants {
        let mut t = Tenants {
            host: Host::new(Duration::ZERO),
            far: Vec::new(),
            left: Vec::new(),
            order: Arc::default(),
        };
        for id in 0..n {
            let (fd, _) = Segment::create(true).unwrap();
            let far = Far::map(&fd).unwrap();
            let left = Arc::new(AtomicUsize::new(0));
            t.host.add(
                id,
                Box::new(Counts {
                    id,
                    far,
                    left: left.clone(),
                    order: t.order.clone(),
                }),
            );
            t.far.push(far);
            t.left.push(left);
        }
        t
    }

    #[test]
    fn a_busy_tenant_does_not_keep_the_others_waiting() {
        let mut t = tenants(3);
        t.left[0].store(REQUESTS * 4, Relaxed);
        t.left[1].store(1, Relaxed);
        t.left[2].store(REQUESTS + 1, Relaxed);
        while t.host.round() {}
        let order = t.order.lock().unwrap();
        let of = |id| order.iter().position(|(who, _)| *who == id).unwrap();
        assert!(of(1) < 3 && of(2) < 3, "{order:?}");
        assert!(order.iter().all(|(_, done)| *done <= REQUESTS), "{order:?}");
        assert_eq!(order.len(), 4 + 1 + 2);
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
    fn a_tenant_that_leaves_is_given_back() {
        let mut t = tenants(3);
        t.host.round();
        assert!(t.host.remove(1).is_some() && t.host.remove(1).is_none());
        t.host.round();
        assert_eq!(t.host.remove_all().len(), 2);
        assert!(!t.host.round());
    }
}
