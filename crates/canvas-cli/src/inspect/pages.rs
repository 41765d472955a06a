//! Finds and reads a page of the managed range.

use std::sync::LazyLock;
use std::time::Duration;

use canvas_core::pager::slot::{self, SlotState};
use canvas_core::pager::word::{State, Word};
use canvas_core::swap::classes::{HEADER_BYTES, RAW_CLASS};
use canvas_core::swap::entry::Record;
use canvas_core::swap::hash::{self, PageHash, Products};
use canvas_core::swap::slots::{SLABS_MAX, SlotId, raw_header_offset};
use canvas_core::swap::{codec, delta};
use canvas_sys::{clmul, lz4};
use canvas_types::layout::{self, CACHE_SLOTS_MAX};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use super::stop::is_still;
use super::target::Target;

/// Result of reading a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Its bytes are in the buffer.
    Bytes,
    /// The page is zeros, and the buffer was filled with zeros.
    Zeros,
    /// Its record is beyond the pool, at this place.
    InFarTier(ExtentRef),
}

/// Why a page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// It stays in transit.
    Busy,
    /// Its far copy does not verify.
    Damaged,
    /// The process has ended, or nothing is mapped there.
    Gone,
}

/// Tries for a page that is changing, with growing pauses: half a second in all.
const LOOKS: u32 = 45;
/// After this many tries, check whether the process is stopped.
const STILL_AFTER: u32 = 2;

/// Reads the page at `addr` of the managed range of a process that may be running: its contents at
/// one moment.
pub fn look(target: &Target, addr: usize, out: &mut PageBuf) -> Result<Found, Problem> {
    let mut why = Problem::Busy;
    for n in 0..LOOKS {
        let before = word_of(target, addr)?;
        match attempt(target, addr, before, out) {
            // If the page moved during the copy, the bytes may be another page's.
            Ok(found) if is_same(before, word_of(target, addr)?) => return Ok(found),
            Ok(_) => why = Problem::Busy,
            Err(e) => why = e,
        }
        // In a stopped process nothing will move the page, and a hundred pages may be in transit.
        if n == STILL_AFTER && is_still(target.pid) {
            break;
        }
        std::thread::sleep(Duration::from_micros(u64::from(n) * 500));
    }
    let word = word_of(target, addr)?;
    if word.state().is_busy() {
        return settle(target, addr, word, out);
    }
    Err(why)
}

/// The address of the word of the page at `addr`.
pub fn word_addr(addr: usize) -> usize {
    layout::tables((addr - layout::window_base()) / PAGE_SIZE * 8)
}

fn word_of(target: &Target, addr: usize) -> Result<Word, Problem> {
    let word = target.word(word_addr(addr)).map_err(|_| Problem::Gone)?;
    Ok(Word(word))
}

/// Whether the page is at the same place. Pins, heat and flags do not matter.
fn is_same(a: Word, b: Word) -> bool {
    (a.state(), a.entry(), a.epoch()) == (b.state(), b.entry(), b.epoch())
}

fn attempt(t: &Target, addr: usize, word: Word, out: &mut PageBuf) -> Result<Found, Problem> {
    match word.state() {
        State::Resident => t
            .copy(addr, out)
            .map(|()| Found::Bytes)
            .or(Err(Problem::Busy)),
        // Where canvas manages nothing, pages have no words and are resident.
        State::Untouched => Ok(t
            .copy(addr, out)
            .map_or_else(|_| zeros(out), |()| Found::Bytes)),
        State::Cached if word.entry().is_some() => cached(t, slot::of_word(word), out),
        State::Far => far(t, word.entry(), out),
        State::Poisoned => Err(Problem::Damaged),
        _ => Err(Problem::Busy),
    }
}

fn zeros(out: &mut PageBuf) -> Found {
    out.fill(0);
    Found::Zeros
}

fn cached(t: &Target, slot: u32, out: &mut PageBuf) -> Result<Found, Problem> {
    if slot as usize >= CACHE_SLOTS_MAX {
        return Err(Problem::Busy);
    }
    let at = layout::cache_buffers() + slot as usize * PAGE_SIZE;
    t.copy(at, out)
        .map(|()| Found::Bytes)
        .or(Err(Problem::Gone))
}

fn far(t: &Target, entry: SwapEntry, out: &mut PageBuf) -> Result<Found, Problem> {
    if !entry.is_some() {
        return Ok(zeros(out));
    }
    let now = record(t, entry)?;
    match now {
        Record::SameFilled(pattern) => {
            codec::fill(out, pattern);
            Ok(Found::Bytes)
        }
        Record::Stored { slot, len, .. } => {
            let found = stored(t, slot, len.into(), out)?;
            // A copy that went beyond the pool meanwhile leaves its slot to another page, and its word as it was.
            match record(t, entry)? == now {
                true => Ok(found),
                false => Err(Problem::Busy),
            }
        }
        Record::InFarTier(place) => Ok(Found::InFarTier(place)),
        Record::Free | Record::Empty | Record::Lost => Err(Problem::Busy),
    }
}

fn record(t: &Target, entry: SwapEntry) -> Result<Record, Problem> {
    let at = layout::tables(layout::ENTRIES + entry.0 as usize * 8);
    if entry.0 as usize >= layout::ENTRIES_MAX {
        return Err(Problem::Busy);
    }
    Ok(Record::decode(t.word(at).map_err(|_| Problem::Gone)?))
}

/// Whether the page at `addr` is far with its record still at `place`.
pub fn is_at(t: &Target, addr: usize, place: ExtentRef) -> bool {
    let entry = word_of(t, addr).map(|w| w.entry());
    entry.is_ok_and(|e| record(t, e) == Ok(Record::InFarTier(place)))
}

fn stored(t: &Target, slot: SlotId, len: usize, out: &mut PageBuf) -> Result<Found, Problem> {
    let (class, slab) = (slot.class(), slot.slab());
    if class > RAW_CLASS || slab >= SLABS_MAX.min(layout::POOL_SLABS) || len > PAGE_SIZE {
        return Err(Problem::Busy);
    }
    let (header, payload) = if class == RAW_CLASS {
        (raw_header_offset(layout::POOL_SLABS, slot), slot.offset())
    } else {
        (slot.offset(), slot.offset() + HEADER_BYTES)
    };
    let mut bytes = vec![0; HEADER_BYTES + len];
    let (hash, rest) = bytes.split_at_mut(HEADER_BYTES);
    let copied = t
        .copy(layout::pool() + header, hash)
        .and_then(|()| t.copy(layout::pool() + payload, rest));
    copied.map_err(|_| Problem::Gone)?;
    if verify(t, &bytes, out) {
        Ok(Found::Bytes)
    } else {
        Err(Problem::Damaged)
    }
}

/// Verifies and decodes a record of the process's private pages; false if it does not verify.
pub fn verify(t: &Target, record: &[u8], out: &mut PageBuf) -> bool {
    let expand = |payload: &[u8], out: &mut PageBuf| {
        delta::expand(payload, out, |from, to| lz4::decompress(from, to))
    };
    t.key().is_ok_and(|key| decode(key, record, out, expand))
}

/// Verifies and decodes a record, hash and payload, of pages hashed with `key`; false if it does
/// not verify. `expand` decompresses a payload that is shorter than a page.
pub fn decode(
    key: &PageBuf,
    record: &[u8],
    out: &mut PageBuf,
    expand: impl FnOnce(&[u8], &mut PageBuf) -> bool,
) -> bool {
    let Some((want, payload)) = record.split_first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let whole = match payload.first_chunk::<PAGE_SIZE>() {
        Some(raw) => {
            *out = *raw;
            true
        }
        None => expand(payload, out),
    };
    static PRODUCTS: LazyLock<Products> =
        LazyLock::new(|| clmul::fastest().unwrap_or(hash::portable));
    whole && hash::same(&PageHash::new(key, *PRODUCTS).of(out), want)
}

/// Reads a page that stays in transit, as in a process that was stopped while moving it. The page
/// is mapped still or again, or in a slot of the swap cache, or its far copy is complete.
fn settle(t: &Target, addr: usize, word: Word, out: &mut PageBuf) -> Result<Found, Problem> {
    if t.copy(addr, out).is_ok() {
        return Ok(Found::Bytes);
    }
    let page = ((addr - layout::window_base()) / PAGE_SIZE) as u32;
    if let Some(slot) = slot_of(t, page)? {
        return cached(t, slot, out);
    }
    match word.state() {
        // It is unmapped only after its slot has it.
        State::Evicting => Err(Problem::Busy),
        _ => far(t, word.entry(), out),
    }
}

/// The slot of the swap cache that holds a page.
fn slot_of(t: &Target, page: u32) -> Result<Option<u32>, Problem> {
    let read = |at: usize| {
        let mut bytes = vec![0; CACHE_SLOTS_MAX * 4];
        t.copy(at, &mut bytes).map_err(|_| Problem::Gone)?;
        let number = |b: &[u8; 4]| u32::from_ne_bytes(*b);
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(number)
            .collect::<Vec<_>>())
    };
    let states = read(layout::tables(layout::CACHE_META))?;
    let pages = read(layout::tables(layout::CACHE_META + CACHE_SLOTS_MAX * 4))?;
    let holds =
        |state: u32| !matches!(SlotState::of(state), SlotState::Free | SlotState::TakerDone);
    let slot = (0..CACHE_SLOTS_MAX).find(|i| pages[*i] == page && holds(states[*i]));
    Ok(slot.map(|i| i as u32))
}
