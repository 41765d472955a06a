//! Measures the kernel's time to deliver a fault as a signal, which the recipient itself cannot see.

use canvas_types::PAGE_SIZE;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::mem;
use crate::proc::now_ns;
use crate::signal::{KernelSigaction, bit, exchange, install, set_mask};

const ROUNDS: usize = 33;
/// The page that faults; 0 while nothing is measured.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Makes the page accessible, so that the access succeeds when repeated.
unsafe extern "C" fn open(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes what it has filled in for SIGSEGV.
    let at = unsafe { (*info).si_addr() } as usize;
    // Another thread's fault is its own, and is repeated.
    if at == PAGE.load(Ordering::Relaxed) {
        // SAFETY: only the thread that measures touches this page, so `measure` has not returned.
        let _ = unsafe { mem::protect(at, PAGE_SIZE, libc::PROT_READ) };
    }
}

/// Time in ns from a faulting access to its handler and back: the median of several; `None` if it cannot be measured,
/// or if another thread is measuring it. A page is made inaccessible and touched; the time to make it accessible is
/// subtracted. A fault of another thread is repeated until this returns.
pub fn signal_ns() -> Option<u64> {
    let page = mem::map_lazy(0, PAGE_SIZE, libc::PROT_READ).ok()?;
    let measured = measure(page);
    // SAFETY: mapped above; `measure` has returned, so nothing uses it any more.
    let _ = unsafe { mem::unmap(page, PAGE_SIZE) };
    measured
}

/// Restores the previous handler when dropped.
struct Before(KernelSigaction);

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: the action that the kernel had before `measure`, and that its owner relies on.
        let _ = unsafe { exchange(libc::SIGSEGV, Some(&self.0)) };
        PAGE.store(0, Ordering::Relaxed);
    }
}

fn measure(page: usize) -> Option<u64> {
    PAGE.compare_exchange(0, page, Ordering::Relaxed, Ordering::Relaxed)
        .ok()?;
    // A program that reads its signals from a descriptor has this one blocked, and the kernel would end it.
    let _unblocked = Unblocked::segv();
    // SAFETY: `open` is async-signal-safe, and changes the access to our page only; after a fault elsewhere it returns
    // to the faulting access, which is repeated.
    let installed = unsafe { install(libc::SIGSEGV, open, 0) };
    let Ok(before) = installed else {
        PAGE.store(0, Ordering::Relaxed);
        return None;
    };
    let _before = Before(before);
    let (mut faults, mut calls) = ([0; ROUNDS], [0; ROUNDS]);
    for (fault_ns, call_ns) in faults.iter_mut().zip(&mut calls) {
        // SAFETY: no reference to the page exists.
        let protect = |prot| unsafe { mem::protect(page, PAGE_SIZE, prot) };
        protect(libc::PROT_NONE).ok()?;
        let begun = now_ns();
        // SAFETY: the page is mapped (`protect` did not fail), and the handler makes it readable.
        unsafe { (page as *const u8).read_volatile() };
        let between = now_ns();
        *fault_ns = between - begun;
        protect(libc::PROT_NONE).ok()?;
        let begun = now_ns();
        protect(libc::PROT_READ).ok()?;
        *call_ns = now_ns() - begun;
    }
    faults.sort_unstable();
    calls.sort_unstable();
    faults[ROUNDS / 2].checked_sub(calls[ROUNDS / 2])
}

/// SIGSEGV is unblocked in this thread until this is dropped.
struct Unblocked {
    mask: u64,
}

impl Unblocked {
    fn segv() -> Unblocked {
        let mask = set_mask(u64::MAX);
        set_mask(mask & !bit(libc::SIGSEGV));
        Unblocked { mask }
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        set_mask(self.mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler() -> usize {
        // SAFETY: without a new action nothing changes.
        unsafe { exchange(libc::SIGSEGV, None) }.unwrap().handler
    }

    #[test]
    fn a_signal_takes_some_time_and_leaves_the_handler_of_before() {
        let before = handler();
        let mask = set_mask(bit(libc::SIGSEGV));
        let ns = signal_ns().unwrap();
        assert_eq!(set_mask(mask), bit(libc::SIGSEGV));
        assert!(ns > 0, "{ns}");
        assert_eq!(handler(), before);
        // Even if it cannot be measured: an unmapped page cannot be protected.
        let page = mem::map_lazy(0, PAGE_SIZE, libc::PROT_READ).unwrap();
        // SAFETY: mapped just now; nothing uses it.
        unsafe { mem::unmap(page, PAGE_SIZE) }.unwrap();
        assert_eq!(measure(page), None);
        assert_eq!(handler(), before);
    }
}
