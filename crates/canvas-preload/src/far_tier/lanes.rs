//! Lanes of this process: connections to donors by which a fault reads its page itself (docs/design/lanes.md). Whatever
//! does not succeed here is read by the agent.
//!
//! A lane is claimed by one thread for one round trip. Nobody waits for a lane, nor for one that is being opened: a
//! fault takes the opening one step further, and goes to the agent.

use canvas_lane::record::RecordKey;
use canvas_lane::{Caller, Code, HEAD_BYTES, Keys, READ_BYTES_MAX, Read, Ticket};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_shm::lanes::{DONORS_MAX, Donor};
use canvas_shm::mailbox::Ask;
use canvas_shm::{Counter, Far};
use canvas_sys::net::{Address, Stream};
use canvas_sys::{gate, proc};
use canvas_types::contention::Contention;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::base::fds::{self, Fd, LANES as COUNT};
use crate::base::{state, time::now_ns};

/// Lanes to one donor.
const OF_A_DONOR: usize = 4;
/// One read in so many goes to the agent all the same, so that it knows how donors are.
const PROBE: u32 = 256;
/// An answer is looked for so long before the thread sleeps, where there is another processor that the donor may run on:
/// a near donor takes less. On one processor it cannot answer meanwhile.
const LOOK_NS: u64 = 50_000;
/// After so many looks in vain in turn, threads sleep at once,
const VAIN_MAX: u32 = 4;
/// but for one read in so many.
const LOOK_AGAIN: u32 = 64;
/// A donor that takes longer is the agent's to deal with.
const PATIENCE_NS: u64 = 20_000_000;
/// The same for the opening of a lane.
const OPENING_NS: u64 = 1_000_000_000;
/// Pauses after a lane that broke: the first, and the longest; each is twice the one before.
const PAUSE_NS: u64 = 50_000_000;
const PAUSE_NS_MAX: u64 = 5_000_000_000;
/// So often a lane's socket may not be behind its descriptor (in threads with descriptors of their own it is not)
/// before it is taken to be gone.
const STRIKES: u32 = 8;

/// How far a lane is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Closed,
    /// Since then.
    Connecting(u64),
    /// The opening was sent; since then.
    Opening(u64),
    Open,
}

/// Why a lane did not read a record.
enum Failed {
    /// The lane is of no use any more.
    Broken,
    /// What came is no record that opens, or the donor has not got the slab: another copy may be better.
    Elsewhere,
    /// Not now.
    Busy,
}

struct Inside {
    stage: Stage,
    stream: Option<Stream>,
    caller: Option<Caller>,
    records: Option<RecordKey>,
    ticket: Ticket,
    /// What has come of an answer.
    got: usize,
    /// There is another processor for who answers.
    looks: bool,
    /// Looks in vain in turn.
    vain: u32,
    strikes: u32,
    answer: [u8; HEAD_BYTES + READ_BYTES_MAX],
}

struct Lane {
    claimed: AtomicBool,
    /// The donor's number and 1, while it is not closed.
    donor: AtomicU32,
    inside: UnsafeCell<Inside>,
}

// SAFETY: `inside` is only reached through `Claim`, of which there is one at a time.
unsafe impl Sync for Lane {}

static LANES: [Lane; COUNT] = [const {
    Lane {
        claimed: AtomicBool::new(false),
        donor: AtomicU32::new(0),
        inside: UnsafeCell::new(Inside {
            stage: Stage::Closed,
            stream: None,
            caller: None,
            records: None,
            ticket: [0; 16],
            got: 0,
            looks: false,
            vain: 0,
            strikes: 0,
            answer: [0; HEAD_BYTES + READ_BYTES_MAX],
        }),
    }
}; COUNT];

/// A filter of the program's forbids what lanes need.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
static READS: AtomicU32 = AtomicU32::new(0);
static CONTENTION: Contention = Contention::new();

/// What went wrong with a donor.
struct Rest {
    until_ns: AtomicU64,
    pause_ns: AtomicU64,
}

static RESTS: [Rest; DONORS_MAX] = [const {
    Rest {
        until_ns: AtomicU64::new(0),
        pause_ns: AtomicU64::new(0),
    }
}; DONORS_MAX];

impl Rest {
    fn begin(&self, now_ns: u64) {
        let before = self.pause_ns.load(Ordering::Relaxed);
        let pause = (2 * before).clamp(PAUSE_NS, PAUSE_NS_MAX);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.until_ns.store(now_ns + pause, Ordering::Relaxed);
    }
    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns.load(Ordering::Relaxed)
    }
    fn forget(&self) {
        if self.pause_ns.load(Ordering::Relaxed) != 0 {
            self.pause_ns.store(0, Ordering::Relaxed);
        }
    }
}

/// No lanes in this process from now on.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// A lane that is the caller's until dropped.
struct Claim {
    lane: &'static Lane,
    index: usize,
}

impl Claim {
    fn of(index: usize) -> Option<Claim> {
        let lane = &LANES[index];
        lane.claimed
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Claim { lane, index })
    }

    fn inside(&mut self) -> &mut Inside {
        // SAFETY: who made this claim is the only one that has the lane (`of`), and borrows the claim meanwhile.
        unsafe { &mut *self.lane.inside.get() }
    }

    /// Ends it. The socket is closed if it is still ours to close.
    fn close(&mut self) {
        let inside = self.inside();
        inside.stage = Stage::Closed;
        (inside.caller, inside.records) = (None, None);
        if let Some(stream) = inside.stream.take() {
            stream.close();
        }
        fds::guard(Fd::Lane(self.index), -1);
        self.lane.donor.store(0, Ordering::Relaxed);
    }

    /// Begins to connect; false when it cannot.
    fn begin(&mut self, far: &Far, donor: usize) -> bool {
        let there: &Donor = &far.lanes.donors[donor];
        let Some(place) = there.place() else {
            return false;
        };
        let Some((ticket, secret)) = there.take_ticket() else {
            return false;
        };
        let address = Address {
            ip: place.ip,
            port: place.port,
            is_v6: place.is_v6,
        };
        let Ok(stream) = Stream::begin(address, fds::floor()) else {
            RESTS[donor].begin(now_ns());
            return false;
        };
        fds::guard(Fd::Lane(self.index), stream.fd());
        let inside = self.inside();
        inside.stage = Stage::Connecting(now_ns());
        inside.stream = Some(stream);
        inside.caller = Some(Caller::new(&Keys::new(&secret, &ticket)));
        inside.records = Some(RecordKey::new(&far.lanes.key(), far.tenant()));
        (inside.ticket, inside.got, inside.vain, inside.strikes) = (ticket, 0, 0, 0);
        inside.looks = proc::processors() > 1;
        self.lane.donor.store(donor as u32 + 1, Ordering::Relaxed);
        true
    }

    /// Takes the opening further, as far as it goes now. True when the lane is open.
    fn advance(&mut self, far: &Far, donor: usize) -> bool {
        let inside = self.inside();
        match inside.step() {
            Ok(()) => {}
            Err(Failed::Broken) => {
                self.close();
                RESTS[donor].begin(now_ns());
                return false;
            }
            Err(Failed::Busy | Failed::Elsewhere) => return false,
        }
        far.stats.lanes_opened.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.lane.claimed.store(false, Ordering::Release);
    }
}

impl Inside {
    /// One step of the opening after the other, as long as nothing has to be waited for.
    fn step(&mut self) -> Result<(), Failed> {
        let (Some(stream), Some(caller)) = (self.stream, &mut self.caller) else {
            return Err(Failed::Broken);
        };
        is_here(stream, &mut self.strikes)?;
        let waits = |since: u64| {
            if now_ns().saturating_sub(since) > OPENING_NS {
                Failed::Broken
            } else {
                Failed::Busy
            }
        };
        if let Stage::Connecting(since) = self.stage {
            // Asked once only: an opening that was not sent is made anew, and nothing else has its number.
            let opening = caller.opening(&self.ticket).map_err(|_| Failed::Broken)?;
            match stream.send(&opening) {
                Ok(true) => self.stage = Stage::Opening(now_ns()),
                Ok(false) => {
                    caller.take_back();
                    return Err(waits(since));
                }
                Err(_) => return Err(Failed::Broken),
            }
        }
        if let Stage::Opening(since) = self.stage {
            let rest = &mut self.answer[self.got..HEAD_BYTES];
            self.got += stream.receive(rest, false).map_err(|_| Failed::Broken)?;
            let Some(head) = self.answer[..self.got].first_chunk::<HEAD_BYTES>() else {
                return Err(waits(since));
            };
            let answer = caller.answered(head).map_err(|_| Failed::Broken)?;
            if answer.code != Code::Done || stream.set_patience(PATIENCE_NS).is_err() {
                return Err(Failed::Broken);
            }
            self.stage = Stage::Open;
        }
        Ok(())
    }

    /// Reads a record into `answer`, behind the head, and opens it.
    fn read(&mut self, handle: u64, ask: &Ask, seal: u64) -> Result<(), Failed> {
        let (Some(stream), Some(caller), Some(records)) =
            (self.stream, &mut self.caller, &self.records)
        else {
            return Err(Failed::Broken);
        };
        is_here(stream, &mut self.strikes)?;
        let within = ask.extent as usize % SLAB_EXTENTS * EXTENT_BYTES;
        let read = Read {
            handle,
            offset: within as u32 + ask.offset,
            len: ask.len,
        };
        let message = caller.ask(read).map_err(|_| Failed::Broken)?;
        if stream.send(&message) != Ok(true) {
            return Err(Failed::Broken);
        }
        let often =
            self.vain < VAIN_MAX || READS.load(Ordering::Relaxed).is_multiple_of(LOOK_AGAIN);
        let looks = self.looks && often;
        let mut wait = Wait::new(stream, looks);
        wait.fill(&mut self.answer[..HEAD_BYTES])?;
        let head = self.answer.first_chunk::<HEAD_BYTES>();
        let head = head.and_then(|head| caller.answered(head).ok());
        match head.ok_or(Failed::Broken)?.code {
            Code::Done => {}
            Code::OverRate => return Err(Failed::Busy),
            Code::UnknownHandle | Code::OutOfRange => return Err(Failed::Elsewhere),
        }
        let record = &mut self.answer[HEAD_BYTES..][..ask.len as usize];
        wait.fill(record)?;
        self.vain = if wait.sleeps {
            self.vain.saturating_add(1)
        } else {
            0
        };
        records
            .open((ask.extent, seal), ask.offset as usize, &[], record)
            .map_err(|_| Failed::Elsewhere)
    }
}

/// Not a byte goes to a stranger: is the socket still behind its descriptor, in this thread?
fn is_here(stream: Stream, strikes: &mut u32) -> Result<(), Failed> {
    if stream.is_here() {
        *strikes = 0;
        return Ok(());
    }
    *strikes += 1;
    Err(if *strikes > STRIKES {
        Failed::Broken
    } else {
        Failed::Busy
    })
}

/// Waits for what comes: looks for it at first, then sleeps.
struct Wait {
    stream: Stream,
    begun_ns: u64,
    looks: bool,
    sleeps: bool,
}

impl Wait {
    fn new(stream: Stream, looks: bool) -> Wait {
        Wait {
            stream,
            begun_ns: now_ns(),
            looks,
            sleeps: false,
        }
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), Failed> {
        let mut got = 0;
        while got < to.len() {
            let came = self.stream.receive(&mut to[got..], self.sleeps);
            got += came.map_err(|_| Failed::Broken)?;
            if got == to.len() {
                break;
            }
            let now = now_ns();
            let waited = now.saturating_sub(self.begun_ns);
            if waited > PATIENCE_NS {
                return Err(Failed::Broken);
            }
            if self.looks && waited < LOOK_NS && !CONTENTION.is_here(now) {
                gate::give_way();
                CONTENTION.gave_way(now, now_ns());
            } else {
                self.sleeps = true;
            }
        }
        Ok(())
    }
}

/// An open lane to the donor that nobody else uses now. Without one, a step is made towards one.
fn claim(far: &Far, donor: usize) -> Option<Claim> {
    let number = donor as u32 + 1;
    let (mut of_it, mut closed) = (0, None);
    for (i, lane) in LANES.iter().enumerate() {
        match lane.donor.load(Ordering::Relaxed) {
            0 => closed = closed.or(Some(i)),
            n if n == number => {
                of_it += 1;
                let Some(mut claim) = Claim::of(i) else {
                    continue;
                };
                if claim.lane.donor.load(Ordering::Relaxed) != number {
                    continue;
                }
                // One is opened at a time.
                let is_open = claim.inside().stage == Stage::Open || claim.advance(far, donor);
                return is_open.then_some(claim);
            }
            _ => {}
        }
    }
    if of_it < OF_A_DONOR
        && RESTS[donor].is_over(now_ns())
        && !fds::has_its_own()
        && let Some(mut claim) = closed.and_then(Claim::of)
        && claim.inside().stage == Stage::Closed
        && claim.begin(far, donor)
    {
        return claim.advance(far, donor).then_some(claim);
    }
    None
}

/// Reads what `ask` names from a donor, and puts the first bytes of the record into `to`. False when that is the
/// agent's to do.
pub fn read(far: &Far, ask: &Ask, to: &mut [u8]) -> bool {
    let lanes = &far.lanes;
    if !lanes.is_direct() || FORBIDDEN.load(Ordering::Relaxed) {
        return false;
    }
    let (extent, len) = (ask.extent as usize, ask.len as usize);
    let Some(route) = far.routes.get(extent / SLAB_EXTENTS) else {
        return false;
    };
    let Some((donor, handle)) = route.get(lanes.is_disk_first()) else {
        return false;
    };
    // What is opened by this number is what was written last: the caller keeps the extent from being written anew.
    let seal = far.seals[extent].load(Ordering::Acquire);
    if !lanes.donors[donor].is_open() || seal == 0 || !(to.len()..=READ_BYTES_MAX).contains(&len) {
        return false;
    }
    let probes = READS.fetch_add(1, Ordering::Relaxed) % PROBE == PROBE - 1;
    if probes {
        return false;
    }
    let Some(mut claim) = claim(far, donor) else {
        return false;
    };
    let begun_ns = now_ns();
    let outcome = claim.inside().read(handle, ask, seal);
    let stats = &far.stats;
    match outcome {
        Ok(()) => {
            to.copy_from_slice(&claim.inside().answer[HEAD_BYTES..][..to.len()]);
            RESTS[donor].forget();
            route.note();
            stats.lane_reads.fetch_add(1, Ordering::Relaxed);
            stats.lane_bytes.fetch_add(len as u64, Ordering::Relaxed);
            if claim.inside().vain > 0 {
                state::count(Counter::FaultSleepNs, now_ns().saturating_sub(begun_ns));
            }
            return true;
        }
        Err(Failed::Broken) => {
            claim.close();
            RESTS[donor].begin(now_ns());
        }
        Err(Failed::Elsewhere) => route.clear(),
        Err(Failed::Busy) => {}
    }
    stats.lane_failures.fetch_add(1, Ordering::Relaxed);
    false
}

/// In a fork's child, before it runs on: the parent's lanes are not ours.
pub fn after_fork_in_child() {
    for (index, lane) in LANES.iter().enumerate() {
        // No thread was at work when the fork was made.
        lane.claimed.store(false, Ordering::Relaxed);
        if lane.donor.load(Ordering::Relaxed) != 0
            && let Some(mut claim) = Claim::of(index)
        {
            claim.close();
        }
    }
}
