//! Tools of the system that the bench calls.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::error::ToolError;

/// The end of the guardian's pipe that tools inherit, so that it waits for them, too: a bench that is killed
/// while `swapon` runs is over when `swapon` has ended, and not before there is something to undo.
static GUARDIAN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Tools inherit this from here on; `None`: nothing. What they inherited before.
pub(super) fn inherit(pipe: Option<OwnedFd>) -> Option<OwnedFd> {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *guardian, pipe)
}

/// A tool's standard input: nothing can be read from it.
fn input() -> Stdio {
    let guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = guardian.as_ref().and_then(|pipe| pipe.try_clone().ok());
    pipe.map_or_else(Stdio::null, Stdio::from)
}

/// Runs a tool; an error is one sentence with what the tool said.
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

/// The same behind a prefix such as `nsenter ... --`, or none.
pub fn run_behind(prefix: &[String], argv: &[&str]) -> Result<String, ToolError> {
    let front = prefix.iter().map(String::as_str);
    run(&front.chain(argv.iter().copied()).collect::<Vec<_>>())
}

/// Whether PATH has it.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(name).is_file())
}
