//! Where the host agent listens.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use canvas_control::user_dir::{self, TMP};
use canvas_shm::pass::{self, Received};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Group, chown, geteuid};

use super::error::SocketError;

/// The socket of an agent for all users.
const SYSTEM: &str = "/run/canvas/agent.sock";

/// A listening socket, and the lock that belongs to it.
pub struct ListeningSocket {
    /// The socket.
    pub socket: OwnedFd,
    /// Locked as long as any process has it open.
    pub lock: OwnedFd,
}

/// Where an agent of this user listens; root's agent serves all users.
pub fn own_path() -> Result<PathBuf, SocketError> {
    if geteuid().is_root() {
        return Ok(SYSTEM.into());
    }
    match user_dir::runtime() {
        Some(dir) => Ok(dir.join("canvas/agent.sock")),
        None => match user_dir::make_in(Path::new(TMP)) {
            Ok(dir) => Ok(dir.join("agent.sock")),
            Err(source) => Err(SocketError::Dir {
                dir: TMP.into(),
                source,
            }),
        },
    }
}

/// The agent that a program of this user uses: the user's own if there is one, else root's. Creates nothing.
pub fn path_to_ask() -> PathBuf {
    let usual = user_dir::runtime().map(|dir| dir.join("canvas"));
    let dirs = usual.into_iter().chain(user_dir::all_in(Path::new(TMP)));
    let mut own = dirs.map(|dir| dir.join("agent.sock"));
    let is_root = geteuid().is_root();
    own.find(|path| !is_root && path.exists())
        .unwrap_or_else(|| SYSTEM.into())
}

impl ListeningSocket {
    /// Listens at `path`; `None` when another process does already.
    pub fn open(path: &Path) -> std::io::Result<Option<ListeningSocket>> {
        // The socket is the agent's user's alone until `permit` changes that. The umask belongs to the whole process,
        // so nothing here relies on it.
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            make_dirs(dir)?;
        }
        let Some(lock) = lock(&lock_path(path))? else {
            return Ok(None);
        };
        // Nobody has the lock, so nobody listens: an existing socket was left behind.
        Ok(Some(ListeningSocket {
            socket: pass::named(path, |new| Ok(pass::listen(new)?))?,
            lock: lock.into(),
        }))
    }

    /// Removes the socket at `path` and its lock file, when nobody listens any more. This process holds the lock, so
    /// neither file is another agent's.
    pub fn remove(&self, path: &Path) {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(lock_path(path));
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock beside a socket; `None` when another process holds it.
fn lock(name: &Path) -> std::io::Result<Option<File>> {
    loop {
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(name)?;
        // An open-file-description lock: a process that is handed the descriptor holds the lock as well.
        let wanted = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        match fcntl(&lock, FcntlArg::F_OFD_SETLK(&wanted)) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        // The previous holder may have removed the file, and another agent may have created a new one.
        let there = fs::symlink_metadata(name);
        if there.is_ok_and(|m| lock.metadata().is_ok_and(|own| own.ino() == m.ino())) {
            return Ok(Some(lock));
        }
    }
}

/// Creates missing directories such that others can pass through them (mode 0755).
fn make_dirs(dir: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|d| !d.as_os_str().is_empty() && !d.exists())
        .collect();
    for dir in missing.into_iter().rev() {
        match fs::create_dir(dir) {
            // Another process created it just now, and chooses its mode.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The id of the group of this name.
pub fn group(name: &str) -> Result<Gid, SocketError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        _ => Err(SocketError::Group(name.to_owned())),
    }
}

/// Lets the members of a group connect, or (without one) only the agent's own user.
pub fn permit(path: &Path, group: Option<Gid>) -> Result<(), SocketError> {
    let fail = |source| SocketError::Permissions {
        path: path.to_owned(),
        source,
    };
    let mode = match group {
        None => 0o600,
        Some(group) => {
            chown(path, None, Some(group)).map_err(|e| fail(e.into()))?;
            0o660
        }
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fail)
}

/// Waits until a socket is ready for `what`; false at `until` or on an error.
fn ready(fd: &OwnedFd, what: PollFlags, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), what)], timeout) {
            Ok(0) => return false,
            Err(Errno::EINTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// Receives a message; an error if none arrives within `wait`.
pub fn receive_within(fd: &OwnedFd, buf: &mut [u8], wait: Duration) -> Result<Received, Errno> {
    let until = Instant::now() + wait;
    loop {
        match pass::receive(fd, buf) {
            Err(Errno::EAGAIN) if ready(fd, PollFlags::POLLIN, until) => {}
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            other => return other,
        }
    }
}

/// Sends a message; an error if the peer does not take it within `wait`.
pub fn send_within(
    fd: &OwnedFd,
    bytes: &[u8],
    fds: &[std::os::fd::BorrowedFd],
    wait: Duration,
) -> Result<(), Errno> {
    let until = Instant::now() + wait;
    loop {
        match pass::send(fd, bytes, fds) {
            Err(Errno::EAGAIN) if ready(fd, PollFlags::POLLOUT, until) => {}
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_listens_and_what_a_dead_one_left_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/agent.sock");
        let first = ListeningSocket::open(&path).unwrap().unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(ListeningSocket::open(&path).unwrap().is_none());
        let copy = first.lock.try_clone().unwrap();
        drop(first);
        assert!(ListeningSocket::open(&path).unwrap().is_none(), "handed on");
        drop(copy);
        assert!(path.exists());
        let second = ListeningSocket::open(&path).unwrap().unwrap();
        assert!(pass::connect(&path).is_ok());
        second.remove(&path);
        let left = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(left.count(), 0);
        // The agent that removed the file still locks it: that lock does not affect a new file.
        let _third = ListeningSocket::open(&path).unwrap().unwrap();
        assert!(ListeningSocket::open(&path).unwrap().is_none());
    }

    #[test]
    fn several_that_open_at_once_do_not_lend_each_other_their_modes() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|s| {
            for thread in 0..4 {
                let dir = &dir;
                s.spawn(move || {
                    for round in 0..200 {
                        let sub = dir.path().join(format!("{thread}-{round}"));
                        let path = sub.join("agent.sock");
                        let _listening = ListeningSocket::open(&path).unwrap().unwrap();
                        let mode = |p: &Path| fs::symlink_metadata(p).unwrap().mode() & 0o777;
                        assert_eq!((mode(&sub), mode(&path)), (0o755, 0o600));
                    }
                });
            }
        });
    }

    #[test]
    fn a_group_that_does_not_exist_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listening = ListeningSocket::open(&path).unwrap().unwrap();
        let why = group("no-such-group").unwrap_err().to_string();
        assert!(why.starts_with("there is no group no-such-group"), "{why}");
        permit(&path, None).unwrap();
    }

    #[test]
    fn waiting_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listening = ListeningSocket::open(&path).unwrap().unwrap();
        let fd = pass::connect(&path).unwrap();
        let got = receive_within(&fd, &mut [0; 8], Duration::from_millis(20));
        assert_eq!(got.err(), Some(Errno::ETIMEDOUT));
    }
}
