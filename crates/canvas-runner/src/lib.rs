//! Implements `canvas run`, from its parsed flags ([`options::Options`]) on.
//!
//! | module | has |
//! |---|---|
//! | `run` | one run, from its start to its exit code |
//! | [`join`] | starting a run at the host's agent: as a new tenant, or in an existing one |
//! | [`facts`], [`container`] | facts about this host, kernel and user |
//! | [`mode`] | the mode of delivering faults that works here |
//! | `program`, `elf` | finding CMD, and checking whether it can be managed |
//! | `preload` | the preload library, which build.rs puts into this crate |
//! | `launch` | descriptors and environment of CMD, and its start |
//! | `supervise`, `notify` | CMD's signals, stops and end; its messages to the service manager |
//! | `far`, `link` | the agent of far memory: the run's own, or the host's |
//! | [`storage`] | far memory for processes without a program, such as disks |
//! | `control` | answers to `canvas status`, `stat` and `set` |
//! | `reserve` | the watch over the host's memory |
//! | `sweep`, `tree`, `beside` | samples of memory usage |
//! | `stats`, `learned` | the report of `--stats`, and measurements for later runs |
//! | [`error`] | errors of a run |
//!
//! The runner is not on the data path: a program goes on when its runner is killed.
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
pub use launch::spawn_self;
pub use learned::Learned;
pub use program::{Unmanaged, find};
pub use reserve::host_memory;
pub use run::{Ended, run};
pub use stats::mode_name;

use canvas_control::text::reason;
