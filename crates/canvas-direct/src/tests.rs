extern crate std;

use super::*;
use canvas_lane::record::RecordKey;
use canvas_lane::{Answerer, Code, Keys, LENGTH_BYTES, MESSAGE_BYTES};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_shm::mailbox::Kind;
use canvas_shm::{Segment, lanes};
use std::boxed::Box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex as StdMutex};
use std::thread;
use std::time::{Duration, Instant};
use std::vec::Vec;

const KEY: [u8; 32] = [7; 32];
const SEAL: u64 = 9;
const HANDLE: u64 = 77;
const OFFSET: u32 = 64;
const LEN: usize = 200;

struct Here;

impl Process for Here {
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
    /// Says no, and more than that.
    Babbles,
    Stands,
    Closes,
}

/// A tenant with one slab at one donor of this test.
struct World {
    far: &'static Far,
    lanes: Box<Lanes>,
    does: Arc<StdMutex<Does>>,
    /// What the donor has of each extent, in bytes.
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
        while stream.read_exact(&mut message).is_ok() {
            let asked = answerer.asked(&message[LENGTH_BYTES..]).unwrap();
            let within = extent as usize % SLAB_EXTENTS * stride.load(Ordering::Relaxed);
            assert_eq!(
                (asked.handle, asked.offset),
                (HANDLE, within as u32 + OFFSET)
            );
            let does = *does.lock().unwrap();
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
        Does::Right => Code::Done,
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
        far.lanes.donors[1].set_place(Some(lanes::Place {
            ip,
            port,
            is_v6: false,
        }));
        far.lanes.set_key(&KEY);
        far.lanes.set_direct(true);
        far.seals[extent as usize].store(SEAL, Ordering::Release);
        let does = Arc::new(StdMutex::new(Does::Right));
        let stride = Arc::new(AtomicUsize::new(EXTENT_BYTES));
        let (todo, strides) = (does.clone(), stride.clone());
        let tenant = far.tenant();
        thread::spawn(move || serve(listener, &todo, &strides, tenant, extent));
        let world = World {
            far,
            lanes: Box::new(Lanes::new()),
            does,
            stride,
            extent,
            tickets: 0,
        };
        world.publish();
        world
    }

    /// What the agent does: the route.
    fn publish(&self) {
        self.far.routes[self.extent as usize / SLAB_EXTENTS].set(1, HANDLE, false);
    }

    fn read(&self) -> Option<[u8; LEN]> {
        self.read_at(OFFSET)
    }

    fn read_at(&self, offset: u32) -> Option<[u8; LEN]> {
        let ask = Ask {
            kind: Kind::Read,
            extent: self.extent,
            offset,
            len: LEN as u32 + 16,
        };
        let mut to = [0; LEN];
        self.lanes
            .read(self.far, &ask, &mut to, &Here)
            .then_some(to)
    }

    /// Reads until that is done over a lane, as faults come one after the other; gives tickets as the agent does.
    fn reads(&mut self) {
        *self.does.lock().unwrap() = Does::Right;
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
    // A shard that is there no more: the others are.
    *w.does.lock().unwrap() = Does::Says(Code::UnknownHandle);
    assert_eq!(w.read(), None);
    assert_eq!(w.far.routes[slab].shard_bytes(), Some(shard_bytes));
    assert_eq!(w.far.shard_routes[slab][0].get(false), None);
}

#[test]
fn whatever_fails_is_the_agents_to_read() {
    let mut w = World::new();
    w.reads();
    // It is there no more, it is damaged, or old: another copy may be better, and the agent says which.
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
    // Too much for now: the lane is good.
    *w.does.lock().unwrap() = Does::Says(Code::OverRate);
    assert_eq!(w.read(), None);
    w.reads();
    // It ends, and there is a pause before the next.
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
    // Written anew meanwhile: it opens under another number only.
    seal.store(SEAL + 1, Ordering::Release);
    assert_eq!(w.read(), None, "what is there is older");
    seal.store(SEAL, Ordering::Release);
    w.publish();
    w.lanes.close(&Here);
    w.reads();
    w.lanes.forbid();
    assert_eq!(w.read(), None, "forbidden");
    assert!(w.count(|s| &s.lane_reads) >= before + 2);
}
