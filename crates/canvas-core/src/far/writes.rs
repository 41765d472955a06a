//! Whether writes to far memory succeed, and how long they pause after one that did not.

use canvas_shm::mailbox::Status;
use canvas_types::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// State of writes.
pub(crate) struct Room {
    /// No writes before this time, because the last one failed.
    writes_rest_until_ns: AtomicU64,
    /// Since when donors or the disk do not answer writes; 0 when they do.
    writes_away_since_ns: AtomicU64,
    /// Bytes of the pool that are being written.
    writing_bytes: AtomicI64,
    /// Waiting for a write timed out. Until one ends no thread waits for another, or each fault would.
    stalled: AtomicBool,
    /// The last write failed: no slab, a full disk, no answer.
    no_room: AtomicBool,
    /// Number of writes after which pages were demoted.
    made: AtomicU32,
    /// When it was last logged that pages cannot be demoted.
    told_ns: AtomicU64,
}

/// Pause after a failed write.
const REST_NS: u64 = 200_000_000;
/// Least time between two log lines about it.
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

    /// Whether far memory has stopped answering.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
    /// Sets whether threads must not wait for writes, until one has ended.
    pub(crate) fn stall(&self, is: bool) {
        self.stalled.store(is, Ordering::Relaxed);
    }
    /// Whether the last write failed.
    pub(crate) fn has_no_place(&self) -> bool {
        self.no_room.load(Ordering::Relaxed)
    }
    /// Records that a write failed.
    pub(crate) fn note_no_place(&self) {
        self.no_room.store(true, Ordering::Relaxed);
    }
    /// Whether writes pause, because the last one failed.
    pub(crate) fn writes_rest(&self, now_ns: u64) -> bool {
        self.writes_rest_until_ns.load(Ordering::Relaxed) > now_ns
    }
    /// Whether the last write failed because not enough donors, or no disk, answered. Until one succeeds, the only copy
    /// of a page stays here.
    pub(crate) fn is_closed(&self) -> bool {
        self.writes_away_since_ns.load(Ordering::Relaxed) != 0
    }
    /// Whether writes have been failing for less than `wait_ns` because nobody answers.
    pub(crate) fn is_newly_closed(&self, now_ns: u64, wait_ns: u64) -> bool {
        let since = self.writes_away_since_ns.load(Ordering::Relaxed);
        since != 0 && now_ns.saturating_sub(since) < wait_ns
    }
    /// Whether writes pause because nobody answers, and have been failing for less than `wait_ns`.
    pub(crate) fn waits_for_an_answer(&self, now_ns: u64, wait_ns: u64) -> bool {
        self.is_newly_closed(now_ns, wait_ns) && self.writes_rest(now_ns)
    }
    /// Bytes of the pool that are being written.
    pub(crate) fn writing_bytes(&self) -> i64 {
        self.writing_bytes.load(Ordering::Relaxed)
    }
    /// Adds to these bytes.
    pub(crate) fn writing(&self, bytes: i64) {
        self.writing_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Number of writes after which pages were demoted.
    pub(crate) fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }
    /// Counts such a write.
    pub(crate) fn note_made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }
    /// A write has ended: `ok` when it is durable; `done` of its pages were demoted.
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
    /// In a fork's child: none is under way.
    pub(crate) fn forget(&self) {
        self.writing_bytes.store(0, Ordering::Relaxed);
        self.stall(false);
    }
    /// Pauses writes. True when it should be logged.
    pub(crate) fn rest(&self, why: Status, now: u64) -> bool {
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
        // Of several threads, one logs it.
        (told == 0 || now > told + TELL_NS)
            && self
                .told_ns
                .compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
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
