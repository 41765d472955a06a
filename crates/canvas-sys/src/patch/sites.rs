//! Which `syscall` instructions of a library's code can be redirected, and how.
//!
//! Every site is found by its bytes, where an instruction begins, and patched only in ways that are correct for every
//! path to it:
//!
//! * `syscall` and the instructions after it, as many as five bytes need, if they do not depend on their address and no
//!   jump leads to them; they run in the trampoline.
//! * otherwise `mov eax, imm32; syscall`: the mov's five bytes become a jump; the syscall stays in place for a path
//!   that jumps past the mov.
//! * otherwise `mov eax, reg; syscall; jmp near`, a thread's exit: the three become one jump.
//! * otherwise `syscall; ret`, followed by padding, perhaps with pops before the return: it runs in the trampoline.
//!
//! The trampoline has a `syscall` of its own before the instructions that it runs after the call: the hook can let the
//! call happen there, which uses no stack. A new thread returns from it on another stack.
//!
//! glibc 2.36 has 526 sites; only those are left out that must be (`vfork`, and `rt_sigreturn`).

use core::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

use super::calls::{CLONE, EXIT, NR_MAX, RT_SIGRETURN, VFORK};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RET: u8 = 0xc3;
/// `pop` of one of the first eight registers.
const POPS: core::ops::RangeInclusive<u8> = 0x58..=0x5f;
/// Bytes of the longest instruction.
const INSTRUCTION_MAX: usize = 15;
/// Maximum bytes of one trampoline.
pub const TRAMPOLINE_BYTES: usize = 64;
/// Bytes of a jump to a trampoline.
pub const JUMP_BYTES: usize = 5;
/// Bytes at the beginning of a function in which nothing is patched ([`Code::new`]).
const NEVER_BYTES: usize = 0x70;

/// A library's code, and everything in it that looks like a jump.
pub struct Code<'a> {
    bytes: &'a [u8],
    far: FarJumps<'a>,
    never: &'a [usize],
}

impl<'a> Code<'a> {
    /// Length of the marks that [`Code::new`] needs for `bytes` bytes of code.
    pub fn marks_for(bytes: usize) -> usize {
        bytes / 64 + 1
    }

    /// Prepares to patch `bytes`; `marks` are zeros. The functions at the offsets `never` are not patched, because
    /// their child uses the parent's stack, except for calls of clone and of exit.
    ///
    /// # Panics
    ///
    /// If there are fewer `marks` than [`Code::marks_for`] returns.
    pub fn new(bytes: &'a [u8], marks: &'a mut [u64], never: &'a [usize]) -> Code<'a> {
        assert!(marks.len() >= Code::marks_for(bytes.len()));
        let far = FarJumps::of(bytes, marks);
        Code { bytes, far, never }
    }

    /// Maximum number of `syscall` instructions.
    pub fn count(bytes: &[u8]) -> usize {
        memchr::memmem::find_iter(bytes, &SYSCALL).count()
    }

    /// Calls `f` for each site, with its replacement, or with its offset if it must be left unpatched.
    pub fn each(&self, mut f: impl FnMut(Result<Replacement, usize>)) {
        // End of the last jump: no other jump may overlap it.
        let mut taken = 0;
        for at in memchr::memmem::find_iter(self.bytes, &SYSCALL) {
            let new = Site::of(self.bytes, at)
                .filter(|s| matches!(s.known, Some(CLONE | EXIT)) || !self.is_never(s.at))
                .and_then(|s| s.replacement(self.bytes, &self.far))
                .filter(|r| r.from >= taken);
            taken = new.as_ref().map_or(taken, |r| r.from + JUMP_BYTES);
            f(new.ok_or(at));
        }
    }

    fn is_never(&self, at: usize) -> bool {
        self.never.iter().any(|f| at.wrapping_sub(*f) < NEVER_BYTES)
    }
}

/// Whether a jump nearby leads into `targets`. The surrounding code is decoded from far enough before that the decoder
/// is in step with the instruction borders by then. Far jumps (cold parts of a function) are searched for by their
/// bytes, where an accidental match is practically impossible.
fn jumped_to(code: &[u8], far: &FarJumps<'_>, targets: core::ops::Range<usize>) -> bool {
    let hits = |to: u64| to >= targets.start as u64 && to < targets.end as u64;
    let from = targets.start.saturating_sub(200);
    let to = (targets.end + 140).min(code.len());
    // Decoding costs a hundred times as much as this check: unless some byte that may end a branch's opcode is followed
    // by a distance that leads there, no instruction does.
    let leads = |i: usize| {
        let after = |n: usize| code.get(i + 1..i + 1 + n);
        let to = match code[i] {
            0x70..=0x7f | 0xe0..=0xe3 | 0xeb => {
                after(1).map(|b| i as i64 + 2 + i64::from(b[0] as i8))
            }
            0x80..=0x8f | 0xe8 | 0xe9 | 0xf8 => after(4)
                .map(|b| i as i64 + 5 + i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            _ => None,
        };
        to.is_some_and(|to| to >= 0 && hits(to as u64))
    };
    if !(from..to).any(leads) {
        return far.lead_into(targets);
    }
    let mut d = Decoder::with_ip(64, &code[from..to], from as u64, DecoderOptions::NONE);
    let mut i = iced_x86::Instruction::default();
    while d.can_decode() {
        d.decode_out(&mut i);
        if !i.is_invalid()
            && (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::NearBranch64)
            && hits(i.near_branch64())
        {
            return true;
        }
    }
    far.lead_into(targets)
}

/// Everything in a text that looks like a jump with a 32-bit distance of at most 64 KiB: one bit per target byte.
struct FarJumps<'a>(&'a [u64]);

impl<'a> FarJumps<'a> {
    fn of(code: &[u8], bits: &'a mut [u64]) -> FarJumps<'a> {
        let end = code.len().saturating_sub(6);
        for i in memchr::memchr2_iter(0xe9, 0x0f, &code[..end]) {
            let (len, at) = match code[i] {
                0xe9 => (5, i + 1),
                _ if matches!(code[i + 1], 0x80..=0x8f) => (6, i + 2),
                _ => continue,
            };
            let rel = i32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
            let to = i as i64 + len + i64::from(rel);
            if rel.unsigned_abs() <= 64 << 10 && (0..code.len() as i64).contains(&to) {
                bits[to as usize / 64] |= 1 << (to % 64);
            }
        }
        FarJumps(bits)
    }
    fn lead_into(&self, mut range: Range<usize>) -> bool {
        range.any(|at| self.0[at / 64] >> (at % 64) & 1 != 0)
    }
}

/// Length of the instructions at `code[at..]` that cover `need` bytes, if all of them can run at another address.
fn movable(code: &[u8], at: usize, need: usize) -> Option<usize> {
    let mut len = 0;
    while len < need {
        let bytes = code.get(at + len..(at + len + INSTRUCTION_MAX).min(code.len()))?;
        let mut d = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        let i = d.decode();
        let relative = i.is_ip_rel_memory_operand()
            || (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::NearBranch64);
        if i.is_invalid()
            || relative
            || i.flow_control() != FlowControl::Next
            || i.memory_base() == Register::RIP
        {
            return None;
        }
        // A second syscall must not be moved without a hook.
        if bytes.starts_with(&SYSCALL) {
            return None;
        }
        len += i.len();
    }
    Some(len)
}

/// For `mov eax, reg; syscall; jmp near`, entered only at its beginning: where the jump leads.
fn ends_in_a_jump(code: &[u8], far: &FarJumps<'_>, site: usize) -> Option<usize> {
    let start = site.checked_sub(2)?;
    let whole = code.get(start..site + 4)?;
    // `mov eax, r32` without a prefix, and the short jump.
    if whole[0] != 0x89 || whole[1] & 0xc7 != 0xc0 || whole[4] != 0xeb {
        return None;
    }
    if jumped_to(code, far, start + 1..site + 4) || !is_border(code, start) {
        return None;
    }
    let to = site as i64 + 4 + i64::from(whole[5] as i8);
    usize::try_from(to).ok().filter(|to| *to < code.len())
}

/// For `syscall; ret` at a function's end, followed only by padding: one past the return. Since glibc 2.41 all calls
/// that can be cancelled go through one of these or, in a program with one thread, through one that pops a register
/// first.
fn ends_in_a_return(code: &[u8], far: &FarJumps<'_>, site: usize) -> Option<usize> {
    let end = code.get(site + SYSCALL.len()..site + JUMP_BYTES)?;
    let pops = end.iter().take_while(|b| POPS.contains(b)).count();
    let behind = site + SYSCALL.len() + pops + 1;
    let bytes = code.get(behind..(behind + INSTRUCTION_MAX).min(code.len()))?;
    let padding = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
    let is_one = code[behind - 1] == RET
        && padding.mnemonic() == Mnemonic::Nop
        && behind + padding.len() >= site + JUMP_BYTES
        && is_border(code, site)
        && !jumped_to(code, far, site + SYSCALL.len()..site + JUMP_BYTES);
    is_one.then_some(behind)
}

/// Whether an instruction begins at `at`. Decodes from far enough before to be in step by then.
fn is_border(code: &[u8], at: usize) -> bool {
    let from = at.saturating_sub(200);
    // An instruction that begins before `at` may end after it.
    let bytes = &code[from..(at + INSTRUCTION_MAX).min(code.len())];
    let mut d = Decoder::with_ip(64, bytes, from as u64, DecoderOptions::NONE);
    while d.can_decode() && d.ip() < at as u64 {
        let _ = d.decode();
    }
    d.ip() == at as u64
}

/// A `syscall` instruction in a text.
struct Site {
    at: usize,
    /// The number that the instruction before it loads.
    known: Option<i32>,
}

/// The replacement of `from..to` of a text.
#[derive(Clone, Debug)]
pub struct Replacement {
    from: usize,
    to: usize,
    /// What the trampoline does before the call.
    before: [u8; 5],
    before_len: usize,
    /// The instructions that it runs after the call.
    after: Range<usize>,
    known: Option<i32>,
}

/// Encodes `mov eax, nr`.
fn load_number(nr: i32) -> [u8; 5] {
    let mut mov = [0xb8, 0, 0, 0, 0];
    mov[1..].copy_from_slice(&nr.to_le_bytes());
    mov
}

impl Site {
    /// The site at `at`; `None` if it must not be patched.
    fn of(code: &[u8], at: usize) -> Option<Site> {
        // `mov rax, 15; syscall`: the signal frame must lie at the stack pointer.
        if at >= 7 && code[at - 7..at] == [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0] {
            return None;
        }
        let number = |b: &[u8]| i32::from_le_bytes([b[1], b[2], b[3], b[4]]);
        let known = (at >= 5 && code[at - 5] == 0xb8)
            .then(|| number(&code[at - 5..at]))
            .filter(|nr| (0..NR_MAX as i32).contains(nr));
        let not_ours = [VFORK, RT_SIGRETURN];
        if known.is_some_and(|nr| not_ours.contains(&nr)) {
            return None;
        }
        // The bytes may be part of another instruction, such as a jump's distance.
        if known.is_none() && !is_border(code, at) {
            return None;
        }
        Some(Site { at, known })
    }

    fn replacement(&self, code: &[u8], far: &FarJumps<'_>) -> Option<Replacement> {
        let at = self.at;
        let instead = |from, to, before: &[u8], after| {
            let mut r = Replacement {
                from,
                to,
                before: [0; 5],
                before_len: before.len(),
                after,
                known: self.known,
            };
            r.before[..before.len()].copy_from_slice(before);
            Some(r)
        };
        // After the call, where all paths to it come together, if possible. Otherwise before it: no path enters the mov
        // in its middle, and one that skips it finds the syscall in place, unhooked.
        if let Some(len) = movable(code, at + 2, 3)
            && !jumped_to(code, far, at + 2..at + 2 + len)
        {
            let to = at + 2 + len;
            return instead(at, to, &[], at + 2..to);
        }
        if let Some(nr) = self.known {
            let to = at + 2;
            return instead(at - 5, to, &load_number(nr), to..to);
        }
        if let Some(to) = ends_in_a_jump(code, far, at) {
            // The trampoline has a jump of its own after the call.
            return instead(at - 2, to, &code[at - 2..at], to..to);
        }
        if let Some(behind) = ends_in_a_return(code, far, at) {
            let end = at + JUMP_BYTES;
            return instead(at, end, &[], at + SYSCALL.len()..behind);
        }
        None
    }
}

impl Replacement {
    /// Offset of the [`JUMP_BYTES`] that become a jump.
    pub fn from(&self) -> usize {
        self.from
    }
    /// Number of the call, if the code shows it.
    pub fn known(&self) -> Option<i32> {
        self.known
    }
    /// The jump from a text at `text` to its trampoline.
    pub fn jump(&self, text: usize, trampoline: usize) -> [u8; JUMP_BYTES] {
        let mut jump = [0xe9, 0, 0, 0, 0];
        let after = text + self.from + JUMP_BYTES;
        let rel = (trampoline as i64 - after as i64) as i32;
        jump[1..].copy_from_slice(&rel.to_le_bytes());
        jump
    }
    /// The trampoline at `at`, for `code` at `text`, with the address to jump to at `area`. Only the distances between
    /// the three matter.
    pub fn trampoline(&self, code: &[u8], text: usize, at: usize, area: usize) -> Trampoline {
        let mut t = Trampoline {
            at,
            buf: [0; TRAMPOLINE_BYTES],
            len: 0,
        };
        t.push(&self.before[..self.before_len]);
        let after = &code[self.after.clone()];
        t.finish(area, after, text + self.to);
        t
    }
}

/// `lea rcx, [rip + rel32]`, and its length with the distance.
const LEA: [u8; 3] = [0x48, 0x8d, 0x0d];
const LEA_BYTES: usize = 7;
/// `jmp [rip + rel32]`, and its length with the distance.
const JUMP_BY_AREA: [u8; 2] = [0xff, 0x25];
const JUMP_BY_AREA_BYTES: usize = 6;
/// Offset of the call after these two.
const CALL: usize = LEA_BYTES + JUMP_BY_AREA_BYTES;

/// Address in a library of the `syscall; ret` whose trampoline is `code`, at `start`; `None` for other trampolines and
/// for other code.
pub fn returning_at(code: &[u8; TRAMPOLINE_BYTES], start: usize) -> Option<usize> {
    /// `syscall; ret; jmp`, before the distance.
    const LAST: [u8; 4] = [SYSCALL[0], SYSCALL[1], RET, 0xe9];
    let is_one = code.starts_with(&LEA)
        && code[LEA_BYTES..].starts_with(&JUMP_BY_AREA)
        && code[CALL..].starts_with(&LAST);
    let rel = code[CALL + LAST.len()..].first_chunk().copied();
    let end = start + CALL + LAST.len() + 4;
    let to = end.wrapping_add_signed(i32::from_le_bytes(rel?) as isize);
    is_one.then(|| to.wrapping_sub(JUMP_BYTES))
}

/// Whether `at`, in a trampoline of [`returning_at`], is the call or an instruction before it.
pub fn is_before_return(at: usize) -> bool {
    matches!(at % TRAMPOLINE_BYTES, 0 | LEA_BYTES | CALL)
}

/// One trampoline.
pub struct Trampoline {
    at: usize,
    buf: [u8; TRAMPOLINE_BYTES],
    len: usize,
}

impl Trampoline {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
    fn push(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
    fn rel32(&self, target: usize, bytes_after: usize) -> [u8; 4] {
        ((target as i64 - (self.at + self.len + 4 + bytes_after) as i64) as i32).to_le_bytes()
    }
    /// Appends `lea rcx, [back]; jmp [area]; syscall; back: moved instructions; jmp to`.
    fn finish(&mut self, area: usize, moved: &[u8], to: usize) {
        let back = self.at + self.len + CALL + SYSCALL.len();
        self.push(&LEA);
        let rel = self.rel32(back, 0);
        self.push(&rel);
        self.push(&JUMP_BY_AREA);
        let rel = self.rel32(area, 0);
        self.push(&rel);
        self.push(&SYSCALL);
        self.push(moved);
        self.push(&[0xe9]);
        let rel = self.rel32(to, 0);
        self.push(&rel);
    }
}
