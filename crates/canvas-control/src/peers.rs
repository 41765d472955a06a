//! Serves clients of a process without blocking its main work.
//!
//! Everything is non-blocking and bounded: the number of clients, the length of requests, and the
//! time for each. Slow clients are disconnected. A connection carries one request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use crate::names::Name;
use crate::place::{Listening, Place};
use crate::text::reason;
use crate::wire::REQUEST_BYTES_MAX;

/// Most simultaneous connections to the control socket, and as many to the metrics: clients of one
/// cannot lock out those of the other.
const PEERS_MAX: usize = 16;
/// Most time for a connection.
const TIME: Duration = Duration::from_secs(2);
/// Content type of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A request.
pub enum Asked<'a> {
    /// A line over the control socket.
    Line(&'a [u8]),
    /// A request for the metrics.
    Metrics,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

struct Peer {
    stream: Stream,
    until: Instant,
    inbox: Vec<u8>,
    /// The answer, once there is one, and how much of it was sent.
    outbox: Option<(Vec<u8>, usize)>,
}

/// The metrics' address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics cannot be offered on {addr}: {}; write another address after --metrics",
    reason(.source)
)]
pub struct MetricsError {
    /// The address.
    pub addr: SocketAddr,
    /// The system's error.
    pub source: std::io::Error,
}

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("`canvas status` will not see this {kind}, whose socket cannot be made: {why}")]
pub struct ControlError {
    /// What a tenant is called there: "run" or "disk".
    pub kind: &'static str,
    /// Why not.
    pub why: String,
}

/// Listening sockets and connected clients.
#[derive(Default)]
pub struct Peers {
    control: Option<Listening>,
    metrics: Option<TcpListener>,
    peers: Vec<Peer>,
}

impl Peers {
    /// Without listening sockets.
    pub fn new() -> Peers {
        Peers::default()
    }

    /// Opens the control socket for `canvas status` and other commands, as the tenant's `kind`
    /// ("run" or "disk").
    pub fn open(&mut self, tenant: &str, kind: &'static str) -> Result<(), ControlError> {
        let name = Name {
            tenant: tenant.to_owned(),
            pid: std::process::id(),
            namesake: 0,
        };
        let listening = Place::own()
            .map_err(|e| e.to_string())
            .and_then(|place| place.listen(name).map_err(|e| reason(&e)));
        self.listen_to_control(listening.map_err(|why| ControlError { kind, why })?);
        Ok(())
    }

    /// Serves requests over a control socket.
    fn listen_to_control(&mut self, listening: Listening) {
        self.control = Some(listening);
    }

    /// Serves the metrics; returns the listening address.
    fn listen_to_scrapes(&mut self, addr: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        self.metrics = Some(listener);
        Ok(addr)
    }

    /// Serves the metrics at the address of a command's `--metrics`.
    pub fn offer_metrics(&mut self, addr: SocketAddr) -> Result<(), MetricsError> {
        match self.listen_to_scrapes(addr) {
            Ok(_) => Ok(()),
            Err(source) => Err(MetricsError { addr, source }),
        }
    }

    /// Descriptors to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let control = self.control.iter().map(move |l| input(l.as_fd()));
        let metrics = self.metrics.iter().map(move |l| input(l.as_fd()));
        let peers = self.peers.iter().map(|p| {
            let events = match p.outbox {
                None => PollFlags::POLLIN,
                Some(_) => PollFlags::POLLOUT,
            };
            PollFd::new(p.stream.as_fd(), events)
        });
        control.chain(metrics).chain(peers)
    }

    /// Whether a client is connected.
    pub fn any(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Accepts clients, reads, answers and writes, as far as possible without waiting.
    pub fn serve(&mut self, mut answer: impl FnMut(Asked) -> String) {
        self.accept();
        // First their turn, then their timeouts: if this process got no processor, the clients were
        // not slow.
        self.peers
            .retain_mut(|p| p.turn(&mut answer).unwrap_or(false) && p.until > Instant::now());
    }

    fn accept(&mut self) {
        let until = Instant::now() + TIME;
        let mut add = |stream: Stream| {
            let of_its_kind = |p: &&Peer| p.stream.is_control() == stream.is_control();
            if self.peers.iter().filter(of_its_kind).count() < PEERS_MAX {
                self.peers.push(Peer {
                    stream,
                    until,
                    inbox: Vec::new(),
                    outbox: None,
                });
            }
        };
        while let Some(listening) = &self.control
            && let Ok((stream, _)) = listening.listener().accept()
        {
            let me = geteuid().as_raw();
            let peer = getsockopt(&stream, PeerCredentials).map(|c| c.uid());
            if peer.is_ok_and(|uid| uid == 0 || uid == me) && stream.set_nonblocking(true).is_ok() {
                add(Stream::Unix(stream));
            }
        }
        while let Some(listener) = &self.metrics
            && let Ok((stream, _)) = listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                add(Stream::Tcp(stream));
            }
        }
    }
}

impl Peer {
    /// Does what is possible now; false or `None` when the connection is finished.
    fn turn(&mut self, answer: &mut impl FnMut(Asked) -> String) -> Option<bool> {
        while self.outbox.is_none() {
            let mut chunk = [0; 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.inbox.extend(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(true),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            let text = match self.stream {
                Stream::Unix(_) => line(&self.inbox, answer)?,
                Stream::Tcp(_) => http(&self.inbox, answer),
            };
            self.outbox = text.map(|t| (t.into_bytes(), 0));
        }
        let (bytes, sent) = self.outbox.as_mut()?;
        while *sent < bytes.len() {
            match self.stream.write(&bytes[*sent..]) {
                Ok(0) => return None,
                Ok(n) => *sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(true),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(false)
    }
}

/// The answer to a complete line; the outer `None` disconnects the client.
fn line(inbox: &[u8], answer: &mut impl FnMut(Asked) -> String) -> Option<Option<String>> {
    match inbox.iter().position(|b| *b == b'\n') {
        Some(end) if end < REQUEST_BYTES_MAX => {
            Some(Some(answer(Asked::Line(&inbox[..end])) + "\n"))
        }
        None if inbox.len() < REQUEST_BYTES_MAX => Some(None),
        _ => None,
    }
}

/// The answer to an HTTP request whose head is complete. Only the part of HTTP that scrapers need:
/// one GET, and the end of the connection.
fn http(inbox: &[u8], answer: &mut impl FnMut(Asked) -> String) -> Option<String> {
    let whole =
        inbox.windows(4).any(|w| w == b"\r\n\r\n") || inbox.windows(2).any(|w| w == b"\n\n");
    let response = |status: &str, kind: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let plain = |status, body| Some(response(status, "text/plain; charset=utf-8", body));
    if !whole {
        return match inbox.len() {
            n if n < REQUEST_BYTES_MAX => None,
            _ => plain("431 Request Header Fields Too Large", "too long\n"),
        };
    }
    let first = inbox.split(|b| *b == b'\r' || *b == b'\n').next();
    let first = String::from_utf8_lossy(first.unwrap_or_default()).into_owned();
    let mut words = first.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(path), Some(version)) if version.starts_with("HTTP/1.") => {
            match path.split('?').next() {
                Some("/metrics") => Some(response("200 OK", OPEN_METRICS, &answer(Asked::Metrics))),
                _ => plain("404 Not Found", "the metrics are at /metrics\n"),
            }
        }
        (Some(_), Some(_), Some(version)) if version.starts_with("HTTP/1.") => {
            plain("405 Method Not Allowed", "only GET\n")
        }
        _ => plain("400 Bad Request", "this is not an HTTP request\n"),
    }
}

impl Stream {
    fn is_control(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(to),
            Stream::Tcp(s) => s.read(to),
        }
    }
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(s) => s.write(from),
            Stream::Tcp(s) => s.write(from),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
            Stream::Tcp(s) => s.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Option<String> {
        http(text.as_bytes(), &mut |_| "m 1\n".to_owned())
    }

    #[test]
    fn one_get_and_no_more() {
        let good = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nm 1\n"));
        assert!(good.contains("Content-Length: 4\r\n"), "{good}");
        for (text, code) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.0\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            (&"x".repeat(5000), "431"),
        ] {
            assert_eq!(ask(text).unwrap().split(' ').nth(1), Some(code), "{text}");
        }
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None, "not all");
    }

    #[test]
    fn a_line_that_does_not_end_is_dropped() {
        let mut answer = |asked: Asked| match asked {
            Asked::Line(line) => String::from_utf8_lossy(line).into_owned(),
            Asked::Metrics => unreachable!(),
        };
        assert_eq!(line(b"abc\n", &mut answer), Some(Some("abc\n".to_owned())));
        assert_eq!(line(b"abc", &mut answer), Some(None));
        assert_eq!(line(&[b'x'; REQUEST_BYTES_MAX], &mut answer), None);
        let mut long = vec![b'x'; REQUEST_BYTES_MAX];
        long.push(b'\n');
        assert_eq!(line(&long, &mut answer), None);
    }

    /// With all connections for metrics in use, operators still get answers; and vice versa.
    #[test]
    fn slow_readers_of_the_metrics_keep_nobody_from_the_control_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.1.sock");
        let name = Name {
            tenant: "web".to_owned(),
            pid: 1,
            namesake: 0,
        };
        let mut peers = Peers::new();
        let listening = Place::of_test(dir.path()).listen(name).unwrap();
        peers.listen_to_control(listening);
        let addr = peers
            .listen_to_scrapes("127.0.0.1:0".parse().unwrap())
            .unwrap();
        let scrapes: Vec<_> = (0..PEERS_MAX + 4)
            .map(|_| TcpStream::connect(addr).unwrap())
            .collect();
        peers.serve(|_| unreachable!());
        assert_eq!(peers.peers.len(), PEERS_MAX);
        let mut asks = UnixStream::connect(&path).unwrap();
        asks.write_all(b"status\n").unwrap();
        peers.serve(|asked| match asked {
            Asked::Line(line) => String::from_utf8_lossy(line).into_owned(),
            Asked::Metrics => unreachable!(),
        });
        let mut answer = String::new();
        asks.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "status\n");
        drop(scrapes);
        peers.serve(|_| unreachable!());
        assert!(!peers.any());
        let _silent: Vec<_> = (0..PEERS_MAX + 4)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        peers.serve(|_| unreachable!());
        assert_eq!(peers.peers.len(), PEERS_MAX);
        let mut scrape = TcpStream::connect(addr).unwrap();
        scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        scrape
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let (mut answer, mut tries) = (Vec::new(), 0);
        while answer.is_empty() && tries < 1000 {
            peers.serve(|_| "m 1\n".to_owned());
            let _ = scrape.read_to_end(&mut answer);
            tries += 1;
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{answer:?}");
    }

    /// This process got no processor for longer than a client's timeout, while the client's request
    /// was already there.
    #[test]
    fn who_has_asked_is_answered_though_we_were_late() {
        let mut peers = Peers::new();
        let addr = peers
            .listen_to_scrapes("127.0.0.1:0".parse().unwrap())
            .unwrap();
        let mut scrape = TcpStream::connect(addr).unwrap();
        peers.serve(|_| unreachable!());
        scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        peers.peers[0].until = Instant::now();
        peers.serve(|_| "m 1\n".to_owned());
        let mut answer = Vec::new();
        scrape.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{answer:?}");
    }

    #[test]
    fn who_is_slow_is_dropped_and_nobody_waits() {
        let mut peers = Peers::new();
        let addr = peers
            .listen_to_scrapes("127.0.0.1:0".parse().unwrap())
            .unwrap();
        let mut slow: Vec<_> = (0..PEERS_MAX + 4)
            .map(|_| TcpStream::connect(addr).unwrap())
            .collect();
        peers.serve(|_| unreachable!());
        assert_eq!(peers.peers.len(), PEERS_MAX, "the rest is closed");
        for p in &mut peers.peers {
            p.until = Instant::now();
        }
        peers.serve(|_| unreachable!());
        assert!(!peers.any());
        for s in &mut slow {
            s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert!(matches!(s.read(&mut [0]), Ok(0)));
        }
        // A client that reads nothing of a long answer.
        let mut deaf = TcpStream::connect(addr).unwrap();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        for _ in 0..100 {
            peers.serve(|_| "x".repeat(32 << 20));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(peers.any());
        peers.peers[0].until = Instant::now();
        peers.serve(|_| unreachable!());
        assert!(!peers.any());
    }
}
