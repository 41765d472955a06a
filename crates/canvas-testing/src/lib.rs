//! What tests of several crates need: skips that are counted, seeds that are printed ([`random`]), and
//! strange processes ([`process`]).
//!
//! The harness of cargo knows no skip at run time: a test that returns early counts as passed. A test that cannot run here says so by [`skip`] or [`has_root`]; `make test`
//! names these tests, takes them out of those that passed, and adds them to the skips in its last line.

pub mod process;
pub mod random;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::panic::Location;

/// Names the file to which skips are written, a line each: crate, test and reason, with tabs between
/// them.
pub const SKIPS_FILE: &str = "CANVAS_TEST_SKIPS";

/// Notes that the calling test, or a part of it, is skipped; the caller returns then.
///
/// # Panics
///
/// When the file that [`SKIPS_FILE`] names cannot be written: a skip is never lost.
#[track_caller]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // The harness names its threads as the tests; a test that runs alone may be in its main thread.
    let place = Location::caller().to_string();
    let test = thread.name().filter(|n| *n != "main").unwrap_or(&place);
    // Not `eprintln!`, which the harness keeps to itself when a test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os(SKIPS_FILE) {
        // Cargo sets it for what it runs.
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
        let line = format!("{package}\t{test}\t{}\n", reason.replace(['\n', '\t'], " "));
        let file: std::io::Result<File> = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut f| f.write_all(line.as_bytes()))
            .expect("a skip is noted");
    }
}

/// Whether this process is root's; if not, the calling test is skipped, because it needs root for
/// `what`.
///
/// # Panics
///
/// Without root where it is promised, which is in continuous integration (`CI=true`).
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

    /// While a program is being copied nobody may fork: a child holds it open for writing until it becomes another
    /// program, and the copy cannot be started meanwhile (ETXTBSY, execve(2)).
    static COPYING: Mutex<()> = Mutex::new(());

    /// Runs the ignored test `part` of this file in a process of its own; its output and the lines of
    /// its file of skips.
    fn run(part: &str, ci: &str, user: Option<u32>) -> (Output, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), all).unwrap();
        let skips = dir.path().join("skips");
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        // Where cargo puts it another user may not be able to look.
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
        // Root becomes somebody else for it; anybody else is that already.
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
