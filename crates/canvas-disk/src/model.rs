//! The store compared with plain memory, with a pool so small that it is often full; also with
//! several threads.

use std::cell::RefCell;
use std::collections::BTreeSet;

use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_testing::random::{run_until, seed};
use canvas_types::{Codec, PAGE_SIZE, PageBuf};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::pool::{MemoryError, PAGES_MAX, POOL_BYTES_MIN};
use crate::ram::RamStore;
use crate::{DiskError, DiskMemory, DiskStats, PageStore, PoolStore, Scratch, span};

pub const PAGES: u64 = 600;
const BYTES: u64 = PAGES * PAGE_SIZE as u64;

/// A page of `random` random bytes, and a repeated rest.
pub fn page_of(seed: u64, random: usize) -> PageBuf {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 31)
    };
    let phrase = next().to_le_bytes();
    core::array::from_fn(|i| {
        if i < random {
            next() as u8
        } else {
            phrase[i % 7]
        }
    })
}

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        page: u64,
        seed: u64,
        random: usize,
    },
    Fill {
        page: u64,
        byte: u8,
    },
    /// Change a few bytes of the page.
    Touch {
        page: u64,
        seed: u64,
    },
    Same(u64),
    Read(u64),
    Discard(u64),
    WriteSpan {
        offset: u64,
        bytes: usize,
        seed: u64,
    },
    ReadSpan {
        offset: u64,
        bytes: usize,
    },
    DiscardSpan {
        offset: u64,
        bytes: u64,
    },
    ZeroSpan {
        offset: u64,
        bytes: u64,
    },
    Trim,
}

pub fn op() -> impl Strategy<Value = Op> {
    // The last page is beyond the end.
    let page = || 0..=PAGES;
    let offset = || 0..BYTES + 3;
    prop_oneof![
        12 => (page(), any::<u64>(), prop_oneof![0..PAGE_SIZE, Just(PAGE_SIZE)])
            .prop_map(|(page, seed, random)| Op::Write { page, seed, random }),
        2 => (page(), 0..3u8).prop_map(|(page, byte)| Op::Fill { page, byte }),
        4 => (page(), any::<u64>()).prop_map(|(page, seed)| Op::Touch { page, seed }),
        2 => page().prop_map(Op::Same),
        6 => page().prop_map(Op::Read),
        2 => page().prop_map(Op::Discard),
        3 => (offset(), 0..20_000usize, any::<u64>())
            .prop_map(|(offset, bytes, seed)| Op::WriteSpan { offset, bytes, seed }),
        3 => (offset(), 0..20_000usize).prop_map(|(offset, bytes)| Op::ReadSpan { offset, bytes }),
        1 => (offset(), 0..900_000u64)
            .prop_map(|(offset, bytes)| Op::DiscardSpan { offset, bytes }),
        1 => (offset(), 0..60_000u64).prop_map(|(offset, bytes)| Op::ZeroSpan { offset, bytes }),
        1 => Just(Op::Trim),
    ]
}

pub struct Pair<'m> {
    pub store: PoolStore<'m>,
    pub ram: RamStore,
    pub scratch: Box<Scratch>,
}

impl Pair<'_> {
    fn write(&mut self, page: u64, from: &PageBuf) -> Result<&'static str, TestCaseError> {
        let got = self.store.write(page, from, &mut self.scratch);
        if got == Err(DiskError::Full) {
            return Ok("full");
        }
        prop_assert_eq!(got, self.ram.write(page, from, &mut self.scratch));
        Ok("written")
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<(), TestCaseError> {
        let (mut got, mut want) = (vec![1; bytes], vec![2; bytes]);
        let result = span::read(&self.store, offset, &mut got, &mut self.scratch);
        let wanted = span::read(&self.ram, offset, &mut want, &mut self.scratch);
        prop_assert_eq!(result, wanted);
        prop_assert!(
            result.is_err() || got == want,
            "{} bytes at {}",
            bytes,
            offset
        );
        Ok(())
    }

    /// Pages before the one that found no room are written.
    fn write_span(&mut self, offset: u64, bytes: &[u8]) -> Result<&'static str, TestCaseError> {
        let got = span::write(&self.store, offset, bytes, &mut self.scratch);
        if got != Err(DiskError::Full) {
            let want = span::write(&self.ram, offset, bytes, &mut self.scratch);
            prop_assert_eq!(got, want);
            return Ok("span written");
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let len = (PAGE_SIZE - (at % PAGE_SIZE as u64) as usize).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            let mut now = vec![0; len];
            span::read(&self.store, at, &mut now, &mut self.scratch).unwrap();
            if now != part {
                break;
            }
            span::write(&self.ram, at, part, &mut self.scratch).unwrap();
            done += len;
        }
        prop_assert!(done < bytes.len(), "nothing was refused");
        Ok("span full")
    }

    /// Its first and last page may find no room: each is unchanged or as requested.
    fn zero_span(&mut self, offset: u64, bytes: u64) -> TestCaseResult {
        let got = span::zero(&self.store, offset, bytes, &mut self.scratch);
        let before = RamStore::new(PAGES);
        let size = PAGE_SIZE as u64;
        let touched = offset / size..(offset + bytes).div_ceil(size).min(PAGES);
        for page in touched.clone() {
            let old = self.ram.page(page);
            before.write(page, &old, &mut self.scratch).unwrap();
        }
        let want = span::zero(&self.ram, offset, bytes, &mut self.scratch);
        if got != Err(DiskError::Full) {
            prop_assert_eq!(got, want);
            return Ok(());
        }
        for page in touched {
            let mut now = [0; PAGE_SIZE];
            self.store.read(page, &mut now, &mut self.scratch).unwrap();
            prop_assert!(now == before.page(page) || now == self.ram.page(page));
            self.ram.write(page, &now, &mut self.scratch).unwrap();
        }
        Ok(())
    }

    pub fn apply(&mut self, op: &Op) -> Result<&'static str, TestCaseError> {
        Ok(match *op {
            Op::Write { page, seed, random } => self.write(page, &page_of(seed, random))?,
            Op::Fill { page, byte } => {
                let filled = self.write(page, &[byte; PAGE_SIZE])?;
                if byte == 0 { "zeros" } else { filled }
            }
            Op::Touch { page, seed } => {
                let mut bytes = self.ram.page(page);
                bytes[seed as usize % PAGE_SIZE] ^= (seed >> 32) as u8 | 1;
                self.write(page, &bytes)?;
                "touched"
            }
            Op::Same(page) => self.write(page, &self.ram.page(page))?,
            Op::Read(page) => {
                self.read(page * PAGE_SIZE as u64, PAGE_SIZE)?;
                "read"
            }
            Op::Discard(page) => {
                prop_assert_eq!(self.store.discard(page), self.ram.discard(page));
                "discarded"
            }
            Op::WriteSpan {
                offset,
                bytes,
                seed,
            } => {
                let all: Vec<u8> = (0..bytes.div_ceil(PAGE_SIZE) as u64)
                    .flat_map(|i| page_of(seed ^ i, (seed % 5000) as usize))
                    .collect();
                self.write_span(offset, &all[..bytes])?
            }
            Op::ReadSpan { offset, bytes } => {
                self.read(offset, bytes)?;
                "span read"
            }
            Op::DiscardSpan { offset, bytes } => {
                let got = span::discard(&self.store, offset, bytes);
                prop_assert_eq!(got, span::discard(&self.ram, offset, bytes));
                if got.is_ok() {
                    "span discarded"
                } else {
                    "outside"
                }
            }
            Op::ZeroSpan { offset, bytes } => {
                self.zero_span(offset, bytes)?;
                "span zeroed"
            }
            Op::Trim => {
                self.store.background_round();
                self.store.trim();
                "trimmed"
            }
        })
    }

    pub fn check_all(&mut self) -> Result<(), TestCaseError> {
        let (mut stored, mut same) = (0, 0);
        for page in 0..PAGES {
            self.read(page * PAGE_SIZE as u64, PAGE_SIZE)?;
            let bytes = self.ram.page(page);
            let word = &bytes[..8];
            let filled = bytes.chunks_exact(8).all(|w| w == word);
            stored += u64::from(bytes != [0; PAGE_SIZE]);
            same += u64::from(filled && bytes != [0; PAGE_SIZE]);
        }
        let stats = self.store.stats();
        prop_assert_eq!((stats.stored_pages, stats.same_pages), (stored, same));
        prop_assert!(stats.far_bytes > 0 || stats.pool_bytes <= stats.pool_bytes_max);
        prop_assert_eq!((stats.damaged, stats.unreachable), (0, 0));
        Ok(())
    }
}

/// Events that have occurred.
pub type Seen = RefCell<BTreeSet<&'static str>>;

/// Performs operations on a new disk and compares it with plain memory throughout; returns its
/// statistics.
pub fn compare(memory: &DiskMemory, ops: &[Op], seen: &Seen) -> Result<DiskStats, TestCaseError> {
    let mut pair = Pair {
        store: PoolStore::new(memory, Codec::Lz4),
        ram: RamStore::new(PAGES),
        scratch: Box::default(),
    };
    for op in ops {
        seen.borrow_mut().insert(pair.apply(op)?);
    }
    pair.check_all()?;
    // After everything is discarded, nothing takes space.
    span::discard(&pair.store, 0, BYTES).unwrap();
    pair.store.trim();
    let stats = pair.store.stats();
    prop_assert_eq!(
        (stats.stored_pages, stats.stored_bytes, stats.pool_bytes),
        (0, 0, 0)
    );
    Ok(stats)
}

#[test]
fn the_store_is_a_disk() {
    let seen = Seen::default();
    let case = |ops: Vec<Op>| {
        // Preallocated memory behaves like memory allocated on demand.
        let memory = match ops.len() % 2 {
            0 => DiskMemory::new(PAGES, POOL_BYTES_MIN),
            _ => DiskMemory::taken(PAGES, POOL_BYTES_MIN),
        };
        compare(&memory.unwrap(), &ops, &seen).map(drop)
    };
    let plan = prop::collection::vec(op(), 1..1500);
    let all = ["full", "span full", "outside", "zeros", "trimmed"];
    let complete = || all.iter().all(|what| seen.borrow().contains(what));
    run_until(8, &plan, case, complete);
    assert!(complete(), "{:?}", seen.borrow());
}

#[test]
fn threads_on_neighbouring_pages_do_not_meet() {
    let memory = DiskMemory::new(512, 8 << 20).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let base = seed();
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let store = &store;
            s.spawn(move || {
                let mut scratch = Box::<Scratch>::default();
                let mut out = [0; PAGE_SIZE];
                for round in 0..40u64 {
                    for page in (thread..512).step_by(4) {
                        let want = page_of(base ^ (round * 512 + page), (page * 8) as usize % 4097);
                        store.write(page, &want, &mut scratch).unwrap();
                        if (page + round).is_multiple_of(3) {
                            store.discard(page ^ 4).unwrap();
                            store.write(page ^ 4, &want, &mut scratch).unwrap();
                        }
                        store.read(page, &mut out, &mut scratch).unwrap();
                        assert!(out == want, "page {page} in round {round}");
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!((stats.damaged, stats.refused), (0, 0));
    assert_eq!(stats.stored_pages, 512);
}

/// Sectors smaller than a page, each written by another thread.
#[test]
fn parts_of_a_page_are_written_in_one_step() {
    let memory = DiskMemory::new(1, POOL_BYTES_MIN).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let store = &store;
            s.spawn(move || {
                let mut scratch = Box::<Scratch>::default();
                for round in 0..2000u64 {
                    let sector = [(thread * 50 + round % 50) as u8; 512];
                    span::write(store, thread * 512, &sector, &mut scratch).unwrap();
                    let mut back = [0; 512];
                    span::read(store, thread * 512, &mut back, &mut scratch).unwrap();
                    assert_eq!(back, sector, "sector {thread} in round {round}");
                }
            });
        }
    });
}

#[test]
fn without_a_codec_pages_are_stored_as_they_are() {
    let mut scratch = Box::<Scratch>::default();
    let stored = |codec, scratch: &mut Scratch| {
        let memory = DiskMemory::new(64, POOL_BYTES_MIN).unwrap();
        let store = PoolStore::new(&memory, codec);
        for page in 0..64 {
            store.write(page, &page_of(page, 500), scratch).unwrap();
        }
        store.stats().stored_bytes
    };
    assert_eq!(stored(Codec::None, &mut scratch), 64 * (4096 + 16));
    assert!(stored(Codec::Lz4, &mut scratch) < 64 * 1024);
}

#[test]
fn what_cannot_be_a_disk_is_told() {
    let wrong = |pages, pool| {
        let wrong = DiskMemory::new(pages, pool).err();
        assert_eq!(DiskMemory::taken(pages, pool).err(), wrong);
        wrong
    };
    assert_eq!(wrong(0, POOL_BYTES_MIN), Some(MemoryError::NoPage));
    assert_eq!(
        wrong(PAGES_MAX + 1, POOL_BYTES_MIN),
        Some(MemoryError::TooManyPages(PAGES_MAX + 1))
    );
    assert_eq!(wrong(1, 4096), Some(MemoryError::PoolTooSmall(4096)));
    assert_eq!(
        wrong(1, u64::MAX),
        Some(MemoryError::PoolTooLarge(u64::MAX))
    );
    // The largest disk only takes addresses.
    let memory = DiskMemory::new(PAGES_MAX, 1 << 30).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let mut scratch = Box::<Scratch>::default();
    let page = page_of(1, 100);
    store.write(PAGES_MAX - 1, &page, &mut scratch).unwrap();
    let mut out = [0; PAGE_SIZE];
    store.read(PAGES_MAX - 1, &mut out, &mut scratch).unwrap();
    assert_eq!(out, page);
    assert_eq!(
        store.read(PAGES_MAX, &mut out, &mut scratch),
        Err(DiskError::Outside)
    );
    const { assert!(POOL_BYTES_MIN as i64 / SLAB_CHARGE_BYTES > 25) };
}
