//! Requests of a guest's virtio block driver (Virtual I/O Device 1.2, section 5.2).
//!
//! The guest's memory may change while it is read. So each value is read only once, and each page
//! is copied once before it is processed.

use std::io::{Read, Write};
use std::ops::Deref;

use canvas_types::{PAGE_SIZE, PageBuf};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use crate::{DiskError, PageStore, Scratch, span};

/// Size of a sector in requests, whatever the disk's block size.
pub const SECTOR: u64 = 512;
/// Most data of a request.
pub const DATA_MAX: usize = 32 << 20;
/// Most segments of a request to discard or zero.
pub const SEGMENTS_MAX: usize = 256;
/// The disk's identification.
const ID: &[u8; 20] = b"canvas-disk\0\0\0\0\0\0\0\0\0";

/// Kinds of requests.
mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The last byte of each request: its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed.
    IoError = 1,
    /// Not supported by this disk.
    Unsupported = 2,
}

impl From<DiskError> for Status {
    /// The protocol has only one error.
    fn from(_: DiskError) -> Status {
        Status::IoError
    }
}

/// A thread's buffers.
pub struct Work {
    scratch: Scratch,
    page: PageBuf,
}

impl Work {
    /// Filled with zeros.
    pub fn new() -> Box<Work> {
        Box::new(Work {
            scratch: Scratch::new(),
            page: [0; PAGE_SIZE],
        })
    }
}

/// Serves the request in a chain of descriptors; returns the number of bytes written to the chain.
/// A chain without room for a status, or one that leaves the guest's memory, is returned unchanged.
pub fn serve<M>(
    chain: DescriptorChain<M>,
    memory: &GuestMemoryMmap,
    store: &impl PageStore,
    work: &mut Work,
) -> u32
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    let (Ok(mut from), Ok(mut to)) = (chain.clone().reader(memory), chain.writer(memory)) else {
        return 0;
    };
    let Some(room) = to.available_bytes().checked_sub(1) else {
        return 0;
    };
    let Ok(mut last) = to.split_at(room) else {
        return 0;
    };
    let status = match request(&mut from, &mut to, store, work) {
        Ok(()) => Status::Ok,
        Err(status) => status,
    };
    let written = to.bytes_written() as u32;
    match last.write_all(&[status as u8]) {
        Ok(()) => written + 1,
        Err(_) => written,
    }
}

fn request(
    from: &mut Reader,
    to: &mut Writer,
    store: &impl PageStore,
    work: &mut Work,
) -> Result<(), Status> {
    let mut head = [0; 16];
    from.read_exact(&mut head).map_err(|_| Status::IoError)?;
    let (kind, sector) = (u32_at(&head, 0), u64_at(&head, 8));
    match kind {
        kind::IN => read(to, start(sector)?, store, work),
        kind::OUT => write(from, start(sector)?, store, work),
        kind::DISCARD | kind::WRITE_ZEROES => ranges(from, kind, store, work),
        kind::GET_ID => to.write_all(ID).map_err(|_| Status::IoError),
        _ => Err(Status::Unsupported),
    }
}

fn start(sector: u64) -> Result<u64, Status> {
    sector.checked_mul(SECTOR).ok_or(Status::IoError)
}

/// The length of a request's data, if it is valid.
fn length(store: &impl PageStore, offset: u64, bytes: usize) -> Result<usize, Status> {
    if bytes > DATA_MAX || !bytes.is_multiple_of(SECTOR as usize) {
        return Err(Status::IoError);
    }
    span::check(store, offset, bytes as u64)?;
    Ok(bytes)
}

fn read(
    to: &mut Writer,
    mut offset: u64,
    store: &impl PageStore,
    work: &mut Work,
) -> Result<(), Status> {
    let mut left = length(store, offset, to.available_bytes())?;
    span::expect(store, offset, left);
    while left > 0 {
        let part = &mut work.page[..left.min(to_page_end(offset))];
        // Verified here, before the guest sees any of it.
        span::read(store, offset, part, &mut work.scratch)?;
        to.write_all(part).map_err(|_| Status::IoError)?;
        (offset, left) = (offset + part.len() as u64, left - part.len());
    }
    Ok(())
}

fn write(
    from: &mut Reader,
    mut offset: u64,
    store: &impl PageStore,
    work: &mut Work,
) -> Result<(), Status> {
    let mut left = length(store, offset, from.available_bytes())?;
    while left > 0 {
        let part = &mut work.page[..left.min(to_page_end(offset))];
        from.read_exact(part).map_err(|_| Status::IoError)?;
        span::write(store, offset, part, &mut work.scratch)?;
        (offset, left) = (offset + part.len() as u64, left - part.len());
    }
    Ok(())
}

fn to_page_end(offset: u64) -> usize {
    PAGE_SIZE - (offset % PAGE_SIZE as u64) as usize
}

/// Discards ranges, or fills them with zeros.
fn ranges(
    from: &mut Reader,
    kind: u32,
    store: &impl PageStore,
    work: &mut Work,
) -> Result<(), Status> {
    const SEGMENT: usize = 16;
    const UNMAP: u32 = 1;
    let bytes = from.available_bytes();
    let count = bytes / SEGMENT;
    if count == 0 || count > SEGMENTS_MAX || !bytes.is_multiple_of(SEGMENT) {
        return Err(Status::IoError);
    }
    for _ in 0..count {
        let mut segment = [0; SEGMENT];
        from.read_exact(&mut segment).map_err(|_| Status::IoError)?;
        let offset = start(u64_at(&segment, 0))?;
        let bytes = u64::from(u32_at(&segment, 8)) * SECTOR;
        let known = if kind == kind::WRITE_ZEROES { UNMAP } else { 0 };
        if u32_at(&segment, 12) & !known != 0 {
            return Err(Status::Unsupported);
        }
        if kind == kind::WRITE_ZEROES {
            span::zero(store, offset, bytes, &mut work.scratch)?;
        } else {
            span::discard(store, offset, bytes)?;
        }
    }
    Ok(())
}

fn u32_at(bytes: &[u8; 16], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8; 16], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
