//! A heap of data that lz4 compresses about 2.5:1, cheap to generate and to check.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Failure;
use crate::rng::{Rng, RngExt, stream};

/// Words of a page.
pub const WORDS: usize = 512;
/// Bytes of a page.
pub const PAGE: usize = 8 * WORDS;
/// Number of different pages; the first word of each page of the heap is the page's number.
const TEMPLATES: usize = 256;

/// The contents that pages are filled from.
pub struct Templates(Vec<[u64; WORDS]>);

impl Templates {
    /// Makes the templates: runs of 19 random bytes between runs of 45 that repeat earlier bytes of the page.
    pub fn new(seed: u64) -> Templates {
        let mut r = stream(seed, 99);
        let page = |_| {
            let mut common = [[0u8; 45]; 4];
            common.iter_mut().for_each(|c| r.fill_bytes(c));
            let mut bytes = [0u8; PAGE];
            for line in bytes.chunks_exact_mut(64) {
                let (fresh, repeated) = line.split_at_mut(19);
                r.fill_bytes(fresh);
                repeated.copy_from_slice(&common[r.random_range(0..4)]);
            }
            let mut words = [0u64; WORDS];
            for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*eight);
            }
            words
        };
        Templates((0..TEMPLATES).map(page).collect())
    }

    /// The words of page `p`, except the first, which is `p`.
    #[inline]
    pub fn page(&self, p: usize) -> &[u64; WORDS] {
        &self.0[p % TEMPLATES]
    }

    /// Initial value of a word of page `p`.
    #[inline]
    pub fn expected(&self, p: usize, word: usize) -> u64 {
        if word == 0 {
            p as u64
        } else {
            self.page(p)[word]
        }
    }
}

/// Pages in one vector, aligned to the machine's pages.
pub struct Pages<W> {
    words: Vec<W>,
    skip: usize,
}

/// Pages that threads share.
pub type Shared = Pages<AtomicU64>;

impl<W> Pages<W> {
    /// Reserves room for `pages` and touches only the padding before the first. Fails if there is not enough
    /// memory.
    pub fn with_room(pages: usize, zero: impl Fn() -> W) -> Result<Pages<W>, Failure> {
        let mut words: Vec<W> = crate::room((pages + 1) * WORDS)?;
        // The vector never grows beyond its room, so its address is stable.
        let skip = words.as_ptr().align_offset(PAGE) % WORDS;
        words.resize_with(skip, zero);
        Ok(Pages { words, skip })
    }

    /// Appends a page. Room must have been reserved for it.
    #[inline]
    pub fn push(&mut self, p: usize, templates: &Templates, word: impl Fn(u64) -> W) {
        let page = templates.page(p);
        self.words.push(word(p as u64));
        self.words.extend(page[1..].iter().map(|w| word(*w)));
    }

    /// Page `i`, counted in order of `push`.
    #[inline]
    pub fn page(&self, i: usize) -> &[W] {
        &self.words[self.skip + i * WORDS..][..WORDS]
    }

    /// Number of pages pushed.
    pub fn len(&self) -> usize {
        (self.words.len() - self.skip) / WORDS
    }
}

impl Shared {
    /// A heap of `pages` pages, all filled.
    pub fn heap(pages: usize, templates: &Templates) -> Result<Shared, Failure> {
        let mut heap = Pages::with_room(pages, || AtomicU64::new(0))?;
        for p in 0..pages {
            heap.push(p, templates, AtomicU64::new);
        }
        Ok(heap)
    }

    /// Present value of a word.
    #[inline]
    pub fn load(&self, p: usize, word: usize) -> u64 {
        self.page(p)[word].load(Relaxed)
    }
}

/// The failure to report when a word has another value than was written.
pub fn wrong_word(p: usize, word: usize, got: u64, want: u64) -> Failure {
    Failure::Wrong(format!(
        "word {word} of page {p} is {got:016x} and must be {want:016x}; memory was damaged"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_shrink_two_and_a_half_times() {
        let templates = Templates::new(7);
        let mut stored = 0;
        for p in 0..TEMPLATES {
            let bytes: Vec<u8> = (0..WORDS)
                .flat_map(|w| templates.expected(p, w).to_le_bytes())
                .collect();
            stored += lz4_flex::block::compress(&bytes).len();
        }
        let ratio = (TEMPLATES * PAGE) as f64 / stored as f64;
        assert!((2.2..2.9).contains(&ratio), "{ratio}");
    }

    #[test]
    fn pages_lie_at_page_boundaries_and_hold_their_data() {
        let templates = Templates::new(7);
        let heap = Shared::heap(300, &templates).unwrap();
        assert_eq!(heap.len(), 300);
        for p in 0..300 {
            assert_eq!(heap.page(p).as_ptr() as usize % PAGE, 0);
            for w in 0..WORDS {
                assert_eq!(heap.load(p, w), templates.expected(p, w));
            }
        }
    }

    #[test]
    fn another_seed_makes_other_pages() {
        assert_ne!(Templates::new(1).page(0), Templates::new(2).page(0));
        assert_eq!(Templates::new(1).page(0), Templates::new(1).page(0));
    }
}
