//! Room in the pool and in far memory.

use crate::swap::extent::EXTENT_BYTES;
use canvas_shm::mailbox::Status;

use crate::far::traits::{FarStore, Host, Owner};

/// Whether the pool exceeds its limit, because that was lowered.
pub(crate) fn is_over(owner: &impl Owner) -> bool {
    owner.pool_bytes() > owner.pool_bound_bytes()
}

/// Bytes that the pool should free; not positive when it has room.
pub(crate) fn excess_bytes(far: &impl FarStore) -> i64 {
    let owner = far.owner();
    let percent = far.demote_percent().min(100) as i64;
    let bound = owner.pool_bound_bytes();
    let mark = bound / 100 * percent;
    let used = owner.pool_bytes();
    if used <= mark {
        return 0;
    }
    let stats = owner.pool().stats();
    // Room in our own slabs is enough, unless the limit itself was lowered, which needs whole slabs.
    let free_within = stats.charged_bytes - stats.slot_bytes;
    let writing = owner.state().writes.bytes();
    let over = (used - bound).min(stats.charged_bytes);
    (used - free_within - mark).max(over) - writing
}

/// What the pool's limit leaves, including room in our own slabs.
pub(crate) fn pool_room_bytes(owner: &impl Owner) -> i64 {
    let stats = owner.pool().stats();
    owner.pool_bound_bytes() - owner.pool_bytes() + stats.charged_bytes - stats.slot_bytes
}

/// Whether the last write succeeded. While writes fail, resident pages release their far space at once.
pub(crate) fn takes_more(owner: &impl Owner) -> bool {
    !owner.state().writes.have_failed()
}

/// Whether far memory has stopped answering.
pub fn is_stalled(owner: &impl Owner) -> bool {
    owner.state().writes.is_stalled()
}

/// Whether writes to far memory fail because not enough donors or no disk answer. Reads from there still work, so pages
/// with a current far copy are evicted without a write, and no page may lose its copy.
pub fn is_closed(owner: &impl Owner) -> bool {
    owner.state().writes.is_closed()
}

/// Whether that is so, and may end while a thread waits that has no alternative.
pub fn may_open(far: &impl FarStore) -> bool {
    let owner = far.owner();
    let writes = &owner.state().writes;
    writes.is_newly_closed(owner.now_ns(), far.wait_ns_max())
}

/// Pauses writes.
pub(crate) fn pause_writes(owner: &impl Owner, why: Status) {
    if owner.state().writes.pause(why, owner.now_ns()) {
        owner.cannot_write(why);
    }
}

/// Far memory in use and its limit, in bytes: slabs are counted whole.
pub fn used_and_limit(far: &impl FarStore) -> (u64, u64) {
    let (used, max) = far.slabs_used_and_max();
    let slab_bytes = u64::from(far.book().slab_extents) * EXTENT_BYTES as u64;
    if far.owner().state().writes.have_failed() {
        // Whatever the limit says.
        return (used * slab_bytes, used * slab_bytes);
    }
    (used * slab_bytes, max * slab_bytes)
}

/// Whether the pool has room for neighbours of a page that was read.
pub fn pool_has_room(far: &impl FarStore) -> bool {
    let owner = far.owner();
    let percent = far.demote_percent().saturating_sub(10);
    let mark = owner.pool_bound_bytes() as u64 / 100 * percent;
    owner.pool_bytes() < mark as i64
}

/// In a fork's child: it has no writes of its own under way, and drops the parent's remaining extents.
pub fn after_fork_in_child(owner: &impl Owner) {
    owner.state().writes.forget();
    owner.state().unit.take_rest();
}
