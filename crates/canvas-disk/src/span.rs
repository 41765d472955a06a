//! Byte ranges of a disk, processed page by page. Part of a page is changed atomically
//! ([`PageStore::write_part`]), so that clients with smaller sectors lose nothing.

use canvas_types::{PAGE_SIZE, PageBuf};

use crate::{DiskError, PageStore, Scratch};

const PAGE: u64 = PAGE_SIZE as u64;

/// Size of the disk in bytes.
pub fn disk_bytes(store: &impl PageStore) -> u64 {
    store.pages() * PAGE
}

/// Checks whether a range is on the disk.
pub fn check(store: &impl PageStore, offset: u64, bytes: u64) -> Result<(), DiskError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= disk_bytes(store) => Ok(()),
        _ => Err(DiskError::Outside),
    }
}

/// The part of a range in its first page.
fn first_part(offset: u64, bytes: usize) -> (u64, usize, usize) {
    let at = (offset % PAGE) as usize;
    (offset / PAGE, at, bytes.min(PAGE_SIZE - at))
}

/// Hints that a range is about to be read in parts.
pub fn expect(store: &impl PageStore, offset: u64, bytes: usize) {
    let pages = offset / PAGE..offset.saturating_add(bytes as u64).div_ceil(PAGE);
    if pages.end > pages.start + 1 {
        store.expect(pages);
    }
}

/// Reads a range.
pub fn read(
    store: &impl PageStore,
    offset: u64,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), DiskError> {
    read_until(store, offset, out, scratch).1
}

/// Reads a range from its start: returns how many bytes were read, and the error, if any.
pub fn read_until(
    store: &impl PageStore,
    offset: u64,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> (usize, Result<(), DiskError>) {
    if let Err(e) = check(store, offset, out.len() as u64) {
        return (0, Err(e));
    }
    expect(store, offset, out.len());
    let mut done = 0;
    while done < out.len() {
        let (page, at, len) = first_part(offset + done as u64, out.len() - done);
        let part = &mut out[done..done + len];
        let read = match <&mut PageBuf>::try_from(&mut *part) {
            Ok(whole) => store.read(page, whole, scratch),
            Err(_) => {
                let mut whole = [0; PAGE_SIZE];
                let read = store.read(page, &mut whole, scratch);
                read.map(|()| part.copy_from_slice(&whole[at..at + len]))
            }
        };
        if read.is_err() {
            return (done, read);
        }
        done += len;
    }
    (done, Ok(()))
}

/// Writes a range. After an error, the pages before the failed one are written.
pub fn write(
    store: &impl PageStore,
    mut offset: u64,
    mut from: &[u8],
    scratch: &mut Scratch,
) -> Result<(), DiskError> {
    check(store, offset, from.len() as u64)?;
    while !from.is_empty() {
        let (page, at, len) = first_part(offset, from.len());
        let (part, rest) = from.split_at(len);
        match <&PageBuf>::try_from(part) {
            Ok(whole) => store.write(page, whole, scratch)?,
            Err(_) => store.write_part(page, at, part, scratch)?,
        }
        (offset, from) = (offset + len as u64, rest);
    }
    Ok(())
}

/// The whole pages of a range.
fn whole_pages(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset.div_ceil(PAGE)..(offset + bytes) / PAGE
}

/// Discards the whole pages of a range; partly covered pages are left alone.
pub fn discard(store: &impl PageStore, offset: u64, bytes: u64) -> Result<(), DiskError> {
    check(store, offset, bytes)?;
    whole_pages(offset, bytes).try_for_each(|page| store.discard(page))
}

/// Fills a range with zeros; whole pages then take no space.
pub fn zero(
    store: &impl PageStore,
    offset: u64,
    bytes: u64,
    scratch: &mut Scratch,
) -> Result<(), DiskError> {
    check(store, offset, bytes)?;
    let zeros = [0; PAGE_SIZE];
    let pages = whole_pages(offset, bytes);
    let (start, end) = (pages.start * PAGE, pages.end * PAGE);
    if start >= end {
        // Within one page, or in two partly covered ones.
        let first = bytes.min(PAGE - offset % PAGE);
        write(store, offset, &zeros[..first as usize], scratch)?;
        let rest = (bytes - first) as usize;
        return write(store, offset + first, &zeros[..rest], scratch);
    }
    write(store, offset, &zeros[..(start - offset) as usize], scratch)?;
    pages.clone().try_for_each(|page| store.discard(page))?;
    let rest = (offset + bytes - end) as usize;
    write(store, end, &zeros[..rest], scratch)
}
