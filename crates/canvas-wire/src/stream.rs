//! Buffers between a stream of bytes and a session's messages.

use crate::session::LENGTH_BYTES;

/// Most bytes of a message with its length.
const MESSAGE_MAX: usize = LENGTH_BYTES + u16::MAX as usize;
/// Size of the buffer: several messages per read, and always room for one more whole message.
pub const BUFFER_BYTES: usize = 4 * (MESSAGE_MAX + 1);

/// Received bytes that are not used yet. The size is fixed, whatever a peer sends.
pub struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Incoming::new()
    }
}

impl Incoming {
    /// An empty buffer of [`BUFFER_BYTES`].
    pub fn new() -> Incoming {
        Incoming {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// Space for the next bytes received. Never empty once [`Incoming::message`] has returned
    /// `None`.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.buffer.len() - self.end < MESSAGE_MAX {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `len` bytes were received into [`Incoming::space`].
    pub fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.buffer.len());
    }

    /// The next whole message, without its length, if it has arrived.
    pub fn message(&mut self) -> Option<&[u8]> {
        let bytes = &self.buffer[self.start..self.end];
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let len = usize::from(u16::from_le_bytes(*length));
        if rest.len() < len {
            return None;
        }
        let from = self.start + LENGTH_BYTES;
        self.start = from + len;
        Some(&self.buffer[from..from + len])
    }

    /// Whether the next [`Incoming::message`] would be `None`.
    pub fn holds_no_message(&self) -> bool {
        self.coming()
            .is_none_or(|len| self.end - self.start < LENGTH_BYTES + len)
    }

    /// Length of the incomplete message, once its length is known.
    pub fn coming(&self) -> Option<usize> {
        let length = self.buffer[self.start..self.end].first_chunk::<LENGTH_BYTES>()?;
        Some(usize::from(u16::from_le_bytes(*length)))
    }

    /// Drops all received bytes that are not used yet.
    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }
}

/// Bytes already sent are kept in [`Outgoing`] up to this amount, or up to a quarter of the unsent
/// bytes, so that each byte is moved only a few times.
const SENT_BYTES_MAX: usize = 64 << 10;

/// Messages for the kernel to send. Sent messages are dropped: memory is proportional to the unsent
/// bytes, whatever was sent before and however slowly the peer reads.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    /// Bytes of the buffer that the kernel has taken.
    sent: usize,
}

impl Outgoing {
    /// An empty buffer.
    pub fn new() -> Outgoing {
        Outgoing::default()
    }

    /// The bytes not sent yet.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Number of bytes not sent yet.
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// The buffer, to append the next message to; callers only append.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Records that the kernel took the first `len` bytes of [`Outgoing::unsent`].
    pub fn sent(&mut self, len: usize) {
        self.sent = self.sent.saturating_add(len).min(self.bytes.len());
        let backlog = self.backlog();
        if backlog == 0 {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > SENT_BYTES_MAX.max(backlog / 4) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Size of the buffer's memory.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}
