//! The agent and its dispatcher, on a link that does nothing until the test says so: who goes first, what is dropped,
//! and that a silent donor delays nobody else.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use canvas_agent::block::Block;
use canvas_agent::dispatch::{Dispatch, IoLink};
use canvas_agent::journal::Journal;
use canvas_agent::numbers::SealNumbers;
use canvas_agent::share::LiveShare;
use canvas_agent::store::{Event, Outcome, Store, TRANSFER_COST};
use canvas_agent::{Agent, Setup, Share};
use canvas_core::swap::extent::Packer;
use canvas_sched::{Decision, LinkConfig};
use canvas_shm::far::{EXTENT_BYTES, Far, SLAB_EXTENTS};
use canvas_shm::histogram::BUCKETS;
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, RequestFields, Status, WRITES};
use canvas_shm::{Segment, far};

/// What one tenant has on the link.
#[derive(Default)]
struct Link {
    extents: HashMap<u32, Vec<u8>>,
    /// Reads under way: number, extent, range, buffer.
    reads: VecDeque<(u32, u32, Range<usize>, Block)>,
    /// Extents in the order in which their reads were begun.
    begun: Vec<u32>,
    /// Their ranges, in the order of the pieces.
    pieces: Vec<(u32, Range<usize>)>,
    events: Vec<Event>,
    /// Writes of which more is to come: number, extent, buffer, and how much of it has arrived.
    writes: HashMap<u32, (u32, Block, usize)>,
    /// Pieces of writes, in order: the extent, and the end of the piece.
    wrote: Vec<(u32, usize)>,
}

struct Slow(Arc<Mutex<Link>>);

impl Store for Slow {
    fn write(&mut self, id: u32, extent: u32, block: Block, to: usize) {
        let mut link = self.0.lock().unwrap();
        link.writes.insert(id, (extent, block, 0));
        drop(link);
        self.continue_write(id, to);
    }
    fn continue_write(&mut self, id: u32, to: usize) {
        let mut link = self.0.lock().unwrap();
        let (extent, block, got) = link.writes.remove(&id).unwrap();
        assert!(got < to && to <= EXTENT_BYTES);
        link.wrote.push((extent, to));
        if to < EXTENT_BYTES {
            link.writes.insert(id, (extent, block, to));
            link.events.push(Event::WriteAdvanced(id));
            return;
        }
        link.extents.insert(extent, block.to_vec());
        let outcome = Outcome::Done;
        link.events.push(Event::Ended { id, outcome, block });
    }
    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, _: usize, block: Block) {
        let mut link = self.0.lock().unwrap();
        if range.start == 0 {
            link.begun.push(extent);
        }
        link.pieces.push((extent, range.clone()));
        link.reads.push_back((id, extent, range, block));
    }
    fn link(&mut self, _: u32, _: u32, writes: bool) -> (IoLink, u32) {
        (if writes { IoLink::Out } else { IoLink::In }, TRANSFER_COST)
    }
    fn free(&mut self, _: u32) {}
    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.0.lock().unwrap().events);
    }
    fn is_ready(&self) -> bool {
        !self.0.lock().unwrap().events.is_empty()
    }
}

struct Tenant {
    id: u64,
    far: &'static Far,
    agent: Agent<Slow>,
    link: Arc<Mutex<Link>>,
    first: u32,
    live: LiveShare,
}

const PROC: usize = 0;

/// A dispatcher on which reads are not cut, however slow the machine is that runs the test.
fn whole() -> Dispatch {
    Dispatch::with(LinkConfig {
        piece_bytes: (EXTENT_BYTES as u32, EXTENT_BYTES as u32),
        ..LinkConfig::default()
    })
}
/// Reads that are under way before anything is known about a link.
const WINDOW: usize = canvas_sched::WINDOW_BYTES_START as usize / EXTENT_BYTES;

/// An extent of one record.
fn packed(extent: u32) -> [u8; EXTENT_BYTES] {
    let mut bytes = [0; EXTENT_BYTES];
    let mut packer = Packer::new(&mut bytes);
    packer
        .add(extent, canvas_types::SwapEntry(1), 100, |b| {
            b.fill(extent as u8)
        })
        .unwrap();
    packer.finish();
    bytes
}

impl Tenant {
    /// A tenant with `n` written extents.
    fn new(id: u64, n: u32, dispatch: &mut Dispatch, share: Share) -> Tenant {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.slabs_max.store(1, std::sync::atomic::Ordering::Relaxed);
        let link = Arc::new(Mutex::new(Link::default()));
        let live = LiveShare::new(share);
        let setup = Setup {
            far,
            tenant: [id as u8; 16],
            name: id.to_string(),
            key: [7; 32],
            numbers: SealNumbers::new(Journal::create().unwrap()),
            slabs: Box::new(|| 1),
            spin: Duration::ZERO,
            share: live.clone(),
        };
        dispatch.add(id, share.into());
        let agent = Agent::new(setup, Slow(link.clone()));
        let slab = far.take_slab(PROC).unwrap();
        let first = slab * SLAB_EXTENTS as u32;
        let mut t = Tenant {
            id,
            far,
            agent,
            link,
            first,
            live,
        };
        for extent in 0..n {
            let i = t.far.mailboxes[PROC].claim(WRITES).unwrap();
            t.far.copy_in(PROC, i, 0, &packed(extent));
            t.post(i, Kind::Write, extent);
            // One round for each piece.
            for _ in 0..2 * EXTENT_BYTES / PIECE {
                t.turn(dispatch);
            }
            assert_eq!(t.far.mailboxes[PROC].ended(i), Some(Status::Ok));
            t.far.mailboxes[PROC].release(i);
        }
        t
    }

    fn post(&self, i: usize, kind: Kind, extent: u32) {
        let ask = RequestFields {
            kind,
            extent: self.first + extent,
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        self.far.mailboxes[PROC].post(i, ask, canvas_sys::proc::now_ns());
        self.far.notify(PROC);
    }

    /// Reads extents 0 to `n`; returns their indices in the mailbox.
    fn ask(&self, among: u64, n: u32) -> Vec<usize> {
        (0..n)
            .map(|extent| {
                let i = self.far.mailboxes[PROC].claim(among).unwrap();
                self.post(i, Kind::Read, extent);
                i
            })
            .collect()
    }

    fn gather(&mut self, dispatch: &mut Dispatch) {
        self.agent.gather(dispatch, self.id, usize::MAX);
    }

    fn reap(&mut self, dispatch: &mut Dispatch) {
        self.agent.reap(dispatch, self.id);
    }

    /// Alone on its dispatcher.
    fn turn(&mut self, dispatch: &mut Dispatch) {
        dispatch.tick();
        self.gather(dispatch);
        while let Some(decision) = dispatch.decide() {
            self.agent.start(decision, dispatch.now_ns());
        }
        self.reap(dispatch);
    }

    /// The link finishes its oldest read.
    fn deliver(&self) -> bool {
        let mut link = self.link.lock().unwrap();
        let Some((id, extent, range, mut block)) = link.reads.pop_front() else {
            return false;
        };
        block[range.clone()].copy_from_slice(&link.extents[&extent][range]);
        let outcome = Outcome::Done;
        link.events.push(Event::Ended { id, outcome, block });
        true
    }

    fn begun(&self) -> Vec<u32> {
        let link = self.link.lock().unwrap();
        link.begun.iter().map(|e| e - self.first).collect()
    }

    fn ended(&self, i: usize) -> Option<Status> {
        self.far.mailboxes[PROC].ended(i)
    }
}

fn weighing(weight: u32) -> Share {
    Share {
        weight,
        ..Share::default()
    }
}

#[test]
fn a_demand_goes_before_what_is_read_ahead_and_so_does_what_is_waited_for() {
    let mut dispatch = whole();
    let mut t = Tenant::new(1, 20, &mut dispatch, weighing(100));
    let ahead = t.ask(FETCHES, 20);
    t.turn(&mut dispatch);
    assert_eq!(
        t.begun().len(),
        WINDOW,
        "the rest waits where the choice is"
    );
    let now = t.ask(DEMANDS, 1)[0];
    let mailbox = &t.far.mailboxes[PROC];
    assert!(mailbox.escalate(ahead[17]));
    t.far.notify(PROC);
    t.turn(&mut dispatch);
    assert_eq!(t.begun().len(), WINDOW);
    while t.deliver() {
        t.turn(&mut dispatch);
        t.turn(&mut dispatch);
    }
    let begun = t.begun();
    assert_eq!(begun.len(), 21, "nothing is lost, or done twice");
    let next: Vec<u32> = begun[WINDOW..][..2].to_vec();
    assert!(next.contains(&0) && next.contains(&17), "{begun:?}");
    assert!(
        ahead
            .iter()
            .chain([&now])
            .all(|i| t.ended(*i) == Some(Status::Ok))
    );
    let stats = &t.far.stats;
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(count(&stats.promoted), 1);
    assert_eq!(count(&stats.sent[far::class::DEMAND]), 2);
    assert_eq!(count(&stats.sent[far::class::PREFETCH]), 19);
}

/// Bytes of a piece in [`pieces`].
const PIECE: usize = 8 << 10;

/// A dispatcher on which reads are cut, however fast the machine is, and two pieces are under way.
fn pieces() -> Dispatch {
    Dispatch::with(LinkConfig {
        piece_bytes: (PIECE as u32, PIECE as u32),
        window_bytes_min: 2 * PIECE as u64,
        window_bytes_max: 2 * PIECE as u64,
        ..LinkConfig::default()
    })
}

impl Tenant {
    /// Pieces of one extent, in order.
    fn pieces(&self, extent: u32) -> Vec<Range<usize>> {
        let link = self.link.lock().unwrap();
        let of = link.pieces.iter();
        of.filter(|(e, _)| *e == self.first + extent)
            .map(|(_, range)| range.clone())
            .collect()
    }

    fn deliver_all(&mut self, dispatch: &mut Dispatch) {
        while self.deliver() {
            self.turn(dispatch);
            self.turn(dispatch);
        }
    }

    /// Asserts that the answer at this index is the extent.
    fn is_right(&self, i: usize, extent: u32) {
        assert_eq!(self.ended(i), Some(Status::Ok));
        let mut bytes = [0; EXTENT_BYTES];
        self.far.copy_out(PROC, i, 0, &mut bytes);
        assert_eq!(canvas_core::swap::extent::records(&bytes), Some(1));
        let line = canvas_core::swap::extent::line(&bytes, 1, 0).unwrap();
        let payload = &bytes[line.range()][..usize::from(line.len)];
        assert!(payload.iter().all(|b| *b == extent as u8));
    }
}

#[test]
fn what_is_read_ahead_goes_in_pieces_and_a_demand_between_them() {
    let mut dispatch = pieces();
    let mut t = Tenant::new(1, 12, &mut dispatch, weighing(100));
    let ahead = t.ask(FETCHES, 12);
    t.turn(&mut dispatch);
    t.deliver();
    let now = t.ask(DEMANDS, 1)[0];
    t.turn(&mut dispatch);
    t.deliver_all(&mut dispatch);
    for (i, extent) in ahead.iter().zip(0..) {
        t.is_right(*i, extent);
    }
    t.is_right(now, 0);
    let cut: Vec<_> = (0..EXTENT_BYTES / PIECE)
        .map(|p| p * PIECE..(p + 1) * PIECE)
        .collect();
    assert_eq!(t.pieces(5), cut);
    let stats = &t.far.stats;
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    let sent = |class| (count(&stats.sent[class]), count(&stats.sent_bytes[class]));
    let bytes = EXTENT_BYTES as u64;
    assert_eq!(sent(far::class::PREFETCH), (12, 12 * bytes));
    assert_eq!(sent(far::class::DEMAND), (1, bytes));
}

#[test]
fn the_rest_of_what_is_waited_for_goes_before_what_is_not() {
    let mut dispatch = pieces();
    let mut t = Tenant::new(1, 12, &mut dispatch, weighing(100));
    let ahead = t.ask(FETCHES, 12);
    t.turn(&mut dispatch);
    // One that is under way, and one that waits.
    for waited_for in [0, 7] {
        assert!(t.far.mailboxes[PROC].escalate(ahead[waited_for]));
    }
    t.far.notify(PROC);
    t.turn(&mut dispatch);
    while t.ended(ahead[0]).is_none() || t.ended(ahead[7]).is_none() {
        assert!(t.deliver());
        t.turn(&mut dispatch);
        t.turn(&mut dispatch);
    }
    let ended = ahead.iter().filter(|i| t.ended(**i).is_some()).count();
    assert_eq!(ended, 2);
    t.deliver_all(&mut dispatch);
    for (i, extent) in ahead.iter().zip(0..) {
        t.is_right(*i, extent);
        assert_eq!(t.pieces(extent).len(), EXTENT_BYTES / PIECE);
    }
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(count(&t.far.stats.promoted), 2);
    let bytes = count(&t.far.stats.sent_bytes[far::class::DEMAND]) as usize;
    assert_eq!(bytes, 2 * EXTENT_BYTES - PIECE, "all but the first piece");
}

#[test]
fn writes_go_in_pieces_and_tenants_take_turns_between_them() {
    let mut dispatch = pieces();
    let (mut a, mut b) = (
        Tenant::new(1, 1, &mut dispatch, weighing(100)),
        Tenant::new(2, 1, &mut dispatch, weighing(100)),
    );
    let whole = a.link.lock().unwrap().wrote.clone();
    let cut: Vec<_> = (1..=EXTENT_BYTES / PIECE)
        .map(|p| (a.first, p * PIECE))
        .collect();
    assert_eq!(whole, cut);
    // Both write; a round of the agent is one turn of each.
    let places = [&a, &b].map(|t| {
        let i = t.far.mailboxes[PROC].claim(WRITES).unwrap();
        t.far.copy_in(PROC, i, 0, &packed(1));
        t.post(i, Kind::Write, 1);
        i
    });
    let begun = |t: &Tenant| t.link.lock().unwrap().wrote.len() - cut.len();
    while [&a, &b].map(begun) != [cut.len(); 2] {
        round(&mut dispatch, &mut [&mut a, &mut b]);
        let (a, b) = (begun(&a), begun(&b));
        assert!(a.abs_diff(b) <= 1, "{a} and {b} pieces");
    }
    round(&mut dispatch, &mut [&mut a, &mut b]);
    for (t, i) in [(&a, places[0]), (&b, places[1])] {
        assert_eq!(t.ended(i), Some(Status::Ok));
        let stats = &t.far.stats;
        let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(count(&stats.sent[far::class::SWAP_OUT]), 2);
        let bytes = count(&stats.sent_bytes[far::class::SWAP_OUT]);
        assert_eq!(bytes, 2 * EXTENT_BYTES as u64);
        assert_eq!(count(&stats.extents_out), 2);
    }
}

#[test]
fn a_piece_that_is_damaged_is_read_again_with_all_the_others() {
    let mut dispatch = pieces();
    let mut t = Tenant::new(1, 1, &mut dispatch, weighing(100));
    let i = t.ask(FETCHES, 1)[0];
    t.turn(&mut dispatch);
    let whole = t.link.lock().unwrap().extents.clone();
    let flip = |t: &Tenant| {
        let mut link = t.link.lock().unwrap();
        link.extents.values_mut().for_each(|bytes| bytes[10] ^= 1);
    };
    flip(&t);
    t.deliver();
    t.turn(&mut dispatch);
    t.turn(&mut dispatch);
    t.link.lock().unwrap().extents = whole;
    t.deliver_all(&mut dispatch);
    t.is_right(i, 0);
    assert_eq!(t.pieces(0).last(), Some(&(0..EXTENT_BYTES)));
}

/// A tenant that uses pages within a millisecond, and 20 extents that it prefetched 30 ms ago, all answered.
fn asked_late(dispatch: &mut Dispatch) -> (Tenant, Vec<usize>) {
    let mut t = Tenant::new(1, 20, dispatch, weighing(100));
    for _ in 0..500 {
        t.far.stats.ahead_ns.record(1_000_000);
    }
    std::thread::sleep(Duration::from_millis(60));
    t.turn(dispatch);
    let ahead = t.ask(FETCHES, 20);
    t.turn(dispatch);
    std::thread::sleep(Duration::from_millis(30));
    t.deliver_all(dispatch);
    (t, ahead)
}

#[test]
fn what_a_stream_has_ahead_is_bounded_by_its_share_of_the_link() {
    for on in [true, false] {
        let mut dispatch = pieces().with_timeliness(on);
        let mut t = Tenant::new(1, 20, &mut dispatch, weighing(100));
        // The link takes 30 ms for an extent.
        for _ in 0..8 {
            let i = t.ask(DEMANDS, 1)[0];
            t.turn(&mut dispatch);
            while t.ended(i).is_none() {
                std::thread::sleep(Duration::from_millis(4));
                t.deliver();
                t.turn(&mut dispatch);
            }
            t.far.mailboxes[PROC].release(i);
        }
        let ahead = t.ask(FETCHES, 12);
        t.turn(&mut dispatch);
        let late = |i: &&usize| t.ended(**i) == Some(Status::Late);
        let late: Vec<usize> = ahead.iter().filter(late).copied().collect();
        if !on {
            assert_eq!(late, [0; 0], "without the rule");
            continue;
        }
        // The newest, at once, and not all of them.
        assert!(!late.is_empty() && late.len() < 12, "{late:?} of {ahead:?}");
        assert_eq!(late, ahead[12 - late.len()..]);
        // They can be requested again as soon as the others have arrived.
        t.deliver_all(&mut dispatch);
        ahead.iter().for_each(|i| t.far.mailboxes[PROC].release(*i));
        let again = t.ask(FETCHES, 1);
        t.turn(&mut dispatch);
        t.deliver_all(&mut dispatch);
        assert_eq!(t.ended(again[0]), Some(Status::Ok));
    }
}

/// Number of completed prefetches, and the longest time of one.
fn times_of_ahead(t: &Tenant) -> (u64, u64) {
    let mut sums = [0; BUCKETS];
    let longest_ns = t.far.stats.prefetch_ns.add_to(&mut sums);
    (sums.iter().sum(), longest_ns)
}

#[test]
fn what_would_come_too_late_is_done_when_nothing_is_to_be_dropped() {
    let mut dispatch = whole().with_timeliness(false);
    let (mut t, ahead) = asked_late(&mut dispatch);
    assert!(ahead.iter().all(|i| t.ended(*i) == Some(Status::Ok)));
    assert_eq!(t.begun().len(), 20);
    let dropped = &t.far.stats.dropped;
    assert_eq!(dropped.load(std::sync::atomic::Ordering::Relaxed), 0);
    let (done, longest_ns) = times_of_ahead(&t);
    assert_eq!(done, 20);
    assert!(
        longest_ns >= 30_000_000,
        "from the request on: {longest_ns} ns"
    );
    // A prefetch that became a demand read on its way is one of them; a demand read is not.
    let mailbox = &t.far.mailboxes[PROC];
    ahead.iter().for_each(|i| mailbox.release(*i));
    let waited_for = t.ask(FETCHES, 1)[0];
    assert!(t.far.mailboxes[PROC].escalate(waited_for));
    t.ask(DEMANDS, 3);
    t.turn(&mut dispatch);
    t.deliver_all(&mut dispatch);
    assert_eq!(times_of_ahead(&t).0, 21);
}

#[test]
fn what_would_come_too_late_is_not_done_and_its_place_is_free() {
    let mut dispatch = whole();
    let (mut t, ahead) = asked_late(&mut dispatch);
    let late: Vec<usize> = ahead
        .iter()
        .copied()
        .filter(|i| t.ended(*i) == Some(Status::Late))
        .collect();
    assert_eq!(late.len(), 20 - t.begun().len());
    assert!(late.len() > 5, "{} of 20", late.len());
    let done = 20 - late.len() as u64;
    assert_eq!(times_of_ahead(&t).0, done, "what was dropped has no time");
    assert!(ahead.iter().all(|i| t.ended(*i).is_some()));
    // A thread that needs it requests it again.
    for i in ahead {
        t.far.mailboxes[PROC].release(i);
    }
    let again = t.ask(DEMANDS, 20);
    while again.iter().any(|i| t.ended(*i).is_none()) {
        t.turn(&mut dispatch);
        t.deliver();
    }
    assert!(again.iter().all(|i| t.ended(*i) == Some(Status::Ok)));
}

#[test]
fn nobody_waits_for_reads_that_a_donor_is_silent_about() {
    let mut dispatch = whole();
    let mut silent = Tenant::new(1, 20, &mut dispatch, weighing(100));
    let mut other = Tenant::new(2, 20, &mut dispatch, weighing(100));
    silent.ask(DEMANDS, 20);
    silent.turn(&mut dispatch);
    assert_eq!(silent.begun().len(), WINDOW);
    let asked = other.ask(DEMANDS, 20);
    let mut rounds = 0;
    while asked.iter().any(|i| other.ended(*i).is_none()) {
        round(&mut dispatch, &mut [&mut silent, &mut other]);
        other.deliver();
        std::thread::sleep(Duration::from_millis(1));
        rounds += 1;
        assert!(rounds < 20_000, "{:?} are begun", other.begun());
    }
    assert!(asked.iter().all(|i| other.ended(*i) == Some(Status::Ok)));
}

/// A turn of both, as `canvas_agent::serve_loop::ServeLoop` has it.
fn round(dispatch: &mut Dispatch, tenants: &mut [&mut Tenant]) {
    dispatch.tick();
    for t in tenants.iter_mut() {
        t.gather(dispatch);
    }
    while let Some(decision) = dispatch.decide() {
        let (Decision::Send(r) | Decision::Drop(r)) = decision;
        let t = tenants.iter_mut().find(|t| t.id == r.tenant.0).unwrap();
        t.agent.start(decision, dispatch.now_ns());
    }
    for t in tenants.iter_mut() {
        t.reap(dispatch);
    }
}

#[test]
fn tenants_are_served_by_their_weights() {
    let mut dispatch = whole();
    let mut light = Tenant::new(1, 24, &mut dispatch, weighing(100));
    let mut heavy = Tenant::new(2, 24, &mut dispatch, weighing(300));
    light.ask(FETCHES, 24);
    heavy.ask(FETCHES, 24);
    let begun = |light: &Tenant, heavy: &Tenant| (light.begun().len(), heavy.begun().len());
    while begun(&light, &heavy).1 < 24 {
        round(&mut dispatch, &mut [&mut light, &mut heavy]);
        let (l, h) = begun(&light, &heavy);
        // At most one request off the exact share, at any moment.
        assert!((3 * l).abs_diff(h) <= 4, "{l} and {h}");
        // One in, one out, whichever tenant's it is.
        let _ = light.deliver() || heavy.deliver();
    }
    // The last delivery may have been everything under way: on a busy machine the link appears slow and its window is
    // narrow. The next read then begins only in a later round.
    loop {
        round(&mut dispatch, &mut [&mut light, &mut heavy]);
        round(&mut dispatch, &mut [&mut light, &mut heavy]);
        if !(light.deliver() || heavy.deliver()) {
            break;
        }
    }
    assert_eq!(begun(&light, &heavy), (24, 24));
}

#[test]
fn a_limit_holds_on_an_idle_link() {
    let mut dispatch = whole();
    let limited = Share {
        swap_in_limit: Some(1 << 20),
        ..Share::default()
    };
    let mut t = Tenant::new(1, 20, &mut dispatch, limited);
    t.ask(DEMANDS, 20);
    t.turn(&mut dispatch);
    let burst = canvas_sched::burst_bytes(1 << 20) as usize / EXTENT_BYTES;
    assert_eq!(t.begun().len(), burst.min(WINDOW));
    while t.deliver() {
        t.turn(&mut dispatch);
    }
    assert!(
        t.begun().len() < 20,
        "20 extents at 1 MiB/s within a moment"
    );
    assert!(
        dispatch
            .due_in()
            .is_some_and(|due| due <= Duration::from_millis(40))
    );
    // When the limit is lifted, nothing is held back, not even what waits.
    t.live.set(Share::default());
    while t.begun().len() < 20 {
        t.turn(&mut dispatch);
        assert!(t.deliver());
        t.turn(&mut dispatch);
    }
}
