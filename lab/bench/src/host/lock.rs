//! One bench at a time: two would compete for processors, and count each other's paging.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::error::JournalError;
use super::journal::{in_journal_dir, leave_journal_dir};

/// The lock of this host's benches; root's is in /run, any other user's in a directory of their own. Dropping
/// it removes the file, and its directory if that is empty.
pub struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

/// Result of trying to take the lock.
pub enum Taken {
    /// Taken.
    Ours(Lock),
    /// A running bench has it; its pid, if it is in the file already.
    Others(Option<u32>),
}

/// A guardian, which is not a bench, holds the lock for this long at most while it cleans up after a killed
/// bench.
const MOMENT: Duration = Duration::from_millis(200);

/// Takes the lock; gives up if another process holds it for longer than a moment.
pub fn take() -> Result<Taken, JournalError> {
    in_journal_dir("lock", |path| take_within(path, MOMENT))
}

/// Takes the lock as soon as it is free, within `time`.
fn take_within(path: &Path, time: Duration) -> std::io::Result<Taken> {
    let until = Instant::now() + time;
    loop {
        match take_at(path)? {
            Taken::Others(_) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            taken => return Ok(taken),
        }
    }
}

/// Removes the file that a killed bench left behind, but not that of a running one.
pub(super) fn tidy(path: &Path) {
    if path.exists() {
        drop(take_at(path));
    }
}

fn take_at(path: &Path) -> std::io::Result<Taken> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Ok(Taken::Others(text.trim().parse().ok()));
            }
            Err((_, e)) => return Err(e.into()),
        };
        // If the previous holder removed the file between opening and locking it, this lock excludes nobody.
        let ours = file.metadata()?;
        let same = |m: fs::Metadata| (m.dev(), m.ino()) == (ours.dev(), ours.ino());
        if !fs::symlink_metadata(path).is_ok_and(same) {
            continue;
        }
        file.set_len(0)?;
        file.write_all(std::process::id().to_string().as_bytes())?;
        return Ok(Taken::Ours(Lock {
            path: path.to_owned(),
            _file: file,
        }));
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while locked, so that the next process to open it finds it gone or locked.
        let _ = fs::remove_file(&self.path);
        leave_journal_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_is_left() {
        let dir = std::env::temp_dir().join(format!("bench-lock-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("lock");
        // A killed bench's file excludes nobody.
        fs::write(&path, "99999999").unwrap();
        let Ok(Taken::Ours(first)) = take_at(&path) else {
            panic!("nobody has it");
        };
        match take_at(&path) {
            Ok(Taken::Others(pid)) => assert_eq!(pid, Some(std::process::id())),
            _ => panic!("it is taken"),
        }
        tidy(&path);
        assert!(path.exists(), "its bench runs");
        drop(first);
        assert!(!dir.exists(), "it was empty");
        fs::create_dir(&dir).unwrap();
        fs::write(&path, "99999999").unwrap();
        tidy(&path);
        assert!(!dir.exists(), "nobody had it");
        let gone = take_at(&path).err().unwrap();
        assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    }

    /// The lock may be held by a guardian that cleans up after a killed bench.
    #[test]
    fn who_has_it_for_a_moment_is_waited_for() {
        let dir = std::env::temp_dir().join(format!("bench-lock-moment-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        // Keeps the directory non-empty.
        fs::write(dir.join("x"), "").unwrap();
        let path = dir.join("lock");
        let Ok(Taken::Ours(guardians)) = take_at(&path) else {
            panic!("nobody has it");
        };
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(guardians);
        });
        let taken = take_within(&path, Duration::from_secs(60)).unwrap();
        assert!(matches!(taken, Taken::Ours(_)));
        ends.join().unwrap();
        let others = take_within(&path, Duration::ZERO).unwrap();
        assert!(matches!(others, Taken::Others(_)));
        drop(taken);
        fs::remove_dir_all(dir).unwrap();
    }

    /// At most one thread holds the lock, whatever others open and remove meanwhile.
    #[test]
    fn threads_that_fight_for_it_are_never_two() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = std::env::temp_dir().join(format!("bench-lock-fight-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        // Keeps the directory non-empty.
        fs::write(dir.join("x"), "").unwrap();
        let (path, inside, had) = (dir.join("lock"), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while had.load(Ordering::Relaxed) < 500 {
                        if let Ok(Taken::Ours(lock)) = take_at(&path) {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            had.fetch_add(1, Ordering::Relaxed);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
        fs::remove_dir_all(dir).unwrap();
    }
}
