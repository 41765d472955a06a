//! Sets up a link: TCP, handshake, Hello and Welcome, all with timeouts.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use canvas_wire::frame::{Answer, FromDonor, Hello, Request, Welcome};
use canvas_wire::session::{Initiator, Session};
use canvas_wire::stream::{Incoming, Outgoing};
use canvas_wire::{SLAB_BYTES, VERSION_MAX, VERSION_MIN};

use crate::{Connection, LinkConfig, LinkError, unpaced};

/// Most bytes of a Hello, or of any other frame sent before the link is up.
const SMALL_FRAME: usize = 256;

pub(crate) fn connect(
    addr: SocketAddr,
    config: &LinkConfig,
) -> Result<(Connection, Welcome), LinkError> {
    let stream =
        TcpStream::connect_timeout(&addr, config.timeouts.connect).map_err(|e| match e.kind() {
            ErrorKind::TimedOut => LinkError::Timeout,
            _ => LinkError::Unreachable(e),
        })?;
    stream.set_nodelay(true).map_err(LinkError::Io)?;
    unpaced(&stream);
    let mut wire = Wire {
        stream,
        incoming: Incoming::new(),
        until: Instant::now() + config.timeouts.handshake,
    };
    let mut out = Vec::new();
    let initiator = Initiator::start(&config.key, &mut out).map_err(LinkError::Session)?;
    wire.send(&out)?;
    // A peer without our key closes the connection here without an answer; a peer that is no donor
    // may answer anything.
    let answer = match wire.message() {
        Err(LinkError::Closed | LinkError::Io(_)) => return Err(LinkError::NotAdmitted),
        other => other?,
    };
    let mut session = initiator
        .finish(&answer)
        .map_err(|_| LinkError::NotAdmitted)?;
    let hello = Request::Hello(Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        client_id: config.client_id,
        link: config.link,
        lease_ms: config.lease_ms,
    });
    let welcome = greet(&mut wire, &mut session, &hello)?;
    wire.stream.set_nonblocking(true).map_err(LinkError::Io)?;
    let connection = Connection {
        stream: wire.stream,
        session,
        incoming: wire.incoming,
        outgoing: Outgoing::new(),
        is_fresh: false,
    };
    Ok((connection, welcome))
}

/// Sends the Hello and receives the Welcome.
fn greet(
    wire: &mut Wire,
    session: &mut Session,
    hello: &Request<'_>,
) -> Result<Welcome, LinkError> {
    let mut frame = [0; SMALL_FRAME];
    let len = hello
        .encode(0, &mut frame)
        .map_err(|_| LinkError::Protocol("a Hello too long"))?;
    let mut out = Vec::new();
    session
        .seal(&frame[..len], &mut out)
        .map_err(LinkError::Session)?;
    wire.send(&out)?;
    let message = wire.message()?;
    let mut plain = Vec::new();
    session
        .open(&message, &mut plain)
        .map_err(LinkError::Session)?;
    match FromDonor::decode(&plain).map_err(LinkError::Decode)? {
        (0, FromDonor::Answer(Answer::Welcome(w))) => {
            if !(VERSION_MIN..=VERSION_MAX).contains(&w.version) {
                return Err(LinkError::Protocol(
                    "it chose a version that we did not offer",
                ));
            }
            if w.slab_bytes != SLAB_BYTES as u64 {
                return Err(LinkError::Protocol("its slabs are of another size"));
            }
            Ok(w)
        }
        (_, FromDonor::Answer(Answer::Error { code, text })) => Err(LinkError::Refused {
            code,
            text: text.to_owned(),
        }),
        _ => Err(LinkError::Protocol("no answer to Hello")),
    }
}

/// A blocking socket with a deadline.
struct Wire {
    stream: TcpStream,
    incoming: Incoming,
    until: Instant,
}

impl Wire {
    fn left(&self) -> Result<Duration, LinkError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Timeout);
        }
        Ok(left)
    }

    fn failed(e: std::io::Error) -> LinkError {
        match e.kind() {
            // The errors of SO_RCVTIMEO and SO_SNDTIMEO.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => LinkError::Timeout,
            _ => LinkError::Io(e),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let left = self.left()?;
        self.stream
            .set_write_timeout(Some(left))
            .and_then(|()| self.stream.write_all(bytes))
            .map_err(Wire::failed)
    }

    fn message(&mut self) -> Result<Vec<u8>, LinkError> {
        loop {
            if let Some(message) = self.incoming.message() {
                return Ok(message.to_vec());
            }
            let left = self.left()?;
            self.stream
                .set_read_timeout(Some(left))
                .map_err(LinkError::Io)?;
            match self.stream.read(self.incoming.space()) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => self.incoming.filled(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Wire::failed(e)),
            }
        }
    }
}
