//! Foundations of all other modules: addresses of canvas's areas, counters, messages, locks.

pub mod alloc;
pub mod areas;
pub mod call;
pub mod far_area;
pub mod fds;
pub mod life;
pub mod lines;
pub mod own;
pub mod report;
pub mod smaps;
pub mod state;
pub mod tenant;
pub mod thread;
pub mod time;
pub mod upcalls;
pub mod writable;
