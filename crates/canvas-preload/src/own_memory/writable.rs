//! Makes canvas's own memory writable, part by part.
//!
//! With `vm.overcommit_memory=2` a host charges all writable private memory, touched or not, against what it can ever
//! hold. So the areas are reserved read-only, as zeros, which is not charged, and each part is opened before its first
//! use: page words together with the program's memory that they describe, the pool's slabs as it grows. Open parts stay
//! open.

use canvas_sys::{Errno, mem};
use canvas_types::PAGE_SIZE;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Opens all pages of `addr..addr + bytes`, which belong to canvas; ENOMEM if the host has no room for them.
pub fn open(addr: usize, bytes: usize) -> Result<(), Errno> {
    let start = addr / PAGE_SIZE * PAGE_SIZE;
    let end = (addr + bytes).next_multiple_of(PAGE_SIZE);
    // SAFETY: the pages hold data, to which every access is still allowed that was before; their contents stay.
    unsafe { mem::protect(start, end - start, libc::PROT_READ | libc::PROT_WRITE) }
}

/// How far an area is open that is opened from its beginning on.
pub struct Mark {
    step: usize,
    bytes: AtomicUsize,
}

impl Mark {
    /// Nothing is open yet; `step` bytes (whole pages) are opened at a time.
    pub const fn new(step: usize) -> Mark {
        Mark {
            step,
            bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes that are open.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Opens the area at `base`, which has `most` bytes, until at least `want` of them are open; returns how many are.
    pub fn reach(&self, base: usize, want: usize, most: usize) -> Result<usize, Errno> {
        let now = self.bytes();
        if want <= now {
            return Ok(now);
        }
        let until = want.next_multiple_of(self.step).min(most);
        if until < want {
            return Err(Errno(libc::ENOMEM));
        }
        // Another thread may do so, too; that is harmless.
        open(base + now, until - now)?;
        Ok(self.bytes.fetch_max(until, Ordering::Relaxed).max(until))
    }
}

/// Which steps are open of an area that is opened anywhere: up to 64 per word of `WORDS`.
pub struct Steps<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Steps<WORDS> {
    /// Nothing is open yet.
    pub const fn new() -> Steps<WORDS> {
        Steps([const { AtomicU64::new(0) }; WORDS])
    }

    /// Calls `open` with each run of steps that are not open, and marks them as open; returns how many there were.
    pub fn reach(
        &self,
        steps: Range<usize>,
        mut open: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let is_open = |i: usize| self.0[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0;
        let (mut at, mut opened) = (steps.start, 0);
        while at < steps.end {
            if is_open(at) {
                at += 1;
                continue;
            }
            let end = (at..steps.end).find(|i| is_open(*i)).unwrap_or(steps.end);
            open(at..end)?;
            for i in at..end {
                let bit = 1 << (i % 64);
                opened += usize::from(self.0[i / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0);
            }
            at = end;
        }
        Ok(opened)
    }
}
