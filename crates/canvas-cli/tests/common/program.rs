//! The test's own binary as the program under `canvas run`: its test `program` plays a part.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const CANVAS: &str = env!("CARGO_BIN_EXE_canvas");
/// Environment variable with the part to play.
const PART: &str = "TEST_PART";

/// A library that does nothing, in `dir`.
pub fn stub(dir: &Path) -> PathBuf {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let so = dir.join("stub.so");
    let compiled = || {
        let c = dir.join("stub.c");
        fs::write(&c, "int canvas_stub;\n").unwrap();
        let cc = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&so, &c])
            .status();
        assert!(cc.unwrap().success());
        fs::read(&so).unwrap()
    };
    fs::write(&so, BYTES.get_or_init(compiled)).unwrap();
    so
}

/// The part to play, in the program.
pub fn part() -> String {
    std::env::var(PART).expect("a part to play")
}

/// Completes a command line of `canvas run`: CMD is this program, playing `part`. Its standard
/// error goes to `dir`.
pub fn play(command: &mut Command, dir: &Path, part: &str) {
    command
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "program", "--nocapture"])
        .env("CANVAS_PRELOAD_SO", stub(dir))
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(dir.join("stderr")).unwrap())
        .process_group(0);
}

/// A run under test, with its report and output in `dir`.
pub struct Run<D> {
    pub dir: D,
    pub child: Child,
    pub lines: Receiver<String>,
}

impl<D: AsRef<Path>> Run<D> {
    /// Starts a command made by [`play`].
    pub fn of(dir: D, mut command: Command) -> Run<D> {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Run { dir, child, lines }
    }

    /// Waits for a line of the program, and returns it.
    pub fn wait_for(&self, want: &str) -> String {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(want) => return line,
                Ok(_) => {}
                Err(_) => panic!("no line '{want}'; stderr: {}", self.stderr()),
            }
        }
    }

    /// Tells the program to go on.
    pub fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "go").unwrap();
    }

    /// The command's messages about far memory.
    pub fn stderr(&self) -> String {
        let all = fs::read_to_string(self.dir.as_ref().join("stderr")).unwrap();
        let ours = all
            .lines()
            .filter(|line| !line.contains("did not load the library"));
        ours.collect::<Vec<_>>().join("\n")
    }

    /// Waits for a successful end; returns the report's section on far memory, and the messages.
    pub fn finish(mut self) -> (serde_json::Value, String) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        let err = self.stderr();
        assert!(status.success(), "{status}; stderr: {err}");
        let stats = fs::read(self.dir.as_ref().join("stats.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&stats).unwrap();
        (report["far"].clone(), err)
    }
}
