//! The agent's bookkeeping against a naive model: lists that are searched from the front.

use canvas_agent::request_table::{Admission, Limits, Origin, RequestTable};
use canvas_sched::Class;
use canvas_shm::far::SLAB_EXTENTS;
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, WRITES};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    demands: 3,
    fetches: 2,
    writes: 2,
    slabs: 2,
};
const PROCS: [usize; 3] = [0, 63, 1023];

#[derive(Clone, Debug)]
enum Step {
    Post {
        proc: usize,
        bits: u64,
    },
    /// Takes the next request, for this extent.
    Take {
        writes: bool,
        slab: u32,
        extent: u32,
    },
    /// Ends one of the running operations.
    End {
        which: usize,
    },
    Release {
        slab: u32,
    },
    /// Changes how many slabs may hold data.
    Bound {
        slabs: usize,
    },
    /// The store has freed a slab.
    Freed,
    /// A thread waits for a prefetch.
    Escalate {
        proc: usize,
        i: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bits = prop_oneof![
        Just(1),
        Just(0b11),
        Just(3 << 32),
        Just(1 << 56),
        Just(3 << 60)
    ];
    let step = prop_oneof![
        3 => (0..PROCS.len(), bits).prop_map(|(p, bits)| Step::Post { proc: PROCS[p], bits }),
        5 => (any::<bool>(), 0..4u32, 0..2u32)
            .prop_map(|(writes, slab, extent)| Step::Take { writes, slab, extent }),
        4 => any::<usize>().prop_map(|which| Step::End { which }),
        1 => (0..4u32).prop_map(|slab| Step::Release { slab }),
        1 => (0..5usize).prop_map(|slabs| Step::Bound { slabs }),
        1 => Just(Step::Freed),
        2 => (0..PROCS.len(), prop_oneof![Just(0), Just(32), Just(33), Just(56)])
            .prop_map(|(p, i)| Step::Escalate { proc: PROCS[p], i }),
    ];
    prop::collection::vec(step, 1..200)
}

/// An operation of the model.
#[derive(Clone, Copy, Debug)]
struct Op {
    id: u32,
    class: usize,
    writes: bool,
    slab: u32,
    extent: u32,
    runs: bool,
}

#[derive(Default)]
struct Oracle {
    posted: Vec<Origin>,
    escalated: Vec<Origin>,
    /// Process taken from last, by class.
    last: [usize; 3],
    ops: Vec<Op>,
    live: Vec<u32>,
    /// Slabs to be freed; true when the store was asked.
    releasing: Vec<(u32, bool)>,
}

fn class_of(i: usize) -> usize {
    [DEMANDS, FETCHES, WRITES]
        .iter()
        .position(|c| c & 1 << i != 0)
        .unwrap()
}

impl Oracle {
    fn class(&self, from: Origin) -> usize {
        if self.escalated.contains(&from) {
            0
        } else {
            class_of(from.i)
        }
    }
    fn take(&mut self) -> Option<(Origin, Class)> {
        let limits = [LIMITS.demands, LIMITS.fetches, LIMITS.writes];
        for (class, limit) in limits.into_iter().enumerate() {
            if self.ops.iter().filter(|o| o.class == class).count() == limit {
                continue;
            }
            // Processes in turn: the first one behind the last.
            let from = self.last[class];
            let best = self
                .posted
                .iter()
                .filter(|f| self.class(**f) == class)
                .min_by_key(|f| ((f.proc + 1024 - from) % 1024, f.i))
                .copied();
            if let Some(best) = best {
                self.posted.retain(|f| *f != best);
                self.escalated.retain(|f| *f != best);
                self.last[class] = (best.proc + 1) % 1024;
                return Some((best, Class::ALL[class]));
            }
        }
        None
    }
    fn busy(&self, slab: u32) -> bool {
        self.ops.iter().any(|o| o.slab == slab)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn as_the_oracle_says(steps in steps()) {
        let mut requests = RequestTable::new(LIMITS);
        let mut o = Oracle::default();
        let mut slabs_max = LIMITS.slabs;
        for step in steps {
            match step {
                Step::Post { proc, bits } => {
                    requests.post(proc, bits);
                    for i in (0..64).filter(|i| bits & 1 << i != 0) {
                        let from = Origin { proc, i };
                        if !o.posted.contains(&from) {
                            o.posted.push(from);
                        }
                    }
                }
                Step::Take { writes, slab, extent } => {
                    let from = requests.take();
                    prop_assert_eq!(from, o.take());
                    let Some((_, class)) = from else { continue };
                    let extent = slab * SLAB_EXTENTS as u32 + extent;
                    let kind = if writes { Kind::Write } else { Kind::Read };
                    let begun = requests.begin(class, kind, extent);
                    let writers = o.ops.iter().filter(|x| x.writes && x.extent == extent).count();
                    prop_assert_eq!(requests.has_data(extent), o.live.contains(&slab) || matches!(begun, Admission::Run(_) | Admission::Waits(_)) && writes);
                    let refused = o.releasing.iter().any(|(s, _)| *s == slab)
                        || !writes && writers > 0;
                    let no_room = writes && !o.live.contains(&slab) && o.live.len() >= slabs_max;
                    let id = match begun {
                        Admission::Refused => {
                            prop_assert!(refused);
                            continue;
                        }
                        Admission::NoRoom => {
                            prop_assert!(!refused && no_room);
                            continue;
                        }
                        Admission::Run(id) | Admission::Waits(id) => id,
                    };
                    let runs = matches!(begun, Admission::Run(_));
                    prop_assert!(!refused && !no_room);
                    prop_assert_eq!(runs, !writes || writers == 0);
                    prop_assert!(o.ops.iter().all(|x| x.id != id), "a number for two");
                    if writes && !o.live.contains(&slab) {
                        o.live.push(slab);
                    }
                    o.ops.push(Op { id, class: class as usize, writes, slab, extent, runs });
                }
                Step::End { which } => {
                    let running: Vec<_> = o.ops.iter().filter(|x| x.runs).copied().collect();
                    if running.is_empty() {
                        continue;
                    }
                    let op = running[which % running.len()];
                    o.ops.retain(|x| x.id != op.id);
                    let ended = requests.end(op.id);
                    let next = o.ops.iter_mut().find(|x| op.writes && x.writes && x.extent == op.extent);
                    prop_assert_eq!(ended.next, next.as_ref().map(|x| x.id));
                    if let Some(next) = next {
                        next.runs = true;
                    }
                    let busy = o.busy(op.slab);
                    let mut free = None;
                    for (slab, told) in &mut o.releasing {
                        if *slab == op.slab && !busy {
                            prop_assert!(!*told, "freed under an operation");
                            *told = true;
                            free = Some(*slab);
                        }
                    }
                    prop_assert_eq!(ended.free, free);
                }
                Step::Release { slab } => {
                    let now = requests.release(slab);
                    let known = o.releasing.iter().any(|(s, _)| *s == slab);
                    prop_assert_eq!(now, !known && !o.busy(slab));
                    if !known {
                        o.releasing.push((slab, now));
                    }
                }
                Step::Bound { slabs } => {
                    slabs_max = slabs;
                    requests.set_slabs_max(slabs);
                }
                Step::Escalate { proc, i } => {
                    let from = Origin { proc, i };
                    let waits = class_of(i) == 1 && o.posted.contains(&from);
                    prop_assert_eq!(requests.escalate(from), waits);
                    if waits && !o.escalated.contains(&from) {
                        o.escalated.push(from);
                    }
                }
                Step::Freed => {
                    if let Some(at) = o.releasing.iter().position(|(_, told)| *told) {
                        let (slab, _) = o.releasing.remove(at);
                        requests.freed(slab);
                        o.live.retain(|s| *s != slab);
                    }
                }
            }
            prop_assert_eq!(requests.under_way(), o.ops.len());
        }
    }
}
