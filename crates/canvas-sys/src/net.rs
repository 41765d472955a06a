//! A process's own connections (socket(2), tcp(7)): made without blocking, and read with a time limit.

use crate::gate::{Errno, sys3, sys6};
use crate::{proc, uffd};
use core::mem::size_of;

/// An IP address: IPv4 in the first four bytes, or IPv6, in network order.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Its bytes.
    pub ip: [u8; 16],
    /// Port.
    pub port: u16,
    /// Whether it is IPv6.
    pub is_v6: bool,
}

/// Distinguishes a socket from all others that this host has or will have (`SO_COOKIE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie(u64);

/// A TCP socket. Dropping it does not close it, because its number may be another file's by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    fd: i32,
    cookie: Cookie,
}

/// Congestion control algorithms that do not pace; the first available one replaces BBR.
const UNPACED: [&[u8]; 2] = [b"cubic", b"reno"];

fn set(fd: i32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let (at, len) = (value.as_ptr() as usize, value.len());
    let (level, name) = (level as usize, name as usize);
    // SAFETY: the kernel reads `value`, which lives across the call.
    unsafe { sys6(libc::SYS_setsockopt, fd as usize, level, name, at, len, 0) }.map(drop)
}

fn get(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as u32;
    let (at, len_at) = (value.as_mut_ptr() as usize, &raw mut len as usize);
    let (level, name) = (level as usize, name as usize);
    // SAFETY: the kernel writes `value`, at most as much as `len` says, and `len`; both live across the call.
    unsafe {
        sys6(
            libc::SYS_getsockopt,
            fd as usize,
            level,
            name,
            at,
            len_at,
            0,
        )
    }?;
    Ok((len as usize).min(value.len()))
}

/// The cookie of the socket behind a descriptor; an error if there is no socket.
fn cookie(fd: i32) -> Result<Cookie, Errno> {
    let mut bytes = [0; 8];
    get(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut bytes)?;
    Ok(Cookie(u64::from_ne_bytes(bytes)))
}

impl Stream {
    /// Creates a socket at or above descriptor `floor`, which exec closes, and starts to connect it. Does not wait.
    pub fn begin(to: Address, floor: i32) -> Result<Stream, Errno> {
        let family = if to.is_v6 {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes no address.
        let low = unsafe { sys3(libc::SYS_socket, family as usize, kind as usize, 0) }? as i32;
        let fd = uffd::move_fd(low, floor, true).inspect_err(|_| proc::close(low))?;
        let begun = cookie(fd).and_then(|cookie| {
            let stream = Stream { fd, cookie };
            stream.prepare()?;
            stream.connect(to)?;
            Ok(stream)
        });
        if begun.is_err() {
            proc::close(fd);
        }
        begun
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Whether the descriptor, in this thread, still refers to the socket.
    pub fn is_here(&self) -> bool {
        cookie(self.fd) == Ok(self.cookie)
    }

    fn prepare(&self) -> Result<(), Errno> {
        let tcp = libc::IPPROTO_TCP;
        set(self.fd, tcp, libc::TCP_NODELAY, &1i32.to_ne_bytes())?;
        let mut name = [0; 16];
        let len = get(self.fd, tcp, libc::TCP_CONGESTION, &mut name).unwrap_or(0);
        if name[..len].starts_with(b"bbr") {
            let takes = |name: &&[u8]| set(self.fd, tcp, libc::TCP_CONGESTION, name).is_ok();
            // Without any of them it works, but slower.
            let _ = UNPACED.iter().any(takes);
        }
        Ok(())
    }

    fn connect(&self, to: Address) -> Result<(), Errno> {
        let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
        let family = if to.is_v6 {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        name[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&to.port.to_be_bytes());
        let len = if to.is_v6 {
            name[8..24].copy_from_slice(&to.ip);
            name.len()
        } else {
            name[4..8].copy_from_slice(&to.ip[..4]);
            size_of::<libc::sockaddr_in>()
        };
        // SAFETY: the kernel reads `name`, which lives across the call.
        let made = unsafe {
            sys3(
                libc::SYS_connect,
                self.fd as usize,
                name.as_ptr() as usize,
                len,
            )
        };
        match made {
            Ok(_) | Err(Errno(libc::EINPROGRESS)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Limits how long [`Stream::receive`] waits if it is asked to.
    pub fn set_patience(&self, ns: u64) -> Result<(), Errno> {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
        value[8..].copy_from_slice(&(ns % 1_000_000_000 / 1000).to_ne_bytes());
        set(self.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value)?;
        let set_flags = libc::F_SETFL as usize;
        // SAFETY: this command takes no address.
        unsafe { sys3(libc::SYS_fcntl, self.fd as usize, set_flags, 0) }.map(drop)
    }

    /// Sends all of `bytes`, or nothing: returns `false` if there is no room, or no connection yet. Does not wait.
    pub fn send(&self, bytes: &[u8]) -> Result<bool, Errno> {
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        let (at, len) = (bytes.as_ptr() as usize, bytes.len());
        // SAFETY: the kernel reads `bytes`, which lives across the call.
        let sent = unsafe { sys6(libc::SYS_sendto, self.fd as usize, at, len, flags, 0, 0) };
        match sent {
            Ok(n) if n == len => Ok(true),
            // A part of a message is useless.
            Ok(_) => Err(Errno(libc::EMSGSIZE)),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Receives some bytes; returns 0 if there are none (if `waits`, after the time limit). The end of the stream is an
    /// error.
    pub fn receive(&self, to: &mut [u8], waits: bool) -> Result<usize, Errno> {
        let flags = if waits { 0 } else { libc::MSG_DONTWAIT };
        let (at, len) = (to.as_mut_ptr() as usize, to.len());
        // SAFETY: the kernel writes at most `len` bytes to `to`.
        let came = unsafe {
            sys6(
                libc::SYS_recvfrom,
                self.fd as usize,
                at,
                len,
                flags as usize,
                0,
                0,
            )
        };
        match came {
            Ok(0) if len > 0 => Err(Errno(libc::ECONNRESET)),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(0),
            other => other,
        }
    }

    /// The local address of the connection, if there is one.
    pub fn local(&self) -> Option<Address> {
        let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
        let mut len = name.len() as u32;
        let (at, len_at) = (name.as_mut_ptr() as usize, &raw mut len as usize);
        // SAFETY: the kernel writes `name`, at most as much as `len` says, and `len`; both live across the call.
        unsafe { sys3(libc::SYS_getsockname, self.fd as usize, at, len_at) }.ok()?;
        let family = i32::from(u16::from_ne_bytes([name[0], name[1]]));
        let port = u16::from_be_bytes([name[2], name[3]]);
        let mut ip = [0; 16];
        match family {
            libc::AF_INET => ip[..4].copy_from_slice(&name[4..8]),
            libc::AF_INET6 => ip.copy_from_slice(&name[8..24]),
            _ => return None,
        }
        Some(Address {
            ip,
            port,
            is_v6: family == libc::AF_INET6,
        })
    }

    /// Closes the socket, if its descriptor still refers to it.
    pub fn close(&self) {
        if self.is_here() {
            proc::close(self.fd);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    fn address(listener: &TcpListener) -> Address {
        let mut ip = [0; 16];
        let addr = listener.local_addr().unwrap();
        match addr.ip() {
            std::net::IpAddr::V4(v4) => ip[..4].copy_from_slice(&v4.octets()),
            std::net::IpAddr::V6(v6) => ip = v6.octets(),
        }
        let (port, is_v6) = (addr.port(), addr.is_ipv6());
        Address { ip, port, is_v6 }
    }

    #[test]
    fn it_connects_sends_and_receives() {
        let _ = crate::gate::open();
        for on in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(on) else {
                continue; // A host without IPv6.
            };
            let stream = Stream::begin(address(&listener), 300).unwrap();
            assert!(stream.fd() >= 300 && stream.is_here());
            let (mut peer, _) = listener.accept().unwrap();
            assert!(stream.send(b"hello").unwrap());
            let mut got = [0; 5];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"hello");
            stream.set_patience(20_000_000).unwrap();
            assert_eq!(stream.receive(&mut got, false), Ok(0));
            let began = Instant::now();
            assert_eq!(stream.receive(&mut got, true), Ok(0));
            assert!(began.elapsed() >= Duration::from_millis(15));
            peer.write_all(b"page").unwrap();
            assert_eq!(stream.receive(&mut got, true), Ok(4));
            drop(peer);
            assert!(stream.receive(&mut got, true).is_err(), "the peer has gone");
            stream.close();
            assert!(!stream.is_here());
        }
    }

    #[test]
    fn a_number_that_is_another_files_is_not_closed() {
        let _ = crate::gate::open();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Stream::begin(address(&listener), 400).unwrap();
        // SAFETY: the call takes no address; the stream's number has no owner that relies on it.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&listener), stream.fd()) };
        assert!(!stream.is_here());
        stream.close();
        assert!(cookie(stream.fd()).is_ok(), "it is open still");
        proc::close(stream.fd());
    }
}
