//! The simulated pool, and far memory beyond it: copies move between the two, are on their way, do not answer, and can be
//! damaged.

use std::collections::{BTreeMap, BTreeSet};

use canvas_core::far::fetch::{Lost, Stored};
use canvas_core::pager::word::{self, State as At, flag};
use canvas_core::swap::{EntryFrom, Kind, LoadError, Outcome, Scratch, StoreError};
use canvas_core::vm::Store;
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, PageId, SwapEntry};

use super::{Sim, number, page_of};

/// Pages of an extent.
const EXTENT: u32 = 4;

#[derive(Clone, Copy)]
struct Copy {
    number: u64,
    pooled: bool,
    beyond: bool,
    damaged: bool,
}

/// The far copies, by entry.
#[derive(Default)]
pub struct Copies {
    pages: BTreeMap<u32, Copy>,
    pub live: BTreeSet<u32>,
    next: u32,
    /// Extents that were requested.
    on_their_way: BTreeSet<u32>,
}

fn place_of(entry: SwapEntry) -> ExtentRef {
    ExtentRef {
        extent: entry.0 / EXTENT,
        offset: entry.0 % EXTENT * 16,
        len: 16,
    }
}

impl Copies {
    /// What the copy of an entry says.
    pub fn value(&self, entry: SwapEntry) -> Option<u64> {
        self.pages.get(&entry.0).map(|copy| copy.number)
    }
    fn pooled(&self) -> usize {
        self.pages.values().filter(|copy| copy.pooled).count()
    }
    fn of_extent(&mut self, extent: u32) -> impl Iterator<Item = (u32, &mut Copy)> {
        let range = extent * EXTENT..(extent + 1) * EXTENT;
        self.pages
            .range_mut(range)
            .map(|(entry, copy)| (*entry, copy))
    }
}

impl Sim {
    /// Demotes pooled copies of far pages beyond the pool, `most` at most; returns how many.
    pub fn demote(&self, first: u32, most: usize) -> usize {
        let (pages, mut done) = (self.plan.pages as u32, 0);
        for page in (0..pages).map(|i| (first + i) % pages) {
            if done >= most {
                break;
            }
            let w = &self.words[page as usize];
            let cur = word::load(w);
            let is_far = cur.state() == At::Far && cur.entry().is_some() && !cur.has(flag::STUCK);
            if !is_far || !word::transition(w, cur, cur.with_state(At::Filling)) {
                continue;
            }
            let mut copies = self.copies.lock().unwrap();
            let copy = copies
                .pages
                .get_mut(&cur.entry().0)
                .expect("a far page has a copy");
            if copy.pooled {
                (copy.pooled, copy.beyond) = (false, true);
                done += 1;
                self.saw("demoted");
            }
            drop(copies);
            word::publish(w, cur.set(flag::IN_FAR_TIER));
        }
        done
    }

    /// Damages the stored copy of a page, if it has one.
    pub fn damage(&self, page: u32) {
        let entry = word::load(&self.words[page as usize]);
        let is_far = entry.state() == At::Far;
        if let Some(copy) = self.copies.lock().unwrap().pages.get_mut(&entry.entry().0)
            && is_far
        {
            copy.damaged = true;
        }
    }

    /// What was requested arrives in the pool, or does not.
    fn arrive(&self, extent: Option<u32>) {
        let comes = !self.fails("nothing arrived");
        let mut copies = self.copies.lock().unwrap();
        let arrived: Vec<u32> = match extent {
            Some(extent) => copies.on_their_way.take(&extent).into_iter().collect(),
            None => std::mem::take(&mut copies.on_their_way)
                .into_iter()
                .collect(),
        };
        for extent in arrived.into_iter().filter(|_| comes) {
            for (_, copy) in copies.of_extent(extent).filter(|(_, copy)| copy.beyond) {
                copy.pooled = true;
                self.saw("promoted");
            }
        }
    }
}

impl Store for Sim {
    fn load(&self, entry: SwapEntry, page: &mut PageBuf, _: &mut Scratch) -> Result<(), LoadError> {
        if !entry.is_some() {
            *page = [0; PAGE_SIZE];
            return Ok(());
        }
        let copies = self.copies.lock().unwrap();
        let copy = copies.pages.get(&entry.0).expect("a far page has a copy");
        if !copy.pooled {
            return Err(LoadError::InFarTier(place_of(entry)));
        }
        if copy.damaged {
            return Err(LoadError::Verify);
        }
        *page = page_of(copy.number);
        Ok(())
    }
    fn store(
        &self,
        entry: SwapEntry,
        far_copy: bool,
        page: &PageBuf,
        _: &mut Scratch,
    ) -> Result<Outcome, StoreError> {
        let n = number(page);
        let mut copies = self.copies.lock().unwrap();
        let outcome = |entry, kind| {
            Ok(Outcome {
                entry,
                kind,
                entry_from: EntryFrom::Nowhere,
            })
        };
        if n == 0 {
            if entry.is_some() {
                copies.pages.remove(&entry.0);
                copies.live.remove(&entry.0);
            }
            return outcome(SwapEntry::NONE, Kind::Zero);
        }
        let is_current = |copy: &Copy| copy.number == n && copy.pooled && !copy.damaged;
        if far_copy && copies.pages.get(&entry.0).is_some_and(is_current) {
            return outcome(entry, Kind::Clean);
        }
        // A copy that is not up to date gives its room.
        let copy_dropped = entry.is_some() && copies.pages.remove(&entry.0).is_some();
        if copies.pooled() >= self.plan.copies {
            self.saw("store refused");
            return Err(StoreError::Full { copy_dropped });
        }
        let entry = match entry.is_some() {
            true => entry,
            false => {
                copies.next += 1;
                let next = copies.next;
                copies.live.insert(next);
                SwapEntry(next)
            }
        };
        let copy = Copy {
            number: n,
            pooled: true,
            beyond: false,
            damaged: false,
        };
        copies.pages.insert(entry.0, copy);
        outcome(entry, Kind::Compressed)
    }
    fn release(&self, entry: SwapEntry) {
        let mut copies = self.copies.lock().unwrap();
        copies.pages.remove(&entry.0);
        assert!(
            copies.live.remove(&entry.0),
            "entry {} is freed twice",
            entry.0
        );
    }
    fn drop_copy(&self, entry: SwapEntry) -> bool {
        entry.is_some() && self.copies.lock().unwrap().pages.remove(&entry.0).is_some()
    }
    fn drop_pooled_copy(&self, entry: SwapEntry) -> bool {
        let mut copies = self.copies.lock().unwrap();
        match copies.pages.get(&entry.0) {
            Some(copy) if !copy.beyond => copies.pages.remove(&entry.0).is_some(),
            _ => false,
        }
    }
    fn extent_ref(&self, entry: SwapEntry) -> Option<ExtentRef> {
        let copies = self.copies.lock().unwrap();
        let copy = copies.pages.get(&entry.0)?;
        (!copy.pooled).then(|| place_of(entry))
    }
    fn demote_home(&self, entry: SwapEntry) {
        if let Some(copy) = self.copies.lock().unwrap().pages.get_mut(&entry.0)
            && copy.beyond
        {
            copy.pooled = false;
        }
    }
    fn trim(&self) {}
    fn make_room(&self) -> bool {
        self.plan.beyond && self.demote(0, 8) > 0
    }
    fn has_far_tier(&self) -> bool {
        self.plan.beyond
    }
    fn is_in_flight(&self, _: PageId, place: ExtentRef) -> bool {
        self.copies
            .lock()
            .unwrap()
            .on_their_way
            .contains(&place.extent)
    }
    fn load_far_tier(
        &self,
        entry: SwapEntry,
        place: ExtentRef,
        page: &mut PageBuf,
        _: &mut Stored,
    ) -> Result<(), Lost> {
        assert_eq!(place, place_of(entry));
        if self.fails("far memory did not answer") {
            return Err(Lost::Unreachable);
        }
        let copies = self.copies.lock().unwrap();
        let copy = copies.pages.get(&entry.0).expect("a far page has a copy");
        assert!(copy.beyond, "entry {} is not beyond the pool", entry.0);
        if copy.damaged {
            return Err(Lost::Damaged);
        }
        *page = page_of(copy.number);
        self.saw("read beyond the pool");
        Ok(())
    }
    fn wait_for_arrival(&self, _: PageId, place: ExtentRef) {
        self.arrive(Some(place.extent));
    }
    fn absorb(&self) {
        self.arrive(None);
    }
    fn keep(&self, entry: SwapEntry, _: ExtentRef, _: &Stored) {
        if let Some(copy) = self.copies.lock().unwrap().pages.get_mut(&entry.0) {
            copy.pooled = true;
        }
    }
    fn fetch(&self, extent: u32) {
        self.copies.lock().unwrap().on_their_way.insert(extent);
    }
    fn read_ahead(&self, _: PageId, place: ExtentRef) -> bool {
        self.fetch(place.extent);
        true
    }
}
