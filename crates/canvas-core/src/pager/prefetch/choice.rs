//! The choice between the prefetchers. The pager knows each by its lines in this file alone.

use canvas_types::sync::{AtomicU32, Ordering};
use canvas_types::{PageId, Prefetch};

use super::streams::ThreadStreams;
use super::{Advice, Done, Fault, FaultKind, MemoryView, Plan, Prefetcher};

/// The prefetchers of a process. Whichever is chosen, streams are tracked, because eviction needs them
/// ([`Plan::stream`], [`Plan::behind`]) and zero-filling runs ahead of first touches.
pub struct Prefetchers {
    chosen: AtomicU32,
    /// The streams of each thread.
    pub streams: ThreadStreams,
    leap: super::leap::Leap,
    readahead: super::readahead::Readahead,
    nearby: super::nearby::Nearby,
}

impl Prefetchers {
    /// Creates prefetchers without knowledge, with [`Prefetch::Streams`] chosen.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Prefetchers {
        Prefetchers {
            chosen: AtomicU32::new(Prefetch::Streams as u32),
            streams: ThreadStreams::new(),
            leap: super::leap::Leap::new(),
            readahead: super::readahead::Readahead::new(),
            nearby: super::nearby::Nearby::new(),
        }
    }
}

/// Calls a method of the prefetcher `$chosen`, which is used beside the streams or instead of them.
macro_rules! ask {
    ($all:ident, $chosen:expr, $method:ident($($arg:expr),*)) => {
        match $chosen {
            Prefetch::Leap => $all.leap.$method($($arg),*),
            Prefetch::Readahead => $all.readahead.$method($($arg),*),
            Prefetch::Auto => $all.nearby.$method($($arg),*),
            _ => Nothing.$method($($arg),*),
        }
    };
}

/// Brings in nothing.
struct Nothing;

impl Prefetcher for Nothing {
    #[inline]
    fn plan(&self, _: &Fault<'_, impl MemoryView>) -> Plan {
        Plan::NONE
    }
}

impl Prefetchers {
    /// Chooses the prefetcher that decides from now on. What the others have learnt is not carried over.
    pub fn choose(&self, who: Prefetch) {
        self.chosen.store(who as u32, Ordering::Relaxed);
    }

    #[inline]
    fn chosen(&self) -> Prefetch {
        Prefetch::from_number(self.chosen.load(Ordering::Relaxed))
    }

    /// The streams decide where one expects the fault; elsewhere the prefetcher beside them does.
    fn beside_streams(&self, chosen: Prefetch, fault: &Fault<'_, impl MemoryView>) -> Plan {
        let of_stream = self.streams.plan(fault);
        if of_stream.is_of_stream() || fault.advice == Advice::Sequential {
            ask!(self, chosen, on_stream(fault.page, &of_stream));
            return of_stream;
        }
        let plan = ask!(self, chosen, plan(fault));
        if plan.planner.is_none() {
            return of_stream;
        }
        if plan.count > 0 {
            self.streams.beside(fault.thread, fault.page, &plan);
        }
        plan
    }

    /// The streams only watch, and another prefetcher decides.
    fn instead_of_streams(&self, chosen: Prefetch, fault: &Fault<'_, impl MemoryView>) -> Plan {
        // Nothing is prefetched for the streams, so no fault is a hit for them.
        let seen = match fault.kind {
            FaultKind::VictimHit => fault.kind,
            _ => FaultKind::Demand,
        };
        let of_stream = self.streams.on_fault(fault.thread, fault.page, seen);
        Plan {
            stream: of_stream.stream,
            behind: of_stream.behind,
            // All pages of such a plan are left unmapped, as in the kernel.
            stands_for: u32::from(fault.kind == FaultKind::PrefetchHit),
            ..ask!(self, chosen, plan(fault))
        }
    }
}

impl Prefetcher for Prefetchers {
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        match (fault.advice, self.chosen()) {
            (Advice::Random, _) => Plan::nothing_beside(fault.kind),
            (_, Prefetch::Streams) => self.streams.plan(fault),
            (_, Prefetch::Auto) => self.beside_streams(Prefetch::Auto, fault),
            (_, chosen) => self.instead_of_streams(chosen, fault),
        }
    }

    fn carried_out(&self, plan: &Plan, done: &Done) {
        match plan.planner {
            None => self.streams.carried_out(plan, done),
            Some(_) => ask!(self, self.chosen(), carried_out(plan, done)),
        }
    }

    fn on_used(&self, plan: &Plan) {
        if plan.planner.is_none() {
            self.streams.on_used(plan);
        }
    }

    fn on_unused(&self, page: PageId) -> Option<u32> {
        let chosen = self.chosen();
        ask!(self, chosen, on_unused(page)).or_else(|| {
            let of_stream = self.streams.on_unused(page);
            match chosen {
                Prefetch::Streams | Prefetch::Auto => of_stream,
                _ => Some(1),
            }
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
