//! Foundations of all other modules: addresses of canvas's areas, counters, messages, locks.

pub mod alloc;
pub mod areas;
pub mod call;
pub mod fds;
pub mod lines;
pub mod own;
pub mod report;
pub mod state;
pub mod thread;
pub mod time;
pub mod upcalls;
pub mod writable;
