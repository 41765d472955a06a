//! One process of a run: started, waited for without reaping it by accident, and killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as StdChild, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::error::BenchError;
use crate::host::error::StartError;
use crate::host::undo::{Held, Undo};
use crate::processes;
use crate::workload::Argv;

/// Children are reaped one at a time, so that an increase of the children's usage belongs to one child.
static REAP: Mutex<()> = Mutex::new(());

/// End of a process.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Time at which it ended.
    pub at: Instant,
    /// User time of the process and of the children it waited for.
    pub user_s: f64,
    /// System time of the process and of the children it waited for.
    pub system_s: f64,
}

/// A running process, with its output in files.
pub struct Child {
    child: StdChild,
    /// Time at which it was started.
    pub started: Instant,
    /// Start time in clock ticks, which identifies it together with its pid.
    pub start_ticks: u64,
    ended: Option<Ended>,
    exits: Receiver<Instant>,
    out: PathBuf,
    err: PathBuf,
    _held: Held,
}

fn seconds(t: nix::sys::time::TimeVal) -> f64 {
    t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6
}

/// User and system time of all reaped children.
fn usage() -> (f64, f64) {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or((0.0, 0.0), |u| {
        (seconds(u.user_time()), seconds(u.system_time()))
    })
}

impl Child {
    /// Starts `command` in `dir`.
    pub fn start(
        command: &Argv,
        dir: &Path,
        tag: &str,
        undo: &Arc<Undo>,
    ) -> Result<Child, BenchError> {
        Child::start_with(command, dir, tag, undo, Stdio::null())
    }

    /// Starts `command` in `dir`, with a pipe as its standard input.
    pub fn start_with_input(
        command: &Argv,
        dir: &Path,
        tag: &str,
        undo: &Arc<Undo>,
    ) -> Result<Child, BenchError> {
        Child::start_with(command, dir, tag, undo, Stdio::piped())
    }

    fn start_with(
        command: &Argv,
        dir: &Path,
        tag: &str,
        undo: &Arc<Undo>,
        input: Stdio,
    ) -> Result<Child, BenchError> {
        let (program, args) = command.argv.split_first().ok_or(BenchError::NoProgram)?;
        let fail = |source: std::io::Error| BenchError::CannotStart {
            program: program.clone(),
            source,
        };
        let out = dir.join(format!("{tag}.out"));
        let err = dir.join(format!("{tag}.err"));
        let mut c = Command::new(program);
        c.args(args)
            .current_dir(dir)
            .env("TMPDIR", dir)
            .env("LC_ALL", "C.UTF-8");
        // The user's settings of canvas do not apply to the bench's runs.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"CANVAS_") && name != "CANVAS_PRELOAD_SO" {
                c.env_remove(name);
            }
        }
        c.envs(command.env.iter().map(|(k, v)| (k, v)));
        c.stdin(input);
        c.stdout(File::create(&out).map_err(fail)?);
        c.stderr(File::create(&err).map_err(fail)?);
        // Its own process group, so that Ctrl-C reaches the bench only, which ends the process itself.
        c.process_group(0);
        let started = Instant::now();
        let (child, start_ticks, held) = undo.start(&mut c).map_err(|e| match e {
            StartError::Spawn(e) => fail(e),
            StartError::Journal(e) => BenchError::Journal(e),
        })?;
        let pid = child.id();
        let (send, exits) = channel();
        std::thread::spawn(move || {
            let pid = Pid::from_raw(pid.cast_signed());
            let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            // Does not reap: the process is reaped where its usage is read.
            while waitid(Id::Pid(pid), ended) == Err(nix::errno::Errno::EINTR) {}
            let _ = send.send(Instant::now());
        });
        Ok(Child {
            child,
            started,
            start_ticks,
            ended: None,
            exits,
            out,
            err,
            _held: held,
        })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, at most for `at_most`.
    pub fn wait(&mut self, at_most: Duration) -> Option<Ended> {
        if self.ended.is_none()
            && let Ok(at) = self.exits.recv_timeout(at_most)
        {
            let _one = REAP.lock().unwrap_or_else(PoisonError::into_inner);
            let before = usage();
            if let Ok(status) = self.child.wait() {
                let after = usage();
                self.ended = Some(Ended {
                    status,
                    at,
                    user_s: after.0 - before.0,
                    system_s: after.1 - before.1,
                });
            }
        }
        self.ended
    }

    /// Sends it SIGTERM.
    pub fn terminate(&self) {
        if self.ended.is_none() {
            let _ = kill(
                Pid::from_raw(self.child.id().cast_signed()),
                Signal::SIGTERM,
            );
        }
    }

    /// Kills it and all its descendants.
    pub fn end(&mut self) {
        // The pid cannot be reused before the process is reaped. Dropping `_held` kills what it leaves
        // behind.
        processes::kill_all(&processes::tree(self.child.id(), self.start_ticks));
        self.wait(Duration::from_secs(10));
    }

    /// Takes the pipe to its standard input; `None` at the second call.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Last non-empty line of its standard output.
    pub fn last_line(&self) -> String {
        let text = self.output();
        text.lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("")
            .to_owned()
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    /// Its last line on standard error, or else on standard output, for error messages.
    pub fn complaint(&self) -> String {
        let text = self.log();
        let line = text.lines().rev().find(|l| !l.trim().is_empty());
        let line = line.map_or_else(|| self.last_line(), str::to_owned);
        line.trim().chars().take(300).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.end();
        }
    }
}
