//! Far memory beyond the pool: the program's side of the far area ([`canvas_shm::far`]).
//!
//! Out: when the pool is past its mark, the reclaim thread packs its oldest pages, as they are stored,
//! into an extent ([`canvas_swap::extent`]) and posts it to the agent. Until the agent says that it is
//! durable the pool keeps its copies; then the entries of those that are still the same sink.
//!
//! Back: a fault reads its page's record alone, from whichever copy the agent finds; a stream, or a
//! pool with room, fetches the whole extent and raises its neighbours into the pool, undecompressed.
//!
//! What an extent is kept by ([`ExtentBook::hold`]): each entry that names it, its writing, its fetching. So the
//! number of an extent is not used anew while an answer for the old one may come.

use canvas_backend::LoadError;
use canvas_pager::spill::SpillHand;
use canvas_pager::word::{self, State, flag};
use canvas_shm::far::{self, Far, SLAB_EXTENTS};
use canvas_shm::job::{Ended, Job};
use canvas_shm::mailbox::{Ask, DEMANDS, FETCHES, Kind, Mailbox, REQUESTS, Status, WRITES};
use canvas_shm::segment::config_flag;
use canvas_shm::{Counter, Segment};
use canvas_swap::classes::HEADER_BYTES;
use canvas_swap::codec::Hash;
use canvas_swap::extent::{self, EXTENT_BYTES, Packer, record_bytes};
use canvas_swap::extents::{BookState, ExtentBook, Slabs, Span};
use canvas_sys::gate::{self, yield_now};
use canvas_sys::{Errno, mem, proc};
use canvas_types::crowd::Crowd;
use canvas_types::sync::backoff;
use canvas_types::{DeepPlace, PAGE_SIZE, PageBuf, SwapEntry};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::account::Whom;
use crate::pool::pool;
use crate::state::{EPOCH, count};
use crate::{account, ahead, areas, compact, copies, reclaim, report, sig, state};

const _: () = assert!(EXTENT_BYTES == far::EXTENT_BYTES);

static FAR: AtomicUsize = AtomicUsize::new(0);
/// This process's index in the segment.
static PROC: AtomicUsize = AtomicUsize::new(0);
static HAND: SpillHand = SpillHand::new();
/// No writing before this moment: the last one failed.
static WRITES_REST_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Since when donors or disk do not answer writes; 0 when they do.
static WRITES_AWAY_SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// Bytes of the pool that are being written.
static WRITING_BYTES: AtomicI64 = AtomicI64::new(0);
/// A write was waited for in vain. Until one ends nobody waits for another: each fault would.
static STALLED: AtomicBool = AtomicBool::new(false);
/// The last write found no room: no slab, a full disk, no answer.
static NO_ROOM: AtomicBool = AtomicBool::new(false);
/// Counts writes that let pages leave the pool.
static ROOM_MADE: AtomicU32 = AtomicU32::new(0);
/// No search in the background before this moment: the last one found nothing to write.
static FOUND_NONE_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Pause after it.
const FOUND_NONE_NS: u64 = 2_000_000;
/// Words that one round of the hand looks at.
const LOOK_MAX: usize = 1 << 18;
/// Pause after a write that failed.
const REST_NS: u64 = 200_000_000;

/// What our requests are about; the request's index is the job's.
static JOBS: [Job; REQUESTS] = [const { Job::new() }; REQUESTS];

/// Why a copy beyond the pool did not come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// No copy can be reached now: it may come back later.
    Unreachable,
    /// All copies are damaged.
    Damaged,
    /// No copy is left: the donors that held one have lost it.
    Gone,
}

/// Maps the far area, if the tenant has one. Once, at start-up, before the slot is taken.
pub fn map(fd: i32) -> Result<(), Errno> {
    if state::seg().config.flags.load(Ordering::Relaxed) & config_flag::FAR == 0 {
        return Ok(());
    }
    let at = mem::map_shared(fd, far::OFFSET, far::FAR_BYTES)?;
    FAR.store(at, Ordering::Release);
    if far().is_none_or(|f| f.magic.load(Ordering::Acquire) != far::MAGIC) {
        FAR.store(0, Ordering::Relaxed);
        return Err(Errno(libc::EBADF));
    }
    Ok(())
}

/// Takes the mailbox that goes with our slot, and whatever its last owner left in it.
pub fn take_channel() {
    let seg: &Segment = state::seg();
    let proc = seg.index_of(state::slot());
    PROC.store(proc, Ordering::Relaxed);
    if let Some(m) = mailbox() {
        m.reset();
        drop_process(proc);
        if let Some(f) = far() {
            f.set_born(proc, 0);
        }
    }
}

#[inline]
/// The far area, if the tenant has one.
pub fn far() -> Option<&'static Far> {
    let at = FAR.load(Ordering::Relaxed);
    // SAFETY: `init` mapped the full area, for good.
    (at != 0).then(|| unsafe { Far::at(at) })
}

fn mailbox() -> Option<&'static Mailbox> {
    far().map(our_mailbox)
}

/// This process's requests.
pub fn our_mailbox(f: &Far) -> &Mailbox {
    &f.mailboxes[PROC.load(Ordering::Relaxed)]
}

/// Drops what process `proc` refers to; its slot is being released.
pub fn drop_process(proc: usize) {
    if let Some(f) = far()
        && f.drop_process(proc)
    {
        ring(f);
    }
}

/// Tells the agent that we have posted.
pub fn ring(f: &Far) {
    if f.ring(PROC.load(Ordering::Relaxed)) {
        proc::futex_wake(&f.asleep, 1);
    }
}

// ---- extents ----

static BOOK: BookState = BookState::new();
/// The forks that what we inherited stems from ([`Span`]), 0 for none.
static BORN: AtomicU64 = AtomicU64::new(0);

/// Which extents we use.
pub fn book() -> ExtentBook<'static> {
    ExtentBook {
        arrays: areas::extent_book(),
        state: &BOOK,
        slab_extents: SLAB_EXTENTS as u32,
        yield_now,
    }
}

/// The far area's slabs, as this process sees them.
pub struct OurSlabs(pub &'static Far);

impl Slabs for OurSlabs {
    fn high(&self) -> u32 {
        let high = self.0.slabs_high.load(Ordering::Acquire);
        high.min(far::SLABS_MAX as u32)
    }
    fn take(&self) -> Option<u32> {
        self.0.take_slab(PROC.load(Ordering::Relaxed))
    }
    fn give_up(&self, slab: u32) {
        if self.0.drop_slab(slab, PROC.load(Ordering::Relaxed)) {
            ring(self.0);
        }
    }
    fn others(&self, slab: u32, on: &mut dyn FnMut(Span)) -> bool {
        let proc = PROC.load(Ordering::Relaxed);
        self.0.others(slab, proc, |born| {
            // One that inherited nothing, and refers to our slab: it cannot be.
            on(Span::of(born).unwrap_or(Span::ALL));
        })
    }
}

/// An entry names the extent no more, or a request is through with it.
pub fn unhold(extent: u32) {
    if let Some(f) = far() {
        book().unhold(extent, &OurSlabs(f));
    }
}

// ---- out ----

/// Bytes that the pool should get rid of; not positive when it has room.
fn excess_bytes(f: &Far) -> i64 {
    let seg = state::seg();
    let percent = f.spill_percent.load(Ordering::Relaxed).min(100) as i64;
    let bound = seg.config.pool_bytes.load(Ordering::Relaxed) as i64;
    let mark = bound / 100 * percent;
    let used = seg.pool_bytes.load(Ordering::Relaxed);
    if used <= mark {
        return 0;
    }
    let stats = pool().stats();
    // Room in our own slabs will do, unless the bound itself was lowered: that is about whole slabs.
    let free_within = stats.charged_bytes - stats.slot_bytes;
    let writing = WRITING_BYTES.load(Ordering::Relaxed);
    let over = (used - bound).min(stats.charged_bytes);
    (used - free_within - mark).max(over) - writing
}

/// What the pool's bound leaves, room in our own slabs included.
pub fn pool_room_bytes() -> i64 {
    let (seg, stats) = (state::seg(), pool().stats());
    let bound = seg.config.pool_bytes.load(Ordering::Relaxed) as i64;
    bound - seg.pool_bytes.load(Ordering::Relaxed) + stats.charged_bytes - stats.slot_bytes
}

/// Does the pool hold more than its bound, which was lowered?
fn is_over() -> bool {
    let seg = state::seg();
    seg.pool_bytes.load(Ordering::Relaxed) > seg.config.pool_bytes.load(Ordering::Relaxed) as i64
}

/// The reclaim thread's round: ends what has ended, writes what the pool has too much. True when it
/// did something.
pub fn background_round() -> bool {
    let Some(f) = far() else { return false };
    let mut worked = finish_all();
    loop {
        if is_over() {
            pool().trim();
        }
        let excess = excess_bytes(f);
        if excess <= 0 {
            break;
        }
        // What costs least goes first: what lies beyond the pool as well; what has to be written; what
        // will have to be compressed again.
        let gone = copies::sink(excess as usize)
            || FOUND_NONE_UNTIL_NS.load(Ordering::Relaxed) < proc::now_ns()
                && write_some(f, Some(LOOK_MAX))
            || WRITING_BYTES.load(Ordering::Relaxed) == 0 && copies::give_up(excess as usize);
        if !gone {
            break;
        }
        worked = true;
    }
    compact::round(f, false) || worked
}

/// Writes what was swapped out longest ago, whether the pool is full or not, as another process asks for
/// `bytes` of it. True when something is under way.
pub fn write_for_others(bytes: i64) -> bool {
    let Some(f) = far() else { return false };
    finish_all();
    while WRITING_BYTES.load(Ordering::Relaxed) < bytes && write_some(f, Some(LOOK_MAX)) {}
    WRITING_BYTES.load(Ordering::Relaxed) > 0
}

/// How long the reclaim thread may sleep: what is being written leaves the pool when it looks.
pub fn idle_ns() -> u64 {
    if WRITING_BYTES.load(Ordering::Relaxed) > 0 || compact::works() {
        300_000
    } else {
        u64::MAX
    }
}

/// The pool is full: waits until something left it. False when nothing will. Donors that are away are
/// waited for as reads wait for them, pauses between two tries included: one of several may have died,
/// and its place is taken by another within seconds.
#[cold]
pub fn make_room() -> bool {
    /// Pause between two looks.
    const LOOK_NS: u64 = 10_000;
    /// The same while donors are away.
    const AWAY_LOOK_NS: u64 = 1_000_000;
    /// How long other processes are waited for, when they have all of the pool; and how long the one that
    /// has most of it, before all are asked.
    const OTHERS_WAIT_NS: u64 = 1_000_000_000;
    const LARGEST_WAIT_NS: u64 = 20_000_000;
    let Some(f) = far() else {
        return others_give();
    };
    let seg = state::seg();
    let begun = proc::now_ns();
    let wait_ns = f.wait_ms_max.load(Ordering::Relaxed) * 1_000_000;
    let made_before = ROOM_MADE.load(Ordering::Relaxed);
    let used_before = seg.pool_bytes.load(Ordering::Relaxed);
    let mut asked = false;
    loop {
        finish_all();
        if ROOM_MADE.load(Ordering::Relaxed) != made_before
            || seg.pool_bytes.load(Ordering::Relaxed) < used_before
        {
            return true;
        }
        if STALLED.load(Ordering::Relaxed) {
            return false;
        }
        // As much as there are requests for.
        while write_some(f, None) {}
        if NO_ROOM.load(Ordering::Relaxed) {
            compact::round(f, true);
        }
        let now = proc::now_ns();
        let waited_ns = now - begun;
        let under_way = WRITING_BYTES.load(Ordering::Relaxed) > 0 || compact::works();
        let away = WRITES_AWAY_SINCE_NS.load(Ordering::Relaxed);
        let rests = away != 0
            && now.saturating_sub(away) < wait_ns
            && WRITES_REST_UNTIL_NS.load(Ordering::Relaxed) > now;
        if under_way || rests {
            // Who has less than another need not live on what little that is alone.
            if !asked {
                account::ask_for_pool(Whom::Larger);
                asked = true;
            }
            if waited_ns > wait_ns {
                STALLED.store(under_way, Ordering::Relaxed);
                NO_ROOM.store(true, Ordering::Relaxed);
                return false;
            }
        } else {
            let whom = if waited_ns < LARGEST_WAIT_NS {
                Whom::Largest
            } else {
                Whom::All
            };
            if account::ask_for_pool(whom).is_none() || waited_ns > OTHERS_WAIT_NS {
                return false;
            }
        }
        gate::wait(if rests { AWAY_LOOK_NS } else { LOOK_NS });
    }
}

/// There is nothing beyond the pool: others in the tenant may hold more of it than they need. True when
/// one has given something back.
fn others_give() -> bool {
    /// Asked again so long after asking in vain, and waited for so long.
    const VAIN_NS: u64 = 20_000_000;
    const LOOK_NS: u64 = 50_000;
    static VAIN_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
    let used = || state::seg().pool_bytes.load(Ordering::Relaxed);
    let (begun, before) = (proc::now_ns(), used());
    if begun < VAIN_UNTIL_NS.load(Ordering::Relaxed) {
        return false;
    }
    if account::ask_for_pool(Whom::All).is_some() {
        while proc::now_ns() < begun + VAIN_NS {
            gate::wait(LOOK_NS);
            if used() < before {
                return true;
            }
        }
    }
    VAIN_UNTIL_NS.store(proc::now_ns() + VAIN_NS, Ordering::Relaxed);
    false
}

/// Did the last write find a place? While none does, resident pages give up all that they have there, at once.
pub fn takes_more() -> bool {
    far().is_none() || !NO_ROOM.load(Ordering::Relaxed)
}

/// Has far memory stopped answering?
pub fn is_stalled() -> bool {
    STALLED.load(Ordering::Relaxed)
}

/// Are there no writes for a while, as the last one failed?
pub fn writes_rest(now_ns: u64) -> bool {
    WRITES_REST_UNTIL_NS.load(Ordering::Relaxed) > now_ns
}

/// Packs and posts one extent. False when there is nothing to write, nowhere, or nobody to ask.
fn write_some(f: &'static Far, look_max: Option<usize>) -> bool {
    if writes_rest(proc::now_ns()) {
        return false;
    }
    let m = our_mailbox(f);
    let Some(i) = m.claim(WRITES) else {
        return false;
    };
    let Some(extent) = book().take(&OurSlabs(f)) else {
        NO_ROOM.store(true, Ordering::Relaxed);
        m.release(i);
        return false;
    };
    let packed = pack(f, i, look_max);
    if packed.sunk > 0 {
        count(Counter::PagesSunkUnwritten, packed.sunk);
        ROOM_MADE.fetch_add(1, Ordering::Relaxed);
    }
    if packed.records == 0 {
        unhold(extent);
        m.release(i);
        if packed.sunk == 0 {
            FOUND_NONE_UNTIL_NS.store(proc::now_ns() + FOUND_NONE_NS, Ordering::Relaxed);
        }
        return packed.sunk > 0;
    }
    WRITING_BYTES.fetch_add(packed.bytes, Ordering::Relaxed);
    JOBS[i].begin(extent, packed.bytes);
    post_extent(f, i, Kind::Write, extent);
    true
}

/// Posts request `i`, which is about a whole extent.
fn post_extent(f: &Far, i: usize, kind: Kind, extent: u32) {
    let ask = Ask {
        kind,
        extent,
        offset: 0,
        len: EXTENT_BYTES as u32,
    };
    f.mailboxes[PROC.load(Ordering::Relaxed)].post(i, ask, proc::now_ns());
    ring(f);
}

/// What a look at the pool's oldest pages came to.
#[derive(Default)]
struct Packed {
    /// In the buffer, and bytes of slots that they hold.
    records: usize,
    bytes: i64,
    /// Pages that have left the pool already: they were beyond it, too.
    sunk: u64,
}

/// Fills the buffer of request `i`. What need not be written leaves the pool at once; when that made as
/// much room as an extent would have, the buffer may stay empty.
fn pack(f: &Far, i: usize, look_max: Option<usize>) -> Packed {
    // SAFETY: the buffer is this request's, which we have claimed and not posted; it is as long as an
    // extent. Other processes of the tenant do not touch it, and if they do, the bytes are verified.
    let buffer = unsafe {
        &mut *f
            .buffer(PROC.load(Ordering::Relaxed), i)
            .cast::<[u8; EXTENT_BYTES]>()
    };
    let mut packer = Packer::new(buffer);
    let mut packed = Packed::default();
    let mut sunk_bytes = 0;
    let table = areas::table();
    HAND.scan(
        table.words,
        table.blocks(),
        areas::all_resident,
        EPOCH.now(),
        look_max,
        |page, cur| {
            if sunk_bytes >= EXTENT_BYTES && packed.records == 0 {
                return false;
            }
            let w = areas::word(page);
            if !word::transition(w, cur, cur.with_state(State::Filling)) {
                return true;
            }
            let entry = cur.entry();
            let (mut next, mut fits) = (cur, true);
            if let Some(freed) = pool().sink_home(entry) {
                sunk_bytes += freed;
                packed.sunk += 1;
                word::publish(w, cur.set(flag::DEEP));
                return true;
            }
            match pool().stored_len(entry) {
                Some(len) => {
                    fits = packer
                        .add(page, entry, len, |b| {
                            pool().copy_stored(entry, b);
                        })
                        .is_some();
                    packed.records += usize::from(fits);
                    packed.bytes += i64::from(fits) * record_bytes(len as usize) as i64;
                }
                // One value, or beyond the pool already: not looked at again.
                None => next = cur.set(flag::DEEP),
            }
            word::publish(w, next);
            fits
        },
    );
    packer.finish();
    packed
}

/// Ends all jobs whose requests have ended. True when room was made, or pages were raised.
fn finish_all() -> bool {
    let Some(m) = mailbox() else { return false };
    let mut used = m.in_use() & (WRITES | FETCHES);
    let mut any = false;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        any |= finish(i);
    }
    any
}

/// Ends job `i` if its request has ended.
fn finish(i: usize) -> bool {
    let Some(f) = far() else { return false };
    let (proc, job) = (PROC.load(Ordering::Relaxed), &JOBS[i]);
    let m = &f.mailboxes[proc];
    let Some(Ended {
        extent,
        bytes,
        status,
    }) = job.end(|| m.ended(i))
    else {
        return false;
    };
    let write = 1u64 << i & WRITES != 0;
    let compacts = compact::is_for_us(i);
    // Nothing can leave the pool before an extent is free.
    let past_bound = compacts && NO_ROOM.load(Ordering::Relaxed);
    let done = match status {
        Status::Ok => for_each_line(f, proc, i, |line, stored| {
            if write {
                sink(&line, extent, stored)
            } else if compacts {
                compact::vacate(&line, extent, stored, past_bound)
            } else {
                raise(&line, extent, stored)
            }
        }),
        Status::Late if compacts => 0,
        Status::Late => {
            count(Counter::PrefetchDropped, 1);
            0
        }
        failed => {
            count(Counter::DeepFailure, 1);
            if write {
                rest(failed);
            }
            0
        }
    };
    if write {
        STALLED.store(false, Ordering::Relaxed);
        if status == Status::Ok {
            WRITES_AWAY_SINCE_NS.store(0, Ordering::Relaxed);
            NO_ROOM.store(false, Ordering::Relaxed);
        }
        if done > 0 {
            ROOM_MADE.fetch_add(1, Ordering::Relaxed);
        }
        count(Counter::PagesSunk, done);
        book().written(extent, done);
        WRITING_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    } else if compacts {
        count(Counter::ExtentsCompacted, u64::from(done > 0));
        compact::over(i);
    } else {
        ahead::learn(false);
        count(Counter::PagesRaised, done);
    }
    // In this order: whoever sees the request free may use the job anew.
    unhold(extent);
    job.through();
    m.release(i);
    done > 0
}

/// No writes for a while.
fn rest(why: Status) {
    static TOLD_NS: AtomicU64 = AtomicU64::new(0);
    let now = proc::now_ns();
    let away = match (why, WRITES_AWAY_SINCE_NS.load(Ordering::Relaxed)) {
        (Status::Unreachable, 0) => now,
        (Status::Unreachable, since) => since,
        _ => 0,
    };
    WRITES_AWAY_SINCE_NS.store(away, Ordering::Relaxed);
    WRITES_REST_UNTIL_NS.store(now + REST_NS, Ordering::Relaxed);
    NO_ROOM.store(true, Ordering::Relaxed);
    let told = TOLD_NS.load(Ordering::Relaxed);
    if (told == 0 || now > told + 10_000_000_000) && account::take_turn(&TOLD_NS, told, now) {
        report!(
            "pages cannot be moved beyond the pool ({}); they stay in it",
            match why {
                Status::NoRoom => "there is no room",
                Status::Unreachable => "no copy can be made: donors or disk do not answer",
                Status::Refused => "the agent refuses",
                _ => "the copy is damaged",
            }
        );
    }
}

/// Calls `on` with each line of the extent in buffer `i`, and its record's hash and payload; how often
/// that was true.
fn for_each_line(
    f: &Far,
    proc: usize,
    i: usize,
    mut on: impl FnMut(extent::Line, &[u8]) -> bool,
) -> u64 {
    // SAFETY: the request has ended and is ours; nobody writes to its buffer until it is released.
    let bytes = unsafe { &*f.buffer(proc, i).cast::<[u8; EXTENT_BYTES]>() };
    let Some(records) = extent::records(bytes) else {
        return 0;
    };
    let mut n = 0;
    for k in 0..records {
        if let Some(line) = extent::line(bytes, records, k) {
            let stored = &bytes[line.range()][..HEADER_BYTES + line.len as usize];
            n += u64::from(on(line, stored));
        }
    }
    n
}

/// Claims the page of a line while it is far and has the entry that the line names.
fn with_page(line: &extent::Line, on: impl FnOnce() -> Option<bool>) -> bool {
    let Some(w) = areas::table().words.get(line.page as usize) else {
        return false;
    };
    let cur = word::load(w);
    if cur.state() != State::Far
        || cur.entry() != line.entry
        || !word::transition(w, cur, cur.with_state(State::Filling))
    {
        return false;
    }
    let deep = on();
    word::publish(
        w,
        match deep {
            Some(true) => cur.set(flag::DEEP),
            // Not the next to leave again, old as it is.
            Some(false) => cur.clear(flag::DEEP).set(flag::REFERENCED),
            None => cur,
        },
    );
    deep.is_some()
}

/// The extent is durable: the page's copy leaves the pool, if it is the one that was written.
fn sink(line: &extent::Line, at: u32, stored: &[u8]) -> bool {
    let Some(hash) = stored.first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let hash: &Hash = hash;
    with_page(line, || {
        book().hold(at);
        if pool().sink(line.entry, hash, line.place(at)) {
            return Some(true);
        }
        unhold(at);
        None
    })
}

/// A neighbour came back with an extent: into the pool, as it is.
fn raise(line: &extent::Line, at: u32, stored: &[u8]) -> bool {
    with_page(line, || {
        pool()
            .raise(line.entry, line.place(at), stored, reclaim::reserves())
            .then_some(false)
    })
}

// ---- back ----

/// Reads the record at `place`, which `entry` names, and decodes it into `out`. The page's word is in our
/// busy state, so the extent is kept meanwhile.
pub fn load(
    entry: SwapEntry,
    place: DeepPlace,
    out: &mut PageBuf,
    scratch: &mut Stored,
) -> Result<(), Lost> {
    let Some(f) = far() else {
        return Err(Lost::Unreachable);
    };
    count(Counter::FaultDeep, 1);
    let len = HEADER_BYTES + place.len as usize;
    let i = claim_demand(f);
    let proc = PROC.load(Ordering::Relaxed);
    let m = &f.mailboxes[proc];
    let ask = Ask {
        kind: Kind::Read,
        extent: place.extent,
        offset: place.offset,
        len: record_bytes(place.len as usize) as u32,
    };
    let begun = sig::now_ns();
    m.post(i, ask, begun);
    ring(f);
    // One thread of a process at a time: many that yield starve whom they wait for.
    let spins = (m.in_use() & DEMANDS).is_power_of_two();
    let status = wait(f, m, i, spins, || true);
    let result = match status {
        Some(Status::Ok) => {
            let stored = &mut scratch.0[..len];
            f.copy_out(proc, i, place.offset as usize, stored);
            match pool().decode(entry, stored, out) {
                Ok(()) => {
                    f.stats.read_ns.record(sig::now_ns().saturating_sub(begun));
                    Ok(())
                }
                Err(LoadError::Verify | LoadError::NoCopy | LoadError::Deep(_)) => {
                    Err(Lost::Damaged)
                }
            }
        }
        Some(Status::Corrupt) => Err(Lost::Damaged),
        Some(Status::Lost) => Err(Lost::Gone),
        _ => Err(Lost::Unreachable),
    };
    match status {
        Some(_) => m.release(i),
        None => m.abandon(i),
    }
    if result.is_err() {
        count(Counter::DeepFailure, 1);
    }
    result
}

/// Room for one record.
#[repr(C, align(64))]
pub struct Stored([u8; HEADER_BYTES + PAGE_SIZE]);

fn claim_demand(f: &Far) -> usize {
    // One for each fill context: who comes here holds one.
    let mut spins = 0;
    loop {
        if let Some(i) = f.mailboxes[PROC.load(Ordering::Relaxed)].claim(DEMANDS) {
            return i;
        }
        backoff(&mut spins, yield_now);
    }
}

/// Whether other threads want the processors.
static CROWD: Crowd = Crowd::new();

/// Waits for request `i`: if it `spins`, for about as long as a near donor takes; then sleeps. `None`
/// when it takes longer than the tenant wants to wait, or when it is not `ours` to wait for any more.
fn wait(f: &Far, m: &Mailbox, i: usize, spins: bool, ours: impl Fn() -> bool) -> Option<Status> {
    const SPIN_NS: u64 = 60_000;
    const SLICE_NS: u64 = 20_000_000;
    let begun = sig::now_ns();
    loop {
        if let Some(status) = m.ended(i) {
            return Some(status);
        }
        if !ours() {
            return None;
        }
        let waited = sig::now_ns() - begun;
        if spins && waited < SPIN_NS && !CROWD.is_here(begun + waited) {
            // Where processors are few, the agent or its disk's thread may need this one.
            gate::give_way();
            CROWD.gave_way(begun + waited, sig::now_ns());
            continue;
        }
        if waited > f.wait_ms_max.load(Ordering::Relaxed) * 1_000_000 {
            return m.ended(i);
        }
        if let Some((word, value)) = m.about_to_sleep(i) {
            proc::futex_wait(word, value, SLICE_NS);
        }
    }
}

/// Brings a whole extent back, in the background, unless that is under way. The caller has a page whose
/// entry names it, so that it is kept.
pub fn fetch(extent: u32) {
    let Some(f) = far() else { return };
    // Nothing can leave the pool, so nothing can be raised into it.
    if NO_ROOM.load(Ordering::Relaxed) || is_under_way(extent) {
        return;
    }
    let m = our_mailbox(f);
    let Some(i) = m.claim(FETCHES) else { return };
    book().hold(extent);
    post_fetch(f, i, extent);
    ahead::asked_for(extent);
}

/// Posts request `i`, which has been claimed, for a whole extent that is held for it.
pub fn post_fetch(f: &Far, i: usize, extent: u32) {
    JOBS[i].begin(extent, 0);
    post_extent(f, i, Kind::Read, extent);
}

/// The job that fetches this extent.
fn under_way(extent: u32) -> Option<usize> {
    let mut used = mailbox()?.in_use() & FETCHES;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        if JOBS[i].is_about(extent) {
            return Some(i);
        }
    }
    None
}

/// Is the whole extent on its way?
pub fn is_under_way(extent: u32) -> bool {
    under_way(extent).is_some()
}

/// Waits for the extent that the page is on its way with, and raises its pages. The caller must not
/// have the page's word, and looks again.
pub fn arrives(place: DeepPlace) {
    let (Some(f), Some(i)) = (far(), under_way(place.extent)) else {
        return;
    };
    let m = our_mailbox(f);
    // It is needed now: if the agent has not begun, it goes before what is only read ahead.
    if m.urge(i) {
        if !compact::is_for_us(i) {
            ahead::learn(true);
        }
        ring(f);
    }
    let ours = || JOBS[i].is_open(place.extent);
    if wait(f, m, i, false, ours).is_some() {
        finish(i);
    } else if ours() {
        give_up(m, i, place.extent);
    } else {
        // Another thread ends it.
        yield_now();
    }
}

/// A fetch that takes too long: the page is read alone, and may be lost with a reason.
fn give_up(m: &Mailbox, i: usize, extent: u32) {
    if JOBS[i].give_up(extent) {
        count(Counter::DeepFailure, 1);
        compact::over(i);
        JOBS[i].through();
        m.abandon(i);
        unhold(extent);
    }
}

/// Ends fetches that have arrived.
pub fn absorb() {
    if FAR.load(Ordering::Relaxed) != 0 {
        finish_all();
    }
}

/// Slabs that the tenant uses, and that it may use.
pub fn slabs_used_and_max(f: &Far) -> (u64, u64) {
    let used = f.slabs_used.load(Ordering::Relaxed).max(0) as u64;
    let max = f.slabs_max.load(Ordering::Relaxed);
    (used, max.min(far::SLABS_MAX as u64))
}

/// What is used beyond the pool and what may be, in bytes: slabs are counted whole.
pub fn used_and_limit() -> (u64, u64) {
    far().map_or((0, 0), |f| {
        let (used, max) = slabs_used_and_max(f);
        if NO_ROOM.load(Ordering::Relaxed) {
            // Whatever the bound says.
            return (used * far::SLAB_BYTES as u64, used * far::SLAB_BYTES as u64);
        }
        (used * far::SLAB_BYTES as u64, max * far::SLAB_BYTES as u64)
    })
}

/// Has the pool room for neighbours of a page that was read?
pub fn pool_has_room() -> bool {
    let Some(f) = far() else { return false };
    let seg = state::seg();
    let percent = f.spill_percent.load(Ordering::Relaxed).saturating_sub(10);
    let mark = seg.config.pool_bytes.load(Ordering::Relaxed) / 100 * percent;
    seg.pool_bytes.load(Ordering::Relaxed) < mark as i64
}

// ---- fork ----

fn each_of_ours(f: &'static Far, on: impl FnMut(u32)) {
    book().each_slab(OurSlabs(f).high(), on);
}

/// In the parent, frozen, just before the fork: the child will refer to what we refer to.
pub fn before_fork() {
    let Some(f) = far() else { return };
    let fork = f.number_fork();
    NEXT_FORK.store(fork, Ordering::Relaxed);
    book().forks(fork, OurSlabs(f).high());
    each_of_ours(f, |slab| f.slabs[slab as usize].hold());
}

/// The number of the fork under way.
static NEXT_FORK: AtomicU32 = AtomicU32::new(0);

/// In the parent: there is no child.
pub fn fork_failed() {
    if let Some(f) = far() {
        each_of_ours(f, |slab| f.slabs[slab as usize].unhold());
    }
}

/// In the child, which has its slot: its own requests, none under way; its own references.
pub fn after_fork_in_child() {
    let Some(f) = far() else { return };
    take_channel();
    let proc = PROC.load(Ordering::Relaxed);
    let parents = Span::of(BORN.load(Ordering::Relaxed));
    let born = Span::of_child(parents, NEXT_FORK.load(Ordering::Relaxed)).raw();
    BORN.store(born, Ordering::Relaxed);
    f.set_born(proc, born);
    each_of_ours(f, |slab| f.slabs[slab as usize].inherit(proc));
    compact::forget();
    for job in &JOBS {
        // The parent's: what it has under way is not ours to wait for.
        if let Some(extent) = job.forget() {
            unhold(extent);
        }
    }
    book().forked(&OurSlabs(f));
    WRITING_BYTES.store(0, Ordering::Relaxed);
    STALLED.store(false, Ordering::Relaxed);
}
