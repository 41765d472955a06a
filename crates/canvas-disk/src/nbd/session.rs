//! One client's session: the handshake, then requests in order.
//!
//! Whatever the client sends, the session ends or goes on; it takes no more memory than the longest
//! request, and invalid input does not change the disk.

use std::io::{self, ErrorKind, Read, Write};

use super::chunks;
use super::proto::{
    BLOCK_MAX, Command, InfoRequest, OPTION_HEAD, OPTION_MAX, OptionHead, REQUEST, Replies,
    Request, answer, block_info, error, export, export_info, greeting, handshake, info, option,
    option_reply, reply,
};
use crate::{DiskError, PageStore, Scratch, span};

/// Most data of a write that are read at a time.
const STEP_BYTES: usize = 64 << 10;
/// A larger buffer is freed after its request.
const KEPT_BYTES: usize = 1 << 20;
const PAGE: usize = canvas_types::PAGE_SIZE;

/// How a session ended.
#[derive(Debug)]
pub enum End {
    /// The client ended the session or is gone.
    Done,
    /// The client broke the NBD protocol.
    Nonsense(&'static str),
    /// The connection failed.
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> End {
        match e.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                End::Done
            }
            _ => End::Failed(e),
        }
    }
}

/// Performs the handshake; returns the form of replies to reads. `Err` if no requests follow.
pub fn shake_hands(stream: &mut (impl Read + Write), disk_bytes: u64) -> Result<Replies, End> {
    stream.write_all(&greeting())?;
    let flags = u32::from_be_bytes(take(stream)?);
    let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(handshake::FIXED_NEWSTYLE) == 0 {
        return Err(End::Nonsense("it does not speak the fixed newstyle"));
    }
    let zeros: &[u8] = match flags & u32::from(handshake::NO_ZEROES) {
        0 => &[0; 124],
        _ => &[],
    };
    let mut replies = Replies::Simple;
    while let Some((option, data)) = next_option(stream)? {
        let mut say = |kind, data: &[u8]| stream.write_all(&option_reply(option, kind, data));
        match option {
            option::EXPORT_NAME if data.is_empty() => {
                stream.write_all(&[&export(disk_bytes, replies)[..], zeros].concat())?;
                return Ok(replies);
            }
            option::EXPORT_NAME => {
                return Err(End::Nonsense("it names an export that does not exist"));
            }
            option::ABORT => {
                say(answer::ACK, &[])?;
                return Err(End::Done);
            }
            option::LIST if data.is_empty() => {
                // There is one export, with an empty name.
                say(answer::SERVER, &0u32.to_be_bytes())?;
                say(answer::ACK, &[])?;
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                replies = Replies::Structured;
                say(answer::ACK, &[])?;
            }
            option::LIST | option::STRUCTURED_REPLY => say(answer::ERR_INVALID, &[])?,
            option::INFO | option::GO => match InfoRequest::decode(&data) {
                None => say(answer::ERR_INVALID, &[])?,
                Some(asked) if !asked.name.is_empty() => say(answer::ERR_UNKNOWN, &[])?,
                Some(asked) => {
                    say(answer::INFO, &export_info(disk_bytes, replies))?;
                    if asked.infos.contains(&info::BLOCK_SIZE) {
                        say(answer::INFO, &block_info())?;
                    }
                    say(answer::ACK, &[])?;
                    if option == option::GO {
                        return Ok(replies);
                    }
                }
            },
            _ => say(answer::ERR_UNSUP, &[])?,
        }
    }
    Err(End::Nonsense("an option was expected"))
}

/// The next option and its data; `None` if it is not an option.
fn next_option(stream: &mut (impl Read + Write)) -> Result<Option<(u32, Vec<u8>)>, End> {
    let Some(OptionHead { option, len }) = OptionHead::decode(&take::<OPTION_HEAD>(stream)?) else {
        return Ok(None);
    };
    if len > OPTION_MAX {
        // It may be gigabytes, for which the server does not wait.
        stream.write_all(&option_reply(option, answer::ERR_TOO_BIG, &[]))?;
        return Err(End::Nonsense("an option is too long"));
    }
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data)?;
    Ok(Some((option, data)))
}

/// Serves requests until the session ends.
pub fn transmit(
    stream: &mut (impl Read + Write),
    store: &impl PageStore,
    scratch: &mut Scratch,
    replies: Replies,
) -> End {
    let mut buffer = Vec::new();
    loop {
        match serve_one(stream, store, scratch, &mut buffer, replies) {
            Ok(()) => {}
            Err(end) => return end,
        }
        if buffer.capacity() > KEPT_BYTES {
            buffer = Vec::new();
        }
    }
}

fn serve_one(
    stream: &mut (impl Read + Write),
    store: &impl PageStore,
    scratch: &mut Scratch,
    buffer: &mut Vec<u8>,
    replies: Replies,
) -> Result<(), End> {
    let Some(request) = Request::decode(&take::<REQUEST>(stream)?) else {
        return Err(End::Nonsense("a request was expected"));
    };
    let Request {
        command,
        cookie,
        offset,
        len,
        ..
    } = request;
    if command == Command::Disconnect {
        return Err(End::Done);
    }
    if command == Command::Write && len > BLOCK_MAX {
        return Err(End::Nonsense("a write is too long"));
    }
    let length = len as usize;
    let wrong = request.wrong(replies);
    if (command, replies) == (Command::Read, Replies::Structured) {
        let answered = match wrong {
            Some(number) => chunks::refuse(stream, cookie, number),
            None => chunks::read(stream, store, scratch, buffer, &request),
        };
        return answered.map_err(End::from);
    }
    let result = match command {
        Command::Write => {
            let within = span::check(store, offset, u64::from(len));
            let is_wanted = wrong.is_none() && within.is_ok();
            let taken = take_data(stream, store, offset, length, is_wanted, scratch, buffer)?;
            within.and(taken)
        }
        _ if wrong.is_some() => Ok(()),
        Command::Read => {
            // A reply starts with a header that says whether it succeeded.
            buffer.clear();
            buffer.resize(16 + length, 0);
            span::read(store, offset, &mut buffer[16..], scratch)
        }
        Command::Trim => span::discard(store, offset, u64::from(len)),
        _ => span::zero(store, offset, u64::from(len), scratch),
    };
    let number = wrong.or(result.err().map(|e| number_of(e, command)));
    let head = reply(cookie, number.unwrap_or(0));
    if command == Command::Read && number.is_none() {
        buffer[..16].copy_from_slice(&head);
        stream.write_all(buffer)?;
    } else {
        stream.write_all(&head)?;
    }
    Ok(())
}

/// Reads all data of a write, and writes them if the request is valid.
fn take_data(
    stream: &mut impl Read,
    store: &impl PageStore,
    mut offset: u64,
    mut left: usize,
    is_wanted: bool,
    scratch: &mut Scratch,
    buffer: &mut Vec<u8>,
) -> Result<Result<(), DiskError>, End> {
    let mut result = Ok(());
    buffer.resize(STEP_BYTES, 0);
    while left > 0 {
        // Up to the end of a page, so that no page is written in two steps.
        let room = STEP_BYTES - (offset % PAGE as u64) as usize;
        let part = &mut buffer[..left.min(room)];
        stream.read_exact(part)?;
        if is_wanted && result.is_ok() {
            result = span::write(store, offset, part, scratch);
        }
        // For an invalid request it may be anything.
        offset = offset.wrapping_add(part.len() as u64);
        left -= part.len();
    }
    Ok(result)
}

/// The error number for a failed request.
pub(super) fn number_of(e: DiskError, command: Command) -> u32 {
    match e {
        DiskError::Outside if command == Command::Read || command == Command::Trim => error::EINVAL,
        DiskError::Outside | DiskError::Full => error::ENOSPC,
        DiskError::Damaged | DiskError::Unreachable => error::EIO,
    }
}

fn take<const N: usize>(stream: &mut impl Read) -> Result<[u8; N], End> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
