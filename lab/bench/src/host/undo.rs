//! The journal of changes to the host: each is recorded before it is made, and undone however the bench ends.
//!
//! The journal is a file of JSON lines in a directory that disappears on reboot (/run). At the end of a run,
//! on an error and on a signal the bench undoes its changes itself, newest first. When it cannot (SIGKILL, a
//! panic), the *guardian* does: a process in a session of its own that waits on a pipe whose other end only
//! the bench holds. When bench and guardian are both gone, the next bench undoes their journal.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::error::{GuardianError, JournalError, StartError, UndoError};
use super::journal::{in_journal_dir, journal_dir, leave_journal_dir};
use super::step::{Step, Undoes};
use super::{lock, tool};
use crate::processes;

/// Time for which the guardian retries failed undoing.
const GUARDIAN_PATIENCE: Duration = Duration::from_secs(60);

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// The change of this number is about to be made.
    Will(u64, Step),
    /// The change of this number is undone.
    Done(u64),
    /// From the guardian: it is watching.
    Ready,
}

/// Changes in a journal that are not undone, oldest first. An incomplete last line (the bench died while
/// writing) precedes its change, which was therefore not made.
fn pending(text: &str) -> Vec<(u64, Step)> {
    let mut steps: Vec<(u64, Step)> = Vec::new();
    for entry in text.lines().filter_map(|l| serde_json::from_str(l).ok()) {
        match entry {
            Entry::Will(id, step) => steps.push((id, step)),
            Entry::Done(id) => steps.retain(|(other, _)| *other != id),
            Entry::Ready => {}
        }
    }
    steps
}

/// Undoes changes, newest first. If one fails, retries all of them until `patience` is over, since a change
/// that was not made at first may have been made meanwhile. Returns the errors as sentences.
fn undo_all(host: &dyn Undoes, steps: &[(u64, Step)], patience: Duration) -> Vec<String> {
    let until = Instant::now() + patience;
    loop {
        let mut failed = Vec::new();
        let mut swapped = Vec::new();
        for (_, step) in steps.iter().rev() {
            // A file that is still used for swap must stay, or swap could not be switched off any more.
            if matches!(step, Step::RemoveFile { path } if swapped.contains(path)) {
                continue;
            }
            if let Err(e) = host.undo(step) {
                failed.push(e.to_string());
                if let Step::SwapOff { path } = step {
                    swapped.push(path.clone());
                }
            }
        }
        if failed.is_empty() || Instant::now() > until {
            return failed;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Undoes the journals of benches that ended together with their guardians.
fn recover(host: &dyn Undoes, dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        if path.extension().is_none_or(|e| e != "journal") {
            continue;
        }
        let Ok(file) = File::open(&path) else {
            continue;
        };
        // A living bench or guardian holds the lock.
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        let mut text = String::new();
        if file.read_to_string(&mut text).is_ok()
            && undo_all(host, &pending(&text), Duration::from_secs(2)).is_empty()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Waits until the guardian is in its own session and has recorded that in the journal.
fn wait_until_ready(mut guardian: Child, journal: &Path) -> Result<Child, GuardianError> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(journal).unwrap_or_default();
        let ready = |l: &str| matches!(serde_json::from_str(l), Ok(Entry::Ready));
        if text.lines().any(ready) {
            return Ok(guardian);
        }
        match guardian.try_wait() {
            Ok(Some(status)) => return Err(GuardianError::Ended(status)),
            Ok(None) if Instant::now() < until => {}
            _ => {
                let _ = guardian.kill();
                let _ = guardian.wait();
                return Err(GuardianError::Silent);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Inner {
    file: Flock<File>,
    next: u64,
    steps: Vec<(u64, Step)>,
    guardian: Option<Child>,
}

/// Journal of a running bench.
pub struct Undo {
    host: &'static dyn Undoes,
    path: PathBuf,
    inner: Mutex<Inner>,
}

/// A change that is undone when this is dropped, or, if that fails, at the end of the run.
pub struct Held {
    undo: Arc<Undo>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(e) = self.undo.undo(self.id) {
            eprintln!("lab: {e}; it is tried again at the end of the run");
        }
    }
}

impl Undo {
    /// Begins a journal and starts the guardian: `guardian`, with the journal's path appended, must call
    /// [`guard`].
    pub fn begin(
        host: &'static dyn Undoes,
        guardian: &[OsString],
    ) -> Result<Arc<Undo>, JournalError> {
        recover(host, &journal_dir()?);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{n}.journal", std::process::id());
        let (path, file) = in_journal_dir(&name, |path| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(true).write(true).mode(0o600);
            Ok((path.to_owned(), options.open(path)?))
        })?;
        let fail = |source| JournalError::Begin {
            path: path.clone(),
            source,
        };
        let file =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| fail(e.into()))?;
        // The lock belongs to the open file, which the guardian shares as its standard output: it lasts until
        // both have ended.
        let shared = file.try_clone().map_err(fail)?;
        let (program, args) = guardian.split_first().ok_or(JournalError::NoGuardian)?;
        let guardian = Command::new(program)
            .args(args)
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(shared)
            .spawn()
            .map_err(GuardianError::from)
            .and_then(|child| wait_until_ready(child, &path));
        let guardian = match guardian {
            Ok(child) => child,
            Err(e) => {
                let _ = fs::remove_file(&path);
                leave_journal_dir(&path);
                return Err(e.into());
            }
        };
        let pipe = guardian
            .stdin
            .as_ref()
            .map(|pipe| pipe.as_fd().try_clone_to_owned());
        tool::inherit(pipe.and_then(Result::ok));
        Ok(Arc::new(Undo {
            host,
            path,
            inner: Mutex::new(Inner {
                file,
                next: 0,
                steps: Vec::new(),
                guardian: Some(guardian),
            }),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(inner: &mut Inner, entry: &Entry) -> Result<(), JournalError> {
        let mut line = serde_json::to_string(entry)?;
        line.push('\n');
        inner
            .file
            .write_all(line.as_bytes())
            .map_err(JournalError::Append)
    }

    /// Changes that are not undone, oldest first.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> Vec<Step> {
        let inner = self.inner();
        inner.steps.iter().map(|(_, step)| step.clone()).collect()
    }

    /// Records a change that lasts until the end of the run. The caller makes the change afterwards, and only
    /// on `Ok`.
    pub fn note(&self, step: Step) -> Result<u64, JournalError> {
        let mut inner = self.inner();
        let id = inner.next;
        inner.next += 1;
        Self::write(&mut inner, &Entry::Will(id, step.clone()))?;
        inner.steps.push((id, step));
        Ok(id)
    }

    /// Records a change that is undone when the value is dropped.
    pub fn hold(self: &Arc<Self>, step: Step) -> Result<Held, JournalError> {
        Ok(Held {
            id: self.note(step)?,
            undo: Arc::clone(self),
        })
    }

    /// Starts a process that is killed, with its descendants, when the value is dropped. The journal
    /// identifies it before it exists, by a mark in its environment. Also returns its start time in clock
    /// ticks.
    pub fn start(
        self: &Arc<Self>,
        command: &mut Command,
    ) -> Result<(Child, u64, Held), StartError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let bench = std::process::id();
        let bench_ticks = processes::stat(bench).map_or(0, |s| s.start_ticks);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{bench}-{bench_ticks}-{n}");
        command.env(processes::MARK, &mark);
        let marked = self.note(Step::EndMarked { mark })?;
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                self.is_undone(marked)?;
                return Err(StartError::Spawn(e));
            }
        };
        let pid = child.id();
        let start_ticks = processes::stat(pid).map_or(0, |s| s.start_ticks);
        let held = self.hold(Step::EndTree { pid, start_ticks });
        match held.and_then(|held| self.is_undone(marked).map(|()| held)) {
            Ok(held) => Ok((child, start_ticks, held)),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e.into())
            }
        }
    }

    /// Records that a change is undone.
    fn is_undone(&self, id: u64) -> Result<(), JournalError> {
        let mut inner = self.inner();
        inner.steps.retain(|(other, _)| *other != id);
        Self::write(&mut inner, &Entry::Done(id))
    }

    /// Undoes one change.
    fn undo(&self, id: u64) -> Result<(), UndoError> {
        let step = {
            let inner = self.inner();
            let found = inner.steps.iter().find(|(other, _)| *other == id);
            match found {
                Some((_, step)) => step.clone(),
                None => return Ok(()),
            }
        };
        // Without the lock, since programs of a co-run end at the same time.
        self.host.undo(&step)?;
        Ok(self.is_undone(id)?)
    }

    /// Undoes all remaining changes, ends the guardian and removes the journal. Returns errors as sentences;
    /// if there are any, the journal stays for the next bench.
    pub fn finish(&self) -> Vec<String> {
        let mut inner = self.inner();
        let Some(mut guardian) = inner.guardian.take() else {
            return Vec::new();
        };
        let failed = undo_all(
            self.host,
            &std::mem::take(&mut inner.steps),
            Duration::from_secs(20),
        );
        if failed.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
        // Closing the pipe ends the guardian; without a journal it has nothing to do.
        drop(tool::inherit(None));
        drop(guardian.stdin.take());
        let _ = guardian.wait();
        leave_journal_dir(&self.path);
        failed
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for sentence in self.finish() {
            eprintln!("canvas: {sentence}");
        }
    }
}

/// The guardian: waits for the bench's end and undoes the changes in its journal. Returns an exit code.
pub fn guard(host: &dyn Undoes, journal: &Path) -> i32 {
    // Signals that a terminal or a service manager sends to the session must not end the guardian.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let _ = nix::unistd::setsid();
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = std::env::set_current_dir("/");
    if let Ok(line) = serde_json::to_string(&Entry::Ready) {
        // On a line of its own, after a possibly incomplete one.
        println!("\n{line}");
    }
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let Ok(text) = fs::read_to_string(journal) else {
        return 0;
    };
    let failed = undo_all(host, &pending(&text), GUARDIAN_PATIENCE);
    for sentence in &failed {
        eprintln!("canvas: {sentence}");
    }
    if failed.is_empty() {
        let _ = fs::remove_file(journal);
        lock::tidy(&journal.with_file_name("lock"));
        leave_journal_dir(journal);
        0
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{one_journal, request};
    use crate::host::reverse::Host;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("bench-undo-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn write_back(path: &Path, text: &str) -> Step {
        Step::WriteBack {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn line(entry: &Entry) -> String {
        serde_json::to_string(entry).unwrap() + "\n"
    }

    #[test]
    fn a_journal_says_what_is_left_even_when_cut_short() {
        let steps = [1, 2, 3].map(|n| Step::RemoveZram { number: n });
        let mut text = "noise of a test runner\n".to_owned();
        for (id, step) in steps.iter().enumerate() {
            text += &line(&Entry::Will(id as u64, step.clone()));
        }
        text += &line(&Entry::Ready);
        text += &line(&Entry::Done(1));
        text += "{\"will\":[9,{\"what\":\"swap_o";
        assert_eq!(
            pending(&text),
            [(0, steps[0].clone()), (2, steps[2].clone())]
        );
        assert_eq!(pending(""), []);
    }

    #[test]
    fn changes_are_undone_when_dropped_and_the_rest_newest_first() {
        let _one = one_journal();
        let dir = scratch("order");
        let (a, b) = (dir.join("a"), dir.join("b"));
        let undo = Undo::begin(&Host, &request(&[]).guardian).unwrap();
        fs::write(&a, "changed").unwrap();
        let held = undo.hold(write_back(&a, "as before")).unwrap();
        drop(held);
        assert_eq!(fs::read_to_string(&a).unwrap(), "as before");
        for text in ["first", "second", "third"] {
            undo.note(write_back(&b, text)).unwrap();
        }
        undo.note(Step::RemoveTree {
            path: dir.join("never made"),
        })
        .unwrap();
        let journal = undo.path.clone();
        assert_eq!(pending(&fs::read_to_string(&journal).unwrap()).len(), 4);
        assert_eq!(undo.finish(), [""; 0]);
        assert_eq!(
            fs::read_to_string(&b).unwrap(),
            "first",
            "the oldest state wins"
        );
        assert!(!journal.exists());
        assert_eq!(undo.finish(), [""; 0], "there is nothing to do twice");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_next_bench_undoes_what_a_dead_one_left_and_no_other() {
        let dir = scratch("recover");
        let setting = dir.join("setting");
        let (dead, alive) = (dir.join("1-0.journal"), dir.join("2-0.journal"));
        for (journal, text) in [(&dead, "of the dead"), (&alive, "of the living")] {
            fs::write(journal, line(&Entry::Will(0, write_back(&setting, text)))).unwrap();
        }
        let file = File::open(&alive).unwrap();
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        recover(&Host, &dir);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "of the dead");
        assert!(!dead.exists() && alive.exists());
        drop(lock);
        fs::remove_dir_all(dir).unwrap();
    }

    /// As when the bench is killed while it starts a program, whose pid it never learned.
    #[test]
    fn a_program_is_in_the_journal_before_it_runs_and_is_found_without_its_number() {
        let _one = one_journal();
        let dir = scratch("start");
        let undo = Undo::begin(&Host, &request(&[]).guardian).unwrap();
        let seen = dir.join("seen");
        let shell = format!(
            "cp {} {} && exec sleep 100",
            undo.path.display(),
            seen.display()
        );
        let mut command = Command::new("sh");
        let (mut child, _, held) = undo.start(command.args(["-c", &shell])).unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).unwrap() != "sleep\n" {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = fs::read_to_string(&seen).unwrap();
        let first = text.lines().find(|line| line.contains("\"will\"")).unwrap();
        let [(_, step @ Step::EndMarked { .. })] = &pending(first)[..] else {
            panic!("noted first: {first}");
        };
        assert_eq!(undo.steps().len(), 1, "the mark is not needed any more");
        Host.undo(step).unwrap();
        assert!(!child.wait().unwrap().success());
        drop(held);
        let e = undo.start(&mut Command::new("/nonexistent/program"));
        assert!(matches!(e, Err(StartError::Spawn(_))));
        assert_eq!(undo.steps(), []);
        fs::remove_dir_all(dir).unwrap();
    }

    /// As when the bench is killed while `swapon` runs, which takes effect after the bench's end.
    #[test]
    fn a_guardian_waits_for_the_tools_of_a_bench_that_was_killed() {
        let _one = one_journal();
        let dir = scratch("tools");
        let (begun, made) = (dir.join("begun"), dir.join("made"));
        let undo = Undo::begin(&Host, &request(&[]).guardian).unwrap();
        undo.note(Step::RemoveFile { path: made.clone() }).unwrap();
        let script = format!(
            "touch {}; sleep 1; touch {}",
            begun.display(),
            made.display()
        );
        let slow = std::thread::spawn(move || tool::run(&["sh", "-c", &script]));
        while !begun.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Closes this process's ends of the pipe, as its exit would.
        let mut guardian = undo.inner().guardian.take().unwrap();
        drop(tool::inherit(None));
        drop(guardian.stdin.take());
        assert!(guardian.wait().unwrap().success());
        slow.join().unwrap().unwrap();
        assert!(!made.exists(), "it went before there was anything to undo");
        assert!(!undo.path.exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn when_one_step_resists_all_are_tried_again() {
        let dir = scratch("again");
        let (late, held) = (dir.join("late"), dir.join("held"));
        // Removing a directory as a file fails until it is a file.
        fs::create_dir(&held).unwrap();
        let steps = [&held, &late].map(|path| (0, Step::RemoveFile { path: path.clone() }));
        let comes = {
            let (late, held) = (late.clone(), held.clone());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                fs::write(&late, "made after it was looked for").unwrap();
                fs::remove_dir(&held).unwrap();
            })
        };
        assert_eq!(undo_all(&Host, &steps, Duration::from_secs(60)), [""; 0]);
        comes.join().unwrap();
        assert!(!late.exists() && !held.exists());
        fs::remove_dir(dir).unwrap();
    }

    #[test]
    fn a_guardian_that_cannot_be_started_is_one_sentence() {
        let _one = one_journal();
        for command in [&["/nonexistent/canvas"][..], &["/bin/true"]] {
            let words: Vec<OsString> = command.iter().map(OsString::from).collect();
            let e = Undo::begin(&Host, &words).err().unwrap().to_string();
            assert!(e.starts_with("the guardian cannot be started"), "{e}");
        }
    }
}
