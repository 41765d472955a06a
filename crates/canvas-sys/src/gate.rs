//! Raw system calls.
//!
//! Every call that canvas makes in a managed program goes through one `syscall` instruction on a page of its own
//! ([`layout::gate_page`]). The seccomp filter lets that instruction through unexamined, and because a filter survives
//! `execve`, the address is equal in all processes of the tenant. Before [`open`] (and in the `canvas` command) a local
//! instruction is used.

use crate::mem::{Place, map_code};
use canvas_types::layout;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// An error number as the kernel returned it (positive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

#[unsafe(naked)]
unsafe extern "C" fn local_gate() {
    naked_asm!("syscall", "ret")
}

/// `syscall; ret`.
const GATE_CODE: [u8; 3] = [0x0f, 0x05, 0xc3];

static GATE: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn gate() -> usize {
    let g = GATE.load(Ordering::Relaxed);
    if g == 0 {
        local_gate as *const () as usize
    } else {
        g
    }
}

/// Makes a system call and returns the kernel's raw answer (negative: an error number).
///
/// # Safety
///
/// The call with these arguments must not break memory safety: it must not unmap, move or overwrite memory that Rust
/// code relies on.
#[inline(always)]
pub unsafe fn raw(nr: usize, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the gate is `syscall; ret`: it clobbers only rax, rcx and r11 besides what the call itself does, for
    // which the caller answers. The return address is pushed, so the red zone must not be in use: asm! without
    // `nostack` sees to that.
    unsafe {
        asm!(
            "call {gate}",
            gate = in(reg) gate(),
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    ret
}

/// Like [`raw`], while `word` is `seen`, which the last instruction before the call checks. Otherwise, and if
/// [`interrupt`] ends the wait, returns EINTR without making the call.
///
/// # Safety
///
/// As for [`raw`].
#[inline(always)]
pub unsafe fn raw_while(word: &AtomicU32, seen: u32, nr: usize, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: `checked` and the gate clobber only rax, rcx, r11 and flags besides what the call itself does, for which
    // the caller answers; the word lives. Return addresses are pushed, so the red zone must not be in use: asm! without
    // `nostack` sees to that.
    unsafe {
        asm!(
            "call {checked}",
            checked = sym checked,
            in("r12") word as *const AtomicU32,
            in("r13d") seen,
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            inlateout("r11") gate() => _,
        );
    }
    ret
}

/// Calls the gate (r11) if the number at r12 is r13d.
#[unsafe(naked)]
unsafe extern "C" fn checked() {
    naked_asm!(
        "cmp dword ptr [r12], r13d",
        "jne 2f",
        "call r11",
        "ret",
        "2:",
        "mov rax, {eintr}",
        "ret",
        eintr = const -libc::EINTR,
    )
}
/// Offsets in [`checked`]: where the gate returns to, and where it ends without a call.
const CHECKED_BACK: usize = 9;
const CHECKED_END: usize = 10;

/// Handles a signal that came while a thread was at `ip`, with `sp` as its stack pointer. If the thread was about to
/// make the call of [`raw_while`], or waits in it and would continue to wait: makes the call return EINTR instead.
///
/// # Safety
///
/// `ip` and `sp` must be those of a thread of this process that this signal has interrupted.
pub unsafe fn interrupt(ip: &mut usize, sp: &mut usize) -> bool {
    let start = checked as *const () as usize;
    if *ip == gate() {
        // SAFETY: the gate is called, and a call leaves the address to return to on the stack.
        if unsafe { *(*sp as *const usize) } != start + CHECKED_BACK {
            return false;
        }
        *sp += size_of::<usize>();
    } else if !(start..start + CHECKED_BACK).contains(ip) {
        return false;
    }
    *ip = start + CHECKED_END;
    true
}

/// Turns the kernel's answer into a result.
#[inline(always)]
pub fn check(ret: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as usize)
    }
}

/// Turns a result into the kernel's answer.
pub fn answer(r: Result<usize, Errno>) -> isize {
    r.map_or_else(|e| -(e.0 as isize), |v| v as isize)
}

macro_rules! sys_n {
    ($name:ident, $($arg:ident),* ; $($zero:expr),*) => {
        /// A system call with this many arguments.
        ///
        /// # Safety
        /// As for [`raw`].
        #[inline(always)]
        pub unsafe fn $name(nr: i64, $($arg: usize),*) -> Result<usize, Errno> {
            // SAFETY: the caller's promise.
            check(unsafe { raw(nr as usize, [$($arg,)* $($zero),*]) })
        }
    };
}
sys_n!(sys0, ; 0, 0, 0, 0, 0, 0);
sys_n!(sys1, a ; 0, 0, 0, 0, 0);
sys_n!(sys2, a, b ; 0, 0, 0, 0);
sys_n!(sys3, a, b, c ; 0, 0, 0);
sys_n!(sys4, a, b, c, d ; 0, 0);
sys_n!(sys6, a, b, c, d, e, f ; );

/// Maps the gate page and sends all further calls through it.
pub fn open() -> Result<(), Errno> {
    let page = layout::gate_page();
    // SAFETY: `Place::Free` replaces nothing.
    unsafe { map_code(Place::Free(page), &GATE_CODE) }?;
    GATE.store(page, Ordering::Relaxed);
    Ok(())
}

/// The instruction pointer that the kernel reports for canvas's calls: the address after the `syscall`.
pub fn return_address() -> usize {
    gate() + 2
}

/// Threads in [`wait`].
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Gives up the CPU for a moment; the `yield_now` of every spin loop.
///
/// Uses a short sleep rather than sched_yield(2): since Linux 6.6 threads that yield in a loop keep the CPUs busy among
/// themselves, and the thread that they wait for hardly runs.
pub fn yield_now() {
    wait(0);
}

/// Sleeps for `ns` plus 50 us (the kernel's timer slack), times the number of threads that wait like this: however many
/// there are, they use no more than a few percent of a CPU. (Measured on two CPUs with 300 threads that each polled
/// every 55 us for pages being read: the reader's process did not run once in ten seconds.)
pub fn wait(ns: u64) {
    const SLACK_NS: u64 = 50_000;
    let before = u64::from(WAITING.fetch_add(1, Ordering::Relaxed));
    crate::proc::sleep_ns((ns + before * (ns + SLACK_NS)).max(1));
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// Yields this CPU to another thread, for waits of some ten microseconds by one or two threads. Uses sched_yield(2);
/// see [`yield_now`].
pub fn give_way() {
    // SAFETY: the call takes no address.
    let _ = unsafe { sys0(libc::SYS_sched_yield) };
}

/// In a fork's child, which has one thread.
pub fn after_fork_in_child() {
    WAITING.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_call_is_made_only_while_nothing_has_changed() {
        let word = AtomicU32::new(7);
        let getpid = |seen| {
            // SAFETY: the call takes no address.
            unsafe { raw_while(&word, seen, libc::SYS_getpid as usize, [0; 6]) }
        };
        assert_eq!(getpid(7), std::process::id() as isize);
        assert_eq!(getpid(8), -(libc::EINTR as isize));
    }

    #[test]
    fn a_thread_in_the_call_or_before_it_is_led_to_its_end() {
        let start = checked as *const () as usize;
        // SAFETY: both offsets lie in the code of `checked`, which is readable.
        unsafe {
            assert_eq!(*((start + CHECKED_BACK) as *const u8), 0xc3);
            assert_eq!(
                *((start + CHECKED_END) as *const [u8; 3]),
                [0x48, 0xc7, 0xc0]
            );
        }
        let stack = [start + CHECKED_BACK, 0];
        let other = [start + 1, 0];
        let at = |ip: usize, stack: &[usize; 2]| {
            let (mut ip, mut sp) = (ip, stack.as_ptr() as usize);
            // SAFETY: `interrupt` reads one word, at `sp`, which is that of `stack`.
            let led = unsafe { interrupt(&mut ip, &mut sp) };
            led.then(|| (ip - start, sp - stack.as_ptr() as usize))
        };
        assert_eq!(at(start, &other), Some((CHECKED_END, 0)));
        assert_eq!(at(gate(), &stack), Some((CHECKED_END, 8)));
        // A call by other code, and one that was already made.
        assert_eq!(at(gate(), &other), None);
        assert_eq!(at(gate() + 2, &stack), None);
        assert_eq!(at(start + CHECKED_BACK, &other), None);
    }
}
