//! The pager's store: this process's pool, NUMA nodes, and far memory beyond it, if the tenant has some.

use canvas_core::far::fetch::{self, Lost, Stored};
use canvas_core::far::{channel, completion, demote, resident_copies, room};
use canvas_core::swap::{LoadError, Outcome, Scratch, StoreError};
use canvas_core::vm::Store;
use canvas_types::{ExtentRef, PageBuf, PageId, SwapEntry};
use core::sync::atomic::Ordering;

use crate::far_tier::{
    ours::{Ours, beyond},
    pool::{has_no_memory, pool},
    tier,
};
use crate::runtime::{state, state::Process};

impl Store for Process {
    #[inline]
    fn load(
        &self,
        entry: SwapEntry,
        page: &mut PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), LoadError> {
        pool().load(entry, page, scratch)
    }
    #[inline]
    fn store(
        &self,
        entry: SwapEntry,
        far_copy: bool,
        page: &PageBuf,
        scratch: &mut Scratch,
    ) -> Result<Outcome, StoreError> {
        pool().store(entry, far_copy, page, scratch)
    }
    #[inline]
    fn release(&self, entry: SwapEntry) {
        pool().release(entry);
    }
    fn drop_copy(&self, entry: SwapEntry) -> bool {
        pool().drop_copy(entry)
    }
    fn drop_pooled_copy(&self, entry: SwapEntry) -> bool {
        pool().drop_pooled_copy(entry)
    }
    #[inline]
    fn extent_ref(&self, entry: SwapEntry) -> Option<ExtentRef> {
        pool().extent_ref(entry)
    }
    #[inline]
    fn demote_home(&self, entry: SwapEntry) {
        pool().demote_home(entry);
    }
    fn trim(&self) {
        pool().trim();
    }
    fn drop_copies(&self) -> bool {
        resident_copies::make_room(&Ours)
    }
    /// While nothing can be written, it does not wait for writing: pages that already have a copy beyond the pool can
    /// leave all the same.
    #[cold]
    fn make_room(&self) -> bool {
        match beyond() {
            Some(b) if tier::is_closed() => demote::make_room_unwritten(&b),
            Some(b) => demote::make_room(&b),
            None => demote::others_give(&Ours),
        }
    }
    fn has_no_memory(&self) -> bool {
        has_no_memory()
    }
    fn used_and_limit(&self) -> (u64, u64) {
        let nodes = state::seg().nodes().iter();
        nodes.fold(tier::used_and_limit(), |(used, limit), n| {
            let there = n.bytes.load(Ordering::Relaxed).max(0) as u64;
            (
                used.saturating_add(there),
                limit.saturating_add(n.bound().max(0) as u64),
            )
        })
    }
    fn has_far_tier(&self) -> bool {
        tier::used_and_limit().1 != 0
    }
    fn is_closed(&self) -> bool {
        tier::is_closed()
    }
    fn may_open(&self) -> bool {
        beyond().is_some_and(|b| room::may_open(&b))
    }
    fn is_stalled(&self) -> bool {
        tier::is_stalled()
    }
    #[inline]
    fn is_in_flight(&self, page: PageId, place: ExtentRef) -> bool {
        beyond().is_some_and(|b| channel::is_in_flight(&b, page.0, place))
    }
    #[inline]
    fn load_far_tier(
        &self,
        entry: SwapEntry,
        place: ExtentRef,
        page: &mut PageBuf,
        stored: &mut Stored,
    ) -> Result<(), Lost> {
        beyond().map_or(Err(Lost::Unreachable), |b| {
            fetch::load(&b, entry, place, page, stored)
        })
    }
    fn wait_for_arrival(&self, page: PageId, place: ExtentRef) {
        if let Some(b) = beyond() {
            completion::wait_for_arrival(&b, page.0, place);
        }
    }
    #[inline]
    fn absorb(&self) {
        if let Some(b) = beyond() {
            completion::finish_all(&b);
        }
    }
    #[inline]
    fn used(&self, entry: SwapEntry) {
        if let Some(b) = beyond() {
            fetch::used(&b, entry);
        }
    }
    fn neighbour_used(&self) {
        fetch::neighbour_used(&Ours);
    }
    fn fetch_neighbours(&self, extent: u32) {
        if let Some(b) = beyond() {
            fetch::fetch_neighbours(&b, extent);
        }
    }
    fn keep(&self, entry: SwapEntry, place: ExtentRef, stored: &Stored) {
        if let Some(b) = beyond() {
            fetch::keep(&b, entry, place, stored);
        }
    }
    fn fetch(&self, extent: u32) {
        if let Some(b) = beyond() {
            fetch::fetch(&b, extent);
        }
    }
    fn read_ahead(&self, page: PageId, place: ExtentRef) -> bool {
        beyond().is_some_and(|b| fetch::ahead(&b, page.0, place))
    }
    fn fetch_for_stream(&self, start: PageId, stride: i32, pages: u32) {
        if let Some(b) = beyond() {
            fetch::fetch_for_stream(&b, start.0, stride, pages);
        }
    }
}
