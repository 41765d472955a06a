//! `canvas read` and `canvas dump`: the memory of a managed program, seen from outside.
//!
//! Nothing is asked of the program, which may be stopped, in a debugger's hands or stuck: its pages are
//! found by what lies in its own memory (words, swap entries, pool), and what lies beyond the pool is asked
//! of the agent by a request of the program's own mailbox. Every far page is verified on its way, as the
//! program itself would.

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
