//! Format of the trace that `canvas run -o trace` writes and `lab replay` reads.
//!
//! A 64-byte header is followed by 16-byte records, all little-endian. Recording every touch is not possible, because
//! the pager does not see hits on mapped pages. So some pages are chosen by a hash of their number (spatial sampling,
//! as in SHARDS, FAST'15) and unmapped repeatedly, so that all their touches become records; a replay scales the memory
//! by the same rate.

use canvas_types::PageId;

/// "CANVTRC" and a version byte, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CANVTRC\x01");
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;

/// Share of pages that are sampled, in 1/2^32; [`SampleRate::ALL`] for every page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleRate(pub u32);

impl SampleRate {
    /// Every page is sampled.
    pub const ALL: SampleRate = SampleRate(u32::MAX);
    /// One page of `n`.
    pub const fn one_in(n: u32) -> SampleRate {
        if n <= 1 {
            SampleRate::ALL
        } else {
            SampleRate((0x1_0000_0000u64 / n as u64) as u32)
        }
    }
    /// The rate as a number from 0 to 1.
    #[cfg(any(test, feature = "std"))]
    pub fn share(self) -> f64 {
        if self == SampleRate::ALL {
            1.0
        } else {
            f64::from(self.0) / 4_294_967_296.0
        }
    }
}

/// Whether `page` is sampled. The answer is the same in every process and run.
#[inline]
pub fn is_sampled(page: PageId, rate: SampleRate) -> bool {
    rate == SampleRate::ALL || hash(page.0) < rate.0
}

/// Finaliser of MurmurHash3: every bit of the page's number changes half of the result's bits.
#[inline]
fn hash(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// The kind of event that a record describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Fault on a page that was never touched before.
    FirstTouch = 1,
    /// Fault on a far page.
    Demand = 2,
    /// Fault on a page in the swap cache that reclaim had unmapped.
    VictimHit = 3,
    /// Touch of a sampled page that had been unmapped only to observe it.
    SampledTouch = 4,
    /// The page was prefetched (no touch).
    Prefetch = 5,
    /// Fault on a prefetched page that had been left in the swap cache.
    PrefetchHit = 6,
    /// The page was discarded (munmap, madvise): it reads as zeros from now on.
    Discard = 7,
    /// Reclaim unmapped the page (no touch).
    Evict = 8,
}

impl Kind {
    fn of(raw: u8) -> Option<Kind> {
        use Kind::*;
        [
            FirstTouch,
            Demand,
            VictimHit,
            SampledTouch,
            Prefetch,
            PrefetchHit,
            Discard,
            Evict,
        ]
        .into_iter()
        .find(|k| *k as u8 == raw)
    }
    /// Whether the record stands for a touch by the program.
    pub fn is_touch(self) -> bool {
        use Kind::*;
        matches!(
            self,
            FirstTouch | Demand | VictimHit | SampledTouch | PrefetchHit
        )
    }
}

/// Bits of [`Record::flags`].
pub mod record_flag {
    /// The touch was a write, as far as is known.
    pub const WRITE: u8 = 1;
    /// The page was touched for a system call.
    pub const SYSCALL: u8 = 2;
    /// The page is a sampled one.
    pub const SAMPLED: u8 = 4;
}

/// One event of one sampled page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Time since the trace began, in us; wraps after 71 minutes.
    pub time_us: u32,
    /// The page's number in the managed range.
    pub page: PageId,
    /// The thread, hashed.
    pub thread: u16,
    /// What happened to the page.
    pub kind: Kind,
    /// Bits of [`record_flag`].
    pub flags: u8,
    /// The process's slot in the tenant segment: distinguishes pages of different processes.
    pub process: u16,
    /// Depends on the kind; for faults the time to resolve it in units of 64 ns (saturating).
    pub detail: u16,
}

impl Record {
    /// Encodes the record, little-endian.
    #[inline]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut b = [0; RECORD_BYTES];
        b[0..4].copy_from_slice(&self.time_us.to_le_bytes());
        b[4..8].copy_from_slice(&self.page.0.to_le_bytes());
        b[8..10].copy_from_slice(&self.thread.to_le_bytes());
        b[10] = self.kind as u8;
        b[11] = self.flags;
        b[12..14].copy_from_slice(&self.process.to_le_bytes());
        b[14..16].copy_from_slice(&self.detail.to_le_bytes());
        b
    }
    /// Decodes a record; `None` for a kind that this version does not know.
    pub fn decode(b: &[u8; RECORD_BYTES]) -> Option<Record> {
        Some(Record {
            time_us: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            page: PageId(u32::from_le_bytes([b[4], b[5], b[6], b[7]])),
            thread: u16::from_le_bytes([b[8], b[9]]),
            kind: Kind::of(b[10])?,
            flags: b[11],
            process: u16::from_le_bytes([b[12], b[13]]),
            detail: u16::from_le_bytes([b[14], b[15]]),
        })
    }
}

/// Header of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Share of pages whose touches are recorded.
    pub rate: SampleRate,
    /// Local limit when the trace began, in pages; 0 for none.
    pub local_pages: u32,
    /// Wall clock when the trace began, in s since 1970.
    pub start_unix_s: u64,
}

impl Header {
    /// Encodes the header, little-endian.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        b[8..12].copy_from_slice(&self.rate.0.to_le_bytes());
        b[12..16].copy_from_slice(&self.local_pages.to_le_bytes());
        b[16..24].copy_from_slice(&self.start_unix_s.to_le_bytes());
        b
    }
    /// Decodes a header; `None` if the bytes are not a trace of this version.
    pub fn decode(b: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let magic = u64::from(word(0)) | u64::from(word(4)) << 32;
        (magic == MAGIC).then(|| Header {
            rate: SampleRate(word(8)),
            local_pages: word(12),
            start_unix_s: u64::from(word(16)) | u64::from(word(20)) << 32,
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_survive_a_round_trip(time_us: u32, page: u32, thread: u16, kind in 1u8..=8, flags: u8, process: u16, detail: u16) {
            let r = Record { time_us, page: PageId(page), thread, kind: Kind::of(kind).unwrap(), flags, process, detail };
            prop_assert_eq!(Record::decode(&r.encode()), Some(r));
        }
        #[test]
        fn headers_survive_a_round_trip(rate: u32, local_pages: u32, start_unix_s: u64) {
            let h = Header { rate: SampleRate(rate), local_pages, start_unix_s };
            prop_assert_eq!(Header::decode(&h.encode()), Some(h));
        }
    }

    #[test]
    fn bad_bytes_are_refused() {
        let mut r = Record {
            time_us: 1,
            page: PageId(2),
            thread: 3,
            kind: Kind::Demand,
            flags: 0,
            process: 0,
            detail: 0,
        }
        .encode();
        r[10] = 99;
        assert_eq!(Record::decode(&r), None);
        let mut h = Header {
            rate: SampleRate::ALL,
            local_pages: 0,
            start_unix_s: 0,
        }
        .encode();
        h[7] = 2;
        assert_eq!(Header::decode(&h), None);
    }

    #[test]
    fn the_layout_is_what_the_format_says() {
        let r = Record {
            time_us: 0x0403_0201,
            page: PageId(0x0807_0605),
            thread: 0x0a09,
            kind: Kind::Discard,
            flags: 0x0c,
            process: 0x0e0d,
            detail: 0x100f,
        };
        assert_eq!(
            r.encode(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 7, 12, 13, 14, 15, 16]
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "a million pages")]
    fn sampling_takes_its_share() {
        for n in [1, 2, 16, 64] {
            let rate = SampleRate::one_in(n);
            let taken = (0..1 << 18)
                .filter(|p| is_sampled(PageId(*p), rate))
                .count() as f64;
            let want = f64::from(1 << 18) / f64::from(n);
            assert!(
                (taken - want).abs() < want * 0.05,
                "1 in {n}: {taken} of {want}"
            );
        }
    }
}
