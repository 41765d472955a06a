//! Misbehaving peers: each loses its connection, and nobody else is affected.

use std::io::{Read, Write};
use std::net::TcpStream;

use canvas_link::LinkError;
use canvas_wire::VERSION_MAX;
use canvas_wire::frame::{FromDonor, Hello, Items};
use canvas_wire::session::{Initiator, Session};
use canvas_wire::stream::Incoming;
use nix::sys::socket::{setsockopt, sockopt};

use super::*;

/// A peer that sends whatever a test wants.
struct Raw {
    stream: TcpStream,
    incoming: Incoming,
}

impl Raw {
    fn connect(donor: &Donor) -> Raw {
        let stream = TcpStream::connect(donor.addr).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Raw {
            stream,
            incoming: Incoming::new(),
        }
    }

    /// A peer that has completed the handshake.
    fn shake_hands(donor: &Donor) -> (Raw, Session) {
        let mut raw = Raw::connect(donor);
        let mut out = Vec::new();
        let initiator = Initiator::start(&ClusterKey::without_secret(), &mut out).unwrap();
        raw.stream.write_all(&out).unwrap();
        let answer = raw.message().expect("an answer to the handshake");
        (raw, initiator.finish(&answer).unwrap())
    }

    fn message(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.incoming.message() {
                return Some(message.to_vec());
            }
            match self.stream.read(self.incoming.space()) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.incoming.filled(n),
            }
        }
    }

    /// Reads until the donor closes the connection; returns whether a byte came before.
    fn closed(&mut self) -> bool {
        let mut any = false;
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return any,
                Ok(_) => any = true,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return any,
                Err(e) => panic!("not closed: {e}"),
            }
        }
    }

    fn hello(&mut self, session: &mut Session, hello: Hello) {
        let mut frame = [0; 256];
        let len = Request::Hello(hello).encode(1, &mut frame).unwrap();
        let mut out = Vec::new();
        session.seal(&frame[..len], &mut out).unwrap();
        self.stream.write_all(&out).unwrap();
    }
}

fn hello(version_min: u16, version_max: u16) -> Hello {
    Hello {
        version_min,
        version_max,
        client_id: [9; 16],
        link: 0,
        lease_ms: 30_000,
    }
}

/// Checks that the donor still serves a proper client.
fn still_serves(donor: &Donor) {
    let mut link = connect(donor, config(200));
    let handle = alloc(&mut link, 0);
    write(&mut link, handle, 0, b"fine").unwrap();
    assert_eq!(read(&mut link, handle, 0, 4).unwrap(), b"fine");
}

#[test]
fn wrong_key() {
    let dir = tempfile::tempdir().unwrap();
    let (right, wrong) = (key_file(dir.path(), "right"), key_file(dir.path(), "wrong"));
    let donor = Donor::start(&["--memory", "64M", "--key-file", right.to_str().unwrap()]);
    let with = |path: &Path| LinkConfig {
        key: ClusterKey::read(path).unwrap(),
        ..config(1)
    };
    for bad in [with(&wrong), config(1)] {
        let error = Link::connect(donor.addr, bad).err().expect("no admission");
        assert!(matches!(error, LinkError::NotAdmitted), "{error}");
    }
    donor.wait_log("another cluster key");
    let mut link = connect(&donor, with(&right));
    alloc(&mut link, 0);
    // Nothing is sent in clear, and a peer without the key gets no byte.
    let mut raw = Raw::connect(&donor);
    let mut out = Vec::new();
    Initiator::start(&ClusterKey::from_bytes([3; 32]), &mut out).unwrap();
    raw.stream.write_all(&out).unwrap();
    assert!(!raw.closed(), "a peer without the key was answered");
}

#[test]
fn wrong_version() {
    let donor = Donor::start(&["--memory", "64M"]);
    for (min, max) in [(VERSION_MAX + 1, 9), (0, 0), (5, 1)] {
        let (mut raw, mut session) = Raw::shake_hands(&donor);
        raw.hello(&mut session, hello(min, max));
        let message = raw.message().expect("an error");
        let mut plain = Vec::new();
        session.open(&message, &mut plain).unwrap();
        let (id, frame) = FromDonor::decode(&plain).unwrap();
        assert_eq!(id, 1);
        assert!(
            matches!(
                frame,
                FromDonor::Answer(Answer::Error {
                    code: ErrorCode::Version,
                    ..
                })
            ),
            "{frame:?}"
        );
        assert!(!raw.closed());
    }
    donor.wait_log("version");
    still_serves(&donor);
}

#[test]
fn garbage() {
    let donor = Donor::start(&["--memory", "64M"]);
    let mut bytes = vec![0u8; 4000];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = (i * i / 7) as u8;
    }
    let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    let right_length = [&48u16.to_le_bytes()[..], &[7; 48]].concat();
    for garbage in [bytes, http, right_length, vec![0xff; 2], vec![0; 64]] {
        let mut raw = Raw::connect(&donor);
        raw.stream.write_all(&garbage).unwrap();
        assert!(!raw.closed(), "garbage was answered: {garbage:?}");
    }
    still_serves(&donor);
    let state = donor.wait_state("all counted", |s| s["counters"]["not_admitted"] == 5);
    assert_eq!(state["counters"]["bad_peers"], 0);
}

#[test]
fn bad_messages_after_the_handshake() {
    let donor = Donor::start(&["--memory", "64M"]);
    type Deed = fn(&mut Raw, &mut Session);
    let deeds: [(&str, Deed); 5] = [
        ("a message was changed", |raw, session| {
            let mut out = Vec::new();
            session.seal(&[1; 40], &mut out).unwrap();
            out[10] ^= 1;
            raw.stream.write_all(&out).unwrap();
        }),
        ("its first frame was not a Hello", |raw, session| {
            let mut frame = [0; 64];
            let len = Request::Ping.encode(1, &mut frame).unwrap();
            let mut out = Vec::new();
            session.seal(&frame[..len], &mut out).unwrap();
            raw.stream.write_all(&out).unwrap();
        }),
        ("a second Hello", |raw, session| {
            raw.hello(session, hello(1, 1));
            raw.hello(session, hello(1, 1));
        }),
        ("type 153", |raw, session| {
            raw.hello(session, hello(1, 1));
            let mut frame = [0; 16];
            frame[0] = 0x99;
            let mut out = Vec::new();
            session.seal(&frame, &mut out).unwrap();
            raw.stream.write_all(&out).unwrap();
        }),
        // The same message twice: it opens only once.
        ("a message was changed in transit", |raw, session| {
            raw.hello(session, hello(1, 1));
            let mut frame = [0; 64];
            let len = Request::Ping.encode(1, &mut frame).unwrap();
            let mut out = Vec::new();
            session.seal(&frame[..len], &mut out).unwrap();
            raw.stream.write_all(&out).unwrap();
            raw.stream.write_all(&out).unwrap();
        }),
    ];
    for (n, (reason, deed)) in deeds.into_iter().enumerate() {
        let (mut raw, mut session) = Raw::shake_hands(&donor);
        deed(&mut raw, &mut session);
        raw.closed();
        donor.wait_state(reason, |s| s["counters"]["bad_peers"] == n as u64 + 1);
        donor.wait_log(reason);
    }
    still_serves(&donor);
}

#[test]
fn a_peer_that_says_nothing_is_closed_and_holds_nobody_up() {
    let donor = Donor::start(&["--memory", "64M"]);
    let mut silent: Vec<Raw> = (0..8).map(|_| Raw::connect(&donor)).collect();
    let (mut half, _session) = Raw::shake_hands(&donor);
    // Half a length, half a message.
    silent[1].stream.write_all(&[48]).unwrap();
    silent[2].stream.write_all(&[48, 0, 1, 2, 3]).unwrap();
    still_serves(&donor);
    for raw in &mut silent {
        assert!(!raw.closed());
    }
    assert!(!half.closed());
    donor.wait_log("no handshake in time");
}

#[test]
fn a_client_that_takes_no_answers_holds_nobody_up() {
    let donor = Donor::start(&["--memory", "128M", "-o", "lease=2s"]);
    let (mut raw, mut session) = Raw::shake_hands(&donor);
    raw.hello(&mut session, hello(1, 1));
    raw.message().expect("a welcome");
    let mut frame = [0; 64];
    let mut out = Vec::new();
    let len = Request::Alloc(key(0)).encode(2, &mut frame).unwrap();
    session.seal(&frame[..len], &mut out).unwrap();
    raw.stream.write_all(&out).unwrap();
    let message = raw.message().unwrap();
    // The welcome was sealed first.
    let _ = message;
    // It requests far more than any buffer holds, and reads nothing.
    raw.stream.set_nonblocking(true).unwrap();
    out.clear();
    for id in 0..20_000 {
        let range = Range {
            offset: 0,
            len: canvas_wire::DATA_BYTES_MAX as u32,
        };
        let len = Request::Read { handle: 1, range }
            .encode(id, &mut frame)
            .unwrap();
        session.seal(&frame[..len], &mut out).unwrap();
    }
    let mut at = 0;
    while at < out.len() {
        match raw.stream.write(&out[at..]) {
            Ok(n) => at += n,
            Err(_) => break,
        }
    }
    still_serves(&donor);
    // Its lease expires like any other: unread requests are no sign of life.
    donor.wait_state("its end", |s| s["clients"].as_array().unwrap().is_empty());
}

/// A figure of the process's status file, in KiB.
fn status_kib(donor: &Donor, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", donor.child.id())).unwrap();
    let line = text.lines().find(|l| l.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The donor always has bytes left to send: bytes already sent must not stay in its memory.
#[test]
fn a_client_that_reads_slowly_costs_a_bounded_amount_of_memory() {
    const REQUESTS: usize = 500;
    let donor = Donor::start(&["--memory", "128M", "-o", "spin=10s"]);
    let (mut raw, mut session) = Raw::shake_hands(&donor);
    // A small buffer, so that the kernel takes only a part of the pending bytes at a time, and the
    // donor does not sleep until there is room.
    setsockopt(&raw.stream, sockopt::RcvBuf, &(16 << 10)).unwrap();
    raw.hello(&mut session, hello(1, 1));
    let mut plain = Vec::new();
    session
        .open(&raw.message().expect("a welcome"), &mut plain)
        .unwrap();
    let mut frame = [0; 1024];
    let mut out = Vec::new();
    let len = Request::Alloc(key(0)).encode(2, &mut frame).unwrap();
    session.seal(&frame[..len], &mut out).unwrap();
    raw.stream.write_all(&out).unwrap();
    plain.clear();
    session.open(&raw.message().unwrap(), &mut plain).unwrap();
    let handle = match FromDonor::decode(&plain).unwrap() {
        (2, FromDonor::Answer(Answer::Allocated { handle })) => handle,
        other => panic!("{other:?}"),
    };
    // Requests of 60 KiB each, without end.
    let ranges = [Range {
        offset: 0,
        len: 30 << 10,
    }; 2];
    out.clear();
    for id in 0..REQUESTS as u64 {
        let many = Request::ReadMany {
            handle,
            ranges: Items::from(&ranges[..]),
        };
        let len = many.encode(3 + id, &mut frame).unwrap();
        session.seal(&frame[..len], &mut out).unwrap();
    }
    let mut writer = raw.stream.try_clone().unwrap();
    let asks = std::thread::spawn(move || writer.write_all(&out));
    let before = status_kib(&donor, "VmRSS:");
    let mut left = REQUESTS * (60 << 10);
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        // Slower than any donor encrypts.
        std::thread::sleep(std::time::Duration::from_millis(1));
        let n = raw.stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed with {left} bytes left");
        left = left.saturating_sub(n);
    }
    asks.join().unwrap().unwrap();
    let grown = status_kib(&donor, "VmHWM:").saturating_sub(before);
    println!("{grown} KiB more than before");
    assert!(grown < 8 << 10, "{grown} KiB more than before");
    still_serves(&donor);
}
