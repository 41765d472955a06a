//! Signals: SIGBUS and SIGSYS stay ours, in every mask and table, and what is not ours goes on to
//! the program's handler as if we were not there.

use canvas_shm::Counter;
use canvas_sys::gate::{self, check, raw};
use canvas_sys::signal::{self, KernelSigaction, bit};
use canvas_sys::{Errno, proc, seccomp};
use canvas_types::layout::{in_partition, in_window};
use canvas_types::{PAGE_SIZE, PageId};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::base::{call::Call, freeze, regions, state, time, upcalls};
use crate::memory::{args, mm, open_pages, uaccess};
use crate::paging::app_tier::At;
use crate::paging::fault::{self, Resolved};
use crate::process::altstack;
use crate::report;
use crate::shared::{mapping, pages};

/// Signals that must never be blocked: a fault would end the program.
pub const OURS: u64 = bit(libc::SIGBUS) | bit(libc::SIGSYS);

/// The signals that are ours in this mode: none when handler threads serve the faults.
fn ours() -> u64 {
    if state::THREAD_MODE.load(Ordering::Relaxed) {
        0
    } else {
        OURS
    }
}

/// The program's own actions for our signals, behind a sequence number (odd while written).
struct Action {
    seq: AtomicU32,
    value: UnsafeCell<KernelSigaction>,
}
// SAFETY: writers are serialised by the sequence's odd state, readers retry when it changed.
unsafe impl Sync for Action {}

static BUS: Action = Action {
    seq: AtomicU32::new(0),
    value: UnsafeCell::new(NONE),
};
static SYS: Action = Action {
    seq: AtomicU32::new(0),
    value: UnsafeCell::new(NONE),
};
const NONE: KernelSigaction = KernelSigaction {
    handler: 0,
    flags: 0,
    restorer: 0,
    mask: 0,
};

fn action(signal: i32) -> Option<&'static Action> {
    match signal {
        libc::SIGBUS => Some(&BUS),
        libc::SIGSYS => Some(&SYS),
        _ => None,
    }
}

impl Action {
    fn get(&self) -> KernelSigaction {
        loop {
            let before = self.seq.load(Ordering::Acquire);
            // SAFETY: a torn read is thrown away below; plain old data.
            let v = unsafe { self.value.get().read_volatile() };
            core::sync::atomic::fence(Ordering::Acquire);
            if before & 1 == 0 && self.seq.load(Ordering::Relaxed) == before {
                return v;
            }
            gate::yield_now();
        }
    }
    fn swap(&self, new: KernelSigaction) -> KernelSigaction {
        let old_mask = signal::set_mask(u64::MAX);
        loop {
            let s = self.seq.load(Ordering::Relaxed);
            if s & 1 == 0
                && self
                    .seq
                    .compare_exchange(s, s + 1, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                // SAFETY: the odd sequence makes us the only writer.
                let old = unsafe {
                    let old = self.value.get().read();
                    self.value.get().write_volatile(new);
                    old
                };
                self.seq.store(s + 2, Ordering::Release);
                signal::set_mask(old_mask);
                return old;
            }
            gate::yield_now();
        }
    }
}

/// Installs our handlers; whatever was there becomes the program's.
pub fn install() -> Result<(), Errno> {
    let old = signal::install(libc::SIGBUS, on_sigbus)?;
    BUS.swap(old);
    Ok(())
}

/// Installs the handler of trapped system calls, before the filter that traps them.
pub fn install_trap() -> Result<(), Errno> {
    let old = signal::install(libc::SIGSYS, on_sigsys)?;
    SYS.swap(old);
    Ok(())
}

/// `si_code` of a seccomp trap.
const SYS_SECCOMP: i32 = 1;

/// A system call from outside of libc with an argument in the window: made here, like libc's.
unsafe extern "C" fn on_sigsys(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid structures to an SA_SIGINFO handler.
    let (i, uc) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // SAFETY: where a fault has its address, a trap has that of its call.
    let at = unsafe { i.si_addr() } as usize;
    // A filter of the program's own traps as well, what we do for the program included; of traps by two
    // filters the kernel tells the younger one's. Calls by the gate are none of our filter's.
    let ours = i.si_code == SYS_SECCOMP
        && i.si_errno == i32::from(seccomp::TRAP_TAG)
        && at != gate::return_address();
    if !ours {
        // SAFETY: this handler's own arguments.
        return unsafe { chain(&SYS, sig, info, context, (*info).si_code > 0, false) };
    }
    let g = &mut uc.uc_mcontext.gregs;
    let reg = |r: i32| g[r as usize] as usize;
    let call = Call {
        a: [
            reg(libc::REG_RDI),
            reg(libc::REG_RSI),
            reg(libc::REG_RDX),
            reg(libc::REG_R10),
            reg(libc::REG_R8),
            reg(libc::REG_R9),
        ],
        nr: reg(libc::REG_RAX),
    };
    state::count(Counter::SyscallsTrapped, 1);
    let mask = (&raw mut uc.uc_sigmask).cast::<u64>();
    if call.nr as i64 == libc::SYS_rt_sigprocmask {
        // The mask that counts is the one that this handler's return restores.
        // SAFETY: this frame's own.
        let r = unsafe { sigprocmask_in(mask, &call.a) };
        uc.uc_mcontext.gregs[libc::REG_RAX as usize] = r as i64;
        return;
    }
    // The call may wait for long, and must be interruptible as it would be outside of a handler.
    // SAFETY: the kernel's set is the first word of the saved mask.
    signal::set_mask(unsafe { *mask } & !OURS);
    let r = match upcalls::dispatch() {
        // SAFETY: the registers of a system call.
        Some(dispatch) => unsafe { dispatch(&raw const call) },
        None => -(libc::ENOSYS as isize),
    };
    signal::set_mask(!OURS);
    uc.uc_mcontext.gregs[libc::REG_RAX as usize] = r as i64;
}

/// `rt_sigprocmask` from outside of libc, on the mask that the handler's return restores.
///
/// # Safety
/// `mask` must be the saved mask of a signal frame that is being handled, `a` the registers of the program's call.
unsafe fn sigprocmask_in(mask: *mut u64, a: &[usize; 6]) -> isize {
    // Its arguments may be far: an ordinary fault, for which SIGBUS must be open.
    signal::set_mask(!OURS);
    // SAFETY: the saved mask, the caller's promise.
    let before = unsafe { *mask };
    if a[1] != 0 {
        // SAFETY: a number.
        let set: u64 = match unsafe { uaccess::get(a[1]) } {
            Ok(set) => set,
            Err(e) => return -(e.0 as isize),
        };
        let new = match a[0] as i32 {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -(libc::EINVAL as isize),
        };
        // SAFETY: the saved mask, the caller's promise.
        unsafe { *mask = new & !OURS };
    }
    // SAFETY: rt_sigprocmask's old set.
    unsafe { put_unless_null(a[2], before) }
}

unsafe extern "C" fn on_sigbus(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid structures to an SA_SIGINFO handler.
    let (code, addr, uc) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            &mut *context.cast::<libc::ucontext_t>(),
        )
    };
    let mut why = Resolved::NotOurs;
    let shared = in_partition(addr) && pages::is_on();
    if code > 0 && (shared || in_window(addr)) {
        let begun = time::now_ns();
        let write = uc.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0;
        {
            let _inside = freeze::enter_masked();
            why = if shared {
                pages::resolve(pages::page_of(addr))
            } else {
                let at = At {
                    offset: addr % PAGE_SIZE,
                    ip: uc.uc_mcontext.gregs[libc::REG_RIP as usize] as usize,
                };
                fault::resolve_at(PageId::of_addr(addr), write, at)
            };
        }
        if why == Resolved::Present {
            state::note_fault(begun);
            return;
        }
        if why == Resolved::NotOurs && !shared {
            let _inside = freeze::enter_masked();
            if open_pages::close_open(PageId::of_addr(addr)) {
                return;
            }
        }
        if matches!(why, Resolved::Unreachable | Resolved::Lost) {
            report!(
                "page {addr:#x}: {}; the program is told by SIGBUS",
                why.reason()
            );
        }
        if why == Resolved::NoMemory {
            if shared {
                report!(
                    "shared and far memory are both full (raise --pool or --shared); the program is ended by SIGBUS"
                );
            } else {
                report!("{}; the program is ended by SIGBUS", why.reason());
            }
        }
    }
    let end = why == Resolved::NoMemory;
    // SAFETY: this handler's own arguments.
    unsafe { chain(&BUS, sig, info, context, code > 0, end) };
}

/// Hands a signal to the program: its handler, or the default action.
///
/// # Safety
/// `info` and `context` must be what the kernel passed to the handler of this signal, on this thread.
unsafe fn chain(
    a: &Action,
    sig: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    synchronous: bool,
    end: bool,
) {
    let act = a.get();
    if end || act.handler == libc::SIG_DFL || (act.handler == libc::SIG_IGN && synchronous) {
        signal::set_default(sig);
        // A synchronous fault happens again on return and now ends the program; others are sent
        // again, and so is a trap, whose call is not repeated. Signals are blocked here, so it arrives
        // on return.
        if !synchronous || end || sig == libc::SIGSYS {
            proc::raise(sig);
        }
        return;
    }
    if act.handler == libc::SIG_IGN {
        return;
    }
    // As the kernel would: the mask at the time of the fault, the handler's own, the signal.
    // SAFETY: the kernel's ucontext; the first word of uc_sigmask is the kernel's signal set.
    let interrupted =
        unsafe { *(&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
    let own = if act.flags & libc::SA_NODEFER as u64 != 0 {
        0
    } else {
        bit(sig)
    };
    signal::set_mask((interrupted | act.mask | own) & !OURS);
    // SAFETY: the program installed this address as its handler of this kind; the arguments are the kernel's.
    unsafe {
        if act.flags & libc::SA_SIGINFO as u64 != 0 {
            let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                core::mem::transmute(act.handler);
            f(sig, info, context);
        } else {
            let f: extern "C" fn(i32) = core::mem::transmute(act.handler);
            f(sig);
        }
    }
    // The rest of the return path is the kernel's: rt_sigreturn restores the interrupted mask.
}

fn answer(r: Result<usize, Errno>) -> isize {
    match r {
        Ok(v) => v as isize,
        Err(e) => -(e.0 as isize),
    }
}

/// Ends a call that has done its work: writes what it gives back, where the program wants that. The answer.
///
/// # Safety
/// `addr` must be what the program passed: null, or where the call writes such a structure.
unsafe fn put_unless_null<T: Copy>(addr: usize, value: T) -> isize {
    if addr == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    answer(unsafe { uaccess::put(addr, value) }.map(|()| 0))
}

/// The structure that the program passed, where it passed one.
///
/// # Safety
/// `T` must be valid whatever its bits are.
unsafe fn get_unless_null<T: Copy>(addr: usize) -> Result<Option<T>, Errno> {
    if addr == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { uaccess::get(addr) }.map(Some)
}

/// `rt_sigaction`: our signals are kept in our table; every handler's mask leaves them open.
///
/// # Safety
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigaction(a: &[usize; 6]) -> isize {
    let (sig, new, old) = (a[0] as i32, a[1], a[2]);
    if a[3] != 8 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: a structure of numbers.
    let wanted: Option<KernelSigaction> = match unsafe { get_unless_null(new) } {
        Ok(wanted) => wanted,
        Err(e) => return -(e.0 as isize),
    };
    if let Some(slot) = action(sig).filter(|_| !state::THREAD_MODE.load(Ordering::Relaxed)) {
        let before = match wanted {
            Some(w) => slot.swap(w),
            None => slot.get(),
        };
        // SAFETY: rt_sigaction's old action.
        return unsafe { put_unless_null(old, before) };
    }
    let stripped = wanted.map(|w| KernelSigaction {
        mask: w.mask & !ours(),
        ..w
    });
    /// What handlers' masks had of our signals, for reading back.
    static MASKED: [core::sync::atomic::AtomicU8; 65] =
        [const { core::sync::atomic::AtomicU8::new(0) }; 65];
    let masked = &MASKED[(sig as usize).min(64)];
    let masked_before = masked.load(Ordering::Relaxed);
    let segv_before = SEGV_HANDLER.load(Ordering::Acquire);
    let stripped = stripped.map(|w| wrap_segv(sig, w));
    let mut before = KernelSigaction::default();
    let arg = stripped.as_ref().map_or(0, |s| s as *const _ as usize);
    // SAFETY: both structures are ours and live.
    let r = check(unsafe {
        raw(
            libc::SYS_rt_sigaction as usize,
            [a[0], arg, &raw mut before as usize, 8, 0, 0],
        )
    });
    if ours() != 0 && r.is_ok() {
        before.mask |= unpack(masked_before);
        if let Some(w) = wanted {
            masked.store(pack(w.mask), Ordering::Relaxed);
        }
    }
    if sig == libc::SIGSEGV && before.handler == on_sigsegv as *const () as usize {
        before.handler = segv_before;
    }
    if r.is_err() {
        return answer(r);
    }
    // SAFETY: rt_sigaction's old action.
    unsafe { put_unless_null(old, before) }
}

/// Our signals in a set, as bits 0 and 1.
fn pack(set: u64) -> u8 {
    (set & bit(libc::SIGBUS) != 0) as u8 | (((set & bit(libc::SIGSYS) != 0) as u8) << 1)
}
fn unpack(bits: u8) -> u64 {
    (u64::from(bits & 1) * bit(libc::SIGBUS)) | (u64::from((bits >> 1) & 1) * bit(libc::SIGSYS))
}

/// `rt_sigprocmask`: never blocks our signals, and says that it did.
///
/// # Safety
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigprocmask(a: &[usize; 6]) -> isize {
    let (how, new, old) = (a[0], a[1], a[2]);
    if a[3] != 8 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: a number.
    let wanted: u64 = match unsafe { get_unless_null(new) } {
        Ok(wanted) => wanted.unwrap_or(0),
        Err(e) => return -(e.0 as isize),
    };
    let opens = how as i32 == libc::SIG_UNBLOCK;
    let set = if opens { wanted } else { wanted & !ours() };
    let arg = if new == 0 { 0 } else { &raw const set as usize };
    let mut before = 0u64;
    // SAFETY: both sets are ours and live.
    let r = check(unsafe {
        raw(
            libc::SYS_rt_sigprocmask as usize,
            [how, arg, &raw mut before as usize, 8, 0, 0],
        )
    });
    if r.is_err() {
        return answer(r);
    }
    if ours() != 0 {
        before |= unpack(altstack::change_belief(|had| match how as i32 {
            _ if new == 0 => had,
            libc::SIG_BLOCK => had | pack(wanted),
            libc::SIG_UNBLOCK => had & !pack(wanted),
            _ => pack(wanted),
        }));
    }
    // SAFETY: rt_sigprocmask's old set.
    unsafe { put_unless_null(old, before) }
}

/// Calls that wait with a mask of their own (`rt_sigsuspend`, `ppoll`, `pselect6`, `epoll_pwait`):
/// a copy of the mask without our signals takes its place.
///
/// # Safety
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn with_wait_mask(nr: usize, a: &[usize; 6]) -> isize {
    let mut b = *a;
    let set: u64;
    let pair: [usize; 2];
    let at = match nr as i64 {
        libc::SYS_rt_sigsuspend => 0,
        libc::SYS_ppoll => 3,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
        libc::SYS_pselect6 => 5,
        // SAFETY: the program's call, the caller's promise.
        _ => return unsafe { args::run(nr, a) },
    };
    // What cannot be read stays in its place: the kernel finds that out when its turn comes.
    if nr as i64 == libc::SYS_pselect6 {
        // SAFETY: two numbers.
        let [mask, size] = unsafe { get_unless_null(a[at]) }
            .ok()
            .flatten()
            .unwrap_or([0; 2]);
        // SAFETY: a number.
        if let Ok(Some(wanted)) = unsafe { get_unless_null::<u64>(mask) } {
            set = wanted & !ours();
            pair = [&raw const set as usize, size];
            b[at] = pair.as_ptr() as usize;
        }
    // SAFETY: a number.
    } else if let Ok(Some(wanted)) = unsafe { get_unless_null::<u64>(a[at]) } {
        set = wanted & !ours();
        b[at] = &raw const set as usize;
    }
    // SAFETY: the program's call, the caller's promise, with a mask of ours that lives across it.
    unsafe { args::run(nr, &b) }
}

/// `sigaltstack`: the kernel writes signal frames there by itself, so the stack stays resident.
/// Ours is invisible to the program, and comes back when the program's own goes.
///
/// # Safety
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn sigaltstack(a: &[usize; 6]) -> isize {
    let before = altstack::current();
    let hidden = altstack::is_ours(before.ss_sp as usize);
    let mut r = 0;
    // SAFETY: a structure of numbers and an address.
    let wanted: Option<libc::stack_t> = match unsafe { get_unless_null(a[0]) } {
        Ok(wanted) => wanted,
        Err(e) => return -(e.0 as isize),
    };
    if let Some(ss) = wanted {
        if ss.ss_flags & libc::SS_DISABLE == 0 && in_window(ss.ss_sp as usize) {
            let _ = mm::mlock(ss.ss_sp as usize, ss.ss_size, true, false);
        }
        let off = ss.ss_flags & libc::SS_DISABLE != 0;
        if !(off && hidden) {
            // SAFETY: our copy of the program's structure.
            r = unsafe {
                raw(
                    libc::SYS_sigaltstack as usize,
                    [&raw const ss as usize, 0, 0, 0, 0, 0],
                )
            };
            if r == 0 && hidden {
                altstack::put_back(before.ss_sp as usize);
            } else if r == 0 && off {
                altstack::give();
            }
        }
    }
    if r == 0 {
        let none = libc::stack_t {
            ss_sp: core::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: sigaltstack's old stack.
        r = unsafe { put_unless_null(a[1], if hidden { none } else { before }) };
    }
    r
}

/// `si_code` of a fault on an address where nothing is mapped.
const SEGV_MAPERR: i32 = 1;
/// The program's SIGSEGV handler, behind [`on_sigsegv`].
static SEGV_HANDLER: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// To the kernel a hole in the window is an inaccessible mapping; to the program it is a hole.
unsafe extern "C" fn on_sigsegv(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid structures: the action has SA_SIGINFO.
    let i = unsafe { &mut *info };
    // SAFETY: a fault's siginfo has an address.
    let addr = unsafe { i.si_addr() } as usize;
    let hole = (in_window(addr) && regions::is_hole(PageId::of_addr(addr)))
        || (in_partition(addr) && mapping::is_hole(addr));
    if i.si_code > 0 && hole {
        i.si_code = SEGV_MAPERR;
    }
    let handler = SEGV_HANDLER.load(Ordering::Acquire);
    // SAFETY: the program's handler, on its stack and under its mask; one that takes only the
    // signal's number ignores the rest.
    let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { core::mem::transmute(handler) };
    f(sig, info, context);
}

/// Puts [`on_sigsegv`] before the program's SIGSEGV handler, and hides it from the program.
fn wrap_segv(sig: i32, action: KernelSigaction) -> KernelSigaction {
    if sig != libc::SIGSEGV || action.handler <= 1 {
        return action;
    }
    SEGV_HANDLER.store(action.handler, Ordering::Release);
    KernelSigaction {
        handler: on_sigsegv as *const () as usize,
        flags: action.flags | libc::SA_SIGINFO as u64,
        ..action
    }
}
