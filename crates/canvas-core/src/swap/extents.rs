//! Which far extents one process uses, and which it may reuse.
//!
//! Extents are in slabs. A process *owns* the slabs that it took: it alone writes there. A fork's child *reads* its
//! parent's slabs, and owns nothing. A child may still need an extent that the owner no longer needs, so each extent
//! records the first and the last fork that happened while it was in use ([`Span`]), and each process the forks from
//! which its inherited extents stem. If the two do not overlap, the child never had the extent. An extent without forks
//! in its lifetime belongs to no other process.
//!
//! A reader that is the only process left that refers to a slab becomes its owner.

use canvas_types::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, RawSpin};

/// A range of forks, numbered in the order in which they happened in the tenant, from 1; both ends inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Number of the first fork of the range.
    pub first: u32,
    /// Number of the last fork of the range.
    pub last: u32,
}

impl Span {
    /// All forks: for processes with unknown history.
    pub const ALL: Span = Span {
        first: 0,
        last: u32::MAX,
    };
    /// Whether the two ranges overlap.
    pub fn meets(self, other: Span) -> bool {
        self.first <= other.last && other.first <= self.last
    }
    /// Decodes [`Span::raw`]; `None` for 0.
    pub fn of(raw: u64) -> Option<Span> {
        (raw != 0).then_some(Span {
            first: (raw >> 32) as u32,
            last: raw as u32,
        })
    }
    /// Encodes it as one word.
    pub fn raw(self) -> u64 {
        u64::from(self.first) << 32 | u64::from(self.last)
    }
    /// The child's range, from the parent's: what the parent inherited stems from the earlier forks, and all of it goes
    /// through this one.
    pub fn of_child(parent: Option<Span>, fork: u32) -> Span {
        Span {
            first: parent.map_or(fork, |p| p.first),
            last: fork,
        }
    }
}

/// The tenant's slabs, as one process sees them.
pub trait Slabs {
    /// One past the highest slab that may be this process's.
    fn high(&self) -> u32;
    /// Takes a free slab; `None` at the tenant's limit.
    fn take(&self) -> Option<u32>;
    /// Ends this process's reference to the slab.
    fn give_up(&self, slab: u32);
    /// Calls `on` for each other process that refers to the slab. False when there may be more of them in a moment,
    /// because a child is on its way.
    fn others(&self, slab: u32, on: &mut dyn FnMut(Span)) -> bool;
}

/// This process's role for a slab: the module's documentation describes them.
mod role {
    pub const NONE: u32 = 0;
    pub const READER: u32 = 1;
    pub const OWNER: u32 = 2;
}

/// The book's arrays, all zero at first.
#[derive(Clone, Copy)]
pub struct BookArrays<'a> {
    /// Number of reasons to keep each extent.
    pub live: &'a [AtomicU8],
    /// Pages with which each extent was written; 0 until it is durable.
    pub written: &'a [AtomicU8],
    /// Forks in each extent's lifetime.
    pub spans: &'a [AtomicU64],
    /// Extents in use, by slab.
    pub slab_live: &'a [AtomicU32],
    /// This process's role, by slab.
    pub roles: &'a [AtomicU32],
}

/// The book's other state.
pub struct BookState {
    /// Serialises taking extents and giving up slabs.
    pub(crate) taking: RawSpin,
    /// Where extents are taken.
    pub(crate) search: Search,
    /// The slab being emptied so that it can be given up ([`crate::swap::compaction`]), + 1.
    pub(crate) emptied: AtomicU32,
}

/// Where extents are taken.
pub(crate) struct Search {
    /// The slab from which extents are taken, + 1.
    pub(crate) current: AtomicU32,
    /// Where the search in it continues.
    next: AtomicU32,
    /// Where the search for a slab with room continues.
    slab: AtomicU32,
}

impl Search {
    const fn new() -> Search {
        Search {
            current: AtomicU32::new(0),
            next: AtomicU32::new(0),
            slab: AtomicU32::new(0),
        }
    }
}

impl BookState {
    /// No extents taken.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> BookState {
        BookState {
            taking: RawSpin::new(),
            search: Search::new(),
            emptied: AtomicU32::new(0),
        }
    }
}

/// Most other processes of a slab that one check distinguishes; more of them count as one.
const OTHERS_MAX: usize = 32;
/// Slabs with room that one search visits.
const SLABS_TRIED_MAX: usize = 16;

/// Which other processes may know extents of a slab.
pub(crate) struct Others {
    spans: [Span; OTHERS_MAX],
    n: usize,
    all_known: bool,
}

impl Others {
    fn see(slabs: &impl Slabs, slab: u32) -> Others {
        let (mut spans, mut n) = ([Span::ALL; OTHERS_MAX], 0);
        let all_known = slabs.others(slab, &mut |s| {
            if n < OTHERS_MAX {
                spans[n] = s;
                n += 1;
            } else {
                let last = &mut spans[OTHERS_MAX - 1];
                last.first = last.first.min(s.first);
                last.last = last.last.max(s.last);
            }
        });
        Others {
            spans,
            n,
            all_known,
        }
    }
    pub(crate) fn nobody(&self) -> bool {
        self.all_known && self.n == 0
    }
    fn may_know(&self, lived: Option<Span>) -> bool {
        lived.is_some_and(|l| !self.all_known || self.spans[..self.n].iter().any(|s| s.meets(l)))
    }
}

/// The book of one process. Several threads may call it at once, unless noted otherwise.
#[derive(Clone, Copy)]
pub struct ExtentBook<'a> {
    /// Arrays by extent and by slab, in memory of the process.
    pub arrays: BookArrays<'a>,
    /// Counters and the lock.
    pub state: &'a BookState,
    /// Extents of a slab.
    pub slab_extents: u32,
    /// Called while waiting long for the lock.
    pub yield_now: fn(),
}

impl ExtentBook<'_> {
    /// Adds a reason to keep the extent: an entry that names it, a write or a fetch. There must be one already.
    pub fn hold(&self, extent: u32) {
        let before = self.arrays.live[extent as usize].fetch_add(1, Ordering::AcqRel);
        debug_assert!(before != 0, "an extent is held first by whoever takes it");
    }

    /// As [`ExtentBook::hold`]; false when there is no reason yet.
    pub(crate) fn hold_if_kept(&self, extent: u32) -> bool {
        let live = &self.arrays.live[extent as usize];
        let more = |n: u8| if n == 0 { None } else { n.checked_add(1) };
        live.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .is_ok()
    }

    /// As [`ExtentBook::hold`]; false when there is no reason yet, or the extent is not durable, because it is being
    /// written or was reused.
    pub fn hold_if_durable(&self, extent: u32, slabs: &impl Slabs) -> bool {
        let is_durable = || self.pages_written(extent) > 0;
        if !is_durable() || !self.hold_if_kept(extent) {
            return false;
        }
        // It is held now, so it stays the same extent.
        if !is_durable() {
            self.unhold(extent, slabs);
            return false;
        }
        true
    }

    /// Pages with which the extent was written; 0 until it is durable.
    pub fn pages_written(&self, extent: u32) -> u32 {
        self.arrays.written[extent as usize]
            .load(Ordering::Acquire)
            .into()
    }

    /// Records that the extent, which the caller holds, is durable, with `pages` pages.
    pub fn written(&self, extent: u32, pages: u64) {
        let pages = pages.min(u64::from(u8::MAX)) as u8;
        self.arrays.written[extent as usize].store(pages, Ordering::Release);
    }

    /// Extents of the slab in use.
    pub(crate) fn extents_kept(&self, slab: u32) -> u32 {
        self.arrays.slab_live[slab as usize].load(Ordering::Acquire)
    }

    /// Extents of this process's slabs, and how many of them are free.
    pub fn room(&self, high: u32) -> (u64, u64) {
        let (mut all, mut free) = (0, 0);
        self.each_slab(high, |slab| {
            let kept = self.extents_kept(slab);
            all += u64::from(self.slab_extents);
            free += u64::from(self.slab_extents.saturating_sub(kept));
        });
        (all, free)
    }

    /// Removes a reason. The last one frees the extent, and with a slab's last extent the slab is given up, unless
    /// extents are taken from it.
    pub fn unhold(&self, extent: u32, slabs: &impl Slabs) {
        let a = &self.arrays;
        if a.live[extent as usize].fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let slab = extent / self.slab_extents;
        if a.slab_live[slab as usize].fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(_held) = self.state.taking.try_lock()
        {
            // If the lock is taken, its holder may be about to use the slab, and otherwise finds it empty later.
            self.drop_if_empty(slab, slabs);
        }
    }

    /// The caller holds the lock.
    pub(crate) fn drop_if_empty(&self, slab: u32, slabs: &impl Slabs) {
        let a = &self.arrays;
        if self.state.search.current.load(Ordering::Relaxed) != slab + 1
            && self.extents_kept(slab) == 0
            && a.roles[slab as usize].swap(role::NONE, Ordering::AcqRel) != role::NONE
        {
            self.end_emptying(slab);
            slabs.give_up(slab);
        }
    }

    /// Takes a free extent, held once; `None` when there is none and no slab is available.
    pub fn take(&self, slabs: &impl Slabs) -> Option<u32> {
        let _held = self.state.taking.lock(self.yield_now);
        let current = &self.state.search.current;
        let before = current.load(Ordering::Relaxed);
        let got = self.find(slabs);
        if before != 0 && current.load(Ordering::Relaxed) != before {
            self.drop_if_empty(before - 1, slabs);
        }
        got
    }

    fn find(&self, slabs: &impl Slabs) -> Option<u32> {
        let search = &self.state.search;
        let current = search.current.load(Ordering::Relaxed);
        if current != 0 {
            let from = search.next.load(Ordering::Relaxed);
            if let Some(e) = self.find_in(search, current - 1, from, slabs) {
                return Some(e);
            }
        }
        // A slab that is an eighth free is worth going back to; a fuller one only when there is no fresh slab.
        if let Some(e) = self.find_again(self.slab_extents / 8, slabs) {
            return Some(e);
        }
        if let Some(slab) = slabs.take() {
            self.own(slab);
            return self.find_in(search, slab, 0, slabs);
        }
        self.find_again(1, slabs).or_else(|| {
            // Only the slab being emptied has room.
            self.end_emptying(self.emptied()?);
            self.find_again(1, slabs)
        })
    }

    /// Searches this process's slabs with at least `free_min` free extents.
    fn find_again(&self, free_min: u32, slabs: &impl Slabs) -> Option<u32> {
        let a = &self.arrays;
        let search = &self.state.search;
        let high = slabs.high();
        let from = search.slab.load(Ordering::Relaxed).min(high);
        let with_room = (from..high).chain(0..from).filter(|slab| {
            a.roles[*slab as usize].load(Ordering::Relaxed) != role::NONE
                && self.emptied() != Some(*slab)
                && self.extents_kept(*slab) + free_min.max(1) <= self.slab_extents
        });
        for slab in with_room.take(SLABS_TRIED_MAX) {
            search.slab.store(slab + 1, Ordering::Relaxed);
            if let Some(e) = self.find_in(search, slab, 0, slabs) {
                return Some(e);
            }
        }
        None
    }

    fn own(&self, slab: u32) {
        let first = slab as usize * self.slab_extents as usize;
        for span in &self.arrays.spans[first..][..self.slab_extents as usize] {
            // Untouched memory stays untouched.
            if span.load(Ordering::Relaxed) != 0 {
                span.store(0, Ordering::Relaxed);
            }
        }
        self.arrays.roles[slab as usize].store(role::OWNER, Ordering::Release);
    }

    /// Which other processes may know extents of the slab, if this process may write to it: because it took the slab,
    /// or inherited it and no other process refers to it any more. The caller holds the lock.
    pub(crate) fn writable(&self, slab: u32, slabs: &impl Slabs) -> Option<Others> {
        let role = self.arrays.roles[slab as usize].load(Ordering::Acquire);
        if role == role::NONE {
            return None;
        }
        let others = Others::see(slabs, slab);
        match role {
            role::OWNER => {}
            role::READER if others.nobody() => self.own(slab),
            _ => return None,
        }
        Some(others)
    }

    /// Whether one of the others may need the extent.
    pub(crate) fn known_to(&self, others: &Others, extent: u32) -> bool {
        let lived = self.arrays.spans[extent as usize].load(Ordering::Relaxed);
        others.may_know(Span::of(lived))
    }

    fn find_in(&self, search: &Search, slab: u32, from: u32, slabs: &impl Slabs) -> Option<u32> {
        let (a, n) = (&self.arrays, self.slab_extents);
        if self.extents_kept(slab) >= n {
            return None;
        }
        let others = self.writable(slab, slabs)?;
        let first = slab * n;
        let from = from.min(n);
        let extent = (from..n).chain(0..from).map(|i| first + i).find(|e| {
            a.live[*e as usize].load(Ordering::Acquire) == 0 && !self.known_to(&others, *e)
        })?;
        // Only here does a free extent become used, and the caller holds the lock.
        a.written[extent as usize].store(0, Ordering::Relaxed);
        a.live[extent as usize].store(1, Ordering::Release);
        a.spans[extent as usize].store(0, Ordering::Relaxed);
        a.slab_live[slab as usize].fetch_add(1, Ordering::AcqRel);
        search.current.store(slab + 1, Ordering::Relaxed);
        search.next.store(extent - first + 1, Ordering::Relaxed);
        Some(extent)
    }

    /// In the successor of a process that owned the slab, before any other call: takes it over.
    pub fn take_over(&self, slab: u32) {
        self.own(slab);
    }

    /// Then, for each entry that names an extent: records that the extent is durable, and one more reason to keep it.
    /// False, with nothing changed, when the extent is in no slab of this process, or has too many reasons.
    pub fn take_over_extent(&self, extent: u32) -> bool {
        let a = &self.arrays;
        let slab = (extent / self.slab_extents) as usize;
        let is_ours = |role: &AtomicU32| role.load(Ordering::Relaxed) == role::OWNER;
        if !a.roles.get(slab).is_some_and(is_ours) {
            return false;
        }
        let more = |n: u8| n.checked_add(1);
        let live = &a.live[extent as usize];
        let Ok(before) = live.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more) else {
            return false;
        };
        if before == 0 {
            a.slab_live[slab].fetch_add(1, Ordering::AcqRel);
        }
        self.written(extent, u64::from(before) + 1);
        true
    }

    /// At the end, after all entries: gives up slabs that none of them needs.
    pub fn taken_over(&self, slabs: &impl Slabs) {
        let _held = self.state.taking.lock(self.yield_now);
        self.each_slab(slabs.high(), |slab| self.drop_if_empty(slab, slabs));
    }

    /// Calls `on` with each slab to which this process refers.
    pub fn each_slab(&self, high: u32, mut on: impl FnMut(u32)) {
        for slab in 0..high {
            if self.arrays.roles[slab as usize].load(Ordering::Relaxed) != role::NONE {
                on(slab);
            }
        }
    }

    /// In a process about to fork, with no other call under way: records the fork for all extents in use.
    pub fn forks(&self, fork: u32, high: u32) {
        let a = &self.arrays;
        for slab in 0..high {
            if a.roles[slab as usize].load(Ordering::Relaxed) != role::OWNER
                || self.extents_kept(slab) == 0
            {
                continue;
            }
            let first = (slab * self.slab_extents) as usize;
            let n = self.slab_extents as usize;
            for (live, span) in a.live[first..][..n].iter().zip(&a.spans[first..][..n]) {
                if live.load(Ordering::Relaxed) != 0 {
                    let was = Span::of(span.load(Ordering::Relaxed));
                    span.store(Span::of_child(was, fork).raw(), Ordering::Relaxed);
                }
            }
        }
    }

    /// In the child, with no other call under way, once it refers to its parent's slabs: makes it a reader, which gives
    /// up what it does not need.
    pub fn forked(&self, slabs: &impl Slabs) {
        self.state.search.current.store(0, Ordering::Relaxed);
        self.state.emptied.store(0, Ordering::Relaxed);
        let a = &self.arrays;
        for slab in 0..slabs.high() {
            let r = &a.roles[slab as usize];
            if r.load(Ordering::Relaxed) != role::NONE {
                r.store(role::READER, Ordering::Relaxed);
                self.drop_if_empty(slab, slabs);
            }
        }
    }
}
