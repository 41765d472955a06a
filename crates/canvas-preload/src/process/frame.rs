//! The frame of a signal, and the stack on which a handler of the program begins.
//!
//! The kernel puts the frame onto the thread's signal stack if the handler asks for that; in a thread without one of
//! its own that is canvas's, of 64 KiB. Such a handler belongs on the interrupted stack: the frame is copied there,
//! laid out as the kernel would have done, and the handler starts with it. The frame stays only if that stack lies in
//! managed memory, because the kernel reads the frame again when the handler returns, and cannot bring pages in.

use canvas_sys::signal;
use canvas_types::layout::{in_partition, in_window};
use core::mem::{offset_of, size_of};

use crate::process::{altstack, beliefs};

/// What an entry does next: calls `handler` with `sig`, `info` and `uc` under `mask`, with `frame` as its stack.
#[repr(C)]
pub struct Next {
    frame: usize,
    handler: usize,
    sig: usize,
    info: usize,
    uc: usize,
    mask: u64,
    /// What the thread believed to have blocked of canvas's signals when this one came.
    believed: usize,
}
/// Bytes of stack that an entry uses for it; with the frame's address a multiple of 16.
pub const NEXT_BYTES: usize = 56;
// As the entries (`arrival`) read them.
const _: () = assert!(size_of::<Next>() == NEXT_BYTES && offset_of!(Next, believed) == 48);
const _: () = assert!(offset_of!(Next, handler) == 8 && offset_of!(Next, uc) == 32);

/// The kernel's `struct rt_sigframe`: return address, `ucontext`, `siginfo`. Saved registers other than the general
/// ones lie above it, where `ucontext` says.
const FRAME_UC: usize = 8;
const UC_BYTES: usize = 304;
const FRAME_INFO: usize = FRAME_UC + UC_BYTES;
const FRAME_BYTES: usize = FRAME_INFO + size_of::<libc::siginfo_t>();
const _: () = assert!(FRAME_BYTES == 440);
// libc's ucontext begins like the kernel's, of which the mask is the last part.
const _: () = assert!(offset_of!(libc::ucontext_t, uc_sigmask) == UC_BYTES - size_of::<u64>());

impl Next {
    /// Only return.
    pub fn nothing(&mut self) {
        self.handler = 0;
    }

    /// Run the program's handler of `action`.
    ///
    /// # Safety
    ///
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
        // SAFETY: the kernel's context, in its frame (just compared), whose mask begins with the kernel's set.
        let interrupted =
            unsafe { *(&raw const (*uc.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
        self.mask = (interrupted | action.mask | own) & !beliefs::ours();
        // SAFETY: the kernel's context and frame (just compared).
        if let Some(to) = unsafe { place(action.flags, uc.cast(), frame) } {
            // SAFETY: the kernel's frame (just compared); below `to` lies the free part of the stack that was
            // interrupted.
            self.frame = unsafe { move_frame(frame, to) };
            self.uc = self.frame + FRAME_UC;
            self.info = self.frame + FRAME_INFO;
        }
    }
}

/// The stack pointer below which the frame would lie without canvas, if it does not lie there already.
///
/// # Safety
///
/// `uc` and `frame` must be the kernel's, of the signal that is being handled.
unsafe fn place(flags: u64, uc: *const libc::ucontext_t, frame: usize) -> Option<usize> {
    // SAFETY: the kernel's context (the caller's promise).
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

/// Copies a frame to the stack below `sp`, laid out as the kernel does it; returns its new address.
///
/// # Safety
///
/// `frame` must be the kernel's, and below `sp` must be memory of the program's that nothing uses.
unsafe fn move_frame(frame: usize, sp: usize) -> usize {
    const RED_ZONE: usize = 128;
    /// Offset of `struct _fpx_sw_bytes` in the saved registers: a magic number, and a size.
    const SOFTWARE: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    const LEGACY_BYTES: usize = 512;
    let uc = (frame + FRAME_UC) as *const libc::ucontext_t;
    // SAFETY: the kernel's frame (the caller's promise); where it has saved registers they have 512 bytes at least.
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
    // SAFETY: copies the kernel's frame and what it saved to memory that nothing uses (the caller's promise), and
    // writes to the copy. A stack that ends before that ends the program, as it would without canvas.
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
