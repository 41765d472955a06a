//! Reads that are answered in chunks: what is read is sent before the rest is, and an error says where.

use std::io::{self, Write};

use super::proto::{CHUNK_HEAD, Request, chunk, chunk_head, error_chunk, flag};
use super::session::number_of;
use crate::{PageStore, Scratch, span};

/// Bytes of a chunk at most, unless there is to be one only.
const STEP_BYTES: usize = 64 << 10;
const PAGE: u64 = canvas_types::PAGE_SIZE as u64;
/// An offset is first.
const OFFSET: usize = size_of::<u64>();

/// Answers a request by an error of the whole of it.
pub fn refuse(stream: &mut impl Write, cookie: u64, number: u32) -> io::Result<()> {
    stream.write_all(&error_chunk(cookie, number, "", None))
}

/// Answers a read that is in order by itself. What lies before an error is sent, too.
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
            // To the end of a page, so that no page is read twice.
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

/// Sends so many bytes, which lie in the buffer behind room for what comes before them: zeros as a hole, unless
/// they must be there.
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
