//! Connections that send a page when it is there.

use std::ffi::OsString;
use std::os::fd::AsFd;

use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{getsockopt, setsockopt};

/// What is taken in place of an algorithm that paces, the first that this host has.
const INSTEAD: [&str; 2] = ["cubic", "reno"];

/// Takes care that a TCP connection does not pace what it sends, as BBR does (tcp(7), `TCP_CONGESTION`): a page that
/// a thread waits for would be held back by a timer of some 50 us. Other algorithms are left as the host's operator
/// has chosen them, and a host that lacks both of ours keeps its own: it is slower, and right.
pub fn unpaced(socket: &impl AsFd) {
    let is_paced = |name: &OsString| name.as_encoded_bytes().starts_with(b"bbr");
    if !getsockopt(socket, TcpCongestion).is_ok_and(|name| is_paced(&name)) {
        return;
    }
    for name in INSTEAD {
        if setsockopt(socket, TcpCongestion, &OsString::from(name)).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_paces_is_replaced_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let name = || {
            let name = getsockopt(&socket, TcpCongestion).unwrap();
            let name = name.into_string().unwrap();
            name.trim_end_matches('\0').to_owned()
        };
        for (set, then) in [("bbr", "cubic"), ("reno", "reno")] {
            // Not every kernel has it, and not every user may choose it.
            if setsockopt(&socket, TcpCongestion, &OsString::from(set)).is_ok() {
                unpaced(&socket);
                let has = name();
                assert!(
                    has == then || (set == "bbr" && has == "reno"),
                    "{set}: {has}"
                );
            }
        }
    }
}
