//! The store of shared pages: a file from which pieces of [`UNIT_BYTES`] are allocated, as many in a row as a
//! compressed page needs. One bit for each piece, in memory that processes share; the caller holds their lock. The bits
//! can be rebuilt from the entries of all pages.

use canvas_types::sync::{AtomicU32, Ordering};
use canvas_types::{ExtentRef, PAGE_SIZE};

use crate::swap::classes::HEADER_BYTES;

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 128;
/// Units in a page of the file: the bits of a word.
pub const PAGE_UNITS: usize = PAGE_SIZE / UNIT_BYTES;
/// Units of the longest record.
pub const UNITS_MAX: usize = (PAGE_SIZE + HEADER_BYTES).div_ceil(UNIT_BYTES);

const _: () = assert!(PAGE_UNITS == u32::BITS as usize);

/// Bits of a record's payload length.
const LENGTH_BITS: u32 = 13;

/// Where a record is: its first unit, and the bytes of its payload (1 to a page).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreRef {
    /// Number of its first unit in the store.
    pub unit: u32,
    /// Bytes after the header.
    pub bytes: usize,
}

impl StoreRef {
    /// Encodes it as a number below 2^44, and not 0.
    pub fn number(self) -> u64 {
        u64::from(self.unit) << LENGTH_BITS | self.bytes as u64
    }
    /// Decodes [`StoreRef::number`].
    pub fn of(number: u64) -> StoreRef {
        StoreRef {
            unit: (number >> LENGTH_BITS) as u32,
            bytes: (number & ((1 << LENGTH_BITS) - 1)) as usize,
        }
    }
    /// Number of its units.
    pub fn units(self) -> usize {
        units_of(self.bytes)
    }
    /// Its first byte in the file.
    pub fn offset(self) -> usize {
        self.unit as usize * UNIT_BYTES
    }
}

/// Where the far copy of a shared page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarCopy {
    /// In the store.
    Stored(StoreRef),
    /// In far memory, in a record of an extent.
    InExtent(ExtentRef),
}

/// The bit of [`FarCopy::number`] that marks a copy in far memory.
const IN_EXTENT: u64 = 1 << 49;
/// Bits of a record's offset in its extent, in units of 16 bytes, and of its payload's length minus one.
const SIXTEENS_BITS: u32 = 11;
const LESS_ONE_BITS: u32 = 12;

impl FarCopy {
    /// Encodes it as a number below 2^50, and not 0.
    pub fn number(self) -> u64 {
        match self {
            FarCopy::Stored(place) => place.number(),
            FarCopy::InExtent(place) => {
                let at = u64::from(place.extent) << SIXTEENS_BITS | u64::from(place.offset / 16);
                let less_one = u64::from(place.len).saturating_sub(1);
                IN_EXTENT | at << LESS_ONE_BITS | less_one
            }
        }
    }
    /// Decodes [`FarCopy::number`].
    pub fn of(number: u64) -> FarCopy {
        if number & IN_EXTENT == 0 {
            return FarCopy::Stored(StoreRef::of(number));
        }
        let bits = |from: u32, n: u32| (number >> from) as u32 & ((1 << n) - 1);
        FarCopy::InExtent(ExtentRef {
            extent: bits(LESS_ONE_BITS + SIXTEENS_BITS, 26),
            offset: bits(LESS_ONE_BITS, SIXTEENS_BITS) * 16,
            len: bits(0, LESS_ONE_BITS) as u16 + 1,
        })
    }
}

/// Units of a record with a payload of `payload` bytes.
pub fn units_of(payload: usize) -> usize {
    (HEADER_BYTES + payload).div_ceil(UNIT_BYTES)
}

/// The units of a file.
#[derive(Clone, Copy)]
pub struct Units<'a> {
    /// One word for each page of the file, one bit for each unit.
    pub used: &'a [AtomicU32],
    /// The unit at which the next search starts.
    pub next: &'a AtomicU32,
}

impl Units<'_> {
    /// Allocates `n` consecutive units in the first `pages` pages of the file.
    pub fn take(&self, n: usize, pages: usize) -> Option<u32> {
        let end = pages.min(self.used.len()) * PAGE_UNITS;
        let next = (self.next.load(Ordering::Relaxed) as usize).min(end);
        // A run that begins before `next` may end after it.
        let unit = self
            .find(n, next, end)
            .or_else(|| self.find(n, 0, (next + n).min(end)))?;
        self.mark(unit as u32, n);
        self.next.store((unit + n) as u32, Ordering::Relaxed);
        Some(unit as u32)
    }
    fn find(&self, n: usize, from: usize, end: usize) -> Option<usize> {
        let (mut at, mut run) = (from, 0);
        while at < end {
            let word = self.used[at / PAGE_UNITS].load(Ordering::Relaxed);
            let here = word >> (at % PAGE_UNITS);
            let left = (PAGE_UNITS - at % PAGE_UNITS).min(end - at);
            let free = (here.trailing_zeros() as usize).min(left);
            run += free;
            at += free;
            if run >= n {
                return Some(at - run);
            }
            if free < left {
                run = 0;
                at += ((here >> free).trailing_ones() as usize).min(left - free);
            }
        }
        None
    }
    /// Marks units as used.
    pub fn mark(&self, unit: u32, n: usize) {
        self.each_word(unit, n, |w, bits| {
            let now = w.load(Ordering::Relaxed);
            debug_assert!(now & bits == 0);
            w.store(now | bits, Ordering::Relaxed);
        });
    }
    /// Frees units; calls `empty` with each page of the file without units in use.
    pub fn free(&self, unit: u32, n: usize, mut empty: impl FnMut(usize)) {
        let mut page = unit as usize / PAGE_UNITS;
        self.each_word(unit, n, |w, bits| {
            let now = w.load(Ordering::Relaxed) & !bits;
            w.store(now, Ordering::Relaxed);
            if now == 0 {
                empty(page);
            }
            page += 1;
        });
    }
    /// Marks all units of `pages` pages as free.
    pub fn forget(&self, pages: usize) {
        for w in &self.used[..pages.min(self.used.len())] {
            w.store(0, Ordering::Relaxed);
        }
    }
    fn each_word(&self, unit: u32, n: usize, mut f: impl FnMut(&AtomicU32, u32)) {
        let (mut at, end) = (unit as usize, unit as usize + n);
        while at < end {
            let first = at % PAGE_UNITS;
            let here = (PAGE_UNITS - first).min(end - at);
            let bits = (u32::MAX >> (PAGE_UNITS - here)) << first;
            f(&self.used[at / PAGE_UNITS], bits);
            at += here;
        }
    }
}
