//! `canvas read` and `canvas dump`: reading the memory of a managed program from outside.
//!
//! The program need not cooperate: it may be stopped, held by a debugger, or stuck. Its pages are
//! found through its own tables (words, swap entries, pool); pages beyond the pool are read through
//! the agent, by a request in the program's own mailbox. Every far page is verified, as in the
//! program itself.

mod core;
mod dump;
mod far;
mod maps;
mod pages;
mod read;
mod shared;
mod stop;
mod target;

pub use dump::run as dump;
pub use read::run as read;
