//! Room in the pool, and beyond it: what there is too much, and whether writes find a place.

use canvas_shm::mailbox::Status;
use canvas_swap::extent::EXTENT_BYTES;
use canvas_types::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::resident_copies;
use crate::state::new;
use crate::traits::{Beyond, Host, Owner};
use crate::unit;

/// How writes fare.
pub(crate) struct Room {
    /// No writing before this moment: the last one failed.
    writes_rest_until_ns: AtomicU64,
    /// Since when donors or disk do not answer writes; 0 when they do.
    writes_away_since_ns: AtomicU64,
    /// Bytes of the pool that are being written.
    writing_bytes: AtomicI64,
    /// A write was waited for in vain. Until one ends nobody waits for another: each fault would.
    stalled: AtomicBool,
    /// The last write found no room: no slab, a full disk, no answer.
    no_room: AtomicBool,
    /// Counts writes that let pages leave the pool.
    made: AtomicU32,
    /// When it was last said that pages cannot leave the pool.
    told_ns: AtomicU64,
}

/// Pause after a write that failed.
const REST_NS: u64 = 200_000_000;
/// Its reason is told again after so long at the earliest.
const TELL_NS: u64 = 10_000_000_000;

impl Room {
    new!(
        "Nothing is being written.",
        Room {
            writes_rest_until_ns: AtomicU64::new(0),
            writes_away_since_ns: AtomicU64::new(0),
            writing_bytes: AtomicI64::new(0),
            stalled: AtomicBool::new(false),
            no_room: AtomicBool::new(false),
            made: AtomicU32::new(0),
            told_ns: AtomicU64::new(0),
        }
    );

    /// Has far memory stopped answering?
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
    /// Nobody is to wait for a write until one has ended, if there `is` one to wait for.
    pub(crate) fn stall(&self, is: bool) {
        self.stalled.store(is, Ordering::Relaxed);
    }
    /// Did the last write find no place?
    pub(crate) fn has_no_place(&self) -> bool {
        self.no_room.load(Ordering::Relaxed)
    }
    /// A write found none.
    pub(crate) fn note_no_place(&self) {
        self.no_room.store(true, Ordering::Relaxed);
    }
    /// Are there no writes for a while, as the last one failed?
    pub(crate) fn writes_rest(&self, now_ns: u64) -> bool {
        self.writes_rest_until_ns.load(Ordering::Relaxed) > now_ns
    }
    /// Did the last write fail because not enough donors, or no disk, answered? Until one succeeds, what lies only here
    /// stays here.
    pub(crate) fn is_closed(&self) -> bool {
        self.writes_away_since_ns.load(Ordering::Relaxed) != 0
    }
    /// Is it so, and not for long yet?
    pub(crate) fn is_newly_closed(&self, now_ns: u64, wait_ns: u64) -> bool {
        let since = self.writes_away_since_ns.load(Ordering::Relaxed);
        since != 0 && now_ns.saturating_sub(since) < wait_ns
    }
    /// Is that so because donors or disk do not answer, and not for long yet?
    pub(crate) fn waits_for_an_answer(&self, now_ns: u64, wait_ns: u64) -> bool {
        self.is_newly_closed(now_ns, wait_ns) && self.writes_rest(now_ns)
    }
    /// Bytes of the pool that are being written.
    pub(crate) fn writing_bytes(&self) -> i64 {
        self.writing_bytes.load(Ordering::Relaxed)
    }
    /// So many bytes more of it.
    pub(crate) fn writing(&self, bytes: i64) {
        self.writing_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Counts writes that let pages leave the pool.
    pub(crate) fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }
    /// Pages have left the pool.
    pub(crate) fn note_made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }
    /// A write has ended: `ok` when it is durable, and `done` of its pages have left the pool.
    pub(crate) fn note_written(&self, ok: bool, done: u64) {
        self.stall(false);
        if ok {
            self.writes_away_since_ns.store(0, Ordering::Relaxed);
            self.no_room.store(false, Ordering::Relaxed);
        }
        if done > 0 {
            self.note_made();
        }
    }
    /// No writes for a while. True when it should be said.
    fn rest(&self, why: Status, now: u64) -> bool {
        let away = match (why, self.writes_away_since_ns.load(Ordering::Relaxed)) {
            (Status::Unreachable, 0) => now,
            (Status::Unreachable, since) => since,
            _ => 0,
        };
        self.writes_away_since_ns.store(away, Ordering::Relaxed);
        let until = now + REST_NS;
        self.writes_rest_until_ns.store(until, Ordering::Relaxed);
        self.note_no_place();
        let told = self.told_ns.load(Ordering::Relaxed);
        // Of several threads, one says it.
        (told == 0 || now > told + TELL_NS)
            && self
                .told_ns
                .compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Does the pool hold more than its bound, which was lowered?
pub(crate) fn is_over(owner: &impl Owner) -> bool {
    owner.pool_bytes() > owner.pool_bound_bytes()
}

/// Bytes that the pool should get rid of; not positive when it has room.
pub(crate) fn excess_bytes(b: &impl Beyond) -> i64 {
    let owner = b.owner();
    let percent = b.spill_percent().min(100) as i64;
    let bound = owner.pool_bound_bytes();
    let mark = bound / 100 * percent;
    let used = owner.pool_bytes();
    if used <= mark {
        return 0;
    }
    let stats = owner.pool().stats();
    // Room in our own slabs will do, unless the bound itself was lowered: that is about whole slabs.
    let free_within = stats.charged_bytes - stats.slot_bytes;
    let writing = owner.state().room.writing_bytes();
    let over = (used - bound).min(stats.charged_bytes);
    (used - free_within - mark).max(over) - writing
}

/// What the pool's bound leaves, room in our own slabs included.
pub(crate) fn pool_room_bytes(owner: &impl Owner) -> i64 {
    let stats = owner.pool().stats();
    owner.pool_bound_bytes() - owner.pool_bytes() + stats.charged_bytes - stats.slot_bytes
}

/// Did the last write find a place? While none does, resident pages give up all that they have there, at once.
pub(crate) fn takes_more(owner: &impl Owner) -> bool {
    !owner.state().room.has_no_place()
}

/// Has far memory stopped answering?
pub fn is_stalled(owner: &impl Owner) -> bool {
    owner.state().room.is_stalled()
}

/// Can nothing be written beyond the pool, as not enough donors or no disk answer? What lies there can be read all the
/// same, so pages that came from there leave without a write, and no page is to lose its copy.
pub fn is_closed(owner: &impl Owner) -> bool {
    owner.state().room.is_closed()
}

/// Is it so, and may it end while a thread waits that has no other way?
pub fn may_open(b: &impl Beyond) -> bool {
    let owner = b.owner();
    let room = &owner.state().room;
    room.is_newly_closed(owner.now_ns(), b.wait_ns_max())
}

/// No writes for a while.
pub(crate) fn rest(owner: &impl Owner, why: Status) {
    if owner.state().room.rest(why, owner.now_ns()) {
        owner.cannot_write(why);
    }
}

/// What is used beyond the pool and what may be, in bytes: slabs are counted whole.
pub fn used_and_limit(b: &impl Beyond) -> (u64, u64) {
    let (used, max) = b.slabs_used_and_max();
    let slab_bytes = u64::from(b.book().slab_extents) * EXTENT_BYTES as u64;
    if b.owner().state().room.has_no_place() {
        // Whatever the bound says.
        return (used * slab_bytes, used * slab_bytes);
    }
    (used * slab_bytes, max * slab_bytes)
}

/// Has the pool room for neighbours of a page that was read?
pub fn pool_has_room(b: &impl Beyond) -> bool {
    let owner = b.owner();
    let percent = b.spill_percent().saturating_sub(10);
    let mark = owner.pool_bound_bytes() as u64 / 100 * percent;
    owner.pool_bytes() < mark as i64
}

/// The same where memory is free, and what comes into the pool soon leaves it for local memory: room within our
/// own slabs counts, and so does what copies of resident pages give up.
pub fn pool_makes_way(b: &impl Beyond) -> bool {
    const BYTES: usize = 2 * EXTENT_BYTES;
    let owner = b.owner();
    let percent = b.spill_percent().saturating_sub(10) as i64;
    let left = pool_room_bytes(owner) - owner.pool_bound_bytes() / 100 * (100 - percent);
    left > 0 || resident_copies::demote(owner, BYTES) || resident_copies::give_up(owner, BYTES)
}

/// In a fork's child: nothing of its own is being written.
pub fn after_fork_in_child(owner: &impl Owner) {
    let room = &owner.state().room;
    room.writing_bytes.store(0, Ordering::Relaxed);
    room.stall(false);
    unit::forget(owner);
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_rests_and_a_good_one_ends_that() {
        let room = Room::new();
        assert!(!room.writes_rest(5) && !room.has_no_place());
        assert!(room.rest(Status::NoRoom, 1_000), "it is said once");
        assert!(!room.rest(Status::NoRoom, 2_000), "and not again soon");
        assert!(room.has_no_place() && room.writes_rest(2_000 + REST_NS - 1));
        assert!(!room.writes_rest(2_000 + REST_NS));
        assert!(
            !room.waits_for_an_answer(3_000, u64::MAX),
            "no answer will come"
        );
        assert!(room.rest(Status::NoRoom, 2_000 + TELL_NS), "after a while");
        room.note_written(true, 0);
        assert!(!room.has_no_place());
        assert_eq!(room.made(), 0, "its pages were all changed meanwhile");
        room.note_written(true, 3);
        assert_eq!(room.made(), 1);
    }

    #[test]
    fn donors_that_are_away_are_waited_for_since_the_first_that_was() {
        let room = Room::new();
        room.rest(Status::Unreachable, 1_000);
        room.rest(Status::Unreachable, 1_000 + REST_NS);
        let now = 1_001 + REST_NS;
        assert!(room.waits_for_an_answer(now, REST_NS + 2));
        assert!(
            !room.waits_for_an_answer(now, REST_NS),
            "waited long enough"
        );
        room.stall(true);
        assert!(room.is_stalled());
        room.note_written(false, 0);
        assert!(!room.is_stalled() && room.has_no_place());
        room.rest(Status::NoRoom, now);
        assert!(!room.waits_for_an_answer(now, u64::MAX));
    }
}
