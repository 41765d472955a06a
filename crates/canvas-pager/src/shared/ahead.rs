//! Which pages behind one that was needed come with it: a window that grows while faults of a process go on in order.
//!
//! Hits on shared pages are not seen. That faults went on behind a window is taken for the use of what it brought.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Pages of a window at most.
pub const WINDOW_MAX: u32 = 16;
/// Streams that a process is taken to have at a time.
const STREAMS: usize = 16;
/// A fault so many pages further on goes on with a stream as well: those between were there already.
const GAP_MAX: u32 = 8;

/// The streams of one process: the next page of each, what came ahead of it, and its window.
pub struct Streams {
    streams: [AtomicU64; STREAMS],
    /// The one that the next new one replaces.
    victim: AtomicU32,
}

/// What is to come with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    stream: usize,
    /// Pages behind it, at most.
    pub window: u32,
    /// Pages that came ahead, which the fault has shown to be used.
    pub hits: u32,
}

/// A fault went on with it since the hand last passed.
const USED: u64 = 1 << 15;
const WINDOW: u32 = 0x7fff;

fn packed(next: u32, brought: u32, window: u32) -> u64 {
    let used = if window > 0 { USED } else { 0 };
    u64::from(next) << 32 | u64::from(brought) << 16 | used | u64::from(window)
}

impl Streams {
    /// None yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Streams {
        Streams {
            streams: [const { AtomicU64::new(0) }; STREAMS],
            victim: AtomicU32::new(0),
        }
    }

    /// A fault on a far page. (Threads that fault at one time may take each other's hints: these are no more.)
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

    /// The stream that a new one replaces: none that has gone on since the hand last passed, where there is another.
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

    /// So many pages came behind `page`, which ends `reach` pages behind it.
    pub fn brought(&self, plan: Plan, page: u32, reach: u32, n: u32) {
        let next = page.saturating_add(1).saturating_add(reach);
        self.streams[plan.stream].store(packed(next, n, plan.window), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Faults of a reader that goes on page by page, where all of each window comes; windows and hits.
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
