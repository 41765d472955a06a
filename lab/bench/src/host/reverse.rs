//! Undoing each kind of change to the host.

use std::fs;
use std::io;
use std::path::Path;

use super::error::UndoError;
use super::step::{Step, Undoes};
use super::{cgroup, net, slow_disk, swap, tool};
use crate::processes;

/// The host that the bench runs on.
pub struct Host;

/// Something that does not exist any more needs no undoing.
fn or_gone(tried: io::Result<()>) -> io::Result<()> {
    match tried {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Undoes for Host {
    fn undo(&self, step: &Step) -> Result<(), UndoError> {
        let remove = |path: &Path, tried: io::Result<()>| {
            or_gone(tried).map_err(|source| UndoError::Remove {
                path: path.to_owned(),
                source,
            })
        };
        match step {
            Step::EndTree { pid, start_ticks } => Ok(processes::end_tree(*pid, *start_ticks)?),
            Step::EndMarked { mark } => Ok(processes::end_marked(mark)?),
            Step::RemoveCgroup { path } => Ok(cgroup::remove(path)?),
            Step::WriteBack { path, text } => {
                or_gone(fs::write(path, text)).map_err(|source| UndoError::SetBack {
                    path: path.clone(),
                    text: text.clone(),
                    source,
                })
            }
            Step::SwapOff { path } => Ok(swap::off(path)?),
            Step::ForgetZram { known } => Ok(swap::forget_zram(known)?),
            Step::RemoveZram { number } => Ok(swap::remove_zram(*number)?),
            // A module that is in use by now stays loaded.
            Step::UnloadModule { name } => {
                let _ = tool::run(&["modprobe", "-r", name]);
                Ok(())
            }
            Step::RemoveFile { path } => remove(path, fs::remove_file(path)),
            Step::RemoveTree { path } => remove(path, fs::remove_dir_all(path)),
            Step::DetachLoop { name } => Ok(slow_disk::detach(name)?),
            Step::RemoveLink { name } => Ok(net::remove_link(name)?),
        }
    }
}
