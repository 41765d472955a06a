//! The monotonic clock.

/// Monotonic time in ns by the vDSO: no system call, no thread-local data on success.
#[inline]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the vDSO, or the kernel, writes `t` only.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
