//! Pages in the order in which they were needed, by chunk. An entry has three words: the chunk's number, and a bit for
//! each of its pages. So adjacent pages come in with one copy and take few words.
//!
//! The words need not be trusted: every value has a meaning, and no page lies outside the managed range.

use canvas_types::layout::WINDOW_PAGES;
use canvas_types::sync::{AtomicU32, Ordering};

use crate::pager::table::CHUNK_PAGES;

/// Words of an entry.
pub const ENTRY: usize = 3;
/// Pages of a chunk.
pub const PAGES: u32 = CHUNK_PAGES as u32;

const _: () = assert!(CHUNK_PAGES == 64);

/// A chunk and its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number of the chunk.
    pub chunk: u32,
    /// Its pages, the first one in the lowest bit.
    pub bits: u64,
}

impl Entry {
    /// Whether the entry contains the page, which must belong to the chunk.
    pub fn has(self, page: u32) -> bool {
        self.bits >> (page % PAGES) & 1 == 1
    }
    /// The pages, in ascending order.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        let of = move |i: u32| self.chunk * PAGES + i;
        (0..PAGES).filter(move |i| self.bits >> i & 1 == 1).map(of)
    }
}

/// The entry at index `i`.
pub fn entry(words: &[AtomicU32], i: usize) -> Option<Entry> {
    let words = words.get(i * ENTRY..(i + 1) * ENTRY)?;
    let word = |i: usize| words[i].load(Ordering::Relaxed);
    Some(Entry {
        chunk: word(0) % (WINDOW_PAGES / CHUNK_PAGES) as u32,
        bits: u64::from(word(1)) | u64::from(word(2)) << 32,
    })
}

/// All entries, in order.
pub fn entries(words: &[AtomicU32]) -> impl Iterator<Item = Entry> {
    (0..words.len() / ENTRY).filter_map(|i| entry(words, i))
}

/// The number of pages in all entries.
pub fn count(words: &[AtomicU32]) -> u64 {
    entries(words).map(|e| u64::from(e.bits.count_ones())).sum()
}

/// How many pages of `some` (at most 64) are in the entries.
pub fn among(words: &[AtomicU32], some: &[u32]) -> usize {
    let mut found = 0u64;
    for e in entries(words) {
        for (i, page) in some.iter().enumerate() {
            if page / PAGES == e.chunk {
                found |= (e.bits >> (page % PAGES) & 1) << (i % 64);
            }
        }
    }
    found.count_ones() as usize
}

/// Maps each chunk to its entry: a hash table in memory of the caller, with a power of two of cells.
pub struct Index<'a> {
    /// The entry's index plus 1; 0 for none.
    places: &'a [AtomicU32],
    used: usize,
}

impl<'a> Index<'a> {
    /// Creates an empty index.
    pub fn new(places: &'a [AtomicU32]) -> Index<'a> {
        let index = Index::of(places);
        // Do not write to zero cells: their memory may never have been touched.
        let used = places.iter().filter(|p| p.load(Ordering::Relaxed) != 0);
        used.for_each(|p| p.store(0, Ordering::Relaxed));
        index
    }
    /// Wraps an index that another owner fills, for look-ups only.
    pub fn of(places: &'a [AtomicU32]) -> Index<'a> {
        assert!(places.len().is_power_of_two());
        Index { places, used: 0 }
    }
    /// Takes the index, leaving one without cells.
    pub fn take(&mut self) -> Index<'a> {
        core::mem::replace(
            self,
            Index {
                places: &[],
                used: 0,
            },
        )
    }
    /// Removes all entries.
    pub fn clear(&mut self) {
        if self.used > 0 {
            let all = self.places.iter();
            all.for_each(|p| p.store(0, Ordering::Relaxed));
            self.used = 0;
        }
    }
    /// The cell of the chunk's entry, or the one where it would go.
    fn place(&self, words: &[AtomicU32], chunk: u32) -> Option<&'a AtomicU32> {
        let mask = self.places.len() - 1;
        let at = chunk.wrapping_mul(0x9e37_79b1) as usize >> 7;
        // The search is bounded even if the words change.
        (0..self.places.len())
            .map(|i| &self.places[(at + i) & mask])
            .find(|place| match place.load(Ordering::Relaxed) {
                0 => true,
                n => entry(words, n as usize - 1).is_some_and(|e| e.chunk == chunk),
            })
    }
    /// Index of the chunk's entry.
    pub fn find(&self, words: &[AtomicU32], chunk: u32) -> Option<usize> {
        let n = self.place(words, chunk)?.load(Ordering::Relaxed);
        (n as usize).checked_sub(1)
    }
    /// Records that the chunk's entry is the `i`th; an earlier record of the chunk stays. Returns false if the index is
    /// full.
    pub fn note(&mut self, words: &[AtomicU32], chunk: u32, i: usize) -> bool {
        if self.used >= self.places.len() / 4 * 3 {
            return false;
        }
        if let Some(place) = self.place(words, chunk)
            && place.load(Ordering::Relaxed) == 0
        {
            place.store(i as u32 + 1, Ordering::Relaxed);
            self.used += 1;
        }
        true
    }
    /// Replaces the contents with the entries of `words`.
    pub fn fill(&mut self, words: &[AtomicU32]) {
        self.clear();
        for (i, e) in entries(words).enumerate() {
            self.note(words, e.chunk, i);
        }
    }
}

/// Result of adding a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// The page was added.
    New,
    /// The page was there already.
    Known,
    /// There is no room.
    Full,
}

/// Entries that are being written.
pub struct Draft<'a> {
    words: &'a [AtomicU32],
    index: Index<'a>,
    len: usize,
    pages: u32,
}

impl<'a> Draft<'a> {
    /// Creates an empty draft.
    pub fn new(words: &'a [AtomicU32], index: Index<'a>) -> Draft<'a> {
        Draft {
            words,
            index,
            len: 0,
            pages: 0,
        }
    }
    /// Starts again without entries.
    pub fn clear(&mut self) {
        self.index.clear();
        (self.len, self.pages) = (0, 0);
    }
    /// Continues behind the entries in the first `len` words.
    pub fn behind(words: &'a [AtomicU32], len: usize, index: Index<'a>) -> Draft<'a> {
        let mut draft = Draft::new(words, index);
        draft.len = len.min(words.len()) / ENTRY;
        draft.index.fill(draft.words());
        draft
    }
    /// Returns the index.
    pub fn into_index(self) -> Index<'a> {
        self.index
    }
    /// The entries written so far.
    pub fn words(&self) -> &'a [AtomicU32] {
        &self.words[..self.len * ENTRY]
    }
    /// Pages that were added.
    pub fn pages(&self) -> u32 {
        self.pages
    }
    /// Adds a page.
    pub fn add(&mut self, page: u32) -> Added {
        let chunk = page / PAGES;
        let i = match self.index.find(self.words(), chunk) {
            Some(i) => i,
            None => {
                let Some(place) = self.words.get(self.len * ENTRY..(self.len + 1) * ENTRY) else {
                    return Added::Full;
                };
                for (place, word) in place.iter().zip([chunk, 0, 0]) {
                    place.store(word, Ordering::Relaxed);
                }
                self.len += 1;
                if !self.index.note(self.words(), chunk, self.len - 1) {
                    self.len -= 1;
                    return Added::Full;
                }
                self.len - 1
            }
        };
        let word = &self.words[i * ENTRY + 1 + (page % PAGES / 32) as usize];
        let (before, bit) = (word.load(Ordering::Relaxed), 1 << (page % 32));
        if before & bit != 0 {
            return Added::Known;
        }
        word.store(before | bit, Ordering::Relaxed);
        self.pages += 1;
        Added::New
    }
    /// Adds all pages of the given entries, as far as there is room.
    pub fn add_all(&mut self, words: &[AtomicU32]) {
        for page in entries(words).flat_map(Entry::pages) {
            self.add(page);
        }
    }
}
