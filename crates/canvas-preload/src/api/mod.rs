//! What the program declared by `canvas.h`, and the faults that it reads through it.
//!
//! Faults use this module; the calls themselves are in `memory::exports`.

pub mod faults;
pub mod told;

pub use told::{has_kinds, thread_ends, unmapped};

/// In a fork's child, which has none of its parent's threads.
pub fn after_fork_in_child() {
    faults::after_fork_in_child();
    told::after_fork_in_child();
}
