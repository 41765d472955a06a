//! What `canvas run` does, once its flags have been read ([`options::Options`]).
//!
//! | module | has |
//! |---|---|
//! | `run` | one run from its beginning to its exit code |
//! | [`join`] | how a run begins at the host's agent: as a tenant of its own, or in one that is there |
//! | [`facts`], [`container`] | what there is to know about this host, kernel and user |
//! | [`mode`] | which way of delivering faults works here |
//! | `program`, `elf` | finding CMD, and telling whether it can be managed |
//! | `preload` | the preload library, which build.rs puts into this crate |
//! | `launch` | descriptors and environment of CMD, and its start |
//! | `supervise`, `notify` | CMD's signals, stops and end; what it says to the service manager |
//! | `far`, `link` | who keeps far memory: an agent of the run's own, or the host's |
//! | [`storage`] | far memory for what is no program |
//! | `control` | answers to `canvas status`, `stat` and `set` |
//! | `reserve` | the watch over the host's memory |
//! | `sweep`, `tree`, `beside` | how much memory there is, by samples |
//! | `stats`, `learned` | the report of `--stats`, and what a run has shown for the next one |
//! | [`error`] | why a run fails |
//!
//! It stays off the data path: a program goes on when its runner is killed.
#![forbid(unsafe_code)]

mod beside;
mod busy;
mod code;
pub mod container;
mod control;
mod elf;
pub mod error;
pub mod facts;
mod far;
pub mod join;
mod kvm;
mod launch;
mod learned;
mod link;
pub mod mode;
mod notify;
pub mod numa;
mod offload;
pub mod options;
mod preload;
mod program;
mod recordings;
mod reserve;
mod run;
mod stats;
pub mod storage;
mod supervise;
mod sweep;
mod tree;

pub use canvas_sys::child::end_by;
pub use control::disk::ServedDisk;
pub use control::set::keys;
pub use control::tenant::SCHEMA as STATUS_SCHEMA;
pub use error::RunError;
pub use launch::spawn_self_with;
pub use learned::Learned;
pub use program::{Unmanaged, find};
pub use reserve::host_memory;
pub use run::{Ended, run};
pub use stats::mode_name;

use canvas_control::text::reason;
