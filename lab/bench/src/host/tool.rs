//! System tools that the bench calls.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::error::ToolError;

/// The end of the guardian's pipe, which tools inherit: if a bench is killed while `swapon` runs, the
/// guardian waits until `swapon` has ended before it undoes anything.
static GUARDIAN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Sets the pipe that tools inherit, or `None`; returns the previous one.
pub(super) fn inherit(pipe: Option<OwnedFd>) -> Option<OwnedFd> {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *guardian, pipe)
}

/// An empty standard input for a tool.
fn input() -> Stdio {
    let guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = guardian.as_ref().and_then(|pipe| pipe.try_clone().ok());
    pipe.map_or_else(Stdio::null, Stdio::from)
}

/// Runs a tool and returns its output; the error has the tool's message.
pub fn run(argv: &[&str]) -> Result<String, ToolError> {
    let missing = |source| ToolError::CannotRun {
        tool: argv[0].to_owned(),
        source,
    };
    let out = Command::new(argv[0])
        .args(&argv[1..])
        .stdin(input())
        .output()
        .map_err(missing)?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let line = said.lines().last().unwrap_or("").trim().to_owned();
    Err(ToolError::Failed {
        command: argv.join(" "),
        said: line,
    })
}

/// Runs a tool behind a prefix such as `nsenter ... --`, which may be empty.
pub fn run_behind(prefix: &[String], argv: &[&str]) -> Result<String, ToolError> {
    let front = prefix.iter().map(String::as_str);
    run(&front.chain(argv.iter().copied()).collect::<Vec<_>>())
}

/// Whether the program is in PATH.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(name).is_file())
}
