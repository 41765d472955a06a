//! Patches the `syscall` instructions of libc and the dynamic loader, in memory, at start-up.
//!
//! Why not symbol interposition: libc's own callers (malloc's mmap and brk, stdio's read, the
//! loader's open) do not go through symbols. Why not a seccomp trap: it costs a signal a call,
//! and a filter that traps mmap is deadly to an exec'd program that has no handler yet.
//!
//! Every site is found by its bytes, and only patched in ways that hold for every path to it:
//! * `syscall` and the instructions after it, as many as five bytes need, when they do not depend
//!   on their address and no jump leads to them; they run in the trampoline.
//! * otherwise `mov eax, imm32; syscall`: the mov's five bytes become a jump; the syscall stays in
//!   place for a path that jumps past the mov.
//! * otherwise `mov eax, reg; syscall; jmp near`, a thread's exit: the three become one jump.
//!
//! glibc 2.36 has 526 sites; what is left out are the ones that must be (`clone` and `vfork`,
//! whose child returns on another stack, and `rt_sigreturn`).

use core::ffi::{CStr, c_char, c_int, c_void};

use canvas_sys::mem;
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind, Register};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes that one trampoline may take.
const TRAMPOLINE_BYTES: usize = 64;
/// Bytes of an instruction's longest encoding.
const INSTRUCTION_MAX: usize = 15;

/// An executable segment of a loaded library.
#[derive(Clone, Copy, Debug)]
struct Text {
    start: usize,
    bytes: usize,
}

/// What was patched.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    /// Sites that now lead to the hooks.
    pub patched: usize,
    /// Sites left as they are.
    pub left: usize,
    /// libc itself was found.
    pub libc_found: bool,
    /// Calls that must be caught and were, one bit each in the order of [`REQUIRED`].
    required: u32,
}

/// Calls without which memory cannot be managed: each needs at least one patched site in libc.
const REQUIRED: [i64; 7] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_execve,
];

impl Summary {
    /// Everything that memory management rests on is caught.
    pub fn complete(&self) -> bool {
        self.libc_found && self.required == (1 << REQUIRED.len()) - 1
    }
}

struct Found {
    texts: [Text; 8],
    count: usize,
    libc: bool,
}

unsafe extern "C" fn collect(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid structure, and `data` is the Found of `patch_libc`.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Found>()) };
    // SAFETY: dlpi_name is null or a C string.
    let name = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: as just said.
        unsafe { CStr::from_ptr(info.dlpi_name as *const c_char) }
    };
    let base = name.to_bytes().rsplit(|b| *b == b'/').next().unwrap_or(b"");
    let is_libc = base.starts_with(b"libc.so.6");
    if !is_libc && !base.starts_with(b"ld-linux") && !base.starts_with(b"libpthread.so") {
        return 0;
    }
    found.libc |= is_libc;
    for i in 0..info.dlpi_phnum {
        // SAFETY: dlpi_phdr has dlpi_phnum entries.
        let ph = unsafe { &*info.dlpi_phdr.add(i as usize) };
        if ph.p_type == libc::PT_LOAD
            && ph.p_flags & libc::PF_X != 0
            && found.count < found.texts.len()
        {
            found.texts[found.count] = Text {
                start: info.dlpi_addr as usize + ph.p_vaddr as usize,
                bytes: ph.p_memsz as usize,
            };
            found.count += 1;
        }
    }
    0
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn clone();
    fn vfork();
}

/// Patches libc and the loader. Runs once, before the program has threads.
pub fn patch_libc(report_left: bool) -> Summary {
    let mut found = Found {
        texts: [Text { start: 0, bytes: 0 }; 8],
        count: 0,
        libc: false,
    };
    // SAFETY: the callback is called with our Found only while `found` lives.
    unsafe { dl_iterate_phdr(collect, (&raw mut found).cast()) };
    let mut summary = Summary {
        libc_found: found.libc,
        ..Summary::default()
    };
    for text in &found.texts[..found.count] {
        patch_text(*text, report_left, &mut summary);
    }
    summary
}

/// Memory for trampolines within reach of a rel32 jump from `text`.
fn trampolines(text: Text, bytes: usize) -> Option<usize> {
    let reach = 0x7000_0000usize;
    let step = 1 << 20;
    let mut offset = step;
    while offset < reach {
        for hint in [
            text.start.wrapping_sub(offset) & !0xfff,
            (text.start + text.bytes + offset) & !0xfff,
        ] {
            if let Ok(at) = mem::map_lazy(hint, bytes, libc::PROT_READ | libc::PROT_WRITE) {
                return Some(at);
            }
        }
        offset += step;
    }
    None
}

/// Does a jump in the neighbourhood lead into `targets`? The code around is decoded from far enough
/// before that the decoder has found the instruction borders by then; far jumps (cold parts of a
/// function) are looked for by their bytes, where an accidental match is as good as impossible.
fn jumped_to(code: &[u8], far: &FarJumps, targets: core::ops::Range<usize>) -> bool {
    let hits = |to: u64| to >= targets.start as u64 && to < targets.end as u64;
    let from = targets.start.saturating_sub(200);
    let to = (targets.end + 140).min(code.len());
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

/// Offsets into a text, in memory of our own: malloc's calls may be patched already, and nothing can
/// serve them yet.
struct Offsets {
    at: usize,
    room: usize,
    len: usize,
}

impl Offsets {
    /// Room for `room` offsets; costs memory only as it is used.
    fn with_room(room: usize) -> Option<Offsets> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = mem::map_lazy(0, room * 4, rw).ok()?;
        Some(Offsets { at, room, len: 0 })
    }
    fn push(&mut self, offset: usize) {
        assert!(self.len < self.room);
        self.len += 1;
        let last = self.len - 1;
        self.as_mut_slice()[last] = offset as u32;
    }
    fn as_slice(&self) -> &[u32] {
        // SAFETY: `room` zeroed numbers at `at` are ours until dropped, and `len` is at most that.
        unsafe { core::slice::from_raw_parts(self.at as *const u32, self.len) }
    }
    fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u32, self.len) }
    }
}

impl Drop for Offsets {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `with_room`, which nothing borrows any more.
        let _ = unsafe { mem::unmap(self.at, self.room * 4) };
    }
}

/// Everything in a text that looks like a jump with a 32-bit distance of at most 64 KiB, by its target.
struct FarJumps(Offsets);

impl FarJumps {
    fn of(code: &[u8]) -> Option<FarJumps> {
        let mut targets = Offsets::with_room(code.len())?;
        for i in 0..code.len().saturating_sub(6) {
            let (len, at) = match code[i] {
                0xe9 => (5, i + 1),
                0x0f if matches!(code[i + 1], 0x80..=0x8f) => (6, i + 2),
                _ => continue,
            };
            let rel = i32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
            let to = i as i64 + len + i64::from(rel);
            if rel.unsigned_abs() <= 64 << 10 && (0..code.len() as i64).contains(&to) {
                targets.push(to as usize);
            }
        }
        targets.as_mut_slice().sort_unstable();
        Some(FarJumps(targets))
    }
    fn lead_into(&self, range: core::ops::Range<usize>) -> bool {
        let targets = self.0.as_slice();
        let first = targets.partition_point(|t| (*t as usize) < range.start);
        targets
            .get(first)
            .is_some_and(|t| (*t as usize) < range.end)
    }
}

/// Length of the instructions at `code[at..]` that cover `need` bytes, when all of them can run
/// at another address.
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
        // A second syscall must not be carried away unhooked.
        if bytes.starts_with(&SYSCALL) {
            return None;
        }
        len += i.len();
    }
    Some(len)
}

/// For `mov eax, reg; syscall; jmp near`, entered at its beginning only: where the jump leads.
fn ends_in_a_jump(code: &[u8], far: &FarJumps, site: usize) -> Option<usize> {
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

/// Does an instruction begin at `at`? Decoded from far enough before to be in step by then.
fn is_border(code: &[u8], at: usize) -> bool {
    let from = at.saturating_sub(200);
    let mut d = Decoder::with_ip(64, &code[from..at], from as u64, DecoderOptions::NONE);
    let mut end = from as u64;
    while d.can_decode() {
        end = d.decode().next_ip();
    }
    end == at as u64
}

fn patch_text(text: Text, report_left: bool, summary: &mut Summary) {
    // SAFETY: an executable PT_LOAD segment of a loaded library is mapped and readable.
    let code = unsafe { core::slice::from_raw_parts(text.start as *const u8, text.bytes) };
    // Found before the first is patched: a patch may hold the bytes that look like one.
    let found = || (0..code.len().saturating_sub(1)).filter(|i| code[*i..].starts_with(&SYSCALL));
    let count = found().count();
    let (Some(mut sites), Some(far)) = (Offsets::with_room(count.max(1)), FarJumps::of(code))
    else {
        summary.left += count;
        return;
    };
    found().for_each(|i| sites.push(i));
    let area_bytes = ((count + 1) * TRAMPOLINE_BYTES + 8).next_multiple_of(4096);
    let Some(area) = trampolines(text, area_bytes) else {
        summary.left += count;
        return;
    };
    // The first eight bytes of the area: where the trampolines jump.
    // SAFETY: the area is ours, writable, and larger than eight bytes.
    unsafe { (area as *mut usize).write(crate::stub::entry as *const () as usize) };
    let page = text.start & !0xfff;
    let span = (text.start + text.bytes - page).next_multiple_of(4096);
    // Executable throughout: this very code may be calling into the segment (memcpy).
    // SAFETY: only adds the right to write.
    if unsafe {
        mem::protect(
            page,
            span,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )
    }
    .is_err()
    {
        summary.left += count;
        return;
    }
    let forbidden = [clone as *const () as usize, vfork as *const () as usize];
    let mut tramp = area + 64;
    for site in sites.as_slice() {
        let site = *site as usize;
        let addr = text.start + site;
        // `mov rax, 15; syscall`: the signal frame must lie at the stack pointer.
        let is_sigreturn = site >= 7 && code[site - 7..site] == [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0];
        if is_sigreturn || forbidden.iter().any(|f| addr.wrapping_sub(*f) < 0x70) {
            summary.left += 1;
            continue;
        }
        let mut t = Tramp {
            at: tramp,
            buf: [0; TRAMPOLINE_BYTES],
            len: 0,
        };
        let known = (site >= 5 && code[site - 5] == 0xb8)
            .then(|| {
                i32::from_le_bytes([
                    code[site - 4],
                    code[site - 3],
                    code[site - 2],
                    code[site - 1],
                ])
            })
            .filter(|nr| (0..crate::stub::NR_MAX as i32).contains(nr));
        let (from, to) = match known {
            Some(nr) if [libc::SYS_vfork, libc::SYS_rt_sigreturn].contains(&i64::from(nr)) => {
                summary.left += 1;
                continue;
            }
            Some(nr) if nr == libc::SYS_clone3 as i32 => {
                t.push(&[0xb8]);
                t.push(&nr.to_le_bytes());
                (site - 5, site + 2)
            }
            // Behind the call, where all paths to it come together, if that can be; else before it:
            // no path enters the mov in its middle, and one that skips it finds the syscall in
            // place, unhooked.
            _ => match (movable(code, site + 2, 3), known) {
                (Some(len), _) if !jumped_to(code, &far, site + 2..site + 2 + len) => {
                    (site, site + 2 + len)
                }
                (_, Some(nr)) => {
                    t.push(&[0xb8]);
                    t.push(&nr.to_le_bytes());
                    (site - 5, site + 2)
                }
                _ => {
                    let Some(to) = ends_in_a_jump(code, &far, site) else {
                        if report_left {
                            crate::report!("system call site left at text offset {site:#x}");
                        }
                        summary.left += 1;
                        continue;
                    };
                    t.push(&code[site - 2..site]);
                    (site - 2, to)
                }
            },
        };
        let mut moved = [0u8; 7];
        let moved = if from + 2 == site && t.len == 2 {
            // The jump behind the call is the trampoline's own.
            &[][..]
        } else if known == Some(libc::SYS_clone3 as i32) {
            // The new thread comes back on its own stack, not through the stub: the stub is told
            // beforehand, and the call itself is made in the trampoline, which uses no stack.
            t.buf[1..5].copy_from_slice(&(crate::stub::BEFORE_CLONE3 as i32).to_le_bytes());
            moved[0] = 0xb8;
            moved[1..5].copy_from_slice(&(libc::SYS_clone3 as i32).to_le_bytes());
            moved[5..].copy_from_slice(&SYSCALL);
            &moved[..]
        } else {
            &code[site + 2..to]
        };
        t.finish(area, moved, text.start + to);
        // SAFETY: the trampoline lies in our area; the site was checked above, the program has
        // one thread, and the five bytes written replace whole instructions that no jump enters.
        unsafe {
            core::ptr::copy_nonoverlapping(t.buf.as_ptr(), tramp as *mut u8, t.len);
            let rel = (tramp as i64 - (text.start + from + 5) as i64) as i32;
            let mut jump = [0xe9, 0, 0, 0, 0];
            jump[1..].copy_from_slice(&rel.to_le_bytes());
            core::ptr::copy_nonoverlapping(jump.as_ptr(), (text.start + from) as *mut u8, 5);
        }
        tramp += TRAMPOLINE_BYTES;
        summary.patched += 1;
        for (i, need) in REQUIRED.iter().enumerate() {
            if known.is_some_and(|nr| i64::from(nr) == *need) {
                summary.required |= 1 << i;
            }
        }
    }
    // SAFETY: gives back exactly the rights that the segment and a code area need.
    unsafe {
        let _ = mem::protect(page, span, libc::PROT_READ | libc::PROT_EXEC);
        let _ = mem::protect(area, area_bytes, libc::PROT_READ | libc::PROT_EXEC);
    }
}

/// One trampoline under construction.
struct Tramp {
    at: usize,
    buf: [u8; TRAMPOLINE_BYTES],
    len: usize,
}

impl Tramp {
    fn push(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
    fn rel32(&self, target: usize, bytes_after: usize) -> [u8; 4] {
        ((target as i64 - (self.at + self.len + 4 + bytes_after) as i64) as i32).to_le_bytes()
    }
    /// `lea rcx, [back]; jmp [area]; back: moved instructions; jmp to`.
    fn finish(&mut self, area: usize, moved: &[u8], to: usize) {
        let back = self.at + self.len + 7 + 6;
        self.push(&[0x48, 0x8d, 0x0d]);
        let rel = self.rel32(back, 0);
        self.push(&rel);
        self.push(&[0xff, 0x25]);
        let rel = self.rel32(area, 0);
        self.push(&rel);
        self.push(moved);
        self.push(&[0xe9]);
        let rel = self.rel32(to, 0);
        self.push(&rel);
    }
}
