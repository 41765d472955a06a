//! What happens to each page of an extent when its request has ended: it is demoted from the pool, or promoted into it.
//!
//! A line of the extent has the page's number and its entry at the time of packing. Both may belong to another page by
//! now, so a page is moved only while it has that entry, and its copy only if it is that one.

use crate::swap::classes::HEADER_BYTES;
use crate::swap::extent::Line;
use crate::swap::hash::Hash;

use crate::far::job::Alone;
use crate::far::traits::{Becomes, Beyond, Host, Owner, Pages, Request, Whereabouts};

/// Claims the page of a line while it is far and has the line's entry.
fn with_page<O: Owner>(owner: &O, line: &Line, on: impl FnOnce() -> Option<Becomes>) -> bool {
    let Some(seen) = owner.look(line.page) else {
        return false;
    };
    if !matches!(O::whereabouts(seen), Whereabouts::Far { .. })
        || O::entry(seen) != line.entry
        || !owner.claim(line.page, seen)
    {
        return false;
    }
    let moved = on();
    owner.publish(line.page, seen, moved.unwrap_or(Becomes::AsBefore));
    moved.is_some()
}

/// The extent is durable: demotes the page's copy, if it is the one that was written.
pub(crate) fn demote(b: &impl Beyond, line: &Line, extent: u32, stored: &[u8]) -> bool {
    let Some(hash) = stored.first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let hash: &Hash = hash;
    with_page(b.owner(), line, || {
        b.book().hold(extent);
        if b.owner()
            .pool()
            .demote(line.entry, hash, line.place(extent))
        {
            return Some(Becomes::Beyond);
        }
        b.unhold(extent);
        None
    })
}

/// A neighbour arrived with an extent: promotes it into the pool unchanged.
pub(crate) fn promote(b: &impl Beyond, line: &Line, extent: u32, stored: &[u8]) -> bool {
    let owner = b.owner();
    with_page(owner, line, || {
        let keeps = owner.keeps_places();
        let place = line.place(extent);
        let raised = owner.pool().promote(line.entry, place, stored, keeps);
        raised.then_some(Becomes::CameBack)
    })
}

/// A page arrived alone ahead of need: promotes it into the pool unchanged.
pub(crate) fn promote_alone<B: Beyond>(
    b: &B,
    request: &Request,
    extent: u32,
    alone: Alone,
) -> bool {
    let owner = b.owner();
    let place = alone.place(extent);
    let Some(seen) = owner.look(alone.page) else {
        return false;
    };
    let is_beyond = B::Owner::whereabouts(seen) == (Whereabouts::Far { beyond: true });
    if !is_beyond || !owner.claim(alone.page, seen) {
        return false;
    }
    // Where the entry names another place by now, nothing is changed.
    let raised = b.read(request, |bytes| {
        let from = place.offset as usize;
        let record = bytes.get(from..from + HEADER_BYTES + usize::from(place.len));
        record.is_some_and(|stored| {
            let (entry, keeps) = (B::Owner::entry(seen), owner.keeps_places());
            owner.pool().promote(entry, place, stored, keeps)
        })
    });
    let becomes = match raised {
        true => Becomes::CameBack,
        false => Becomes::AsBefore,
    };
    owner.publish(alone.page, seen, becomes);
    raised
}

/// Removes a page from an extent that is being emptied: a far page is promoted into the pool; a local one gives up this
/// copy, and is written again when it is evicted.
pub(crate) fn vacate<B: Beyond>(
    b: &B,
    line: &Line,
    extent: u32,
    stored: &[u8],
    past_bound: bool,
) -> bool {
    let (owner, place) = (b.owner(), line.place(extent));
    let Some(seen) = owner.look(line.page) else {
        return false;
    };
    let far = match B::Owner::whereabouts(seen) {
        Whereabouts::Far { .. } => true,
        Whereabouts::Local => false,
        Whereabouts::Other => return false,
    };
    if B::Owner::entry(seen) != line.entry || !owner.claim(line.page, seen) {
        return false;
    }
    let pool = owner.pool();
    let (left, becomes) = if far || pool.home_place(line.entry) == Some(place) {
        let left = pool.vacate(line.entry, place, stored, past_bound);
        let becomes = if left && far {
            Becomes::InPool
        } else {
            Becomes::AsBefore
        };
        (left, becomes)
    } else if pool.deep_place(line.entry) == Some(place) {
        pool.drop_copy(line.entry);
        (true, Becomes::NoCopy)
    } else {
        (false, Becomes::AsBefore)
    };
    owner.publish(line.page, seen, becomes);
    left
}
