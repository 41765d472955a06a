//! Client of the control sockets of runs and disks.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::error::{Failure, say};
use canvas_control::health::Code;
use canvas_control::names::Name;
use canvas_control::place::Place;
use canvas_control::wire::{ANSWER_BYTES_MAX, Answer, Ask, Problem, Reply, Request, Stat, VERSION};
use canvas_types::exit;

/// Most time for a run to answer; it checks its socket ten times a second.
const TIME: Duration = Duration::from_secs(3);
/// Pause before another try after the run closed the connection.
const AGAIN: Duration = Duration::from_millis(20);

/// A run that can be contacted.
pub struct Found {
    place: usize,
    /// Its name.
    pub name: Name,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The run has ended.
    Gone,
    /// It does not answer in time.
    Silent,
    /// Its answer is not understood.
    Strange(String),
}

/// The runs that this user may contact.
pub struct Runs {
    places: Vec<Place>,
}

impl Runs {
    /// Finds the runs.
    pub fn look() -> Runs {
        if let Some(why) = Place::unusable() {
            say(format_args!(
                "{why}; its sockets are ignored: close it to others (chmod 700) or name another one in CANVAS_RUN_DIR"
            ));
        }
        Runs {
            places: Place::all(),
        }
    }

    /// The runs that `wanted` names: a tenant, a process, or TENANT.PID; all runs if `None`.
    pub fn find(&self, wanted: Option<&str>) -> Vec<Found> {
        let meant = |n: &Name| {
            wanted.is_none_or(|w| w == n.tenant || w == n.pid.to_string() || w == n.to_string())
        };
        let mut found = Vec::new();
        for (place, p) in self.places.iter().enumerate() {
            let names = p.names().into_iter().filter(meant);
            found.extend(names.map(|name| Found { place, name }));
        }
        found
    }

    /// The only run that `wanted` names.
    pub fn one(&self, wanted: &str) -> Result<Found, Failure> {
        // Sockets of ended runs do not count.
        let mut found = self.find(Some(wanted));
        if found.len() > 1 {
            let mut tenants: Vec<String> = Vec::new();
            found.retain(|f| match self.ask(f, Ask::Status) {
                Err(NoAnswer::Gone) => false,
                // Any of the runs of one tenant will do.
                Ok(Reply::Status(s)) => s.shared.is_none_or(|id| {
                    let is_first = !tenants.contains(&id);
                    tenants.push(id);
                    is_first
                }),
                _ => true,
            });
        }
        if found.len() > 1 {
            let pids: Vec<_> = found.iter().map(|f| f.name.pid.to_string()).collect();
            return Err(Failure::usage(format!(
                "there are {} runs called {wanted}; write the process of one: {}",
                found.len(),
                pids.join(", ")
            )));
        }
        found.pop().ok_or_else(|| nobody(Some(wanted)))
    }

    /// Changes settings of a run; otherwise returns why not.
    pub fn set(&self, found: &Found, changes: Vec<(String, String)>) -> Result<(), Failure> {
        match self.ask(found, Ask::Set(changes)) {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Refused(why)) => Err(Failure::usage(why)),
            Ok(Reply::Unsure(why)) => Err(unsure(why)),
            Ok(_) => Err(Failure::usage("the run's answer is not understood; use the same release of canvas for both")),
            // It may read the request later.
            Err(NoAnswer::Silent) => Err(unsure(
                "its canvas process has not answered so far (it may be stopped); the change may still be made: `canvas status` shows whether it was"
                    .to_owned(),
            )),
            Err(e) => Err(e.failure(found)),
        }
    }

    /// Status and counters of a run.
    pub fn stat(&self, found: &Found) -> Result<Stat, Failure> {
        match self.ask(found, Ask::Stat) {
            Ok(Reply::Stat(stat)) => Ok(*stat),
            Ok(_) => Err(Failure::usage(
                "the run's answer is not understood; use the same release of canvas for both",
            )),
            Err(e) => Err(e.failure(found)),
        }
    }

    /// Whether it is this user's run, not another user's that root may contact.
    pub fn is_own(&self, found: &Found) -> bool {
        self.places[found.place].owner == nix::unistd::geteuid()
    }

    /// Sends a request to a run.
    pub fn ask(&self, found: &Found, ask: Ask) -> Result<Reply, NoAnswer> {
        self.ask_within(found, ask, TIME)
    }

    /// Sends a request to a run that may take up to `time` to answer.
    pub fn ask_within(&self, found: &Found, ask: Ask, time: Duration) -> Result<Reply, NoAnswer> {
        let until = Instant::now() + time;
        let canvas = VERSION;
        let question = serde_json::to_string(&Request { canvas, ask }).unwrap_or_default() + "\n";
        let line = loop {
            match self.exchange_once(found, question.as_bytes(), until)? {
                Some(line) => break line,
                // It has ended, and then it can no longer be reached; or it dropped this client
                // because it had too many.
                None if Instant::now() < until => std::thread::sleep(AGAIN),
                None => return Err(NoAnswer::Silent),
            }
        };
        let answer: Answer = serde_json::from_slice(&line)
            .map_err(|e| NoAnswer::Strange(format!("its answer is not understood: {e}")))?;
        Ok(answer.answer)
    }

    /// One exchange over one connection; `None` if the run closes it before its answer is complete.
    fn exchange_once(
        &self,
        found: &Found,
        question: &[u8],
        until: Instant,
    ) -> Result<Option<Vec<u8>>, NoAnswer> {
        let place = &self.places[found.place];
        let mut stream = place.connect(&found.name).map_err(|e| match e {
            Errno::ECONNREFUSED | Errno::ENOENT => NoAnswer::Gone,
            Errno::EAGAIN => NoAnswer::Silent,
            e => NoAnswer::Strange(e.desc().to_owned()),
        })?;
        // Another process in its place could send anything.
        let peer = getsockopt(&stream, PeerCredentials).map(|c| c.uid());
        if !peer.is_ok_and(|uid| uid == place.owner.as_raw() || uid == 0) {
            return Err(NoAnswer::Strange("it is another user's process".to_owned()));
        }
        match exchange(&mut stream, question, until) {
            Err(NoAnswer::Gone) => Ok(None),
            other => other.map(Some),
        }
    }
}

/// Answers of runs to [`Ask::Stat`].
pub struct Stats {
    /// The answers.
    pub told: BTreeMap<Name, Stat>,
    /// Runs without an answer, and the reason.
    pub silent: Vec<(Name, Problem)>,
}

impl Stats {
    /// Asks all runs that `wanted` names ([`Runs::find`]).
    pub fn look(wanted: Option<&str>) -> Stats {
        let runs = Runs::look();
        let (mut told, mut silent) = (BTreeMap::new(), Vec::new());
        for found in runs.find(wanted) {
            match runs.ask(&found, Ask::Stat) {
                Ok(Reply::Stat(stat)) => {
                    told.insert(found.name, *stat);
                }
                Ok(_) => {}
                Err(e) => silent.extend(e.problem().map(|p| (found.name, p))),
            }
        }
        Stats { told, silent }
    }

    /// The answers; for runs that do not answer, prints the reason.
    pub fn told(wanted: Option<&str>) -> BTreeMap<Name, Stat> {
        let stats = Stats::look(wanted);
        for (name, problem) in stats.silent {
            say(format_args!("{name}: {}", problem.text));
        }
        stats.told
    }

    /// Like [`Stats::told`], without disks.
    pub fn told_by_runs(wanted: Option<&str>) -> BTreeMap<Name, Stat> {
        let mut told = Stats::told(wanted);
        told.retain(|_, stat| stat.status.disk.is_none());
        told
    }
}

/// The change may or may not be made.
fn unsure(sentence: String) -> Failure {
    Failure {
        code: exit::NEGATIVE,
        sentence,
    }
}

fn exchange(
    stream: &mut std::os::unix::net::UnixStream,
    question: &[u8],
    until: Instant,
) -> Result<Vec<u8>, NoAnswer> {
    let broken = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => NoAnswer::Silent,
        // It has just ended.
        _ => NoAnswer::Gone,
    };
    stream.set_nonblocking(false).map_err(broken)?;
    stream.set_write_timeout(Some(TIME)).map_err(broken)?;
    stream.write_all(question).map_err(broken)?;
    let mut line = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NoAnswer::Silent);
        }
        stream.set_read_timeout(Some(left)).map_err(broken)?;
        match stream.read(&mut chunk).map_err(broken)? {
            0 => return Err(NoAnswer::Gone),
            n => line.extend(&chunk[..n]),
        }
        if line.last() == Some(&b'\n') {
            return Ok(line);
        }
        if line.len() > ANSWER_BYTES_MAX {
            return Err(NoAnswer::Strange("its answer is incomplete".to_owned()));
        }
    }
}

impl NoAnswer {
    /// As the failure of a command about only this run.
    fn failure(&self, found: &Found) -> Failure {
        match self.problem() {
            Some(problem) => Failure::usage(problem.text),
            None => nobody(Some(&found.name.to_string())),
        }
    }

    /// As a problem of a run; `None` if it has ended.
    pub fn problem(&self) -> Option<Problem> {
        match self {
            NoAnswer::Gone => None,
            NoAnswer::Silent => Some(
                Code::RunnerSilent.problem("its canvas process does not answer; it may be stopped"),
            ),
            NoAnswer::Strange(why) => Some(Code::RunnerSilent.problem(why.clone())),
        }
    }
}

/// The error that there is no such run.
pub fn nobody(wanted: Option<&str>) -> Failure {
    Failure::usage(match wanted {
        Some(w) => format!("there is no run {w}; `canvas status` lists the runs"),
        None => "no canvas run and no canvas disk of this user is running".to_owned(),
    })
}
