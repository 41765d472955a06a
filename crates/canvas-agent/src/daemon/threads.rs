//! The serving threads ([`crate::serve_loop`]): starts them, sends them commands, and divides tenants among them
//! ([`canvas_place::threads`]).
//!
//! Only the listener sends commands. A tenant that moves between threads is first returned by its old thread, so two
//! threads never have it at the same time, and later commands go to the thread that has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_place::threads::{Load, Move, Permille, ROUNDS_IN_S, Threads, Width};
use canvas_types::procfs::{Ticks, processors};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use tracing::{info, warn};

use crate::Share;
use crate::dispatch::{Dispatch, Shared};
use crate::notifier::Notifier;
use crate::serve_loop::{ServeLoop, TenantAgent, TenantSlot};

/// Time between two checks of the threads' load.
const ROUND: Duration = Duration::from_millis(1000 / ROUNDS_IN_S as u64);

/// Pause between two checks whether all operations at disks have ended.
const HOLD_PAUSE: Duration = Duration::from_millis(2);

/// A command for a serving thread.
enum Command {
    /// Serve this tenant too; add the time that it takes.
    Add(u64, Box<dyn TenantAgent>, Arc<AtomicU64>),
    /// Change this tenant's share.
    Share(u64, Share),
    /// Return this tenant unchanged.
    Detach(u64, Sender<Option<TenantSlot>>),
    /// Serve this tenant of another thread.
    Attach(TenantSlot),
    /// Stop serving this tenant; drop the rest when its agent has ended.
    Remove(u64, Box<dyn Send>),
    /// Stop (true) or resume starting operations; answer whether none is at a disk.
    Hold(bool, Sender<bool>),
    /// Stop serving and return all tenants.
    RemoveAll(Sender<Vec<Box<dyn TenantAgent>>>),
}

/// A serving thread.
struct Thread {
    commands: Sender<Command>,
    notifier: Arc<Notifier>,
}

impl Thread {
    fn start(number: usize, spin: Duration, dispatch: Dispatch) -> std::io::Result<Thread> {
        let notifier = dispatch.notifier().clone();
        let (commands, receiver) = channel();
        let name = match number {
            0 => "serve".to_owned(),
            n => format!("serve-{}", n + 1),
        };
        std::thread::Builder::new().name(name).spawn(move || {
            ServeLoop::new(spin, dispatch).serve(|serving| run_commands(serving, &receiver))
        })?;
        Ok(Thread { commands, notifier })
    }

    fn send(&self, command: Command) {
        // The thread ends only with the process.
        let _ = self.commands.send(command);
        self.notifier.notify();
    }
}

/// A tenant, as the listener knows it.
struct Tenant {
    thread: usize,
    served_ns: Arc<AtomicU64>,
    /// `served_ns` at the last check.
    seen_ns: u64,
}

/// Measures how much of this process's processors is idle.
struct Idle {
    may: CpuSet,
    before: Vec<Ticks>,
}

impl Idle {
    fn new() -> Idle {
        Idle {
            may: sched_getaffinity(Pid::from_raw(0)).unwrap_or_default(),
            before: Vec::new(),
        }
    }

    /// Idle time since the last call: 1000 for one whole processor; 0 when unknown.
    fn sample(&mut self) -> Permille {
        let stat = std::fs::read("/proc/stat").unwrap_or_default();
        let may = |cpu| self.may.is_set(cpu).unwrap_or(false);
        let now: Vec<Ticks> = processors(&stat, may).collect();
        let before = std::mem::replace(&mut self.before, now);
        if before.len() != self.before.len() {
            return 0;
        }
        let idle = |(before, now): (&Ticks, &Ticks)| {
            let all = now.all.saturating_sub(before.all).max(1);
            let idle = now.idle.saturating_sub(before.idle).min(all);
            (1000 * u128::from(idle) / u128::from(all)) as Permille
        };
        before.iter().zip(&self.before).map(idle).sum()
    }
}

/// All serving threads.
pub struct ServingThreads {
    spin: Duration,
    shared: Arc<Shared>,
    all: Vec<Thread>,
    tenants: BTreeMap<u64, Tenant>,
    decide: Threads,
    looked: Instant,
    idle: Idle,
}

impl ServingThreads {
    /// Starts the first thread, which has `dispatch`, or a fixed number of threads; at most
    /// [`crate::dispatch::THREADS_MAX`]. Each tenant is polled for `spin` after its last work.
    pub fn start(
        width: Width,
        spin: Duration,
        dispatch: Dispatch,
    ) -> std::io::Result<ServingThreads> {
        let shared = dispatch.shared().clone();
        let mut threads = ServingThreads {
            spin,
            shared,
            all: vec![Thread::start(0, spin, dispatch)?],
            tenants: BTreeMap::new(),
            decide: Threads::new(width),
            looked: Instant::now(),
            idle: Idle::new(),
        };
        if let Width::Fixed(_) = width {
            while threads.all.len() < threads.decide.most() {
                threads.add_thread()?;
            }
        }
        Ok(threads)
    }

    fn add_thread(&mut self) -> std::io::Result<()> {
        let dispatch = Dispatch::for_thread(&self.shared);
        let thread = Thread::start(self.all.len(), self.spin, dispatch)?;
        self.all.push(thread);
        Ok(())
    }

    /// Serves a tenant, by a number that was never used before.
    pub fn add(&mut self, id: u64, agent: Box<dyn TenantAgent>) {
        // While there was only one tenant, nobody checked the load.
        let time = self.looked.elapsed().max(ROUND);
        let thread = self.decide.place(&self.loads(time));
        let served_ns = Arc::new(AtomicU64::new(0));
        self.all[thread].send(Command::Add(id, agent, served_ns.clone()));
        self.tenants.insert(
            id,
            Tenant {
                thread,
                served_ns,
                seen_ns: 0,
            },
        );
    }

    /// Changes a tenant's share.
    pub fn set_share(&self, id: u64, share: Share) {
        if let Some(tenant) = self.tenants.get(&id) {
            self.all[tenant.thread].send(Command::Share(id, share));
        }
    }

    /// Stops serving a tenant; `rest` is dropped when its agent has ended.
    pub fn remove(&mut self, id: u64, rest: Box<dyn Send>) {
        if let Some(tenant) = self.tenants.remove(&id) {
            self.all[tenant.thread].send(Command::Remove(id, rest));
        }
    }

    /// Stops starting operations; true when none is at a disk within `patience`. Otherwise resumes.
    pub fn hold(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            if self.all_hold(true) {
                return true;
            }
            if Instant::now() >= until {
                self.all_hold(false);
                return false;
            }
            std::thread::sleep(HOLD_PAUSE);
        }
    }

    fn all_hold(&self, holds: bool) -> bool {
        let (send, said) = channel();
        for thread in &self.all {
            thread.send(Command::Hold(holds, send.clone()));
        }
        drop(send);
        said.iter().filter(|is_quiet| !is_quiet).count() == 0
    }

    /// Resumes after [`ServingThreads::hold`].
    pub fn resume(&self) {
        self.all_hold(false);
    }

    /// Stops serving all tenants; returns their agents.
    pub fn remove_all(&mut self) -> Vec<Box<dyn TenantAgent>> {
        self.tenants.clear();
        let (send, given) = channel();
        for thread in &self.all {
            thread.send(Command::RemoveAll(send.clone()));
        }
        drop(send);
        given.iter().flatten().collect()
    }

    /// When [`ServingThreads::tend`] is due, if there is anything to divide.
    pub fn due(&self) -> Option<Instant> {
        (self.decide.most() > 1 && self.tenants.len() > 1).then(|| self.looked + ROUND)
    }

    /// Checks the threads' load, when it is due, and divides tenants among them.
    pub fn tend(&mut self) {
        let now = Instant::now();
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        let time = now.saturating_duration_since(self.looked);
        self.looked = now;
        let loads = self.loads(time);
        for tenant in self.tenants.values_mut() {
            tenant.seen_ns = tenant.served_ns.load(Relaxed);
        }
        let idle = self.idle.sample();
        if let Some(change) = self.decide.rebalance(&loads, idle) {
            self.apply_move(change);
        }
    }

    /// By thread, each tenant's load over the `time` since the last check.
    fn loads(&self, time: Duration) -> Vec<Vec<Load>> {
        let mut loads = vec![Vec::new(); self.all.len()];
        for (id, tenant) in &self.tenants {
            let ns = tenant.served_ns.load(Relaxed) - tenant.seen_ns;
            let busy = u128::from(ns) * 1000 / time.as_nanos().max(1);
            let busy = busy.min(1000) as Permille;
            loads[tenant.thread].push(Load { id: *id, busy });
        }
        loads
    }

    fn apply_move(&mut self, change: Move) {
        let Move { id, from, to } = change;
        if to == self.all.len() {
            if let Err(e) = self.add_thread() {
                warn!(
                    "{to} threads serve: cannot start another one: {}",
                    canvas_control::text::reason(&e)
                );
                return self.decide.bound(to);
            }
            info!(
                "{} threads serve: one was fully busy, and a processor idle",
                to + 1
            );
        }
        let (send, given) = channel();
        self.all[from].send(Command::Detach(id, send));
        if let Ok(Some(slot)) = given.recv() {
            self.all[to].send(Command::Attach(slot));
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.thread = to;
            }
        }
    }
}

/// Carries out the commands for a serving thread.
fn run_commands(serving: &mut ServeLoop, commands: &Receiver<Command>) -> bool {
    while let Ok(command) = commands.try_recv() {
        match command {
            Command::Add(id, agent, served_ns) => serving.add(id, agent, served_ns),
            Command::Share(id, share) => serving.set_share(id, share),
            Command::Detach(id, to) => {
                let _ = to.send(serving.detach(id));
            }
            Command::Attach(slot) => serving.attach(slot),
            Command::Remove(id, rest) => {
                let agent = serving.remove(id);
                let ends = move || {
                    if let Some(mut agent) = agent {
                        agent.free_all();
                    }
                    drop(rest);
                };
                // If no thread can be started, the agent ends here, and the other tenants wait for it.
                let _ = std::thread::Builder::new()
                    .name("end".to_owned())
                    .spawn(ends);
            }
            Command::Hold(holds, to) => {
                let _ = to.send(serving.hold(holds));
            }
            Command::RemoveAll(to) => {
                let _ = to.send(serving.remove_all());
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::Direct;
    use crate::dispatch::IoLink;
    use crate::serve_loop::Gathered;
    use crate::share::LiveShare;
    use canvas_sched::{Class, Decision, LinkConfig, Ticket};
    use canvas_shm::{Far, Segment};
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    const BYTES: u32 = 4096;

    /// A tenant whose requests end at once.
    struct Asks {
        far: &'static Far,
        left: u32,
        begun: Arc<AtomicU64>,
        tickets: HashMap<u64, Ticket>,
        under_way: Vec<Ticket>,
        share: LiveShare,
        /// A thread works for it.
        is_served: Arc<AtomicBool>,
    }

    impl Asks {
        fn alone<T>(&mut self, work: impl FnOnce(&mut Asks) -> T) -> T {
            assert!(!self.is_served.swap(true, Relaxed), "two threads have it");
            let got = work(self);
            self.is_served.store(false, Relaxed);
            got
        }
    }

    impl TenantAgent for Asks {
        fn gather(&mut self, dispatch: &mut Dispatch, id: u64, most: usize) -> Gathered {
            self.alone(|own| {
                own.far.take_notified(|_| ());
                // A queue holds no more than an agent has under way.
                let room = 64usize.saturating_sub(own.tickets.len());
                let taken = most.min(own.left as usize).min(room);
                for _ in 0..taken {
                    let (tag, now_ns) = (own.left, dispatch.now_ns());
                    own.left -= 1;
                    let ticket = dispatch.submit(id, Class::Demand, IoLink::In, BYTES, tag, now_ns);
                    own.tickets.insert(tag.into(), ticket.unwrap());
                }
                Gathered {
                    work: taken > 0,
                    more: own.left > 0 && taken == most,
                    held_back: own.left > 0 && taken == most,
                    taken,
                }
            })
        }
        fn start(&mut self, decision: Decision, _: u64) {
            let Decision::Send(request) = decision else {
                unreachable!("demands");
            };
            self.alone(|own| {
                let ticket = own.tickets.remove(&request.tag);
                own.under_way.push(ticket.expect("its own, once"));
            });
        }
        fn flush(&mut self) {}
        fn reap(&mut self, dispatch: &mut Dispatch, _: u64) -> bool {
            self.alone(|own| {
                let n = own.under_way.len();
                own.under_way.drain(..).for_each(|t| dispatch.done(t));
                own.begun.fetch_add(n as u64, Relaxed);
                n > 0
            })
        }
        fn expects(&self) -> bool {
            false
        }
        fn await_answer(&self, _: Duration) -> bool {
            false
        }
        fn is_ready(&self) -> bool {
            !self.under_way.is_empty() || self.left > 0
        }
        fn due_in(&self) -> Option<Duration> {
            None
        }
        fn set_direct(&mut self, _: Direct) {}
        fn take_direct_bytes(&mut self) -> u64 {
            0
        }
        fn is_quiet(&self) -> bool {
            true
        }
        fn is_busy(&self) -> bool {
            !self.tickets.is_empty()
        }
        fn free_all(&mut self) {}
        fn far(&self) -> &'static Far {
            self.far
        }
        fn share(&self) -> &LiveShare {
            &self.share
        }
    }

    /// Threads that serve `tenants`, each with `requests`, on a link that takes two at a time.
    fn serving(width: Width, tenants: u64, requests: u32) -> (ServingThreads, Vec<Arc<AtomicU64>>) {
        let dispatch = Dispatch::with(LinkConfig {
            window_bytes_min: 2 * u64::from(BYTES),
            window_bytes_max: 2 * u64::from(BYTES),
            ..LinkConfig::default()
        });
        let mut threads = ServingThreads::start(width, Duration::ZERO, dispatch).unwrap();
        let mut begun = Vec::new();
        for id in 0..tenants {
            let (fd, _) = Segment::create(true).unwrap();
            begun.push(Arc::new(AtomicU64::new(0)));
            let agent = Asks {
                far: Far::map(&fd).unwrap(),
                left: requests,
                begun: begun[id as usize].clone(),
                tickets: HashMap::new(),
                under_way: Vec::new(),
                share: LiveShare::default(),
                is_served: Arc::default(),
            };
            threads.add(id, Box::new(agent));
        }
        (threads, begun)
    }

    #[test]
    fn tenants_that_go_from_thread_to_thread_lose_nothing() {
        const REQUESTS: u32 = 5_000;
        let (mut threads, begun) = serving(Width::Fixed(3), 6, REQUESTS);
        let seed = std::process::id() as usize;
        println!("seed {seed}");
        let until = Instant::now() + Duration::from_secs(60);
        let mut moves = 0usize;
        while begun.iter().any(|n| n.load(Relaxed) < REQUESTS.into()) {
            assert!(Instant::now() < until, "{begun:?} of {REQUESTS}");
            let id = (seed + moves * 7) as u64 % 6;
            let from = threads.tenants[&id].thread;
            let to = (from + 1 + (seed + moves) % 2) % 3;
            threads.apply_move(Move { id, from, to });
            assert_eq!(threads.tenants[&id].thread, to);
            moves += 1;
        }
        println!("{moves} moves");
        assert!(begun.iter().all(|n| n.load(Relaxed) == u64::from(REQUESTS)));
        threads.remove(5, Box::new(()));
        assert_eq!(threads.remove_all().len(), 5);
        assert!(threads.due().is_none());
    }

    #[test]
    fn one_thread_more_is_started_when_it_is_decided() {
        let (mut threads, begun) = serving(Width::Elastic(2), 3, 1000);
        assert_eq!(threads.all.len(), 1);
        assert!(threads.due().is_some());
        let (id, from, to) = (1, 0, 1);
        threads.apply_move(Move { id, from, to });
        assert_eq!(threads.all.len(), 2);
        let until = Instant::now() + Duration::from_secs(60);
        while begun.iter().any(|n| n.load(Relaxed) < 1000) {
            assert!(Instant::now() < until, "{begun:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The time that each tenant took is measured, and is no more than has passed.
        threads.looked -= ROUND;
        threads.tend();
        assert!(threads.tenants.values().all(|t| t.seen_ns > 0));
        assert!(threads.looked.elapsed() < Duration::from_secs(30));
        assert_eq!(threads.remove_all().len(), 3);
    }
}
