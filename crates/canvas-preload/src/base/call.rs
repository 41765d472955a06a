//! A system call of the program, as the stub hands it over.

use canvas_patch::calls::NATIVE_BYTES;
pub use canvas_patch::calls::NR_MAX;

/// The registers of a system call, as the stub stores them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// Arguments in order.
    pub a: [usize; 6],
    /// Number.
    pub nr: usize,
    /// rbp, which the stub uses.
    pub frame: usize,
    /// Where the trampoline goes on; 0 for a call that no trampoline made.
    pub back: usize,
    /// The stack pointer then.
    pub stack: usize,
}

impl Call {
    /// Has the trampoline make the call itself, which takes no stack: who comes back from it may be on another one, or
    /// be two on one. Returns the answer for the stub; `None` where there is no trampoline.
    pub fn natively(&mut self) -> Option<isize> {
        self.back = self.back.checked_sub(NATIVE_BYTES)?;
        Some(self.nr as isize)
    }
}
