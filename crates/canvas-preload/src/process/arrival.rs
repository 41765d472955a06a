//! The kernel's entry points for signals: from here to the handler, on the stack and under the mask that the handler
//! would have without canvas.

use canvas_sys::signal;
use core::arch::naked_asm;

use crate::process::{actions, beliefs, frame::NEXT_BYTES, sig};

/// Runs before handlers of the program: finds their stack and mask, and jumps to them. By then canvas holds nothing on
/// this stack: a handler may leave it by siglongjmp.
///
/// # Safety
///
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
        arrive = sym sig::arrive,
        set_mask = sym set_mask,
    )
}

/// The handler of SIGBUS and SIGSYS: serves canvas's own, and forwards others to the program's handler. Also runs
/// before handlers of other signals during which the program has these two blocked.
///
/// # Safety
///
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
        // From here on, CFI is relative to the frame's new place, so that a backtrace works.
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

/// Called after the program's handler of one of canvas's signals has returned.
extern "C" fn after(_sig: i32, believed: u8) {
    // As rt_sigreturn restores the mask.
    beliefs::change(|_| believed);
    beliefs::deliver(believed);
}

/// Makes the kernel enter here from now on. Called at start-up.
pub fn init() {
    actions::enter_by(of_program, of_canvas);
}
