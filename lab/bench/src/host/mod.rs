//! The host: what is changed on it for a run, and that it is changed back.

pub mod cgroup;
mod delay;
pub mod error;
pub mod facts;
mod journal;
pub mod lock;
pub mod net;
pub mod processors;
pub mod reverse;
pub mod senpai;
pub mod slow_disk;
pub mod step;
pub mod swap;
pub mod switch;
pub mod throttle;
pub mod tool;
pub mod turns;
pub mod undo;
