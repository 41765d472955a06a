//! The agent's bookkeeping of requests: which one is next, how many may run, and when a slab can be freed. Pure: no
//! clock, no shared memory, no I/O.
//!
//! * Requests are taken by class: demand reads before prefetches, and those before writes, each class up to a limit;
//!   processes in turn. A request that is not taken stays in its mailbox.
//! * Writes of one extent run one after the other, in the order in which they were taken. An extent that is being
//!   written cannot be read.
//! * A released slab is freed when no operation on it is under way; until then no new one starts there.
//! * No more slabs hold data than the tenant may have, whatever its processes claim.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use canvas_sched::Class;
use canvas_shm::far::{SLAB_EXTENTS, SLABS_MAX};
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, WRITES};
use canvas_shm::segment::PROCS_MAX;

/// Number of request classes, the most urgent first.
const CLASSES: usize = Class::ALL.len();

/// Limits on operations under way, by class, and on slabs.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Demand reads.
    pub demands: usize,
    /// Prefetches.
    pub fetches: usize,
    /// Writes.
    pub writes: usize,
    /// Slabs that may hold data.
    pub slabs: usize,
}

/// A request's origin: its process and its index in that process's mailbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    /// Index of the process.
    pub proc: usize,
    /// Index of the request.
    pub i: usize,
}

/// Result of [`RequestTable::begin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The operation may run; its number.
    Run(u32),
    /// The operation has this number, and waits for another write of the extent: [`RequestTable::end`] returns it
    /// later.
    Waits(u32),
    /// Its slab is being freed, or (a read) its extent is being written.
    Refused,
    /// A write into a new slab when the tenant has as many as it may have.
    NoRoom,
}

/// Result of [`RequestTable::end`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// A waiting write that may run now.
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
    /// Operation numbers; the first one runs.
    queue: VecDeque<u32>,
}

/// The bookkeeping of one tenant's requests.
pub struct RequestTable {
    limits: [usize; CLASSES],
    slabs_max: usize,
    /// By process, a bit for each request seen and not taken.
    waiting: Vec<u64>,
    /// Of those, the prefetches that a thread waits for by now.
    urgent: Vec<u64>,
    /// By class, a bit for each process with such requests.
    procs: [[u64; PROCS_MAX / 64]; CLASSES],
    /// By class, where the next search begins.
    turn: [usize; CLASSES],
    running: [usize; CLASSES],
    ops: Vec<Option<Op>>,
    idle: Vec<u32>,
    writers: BTreeMap<u32, Writers>,
    /// Number of operations by slab.
    busy: Vec<u32>,
    /// Slabs that are known to hold data.
    live: BTreeSet<u32>,
    releasing: BTreeSet<u32>,
}

impl RequestTable {
    /// An empty table with these limits.
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

    /// A thread waits for this prefetch: from here on it is a demand read. False when it is not waiting here.
    pub fn escalate(&mut self, from: Origin) -> bool {
        let Origin { proc, i } = from;
        if self.waiting[proc] & FETCHES & 1 << i == 0 {
            return false;
        }
        self.urgent[proc] |= 1 << i;
        self.note(proc);
        true
    }

    /// Waiting requests of process `proc` in one class.
    fn waiting_of(&self, class: Class, proc: usize) -> u64 {
        let urgent = self.urgent[proc];
        let among = match class {
            Class::Demand => DEMANDS | urgent,
            Class::Prefetch => FETCHES & !urgent,
            Class::SwapOut => WRITES,
        };
        self.waiting[proc] & among
    }

    /// Updates the classes in which the process has waiting requests.
    fn note(&mut self, proc: usize) {
        for class in Class::ALL {
            let any = self.waiting_of(class, proc) != 0;
            let word = &mut self.procs[class as usize][proc / 64];
            *word = *word & !(1 << (proc % 64)) | u64::from(any) << (proc % 64);
        }
    }

    /// The next request to take and its current class, if one may run. The table forgets it: the caller takes it from
    /// the mailbox, and begins it or not.
    pub fn take(&mut self) -> Option<(Origin, Class)> {
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
                return Some((Origin { proc, i }, class));
            }
        }
        None
    }

    /// Whether [`RequestTable::take`] would return a request now.
    pub fn may_take(&self) -> bool {
        (0..CLASSES).any(|at| {
            self.running[at] < self.limits[at] && self.procs[at].iter().any(|word| *word != 0)
        })
    }

    /// The first process, from the class's turn on, that has a request waiting.
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

    /// Begins a taken request, whose fields the caller has validated.
    ///
    /// # Panics
    /// When more operations begin than [`RequestTable::take`] allowed.
    pub fn begin(&mut self, class: Class, kind: Kind, extent: u32) -> Admission {
        let slab = extent / SLAB_EXTENTS as u32;
        let writes = kind == Kind::Write;
        if self.releasing.contains(&slab) || !writes && self.writers.contains_key(&extent) {
            return Admission::Refused;
        }
        if writes && !self.live.contains(&slab) {
            if self.live.len() >= self.slabs_max {
                return Admission::NoRoom;
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
                return Admission::Waits(id);
            }
        }
        Admission::Run(id)
    }

    /// Ends an operation that ran.
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

    /// No process uses the slab any more. True when it can be freed now; otherwise [`RequestTable::end`] returns it
    /// later. False for a slab that is already being released.
    pub fn release(&mut self, slab: u32) -> bool {
        self.releasing.insert(slab) && self.busy[slab as usize] == 0
    }

    /// Slabs that were released and are not freed yet.
    pub fn releasing(&self) -> usize {
        self.releasing.len()
    }

    /// The store keeps nothing of the slab any more.
    pub fn freed(&mut self, slab: u32) {
        self.releasing.remove(&slab);
        self.live.remove(&slab);
    }

    /// Whether the extent is in a slab that holds data.
    pub fn has_data(&self, extent: u32) -> bool {
        self.live.contains(&(extent / SLAB_EXTENTS as u32))
    }

    /// Changes how many slabs may hold data; those that already do stay.
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
