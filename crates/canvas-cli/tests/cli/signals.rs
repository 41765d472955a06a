//! Signals sent to canvas reach the program, once.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

/// Starts a shell under canvas and waits for its first line, which the script prints when its
/// traps are set.
fn start(script: &str) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = canvas(&["run", "--", "bash", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim().to_owned())
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Before the first [`IDLE`]: a pipe that nobody writes to.
const PREPARE: &str = "exec 9<> <(:)";
/// Waits between two looks with no process of its own, so that a trap runs at once.
const IDLE: &str = "read -t 0.01 -u 9";

#[test]
fn each_signal_reaches_the_program_once() {
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGWINCH,
    ] {
        let name = signal.as_str();
        // The count is printed only after a second signal, so a doubled first one would be seen.
        let second = if signal == Signal::SIGTERM {
            "USR1"
        } else {
            "TERM"
        };
        let script = format!(
            "{PREPARE}; n=0; trap 'n=$((n+1)); echo got' {name}; trap 'echo $n; exit 5' {second}; echo ready; while :; do {IDLE}; done"
        );
        let (mut child, mut out, ready) = start(&script);
        assert_eq!(ready, "ready");
        send(&child, signal);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "got\n", "{name}");
        send(
            &child,
            if second == "USR1" {
                Signal::SIGUSR1
            } else {
                Signal::SIGTERM
            },
        );
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "1\n", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(5), "{name}");
    }
}

#[test]
fn a_signal_that_ends_the_program_ends_canvas() {
    let (mut child, _out, _) = start("echo ready; exec sleep 60");
    send(&child, Signal::SIGTERM);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn what_the_program_sends_to_canvas_does_not_come_back() {
    let script = format!(
        "{PREPARE}; n=0; trap 'n=$((n+1))' USR1; trap 'echo $n; exit 0' TERM; kill -USR1 $PPID; echo ready; while :; do {IDLE}; done"
    );
    let (mut child, mut out, _) = start(&script);
    // Signals with lower numbers are read first: USR1 (10) was dealt with when TERM (15) arrives.
    send(&child, Signal::SIGTERM);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "0\n");
    child.wait().unwrap();
}

#[test]
fn a_stopped_program_is_continued_through_canvas() {
    let (mut child, mut out, pid) = start(&format!(
        "{PREPARE}; trap 'echo on; exit 6' CONT; echo $$; while :; do {IDLE}; done"
    ));
    let pid: i32 = pid.parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    let state = || {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .rsplit(')')
            .next()
            .unwrap()
            .trim()[..1]
            .to_owned()
    };
    while state() != "T" {
        std::thread::yield_now();
    }
    send(&child, Signal::SIGCONT);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "on\n");
    assert_eq!(child.wait().unwrap().code(), Some(6));
}
