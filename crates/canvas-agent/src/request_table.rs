//! The agent's bookkeeping: which request is next, what may run at one time, when a slab can be
//! freed. Pure: no clock, no shared memory, no I/O.
//!
//! * Requests are taken by class: what is needed now before what is read ahead, and that before
//!   writes, each class up to a bound; processes in turn. What is not taken stays in its mailbox.
//! * Writes of one extent run one after the other, in the order in which they were taken. An extent
//!   that is being written cannot be read.
//! * A released slab is freed when nothing of it is under way; until it is, nothing new begins there.
//! * No more slabs hold data than the tenant may have, whatever its processes claim.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use canvas_sched::Class;
use canvas_shm::far::{SLAB_EXTENTS, SLABS_MAX};
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, WRITES};
use canvas_shm::segment::PROCS_MAX;

/// Classes of requests, the most urgent first.
const CLASSES: usize = Class::ALL.len();

/// Bounds on operations under way, a class each.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What is needed now.
    pub demands: usize,
    /// Read ahead.
    pub fetches: usize,
    /// Written.
    pub writes: usize,
    /// Slabs that may hold data.
    pub slabs: usize,
}

/// A request: process and place in its mailbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct From {
    /// Index of the process.
    pub proc: usize,
    /// Index of the request.
    pub i: usize,
}

/// Answer to [`RequestTable::begin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It may run: the operation's number.
    Run(u32),
    /// It has a number, and waits for another write of the extent: [`RequestTable::end`] names it.
    Waits(u32),
    /// Its slab is being freed, or (a read) its extent is being written.
    Refused,
    /// A write into one slab more than the tenant may have.
    NoRoom,
}

/// Answer to [`RequestTable::end`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// A write that may run now.
    pub next: Option<u32>,
    /// A slab that can be freed now.
    pub free: Option<u32>,
}

struct Op {
    extent: u32,
    writes: bool,
    class: usize,
}

#[derive(Default)]
struct Writers {
    /// Numbers; the first runs.
    queue: VecDeque<u32>,
}

/// The bookkeeping.
pub struct RequestTable {
    limits: [usize; CLASSES],
    slabs_max: usize,
    /// Requests seen and not taken, a bit each, by process.
    waiting: Vec<u64>,
    /// Of them, those that were to be read ahead and that a thread waits for.
    urgent: Vec<u64>,
    /// Processes with such, a bit each, by class.
    procs: [[u64; PROCS_MAX / 64]; CLASSES],
    /// Where the next search begins, by class.
    turn: [usize; CLASSES],
    running: [usize; CLASSES],
    ops: Vec<Option<Op>>,
    idle: Vec<u32>,
    writers: BTreeMap<u32, Writers>,
    /// Operations by slab.
    busy: Vec<u32>,
    /// Slabs that hold data, as far as is known.
    live: BTreeSet<u32>,
    releasing: BTreeSet<u32>,
}

impl RequestTable {
    /// Empty, with these bounds.
    pub fn new(limits: Limits) -> RequestTable {
        let bounds = [limits.demands, limits.fetches, limits.writes];
        let ops: usize = bounds.iter().sum();
        RequestTable {
            limits: bounds,
            slabs_max: limits.slabs,
            waiting: vec![0; PROCS_MAX],
            urgent: vec![0; PROCS_MAX],
            procs: [[0; PROCS_MAX / 64]; CLASSES],
            turn: [0; CLASSES],
            running: [0; CLASSES],
            ops: (0..ops).map(|_| None).collect(),
            idle: (0..ops as u32).rev().collect(),
            writers: BTreeMap::new(),
            busy: vec![0; SLABS_MAX],
            live: BTreeSet::new(),
            releasing: BTreeSet::new(),
        }
    }

    /// Process `proc` has posted these requests, a bit each.
    pub fn post(&mut self, proc: usize, requests: u64) {
        self.waiting[proc] |= requests;
        self.note(proc);
    }

    /// A thread waits for what was to be read ahead: from here on it is needed now. False when it does not
    /// wait here.
    pub fn urge(&mut self, from: From) -> bool {
        let From { proc, i } = from;
        if self.waiting[proc] & FETCHES & 1 << i == 0 {
            return false;
        }
        self.urgent[proc] |= 1 << i;
        self.note(proc);
        true
    }

    /// What waits of process `proc`, of one class.
    fn waiting_of(&self, class: Class, proc: usize) -> u64 {
        let urgent = self.urgent[proc];
        let among = match class {
            Class::Demand => DEMANDS | urgent,
            Class::Prefetch => FETCHES & !urgent,
            Class::SwapOut => WRITES,
        };
        self.waiting[proc] & among
    }

    /// Puts right in which classes the process has something waiting.
    fn note(&mut self, proc: usize) {
        for class in Class::ALL {
            let any = self.waiting_of(class, proc) != 0;
            let word = &mut self.procs[class as usize][proc / 64];
            *word = *word & !(1 << (proc % 64)) | u64::from(any) << (proc % 64);
        }
    }

    /// The next request to take, if one may run, and what it is by now. It is forgotten here: the caller
    /// takes it from the mailbox, and begins it or not.
    pub fn take(&mut self) -> Option<(From, Class)> {
        for class in Class::ALL {
            let at = class as usize;
            if self.running[at] == self.limits[at] {
                continue;
            }
            if let Some(proc) = self.next_proc(at) {
                let i = self.waiting_of(class, proc).trailing_zeros() as usize;
                self.waiting[proc] &= !(1 << i);
                self.urgent[proc] &= !(1 << i);
                self.note(proc);
                self.turn[at] = (proc + 1) % PROCS_MAX;
                return Some((From { proc, i }, class));
            }
        }
        None
    }

    /// Would [`RequestTable::take`] give something now?
    pub fn may_take(&self) -> bool {
        (0..CLASSES).any(|at| {
            self.running[at] < self.limits[at] && self.procs[at].iter().any(|word| *word != 0)
        })
    }

    /// The first process from the class's turn on that has something waiting.
    fn next_proc(&self, class: usize) -> Option<usize> {
        let (words, from) = (&self.procs[class], self.turn[class]);
        let n = words.len();
        (0..=n).find_map(|k| {
            let w = (from / 64 + k) % n;
            let mut word = words[w];
            if k == 0 {
                word &= !0 << (from % 64);
            }
            (word != 0).then(|| w * 64 + word.trailing_zeros() as usize)
        })
    }

    /// A taken request: what it wants is possible as far as its fields go.
    ///
    /// # Panics
    /// When the request is not one that [`RequestTable::take`] gave.
    pub fn begin(&mut self, class: Class, kind: Kind, extent: u32) -> Begun {
        let slab = extent / SLAB_EXTENTS as u32;
        let writes = kind == Kind::Write;
        if self.releasing.contains(&slab) || !writes && self.writers.contains_key(&extent) {
            return Begun::Refused;
        }
        if writes && !self.live.contains(&slab) {
            if self.live.len() >= self.slabs_max {
                return Begun::NoRoom;
            }
            self.live.insert(slab);
        }
        let class = class as usize;
        let id = self.idle.pop().expect("as many numbers as may run");
        self.ops[id as usize] = Some(Op {
            extent,
            writes,
            class,
        });
        self.running[class] += 1;
        self.busy[slab as usize] += 1;
        if writes {
            let writers = self.writers.entry(extent).or_default();
            writers.queue.push_back(id);
            if writers.queue.len() > 1 {
                return Begun::Waits(id);
            }
        }
        Begun::Run(id)
    }

    /// An operation that ran has ended.
    ///
    /// # Panics
    /// When there is no such operation.
    pub fn end(&mut self, id: u32) -> Ended {
        let op = self.ops[id as usize].take().expect("begun");
        self.idle.push(id);
        self.running[op.class] -= 1;
        let mut next = None;
        if op.writes {
            let writers = self.writers.get_mut(&op.extent).expect("its own");
            assert_eq!(writers.queue.pop_front(), Some(id), "only the first runs");
            next = writers.queue.front().copied();
            if next.is_none() {
                self.writers.remove(&op.extent);
            }
        }
        let slab = op.extent / SLAB_EXTENTS as u32;
        self.busy[slab as usize] -= 1;
        let idle = self.busy[slab as usize] == 0;
        let free = (idle && self.releasing.contains(&slab)).then_some(slab);
        Ended { next, free }
    }

    /// A slab is nobody's any more. True when it can be freed now; else [`RequestTable::end`] tells. Once for
    /// each release: nothing new when it is known already.
    pub fn release(&mut self, slab: u32) -> bool {
        self.releasing.insert(slab) && self.busy[slab as usize] == 0
    }

    /// Slabs that were released and are not freed yet.
    pub fn releasing(&self) -> usize {
        self.releasing.len()
    }

    /// Nothing of the slab is kept any more.
    pub fn freed(&mut self, slab: u32) {
        self.releasing.remove(&slab);
        self.live.remove(&slab);
    }

    /// Does the extent lie in a slab that holds data?
    pub fn knows(&self, extent: u32) -> bool {
        self.live.contains(&(extent / SLAB_EXTENTS as u32))
    }

    /// Changes how many slabs may hold data; those that do stay.
    pub fn set_slabs_max(&mut self, slabs: usize) {
        self.slabs_max = slabs;
    }

    /// Takeover: the slab may hold data.
    pub fn found(&mut self, slab: u32) {
        self.live.insert(slab);
    }

    /// Operations that have a number.
    pub fn under_way(&self) -> usize {
        self.running.iter().sum()
    }
}
