//! The UNIX socket of a disk, for one user or for a group.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use canvas_shm::pass;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::unistd::{Gid, Group, chown};

/// Most clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("{} is in use: another process listens there; write another path", .0.display())]
    InUse(PathBuf),
    /// There is a file that must not be overwritten.
    #[error("{} exists and is not a socket; write another path", .0.display())]
    NoSocket(PathBuf),
    /// There is no such group.
    #[error("there is no group {0}; name one that `getent group` lists")]
    Group(String),
    /// A system call failed.
    #[error("{} cannot be listened on: {}", .path.display(), .errno.desc())]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
}

/// A listening socket and its lock. The owner removes it when this is dropped.
pub struct Socket {
    /// Accepts clients; it does not block.
    pub listener: UnixListener,
    path: PathBuf,
    /// Held while somebody listens: a socket without it is a leftover.
    lock: Lock,
}

enum Lock {
    /// This process's own.
    Own(Flock<File>),
    /// Shared with the process that started this one, which has this pid; once that is gone, this
    /// process's own.
    Held(OwnedFd, u32),
}

impl Socket {
    /// Listens at `path`, for this user and for the members of `group`, if given. A socket left
    /// behind by a killed server is replaced.
    pub fn open(path: &Path, group: Option<&str>) -> Result<Socket, SocketError> {
        let group = group.map(group_of).transpose()?;
        let fail = |errno| SocketError::System {
            path: path.to_owned(),
            errno,
        };
        let other = |e: io::Error| fail(Errno::from_raw(e.raw_os_error().unwrap_or(0)));
        // First of all: the path may be too long.
        UnixAddr::new(path).map_err(fail)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            _ => {}
        }
        let lock = lock(path).map_err(other)?;
        let lock = lock.ok_or_else(|| SocketError::InUse(path.to_owned()))?;
        if UnixStream::connect(path).is_ok() {
            return Err(SocketError::InUse(path.to_owned()));
        }
        let listener = pass::named(path, |new| listener(new, group)).map_err(other)?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            lock: Lock::Own(lock),
        })
    }

    /// The socket at `path` that process `parent` listens on and owns, from the descriptors that it
    /// passed.
    pub fn held(listener: OwnedFd, lock: OwnedFd, path: &Path, parent: u32) -> Socket {
        Socket {
            listener: listener.into(),
            path: path.to_owned(),
            lock: Lock::Held(lock, parent),
        }
    }

    /// Descriptors that another process needs for [`Socket::held`]: listener and lock.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        let lock = match &self.lock {
            Lock::Own(lock) => lock.as_fd(),
            Lock::Held(lock, _) => lock.as_fd(),
        };
        [self.listener.as_fd(), lock]
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Lock::Held(_, parent) = self.lock
            && std::os::unix::process::parent_id() == parent
        {
            return;
        }
        // Under the lock, so both are this process's.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(lock_path(&self.path));
    }
}

/// Listens at a path where there is nothing.
fn listener(path: &Path, group: Option<Gid>) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    // Nobody can connect before listen(2), so the process's umask does not matter.
    permit(path, group)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd.into())
}

fn group_of(name: &str) -> Result<Gid, SocketError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        _ => Err(SocketError::Group(name.to_owned())),
    }
}

fn permit(path: &Path, group: Option<Gid>) -> io::Result<()> {
    let mode = match group {
        None => 0o600,
        Some(group) => {
            chown(path, None, Some(group))?;
            0o660
        }
    };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock next to a socket; `None` if another process holds it.
fn lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let name = lock_path(path);
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&name)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, e)) => return Err(e.into()),
        };
        // Its last holder may have removed it between the two calls above.
        let number = |there: io::Result<fs::Metadata>| there.map(|m| (m.dev(), m.ino())).ok();
        if number(lock.metadata()) == number(fs::symlink_metadata(&name)) {
            return Ok(Some(lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[test]
    fn one_disk_is_served_and_what_a_dead_one_left_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let first = Socket::open(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let why = Socket::open(&path, None).err().unwrap().to_string();
        assert!(why.contains("is in use: another process"), "{why}");
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists() && UnixStream::connect(&path).is_err());
        let _second = Socket::open(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_held_for_another_process_stays_until_that_one_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let there = || fs::read_dir(dir.path()).unwrap().count();
        let first = Socket::open(&path, None).unwrap();
        let given = |parent| {
            let [listener, lock] = first.fds().map(|fd| fd.try_clone_to_owned().unwrap());
            Socket::held(listener, lock, &path, parent)
        };
        let parent = std::os::unix::process::parent_id();
        drop(given(parent));
        assert_eq!(there(), 2);
        let second = given(parent + 1);
        let waits = UnixStream::connect(&path).unwrap();
        assert!(second.listener.accept().is_ok(), "who is there is served");
        drop((waits, second));
        assert_eq!(there(), 0);
    }

    #[test]
    fn who_sees_the_socket_is_not_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let ended = AtomicBool::new(false);
        // Odd while a socket goes.
        let ends = AtomicUsize::new(0);
        let (seen, refused) = std::thread::scope(|s| {
            let looking = s.spawn(|| {
                let (mut seen, mut refused) = (0, 0);
                while !ended.load(Relaxed) {
                    let before = ends.load(SeqCst);
                    match UnixStream::connect(&path) {
                        // A listener that ended between the kernel's lookup of its name and the
                        // connection rightly refuses.
                        Err(_) if before % 2 == 1 || ends.load(SeqCst) != before => {}
                        Err(e) if e.kind() == ErrorKind::ConnectionRefused => refused += 1,
                        Ok(_) => seen += 1,
                        Err(_) => {}
                    }
                }
                (seen, refused)
            });
            for _ in 0..2000 {
                let socket = Socket::open(&path, None).unwrap();
                // The name disappears first, as at any end except a kill.
                ends.fetch_add(1, SeqCst);
                fs::remove_file(&path).unwrap();
                drop(socket);
                ends.fetch_add(1, SeqCst);
            }
            ended.store(true, Relaxed);
            looking.join().unwrap()
        });
        assert!(refused == 0, "{refused} refused, {seen} not");
    }

    #[test]
    fn what_is_in_the_way_is_told_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "dear").unwrap();
        let said = |path: &Path| Socket::open(path, None).err().unwrap().to_string();
        assert!(said(&path).contains("exists and is not a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
        assert!(!dir.path().join("file.lock").exists());
        let long = dir.path().join("x".repeat(120));
        assert!(
            said(&long).contains("File name too long"),
            "{}",
            said(&long)
        );
        let nowhere = dir.path().join("no/disk.sock");
        assert!(said(&nowhere).contains("No such file or directory"));
        let why = Socket::open(&dir.path().join("s"), Some("no-such-group"));
        let why = why.err().unwrap().to_string();
        assert!(why.starts_with("there is no group no-such-group"), "{why}");
    }
}
