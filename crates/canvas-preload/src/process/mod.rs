//! Processes and threads: fork, exec, descriptors, signals and their stacks, canvas's own threads.

pub mod actions;
pub mod altstack;
pub mod arrival;
pub mod beliefs;
pub mod cancel;
pub mod clone;
pub mod exec;
pub mod frame;
pub mod limits;
pub mod listing;
pub mod namespaces;
pub mod procs;
pub mod sig;
pub mod threads;
pub mod tools;
pub mod users;
