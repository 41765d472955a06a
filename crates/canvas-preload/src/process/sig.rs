//! Signals: SIGBUS (in signal mode) and SIGSYS stay canvas's, in every mask and table. Those that canvas does not serve
//! go to the program's handler as if canvas were absent.

use canvas_core::vm::FaultSite;
use canvas_sys::gate::{self, check, raw};
use canvas_sys::signal::{self, KernelSigaction, bit};
use canvas_sys::{Errno, proc, seccomp, sys2, sys4};
use canvas_types::layout::{in_partition, in_window};
use canvas_types::{PAGE_SIZE, PageId};

use crate::memory::{
    args::{self, Make},
    lock, open_pages,
    uaccess::{self, Plain},
};
use crate::paging::{
    fault::{self, Resolved},
    freeze, regions, slow,
};
use crate::process::{actions, altstack, beliefs, cancel, frame::Next};
use crate::report;
use crate::runtime::{call::Call, state, thread, upcalls};
use crate::shared::{mapping, pages, partition};

/// Installs canvas's handler of SIGBUS; the previous action becomes the program's.
pub fn install() -> Result<(), Errno> {
    install_one(libc::SIGBUS)
}

/// Installs the handler of trapped system calls, before the filter that traps them.
pub fn install_trap() -> Result<(), Errno> {
    install_one(libc::SIGSYS)
}

fn install_one(sig: i32) -> Result<(), Errno> {
    let before = actions::take(sig, libc::SA_RESTART as u64)?;
    // SAFETY: the action that the kernel had.
    unsafe { actions::note(sig, before) };
    // If the program inherits the signal as blocked, it believes so, but a fault must find it open. A pending one comes
    // now.
    let inherited = signal::set_mask(u64::MAX);
    beliefs::change(|had| had | beliefs::pack(inherited & bit(sig)));
    signal::set_mask(inherited & !bit(sig));
    Ok(())
}

/// `si_code` of a seccomp trap.
const SYS_SECCOMP: i32 = 1;

/// Handles SIGBUS or SIGSYS: serves what is canvas's, and leads the rest to the program's handler.
///
/// # Safety
///
/// By the entry of our signals, with what it got.
pub unsafe extern "C" fn serve(
    sig: i32,
    info: *mut libc::siginfo_t,
    uc: *mut libc::c_void,
    frame: usize,
    next: &mut Next,
) {
    if bit(sig) & beliefs::ours() == 0 {
        // SAFETY: what the entry got (the caller's promise).
        return unsafe { arrive(sig, info, uc, frame, next) };
    }
    next.nothing();
    // SAFETY: what the kernel passed to an SA_SIGINFO handler (the caller's promise), to which nothing else refers.
    let (i, context) = unsafe { (&*info, &mut *uc.cast::<libc::ucontext_t>()) };
    if i.si_code == beliefs::BELL {
        // A notification for a wait that is over.
        return;
    }
    let mut why = Resolved::NotOurs;
    let served = if sig == libc::SIGBUS {
        serve_fault(i, context, frame, &mut why)
    } else {
        // SAFETY: the kernel's context of this signal.
        unsafe { serve_call(i, context) }
    };
    if !served {
        let end = why == Resolved::NoMemory;
        // SAFETY: what the entry got (the caller's promise).
        unsafe { pass_on((sig, info, uc, frame), end, next) };
    }
}

/// Serves a system call from outside libc with an argument in managed memory, like libc's. Returns false for other
/// traps.
///
/// # Safety
///
/// `uc` must be what the kernel passed to the handler of this signal.
unsafe fn serve_call(i: &libc::siginfo_t, uc: &mut libc::ucontext_t) -> bool {
    // SAFETY: any siginfo has 8 bytes there: of a trap, the address of its call.
    let at = unsafe { i.si_addr() } as usize;
    // The program's own filters trap, too, including calls that canvas makes for the program; of traps by two filters
    // the kernel reports the younger one's. Calls by the gate are none of canvas's filter.
    let ours = i.si_code == SYS_SECCOMP
        && i.si_errno == i32::from(seccomp::TRAP_TAG)
        && at != gate::return_address();
    if !ours {
        return false;
    }
    let g = &mut uc.uc_mcontext.gregs;
    let reg = |r: i32| g[r as usize] as usize;
    let mut call = Call {
        a: [
            reg(libc::REG_RDI),
            reg(libc::REG_RSI),
            reg(libc::REG_RDX),
            reg(libc::REG_R10),
            reg(libc::REG_R8),
            reg(libc::REG_R9),
        ],
        nr: reg(libc::REG_RAX),
        frame: 0,
        back: 0,
        stack: 0,
    };
    let mask = (&raw mut uc.uc_sigmask).cast::<u64>();
    if call.nr as i64 == libc::SYS_rt_sigprocmask {
        // The mask that counts is the one that this handler's return restores.
        // SAFETY: the saved mask of the frame that is being handled, and the registers of the trapped call, both of
        // `uc`.
        let r = unsafe { sigprocmask_in(mask, &call.a) };
        uc.uc_mcontext.gregs[libc::REG_RAX as usize] = r as i64;
        return true;
    }
    if call.nr as i64 == libc::SYS_sigaltstack
        && let Some(entry) = upcalls::entry()
    {
        // This handler runs on the stack in question, and its return would restore it: the program makes the call like
        // libc, once the handler has returned.
        let g = &mut uc.uc_mcontext.gregs;
        g[libc::REG_RCX as usize] = g[libc::REG_RIP as usize];
        g[libc::REG_RIP as usize] = entry as usize as i64;
        return true;
    }
    // The call may wait for long, and must be interruptible as it would be outside of a handler.
    // SAFETY: `mask` points to the saved mask in `uc`, which begins with the kernel's set.
    signal::set_mask(unsafe { *mask } & !beliefs::ours());
    let r = match upcalls::dispatch() {
        // SAFETY: the program's call: the registers with which it was trapped (`uc`, the caller's promise).
        Some(dispatch) => unsafe { dispatch(&raw mut call) },
        None => -(libc::ENOSYS as isize),
    };
    signal::set_mask(!beliefs::ours());
    uc.uc_mcontext.gregs[libc::REG_RAX as usize] = r as i64;
    true
}

/// `rt_sigprocmask` from outside libc, on the mask that the handler's return restores.
///
/// # Safety
///
/// `mask` must be the saved mask of a signal frame that is being handled, `a` the registers of the program's call.
unsafe fn sigprocmask_in(mask: *mut u64, a: &[usize; 6]) -> isize {
    // Its arguments may be far: an ordinary fault, for which SIGBUS must be open.
    signal::set_mask(!beliefs::ours());
    // SAFETY: the saved mask of a frame (the caller's promise).
    let before = unsafe { *mask };
    let wanted: Option<u64> = match get_unless_null(a[1]) {
        Ok(wanted) => wanted,
        Err(e) => return -(e.0 as isize),
    };
    if let Some(set) = wanted {
        let new = match a[0] as i32 {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -(libc::EINVAL as isize),
        };
        // SAFETY: the saved mask of a frame (the caller's promise).
        unsafe { *mask = new & !beliefs::ours() };
    }
    let had = believe(a[0], wanted);
    // SAFETY: where rt_sigprocmask writes the old set.
    let r = unsafe { put_unless_null(a[2], before | beliefs::unpack(had)) };
    open_again();
    r
}

/// A fault reported by SIGBUS.
struct Fault {
    addr: usize,
    ip: usize,
    write: bool,
    shared: bool,
    why: Resolved,
}

/// Serves a fault on memory that canvas manages. Returns false for a fault that is the program's own, and for one that
/// could not be served, with the reason in `why`.
fn serve_fault(
    i: &libc::siginfo_t,
    uc: &libc::ucontext_t,
    frame: usize,
    why: &mut Resolved,
) -> bool {
    // SAFETY: any siginfo has 8 bytes there: of a fault, its address.
    let addr = unsafe { i.si_addr() } as usize;
    let shared = in_partition(addr) && partition::is_on();
    if i.si_code <= 0 || !(shared || in_window(addr)) {
        return false;
    }
    let g = &uc.uc_mcontext.gregs;
    let mut fault = Fault {
        addr,
        ip: g[libc::REG_RIP as usize] as usize,
        write: g[libc::REG_ERR as usize] & 2 != 0,
        shared,
        why: Resolved::NotOurs,
    };
    let sp = g[libc::REG_RSP as usize] as usize;
    if in_window(sp) && !actions::stacks_in_window() {
        actions::stack_in_window();
    }
    if thread::signal_stack(frame).is_some() {
        resolve(&mut fault);
    } else {
        // A stack of the program, which may be as small as the kernel allows.
        altstack::run_on_ours(frame, || resolve(&mut fault));
    }
    *why = fault.why;
    fault.why == Resolved::Present
}

fn resolve(f: &mut Fault) {
    let begun = slow::Begun::now();
    {
        let _inside = freeze::enter_masked();
        f.why = if f.shared {
            pages::resolve(partition::page_of(f.addr))
        } else {
            let at = FaultSite {
                page: PageId::of_addr(f.addr),
                offset: f.addr % PAGE_SIZE,
                ip: f.ip,
            };
            fault::resolve_at(at, f.write)
        };
    }
    if f.why == Resolved::Present {
        slow::note_fault(f.addr, begun);
        return;
    }
    if f.why == Resolved::NotOurs && !f.shared {
        let _inside = freeze::enter_masked();
        if open_pages::close_open(PageId::of_addr(f.addr)) {
            f.why = Resolved::Present;
            return;
        }
    }
    let (addr, why) = (f.addr, f.why);
    if matches!(why, Resolved::Unreachable | Resolved::Lost) {
        report!(
            "page {addr:#x}: {}; the program gets SIGBUS",
            fault::reason(why)
        );
    }
    if why == Resolved::NoMemory {
        if f.shared {
            report!(
                "shared and far memory are both full (raise --pool or --shared); the program is ended by SIGBUS"
            );
        } else {
            report!("{}; the program is ended by SIGBUS", fault::reason(why));
        }
    }
}

/// Whether libc has blocked all signals where `mask` counted: it blocks its own two, which no program can, only while
/// it makes, starts or ends a thread. A thread that has just been made has no belief yet, and its creator may have
/// blocked what it gets here.
fn libc_blocks_all(mask: u64) -> bool {
    /// glibc's SIGCANCEL and SIGSETXID.
    const OF_LIBC: u64 = bit(32) | bit(33);
    // A vfork's child is not a thread of this process: what it got is not for its parent.
    mask & OF_LIBC == OF_LIBC && !state::PROCESS.is_vfork_child()
}

/// Passes a signal to the program: its handler by `next`, the default action, or later.
///
/// # Safety
///
/// `arrived` must be what the handler of this signal got, on this thread.
unsafe fn pass_on(
    arrived: (i32, *mut libc::siginfo_t, *mut libc::c_void, usize),
    end: bool,
    next: &mut Next,
) {
    let (sig, info, uc, _) = arrived;
    // SAFETY: the kernel's siginfo (the caller's promise).
    let synchronous = unsafe { (*info).si_code } > 0;
    let believed = beliefs::mine();
    let blocked = beliefs::unpack(believed) & bit(sig) != 0;
    // SAFETY: the kernel's context (the caller's promise), whose mask begins with the kernel's set.
    let interrupted = unsafe { *(&raw const (*uc.cast::<libc::ucontext_t>()).uc_sigmask).cast() };
    if (blocked || libc_blocks_all(interrupted)) && !synchronous && !end {
        // SAFETY: the kernel's siginfo of this signal (the caller's promise).
        return unsafe { beliefs::keep(sig, info) };
    }
    let act = actions::get(sig);
    // The kernel ends a program by a fault whose signal is ignored or blocked, whatever the handler.
    let end = end || (synchronous && (blocked || act.handler == libc::SIG_IGN));
    if end || act.handler == libc::SIG_DFL || !actions::begin(sig, &act) {
        signal::set_default(sig);
        // A synchronous fault happens again on return and then ends the program. Others are sent again, and so is a
        // trap, because its call is not repeated. Signals are blocked here, so it arrives on return.
        if !synchronous || end || sig == libc::SIGSYS {
            proc::raise(sig);
        }
        return;
    }
    if act.handler == libc::SIG_IGN {
        return;
    }
    let own = match act.flags & libc::SA_NODEFER as u64 {
        0 => bit(sig),
        _ => 0,
    };
    beliefs::change(|had| had | beliefs::pack(act.mask | own));
    // SAFETY: what the handler of this signal got, on this thread (the caller's promise).
    unsafe { next.handler(&act, arrived, believed) };
}

fn answer(r: Result<usize, Errno>) -> isize {
    match r {
        Ok(v) => v as isize,
        Err(e) => -(e.0 as isize),
    }
}

/// Ends a successful call: writes its result to where the program wants it, if anywhere. Returns the call's answer.
///
/// # Safety
///
/// `addr` must be what the program passed: null, or where the call writes such a structure.
unsafe fn put_unless_null<T: Copy>(addr: usize, value: T) -> isize {
    if addr == 0 {
        return 0;
    }
    // SAFETY: where the program's call writes such a structure (the caller's promise).
    answer(unsafe { uaccess::put(addr, value) }.map(|()| 0))
}

/// The structure that the program passed, if any.
fn get_unless_null<T: Plain>(addr: usize) -> Result<Option<T>, Errno> {
    (addr != 0).then(|| uaccess::get(addr)).transpose()
}

/// `rt_sigaction`: the program reads back what it has set ([`actions`]).
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigaction(a: &[usize; 6]) -> isize {
    let (sig, new, old) = (a[0] as i32, a[1], a[2]);
    if a[3] != 8 {
        return -(libc::EINVAL as isize);
    }
    let wanted: Option<KernelSigaction> = match get_unless_null(new) {
        Ok(wanted) => wanted,
        Err(e) => return -(e.0 as isize),
    };
    let fixed = matches!(sig, libc::SIGKILL | libc::SIGSTOP);
    if !(1..=64).contains(&sig) || (fixed && wanted.is_some()) {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: what the program passed to rt_sigaction, and where that writes the old action.
    unsafe {
        let before = actions::exchange(sig, wanted);
        put_unless_null(old, before)
    }
}

/// The program changes its mask by `set`: changes what it believes to have blocked of canvas's signals, and returns
/// what it believed before.
fn believe(how: usize, set: Option<u64>) -> u8 {
    match set {
        _ if beliefs::ours() == 0 => 0,
        None => beliefs::mine(),
        Some(set) => beliefs::change(|had| match how as i32 {
            libc::SIG_BLOCK => had | beliefs::pack(set),
            libc::SIG_UNBLOCK => had & !beliefs::pack(set),
            _ => beliefs::pack(set),
        }),
    }
}

/// After a mask has changed: delivers what was kept for the thread and is no longer blocked.
fn open_again() {
    beliefs::deliver(beliefs::mine());
}

/// `rt_sigprocmask`: never blocks canvas's signals, but reports that it did.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigprocmask(a: &[usize; 6]) -> isize {
    let (how, new, old) = (a[0], a[1], a[2]);
    if a[3] != 8 {
        return -(libc::EINVAL as isize);
    }
    let wanted: u64 = match get_unless_null(new) {
        Ok(wanted) => wanted.unwrap_or(0),
        Err(e) => return -(e.0 as isize),
    };
    let opens = how as i32 == libc::SIG_UNBLOCK;
    let set = if opens {
        wanted
    } else {
        wanted & !beliefs::ours()
    };
    let arg = if new == 0 { 0 } else { &raw const set as usize };
    let mut before = 0u64;
    // SAFETY: the kernel reads `set` and writes `before`, 8 bytes each.
    let r = check(unsafe {
        raw(
            libc::SYS_rt_sigprocmask as usize,
            [how, arg, &raw mut before as usize, 8, 0, 0],
        )
    });
    if r.is_err() {
        return answer(r);
    }
    let had = believe(how, (new != 0).then_some(wanted));
    before |= beliefs::unpack(had);
    // SAFETY: where rt_sigprocmask writes the old set.
    let r = unsafe { put_unless_null(old, before) };
    open_again();
    r
}

/// Calls that wait with a mask of their own (`rt_sigsuspend`, `ppoll`, `pselect6`, `epoll_pwait`): replaces the mask by
/// a copy without canvas's signals.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn with_wait_mask(nr: usize, a: &[usize; 6], make: Make) -> isize {
    let mut b = *a;
    let mut set = None;
    let pair: [usize; 2];
    let open: u64;
    let at = match nr as i64 {
        libc::SYS_rt_sigsuspend => 0,
        libc::SYS_ppoll => 3,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
        libc::SYS_pselect6 => 5,
        // SAFETY: the program's call (the caller's promise).
        _ => return unsafe { args::run(nr, a, make) },
    };
    // An argument that cannot be read stays in place: the kernel will refuse it.
    if nr as i64 == libc::SYS_pselect6 {
        let [mask, size] = get_unless_null(a[at]).ok().flatten().unwrap_or([0; 2]);
        if let Ok(Some(wanted)) = get_unless_null::<u64>(mask) {
            set = Some(wanted);
            open = wanted & !beliefs::ours();
            pair = [&raw const open as usize, size];
            b[at] = pair.as_ptr() as usize;
        }
    } else if let Ok(Some(wanted)) = get_unless_null::<u64>(a[at]) {
        set = Some(wanted);
        open = wanted & !beliefs::ours();
        b[at] = &raw const open as usize;
    }
    let had = believe(libc::SIG_SETMASK as usize, set);
    if had != 0 && set.is_some_and(|s| beliefs::deliver(beliefs::pack(s))) {
        beliefs::change(|_| had);
        return -(libc::EINTR as isize);
    }
    // SAFETY: the program's call (the caller's promise), with a mask of ours that lives across it.
    let r = unsafe { args::run(nr, &b, make) };
    if set.is_some() && beliefs::ours() != 0 {
        beliefs::change(|_| had);
        beliefs::deliver(had);
    }
    r
}

/// `rt_sigpending`: includes those of canvas's signals that are kept for the thread.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigpending(a: &[usize; 6]) -> isize {
    let kept = beliefs::pending();
    if a[1] != 8 || kept == 0 {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { args::run(libc::SYS_rt_sigpending as usize, a, Make::AsItIs) };
    }
    let mut set = 0u64;
    // SAFETY: the kernel writes 8 bytes to `set`.
    let r = unsafe { sys2(libc::SYS_rt_sigpending, &raw mut set as usize, 8) };
    // SAFETY: where rt_sigpending writes its set.
    answer(r.and_then(|_| unsafe { uaccess::put(a[0], set | kept) }.map(|()| 0)))
}

/// `rt_sigtimedwait`: during a wait for canvas's signals they really are blocked, so that the kernel keeps those that
/// come.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn rt_sigtimedwait(a: &[usize; 6]) -> isize {
    if beliefs::ours() == 0 || a[0] == 0 || a[3] != 8 {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { args::run(libc::SYS_rt_sigtimedwait as usize, a, Make::AsItIs) };
    }
    let set: u64 = match uaccess::get(a[0]) {
        Ok(set) => set,
        Err(e) => return -(e.0 as isize),
    };
    if set & beliefs::ours() == 0 {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { args::run(libc::SYS_rt_sigtimedwait as usize, a, Make::AsItIs) };
    }
    let time: Option<libc::timespec> = match get_unless_null(a[2]) {
        Ok(time) => time,
        Err(e) => return -(e.0 as isize),
    };
    let at = time.as_ref().map_or(0, |t| t as *const _ as usize);
    let mut info: beliefs::Info = [0; 16];
    // Touch nothing of the program's while its faults cannot be served.
    let mask = signal::set_mask(u64::MAX);
    signal::set_mask(mask | beliefs::ours());
    let waiter = beliefs::wait();
    let r = loop {
        if let Some((sig, kept)) = beliefs::take(beliefs::pack(set)) {
            info = kept;
            break Ok(sig as usize);
        }
        // SAFETY: the kernel reads `set` and, unless `at` is 0, `time`, and writes a siginfo_t to `info`.
        let r = unsafe {
            sys4(
                libc::SYS_rt_sigtimedwait,
                &raw const set as usize,
                &raw mut info as usize,
                at,
                8,
            )
        };
        // Signal, error number, code: the first three words of 32 bits.
        if r.is_err() || info[1] as i32 != beliefs::BELL {
            break r;
        }
    };
    drop(waiter);
    signal::set_mask(mask);
    if r.is_ok() && a[1] != 0 {
        // SAFETY: where rt_sigtimedwait writes the siginfo_t.
        if let Err(e) = unsafe { uaccess::put(a[1], info) } {
            return -(e.0 as isize);
        }
    }
    answer(r)
}

/// `sigaltstack`: the kernel itself writes signal frames there, so the stack stays resident. Canvas's stack is
/// invisible to the program, and comes back when the program removes its own.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn sigaltstack(a: &[usize; 6]) -> isize {
    let before = altstack::current();
    let hidden = altstack::is_ours(before.ss_sp as usize);
    let wanted: Result<Option<libc::stack_t>, Errno> = get_unless_null(a[0]);
    let done = wanted.and_then(|new| match new {
        // SAFETY: what the program passed to sigaltstack.
        Some(ss) => unsafe { set_altstack(&ss, &before, hidden) },
        None => Ok(()),
    });
    if let Err(e) = done {
        return -(e.0 as isize);
    }
    let none = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: where sigaltstack writes the old stack.
    unsafe { put_unless_null(a[1], if hidden { none } else { before }) }
}

/// Makes `ss` the thread's signal stack, in place of `before`, which is canvas's if `hidden`.
///
/// # Safety
///
/// `ss` must be what the program passed: the kernel puts frames of signals there.
unsafe fn set_altstack(
    ss: &libc::stack_t,
    before: &libc::stack_t,
    hidden: bool,
) -> Result<(), Errno> {
    /// The kernel's SS_AUTODISARM.
    const AUTODISARM: i32 = 1 << 31;
    let mode = ss.ss_flags & !AUTODISARM;
    let off = mode == libc::SS_DISABLE;
    let right = off || ((mode == 0 || mode == libc::SS_ONSTACK) && ss.ss_size >= libc::MINSIGSTKSZ);
    let on_it = before.ss_flags & libc::SS_ONSTACK != 0;
    if hidden && right && (off || on_it) {
        // The program has none already; or a handler runs on canvas's, whose return restores the old state.
        return Ok(());
    }
    if right && !off && !on_it && in_window(ss.ss_sp as usize) {
        lock::keep_stack(ss.ss_sp as usize, ss.ss_size);
    }
    // While on canvas's stack, only a stack that is refused gets here: the kernel would report another reason first.
    if hidden && on_it {
        return Err(Errno(match mode {
            0 | libc::SS_ONSTACK => libc::ENOMEM,
            _ => libc::EINVAL,
        }));
    }
    // SAFETY: the kernel reads `ss`; the stack is the program's to give (the caller's promise).
    unsafe { sys2(libc::SYS_sigaltstack, &raw const *ss as usize, 0) }?;
    if hidden {
        // SAFETY: the kernel has just accepted another stack, or none, so the thread does not run on this one. (A program
        // that switches stacks inside of a handler, by swapcontext, and replaces the stack then, is not served.)
        unsafe { altstack::put_back(before.ss_sp as usize) };
    } else if off {
        altstack::give();
    }
    Ok(())
}

/// Handles a signal whose handler is the program's.
///
/// # Safety
///
/// By an entry, with what it got.
pub unsafe extern "C" fn arrive(
    sig: i32,
    info: *mut libc::siginfo_t,
    uc: *mut libc::c_void,
    frame: usize,
    next: &mut Next,
) {
    let mut action = actions::get(sig);
    if action.handler <= libc::SIG_IGN {
        // The action has changed since.
        action.handler = ignore as *const () as usize;
    }
    if sig == libc::SIGSEGV {
        // SAFETY: the kernel's siginfo (the caller's promise), to which nothing else refers.
        name_hole(unsafe { &mut *info });
    }
    if sig == cancel::SIGNAL {
        // SAFETY: the kernel's context of this thread (the caller's promise), to which nothing else refers.
        unsafe { cancel::arrived(&mut *uc.cast()) };
    }
    let held = beliefs::pack(action.mask & beliefs::ours());
    let believed = beliefs::change(|had| had | held);
    // SAFETY: what the entry got, on this thread (the caller's promise).
    unsafe { next.handler(&action, (sig, info, uc, frame), believed) };
}

extern "C" fn ignore(_: i32) {}

/// `si_code` of a fault on an address where nothing is mapped.
const SEGV_MAPERR: i32 = 1;

/// Corrects a fault's code: to the kernel, a hole in the managed range is an inaccessible mapping; to the program it is
/// a hole.
fn name_hole(i: &mut libc::siginfo_t) {
    if i.si_code <= 0 {
        return;
    }
    // SAFETY: any siginfo has 8 bytes there: of a fault, its address.
    let addr = unsafe { i.si_addr() } as usize;
    let hole = (in_window(addr) && regions::is_hole(PageId::of_addr(addr)))
        || (in_partition(addr) && mapping::is_hole(addr));
    if hole {
        i.si_code = SEGV_MAPERR;
    }
}
