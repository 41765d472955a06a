//! Measurements of programs' earlier runs: a file of this user, validated each time that it is
//! read.
//!
//! The file is in `$XDG_STATE_HOME/canvas` (`~/.local/state/canvas`). A program is identified by
//! its file and a digest of its arguments, which may hold secrets. Writers take a lock file and
//! replace the file by a new one, so that it is complete at all times.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use canvas_control::features::Features;
use canvas_place::advise::Point;
use canvas_place::curve::Curve;
use canvas_place::dispatch::{Known, POINTS_MAX, local_of_run};
use canvas_runner::Learned;
use canvas_shm::segment::REFAULT_BUCKETS;
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::control::rates::unix_s;
use crate::reason;

/// The file, and its lock file.
const FILE: &str = "dispatch.json";
const LOCK: &str = "dispatch.lock";
/// Its schema, with the version.
const SCHEMA: &str = "canvas-dispatch-state/1";
/// Most programs recorded; beyond that, the one that has not run for longest is dropped.
const PROGRAMS_MAX: usize = 256;
/// Programs with longer names are not recorded.
const NAME_BYTES_MAX: usize = 1024;
/// Larger files are refused.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// How long to wait for the lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// Pause between tries to get it.
const PAUSE: Duration = Duration::from_millis(5);

/// A program and its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    program: String,
    arguments: String,
}

impl Key {
    /// Of `file`, run with the arguments of `command`.
    pub fn of(file: &Path, command: &[OsString]) -> Key {
        let program = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        let mut digest = Sha256::new();
        for word in command.iter().skip(1) {
            digest.update((word.len() as u64).to_le_bytes());
            digest.update(word.as_bytes());
        }
        let digest = digest.finalize();
        Key {
            program: program.to_string_lossy().into_owned(),
            arguments: digest.iter().take(16).map(|b| format!("{b:02x}")).collect(),
        }
    }
}

/// Why the file cannot be read or written: a sentence without its end.
#[derive(Debug, thiserror::Error)]
pub enum PastError {
    /// There is no directory for it.
    #[error("there is no home directory; set XDG_STATE_HOME")]
    NoHome,
    /// The system call failed.
    #[error("{}: {}", .path.display(), reason(.source))]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file was not written by canvas.
    #[error("{} cannot be used ({why}); remove it", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another dispatch holds the lock.
    #[error("{}: another canvas dispatch holds it", .0.display())]
    Busy(PathBuf),
}

/// The file's contents.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Content {
    schema: String,
    /// In the order of their latest runs.
    programs: Vec<Record>,
}

/// A program's record.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Record {
    program: String,
    arguments: String,
    /// Number of recorded runs.
    pub runs: u64,
    /// End of the last one.
    unix_s: f64,
    /// All of its memory in the last run, in bytes.
    footprint_bytes: u64,
    /// Features of the last run.
    features: Features,
    /// Points of the latest runs.
    points: Vec<Noted>,
}

/// The speed at one size of local memory.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
struct Noted {
    local_bytes: u64,
    speed: f64,
    footprint_bytes: u64,
    stream_ratio: f64,
    refaults: Vec<u64>,
}

impl Record {
    /// The record in the form that decisions use.
    pub fn known(&self) -> Known {
        let point = |p: &Noted| Point {
            speed: p.speed,
            curve: Curve {
                local_bytes: p.local_bytes,
                footprint_bytes: p.footprint_bytes,
                refaults: p.refaults.clone(),
                stream_ratio: p.stream_ratio,
            },
        };
        Known {
            footprint_bytes: self.footprint_bytes,
            compression: self.features.compression,
            file_ratio: self.features.file_ratio,
            sequential_ratio: self.features.sequential_ratio,
            points: self.points.iter().map(point).collect(),
        }
    }

    /// Checks that all values are in range.
    fn judge(&self) -> Result<(), &'static str> {
        let f = &self.features;
        let ratios = [
            f.fragment_ratio,
            f.store_ratio,
            f.sequential_ratio,
            f.hot_ratio,
            f.file_ratio,
            f.stall_ratio,
        ];
        let is_part = |part: &f64| (0.0..=1.0).contains(part);
        let is_point = |p: &Noted| {
            is_part(&p.speed) && is_part(&p.stream_ratio) && p.refaults.len() <= REFAULT_BUCKETS
        };
        if self.program.len() > NAME_BYTES_MAX || self.arguments.len() > 32 {
            return Err("a name is too long");
        }
        if !ratios.iter().flatten().all(is_part) {
            return Err("a ratio is not from 0 to 1");
        }
        if f.compression.is_some_and(|c| !(1.0..=1e6).contains(&c)) {
            return Err("a compression is out of range");
        }
        match self.points.len() <= POINTS_MAX && self.points.iter().all(is_point) {
            true => Ok(()),
            false => Err("a speed is out of range"),
        }
    }

    fn is_of(&self, key: &Key) -> bool {
        self.program == key.program && self.arguments == key.arguments
    }
}

/// The file.
#[derive(Debug)]
pub struct Past {
    dir: PathBuf,
}

impl Past {
    /// This user's file.
    pub fn own() -> Result<Past, PastError> {
        let set = |name| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|p| p.is_absolute())
        };
        let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
        let dir = state.ok_or(PastError::NoHome)?.join("canvas");
        Ok(Past { dir })
    }

    /// The record of a program; `None` if it never ran.
    pub fn of(&self, key: &Key) -> Result<Option<Record>, PastError> {
        let programs = self.read()?;
        Ok(programs.into_iter().find(|r| r.is_of(key)))
    }

    /// Adds a run's measurements.
    pub fn note(&self, key: &Key, learned: &Learned) -> Result<(), PastError> {
        if key.program.len() > NAME_BYTES_MAX {
            return Ok(());
        }
        let fail = |source| self.system("", source);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(fail)?;
        let _lock = self.lock()?;
        let mut programs = self.read()?;
        let at = programs.iter().position(|r| r.is_of(key));
        let before = at.map(|at| programs.remove(at));
        programs.push(noted(key, before, learned));
        let many = programs.len().saturating_sub(PROGRAMS_MAX);
        programs.drain(..many);
        let content = Content {
            schema: SCHEMA.to_owned(),
            programs,
        };
        // Numbers and strings can always be written as JSON.
        let text = serde_json::to_vec(&content).unwrap_or_default();
        let mut new = tempfile::NamedTempFile::new_in(&self.dir).map_err(fail)?;
        new.write_all(&text).map_err(fail)?;
        let placed = new.persist(self.dir.join(FILE));
        placed.map_err(|e| self.system(FILE, e.error))?;
        Ok(())
    }

    /// The programs in the file; none if there is no file.
    fn read(&self) -> Result<Vec<Record>, PastError> {
        let path = self.dir.join(FILE);
        let damaged = |why: &str| PastError::Damaged {
            path: path.clone(),
            why: why.to_owned(),
        };
        // Must not wait on a pipe in its place.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.system(FILE, e)),
        };
        let meta = file.metadata().map_err(|e| self.system(FILE, e))?;
        if !meta.is_file() {
            return Err(damaged("it is not a regular file"));
        }
        let mut text = Vec::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|e| self.system(FILE, e))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(damaged("it is too large"));
        }
        let content: Content =
            serde_json::from_slice(&text).map_err(|e| damaged(&e.to_string()))?;
        if content.schema != SCHEMA {
            return Err(damaged("it is of another version"));
        }
        if content.programs.len() > PROGRAMS_MAX {
            return Err(damaged("it has too many programs"));
        }
        for record in &content.programs {
            record.judge().map_err(damaged)?;
        }
        Ok(content.programs)
    }

    fn lock(&self) -> Result<Flock<File>, PastError> {
        let fail = |source| self.system(LOCK, source);
        let path = self.dir.join(LOCK);
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).mode(0o600);
        let mut file = options.custom_flags(flags).open(&path).map_err(fail)?;
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err(_) if Instant::now() >= until => return Err(PastError::Busy(path)),
                Err((back, _)) => file = back,
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn system(&self, file: &str, source: io::Error) -> PastError {
        PastError::System {
            path: self.dir.join(file),
            source,
        }
    }
}

/// A program's record after one more run.
fn noted(key: &Key, before: Option<Record>, learned: &Learned) -> Record {
    let (runs, mut points) = before.map_or((0, Vec::new()), |r| (r.runs, r.points));
    let slowdown = learned.features.slowdown.unwrap_or(0.0).max(0.0);
    let local_bytes = local_of_run(learned.local_limit_bytes, learned.local_peak_bytes);
    points.retain(|p| p.local_bytes != local_bytes);
    points.push(Noted {
        local_bytes,
        speed: 1.0 / (1.0 + slowdown),
        footprint_bytes: learned.footprint_bytes,
        stream_ratio: learned.features.sequential_ratio.unwrap_or(0.0),
        refaults: learned.refaults.clone(),
    });
    let many = points.len().saturating_sub(POINTS_MAX);
    points.drain(..many);
    Record {
        program: key.program.clone(),
        arguments: key.arguments.clone(),
        runs: runs.saturating_add(1),
        unix_s: unix_s(),
        footprint_bytes: learned.footprint_bytes,
        features: learned.features.clone(),
        points,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past() -> (tempfile::TempDir, Past) {
        let dir = tempfile::tempdir().unwrap();
        let past = Past {
            dir: dir.path().join("state"),
        };
        (dir, past)
    }

    fn key(words: &[&str]) -> Key {
        let command: Vec<OsString> = words.iter().map(OsString::from).collect();
        Key::of(Path::new("/bin/sh"), &command)
    }

    fn learned(limit: u64, peak: u64, slowdown: f64) -> Learned {
        Learned {
            footprint_bytes: 1 << 30,
            local_limit_bytes: Some(limit),
            local_peak_bytes: peak,
            features: Features {
                slowdown: Some(slowdown),
                sequential_ratio: Some(0.25),
                ..Features::default()
            },
            refaults: vec![1, 2, 3],
        }
    }

    #[test]
    fn what_was_noted_is_known_of_the_same_words_only() {
        let (_dir, past) = past();
        assert_eq!(past.of(&key(&["sh", "a"])).unwrap(), None);
        past.note(&key(&["sh", "a", "b"]), &learned(100, 100, 0.25))
            .unwrap();
        assert_eq!(past.of(&key(&["sh", "ab"])).unwrap(), None);
        // Under any name.
        let got = past.of(&key(&["x", "a", "b"])).unwrap().unwrap();
        assert_eq!(got.runs, 1);
        let known = got.known();
        assert_eq!(known.sequential_ratio, Some(0.25));
        assert_eq!((known.points.len(), known.points[0].speed), (1, 0.8));
        assert!(
            !fs::read_to_string(past.dir.join(FILE))
                .unwrap()
                .contains("\"a\"")
        );
    }

    #[test]
    fn the_last_runs_and_the_last_programs_are_kept() {
        let (_dir, past) = past();
        let of = key(&["sh"]);
        for size in 1..=20 {
            past.note(&of, &learned(size, size, 0.0)).unwrap();
        }
        let got = past.of(&of).unwrap().unwrap();
        assert_eq!(got.runs, 20);
        let sizes: Vec<u64> = got.points.iter().map(|p| p.local_bytes).collect();
        assert_eq!(sizes, [15, 16, 17, 18, 19, 20]);
        for n in 0..PROGRAMS_MAX {
            past.note(&key(&["sh", &n.to_string()]), &learned(1, 1, 0.0))
                .unwrap();
        }
        assert_eq!(past.of(&of).unwrap(), None);
        assert!(past.of(&key(&["sh", "0"])).unwrap().is_some());
        assert!(fs::metadata(past.dir.join(FILE)).unwrap().len() < FILE_BYTES_MAX);
        let left = fs::read_dir(&past.dir).unwrap().count();
        assert_eq!(left, 2, "the file and its lock");
    }

    #[test]
    fn what_makes_no_sense_is_said_and_left() {
        let (_dir, past) = past();
        past.note(&key(&["sh"]), &learned(7, 7, 0.5)).unwrap();
        let path = past.dir.join(FILE);
        let good = fs::read_to_string(&path).unwrap();
        for (from, to, why) in [
            ("{\"schema\"", "[{\"schema\"", "invalid type"),
            ("state/1", "state/2", "it is of another version"),
            (
                "\"sequential_ratio\":0.25",
                "\"sequential_ratio\":7",
                "a ratio is not",
            ),
            (
                "\"speed\":0.6666666666666666",
                "\"speed\":-1",
                "a speed is out of range",
            ),
            (
                "[1,2,3]",
                "[1,2,3,4,5,6,7,8,9,10]",
                "a speed is out of range",
            ),
            ("\"compression\":null", "\"compression\":0", "a compression"),
            ("\"runs\":1", "\"runs\":1,\"more\":1", "unknown field"),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            fs::write(&path, &bad).unwrap();
            let said = past.of(&key(&["sh"])).unwrap_err().to_string();
            assert!(
                said.contains(why) && said.ends_with("; remove it"),
                "{said}"
            );
            assert!(past.note(&key(&["sh"]), &learned(7, 7, 0.5)).is_err());
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                bad,
                "nothing was changed"
            );
        }
        fs::write(&path, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(past.read().unwrap_err().to_string().contains("too large"));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(
            past.read()
                .unwrap_err()
                .to_string()
                .contains("regular file")
        );
    }
}
