//! Pages in the order in which they were needed, by chunk: three words an entry, the chunk's number and a bit for
//! each of its pages. So those that lie side by side come in with one copy, and are few words.
//!
//! The words may be anybody's: every one means something, and no page lies outside of the window.

use canvas_types::layout::WINDOW_PAGES;
use canvas_types::sync::{AtomicU32, Ordering};

use crate::table::CHUNK_PAGES;

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
    /// Its first page has the lowest bit.
    pub bits: u64,
}

impl Entry {
    /// Does it have the page, which is of the chunk?
    pub fn has(self, page: u32) -> bool {
        self.bits >> (page % PAGES) & 1 == 1
    }
    /// The pages, in ascending order.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        let of = move |i: u32| self.chunk * PAGES + i;
        (0..PAGES).filter(move |i| self.bits >> i & 1 == 1).map(of)
    }
}

/// The entry at `i`.
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

/// How many pages there are.
pub fn count(words: &[AtomicU32]) -> u64 {
    entries(words).map(|e| u64::from(e.bits.count_ones())).sum()
}

/// How many of `some`, up to 64, are among the pages.
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

/// Where each chunk's entry is: a hash table in memory of the caller's, a power of two of places.
pub struct Index<'a> {
    /// The entry's number and 1; 0 where there is none.
    places: &'a [AtomicU32],
    used: usize,
}

impl<'a> Index<'a> {
    /// An empty one.
    pub fn new(places: &'a [AtomicU32]) -> Index<'a> {
        let index = Index::of(places);
        // Those that are zero may never have been touched, and stay so.
        let used = places.iter().filter(|p| p.load(Ordering::Relaxed) != 0);
        used.for_each(|p| p.store(0, Ordering::Relaxed));
        index
    }
    /// As somebody else fills it, to look into.
    pub fn of(places: &'a [AtomicU32]) -> Index<'a> {
        assert!(places.len().is_power_of_two());
        Index { places, used: 0 }
    }
    /// Leaves one without places.
    pub fn take(&mut self) -> Index<'a> {
        core::mem::replace(
            self,
            Index {
                places: &[],
                used: 0,
            },
        )
    }
    /// Forgets all.
    pub fn clear(&mut self) {
        if self.used > 0 {
            let all = self.places.iter();
            all.for_each(|p| p.store(0, Ordering::Relaxed));
            self.used = 0;
        }
    }
    /// The place of the chunk's entry among the words, or the one where it would be.
    fn place(&self, words: &[AtomicU32], chunk: u32) -> Option<&'a AtomicU32> {
        let mask = self.places.len() - 1;
        let at = chunk.wrapping_mul(0x9e37_79b1) as usize >> 7;
        // Bounded, whatever becomes of the words.
        (0..self.places.len())
            .map(|i| &self.places[(at + i) & mask])
            .find(|place| match place.load(Ordering::Relaxed) {
                0 => true,
                n => entry(words, n as usize - 1).is_some_and(|e| e.chunk == chunk),
            })
    }
    /// The number of the chunk's entry.
    pub fn find(&self, words: &[AtomicU32], chunk: u32) -> Option<usize> {
        let n = self.place(words, chunk)?.load(Ordering::Relaxed);
        (n as usize).checked_sub(1)
    }
    /// Notes that the chunk's entry is the `i`th; that of an earlier one stays. False when it is full.
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
    /// Forgets all, and notes the entries.
    pub fn fill(&mut self, words: &[AtomicU32]) {
        self.clear();
        for (i, e) in entries(words).enumerate() {
            self.note(words, e.chunk, i);
        }
    }
}

/// What adding a page came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It is new.
    New,
    /// It was there.
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
    /// Nothing is written.
    pub fn new(words: &'a [AtomicU32], index: Index<'a>) -> Draft<'a> {
        Draft {
            words,
            index,
            len: 0,
            pages: 0,
        }
    }
    /// From the beginning.
    pub fn clear(&mut self) {
        self.index.clear();
        (self.len, self.pages) = (0, 0);
    }
    /// Goes on behind the entries that the words begin with.
    pub fn behind(words: &'a [AtomicU32], len: usize, index: Index<'a>) -> Draft<'a> {
        let mut draft = Draft::new(words, index);
        draft.len = len.min(words.len()) / ENTRY;
        draft.index.fill(draft.words());
        draft
    }
    /// Its table.
    pub fn into_index(self) -> Index<'a> {
        self.index
    }
    /// What is written.
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
    /// Adds all pages of others' entries that have room.
    pub fn add_all(&mut self, words: &[AtomicU32]) {
        for page in entries(words).flat_map(Entry::pages) {
            self.add(page);
        }
    }
}
