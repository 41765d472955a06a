//! Memory that forks share (`canvas run --shared`): one partition for all processes of the tenant, paged by any of
//! them. `canvas_core::pager::shared` has the states and the recovery after a death; here are the lock, the processes,
//! faults, eviction and pins. See docs/SHARED.md.

use canvas_core::far::Whom;
use canvas_core::pager::shared::beyond::Carrier;
use canvas_core::pager::shared::word::{State, Word, load};
use canvas_core::pager::shared::{Fill, Journal, Look, Partition};
use canvas_shm::Counter;
use canvas_shm::segment::shared_fd;
use canvas_shm::shared::{self as layout, Control, Map, Proc};
use canvas_shm::slow::Cause;
use canvas_sys::gate::{self, give_way};
use canvas_sys::{Errno, mem, proc, shmem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{SHARED_BYTES, shared_base};
use canvas_types::procfs::Stat;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::base::{
    far_area, fds,
    fds::Fd,
    freeze, keys, life, regions, slow, state,
    state::{count, uffd},
    tenant,
};
use crate::paging::{accounting, fault::Resolved};
use crate::report;
use crate::shared::{ahead, beyond, kernel::Here, mapping};

/// This process maps the partition.
static ON: AtomicBool = AtomicBool::new(false);
static CONTROL: AtomicUsize = AtomicUsize::new(0);
static FDS: [AtomicI32; shared_fd::COUNT] = [const { AtomicI32::new(-1) }; shared_fd::COUNT];
/// This process's number, and what it writes into the lock.
static ME: AtomicUsize = AtomicUsize::new(0);
static MY_LOCK: AtomicU64 = AtomicU64::new(0);
/// Number of a process that has none yet.
const VISITOR: usize = layout::PROCS;

/// Whether shared memory is managed here.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The control file.
pub fn map() -> Map {
    // SAFETY: before anything calls this, `start` has mapped all of the file there, shared and writable, for good.
    unsafe { Map::at(CONTROL.load(Ordering::Relaxed)) }
}

/// The state that the processes share.
pub fn control() -> &'static Control {
    map().control()
}

/// One of our descriptors ([`shared_fd`]).
pub fn fd(which: usize) -> i32 {
    FDS[which].load(Ordering::Relaxed)
}

/// This process's number.
pub fn me() -> usize {
    ME.load(Ordering::Relaxed)
}

/// This process's entry.
pub fn my_proc() -> &'static Proc {
    &control().procs[me()]
}

/// One past the highest page that was ever in a region.
pub fn end() -> u32 {
    control().end.load(Ordering::Acquire)
}

/// The partition's pages.
pub fn partition() -> Partition<'static> {
    let c = control();
    Partition {
        words: map().words(),
        journal: Journal {
            phase: &c.phase,
            count: &c.victims,
            pages: &c.pages[..(c.pipe_pages.load(Ordering::Relaxed) as usize).min(c.pages.len())],
        },
        hand: &c.hand,
        copies_hand: &c.copies_hand,
    }
}

/// The address of a page.
pub fn addr_of(page: u32) -> usize {
    shared_base() + page as usize * PAGE_SIZE
}

/// The page that contains an address of the partition.
pub fn page_of(addr: usize) -> u32 {
    ((addr - shared_base()) / PAGE_SIZE) as u32
}

/// Resident pages, as the kernel counts them.
fn resident() -> i64 {
    shmem::pages(fd(shared_fd::PARTITION)).map_or(0, |n| n as i64)
}

/// Pages that may be resident: `--shared`, or what the host's agent grants of it.
fn limit() -> i64 {
    (state::seg().shared).limit_pages(control().limit_pages.load(Ordering::Relaxed))
}

/// Joins the tenant's shared memory; does nothing without `--shared`.
///
/// # Safety
///
/// To be called once, by start-up, after the areas are mapped and before anything here is used.
pub unsafe fn start() {
    let config = &state::seg().config;
    let fds = &config.shared_fds;
    let control = fds[shared_fd::CONTROL].load(Ordering::Relaxed) as i32;
    // Programs of another run of the tenant do not have it: their shared memory is native.
    let is_there = || shmem::inode_of(control) == Ok(config.shared_inode.load(Ordering::Relaxed));
    if control == 0 || !is_there() {
        return;
    }
    for (i, ours) in FDS.iter().enumerate() {
        let fd = fds[i].load(Ordering::Relaxed) as i32;
        ours.store(fd, Ordering::Relaxed);
        fds::guard(Fd::Shared(i), fd);
    }
    let joined = mem::map_shared(fd(shared_fd::CONTROL), 0, layout::CONTROL_BYTES).and_then(|at| {
        CONTROL.store(at, Ordering::Release);
        // SAFETY: called once, after the areas are mapped (the caller's promise); nothing hashes shared pages yet.
        unsafe { keys::init_shared(map()) };
        join()
    });
    match joined {
        Ok(()) => ON.store(true, Ordering::Release),
        Err(e) => report!(
            "this program's shared memory cannot be managed (error {}): it stays native",
            e.0
        ),
    }
}

/// Maps the partition, inaccessible, registers it with our userfaultfd, and takes a number.
fn join() -> Result<(), Errno> {
    // Writes to the store would end the program by SIGXFSZ.
    if proc::file_size_max() != Some(u64::MAX) {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping; the advices discard nothing.
    unsafe {
        canvas_sys::sys6(
            libc::SYS_mmap,
            shared_base(),
            SHARED_BYTES,
            libc::PROT_NONE as usize,
            flags as usize,
            fd(shared_fd::PARTITION) as usize,
            0,
        )?;
        // A fork's child must have no partition, or a registered one: else it would read zeros.
        mem::advise(shared_base(), SHARED_BYTES, libc::MADV_DONTFORK)?;
        mem::advise(shared_base(), SHARED_BYTES, libc::MADV_NOHUGEPAGE)?;
        let _ = mem::advise(shared_base(), SHARED_BYTES, libc::MADV_DONTDUMP);
    }
    // SAFETY: the partition, which was mapped just now; canvas's handlers resolve the faults there.
    unsafe { uffd().register(shared_base(), SHARED_BYTES, false) }?;
    // Last: a process that takes over from a dead one may have to put pages back.
    take_number()
}

/// Takes a number among the processes. Until it has one, this process holds the lock as a visitor.
fn take_number() -> Result<(), Errno> {
    let c = control();
    let id = life::id();
    MY_LOCK.store(lock_word(id, VISITOR), Ordering::Relaxed);
    for _ in 0..2 {
        let free = |p: &Proc| {
            p.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(i) = c.procs.iter().position(free) {
            c.procs_end.fetch_max(i as u32 + 1, Ordering::SeqCst);
            ME.store(i, Ordering::Relaxed);
            MY_LOCK.store(lock_word(id, i), Ordering::Relaxed);
            return Ok(());
        }
        bury_dead(&lock());
    }
    Err(Errno(libc::EAGAIN))
}

/// Settles everything of process `i`, none of whose threads works on pages any more, and frees its number.
fn leave(held: &Held, i: usize) {
    bury(held, i);
    control().procs[i].id.store(0, Ordering::SeqCst);
    collect(held);
}

/// Called when the process is about to end. No other thread is inside `freeze::enter`, and none enters any more.
pub fn before_exit() {
    if !is_on() || state::PID.load(Ordering::Relaxed) != proc::pid() {
        return;
    }
    // Other threads could write to pages that are another process's by then: such a process is buried like one that was
    // killed. (Canvas's own thread writes nowhere.)
    let ours = u64::from(accounting::RECLAIMER.load(Ordering::Relaxed) != 0);
    if own_threads().is_some_and(|threads| threads <= 1 + ours) {
        let _ = canvas_sys::signal::set_mask(u64::MAX);
        if let Some(frozen) = freeze::freeze() {
            core::mem::forget(frozen);
            leave(&lock(), me());
        }
    }
}

/// Called before exec, which ends all other threads wherever they are: none of them may be in a step that others only
/// take over from a dead process.
pub fn before_exec() -> Option<freeze::Frozen> {
    // A vfork child's exec ends no thread.
    if !is_on() || state::PID.load(Ordering::Relaxed) != proc::pid() {
        return None;
    }
    let mask = canvas_sys::signal::set_mask(u64::MAX);
    let frozen = freeze::freeze_for_exec();
    canvas_sys::signal::set_mask(mask);
    frozen
}

/// In a fork's child: takes a part of what its parent shares. The parent waits until this is done.
pub fn after_fork_in_child(lists: &mut regions::Lists) -> Result<(), Errno> {
    if !is_on() {
        return Ok(());
    }
    let parent = my_proc();
    let parents = fork_mark(holder_of(MY_LOCK.load(Ordering::Relaxed)).0);
    let joined = join().and_then(|()| mapping::inherit(&lock(), lists));
    if joined.is_err() {
        ON.store(false, Ordering::Release);
    }
    // If the parent was killed, its place may be another process's by now.
    let waits = parent
        .forking
        .compare_exchange(parents, 0, Ordering::SeqCst, Ordering::Relaxed);
    if waits.is_ok() {
        proc::futex_wake(&parent.forking, 1);
    }
    // A child without regions of its parent does not need the partition.
    if mapping::has_any() { joined } else { Ok(()) }
}

/// Called before a fork; returns whether [`wait_for_child`] must be called.
pub fn before_fork() -> bool {
    let waits = is_on() && mapping::has_any();
    if waits {
        let mark = fork_mark(life::id());
        my_proc().forking.store(mark, Ordering::SeqCst);
    }
    waits
}

/// In the parent: waits until the child has its part of all regions, so that none can end in between. `is_there` is
/// false if there is no child.
pub fn wait_for_child(id: u64, is_there: bool) {
    let p = my_proc();
    if !is_there {
        p.forking.store(0, Ordering::SeqCst);
        return;
    }
    loop {
        let waits = p.forking.load(Ordering::SeqCst);
        if waits == 0 {
            return;
        }
        proc::futex_wait(&p.forking, waits, 2_000_000);
        if life::is_gone(id) {
            p.forking.store(0, Ordering::SeqCst);
        }
    }
}

/// Value of [`Proc::forking`] while this process forks.
fn fork_mark(id: u64) -> u32 {
    id as u32 | 1 << 31
}

/// How many threads this process has; `None` without /proc.
pub fn own_threads() -> Option<u64> {
    let mut buf = [0u8; 1024];
    let n = proc::read_file(c"/proc/self/stat", &mut buf).ok()?;
    Stat::parse(&buf[..n]).map(|s| s.threads)
}

/// Bits of the lock's word that hold the index of the process that has it.
const PLACE_BITS: u32 = 16;

fn lock_word(id: u64, i: usize) -> u64 {
    id << PLACE_BITS | (i as u64 + 1)
}

/// The identity and the index in a lock's word.
fn holder_of(word: u64) -> (u64, usize) {
    let place = word & ((1 << PLACE_BITS) - 1);
    (word >> PLACE_BITS, (place as usize).wrapping_sub(1))
}

fn is_dead_holder(word: u64) -> bool {
    word != 0 && life::is_gone(holder_of(word).0)
}

/// The lock on eviction, regions and the store, between all processes of the tenant.
pub struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        control().lock.store(0, Ordering::SeqCst);
    }
}

/// Takes the lock if it is free.
pub fn try_lock() -> Option<Held> {
    control()
        .lock
        .compare_exchange(
            0,
            MY_LOCK.load(Ordering::Relaxed),
            Ordering::SeqCst,
            Ordering::Relaxed,
        )
        .is_ok()
        .then(|| Held(()))
}

/// Takes the lock. The caller is inside `freeze::enter`, and holds no page that it claimed.
pub fn lock() -> Held {
    let mut spins = 0u32;
    loop {
        if let Some(held) = try_lock() {
            return held;
        }
        spins += 1;
        if spins < 64 {
            core::hint::spin_loop();
        } else if spins < 72 {
            give_way();
        } else {
            gate::wait(20_000);
            let holder = control().lock.load(Ordering::SeqCst);
            if spins.is_multiple_of(32)
                && is_dead_holder(holder)
                && let Some(held) = take_over(holder)
            {
                return held;
            }
        }
    }
}

/// Takes the lock of a dead holder, and completes what it has begun.
fn take_over(holder: u64) -> Option<Held> {
    let mine = MY_LOCK.load(Ordering::Relaxed);
    control()
        .lock
        .compare_exchange(holder, mine, Ordering::SeqCst, Ordering::Relaxed)
        .ok()?;
    let held = Held(());
    count(Counter::SharedTakenOver, 1);
    partition().recover(&Here, end());
    collect(&held);
    Some(held)
}

/// Settles all that a dead process had begun, and releases its regions.
fn bury(_held: &Held, i: usize) {
    let c = control();
    let p = &c.procs[i];
    partition().bury(&Here, i as u16, end());
    for r in &c.regions {
        r.let_go(i);
    }
    p.forking.store(0, Ordering::Relaxed);
    p.pin_all.store(0, Ordering::Relaxed);
    for used in &p.used {
        used.store(0, Ordering::Relaxed);
    }
    for pin in &p.pins {
        pin.store(0, Ordering::Relaxed);
    }
}

/// Checks all processes for dead ones.
fn bury_dead(held: &Held) {
    let c = control();
    let mut any = false;
    for i in 0..c.procs_end.load(Ordering::SeqCst) as usize {
        any |= bury_if_dead(held, i);
    }
    if any {
        collect(held);
    }
}

fn bury_if_dead(held: &Held, i: usize) -> bool {
    let p = &control().procs[i];
    let id = p.id.load(Ordering::SeqCst);
    let dead = id != 0 && id != life::id() && life::is_gone(id);
    if dead {
        bury(held, i);
        p.id.store(0, Ordering::SeqCst);
    }
    dead
}

/// Empties regions that no process has a part of any more.
pub fn collect(held: &Held) {
    use canvas_shm::shared::region_state::{DYING, FREE, USED};
    let mut any = false;
    for r in &control().regions {
        match r.state.load(Ordering::SeqCst) {
            USED if r.is_orphan() => r.state.store(DYING, Ordering::SeqCst),
            DYING => {}
            _ => continue,
        }
        let (start, end) = (
            r.start.load(Ordering::Relaxed),
            r.end.load(Ordering::Relaxed),
        );
        partition().clear(&Here, start, end);
        r.state.store(FREE, Ordering::SeqCst);
        any = true;
    }
    if any {
        beyond::give_back_empty(held);
    }
    note_store(held);
}

/// Makes a page present. The caller is inside `freeze::enter`.
pub fn resolve(page: u32) -> Resolved {
    let p = partition();
    let w = &p.words[page as usize];
    let mut waits = 0u32;
    let mut contradictions = 0;
    loop {
        match load(w).state() {
            State::Poisoned => return Resolved::Poisoned,
            State::Resident => {
                if shmem::has_page(fd(shared_fd::PARTITION), page as usize * PAGE_SIZE) != Ok(false)
                {
                    // Another thread was faster.
                    return Resolved::Present;
                }
                if load(w).state() == State::Resident {
                    contradictions += 1;
                    if contradictions > 100 {
                        return vanished(page);
                    }
                }
                continue;
            }
            State::Untouched | State::Far if !make_room() => return Resolved::NoMemory,
            _ => {}
        }
        let claimed = {
            // The lock makes a mapping call see each page as claimed or not at all.
            let g = regions::lock();
            if !mapping::is_readable(&g, page) {
                return Resolved::NotOurs;
            }
            p.claim(page, me() as u16)
        };
        match claimed {
            Look::Present => {}
            Look::Poisoned => return Resolved::Poisoned,
            Look::Busy(owner) => {
                waits += 1;
                if waits < 64 {
                    core::hint::spin_loop();
                } else if waits < 80 {
                    give_way();
                } else {
                    slow::during(Cause::SharedPage, || gate::wait(20_000));
                    if waits.is_multiple_of(64) {
                        look_after(owner);
                    }
                }
            }
            Look::Claimed(word) => match bring(page, word) {
                Fill::Present => {
                    count_filled(word);
                    return Resolved::Present;
                }
                Fill::Failed => return Resolved::NoMemory,
                Fill::Unreachable => return Resolved::Unreachable,
                Fill::Lost => return Resolved::Lost,
                Fill::Damaged => {
                    count(Counter::VerifyFailure, 1);
                    report!(
                        "the far copy of shared page {:#x} does not verify; the program gets SIGBUS",
                        addr_of(page)
                    );
                    return Resolved::Poisoned;
                }
            },
        }
    }
}

/// Brings a claimed page in, and the pages that come with it.
fn bring(page: u32, claimed: Word) -> Fill {
    match claimed.state() {
        State::FillingNew => partition().fill(&Here, page, claimed),
        _ => ahead::fill(page, claimed),
    }
}

/// Counts a page that was brought in; `claimed` is its word before.
pub fn count_filled(claimed: Word) {
    if claimed.state() == State::FillingNew {
        count(Counter::SharedNew, 1);
        return;
    }
    count(Counter::SharedIn, 1);
    if claimed.entry().is_some() && !Here.is_in_store(claimed.entry()) {
        count(Counter::SharedInDeep, 1);
    }
}

/// A page has been busy for long: checks whether the process that works on it is dead.
fn look_after(owner: Option<u16>) {
    let Some(i) = owner.map(usize::from) else {
        // It is being evicted: whoever gets the lock finds that completed.
        drop(lock());
        return;
    };
    let id = control().procs[i].id.load(Ordering::SeqCst);
    if id != 0 && life::is_gone(id) {
        let held = lock();
        if bury_if_dead(&held, i) {
            collect(&held);
        }
    }
}

/// The word says that the page is resident, but the file does not have it: it is lost, and must not silently turn into
/// zeros.
#[cold]
fn vanished(page: u32) -> Resolved {
    let _held = lock();
    let w = &partition().words[page as usize];
    let cur = load(w);
    let there = shmem::has_page(fd(shared_fd::PARTITION), page as usize * PAGE_SIZE);
    if cur.state() == State::Resident && there == Ok(false) {
        count(Counter::Anomaly, 1);
        report!(
            "shared page {:#x} vanished from memory; the program gets SIGBUS",
            addr_of(page)
        );
        w.store(
            Word::new(State::Poisoned, 0, cur.entry()).0,
            Ordering::SeqCst,
        );
        return Resolved::Poisoned;
    }
    Resolved::Present
}

fn batch(limit: i64) -> usize {
    (limit / 16).clamp(8, 64) as usize
}

/// Pages below the limit at which background eviction begins, and ends.
fn gaps(limit: i64) -> (i64, i64) {
    (limit / 32, limit / 16)
}

/// Makes room for one more page, by eviction if necessary; returns false if local and far memory are both full.
fn make_room() -> bool {
    let c = control();
    let (mut most, mut fruitless, mut now) = (limit(), 0, resident());
    if now < most {
        if now > most - gaps(most).0 {
            accounting::wake_reclaimer();
        }
    } else {
        let begun = proc::now_ns();
        while now >= most {
            let done = {
                let held = lock();
                // Another process may have made room meanwhile.
                now = resident();
                if now < most {
                    break;
                }
                let done = evict(&held, batch(most));
                if done.refused > 0 {
                    beyond::make_room(&held);
                    tenant::ask_for_pool(Whom::Largest);
                }
                done
            };
            if done.pages == 0 {
                fruitless += 1;
                // Copies being written will make room when that has ended.
                let waited_ns = proc::now_ns() - begun;
                let will_be = beyond::is_writing() && waited_ns < far_area::longest_wait_ns();
                if done.refused > 0 && fruitless > 100 && !will_be {
                    // Exceeding the agent's grant must not end a program from which nothing can leave; exceeding
                    // `--shared` does.
                    if now < c.limit_pages.load(Ordering::Relaxed) {
                        break;
                    }
                    return false;
                }
                // Everything is pinned, or busy: there is nothing to evict.
                if done.refused == 0 && fruitless > 4 {
                    break;
                }
                gate::wait(if done.refused > 0 { 1_000_000 } else { 100_000 });
            }
            (most, now) = (limit(), resident());
        }
        count(Counter::StallNs, proc::now_ns() - begun);
    }
    state::seg().shared.note_used(now + 1);
    if now + 1 > c.resident_peak.load(Ordering::Relaxed) {
        c.resident_peak.fetch_max(now + 1, Ordering::Relaxed);
    }
    true
}

/// Pages that may come in beside a faulting one without an eviction: a part of the room left, because other processes
/// may do the same.
pub fn room() -> u32 {
    let left = limit() - resident() - 1;
    u32::try_from(left / 4).unwrap_or(0)
}

fn evict(held: &Held, want: usize) -> canvas_core::pager::shared::Evicted {
    let done = partition().evict(&Here, want, end());
    count(Counter::SharedOut, done.pages.into());
    count(Counter::SharedOutClean, done.clean.into());
    count(Counter::SharedPinned, done.pinned.into());
    note_store(held);
    beyond::keep_up(held);
    done
}

/// Publishes the size of the store, and the number of resident pages. The caller holds the lock.
pub fn note_store(_held: &Held) {
    state::seg().shared.note_used(resident());
    let pages = shmem::pages(fd(shared_fd::STORE)).map_or(0, |n| n as i64);
    state::seg()
        .shared_store_bytes
        .store(pages * PAGE_SIZE as i64, Ordering::Relaxed);
    control().store_peak.fetch_max(pages, Ordering::Relaxed);
}

/// Runs one round of the reclaim thread's part: makes room ahead of need, and checks for dead processes once a second.
/// Returns false if there is nothing to do.
pub fn background_round() -> bool {
    static DRAINS: AtomicBool = AtomicBool::new(false);
    if !is_on() {
        return false;
    }
    let now_ns = proc::now_ns();
    // One process does this for all.
    let looked = &control().looked_ns;
    let last = looked.load(Ordering::Relaxed);
    if now_ns > last + 1_000_000_000
        && tenant::take_turn(looked, last, now_ns)
        && let Some(held) = lock_in_background()
    {
        bury_dead(&held);
    }
    let sinks = beyond::background_round();
    let limit = limit();
    let (begin, until) = gaps(limit);
    let drains = DRAINS.load(Ordering::Relaxed);
    if resident() <= limit - if drains { until } else { begin } {
        DRAINS.store(false, Ordering::Relaxed);
        return sinks;
    }
    DRAINS.store(true, Ordering::Relaxed);
    let worked = try_lock().is_some_and(|held| evict(&held, batch(limit)).pages > 0);
    if !worked {
        DRAINS.store(false, Ordering::Relaxed);
    }
    worked | sinks
}

/// Takes the lock, unless a living process has it.
fn lock_in_background() -> Option<Held> {
    try_lock().or_else(|| {
        let holder = control().lock.load(Ordering::SeqCst);
        is_dead_holder(holder).then(|| take_over(holder)).flatten()
    })
}
