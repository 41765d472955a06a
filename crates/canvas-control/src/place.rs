//! The directory of control sockets, private to its user.
//!
//! A socket is named after its tenant and the listening process. It is accessed through a
//! descriptor of its directory, so that nobody can swap the directory, and paths may have any
//! length.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Uid, geteuid};

use crate::names::Name;
use crate::text::reason;
use crate::user_dir::{self, TMP};

/// Environment variable that names another directory, for containers and tests.
pub const ENV_RUN_DIR: &str = "CANVAS_RUN_DIR";

/// A directory of control sockets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", .path.display(), reason(.source))]
pub struct PlaceError {
    /// The directory.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// A directory of control sockets.
pub struct Place {
    fd: OwnedFd,
    /// Its owner.
    pub owner: Uid,
}

fn absolute(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
}

/// This user's directory, unless it is in /tmp.
fn first_path() -> Option<PathBuf> {
    let usual = || match geteuid().is_root() {
        true => Some("/run/canvas/run".into()),
        false => user_dir::runtime().map(|dir| dir.join("canvas/run")),
    };
    absolute(ENV_RUN_DIR).or_else(usual)
}

impl Place {
    /// This user's directory, created if missing.
    pub fn own() -> Result<Place, PlaceError> {
        let make = |path: &Path| {
            // Directories above it may be shared with others (/run/canvas); this one is private.
            let above = path.parent().map_or(Ok(()), fs::create_dir_all);
            let made = above.and_then(|()| match fs::DirBuilder::new().mode(0o700).create(path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            });
            made.and_then(|()| Place::open(path, geteuid()))
        };
        let at = |path: PathBuf| move |source| PlaceError { path, source };
        if let Some(dir) = absolute(ENV_RUN_DIR) {
            return make(&dir).map_err(at(dir));
        }
        if let Some(place) = first_path().and_then(|path| make(&path).ok()) {
            return Ok(place);
        }
        // Directly in /tmp: its sticky bit keeps others from renaming the directory.
        let last = user_dir::make_in(Path::new(TMP)).map_err(at(TMP.into()))?;
        Place::open(&last, geteuid()).map_err(at(last))
    }

    /// Why this user's existing directory is ignored: its sockets cannot be trusted.
    pub fn unusable() -> Option<PlaceError> {
        let path = first_path()?;
        let source = Place::open(&path, geteuid()).err()?;
        (source.kind() != io::ErrorKind::NotFound).then_some(PlaceError { path, source })
    }

    /// All existing directories that this user may use; root may use those of all users.
    pub fn all() -> Vec<Place> {
        let mut own: Vec<PathBuf> = first_path().into_iter().collect();
        if absolute(ENV_RUN_DIR).is_none() {
            own.extend(user_dir::all_in(Path::new(TMP)));
        }
        let open = |path: PathBuf| Place::open(&path, geteuid()).ok();
        let mut places: Vec<_> = own.into_iter().filter_map(open).collect();
        if !geteuid().is_root() || std::env::var_os(ENV_RUN_DIR).is_some() {
            return places;
        }
        let children = |dir: &str| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|e| e.path()).collect::<Vec<_>>()
        };
        let uid = |text: &str| text.parse().ok().map(Uid::from_raw);
        for dir in children("/run/user") {
            let owner = dir.file_name().and_then(|n| uid(n.to_str()?));
            places.extend(owner.and_then(|o| Place::open(&dir.join("canvas/run"), o).ok()));
        }
        for dir in children(TMP) {
            let name = dir.file_name().and_then(|n| n.to_str());
            let owner = name.and_then(user_dir::owner_of);
            let owner = owner.filter(|o| !o.is_root());
            places.extend(owner.and_then(|o| Place::open(&dir, o).ok()));
        }
        places
    }

    /// A directory for a test.
    #[cfg(test)]
    pub fn of_test(dir: &Path) -> Place {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).unwrap();
        Place::open(dir, geteuid()).unwrap()
    }

    /// Opens the directory if it is `owner`'s and nobody else can write to it or read it.
    fn open(path: &Path, owner: Uid) -> io::Result<Place> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let fd = open(path, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        if stat.st_uid != owner.as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(
                "it is another user's, or open to other users",
            ));
        }
        Ok(Place { fd, owner })
    }

    fn at(&self, file: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{file}", self.fd.as_raw_fd()).into()
    }

    /// The sockets' names, sorted.
    pub fn names(&self) -> Vec<Name> {
        let entries = fs::read_dir(self.at("")).into_iter().flatten().flatten();
        let name = |e: fs::DirEntry| Name::parse(e.file_name().to_str()?);
        let mut names: Vec<_> = entries.filter_map(name).collect();
        names.sort();
        names
    }

    /// Connects to a socket; removes it if its process is gone.
    pub fn connect(&self, name: &Name) -> Result<UnixStream, Errno> {
        let fd = socket(
            AddressFamily::Unix,
            SockType::Stream,
            // Must not block on a listener whose queue is full.
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        let path = self.at(&name.file());
        match connect(fd.as_raw_fd(), &UnixAddr::new(&path)?) {
            Ok(()) => Ok(fd.into()),
            Err(e) => {
                if e == Errno::ECONNREFUSED {
                    let _ = fs::remove_file(path);
                }
                Err(e)
            }
        }
    }

    /// Listens under a name, after removing the sockets of dead processes.
    pub fn listen(self, mut name: Name) -> io::Result<Listening> {
        for other in self.names() {
            let _ = self.connect(&other);
        }
        // The socket gets its name once it listens: before, it would look like a dead process's.
        let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
        let new = self.at(&format!(".{}-{namespace}", name.pid));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        listener.set_nonblocking(true)?;
        // A process in another PID namespace may have the same pid.
        while let Err(e) = fs::hard_link(&new, self.at(&name.file())) {
            if e.kind() != io::ErrorKind::AlreadyExists {
                let _ = fs::remove_file(&new);
                return Err(e);
            }
            if self.connect(&name).err() != Some(Errno::ECONNREFUSED) {
                name.namesake += 1;
            }
        }
        fs::remove_file(&new)?;
        Ok(Listening {
            listener,
            place: self,
            name,
        })
    }
}

/// A listening socket; dropping it removes its file.
pub struct Listening {
    listener: UnixListener,
    place: Place,
    name: Name,
}

impl Listening {
    /// The listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.place.at(&self.name.file()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn place(dir: &Path) -> Place {
        Place::of_test(dir)
    }

    fn name(tenant: &str, pid: u32) -> Name {
        Name {
            tenant: tenant.to_owned(),
            pid,
            namesake: 0,
        }
    }

    #[test]
    fn a_dead_ones_socket_is_removed_and_a_live_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a socket address may be.
        let deep = dir.path().join("x".repeat(120));
        fs::create_dir(&deep).unwrap();
        let live = place(&deep).listen(name("live", 1)).unwrap();
        drop(UnixListener::bind(place(&deep).at("dead.2.sock")).unwrap());
        fs::write(deep.join("other"), "").unwrap();
        let p = place(&deep);
        assert_eq!(p.names(), [name("dead", 2), name("live", 1)]);
        assert_eq!(p.connect(&name("dead", 2)).err(), Some(Errno::ECONNREFUSED));
        assert!(p.connect(&name("live", 1)).is_ok());
        assert_eq!(p.names(), [name("live", 1)]);
        drop(live);
        assert_eq!(p.names(), []);
        assert!(deep.join("other").exists());
    }

    /// As with processes in two PID namespaces that share the directory.
    #[test]
    fn a_name_that_is_taken_stays_its_owners() {
        let dir = tempfile::tempdir().unwrap();
        let p = || place(dir.path());
        let first = p().listen(name("t", 1)).unwrap();
        let second = p().listen(name("t", 1)).unwrap();
        let other = Name {
            namesake: 1,
            ..name("t", 1)
        };
        let mut names = p().names();
        names.sort_by_key(|n| n.namesake);
        assert_eq!(names, [name("t", 1), other.clone()]);
        let accepted = |l: &Listening| l.listener().accept().is_ok();
        // The check whether the first one lives made connections.
        while accepted(&first) {}
        assert!(p().connect(&other).is_ok());
        assert!(accepted(&second) && !accepted(&first));
        drop(second);
        assert_eq!(p().names(), [name("t", 1)]);
        assert!(p().connect(&name("t", 1)).is_ok() && accepted(&first));
    }

    #[test]
    fn an_open_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o750)).unwrap();
        assert!(Place::open(dir.path(), geteuid()).is_err());
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let other = Uid::from_raw(geteuid().as_raw() + 1);
        assert!(Place::open(dir.path(), other).is_err());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(Place::open(&link, geteuid()).is_err());
    }
}
