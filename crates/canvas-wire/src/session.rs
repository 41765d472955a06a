//! The encrypted session that carries frames: `Noise_NNpsk0_25519_AESGCM_SHA256`.
//!
//! The pre-shared key is derived from the cluster key. So the first message proves that the client
//! has the key, and a donor does not answer a client without it. Ephemeral keys give forward
//! secrecy: a recorded session cannot be read if the cluster key leaks later. Each message uses a
//! counter as its nonce: a message that was changed, repeated, dropped or reordered does not open.

use core::fmt;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, TransportState};

use crate::key::ClusterKey;
use crate::{FRAME_BYTES_MAX, PROTOCOL};

/// Bytes that encryption adds to a frame.
pub const TAG_BYTES: usize = 16;
/// Size of each of the two handshake messages: an ephemeral key and a tag.
pub const HANDSHAKE_BYTES: usize = 48;
/// Size of the length before each message.
pub const LENGTH_BYTES: usize = 2;
/// Bytes on the stream per message, beyond its frame.
pub const OVERHEAD_BYTES: usize = LENGTH_BYTES + TAG_BYTES;
/// Most messages of one session and direction, far more than a link ever sends. (The protocol's own
/// limit is 2^64 - 1; AES-GCM's for one key is about 2^32 records of this size.)
pub const MESSAGES_MAX: u64 = 1 << 32;

const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Why a session cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionError {
    /// A handshake message is not what a peer with the same key and protocol would send.
    Handshake,
    /// A message does not open: it was changed, repeated, dropped or reordered.
    Message,
    /// A frame is longer than a message holds, or the session has sent [`MESSAGES_MAX`] messages.
    Limit,
    /// The random source or the ciphers failed.
    Crypto,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionError::Handshake => "the peer has another key, or does not speak canvas-wire/1",
            SessionError::Message => "a message was changed in transit",
            SessionError::Limit => "the session is at its limit",
            SessionError::Crypto => "the ciphers failed",
        })
    }
}

impl core::error::Error for SessionError {}

fn builder_params() -> NoiseParams {
    NOISE.parse().expect("the name of the pattern is right")
}

fn state(key: &ClusterKey, initiator: bool) -> Result<HandshakeState, SessionError> {
    let psk = key.session_psk();
    let builder = Builder::new(builder_params())
        .prologue(PROTOCOL.as_bytes())
        .and_then(|b| b.psk(0, &psk))
        .map_err(|_| SessionError::Crypto)?;
    let built = if initiator {
        builder.build_initiator()
    } else {
        builder.build_responder()
    };
    built.map_err(|_| SessionError::Crypto)
}

/// Appends a message with its length before it.
fn framed(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(&(message.len() as u16).to_le_bytes());
    out.extend_from_slice(message);
}

/// The client's side of a handshake.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Starts: appends handshake message 1, with its length, to `out`.
    pub fn start(key: &ClusterKey, out: &mut Vec<u8>) -> Result<Initiator, SessionError> {
        let mut state = state(key, true)?;
        let mut message = [0; HANDSHAKE_BYTES];
        let len = state
            .write_message(&[], &mut message)
            .map_err(|_| SessionError::Crypto)?;
        framed(out, &message[..len]);
        Ok(Initiator(state))
    }

    /// Completes the handshake with the donor's answer (without its length).
    pub fn finish(mut self, message: &[u8]) -> Result<Session, SessionError> {
        let mut nothing = [0; HANDSHAKE_BYTES];
        match self.0.read_message(message, &mut nothing) {
            Ok(0) => Session::new(self.0),
            _ => Err(SessionError::Handshake),
        }
    }
}

/// The donor's side of a handshake: checks handshake message 1 (without its length) and appends
/// message 2, with its length, to `out`. For a peer without the key nothing is appended.
pub fn respond(
    key: &ClusterKey,
    message: &[u8],
    out: &mut Vec<u8>,
) -> Result<Session, SessionError> {
    let mut state = state(key, false)?;
    let mut buffer = [0; HANDSHAKE_BYTES];
    match state.read_message(message, &mut buffer) {
        Ok(0) => {}
        _ => return Err(SessionError::Handshake),
    }
    let len = state
        .write_message(&[], &mut buffer)
        .map_err(|_| SessionError::Crypto)?;
    let session = Session::new(state)?;
    framed(out, &buffer[..len]);
    Ok(session)
}

/// An established session: seals frames and opens messages.
pub struct Session(TransportState);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    fn new(state: HandshakeState) -> Result<Session, SessionError> {
        state
            .into_transport_mode()
            .map(Session)
            .map_err(|_| SessionError::Handshake)
    }

    /// Appends the sealed frame, with its length, to `out`. Nothing is appended on an error.
    pub fn seal(&mut self, frame: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        if frame.len() > FRAME_BYTES_MAX || self.0.sending_nonce() >= MESSAGES_MAX {
            return Err(SessionError::Limit);
        }
        let start = out.len();
        let message_len = frame.len() + TAG_BYTES;
        out.resize(start + LENGTH_BYTES + message_len, 0);
        let (length, message) = out[start..].split_at_mut(LENGTH_BYTES);
        length.copy_from_slice(&(message_len as u16).to_le_bytes());
        match self.0.write_message(frame, message) {
            Ok(_) => Ok(()),
            Err(_) => {
                out.truncate(start);
                Err(SessionError::Crypto)
            }
        }
    }

    /// Opens a message (without its length), appends its frame to `out` and returns the frame's
    /// length. After an error nothing was appended, and the session must be abandoned.
    pub fn open(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<usize, SessionError> {
        if message.len() < TAG_BYTES || self.0.receiving_nonce() >= MESSAGES_MAX {
            return Err(SessionError::Message);
        }
        let start = out.len();
        // The tag's room lets it decrypt in place.
        out.resize(start + message.len(), 0);
        match self.0.read_message(message, &mut out[start..]) {
            Ok(len) => {
                out.truncate(start + len);
                Ok(len)
            }
            Err(_) => {
                out.truncate(start);
                Err(SessionError::Message)
            }
        }
    }
}
