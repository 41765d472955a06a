//! Pages in order, as the words of a recording: a page, or a page and how many follow it.
//!
//! The words may be anybody's: every one is something, and a run is [`RUN_MAX`] pages at most.

use canvas_types::layout::WINDOW_PAGES;
use canvas_types::sync::{AtomicU32, Ordering};

/// Set in the word behind a page: so many more pages follow.
const MORE: u32 = 1 << 31;
/// Pages that one word adds at most.
pub const RUN_MAX: u32 = 1 << 16;
/// Pages that are sorted, so that those side by side come in with one copy.
pub const BATCH: usize = 64;

const _: () = assert!(WINDOW_PAGES <= MORE as usize);

/// A place in the words: the next page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    word: usize,
    /// The page before, and how many of those behind it are left.
    page: u32,
    more: u32,
}

impl Cursor {
    /// The next page.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, words: &[AtomicU32]) -> Option<u32> {
        loop {
            if self.more > 0 {
                self.more -= 1;
                self.page = self.page.wrapping_add(1) & !MORE;
                return Some(self.page);
            }
            let word = words.get(self.word)?.load(Ordering::Relaxed);
            self.word += 1;
            if word & MORE != 0 {
                self.more = (word & !MORE).min(RUN_MAX);
            } else {
                self.page = word;
                return Some(word);
            }
        }
    }
}

/// The pages, in order.
pub fn pages(words: &[AtomicU32]) -> impl Iterator<Item = u32> {
    let mut at = Cursor::default();
    core::iter::from_fn(move || at.next(words))
}

/// How many pages there are.
pub fn count(words: &[AtomicU32]) -> u64 {
    let word = |w: &AtomicU32| w.load(Ordering::Relaxed);
    words.iter().map(word).map(|w| match w & MORE {
        0 => 1,
        _ => u64::from((w & !MORE).min(RUN_MAX)),
    }).sum()
}

/// How many of `some` are among the pages of the words. A page that is twice in `some` counts twice.
pub fn among(words: &[AtomicU32], some: &[u32]) -> usize {
    let mut found = 0u64;
    let (mut start, mut end) = (0u32, 0u32);
    let mut look = |start: u32, end: u32| {
        for (i, page) in some.iter().enumerate() {
            found |= u64::from((start..end).contains(page)) << (i % 64);
        }
    };
    for word in words {
        let word = word.load(Ordering::Relaxed);
        if word & MORE == 0 {
            look(start, end);
            (start, end) = (word, word + 1);
        } else {
            end = end.saturating_add((word & !MORE).min(RUN_MAX));
        }
    }
    look(start, end);
    found.count_ones() as usize
}

/// The words have no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// Writes pages, sorted in batches.
pub struct Writer<'a> {
    words: &'a [AtomicU32],
    len: usize,
    /// The last page that was written, and how many its word for more has.
    last: u32,
    more: u32,
    batch: [u32; BATCH],
    waiting: usize,
    pages: u32,
}

impl<'a> Writer<'a> {
    /// Nothing is written.
    pub fn new(words: &'a [AtomicU32]) -> Writer<'a> {
        Writer {
            words,
            len: 0,
            last: 0,
            more: 0,
            batch: [0; BATCH],
            waiting: 0,
            pages: 0,
        }
    }

    /// From the beginning.
    pub fn clear(&mut self) {
        (self.len, self.more, self.waiting, self.pages) = (0, 0, 0, 0);
    }

    /// Adds a page.
    pub fn push(&mut self, page: u32) -> Result<(), Full> {
        self.batch[self.waiting] = page;
        self.waiting += 1;
        match self.waiting {
            BATCH => self.flush(),
            _ => Ok(()),
        }
    }

    /// Writes what waits; the pages that are written.
    pub fn finish(&mut self) -> u32 {
        // What has no room is left out.
        let _ = self.flush();
        self.pages
    }

    /// What is written.
    pub fn words(&self) -> &'a [AtomicU32] {
        &self.words[..self.len]
    }

    fn flush(&mut self) -> Result<(), Full> {
        let n = core::mem::take(&mut self.waiting);
        self.batch[..n].sort_unstable();
        for i in 0..n {
            self.write(self.batch[i])?;
        }
        Ok(())
    }

    fn put(&mut self, word: u32) -> Result<(), Full> {
        let place = self.words.get(self.len).ok_or(Full)?;
        place.store(word, Ordering::Relaxed);
        self.len += 1;
        Ok(())
    }

    fn write(&mut self, page: u32) -> Result<(), Full> {
        let follows = self.len > 0 && page == self.last + 1 && self.more < RUN_MAX;
        if !follows {
            self.put(page & !MORE)?;
            self.more = 0;
        } else if self.more == 0 {
            self.put(MORE | 1)?;
            self.more = 1;
        } else {
            self.more += 1;
            self.words[self.len - 1].store(MORE | self.more, Ordering::Relaxed);
        }
        self.last = page;
        self.pages += 1;
        Ok(())
    }
}

/// Puts `more` behind the first `len` words, if it has room there; how many words there are now.
pub fn append(words: &[AtomicU32], len: usize, more: &[AtomicU32]) -> Option<usize> {
    let to = words.get(len..len + more.len())?;
    for (to, from) in to.iter().zip(more) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Some(len + more.len())
}
