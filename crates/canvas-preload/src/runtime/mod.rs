//! What all other folders need of this process, without libc: its state, descriptors, clock, numbers of threads, lines
//! of /proc and on stderr, the program's calls as they arrive, and the calls that go up.

pub mod call;
pub mod fds;
pub mod lines;
pub mod report;
pub mod state;
pub mod thread;
pub mod time;
pub mod upcalls;
