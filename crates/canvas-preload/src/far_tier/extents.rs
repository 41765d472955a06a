//! This process's extents beyond the pool: which ones it uses, in slabs of its own and of its parents.
//!
//! An extent is held ([`ExtentBook::hold`]) by each entry that names it, by its writing, and by its fetching. So its
//! number is not reused while an answer about the old extent may still arrive.

use canvas_core::swap::extents::{BookState, ExtentBook, Slabs, Span};
use canvas_shm::far::{self, Far, SLAB_EXTENTS};
use canvas_sys::gate;
use core::sync::atomic::Ordering;

use crate::own_memory::areas;
use crate::tenant::{
    far_area,
    far_area::{far, ring},
};

static BOOK: BookState = BookState::new();

/// The extents that this process uses.
#[inline]
pub fn book() -> ExtentBook<'static> {
    ExtentBook {
        arrays: areas::extent_book(),
        state: &BOOK,
        slab_extents: SLAB_EXTENTS as u32,
        yield_now: gate::yield_now,
    }
}

/// The far area's slabs, as this process sees them.
pub struct OurSlabs(pub &'static Far);

impl Slabs for OurSlabs {
    fn high(&self) -> u32 {
        let high = self.0.slabs_high.load(Ordering::Acquire);
        high.min(far::SLABS_MAX as u32)
    }
    fn take(&self) -> Option<u32> {
        let slab = self.0.take_slab(far_area::index())?;
        if areas::open_extents(slab).is_err() {
            self.give_up(slab);
            return None;
        }
        Some(slab)
    }
    fn give_up(&self, slab: u32) {
        if self.0.drop_slab(slab, far_area::index()) {
            ring(self.0);
        }
    }
    fn others(&self, slab: u32, on: &mut dyn FnMut(Span)) -> bool {
        let proc = far_area::index();
        self.0.others(slab, proc, |born| {
            // A process that refers to our slab without having inherited anything: impossible, so assume all extents.
            on(Span::of(born).unwrap_or(Span::ALL));
        })
    }
}

/// An entry no longer names the extent.
pub fn unhold(extent: u32) {
    if let Some(f) = far() {
        book().unhold(extent, &OurSlabs(f));
    }
}
