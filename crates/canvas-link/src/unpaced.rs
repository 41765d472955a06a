//! TCP connections that send a page at once.

use std::ffi::OsString;
use std::os::fd::AsFd;

use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{getsockopt, setsockopt};

/// Algorithms to use instead of one that paces; the first that this host has is taken.
const INSTEAD: [&str; 2] = ["cubic", "reno"];

/// Makes sure that a TCP connection does not pace, as BBR does (tcp(7), `TCP_CONGESTION`): a timer
/// would delay a page that a thread waits for by some 50 us. Other algorithms stay as the host's
/// operator chose them. A host that lacks both of ours keeps its own, which is slower but correct.
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
            // The kernel may lack it, and the user may not be allowed to choose it.
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
