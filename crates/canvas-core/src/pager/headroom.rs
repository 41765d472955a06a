//! How far below the limit background reclaim works.
//!
//! Memory kept free holds no page of the program, so there should be little of it. But if it is less than what comes in
//! until the reclaim thread has run, faults wait for direct reclaim. How much that is depends on the program's rate of
//! faults and on when the scheduler runs the thread, so it is learnt: the headroom grows by half whenever faults find
//! it used up, and shrinks slowly while they do not.

use canvas_types::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Shares are in 1024ths of the room that the limit leaves.
const PARTS: i64 = 1024;
/// Minimum: a 48th, and 2 MiB. Used at first, and after a long time without faults that wait.
const SHARE_MIN: u32 = 21;
const PAGES_FEW: i64 = 512;
/// Maximum: a 16th, and 8 MiB.
const SHARE_MAX: u32 = 64;
const PAGES_MOST: i64 = 2048;
/// In a small room the headroom is a sixteenth up to this many pages (512 KiB).
const PAGES_SMALL: i64 = 128;
/// The headroom is never less than this.
const PAGES_LEAST: i64 = 32;
/// Pages that reclaim frees at a time, if the headroom is larger. If all CPUs are busy the program stalls for that
/// time.
const PAGES_AT_A_TIME: i64 = 128;
/// Pause between two checks.
const CHECK_NS: u64 = 10_000_000;
/// The headroom shrinks by a 1024th of the room each time it has sufficed for this long.
const QUIET_NS: u64 = 250_000_000;

/// What a process keeps free ahead of its faults.
#[derive(Debug)]
pub struct Headroom {
    share: AtomicU32,
    was_used_up: AtomicBool,
    checked_ns: AtomicU64,
    changed_ns: AtomicU64,
}

impl Headroom {
    /// Creates the minimum headroom.
    pub const fn new() -> Headroom {
        Headroom {
            share: AtomicU32::new(SHARE_MIN),
            was_used_up: AtomicBool::new(false),
            checked_ns: AtomicU64::new(0),
            changed_ns: AtomicU64::new(0),
        }
    }

    /// Pages below the limit at which reclaim starts, and at which it stops, if the limit leaves `room` pages.
    #[inline]
    pub fn marks(&self, room: i64) -> (i64, i64) {
        let share = i64::from(self.share.load(Ordering::Relaxed));
        let most = PAGES_FEW
            + (PAGES_MOST - PAGES_FEW) * (share - i64::from(SHARE_MIN))
                / i64::from(SHARE_MAX - SHARE_MIN);
        let small = (room / 16).min(PAGES_SMALL);
        let stop = (room * share / PARTS).clamp(small, most).max(PAGES_LEAST);
        let start = stop / 2;
        (start, stop.min(start + PAGES_AT_A_TIME))
    }

    /// Like [`Headroom::marks`], for when threads that charge memory reclaim by themselves: no wake-up has to be
    /// bridged.
    #[inline]
    pub fn marks_in_line(&self, room: i64) -> (i64, i64) {
        let (start, stop) = self.marks(room);
        let in_line = start.min(PAGES_LEAST);
        (in_line, stop.min(in_line + PAGES_AT_A_TIME))
    }

    /// Records that a fault found no room left.
    #[inline]
    pub fn used_up(&self) {
        if !self.was_used_up.load(Ordering::Relaxed) {
            self.was_used_up.store(true, Ordering::Relaxed);
        }
    }

    /// Checks whether the headroom was used up; called by the reclaim thread at time `now_ns`.
    pub fn update(&self, now_ns: u64) {
        if now_ns < self.checked_ns.load(Ordering::Relaxed) + CHECK_NS {
            return;
        }
        self.checked_ns.store(now_ns, Ordering::Relaxed);
        let share = self.share.load(Ordering::Relaxed);
        let next = if self.was_used_up.swap(false, Ordering::Relaxed) {
            (share + share / 2).min(SHARE_MAX)
        } else if now_ns >= self.changed_ns.load(Ordering::Relaxed) + QUIET_NS {
            share.saturating_sub(1).max(SHARE_MIN)
        } else {
            return;
        };
        self.share.store(next, Ordering::Relaxed);
        self.changed_ns.store(now_ns, Ordering::Relaxed);
    }
}

impl Default for Headroom {
    fn default() -> Headroom {
        Headroom::new()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: i64 = 256;

    #[test]
    fn little_is_kept_free_until_faults_find_it_used_up() {
        let h = Headroom::new();
        assert_eq!(h.marks(64 * MIB), (168, 296));
        assert_eq!(h.marks(1024 * MIB), (256, 384));
        for n in 1..=3 {
            h.used_up();
            h.update(n * CHECK_NS);
        }
        assert_eq!(h.marks(64 * MIB), (512, 640), "half a sixteenth");
        assert_eq!(h.marks(1024 * MIB), (1024, 1152));
    }

    #[test]
    fn in_line_less_is_kept_free_and_as_much_is_freed_at_a_time() {
        let h = Headroom::new();
        assert_eq!(h.marks_in_line(64 * MIB), (32, 160));
        assert_eq!(h.marks_in_line(1024 * MIB), (32, 160));
        for room in [0, 256, 512, 1024, 2048] {
            assert_eq!(h.marks_in_line(room).1, h.marks(room).1, "{room}");
            assert!(h.marks_in_line(room).0 <= h.marks(room).0, "{room}");
        }
    }

    #[test]
    fn of_a_small_room_it_is_a_sixteenth() {
        let h = Headroom::new();
        let stops = [0, 256, 512, 1024, 2048, 4096].map(|room| h.marks(room).1);
        assert_eq!(stops, [32, 32, 32, 64, 128, 128]);
    }

    #[test]
    fn many_faults_at_one_time_are_one_reason_to_grow() {
        let h = Headroom::new();
        h.used_up();
        h.update(CHECK_NS);
        let once = h.marks(64 * MIB).1;
        h.used_up();
        h.update(CHECK_NS + 1);
        assert_eq!(h.marks(64 * MIB).1, once, "looked at a moment ago");
        h.update(2 * CHECK_NS);
        assert!(h.marks(64 * MIB).1 > once, "and not forgotten");
    }

    #[test]
    fn it_shrinks_slowly_and_no_further_than_to_the_least() {
        let h = Headroom::new();
        for n in 1..=9 {
            h.used_up();
            h.update(n * CHECK_NS);
        }
        let mut now_ns = 9 * CHECK_NS;
        let mut looks = 0;
        while h.marks(64 * MIB).0 > 168 {
            now_ns += QUIET_NS;
            h.update(now_ns);
            looks += 1;
        }
        assert_eq!(looks, SHARE_MAX - SHARE_MIN);
        h.update(now_ns + QUIET_NS);
        assert_eq!(h.marks(64 * MIB).0, 168);
    }
}
