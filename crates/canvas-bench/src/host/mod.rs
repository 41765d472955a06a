//! The host: what is changed on it for a run, and that it is changed back.

pub mod cgroup;
pub mod facts;
pub mod lock;
pub mod net;
pub mod processors;
pub mod swap;
pub mod tool;
pub mod undo;
