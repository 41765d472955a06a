//! Address hints of inaccessible reservations, far from where the kernel would map them.
//!
//! Most are random (V8), and the program accepts any address: such reservations go to the managed range. Some make
//! sense only at their address (the views of ZGC's heap, later mapped to a memory file). Such a program unmaps what it
//! got elsewhere, as a whole and unchanged, and tries again at another address: from then on its hints for reservations
//! of that size go to the kernel.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

/// Range of such hints: from 4 TiB on. Lower ones are preferences (a heap that compressed pointers reach), and so are
/// those near the kernel's own mappings.
pub const RANGE: Range<usize> = 4 << 40..0x5800_0000_0000;

state! {
    /// The last reservation that got another address than requested, and the size whose hints are meant. Changes only
    /// under the mapping lock.
    pub static WISH: Wish {
        start: AtomicU32 = AtomicU32::new(0),
        end: AtomicU32 = AtomicU32::new(0),
        meant_pages: AtomicU32 = AtomicU32::new(0),
    }
}

impl Wish {
    /// Records that a reservation was put at `start..end` rather than at its hint.
    pub fn note(&self, start: u32, end: u32) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }
    /// The program uses `start..end`, so it accepted that address.
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
    /// Whether hints for reservations of this size go to the kernel.
    pub fn is_meant(&self, pages: u32) -> bool {
        self.meant_pages.load(Ordering::Relaxed) == pages
    }
}
