//! What the host has left, as the tenant's runner saw it last, and what that allows the tenant. Zeros: nobody
//! looks, and the tenant's own bounds alone hold.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// So long without a look, and what it said holds no more: the runner was killed or stopped.
pub const SILENT_NS: u64 = 3_000_000_000;

/// The runner's looks.
#[repr(C)]
pub struct HostWatch {
    /// How many looks there were; wraps. Who wants one waits on it (a futex).
    pub looks: AtomicU32,
    /// 1 while the host is short: it has no more than its reserve, or nearly so.
    short: AtomicU32,
    /// When the last one was (CLOCK_MONOTONIC); 0 for none.
    looked_ns: AtomicU64,
    /// What the pool may come to while the host is short, in bytes; 0 for no bound.
    pool_max_bytes: AtomicI64,
    /// The same of local memory, in pages.
    local_max_pages: AtomicI64,
    /// How far the pool may grow until the next look; 0 for no bound.
    pool_step_bytes: AtomicI64,
    /// What the host had left.
    pub available_bytes: AtomicU64,
    /// What is to be left to it.
    pub reserve_bytes: AtomicU64,
    /// How often somebody wanted the next look at once; wraps. The runner waits on it (a futex).
    pub wanted: AtomicU32,
    _pad: u32,
}

impl HostWatch {
    /// A look at a host that is not short: the pool may grow up to `pool_bytes`.
    pub fn allow(&self, pool_bytes: u64, now_ns: u64) {
        self.pool_step_bytes
            .store(at_least_1(pool_bytes), Ordering::Relaxed);
        self.pool_max_bytes.store(0, Ordering::Relaxed);
        self.local_max_pages.store(0, Ordering::Relaxed);
        self.looked(0, now_ns);
    }
    /// A look at one that is short: bounds of the pool and of local memory.
    pub fn bound(&self, pool_bytes: u64, local_pages: u64, now_ns: u64) {
        self.pool_max_bytes
            .store(at_least_1(pool_bytes), Ordering::Relaxed);
        self.local_max_pages
            .store(at_least_1(local_pages), Ordering::Relaxed);
        self.pool_step_bytes.store(0, Ordering::Relaxed);
        self.looked(1, now_ns);
    }
    fn looked(&self, short: u32, now_ns: u64) {
        self.short.store(short, Ordering::Relaxed);
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        self.looks.fetch_add(1, Ordering::Release);
    }
    /// Forgets a look that is too old.
    pub fn forget_old(&self, now_ns: u64) {
        let looked = self.looked_ns.load(Ordering::Relaxed);
        if looked == 0 || now_ns < looked.saturating_add(SILENT_NS) {
            return;
        }
        self.short.store(0, Ordering::Relaxed);
        for bound in [
            &self.pool_max_bytes,
            &self.local_max_pages,
            &self.pool_step_bytes,
        ] {
            bound.store(0, Ordering::Relaxed);
        }
    }
    /// Forgets the step, because no look comes: the runner is held up, stopped or gone.
    pub fn forget_step(&self) {
        self.pool_step_bytes.store(0, Ordering::Relaxed);
    }
    /// Is the host short of memory?
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }
    /// How often it was looked at.
    pub fn looks(&self) -> u32 {
        self.looks.load(Ordering::Acquire)
    }
    /// Asks for a look at once; the caller wakes who waits on [`HostWatch::wanted`].
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Release);
    }
    /// Bound on the pool, while the host is short.
    #[inline]
    pub fn pool_max(&self) -> Option<i64> {
        some(&self.pool_max_bytes)
    }
    /// Bound on local memory in pages, while the host is short.
    #[inline]
    pub fn local_max(&self) -> Option<i64> {
        some(&self.local_max_pages)
    }
    /// Would a pool of so many bytes be more than what is allowed until the next look?
    #[inline]
    pub fn is_past_step(&self, pool_bytes: i64) -> bool {
        some(&self.pool_step_bytes).is_some_and(|step| pool_bytes > step)
    }
}

fn some(bound: &AtomicI64) -> Option<i64> {
    let value = bound.load(Ordering::Relaxed);
    (value != 0).then_some(value)
}

fn at_least_1(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX).max(1)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use crate::Segment;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_hosts_bounds_hold_beside_the_tenants_own() {
        let (_fd, s) = Segment::create(false).unwrap();
        s.config.pool_bytes.store(1000, Relaxed);
        s.config.local_bytes.store(100 << 12, Relaxed);
        let slot = &s.procs[0];
        assert_eq!((s.pool_bound(), s.local_limit_pages()), (1000, Some(100)));
        s.host.allow(300, 5);
        assert_eq!(s.pool_bound(), 1000, "a step is no bound");
        assert!(s.charge_pool(slot, 300) && !s.charge_pool(slot, 1));
        s.host.allow(301, 6);
        assert!(s.charge_pool(slot, 1));
        s.host.bound(200, 40, 7);
        assert!(s.host.is_short());
        assert_eq!((s.pool_bound(), s.local_limit_pages()), (200, Some(40)));
        assert!(!s.charge_pool(slot, 1) && s.charge_pool(slot, -1));
        s.host.bound(5000, 4000, 8);
        assert_eq!((s.pool_bound(), s.local_limit_pages()), (1000, Some(100)));
        s.host.bound(200, 40, 9);
        s.host.forget_old(9 + super::SILENT_NS - 1);
        assert_eq!(s.pool_bound(), 200);
        s.host.forget_old(9 + super::SILENT_NS);
        assert_eq!((s.pool_bound(), s.local_limit_pages()), (1000, Some(100)));
    }
}
