//! A system call of the program, as the stub passes it on.

use canvas_sys::patch::calls::NATIVE_BYTES;
pub use canvas_sys::patch::calls::NR_MAX;

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

impl Call {
    /// Has the trampoline make the call itself, without using the stack: the call may return on another stack, or
    /// twice. Returns the answer for the stub; `None` if there is no trampoline.
    pub fn natively(&mut self) -> Option<isize> {
        self.back = self.back.checked_sub(NATIVE_BYTES)?;
        Some(self.nr as isize)
    }
}
