//! Processes and threads: fork, exec, descriptors, signals and their stacks, our own threads.

pub mod altstack;
pub mod exec;
pub mod limits;
pub mod procs;
pub mod sig;
pub mod threads;
pub mod tools;
pub mod users;
