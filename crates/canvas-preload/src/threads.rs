//! Our own threads in the program: the reclaim thread, and in thread mode the fault handlers.
//! They have no libc: raw calls only, a small stack, an empty thread-local block.

use canvas_shm::Counter;
use canvas_sys::uffd::{self, Msg};
use canvas_sys::{Errno, mem, proc};
use canvas_types::layout::in_window;
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::fault::{self, Resolved};
use crate::{account, deep, freeze, reclaim, report, shared, sig, state, swapin, trace};

const STACK_BYTES: usize = 256 << 10;

/// Faults that the handler threads of this process have served.
pub static SERVED: AtomicU64 = AtomicU64::new(0);

static FD_FLOOR: AtomicI32 = AtomicI32::new(100);

/// Descriptors of ours lie at or above this number, out of the way of programs that count on
/// getting the lowest ones.
pub fn fd_floor() -> i32 {
    FD_FLOOR.load(Ordering::Relaxed)
}

/// Finds room for our descriptors below the soft limit on them.
pub fn init_fd_floor() {
    let mut l = [0u64; 2];
    // SAFETY: the kernel writes `l`.
    let ok = unsafe {
        canvas_sys::sys4(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_NOFILE as usize,
            0,
            l.as_mut_ptr() as usize,
        )
    };
    if ok.is_ok() {
        FD_FLOOR.store((l[0].min(1024) as i32 - 16).max(10), Ordering::Relaxed);
    }
}

/// Opens a descriptor of this process for process_madvise, where PIDFD_SELF may be missing.
pub fn open_pidfd() {
    if let Ok(fd) = proc::pidfd_self()
        && let Ok(fd) = uffd::move_fd(fd, fd_floor(), true)
    {
        crate::procs::guard_fd(3, fd);
        state::PIDFD.store(fd, Ordering::Relaxed);
    }
}

fn spawn(entry: extern "C" fn() -> !) -> Result<u32, Errno> {
    let base = mem::map_lazy(0, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: a fresh stack that nothing else uses; the entries never return and use no
    // thread-local data.
    unsafe { proc::spawn_bare(base + STACK_BYTES, entry) }
}

/// Starts the reclaim thread of this process, once. In a vfork child it does nothing: the thread
/// would belong to a process that is about to become another program.
pub fn start_reclaimer() {
    if state::PID.load(Ordering::Relaxed) != proc::pid() {
        return;
    }
    if account::RECLAIMER
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if spawn(reclaimer).is_err() {
        // Direct reclaim still works; try again when it is needed again.
        account::RECLAIMER.store(0, Ordering::Release);
    }
}

extern "C" fn reclaimer() -> ! {
    let mut rounds = 0u32;
    loop {
        rounds = rounds.wrapping_add(1);
        let worked = {
            let _inside = freeze::enter_masked();
            if rounds.is_multiple_of(16) {
                account::measure_native();
                account::size_cache();
            }
            // Both: neither waits for the other's work to be done.
            shared::background_round() | reclaim::background_round() || swapin::background_round()
        };
        let pause_ns = trace::background();
        if !worked {
            {
                let _inside = freeze::enter_masked();
                account::measure_native();
                account::size_cache();
                // Both may be changed while the program runs.
                state::PREFETCHERS.choose(state::seg().config.prefetch());
            }
            if account::short_of_room() {
                // Short, and nothing to take: everything is busy, pinned, or not ours.
                proc::sleep_ns(deep::idle_ns().min(2_000_000));
            } else {
                let idle_ns = account::idle_ns().min(deep::idle_ns());
                account::sleep_until_woken(pause_ns.min(idle_ns));
            }
        }
    }
}

/// Fault handler threads of thread mode.
const HANDLERS: usize = 2;

/// Starts them.
pub fn start_handlers() -> Result<(), Errno> {
    for _ in 0..HANDLERS {
        spawn(handler)?;
    }
    Ok(())
}

extern "C" fn handler() -> ! {
    let u = state::uffd();
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
    SERVED.fetch_add(1, Ordering::Relaxed);
    let begun = sig::now_ns();
    let page = PageId::of_addr(addr).0;
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
    let stripe = freeze::thread_hash() % canvas_shm::segment::STRIPES;
    state::seg().stripes[stripe]
        .fault_ns
        .record(sig::now_ns().saturating_sub(begun));
    state::count(Counter::FaultsManaged, 1);
}
