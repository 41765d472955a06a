//! The path from a patched system call of libc into [`crate::capture::hooks`].
//!
//! A patched site jumps to its trampoline (see [`crate::capture::patch`]), which loads the return address into rcx, a
//! register that the `syscall` instruction destroys anyway, and jumps here. The code around the site must not notice
//! any difference from a real system call: all registers except rax, rcx and r11 keep their values, including vector
//! registers, and so does the red zone.

use canvas_sys::patch::calls::NATIVE_BYTES;
use core::arch::naked_asm;

use crate::memory::calls::WANTED;

use crate::runtime::call::NR_MAX;

/// Where every trampoline jumps: rax is the number, rcx the address to return to. [`crate::process::cancel`] depends on
/// its length.
///
/// # Safety
///
/// Only for trampolines: it does not follow any calling convention.
#[unsafe(naked)]
pub unsafe extern "C" fn entry() {
    naked_asm!(
        "cmp rax, {nr_max}",
        "jae 3f",
        "lea r11, [rip + {wanted}]",
        "cmp byte ptr [r11 + rax], 0",
        "jne {serve}",
        // Canvas does not handle this call: the trampoline makes it.
        "3:",
        "lea rcx, [rcx - {native}]",
        "jmp rcx",
        native = const NATIVE_BYTES,
        nr_max = const NR_MAX,
        wanted = sym WANTED,
        serve = sym serve,
    )
}

/// Calls the hook.
///
/// # Safety
///
/// By [`entry`].
#[unsafe(naked)]
unsafe extern "C" fn serve() {
    naked_asm!(
        "mov r11, rsp",
        "lea rsp, [rsp - 128]",
        "push r11",
        "push rcx",
        "push rbp",
        "mov rbp, rsp",
        "push rax",
        "push r9",
        "push r8",
        "push r10",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov r11, rsp",
        "sub rsp, 256",
        "and rsp, -64",
        "movaps [rsp], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "movaps [rsp + 128], xmm8",
        "movaps [rsp + 144], xmm9",
        "movaps [rsp + 160], xmm10",
        "movaps [rsp + 176], xmm11",
        "movaps [rsp + 192], xmm12",
        "movaps [rsp + 208], xmm13",
        "movaps [rsp + 224], xmm14",
        "movaps [rsp + 240], xmm15",
        "mov rdi, r11",
        "call {dispatch}",
        "movaps xmm0, [rsp]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "movaps xmm8, [rsp + 128]",
        "movaps xmm9, [rsp + 144]",
        "movaps xmm10, [rsp + 160]",
        "movaps xmm11, [rsp + 176]",
        "movaps xmm12, [rsp + 192]",
        "movaps xmm13, [rsp + 208]",
        "movaps xmm14, [rsp + 224]",
        "movaps xmm15, [rsp + 240]",
        "lea rsp, [rbp - 56]",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "pop r9",
        "lea rsp, [rsp + 8]",
        "pop rbp",
        "pop rcx",
        "pop rsp",
        "jmp rcx",
        dispatch = sym crate::capture::hooks::dispatch,
    )
}
