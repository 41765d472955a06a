//! A system call of the program, as the stub hands it over.

pub use canvas_patch::calls::{BEFORE_CLONE3, NR_MAX};

/// The registers of a system call, as the stub stores them.
#[repr(C)]
pub struct Call {
    /// Arguments in order.
    pub a: [usize; 6],
    /// Number.
    pub nr: usize,
}
