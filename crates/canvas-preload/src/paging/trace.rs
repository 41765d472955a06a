//! `canvas run -o trace`: records what happens to the sampled pages.
//!
//! The thread that resolves a fault puts a record with a time in ticks into a ring, without a system call. The reclaim
//! thread, or any thread that finds the ring half full, converts the records to the file's format and appends them with
//! one write. The file is open with O_APPEND, so records of several processes stay whole. Records that find the ring
//! full are counted and lost.
//!
//! A touch of a mapped page is no fault. So the reclaim thread cycles through the resident sampled pages and unmaps
//! them into the swap cache, as reclaim does but without informing the policy: the next touch faults and is recorded.
//! It uses a bounded share of a CPU. A page's record therefore says that the page was touched at least once since the
//! last round.

use canvas_core::pager::clock::VictimBatch;
use canvas_core::pager::scan::ScanCursor;
use canvas_core::pager::trace::{
    HEADER_BYTES, Header, Kind, RECORD_BYTES, Record, SampleRate, is_sampled, record_flag,
};
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_core::vm::reclaim;
use canvas_core::vm::unmap::{Purpose, unmap};
use canvas_shm::Counter;
use canvas_shm::segment::config_flag;
use canvas_sys::gate::yield_now;
use canvas_sys::{Errno, proc};
use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::own_memory::areas;
use crate::paging::{cache, context, freeze};
use crate::report;
use crate::runtime::{
    fds,
    fds::Fd,
    state,
    state::{CacheAligned, PROCESS},
    thread, upcalls,
};

/// Entries of the ring: 1 MiB.
const SLOTS: u64 = 1 << 15;
/// Records per write: 64 KiB.
const WRITE_RECORDS: usize = 4096;
/// Shortest time between two rounds of unmapping.
const ROUND_NS: u64 = 2_000_000;
/// A round that took `t` of CPU time is followed by a pause of at least `PAUSE * t`: 5 %.
const PAUSE: u64 = 19;
/// A round takes batches until it has used this much CPU time, or has found nothing.
const ROUND_CPU_NS: u64 = ROUND_NS / PAUSE;
/// Pages that a batch unmaps at most.
const STEP_PAGES: u32 = 128;
/// How often a batch goes round over all blocks at most: it skips three blocks of four.
const ROUNDS: u32 = 5;
/// Page words that a batch examines at most (about 50 us).
const STEP_WORDS: usize = 1 << 14;
const _: () = assert!(STEP_PAGES as usize <= canvas_core::pager::clock::BATCH_RUNS);
/// How long the reclaim thread sleeps when there is no trace.
const IDLE_NS: u64 = 100_000_000;
/// Size of the swap cache if local memory has no limit: room for all sampled pages (16 GiB).
const CACHE_PAGES: usize = 1 << 22;

state! {
    static TRACE: Trace {
        on: AtomicBool = AtomicBool::new(false),
        rate: AtomicU32 = AtomicU32::new(0),
        /// Added to the monotonic clock's ns, it gives ns since the trace began.
        origin_ns: AtomicU64 = AtomicU64::new(0),
        /// One moment by both clocks, early enough to compute the length of a tick from.
        ticks_0: AtomicU64 = AtomicU64::new(0),
        monotonic_0_ns: AtomicU64 = AtomicU64::new(0),
        /// The first record of the ring, and one past the last.
        head: AtomicU64 = AtomicU64::new(0),
        tail: CacheAligned<AtomicU64> = CacheAligned(AtomicU64::new(0)),
        flushing: AtomicBool = AtomicBool::new(false),
        next_round_ns: AtomicU64 = AtomicU64::new(0),
        /// The discard of all pages at exit has been recorded.
        ended: AtomicBool = AtomicBool::new(false),
        /// Page at which the next round begins.
        next_page: AtomicU32 = AtomicU32::new(0),
    }
}

/// An entry of the ring. `turn` is `2 * lap` while free and `2 * lap + 1` while it holds a record, so zeroed memory is
/// an empty ring.
#[repr(C)]
struct Slot {
    turn: AtomicU64,
    ticks: AtomicU64,
    took_ticks: AtomicU64,
    /// Page, thread, kind and flags from the low end: 32, 16, 8 and 8 bits.
    what: AtomicU64,
}

const _: () = assert!(
    areas::TRACE_BYTES
        >= SLOTS as usize * core::mem::size_of::<Slot>() + WRITE_RECORDS * RECORD_BYTES
);

#[inline(always)]
fn slot(at: u64) -> &'static Slot {
    let slots = areas::trace() as *const Slot;
    // SAFETY: inside the trace's area (asserted above), which is mapped for the life of the process; a slot consists of
    // atomics, for which any bits are valid.
    unsafe { &*slots.add((at % SLOTS) as usize) }
}

/// Starts recording if the runner has set up a trace: reads the header that it wrote into the file.
pub fn init() {
    let config = &state::seg().config;
    let fd = config.trace_fd.load(Ordering::Relaxed) as i32;
    if config.flags.load(Ordering::Relaxed) & config_flag::TRACE == 0 || fd <= 0 {
        return;
    }
    let mut bytes = [0u8; HEADER_BYTES];
    // SAFETY: the kernel writes at most HEADER_BYTES bytes to `bytes`.
    let got = unsafe {
        canvas_sys::sys4(
            libc::SYS_pread64,
            fd as usize,
            bytes.as_mut_ptr() as usize,
            HEADER_BYTES,
            0,
        )
    };
    let header = if got == Ok(HEADER_BYTES) {
        Header::decode(&bytes)
    } else {
        None
    };
    let Some(header) = header else {
        report!("the header of the trace's file cannot be read: this process is not traced");
        return;
    };
    if areas::open_trace().is_err() {
        report!("there is no memory for a trace: this process is not traced");
        return;
    }
    let (wall, monotonic) = (
        clock_ns(libc::CLOCK_REALTIME),
        clock_ns(libc::CLOCK_MONOTONIC),
    );
    let since_start = wall.wrapping_sub(header.start_unix_s.wrapping_mul(1_000_000_000));
    TRACE
        .origin_ns
        .store(since_start.wrapping_sub(monotonic), Ordering::Relaxed);
    TRACE.ticks_0.store(proc::ticks(), Ordering::Relaxed);
    TRACE.monotonic_0_ns.store(monotonic, Ordering::Relaxed);
    TRACE.rate.store(header.rate.0, Ordering::Relaxed);
    TRACE.on.store(true, Ordering::Release);
}

/// Starts the reclaim thread in a process that records, even without a limit.
pub fn start() {
    if on() {
        upcalls::start_reclaimer();
    }
}

fn clock_ns(clock: i32) -> u64 {
    let mut t = [0i64; 2];
    // SAFETY: the kernel writes `t` only.
    let _ =
        unsafe { canvas_sys::sys2(libc::SYS_clock_gettime, clock as usize, &raw mut t as usize) };
    t[0] as u64 * 1_000_000_000 + t[1] as u64
}

/// Whether a trace is being written.
#[inline(always)]
pub fn on() -> bool {
    TRACE.on.load(Ordering::Relaxed)
}

/// The swap cache's bound while a trace is written without a limit on local memory.
pub fn cache_pages() -> Option<usize> {
    (on() && state::seg().local_limit_pages().is_none()).then_some(CACHE_PAGES)
}

#[inline(always)]
fn sampled(page: PageId) -> bool {
    is_sampled(page, SampleRate(TRACE.rate.load(Ordering::Relaxed)))
}

/// Whether events of this page are recorded.
#[inline(always)]
pub fn records(page: PageId) -> bool {
    on() && sampled(page)
}

/// Begins a fault on `page`: returns the time in ticks, or 0 if the page is not recorded.
#[inline(always)]
pub fn begin(page: PageId) -> u64 {
    if records(page) { proc::ticks() | 1 } else { 0 }
}

/// Records the fault that began at `begun`, found the word `met`, and has been resolved.
#[cold]
pub fn fault(begun: u64, page: PageId, met: Word, write: bool) {
    let kind = match met.state() {
        State::Untouched => Kind::FirstTouch,
        State::Far => Kind::Demand,
        State::Cached if met.has(flag::SAMPLED) => Kind::SampledTouch,
        State::Cached if met.has(flag::PREFETCHED) => Kind::PrefetchHit,
        State::Cached => Kind::VictimHit,
        // This fault waited for the prefetch of the page. Otherwise the thread that brought it in records it.
        State::Resident if met.has(flag::PREFETCHED) => Kind::PrefetchHit,
        _ => return,
    };
    push(
        page,
        kind,
        if write { record_flag::WRITE } else { 0 },
        begun,
        proc::ticks().saturating_sub(begun),
    );
}

/// Records an event of another `kind` on `page`.
#[inline(always)]
pub fn note(page: PageId, kind: Kind) {
    if records(page) {
        push(page, kind, 0, proc::ticks(), 0);
    }
}

/// Records `pages` pages from `from` on that were filled with zeros because of a fault on `touched`. All count as
/// touched now, although touches of the others are only expected.
#[inline]
pub fn filled_ahead(from: PageId, pages: usize, touched: PageId) {
    if on() {
        (0..pages)
            .map(|i| from.plus(i))
            .filter(|p| *p != touched)
            .for_each(|p| note(p, Kind::FirstTouch));
    }
}

/// Records that the contents of `from` have moved to `to`.
#[inline]
pub fn moved(from: PageId, to: PageId) {
    note(from, Kind::Discard);
    note(to, Kind::FirstTouch);
}

#[cold]
fn push(page: PageId, kind: Kind, flags: u8, ticks: u64, took_ticks: u64) {
    let tail = &TRACE.tail;
    let mut at = tail.load(Ordering::Relaxed);
    let place = loop {
        let s = slot(at);
        let (turn, free) = (s.turn.load(Ordering::Acquire), at / SLOTS * 2);
        if turn == free {
            match tail.compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break s,
                Err(now) => at = now,
            }
        } else if turn < free {
            // The entry still holds the record of the previous lap.
            state::count(Counter::TraceDropped, 1);
            return;
        } else {
            at = tail.load(Ordering::Relaxed);
        }
    };
    let thread = thread::thread_hash() as u16;
    let flags = flags | record_flag::SAMPLED;
    let what =
        u64::from(page.0) | u64::from(thread) << 32 | (kind as u64) << 48 | u64::from(flags) << 56;
    place.ticks.store(ticks, Ordering::Relaxed);
    place.took_ticks.store(took_ticks, Ordering::Relaxed);
    place.what.store(what, Ordering::Relaxed);
    place.turn.store(at / SLOTS * 2 + 1, Ordering::Release);
    if at - TRACE.head.load(Ordering::Relaxed) > SLOTS / 2 {
        flush();
    }
}

/// The present, to convert ticks: their length, and the time since the trace began.
struct Now {
    ticks: u64,
    trace_ns: u64,
    elapsed_ticks: u64,
    elapsed_ns: u64,
}

impl Now {
    fn get() -> Now {
        let (ticks, monotonic) = (proc::ticks(), clock_ns(libc::CLOCK_MONOTONIC));
        Now {
            ticks,
            trace_ns: monotonic.wrapping_add(TRACE.origin_ns.load(Ordering::Relaxed)),
            elapsed_ticks: ticks
                .saturating_sub(TRACE.ticks_0.load(Ordering::Relaxed))
                .max(1),
            elapsed_ns: monotonic.saturating_sub(TRACE.monotonic_0_ns.load(Ordering::Relaxed)),
        }
    }
    fn ns_of(&self, ticks: u64) -> u64 {
        (u128::from(ticks) * u128::from(self.elapsed_ns) / u128::from(self.elapsed_ticks)) as u64
    }
}

/// Appends the ring's records to the file, unless another thread is doing so. The caller is inside `freeze::enter`.
pub fn flush() {
    if TRACE.flushing.load(Ordering::Relaxed) || TRACE.flushing.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: `flushing` was set just now.
    unsafe { write_out() };
    TRACE.flushing.store(false, Ordering::Release);
}

/// Does the work of [`flush`].
///
/// # Safety
///
/// The caller must have set `flushing`.
unsafe fn write_out() {
    let buffer = (areas::trace() + SLOTS as usize * core::mem::size_of::<Slot>()) as *mut u8;
    // SAFETY: behind the ring, in the trace's area, which `init` has opened; `flushing` is set (the caller's promise),
    // so that no other reference exists.
    let buffer = unsafe { core::slice::from_raw_parts_mut(buffer, WRITE_RECORDS * RECORD_BYTES) };
    let now = Now::get();
    let process = process();
    loop {
        let mut head = TRACE.head.load(Ordering::Relaxed);
        let mut n = 0;
        for out in buffer.chunks_exact_mut(RECORD_BYTES) {
            let s = slot(head);
            let lap = head / SLOTS;
            if s.turn.load(Ordering::Acquire) != lap * 2 + 1 {
                break;
            }
            let what = s.what.load(Ordering::Relaxed);
            let ago = now.ns_of(now.ticks.saturating_sub(s.ticks.load(Ordering::Relaxed)));
            let took = now.ns_of(s.took_ticks.load(Ordering::Relaxed));
            s.turn.store(lap * 2 + 2, Ordering::Release);
            let record = Record {
                time_us: (now.trace_ns.wrapping_sub(ago) / 1000) as u32,
                page: PageId(what as u32),
                thread: (what >> 32) as u16,
                kind: kind_of((what >> 48) as u8),
                flags: (what >> 56) as u8,
                process,
                detail: (took / 64).min(u64::from(u16::MAX)) as u16,
            };
            out.copy_from_slice(&record.encode());
            head += 1;
            n += 1;
        }
        TRACE.head.store(head, Ordering::Relaxed);
        if n > 0 {
            append(&buffer[..n * RECORD_BYTES]);
        }
        if n < WRITE_RECORDS {
            break;
        }
    }
}

/// Decodes the kind that [`push`] stored.
fn kind_of(raw: u8) -> Kind {
    use Kind::*;
    [
        FirstTouch,
        Demand,
        VictimHit,
        SampledTouch,
        Prefetch,
        PrefetchHit,
        Discard,
    ]
    .into_iter()
    .find(|k| *k as u8 == raw)
    .unwrap_or(Evict)
}

/// A number for this process. Process slots are reused, so some bits of the pid distinguish a later process's pages
/// from an earlier one's.
fn process() -> u16 {
    let seg = state::seg();
    let me = state::slot() as *const _;
    let i = seg
        .procs
        .iter()
        .position(|p| core::ptr::eq(p, me))
        .unwrap_or(0);
    (i as u16 & 1023) | (PROCESS.pid() as u16) << 10
}

fn append(bytes: &[u8]) {
    // SAFETY: the kernel reads `bytes` only.
    let r = unsafe {
        canvas_sys::sys3(
            libc::SYS_write,
            fds::get(Fd::Trace).unwrap_or(-1) as usize,
            bytes.as_ptr() as usize,
            bytes.len(),
        )
    };
    if r == Ok(bytes.len()) {
        return;
    }
    // Stop here: another write could leave half a record before the records of other processes.
    state::count(
        Counter::TraceDropped,
        ((bytes.len() - r.unwrap_or(0)) / RECORD_BYTES) as u64,
    );
    if TRACE.on.swap(false, Ordering::Relaxed) {
        report!(
            "the trace cannot be written (error {}): it stops here",
            r.err().unwrap_or(Errno(libc::ENOSPC)).0
        );
    }
}

/// Writes all records so far, waiting if another thread is writing.
fn flush_all() {
    while TRACE.flushing.swap(true, Ordering::Acquire) {
        yield_now();
    }
    // SAFETY: `flushing` was set just now.
    unsafe { write_out() };
    TRACE.flushing.store(false, Ordering::Release);
}

/// Flushes the ring before exec replaces the program's image, which holds it.
pub fn before_exec() {
    if on() {
        let _inside = freeze::enter();
        flush_all();
    }
}

/// Runs at `exit`: the call site in glibc's `_exit` is left unpatched, so the hook of `exit_group` is not enough. A
/// process that calls `_exit` itself, or is killed, loses the records since the last round.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    at_exit();
}

/// Records the discard of all pages when the process ends.
pub fn at_exit() {
    if !on() {
        return;
    }
    let _inside = freeze::enter();
    // A vfork child runs on its parent's tables.
    if !PROCESS.is_vfork_child() && !TRACE.ended.swap(true, Ordering::Relaxed) {
        let touched = areas::touched_in_block();
        for block in
            (0..areas::table().blocks()).filter(|b| touched[*b].load(Ordering::Relaxed) != 0)
        {
            let first = (block * BLOCK_PAGES) as u32;
            for page in PageId::each(first..first + BLOCK_PAGES as u32) {
                if sampled(page) && word::load(areas::word(page)).state() != State::Untouched {
                    note(page, Kind::Discard);
                }
            }
        }
    }
    flush_all();
}

/// The reclaim thread's part: unmaps some of the sampled pages and writes records. Returns the ns until its next call.
pub fn background() -> u64 {
    if !on() {
        return IDLE_NS;
    }
    let now = proc::now_ns();
    let next = TRACE.next_round_ns.load(Ordering::Relaxed);
    if now < next {
        return next - now;
    }
    let begun = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    let used = || clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(begun);
    loop {
        let _inside = freeze::enter_masked();
        let any = unmap_some();
        flush();
        if !any || used() > ROUND_CPU_NS {
            break;
        }
    }
    let took = used();
    let pause = (took * PAUSE).max(ROUND_NS);
    TRACE
        .next_round_ns
        .store(proc::now_ns() + pause, Ordering::Relaxed);
    pause
}

/// Unmaps one batch. Returns true if there may be more to unmap at once.
fn unmap_some() -> bool {
    let mut ctx = context::reclaim();
    let ctx = &mut *ctx;
    let half = cache::slots().capacity() / 2;
    let available = cache::slots().available();
    if available < half {
        // With a limit the cache is small, and reclaim needs most of it.
        reclaim::write_out(&PROCESS, ctx, half - available);
    }
    let most = cache::slots()
        .available()
        .saturating_sub(half / 2)
        .min(STEP_PAGES);
    let Some(_batch) = reclaim::begin_batch(&PROCESS) else {
        return false;
    };
    ctx.victims.clear();
    select(&mut ctx.victims, most);
    ctx.victims.pages() > 0 && unmap(&PROCESS, ctx, Purpose::Trace) > 0
}

/// Selects at most `most` resident sampled pages. Blocks are skipped at random: if pages were always unmapped in the
/// same order, a hot set would look like a loop over it.
fn select(batch: &mut VictimBatch, most: u32) {
    let table = areas::table();
    let end = (table.blocks() * BLOCK_PAGES) as u32;
    let mut scan =
        ScanCursor::new(TRACE.next_page.load(Ordering::Relaxed), end, STEP_WORDS).rounds(ROUNDS);
    let mut random = proc::ticks();
    while batch.pages() < most
        && let Some(mut page) = scan.peek()
    {
        if page.is_multiple_of(BLOCK_PAGES as u32) {
            let Some(used) = scan.seek(|from| table.next_used_page(from)) else {
                break;
            };
            page = used;
        }
        let skips = scan.skip_block(|_| {
            random = random
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            random >> 62 != 0
        });
        if skips {
            continue;
        }
        scan.pass(1);
        if !sampled(PageId(page)) {
            continue;
        }
        let w = areas::word(PageId(page));
        let cur = word::load(w);
        if cur.evictable() && word::transition(w, cur, cur.with_state(State::Evicting)) {
            batch.push_page(page, false);
        }
    }
    TRACE.next_page.store(scan.at(), Ordering::Relaxed);
}
