//! Sealing: data that leaves the host is encrypted, and cannot be changed or replaced unnoticed.
//!
//! AES-256-GCM (NIST SP 800-38D), one key for each tenant. Every record of an extent is sealed separately, so that one
//! page can be read alone; its tag is in the space that the packer left after it. The directory is sealed like a
//! record. Only the extent's header (the number of records) stays readable: it is authenticated with the directory, and
//! reveals no more to a donor than the sizes of reads do.
//!
//! * Nonce: seal number (8 bytes) and offset in the extent / 16 (4 bytes). A write of an extent takes a new seal
//!   number, and its records do not overlap, so no nonce is used twice.
//! * Associated data: the tenant and the extent. A record of another extent, another version of the extent or another
//!   tenant does not verify.

use canvas_core::swap::extent::{
    EXTENT_BYTES, RECORDS_MAX, TAG_BYTES, directory_bytes, line, record_bytes, records,
};
use canvas_direct::wire::record::{HEADER_BYTES as HEADER, RecordKey};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Why an extent cannot be sealed or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealError {
    /// The header is invalid.
    Header,
    /// This line of the directory is invalid.
    Line(usize),
    /// Two records overlap.
    Overlap,
    /// The data are damaged, or are not the last version written.
    Seal,
}

impl std::fmt::Display for SealError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            SealError::Header => f.write_str("its header is invalid"),
            SealError::Line(i) => write!(f, "line {i} of its directory is invalid"),
            SealError::Overlap => f.write_str("two of its records overlap"),
            SealError::Seal => f.write_str("it does not verify"),
        }
    }
}

/// Seals and opens the extents of one tenant.
pub struct Sealer(RecordKey);

impl Sealer {
    /// With a key, and the tenant that is authenticated with each record.
    pub fn new(key: &[u8; KEY_BYTES], tenant: [u8; 16]) -> Sealer {
        Sealer(RecordKey::new(key, tenant))
    }

    /// Seals an extent in place; bytes that no line of the directory names become zero. No other thread may write the
    /// bytes. When they are not a valid extent, they stay unchanged and the error says why.
    pub fn seal(&self, extent: u32, seal: u64, bytes: &mut [u8]) -> Result<(), SealError> {
        let (n, ranges) = layout(bytes)?;
        let directory = directory_bytes(n);
        let mut end = directory + TAG_BYTES;
        for &(from, to) in &ranges[..n] {
            bytes[end..from].fill(0);
            end = to;
        }
        bytes[end..].fill(0);
        let (header, rest) = bytes.split_at_mut(HEADER);
        let named = (extent, seal);
        let tag = (self.0).seal(named, HEADER, header, &mut rest[..directory - HEADER]);
        bytes[directory..directory + TAG_BYTES].copy_from_slice(tag.as_ref());
        for &(from, to) in &ranges[..n] {
            let tag = (self.0).seal(named, from, &[], &mut bytes[from..to - TAG_BYTES]);
            bytes[to - TAG_BYTES..to].copy_from_slice(tag.as_ref());
        }
        Ok(())
    }

    /// Opens one record in place: `bytes` begin at `offset` of the extent and end with the tag, which becomes zero.
    pub fn open_record(
        &self,
        extent: u32,
        seal: u64,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), SealError> {
        self.open_one((extent, seal), offset, &[], bytes)
    }

    /// Opens the first bytes of an extent in place: the directory, and the records that end within `bytes`. A record
    /// that is cut off becomes zeros.
    pub fn open_extent(&self, extent: u32, seal: u64, bytes: &mut [u8]) -> Result<(), SealError> {
        let n = records(bytes).ok_or(SealError::Seal)?;
        let directory = directory_bytes(n) + TAG_BYTES;
        let (header, rest) = bytes.split_at_mut(HEADER);
        let named = (extent, seal);
        let sealed = rest.get_mut(..directory - HEADER).ok_or(SealError::Seal)?;
        self.open_one(named, HEADER, header, sealed)?;
        for i in 0..n {
            // It verified, so it is a directory that `seal` accepted.
            let range = line(bytes, n, i).ok_or(SealError::Seal)?.range();
            if range.end <= bytes.len() {
                self.open_one(named, range.start, &[], &mut bytes[range])?;
            } else if range.start < bytes.len() {
                bytes[range.start..].fill(0);
            }
        }
        Ok(())
    }

    fn open_one(
        &self,
        named: (u32, u64),
        offset: usize,
        header: &[u8],
        bytes: &mut [u8],
    ) -> Result<(), SealError> {
        let opened = self.0.open(named, offset, header, bytes);
        opened.map_err(|_| SealError::Seal)
    }
}

/// Start and end of each record of an extent, ascending.
type Ranges = [(usize, usize); RECORDS_MAX];

/// Number of records, and their ranges. Two overlapping records would be sealed with one nonce.
fn layout(bytes: &[u8]) -> Result<(usize, Ranges), SealError> {
    if bytes.len() != EXTENT_BYTES {
        return Err(SealError::Header);
    }
    let n = records(bytes).ok_or(SealError::Header)?;
    let mut ranges = [(0, 0); RECORDS_MAX];
    for (i, place) in ranges[..n].iter_mut().enumerate() {
        let range = line(bytes, n, i).ok_or(SealError::Line(i))?.range();
        *place = (range.start, range.end);
    }
    ranges[..n].sort_unstable();
    if ranges[..n].windows(2).any(|w| w[0].1 > w[1].0) {
        return Err(SealError::Overlap);
    }
    Ok((n, ranges))
}

/// Whether bytes `offset..offset + len` of an extent may be requested: its beginning, or one record.
pub fn is_readable(offset: u32, len: u32) -> bool {
    let (offset, len) = (offset as usize, len as usize);
    let fits = offset <= EXTENT_BYTES && len <= EXTENT_BYTES - offset;
    let least = if offset == 0 {
        directory_bytes(0) + TAG_BYTES
    } else {
        record_bytes(0)
    };
    fits && offset.is_multiple_of(16) && len.is_multiple_of(16) && len >= least
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_core::swap::extent::{Line, Packer};
    use canvas_types::SwapEntry;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
    const TENANT: [u8; 16] = *b"tenant tenant 16";

    fn packed(lens: &[u16]) -> (Vec<u8>, Vec<Line>) {
        let mut bytes = Box::new([0xaa; EXTENT_BYTES]);
        let mut packer = Packer::new(&mut bytes);
        let lines = lens
            .iter()
            .enumerate()
            .map(|(i, len)| {
                packer
                    .add(i as u32, SwapEntry(i as u32 + 1), *len, |b| {
                        b.fill(i as u8 + 1)
                    })
                    .unwrap()
            })
            .collect();
        packer.finish();
        (bytes.to_vec(), lines)
    }

    #[test]
    fn what_was_sealed_opens_whole_and_record_by_record() {
        let sealer = Sealer::new(&KEY, TENANT);
        let (clear, lines) = packed(&[4096, 100, 0, 17, 2000]);
        let mut sealed = clear.clone();
        sealer.seal(9, 3, &mut sealed).unwrap();
        let mut whole = sealed.clone();
        sealer.open_extent(9, 3, &mut whole).unwrap();
        assert!(whole == clear);
        for line in lines {
            let mut record = sealed[line.range()].to_vec();
            assert!(record != clear[line.range()]);
            sealer
                .open_record(9, 3, line.offset as usize, &mut record)
                .unwrap();
            assert!(record == clear[line.range()]);
        }
        // A part of the extent: the directory and no record.
        let mut part = sealed[..1024].to_vec();
        sealer.open_extent(9, 3, &mut part).unwrap();
        assert!(part == clear[..1024]);
    }

    #[test]
    fn nothing_else_opens() {
        let sealer = Sealer::new(&KEY, TENANT);
        let (clear, lines) = packed(&[300, 40]);
        let mut sealed = clear.clone();
        sealer.seal(9, 3, &mut sealed).unwrap();
        let open = |sealer: &Sealer, extent, seal, offset| {
            let mut record = sealed[lines[0].range()].to_vec();
            sealer.open_record(extent, seal, offset, &mut record)
        };
        let offset = lines[0].offset as usize;
        assert_eq!(open(&sealer, 9, 3, offset), Ok(()));
        assert_eq!(open(&sealer, 8, 3, offset), Err(SealError::Seal), "extent");
        assert_eq!(open(&sealer, 9, 2, offset), Err(SealError::Seal), "version");
        assert_eq!(
            open(&sealer, 9, 3, offset - 16),
            Err(SealError::Seal),
            "place"
        );
        let other = Sealer::new(&KEY, [1; 16]);
        assert_eq!(open(&other, 9, 3, offset), Err(SealError::Seal), "tenant");
        let other = Sealer::new(&[8; KEY_BYTES], TENANT);
        assert_eq!(open(&other, 9, 3, offset), Err(SealError::Seal), "key");
        // Every significant byte is covered.
        let used = (0..directory_bytes(2) + TAG_BYTES).chain(lines[1].range().start..EXTENT_BYTES);
        for at in used.step_by(7) {
            let mut bad = sealed.clone();
            bad[at] ^= 4;
            assert_eq!(
                sealer.open_extent(9, 3, &mut bad),
                Err(SealError::Seal),
                "{at}"
            );
        }
    }

    #[test]
    fn no_clear_byte_is_left_behind() {
        let sealer = Sealer::new(&KEY, TENANT);
        let (mut bytes, lines) = packed(&[64]);
        // Bytes that the directory does not name may hold anything, and must not leave the host.
        bytes[directory_bytes(1) + TAG_BYTES..lines[0].offset as usize].fill(0x55);
        sealer.seal(0, 1, &mut bytes).unwrap();
        assert!(
            bytes[directory_bytes(1) + TAG_BYTES..lines[0].offset as usize]
                .iter()
                .all(|b| *b == 0)
        );
        assert!(!bytes.windows(4).any(|w| w == [1; 4]));
    }

    #[test]
    fn a_bad_directory_is_refused_and_nothing_is_changed() {
        let sealer = Sealer::new(&KEY, TENANT);
        let (good, lines) = packed(&[300, 40]);
        let refused = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let before = bytes.clone();
            let why = sealer.seal(0, 1, &mut bytes).unwrap_err();
            assert!(bytes == before);
            why
        };
        assert_eq!(refused(&|b| b[0] ^= 1), SealError::Header);
        assert_eq!(refused(&|b| b[4] = 200), SealError::Header);
        assert_eq!(refused(&|b| b[4] = 3), SealError::Line(2));
        assert_eq!(refused(&|b| b[24..26].fill(0xff)), SealError::Line(0));
        // The second record in the first one's place: one nonce for two plaintexts.
        let place = (lines[0].offset / 16) as u16;
        assert_eq!(
            refused(&|b| b[40..42].copy_from_slice(&place.to_le_bytes())),
            SealError::Overlap
        );
        assert_eq!(sealer.seal(0, 1, &mut [0; 64]), Err(SealError::Header));
    }

    #[test]
    fn what_may_be_read() {
        for (offset, len, want) in [
            (0, EXTENT_BYTES as u32, true),
            (0, 32, true),
            (0, 16, false),
            (48, 32, true),
            (48, 16, false),
            (40, 32, false),
            (48, 33, false),
            (EXTENT_BYTES as u32 - 32, 32, true),
            (EXTENT_BYTES as u32 - 16, 32, false),
            (u32::MAX - 15, 32, false),
            (16, u32::MAX - 15, false),
        ] {
            assert_eq!(is_readable(offset, len), want, "{offset} {len}");
        }
    }
}
