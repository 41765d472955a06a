//! A journal of copies that are being overwritten, kept until the new ones are complete.
//!
//! A process that ends in the middle leaves a slot that holds neither the old copy nor the new one. With a journal its
//! successor writes the new one again.
//!
//! A note consists of words: its state, the entry, its new word, hash and payload. The state is written last when the
//! others are valid, and first when they are no longer needed.

use canvas_types::sync::{AtomicU64, Ordering, backoff};
use canvas_types::{PAGE_SIZE, SwapEntry};

use crate::swap::classes::HEADER_BYTES;
use crate::swap::entry::Record;
use crate::swap::hash::Hash;

const FREE: u64 = 0;
/// A thread is filling it.
const TAKEN: u64 = 1;
const VALID: u64 = 2;

const STATE: usize = 0;
const ENTRY: usize = 1;
const RECORD: usize = 2;
const BYTES: usize = 3;
/// Words of one note.
pub const JOURNAL_WORDS: usize = (BYTES + (HEADER_BYTES + PAGE_SIZE) / 8).next_multiple_of(8);

/// The journal. Without words it records nothing.
pub(super) struct Journal<'a> {
    words: &'a [AtomicU64],
}

/// A note that is valid until the copy is complete; it stays valid when its thread ends before.
#[must_use]
pub(super) struct Noted<'j>(Option<&'j AtomicU64>);

impl Noted<'_> {
    /// The copy is complete, and its entry names it.
    pub(super) fn done(self) {
        if let Some(state) = self.0 {
            state.store(FREE, Ordering::Release);
        }
    }
}

impl<'a> Journal<'a> {
    /// Over words that are zero, or that a predecessor left.
    pub(super) fn new(words: &'a [AtomicU64]) -> Journal<'a> {
        Journal { words }
    }

    fn notes(&self) -> impl Iterator<Item = &'a [AtomicU64]> + use<'a> {
        self.words.chunks_exact(JOURNAL_WORDS)
    }

    /// Records that the entry is about to become `record`, in the slot that it already names.
    pub(super) fn note(
        &self,
        entry: SwapEntry,
        record: Record,
        digest: &Hash,
        payload: &[u8],
    ) -> Noted<'a> {
        if self.words.is_empty() {
            return Noted(None);
        }
        let mut spins = 0;
        let note = loop {
            let take = |n: &&[AtomicU64]| {
                let (from, to) = (Ordering::Acquire, Ordering::Relaxed);
                n[STATE].compare_exchange(FREE, TAKEN, from, to).is_ok()
            };
            match self.notes().find(take) {
                Some(note) => break note,
                // More threads than notes: one becomes free as soon as a page is copied.
                None => backoff(&mut spins, core::hint::spin_loop),
            }
        };
        note[ENTRY].store(entry.0.into(), Ordering::Relaxed);
        let word = record.word().unwrap_or_default();
        note[RECORD].store(word, Ordering::Relaxed);
        let bytes = &note[BYTES..];
        let (head, rest) = bytes.split_at(HEADER_BYTES / 8);
        put(head, digest);
        put(rest, payload);
        note[STATE].store(VALID, Ordering::Release);
        Noted(Some(&note[STATE]))
    }

    /// Calls `on` with each valid note: entry, record, hash and payload; none of them is valid afterwards.
    pub(super) fn take_all(&self, mut on: impl FnMut(SwapEntry, Record, &Hash, &[u8])) {
        for note in self.notes() {
            if note[STATE].load(Ordering::Acquire) == VALID {
                let entry = SwapEntry(note[ENTRY].load(Ordering::Relaxed) as u32);
                let record = Record::decode(note[RECORD].load(Ordering::Relaxed));
                let mut bytes = [0; HEADER_BYTES + PAGE_SIZE];
                for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&note[BYTES..]) {
                    *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
                }
                if let (Record::Stored { len, .. }, Some((digest, payload))) =
                    (record, bytes.split_first_chunk())
                    && let Some(payload) = payload.get(..len.into())
                {
                    on(entry, record, digest, payload);
                }
            }
            note[STATE].store(FREE, Ordering::Release);
        }
    }
}

/// Writes bytes to words, the last one padded with zeros.
fn put(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
    }
}
