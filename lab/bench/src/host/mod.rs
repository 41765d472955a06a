//! Changes to the host for a run, all of which are undone.

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
