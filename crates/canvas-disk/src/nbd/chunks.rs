//! Structured replies to reads: data are sent in chunks as they are read, and an error has its
//! offset.

use std::io::{self, Write};

use super::proto::{CHUNK_HEAD, Request, chunk, chunk_head, error_chunk, flag};
use super::session::number_of;
use crate::{PageStore, Scratch, span};

/// Most bytes of a chunk, unless only one is allowed.
const STEP_BYTES: usize = 64 << 10;
const PAGE: u64 = canvas_types::PAGE_SIZE as u64;
/// Size of the offset at the start of a chunk.
const OFFSET: usize = size_of::<u64>();

/// Answers a request with an error for all of it.
pub fn refuse(stream: &mut impl Write, cookie: u64, number: u32) -> io::Result<()> {
    stream.write_all(&error_chunk(cookie, number, "", None))
}

/// Answers a valid read. Data before an error are sent, too.
pub fn read(
    stream: &mut impl Write,
    store: &impl PageStore,
    scratch: &mut Scratch,
    buffer: &mut Vec<u8>,
    request: &Request,
) -> io::Result<()> {
    let Request {
        command, cookie, ..
    } = *request;
    let (mut offset, mut left) = (request.offset, request.len as usize);
    if let Err(e) = span::check(store, offset, left as u64) {
        let number = number_of(e, command);
        return stream.write_all(&error_chunk(cookie, number, &e.to_string(), None));
    }
    let in_one = request.flags & flag::DF != 0;
    while left > 0 {
        let len = match in_one {
            true => left,
            // Up to the end of a page, so that no page is read twice.
            false => left.min(STEP_BYTES - (offset % PAGE) as usize),
        };
        let end = CHUNK_HEAD + OFFSET + len;
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        let data = &mut buffer[CHUNK_HEAD + OFFSET..end];
        let (done, result) = span::read_until(store, offset, data, scratch);
        left -= done;
        let flags = if left == 0 { chunk::DONE } else { 0 };
        if done > 0 {
            send(stream, buffer, cookie, (offset, done), (flags, in_one))?;
        }
        offset += done as u64;
        if let Err(e) = result {
            let number = number_of(e, command);
            let error = error_chunk(cookie, number, &e.to_string(), Some(offset));
            return stream.write_all(&error);
        }
    }
    match request.len {
        0 => stream.write_all(&chunk_head(chunk::DONE, chunk::NONE, cookie, 0)),
        _ => Ok(()),
    }
}

/// Sends `bytes` bytes of the buffer, which has room for the header before them: zeros as a hole,
/// unless holes are not allowed.
fn send(
    stream: &mut impl Write,
    buffer: &mut [u8],
    cookie: u64,
    (offset, bytes): (u64, usize),
    (flags, as_data): (u16, bool),
) -> io::Result<()> {
    let offset = offset.to_be_bytes();
    let (before, data) = buffer.split_at_mut(CHUNK_HEAD + OFFSET);
    if !as_data && data[..bytes].iter().all(|b| *b == 0) {
        let size = (bytes as u32).to_be_bytes();
        let head = chunk_head(flags, chunk::HOLE, cookie, (OFFSET + size.len()) as u32);
        return stream.write_all(&[&head[..], &offset, &size].concat());
    }
    let head = chunk_head(flags, chunk::DATA, cookie, (OFFSET + bytes) as u32);
    before[..CHUNK_HEAD].copy_from_slice(&head);
    before[CHUNK_HEAD..].copy_from_slice(&offset);
    stream.write_all(&buffer[..CHUNK_HEAD + OFFSET + bytes])
}
