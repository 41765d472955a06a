//! When native memory is paged out through the kernel, and how often this is tried.
//!
//! Canvas does not see which native pages are used, so it cannot choose the cold ones: it has the kernel page out some
//! in address order, and pages in use come back on their own. If most of them do, it waits longer before it tries
//! again.

use canvas_types::controller::Backoff;

/// Pages that a process has the kernel page out in one round (8 MiB).
pub const ROUND_PAGES: i64 = 2048;
/// Pause after a round.
pub const PAUSE_NS: u64 = 2_000_000_000;
/// Longer pauses after rounds in vain.
pub type Pauses = Backoff<{ 2 * PAUSE_NS }, 64_000_000_000>;

/// Whether native memory is in the way of a tenant with this limit: if the limit is too small (`short` pages), or if
/// native memory takes more than a quarter of it while a process loses pages that it wants to keep (`wants_more`).
pub fn is_in_the_way(short: i64, native: i64, limit: i64, wants_more: bool) -> bool {
    native > 0 && (short > 0 || wants_more && native > limit / 4)
}

/// Judges a round that ended at `ended_ns`: `left` pages were paged out, `back` of which had come back after
/// [`PAUSE_NS`].
pub fn judge(pauses: &Pauses, left: i64, back: i64, ended_ns: u64) {
    match left > 0 && back <= left / 2 {
        true => pauses.succeeded(),
        false => pauses.failed(ended_ns),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn native_memory_is_in_the_way_of_those_that_want_more_and_of_a_limit_that_is_too_small() {
        assert!(is_in_the_way(1, 300, 1000, false));
        assert!(is_in_the_way(0, 251, 1000, true));
        assert!(!is_in_the_way(0, 250, 1000, true), "a quarter may stay");
        assert!(!is_in_the_way(0, 900, 1000, false), "nobody wants more");
        assert!(!is_in_the_way(5, 0, 1000, true), "there is none");
    }

    #[test]
    fn rounds_are_seldom_where_most_pages_come_back() {
        const S: u64 = 1_000_000_000;
        let (pauses, mut now_s) = (Pauses::new(0), 0);
        let took = [(100, 51), (100, 100), (0, 0), (9, 9), (9, 9), (9, 9)].map(|(left, back)| {
            judge(&pauses, left, back, now_s * S);
            let began_s = now_s;
            now_s = (began_s..).find(|s| !pauses.is_paused(s * S)).unwrap();
            now_s - began_s
        });
        assert_eq!(took, [4, 8, 16, 32, 64, 64]);
        judge(&pauses, 100, 50, now_s * S);
        assert!(!pauses.is_paused(now_s * S));
    }
}
