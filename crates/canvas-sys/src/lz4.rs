//! lz4's block format through the reference C library, with the caller's memory for state: the library neither
//! allocates nor keeps thread-local data in the functions used here.

use canvas_types::LzScratch;
use core::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
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
    state: &mut LzScratch,
    acceleration: i32,
) -> Option<usize> {
    let (src_len, dst_len) = (c_int::try_from(src.len()), c_int::try_from(dst.len()));
    let (src_len, dst_len) = (src_len.ok()?, dst_len.ok()?);
    // SAFETY: the library reads `src` and writes `dst`, at most their lengths. `state` is aligned, as large as its own
    // (`state_size_is_as_assumed`), and zeros or what an earlier call left: nobody else writes there (`LzScratch`).
    let n = unsafe {
        LZ4_compress_fast_extState_fastReset(
            state.as_mut_ptr().cast(),
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src_len,
            dst_len,
            acceleration,
        )
    };
    (n > 0).then_some(n as usize)
}

/// Compresses `src`; returns the compressed length, or `None` if it does not fit `dst`.
#[inline]
pub fn compress(src: &[u8], dst: &mut [u8], state: &mut LzScratch) -> Option<usize> {
    compress_faster(src, dst, state, 1)
}

/// Decompresses `src` into exactly `dst`; returns false if the data is not a block of that length.
#[inline]
pub fn decompress(src: &[u8], dst: &mut [u8]) -> bool {
    let (Ok(src_len), Ok(dst_len)) = (c_int::try_from(src.len()), c_int::try_from(dst.len()))
    else {
        return false;
    };
    // SAFETY: the library reads at most `src_len` bytes of `src` and writes at most `dst_len` of `dst`, whatever the
    // data.
    let n = unsafe {
        LZ4_decompress_safe(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src_len,
            dst_len,
        )
    };
    n >= 0 && n as usize == dst.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn LZ4_sizeofState() -> c_int;
    }

    #[test]
    fn state_size_is_as_assumed() {
        // SAFETY: it returns a constant.
        let bytes = unsafe { LZ4_sizeofState() };
        assert!(bytes as usize <= size_of::<LzScratch>());
    }

    #[test]
    fn round_trip_and_reuse_of_state() {
        let mut state = LzScratch::new();
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
            let n = compress(&page, &mut packed, &mut state).expect("compressible");
            let mut back = [0u8; 4096];
            assert!(decompress(&packed[..n], &mut back));
            assert!(back == page);
            assert!(!decompress(&packed[..n - 1], &mut back));
        }
    }
}
