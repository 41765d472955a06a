//! The seccomp filter: the second layer, which catches system calls with far arguments.
//!
//! libc's calls are patched and never reach the filter with an absent page. What remains are calls from elsewhere: a
//! runtime's inline `syscall`, libgomp's futex. The filter answers TRAP only if a *pointer* argument lies in the
//! managed range and the instruction is not the call gate's. So it does nothing to a program without a managed range (a
//! filter survives `execve`): such pointers do not exist there.

use crate::gate::Errno;
use crate::proc::prctl;
use canvas_types::layout::{Bases, SHARED_BYTES, SHARED_OFFSET};
use core::mem::{offset_of, size_of};

/// A filter's input for a call: the kernel's `struct seccomp_data`.
#[repr(C)]
struct Data {
    nr: i32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}
const _: () = assert!(size_of::<Data>() == 64 && offset_of!(Data, args) == 16);

/// `struct sock_filter`: one instruction of a filter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}
const _: () = assert!(size_of::<Op>() == 8);

impl Op {
    /// Decodes the instruction in a word of a program's memory.
    pub const fn of_word(word: u64) -> Op {
        Op {
            code: word as u16,
            jt: (word >> 16) as u8,
            jf: (word >> 24) as u8,
            k: (word >> 32) as u32,
        }
    }
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

/// Value of `si_errno` in canvas's TRAPs ("cv"), to tell them from traps of a program's own filter, which canvas must
/// not serve.
pub const TRAP_TAG: u16 = 0x6376;

/// A `prctl` call with an argument that the kernel ignores, to ask whether the filter is installed already. The numbers
/// after it ask for the addresses of the tenant's managed range and gate.
const ASK: (i32, u32) = (libc::PR_GET_SECCOMP, 0x6361_6e76);
/// Errors with which the filter answers that question: for a filter of the whole table, and of calls about memory only.
const PRESENT: u32 = 0x7a6;
const PRESENT_FOR_MEMORY: u32 = 0x7a7;

/// Which calls a filter handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All calls with pointers: signal mode, in which the kernel cannot reach absent pages.
    Pointers,
    /// Calls that change managed memory: thread mode.
    Memory,
}

/// The filter that is installed in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Installed {
    /// The addresses of its tenant's managed range and gate.
    pub bases: Bases,
    /// Which calls it handles.
    pub scope: Scope,
}

/// What the filter does with a call, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filtered {
    /// Trap if one of the arguments in the mask lies in the managed range or near it.
    Pointers(u32, u8),
    /// `process_madvise`, whose ranges a filter cannot see: like `Pointers` if its advice is a hint; EINVAL for advice
    /// that changes contents, which kernels before 6.13 refuse in the same way.
    Hints(u32, u8),
    /// Answer ENOSYS.
    Refused(u32),
}

impl Filtered {
    fn number(&self) -> u32 {
        let (Filtered::Pointers(nr, _) | Filtered::Hints(nr, _) | Filtered::Refused(nr)) = self;
        *nr
    }
    /// Arguments to check, one bit each.
    fn mask(&self) -> u8 {
        match self {
            Filtered::Pointers(_, mask) | Filtered::Hints(_, mask) => *mask,
            Filtered::Refused(_) => 0,
        }
    }
}

/// The kernel's limit on instructions of a filter.
const OPS_MAX: usize = 4096;
/// Maximum calls that the filter can handle.
pub const CALLS_MAX: usize = 512;
/// Number of different masks: one bit for each of six arguments.
const MASKS: usize = 1 << 6;
/// Calls in a row of comparisons: each jumps over the rest, and a jump has eight bits.
const ROW: usize = 128;
/// Instructions around the rows: the beginning, and the checks of a mask with a jump over them.
const BEGIN_OPS: usize = 18 + 2 * Bases::PARTS + HINT_OPS;
/// Instructions for a call whose advice is checked.
const HINT_OPS: usize = 4 + HINTS.len();
/// Advice of `process_madvise` for other processes that changes no contents.
const HINTS: [i32; 4] = [
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_WILLNEED,
    libc::MADV_COLLAPSE,
];
const CHECK_OPS: usize = 6 * 4 + 2;
const _: () = assert!(
    BEGIN_OPS + 2 * CALLS_MAX + (MASKS + CALLS_MAX / ROW) * CHECK_OPS < OPS_MAX
        && ROW < u8::MAX as usize
);

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

fn ask(number: u32) -> Result<usize, Errno> {
    // SAFETY: the option takes no address; its arguments are ignored, except by canvas's filter.
    unsafe { prctl(ASK.0, number as usize, 0, 0, 0) }
}

/// The filter that is installed in this process (the last one if there are two); `None` without such a filter. Ask
/// before the call gate is open: the filter lets calls through the gate pass without an answer.
pub fn installed() -> Option<Installed> {
    const WHOLE: i32 = PRESENT as i32;
    const FOR_MEMORY: i32 = PRESENT_FOR_MEMORY as i32;
    let scope = match ask(ASK.1) {
        Err(Errno(WHOLE)) => Scope::Pointers,
        Err(Errno(FOR_MEMORY)) => Scope::Memory,
        _ => return None,
    };
    let bases = Bases::of_parts(|i| match ask(ASK.1 + 1 + i as u32) {
        Err(Errno(n)) => u32::try_from(n).ok()?.checked_sub(1),
        Ok(_) => None,
    })?;
    Some(Installed { bases, scope })
}

impl Program {
    const fn new() -> Program {
        let none = Op {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        };
        Program {
            ops: [none; OPS_MAX],
            n: 0,
        }
    }

    fn of(scope: Scope, calls: &[Filtered], bases: Bases) -> Program {
        let mut p = Program::new();
        if scope == Scope::Memory {
            p.pass_others(calls);
        }
        p.begin(scope, bases);
        p.check_calls(calls, bases);
        p
    }

    /// Lets calls other than `calls` and the question pass by their number alone, so that the kernel's cache of answers
    /// that depend only on the number applies.
    fn pass_others(&mut self, calls: &[Filtered]) {
        assert!(calls.len() < ROW);
        self.op(LD, 0, 0, offset_of!(Data, nr) as u32);
        for (i, call) in calls.iter().enumerate() {
            // Over the rest, the question, and the answer after it.
            self.op(JEQ, (calls.len() - i + 1) as u8, 0, call.number());
        }
        self.op(JEQ, 1, 0, libc::SYS_prctl as u32);
        self.op(RET, 0, 0, ALLOW);
    }

    /// Calls that pass whatever their arguments are, and the question.
    fn begin(&mut self, scope: Scope, bases: Bases) {
        // Every fault returns through this call. It comes first, so that the kernel's cache of answers that depend only
        // on the number applies. (Harmless whatever the number means on another architecture.)
        self.op(LD, 0, 0, offset_of!(Data, nr) as u32);
        self.op(JEQ, 0, 1, libc::SYS_rt_sigreturn as u32);
        self.op(RET, 0, 0, ALLOW);
        // The call gate: the instruction pointer is after its `syscall`.
        self.op(LD, 0, 0, offset_of!(Data, ip) as u32 + 4);
        self.op(JEQ, 0, 3, (bases.gate >> 32) as u32);
        self.op(LD, 0, 0, offset_of!(Data, ip) as u32);
        self.op(JEQ, 0, 1, bases.gate as u32 + 2);
        self.op(RET, 0, 0, ALLOW);
        self.op(LD, 0, 0, offset_of!(Data, arch) as u32);
        self.op(JEQ, 1, 0, ARCH_X86_64);
        self.op(RET, 0, 0, ALLOW);
        // The question.
        const PARTS: u8 = Bases::PARTS as u8;
        self.op(LD, 0, 0, offset_of!(Data, nr) as u32);
        self.op(JEQ, 0, 3 + 2 * PARTS, libc::SYS_prctl as u32);
        self.op(LD, 0, 0, (offset_of!(Data, args) + 8) as u32);
        self.op(JEQ, 0, 1, ASK.1);
        let present = match scope {
            Scope::Pointers => PRESENT,
            Scope::Memory => PRESENT_FOR_MEMORY,
        };
        self.op(RET, 0, 0, ERRNO | present);
        for i in 0..Bases::PARTS {
            // Never 0, which is no error.
            self.op(JEQ, 0, 1, ASK.1 + 1 + i as u32);
            self.op(RET, 0, 0, ERRNO | (bases.part(i) + 1));
        }
        self.op(LD, 0, 0, offset_of!(Data, nr) as u32);
    }

    /// For each mask of pointer arguments: a table of numbers, then the checks.
    fn check_calls(&mut self, calls: &[Filtered], bases: Bases) {
        assert!(calls.len() <= CALLS_MAX);
        let mut masks = [0u8; MASKS];
        let mut count = 0;
        for call in calls {
            match call {
                Filtered::Refused(nr) => {
                    self.op(JEQ, 0, 1, *nr);
                    self.op(RET, 0, 0, ERRNO | libc::ENOSYS as u32);
                }
                Filtered::Hints(nr, _) => self.check_advice(*nr),
                Filtered::Pointers(..) => {}
            }
            let mask = call.mask();
            if mask != 0 && !masks[..count].contains(&mask) {
                masks[count] = mask;
                count += 1;
            }
        }
        // Only the upper halves are compared: pointers within 4 GiB of the managed range and the partition may be
        // trapped, too, and are then served as usual. No program has memory between the two.
        let end = (bases.window + SHARED_OFFSET + SHARED_BYTES).next_multiple_of(1 << 32);
        for mask in &masks[..count] {
            let numbers = || {
                let same = calls.iter().filter(|call| call.mask() == *mask);
                same.map(Filtered::number)
            };
            let all = numbers().count();
            for first in (0..all).step_by(ROW) {
                let n = (all - first).min(ROW);
                for (i, nr) in numbers().skip(first).take(n).enumerate() {
                    // A hit jumps over the rest of the row and the jump after it.
                    self.op(JEQ, (n - i) as u8, 0, nr);
                }
                self.check_pointers(*mask, bases, end);
            }
        }
        self.op(RET, 0, 0, ALLOW);
    }

    /// Refuses advice (the fourth argument) that is no hint; otherwise loads the number again.
    fn check_advice(&mut self, nr: u32) {
        self.op(JEQ, 0, HINT_OPS as u8 - 1, nr);
        self.op(LD, 0, 0, (offset_of!(Data, args) + 3 * 8) as u32);
        for (i, hint) in HINTS.iter().enumerate() {
            self.op(JEQ, (HINTS.len() - i) as u8, 0, *hint as u32);
        }
        self.op(RET, 0, 0, ERRNO | libc::EINVAL as u32);
        self.op(LD, 0, 0, offset_of!(Data, nr) as u32);
    }

    /// Checks the arguments in `mask`; placed after a row of comparisons that jump here. Calls without a hit continue
    /// after the checks.
    fn check_pointers(&mut self, mask: u8, bases: Bases, end: usize) {
        let over = self.n;
        self.op(JA, 0, 0, 0);
        for arg in 0..6 {
            if mask & (1 << arg) == 0 {
                continue;
            }
            self.load_high(arg);
            self.op(JGE, 0, 2, (bases.window >> 32) as u32);
            self.op(JGE, 1, 0, (end >> 32) as u32);
            self.op(RET, 0, 0, TRAP | u32::from(TRAP_TAG));
        }
        self.op(RET, 0, 0, ALLOW);
        self.ops[over].k = (self.n - over - 1) as u32;
    }
}

/// Installs a filter, which exec and fork inherit: if there is one already ([`installed`]), each call passes both. Sets
/// no_new_privs if the process has no privilege: set-uid programs that it starts then run without theirs.
pub fn install(scope: Scope, calls: &[Filtered], bases: Bases) -> Result<(), Errno> {
    let p = Program::of(scope, calls, bases);
    let prog = Fprog {
        len: p.n as u16,
        ops: p.ops.as_ptr(),
    };
    let set = || {
        // SAFETY: SECCOMP_SET_MODE_FILTER with TSYNC unused (one thread); the kernel reads `prog` and the operations,
        // which live across the call.
        unsafe { crate::gate::sys3(libc::SYS_seccomp, 1, 0, &raw const prog as usize) }
    };
    match set() {
        Err(Errno(libc::EACCES)) => {
            // SAFETY: the option takes no address; the process only gives up privileges.
            unsafe { prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }?;
            set().map(|_| ())
        }
        r => r.map(|_| ()),
    }
}

/// A filter's answer to a call: SECCOMP_RET_..., with its data. `None` for a filter that the kernel would refuse.
///
/// `ip` is the address after the call's instruction.
pub fn answer(filter: &[Op], nr: i64, args: [usize; 6], ip: usize) -> Option<u32> {
    let mut data = [0u32; 16];
    data[0] = nr as u32;
    data[1] = ARCH_X86_64;
    for (i, word) in core::iter::once(ip).chain(args).enumerate() {
        data[2 + 2 * i] = word as u32;
        data[3 + 2 * i] = (word >> 32) as u32;
    }
    let (mut a, mut x, mut mem) = (0u32, 0u32, [0u32; 16]);
    let mut pc = 0usize;
    // Jumps only go forwards, so this ends.
    loop {
        let op = filter.get(pc)?;
        pc += 1;
        // Bit 3 of jumps and arithmetic: the operand is X.
        let operand = if op.code & 8 != 0 { x } else { op.k };
        match op.code {
            LD => a = *data.get(op.k as usize / 4)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x00 => a = op.k,
            0x01 => x = op.k,
            0x60 => a = *mem.get(op.k as usize)?,
            0x61 => x = *mem.get(op.k as usize)?,
            0x02 => *mem.get_mut(op.k as usize)? = a,
            0x03 => *mem.get_mut(op.k as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            RET => return Some(op.k),
            0x16 => return Some(a),
            JA => pc = pc.checked_add(op.k as usize)?,
            code if code & 7 == 4 => a = calculate(code & 0xf0, a, operand)?,
            code if code & 7 == 5 => {
                let yes = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                pc += usize::from(if yes { op.jt } else { op.jf });
            }
            _ => return None,
        }
    }
}

/// Arithmetic of a filter.
fn calculate(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b)?,
        0x70 => a.checked_shr(b)?,
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

/// Whether this answer ends the caller, unless a SIGSYS handler does something else.
pub const fn ends(answer: u32) -> bool {
    const KILL_PROCESS: u32 = 0x8000_0000;
    const KILL_THREAD: u32 = 0;
    matches!(answer & 0xffff_0000, KILL_PROCESS | KILL_THREAD | TRAP)
}

/// Whether this answer lets the call through.
pub const fn allows(answer: u32) -> bool {
    const LOG: u32 = 0x7ffc_0000;
    matches!(answer & 0xffff_0000, ALLOW | LOG)
}

/// A filter as seccomp(2) takes it: the kernel's `struct sock_fprog`.
#[repr(C)]
struct Fprog {
    len: u16,
    ops: *const Op,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: Bases = Bases {
        window: 0x5a34_5660_0000,
        gate: 0x57ab_cdef_1000,
    };
    const READ: u32 = libc::SYS_read as u32;

    /// Answer of canvas's filter.
    fn ours(nr: i64, args: [usize; 6], ip: usize) -> u32 {
        let calls = [
            Filtered::Pointers(READ, 0b10),
            Filtered::Refused(libc::SYS_io_setup as u32),
            Filtered::Hints(libc::SYS_process_madvise as u32, 0b10),
            Filtered::Pointers(libc::SYS_mremap as u32, 0b10001),
        ];
        let p = Program::of(Scope::Pointers, &calls, BASES);
        answer(&p.ops[..p.n], nr, args, ip).expect("a valid filter")
    }

    #[test]
    fn advice_that_changes_contents_is_refused_whatever_it_is_about() {
        let calls = [
            Filtered::Hints(libc::SYS_process_madvise as u32, 0b10),
            Filtered::Pointers(libc::SYS_mremap as u32, 0b10001),
        ];
        for scope in [Scope::Pointers, Scope::Memory] {
            let p = Program::of(scope, &calls, BASES);
            let ask = |nr, args, ip| answer(&p.ops[..p.n], nr, args, ip).unwrap();
            let advise = |vector, advice: i32, ip| {
                let args = [3, vector, 1, advice as usize, 0, 0];
                ask(libc::SYS_process_madvise, args, ip)
            };
            let trap = TRAP | u32::from(TRAP_TAG);
            for hint in HINTS {
                assert_eq!(advise(0x7fff_0000_0000, hint, 0), ALLOW);
                assert_eq!(advise(BASES.window, hint, 0), trap);
            }
            let refused = ERRNO | libc::EINVAL as u32;
            for vector in [0x7fff_0000_0000, BASES.window] {
                let gate = BASES.gate + 2;
                assert_eq!(advise(vector, libc::MADV_DONTNEED, 0), refused);
                assert_eq!(advise(vector, libc::MADV_DONTNEED, gate), ALLOW);
            }
            let window = [BASES.window; 6];
            assert_eq!(ask(libc::SYS_mremap, window, 0), trap, "the rest is there");
        }
    }

    #[test]
    fn a_filter_for_memory_knows_others_by_their_numbers() {
        let mut calls = [Filtered::Pointers(0, 1); 20];
        for (i, call) in calls.iter_mut().enumerate() {
            *call = Filtered::Pointers(1000 + i as u32, 1);
        }
        let p = Program::of(Scope::Memory, &calls, BASES);
        let ask = |nr, args| answer(&p.ops[..p.n], nr, args, 0).unwrap();
        for nr in 0..2000 {
            let trapped = ask(nr, [BASES.window; 6]) == TRAP | u32::from(TRAP_TAG);
            assert_eq!(trapped, (1000..1020).contains(&nr), "{nr}");
        }
        let question = [ASK.0 as usize, ASK.1 as usize, 0, 0, 0, 0];
        assert_eq!(ask(libc::SYS_prctl, question), ERRNO | PRESENT_FOR_MEMORY);
        // What the kernel's cache looks at: the number and the architecture, up to the answer.
        let first = p.ops.iter().position(|op| op.code == RET).unwrap();
        let number = offset_of!(Data, nr) as u32;
        let loads = p.ops[..first].iter().filter(|op| op.code == LD);
        assert!(loads.map(|op| op.k).eq([number]));
    }

    #[test]
    fn pointers_into_the_window_are_trapped_with_our_tag() {
        let trap = TRAP | u32::from(TRAP_TAG);
        let end = BASES.window + SHARED_OFFSET + SHARED_BYTES;
        let read = |at| ours(libc::SYS_read, [3, at, 100, 0, 0, 0], 0x1000);
        for at in [BASES.window, BASES.window + 12345, end - 1] {
            assert_eq!(read(at), trap, "{at:#x}");
        }
        // 4 GiB on either side may be trapped, too.
        for at in [
            0,
            0x5555_5555_4000,
            BASES.window - (1 << 32),
            end + (1 << 32),
            0x7fff_0000_0000,
        ] {
            assert_eq!(read(at), ALLOW, "{at:#x}");
        }
        let mremap = |new| ours(libc::SYS_mremap, [4096, 1, 1, 0, new, 0], 0);
        assert_eq!((mremap(BASES.window), mremap(0)), (trap, ALLOW));
        // Not a pointer argument, not a call of the table, the call gate itself.
        assert_eq!(
            ours(libc::SYS_read, [BASES.window, 0, 0, 0, 0, 0], 0),
            ALLOW
        );
        assert_eq!(
            ours(libc::SYS_write, [1, BASES.window, 1, 0, 0, 0], 0),
            ALLOW
        );
        let gate = BASES.gate + 2;
        assert_eq!(
            ours(libc::SYS_read, [3, BASES.window, 1, 0, 0, 0], gate),
            ALLOW
        );
        assert_eq!(
            ours(libc::SYS_read, [3, BASES.window, 1, 0, 0, 0], gate + 4096),
            trap
        );
    }

    #[test]
    fn a_call_is_refused_whatever_its_arguments_are() {
        let setup = |a| ours(libc::SYS_io_setup, [a; 6], 0);
        let refused = ERRNO | libc::ENOSYS as u32;
        assert_eq!((setup(0), setup(BASES.window)), (refused, refused));
        assert_eq!(
            ours(libc::SYS_io_setup, [0; 6], BASES.gate + 2),
            ALLOW,
            "our gate"
        );
    }

    #[test]
    fn as_many_calls_as_there_can_be_keep_their_masks() {
        for same in [true, false] {
            let mask = |nr: u32| if same { 1 } else { (nr % MASKS as u32) as u8 };
            let calls: [_; CALLS_MAX] =
                core::array::from_fn(|nr| Filtered::Pointers(nr as u32 + 1000, mask(nr as u32)));
            let p = Program::of(Scope::Pointers, &calls, BASES);
            for nr in 0..CALLS_MAX as u32 {
                for arg in 0..6 {
                    let mut args = [0; 6];
                    args[arg] = BASES.window;
                    let got = answer(&p.ops[..p.n], i64::from(nr + 1000), args, 0).unwrap();
                    assert_eq!(got != ALLOW, mask(nr) >> arg & 1 != 0, "{nr} {arg}");
                }
            }
        }
    }

    #[test]
    fn the_filter_says_where_its_tenant_lies() {
        let ask = |i| {
            ours(
                libc::SYS_prctl,
                [ASK.0 as usize, (ASK.1 + i) as usize, 0, 0, 0, 0],
                0,
            )
        };
        assert_eq!(ask(0), ERRNO | PRESENT);
        let told = Bases::of_parts(|i| {
            let answer = ask(1 + i as u32);
            assert!(answer & 0xffff_0000 == ERRNO && (1..4096).contains(&(answer & 0xffff)));
            Some((answer & 0xffff) - 1)
        });
        assert_eq!(told, Some(BASES));
        assert_eq!(ask(1 + Bases::PARTS as u32), ALLOW);
        assert_eq!(installed(), None, "no filter in this process");
    }

    #[test]
    fn filters_are_followed_as_the_kernel_does() {
        let op = |code, jt, jf, k| Op { code, jt, jf, k };
        let run = |ops: &[Op]| answer(ops, 5, [7, 1 << 40, 0, 0, 0, 0], 9);
        // (nr * 2 + args[0] - 1) << 1 = 32, stored and loaded again.
        let sum = [
            op(LD, 0, 0, 0),
            op(0x24, 0, 0, 2),
            op(0x07, 0, 0, 0),
            op(LD, 0, 0, 16),
            op(0x0c, 0, 0, 0),
            op(0x14, 0, 0, 1),
            op(0x64, 0, 0, 1),
            op(0x02, 0, 0, 3),
            op(0x00, 0, 0, 0),
            op(0x60, 0, 0, 3),
            op(0x16, 0, 0, 0),
        ];
        assert_eq!(run(&sum), Some(32));
        let upper = [
            op(LD, 0, 0, 28),
            op(JEQ, 0, 1, 1 << 8),
            op(RET, 0, 0, 1),
            op(RET, 0, 0, 2),
        ];
        assert_eq!(run(&upper), Some(1));
        let jumps = [
            op(JA, 0, 0, 1),
            op(RET, 0, 0, 1),
            op(0x45, 0, 1, 1),
            op(RET, 0, 0, 2),
            op(RET, 0, 0, 3),
        ];
        assert_eq!(run(&jumps), Some(3), "the accumulator begins as 0");
        // Past the end, unknown, out of bounds.
        assert_eq!(run(&[op(JA, 0, 0, u32::MAX)]), None);
        assert_eq!(run(&[op(0xff, 0, 0, 0), op(RET, 0, 0, 1)]), None);
        assert_eq!(run(&[op(LD, 0, 0, 64), op(RET, 0, 0, 1)]), None);
        assert_eq!(run(&[op(0x34, 0, 0, 0), op(RET, 0, 0, 1)]), None);
        assert!(ends(0) && ends(TRAP | 7) && ends(0x8000_0000) && !ends(ALLOW) && !ends(ERRNO | 1));
        assert!(allows(ALLOW) && allows(0x7ffc_0001) && !allows(ERRNO | 1) && !allows(0));
        let word = 0x0011_2233_0405_0020u64;
        let of = Op::of_word(word);
        assert_eq!((of.code, of.jt, of.jf, of.k), (0x20, 5, 4, 0x0011_2233));
    }
}
