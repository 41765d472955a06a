//! Shared test helpers: counted skips, printed seeds ([`random`]), and unusual processes
//! ([`process`]).
//!
//! Cargo's test harness has no skip at run time: a test that returns early counts as passed. A test
//! that cannot run here calls [`skip`] or [`has_root`]; `make test` names these tests, takes them
//! out of the passed ones, and adds them to the skips in its last line.

pub mod process;
pub mod random;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::panic::Location;

/// Environment variable with the file to which skips are written, one per line: crate, test and
/// reason, separated by tabs.
pub const SKIPS_FILE: &str = "CANVAS_TEST_SKIPS";

/// Records that the calling test, or a part of it, is skipped; the caller then returns.
///
/// # Panics
///
/// If the file named by [`SKIPS_FILE`] cannot be written, because a skip must not be lost.
#[track_caller]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // The harness names its threads after the tests; a test that runs alone may be on the main
    // thread.
    let place = Location::caller().to_string();
    let test = thread.name().filter(|n| *n != "main").unwrap_or(&place);
    // Not `eprintln!`, which the harness hides when a test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os(SKIPS_FILE) {
        // Cargo sets it for the tests that it runs.
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
        let line = format!("{package}\t{test}\t{}\n", reason.replace(['\n', '\t'], " "));
        let file: std::io::Result<File> = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut f| f.write_all(line.as_bytes()))
            .expect("a skip is noted");
    }
}

/// Whether this process is root's; if not, the calling test is skipped because it needs root for
/// `what`.
///
/// # Panics
///
/// Without root in continuous integration (`CI=true`), which must have root.
#[track_caller]
pub fn has_root(what: &str) -> bool {
    if std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) {
        return true;
    }
    let is_promised = std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1");
    assert!(
        !is_promised,
        "{what} needs root, which CI=true promises; run the tests as root, or unset CI"
    );
    skip(&format!("{what} needs root"));
    false
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// No process may fork while a program is being copied: the child would hold the copy open for
    /// writing until its exec, and until then the copy cannot be started (ETXTBSY, execve(2)).
    static COPYING: Mutex<()> = Mutex::new(());

    /// Runs the ignored test `part` of this file in a process of its own; returns its output and
    /// the lines of its skips file.
    fn run(part: &str, ci: &str, user: Option<u32>) -> (Output, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), all).unwrap();
        let skips = dir.path().join("skips");
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        // Another user may not be able to read cargo's directory.
        let program = dir.path().join("tests");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", &format!("tests::{part}")]);
        command.env(SKIPS_FILE, &skips).env("CI", ci);
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
        }
        let output = command.output().unwrap();
        let text = std::fs::read_to_string(skips).unwrap_or_default();
        (output, text.lines().map(str::to_owned).collect())
    }

    #[test]
    #[ignore = "not a test: a part of other tests"]
    fn part_that_skips() {
        skip("the moon\nis in the way");
        skip("it is Monday");
    }

    #[test]
    #[ignore = "not a test: a part of other tests"]
    fn part_that_needs_root() {
        let _ = has_root("looking behind the moon");
    }

    #[test]
    fn a_skip_is_noted_and_shown() {
        let (output, lines) = run("part_that_skips", "", None);
        assert!(output.status.success());
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("\tthe moon is in the way"), "{lines:?}");
        let [package, test, reason] = lines[1].split('\t').collect::<Vec<_>>()[..] else {
            panic!("{lines:?}");
        };
        assert_eq!((package, reason), ("canvas-testing", "it is Monday"));
        let shown = String::from_utf8(output.stderr).unwrap();
        let line = format!("skipped: {test}: it is Monday\n");
        assert!(shown.contains(&line), "{shown}");
    }

    #[test]
    fn without_root_a_test_is_skipped_but_not_where_root_is_promised() {
        // Root switches to another user; any other user stays.
        let user = std::fs::metadata("/proc/self")
            .is_ok_and(|m| m.uid() == 0)
            .then_some(65534);
        let (output, lines) = run("part_that_needs_root", "", user);
        assert!(output.status.success(), "{output:?}");
        assert!(lines[0].ends_with("\tlooking behind the moon needs root"));
        let (output, lines) = run("part_that_needs_root", "true", user);
        assert!(!output.status.success() && lines.is_empty(), "{output:?}");
    }
}
