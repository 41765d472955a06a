//! Takes over a disk from a killed server.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use canvas_core::swap::Record;
use canvas_core::swap::pool::Adopted;
use canvas_types::SwapEntry;

use crate::far::{BEYOND, KNOWN};
use crate::pool::PoolStore;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Pages stored.
    pub stored: u64,
    /// Of those, pages with damaged copies: reads of them fail.
    pub lost: u64,
}

impl PoolStore<'_> {
    /// Rebuilds everything from the entries; entries outside these ranges were never used. Nobody
    /// may use the disk meanwhile.
    pub(crate) fn take_over(&self, touched: &[Range<u32>]) -> Found {
        self.pool.redo();
        if let Some(tenant) = self.tenant {
            tenant.take_over();
        }
        let all = || touched.iter().cloned().flatten().map(SwapEntry);
        let mut found = Found::default();
        let mut twice = BTreeSet::new();
        for entry in all() {
            let mut adopted = self.pool.adopt(entry);
            if let Adopted::InPool(Some(place)) | Adopted::InFarTier(place) = adopted
                && !self.tenant.is_some_and(|t| t.keep(place))
            {
                self.pool.disown(entry);
                adopted = Adopted::Lost;
            }
            let mut bits = KNOWN;
            match adopted {
                Adopted::Nothing => continue,
                Adopted::SameFilled => {
                    self.counts.same.fetch_add(1, Relaxed);
                }
                Adopted::InPool(_) => {}
                Adopted::InFarTier(_) => bits |= BEYOND,
                Adopted::Lost => found.lost += 1,
                Adopted::Duplicate(slot) => {
                    found.lost += 1;
                    twice.insert(slot);
                }
            }
            found.stored += 1;
            self.states[entry.0 as usize - 1].store(bits, Relaxed);
            self.high.fetch_max(entry.0, Relaxed);
        }
        if !twice.is_empty() {
            for entry in all() {
                let record = self.pool.record(entry);
                if matches!(record, Record::Stored { slot, .. } if twice.contains(&slot)) {
                    let home = self.pool.home_ref(entry);
                    self.pool.disown(entry);
                    if let (Some(tenant), Some(place)) = (self.tenant, home) {
                        tenant.release_extent(place);
                    }
                    found.lost += 1;
                }
            }
        }
        self.pool.finish_recovery();
        if let Some(tenant) = self.tenant {
            tenant.taken_over();
        }
        self.counts.stored.store(found.stored as i64, Relaxed);
        found
    }
}
