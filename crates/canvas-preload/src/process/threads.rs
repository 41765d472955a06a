//! Canvas's own threads in the program: the reclaim thread and, in thread mode, the fault handlers. They do without
//! libc: raw calls only, a small stack, an empty thread-local block.

use canvas_core::vm::ledger;
use canvas_shm::Counter;
use canvas_sys::pagemap::Pagemap;
use canvas_sys::uffd::{self, Msg};
use canvas_sys::{Errno, descriptors, gate, mem, proc, signal};
use canvas_types::layout::in_window;
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::far_tier::tier;
use crate::memory::lending;
use crate::own_memory::own;
use crate::paging::{
    accounting, background, cache,
    fault::{self, Resolved},
    fork_accounting, hints, learn, native_swap,
    swapin::{Round, SwapIn},
    trace,
};
use crate::paging::{freeze, jvm, slow};
use crate::report;
use crate::runtime::{fds, fds::Fd, state, state::PROCESS, thread};
use crate::shared::{beyond, members, pages};

const STACK_BYTES: usize = thread::OWN_STACK_BYTES;

/// Opens a descriptor of this process for process_madvise, in case PIDFD_SELF is missing.
pub fn open_pidfd() {
    if let Ok(fd) = descriptors::with_room(proc::pidfd_self)
        && let Ok(fd) = descriptors::moved(fd, true)
    {
        fds::guard(Fd::Pidfd, fd);
    }
}

/// Opens this process's pagemap once and for all: program threads use it, too, and a file that they opened would take a
/// number that another thread may count on.
pub fn open_pagemap() {
    let opened = descriptors::with_room(|| Pagemap::open().ok_or(Errno(libc::EMFILE)))
        .ok()
        .and_then(Pagemap::moved);
    fds::guard(Fd::Pagemap, opened.unwrap_or(-1));
}

/// A thread of canvas.
struct Ours {
    /// 0 for none, or for one that is just being started.
    tid: AtomicU32,
    /// Its stack, which the next thread reuses; 0 for none.
    stack: AtomicUsize,
}

impl Ours {
    /// Whether the thread has ended in the kernel.
    fn is_gone(&self) -> bool {
        let (pid, tid) = (proc::pid() as usize, self.tid.load(Ordering::Acquire));
        // SAFETY: the call takes no address; signal 0 is none.
        let there = unsafe { canvas_sys::sys3(libc::SYS_tgkill, pid, tid as usize, 0) };
        tid != 0 && there == Err(Errno(libc::ESRCH))
    }
}

/// Fault handler threads of thread mode.
const HANDLERS: usize = thread::SERVERS;
const RECLAIMER: usize = HANDLERS;

state! {
    static THREADS: Threads {
        /// The handlers, and the reclaim thread.
        ours: [Ours; HANDLERS + 1] = [const {
            Ours {
                tid: AtomicU32::new(0),
                stack: AtomicUsize::new(0),
            }
        }; HANDLERS + 1],
        /// Whether all descriptors are open that the reclaim thread uses.
        may_reclaim: AtomicBool = AtomicBool::new(false),
        /// A thread is in [`alone`].
        is_alone: AtomicBool = AtomicBool::new(false),
        /// Canvas's threads must end.
        end: AtomicBool = AtomicBool::new(false),
        /// Address of pages, one per handler, whose faults wake the handlers that must end.
        notifiers: AtomicUsize = AtomicUsize::new(0),
        /// The program's first thread has ended, before others.
        first_ended: AtomicBool = AtomicBool::new(false),
        /// Exit code of the last thread that has ended since.
        last_code: AtomicU32 = AtomicU32::new(0),
        /// Handlers ever started, in this process or those that it was forked from.
        handlers_started: AtomicUsize = AtomicUsize::new(0),
    }
}

/// In a fork's child, which has none of its parent's threads.
pub fn after_fork_in_child() {
    for ours in &THREADS.ours {
        ours.tid.store(0, Ordering::Relaxed);
        ours.stack.store(0, Ordering::Relaxed);
    }
    for flag in [&THREADS.first_ended, &THREADS.is_alone, &THREADS.end] {
        flag.store(false, Ordering::Relaxed);
    }
}

/// Starts a thread in a place that has none.
fn spawn(place: usize, entry: extern "C" fn() -> !) -> Result<(), Errno> {
    let ours = &THREADS.ours[place];
    ours.tid.store(0, Ordering::Release);
    if ours.stack.load(Ordering::Relaxed) == 0 {
        let base = mem::map_lazy(0, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
        own::note_stack(base, STACK_BYTES);
        ours.stack.store(base, Ordering::Relaxed);
    }
    let top = ours.stack.load(Ordering::Relaxed) + STACK_BYTES;
    // SAFETY: the stack is this place's alone, whose last thread, if any, has ended; the entries (`handler`,
    // `reclaimer`) call no libc function that uses thread-local data.
    let tid = unsafe { proc::spawn_bare(top, entry) }?;
    ours.tid.store(tid, Ordering::Release);
    Ok(())
}

/// Allows the reclaim thread to be started from now on.
pub fn allow_reclaimer() {
    THREADS.may_reclaim.store(true, Ordering::Release);
}

/// Starts the reclaim thread of this process, once, if that is allowed yet. Does nothing in a vfork child: the thread
/// would belong to a process that is about to exec another program.
pub fn start_reclaimer() {
    if !THREADS.may_reclaim.load(Ordering::Acquire) {
        return;
    }
    if PROCESS.is_vfork_child() {
        return;
    }
    if PROCESS
        .reclaimer
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    // Direct reclaim still works; try again when it is needed again.
    if spawn(RECLAIMER, reclaimer).is_err() {
        PROCESS.reclaimer.store(0, Ordering::Release);
    }
}

/// Starts the fault handlers, for thread mode.
pub fn start_handlers() -> Result<(), Errno> {
    let missing = |place: &usize| THREADS.ours[*place].tid.load(Ordering::Relaxed) == 0;
    (0..HANDLERS)
        .filter(missing)
        .try_for_each(|place| spawn(place, handler))
}

/// Makes a call of the program that the kernel grants only to programs with one thread, while canvas's threads are
/// stopped.
pub fn alone<R>(call: impl FnOnce() -> R) -> R {
    // Canvas's threads are not a vfork child's but its parent's. If a second thread gets here, the program has more
    // than one thread anyway.
    if PROCESS.is_vfork_child() || THREADS.is_alone.swap(true, Ordering::AcqRel) {
        return call();
    }
    let mask = signal::set_mask(u64::MAX);
    let handled = PROCESS.in_thread_mode();
    let reclaimed = PROCESS.reclaimer.load(Ordering::Acquire) != 0;
    THREADS.end.store(true, Ordering::SeqCst);
    if reclaimed {
        end_reclaimer();
    }
    let handled = handled && end_handlers();
    THREADS.end.store(false, Ordering::SeqCst);
    let r = call();
    if handled {
        start_handlers_again();
    }
    if reclaimed {
        start_reclaimer();
    }
    THREADS.is_alone.store(false, Ordering::Release);
    signal::set_mask(mask);
    r
}

/// Called when the calling thread is about to end with `code`. If it is the program's last thread the process ends, as
/// it would without canvas's threads.
pub fn before_exit(code: i32) {
    if THREADS.first_ended.load(Ordering::SeqCst) {
        THREADS
            .last_code
            .store(code as u32 & 0xff, Ordering::SeqCst);
    }
    // For other threads than the first: libc ends the process with the last of them, and so does the reclaim thread.
    if proc::tid() != proc::pid() {
        return;
    }
    if !is_one_left() {
        THREADS
            .last_code
            .store(code as u32 & 0xff, Ordering::SeqCst);
        THREADS.first_ended.store(true, Ordering::SeqCst);
        start_reclaimer();
        return;
    }
    before_exit_group();
    proc::exit_group(code);
}

/// Called when the process is about to end.
pub fn before_exit_group() {
    trace::at_exit();
    members::before_exit();
    fork_accounting::before_exit();
}

/// Whether the program has only one thread left. (The first one counts until the process has ended.)
pub fn is_one_left() -> bool {
    let handlers = match PROCESS.in_thread_mode() {
        true => HANDLERS as u64,
        false => 0,
    };
    let reclaimer = u64::from(PROCESS.reclaimer.load(Ordering::Acquire) != 0);
    members::own_threads().is_some_and(|threads| threads <= 1 + handlers + reclaimer)
}

/// For the reclaim thread: ends the process if all threads except canvas's have ended.
fn look_at_the_end() {
    if THREADS.first_ended.load(Ordering::Relaxed) && is_one_left() {
        before_exit_group();
        proc::exit_group(THREADS.last_code.load(Ordering::SeqCst) as i32);
    }
}

fn end_reclaimer() {
    // If another thread could not start it, there is none.
    while !THREADS.ours[RECLAIMER].is_gone() && PROCESS.reclaimer.load(Ordering::Acquire) != 0 {
        accounting::wake_reclaimer();
        gate::yield_now();
    }
    PROCESS.reclaimer.store(0, Ordering::Release);
}

/// Ends the handlers; returns false if they stay.
fn end_handlers() -> bool {
    let bytes = HANDLERS * PAGE_SIZE;
    let Ok(notifiers) = mem::map_lazy(0, bytes, libc::PROT_READ | libc::PROT_WRITE) else {
        return false;
    };
    // SAFETY: pages mapped just now, which only this function and `end_handler` use; handlers resolve faults there.
    let is_registered = unsafe { state::uffd().register(notifiers, bytes, false) }.is_ok();
    if is_registered {
        THREADS.notifiers.store(notifiers, Ordering::SeqCst);
        for page in 0..HANDLERS {
            // SAFETY: a readable page of the mapping; the access waits until a handler has filled it.
            unsafe { ((notifiers + page * PAGE_SIZE) as *const u8).read_volatile() };
        }
        for ours in &THREADS.ours[..HANDLERS] {
            while !ours.is_gone() {
                gate::yield_now();
            }
            ours.tid.store(0, Ordering::Release);
        }
        THREADS.notifiers.store(0, Ordering::SeqCst);
    }
    // SAFETY: mapped above; no handler is left that could fill its pages, or none was told of it.
    let _ = unsafe { mem::unmap(notifiers, bytes) };
    is_registered
}

/// Handles a fault on such a page: this handler ends.
fn end_handler(u: uffd::Uffd, page: usize) -> ! {
    static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    // SAFETY: an absent page of the notifiers, for which `end_handlers` waits; ZEROS is a present page.
    let _ = unsafe { u.copy(page, ZEROS.as_ptr() as usize, PAGE_SIZE, false) };
    // SAFETY: `spawn` made this thread; its loop holds nothing here, and nobody else refers to its stack.
    unsafe { proc::exit_thread() }
}

/// Restarts the handlers; until then faults wait.
fn start_handlers_again() {
    let mut tries = 0;
    while start_handlers().is_err() {
        tries += 1;
        if tries == HANDLER_TRIES {
            report!("the fault handler threads cannot be restarted: the program is ended");
            proc::exit_group(canvas_types::exit::RUN_FAILED);
        }
        proc::sleep_ns(1_000_000);
    }
}

/// How often starting the handlers is tried, a millisecond apart.
const HANDLER_TRIES: u32 = 1000;

/// Measures native memory and pages some of it out, updates ages and headroom, divides the room among processes, and
/// frees idle swap-cache slots.
fn look_at_memory() {
    accounting::measure_native();
    accounting::look_at_ages();
    ledger::update_headroom(&PROCESS, proc::now_ns());
    ledger::divide_room(&PROCESS, proc::now_ns());
    accounting::size_cache(trace::cache_pages());
    cache::give_back_idle(proc::now_ns());
    native_swap::look(proc::now_ns());
    jvm::look(proc::now_ns());
}

extern "C" fn reclaimer() -> ! {
    // Before it opens any file.
    fds::leave_the_programs();
    let mut rounds = 0u32;
    let mut used_ns = 0;
    let mut swap_in = SwapIn::new();
    let mut told = hints::Server::default();
    let mut resumed = learn::Server::new();
    let mut lender = lending::Lender::default();
    loop {
        lender.round();
        if THREADS.end.load(Ordering::Acquire) {
            drop(lender);
            // SAFETY: `spawn` made this thread; nobody else refers to what is on its stack.
            unsafe { proc::exit_thread() };
        }
        look_at_the_end();
        rounds = rounds.wrapping_add(1);
        let before_ns = core::mem::replace(&mut used_ns, proc::thread_ns());
        state::count(Counter::ReclaimCpuNs, used_ns - before_ns);
        let mut next_ns = 0;
        let worked = {
            let _inside = freeze::enter_masked();
            // Pages that relatives share are only estimated, which soon is far too high.
            if rounds.is_multiple_of(16) || PROCESS.has_forked() {
                look_at_memory();
            }
            // Both, so that neither waits until the other has no work left.
            let reclaimed = pages::background_round() | background::round();
            // In a program at its limit there is always a little to reclaim. Hints do not wait for that to end;
            // proactive swap-in does.
            let round = match resumed.background_round() {
                Round::Idle => told.background_round(),
                round => round,
            };
            let round = match round {
                Round::Idle if !reclaimed => swap_in.background_round(),
                round => round,
            };
            if let (Round::Worked(pause_ns), false) = (round, reclaimed) {
                next_ns = pause_ns;
            }
            reclaimed || round != Round::Idle
        };
        if next_ns > 0 {
            accounting::sleep_until_woken(next_ns, arrived);
        }
        let pause_ns = trace::background();
        if !worked {
            {
                let _inside = freeze::enter_masked();
                look_at_memory();
                // Both settings may be changed while the program runs.
                PROCESS
                    .pager
                    .prefetchers
                    .choose(state::seg().config.prefetch());
            }
            if ledger::short_of_room(&PROCESS) {
                // Short of room, but with nothing to take: everything is busy, pinned, or other processes'.
                let pause_ns = if ledger::excess(&PROCESS) > 0 {
                    2_000_000
                } else {
                    10_000_000
                };
                let pause_ns = pause_ns * crowd();
                accounting::nap(beyond_idle_ns().min(pause_ns));
            } else {
                let idle_ns = accounting::idle_ns().min(beyond_idle_ns());
                accounting::sleep_until_woken(pause_ns.min(idle_ns), arrived);
            }
        }
    }
}

/// Whether hints or faults to learn from wait for the reclaim thread.
fn arrived() -> bool {
    hints::arrived() || learn::arrived()
}

/// Factor by which a process that is short and has nothing to give up pauses longer than if it were alone: each round
/// costs more with each process, and together they would keep the CPUs from the processes that run.
fn crowd() -> u64 {
    1 + u64::from(state::seg().procs_end.load(Ordering::Relaxed)) / 16
}

/// How long nothing that is being written beyond the pool needs attention.
fn beyond_idle_ns() -> u64 {
    tier::idle_ns().min(beyond::idle_ns())
}

extern "C" fn handler() -> ! {
    let u = state::uffd();
    let number = THREADS.handlers_started.fetch_add(1, Ordering::Relaxed) % HANDLERS;
    thread::serve_others(number);
    let mut poll = libc::pollfd {
        fd: u.0,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut msg = Msg::default();
    loop {
        // SAFETY: the kernel reads and writes one pollfd, `poll`.
        let _ = unsafe { canvas_sys::sys3(libc::SYS_poll, &raw mut poll as usize, 1, usize::MAX) };
        while u.read(&mut msg).is_ok() {
            if msg.event == uffd::EVENT_PAGEFAULT {
                thread::serve(number, msg.ptid as usize);
                serve(u, &msg);
            }
        }
    }
}

fn serve(u: uffd::Uffd, msg: &Msg) {
    let addr = msg.address as usize & !(PAGE_SIZE - 1);
    if !in_window(addr) {
        let notifiers = THREADS.notifiers.load(Ordering::SeqCst);
        if notifiers != 0 && (notifiers..notifiers + HANDLERS * PAGE_SIZE).contains(&addr) {
            end_handler(u, addr);
        }
        return;
    }
    PROCESS.faults_without_copy.fetch_add(1, Ordering::Relaxed);
    let begun = slow::Begun::now();
    let page = PageId::of_addr(addr);
    let r = {
        let _inside = freeze::enter_masked();
        fault::resolve(page, msg.flags & uffd::FAULT_WRITE != 0)
    };
    match r {
        // UFFDIO_COPY has woken the faulting thread if it filled the page. If another thread filled it, or the page was
        // only protected, it still waits. If the mapping changed, the access is repeated, and the kernel judges it.
        Resolved::Present | Resolved::NotOurs => u.wake(addr, PAGE_SIZE),
        Resolved::Poisoned | Resolved::Unreachable | Resolved::Lost | Resolved::NoMemory => {
            // Before UFFDIO_POISON there is no way to fail a fault by message: report it and end.
            report!(
                "page {addr:#x}: {}; the program is ended by SIGBUS",
                fault::reason(r)
            );
            signal::set_default(libc::SIGBUS);
            // SAFETY: the call takes no address.
            let _ = unsafe {
                canvas_sys::sys2(libc::SYS_kill, proc::pid() as usize, libc::SIGBUS as usize)
            };
            proc::sleep_ns(1_000_000_000);
        }
    }
    slow::note_fault(addr, begun);
}
