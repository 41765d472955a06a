//! A system call of the program, as the stub passes it on.
//!
//! Functions that must be given *the program's call* get the number and the registers with which the program itself
//! called the kernel, or a part of such a call. What they make the kernel read and write in the program's name is what
//! the program would have read and written without canvas. A program that names memory of canvas by it breaks itself,
//! like one that names its C library's: to keep it from that is no safety requirement of canvas.

use canvas_sys::patch::calls::NATIVE_BYTES;
pub use canvas_sys::patch::calls::NR_MAX;
use core::mem::offset_of;

/// The registers of a system call, as the stub stores them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// Arguments in order.
    pub a: [usize; 6],
    pub nr: usize,
    /// rbp, which the stub uses.
    pub frame: usize,
    /// Address at which the trampoline continues; 0 for a call without a trampoline.
    pub back: usize,
    /// The stack pointer at the call.
    pub stack: usize,
}
// As `capture::stub` pushes and pops them.
const _: () = assert!(size_of::<Call>() == 80 && offset_of!(Call, nr) == 48);
const _: () = assert!(offset_of!(Call, back) == 64 && offset_of!(Call, stack) == 72);

impl Call {
    /// Has the trampoline make the call itself, without using the stack: the call may return on another stack, or
    /// twice. Returns the answer for the stub; `None` if there is no trampoline.
    pub fn natively(&mut self) -> Option<isize> {
        self.back = self.back.checked_sub(NATIVE_BYTES)?;
        Some(self.nr as isize)
    }
}
