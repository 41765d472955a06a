//! A change of the host, as the journal keeps it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::UndoError;

/// A change of the host, by what undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Step {
    /// A program was started: end it and all that descends from it.
    EndTree {
        /// It leads a process group of this number.
        pid: u32,
        /// Its identity beside the number.
        start_ticks: u64,
    },
    /// A program is about to be started; its number is not known yet. End what bears this mark.
    EndMarked {
        /// Value of [`MARK`](crate::processes::MARK) in its environment.
        mark: String,
    },
    /// A control group was made: end what is in it and remove it.
    RemoveCgroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A setting was changed: write this back.
    WriteBack {
        /// File of the setting.
        path: PathBuf,
        /// What it held.
        text: String,
    },
    /// Swap was switched on.
    SwapOff {
        /// Device or file.
        path: PathBuf,
    },
    /// A zram device is about to be added; its number is not known yet.
    ForgetZram {
        /// The devices of before.
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
    /// A file was made.
    RemoveFile {
        /// Its path.
        path: PathBuf,
    },
    /// A directory was made: remove it with all that is in it.
    RemoveTree {
        /// Its path.
        path: PathBuf,
    },
    /// A loop device was put over a file.
    DetachLoop {
        /// The file's name, without its directory.
        name: String,
    },
    /// A network link was made.
    RemoveLink {
        /// The host's end.
        name: String,
    },
}

/// Who can undo changes.
pub trait Undoes: Sync {
    /// Undoes the change; nothing to undo is no error. An error is one sentence.
    fn undo(&self, step: &Step) -> Result<(), UndoError>;
}
