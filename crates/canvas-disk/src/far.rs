//! Far memory of a disk: its implementation of the traits of [`canvas_core::far`].
//!
//! A disk with far memory is a tenant with one process, this one: it has a segment with limits and
//! counters, a mailbox for requests, and an agent that keeps pages demoted from the pool. All its
//! pages are far, in the pool or beyond it. A clock hand selects pages to demote, and skips those
//! used since its last pass.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use canvas_core::far::fetch;
use canvas_core::far::{
    Channel, FarStore, Host, Owner, PageLocation, PageOutcome, Pages, PoolPeer, Request, State,
};
use canvas_core::swap::extents::{BookArrays, BookState, ExtentBook, Slabs, Span};
use canvas_core::swap::{Chosen, LocalPool, PoolBudget};
use canvas_direct::client::pairs::NoPairs;
use canvas_direct::client::{Lanes, Process};
use canvas_shm::far::{EXTENT_BYTES, EXTENTS_MAX, SLAB_EXTENTS, SLABS_MAX};
use canvas_shm::mailbox::{Mailbox, RequestFields, Status};
use canvas_shm::{Counter, Far, ProcSlot, Segment, lives};
use canvas_sys::{Errno, gate, proc};
use canvas_types::{ExtentRef, SwapEntry};

use crate::pool::{Lz4, PoolStore, Slots, entry_of, has_copy, pause, thread_number};
use crate::sys::lazy::LazyArray;

/// Bits of a page's state. A thread is working on the page.
pub(crate) const BUSY: u8 = 1;
/// The page is probably beyond the pool, or takes no space in it.
pub(crate) const BEYOND: u8 = 2;
/// The page was used since the hand's last pass.
pub(crate) const USED: u8 = 4;
/// The page was promoted along with another one, and has not been used yet.
pub(crate) const CAME: u8 = 8;
/// The page was prefetched for the current request, which will use it.
pub(crate) const ASKED: u8 = 16;
/// The page was written once. Entries of other pages are not read, because that would take memory
/// for them.
pub(crate) const KNOWN: u8 = 32;

/// The tenant of a disk.
pub struct Tenant {
    segment: &'static Segment,
    far: &'static Far,
    slot: &'static ProcSlot,
    index: usize,
    live: LazyArray<AtomicU8>,
    written: LazyArray<AtomicU8>,
    spans: LazyArray<AtomicU64>,
    slab_live: LazyArray<AtomicU32>,
    roles: LazyArray<AtomicU32>,
    book: BookState,
    lanes: Lanes,
}

/// An entry among a tenant's processes, with its mailbox.
#[derive(Clone, Copy)]
pub struct ProcessEntry {
    segment: &'static Segment,
    far: &'static Far,
    slot: &'static ProcSlot,
}

impl ProcessEntry {
    /// Takes an entry for this process, in the tenant with the segment in `fd`.
    pub fn take(
        fd: impl AsFd,
        segment: &'static Segment,
        far: &'static Far,
    ) -> Result<ProcessEntry, Errno> {
        let id = live_in(fd, segment)?;
        let slot = segment.procs.iter().find(|s| s.take(id)).ok_or(NO_PLACE)?;
        let index = segment.index_of(slot);
        segment.procs_end.fetch_max(index as u32 + 1, Relaxed);
        slot.pid.store(proc::pid(), Release);
        far.mailboxes[index].reset();
        far.drop_process(index);
        far.set_born(index, 0);
        Ok(ProcessEntry { segment, far, slot })
    }

    /// Takes over the entry of process `pid` with all its far memory: of a process that has ended
    /// and was started by this one, or of the one that started this one. `None` if it has none.
    pub fn take_from(
        fd: impl AsFd,
        segment: &'static Segment,
        far: &'static Far,
        pid: u32,
    ) -> Option<ProcessEntry> {
        let slot = segment.procs.iter().find(|s| s.pid.load(Acquire) == pid)?;
        let (theirs, ours) = (slot.identity()?, live_in(fd, segment).ok()?);
        let turn = slot.id.compare_exchange(theirs, ours, AcqRel, Relaxed);
        turn.ok()?;
        slot.pid.store(proc::pid(), Release);
        Some(ProcessEntry { segment, far, slot })
    }

    /// Releases the entry and its far memory.
    pub fn leave(&self) {
        let gone = |index| {
            self.far.drop_process(index);
        };
        let id = self.slot.id.load(Acquire);
        self.segment.release_slot(self.slot, id, gone);
    }
}

fn live_in(fd: impl AsFd, segment: &Segment) -> Result<u64, Errno> {
    lives::live(fd, segment).map_err(|e| Errno(e as i32))
}

impl Tenant {
    /// Takes an entry among the tenant's processes.
    pub fn enter(
        fd: impl AsFd,
        segment: &'static Segment,
        far: &'static Far,
    ) -> Result<Tenant, Errno> {
        Tenant::at(ProcessEntry::take(fd, segment, far)?)
    }

    /// The tenant at an entry that was taken.
    pub fn at(place: ProcessEntry) -> Result<Tenant, Errno> {
        let ProcessEntry { segment, far, slot } = place;
        let index = segment.index_of(slot);
        Ok(Tenant {
            segment,
            far,
            slot,
            index,
            live: LazyArray::new(EXTENTS_MAX)?,
            written: LazyArray::new(EXTENTS_MAX)?,
            spans: LazyArray::new(EXTENTS_MAX)?,
            slab_live: LazyArray::new(SLABS_MAX)?,
            roles: LazyArray::new(SLABS_MAX)?,
            book: BookState::new(),
            lanes: Lanes::new(),
        })
    }

    /// The current limit on its pool.
    pub fn pool_bytes_max(&self) -> u64 {
        self.segment.pool_bound().max(0) as u64
    }

    /// Ends it: stops waiting for far memory, and releases the entry.
    pub fn leave(&self) {
        self.far.wait_ms_max.store(0, Relaxed);
        self.lanes.close(&Ours);
        let (segment, far, slot) = (self.segment, self.far, self.slot);
        ProcessEntry { segment, far, slot }.leave();
    }

    /// Starts to take over what another process had at this entry.
    pub(crate) fn take_over(&self) {
        self.far.mailboxes[self.index].reset();
        let charged = self.slot.pool_bytes.load(Relaxed);
        self.segment.charge_pool_past_bound(self.slot, -charged);
        let book = self.book();
        if (self.far).take_over_slabs(self.index, |slab| book.take_over(slab)) {
            self.notify_agent();
        }
    }

    /// Records that an entry names a copy there; false if there can be none.
    pub(crate) fn keep(&self, place: ExtentRef) -> bool {
        self.book().take_over_extent(place.extent)
    }

    /// Records that the entry does not name it any more.
    pub(crate) fn release_extent(&self, place: ExtentRef) {
        self.book().unhold(place.extent, &OurSlabs(self));
    }

    /// All entries were read. Extents that the agent is still writing for the other process count
    /// as free, too: it finishes that before it reuses an extent.
    pub(crate) fn taken_over(&self) {
        self.book().taken_over(&OurSlabs(self));
    }

    /// Number of extents kept for any reason.
    #[cfg(test)]
    pub(crate) fn kept_extents(&self) -> u64 {
        let (all, free) = self.book().room(OurSlabs(self).high());
        all - free
    }

    /// Far memory in use, and its limit, in bytes.
    pub fn far_bytes(&self) -> (u64, u64) {
        let slab = (EXTENT_BYTES * SLAB_EXTENTS) as u64;
        let used = self.far.slabs_used.load(Relaxed).max(0) as u64;
        (used * slab, self.far.slabs_max.load(Relaxed) * slab)
    }

    /// Number of pages read directly from donors.
    pub fn lane_reads(&self) -> u64 {
        self.far.stats.lane_reads.load(Relaxed)
    }

    fn book(&self) -> ExtentBook<'_> {
        ExtentBook {
            arrays: BookArrays {
                live: self.live.all(),
                written: self.written.all(),
                spans: self.spans.all(),
                slab_live: self.slab_live.all(),
                roles: self.roles.all(),
            },
            state: &self.book,
            slab_extents: SLAB_EXTENTS as u32,
            yield_now: pause,
        }
    }

    fn notify_agent(&self) {
        if self.far.notify(self.index) {
            proc::futex_wake(&self.far.asleep, 1);
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A tenant has a limited number of process entries (EAGAIN).
const NO_PLACE: Errno = Errno(11);

/// This process, as needed by direct read channels.
struct Ours;

impl Process for Ours {
    type Pairs = NoPairs;
    fn pairs(&self) -> &NoPairs {
        &NoPairs
    }
    fn now_ns(&self) -> u64 {
        proc::now_ns()
    }
    fn fd_floor(&self) -> i32 {
        0
    }
    fn keep_fd(&self, _: usize, _: i32) {}
    fn has_own_fds(&self) -> bool {
        false
    }
    /// Sleep is not accounted for here.
    fn note_slept(&self, _: u64) {}
}

/// The tenant's slabs, from this process's view.
pub(crate) struct OurSlabs<'t>(&'t Tenant);

impl Slabs for OurSlabs<'_> {
    fn high(&self) -> u32 {
        let high = self.0.far.slabs_high.load(Acquire);
        high.min(SLABS_MAX as u32)
    }
    fn take(&self) -> Option<u32> {
        self.0.far.take_slab(self.0.index)
    }
    fn give_up(&self, slab: u32) {
        if self.0.far.drop_slab(slab, self.0.index) {
            self.0.notify_agent();
        }
    }
    fn others(&self, slab: u32, on: &mut dyn FnMut(Span)) -> bool {
        self.0.far.others(slab, self.0.index, |born| {
            // A process that inherited nothing cannot refer to our slab; if one does, assume the
            // whole span.
            on(Span::of(born).unwrap_or(Span::ALL));
        })
    }
}

/// The limit on a disk's pool.
pub enum Bound<'m> {
    /// The disk's own limit.
    Own {
        /// The limit.
        bytes: i64,
        /// Memory in use.
        charged: AtomicI64,
    },
    /// The tenant's limit.
    Tenant(&'m Tenant),
}

impl PoolBudget for Bound<'_> {
    fn charge(&self, bytes: i64) -> bool {
        match self {
            Bound::Own {
                bytes: most,
                charged,
            } => {
                let within = |charged: i64| {
                    let sum = charged + bytes;
                    (bytes <= 0 || sum <= *most).then_some(sum)
                };
                charged.fetch_update(Relaxed, Relaxed, within).is_ok()
            }
            Bound::Tenant(t) => t.segment.charge_pool(t.slot, bytes),
        }
    }
    fn charge_past_bound(&self, bytes: i64) -> bool {
        match self {
            Bound::Own { charged, .. } => {
                charged.fetch_add(bytes, Relaxed);
                true
            }
            Bound::Tenant(t) => {
                t.segment.charge_pool_past_bound(t.slot, bytes);
                true
            }
        }
    }
    fn drop_extent_ref(&self, place: ExtentRef) {
        if let Bound::Tenant(t) = self {
            t.book().unhold(place.extent, &OurSlabs(t));
        }
    }
}

/// A snapshot of a page.
#[derive(Clone, Copy)]
pub struct Seen {
    page: u32,
    state: u8,
    stored: bool,
}

impl Pages for PoolStore<'_> {
    type Seen = Seen;
    fn read_state(&self, page: u32) -> Option<Seen> {
        let state = self.states.get(page as usize)?.load(Acquire);
        let stored = has_copy(self.record(entry_of(page)));
        Some(Seen {
            page,
            state,
            stored,
        })
    }
    fn entry(seen: Seen) -> SwapEntry {
        entry_of(seen.page)
    }
    fn location(seen: Seen) -> PageLocation {
        match seen.state & BUSY == 0 && seen.stored {
            true => PageLocation::Far {
                in_far_tier: seen.state & BEYOND != 0,
            },
            false => PageLocation::Other,
        }
    }
    /// The stored page may have changed; the code that moves it checks that as well.
    fn claim(&self, page: u32, seen: Seen) -> bool {
        let state = &self.states[page as usize];
        let busy = seen.state | BUSY;
        seen.state & BUSY == 0
            && state
                .compare_exchange(seen.state, busy, Acquire, Relaxed)
                .is_ok()
    }
    fn publish(&self, page: u32, seen: Seen, outcome: PageOutcome) {
        let next = match outcome {
            PageOutcome::Unchanged | PageOutcome::NoCopy => seen.state,
            PageOutcome::InFarTier => seen.state & !(USED | CAME | ASKED) | BEYOND,
            PageOutcome::InPool => seen.state & !BEYOND,
            PageOutcome::PromotedAhead if seen.state & ASKED != 0 => seen.state & !BEYOND | USED,
            PageOutcome::PromotedAhead => seen.state & !BEYOND | USED | CAME,
        };
        self.states[page as usize].store(next & !BUSY, Release);
    }
    fn oldest(&self, scan_max: Option<usize>, mut take: impl FnMut(u32, Seen) -> bool) {
        let pages = self.high.load(Relaxed);
        // One round clears their use, a second one takes them.
        let rounds = 2 * pages as usize;
        for _ in 0..scan_max.unwrap_or(rounds).min(rounds) {
            // Threads share the position at each page: two that scanned side by side would take what was just used.
            let at = self.hand.load(Relaxed);
            let page = if at < pages { at } else { 0 };
            let Some(seen) = self.read_state(page) else {
                return;
            };
            if Self::location(seen) == (PageLocation::Far { in_far_tier: false }) {
                if seen.state & USED != 0 {
                    let passed = seen.state & !USED;
                    let state = &self.states[page as usize];
                    // A thread working on it meanwhile counts as use.
                    let _ = state.compare_exchange(seen.state, passed, Relaxed, Relaxed);
                } else if !take(page, seen) {
                    self.hand.store(page, Relaxed);
                    return;
                }
            }
            self.hand.store(page + 1, Relaxed);
        }
    }
    /// There are no resident copies.
    fn with_copies(&self, _: usize, _: impl FnMut(u32, Seen) -> bool) {}
}

impl Host for PoolStore<'_> {
    fn now_ns(&self) -> u64 {
        proc::now_ns()
    }
    fn yield_now() {
        pause();
    }
    fn pause(&self, ns: u64) {
        std::thread::sleep(Duration::from_nanos(ns));
    }
    fn count(&self, counter: Counter, n: u64) {
        if let Some(t) = self.tenant {
            t.segment.count(thread_number(), counter, n);
        }
    }
    fn pool_bytes(&self) -> i64 {
        self.tenant
            .map_or(0, |t| t.segment.pool_bytes.load(Relaxed))
    }
    fn pool_bound_bytes(&self) -> i64 {
        self.tenant.map_or(i64::MAX, |t| t.segment.pool_bound())
    }
    fn pool_configured_bytes(&self) -> u64 {
        self.tenant
            .map_or(u64::MAX, |t| t.segment.config.pool_bytes.load(Relaxed))
    }
    fn keeps_far_copies(&self) -> bool {
        true
    }
    /// There is no other process.
    fn ask_for_pool(&self, _: PoolPeer) -> bool {
        false
    }
    fn cannot_write(&self, why: Status) {
        self.counts.note_stuck(why);
    }
}

impl<'m> Owner for PoolStore<'m> {
    type Lz = Chosen<Lz4>;
    type Mem = Slots<'m>;
    type Budget = Bound<'m>;
    fn pool(&self) -> &LocalPool<'_, Chosen<Lz4>, Slots<'m>, Bound<'m>> {
        &self.pool
    }
    fn state(&self) -> &State {
        &self.far_state
    }
}

/// A disk with its tenant.
pub(crate) struct DiskFar<'s, 'm> {
    pub(crate) store: &'s PoolStore<'m>,
    pub(crate) tenant: &'m Tenant,
}

impl Channel for DiskFar<'_, '_> {
    fn mailbox(&self) -> &Mailbox {
        &self.tenant.far.mailboxes[self.tenant.index]
    }
    fn notify_agent(&self) {
        self.tenant.notify_agent();
    }
    fn read<R>(&self, of: &Request, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> R {
        let mut copy = Box::new([0; EXTENT_BYTES]);
        self.copy_out(of, 0, &mut copy[..]);
        on(&copy)
    }
    fn fill<R>(&self, of: &mut Request, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R {
        let mut made = Box::new([0; EXTENT_BYTES]);
        let result = on(&mut made);
        let far = self.tenant.far;
        far.copy_in(self.tenant.index, of.index(), 0, &made[..]);
        result
    }
    fn copy_out(&self, of: &Request, offset: usize, out: &mut [u8]) {
        let far = self.tenant.far;
        far.copy_out(self.tenant.index, of.index(), offset, out);
    }
    fn read_directly(&self, ask: &RequestFields, to: &mut [u8]) -> bool {
        let tenant = self.tenant;
        tenant.lanes.read(tenant.far, ask, to, &Ours)
    }
    fn sleep(&self, word: &AtomicU32, value: u32, ns: u64) {
        proc::futex_wait(word, value, ns);
    }
    fn yield_cpu(&self) {
        gate::give_way();
    }
    fn wait_ns_max(&self) -> u64 {
        self.tenant.far.wait_ms_max.load(Relaxed) * 1_000_000
    }
    fn demote_percent(&self) -> u64 {
        self.tenant.far.spill_percent.load(Relaxed)
    }
    fn unit_bytes(&self) -> u64 {
        self.tenant.far.unit_bytes.load(Relaxed)
    }
    fn note_unit(&self, bytes: u64) {
        self.tenant.far.stats.unit_bytes.store(bytes, Relaxed);
    }
    fn note_read(&self, ns: u64) {
        self.tenant.far.stats.read_ns.record(ns);
    }
    fn note_ahead(&self, ns: u64) {
        self.tenant.far.stats.ahead_ns.record(ns);
    }
}

impl<'m> FarStore for DiskFar<'_, 'm> {
    type Owner = PoolStore<'m>;
    type Slabs = OurSlabs<'m>;
    fn owner(&self) -> &PoolStore<'m> {
        self.store
    }
    fn slabs(&self) -> OurSlabs<'m> {
        OurSlabs(self.tenant)
    }
    fn book(&self) -> ExtentBook<'_> {
        self.tenant.book()
    }
    fn slabs_used_and_max(&self) -> (u64, u64) {
        let far = self.tenant.far;
        let used = far.slabs_used.load(Relaxed).max(0) as u64;
        (used, far.slabs_max.load(Relaxed).min(SLABS_MAX as u64))
    }
}

/// Most pages prefetched for one request.
const EXPECT_MAX: usize = 16;

/// Prefetches the pages that are beyond the pool, all at once: several pages of an extent with one
/// request, others alone. The first page alone is read anyway.
pub(crate) fn expect(b: &DiskFar<'_, '_>, pages: Range<u64>) {
    let mut before = None;
    for (i, page) in pages.take(EXPECT_MAX).enumerate() {
        let page = page as u32;
        let Some(seen) = b.store.read_state(page) else {
            return;
        };
        if PoolStore::location(seen) != (PageLocation::Far { in_far_tier: true })
            || !b.store.claim(page, seen)
        {
            continue;
        }
        if let Some(place) = b.store.pool.extent_ref(entry_of(page)) {
            if before == Some(place.extent) {
                fetch::fetch(b, place.extent);
            } else if i > 0 {
                fetch::ahead(b, page, place);
            }
            before = Some(place.extent);
        }
        let asked = Seen {
            state: seen.state | ASKED,
            ..seen
        };
        b.store.publish(page, asked, PageOutcome::Unchanged);
    }
}
