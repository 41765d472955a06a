//! A store over donors in this process, and its expected content.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use canvas_agent::block::Block;
use canvas_agent::copies::LiveCopies;
use canvas_agent::disk::{self, Disk};
use canvas_agent::dispatch::IoLink;
use canvas_agent::idle::Waker;
use canvas_agent::journal::Journal;
use canvas_agent::replicas::{Config, Policy, Replicas};
use canvas_agent::seal::{KEY_BYTES, Sealer};
use canvas_agent::store::{Event, MOVES_MAX, Outcome, Store};
use canvas_core::swap::extent::Packer;
use canvas_donor::Server;
use canvas_link::Address;
use canvas_shm::Segment;
use canvas_shm::far::{EXTENT_BYTES, Far, SLAB_EXTENTS};
use canvas_types::SwapEntry;
use canvas_wire::frame::{Answer, FromClient, Pong, Request, Welcome};
use canvas_wire::key::ClusterKey;
use canvas_wire::session;
use canvas_wire::stream::Incoming;
use canvas_wire::{FRAME_BYTES_MAX, SLAB_BYTES, VERSION_MAX};

pub const TENANT: [u8; 16] = [9; 16];
pub const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
/// Long, because only the end matters.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn donor() -> Server {
    donor_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// A donor that listens there.
pub fn donor_at(listen: SocketAddr) -> Server {
    donor_of(listen, "/proc".into(), 0)
}

/// A donor whose host's memory is described below `procfs`.
pub fn donor_of(listen: SocketAddr, procfs: PathBuf, reserve_bytes: u64) -> Server {
    Server::start(canvas_donor::Config {
        listen,
        memory_bytes: 1 << 30,
        reserve_bytes: Some(reserve_bytes),
        key: None,
        lease: PATIENCE,
        evict_within: PATIENCE,
        spin: Duration::ZERO,
        state_json: None,
        procfs,
        links_max: 16,
        rdma: false,
    })
    .unwrap()
}

/// A donor that has the key and identifies itself, and answers everything else as the test wants: `answers` creates the
/// answering function of each connection.
pub fn pretender<F, A>(answers: F) -> SocketAddr
where
    F: Fn() -> A + Send + 'static,
    A: FnMut(&Request<'_>, &mut dyn FnMut(Answer<'_>)) + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answers = answers();
            // A client that closed the connection gets no more answers.
            std::thread::spawn(move || pretend(stream, answers));
        }
    });
    addr
}

fn pretend(
    mut stream: TcpStream,
    mut answers: impl FnMut(&Request<'_>, &mut dyn FnMut(Answer<'_>)),
) -> Option<()> {
    let mut incoming = Incoming::new();
    let mut next = |stream: &mut TcpStream| loop {
        if let Some(message) = incoming.message() {
            return Some(message.to_vec());
        }
        match stream.read(incoming.space()) {
            Ok(0) | Err(_) => return None,
            Ok(n) => incoming.filled(n),
        }
    };
    let mut out = Vec::new();
    let key = ClusterKey::without_secret();
    let mut session = session::respond(&key, &next(&mut stream)?, &mut out).ok()?;
    stream.write_all(&out).ok()?;
    loop {
        let mut plain = Vec::new();
        session.open(&next(&mut stream)?, &mut plain).ok()?;
        let (id, FromClient::Request(request)) = FromClient::decode(&plain).ok()? else {
            continue;
        };
        out.clear();
        let mut say = |answer: Answer<'_>| {
            let mut frame = vec![0; FRAME_BYTES_MAX];
            let len = answer.encode(id, &mut frame).unwrap();
            session.seal(&frame[..len], &mut out).unwrap();
        };
        match request {
            Request::Hello(_) => say(Answer::Welcome(Welcome {
                version: VERSION_MAX,
                lease_ms: 30_000,
                donor_id: [3; 16],
                slab_bytes: SLAB_BYTES as u64,
                memory_bytes: 1 << 30,
                free_bytes: 1 << 30,
            })),
            Request::Ping => say(Answer::Pong(Pong {
                free_bytes: 1 << 30,
                lent_bytes: 0,
                pressure: false,
            })),
            request => answers(&request, &mut say),
        }
        stream.write_all(&out).ok()?;
    }
}

/// A connection to a donor that can be delayed: the donor is then silent, but not gone.
pub struct Way {
    pub addr: SocketAddr,
    pub held: Arc<AtomicBool>,
    /// The delay of each piece.
    pub delay_us: Arc<AtomicUsize>,
}

impl Way {
    pub fn to(donor: SocketAddr) -> Way {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let held = Arc::new(AtomicBool::new(false));
        let delay_us = Arc::new(AtomicUsize::new(0));
        let (hold, delay) = (held.clone(), delay_us.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(donor).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (hold, delay) = (hold.clone(), delay.clone());
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(n @ 1..) = from.read(&mut bytes) {
                            while hold.load(Relaxed) {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            let us = delay.load(Relaxed) as u64;
                            std::thread::sleep(Duration::from_micros(us));
                            if to.write_all(&bytes[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Way {
            addr,
            held,
            delay_us,
        }
    }
}

/// The store, and its expected content.
pub struct Rig {
    pub far: &'static Far,
    /// The copies policy.
    pub copies: LiveCopies,
    /// The content of the disk.
    pub file: Option<File>,
    pub store: Replicas,
    /// The journal of the store.
    pub journal: Journal,
    /// The donors' addresses.
    pub donors: Vec<SocketAddr>,
    pub sealer: Sealer,
    pub seal: u64,
    pub rng: fastrand::Rng,
    pub next: u32,
    /// Written extents: the seal of the last durable write, and its fill byte.
    pub oracle: HashMap<u32, (u64, u8)>,
    pub pieces: usize,
    /// The fill bytes of the last extents.
    pub fills: Vec<u8>,
    /// Moves that the store's slots have requested, and slots that were granted one.
    pub wants: [Option<(IoLink, u32)>; MOVES_MAX],
    pub moving: [bool; MOVES_MAX],
    /// Sizes of the moves to grant the store, if it may move.
    pub own: usize,
    pub lets: bool,
    /// Slabs with too few copies, as last reported.
    pub degraded: u64,
    /// Reported failovers.
    pub failovers: u64,
    /// Log lines.
    pub said: Vec<String>,
}

impl Rig {
    pub fn new(donors: &[Server], policy: Policy, dir: Option<&std::path::Path>, seed: u64) -> Rig {
        let addrs: Vec<SocketAddr> = donors.iter().map(Server::listening).collect();
        Rig::over(&addrs, policy, dir, seed)
    }

    pub fn over(
        donors: &[SocketAddr],
        policy: Policy,
        dir: Option<&std::path::Path>,
        seed: u64,
    ) -> Rig {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let copies = LiveCopies::new(policy);
        let config = config(donors, &copies);
        let waker = Waker(far);
        let file = dir.map(|dir| disk::create(dir).unwrap());
        let again = file.as_ref().map(|file| file.try_clone().unwrap());
        let disk = again.map(|file| Disk::new(vec![file], None, waker).unwrap());
        let journal = Journal::create().unwrap();
        let mut rig = Rig {
            far,
            copies,
            file,
            journal: journal.try_clone().unwrap(),
            donors: donors.to_vec(),
            store: Replicas::new(far, TENANT, config, journal, disk, waker).unwrap(),
            sealer: Sealer::new(&KEY, TENANT),
            seal: 0,
            rng: fastrand::Rng::with_seed(seed),
            next: 0,
            oracle: HashMap::new(),
            pieces: 0,
            fills: Vec::new(),
            wants: [None; MOVES_MAX],
            moving: [false; MOVES_MAX],
            own: 0,
            lets: true,
            degraded: 0,
            failovers: 0,
            said: Vec::new(),
        };
        // Until they are connected, donors get nothing.
        let until = Instant::now() + PATIENCE;
        while rig.write(&[0], |_| {}) != [Outcome::Done] || rig.pieces == 0 && policy.donors > 0 {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        rig
    }

    /// Another agent takes over, with this journal. Operations under way are forgotten.
    pub fn take_over(&mut self, journal: Journal) {
        self.wants = [None; MOVES_MAX];
        self.moving = [false; MOVES_MAX];
        self.degraded = 0;
        // Donors are connected in a moment.
        self.far.wait_ms_max.store(30_000, Relaxed);
        self.journal = journal.try_clone().unwrap();
        let config = config(&self.donors, &self.copies);
        let waker = Waker(self.far);
        self.store = Replicas::new(self.far, TENANT, config, journal, None, waker).unwrap();
    }

    /// Reads one page of an extent, as a fault does, and returns whether it is right.
    pub fn read_page(&mut self, extent: u32, page: usize) -> Outcome {
        let (seal, fill) = self.oracle[&extent];
        let packed = self.packed(fill);
        let n = canvas_core::swap::extent::records(&packed).unwrap();
        let range = canvas_core::swap::extent::line(&packed, n, page)
            .unwrap()
            .range();
        for copy in 0..3 {
            let id = self.next;
            self.next += 1;
            self.store
                .read(id, extent, range.clone(), copy, Block::new());
            let (outcome, mut block) = self.ended(id);
            if outcome != Outcome::Done {
                return outcome;
            }
            let bytes = &mut block[range.clone()];
            let opened = (self.sealer).open_record(extent, seal, range.start, bytes);
            if opened.is_ok() {
                assert!(*bytes == packed[range], "extent {extent}, page {page}");
                return Outcome::Done;
            }
        }
        panic!("extent {extent}: it is handed out again and again and does not verify");
    }

    pub fn packed(&self, fill: u8) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        let mut packer = Packer::new(&mut bytes);
        for i in 0..7 {
            let add = packer.add(i, SwapEntry(i + 1), 4096, |b| b.fill(fill));
            add.unwrap();
        }
        packer.finish();
        bytes
    }

    /// Handles the store's events. Its own moves are granted sooner or later.
    pub fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.store.poll(&mut events);
        if events.is_empty() {
            // Leaves the processor to donors and to other tests.
            std::thread::sleep(Duration::from_micros(20));
        }
        events.retain(|event| {
            match *event {
                Event::MoveWanted { slot, link, bytes } => {
                    let slot = slot as usize;
                    assert!(bytes > 0 && !self.moving[slot]);
                    assert!(self.wants[slot].replace((link, bytes)).is_none());
                }
                Event::MoveEnded { slot, .. } => {
                    assert!(std::mem::take(&mut self.moving[slot as usize]));
                }
                Event::Health {
                    degraded,
                    failovers,
                    ..
                } => {
                    self.degraded = degraded;
                    self.failovers += failovers;
                }
                Event::Log(_, ref line) => self.said.push(line.clone()),
                _ => return true,
            }
            false
        });
        for slot in 0..MOVES_MAX {
            if let Some((link, bytes)) = self.wants[slot]
                && self.lets
                && self.rng.bool()
            {
                self.wants[slot] = None;
                self.moving[slot] = true;
                self.own += 1;
                let piece = match link {
                    IoLink::Disk(_) => bytes,
                    _ => self.rng.u32(1..=bytes),
                };
                self.store.grant_move(slot as u32, piece as usize);
            }
        }
        events
    }

    /// Waits until all slabs have as many copies as they should.
    pub fn repaired(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.degraded == 0 {
            assert!(Instant::now() < until, "nobody misses the donor");
            assert!(self.poll().is_empty());
        }
        while self.degraded > 0 {
            assert!(Instant::now() < until, "{} slabs", self.degraded);
            assert!(self.poll().is_empty());
        }
    }

    /// Writes these extents concurrently, in pieces of random sizes; calls `between` before each further piece. Returns
    /// how each ended.
    pub fn write(&mut self, extents: &[u32], mut between: impl FnMut(usize)) -> Vec<Outcome> {
        let mut under_way: HashMap<u32, (usize, u32, u64, u8, usize)> = HashMap::new();
        let mut outcomes = vec![None; extents.len()];
        self.fills.clear();
        for (place, extent) in extents.iter().enumerate() {
            let (id, fill) = (self.next, self.rng.u8(1..));
            self.next += 1;
            self.seal += 1;
            self.fills.push(fill);
            let mut block = Block::new();
            block.copy_from_slice(&self.packed(fill));
            self.sealer.seal(*extent, self.seal, &mut block).unwrap();
            let to = self.rng.usize(1..=EXTENT_BYTES);
            self.far.seals[*extent as usize].store(0, Relaxed);
            under_way.insert(id, (place, *extent, self.seal, fill, to));
            self.store.write(id, *extent, block, to);
        }
        let until = Instant::now() + PATIENCE;
        while !under_way.is_empty() {
            assert!(Instant::now() < until, "{} have not ended", under_way.len());
            for event in self.poll() {
                match event {
                    Event::WriteAdvanced(id) => {
                        between(self.pieces);
                        self.pieces += 1;
                        let to = &mut under_way.get_mut(&id).unwrap().4;
                        assert!(*to < EXTENT_BYTES, "there is nothing more of it");
                        *to = self.rng.usize(*to + 1..=EXTENT_BYTES);
                        self.store.continue_write(id, *to);
                    }
                    Event::Ended { id, outcome, .. } => {
                        let (place, extent, seal, fill, _) = under_way.remove(&id).unwrap();
                        outcomes[place] = Some(outcome);
                        self.oracle.remove(&extent);
                        if outcome == Outcome::Done {
                            self.far.seals[extent as usize].store(seal, Relaxed);
                            self.oracle.insert(extent, (seal, fill));
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        outcomes.into_iter().map(Option::unwrap).collect()
    }

    /// All written extents can be read, from whichever copy.
    pub fn check(&mut self) {
        self.check_with(false);
    }

    /// All written extents can be read, though a donor may hold old data unknown to anybody: bytes that do not verify
    /// are followed by some that do.
    pub fn check_beside_old(&mut self) {
        self.check_with(true);
    }

    fn check_with(&mut self, some_are_old: bool) {
        let oracle: Vec<_> = self.oracle.clone().into_iter().collect();
        for (extent, (seal, fill)) in oracle {
            let mut verified = 0;
            for copy in 0..16 {
                let id = self.next;
                self.next += 1;
                let whole = 0..EXTENT_BYTES;
                if copy == 0 && self.rng.bool() {
                    self.store.link(id, extent, false);
                }
                self.store.read(id, extent, whole, copy, Block::new());
                let (outcome, mut block) = self.ended(id);
                match outcome {
                    Outcome::Done => {
                        let opened = self.sealer.open_extent(extent, seal, &mut block);
                        if some_are_old && opened.is_err() {
                            continue;
                        }
                        assert_eq!(opened, Ok(()), "extent {extent}, copy {copy}");
                        assert!(block[..] == self.packed(fill)[..]);
                        verified += 1;
                    }
                    Outcome::NoCopy | Outcome::Away => break,
                    Outcome::Lost => {}
                    Outcome::NoRoom => panic!("a read takes no room"),
                }
                if copy > 0 && verified > 0 {
                    break;
                }
            }
            assert!(verified > 0, "extent {extent} is lost");
        }
    }

    /// Frees a slab without operations under way.
    pub fn free(&mut self, slab: u32) {
        let of_slab = |extent: u32| extent / SLAB_EXTENTS as u32 == slab;
        self.oracle.retain(|extent, _| !of_slab(*extent));
        let first = slab as usize * SLAB_EXTENTS;
        for seal in &self.far.seals[first..first + SLAB_EXTENTS] {
            seal.store(0, Relaxed);
        }
        self.store.free(slab);
        let until = Instant::now() + PATIENCE;
        while !matches!(self.poll()[..], [Event::Freed(freed)] if freed == slab) {
            assert!(Instant::now() < until, "slab {slab} is not freed");
        }
    }

    pub fn ended(&mut self, wanted: u32) -> (Outcome, Block) {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until);
            for event in self.poll() {
                if let Event::Ended { id, outcome, block } = event {
                    assert_eq!(id, wanted);
                    return (outcome, block);
                }
            }
        }
    }
}

pub fn seed() -> u64 {
    let seed = std::env::var("CANVAS_TEST_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..), |s| s.parse().unwrap());
    println!("CANVAS_TEST_SEED={seed}");
    seed
}

fn config(donors: &[SocketAddr], copies: &LiveCopies) -> Config {
    Config {
        servers: donors.iter().map(|addr| Address::from(*addr)).collect(),
        found: None,
        key: ClusterKey::without_secret(),
        copies: copies.clone(),
        disk_keeps: true,
        sealer: Sealer::new(&KEY, TENANT),
        links: 2,
        lanes: Some([5; 32]),
    }
}
