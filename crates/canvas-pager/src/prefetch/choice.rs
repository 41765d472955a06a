//! The prefetchers behind one interface, one of them chosen.

use canvas_types::sync::{AtomicU32, Ordering};
use canvas_types::{PageId, Prefetch};

use super::leap::Leap;
use super::readahead::{Area, Readahead};
use super::{FaultKind, Plan, Prefetcher, SAMPLE_EVERY};

/// All prefetchers of a process. Whoever is chosen, streams are watched, because eviction wants to
/// know them ([`Plan::stream`], [`Plan::behind`]), and first touches run ahead of them.
pub struct Prefetchers {
    chosen: AtomicU32,
    /// Canvas's own prefetcher, which also finds streams while another one is chosen.
    pub streams: Prefetcher,
    leap: Leap,
    readahead: Readahead,
}

macro_rules! constructor {
    ($($const:tt)?) => {
        impl Prefetchers {
            /// Nothing known, and [`Prefetch::Streams`] chosen.
            #[allow(clippy::new_without_default)]
            pub $($const)? fn new() -> Prefetchers {
                Prefetchers {
                    chosen: AtomicU32::new(Prefetch::Streams as u32),
                    streams: Prefetcher::new(),
                    leap: Leap::new(),
                    readahead: Readahead::new(),
                }
            }
        }
    };
}

#[cfg(not(feature = "shuttle"))]
constructor!(const);
#[cfg(feature = "shuttle")]
constructor!();

impl Prefetchers {
    /// Chooses who decides from here on. What the others know is not carried over.
    pub fn choose(&self, who: Prefetch) {
        self.chosen.store(who as u32, Ordering::Relaxed);
    }

    fn chosen(&self) -> Prefetch {
        Prefetch::from_number(self.chosen.load(Ordering::Relaxed))
    }

    /// A fault of the thread behind `thread_hash` on `page`, which is far or in the swap cache, and
    /// what to bring in besides. `area` finds the page's mapping; only [`Prefetch::Readahead`] asks,
    /// and without an answer it plans and learns nothing.
    pub fn on_fault(
        &self,
        thread_hash: u32,
        page: PageId,
        kind: FaultKind,
        area: impl FnOnce() -> Option<Area>,
    ) -> Plan {
        let plan = match self.chosen() {
            Prefetch::Streams => return self.streams.on_fault(thread_hash, page, kind),
            Prefetch::Leap => self.leap.on_fault(page, kind),
            Prefetch::Readahead => {
                area().map_or(Plan::NONE, |area| self.readahead.on_fault(page, kind, area))
            }
            Prefetch::None => Plan::NONE,
        };
        // Nothing is prefetched for the streams, so to them no fault is a hit.
        let seen = match kind {
            FaultKind::SecondChance => kind,
            _ => FaultKind::Demand,
        };
        let stream = self.streams.on_fault(thread_hash, page, seen);
        Plan {
            stream: stream.stream,
            behind: stream.behind,
            stands_for: u32::from(kind == FaultKind::PrefetchHit),
            ..plan
        }
    }

    /// Pages that a prefetched page stands for that was left unmapped and is written out without a
    /// touch: all others but the streams leave every page unmapped, as the kernel does.
    pub fn unused_stands_for(&self) -> u32 {
        match self.chosen() {
            Prefetch::Streams => SAMPLE_EVERY,
            _ => 1,
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const AREA: Area = Area {
        start: 0,
        end: 1 << 20,
    };

    /// Faults on the pages from 10,000 on as a caller answers them; pages planned, whether the
    /// stream was seen.
    fn sequence(who: Prefetch) -> (u32, bool) {
        let all = Box::new(Prefetchers::new());
        all.choose(who);
        let (mut planned, mut stream) = (0, false);
        let mut cached = std::collections::BTreeSet::new();
        for page in 10_000..12_000 {
            let kind = if cached.remove(&page) {
                FaultKind::PrefetchHit
            } else {
                FaultKind::Demand
            };
            let plan = all.on_fault(1, PageId(page), kind, || Some(AREA));
            assert_eq!(plan.stands_for, u32::from(kind == FaultKind::PrefetchHit));
            stream |= plan.stream;
            for p in (0..plan.count).filter_map(|i| plan.page(i)) {
                assert!(plan.sample_every == 1);
                planned += u32::from(p.0 > page && cached.insert(p.0));
            }
        }
        (planned, stream)
    }

    #[test]
    fn each_plans_for_itself_and_streams_are_always_seen() {
        for who in [Prefetch::Leap, Prefetch::Readahead] {
            let (planned, stream) = sequence(who);
            assert!(planned > 1500 && stream, "{who:?}: {planned}");
        }
        assert_eq!(sequence(Prefetch::None), (0, true));
    }

    #[test]
    fn without_a_mapping_readahead_stays_quiet() {
        let all = Box::new(Prefetchers::new());
        all.choose(Prefetch::Readahead);
        assert_eq!(
            all.on_fault(1, PageId(5), FaultKind::Demand, || None).count,
            0
        );
        assert!(
            all.on_fault(1, PageId(5), FaultKind::Demand, || Some(AREA))
                .count
                > 0
        );
    }

    #[test]
    fn the_streams_decide_unless_told_otherwise() {
        let (all, own) = (Box::new(Prefetchers::new()), Box::new(Prefetcher::new()));
        for page in (0..3000).chain((0..900).map(|i| 50_000 + 7 * i)) {
            let ask = all.on_fault(3, PageId(page), FaultKind::Demand, || None);
            assert_eq!(ask, own.on_fault(3, PageId(page), FaultKind::Demand));
        }
        assert_eq!(all.unused_stands_for(), SAMPLE_EVERY);
    }
}
