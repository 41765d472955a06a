//! Patches the `syscall` instructions of libc and the dynamic loader, in memory, at start-up.
//!
//! Symbol interposition is not enough: libc's internal callers (malloc's mmap and brk, stdio's read, the loader's open)
//! do not go through symbols. A seccomp trap costs a signal per call, and a filter that traps mmap would kill an exec'd
//! program that has no handler yet.
//!
//! `canvas_sys::patch` finds the sites and their replacements. Usually `canvas run` has prepared the code
//! ([`crate::capture::prepared`]), which is only mapped here; everything else is patched here.

use core::ffi::{CStr, c_char, c_int, c_void};

use canvas_sys::patch::sites::{Code, JUMP_BYTES, Replacement, TRAMPOLINE_BYTES};
use canvas_sys::{Errno, mem, mem::Place};

use crate::capture::prepared::{self, Text};
use crate::own_memory::own::{self, kind};
use crate::process::cancel::{self, TEXTS};

/// What was patched.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    /// Sites that now lead to the hooks.
    pub patched: usize,
    /// Sites left unpatched.
    pub left: usize,
    /// Patched sites whose code was prepared.
    pub prepared: usize,
    /// libc itself was found.
    pub libc_found: bool,
    /// Error with which patched code could not be made read-only again.
    pub left_writable: Option<Errno>,
    /// Required calls that were patched, one bit each in the order of [`REQUIRED`].
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

/// The bit of call `nr` in [`REQUIRED`]; 0 if it is not listed there.
fn required_bit(nr: i32) -> u32 {
    let at = REQUIRED.iter().position(|need| i64::from(nr) == *need);
    at.map_or(0, |i| 1 << i)
}

impl Summary {
    fn note(&mut self, nr: i32) {
        self.required |= required_bit(nr);
    }
    /// Whether all calls that memory management depends on are patched.
    pub fn complete(&self) -> bool {
        self.libc_found && self.required == (1 << REQUIRED.len()) - 1
    }
}

struct Found {
    texts: [Text; TEXTS],
    count: usize,
    libc: bool,
}

/// # Safety
///
/// For dl_iterate_phdr(3), with a [`Found`] as `data`.
unsafe extern "C" fn collect(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid structure, and a Found (the caller's promise), to which nothing else
    // refers.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Found>()) };
    let path: &'static CStr = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: dlpi_name is null or a C string. It is kept only of libc and the loader, which are never unloaded.
        unsafe { CStr::from_ptr(info.dlpi_name as *const c_char) }
    };
    let base = path.to_bytes().rsplit(|b| *b == b'/').next().unwrap_or(b"");
    note_library(info);
    let is_libc = base.starts_with(b"libc.so.6");
    if !is_libc && !base.starts_with(b"ld-linux") && !base.starts_with(b"libpthread.so") {
        return 0;
    }
    found.libc |= is_libc;
    for i in 0..info.dlpi_phnum {
        // SAFETY: dlpi_phdr points to dlpi_phnum entries.
        let ph = unsafe { &*info.dlpi_phdr.add(i as usize) };
        if ph.p_type == libc::PT_LOAD
            && ph.p_flags & libc::PF_X != 0
            && found.count < found.texts.len()
        {
            found.texts[found.count] = Text {
                start: info.dlpi_addr as usize + ph.p_vaddr as usize,
                bytes: ph.p_memsz as usize,
                address: ph.p_vaddr as usize,
                path,
            };
            found.count += 1;
        }
    }
    0
}

/// Records where this library lies, if `info` describes it.
fn note_library(info: &libc::dl_phdr_info) {
    let this = collect as *const () as usize;
    let (mut start, mut end, mut is_ours) = (usize::MAX, 0, false);
    for i in 0..info.dlpi_phnum {
        // SAFETY: dlpi_phdr points to dlpi_phnum entries.
        let ph = unsafe { &*info.dlpi_phdr.add(i as usize) };
        if ph.p_type == libc::PT_LOAD {
            let from = info.dlpi_addr as usize + ph.p_vaddr as usize;
            let to = from + ph.p_memsz as usize;
            is_ours |= (from..to).contains(&this);
            (start, end) = (start.min(from & !0xfff), end.max(to));
        }
    }
    if is_ours {
        let bytes = (end - start).next_multiple_of(4096);
        own::note(start, bytes, kind::STAYS | kind::COUNTS);
    }
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn clone();
    fn vfork();
}

/// Patches libc and the loader.
///
/// # Safety
///
/// To be called once, by start-up, while the process runs one thread of the program.
pub unsafe fn patch_libc(report_left: bool) -> Summary {
    let none = Text {
        start: 0,
        bytes: 0,
        address: 0,
        path: c"",
    };
    let mut found = Found {
        texts: [none; TEXTS],
        count: 0,
        libc: false,
    };
    // SAFETY: `collect` is called with `found`, and only until this returns.
    unsafe { dl_iterate_phdr(collect, (&raw mut found).cast()) };
    let mut summary = Summary {
        libc_found: found.libc,
        ..Summary::default()
    };
    let file = prepared::File::open();
    for (i, text) in found.texts[..found.count].iter().enumerate() {
        // SAFETY: an executable segment of libc or the loader (`collect`), and one thread (the caller's promise).
        let done = file.as_ref().and_then(|f| unsafe { f.map_over(text) });
        match done {
            Some(patches) => {
                // SAFETY: `map_over` has mapped whole pages there, which stay.
                unsafe { cancel::trampolines_at(i, patches.area.start, patches.area.end) };
                summary.patched += patches.len();
                summary.prepared += patches.len();
                patches.calls().for_each(|nr| summary.note(nr));
            }
            // SAFETY: an executable segment of libc or the loader (`collect`), and one thread (the caller's promise).
            None => unsafe { patch_text(i, text, report_left, &mut summary) },
        }
    }
    summary
}

/// Maps memory for trampolines within reach of a rel32 jump from `text`.
fn trampolines(text: &Text, bytes: usize) -> Option<usize> {
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

/// Zeroed numbers in canvas's own memory: malloc's calls may be patched already, and cannot be served yet.
struct Words {
    at: usize,
    room: usize,
}

impl Words {
    /// Uses memory only as it is touched.
    fn zeroed(room: usize) -> Option<Words> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = mem::map_lazy(0, room * 8, rw).ok()?;
        Some(Words { at, room })
    }
    fn as_slice(&self) -> &[u64] {
        // SAFETY: the mapping has room for `room` numbers, zeros at first, and is this value's until it is dropped.
        unsafe { core::slice::from_raw_parts(self.at as *const u64, self.room) }
    }
    fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: the mapping has room for `room` numbers, zeros at first, and is this value's, borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u64, self.room) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping that `zeroed` made; what borrows from it has borrowed from `self`.
        let _ = unsafe { mem::unmap(self.at, self.room * 8) };
    }
}

struct Numbers {
    words: Words,
    len: usize,
}

impl Numbers {
    /// Creates a list with room for `room` numbers.
    fn with_room(room: usize) -> Option<Numbers> {
        let words = Words::zeroed(room)?;
        Some(Numbers { words, len: 0 })
    }
    fn push(&mut self, number: u64) {
        self.words.as_mut_slice()[self.len] = number;
        self.len += 1;
    }
    fn as_slice(&self) -> &[u64] {
        &self.words.as_slice()[..self.len]
    }
}

/// Patches one text. A failure before the first site is written leaves all sites unpatched.
///
/// # Safety
///
/// `text` must be an executable segment of a loaded library that is never unloaded, and the process run one thread of
/// the program.
unsafe fn patch_text(i: usize, text: &Text, report_left: bool, summary: &mut Summary) {
    // SAFETY: an executable segment of a loaded library (the caller's promise).
    let Some(plan) = (unsafe { Plan::make(text, report_left, summary) }) else {
        return;
    };
    if plan.close_area().is_err() {
        summary.left += plan.count();
        return;
    }
    own::note(plan.area, plan.area_bytes, kind::STAYS | kind::COUNTS);
    // SAFETY: whole pages, which `Plan::make` has mapped, and which stay.
    unsafe { cancel::trampolines_at(i, plan.area, plan.area + plan.area_bytes) };
    let page = text.start & !0xfff;
    let span = (text.start + text.bytes - page).next_multiple_of(4096);
    own::note(page, span, kind::COUNTS);
    // Executable throughout: this very code may be calling into the segment (memcpy).
    // SAFETY: the pages of the text; only the right to write is added.
    if unsafe { mem::protect(page, span, READ_EXEC | libc::PROT_WRITE) }.is_err() {
        // SAFETY: the plan's text and its pages, and one thread (the caller's promise).
        if unsafe { plan.replace_text(text, page, span) }.is_err() {
            summary.left += plan.count();
            return;
        }
    } else {
        for (from, jump) in plan.jumps() {
            // SAFETY: the five bytes lie in the text (planned), which can be written to, and to which `Plan::make` has
            // kept no reference. They replace whole instructions that no jump enters, and the program has one thread,
            // which is here (the caller's promise).
            unsafe {
                core::ptr::copy_nonoverlapping(
                    jump.as_ptr(),
                    (text.start + from) as *mut u8,
                    JUMP_BYTES,
                )
            };
        }
        // SAFETY: the pages of the text; only the right to write is taken, which nobody uses from here on.
        if let Err(e) = unsafe { mem::protect(page, span, READ_EXEC) } {
            summary.left_writable = Some(e);
        }
    }
    summary.patched += plan.count();
    summary.required |= plan.required;
}

const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// The planned patches of one text; its trampolines are written.
struct Plan {
    area: usize,
    area_bytes: usize,
    /// Pairs of a jump's offset in the text, and the jump.
    jumps: Numbers,
    /// Bits of [`REQUIRED`] for the patched calls.
    required: u32,
}

impl Plan {
    /// Finds the sites and writes their trampolines; counts sites that must be left. `None` without memory.
    ///
    /// # Safety
    ///
    /// `text` must be an executable segment of a loaded library.
    unsafe fn make(text: &Text, report_left: bool, summary: &mut Summary) -> Option<Plan> {
        // SAFETY: an executable segment of a loaded library (the caller's promise) is mapped and readable, and nobody
        // writes to it before this function has returned.
        let code = unsafe { core::slice::from_raw_parts(text.start as *const u8, text.bytes) };
        let count = Code::count(code);
        let area_bytes = ((count + 1) * TRAMPOLINE_BYTES + 8).next_multiple_of(4096);
        let found = Numbers::with_room(2 * count.max(1))
            .zip(Words::zeroed(Code::marks_for(code.len())))
            .and_then(|(jumps, marks)| Some((jumps, marks, trampolines(text, area_bytes)?)));
        let Some((jumps, mut marks, area)) = found else {
            summary.left += count;
            return None;
        };
        let mut plan = Plan {
            area,
            area_bytes,
            jumps,
            required: 0,
        };
        // The first eight bytes of the area: where the trampolines jump.
        // SAFETY: `trampolines` has mapped the area, writable, from a page on, with more than eight bytes.
        unsafe { (area as *mut usize).write(crate::capture::stub::entry as *const () as usize) };
        let never = [clone as *const () as usize, vfork as *const () as usize]
            .map(|f| f.wrapping_sub(text.start));
        Code::new(code, marks.as_mut_slice(), &never).each(|site| match site {
            Ok(new) => plan.add(text, code, &new),
            Err(at) => {
                summary.left += 1;
                if report_left {
                    crate::report!("system call site left at text offset {at:#x}");
                }
            }
        });
        Some(plan)
    }

    fn add(&mut self, text: &Text, code: &[u8], new: &Replacement) {
        let at = self.area + (self.jumps.len / 2 + 1) * TRAMPOLINE_BYTES;
        let t = new.trampoline(code, text.start, at, self.area);
        let bytes = t.bytes();
        // SAFETY: the area, which is writable until `close_area`, has room for each trampoline (`area_bytes`), and
        // nothing refers to it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        let mut jump = [0; 8];
        jump[..JUMP_BYTES].copy_from_slice(&new.jump(text.start, at));
        self.jumps.push(new.from() as u64);
        self.jumps.push(u64::from_le_bytes(jump));
        if let Some(nr) = new.known() {
            self.required |= required_bit(nr);
        }
    }

    /// Makes the trampolines executable. If written memory may not become executable, maps a copy as code.
    fn close_area(&self) -> Result<(), Errno> {
        // SAFETY: the area that `make` mapped; from here on its trampolines and the stub's address are only read, and
        // the copy has the same.
        unsafe {
            mem::protect(self.area, self.area_bytes, READ_EXEC).or_else(|_| {
                let code = core::slice::from_raw_parts(self.area as *const u8, self.area_bytes);
                mem::map_code(Place::Over(self.area), code)
            })
        }
    }

    /// Replaces the text's pages by a copy with the jumps in it, for texts that cannot be made writable.
    ///
    /// # Safety
    ///
    /// The plan must be that of `text`, which lies in the `span` bytes of its pages from `page` on, and the process run
    /// one thread of the program.
    unsafe fn replace_text(&self, text: &Text, page: usize, span: usize) -> Result<(), Errno> {
        let copy = Words::zeroed(span / 8).ok_or(Errno(libc::ENOMEM))?;
        let within = text.start - page;
        // SAFETY: the pages of the text are mapped and readable, and the copy has room for them; each jump lies in the
        // text (planned). The pages get a copy of themselves but for whole instructions that became jumps, and that no
        // jump enters; the program has one thread, which is here (the caller's promise).
        unsafe {
            let to = copy.at as *mut u8;
            core::ptr::copy_nonoverlapping(page as *const u8, to, span);
            for (from, jump) in self.jumps() {
                core::ptr::copy_nonoverlapping(jump.as_ptr(), to.add(within + from), JUMP_BYTES);
            }
            let code = core::slice::from_raw_parts(to, span);
            mem::map_code(Place::Over(page), code)
        }
    }

    fn jumps(&self) -> impl Iterator<Item = (usize, [u8; 8])> {
        let all = self.jumps.as_slice().chunks_exact(2);
        all.map(|pair| (pair[0] as usize, pair[1].to_le_bytes()))
    }

    fn count(&self) -> usize {
        self.jumps.len / 2
    }
}
