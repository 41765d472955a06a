//! Implements the traits of [`canvas_core::far`] for a program: the managed pages, this process's pool, its requests in
//! the far area, and its tenant.

use canvas_core::far::{
    Channel, FarStore, Host, Owner, PageLocation, PageOutcome, Pages, PoolPeer, Request, State,
};
use canvas_core::pager::copies;
use canvas_core::pager::demotion::DemotionScan;
use canvas_core::pager::word::{self, State as At, Word, flag};
use canvas_core::swap::extents::ExtentBook;
use canvas_core::swap::{Chosen, LocalPool};
use canvas_core::vm::ledger::reserves;
use canvas_shm::far::{self, Far};
use canvas_shm::mailbox::{Mailbox, RequestFields, Status};
use canvas_shm::{Counter, far::EXTENT_BYTES};
use canvas_sys::{gate, proc};
use canvas_types::{PageId, SwapEntry};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::far_tier::{
    extents::{OurSlabs, book},
    lanes,
    pool::{Budget, Lz4, Region, pool},
};
use crate::own_memory::areas;
use crate::report;
use crate::runtime::{state, state::PROCESS, time};
use crate::tenant::{
    far_area,
    far_area::{our_mailbox, ring},
    members,
};

state! {
    /// What moves of pages out of the pool remember.
    static MOVES: Moves {
        state: State = State::new(),
        oldest: DemotionScan = DemotionScan::new(),
        /// The next page that may have a copy.
        copies: AtomicU32 = AtomicU32::new(0),
    }
}

/// This process: its pages and its pool.
pub struct Ours;

impl Pages for Ours {
    type Seen = Word;
    #[inline]
    fn read_state(&self, page: u32) -> Option<Word> {
        areas::table().words.get(page as usize).map(word::load)
    }
    #[inline]
    fn entry(seen: Word) -> SwapEntry {
        seen.entry()
    }
    #[inline]
    fn location(seen: Word) -> PageLocation {
        match seen.state() {
            At::Resident => PageLocation::Local,
            At::Far => PageLocation::Far {
                in_far_tier: seen.has(flag::IN_FAR_TIER),
            },
            _ => PageLocation::Other,
        }
    }
    #[inline]
    fn claim(&self, page: u32, seen: Word) -> bool {
        let busy = match seen.state() {
            At::Far => At::Filling,
            At::Resident => At::Evicting,
            _ => return false,
        };
        word::transition(areas::word(PageId(page)), seen, seen.with_state(busy))
    }
    #[inline]
    fn publish(&self, page: u32, seen: Word, outcome: PageOutcome) {
        let next = match outcome {
            // The word of a resident page does not say where its copy lies: the bit has another meaning there.
            PageOutcome::InFarTier | PageOutcome::InPool if seen.state() == At::Resident => seen,
            PageOutcome::Unchanged => seen,
            PageOutcome::InFarTier => seen.set(flag::IN_FAR_TIER),
            PageOutcome::InPool => seen.clear(flag::IN_FAR_TIER),
            PageOutcome::PromotedAhead => seen.clear(flag::IN_FAR_TIER).set(flag::REFERENCED),
            PageOutcome::NoCopy => seen.clear(flag::FAR_COPY),
        };
        word::publish(areas::word(PageId(page)), next);
    }
    fn oldest(&self, look_max: Option<usize>, take: impl FnMut(u32, Word) -> bool) {
        // Pages on a node are not in the pool.
        let on_node = |w: Word| pool().node_of(w.entry()).is_some();
        MOVES
            .oldest
            .scan(&areas::far_pages(), look_max, on_node, take);
    }
    fn with_copies(&self, look_max: usize, take: impl FnMut(u32, Word) -> bool) {
        copies::scan(&MOVES.copies, &areas::table(), look_max, take);
    }
}

impl Host for Ours {
    #[inline]
    fn now_ns(&self) -> u64 {
        time::now_ns()
    }
    fn yield_now() {
        gate::yield_now();
    }
    fn pause(&self, ns: u64) {
        gate::wait(ns);
    }
    #[inline]
    fn count(&self, counter: Counter, n: u64) {
        state::count(counter, n);
    }
    #[inline]
    fn pool_bytes(&self) -> i64 {
        state::seg().pool_bytes.load(Ordering::Relaxed)
    }
    #[inline]
    fn pool_bound_bytes(&self) -> i64 {
        state::seg().pool_bound_of_processes().max(0)
    }
    fn pool_configured_bytes(&self) -> u64 {
        state::seg().config.pool_bytes.load(Ordering::Relaxed)
    }
    fn keeps_far_copies(&self) -> bool {
        reserves(&PROCESS)
    }
    fn ask_for_pool(&self, peer: PoolPeer) -> bool {
        members::ask_for_pool(peer).is_some()
    }
    #[cold]
    fn cannot_write(&self, why: Status) {
        report!(
            "pages cannot be moved beyond the pool ({}); they stay in it",
            match why {
                Status::NoRoom => "there is no room",
                Status::Unreachable => "no copy can be made: donors or disk do not answer",
                Status::Refused => "the agent refuses",
                _ => "the copy is damaged",
            }
        );
    }
}

impl Owner for Ours {
    type Lz = Chosen<Lz4>;
    type Mem = Region;
    type Budget = Budget;
    #[inline]
    fn pool(&self) -> &LocalPool<'_, Chosen<Lz4>, Region, Budget> {
        pool()
    }
    #[inline]
    fn state(&self) -> &State {
        &MOVES.state
    }
}

/// The far area of the tenant, and this process's part of it.
#[derive(Clone, Copy)]
pub struct OurFar(pub &'static Far);

/// The tenant's far memory; `None` without `--far`.
#[inline]
pub fn beyond() -> Option<OurFar> {
    far_area::far().map(OurFar)
}

impl Channel for OurFar {
    #[inline]
    fn mailbox(&self) -> &Mailbox {
        our_mailbox(self.0)
    }
    fn notify_agent(&self) {
        ring(self.0);
    }
    fn read<R>(&self, of: &Request, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> R {
        let at: *const [u8; EXTENT_BYTES] = self.0.buffer(far_area::index(), of.index()).cast();
        // SAFETY: the far area is mapped for the life of the process. There is one `Request` for each place of the
        // mailbox that is claimed and not posted, or ended and not given back; while the caller's lives, neither the
        // agent nor another thread has the buffer.
        on(unsafe { &*at })
    }
    fn fill<R>(&self, of: &mut Request, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R {
        let at: *mut [u8; EXTENT_BYTES] = self.0.buffer(far_area::index(), of.index()).cast();
        // SAFETY: the far area is mapped for the life of the process. There is one `Request` for each place of the
        // mailbox, as for `read`, and the caller's is borrowed mutably: nobody else has the buffer.
        on(unsafe { &mut *at })
    }
    #[inline]
    fn copy_out(&self, of: &Request, offset: usize, out: &mut [u8]) {
        self.0.copy_out(far_area::index(), of.index(), offset, out);
    }
    #[inline]
    fn read_directly(&self, ask: &RequestFields, to: &mut [u8]) -> bool {
        lanes::read(self.0, ask, to)
    }
    fn sleep(&self, word: &AtomicU32, value: u32, ns: u64) {
        proc::futex_wait(word, value, ns);
    }
    fn yield_cpu(&self) {
        gate::give_way();
    }
    #[inline]
    fn wait_ns_max(&self) -> u64 {
        self.0.wait_ms_max.load(Ordering::Relaxed) * 1_000_000
    }
    #[inline]
    fn demote_percent(&self) -> u64 {
        self.0.spill_percent.load(Ordering::Relaxed)
    }
    #[inline]
    fn unit_bytes(&self) -> u64 {
        self.0.unit_bytes.load(Ordering::Relaxed)
    }
    fn note_unit(&self, bytes: u64) {
        self.0.stats.unit_bytes.store(bytes, Ordering::Relaxed);
    }
    fn note_read(&self, ns: u64) {
        self.0.stats.read_ns.record(ns);
    }
    fn note_ahead(&self, ns: u64) {
        self.0.stats.ahead_ns.record(ns);
    }
}

impl FarStore for OurFar {
    type Owner = Ours;
    type Slabs = OurSlabs;
    #[inline]
    fn owner(&self) -> &Ours {
        &Ours
    }
    #[inline]
    fn slabs(&self) -> OurSlabs {
        OurSlabs(self.0)
    }
    #[inline]
    fn book(&self) -> ExtentBook<'_> {
        book()
    }
    fn slabs_used_and_max(&self) -> (u64, u64) {
        let used = self.0.slabs_used.load(Ordering::Relaxed).max(0) as u64;
        let max = self.0.slabs_max.load(Ordering::Relaxed);
        (used, max.min(far::SLABS_MAX as u64))
    }
}
