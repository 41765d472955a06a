extern crate std;

use super::*;
use crate::client::pairs::{PairState, Refused};
use crate::wire::record::RecordKey;
use crate::wire::{
    Answerer, Code, Keys, LENGTH_BYTES, LaneRequest, MESSAGE_BYTES, exposed_to_bytes,
};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_shm::mailbox::Kind;
use canvas_shm::{Segment, lanes};
use canvas_types::rdma::{Exposed, QueuePair};
use std::boxed::Box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread;
use std::time::{Duration, Instant};
use std::vec::Vec;

const KEY: [u8; 32] = [7; 32];
const SEAL: u64 = 9;
const HANDLE: u64 = 77;
const OFFSET: u32 = 64;
const LEN: usize = 200;

/// Ends of queue pairs: the process's and the donor's.
const OURS: QueuePair = QueuePair {
    number: 17,
    psn: 4,
    gid: [1; 16],
    lid: 0,
    mtu: 3,
    reads: 1,
};
const THEIRS: QueuePair = QueuePair { number: 99, ..OURS };
const EXPOSED: Exposed = Exposed {
    address: 1 << 40,
    key: 5,
};

/// What a device does with a read.
#[derive(Clone, Copy, PartialEq, Default)]
enum Reads {
    #[default]
    Right,
    Flips,
    Refuses,
    Fails,
    Stands,
}

/// A process with queue pairs, for which this test is the device.
#[derive(Default)]
struct Here {
    standing: StdMutex<[Option<PairState>; COUNT]>,
    are_there: AtomicBool,
    /// Queue pairs cannot be created.
    fails: AtomicBool,
    reads: StdMutex<Reads>,
    /// What the next read returns: a record of this extent and tenant.
    record: StdMutex<Vec<u8>>,
    /// Queue pairs created, and ended.
    made: AtomicU32,
    ended: AtomicU32,
    asked: AtomicU32,
}

impl Here {
    fn put(&self, lane: usize, standing: PairState) {
        self.standing.lock().unwrap()[lane] = Some(standing);
    }
}

impl Pairs for Here {
    fn available(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }
    fn state(&self, lane: usize) -> PairState {
        self.standing.lock().unwrap()[lane].unwrap_or(PairState::None)
    }
    fn make(&self, lane: usize, local: Address) {
        assert_eq!(self.state(lane), PairState::None);
        assert_eq!(local.ip[..4], [127, 0, 0, 1]);
        self.made.fetch_add(1, Ordering::Relaxed);
        let fails = self.fails.load(Ordering::Relaxed);
        self.put(
            lane,
            if fails {
                PairState::Failed
            } else {
                PairState::Made(OURS)
            },
        );
    }
    fn connect(&self, lane: usize, peer: &QueuePair) {
        assert_eq!((self.state(lane), peer), (PairState::Made(OURS), &THEIRS));
        self.put(lane, PairState::Ready);
    }
    fn end(&self, lane: usize) {
        assert_ne!(self.state(lane), PairState::None);
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.put(lane, PairState::None);
    }
    fn post_read(
        &self,
        lane: usize,
        from: Exposed,
        offset: u32,
        len: usize,
    ) -> Result<(), Refused> {
        assert_eq!((self.state(lane), from), (PairState::Ready, EXPOSED));
        assert_eq!((offset, len), (3 * EXTENT_BYTES as u32 + OFFSET, LEN + 16));
        self.asked.fetch_add(1, Ordering::Relaxed);
        match *self.reads.lock().unwrap() {
            Reads::Refuses => Err(Refused),
            _ => Ok(()),
        }
    }
    fn poll_read(&self, _: usize, to: &mut [u8]) -> Result<bool, Refused> {
        to.copy_from_slice(&self.record.lock().unwrap());
        match *self.reads.lock().unwrap() {
            Reads::Fails => return Err(Refused),
            Reads::Stands => return Ok(false),
            Reads::Flips => to[LEN / 2] ^= 1,
            _ => {}
        }
        Ok(true)
    }
}

impl Process for Here {
    type Pairs = Here;
    fn pairs(&self) -> &Here {
        self
    }
    fn now_ns(&self) -> u64 {
        proc::now_ns()
    }
    fn fd_floor(&self) -> i32 {
        300
    }
    fn keep_fd(&self, index: usize, _: i32) {
        assert!(index < COUNT);
    }
    fn has_own_fds(&self) -> bool {
        false
    }
    fn note_slept(&self, _: u64) {}
}

/// What a donor does with a request.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Right,
    Flips,
    Says(Code),
    /// Refuses, and sends more than that.
    Babbles,
    Stands,
    Closes,
    /// Has no queue pair for channels.
    NoPair,
}

/// A tenant with one slab on one donor in this test.
struct World {
    far: &'static Far,
    here: Here,
    lanes: Box<Lanes>,
    does: Arc<StdMutex<Does>>,
    /// Bytes of each extent that the donor has.
    stride: Arc<AtomicUsize>,
    extent: u32,
    tickets: u8,
}

fn record(extent: u32, tenant: [u8; 16]) -> Vec<u8> {
    let key = RecordKey::new(&KEY, tenant);
    let mut bytes: Vec<u8> = (0..LEN as u8).collect();
    let tag = key.seal((extent, SEAL), OFFSET as usize, &[], &mut bytes);
    bytes.extend_from_slice(tag.as_ref());
    bytes
}

/// Serves one connection after the other, each with the next ticket.
fn serve(
    listener: TcpListener,
    does: &StdMutex<Does>,
    stride: &AtomicUsize,
    tenant: [u8; 16],
    extent: u32,
) {
    for number in 1..=u8::MAX {
        let Ok((mut stream, _)) = listener.accept() else {
            return;
        };
        let keys = Keys::new(&[number; 32], &[number; 16]);
        let mut message = [0; LENGTH_BYTES + MESSAGE_BYTES];
        if stream.read_exact(&mut message).is_err() {
            continue;
        }
        let mut answerer = Answerer::admit(&keys, &message[LENGTH_BYTES..]).unwrap();
        stream
            .write_all(&answerer.answer(Code::Done, 0).unwrap())
            .unwrap();
        let mut length = [0; LENGTH_BYTES];
        while stream.read_exact(&mut length).is_ok() {
            let mut message = std::vec![0; u16::from_le_bytes(length).into()];
            stream.read_exact(&mut message).unwrap();
            let does = *does.lock().unwrap();
            let given = match answerer.decode_request(&message).unwrap() {
                LaneRequest::Read(read) => Err(read),
                LaneRequest::Join(end) => {
                    assert_eq!(end, OURS);
                    Ok(THEIRS.to_bytes())
                }
                LaneRequest::Expose(handle) => {
                    assert_eq!(handle, HANDLE);
                    Ok(exposed_to_bytes(&EXPOSED))
                }
            };
            let asked = match given {
                Err(read) => read,
                Ok(_) if does == Does::NoPair => {
                    let head = answerer.answer(Code::NoPair, 0).unwrap();
                    stream.write_all(&head).unwrap();
                    continue;
                }
                Ok(given) => {
                    let head = answerer.answer_with_tail(&given).unwrap();
                    stream.write_all(&[&head[..], &given].concat()).unwrap();
                    continue;
                }
            };
            let within = extent as usize % SLAB_EXTENTS * stride.load(Ordering::Relaxed);
            assert_eq!(
                (asked.handle, asked.offset),
                (HANDLE, within as u32 + OFFSET)
            );
            if !answers(does, &mut answerer, &mut stream, record(extent, tenant)) {
                break;
            }
        }
    }
}

fn answers(
    does: Does,
    answerer: &mut Answerer,
    stream: &mut TcpStream,
    mut bytes: Vec<u8>,
) -> bool {
    let code = match does {
        Does::Says(code) => code,
        Does::Babbles => Code::OverRate,
        Does::Closes => return false,
        Does::Stands => {
            thread::sleep(Duration::from_millis(60));
            return false;
        }
        Does::Right | Does::NoPair => Code::Done,
        Does::Flips => {
            bytes[LEN / 2] ^= 1;
            Code::Done
        }
    };
    let len = if code == Code::Done { bytes.len() } else { 0 };
    let head = answerer.answer(code, len as u32).unwrap();
    let sent = if does == Does::Babbles { 1 } else { len };
    stream.write_all(&[&head, &bytes[..sent]].concat()).unwrap();
    true
}

impl World {
    fn new() -> World {
        let _ = canvas_sys::gate::open();
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.slabs_max.store(1, Ordering::Relaxed);
        let slab = far.take_slab(0).unwrap();
        let extent = slab * SLAB_EXTENTS as u32 + 3;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ip = [0; 16];
        ip[..4].copy_from_slice(&[127, 0, 0, 1]);
        let port = listener.local_addr().unwrap().port();
        far.lanes.donors[1].set_address(Some(lanes::DonorAddress {
            ip,
            port,
            is_v6: false,
            has_rdma: true,
        }));
        far.lanes.set_key(&KEY);
        far.lanes.set_direct(true);
        far.seals[extent as usize].store(SEAL, Ordering::Release);
        let does = Arc::new(StdMutex::new(Does::Right));
        let stride = Arc::new(AtomicUsize::new(EXTENT_BYTES));
        let (todo, strides) = (does.clone(), stride.clone());
        let tenant = far.tenant();
        thread::spawn(move || serve(listener, &todo, &strides, tenant, extent));
        let here = Here {
            record: StdMutex::new(record(extent, tenant)),
            ..Here::default()
        };
        let world = World {
            far,
            here,
            lanes: Box::new(Lanes::new()),
            does,
            stride,
            extent,
            tickets: 0,
        };
        world.publish();
        world
    }

    /// What the agent does: publishes the route.
    fn publish(&self) {
        self.far.routes[self.extent as usize / SLAB_EXTENTS].set(1, HANDLE, false);
    }

    fn read(&self) -> Option<[u8; LEN]> {
        self.read_at(OFFSET)
    }

    fn read_at(&self, offset: u32) -> Option<[u8; LEN]> {
        let ask = RequestFields {
            kind: Kind::Read,
            extent: self.extent,
            offset,
            len: LEN as u32 + 16,
        };
        let mut to = [0; LEN];
        self.lanes
            .read(self.far, &ask, &mut to, &self.here)
            .then_some(to)
    }

    /// Reads until a read succeeds over a channel, as faults come one after the other; offers tickets as the agent
    /// does.
    fn reads(&mut self) {
        *self.does.lock().unwrap() = Does::Right;
        self.reads_as_it_is();
    }

    fn reads_as_it_is(&mut self) {
        let began = Instant::now();
        while self.read().is_none() {
            let donor = &self.far.lanes.donors[1];
            if donor.is_wanted() {
                self.tickets += 1;
                let keys = Keys::new(&[self.tickets; 32], &[self.tickets; 16]);
                donor.put_ticket(&[self.tickets; 16], &keys.to_bytes());
            }
            thread::sleep(Duration::from_millis(1));
            assert!(began.elapsed() < Duration::from_secs(20), "no lane");
        }
    }

    fn count(&self, of: impl Fn(&canvas_shm::far::FarStats) -> &AtomicU64) -> u64 {
        of(&self.far.stats).load(Ordering::Relaxed)
    }
}

#[test]
fn a_record_comes_over_a_lane_and_one_read_in_256_is_the_agents() {
    let mut w = World::new();
    w.reads();
    let mut right = 0;
    for _ in 0..2 * PROBE {
        if let Some(bytes) = w.read() {
            assert!(bytes.iter().copied().eq(0..LEN as u8));
            right += 1;
        } else {
            w.reads();
        }
    }
    assert!((PROBE..=2 * PROBE - 2).contains(&right), "{right}");
    let reads = w.count(|s| &s.lane_reads);
    assert_eq!(w.count(|s| &s.lane_bytes), reads * (LEN as u64 + 16));
}

#[test]
fn a_record_comes_from_the_shard_that_has_all_of_it() {
    let mut w = World::new();
    w.reads();
    let slab = w.extent as usize / SLAB_EXTENTS;
    let shard_bytes = 8192;
    w.stride.store(shard_bytes, Ordering::Relaxed);
    w.far.shard_routes[slab][0].set(1, HANDLE, false);
    w.far.routes[slab].set_in_shards(shard_bytes);
    w.reads();
    assert_eq!(w.far.shard_routes[slab][0].take_reads(), 1);
    let at = |offset: usize| w.read_at(offset as u32);
    assert_eq!(at(shard_bytes - LEN), None, "from one into the next");
    assert_eq!(at(shard_bytes), None, "a shard without a route");
    // This shard is gone: the others are not.
    *w.does.lock().unwrap() = Does::Says(Code::UnknownHandle);
    assert_eq!(w.read(), None);
    assert_eq!(w.far.routes[slab].shard_bytes(), Some(shard_bytes));
    assert_eq!(w.far.shard_routes[slab][0].get(false), None);
}

#[test]
fn whatever_fails_is_the_agents_to_read() {
    let mut w = World::new();
    w.reads();
    // It is gone, damaged, or old: another copy may be better, and the agent knows which.
    for does in [
        Does::Says(Code::UnknownHandle),
        Does::Says(Code::OutOfRange),
        Does::Flips,
    ] {
        *w.does.lock().unwrap() = does;
        assert_eq!(w.read(), None);
        assert_eq!(w.read(), None, "without a route nobody is asked");
        w.publish();
        w.reads();
    }
    // Over the rate for now: the channel stays good.
    *w.does.lock().unwrap() = Does::Says(Code::OverRate);
    assert_eq!(w.read(), None);
    w.reads();
    // The channel ends, and there is a pause before the next one.
    for does in [Does::Closes, Does::Stands, Does::Babbles] {
        let opened = w.count(|s| &s.lanes_opened);
        *w.does.lock().unwrap() = does;
        let began = Instant::now();
        assert_eq!(w.read(), None);
        assert!(
            began.elapsed() < Duration::from_millis(500),
            "{:?}",
            began.elapsed()
        );
        w.reads();
        assert!(
            began.elapsed() >= Duration::from_nanos(PAUSE_NS),
            "no pause"
        );
        assert!(w.count(|s| &s.lanes_opened) > opened);
    }
}

#[test]
fn nothing_is_read_that_may_not_be() {
    let mut w = World::new();
    w.reads();
    let before = w.count(|s| &s.lane_reads);
    let seal = &w.far.seals[w.extent as usize];
    seal.store(0, Ordering::Release);
    assert_eq!(w.read(), None, "an extent that was never written");
    seal.store(SEAL, Ordering::Release);
    w.far.lanes.set_direct(false);
    assert_eq!(w.read(), None, "not its turn");
    w.far.lanes.set_direct(true);
    w.far.lanes.set_disk_first(true);
    w.far.routes[0].set(1, HANDLE, true);
    assert_eq!(w.read(), None, "the disk is faster");
    w.far.lanes.set_disk_first(false);
    w.reads();
    // Rewritten meanwhile: it verifies under another number only.
    seal.store(SEAL + 1, Ordering::Release);
    assert_eq!(w.read(), None, "what is there is older");
    seal.store(SEAL, Ordering::Release);
    w.publish();
    w.lanes.close(&w.here);
    w.reads();
    w.lanes.forbid();
    assert_eq!(w.read(), None, "forbidden");
    assert!(w.count(|s| &s.lane_reads) >= before + 2);
}

impl World {
    /// With a device, and queue pairs allowed by the agent; until one is used.
    fn with_pairs() -> World {
        let mut w = World::new();
        w.here.are_there.store(true, Ordering::Relaxed);
        w.far.lanes.set_pairs(true);
        w.reads_by_pair();
        w
    }

    fn reads_by_pair(&mut self) {
        let before = self.count(|s| &s.lane_pair_reads);
        let began = Instant::now();
        while self.count(|s| &s.lane_pair_reads) == before {
            self.reads();
            assert!(began.elapsed() < Duration::from_secs(20), "no queue pair");
        }
    }

    fn made_and_ended(&self) -> [u32; 2] {
        [&self.here.made, &self.here.ended].map(|n| n.load(Ordering::Relaxed))
    }
}

#[test]
fn a_record_comes_by_a_queue_pair() {
    let mut w = World::with_pairs();
    let reads = w.count(|s| &s.lane_reads);
    let by_pair = w.count(|s| &s.lane_pair_reads);
    for _ in 0..20 {
        assert!(w.read().is_some_and(|b| b.iter().copied().eq(0..LEN as u8)));
    }
    assert_eq!(w.count(|s| &s.lane_reads), reads + 20);
    assert_eq!(w.count(|s| &s.lane_pair_reads), by_pair + 20);
    // The connection stays, and takes over while queue pairs may not be used.
    w.far.lanes.set_pairs(false);
    w.reads();
    w.reads();
    assert_eq!(w.count(|s| &s.lane_pair_reads), by_pair + 20);
    assert_eq!(w.made_and_ended(), [1, 1]);
    w.far.lanes.set_pairs(true);
    w.reads_by_pair();
    assert_eq!(w.made_and_ended(), [2, 1]);
    assert_eq!(w.count(|s| &s.lanes_opened), 1);
    // Off and on again, between two reads: the donor has ended the queue pair meanwhile.
    w.far.lanes.set_pairs(false);
    w.far.lanes.set_pairs(true);
    w.reads_by_pair();
    assert_eq!(w.made_and_ended(), [3, 2]);
    w.lanes.close(&w.here);
    assert_eq!(w.made_and_ended(), [3, 3]);
}

#[test]
fn whatever_a_device_does_is_the_agents_to_mend() {
    let mut w = World::with_pairs();
    *w.here.reads.lock().unwrap() = Reads::Flips;
    assert_eq!(w.read(), None);
    assert_eq!(w.read(), None, "without a route nobody is asked");
    *w.here.reads.lock().unwrap() = Reads::Right;
    w.publish();
    w.reads_by_pair();
    assert_eq!(w.count(|s| &s.lanes_opened), 1, "the lane is good");
    for reads in [Reads::Fails, Reads::Stands] {
        let opened = w.count(|s| &s.lanes_opened);
        *w.here.reads.lock().unwrap() = reads;
        let began = Instant::now();
        assert_eq!(w.read(), None);
        let took = began.elapsed();
        assert!(took < Duration::from_millis(500), "{took:?}");
        let [made, ended] = w.made_and_ended();
        assert_eq!(made, ended, "it is ended with its lane");
        *w.here.reads.lock().unwrap() = Reads::Right;
        w.reads_by_pair();
        assert!(w.count(|s| &s.lanes_opened) > opened);
    }
}

#[test]
fn a_device_that_takes_no_read_leaves_the_lane_as_it_was() {
    let w = World::with_pairs();
    *w.here.reads.lock().unwrap() = Reads::Refuses;
    assert_eq!(w.read(), None);
    assert_eq!(w.made_and_ended(), [1, 1]);
    let by_pair = w.count(|s| &s.lane_pair_reads);
    for _ in 0..20 {
        assert!(w.read().is_some());
    }
    assert_eq!(w.count(|s| &s.lane_pair_reads), by_pair);
    assert_eq!(w.count(|s| &s.lanes_opened), 1);
}

#[test]
fn who_gets_no_queue_pair_reads_over_the_connection() {
    for (fails, does) in [(true, Does::Right), (false, Does::NoPair)] {
        let mut w = World::new();
        w.here.are_there.store(true, Ordering::Relaxed);
        w.here.fails.store(fails, Ordering::Relaxed);
        w.far.lanes.set_pairs(true);
        *w.does.lock().unwrap() = does;
        for _ in 0..20 {
            w.reads_as_it_is();
        }
        assert_eq!(w.count(|s| &s.lane_pair_reads), 0);
        assert_eq!(w.made_and_ended(), [1, 1], "it is tried once");
        // Once more when they are allowed again.
        w.here.fails.store(false, Ordering::Relaxed);
        *w.does.lock().unwrap() = Does::Right;
        w.far.lanes.set_pairs(false);
        w.reads();
        w.far.lanes.set_pairs(true);
        w.reads_by_pair();
    }
}
