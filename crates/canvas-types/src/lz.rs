//! Working memory of lz4's compressor.

/// Bytes in [`LzScratch`]: what lz4's hash table needs (16416), rounded up to the alignment.
pub const LZ_SCRATCH_BYTES: usize = 16448;

/// Working memory of lz4's compressor: zeros, or what the compressor left there, on which it relies. No safe code can
/// write anything else to it.
#[repr(C, align(64))]
pub struct LzScratch([u8; LZ_SCRATCH_BYTES]);
const _: () = assert!(size_of::<LzScratch>() == LZ_SCRATCH_BYTES && LZ_SCRATCH_BYTES >= 16416);

impl LzScratch {
    /// Zeroed working memory, as the compressor needs it at first.
    pub const fn new() -> LzScratch {
        LzScratch([0; LZ_SCRATCH_BYTES])
    }
    /// Its bytes, for the compressor.
    #[inline]
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

impl Default for LzScratch {
    fn default() -> LzScratch {
        LzScratch::new()
    }
}
