//! Relays messages to the service manager (`NOTIFY_SOCKET`, sd_notify(3)) on CMD's behalf.
//!
//! To the manager, canvas is the service's main process, whose messages alone it usually accepts,
//! and whose end it sees. So CMD gets a socket of canvas's, which passes messages on to the
//! manager. (Announcing CMD as the main process would lose its exit code, because it is not the
//! manager's child.)

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use canvas_shm::pass;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname,
    sendmsg, setsockopt, socket, sockopt,
};

/// Variable with the manager's socket.
const ENV_NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// Most bytes of a message that systemd accepts (NOTIFY_BUFFER_MAX).
const MESSAGE_BYTES: usize = 4096;

/// The two sockets: CMD's and the manager's.
pub struct Notify {
    ours: OwnedFd,
    manager: UnixAddr,
    /// The name that CMD gets in its environment.
    name: OsString,
}

/// Replaces the manager's socket in CMD's environment by one of canvas's, if there is one.
pub fn stand_in(env: &mut [(OsString, OsString)]) -> Option<Notify> {
    let (_, name) = env.iter_mut().find(|(name, _)| name == ENV_NOTIFY_SOCKET)?;
    let notify = Notify::open(name)?;
    name.clone_from(&notify.name);
    Some(notify)
}

impl Notify {
    /// Opens a socket in front of the manager's, which the environment calls `name`; `None` if
    /// canvas cannot relay to it.
    fn open(name: &OsStr) -> Option<Notify> {
        let manager = match name.as_bytes() {
            [b'@', abstract_name @ ..] => UnixAddr::new_abstract(abstract_name).ok()?,
            [b'/', ..] => UnixAddr::new(name).ok()?,
            _ => return None,
        };
        Notify::before(manager).ok()
    }

    fn before(manager: UnixAddr) -> Result<Notify, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let ours = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        setsockopt(&ours, sockopt::PassCred, &true)?;
        // Without a name the kernel chooses one, which disappears with the socket.
        bind(ours.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let bound: UnixAddr = getsockname(ours.as_raw_fd())?;
        let chosen = bound.as_abstract().ok_or(Errno::EADDRNOTAVAIL)?;
        let name = OsStr::from_bytes(&[b"@", chosen].concat()).to_owned();
        Ok(Notify {
            ours,
            manager,
            name,
        })
    }

    /// Descriptor to wait for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.ours.as_fd(), PollFlags::POLLIN)
    }

    /// Passes pending messages on. `child` is CMD.
    pub fn pass_on(&self, child: u32) {
        let mut text = [0; MESSAGE_BYTES];
        while let Ok(message) = pass::receive(&self.ours, &mut text) {
            let sender = message.sender.unwrap_or(0);
            if message.cut || sender != child && !is_of_this_service(sender) {
                continue;
            }
            let text = without_own_number(&text[..message.bytes], child);
            let fds: Vec<RawFd> = message.fds.iter().map(AsRawFd::as_raw_fd).collect();
            let rights = [ControlMessage::ScmRights(&fds)];
            let control = if fds.is_empty() { &[][..] } else { &rights };
            if !text.is_empty() || !fds.is_empty() {
                let (words, flags) = ([IoSlice::new(&text)], MsgFlags::MSG_NOSIGNAL);
                let to = Some(&self.manager);
                // If nobody listens any more, the message is not missed.
                let _ = sendmsg(self.ours.as_raw_fd(), &words, control, flags, to);
            }
        }
    }
}

/// Whether `pid` belongs to this process's service. The manager also decides by control groups.
fn is_of_this_service(pid: u32) -> bool {
    let group = |pid: &str| fs::read(format!("/proc/{pid}/cgroup")).ok();
    group(&pid.to_string()).is_some_and(|theirs| group("self") == Some(theirs))
}

/// `text` without lines that announce CMD as the main process: the manager would follow a process
/// whose exit code it cannot get.
fn without_own_number(text: &[u8], child: u32) -> Vec<u8> {
    let own = format!("MAINPID={child}");
    let lines = text
        .split(|b| *b == b'\n')
        .filter(|line| *line != own.as_bytes());
    lines.collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn only_its_own_number_is_left_out() {
        let said = |text: &str| String::from_utf8(without_own_number(text.as_bytes(), 12)).unwrap();
        assert_eq!(said("READY=1\nMAINPID=12\nSTATUS=x"), "READY=1\nSTATUS=x");
        assert_eq!(said("MAINPID=123"), "MAINPID=123");
        assert_eq!(said("MAINPID=12"), "");
    }

    #[test]
    fn the_manager_hears_it_from_canvas() {
        let manager = UnixDatagram::unbound().unwrap();
        setsockopt(&manager, sockopt::PassCred, &true).unwrap();
        bind(manager.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        let at: UnixAddr = getsockname(manager.as_raw_fd()).unwrap();
        let notify = Notify::before(at).unwrap();
        let ours: UnixAddr = getsockname(notify.ours.as_raw_fd()).unwrap();
        let service = UnixDatagram::unbound().unwrap();
        let words = [IoSlice::new(b"READY=1")];
        sendmsg(
            service.as_raw_fd(),
            &words,
            &[],
            MsgFlags::empty(),
            Some(&ours),
        )
        .unwrap();
        notify.pass_on(std::process::id());
        let mut text = [0; 64];
        let bytes = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..bytes], b"READY=1");
        assert_eq!(Notify::open(OsStr::new("vsock:2:1")).map(|n| n.name), None);
    }
}
