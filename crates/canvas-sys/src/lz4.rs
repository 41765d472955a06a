//! lz4's block format through the reference C library, with the caller's memory for state: the library neither
//! allocates nor keeps thread-local data in the functions used here.

use core::ffi::{c_char, c_int, c_void};

/// Bytes of working memory for [`compress`] (`LZ4_STREAMSIZE`).
pub const STATE_BYTES: usize = 16416;

unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_cap: c_int,
        accel: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_cap: c_int,
        accel: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_cap: c_int,
    ) -> c_int;
}
// lz4-sys builds and links the C library; its Rust items are not needed.
use lz4_sys as _;

/// Like [`compress`], with another acceleration than 1: a higher one is faster and compresses less.
#[inline]
pub fn compress_faster(
    src: &[u8],
    dst: &mut [u8],
    state: &mut [u8],
    fresh: bool,
    acceleration: i32,
) -> Option<usize> {
    assert!(state.len() >= STATE_BYTES && (state.as_ptr() as usize).is_multiple_of(8));
    let f = if fresh {
        LZ4_compress_fast_extState
    } else {
        LZ4_compress_fast_extState_fastReset
    };
    // SAFETY: the pointers and lengths are those of live slices; the state is large enough and aligned (asserted, and
    // `state_size_is_as_assumed` pins the library's own figure).
    let n = unsafe {
        f(
            state.as_mut_ptr().cast(),
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src.len() as c_int,
            dst.len() as c_int,
            acceleration,
        )
    };
    (n > 0).then_some(n as usize)
}

/// Compresses `src`; returns the compressed length, or `None` if it does not fit `dst`. `state` may contain anything
/// that an earlier call left, or zeros; it must be 8-aligned.
#[inline]
pub fn compress(src: &[u8], dst: &mut [u8], state: &mut [u8], fresh: bool) -> Option<usize> {
    compress_faster(src, dst, state, fresh, 1)
}

/// Decompresses `src` into exactly `dst`; returns false if the data is not a block of that length.
#[inline]
pub fn decompress(src: &[u8], dst: &mut [u8]) -> bool {
    // SAFETY: LZ4_decompress_safe never reads past src or writes past dst, whatever the data.
    let n = unsafe {
        LZ4_decompress_safe(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src.len() as c_int,
            dst.len() as c_int,
        )
    };
    n >= 0 && n as usize == dst.len()
}

/// The library's own size of its state, in bytes.
pub fn state_bytes() -> usize {
    // SAFETY: no arguments, no memory.
    unsafe { LZ4_sizeofState() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_size_is_as_assumed() {
        assert!(state_bytes() <= STATE_BYTES);
    }

    #[test]
    fn round_trip_and_reuse_of_state() {
        let mut state = [0u64; STATE_BYTES / 8];
        // SAFETY: u64s viewed as bytes.
        let state = unsafe {
            core::slice::from_raw_parts_mut(state.as_mut_ptr().cast::<u8>(), STATE_BYTES)
        };
        for round in 0..50u32 {
            let mut page = [0u8; 4096];
            for (i, b) in page.iter_mut().enumerate() {
                *b = if i % 7 < 4 {
                    round as u8
                } else {
                    (i as u32 * 31 + round) as u8
                };
            }
            let mut packed = [0u8; 4096];
            let n = compress(&page, &mut packed, state, round == 0).expect("compressible");
            let mut back = [0u8; 4096];
            assert!(decompress(&packed[..n], &mut back));
            assert!(back == page);
            assert!(!decompress(&packed[..n - 1], &mut back));
        }
    }
}
