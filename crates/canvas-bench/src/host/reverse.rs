//! How each change of the host is undone.

use std::fs;

use super::step::{Step, Undoes};
use super::{cgroup, net, swap, tool};
use crate::processes;

/// The host that the bench runs on.
pub struct Host;

impl Undoes for Host {
    fn undo(&self, step: &Step) -> Result<(), String> {
        let io = |what: String, r: std::io::Result<()>| match r {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{what}: {e}")),
            _ => Ok(()),
        };
        match step {
            Step::EndTree { pid, start_ticks } => processes::end_tree(*pid, *start_ticks),
            Step::RemoveCgroup { path } => cgroup::remove(path),
            Step::WriteBack { path, text } => io(
                format!("{} cannot be set back to {text}", path.display()),
                fs::write(path, text),
            ),
            Step::SwapOff { path } => swap::off(path),
            Step::ForgetZram { known } => swap::forget_zram(known),
            Step::RemoveZram { number } => swap::remove_zram(*number),
            // A module that somebody else uses by now stays.
            Step::UnloadModule { name } => {
                let _ = tool::run(&["modprobe", "-r", name]);
                Ok(())
            }
            Step::RemoveFile { path } => io(
                format!("{} cannot be removed", path.display()),
                fs::remove_file(path),
            ),
            Step::RemoveTree { path } => io(
                format!("{} cannot be removed", path.display()),
                fs::remove_dir_all(path),
            ),
            Step::RemoveLink { name } => net::remove_link(name),
        }
    }
}
