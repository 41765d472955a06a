//! Unusual processes.

use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Name of a process that [`with_name_not_utf8`] makes, as in /proc/PID/comm.
pub const NAME_NOT_UTF8: &[u8] = b"caf\xe9\n";

/// Starts a process that has a name that is not UTF-8, and waits until its standard input is
/// closed.
///
/// # Panics
///
/// If there is no shell.
pub fn with_name_not_utf8() -> Child {
    let mut child = Command::new("sh")
        .args(["-c", r"printf 'caf\351' >/proc/$$/comm; echo; read -r line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let said = child.stdout.as_mut().expect("it is piped");
    said.read_exact(&mut [0]).expect("it is renamed");
    child
}
