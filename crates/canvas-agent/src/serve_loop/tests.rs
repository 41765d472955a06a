use super::*;
use crate::round_robin::REQUESTS_MAX;
use canvas_sched::Class;
use canvas_shm::Segment;
use canvas_sys::proc::futex_wake;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// A tenant that answers notifications and records who was served.
pub(crate) struct Counts {
    id: u64,
    pub(crate) far: &'static Far,
    /// Requests left.
    pub(crate) left: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<(u64, usize)>>>,
    share: LiveShare,
    /// Time of the thread for each request.
    cost: Duration,
    /// See [`TenantAgent::due_in`].
    due_in: Option<Duration>,
    /// Polls of the store.
    reaped: Arc<AtomicUsize>,
    /// How much its processes may read directly, and bytes that they have read.
    direct: Arc<Mutex<Direct>>,
    read: Arc<AtomicUsize>,
}

impl TenantAgent for Counts {
    fn start(&mut self, _: Decision, _: u64) {}
    fn flush(&mut self) {}
    fn reap(&mut self, _: &mut Dispatch, _: u64) -> bool {
        self.reaped.fetch_add(1, Relaxed);
        false
    }
    fn due_in(&self) -> Option<Duration> {
        self.due_in
    }
    fn gather(&mut self, _: &mut Dispatch, _: u64, most: usize) -> Gathered {
        self.far.take_notified(|_| ());
        let left = self.left.load(Relaxed);
        let done = left.min(most);
        self.left.store(left - done, Relaxed);
        if done > 0 {
            self.order.lock().unwrap().push((self.id, done));
            let until = Instant::now() + self.cost * done as u32;
            while Instant::now() < until {}
        }
        Gathered {
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
    fn is_quiet(&self) -> bool {
        true
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
    fn free_all(&mut self) {}
    fn far(&self) -> &'static Far {
        self.far
    }
    fn share(&self) -> &LiveShare {
        &self.share
    }
}

struct Tenants {
    serving: ServeLoop,
    share: Vec<LiveShare>,
    far: Vec<&'static Far>,
    left: Vec<Arc<AtomicUsize>>,
    order: Arc<Mutex<Vec<(u64, usize)>>>,
    direct: Vec<Arc<Mutex<Direct>>>,
    read: Vec<Arc<AtomicUsize>>,
}

fn tenants(n: u64) -> Tenants {
    costly(&vec![Duration::ZERO; n as usize])
}

/// Tenants with requests that each cost this much.
fn costly(costs: &[Duration]) -> Tenants {
    let mut t = Tenants {
        serving: ServeLoop::new(Duration::ZERO, Dispatch::new()),
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
        let share = LiveShare::default();
        t.serving.add(
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
            Arc::default(),
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
    t.serving.set_share(1, more);
    t.serving.set_share(9, more);
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
    while t.serving.round() {}
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
    t.serving.set_share(2, heavy);
    for left in &t.left {
        left.store(1_000_000, Relaxed);
    }
    for _ in 0..400 {
        assert!(t.serving.round());
    }
    let done = |id: usize| 1_000_000 - t.left[id].load(Relaxed) as u64;
    let ns = |id: usize| t.far[id].stats.agent_ns.load(Relaxed);
    // By number of requests the expensive one would get nearly all of the time: 40 times the others'.
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

/// Another thread is used only when this one is full (`canvas_place::threads`).
#[test]
fn a_thread_that_always_has_work_is_seen_to_be_full() {
    let mut t = costly(&[Duration::from_micros(5); 3]);
    t.left
        .iter()
        .for_each(|left| left.store(1_000_000, Relaxed));
    let served_ns = |t: &Tenants| -> u64 {
        let slots = t.serving.slots.iter();
        slots.map(|s| s.served_ns.load(Relaxed)).sum()
    };
    // The first rounds learn the cost of requests.
    (0..50).for_each(|_| assert!(t.serving.round()));
    let (began_ns, before_ns) = (thread_ns(), served_ns(&t));
    t.order.lock().unwrap().clear();
    (0..400).for_each(|_| assert!(t.serving.round()));
    let (used_ns, served_ns) = (thread_ns() - began_ns, served_ns(&t) - before_ns);
    // There was work all the time, and none of it is counted twice.
    assert!(!t.order.lock().unwrap().is_empty());
    assert!(
        0 < served_ns && served_ns <= used_ns,
        "{served_ns} of {used_ns} ns"
    );
}

#[test]
fn a_tenant_that_rings_for_nothing_does_not_keep_the_thread_awake() {
    let mut t = tenants(2);
    let mut seen = 0;
    for _ in 0..10_000 {
        t.far[0].notify(5);
        t.serving.round();
        seen += usize::from(t.serving.slots[0].throttled_until.is_some());
    }
    assert!(seen > 5_000, "{seen} of 10000 rounds");
    // Its requests are found all the same, and then it is noticed at once again.
    t.left[0].store(1, Relaxed);
    while t.left[0].load(Relaxed) > 0 {
        t.serving.round();
    }
    assert!(t.serving.slots[0].throttled_until.is_none());
    // A tenant that notifies for real work is never throttled_until.
    for _ in 0..1000 {
        t.left[1].store(1, Relaxed);
        t.far[1].notify(5);
        while t.left[1].load(Relaxed) > 0 {
            assert!(t.serving.slots[1].throttled_until.is_none());
            t.serving.round();
        }
    }
}

#[test]
fn a_quiet_tenant_is_looked_at_when_it_rings() {
    let mut t = tenants(2);
    while t.serving.slots.iter().any(|s| s.asleep.is_none()) {
        t.serving.round();
    }
    t.left[1].store(5, Relaxed);
    t.serving.round();
    assert_eq!(t.left[1].load(Relaxed), 5, "nobody rang");
    assert!(t.far[1].notify(7), "it must be woken");
    assert!(t.serving.round());
    assert_eq!(t.left[1].load(Relaxed), 0);
}

/// For example, a read that is to be hedged: nobody notifies when that is due.
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
            share: LiveShare::default(),
            cost: Duration::ZERO,
            due_in,
            reaped: reaped.clone(),
            direct: Arc::default(),
            read: Arc::default(),
        };
        t.serving.add(id, Box::new(agent), Arc::default());
    }
    let armed = t.serving.slots.len();
    while t.serving.slots.iter().any(|s| s.asleep.is_none()) {
        t.serving.round();
    }
    let looks = || reaped.iter().map(|r| r.load(Relaxed)).collect::<Vec<_>>();
    let now = Instant::now();
    assert_eq!(t.serving.sleep_max(armed, now), Duration::ZERO);
    let before = looks();
    t.serving.round();
    assert_eq!(looks(), [before[0], before[1] + 1, before[2]]);
    // Without it the thread sleeps as long as ever; with a later due time, until then.
    t.serving.remove(2);
    let asleep = |t: &Tenants| t.serving.sleep_max(armed - 1, now);
    assert_eq!(asleep(&t), SLEEP_MAX);
    t.serving.slots[1].due = Some(now + Duration::from_millis(7));
    assert_eq!(asleep(&t), Duration::from_millis(7));
}

#[test]
fn all_bells_wake_the_thread() {
    // Also with more tenants than one call can wait for.
    for n in [0, 1, 3, 200] {
        let mut t = tenants(n);
        let (far, left) = (t.far.clone(), t.left.clone());
        let notifier = t.serving.dispatch.notifier().clone();
        std::thread::scope(|s| {
            let serving = &mut t.serving;
            let mut calls = 0;
            let serving = s.spawn(move || {
                serving.serve(|_| {
                    calls += 1;
                    calls < 3
                });
            });
            for (far, left) in far.iter().zip(&left).take(150) {
                left.store(3, SeqCst);
                if far.notify(0) {
                    futex_wake(&far.asleep, 1);
                }
                while left.load(SeqCst) > 0 {
                    std::thread::yield_now();
                }
            }
            // The second notification may be noticed together with the first.
            while !serving.is_finished() {
                notifier.notify();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn tenants_that_come_and_go_leave_nothing_on_the_lanes() {
    const LINKS: [IoLink; 4] = [IoLink::In, IoLink::Out, IoLink::Disk(0), IoLink::Disk(7)];
    let mut t = tenants(1);
    for id in 0..1000 {
        let dispatch = &mut t.serving.dispatch;
        for link in LINKS {
            for class in Class::ALL {
                let taken = dispatch.submit(id, class, link, 32 << 10, 7, 0);
                assert!(taken.is_some());
            }
        }
        let mut begun = 0;
        while dispatch.decide().is_some() {
            begun += 1;
        }
        assert_eq!(
            begun,
            3 * LINKS.len(),
            "the links have room for tenant {id}"
        );
        // Nobody will report the end of its operations.
        let agent = t.serving.remove(id).unwrap();
        t.serving.add(id + 1, agent, Arc::default());
    }
    for link in LINKS {
        assert_eq!(
            t.serving.dispatch.link_stats(link).unwrap().under_way_bytes,
            0
        );
    }
}

#[test]
fn a_tenant_that_leaves_is_given_back() {
    let mut t = tenants(3);
    t.serving.round();
    assert!(t.serving.remove(1).is_some() && t.serving.remove(1).is_none());
    t.serving.round();
    assert_eq!(t.serving.remove_all().len(), 2);
    assert!(!t.serving.round());
}

#[test]
fn a_tenant_is_alone_until_another_one_uses_the_links() {
    let Tenants {
        mut serving,
        direct,
        read,
        ..
    } = tenants(3);
    let began = Instant::now();
    // Who works, and who reads directly, after how many tenths of ACTIVE; and who is alone then.
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
        for slot in &mut serving.slots {
            slot.worked = works.contains(&(slot.id as usize));
        }
        reads
            .iter()
            .for_each(|id: &usize| read[*id].store(4096, Relaxed));
        serving.update_rates(began + ACTIVE * at / 10);
        let all = |i: usize| *direct[i].lock().unwrap() == Direct::All;
        assert_eq!([0, 1, 2].map(all), alone, "{at}");
    }
}
