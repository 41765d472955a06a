//! Far memory beyond the pool: the program's side of the far area ([`canvas_shm::far`]).
//!
//! Out: when the pool is past its mark, the reclaim thread packs its oldest pages, as they are stored,
//! into an extent ([`canvas_swap::extent`]) and posts it to the agent. Until the agent says that it is
//! durable the pool keeps its copies; then the entries of those that are still the same sink.
//!
//! Back: a fault reads its page's record alone, from whichever copy the agent finds; a stream, or a
//! pool with room, fetches the whole extent and raises its neighbours into the pool, undecompressed.
//!
//! What an extent is kept by ([`hold`]): each entry that names it, its writing, its fetching. So the
//! number of an extent is not used anew while an answer for the old one may come.

use canvas_backend::LoadError;
use canvas_pager::spill::SpillHand;
use canvas_pager::word::{self, State, flag};
use canvas_shm::far::{self, Far, SLAB_EXTENTS};
use canvas_shm::mailbox::{Ask, DEMANDS, FETCHES, Kind, Mailbox, REQUESTS, Status, WRITES};
use canvas_shm::segment::config_flag;
use canvas_shm::{Counter, Segment};
use canvas_swap::classes::HEADER_BYTES;
use canvas_swap::codec::Hash;
use canvas_swap::extent::{self, EXTENT_BYTES, Packer, record_bytes};
use canvas_sys::gate::yield_now;
use canvas_sys::{Errno, mem, proc};
use canvas_types::sync::{RawSpin, backoff};
use canvas_types::{DeepPlace, PAGE_SIZE, PageBuf};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::pool::pool;
use crate::state::{EPOCH, count};
use crate::{areas, report, sig, state};

const _: () = assert!(EXTENT_BYTES == far::EXTENT_BYTES);

static FAR: AtomicUsize = AtomicUsize::new(0);
/// This process's index in the segment.
static PROC: AtomicUsize = AtomicUsize::new(0);
static HAND: SpillHand = SpillHand::new();
/// Extents are taken, and slabs given up, by one thread at a time.
static TAKING: RawSpin = RawSpin::new();
/// The slab that extents are taken from, plus one.
static SLAB: AtomicU32 = AtomicU32::new(0);
/// Where in it the search for a free extent goes on.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// No writing before this moment: the last one failed.
static WRITES_REST_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Since when donors or disk do not answer writes; 0 when they do.
static WRITES_AWAY_SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// Bytes of the pool that are being written.
static WRITING_BYTES: AtomicI64 = AtomicI64::new(0);
/// Words that one round of the hand looks at.
const LOOK_MAX: usize = 1 << 16;
/// Pause after a write that failed.
const REST_NS: u64 = 200_000_000;

/// What a request of ours is about; the request's index is the job's.
struct Job {
    /// [`IDLE`], [`UNDER_WAY`], or [`BUSY`]: a thread works on its end.
    state: AtomicU32,
    extent: AtomicU32,
    bytes: AtomicI64,
}
const IDLE: u32 = 0;
const UNDER_WAY: u32 = 1;
const BUSY: u32 = 2;
static JOBS: [Job; REQUESTS] = [const {
    Job {
        state: AtomicU32::new(IDLE),
        extent: AtomicU32::new(0),
        bytes: AtomicI64::new(0),
    }
}; REQUESTS];

/// Why a copy beyond the pool did not come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// No copy can be reached now: it may come back later.
    Unreachable,
    /// All copies are damaged.
    Damaged,
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
    }
}

#[inline]
fn far() -> Option<&'static Far> {
    let at = FAR.load(Ordering::Relaxed);
    // SAFETY: `init` mapped the full area, for good.
    (at != 0).then(|| unsafe { Far::at(at) })
}

fn mailbox() -> Option<&'static Mailbox> {
    far().map(|f| &f.mailboxes[PROC.load(Ordering::Relaxed)])
}

/// Drops what process `proc` refers to; its slot is being released.
pub fn drop_process(proc: usize) {
    if let Some(f) = far()
        && f.drop_process(proc)
    {
        ring(f);
    }
}

fn ring(f: &Far) {
    if f.ring(PROC.load(Ordering::Relaxed)) {
        proc::futex_wake(&f.asleep, 1);
    }
}

// ---- extents ----

/// One more reason to keep the extent.
fn hold(extent: u32) {
    if areas::extent_live()[extent as usize].fetch_add(1, Ordering::AcqRel) == 0 {
        areas::slab_live()[extent as usize / SLAB_EXTENTS].fetch_add(1, Ordering::AcqRel);
    }
}

/// One reason less. The last one frees the extent, and with the slab's last the slab.
pub fn unhold(extent: u32) {
    if areas::extent_live()[extent as usize].fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    let slab = extent / SLAB_EXTENTS as u32;
    if areas::slab_live()[slab as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
        drop_empty(slab);
    }
}

/// Gives up a slab of which nothing is in use, unless extents are taken just now; then it stays for
/// their next need.
fn drop_empty(slab: u32) {
    let (Some(f), Some(_held)) = (far(), TAKING.try_lock()) else {
        return;
    };
    let i = slab as usize;
    if SLAB.load(Ordering::Relaxed) != slab + 1
        && areas::slab_live()[i].load(Ordering::Acquire) == 0
        && areas::slab_ours()[i].swap(0, Ordering::AcqRel) == 1
        && f.drop_slab(slab, PROC.load(Ordering::Relaxed))
    {
        ring(f);
    }
}

/// A free extent, held once.
fn take_extent(f: &Far) -> Option<u32> {
    let before = SLAB.load(Ordering::Relaxed);
    let got = {
        let _held = TAKING.lock(yield_now);
        extent_of_ours(f)
    };
    if before != 0
        && before != SLAB.load(Ordering::Relaxed)
        && areas::slab_live()[before as usize - 1].load(Ordering::Acquire) == 0
    {
        drop_empty(before - 1);
    }
    got
}

fn extent_of_ours(f: &Far) -> Option<u32> {
    let proc = PROC.load(Ordering::Relaxed);
    let in_slab = |slab: u32, from: u32| {
        if !f.slabs[slab as usize].is_sole(proc) {
            return None;
        }
        let first = slab * SLAB_EXTENTS as u32;
        (from..SLAB_EXTENTS as u32)
            .chain(0..from)
            .map(|i| first + i)
            .find(|e| {
                areas::extent_live()[*e as usize]
                    .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
    };
    let found = |extent: u32| {
        let slab = extent / SLAB_EXTENTS as u32;
        areas::slab_live()[slab as usize].fetch_add(1, Ordering::AcqRel);
        SLAB.store(slab + 1, Ordering::Relaxed);
        NEXT.store(extent % SLAB_EXTENTS as u32 + 1, Ordering::Relaxed);
        Some(extent)
    };
    let current = SLAB.load(Ordering::Relaxed);
    if current != 0
        && areas::slab_live()[current as usize - 1].load(Ordering::Relaxed) < SLAB_EXTENTS as u32
        && let Some(e) = in_slab(
            current - 1,
            NEXT.load(Ordering::Relaxed) % SLAB_EXTENTS as u32,
        )
    {
        return found(e);
    }
    // An eighth free is worth going back to; less only when there is no fresh slab.
    let high = f
        .slabs_high
        .load(Ordering::Acquire)
        .min(far::SLABS_MAX as u32);
    let reuse = |free_min: u32| {
        (0..high).find_map(|slab| {
            let ours = areas::slab_ours()[slab as usize].load(Ordering::Relaxed) == 1;
            let live = areas::slab_live()[slab as usize].load(Ordering::Relaxed);
            (ours && live + free_min <= SLAB_EXTENTS as u32)
                .then(|| in_slab(slab, 0))
                .flatten()
        })
    };
    if let Some(e) = reuse(SLAB_EXTENTS as u32 / 8) {
        return found(e);
    }
    if let Some(slab) = f.take_slab(proc) {
        areas::slab_ours()[slab as usize].store(1, Ordering::Release);
        return in_slab(slab, 0).and_then(found);
    }
    reuse(1).and_then(found)
}

// ---- out ----

/// Bytes that the pool should get rid of; not positive when it has room.
fn excess_bytes(f: &Far) -> i64 {
    let seg = state::seg();
    let percent = f.spill_percent.load(Ordering::Relaxed).min(100) as i64;
    let mark = (seg.config.pool_bytes.load(Ordering::Relaxed) / 100) as i64 * percent;
    let used = seg.pool_bytes.load(Ordering::Relaxed);
    if used <= mark {
        return 0;
    }
    let stats = pool().stats();
    let free_within = stats.charged_bytes - stats.slot_bytes;
    used - free_within - WRITING_BYTES.load(Ordering::Relaxed) - mark
}

/// The reclaim thread's round: ends what has ended, writes what the pool has too much. True when it
/// did something.
pub fn background_round() -> bool {
    let Some(f) = far() else { return false };
    let mut worked = finish_all();
    while excess_bytes(f) > 0 && write_some(f) {
        worked = true;
    }
    worked
}

/// The pool is full: waits until something left it. False when nothing will. Donors that are away are
/// waited for as reads wait for them, pauses between two tries included: one of several may have died,
/// and its place is taken by another within seconds.
#[cold]
pub fn make_room() -> bool {
    let Some(f) = far() else { return false };
    let begun = proc::now_ns();
    let wait_ns = f.wait_ms_max.load(Ordering::Relaxed) * 1_000_000;
    loop {
        if write_some(f) {
            // As much as there are requests for.
            while write_some(f) {}
        }
        let under_way = WRITING_BYTES.load(Ordering::Relaxed) > 0;
        if finish_all() {
            return true;
        }
        let now = proc::now_ns();
        let away = WRITES_AWAY_SINCE_NS.load(Ordering::Relaxed);
        let rests = away != 0
            && now.saturating_sub(away) < wait_ns
            && WRITES_REST_UNTIL_NS.load(Ordering::Relaxed) > now;
        if !(under_way || rests) || now - begun > wait_ns {
            return false;
        }
        proc::sleep_ns(if under_way { 50_000 } else { 1_000_000 });
    }
}

/// Packs and posts one extent. False when there is nothing to write, nowhere, or nobody to ask.
fn write_some(f: &Far) -> bool {
    if WRITES_REST_UNTIL_NS.load(Ordering::Relaxed) > proc::now_ns() {
        return false;
    }
    let m = &f.mailboxes[PROC.load(Ordering::Relaxed)];
    let Some(i) = m.claim(WRITES) else {
        return false;
    };
    let Some(extent) = take_extent(f) else {
        m.release(i);
        return false;
    };
    let (records, bytes) = pack(f, i);
    if records == 0 {
        unhold(extent);
        m.release(i);
        return false;
    }
    let job = &JOBS[i];
    job.extent.store(extent, Ordering::Relaxed);
    job.bytes.store(bytes, Ordering::Relaxed);
    WRITING_BYTES.fetch_add(bytes, Ordering::Relaxed);
    job.state.store(UNDER_WAY, Ordering::Release);
    let ask = Ask {
        kind: Kind::Write,
        extent,
        offset: 0,
        len: EXTENT_BYTES as u32,
    };
    m.post(i, ask, proc::now_ns());
    ring(f);
    true
}

/// Fills the buffer of request `i`; records, and bytes of slots that they hold.
fn pack(f: &Far, i: usize) -> (usize, i64) {
    // SAFETY: the buffer is this request's, which we have claimed and not posted; it is as long as an
    // extent. Other processes of the tenant do not touch it, and if they do, the bytes are verified.
    let buffer = unsafe {
        &mut *f
            .buffer(PROC.load(Ordering::Relaxed), i)
            .cast::<[u8; EXTENT_BYTES]>()
    };
    let mut packer = Packer::new(buffer);
    let mut bytes = 0;
    let table = areas::table();
    let touched = areas::touched_in_block();
    HAND.scan(
        table.words,
        table.blocks(),
        |b| {
            touched[b].load(Ordering::Relaxed) <= table.resident_in_block[b].load(Ordering::Relaxed)
        },
        EPOCH.now(),
        LOOK_MAX,
        |page, cur| {
            let w = areas::word(page);
            if !word::transition(w, cur, cur.with_state(State::Filling)) {
                return true;
            }
            let entry = cur.entry();
            let (mut next, mut fits) = (cur, true);
            match pool().stored_len(entry) {
                Some(len) => {
                    fits = packer
                        .add(page, entry, len, |b| {
                            pool().copy_stored(entry, b);
                        })
                        .is_some();
                    bytes += i64::from(fits) * record_bytes(len as usize) as i64;
                }
                // One value, or beyond the pool already: not looked at again.
                None => next = cur.set(flag::DEEP),
            }
            word::publish(w, next);
            fits
        },
    );
    (packer.finish(), bytes)
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
    if job.state.load(Ordering::Acquire) != UNDER_WAY {
        return false;
    }
    let Some(status) = m.ended(i) else {
        return false;
    };
    if job
        .state
        .compare_exchange(UNDER_WAY, BUSY, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return false;
    }
    let extent = job.extent.load(Ordering::Relaxed);
    let write = 1u64 << i & WRITES != 0;
    let done = match status {
        Status::Ok => for_each_line(f, proc, i, |line, stored| {
            if write {
                sink(&line, extent, stored)
            } else {
                raise(&line, extent, stored)
            }
        }),
        failed => {
            count(Counter::DeepFailure, 1);
            if write {
                rest(failed);
            }
            0
        }
    };
    if write {
        if status == Status::Ok {
            WRITES_AWAY_SINCE_NS.store(0, Ordering::Relaxed);
        }
        count(Counter::PagesSunk, done);
        WRITING_BYTES.fetch_sub(job.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    } else {
        count(Counter::PagesRaised, done);
    }
    // In this order: whoever sees the request free may use the job anew.
    unhold(extent);
    job.state.store(IDLE, Ordering::Release);
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
    let told = TOLD_NS.load(Ordering::Relaxed);
    if (told == 0 || now > told + 10_000_000_000) && crate::account::take_turn(&TOLD_NS, told, now)
    {
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
            Some(false) => cur.clear(flag::DEEP),
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
        hold(at);
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
            .raise(line.entry, line.place(at), stored)
            .then_some(false)
    })
}

// ---- back ----

/// Reads the record at `place`, and decodes it into `out`. The page's word is in our busy state, so
/// the extent is kept meanwhile.
pub fn load(place: DeepPlace, out: &mut PageBuf, scratch: &mut Stored) -> Result<(), Lost> {
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
    m.post(i, ask, sig::now_ns());
    ring(f);
    let status = wait(f, m, i, || true);
    let result = match status {
        Some(Status::Ok) => {
            let stored = &mut scratch.0[..len];
            f.copy_out(proc, i, place.offset as usize, stored);
            match pool().decode(stored, out) {
                Ok(()) => Ok(()),
                Err(LoadError::Verify | LoadError::NoCopy | LoadError::Deep(_)) => {
                    Err(Lost::Damaged)
                }
            }
        }
        Some(Status::Corrupt) => Err(Lost::Damaged),
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

/// Waits for request `i`: spins for about as long as a near donor takes, then sleeps. `None` when it
/// takes longer than the tenant wants to wait, or when it is not `ours` to wait for any more.
fn wait(f: &Far, m: &Mailbox, i: usize, ours: impl Fn() -> bool) -> Option<Status> {
    const SPIN_NS: u64 = 60_000;
    const SLICE_NS: u64 = 20_000_000;
    let begun = sig::now_ns();
    let mut spins = 0u32;
    loop {
        if let Some(status) = m.ended(i) {
            return Some(status);
        }
        if !ours() {
            return None;
        }
        spins += 1;
        if spins < 64 {
            core::hint::spin_loop();
            continue;
        }
        let waited = sig::now_ns() - begun;
        if waited < SPIN_NS {
            yield_now();
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

/// Brings a whole extent back, in the background, unless that is under way.
pub fn fetch(extent: u32) {
    let Some(f) = far() else { return };
    if under_way(extent).is_some() {
        return;
    }
    let m = &f.mailboxes[PROC.load(Ordering::Relaxed)];
    let Some(i) = m.claim(FETCHES) else { return };
    hold(extent);
    JOBS[i].extent.store(extent, Ordering::Relaxed);
    JOBS[i].state.store(UNDER_WAY, Ordering::Release);
    let ask = Ask {
        kind: Kind::Read,
        extent,
        offset: 0,
        len: EXTENT_BYTES as u32,
    };
    m.post(i, ask, proc::now_ns());
    ring(f);
}

/// The job that fetches this extent.
fn under_way(extent: u32) -> Option<usize> {
    let mut used = mailbox()?.in_use() & FETCHES;
    while used != 0 {
        let i = used.trailing_zeros() as usize;
        used &= used - 1;
        if JOBS[i].state.load(Ordering::Acquire) != IDLE
            && JOBS[i].extent.load(Ordering::Relaxed) == extent
        {
            return Some(i);
        }
    }
    None
}

/// Is the page on its way with its whole extent?
pub fn is_under_way(place: DeepPlace) -> bool {
    under_way(place.extent).is_some()
}

/// Waits for the extent that the page is on its way with, and raises its pages. The caller must not
/// have the page's word, and looks again.
pub fn arrives(place: DeepPlace) {
    let (Some(f), Some(i)) = (far(), under_way(place.extent)) else {
        return;
    };
    let m = &f.mailboxes[PROC.load(Ordering::Relaxed)];
    let ours = || {
        JOBS[i].state.load(Ordering::Acquire) == UNDER_WAY
            && JOBS[i].extent.load(Ordering::Relaxed) == place.extent
    };
    if wait(f, m, i, ours).is_some() {
        finish(i);
    } else if ours() {
        give_up(m, i);
    } else {
        // Another thread ends it.
        yield_now();
    }
}

/// A fetch that takes too long: the page is read alone, and may be lost with a reason.
fn give_up(m: &Mailbox, i: usize) {
    let job = &JOBS[i];
    if job
        .state
        .compare_exchange(UNDER_WAY, BUSY, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
    {
        count(Counter::DeepFailure, 1);
        let extent = job.extent.load(Ordering::Relaxed);
        job.state.store(IDLE, Ordering::Release);
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

/// What is used beyond the pool and what may be, in bytes: slabs are counted whole.
pub fn used_and_limit() -> (u64, u64) {
    far().map_or((0, 0), |f| {
        let used = f.slabs_used.load(Ordering::Relaxed).max(0) as u64;
        let max = f
            .slabs_max
            .load(Ordering::Relaxed)
            .min(far::SLABS_MAX as u64);
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

fn each_of_ours(f: &Far, mut on: impl FnMut(u32)) {
    let high = f
        .slabs_high
        .load(Ordering::Acquire)
        .min(far::SLABS_MAX as u32);
    for slab in 0..high {
        if areas::slab_ours()[slab as usize].load(Ordering::Relaxed) == 1 {
            on(slab);
        }
    }
}

/// In the parent, frozen, just before the fork: the child will refer to what we refer to.
pub fn before_fork() {
    if let Some(f) = far() {
        each_of_ours(f, |slab| f.slabs[slab as usize].hold());
    }
}

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
    each_of_ours(f, |slab| f.slabs[slab as usize].inherit(proc));
    for job in &JOBS {
        // The parent's: what it has under way is not ours to wait for.
        if job.state.swap(IDLE, Ordering::Relaxed) != IDLE {
            unhold(job.extent.load(Ordering::Relaxed));
        }
    }
    WRITING_BYTES.store(0, Ordering::Relaxed);
}
