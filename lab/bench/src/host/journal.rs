//! The directory of journals, which belongs to the bench's user and disappears on reboot.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::JournalError;

/// Path of the directory.
pub(super) fn journal_dir() -> Result<PathBuf, JournalError> {
    let dir = if nix::unistd::geteuid().is_root() && Path::new("/run").is_dir() {
        PathBuf::from("/run/canvas-lab")
    } else {
        std::env::temp_dir().join(format!("canvas-bench-journals-{}", nix::unistd::geteuid()))
    };
    let fail = |source| JournalError::Directory {
        dir: dir.clone(),
        source,
    };
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(fail(e)),
        _ => {}
    }
    use std::os::unix::fs::MetadataExt;
    let owner = fs::symlink_metadata(&dir).map_err(fail)?;
    // In a world-writable directory, someone else may have created it first.
    if !owner.is_dir() || owner.uid() != nix::unistd::geteuid().as_raw() {
        return Err(JournalError::NotOurs(dir));
    }
    Ok(dir)
}

/// Opens or creates the file `name` in the journal directory with `open`.
pub(super) fn in_journal_dir<T>(
    name: &str,
    open: impl Fn(&Path) -> std::io::Result<T>,
) -> Result<T, JournalError> {
    // A bench that ends may remove the directory while it is still empty.
    for _ in 0..100 {
        let path = journal_dir()?.join(name);
        match open(&path) {
            Ok(opened) => return Ok(opened),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(JournalError::Open { path, source }),
        }
    }
    Err(JournalError::Removed)
}

/// Removes the directory of `file` if it is empty.
pub(super) fn leave_journal_dir(file: &Path) {
    if let Some(dir) = file.parent() {
        let _ = fs::remove_dir(dir);
    }
}
