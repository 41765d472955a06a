//! What happens to each page of an extent when its request has ended: it is demoted from the pool, or promoted into it.
//!
//! A line of the extent has the page's number and its entry at the time of packing. Both may belong to another page by
//! now, so a page is moved only while it has that entry, and its copy only if it is that one.

use crate::swap::classes::HEADER_BYTES;
use crate::swap::extent::Line;
use crate::swap::hash::Hash;

use crate::far::job::SinglePageRead;
use crate::far::traits::{FarStore, Host, Owner, PageLocation, PageOutcome, Pages, Request};

/// Claims the page of a line while it is far and has the line's entry.
fn with_page<O: Owner>(owner: &O, line: &Line, on: impl FnOnce() -> Option<PageOutcome>) -> bool {
    let Some(seen) = owner.read_state(line.page) else {
        return false;
    };
    if !matches!(O::location(seen), PageLocation::Far { .. })
        || O::entry(seen) != line.entry
        || !owner.claim(line.page, seen)
    {
        return false;
    }
    let moved = on();
    owner.publish(line.page, seen, moved.unwrap_or(PageOutcome::Unchanged));
    moved.is_some()
}

/// The extent is durable: demotes the page's copy, if it is the one that was written.
pub(crate) fn demote(far: &impl FarStore, line: &Line, extent: u32, stored: &[u8]) -> bool {
    let Some(hash) = stored.first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let hash: &Hash = hash;
    with_page(far.owner(), line, || {
        far.book().hold(extent);
        if far
            .owner()
            .pool()
            .demote(line.entry, hash, line.place(extent))
        {
            return Some(PageOutcome::InFarTier);
        }
        far.unhold(extent);
        None
    })
}

/// A neighbour arrived with an extent: promotes it into the pool unchanged.
pub(crate) fn promote(far: &impl FarStore, line: &Line, extent: u32, stored: &[u8]) -> bool {
    let owner = far.owner();
    with_page(owner, line, || {
        let keeps = owner.keeps_far_copies();
        let place = line.place(extent);
        let promoted = owner.pool().promote(line.entry, place, stored, keeps);
        promoted.then_some(PageOutcome::PromotedAhead)
    })
}

/// A page arrived alone ahead of need: promotes it into the pool unchanged.
pub(crate) fn promote_alone<F: FarStore>(
    far: &F,
    request: &Request,
    extent: u32,
    alone: SinglePageRead,
) -> bool {
    let owner = far.owner();
    let place = alone.place(extent);
    let Some(seen) = owner.read_state(alone.page) else {
        return false;
    };
    let is_in_far_tier = F::Owner::location(seen) == (PageLocation::Far { in_far_tier: true });
    if !is_in_far_tier || !owner.claim(alone.page, seen) {
        return false;
    }
    // Where the entry names another place by now, nothing is changed.
    let promoted = far.read(request, |bytes| {
        let from = place.offset as usize;
        let record = bytes.get(from..from + HEADER_BYTES + usize::from(place.len));
        record.is_some_and(|stored| {
            let (entry, keeps) = (F::Owner::entry(seen), owner.keeps_far_copies());
            owner.pool().promote(entry, place, stored, keeps)
        })
    });
    let outcome = match promoted {
        true => PageOutcome::PromotedAhead,
        false => PageOutcome::Unchanged,
    };
    owner.publish(alone.page, seen, outcome);
    promoted
}

/// Removes a page from an extent that is being emptied: a far page is promoted into the pool; a local one gives up this
/// copy, and is written again when it is evicted.
pub(crate) fn vacate<F: FarStore>(
    far: &F,
    line: &Line,
    extent: u32,
    stored: &[u8],
    past_bound: bool,
) -> bool {
    let (owner, place) = (far.owner(), line.place(extent));
    let Some(seen) = owner.read_state(line.page) else {
        return false;
    };
    let is_far = match F::Owner::location(seen) {
        PageLocation::Far { .. } => true,
        PageLocation::Local => false,
        PageLocation::Other => return false,
    };
    if F::Owner::entry(seen) != line.entry || !owner.claim(line.page, seen) {
        return false;
    }
    let pool = owner.pool();
    let (left, outcome) = if is_far || pool.home_ref(line.entry) == Some(place) {
        let left = pool.vacate(line.entry, place, stored, past_bound);
        let outcome = if left && is_far {
            PageOutcome::InPool
        } else {
            PageOutcome::Unchanged
        };
        (left, outcome)
    } else if pool.extent_ref(line.entry) == Some(place) {
        pool.drop_copy(line.entry);
        (true, PageOutcome::NoCopy)
    } else {
        (false, PageOutcome::Unchanged)
    };
    owner.publish(line.page, seen, outcome);
    left
}
