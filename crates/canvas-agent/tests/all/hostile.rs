//! What a tenant forges in its far area, one thing at a time: the agent does a bounded amount of work and continues.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
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
use canvas_shm::far::{EXTENT_BYTES, Far, SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_shm::mailbox::{DEMANDS, FETCHES, Kind, RequestFields, Status, WRITES};
use canvas_shm::segment::PROCS_MAX;
use canvas_shm::{Segment, far};

/// Keeps nothing, and answers at once.
#[derive(Default)]
struct Nothing {
    events: Vec<Event>,
    frees: Arc<Mutex<Vec<u32>>>,
}

impl Store for Nothing {
    fn write(&mut self, id: u32, _: u32, block: Block, _: usize) {
        let outcome = Outcome::Done;
        self.events.push(Event::Ended { id, outcome, block });
    }
    fn read(&mut self, id: u32, _: u32, _: Range<usize>, _: usize, block: Block) {
        let outcome = Outcome::NoCopy;
        self.events.push(Event::Ended { id, outcome, block });
    }
    fn link(&mut self, _: u32, _: u32, writes: bool) -> (IoLink, u32) {
        (if writes { IoLink::Out } else { IoLink::In }, TRANSFER_COST)
    }
    fn free(&mut self, slab: u32) {
        self.frees.lock().unwrap().push(slab);
        self.events.push(Event::Freed(slab));
    }
    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }
    fn is_ready(&self) -> bool {
        !self.events.is_empty()
    }
}

struct Tenant {
    far: &'static Far,
    agent: Agent<Nothing>,
    dispatch: Dispatch,
    frees: Arc<Mutex<Vec<u32>>>,
}

const ID: u64 = 7;

impl Tenant {
    fn new() -> Tenant {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.slabs_max.store(1, Relaxed);
        Tenant::served(far, Journal::create().unwrap())
    }

    /// A new agent for the tenant with this far area and journal.
    fn served(far: &'static Far, journal: Journal) -> Tenant {
        let setup = Setup {
            far,
            tenant: [9; 16],
            name: "web".to_owned(),
            key: [7; 32],
            numbers: SealNumbers::new(journal),
            slabs: Box::new(|| 1),
            spin: Duration::ZERO,
            share: LiveShare::default(),
        };
        let store = Nothing::default();
        let frees = store.frees.clone();
        let mut dispatch = Dispatch::new();
        dispatch.add(ID, Share::default().into());
        Tenant {
            far,
            agent: Agent::new(setup, store),
            dispatch,
            frees,
        }
    }

    fn post(&self, proc: usize, among: u64, kind: Kind, extent: u32, posted_ns: u64) -> usize {
        let mailbox = &self.far.mailboxes[proc];
        let i = mailbox.claim(among).unwrap();
        let ask = RequestFields {
            kind,
            extent,
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        mailbox.post(i, ask, posted_ns);
        self.far.notify(proc);
        i
    }

    /// A turn; returns whether work is left.
    fn turn(&mut self) -> bool {
        self.dispatch.tick();
        let found = self.agent.gather(&mut self.dispatch, ID, usize::MAX);
        while let Some(decision) = self.dispatch.decide() {
            self.agent.start(decision, self.dispatch.now_ns());
        }
        let reaped = self.agent.reap(&mut self.dispatch, ID);
        found.work || found.more || reaped
    }

    fn turns(&mut self) -> usize {
        (0..100_000).take_while(|_| self.turn()).count()
    }
}

/// The fields of all events.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                line += &format!("{field}={value:?} ");
            },
        );
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

/// Reads at the mailbox indices of writes would count towards the limit on writes, and vice versa.
#[test]
fn a_request_in_a_place_of_another_kind_is_refused_and_its_tenant_named() {
    let lines = Lines::default();
    // Of this thread, which runs the agent.
    let _log = tracing::subscriber::set_default(lines.clone());
    let mut t = Tenant::new();
    let first = t.far.take_slab(0).unwrap() * SLAB_EXTENTS as u32;
    for (among, kind) in [
        (DEMANDS, Kind::Write),
        (FETCHES, Kind::Write),
        (WRITES, Kind::Read),
    ] {
        let i = t.post(0, among, kind, first, 0);
        t.turns();
        assert_eq!(t.far.mailboxes[0].ended(i), Some(Status::Refused));
    }
    let sent = &t.far.stats.sent;
    assert!(sent.iter().all(|n| n.load(Relaxed) == 0), "none was begun");
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in lines.iter() {
        assert!(line.contains("tenant=web"), "{line}");
        assert!(line.contains("a request of process 0 is refused"), "{line}");
    }
}

/// Slabs without a process, and slabs of another process.
#[test]
fn any_process_may_read_what_all_share_and_write_to_its_own_only() {
    let mut t = Tenant::new();
    for (owner, kind, is_refused) in [
        (far::SHARED, Kind::Read, false),
        (far::SHARED, Kind::Write, true),
        (7, Kind::Read, true),
        (0, Kind::Read, false),
    ] {
        let first = t.far.take_slab(owner).unwrap() * SLAB_EXTENTS as u32;
        // Something was written there.
        t.far.seals[first as usize].store(5, Relaxed);
        let among = if kind == Kind::Read { DEMANDS } else { WRITES };
        let i = t.post(0, among, kind, first, 0);
        t.turns();
        let ended = t.far.mailboxes[0].ended(i);
        assert_eq!(
            ended == Some(Status::Refused),
            is_refused,
            "{owner} {kind:?}: {ended:?}"
        );
        t.far.mailboxes[0].release(i);
        t.far.drop_slab(first / SLAB_EXTENTS as u32, owner);
        t.turns();
    }
}

#[test]
fn forged_times_do_not_reach_the_figures() {
    let mut t = Tenant::new();
    let first = t.far.take_slab(0).unwrap() * SLAB_EXTENTS as u32;
    t.far.seals[first as usize].store(5, Relaxed);
    for posted_ns in [0, 1, u64::MAX, u64::MAX / 2] {
        let i = t.post(0, DEMANDS, Kind::Read, first, posted_ns);
        t.turns();
        assert!(t.far.mailboxes[0].ended(i).is_some());
    }
    let waited = t.far.stats.waited_ns[far::class::DEMAND].load(Relaxed);
    assert!(waited <= 4 * 61_000_000_000, "{waited}");
}

#[test]
fn all_processes_at_once_are_looked_at_in_several_turns_and_none_is_passed_over() {
    let mut t = Tenant::new();
    for proc in 0..PROCS_MAX {
        t.post(proc, DEMANDS, Kind::Read, u32::MAX, 0);
    }
    let ended = |t: &Tenant| {
        let of = |m: &&canvas_shm::mailbox::Mailbox| m.ended(0).is_some();
        t.far.mailboxes.iter().filter(of).count()
    };
    t.turn();
    assert!((1..=64).contains(&ended(&t)), "{}", ended(&t));
    for _ in 0..20 {
        // One of them keeps notifying.
        t.far.notify(0);
        t.turn();
    }
    assert_eq!(ended(&t), PROCS_MAX);
}

#[test]
fn slabs_that_are_said_to_be_released_are_freed_a_few_at_a_time() {
    let mut t = Tenant::new();
    for slab in &t.far.slabs {
        slab.state.store(slab_state::RELEASED, Relaxed);
    }
    t.far.slabs_high.store(u32::MAX, Relaxed);
    t.far.released.store(1, SeqCst);
    let frees = |t: &Tenant| t.frees.lock().unwrap().len();
    let mut before = 0;
    loop {
        t.far.released.store(1, SeqCst);
        t.turn();
        assert!(frees(&t) - before <= 32, "{before} to {}", frees(&t));
        before = frees(&t);
        if before == SLABS_MAX {
            break;
        }
    }
    // Each once, whatever was posted meanwhile.
    t.turns();
    assert_eq!(frees(&t), SLABS_MAX);
    let free = |s: &far::Slab| s.state.load(Relaxed) == slab_state::FREE;
    assert!(t.far.slabs.iter().all(free));
}

#[test]
fn notifications_and_escalations_for_nothing_are_no_work() {
    let mut t = Tenant::new();
    t.turns();
    for proc in [0, 63, 64, 1023] {
        for i in 0..64 {
            t.far.mailboxes[proc].escalate(i);
        }
        t.far.notify(proc);
        let found = t.agent.gather(&mut t.dispatch, ID, usize::MAX);
        assert!(!found.work && !found.more, "{found:?}");
    }
    assert_eq!(t.far.stats.promoted.load(Relaxed), 0);
}

/// An extent of one record.
fn packed() -> [u8; EXTENT_BYTES] {
    let mut bytes = [0; EXTENT_BYTES];
    let mut packer = Packer::new(&mut bytes);
    let entry = canvas_types::SwapEntry(1);
    packer.add(3, entry, 100, |b| b.fill(7)).unwrap();
    packer.finish();
    bytes
}

/// They are the nonces of its key: two plaintexts under one nonce reveal both.
#[test]
fn no_seal_number_comes_again_after_a_restart_whatever_the_tenant_wrote() {
    let journal = Journal::create().unwrap();
    let (fd, _) = Segment::create(true).unwrap();
    let far = Far::map(&fd).unwrap();
    far.slabs_max.store(1, Relaxed);
    let first = far.take_slab(0).unwrap() * SLAB_EXTENTS as u32;
    let file = std::fs::File::from(fd);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..4 {
        let mut t = Tenant::served(far, journal.try_clone().unwrap());
        for n in 0..5 {
            let extent = first + n % 3;
            let mailbox = &far.mailboxes[0];
            let i = mailbox.claim(WRITES).unwrap();
            far.copy_in(0, i, 0, &packed());
            let ask = RequestFields {
                kind: Kind::Write,
                extent,
                offset: 0,
                len: EXTENT_BYTES as u32,
            };
            mailbox.post(i, ask, 0);
            far.notify(0);
            t.turns();
            assert_eq!(mailbox.ended(i), Some(Status::Ok));
            mailbox.release(i);
            let number = far.seals[extent as usize].load(Relaxed);
            assert!(seen.insert(number), "{number} comes again");
        }
        drop(t);
        // Older agents kept the number of the next seal there; and what the tenant claims about its extents.
        file.write_all_at(&[0; 8], far::OFFSET as u64 + 56).unwrap();
        for seal in &far.seals[first as usize..first as usize + 3] {
            seal.store(1, Relaxed);
        }
    }
    assert_eq!(seen.len(), 20);
}
