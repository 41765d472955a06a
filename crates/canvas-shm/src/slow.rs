//! Slow faults, and what they waited for.

use core::sync::atomic::{AtomicU64, Ordering};

/// A fault that takes this long, in ns, is recorded.
pub const SLOW_NS: u64 = 1_000_000;
/// Number of recent faults that are kept individually.
pub const KEPT: usize = 64;

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a fault waited for most.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Cause { $($(#[$doc])* $name,)* }
        impl Cause {
            /// All causes.
            pub const ALL: &[Cause] = &[$(Cause::$name,)*];
            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Cause::$name => $text,)* }
            }
        }
    };
}

causes! {
    /// Nothing of canvas's: another process had the processor, or the kernel was slow.
    Elsewhere = "elsewhere",
    /// Fork, exec or a dump blocked all operations.
    ForkGate = "fork-gate",
    /// Another thread was working on the page.
    BusyPage = "busy-page",
    /// A mapping call was under way.
    MappingLock = "mapping-lock",
    /// Reclaim was write-protecting neighbouring pages.
    ChunkLock = "chunk-lock",
    /// All contexts for bringing pages in were in use.
    FillContext = "fill-context",
    /// The thread did direct reclaim.
    DirectReclaim = "direct-reclaim",
    /// Other processes were asked for pages.
    OtherProcesses = "other-processes",
    /// Pool and far memory were full.
    PoolFull = "pool-full",
    /// The host was short: the pool grows by a step at a time.
    HostShort = "host-short",
    /// The agent read the page from far memory: a disk, or donors.
    FarRead = "far-read",
    /// The page was already on its way from far memory.
    FarArrival = "far-arrival",
    /// The kernel had no free page.
    KernelMemory = "kernel-memory",
    /// A page of shared memory: another process was evicting or holding it.
    SharedPage = "shared-page",
}

/// Number of causes.
pub const CAUSES: usize = Cause::ALL.len();

/// One slow fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowFault {
    /// Address of its page.
    pub page: u64,
    /// What it waited for most.
    pub cause: Cause,
    /// The process.
    pub pid: u32,
    /// Its duration, in ns.
    pub ns: u64,
    /// When it ended (CLOCK_MONOTONIC, ns).
    pub when_ns: u64,
}

/// An entry of the ring; `ticket` is 0 while it is written, otherwise one more than its fault's number.
#[repr(C)]
struct SlowEntry {
    ticket: AtomicU64,
    page: AtomicU64,
    /// The PID, shifted above the cause.
    who: AtomicU64,
    ns: AtomicU64,
    when_ns: AtomicU64,
}

/// The slow faults of a tenant.
#[repr(C)]
pub struct SlowFaults {
    next: AtomicU64,
    counts: [AtomicU64; CAUSES],
    ns: [AtomicU64; CAUSES],
    ring: [SlowEntry; KEPT],
}

impl SlowFaults {
    /// Records a fault; it replaces the oldest one that is kept.
    pub fn note(&self, fault: &SlowFault) {
        let cause = fault.cause as usize;
        self.counts[cause].fetch_add(1, Ordering::Relaxed);
        self.ns[cause].fetch_add(fault.ns, Ordering::Relaxed);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = &self.ring[number as usize % KEPT];
        entry.ticket.store(0, Ordering::Release);
        let who = u64::from(fault.pid) << 8 | cause as u64;
        entry.page.store(fault.page, Ordering::Release);
        entry.who.store(who, Ordering::Release);
        entry.ns.store(fault.ns, Ordering::Release);
        entry.when_ns.store(fault.when_ns, Ordering::Release);
        entry.ticket.store(number + 1, Ordering::Release);
    }

    /// Number of faults with a cause, and the sum of their durations, in ns.
    pub fn sum(&self, cause: Cause) -> (u64, u64) {
        let at = cause as usize;
        (
            self.counts[at].load(Ordering::Relaxed),
            self.ns[at].load(Ordering::Relaxed),
        )
    }

    /// The most recent faults, the newest first. Entries that are being written are left out.
    pub fn last(&self) -> impl Iterator<Item = SlowFault> + '_ {
        let end = self.next.load(Ordering::Acquire);
        (end.saturating_sub(KEPT as u64)..end)
            .rev()
            .filter_map(|number| self.read(number))
    }

    fn read(&self, number: u64) -> Option<SlowFault> {
        let entry = &self.ring[number as usize % KEPT];
        let is_it = || entry.ticket.load(Ordering::Acquire) == number + 1;
        if !is_it() {
            return None;
        }
        let who = entry.who.load(Ordering::Acquire);
        let fault = SlowFault {
            page: entry.page.load(Ordering::Acquire),
            // A tenant's processes can write anything here.
            cause: *Cause::ALL.get(who as usize & 0xff)?,
            pid: (who >> 8) as u32,
            ns: entry.ns.load(Ordering::Acquire),
            when_ns: entry.when_ns.load(Ordering::Acquire),
        };
        is_it().then_some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn the_last_are_kept_and_all_are_summed() {
        // SAFETY: atomics, for which zeros are valid.
        let slow: Box<SlowFaults> = unsafe { Box::new(core::mem::zeroed()) };
        assert_eq!(slow.last().count(), 0);
        let fault = |i: u64| SlowFault {
            page: i << 12,
            cause: Cause::ALL[i as usize % CAUSES],
            pid: 7,
            ns: SLOW_NS + i,
            when_ns: i,
        };
        for i in 0..200 {
            slow.note(&fault(i));
        }
        let last: Vec<_> = slow.last().collect();
        let expected: Vec<_> = (200 - KEPT as u64..200).rev().map(fault).collect();
        assert_eq!(last, expected);
        let all = Cause::ALL.iter().map(|c| slow.sum(*c));
        let (n, ns) = all.fold((0, 0), |(n, ns), (m, ms)| (n + m, ns + ms));
        assert_eq!((n, ns), (200, 200 * SLOW_NS + 199 * 100));
        let mut names: Vec<_> = Cause::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CAUSES);
    }
}
