//! The book of extents against a model that knows which extents every process uses: forks and ends in any order, at any
//! moment, and no extent in use is ever written.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use canvas_core::swap::compaction::{CompactionScan, SearchOutcome};
use canvas_core::swap::extents::{BookArrays, BookState, ExtentBook, Slabs, Span};
use canvas_testing::random::scaled;
use canvas_types::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use proptest::prelude::*;

const SLABS: usize = 6;
const PER_SLAB: usize = 8;

/// What the tenant's processes share.
#[derive(Default)]
struct Tenant {
    /// Processes that refer to each slab, and children on their way.
    refs: [BTreeSet<usize>; SLABS],
    holds: [u32; SLABS],
    born: BTreeMap<usize, Option<Span>>,
    forks: u32,
    /// Slabs that can never be freed: a child on its way was killed.
    lost: BTreeSet<usize>,
}

struct Memory {
    live: Vec<AtomicU8>,
    written: Vec<AtomicU8>,
    hand: CompactionScan,
    spans: Vec<AtomicU64>,
    slab_live: Vec<AtomicU32>,
    roles: Vec<AtomicU32>,
    state: BookState,
    born: Option<Span>,
}

impl Memory {
    fn new() -> Memory {
        Memory {
            live: (0..SLABS * PER_SLAB).map(|_| AtomicU8::new(0)).collect(),
            written: (0..SLABS * PER_SLAB).map(|_| AtomicU8::new(0)).collect(),
            hand: CompactionScan::new(),
            spans: (0..SLABS * PER_SLAB).map(|_| AtomicU64::new(0)).collect(),
            slab_live: (0..SLABS).map(|_| AtomicU32::new(0)).collect(),
            roles: (0..SLABS).map(|_| AtomicU32::new(0)).collect(),
            state: BookState::new(),
            born: None,
        }
    }
    /// The child's book, as fork copies it. The state is overwritten by the child.
    fn copy(&self) -> Memory {
        let c = Memory::new();
        let all = |to: &[AtomicU32], from: &[AtomicU32]| {
            to.iter()
                .zip(from)
                .for_each(|(t, f)| t.store(f.load(Relaxed), Relaxed));
        };
        all(&c.slab_live, &self.slab_live);
        all(&c.roles, &self.roles);
        for (t, f) in c.live.iter().zip(&self.live) {
            t.store(f.load(Relaxed), Relaxed);
        }
        for (t, f) in c.written.iter().zip(&self.written) {
            t.store(f.load(Relaxed), Relaxed);
        }
        for (t, f) in c.spans.iter().zip(&self.spans) {
            t.store(f.load(Relaxed), Relaxed);
        }
        Memory {
            born: self.born,
            ..c
        }
    }
    fn book(&self) -> ExtentBook<'_> {
        ExtentBook {
            arrays: BookArrays {
                live: &self.live,
                written: &self.written,
                spans: &self.spans,
                slab_live: &self.slab_live,
                roles: &self.roles,
            },
            state: &self.state,
            slab_extents: PER_SLAB as u32,
            yield_now: std::thread::yield_now,
        }
    }
}

struct View(Rc<RefCell<Tenant>>, usize);

impl Slabs for View {
    fn high(&self) -> u32 {
        SLABS as u32
    }
    fn take(&self) -> Option<u32> {
        let mut t = self.0.borrow_mut();
        let free = (0..SLABS).find(|s| t.refs[*s].is_empty() && t.holds[*s] == 0)?;
        t.refs[free].insert(self.1);
        Some(free as u32)
    }
    fn give_up(&self, slab: u32) {
        assert!(self.0.borrow_mut().refs[slab as usize].remove(&self.1));
    }
    fn others(&self, slab: u32, on: &mut dyn FnMut(Span)) -> bool {
        let t = self.0.borrow();
        for p in t.refs[slab as usize].iter().filter(|p| **p != self.1) {
            on(t.born[p].unwrap_or(Span::ALL));
        }
        t.holds[slab as usize] == 0
    }
}

struct Process {
    id: usize,
    memory: Memory,
    /// The model: reasons to keep, by extent.
    held: Vec<u32>,
    /// On its way since this fork: not yet in the tenant's books.
    fork: Option<u32>,
}

impl Process {
    /// One of the extents that it uses, by index.
    fn held_at(&self, i: usize) -> Option<(usize, u32)> {
        let at = i.checked_rem(self.held.len())?;
        Some((at, self.held[at]))
    }
}

#[derive(Clone, Debug)]
enum Op {
    Take(usize),
    Hold(usize, usize),
    Drop(usize, usize),
    /// One of the held extents becomes durable, with this many pages.
    Written(usize, usize, u64),
    /// Takes the next extent worth emptying.
    Sparse(usize, u32),
    /// Chooses a slab to empty, and moves its next extent.
    Empty(usize, u64, u32),
    /// Gives up empty slabs.
    GiveUp(usize),
    Fork(usize),
    Arrive(usize),
    End(usize),
    /// The only process is killed, and another one takes over its slabs.
    Killed,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..9usize).prop_map(Op::Take),
        2 => (0..9usize, 0..99usize).prop_map(|(p, e)| Op::Hold(p, e)),
        9 => (0..9usize, 0..99usize).prop_map(|(p, e)| Op::Drop(p, e)),
        4 => (0..9usize, 0..99usize, 1..6u64).prop_map(|(p, e, n)| Op::Written(p, e, n)),
        4 => (0..9usize, 1..40u32).prop_map(|(p, n)| Op::Sparse(p, n)),
        4 => (0..9usize, 1..40u64, 0..9u32).prop_map(|(p, n, at)| Op::Empty(p, n, at)),
        1 => (0..9usize).prop_map(Op::GiveUp),
        2 => (0..9usize).prop_map(Op::Fork),
        2 => (0..9usize).prop_map(Op::Arrive),
        1 => (0..9usize).prop_map(Op::End),
        1 => Just(Op::Killed),
    ]
}

/// The tenant and its processes.
struct World {
    tenant: Rc<RefCell<Tenant>>,
    all: Vec<Process>,
    ids: usize,
}

impl World {
    fn new() -> World {
        let tenant = Rc::new(RefCell::new(Tenant::default()));
        tenant.borrow_mut().born.insert(0, None);
        let first = Process {
            id: 0,
            memory: Memory::new(),
            held: Vec::new(),
            fork: None,
        };
        World {
            tenant,
            all: vec![first],
            ids: 1,
        }
    }

    fn view(&self, id: usize) -> View {
        View(self.tenant.clone(), id)
    }

    fn apply(&mut self, op: &Op) {
        let n = self.all.len();
        let here = |p: usize| self.all[p % n].fork.is_none().then_some(p % n);
        match *op {
            Op::Fork(p) if n < 9 => here(p).into_iter().for_each(|p| self.fork(p)),
            Op::Fork(_) => return,
            Op::Arrive(p) => return self.arrive(p % n),
            Op::End(p) if n > 1 => return self.end(p % n),
            Op::End(_) => return,
            Op::Killed if n == 1 => here(0).into_iter().for_each(|p| self.killed(p)),
            Op::Killed => return,
            Op::Take(p) => here(p).into_iter().for_each(|p| self.take(p)),
            Op::Written(p, e, pages) => {
                let Some(p) = here(p) else { return };
                if let Some((_, e)) = self.all[p].held_at(e) {
                    self.all[p].memory.book().written(e, pages);
                }
            }
            Op::Sparse(p, scan_max) => {
                here(p).into_iter().for_each(|p| self.sparse(p, scan_max));
            }
            Op::Empty(p, part, at) => {
                here(p).into_iter().for_each(|p| self.empty(p, part, at));
            }
            Op::GiveUp(p) => {
                let Some(p) = here(p) else { return };
                let view = self.view(self.all[p].id);
                self.all[p].memory.book().give_up_empty(&view);
            }
            Op::Hold(p, e) => {
                let Some(p) = here(p) else { return };
                if let Some((_, e)) = self.all[p].held_at(e) {
                    self.all[p].memory.book().hold(e);
                    self.all[p].held.push(e);
                }
            }
            Op::Drop(p, e) => {
                let Some(p) = here(p) else { return };
                if let Some((at, e)) = self.all[p].held_at(e) {
                    let view = self.view(self.all[p].id);
                    self.all[p].memory.book().unhold(e, &view);
                    self.all[p].held.swap_remove(at);
                }
            }
        }
        self.check();
    }

    fn fork(&mut self, p: usize) {
        let parent = &self.all[p];
        let fork = {
            let mut t = self.tenant.borrow_mut();
            t.forks += 1;
            let fork = t.forks;
            parent.memory.book().forks(fork, SLABS as u32);
            parent
                .memory
                .book()
                .each_slab(SLABS as u32, |s| t.holds[s as usize] += 1);
            fork
        };
        let child = Process {
            id: self.ids,
            memory: parent.memory.copy(),
            held: parent.held.clone(),
            fork: Some(fork),
        };
        self.ids += 1;
        self.all.push(child);
    }

    /// Its successor knows which slabs it had, and from its entries which extents.
    fn killed(&mut self, p: usize) {
        let view = self.view(self.all[p].id);
        let this = &mut self.all[p];
        this.memory = Memory::new();
        let refers = |slab: usize| self.tenant.borrow().refs[slab].contains(&this.id);
        let book = this.memory.book();
        let slabs = (0..SLABS).filter(|slab| refers(*slab));
        slabs.for_each(|slab| book.take_over(slab as u32));
        for e in &this.held {
            assert!(book.take_over_extent(*e));
        }
        for slab in (0..=SLABS).filter(|slab| *slab == SLABS || !refers(*slab)) {
            assert!(!book.take_over_extent((slab * PER_SLAB) as u32));
        }
        book.taken_over(&view);
        for slab in 0..SLABS {
            let needed = this.held.iter().any(|e| *e as usize / PER_SLAB == slab);
            assert_eq!(refers(slab), needed, "slab {slab}");
        }
        for e in &this.held {
            let reasons = this.held.iter().filter(|h| *h == e).count();
            assert_eq!(book.pages_written(*e) as usize, reasons);
        }
    }

    /// A child that is on its way begins to run.
    fn arrive(&mut self, p: usize) {
        let view = self.view(self.all[p].id);
        let child = &mut self.all[p];
        let Some(fork) = child.fork.take() else {
            return;
        };
        let born = Some(Span::of_child(child.memory.born, fork));
        child.memory.born = born;
        {
            let mut t = self.tenant.borrow_mut();
            t.born.insert(child.id, born);
            child.memory.book().each_slab(SLABS as u32, |s| {
                t.refs[s as usize].insert(child.id);
                t.holds[s as usize] -= 1;
            });
        }
        child.memory.book().forked(&view);
    }

    fn end(&mut self, p: usize) {
        let gone = self.all.swap_remove(p);
        let mut t = self.tenant.borrow_mut();
        if gone.fork.is_some() {
            gone.memory.book().each_slab(SLABS as u32, |s| {
                t.lost.insert(s as usize);
            });
        }
        t.refs.iter_mut().for_each(|r| {
            r.remove(&gone.id);
        });
    }

    fn take(&mut self, p: usize) {
        let id = self.all[p].id;
        let Some(e) = self.all[p].memory.book().take(&self.view(id)) else {
            return;
        };
        for other in &self.all {
            assert!(
                !other.held.contains(&e),
                "process {id} writes extent {e}, which process {} refers to",
                other.id
            );
        }
        self.all[p].held.push(e);
    }

    fn sparse(&mut self, p: usize, scan_max: u32) {
        let this = &self.all[p];
        let hand = &this.memory.hand;
        let looked = this
            .memory
            .book()
            .sparse(hand, scan_max, &self.view(this.id));
        let SearchOutcome::Found(e) = looked else {
            return;
        };
        let kept = this.held.iter().filter(|h| **h == e).count();
        let written = this.memory.written[e as usize].load(Relaxed);
        // Emptying it is useful: it belongs to this process, fewer pages are left than were written, and nobody else
        // needs it, or it would not be free afterwards.
        assert!(kept > 0 && kept * 4 <= usize::from(written) * 3);
        self.moves(p, e);
    }

    fn empty(&mut self, p: usize, part: u64, at: u32) {
        let this = &self.all[p];
        let (book, view) = (this.memory.book(), self.view(this.id));
        if book.emptied().is_none() && !book.begin_emptying(part, &view) {
            return;
        }
        let slab = book.emptied().unwrap();
        assert!(self.tenant.borrow().refs[slab as usize].contains(&this.id));
        if let Some((e, n)) = book.next_kept(slab, at, &view) {
            assert_eq!(e, slab * PER_SLAB as u32 + n);
            assert!(n >= at && this.held.contains(&e));
            self.moves(p, e);
        }
    }

    /// The extent is held once more to be moved, and nobody else needs it.
    fn moves(&mut self, p: usize, e: u32) {
        let id = self.all[p].id;
        for other in self.all.iter().filter(|o| o.id != id) {
            let needs = other.held.contains(&e);
            assert!(!needs, "extent {e} is needed by {}", other.id);
        }
        self.all[p].held.push(e);
    }

    /// An extent in use is never given up.
    fn check(&self) {
        let t = self.tenant.borrow();
        for q in self.all.iter().filter(|q| q.fork.is_none()) {
            for e in &q.held {
                assert!(t.refs[*e as usize / PER_SLAB].contains(&q.id));
            }
        }
    }

    /// Every process arrives, drops everything and ends: all slabs can be taken again, except lost ones.
    fn finish(mut self) {
        for p in 0..self.all.len() {
            self.arrive(p);
        }
        for p in &self.all {
            for e in &p.held {
                p.memory.book().unhold(*e, &self.view(p.id));
            }
        }
        let alone = &self.all[0];
        for p in &self.all[1..] {
            let mut t = self.tenant.borrow_mut();
            t.refs.iter_mut().for_each(|r| {
                r.remove(&p.id);
            });
        }
        let lost = self.tenant.borrow().lost.len();
        let view = self.view(alone.id);
        let n = std::iter::from_fn(|| alone.memory.book().take(&view)).count();
        assert!(n >= (SLABS - lost) * PER_SLAB, "{n} with {lost} slabs lost");
    }
}

fn run(ops: &[Op]) {
    let mut world = World::new();
    for op in ops {
        world.apply(op);
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(500)))]
    #[test]
    fn nobody_writes_what_somebody_refers_to(ops in proptest::collection::vec(op(), 1..250)) {
        run(&ops);
    }
}

/// A parent whose children overlap endlessly stays within a few slabs.
#[test]
fn overlapping_children_do_not_use_up_the_slabs() {
    let tenant = Rc::new(RefCell::new(Tenant::default()));
    tenant.borrow_mut().born.insert(0, None);
    let parent = Memory::new();
    let view = |id| View(tenant.clone(), id);
    let mut children = std::collections::VecDeque::new();
    let mut held = Vec::new();
    for fork in 1..400u32 {
        parent.book().forks(fork, SLABS as u32);
        let child = Memory {
            born: Some(Span::of_child(None, fork)),
            ..parent.copy()
        };
        let id = fork as usize;
        tenant.borrow_mut().born.insert(id, child.born);
        child.book().each_slab(SLABS as u32, |s| {
            tenant.borrow_mut().refs[s as usize].insert(id);
        });
        child.book().forked(&view(id));
        children.push_back((id, child));
        if children.len() > 2 {
            let (gone, _) = children.pop_front().unwrap();
            let mut t = tenant.borrow_mut();
            t.refs.iter_mut().for_each(|r| {
                r.remove(&gone);
            });
        }
        // Everything is rewritten between two forks.
        for e in std::mem::take(&mut held) {
            parent.book().unhold(e, &view(0));
        }
        for _ in 0..6 {
            held.push(parent.book().take(&view(0)).expect("there is room"));
        }
    }
}

/// Of one process's extents, in any state, those that kept half or less are found within one round, and fuller ones
/// later; full, unwritten and free ones never.
#[test]
fn the_emptiest_extents_are_found_first() {
    let tenant = Rc::new(RefCell::new(Tenant::default()));
    tenant.borrow_mut().born.insert(0, None);
    let memory = Memory::new();
    let (book, view) = (memory.book(), View(tenant.clone(), 0));
    // Of 16 pages each, this many are left; 0 is an extent that is being written.
    let left = [16, 8, 3, 0, 9, 12, 13, 1];
    let extents: Vec<u32> = left
        .iter()
        .map(|left| {
            let e = book.take(&view).unwrap();
            for _ in 1..*left {
                book.hold(e);
            }
            if *left != 0 {
                book.written(e, 16);
            }
            e
        })
        .collect();
    assert_eq!(book.room(SLABS as u32), (8, 0));
    let mut rounds = Vec::new();
    let mut found = Vec::new();
    loop {
        match book.sparse(&memory.hand, 3, &view) {
            SearchOutcome::Found(e) => {
                let i = extents.iter().position(|x| *x == e).unwrap();
                found.push(left[i]);
                // Emptied: all pages, and the hold.
                for _ in 0..=left[i] {
                    book.unhold(e, &view);
                }
            }
            SearchOutcome::NotYet => rounds.push(found.len()),
            SearchOutcome::None => break,
        }
        assert!(rounds.len() < 200, "it ends");
    }
    assert_eq!(found, [8, 3, 1, 9, 12]);
    assert_eq!(book.room(SLABS as u32), (8, 5));
    assert_eq!(book.sparse(&memory.hand, 99, &view), SearchOutcome::None);
}
