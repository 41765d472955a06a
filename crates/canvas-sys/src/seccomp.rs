//! The seccomp filter: the second layer that catches system calls with far arguments.
//!
//! libc's calls are patched and never get here with an absent page. What is left are calls from
//! elsewhere: a runtime's inline `syscall`, libgomp's futex. The filter answers TRAP only when a
//! *pointer* argument lies in the window and the instruction is not our gate's. So it does nothing
//! to a program without a window (a filter survives `execve`): there such pointers do not exist.

use crate::gate::Errno;
use crate::proc::prctl;
use canvas_types::layout;
use core::mem::{offset_of, size_of};

/// `struct seccomp_data`.
#[repr(C)]
struct Data {
    nr: i32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}
const _: () = assert!(size_of::<Data>() == 64 && offset_of!(Data, args) == 16);

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Op {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

const LD: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JA: u16 = 0x05;
const RET: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
const ERRNO: u32 = 0x0005_0000;
const ARCH_X86_64: u32 = 0xc000_003e;

/// A call that no kernel has, to ask whether the filter is installed already.
const ASK: (i32, usize) = (libc::PR_GET_SECCOMP, 0x6361_6e76);
/// The answer.
const PRESENT: i32 = 0x7a6;

/// Longest program.
const OPS_MAX: usize = 2048;

struct Program {
    ops: [Op; OPS_MAX],
    n: usize,
}

impl Program {
    fn op(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.ops[self.n] = Op { code, jt, jf, k };
        self.n += 1;
    }
    fn load_high(&mut self, arg: usize) {
        self.op(LD, 0, 0, (offset_of!(Data, args) + arg * 8 + 4) as u32);
    }
}

/// Is the filter installed in this process?
pub fn is_installed() -> bool {
    // SAFETY: an argument that prctl ignores, or the filter's question.
    unsafe { prctl(ASK.0, ASK.1, 0, 0, 0) == Err(Errno(PRESENT)) }
}

/// Installs the filter for all threads. `pointers`: call numbers, each with a mask of the
/// arguments that are pointers. Sets no_new_privs where the process has no privilege: set-uid
/// programs below it run without theirs then.
pub fn install(pointers: &[(u32, u8)]) -> Result<(), Errno> {
    if is_installed() {
        return Ok(());
    }
    let mut p = Program {
        ops: [Op {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        }; OPS_MAX],
        n: 0,
    };
    // Every fault's way back. First, so that the kernel's cache of answers that depend on nothing
    // but the number knows it. (Harmless whatever it means on another architecture.)
    p.op(LD, 0, 0, offset_of!(Data, nr) as u32);
    p.op(JEQ, 0, 1, libc::SYS_rt_sigreturn as u32);
    p.op(RET, 0, 0, ALLOW);
    // Our gate: the instruction pointer is behind its `syscall`.
    p.op(LD, 0, 0, offset_of!(Data, ip) as u32 + 4);
    p.op(JEQ, 0, 3, (layout::GATE_PAGE >> 32) as u32);
    p.op(LD, 0, 0, offset_of!(Data, ip) as u32);
    p.op(JEQ, 0, 1, layout::GATE_PAGE as u32 + 2);
    p.op(RET, 0, 0, ALLOW);
    p.op(LD, 0, 0, offset_of!(Data, arch) as u32);
    p.op(JEQ, 1, 0, ARCH_X86_64);
    p.op(RET, 0, 0, ALLOW);
    // The question.
    p.op(LD, 0, 0, offset_of!(Data, nr) as u32);
    p.op(JEQ, 0, 4, libc::SYS_prctl as u32);
    p.op(LD, 0, 0, (offset_of!(Data, args) + 8) as u32);
    p.op(JEQ, 0, 1, ASK.1 as u32);
    p.op(RET, 0, 0, ERRNO | PRESENT as u32);
    p.op(LD, 0, 0, offset_of!(Data, nr) as u32);
    // By mask of pointer arguments: a table of numbers, then the checks.
    let mut masks = [0u8; 64];
    let mut count = 0;
    for (_, m) in pointers {
        if !masks[..count].contains(m) {
            masks[count] = *m;
            count += 1;
        }
    }
    for mask in &masks[..count] {
        let numbers = || pointers.iter().filter(|(_, m)| m == mask);
        let n = numbers().count();
        for (i, (nr, _)) in numbers().enumerate() {
            // To the checks; the last one that differs goes to the next table.
            let to_checks = n - 1 - i;
            // A hit jumps over the rest of the table and the jump behind it.
            p.op(JEQ, (to_checks + 1) as u8, 0, *nr);
        }
        let over = p.n;
        p.op(JA, 0, 0, 0);
        for arg in 0..6 {
            if mask & (1 << arg) == 0 {
                continue;
            }
            p.load_high(arg);
            // base <= high < end, on the upper halves: window and partition are 4 GiB-aligned, and
            // between them no program has anything.
            p.op(JGE, 0, 2, (layout::WINDOW_BASE >> 32) as u32);
            p.op(JGE, 1, 0, (layout::SHARED_END >> 32) as u32);
            p.op(RET, 0, 0, TRAP);
        }
        p.op(RET, 0, 0, ALLOW);
        p.ops[over].k = (p.n - over - 1) as u32;
    }
    p.op(RET, 0, 0, ALLOW);
    #[repr(C)]
    struct Fprog {
        len: u16,
        ops: *const Op,
    }
    let prog = Fprog {
        len: p.n as u16,
        ops: p.ops.as_ptr(),
    };
    let set = || {
        // SAFETY: SECCOMP_SET_MODE_FILTER with TSYNC unused (one thread); the program lives.
        unsafe { crate::gate::sys3(libc::SYS_seccomp, 1, 0, &raw const prog as usize) }
    };
    match set() {
        Err(Errno(libc::EACCES)) => {
            // SAFETY: only gives up privileges.
            unsafe { prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }?;
            set().map(|_| ())
        }
        r => r.map(|_| ()),
    }
}
