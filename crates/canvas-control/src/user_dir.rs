//! Private directories of a user for sockets.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, geteuid, mkdtemp};

/// Directory for users without a runtime directory.
pub const TMP: &str = "/tmp";

/// The user's runtime directory: XDG_RUNTIME_DIR, else /run/user/UID. A directory of another user,
/// which su(1) may leave in the environment, does not count.
pub fn runtime() -> Option<PathBuf> {
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{}", geteuid()));
    let own = |dir: &PathBuf| fs::metadata(dir).is_ok_and(|m| m.uid() == geteuid().as_raw());
    let all = set.filter(|dir| dir.is_absolute()).into_iter();
    all.chain([usual]).find(own)
}

/// The user whose directory in [`TMP`] has this name, if it is such a name.
pub fn owner_of(name: &str) -> Option<Uid> {
    let rest = name.strip_prefix("canvas-")?;
    let uid = rest.split_once('.').map_or(rest, |(uid, _)| uid);
    uid.parse().ok().map(Uid::from_raw)
}

/// This user's directories in `tmp` that nobody else can read or write, the preferred one first.
pub fn all_in(tmp: &Path) -> Vec<PathBuf> {
    let me = geteuid();
    let entries = fs::read_dir(tmp).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_str().and_then(owner_of) == Some(me));
    let own = |dir: &PathBuf| {
        let there = fs::symlink_metadata(dir);
        there.is_ok_and(|m| m.is_dir() && m.uid() == me.as_raw() && m.mode() & 0o077 == 0)
    };
    let mut all: Vec<PathBuf> = named.map(|e| e.path()).filter(own).collect();
    all.sort();
    all
}

/// Makes such a directory if there is none. If another user takes its name first, it gets a name
/// that nobody can guess, and is found by its owner.
pub fn make_in(tmp: &Path) -> io::Result<PathBuf> {
    if let Some(dir) = all_in(tmp).into_iter().next() {
        return Ok(dir);
    }
    let name = format!("canvas-{}", geteuid());
    let dir = tmp.join(&name);
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Ok(mkdtemp(&tmp.join(format!("{name}.XXXXXX")))?)
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nobody_else_can_deny_a_user_a_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let first = tmp.path().join(format!("canvas-{}", geteuid()));
        // A readable directory stands for another user's, which a test cannot make.
        fs::create_dir(&first).unwrap();
        fs::set_permissions(&first, fs::Permissions::from_mode(0o777)).unwrap();
        let other = tmp.path().join("canvas-1x");
        fs::create_dir(other).unwrap();
        assert!(all_in(tmp.path()).is_empty());
        let made = make_in(tmp.path()).unwrap();
        assert_ne!(made, first);
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(make_in(tmp.path()).unwrap(), made);
        assert_eq!(all_in(tmp.path()), [made]);
    }

    #[test]
    fn the_plain_name_is_taken_where_it_can_be_had() {
        let tmp = tempfile::tempdir().unwrap();
        let plain = tmp.path().join(format!("canvas-{}", geteuid()));
        assert_eq!(make_in(tmp.path()).unwrap(), plain);
        assert_eq!(make_in(tmp.path()).unwrap(), plain);
        assert!(make_in(&tmp.path().join("none")).is_err());
    }

    #[test]
    fn names_say_whose_they_are() {
        let uid = |n| Some(Uid::from_raw(n));
        assert_eq!(owner_of("canvas-7"), uid(7));
        assert_eq!(owner_of("canvas-7.aB3xYz"), uid(7));
        for other in ["canvas-", "canvas-x", "canvas-7x", "canva-7", "7"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
