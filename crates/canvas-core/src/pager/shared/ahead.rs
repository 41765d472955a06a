//! Read-ahead for shared pages: which pages after a faulting one come in with it. A window grows while the faults of a
//! process continue in order.
//!
//! Hits on shared pages are not visible. A fault that continues behind a window counts as proof that the window's pages
//! were used.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Maximum pages of a window.
pub const WINDOW_MAX: u32 = 16;
/// Streams that are tracked per process.
const STREAMS: usize = 16;
/// A fault up to this many pages further on still continues a stream: the pages in between were already resident.
const GAP_MAX: u32 = 8;

/// The streams of one process: for each, the next page, the pages brought in ahead of it, and its window.
pub struct Streams {
    streams: [AtomicU64; STREAMS],
    /// The stream that the next new stream replaces.
    victim: AtomicU32,
}

/// What to bring in with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    stream: usize,
    /// How many of the pages behind it to bring in, at most.
    pub window: u32,
    /// Pages brought in ahead that this fault has shown to be used.
    pub hits: u32,
}

/// A fault has continued the stream since the replacement hand last passed.
const USED: u64 = 1 << 15;
const WINDOW: u32 = 0x7fff;

fn packed(next: u32, brought: u32, window: u32) -> u64 {
    let used = if window > 0 { USED } else { 0 };
    u64::from(next) << 32 | u64::from(brought) << 16 | used | u64::from(window)
}

impl Streams {
    /// Creates the state without streams.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Streams {
        Streams {
            streams: [const { AtomicU64::new(0) }; STREAMS],
            victim: AtomicU32::new(0),
        }
    }

    /// Handles a fault on a far page. (Threads that fault at the same time may overwrite each other's updates; the
    /// state is only a hint.)
    pub fn on_fault(&self, page: u32) -> Plan {
        let words = self.streams.iter().map(|s| s.load(Ordering::Relaxed));
        let goes_on = |word: &(usize, u64)| {
            let next = (word.1 >> 32) as u32;
            next != 0 && (next..next.saturating_add(GAP_MAX)).contains(&page)
        };
        let (stream, window, hits) = match words.enumerate().find(goes_on) {
            Some((i, word)) => {
                let window = (2 * (word as u32 & WINDOW)).clamp(2, WINDOW_MAX);
                (i, window, (word >> 16) as u32 & 0xffff)
            }
            None => (self.replaced(), 0, 0),
        };
        let next = packed(page.saturating_add(1), 0, window);
        self.streams[stream].store(next, Ordering::Relaxed);
        Plan {
            stream,
            window,
            hits,
        }
    }

    /// Chooses the stream that a new one replaces: one that did not continue since the hand last passed, if there is
    /// any.
    fn replaced(&self) -> usize {
        let mut i = 0;
        for _ in 0..=STREAMS {
            i = self.victim.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
            if self.streams[i].fetch_and(!USED, Ordering::Relaxed) & USED == 0 {
                break;
            }
        }
        i
    }

    /// Records that `n` pages came in behind `page`; the window read ended `reach` pages behind it.
    pub fn brought(&self, plan: Plan, page: u32, reach: u32, n: u32) {
        let next = page.saturating_add(1).saturating_add(reach);
        self.streams[plan.stream].store(packed(next, n, plan.window), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Simulates a reader that advances page by page, where every window comes in completely; returns faults, pages
    /// brought in ahead, and hits.
    fn read(streams: &Streams, from: u32, to: u32) -> (u32, u32, u32) {
        let (mut page, mut faults, mut ahead, mut hits) = (from, 0, 0, 0);
        while page < to {
            let plan = streams.on_fault(page);
            streams.brought(plan, page, plan.window, plan.window);
            faults += 1;
            ahead += plan.window;
            hits += plan.hits;
            page += 1 + plan.window;
        }
        (faults, ahead, hits)
    }

    #[test]
    fn windows_grow_with_a_stream_and_its_pages_are_hits_when_it_goes_on() {
        let (faults, ahead, hits) = read(&Streams::new(), 100, 1100);
        assert!(faults < 1000 / 16 + 8, "{faults}");
        assert!(ahead > 900 && hits >= ahead - WINDOW_MAX && hits < ahead);
    }

    #[test]
    fn random_faults_bring_nothing_and_do_not_end_a_stream_at_once() {
        let streams = Streams::new();
        let mut random = 7u32;
        for n in 0..1000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(streams.on_fault(random >> 4).window, 0, "fault {n}");
        }
        let mut next = 5;
        for n in 0..200 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            streams.on_fault(random >> 4);
            let plan = streams.on_fault(next);
            assert!(n < 6 || plan.window == WINDOW_MAX);
            streams.brought(plan, next, plan.window, plan.window);
            next += 1 + plan.window;
        }
    }

    #[test]
    fn what_was_there_already_does_not_end_a_stream() {
        let streams = Streams::new();
        streams.on_fault(10);
        let plan = streams.on_fault(10 + GAP_MAX);
        assert_eq!((plan.window, plan.hits), (2, 0));
        streams.brought(plan, 10 + GAP_MAX, 2, 1);
        assert_eq!(streams.on_fault(10 + GAP_MAX + 3).hits, 1);
        assert_eq!(streams.on_fault(u32::MAX).window, 0);
        assert_eq!(streams.on_fault(0).window, 0, "no page before any");
    }
}
