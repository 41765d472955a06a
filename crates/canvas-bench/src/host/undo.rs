//! Every change of the host is written down before it is made, and undone however the bench ends.
//!
//! The journal is a file of JSON lines in a directory that goes away with the machine (/run). At
//! the end of a run, on an error and on a signal the bench undoes its changes itself, newest first.
//! When it cannot (SIGKILL, a panic), the *guardian* does: a process in a session of its own that
//! waits on a pipe whose other end only the bench holds. A journal whose bench and guardian are
//! both gone is undone by the next bench.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::{cgroup, net, swap};
use crate::processes;

/// How long the guardian tries to undo what resists.
const GUARDIAN_PATIENCE: Duration = Duration::from_secs(60);

/// A change of the host, by what undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Step {
    /// A program was started: end it and all that descends from it.
    EndTree {
        /// It leads a process group of this number.
        pid: u32,
        /// Its identity beside the number.
        start_ticks: u64,
    },
    /// A control group was made: end what is in it and remove it.
    RemoveCgroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A setting was changed: write this back.
    WriteBack {
        /// File of the setting.
        path: PathBuf,
        /// What it held.
        text: String,
    },
    /// Swap was switched on.
    SwapOff {
        /// Device or file.
        path: PathBuf,
    },
    /// A zram device is about to be added; its number is not known yet.
    ForgetZram {
        /// The devices of before.
        known: Vec<u32>,
    },
    /// A zram device was added.
    RemoveZram {
        /// N of /dev/zramN.
        number: u32,
    },
    /// A kernel module was loaded.
    UnloadModule {
        /// Its name.
        name: String,
    },
    /// A file was made.
    RemoveFile {
        /// Its path.
        path: PathBuf,
    },
    /// A directory was made: remove it with all that is in it.
    RemoveTree {
        /// Its path.
        path: PathBuf,
    },
    /// A network link was made.
    RemoveLink {
        /// The host's end.
        name: String,
    },
}

impl Step {
    /// Undoes the change; nothing to undo is no error. An error is one sentence.
    pub fn undo(&self) -> Result<(), String> {
        let io = |what: String, r: std::io::Result<()>| match r {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{what}: {e}")),
            _ => Ok(()),
        };
        match self {
            Step::EndTree { pid, start_ticks } => processes::end_tree(*pid, *start_ticks),
            Step::RemoveCgroup { path } => cgroup::remove(path),
            Step::WriteBack { path, text } => io(
                format!("{} cannot be set back to {text}", path.display()),
                fs::write(path, text),
            ),
            Step::SwapOff { path } => swap::off(path),
            Step::ForgetZram { known } => swap::forget_zram(known),
            Step::RemoveZram { number } => swap::remove_zram(*number),
            // A module that somebody else uses by now stays.
            Step::UnloadModule { name } => {
                let _ = Command::new("modprobe").args(["-r", name]).output();
                Ok(())
            }
            Step::RemoveFile { path } => io(
                format!("{} cannot be removed", path.display()),
                fs::remove_file(path),
            ),
            Step::RemoveTree { path } => io(
                format!("{} cannot be removed", path.display()),
                fs::remove_dir_all(path),
            ),
            Step::RemoveLink { name } => net::remove_link(name),
        }
    }
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// This will be undone under this number.
    Will(u64, Step),
    /// It was.
    Done(u64),
    /// From the guardian: it watches now.
    Ready,
}

/// What a journal still holds, oldest first. A line cut short (the bench died while it wrote) was
/// written before its change was made, so there is nothing to undo for it.
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

/// Undoes steps, newest first, again and again until none is left or time is over. Returns what
/// could not be undone, as sentences.
fn undo_all(mut steps: Vec<(u64, Step)>, patience: Duration) -> Vec<String> {
    let until = Instant::now() + patience;
    loop {
        let mut failed = Vec::new();
        let mut left = Vec::new();
        while let Some((id, step)) = steps.pop() {
            if let Err(sentence) = step.undo() {
                failed.push(sentence);
                left.push((id, step));
            }
        }
        if left.is_empty() || Instant::now() > until {
            return failed;
        }
        left.reverse();
        steps = left;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Where journals are.
fn journal_dir() -> Result<PathBuf, String> {
    let dir = if nix::unistd::geteuid().is_root() && Path::new("/run").is_dir() {
        PathBuf::from("/run/canvas-bench")
    } else {
        std::env::temp_dir().join(format!("canvas-bench-journals-{}", nix::unistd::geteuid()))
    };
    let fail = |e| {
        format!(
            "the journal directory {} cannot be used: {e}",
            dir.display()
        )
    };
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(fail(e)),
        _ => {}
    }
    use std::os::unix::fs::MetadataExt;
    let owner = fs::symlink_metadata(&dir).map_err(fail)?;
    // In a directory that everybody may write to, somebody else may have been first.
    if !owner.is_dir() || owner.uid() != nix::unistd::geteuid().as_raw() {
        return Err(format!(
            "the journal directory {} belongs to somebody else; remove it",
            dir.display()
        ));
    }
    Ok(dir)
}

/// Opens or makes the file `name` in the journal directory with `open`. An error is one sentence.
pub(super) fn in_journal_dir<T>(
    name: &str,
    open: impl Fn(&Path) -> std::io::Result<T>,
) -> Result<T, String> {
    // A bench that ends may remove the directory before there is anything in it.
    for _ in 0..100 {
        let path = journal_dir()?.join(name);
        match open(&path) {
            Ok(opened) => return Ok(opened),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{} cannot be written: {e}", path.display())),
        }
    }
    Err("the journal directory is removed again and again; try once more".to_owned())
}

/// Removes the directory of `file` when that was the last in it.
pub(super) fn leave_journal_dir(file: &Path) {
    if let Some(dir) = file.parent() {
        let _ = fs::remove_dir(dir);
    }
}

/// Undoes the journals of benches that are gone with their guardians.
fn recover(dir: &Path) {
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
        // A bench or a guardian that lives holds the lock.
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        let mut text = String::new();
        if file.read_to_string(&mut text).is_ok()
            && undo_all(pending(&text), Duration::from_secs(2)).is_empty()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Waits until the guardian is in its own session and says so in the journal.
fn wait_until_ready(mut guardian: Child, journal: &Path) -> Result<Child, String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(journal).unwrap_or_default();
        let ready = |l: &str| matches!(serde_json::from_str(l), Ok(Entry::Ready));
        if text.lines().any(ready) {
            return Ok(guardian);
        }
        match guardian.try_wait() {
            Ok(Some(status)) => return Err(format!("it ended at once ({status})")),
            Ok(None) if Instant::now() < until => {}
            _ => {
                let _ = guardian.kill();
                let _ = guardian.wait();
                return Err("it does not answer".to_owned());
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

/// The journal of a bench that runs.
pub struct Undo {
    path: PathBuf,
    inner: Mutex<Inner>,
}

/// A change that is undone when this is dropped, or, should that fail, with all others at the end.
pub struct Held {
    undo: Arc<Undo>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(sentence) = self.undo.undo(self.id) {
            eprintln!("canvas: {sentence}; it is tried again at the end");
        }
    }
}

impl Undo {
    /// Begins a journal and starts the guardian: `guardian` with the journal's path behind it must
    /// come to [`guard`]. An error is one sentence.
    pub fn begin(guardian: &[OsString]) -> Result<Arc<Undo>, String> {
        recover(&journal_dir()?);
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{}-{n}.journal", std::process::id());
        let (path, file) = in_journal_dir(&name, |path| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(true).write(true).mode(0o600);
            Ok((path.to_owned(), options.open(path)?))
        })?;
        let fail =
            |e: std::io::Error| format!("the journal {} cannot be written: {e}", path.display());
        let file =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| fail(e.into()))?;
        // The lock belongs to the open file, which the guardian shares as its standard output: it
        // lasts until both are gone.
        let shared = file.try_clone().map_err(fail)?;
        let (program, args) = guardian
            .split_first()
            .ok_or_else(|| "there is no guardian to start".to_owned())?;
        let guardian = Command::new(program)
            .args(args)
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(shared)
            .spawn()
            .map_err(|e| e.to_string())
            .and_then(|child| wait_until_ready(child, &path));
        let guardian = match guardian {
            Ok(child) => child,
            Err(e) => {
                let _ = fs::remove_file(&path);
                leave_journal_dir(&path);
                return Err(format!("the guardian cannot be started: {e}"));
            }
        };
        Ok(Arc::new(Undo {
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

    fn write(inner: &mut Inner, entry: &Entry) -> Result<(), String> {
        let mut line = serde_json::to_string(entry).map_err(|e| e.to_string())?;
        line.push('\n');
        inner
            .file
            .write_all(line.as_bytes())
            .map_err(|e| format!("the journal cannot be written: {e}"))
    }

    /// Writes down what undoes a change that lasts until the end of the run; make the change only
    /// afterwards, and only on `Ok`.
    pub fn note(&self, step: Step) -> Result<u64, String> {
        let mut inner = self.inner();
        let id = inner.next;
        inner.next += 1;
        Self::write(&mut inner, &Entry::Will(id, step.clone()))?;
        inner.steps.push((id, step));
        Ok(id)
    }

    /// The same for a change that is undone when the value is dropped.
    pub fn hold(self: &Arc<Self>, step: Step) -> Result<Held, String> {
        Ok(Held {
            id: self.note(step)?,
            undo: Arc::clone(self),
        })
    }

    /// The same for a process that was just started, and what it starts: they are ended. One that cannot be
    /// noted is ended at once. When it started, in clock ticks, comes first.
    pub fn hold_tree(
        self: &Arc<Self>,
        child: &mut std::process::Child,
    ) -> Result<(u64, Held), String> {
        let pid = child.id();
        let start_ticks = processes::stat(pid).map_or(0, |s| s.start_ticks);
        match self.hold(Step::EndTree { pid, start_ticks }) {
            Ok(held) => Ok((start_ticks, held)),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    /// Undoes one change.
    fn undo(&self, id: u64) -> Result<(), String> {
        let step = {
            let inner = self.inner();
            let found = inner.steps.iter().find(|(other, _)| *other == id);
            match found {
                Some((_, step)) => step.clone(),
                None => return Ok(()),
            }
        };
        // Without the lock: programs of a co-run end at the same time.
        step.undo()?;
        let mut inner = self.inner();
        inner.steps.retain(|(other, _)| *other != id);
        Self::write(&mut inner, &Entry::Done(id))
    }

    /// Undoes what is left, ends the guardian and removes the journal. Returns what could not be
    /// undone, as sentences; then the journal stays for the next bench.
    pub fn finish(&self) -> Vec<String> {
        let mut inner = self.inner();
        let Some(mut guardian) = inner.guardian.take() else {
            return Vec::new();
        };
        let failed = undo_all(std::mem::take(&mut inner.steps), Duration::from_secs(20));
        if failed.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
        // The end of the pipe is what it waits for; without a journal it has nothing to do.
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

/// The guardian: waits for the bench's end and undoes what its journal holds then. Returns an exit
/// code.
pub fn guard(journal: &Path) -> i32 {
    // Nothing that a terminal or a service manager sends to all of a session may end it.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let _ = nix::unistd::setsid();
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = std::env::set_current_dir("/");
    if let Ok(line) = serde_json::to_string(&Entry::Ready) {
        // On a line of its own, whatever is there already.
        println!("\n{line}");
    }
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let Ok(text) = fs::read_to_string(journal) else {
        return 0;
    };
    let failed = undo_all(pending(&text), GUARDIAN_PATIENCE);
    for sentence in &failed {
        eprintln!("canvas: {sentence}");
    }
    if failed.is_empty() {
        let _ = fs::remove_file(journal);
        super::lock::tidy(&journal.with_file_name("lock"));
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
        let undo = Undo::begin(&request(&[]).guardian).unwrap();
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
        recover(&dir);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "of the dead");
        assert!(!dead.exists() && alive.exists());
        drop(lock);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_guardian_that_cannot_be_started_is_one_sentence() {
        let _one = one_journal();
        for command in [&["/nonexistent/canvas"][..], &["/bin/true"]] {
            let words: Vec<OsString> = command.iter().map(OsString::from).collect();
            let e = Undo::begin(&words).err().unwrap();
            assert!(e.starts_with("the guardian cannot be started"), "{e}");
        }
    }
}
