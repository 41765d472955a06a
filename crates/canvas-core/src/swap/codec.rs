//! Classification of pages and their stored form.
//!
//! A far copy is `[content hash, 16 B][payload]`; the payload's length is in the entry
//! ([`crate::swap::entry::Record::Stored`]), and a payload as long as a page is the page itself. The hash ([`crate::swap::hash`])
//! is of the *uncompressed* content: it tells a clean page from a dirty one at swap-out without the page tables, and
//! proves at swap-in that the page is unchanged.

use canvas_types::{Codec, LzScratch, PageBuf};

/// A page compressor. It allocates nothing and keeps no state between calls.
pub trait Lz {
    /// Compresses `src` into `dst`; the number of bytes written, or `None` when they do not fit.
    fn compress(&self, src: &PageBuf, dst: &mut [u8], scratch: &mut LzScratch) -> Option<usize>;
    /// Decompresses all of `src` into exactly one page; false when `src` is not the compressed form of one. `src` may
    /// be damaged in any way: this must not panic or read outside it.
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool;
}

/// A compressor that may be switched off: then every page of data is stored uncompressed.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<L> {
    /// Compresses where `codec` says so, and always decompresses.
    pub lz: L,
    /// Whether it compresses what is stored from now on. Compressed pages can be read either way.
    pub codec: Codec,
}

impl<L: Lz> Lz for Chosen<L> {
    #[inline]
    fn compress(&self, src: &PageBuf, dst: &mut [u8], scratch: &mut LzScratch) -> Option<usize> {
        match self.codec {
            Codec::Lz4 => self.lz.compress(src, dst, scratch),
            Codec::None => None,
        }
    }
    #[inline]
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        self.lz.decompress(src, dst)
    }
}

/// The kind of a page's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Only zeros: nothing is stored, not even an entry.
    Zero,
    /// One 64-bit value (native byte order), repeated.
    SameFilled(u64),
    /// Other data, to be compressed.
    Data,
}

/// Classifies a page; a page of data is usually recognised by its first and last words.
#[inline]
pub fn classify(page: &PageBuf) -> Content {
    let (words, _) = page.as_chunks::<8>();
    let first = u64::from_ne_bytes(words[0]);
    if u64::from_ne_bytes(words[words.len() - 1]) != first || u64::from_ne_bytes(words[1]) != first
    {
        return Content::Data;
    }
    let (lines, _) = page.as_chunks::<64>();
    for line in lines {
        let mut differs = 0;
        for word in line.as_chunks::<8>().0 {
            differs |= u64::from_ne_bytes(*word) ^ first;
        }
        if differs != 0 {
            return Content::Data;
        }
    }
    if first == 0 {
        Content::Zero
    } else {
        Content::SameFilled(first)
    }
}

/// Fills a page with a pattern.
#[inline]
pub fn fill(page: &mut PageBuf, pattern: u64) {
    if pattern == 0 {
        page.fill(0);
        return;
    }
    for word in page.as_chunks_mut::<8>().0 {
        *word = pattern.to_ne_bytes();
    }
}
