//! Messages with descriptors between processes of one host: UNIX sockets of type SOCK_SEQPACKET, which preserve message
//! boundaries (unix(7)).
//!
//! A listener does not trust its peers: every message is received completely and its descriptors are closed again, and
//! nothing here blocks except [`receive`] on a blocking socket.

use std::format;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::vec;
use std::vec::Vec;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    cmsg_space, connect as connect_to, listen as listen_on, recvmsg, sendmsg, socket,
};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};

/// Most descriptors in a message (the kernel's SCM_MAX_FD).
const FDS_MAX: usize = 253;

/// A received message and the descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message; 0 also when the peer has closed the connection.
    pub bytes: usize,
    /// The message was longer than the buffer, or some of its descriptors could not be received.
    pub cut: bool,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// PID of the sender, where the socket requests it (SO_PASSCRED).
    pub sender: Option<u32>,
}

fn new() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// Creates a non-blocking socket that listens at `path`, which must not exist, for this user alone (mode 0600).
pub fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = new()?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    // Nobody can connect before there is a backlog, so nobody gets in under the process's umask.
    fchmodat(
        AT_FDCWD,
        path,
        Mode::S_IRUSR | Mode::S_IWUSR,
        FchmodatFlags::FollowSymlink,
    )?;
    listen_on(&fd, Backlog::new(128)?)?;
    Ok(fd)
}

/// Calls `listen` with a name beside `path`, and renames the result to `path` once it listens: a client that sees it
/// there is not refused. An existing socket at `path` is replaced.
pub fn named<T>(path: &Path, listen: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let new = path.with_file_name(format!(".{}.sock", std::process::id()));
    let _ = fs::remove_file(&new);
    let made = listen(&new).and_then(|made| {
        fs::rename(&new, path)?;
        Ok(made)
    });
    made.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Connects to the socket at `path`. The connection is non-blocking.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = new()?;
    connect_to(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

/// The next connection, non-blocking; `EAGAIN` when there is none.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_fd().as_raw_fd(), flags)?;
    // SAFETY: a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends one message.
pub fn send(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd]) -> Result<(), Errno> {
    let numbers: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let to = to.as_fd().as_raw_fd();
    sendmsg::<()>(
        to,
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Receives one message into `buf`.
pub fn receive(from: impl AsFd, buf: &mut [u8]) -> Result<Received, Errno> {
    let room = cmsg_space::<[RawFd; FDS_MAX]>() + cmsg_space::<libc::ucred>();
    let mut control = vec![0; room];
    let mut parts = [IoSliceMut::new(buf)];
    let from = from.as_fd().as_raw_fd();
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(from, &mut parts, Some(&mut control), flags)?;
    let (bytes, flags) = (got.bytes, got.flags);
    let cut = flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let (fds, sender) = contents(&control);
    Ok(Received {
        bytes,
        cut,
        fds,
        sender,
    })
}

/// The descriptors that the kernel has put into `control`, and the sender's PID: including those of a truncated list,
/// which would otherwise stay open for good. (nix returns none of these.)
fn contents(control: &[u8]) -> (Vec<OwnedFd>, Option<u32>) {
    /// Bytes of `struct cmsghdr`: length (itself included), level, type.
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const _: () = assert!(HEADER == 16);
    let word = |at: usize| -> Option<u64> {
        let bytes = control.get(at..at + 8)?;
        Some(u64::from_ne_bytes(*bytes.first_chunk()?))
    };
    let int = |at: usize| -> Option<i32> {
        let bytes = control.get(at..at + 4)?;
        Some(i32::from_ne_bytes(*bytes.first_chunk()?))
    };
    let (mut fds, mut sender) = (Vec::new(), None);
    let mut at = 0;
    while let Some(len) = word(at).map(|n| n as usize).filter(|n| *n >= HEADER) {
        let kind = (int(at + 8), int(at + 12));
        if kind == (Some(libc::SOL_SOCKET), Some(libc::SCM_CREDENTIALS)) {
            // struct ucred: process, user, group.
            sender = int(at + HEADER).and_then(|n| n.try_into().ok());
        }
        if kind == (Some(libc::SOL_SOCKET), Some(libc::SCM_RIGHTS)) {
            for place in (at + HEADER..at + len).step_by(4) {
                if let Some(number) = int(place).filter(|n| *n >= 0) {
                    // SAFETY: the kernel has just made this descriptor, which has no other owner.
                    fds.push(unsafe { OwnedFd::from_raw_fd(number) });
                }
            }
        }
        at += len.next_multiple_of(8);
    }
    (fds, sender)
}

/// The device of the file system of `fd`, without a request to the file system: one that a peer runs itself (FUSE)
/// would never answer.
pub fn device(fd: impl AsFd) -> Result<(u32, u32), Errno> {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut buf: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: libc reads the path, which lives, and writes the structure to `buf`.
    let done = unsafe {
        libc::statx(
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            libc::STATX_TYPE,
            &raw mut buf,
        )
    };
    Errno::result(done)?;
    Ok((buf.stx_dev_major, buf.stx_dev_minor))
}

// Miri has no such sockets.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use nix::sys::socket::socketpair;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    fn open_fds() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn messages_keep_apart_and_descriptors_come_along() {
        let (a, b) = pair();
        send(&a, b"one", &[a.as_fd(), b.as_fd()]).unwrap();
        send(&a, b"two", &[]).unwrap();
        let mut buf = [0; 10];
        let got = receive(&b, &mut buf).unwrap();
        assert_eq!((got.bytes, got.cut, got.fds.len()), (3, false, 2));
        // The received descriptors are the same pair: a message goes round over it.
        send(&got.fds[1], b"back", &[]).unwrap();
        drop(got);
        let got = receive(&b, &mut buf).unwrap();
        assert_eq!((&buf[..got.bytes], got.fds.len()), (&b"two"[..], 0));
        assert_eq!(receive(&a, &mut buf).unwrap().bytes, 4);
        assert_eq!(receive(&b, &mut buf).err(), Some(Errno::EAGAIN));
        drop(a);
        assert_eq!(receive(&b, &mut buf).unwrap().bytes, 0);
    }

    #[test]
    fn what_is_too_long_is_cut_and_its_descriptors_are_closed() {
        let (a, b) = pair();
        let many = vec![a.as_fd(); FDS_MAX];
        let before = open_fds();
        for _ in 0..20 {
            send(&a, &[7; 100], &many).unwrap();
            let got = receive(&b, &mut [0; 10]).unwrap();
            assert!(got.cut);
            assert_eq!(got.fds.len(), FDS_MAX);
        }
        // Other tests open a few at the same time.
        assert!(open_fds() < before + FDS_MAX);
    }
}
