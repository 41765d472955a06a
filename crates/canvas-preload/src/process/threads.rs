//! Our own threads in the program: the reclaim thread, and in thread mode the fault handlers.
//! They have no libc: raw calls only, a small stack, an empty thread-local block.

use canvas_shm::Counter;
use canvas_sys::pagemap::Pagemap;
use canvas_sys::uffd::{self, Msg};
use canvas_sys::{Errno, mem, proc};
use canvas_types::layout::in_window;
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::base::{fds, fds::Fd, freeze, jvm, own, report, slow, state, thread, time};
use crate::far_tier::tier;
use crate::paging::{
    accounting, cache,
    fault::{self, Resolved},
    hints, learn, native_swap, reclaim,
    swapin::{Round, SwapIn},
    trace,
};
use crate::report;
use crate::shared::{beyond, pages};

const STACK_BYTES: usize = thread::OWN_STACK_BYTES;

/// Opens a descriptor of this process for process_madvise, where PIDFD_SELF may be missing.
pub fn open_pidfd() {
    if let Ok(fd) = proc::pidfd_self()
        && let Ok(fd) = canvas_sys::descriptors::moved(fd, true)
    {
        fds::guard(Fd::Pidfd, fd);
        state::PIDFD.store(fd, Ordering::Relaxed);
    }
}

/// Opens this process's pagemap for good: program threads ask it too, and what they open meanwhile would have the
/// number that another one may count on.
pub fn open_pagemap() {
    let opened = Pagemap::open().and_then(Pagemap::moved);
    fds::guard(Fd::Pagemap, opened.unwrap_or(-1));
}

fn spawn(entry: extern "C" fn() -> !) -> Result<u32, Errno> {
    let base = mem::map_lazy(0, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    own::note_stack(base, STACK_BYTES);
    // SAFETY: a fresh stack that nothing else uses; the entries never return and use no
    // thread-local data.
    unsafe { proc::spawn_bare(base + STACK_BYTES, entry) }
}

/// Are all descriptors there that the reclaim thread uses?
static MAY_RECLAIM: AtomicBool = AtomicBool::new(false);

/// From now on the reclaim thread may be started.
pub fn allow_reclaimer() {
    MAY_RECLAIM.store(true, Ordering::Release);
}

/// Starts the reclaim thread of this process, once, and not before it may be. In a vfork child it does nothing: the
/// thread would belong to a process that is about to become another program.
pub fn start_reclaimer() {
    if !MAY_RECLAIM.load(Ordering::Acquire) {
        return;
    }
    if state::PID.load(Ordering::Relaxed) != proc::pid() {
        return;
    }
    if accounting::RECLAIMER
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if spawn(reclaimer).is_err() {
        // Direct reclaim still works; try again when it is needed again.
        accounting::RECLAIMER.store(0, Ordering::Release);
    }
}

/// What native memory there is and what of it is to leave, what each process may keep, and what of the swap cache
/// lies idle.
fn look_at_memory() {
    accounting::measure_native();
    accounting::look_at_ages();
    accounting::look_at_headroom(proc::now_ns());
    accounting::divide_room(proc::now_ns());
    accounting::size_cache();
    cache::give_back_idle(proc::now_ns());
    native_swap::look(proc::now_ns());
    jvm::look(proc::now_ns());
}

extern "C" fn reclaimer() -> ! {
    // Before it opens any file.
    if fds::leave_the_programs() {
        report::borrow_stderr(state::PIDFD.load(Ordering::Relaxed));
    }
    let mut rounds = 0u32;
    let mut used_ns = 0;
    let mut swap_in = SwapIn::new();
    let mut told = hints::Server::default();
    let mut resumed = learn::Server::new();
    loop {
        rounds = rounds.wrapping_add(1);
        let before_ns = core::mem::replace(&mut used_ns, proc::thread_ns());
        state::count(Counter::ReclaimCpuNs, used_ns - before_ns);
        let mut next_ns = 0;
        let worked = {
            let _inside = freeze::enter_masked();
            // Of what relatives share there is an estimate only, soon too high by far.
            if rounds.is_multiple_of(16) || state::FORKED.load(Ordering::Relaxed) {
                look_at_memory();
            }
            // Both: neither waits for the other's work to be done.
            let reclaimed = pages::background_round() | reclaim::background_round();
            // In a program that is at its limit there is always a little to reclaim: hints do not wait for an end of
            // that, what comes back unasked does.
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
            accounting::sleep_until_woken(next_ns);
        }
        let pause_ns = trace::background();
        if !worked {
            {
                let _inside = freeze::enter_masked();
                look_at_memory();
                // Both may be changed while the program runs.
                state::PREFETCHERS.choose(state::seg().config.prefetch());
            }
            if accounting::short_of_room() {
                // Short, and nothing to take: everything is busy, pinned, or not ours.
                let pause_ns = if accounting::excess() > 0 {
                    2_000_000
                } else {
                    10_000_000
                };
                let pause_ns = pause_ns * crowd();
                accounting::nap(beyond_idle_ns().min(pause_ns));
            } else {
                let idle_ns = accounting::idle_ns().min(beyond_idle_ns());
                accounting::sleep_until_woken(pause_ns.min(idle_ns));
            }
        }
    }
}

/// How many times longer than alone a process pauses that is short and has nothing to give: each look costs more
/// with each process, and together they would keep the processors from those that run.
fn crowd() -> u64 {
    1 + u64::from(state::seg().procs_end.load(Ordering::Relaxed)) / 16
}

/// How long nobody need look at what is being written beyond the pool.
fn beyond_idle_ns() -> u64 {
    tier::idle_ns().min(beyond::idle_ns())
}

/// Fault handler threads of thread mode.
const HANDLERS: usize = thread::SERVERS;
/// Handlers that were started, in this process or those that it was forked from.
static HANDLERS_STARTED: AtomicUsize = AtomicUsize::new(0);

/// Starts them.
pub fn start_handlers() -> Result<(), Errno> {
    for _ in 0..HANDLERS {
        spawn(handler)?;
    }
    Ok(())
}

extern "C" fn handler() -> ! {
    let u = state::uffd();
    let number = HANDLERS_STARTED.fetch_add(1, Ordering::Relaxed) % HANDLERS;
    thread::serve_others(number);
    let mut poll = libc::pollfd {
        fd: u.0,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut msg = Msg::default();
    loop {
        // SAFETY: one pollfd of ours.
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
        return;
    }
    state::FAULTS_SERVED.fetch_add(1, Ordering::Relaxed);
    let begun = time::now_ns();
    let page = PageId::of_addr(addr);
    let r = {
        let _inside = freeze::enter_masked();
        fault::resolve(page, msg.flags & uffd::FAULT_WRITE != 0)
    };
    match r {
        Resolved::Present => {
            if msg.flags & uffd::FAULT_WP != 0 {
                state::count(Counter::FaultWriteProtect, 1);
            }
            // COPY has woken the faulter if it filled the page; if another thread did, or the
            // page was only protected, nobody has.
            u.wake(addr, PAGE_SIZE);
        }
        // The mapping changed under the fault: the access is made again, and is the kernel's to judge.
        Resolved::NotOurs => u.wake(addr, PAGE_SIZE),
        Resolved::Poisoned | Resolved::Unreachable | Resolved::Lost | Resolved::NoMemory => {
            // There is no way to fail a fault by message before UFFDIO_POISON: say so and end.
            report!(
                "page {addr:#x}: {}; the program is ended by SIGBUS",
                r.reason()
            );
            canvas_sys::signal::set_default(libc::SIGBUS);
            // SAFETY: a signal to ourselves.
            let _ = unsafe {
                canvas_sys::sys2(libc::SYS_kill, proc::pid() as usize, libc::SIGBUS as usize)
            };
            proc::sleep_ns(1_000_000_000);
        }
    }
    slow::note_fault(addr, begun);
}
