//! Discards pages of this process in few calls.

use canvas_sys::mem;
use core::sync::atomic::Ordering;

use crate::runtime::{fds, state};

/// Discards the contents of the ranges, with a single TLB flush if the kernel supports that. Returns false if some
/// contents may remain.
///
/// # Safety
///
/// The caller owns the contents of all pages of the ranges, and needs them no longer.
pub unsafe fn discard(ranges: &[libc::iovec]) -> bool {
    if !state::PROCESS.no_vector_discard.load(Ordering::Relaxed) {
        // SAFETY: for all ranges the caller answers.
        if unsafe { mem::discard_many(fds::pidfd(), ranges) } {
            return true;
        }
        state::PROCESS
            .no_vector_discard
            .store(true, Ordering::Relaxed);
    }
    ranges.iter().fold(true, |all, r| {
        // SAFETY: for this range, like all others, the caller answers.
        let done = unsafe { mem::advise(r.iov_base as usize, r.iov_len, libc::MADV_DONTNEED) };
        all & done.is_ok()
    })
}
