//! Asks the kernel whether memory of the program is readable or writable, where an access by ourselves could end in a
//! signal.
//!
//! Uses rt_sigprocmask, the cheapest call that copies eight bytes and then does nothing: every filter under which far
//! pages can come back permits it.

use crate::gate::{Errno, sys4};

/// Bytes that rt_sigprocmask copies.
pub const BYTES: usize = 8;
/// An operation that rt_sigprocmask does not have: it returns EINVAL after it has copied the new set.
const NO_OPERATION: usize = i32::MAX as usize;

/// Whether the [`BYTES`] at `addr` are readable.
pub fn is_readable(addr: usize) -> bool {
    // SAFETY: the kernel copies the set to its own stack, and changes no mask.
    let read = unsafe { sys4(libc::SYS_rt_sigprocmask, NO_OPERATION, addr, 0, BYTES) };
    addr != 0 && read != Err(Errno(libc::EFAULT))
}

/// Whether the [`BYTES`] at `addr` are writable. Overwrites them.
///
/// # Safety
///
/// They are the caller's to overwrite, or no memory.
pub unsafe fn is_writable(addr: usize) -> bool {
    let how = libc::SIG_BLOCK as usize;
    // SAFETY: without a new set no mask changes; the caller's promise for what is written.
    let wrote = unsafe { sys4(libc::SYS_rt_sigprocmask, how, 0, addr, BYTES) };
    addr != 0 && wrote != Err(Errno(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mem, signal};
    use canvas_types::PAGE_SIZE;

    #[test]
    fn access_is_told_without_a_signal_and_without_a_change_of_the_mask() {
        let usr1 = signal::bit(libc::SIGUSR1);
        let before = signal::set_mask(usr1);
        let at = mem::map_lazy(0, 3 * PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        let (ro, none) = (at + PAGE_SIZE, at + 2 * PAGE_SIZE);
        // SAFETY: inside the mapping made just now, which nothing else uses.
        unsafe {
            mem::protect(ro, PAGE_SIZE, libc::PROT_READ).unwrap();
            mem::protect(none, PAGE_SIZE, libc::PROT_NONE).unwrap();
        }
        assert!(is_readable(at) && is_readable(ro) && is_readable(none - 8));
        for bad in [none, none - 1, 0, 8, 4096, usize::MAX - 7, 1 << 63] {
            assert!(!is_readable(bad), "{bad:#x}");
            // SAFETY: nothing is mapped there.
            assert!(!unsafe { is_writable(bad) }, "{bad:#x}");
        }
        // SAFETY: the mapping's own; nothing relies on what is there.
        unsafe {
            assert!(is_writable(at) && is_writable(ro - 8));
            assert!(!is_writable(ro) && !is_writable(ro - 7));
        }
        assert_eq!(signal::set_mask(before), usr1);
        // SAFETY: nothing uses it any more.
        unsafe { mem::unmap(at, 3 * PAGE_SIZE) }.unwrap();
    }
}
