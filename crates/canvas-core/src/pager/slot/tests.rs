use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const SLOTS: usize = 6;
const PAGES: u32 = 8;

std::thread_local! {
    /// Number of the thread that a test plays, which selects its magazine.
    static THREAD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Begins to write the oldest slot out.
fn write_oldest(t: &SlotTable) -> Option<Job> {
    let mut place = [SlotRef::default()];
    (t.oldest(&mut place) == 1).then(|| t.begin_write(place[0]).expect("it counts"))
}

/// Memory of a table.
struct Memory {
    control: Control,
    halves: [Vec<AtomicU32>; 3],
    words: [Vec<AtomicU64>; 2],
}

impl Memory {
    fn new() -> Memory {
        let halves = || (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        let memory = Memory {
            control: Control::new(),
            halves: [halves(), halves(), halves()],
            words: [words(SLOTS), words(16)],
        };
        memory.table().set_capacity(SLOTS);
        memory
    }
    fn table(&self) -> SlotTable<'_> {
        SlotTable {
            control: &self.control,
            states: &self.halves[0],
            pages: &self.halves[1],
            entries: &self.words[0],
            free_stack: &self.halves[2],
            ring: &self.words[1],
            threads: Threads {
                yield_now: || {},
                number: || THREAD.get(),
            },
        }
    }
}

/// One slot with page 7 in it, enqueued.
fn full(t: &SlotTable, entry: u32) -> SlotRef {
    let mut got = [SlotRef::default()];
    assert_eq!(t.alloc(&mut got).0, 1);
    t.fill(got[0], PageId(7), SwapEntry(entry), entry != 0);
    t.enqueue(&got);
    got[0]
}

#[test]
fn transitions() {
    use SlotState::*;
    let all = [
        Free, Owned, Full, Writing, Taken, Detached, WriterDone, TakerDone,
    ];
    for s in all {
        assert_eq!(SlotState::of(s as u32), s);
        let next: Vec<SlotState> = all.into_iter().filter(|n| s.may_become(*n)).collect();
        let want: &[SlotState] = match s {
            Free => &[Owned],
            Owned => &[Free, Full],
            Full => &[Writing, Taken],
            Writing => &[Free, Full, Detached],
            Taken => &[Free, Full],
            Detached => &[Writing, WriterDone, TakerDone],
            WriterDone => &[Free, Full],
            TakerDone => &[Free],
        };
        assert_eq!(next, want, "from {s:?}");
    }
    // Memory that was never written is a table of free slots.
    assert_eq!(Free as u32, 0);
}

#[test]
fn a_word_names_its_slot() {
    for slot in [0, 1, 32767] {
        let w = Word(0).with_state(State::Cached).with_entry(in_word(slot));
        assert!(w.entry().is_some());
        assert_eq!(of_word(w), slot);
    }
}

#[test]
fn a_job_moves_the_word_only_while_it_names_the_slot() {
    let job = Job {
        slot: 3,
        page: PageId(7),
        entry: SwapEntry::NONE,
        far_copy: false,
    };
    let cached = Word(0).with_state(State::Cached).with_entry(in_word(3));
    let far = cached.with_state(State::Far).with_entry(SwapEntry(9));
    for (cur, moves) in [
        (cached, true),
        (cached.with_entry(in_word(2)), false),
        (cached.with_state(State::Filling), false),
        (cached.with_state(State::Mapping), false),
        (far, false),
    ] {
        let w = AtomicU64::new(cur.0);
        assert_eq!(job.publish(&w, cur, far), moves);
        assert_eq!(word::load(&w), if moves { far } else { cur });
    }
    // Changed since it was read.
    let w = AtomicU64::new(cached.with_state(State::Filling).0);
    assert!(!job.publish(&w, cached, far));
}

#[test]
fn the_bound_holds_and_may_move() {
    let m = Memory::new();
    let t = m.table();
    let mut out = [SlotRef::default(); SLOTS];
    t.set_capacity(2);
    assert_eq!(t.alloc(&mut out), (2, 2));
    assert_eq!((t.used(), t.available()), (2, 0));
    t.set_capacity(1);
    t.give_back(&out[..1]);
    assert_eq!(t.alloc(&mut out[..1]), (0, 0));
    t.set_capacity(1000);
    assert_eq!(t.capacity(), SLOTS as u32);
    // The freed slot is not new.
    assert_eq!(t.alloc(&mut out[2..]), (4, 3));
}

#[test]
fn a_place_that_comes_late_is_none() {
    let m = Memory::new();
    let t = m.table();
    let mut first = [SlotRef::default()];
    t.alloc(&mut first);
    t.fill(first[0], PageId(7), SwapEntry::NONE, false);
    // Taken before it is enqueued, and handed out again.
    t.finish(t.take(first[0].slot()));
    let mut second = [SlotRef::default()];
    t.alloc(&mut second);
    assert_eq!(first[0].slot(), second[0].slot());
    t.fill(second[0], PageId(8), SwapEntry::NONE, false);
    t.enqueue(&first);
    assert!(write_oldest(&t).is_none(), "page 8 is not Cached yet");
    t.enqueue(&second);
    assert_eq!(write_oldest(&t).map(|j| j.page), Some(PageId(8)));
}

#[test]
fn whoever_ends_last_frees() {
    for taker_first in [false, true] {
        let m = Memory::new();
        let t = m.table();
        let slot = full(&t, 5).slot();
        let job = write_oldest(&t).unwrap();
        assert_eq!((job.entry, job.far_copy), (SwapEntry(5), true));
        let taken = t.take(slot);
        // The writer is using it.
        assert_eq!(taken.entry, SwapEntry::NONE);
        if taker_first {
            t.finish(taken);
            assert_eq!(t.used(), 1);
        }
        assert_eq!(t.abort_write(slot, SwapEntry(5), true), Some(SwapEntry(5)));
        if !taker_first {
            assert_eq!(t.used(), 1);
            t.finish(taken);
        }
        assert_eq!(t.used(), 0);
    }
}

#[test]
fn a_page_that_cannot_be_moved_is_written_out_later() {
    let m = Memory::new();
    let t = m.table();
    let slot = full(&t, 0).slot();
    write_oldest(&t).unwrap();
    assert_eq!(t.abort_write(slot, SwapEntry(5), true), None);
    let job = write_oldest(&t).expect("it waits again");
    assert_eq!((job.entry, job.far_copy), (SwapEntry(5), true));
    t.end_write(slot);
    assert_eq!(t.used(), 0);
}

#[test]
fn a_fill_that_fails_undoes_the_take() {
    // Before, during and after the write-out.
    for stage in 0..3 {
        let m = Memory::new();
        let t = m.table();
        let slot = full(&t, 5).slot();
        if stage == 0 {
            let taken = t.take(slot);
            assert_eq!(taken.entry, SwapEntry(5));
            t.undo_take(taken);
        } else {
            write_oldest(&t).unwrap();
            let taken = t.take(slot);
            if stage == 1 {
                t.undo_take(taken);
                assert_eq!(t.abort_write(slot, SwapEntry(5), true), None);
            } else {
                assert_eq!(t.abort_write(slot, SwapEntry(5), true), Some(SwapEntry(5)));
                t.undo_take(taken);
            }
        }
        let job = write_oldest(&t).expect("it waits again");
        assert_eq!(job.entry.is_some(), stage < 2, "the writer gave it up");
        assert_eq!(job.far_copy, stage < 2);
        assert!(write_oldest(&t).is_none(), "one place");
        t.end_write(slot);
        assert_eq!(t.used(), 0);
    }
}

#[test]
fn the_ring_never_overflows() {
    let m = Memory::new();
    let t = m.table();
    let oldest = full(&t, 1).slot();
    // The oldest place stays, and stale ones gather behind it.
    for _ in 0..100 {
        t.finish(t.take(full(&t, 0).slot()));
    }
    // Fills that fail over and over.
    let other = full(&t, 2).slot();
    for _ in 0..100 {
        t.undo_take(t.take(other));
    }
    let order: Vec<u32> = std::iter::from_fn(|| write_oldest(&t).map(|j| j.slot)).collect();
    assert_eq!(order, [oldest, other]);
}

#[test]
fn single_slots_go_by_magazines_and_no_magazine_keeps_them_from_others() {
    let m = Memory::new();
    let t = m.table();
    let mut out = [SlotRef::default(); SLOTS];
    t.alloc(&mut out);
    let stacked = || t.control.free_top.load(Ordering::Relaxed);
    // A magazine has room for two; with the third, all go to the stack.
    for (i, place) in out[..5].iter().enumerate() {
        t.fill(*place, PageId(i as u32), SwapEntry::NONE, false);
        t.finish(t.take(place.slot()));
        assert_eq!(stacked(), [0, 0, 3, 3, 3][i]);
        assert_eq!(t.used() as usize, SLOTS - 1 - i);
    }
    // Another thread gets slots of both, and no new buffer.
    THREAD.set(1);
    assert_eq!(t.alloc(&mut out[..5]), (5, 0));
    assert_eq!(t.alloc(&mut out[..1]), (0, 0));
    THREAD.set(0);
}

#[test]
fn what_lies_in_magazines_does_not_pass_a_lower_bound() {
    let m = Memory::new();
    let t = m.table();
    let mut out = [SlotRef::default(); 4];
    t.alloc(&mut out);
    for place in &out[..2] {
        t.fill(*place, PageId(1), SwapEntry::NONE, false);
        t.finish(t.take(place.slot()));
    }
    t.set_capacity(3);
    assert_eq!((t.used(), t.available()), (2, 1));
    assert_eq!(t.alloc(&mut out[..2]), (1, 0));
    t.set_capacity(2);
    assert_eq!(t.alloc(&mut out[..1]), (0, 0));
}

#[test]
fn a_writer_takes_several_places_and_what_is_taken_meanwhile_counts_no_more() {
    let m = Memory::new();
    let t = m.table();
    let want: Vec<SlotRef> = (0..4).map(|_| full(&t, 1)).collect();
    let mut places = [SlotRef::default(); 3];
    assert_eq!(t.oldest(&mut places), 3);
    assert_eq!(places[..], want[..3]);
    // One slot is taken and has another page by now; no other thread gets the rest.
    t.finish(t.take(want[1].slot()));
    assert_eq!(full(&t, 2).slot(), want[1].slot());
    assert!(t.begin_write(places[0]).is_some());
    assert!(
        t.begin_write(places[1]).is_none(),
        "page 7 is in another life"
    );
    // The writer has no room for the last one.
    t.enqueue(&places[2..]);
    let got: Vec<u32> = std::iter::from_fn(|| write_oldest(&t).map(|j| j.slot)).collect();
    assert_eq!(got, [want[3].slot(), want[1].slot(), want[2].slot()]);
}

#[test]
fn idle_slots_lose_their_buffers_and_get_new_ones() {
    let m = Memory::new();
    let t = m.table();
    let mut out = [SlotRef::default(); SLOTS];
    assert_eq!(t.alloc(&mut out[..4]), (4, 4));
    t.give_back(&out[..3]);
    // They were in use a moment ago.
    assert_eq!(t.take_idle(&mut out), 0);
    assert_eq!(t.alloc(&mut out[..2]), (2, 0));
    t.give_back(&out[..2]);
    // Two of the three were in use; the third was free all the time.
    assert_eq!(t.take_idle(&mut out), 1);
    assert_eq!(t.used(), 2, "nobody else can have it yet");
    t.give_back_bare(&out[..1]);
    assert_eq!((t.used(), t.take_idle(&mut out)), (1, 2));
    t.give_back_bare(&out[..2]);
    // All slots still exist; those without a buffer come first.
    assert_eq!(t.alloc(&mut out), (SLOTS - 1, SLOTS - 1));
}

#[test]
fn slots_that_are_made_idle_lose_their_buffers_at_once() {
    let m = Memory::new();
    let t = m.table();
    let kept = full(&t, 7);
    let mut out = [SlotRef::default(); SLOTS];
    assert_eq!(t.alloc(&mut out[..3]), (3, 3));
    // Two go to the free stack, one to a magazine.
    t.give_back(&out[..2]);
    t.fill(out[2], PageId(8), SwapEntry::NONE, false);
    t.finish(t.take(out[2].slot()));
    assert_eq!((t.buffers(), t.used()), (4, 1));
    t.make_idle();
    assert_eq!(t.take_idle(&mut out), 3);
    t.give_back_bare(&out[..3]);
    assert_eq!((t.buffers(), t.used()), (1, 1));
    // Slots in use keep their places and buffers.
    assert_eq!(write_oldest(&t).map(|j| j.slot), Some(kept.slot()));
}

#[test]
fn the_fifo_keeps_its_order_when_it_grows() {
    let m = Memory::new();
    let t = m.table();
    assert_eq!(t.ring_len(), 2, "as little as can be at first");
    // Its head is not at the beginning.
    for _ in 0..3 {
        t.finish(t.take(full(&t, 0).slot()));
    }
    let want: Vec<u32> = (0..SLOTS).map(|_| full(&t, 1).slot()).collect();
    assert!(t.ring_len() > 2);
    let got: Vec<u32> = std::iter::from_fn(|| write_oldest(&t).map(|j| j.slot)).collect();
    assert_eq!(got, want);
}

/// What the threads may do, one operation at a time. Numbers select among what is there.
#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    GiveBack(usize),
    Fill {
        which: usize,
        page: u32,
        entry: u32,
        far_copy: bool,
    },
    /// The words of all filled slots are published, but places come later.
    Enqueue(usize),
    BeginWrite,
    EndWrite(usize),
    AbortWrite(usize, u32),
    Take(u32),
    Finish(usize),
    UndoTake(usize),
    Capacity(usize),
    /// Idle slots lose their buffers, at most this many.
    Bare(usize),
    /// Another thread continues.
    Thread(usize),
    /// A writer takes a few places and gives them back, oldest first.
    Look(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0usize..64;
    prop_oneof![
        3 => (1usize..4).prop_map(Op::Alloc),
        1 => which.clone().prop_map(Op::GiveBack),
        5 => (which.clone(), 0..PAGES, 0u32..4, any::<bool>()).prop_map(|(which, page, entry, far_copy)| Op::Fill { which, page, entry, far_copy }),
        4 => which.clone().prop_map(Op::Enqueue),
        4 => Just(Op::BeginWrite),
        2 => which.clone().prop_map(Op::EndWrite),
        2 => (which.clone(), 0u32..4).prop_map(|(i, e)| Op::AbortWrite(i, e)),
        4 => (0..PAGES).prop_map(Op::Take),
        3 => which.clone().prop_map(Op::Finish),
        2 => which.prop_map(Op::UndoTake),
        1 => (0usize..SLOTS + 2).prop_map(Op::Capacity),
        2 => (1usize..4).prop_map(Op::Bare),
        6 => (0usize..3).prop_map(Op::Thread),
        1 => (1usize..4).prop_map(Op::Look),
    ]
}

/// A page in a slot, as the oracle sees it.
#[derive(Clone, Debug)]
struct Held {
    page: u32,
    entry: (u32, bool),
    writing: bool,
    /// Set while a taker has it.
    taken: Option<TakenSlot>,
    /// No word names it any more.
    gone: bool,
}

/// Knows which threads read which slot, and in what order pages became ready to be written out.
#[derive(Default)]
struct Oracle {
    capacity: usize,
    /// Slots that have a buffer.
    backed: BTreeSet<u32>,
    /// Lowest number of free ones since idle ones were last taken.
    idle: usize,
    owned: Vec<SlotRef>,
    held: BTreeMap<u32, Held>,
    /// Filled; the reclaimer makes their places later, if they are still valid.
    unqueued: Vec<(SlotRef, u64)>,
    fifo: VecDeque<u32>,
    life: BTreeMap<u32, u64>,
    lives: u64,
}

impl Oracle {
    fn used(&self) -> usize {
        self.owned.len() + self.held.len()
    }
    fn cached(&self, page: u32) -> Option<u32> {
        let named = |h: &&Held| h.page == page && h.taken.is_none() && !h.gone;
        let mut all = self.held.iter().filter(|(_, h)| named(h));
        all.next().map(|(s, _)| *s)
    }
    fn end(&mut self, slot: u32) {
        self.held.remove(&slot);
        self.life.remove(&slot);
    }
    fn wait_again(&mut self, slot: u32) {
        // The place that its reclaimer has yet to make is stale.
        self.lives += 1;
        self.life.insert(slot, self.lives);
        self.fifo.retain(|s| *s != slot);
        self.fifo.push_back(slot);
    }
}

fn pick<T: Clone>(from: &[T], i: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[i % from.len()].clone())
}

/// Each operation acts on both the slots and the oracle, and compares.
impl Oracle {
    fn writing(&self) -> Vec<u32> {
        let all = self.held.iter().filter(|(_, h)| h.writing);
        all.map(|(s, _)| *s).collect()
    }
    fn taken(&self) -> Vec<u32> {
        let all = self.held.iter().filter(|(_, h)| h.taken.is_some());
        all.map(|(s, _)| *s).collect()
    }
    fn alloc(&mut self, t: &SlotTable, n: usize) {
        let mut out = vec![SlotRef::default(); n];
        let (got, fresh) = t.alloc(&mut out);
        assert_eq!(got, n.min(self.capacity.saturating_sub(self.used())));
        let mut new = 0;
        for p in &out[..got] {
            let busy = self.held.contains_key(&p.slot())
                || self.owned.iter().any(|q| q.slot() == p.slot());
            assert!(!busy, "slot {} has two owners", p.slot());
            new += usize::from(self.backed.insert(p.slot()));
            self.owned.push(*p);
        }
        assert_eq!(fresh, new);
    }
    fn fill(&mut self, t: &SlotTable, which: usize, page: u32, entry: u32, far_copy: bool) {
        // A page is in one place.
        if let Some(p) = pick(&self.owned, which).filter(|_| self.cached(page).is_none()) {
            let far_copy = far_copy && entry != 0;
            t.fill(p, PageId(page), SwapEntry(entry), far_copy);
            self.owned.retain(|q| *q != p);
            self.lives += 1;
            self.life.insert(p.slot(), self.lives);
            self.unqueued.push((p, self.lives));
            let (writing, taken, gone) = (false, None, false);
            self.held.insert(
                p.slot(),
                Held {
                    page,
                    entry: (entry, far_copy),
                    writing,
                    taken,
                    gone,
                },
            );
        }
    }
    fn enqueue(&mut self, t: &SlotTable, i: usize) {
        if let Some((p, life)) = pick(&self.unqueued, i) {
            t.enqueue(&[p]);
            self.unqueued.retain(|(_, l)| *l != life);
            let here = self.life.get(&p.slot()) == Some(&life);
            if here && self.held[&p.slot()].taken.is_none() {
                self.fifo.push_back(p.slot());
            }
        }
    }
    fn begin_write(&mut self, t: &SlotTable) {
        let job = write_oldest(t);
        let oldest = self.fifo.pop_front();
        assert_eq!(job.map(|j| j.slot), oldest);
        if let Some(j) = job {
            let h = self.held.get_mut(&j.slot).unwrap();
            assert_eq!(
                (j.page.0, j.entry.0, j.far_copy),
                (h.page, h.entry.0, h.entry.1)
            );
            h.writing = true;
        }
    }
    fn end_write(&mut self, t: &SlotTable, i: usize) {
        // Only a writer that has moved the word may do this, so no other thread has moved it.
        let alone = |s: &u32| self.held[s].taken.is_none() && !self.held[s].gone;
        if let Some(s) = pick(&self.writing(), i).filter(alone) {
            t.end_write(s);
            self.end(s);
        }
    }
    fn abort_write(&mut self, t: &SlotTable, i: usize, entry: u32) {
        if let Some(s) = pick(&self.writing(), i) {
            let back = t.abort_write(s, SwapEntry(entry), entry != 0);
            let h = self.held.get_mut(&s).unwrap();
            h.writing = false;
            if h.gone || h.taken.is_some() {
                assert_eq!(back, (entry != 0).then_some(SwapEntry(entry)));
                h.entry = (0, false);
            } else {
                assert_eq!(back, None);
                h.entry = (entry, entry != 0);
                self.wait_again(s);
            }
            if self.held[&s].gone {
                self.end(s);
            }
        }
    }
    fn take(&mut self, t: &SlotTable, page: u32) {
        if let Some(s) = self.cached(page) {
            let got = t.take(s);
            let h = self.held.get_mut(&s).unwrap();
            let want = if h.writing { (0, false) } else { h.entry };
            assert_eq!((got.entry.0, got.far_copy), want);
            h.taken = Some(got);
            self.fifo.retain(|q| *q != s);
        }
    }
    fn finish(&mut self, t: &SlotTable, i: usize) {
        if let Some(s) = pick(&self.taken(), i) {
            let h = self.held.get_mut(&s).unwrap();
            t.finish(h.taken.take().unwrap());
            h.gone = true;
            if !h.writing {
                self.end(s);
            }
        }
    }
    fn undo_take(&mut self, t: &SlotTable, i: usize) {
        if let Some(s) = pick(&self.taken(), i) {
            let h = self.held.get_mut(&s).unwrap();
            // The page is elsewhere by now: the program has it in another slot.
            let page = h.page;
            let taken = h.taken.take().unwrap();
            if self
                .held
                .iter()
                .any(|(q, k)| *q != s && k.page == page && k.taken.is_none() && !k.gone)
            {
                self.held.get_mut(&s).unwrap().taken = Some(taken);
                return;
            }
            t.undo_take(taken);
            if !self.held[&s].writing {
                self.wait_again(s);
            }
        }
    }
    fn bare(&mut self, t: &SlotTable, n: usize) {
        let mut out = vec![SlotRef::default(); n];
        let got = t.take_idle(&mut out);
        // Slots that were in magazines since then were not counted: two each of three threads.
        assert!(got <= self.idle.min(n) && got + 6 >= self.idle.min(n));
        t.give_back_bare(&out[..got]);
        for p in &out[..got] {
            assert!(self.backed.remove(&p.slot()), "it had none");
            assert!(!self.held.contains_key(&p.slot()));
        }
        self.idle = if got < n { usize::MAX } else { self.idle - got };
    }
}

fn apply(t: &SlotTable, o: &mut Oracle, op: Op) {
    match op {
        Op::Alloc(n) => o.alloc(t, n),
        Op::GiveBack(i) => {
            if let Some(p) = pick(&o.owned, i) {
                t.give_back(&[p]);
                o.owned.retain(|q| *q != p);
            }
        }
        Op::Fill {
            which,
            page,
            entry,
            far_copy,
        } => o.fill(t, which, page, entry, far_copy),
        Op::Enqueue(i) => o.enqueue(t, i),
        Op::BeginWrite => o.begin_write(t),
        Op::EndWrite(i) => o.end_write(t, i),
        Op::AbortWrite(i, entry) => o.abort_write(t, i, entry),
        Op::Take(page) => o.take(t, page),
        Op::Finish(i) => o.finish(t, i),
        Op::UndoTake(i) => o.undo_take(t, i),
        Op::Capacity(n) => {
            t.set_capacity(n);
            o.capacity = n.min(SLOTS);
        }
        Op::Bare(n) => o.bare(t, n),
        Op::Thread(n) => THREAD.set(n),
        Op::Look(n) => {
            let mut places = vec![SlotRef::default(); n];
            let got = t.oldest(&mut places);
            let all: Vec<u32> = places[..got].iter().map(|p| p.slot()).collect();
            assert!(o.fifo.iter().take(n).eq(&all));
            t.enqueue(&places[..got]);
            o.fifo.rotate_left(got);
        }
    }
    o.idle = o.idle.min(o.backed.len() - o.used());
    assert_eq!(
        t.used() as usize,
        o.used(),
        "a slot was lost or freed twice"
    );
    assert_eq!(t.available() as usize, o.capacity.saturating_sub(o.used()));
}

proptest! {
    #[test]
    fn slots_match_a_naive_list(ops in proptest::collection::vec(op(), 1..300)) {
        let m = Memory::new();
        let t = m.table();
        let mut o = Oracle { capacity: SLOTS, ..Oracle::default() };
        THREAD.set(0);
        for op in ops {
            apply(&t, &mut o, op);
        }
    }
}
