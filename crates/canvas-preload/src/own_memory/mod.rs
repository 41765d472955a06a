//! Canvas's own memory in the program: where it lies, how it is opened for writing, how much there is; its heap.

pub mod alloc;
pub mod areas;
pub mod own;
pub mod writable;
