//! Files in the cache: each is complete or absent, and written by one process at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::error::WorkloadError;

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// SHA-256 of a file in hexadecimal.
pub fn sha256_of(path: &Path) -> Result<String, WorkloadError> {
    let mut hash = Sha256::new();
    let mut file = File::open(path).map_err(|e| cannot("read", path, e))?;
    let mut part = vec![0; 1 << 16];
    loop {
        match file.read(&mut part).map_err(|e| cannot("read", path, e))? {
            0 => break,
            n => hash.update(&part[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

fn cannot(action: &'static str, path: &Path, source: io::Error) -> WorkloadError {
    WorkloadError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Creates a directory with its parents.
pub fn make_dir(path: &Path) -> Result<(), WorkloadError> {
    fs::create_dir_all(path).map_err(|e| cannot("create", path, e))
}

/// Creates an empty directory; removes earlier contents.
pub fn fresh_dir(path: &Path) -> Result<(), WorkloadError> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(|e| cannot("remove", path, e))?;
    }
    make_dir(path)
}

/// Writes a file with these bytes.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WorkloadError> {
    fs::write(path, bytes).map_err(|e| cannot("write", path, e))
}

/// Locks the cache until dropped: other benches that prepare the same data wait.
pub fn lock(cache: &Path) -> Result<Flock<File>, WorkloadError> {
    make_dir(cache)?;
    let path = cache.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| cannot("open", &path, e))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| WorkloadError::Lock { path, error })
}

/// Has `make` produce a file or directory under a temporary name, and renames it when it is complete. Does
/// nothing if it exists. Removes what interrupted attempts have left.
pub fn produce(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), WorkloadError>,
) -> Result<PathBuf, WorkloadError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(WorkloadError::NoPlace(path.to_owned()));
    };
    if path.exists() {
        return Ok(path.to_owned());
    }
    make_dir(parent)?;
    let unfinished = parent.join(format!("{}.unfinished", name.to_string_lossy()));
    remove(&unfinished)?;
    let made = make(&unfinished)
        .and_then(|()| fs::rename(&unfinished, path).map_err(|e| cannot("rename", &unfinished, e)));
    if made.is_err() {
        remove(&unfinished)?;
    }
    made.map(|()| path.to_owned())
}

fn remove(path: &Path) -> Result<(), WorkloadError> {
    let gone = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match gone {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(cannot("remove", path, e)),
        _ => Ok(()),
    }
}

/// Fails if the file system of `dir` has less than `bytes` free.
pub fn need_free(dir: &Path, bytes: u64) -> Result<(), WorkloadError> {
    make_dir(dir)?;
    let fs = nix::sys::statvfs::statvfs(dir).map_err(|error| WorkloadError::FileSystem {
        dir: dir.to_owned(),
        error,
    })?;
    let free = fs.blocks_available() * fs.fragment_size();
    if free < bytes {
        return Err(WorkloadError::DiskFull {
            dir: dir.to_owned(),
            free_mib: free >> 20,
            needed_mib: bytes >> 20,
        });
    }
    Ok(())
}

/// Runs a helper to its end; the error has its last words.
pub fn run(command: &mut Command) -> Result<(), WorkloadError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).output();
    let out = match ended {
        Ok(out) => out,
        Err(source) => return Err(WorkloadError::CannotRun { name, source }),
    };
    if out.status.success() {
        return Ok(());
    }
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    let said = last_words(&text);
    Err(WorkloadError::HelperFailed { name, said })
}

/// The first line that mentions an error, otherwise the last one; at most 300 characters.
fn last_words(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let found = lines
        .clone()
        .find(|l| l.to_lowercase().contains("error"))
        .or_else(|| lines.next_back())
        .unwrap_or("it says nothing");
    found.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/data.bin");
        let failed = produce(&path, |tmp| {
            write(tmp, b"half")?;
            Err(WorkloadError::NoPort)
        });
        assert!(matches!(failed, Err(WorkloadError::NoPort)));
        assert!(!path.exists());
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 0);

        // The leftovers of a killed process do not count as complete either.
        write(&dir.path().join("a/data.bin.unfinished"), b"half").unwrap();
        produce(&path, |tmp| {
            assert!(!tmp.exists());
            write(tmp, b"whole")
        })
        .unwrap();
        produce(&path, |_| panic!("made twice")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn directories_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        make_dir(&dir.path().join("env.unfinished/old")).unwrap();
        produce(&path, |tmp| {
            make_dir(tmp)?;
            write(&tmp.join("x"), b"1")
        })
        .unwrap();
        assert!(path.join("x").exists() && !path.join("old").exists());
    }

    #[test]
    fn a_failure_is_told_in_one_line() {
        let e = run(Command::new("sh").args([
            "-c",
            "echo fetching; echo '[ERROR] no network'; echo more; exit 3",
        ]));
        assert_eq!(e.unwrap_err().to_string(), "sh failed: [ERROR] no network");
        let e = run(&mut Command::new("/no/such/program"))
            .unwrap_err()
            .to_string();
        assert!(e.starts_with("cannot run /no/such/program: "), "{e}");
    }

    #[test]
    fn sums() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write(&path, b"abc").unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), sum);
        assert_eq!(sha256_of(&path).unwrap(), sum);
    }

    #[test]
    fn too_little_disk_is_said() {
        let dir = tempfile::tempdir().unwrap();
        need_free(dir.path(), 1).unwrap();
        let e = need_free(dir.path(), u64::MAX).unwrap_err().to_string();
        assert!(e.contains("MiB are needed"), "{e}");
    }
}
