//! Payloads of slightly changed pages: the previous compressed page, and the words that differ.
//!
//! Decompressing a page takes a quarter of the time of compressing one, and many pages are evicted with a few words
//! changed: a counter, the time of the last access, marks of a collector. So the payload of a compressed page is
//!
//! ```text
//! ┌───────────────────┬──────────────────────────────────┬───┐
//! │ compressed page   │ n times: index (2) and word (8)  │ n │
//! └───────────────────┴──────────────────────────────────┴───┘
//! ```
//!
//! where the words, by their index in the page, replace those of the compressed page. Words always refer to the
//! compressed page, never to each other, so a page that is swapped many times is still read in two steps. The hash
//! before a payload is of the whole current page.

use canvas_types::{PAGE_SIZE, PageBuf};

/// Most words that may differ; with more the page is compressed again.
pub const WORDS_MAX: usize = 16;
/// Bytes after the compressed page when no word differs.
pub const COUNT_BYTES: usize = 1;
const INDEX_BYTES: usize = 2;
const WORD_BYTES: usize = 8;
/// Bytes of a word with its index.
const WORD_STEP_BYTES: usize = INDEX_BYTES + WORD_BYTES;
const LINE_BYTES: usize = 64;

/// The words in which two pages differ.
pub struct Delta {
    at: [u16; WORDS_MAX],
    count: usize,
}

impl Delta {
    /// The words of `page` that differ from `base`; `None` when they are more than [`WORDS_MAX`].
    pub fn between(base: &PageBuf, page: &PageBuf) -> Option<Delta> {
        let mut delta = Delta {
            at: [0; WORDS_MAX],
            count: 0,
        };
        let lines = base.as_chunks::<LINE_BYTES>().0;
        for (i, (old, new)) in lines
            .iter()
            .zip(page.as_chunks::<LINE_BYTES>().0)
            .enumerate()
        {
            if old != new && !delta.add_line(i, old, new) {
                return None;
            }
        }
        Some(delta)
    }

    fn add_line(&mut self, line: usize, old: &[u8; LINE_BYTES], new: &[u8; LINE_BYTES]) -> bool {
        let words = old.as_chunks::<WORD_BYTES>().0;
        for (i, (old, new)) in words
            .iter()
            .zip(new.as_chunks::<WORD_BYTES>().0)
            .enumerate()
        {
            if old == new {
                continue;
            }
            if self.count == WORDS_MAX {
                return false;
            }
            self.at[self.count] = (line * (LINE_BYTES / WORD_BYTES) + i) as u16;
            self.count += 1;
        }
        true
    }

    /// Bytes that follow the compressed page.
    pub fn bytes(&self) -> usize {
        self.count * WORD_STEP_BYTES + COUNT_BYTES
    }

    /// Writes the words of `page` into `tail`, which has [`Delta::bytes`] bytes.
    pub fn write(&self, page: &PageBuf, tail: &mut [u8]) {
        let words = page.as_chunks::<WORD_BYTES>().0;
        for (at, step) in self.at[..self.count]
            .iter()
            .zip(tail.as_chunks_mut::<WORD_STEP_BYTES>().0)
        {
            step[..INDEX_BYTES].copy_from_slice(&at.to_le_bytes());
            step[INDEX_BYTES..].copy_from_slice(&words[usize::from(*at)]);
        }
        if let Some(last) = tail.last_mut() {
            *last = self.count as u8;
        }
    }
}

/// Writes into `tail`, of [`COUNT_BYTES`], that no word differs.
pub fn write_none(tail: &mut [u8]) {
    tail.fill(0);
}

/// Splits a payload into the compressed page and the words; `None` when it is invalid. The payload may be damaged in
/// any way.
pub fn split(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = payload.split_last()?;
    let words = usize::from(*count).checked_mul(WORD_STEP_BYTES)?;
    rest.split_at_checked(rest.len().checked_sub(words)?)
}

/// Restores the page of a payload that is shorter than one; false when it is damaged. `decompress` makes exactly one
/// page of compressed bytes, or returns false.
pub fn expand(
    payload: &[u8],
    page: &mut PageBuf,
    decompress: impl FnOnce(&[u8], &mut PageBuf) -> bool,
) -> bool {
    split(payload)
        .is_some_and(|(compressed, words)| decompress(compressed, page) && apply(words, page))
}

/// Applies the words of a payload to the decompressed page; false when they are damaged.
fn apply(words: &[u8], page: &mut PageBuf) -> bool {
    let (steps, []) = words.as_chunks::<WORD_STEP_BYTES>() else {
        return false;
    };
    for step in steps {
        let at = usize::from(u16::from_le_bytes([step[0], step[1]])) * WORD_BYTES;
        let Some(word) = page.get_mut(at..at + WORD_BYTES) else {
            return false;
        };
        word.copy_from_slice(&step[INDEX_BYTES..]);
    }
    true
}

const _: () = assert!(
    PAGE_SIZE.is_multiple_of(LINE_BYTES)
        && PAGE_SIZE / WORD_BYTES <= 1 << 16
        && WORDS_MAX <= u8::MAX as usize
);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A payload of `page` over `base`, with three bytes in place of the compressed form.
    fn payload(base: &PageBuf, page: &PageBuf) -> Option<Vec<u8>> {
        let delta = Delta::between(base, page)?;
        let mut out = vec![0xaa; 3 + delta.bytes()];
        delta.write(page, &mut out[3..]);
        Some(out)
    }

    fn changed(words: &[usize]) -> PageBuf {
        let mut page = [7; PAGE_SIZE];
        for w in words {
            page[w * 8 + w % 8] ^= 1 << (w % 7);
        }
        page
    }

    #[test]
    fn words_that_differ_come_back() {
        let base = changed(&[]);
        let sixteen: Vec<_> = (0..16).map(|i| i * 34).collect();
        let all: [&[usize]; 5] = [&[], &[0], &[511], &[0, 1, 2, 255, 256, 511], &sixteen];
        for words in all {
            let page = changed(words);
            let bytes = payload(&base, &page).unwrap();
            assert_eq!(bytes.len(), 3 + 10 * words.len() + 1);
            let (compressed, tail) = split(&bytes).unwrap();
            assert_eq!(compressed, [0xaa; 3]);
            let mut out = base;
            assert!(apply(tail, &mut out) && out == page);
        }
    }

    #[test]
    fn more_than_sixteen_words_are_too_many() {
        let words: Vec<_> = (100..117).collect();
        assert!(payload(&changed(&[]), &changed(&words)).is_none());
        assert!(payload(&changed(&[]), &[8; PAGE_SIZE]).is_none());
    }

    #[test]
    fn a_payload_without_words_ends_with_a_zero() {
        let mut bytes = [1, 2, 9];
        write_none(&mut bytes[2..]);
        assert_eq!(split(&bytes), Some((&[1u8, 2][..], &[][..])));
    }

    #[test]
    fn damage_is_refused_or_stays_inside_the_page() {
        assert_eq!(split(&[]), None);
        assert_eq!(split(&[1]), None, "a word is announced and not there");
        assert_eq!(split(&[0; 10]).map(|(_, w)| w.len()), Some(0));
        let mut page = changed(&[]);
        assert!(!apply(&[0; 9], &mut page));
        let mut far = [0xff; 10];
        assert!(!apply(&far, &mut page));
        far[..2].copy_from_slice(&512u16.to_le_bytes());
        assert!(!apply(&far, &mut page));
        far[..2].copy_from_slice(&511u16.to_le_bytes());
        assert!(apply(&far, &mut page));
    }
}
