//! Whether writes to far memory succeed, and how long they pause after one that did not.

use canvas_shm::mailbox::Status;
use canvas_types::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// State of writes.
pub(crate) struct Writes {
    /// No writes before this time, because the last one failed.
    paused_until_ns: AtomicU64,
    /// Since when donors or the disk do not answer writes; 0 when they do.
    away_since_ns: AtomicU64,
    /// Bytes of the pool that are being written.
    bytes: AtomicI64,
    /// Waiting for a write timed out. Until one ends no thread waits for another, or each fault would.
    stalled: AtomicBool,
    /// The last write failed: no slab, a full disk, no answer.
    failed: AtomicBool,
    /// Number of writes after which pages were demoted.
    made: AtomicU32,
    /// When it was last logged that pages cannot be demoted.
    logged_ns: AtomicU64,
}

/// Pause after a failed write.
const PAUSE_NS: u64 = 200_000_000;
/// Least time between two log lines about it.
const LOG_NS: u64 = 10_000_000_000;

impl Writes {
    /// Nothing is being written.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Writes {
            paused_until_ns: AtomicU64::new(0),
            away_since_ns: AtomicU64::new(0),
            bytes: AtomicI64::new(0),
            stalled: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            made: AtomicU32::new(0),
            logged_ns: AtomicU64::new(0),
        }
    }

    /// Whether far memory has stopped answering.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
    /// Sets whether threads must not wait for writes, until one has ended.
    pub(crate) fn stall(&self, is: bool) {
        self.stalled.store(is, Ordering::Relaxed);
    }
    /// Whether the last write failed.
    pub(crate) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
    /// Records that a write failed.
    pub(crate) fn note_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
    /// Whether writes pause, because the last one failed.
    pub(crate) fn are_paused(&self, now_ns: u64) -> bool {
        self.paused_until_ns.load(Ordering::Relaxed) > now_ns
    }
    /// Whether the last write failed because not enough donors, or no disk, answered. Until one succeeds, the only copy
    /// of a page stays here.
    pub(crate) fn is_closed(&self) -> bool {
        self.away_since_ns.load(Ordering::Relaxed) != 0
    }
    /// Whether writes have been failing for less than `wait_ns` because nobody answers.
    pub(crate) fn is_newly_closed(&self, now_ns: u64, wait_ns: u64) -> bool {
        let since = self.away_since_ns.load(Ordering::Relaxed);
        since != 0 && now_ns.saturating_sub(since) < wait_ns
    }
    /// Bytes of the pool that are being written.
    pub(crate) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }
    /// Adds to these bytes.
    pub(crate) fn add_bytes(&self, bytes: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
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
            self.away_since_ns.store(0, Ordering::Relaxed);
            self.failed.store(false, Ordering::Relaxed);
        }
        if done > 0 {
            self.note_made();
        }
    }
    /// In a fork's child: none is under way.
    pub(crate) fn forget(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.stall(false);
    }
    /// Pauses writes. True when it should be logged.
    pub(crate) fn pause(&self, why: Status, now: u64) -> bool {
        let away = match (why, self.away_since_ns.load(Ordering::Relaxed)) {
            (Status::Unreachable, 0) => now,
            (Status::Unreachable, since) => since,
            _ => 0,
        };
        self.away_since_ns.store(away, Ordering::Relaxed);
        let until = now + PAUSE_NS;
        self.paused_until_ns.store(until, Ordering::Relaxed);
        self.note_failed();
        let logged = self.logged_ns.load(Ordering::Relaxed);
        // Of several threads, one logs it.
        (logged == 0 || now > logged + LOG_NS)
            && self
                .logged_ns
                .compare_exchange(logged, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_pauses_and_a_good_one_ends_that() {
        let writes = Writes::new();
        assert!(!writes.are_paused(5) && !writes.have_failed());
        assert!(writes.pause(Status::NoRoom, 1_000), "it is said once");
        assert!(!writes.pause(Status::NoRoom, 2_000), "and not again soon");
        assert!(writes.have_failed() && writes.are_paused(2_000 + PAUSE_NS - 1));
        assert!(!writes.are_paused(2_000 + PAUSE_NS));
        assert!(
            !writes.is_newly_closed(3_000, u64::MAX),
            "no answer will come"
        );
        assert!(
            writes.pause(Status::NoRoom, 2_000 + LOG_NS),
            "after a while"
        );
        writes.note_written(true, 0);
        assert!(!writes.have_failed());
        assert_eq!(writes.made(), 0, "its pages were all changed meanwhile");
        writes.note_written(true, 3);
        assert_eq!(writes.made(), 1);
    }

    #[test]
    fn donors_that_are_away_are_waited_for_since_the_first_that_was() {
        let writes = Writes::new();
        writes.pause(Status::Unreachable, 1_000);
        writes.pause(Status::Unreachable, 1_000 + PAUSE_NS);
        let now = 1_001 + PAUSE_NS;
        assert!(writes.is_newly_closed(now, PAUSE_NS + 2));
        assert!(!writes.is_newly_closed(now, PAUSE_NS), "waited long enough");
        writes.stall(true);
        assert!(writes.is_stalled());
        writes.note_written(false, 0);
        assert!(!writes.is_stalled() && writes.have_failed());
        writes.pause(Status::NoRoom, now);
        assert!(!writes.is_newly_closed(now, u64::MAX));
    }
}
