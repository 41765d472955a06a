//! Compressors of pages, with canvas's own.

use canvas_core::swap::LzScratch;
use canvas_core::swap::classes::COMPRESSED_MAX;
use canvas_sys::lz4;
use canvas_types::{PAGE_SIZE, PageBuf};

/// Size of the output buffer: incompressible pages grow.
pub const ROOM_BYTES: usize = 2 * PAGE_SIZE;

/// Compresses one page at a time.
pub trait Compressor {
    /// Name in tables.
    fn name(&self) -> String;
    /// Compresses a page into `out` of [`ROOM_BYTES`]; returns the length, or `None` if canvas would store
    /// the page uncompressed.
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize>;
    /// Decompresses exactly one page; returns false when `from` is not a compressed page.
    fn decompress(&mut self, from: &[u8], page: &mut PageBuf) -> bool;
}

/// All compressors to compare; canvas's own is the first.
pub fn all() -> std::io::Result<Vec<Box<dyn Compressor>>> {
    let mut all: Vec<Box<dyn Compressor>> = Vec::new();
    for acceleration in [1, 2, 4, 8] {
        all.push(Box::new(Lz4::new(acceleration)));
    }
    all.push(Box::new(Lz4Flex));
    all.push(Box::new(Snappy {
        encoder: snap::raw::Encoder::new(),
        decoder: snap::raw::Decoder::new(),
    }));
    for level in [1, -1, -5] {
        all.push(Box::new(Zstd::new(level)?));
    }
    Ok(all)
}

/// lz4 as canvas builds it.
pub struct Lz4 {
    acceleration: i32,
    state: Box<LzScratch>,
}

impl Lz4 {
    /// Uses this acceleration; canvas's is 1.
    pub fn new(acceleration: i32) -> Lz4 {
        Lz4 {
            acceleration,
            state: Box::default(),
        }
    }

    /// Compresses bytes of any length into a buffer of any size.
    pub fn bytes(&mut self, from: &[u8], out: &mut [u8]) -> Option<usize> {
        lz4::compress_faster(from, out, &mut self.state, self.acceleration)
    }
}

impl Compressor for Lz4 {
    fn name(&self) -> String {
        format!("lz4, acceleration {}", self.acceleration)
    }
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        self.bytes(page, &mut out[..COMPRESSED_MAX])
    }
    fn decompress(&mut self, from: &[u8], page: &mut PageBuf) -> bool {
        lz4::decompress(from, page)
    }
}

struct Lz4Flex;

impl Compressor for Lz4Flex {
    fn name(&self) -> String {
        "lz4_flex".to_owned()
    }
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        let len = lz4_flex::block::compress_into(page, out).ok()?;
        (len <= COMPRESSED_MAX).then_some(len)
    }
    fn decompress(&mut self, from: &[u8], page: &mut PageBuf) -> bool {
        lz4_flex::block::decompress_into(from, page).is_ok_and(|n| n == PAGE_SIZE)
    }
}

struct Snappy {
    encoder: snap::raw::Encoder,
    decoder: snap::raw::Decoder,
}

impl Compressor for Snappy {
    fn name(&self) -> String {
        "snappy".to_owned()
    }
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        let len = self.encoder.compress(page, out).ok()?;
        (len <= COMPRESSED_MAX).then_some(len)
    }
    fn decompress(&mut self, from: &[u8], page: &mut PageBuf) -> bool {
        self.decoder
            .decompress(from, page)
            .is_ok_and(|n| n == PAGE_SIZE)
    }
}

struct Zstd {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Zstd {
    fn new(level: i32) -> std::io::Result<Zstd> {
        Ok(Zstd {
            level,
            compressor: zstd::bulk::Compressor::new(level)?,
            decompressor: zstd::bulk::Decompressor::new()?,
        })
    }
}

impl Compressor for Zstd {
    fn name(&self) -> String {
        format!("zstd, level {}", self.level)
    }
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        let room = &mut out[..COMPRESSED_MAX];
        self.compressor.compress_to_buffer(page, room).ok()
    }
    fn decompress(&mut self, from: &[u8], page: &mut PageBuf) -> bool {
        let done = self
            .decompressor
            .decompress_to_buffer(from, page.as_mut_slice());
        done.is_ok_and(|n| n == PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_brings_pages_back_and_refuses_what_does_not_shrink() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut noise = [0; PAGE_SIZE];
        random.fill(&mut noise);
        let mut text = [b'a'; PAGE_SIZE];
        for n in (0..PAGE_SIZE).step_by(5) {
            text[n] = random.u8(b'a'..b'e');
        }
        for mut c in all().unwrap() {
            let mut out = [0; ROOM_BYTES];
            // Twice, since state left by an earlier page must not matter.
            for _ in 0..2 {
                assert_eq!(c.compress(&noise, &mut out), None, "{}", c.name());
                let len = c.compress(&text, &mut out).expect("it shrinks");
                let mut back = [0; PAGE_SIZE];
                assert!(c.decompress(&out[..len], &mut back), "{}", c.name());
                assert!(back == text, "{}", c.name());
                assert!(!c.decompress(&out[..len / 2], &mut back), "{}", c.name());
            }
        }
    }
}
