//! A change to the host, as recorded in the journal.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::UndoError;

/// A change to the host, named by the action that undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Step {
    /// A program was started: kill it and all its descendants.
    EndTree {
        /// Pid, equal to its process group.
        pid: u32,
        /// Start time in clock ticks, which identifies it together with its pid.
        start_ticks: u64,
    },
    /// A program is about to be started, and its pid is unknown: kill the processes with this mark.
    EndMarked {
        /// Value of [`MARK`](crate::processes::MARK) in its environment.
        mark: String,
    },
    /// A control group was created: kill its processes and remove it.
    RemoveCgroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A setting was changed: restore its value.
    WriteBack {
        /// File of the setting.
        path: PathBuf,
        /// Original value.
        text: String,
    },
    /// Swap was switched on.
    SwapOff {
        /// Device or file.
        path: PathBuf,
    },
    /// A zram device is about to be added, and its number is unknown.
    ForgetZram {
        /// Numbers of the earlier devices.
        known: Vec<u32>,
    },
    /// A zram device was added.
    RemoveZram {
        /// N of /dev/zramN.
        number: u32,
    },
    /// A kernel module was loaded.
    UnloadModule {
        /// Its name.
        name: String,
    },
    /// A file was created.
    RemoveFile {
        /// Its path.
        path: PathBuf,
    },
    /// A directory was created: remove it with its contents.
    RemoveTree {
        /// Its path.
        path: PathBuf,
    },
    /// A loop device was attached to a file.
    DetachLoop {
        /// The file's name, without its directory.
        name: String,
    },
    /// A network link was created.
    RemoveLink {
        /// Name of the host's end.
        name: String,
    },
}

/// Undoes changes.
pub trait Undoes: Sync {
    /// Undoes a change; a change that was not made is not an error.
    fn undo(&self, step: &Step) -> Result<(), UndoError>;
}
