//! Buffers of one extent, aligned for direct I/O.

use std::ops::{Deref, DerefMut};

use canvas_core::swap::extent::EXTENT_BYTES;

/// Alignment for direct I/O in bytes: no block device has larger logical blocks.
pub const ALIGN: usize = 4096;

/// A buffer of `EXTENT_BYTES` that begins at a multiple of [`ALIGN`].
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    start: usize,
}

impl Block {
    /// A zeroed buffer.
    pub fn new() -> Block {
        let bytes = vec![0; EXTENT_BYTES + ALIGN];
        let start = bytes.as_ptr().addr().wrapping_neg() % ALIGN;
        Block { bytes, start }
    }
}

impl Default for Block {
    fn default() -> Self {
        Block::new()
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + EXTENT_BYTES]
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + EXTENT_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_whole() {
        for _ in 0..8 {
            let mut block = Block::new();
            assert_eq!(block.len(), EXTENT_BYTES);
            assert!(block.as_ptr().addr().is_multiple_of(ALIGN));
            block[EXTENT_BYTES - 1] = 1;
        }
    }
}
