//! Where signals arrive, and how a handler of the program's begins on the stack where it would without canvas.
//!
//! The kernel puts the frame of a signal onto the thread's signal stack when the handler asks for that, and in a
//! thread that has none of its own that is ours: 64 KiB. Such a handler belongs on the stack that was interrupted:
//! the frame is copied there, as the kernel would have made it, and the handler starts with it. Only where that
//! stack lies in the window it stays, because the kernel reads the frame again when the handler returns, and cannot
//! bring pages in.

use canvas_sys::signal;
use canvas_types::layout::{in_partition, in_window};
use core::arch::naked_asm;
use core::mem::{offset_of, size_of};

use crate::process::{actions, altstack, beliefs, sig};

/// What an entry does next: calls `handler` with `sig`, `info` and `uc` under `mask`, with `frame` as its stack.
#[repr(C)]
pub struct Next {
    frame: usize,
    handler: usize,
    sig: usize,
    info: usize,
    uc: usize,
    mask: u64,
    /// What the thread believed to have blocked of our signals when this one came.
    believed: usize,
}
/// Bytes that an entry takes of the stack for it; with the frame's address a multiple of 16.
const NEXT_BYTES: usize = 56;
const _: () = assert!(size_of::<Next>() == NEXT_BYTES && offset_of!(Next, believed) == 48);

/// The kernel's `struct rt_sigframe`: where to return to, `ucontext`, `siginfo`. What the processor's registers take
/// beside the general ones lies above it, where `ucontext` says.
const FRAME_UC: usize = 8;
const UC_BYTES: usize = 304;
const FRAME_INFO: usize = FRAME_UC + UC_BYTES;
const FRAME_BYTES: usize = FRAME_INFO + size_of::<libc::siginfo_t>();
const _: () = assert!(FRAME_BYTES == 440);

/// Stands before handlers of the program's: finds their place and mask, and jumps there.
///
/// # Safety
/// As a handler of a signal, by the kernel or by another handler.
#[unsafe(naked)]
pub unsafe extern "C" fn of_program(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    naked_asm!(
        "sub rsp, {bytes}",
        "lea rcx, [rsp + {bytes}]",
        "mov r8, rsp",
        "call {arrive}",
        "mov rax, rsp",
        "mov r8, [rax + 8]",
        "mov r9, [rax + 16]",
        "mov r10, [rax + 24]",
        "mov r11, [rax + 32]",
        "mov rdi, [rax + 40]",
        "mov rsp, [rax]",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "sub rsp, 8",
        "call {set_mask}",
        "add rsp, 8",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "jmp rax",
        bytes = const NEXT_BYTES,
        arrive = sym arrive,
        set_mask = sym set_mask,
    )
}

/// The handler of SIGBUS and SIGSYS: ours are served, and others go on to the program's handler. Also before handlers
/// of other signals in whose course the program has these two blocked.
///
/// # Safety
/// As a handler of a signal, by the kernel or by another handler.
#[unsafe(naked)]
pub unsafe extern "C" fn of_canvas(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, {bytes}",
        ".cfi_adjust_cfa_offset {bytes}",
        "lea rcx, [rsp + {bytes}]",
        "mov r8, rsp",
        "call {serve}",
        "cmp qword ptr [rsp + 8], 0",
        "jne 2f",
        "add rsp, {bytes}",
        ".cfi_adjust_cfa_offset -{bytes}",
        "ret",
        "2:",
        "mov rax, rsp",
        "mov r8, [rax + 8]",
        "mov r9, [rax + 16]",
        "mov r10, [rax + 24]",
        "mov r11, [rax + 32]",
        "mov rdi, [rax + 40]",
        "mov rdx, [rax + 48]",
        "mov rsp, [rax]",
        // From here on by the frame's new place, where a backtrace finds its way through.
        "push rdx",
        "push r9",
        ".cfi_adjust_cfa_offset 16",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "sub rsp, 8",
        "call {set_mask}",
        "add rsp, 8",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        "pop rsi",
        ".cfi_adjust_cfa_offset -16",
        "sub rsp, 8",
        "call {after}",
        "add rsp, 8",
        "ret",
        ".cfi_endproc",
        bytes = const NEXT_BYTES,
        serve = sym sig::serve,
        set_mask = sym set_mask,
        after = sym after,
    )
}

extern "C" fn set_mask(mask: u64) {
    signal::set_mask(mask);
}

/// The program's handler of one of our signals has returned.
extern "C" fn after(_sig: i32, believed: u8) {
    // As rt_sigreturn restores the mask.
    beliefs::change(|_| believed);
    beliefs::deliver(believed);
}

impl Next {
    /// Nothing but to return.
    pub fn nothing(&mut self) {
        self.handler = 0;
    }

    /// The program's handler of `action`.
    ///
    /// # Safety
    /// The pointers and `frame` must be what the entry got, on this thread.
    pub unsafe fn handler(
        &mut self,
        action: &signal::KernelSigaction,
        (sig, info, uc, frame): (i32, *mut libc::siginfo_t, *mut libc::c_void, usize),
        believed: u8,
    ) {
        let own = match action.flags & libc::SA_NODEFER as u64 {
            0 => signal::bit(sig),
            _ => 0,
        };
        *self = Next {
            frame,
            handler: action.handler,
            sig: sig as usize,
            info: info as usize,
            uc: uc as usize,
            mask: 0,
            believed: usize::from(believed),
        };
        if uc as usize != frame + FRAME_UC || info as usize != frame + FRAME_INFO {
            // Called by another handler, under its mask and on its stack.
            self.mask = signal::set_mask(u64::MAX);
            return;
        }
        // SAFETY: the kernel's ucontext; the first word of uc_sigmask is the kernel's signal set.
        let interrupted =
            unsafe { *(&raw const (*uc.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
        self.mask = (interrupted | action.mask | own) & !sig::ours();
        // SAFETY: a frame of the kernel's, as was just looked at.
        if let Some(to) = unsafe { place(action.flags, uc.cast(), frame) } {
            // SAFETY: as above; below `to` lies the free part of the stack that was interrupted.
            self.frame = unsafe { move_frame(frame, to) };
            self.uc = self.frame + FRAME_UC;
            self.info = self.frame + FRAME_INFO;
        }
    }
}

/// The stack pointer below which the frame would lie without canvas, when that is not where it is.
///
/// # Safety
/// `uc` and `frame` must be the kernel's, of the signal that is being handled.
unsafe fn place(flags: u64, uc: *const libc::ucontext_t, frame: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    let (stack, sp) = unsafe {
        (
            (*uc).uc_stack,
            (*uc).uc_mcontext.gregs[libc::REG_RSP as usize] as usize,
        )
    };
    let on = |at: usize| at.wrapping_sub(stack.ss_sp as usize) < stack.ss_size;
    let asked = flags & libc::SA_ONSTACK as u64 != 0 && !altstack::is_ours(stack.ss_sp as usize);
    let moves = on(frame) && !on(sp) && !asked && !in_window(sp) && !in_partition(sp);
    moves.then_some(sp)
}

/// Copies a frame to the stack below `sp`, laid out as the kernel does it; its new address.
///
/// # Safety
/// `frame` must be the kernel's, and below `sp` must be memory of the program's that nothing uses.
unsafe fn move_frame(frame: usize, sp: usize) -> usize {
    const RED_ZONE: usize = 128;
    /// `struct _fpx_sw_bytes`, at this place of the saved registers: a number, and how many bytes there are.
    const SOFTWARE: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    const LEGACY_BYTES: usize = 512;
    let uc = (frame + FRAME_UC) as *const libc::ucontext_t;
    // SAFETY: the kernel's frame; where it has saved registers they begin with 512 bytes.
    let (saved, bytes) = unsafe {
        let saved = (*uc).uc_mcontext.fpregs as usize;
        let bytes = match saved {
            0 => 0,
            at if *((at + SOFTWARE) as *const u32) == MAGIC => {
                *((at + SOFTWARE + 4) as *const u32) as usize
            }
            _ => LEGACY_BYTES,
        };
        (saved, bytes)
    };
    let saved_to = (sp - RED_ZONE - bytes) & !63;
    let to = ((saved_to - FRAME_BYTES) & !15) - 8;
    // SAFETY: the kernel's frame and what it saved, to memory that nothing uses, the caller's promise. A stack that
    // ends before that ends the program, as it would without canvas.
    unsafe {
        core::ptr::copy_nonoverlapping(saved as *const u8, saved_to as *mut u8, bytes);
        core::ptr::copy_nonoverlapping(frame as *const u8, to as *mut u8, FRAME_BYTES);
        if saved != 0 {
            let copy = (to + FRAME_UC) as *mut libc::ucontext_t;
            (*copy).uc_mcontext.fpregs = saved_to as *mut _;
        }
    }
    to
}

/// A signal whose handler is the program's.
///
/// # Safety
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
        // Changed meanwhile.
        action.handler = ignore as *const () as usize;
    }
    if sig == libc::SIGSEGV {
        // SAFETY: the kernel passes valid structures: the action has SA_SIGINFO.
        sig::name_hole(unsafe { &mut *info });
    }
    let held = beliefs::pack(action.mask & sig::ours());
    let believed = beliefs::change(|had| had | held);
    // SAFETY: what the entry got.
    unsafe { next.handler(&action, (sig, info, uc, frame), believed) };
}

extern "C" fn ignore(_: i32) {}

/// Calls `f` with `arg` on the stack that ends at `top`.
///
/// # Safety
/// Below `top` must be a stack that nobody else uses, and `f` must return and be right for `arg`.
#[unsafe(naked)]
pub unsafe extern "C" fn call_on(
    _top: usize,
    _f: extern "C" fn(*mut libc::c_void),
    _arg: *mut libc::c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}
