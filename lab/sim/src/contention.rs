//! Model of processors that evict pages at the same time, and of the locks they contend for.
//!
//! A processor works alone for a while (compresses, unmaps), then passes through sections under locks; a
//! [`Scheme`] says how many sections, how often and how long. Time is spent on cache lines: usually another
//! processor was the last to write a line that a section touches, and the line comes from that processor's
//! cache. Waiters spin, and each release invalidates the spinners' copies of the lock's line; a waiter that
//! has spun for too long sleeps. The rules are those of `canvas_types::sync::RawSpin`.

use std::collections::VecDeque;

use crate::engine::{Ns, Queue, SEC};

/// Cost of each operation on a machine, in ns.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// An atomic operation on a line in this processor's cache.
    pub local_ns: Ns,
    /// Transfer of a line that another processor has written.
    pub transfer_ns: Ns,
    /// Work for a page outside of all locks.
    pub page_ns: Ns,
    /// Time that a waiter spins before it sleeps.
    pub spin_ns: Ns,
    /// Time from the release to the wake-up of a sleeper.
    pub sleep_ns: Ns,
}

/// A section under a lock.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Index of the lock.
    pub lock: usize,
    /// Number of pages for which the section is entered once.
    pub every: u32,
    /// Time of the instructions inside, in ns.
    pub inside_ns: Ns,
    /// Lines touched inside that other processors write too, without the lock's.
    pub lines: u32,
}

/// How evicted pages get their swap entries and slots.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Name in tables.
    pub name: &'static str,
    /// Sections in the order in which a page passes through them.
    pub sections: &'static [Section],
    /// Number of processors that can evict at one time.
    pub contexts: usize,
}

/// Number of locks that sections can name.
pub const LOCKS: usize = 2;
/// Pages that a processor evicts while it holds a context.
const BATCH: u32 = 64;

/// Figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Evicted pages per second, over all processors.
    pub pages_per_s: f64,
    /// Processor time per page, in ns.
    pub page_ns: f64,
    /// Part of `page_ns` spent in sections and waiting for them: the time of allocation.
    pub locked_ns: f64,
}

#[derive(Clone, Copy)]
enum Event {
    /// A processor finishes its present step.
    Goes(usize),
    /// A spinner goes to sleep, if it is still in the wait of this number.
    Tired(usize, u64),
    /// A sleeper wakes up.
    Wakes(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Working,
    Inside(usize),
    Waiting(usize),
}

struct Processor {
    at: At,
    pages: u32,
    /// Index of the page's next section.
    next: usize,
    waits: u64,
    since: Ns,
    locked_ns: Ns,
}

#[derive(Default)]
struct Lock {
    held: bool,
    last: Option<usize>,
    spinning: Vec<usize>,
    sleeping: usize,
}

struct Run {
    costs: Costs,
    scheme: Scheme,
    rng: fastrand::Rng,
    queue: Queue<Event>,
    processors: Vec<Processor>,
    locks: [Lock; LOCKS],
    free_contexts: usize,
    wants_context: VecDeque<usize>,
}

/// Simulates `processors` that evict pages for `for_ns`.
pub fn run(seed: u64, processors: usize, costs: Costs, scheme: Scheme, for_ns: Ns) -> Figures {
    let mut run = Run {
        costs,
        scheme,
        rng: fastrand::Rng::with_seed(seed),
        queue: Queue::default(),
        processors: Vec::new(),
        locks: Default::default(),
        free_contexts: scheme.contexts,
        wants_context: VecDeque::new(),
    };
    for i in 0..processors {
        // Staggers the processors.
        let pages = run.rng.u32(0..BATCH);
        run.processors.push(Processor {
            at: At::Working,
            pages,
            next: 0,
            waits: 0,
            since: 0,
            locked_ns: 0,
        });
        run.begin(i);
    }
    let before: u64 = run.processors.iter().map(|p| u64::from(p.pages)).sum();
    while let Some(event) = run.queue.next(for_ns) {
        run.happens(event);
    }
    let after: u64 = run.processors.iter().map(|p| u64::from(p.pages)).sum();
    let pages = (after - before).max(1) as f64;
    let locked: Ns = run.processors.iter().map(|p| p.locked_ns).sum();
    Figures {
        pages_per_s: pages * SEC as f64 / for_ns as f64,
        page_ns: for_ns as f64 * processors as f64 / pages,
        locked_ns: locked as f64 / pages,
    }
}

impl Run {
    /// Processor `who` requests a context.
    fn begin(&mut self, who: usize) {
        if self.free_contexts > 0 {
            self.free_contexts -= 1;
            self.work(who);
        } else {
            self.wants_context.push_back(who);
        }
    }

    /// Starts work on the next page, which takes up to a quarter more or less than the mean.
    fn work(&mut self, who: usize) {
        let whole = self.costs.page_ns;
        let took = whole - whole / 4 + self.rng.u64(0..=whole / 2);
        self.processors[who].at = At::Working;
        self.queue.put(self.queue.now() + took, Event::Goes(who));
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Goes(who) => match self.processors[who].at {
                At::Working => self.sections(who),
                At::Inside(lock) => {
                    self.release(lock);
                    let now = self.queue.now();
                    let p = &mut self.processors[who];
                    p.locked_ns += now - p.since;
                    self.sections(who);
                }
                At::Waiting(_) => unreachable!("a waiter is woken"),
            },
            Event::Tired(who, wait) => {
                let p = &self.processors[who];
                if let At::Waiting(lock) = p.at
                    && p.waits == wait
                {
                    let l = &mut self.locks[lock];
                    l.spinning.retain(|w| *w != who);
                    l.sleeping += 1;
                    let sleeps = self.costs.sleep_ns * l.sleeping as u64;
                    self.queue.put(self.queue.now() + sleeps, Event::Wakes(who));
                }
            }
            Event::Wakes(who) => {
                if let At::Waiting(lock) = self.processors[who].at {
                    self.locks[lock].sleeping -= 1;
                    self.enter(who, lock);
                }
            }
        }
    }

    /// Continues with the sections of a page, then with the next page.
    fn sections(&mut self, who: usize) {
        let p = &mut self.processors[who];
        let due = |s: &Section| (p.pages + 1).is_multiple_of(s.every);
        let next = (p.next..self.scheme.sections.len()).find(|i| due(&self.scheme.sections[*i]));
        let Some(next) = next else {
            (p.next, p.pages) = (0, p.pages + 1);
            if p.pages.is_multiple_of(BATCH) {
                self.free_contexts += 1;
                if let Some(other) = self.wants_context.pop_front() {
                    self.begin(other);
                }
                return self.begin(who);
            }
            return self.work(who);
        };
        p.next = next;
        p.since = self.queue.now();
        self.enter(who, self.scheme.sections[next].lock);
    }

    fn enter(&mut self, who: usize, lock: usize) {
        let l = &mut self.locks[lock];
        if !l.held {
            let line = match l.last {
                Some(last) if last != who => self.costs.transfer_ns,
                _ => self.costs.local_ns,
            };
            return self.inside(who, lock, line);
        }
        l.spinning.push(who);
        let p = &mut self.processors[who];
        p.at = At::Waiting(lock);
        p.waits += 1;
        let tired = self.queue.now() + self.costs.spin_ns;
        self.queue.put(tired, Event::Tired(who, p.waits));
    }

    /// Gives the lock to processor `who` after `line_ns`, for the duration of the section.
    fn inside(&mut self, who: usize, lock: usize, line_ns: Ns) {
        let l = &mut self.locks[lock];
        (l.held, l.last) = (true, Some(who));
        let p = &mut self.processors[who];
        p.at = At::Inside(lock);
        let section = &self.scheme.sections[p.next];
        p.next += 1;
        // Lines that this processor was the last to write are in its cache.
        let others = self.processors.len() as u64 - 1;
        let lines = u64::from(section.lines) * self.costs.transfer_ns * others
            / self.processors.len() as u64;
        let done = self.queue.now() + line_ns + section.inside_ns + lines;
        self.queue.put(done, Event::Goes(who));
    }

    fn release(&mut self, lock: usize) {
        let l = &mut self.locks[lock];
        l.held = false;
        let n = l.spinning.len();
        if n == 0 {
            return;
        }
        let next = l.spinning.swap_remove(self.rng.usize(0..n));
        // The release takes the line from the spinners, and the winner reads and acquires it; on average half
        // of the others read the line, one after the other, before the winner's exchange arrives.
        let handoff = 2 * self.costs.transfer_ns + (n as u64 - 1) * self.costs.transfer_ns / 2;
        self.inside(next, lock, handoff);
    }
}
