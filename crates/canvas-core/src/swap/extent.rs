//! *Extents*: the form of pages in far memory, batches of pages as the pool stored them (FastSwap §IV: still
//! compressed, in batches).
//!
//! ```text
//! 0         16                16 + 16n  +16                                      32 KiB
//! ┌─────────┬──────────────────┬─────────┬─────────┬──────────┬─────┬──────────┬──────────┐
//! │ header  │ directory, n x 16│ room for│  unused │ record n │ ... │ record 2 │ record 1 │
//! │         │                  │ a tag   │         │          │     │          │          │
//! └─────────┴──────────────────┴─────────┴─────────┴──────────┴─────┴──────────┴──────────┘
//! header     magic u32, records u16, 0 (10 bytes)
//! directory  page u32, entry u32, offset/16 u16, payload bytes u16, 0 u32
//! record     content hash (16), payload, zeros up to 16, room for a tag (16)
//! ```
//!
//! All numbers are little-endian. Records begin at multiples of 16. The tags are the agent's: it seals directory and
//! records individually, so that one page can be read, and verified, without the rest. Readers must validate a
//! directory: anybody may have written it.

use canvas_types::{ExtentRef, SwapEntry};

use crate::swap::classes::HEADER_BYTES;

/// Bytes of an extent.
pub const EXTENT_BYTES: usize = 32 << 10;
/// Bytes reserved for the tag of the directory and of each record.
pub const TAG_BYTES: usize = 16;
/// Most records of an extent.
pub const RECORDS_MAX: usize = 128;
const MAGIC: u32 = 0x3154_5845;
const UNIT: usize = 16;

/// Bytes of a record with a payload of `len` bytes, its tag included.
#[inline]
pub const fn record_bytes(len: usize) -> usize {
    (HEADER_BYTES + len).next_multiple_of(UNIT) + TAG_BYTES
}

/// Bytes of header and directory, without the tag.
#[inline]
pub const fn directory_bytes(records: usize) -> usize {
    UNIT * (1 + records)
}

/// One line of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The page's number.
    pub page: u32,
    /// The entry that named the page when it was packed.
    pub entry: SwapEntry,
    /// First byte of the record.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u16,
}

impl Line {
    /// The range of the record, tag included.
    pub fn range(&self) -> core::ops::Range<usize> {
        self.offset as usize..self.offset as usize + record_bytes(self.len as usize)
    }
    /// The record's place, as an entry names it.
    pub fn place(&self, extent: u32) -> ExtentRef {
        ExtentRef {
            extent,
            offset: self.offset,
            len: self.len,
        }
    }
}

/// Whether a record can be at this place.
pub fn is_valid_ref(place: ExtentRef) -> bool {
    let end = place.offset as usize + record_bytes(place.len.into());
    usize::from(place.len) <= canvas_types::PAGE_SIZE && end <= EXTENT_BYTES
}

/// Fills an extent.
pub struct Packer<'b> {
    bytes: &'b mut [u8; EXTENT_BYTES],
    records: usize,
    /// First byte used by a record.
    floor: usize,
}

impl<'b> Packer<'b> {
    /// Starts an empty extent in `bytes`.
    pub fn new(bytes: &'b mut [u8; EXTENT_BYTES]) -> Packer<'b> {
        bytes[..UNIT].fill(0);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        Packer {
            bytes,
            records: 0,
            floor: EXTENT_BYTES,
        }
    }
    /// Continues an extent that [`Packer::new`] started; `None` when `bytes` are not one.
    pub fn resume(bytes: &'b mut [u8; EXTENT_BYTES]) -> Option<Packer<'b>> {
        let records = records(&bytes[..])?;
        let floor = match records.checked_sub(1) {
            None => EXTENT_BYTES,
            Some(last) => line(&bytes[..], records, last)?.offset as usize,
        };
        Some(Packer {
            bytes,
            records,
            floor,
        })
    }
    /// Adds a record: `stored` gets `HEADER_BYTES + len` bytes to fill with hash and payload. Without room for it
    /// nothing changes, and `stored` is not called.
    pub fn add(
        &mut self,
        page: u32,
        entry: SwapEntry,
        len: u16,
        stored: impl FnOnce(&mut [u8]),
    ) -> Option<Line> {
        let bytes = record_bytes(len as usize);
        let directory = directory_bytes(self.records + 1) + TAG_BYTES;
        if self.records == RECORDS_MAX || directory + bytes > self.floor {
            return None;
        }
        self.floor -= bytes;
        let record = &mut self.bytes[self.floor..self.floor + bytes];
        let used = HEADER_BYTES + len as usize;
        stored(&mut record[..used]);
        record[used..].fill(0);
        let line = Line {
            page,
            entry,
            offset: self.floor as u32,
            len,
        };
        let at = directory_bytes(self.records);
        let d = &mut self.bytes[at..at + UNIT];
        d[..4].copy_from_slice(&page.to_le_bytes());
        d[4..8].copy_from_slice(&entry.0.to_le_bytes());
        d[8..10].copy_from_slice(&((self.floor / UNIT) as u16).to_le_bytes());
        d[10..12].copy_from_slice(&len.to_le_bytes());
        d[12..].fill(0);
        self.records += 1;
        self.bytes[4..6].copy_from_slice(&(self.records as u16).to_le_bytes());
        Some(line)
    }
    /// Records so far.
    pub fn records(&self) -> usize {
        self.records
    }
    /// Ends the extent: unused bytes become zero.
    pub fn finish(self) -> usize {
        self.bytes[directory_bytes(self.records)..self.floor].fill(0);
        self.records
    }
}

/// The number of records of an extent; `None` when `bytes`, an extent's first 16, are no valid header.
pub fn records(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<UNIT>()?;
    let n = u16::from_le_bytes([header[4], header[5]]) as usize;
    (header[..4] == MAGIC.to_le_bytes() && n <= RECORDS_MAX && header[6..] == [0; UNIT - 6])
        .then_some(n)
}

/// Line `i` of an extent with `records` records; `None` when it is invalid: a payload that is longer than a page, a
/// record outside the extent or over the directory. Records may overlap each other.
pub fn line(extent: &[u8], records: usize, i: usize) -> Option<Line> {
    let at = directory_bytes(i);
    let d = extent.get(at..at + UNIT)?.first_chunk::<UNIT>()?;
    let u32_at = |k: usize| u32::from_le_bytes([d[k], d[k + 1], d[k + 2], d[k + 3]]);
    let u16_at = |k: usize| u16::from_le_bytes([d[k], d[k + 1]]);
    let line = Line {
        page: u32_at(0),
        entry: SwapEntry(u32_at(4)),
        offset: u32::from(u16_at(8)) * UNIT as u32,
        len: u16_at(10),
    };
    let range = line.range();
    (i < records
        && line.len as usize <= canvas_types::PAGE_SIZE
        && u32_at(12) == 0
        && range.start >= directory_bytes(records) + TAG_BYTES
        && range.end <= EXTENT_BYTES)
        .then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_where_the_directory_says() {
        let mut bytes = [0xee; EXTENT_BYTES];
        let mut packer = Packer::new(&mut bytes);
        let mut want = [None; RECORDS_MAX];
        let mut n = 0;
        // A raw page first, then smaller and smaller ones, until the extent is full.
        while let Some(line) = {
            let len = (4096 >> (n / 2).min(8)).max(40) as u16;
            packer.add(n as u32 + 7, SwapEntry(n as u32 + 1), len, |b| {
                assert_eq!(b.len(), 16 + len as usize);
                b.fill(n as u8);
            })
        } {
            want[n] = Some(line);
            n += 1;
        }
        assert!(n > 64, "{n}");
        assert_eq!((packer.records(), packer.finish()), (n, n));
        assert_eq!(records(&bytes), Some(n));
        let mut end = EXTENT_BYTES;
        for (i, want) in want.iter().take(n).enumerate() {
            let got = line(&bytes, n, i).unwrap();
            assert_eq!(Some(got), *want);
            assert_eq!(got.range().end, end, "no gaps");
            end = got.range().start;
            let record = &bytes[got.range()];
            assert!(
                record[..16 + got.len as usize]
                    .iter()
                    .all(|b| *b == i as u8)
            );
            assert!(record[16 + got.len as usize..].iter().all(|b| *b == 0));
        }
        assert!(bytes[directory_bytes(n)..end].iter().all(|b| *b == 0));
    }

    #[test]
    fn raw_pages_fill_an_extent_by_sevens() {
        let mut bytes = [0; EXTENT_BYTES];
        let mut packer = Packer::new(&mut bytes);
        let n = core::iter::from_fn(|| packer.add(1, SwapEntry(1), 4096, |_| ())).count();
        assert_eq!(n, 7);
    }

    #[test]
    fn an_extent_is_filled_in_several_goes_as_in_one() {
        let (mut one, mut other) = ([0xee; EXTENT_BYTES], [0x11; EXTENT_BYTES]);
        let mut packer = Packer::new(&mut one);
        Packer::new(&mut other);
        for n in 0..200u16 {
            let len = 100 + n * 37 % 3997;
            let add = |packer: &mut Packer| {
                packer.add(n.into(), SwapEntry(n.into()), len, |b| b.fill(n as u8))
            };
            let got = add(&mut Packer::resume(&mut other).unwrap());
            assert_eq!(got, add(&mut packer));
        }
        packer.finish();
        Packer::resume(&mut other).unwrap().finish();
        assert!(one == other);
        other[0] ^= 1;
        assert!(Packer::resume(&mut other).is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bytes = [0; EXTENT_BYTES];
        let mut packer = Packer::new(&mut bytes);
        packer.add(1, SwapEntry(2), 100, |b| b.fill(3)).unwrap();
        packer.finish();
        assert!(line(&bytes, 1, 0).is_some());
        assert_eq!(line(&bytes, 1, 1), None, "behind the directory");
        assert_eq!(line(&bytes, RECORDS_MAX, 0).map(|l| l.len), Some(100));
        assert_eq!(records(&bytes[..15]), None);
        for (at, value) in [(0, 1), (5, 1), (6, 1), (15, 1)] {
            let mut bad = bytes;
            bad[at] ^= value;
            assert_eq!(records(&bad), None, "header byte {at}");
        }
        // Offset over the directory, offset past the end, a payload past the end, over-long, reserved.
        for (at, value) in [
            (24, [2, 0]),
            (24, [0xff, 0x07]),
            (26, [0, 9]),
            (26, [1, 0x10]),
            (28, [1, 0]),
        ] {
            let mut bad = bytes;
            bad[at..at + 2].copy_from_slice(&value);
            assert_eq!(line(&bad, 1, 0), None, "line bytes {at}: {value:?}");
        }
    }
}
