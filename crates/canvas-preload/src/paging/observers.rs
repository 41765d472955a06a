//! The optional features that learn of faults and evictions: traces, recordings, the application tier, and faults that
//! the program reads. Each is called here and nowhere else on the path of a page.

use canvas_core::pager::prefetch::Prefetcher;
use canvas_core::pager::trace::Kind;
use canvas_core::pager::word::{State, Word};
use canvas_core::vm::{FaultSite, Observers};
use canvas_types::{PageBuf, PageId};

use crate::api;
use crate::paging::{learn, trace};
use crate::runtime::state::Process;

impl Observers for Process {
    // Without this, the prefetcher is the pager's own.
    #[inline(always)]
    fn prefetcher(&self) -> &impl Prefetcher {
        &crate::paging::app_tier::TwoTiers
    }
    #[inline]
    fn fault_begins(&self, page: PageId) -> u64 {
        trace::begin(page)
    }
    #[inline]
    fn fault_ended(&self, begun: u64, page: PageId, met: Word, write: bool) {
        if begun != 0 {
            trace::fault(begun, page, met, write);
        }
        if met.state() == State::Far {
            learn::bring_in_beside(page);
        }
    }
    #[inline]
    fn before_swap_in(&self, at: FaultSite, planned: bool) {
        if !planned {
            api::faults::push(at.page.addr() + at.offset, at.ip);
        }
    }
    #[inline]
    fn swapped_in(&self, at: FaultSite, _: &PageBuf) {
        learn::note(at.page);
    }
    #[inline]
    fn prefetched(&self, page: PageId) {
        learn::note_ahead(page);
        trace::note(page, Kind::Prefetch);
    }
    #[inline]
    fn zero_filled(&self, from: PageId, pages: usize, touched: PageId) {
        trace::filled_ahead(from, pages, touched);
    }
    #[inline]
    fn evicted(&self, page: PageId) {
        trace::note(page, Kind::Evict);
    }
    #[inline]
    fn discarded(&self, page: PageId) {
        trace::note(page, Kind::Discard);
    }
    #[inline]
    fn wants_touch_of(&self, page: PageId) -> bool {
        trace::records(page)
    }
}
