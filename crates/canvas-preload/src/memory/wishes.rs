//! Hints of inaccessible reservations, far from where the kernel would map them.
//!
//! Most are drawn by the program (V8), which goes on with whatever place it gets: they get the window, and are managed.
//! Some make sense at their place alone (the views of ZGC's heap, which later are mapped to a memory file). Such a
//! program gives back what it got elsewhere, whole and as it was, and asks again at another place: from then on
//! its hints for reservations of that size are the kernel's to honour.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

/// Hints of this kind: from 4 TiB on. Lower ones are preferences (a heap that compressed pointers reach), and so are
/// those near the kernel's own mappings.
pub const RANGE: Range<usize> = 4 << 40..0x5800_0000_0000;

/// The last reservation that got another place than it asked for, and what is known of such. Changes under the
/// mapping lock.
pub struct Wish {
    start: AtomicU32,
    end: AtomicU32,
    meant_pages: AtomicU32,
}

/// This process's.
pub static WISH: Wish = Wish {
    start: AtomicU32::new(0),
    end: AtomicU32::new(0),
    meant_pages: AtomicU32::new(0),
};

impl Wish {
    /// A reservation was put at `start..end` instead of where it was asked for.
    pub fn note(&self, start: u32, end: u32) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }
    /// The program goes on with `start..end`.
    pub fn forget(&self, start: u32, end: u32) {
        if start < self.end.load(Ordering::Relaxed) && self.start.load(Ordering::Relaxed) < end {
            self.note(0, 0);
        }
    }
    /// The program unmaps `start..end`.
    pub fn gave_back(&self, start: u32, end: u32) {
        let noted = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        if noted == (start, end) {
            self.meant_pages.store(end - start, Ordering::Relaxed);
        }
        self.forget(start, end);
    }
    /// Are hints for reservations of this size meant?
    pub fn is_meant(&self, pages: u32) -> bool {
        self.meant_pages.load(Ordering::Relaxed) == pages
    }
}
