//! Cutting a stream of bytes into messages, and sealed messages on their way into one.

use crate::session::LENGTH_BYTES;

/// Bytes of a message with its length at most.
const MESSAGE_MAX: usize = LENGTH_BYTES + u16::MAX as usize;
/// Bytes of the buffer: several messages a read, and always room for one more whole one.
pub const BUFFER_BYTES: usize = 4 * (MESSAGE_MAX + 1);

/// Bytes that came over a stream and are not used yet. Of a fixed size, whatever a peer sends.
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

    /// Where the next bytes are to be read into. Never empty once [`Incoming::message`] has
    /// returned `None`.
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

    /// Says that `len` bytes were read into [`Incoming::space`].
    pub fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.buffer.len());
    }

    /// The next whole message, without its length, if it has come.
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

    /// Length of the message that is coming in, once its length is known.
    pub fn coming(&self) -> Option<usize> {
        let length = self.buffer[self.start..self.end].first_chunk::<LENGTH_BYTES>()?;
        Some(usize::from(u16::from_le_bytes(*length)))
    }

    /// Drops all bytes that came and were not taken yet.
    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }
}

/// Bytes that are sent already may stay in [`Outgoing`] up to this, or up to a quarter of what waits,
/// so that each byte is moved a few times at most.
const SENT_BYTES_MAX: usize = 64 << 10;

/// Messages on their way to the kernel. What is sent does not stay: the memory is in proportion to what
/// waits, however much has gone through and however slowly the peer reads.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    /// Those before are with the kernel.
    sent: usize,
}

impl Outgoing {
    /// A buffer without bytes to send.
    pub fn new() -> Outgoing {
        Outgoing::default()
    }

    /// What waits to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How much that is.
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// Where the next message is put, behind what waits. To be appended to, and nothing else.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Says that the first `len` bytes of [`Outgoing::unsent`] are with the kernel.
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

    /// Bytes of memory that it holds.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}
