//! Messages of NBD's fixed newstyle, as far as this server supports it
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). All numbers are
//! big-endian.
//!
//! Decoders accept any input without panicking, and trust no length.

/// The server's greeting.
pub const GREETING: [u64; 2] = [0x4e42_444d_4147_4943, MAGIC_OPTION];
/// Starts an option of the client.
pub const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// Starts the answer to an option.
pub const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Starts a request.
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// Starts a simple reply.
pub const MAGIC_REPLY: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub const MAGIC_CHUNK: u32 = 0x668e_33ef;

/// Handshake flags of both sides.
pub mod handshake {
    /// Unknown options get an answer.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeros follow the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub mod option {
    /// Names the export and ends the handshake; cannot be refused.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Requests the names of exports.
    pub const LIST: u32 = 3;
    /// Requests information about an export.
    pub const INFO: u32 = 6;
    /// Requests information about an export, and ends the handshake.
    pub const GO: u32 = 7;
    /// Requests structured replies to reads.
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Answers to options.
pub mod answer {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Information about the export.
    pub const INFO: u32 = 3;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The option's data are invalid.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// There is no export of this name.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Smallest, preferred and largest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Forms of replies to reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replies {
    /// All data, or an error.
    Simple,
    /// Chunks ([`chunk`]), one of which may be an error.
    Structured,
}

/// Transmission flags: the server's features.
pub fn transmission(replies: Replies) -> u16 {
    const HAS_FLAGS: u16 = 1;
    const SEND_TRIM: u16 = 1 << 5;
    const SEND_WRITE_ZEROES: u16 = 1 << 6;
    const SEND_DF: u16 = 1 << 7;
    const CAN_MULTI_CONN: u16 = 1 << 8;
    const SEND_FAST_ZERO: u16 = 1 << 11;
    let always = HAS_FLAGS | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN | SEND_FAST_ZERO;
    match replies {
        Replies::Simple => always,
        Replies::Structured => always | SEND_DF,
    }
}

/// Flags of requests.
pub mod flag {
    /// `WRITE_ZEROES`: make no hole; here a hole lacks nothing.
    pub const NO_HOLE: u16 = 2;
    /// `READ`: at most one chunk of data.
    pub const DF: u16 = 4;
    /// `WRITE_ZEROES`: only if it is fast, which it always is.
    pub const FAST_ZERO: u16 = 16;
}

/// Kinds of chunks.
pub mod chunk {
    /// Flag of a reply's last chunk.
    pub const DONE: u16 = 1;
    /// No contents.
    pub const NONE: u16 = 0;
    /// An offset and the bytes there.
    pub const DATA: u16 = 1;
    /// An offset and the number of zeros there.
    pub const HOLE: u16 = 2;
    /// An error of the whole request.
    pub const ERROR: u16 = 1 << 15 | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = 1 << 15 | 2;
}

/// Error numbers.
pub mod error {
    /// The stored page is damaged.
    pub const EIO: u32 = 5;
    /// The request is invalid.
    pub const EINVAL: u32 = 22;
    /// There is no room.
    pub const ENOSPC: u32 = 28;
    /// The request is too long.
    pub const EOVERFLOW: u32 = 75;
}

/// The smallest block announced to clients: sectors of any size work.
pub const BLOCK_MIN: u32 = 1;
/// The preferred block announced to clients.
pub const BLOCK_PREFERRED: u32 = 4096;
/// Most bytes of a request: the limit that clients may assume if they have not asked.
pub const BLOCK_MAX: u32 = 32 << 20;
/// Most bytes of an option's data that are read: more than two of the longest names.
pub const OPTION_MAX: u32 = 16 << 10;

/// Size of the head of an option.
pub const OPTION_HEAD: usize = 16;
/// Size of a request without data.
pub const REQUEST: usize = 28;

/// The head of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHead {
    /// Which option ([`option`]).
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHead {
    /// `None` if it is not an option.
    pub fn decode(bytes: &[u8; OPTION_HEAD]) -> Option<OptionHead> {
        let mut from = Bytes(bytes);
        let magic = from.u64()?;
        let head = OptionHead {
            option: from.u32()?,
            len: from.u32()?,
        };
        (magic == MAGIC_OPTION).then_some(head)
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default.
    pub name: &'a [u8],
    /// The requested kinds ([`info`]).
    pub infos: Vec<u16>,
}

impl InfoRequest<'_> {
    /// `None` if the data are invalid.
    pub fn decode(data: &[u8]) -> Option<InfoRequest<'_>> {
        let mut from = Bytes(data);
        let len = from.u32()?;
        let name = from.take(usize::try_from(len).ok()?)?;
        let count = from.u16()?;
        let infos: Option<Vec<u16>> = (0..count).map(|_| from.u16()).collect();
        let infos = infos?;
        from.0.is_empty().then_some(InfoRequest { name, infos })
    }
}

/// The command of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Bytes of the disk.
    Read,
    /// Write the data that follow.
    Write,
    /// End the session; there is no answer.
    Disconnect,
    /// Discard the bytes.
    Trim,
    /// Fill the bytes with zeros.
    WriteZeroes,
    /// Another command, without data.
    Other,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its command.
    pub command: Command,
    /// Its flags ([`flag`]).
    pub flags: u16,
    /// The client's identifier for it.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Request {
    /// `None` if it is not a request.
    pub fn decode(bytes: &[u8; REQUEST]) -> Option<Request> {
        let mut from = Bytes(bytes);
        if from.u32()? != MAGIC_REQUEST {
            return None;
        }
        let flags = from.u16()?;
        let command = match from.u16()? {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            _ => Command::Other,
        };
        Some(Request {
            command,
            flags,
            cookie: from.u64()?,
            offset: from.u64()?,
            len: from.u32()?,
        })
    }

    /// The error for an invalid request, whatever the disk holds; `None` if it is valid. Does not
    /// check whether the range is on the disk.
    pub fn wrong(&self, replies: Replies) -> Option<u32> {
        let known = match (self.command, replies) {
            (Command::WriteZeroes, _) => flag::NO_HOLE | flag::FAST_ZERO,
            (Command::Read, Replies::Structured) => flag::DF,
            _ => 0,
        };
        match self.command {
            Command::Other => Some(error::EINVAL),
            _ if self.flags & !known != 0 => Some(error::EINVAL),
            Command::Read | Command::Write if self.len > BLOCK_MAX => Some(error::EOVERFLOW),
            _ => None,
        }
    }
}

/// A simple reply; the data of a successful read follow.
pub fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&MAGIC_REPLY.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Size of the head of a chunk.
pub const CHUNK_HEAD: usize = 20;

/// The head of a chunk with `len` bytes of data.
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_HEAD] {
    let mut out = [0; CHUNK_HEAD];
    out[..4].copy_from_slice(&MAGIC_CHUNK.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&len.to_be_bytes());
    out
}

/// The last chunk of a reply, with an error of the whole request or at an offset, and a text for
/// users.
pub fn error_chunk(cookie: u64, error: u32, words: &str, offset: Option<u64>) -> Vec<u8> {
    let words = &words.as_bytes()[..words.len().min(usize::from(u16::MAX))];
    let kind = match offset {
        None => chunk::ERROR,
        Some(_) => chunk::ERROR_OFFSET,
    };
    let at = offset.map(u64::to_be_bytes);
    let at = at.as_ref().map_or(&[][..], |at| at);
    let len = 6 + words.len() + at.len();
    [
        &chunk_head(chunk::DONE, kind, cookie, len as u32)[..],
        &error.to_be_bytes(),
        &(words.len() as u16).to_be_bytes(),
        words,
        at,
    ]
    .concat()
}

/// The server's greeting.
pub fn greeting() -> Vec<u8> {
    let [first, second] = GREETING.map(u64::to_be_bytes);
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    [&first[..], &second, &flags.to_be_bytes()].concat()
}

/// An answer to an option.
pub fn option_reply(option: u32, answer: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    [
        &MAGIC_OPTION_REPLY.to_be_bytes()[..],
        &option.to_be_bytes(),
        &answer.to_be_bytes(),
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

/// Data of [`info::EXPORT`].
pub fn export_info(disk_bytes: u64, replies: Replies) -> Vec<u8> {
    [
        &info::EXPORT.to_be_bytes()[..],
        &export(disk_bytes, replies),
    ]
    .concat()
}

/// The answer to `EXPORT_NAME`, without padding.
pub fn export(disk_bytes: u64, replies: Replies) -> [u8; 10] {
    let mut out = [0; 10];
    out[..8].copy_from_slice(&disk_bytes.to_be_bytes());
    out[8..].copy_from_slice(&transmission(replies).to_be_bytes());
    out
}

/// Data of [`info::BLOCK_SIZE`].
pub fn block_info() -> Vec<u8> {
    let sizes = [BLOCK_MIN, BLOCK_PREFERRED, BLOCK_MAX].map(u32::to_be_bytes);
    [&info::BLOCK_SIZE.to_be_bytes()[..], &sizes.concat()].concat()
}

/// The rest of a message.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_asked_about_an_export_is_told_apart_from_nonsense() {
        let data = [&3u32.to_be_bytes()[..], b"abc", &[0, 2, 0, 0, 0, 3]].concat();
        let want = InfoRequest {
            name: b"abc",
            infos: vec![info::EXPORT, info::BLOCK_SIZE],
        };
        assert_eq!(InfoRequest::decode(&data), Some(want));
        for wrong in [
            &data[..data.len() - 1],
            &[&data[..], &[0]].concat(),
            &[0xff; 6],
            &[0, 0, 0, 1],
            &[],
        ] {
            assert_eq!(InfoRequest::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn requests_that_are_wrong_are_known_by_themselves() {
        let request = |command, flags, len| Request {
            command,
            flags,
            cookie: 0,
            offset: 0,
            len,
        };
        for (command, flags, len, want) in [
            (Command::Read, 0, BLOCK_MAX, None),
            (Command::Read, 0, BLOCK_MAX + 1, Some(error::EOVERFLOW)),
            (Command::Write, 0, u32::MAX, Some(error::EOVERFLOW)),
            (Command::Write, 1, 1, Some(error::EINVAL)),
            (Command::WriteZeroes, 2 | 16, u32::MAX, None),
            (Command::WriteZeroes, 4, 1, Some(error::EINVAL)),
            (Command::Trim, 0, u32::MAX, None),
            (Command::Other, 0, 0, Some(error::EINVAL)),
        ] {
            for replies in [Replies::Simple, Replies::Structured] {
                let got = request(command, flags, len).wrong(replies);
                assert_eq!(got, want, "{command:?} {flags} {len} {replies:?}");
            }
        }
        let whole = request(Command::Read, flag::DF, 1);
        assert_eq!(whole.wrong(Replies::Simple), Some(error::EINVAL));
        assert_eq!(whole.wrong(Replies::Structured), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(data in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = InfoRequest::decode(&data);
            if let Some(head) = data.first_chunk() {
                let _ = OptionHead::decode(head);
            }
            if let Some(request) = data.first_chunk() {
                let _ = Request::decode(request).and_then(|r| r.wrong(Replies::Structured));
            }
        }

        #[test]
        fn a_request_comes_out_as_it_went_in(
            flags in any::<u16>(), kind in any::<u16>(), cookie in any::<u64>(),
            offset in any::<u64>(), len in any::<u32>(),
        ) {
            let bytes = [
                &MAGIC_REQUEST.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(),
                &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes(),
            ].concat();
            let got = Request::decode(bytes.first_chunk().unwrap()).unwrap();
            prop_assert_eq!((got.flags, got.cookie, got.offset, got.len), (flags, cookie, offset, len));
            let known = [0, 1, 2, 4, 6].contains(&kind);
            prop_assert_eq!(got.command == Command::Other, !known);
        }
    }
}
