//! All prefetchers behind one interface, and the choice between them.

use canvas_types::sync::{AtomicU32, Ordering};
use canvas_types::{PageId, Prefetch};

use super::leap::Leap;
use super::nearby::Nearby;
use super::readahead::{Area, Readahead};
use super::streams::Prefetcher;
use super::{Advice, Done, FaultKind, NEARBY, NO_WAY, OF_ARRAY, Plan, SAMPLE_EVERY};

/// Pages left unmapped that are remembered.
const LEFT: usize = 256;
/// Mappings of at least this many pages (1 MiB) count as arrays, as in the paper.
pub const ARRAY_PAGES_MIN: u32 = 256;

/// What a prefetcher can ask about the memory around a fault.
pub trait Surroundings {
    /// The page's mapping. Only [`Prefetch::Readahead`] asks; without an answer it plans and learns nothing.
    fn area_of(&self, page: PageId) -> Option<Area>;
    /// Whether the page is far, so that it can be brought in. Accepts any page number.
    fn is_far(&self, page: PageId) -> bool;
    /// The current eviction epoch ([`crate::pager::clock::EpochClock`]).
    fn epoch(&self) -> u8;
    /// The program's advice on the page's region.
    fn advice(&self, _page: PageId) -> Advice {
        Advice::Normal
    }
}

/// All prefetchers of a process. Whichever is chosen, streams are tracked, because eviction needs them
/// ([`Plan::stream`], [`Plan::behind`]) and zero-filling runs ahead of first touches.
pub struct Prefetchers {
    chosen: AtomicU32,
    /// Canvas's own prefetcher, which also finds streams while another one is chosen.
    pub streams: Prefetcher,
    leap: Leap,
    readahead: Readahead,
    nearby: Nearby,
    /// Streams and deltas by thread and array, for the application tier.
    arrays: Prefetcher,
    /// Pages that plans by thread and array left unmapped, newer ones overwriting older ones.
    left_of_arrays: [AtomicU32; LEFT],
}

impl Prefetchers {
    /// Creates prefetchers without knowledge, with [`Prefetch::Streams`] chosen.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Prefetchers {
        Prefetchers {
            chosen: AtomicU32::new(Prefetch::Streams as u32),
            streams: Prefetcher::new(),
            leap: Leap::new(),
            readahead: Readahead::new(),
            nearby: Nearby::new(),
            arrays: Prefetcher::new(),
            left_of_arrays: [const { AtomicU32::new(0) }; LEFT],
        }
    }
}

impl Prefetchers {
    /// Chooses the prefetcher that decides from now on. What the others have learnt is not carried over.
    pub fn choose(&self, who: Prefetch) {
        self.chosen.store(who as u32, Ordering::Relaxed);
    }

    fn chosen(&self) -> Prefetch {
        Prefetch::from_number(self.chosen.load(Ordering::Relaxed))
    }

    /// Handles a fault of the thread behind `thread_hash` on `page`, which is far or in the swap cache; returns what to
    /// bring in besides.
    pub fn on_fault(
        &self,
        thread_hash: u32,
        page: PageId,
        kind: FaultKind,
        around: &impl Surroundings,
    ) -> Plan {
        let chosen = self.chosen();
        match (around.advice(page), chosen) {
            (Advice::Random, _) => return Plan::alone(kind),
            (Advice::Sequential, Prefetch::Streams | Prefetch::Auto) => {
                let plan = self.streams.on_sequential(thread_hash, page, kind);
                if chosen == Prefetch::Auto {
                    self.nearby.on_stream(page, &plan);
                }
                return plan;
            }
            _ => {}
        }
        let plan = match chosen {
            Prefetch::Streams => return self.streams.on_fault(thread_hash, page, kind),
            Prefetch::Leap => self.leap.on_fault(page, kind),
            Prefetch::Readahead => around
                .area_of(page)
                .map_or(Plan::NONE, |area| self.readahead.on_fault(page, kind, area)),
            Prefetch::None => Plan::NONE,
            Prefetch::Auto => return self.auto(thread_hash, page, kind, around),
        };
        // Nothing is prefetched for the streams, so no fault is a hit for them.
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

    /// Handles a forwarded fault: what to bring in by the deltas of this thread in this array of at least
    /// [`ARRAY_PAGES_MIN`] pages. Many arrays at a time, or faults elsewhere in between, do not hide these deltas.
    pub fn on_forwarded(
        &self,
        thread_hash: u32,
        page: PageId,
        kind: FaultKind,
        around: &impl Surroundings,
    ) -> Plan {
        let is_array = |a: &Area| a.end.saturating_sub(a.start) >= ARRAY_PAGES_MIN;
        let Some(area) = around.area_of(page).filter(is_array) else {
            return Plan::NONE;
        };
        let key = thread_hash ^ area.start.wrapping_mul(0x9e37_79b1).rotate_left(13);
        let plan = self.arrays.on_fault(key, page, kind);
        match plan.way {
            NO_WAY => Plan::NONE,
            way => Plan {
                way: way + OF_ARRAY,
                key,
                ..plan
            },
        }
    }

    /// The streams decide if one expects the fault; otherwise what was learnt about the region decides.
    fn auto(
        &self,
        thread_hash: u32,
        page: PageId,
        kind: FaultKind,
        around: &impl Surroundings,
    ) -> Plan {
        let plan = self.streams.on_fault(thread_hash, page, kind);
        if plan.way != NO_WAY {
            self.nearby.on_stream(page, &plan);
            return plan;
        }
        if kind != FaultKind::Demand {
            return match (self.nearby.on_hit(page), kind) {
                (Some(stands_for), FaultKind::PrefetchHit) => Plan {
                    stands_for,
                    way: NEARBY,
                    ..plan
                },
                _ => plan,
            };
        }
        let plan = self
            .nearby
            .on_fault(thread_hash, page, around.epoch(), |p| around.is_far(p));
        if plan.count > 0 {
            self.streams.beside(thread_hash, page, &plan);
        }
        plan
    }

    /// Records that a prefetched page left unmapped was used; `plan` is the plan of its fault.
    pub fn on_used(&self, plan: &Plan) {
        if plan.is_of_array() {
            self.arrays.on_used(1);
        } else if !plan.is_nearby() {
            self.streams.on_used(1);
        }
    }

    /// Records that a page of `plan` was left unmapped.
    pub fn on_left(&self, page: PageId, plan: &Plan) {
        if plan.is_of_array() {
            self.left_of_arrays[page.index() % LEFT].store(page.0, Ordering::Relaxed);
        }
    }

    /// Records that a prefetched page left unmapped was written out without a touch; returns how many pages it stands
    /// for. All prefetchers but the streams leave every page unmapped, as the kernel does.
    pub fn on_unused(&self, page: PageId) -> u32 {
        let left = &self.left_of_arrays[page.index() % LEFT];
        if page.0 != 0 && left.load(Ordering::Relaxed) == page.0 {
            left.store(0, Ordering::Relaxed);
            self.arrays.on_unused(1);
            return SAMPLE_EVERY;
        }
        let chosen = self.chosen();
        if chosen == Prefetch::Auto
            && let Some(stood_for) = self.nearby.on_unused(page)
        {
            return stood_for;
        }
        self.streams.on_unused(1);
        match chosen {
            Prefetch::Streams | Prefetch::Auto => SAMPLE_EVERY,
            _ => 1,
        }
    }

    /// Records how a plan was carried out.
    pub fn carried_out(&self, thread_hash: u32, plan: &Plan, done: &Done) {
        if plan.is_nearby() {
            self.nearby.carried_out(plan, done);
        } else if plan.is_of_array() {
            let of_array = Plan {
                way: plan.way - OF_ARRAY,
                ..*plan
            };
            self.arrays.carried_out(plan.key, &of_array, done);
        } else {
            self.streams.carried_out(thread_hash, plan, done);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
