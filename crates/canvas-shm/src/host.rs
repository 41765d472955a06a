//! The host's available memory, as the tenant's runner last measured it, and the resulting limits on the tenant. Zeros:
//! nobody measures, and only the tenant's own limits hold.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Age at which the last measurement becomes invalid, because the runner was killed or stopped.
pub const SILENT_NS: u64 = 3_000_000_000;

/// The runner's measurements.
#[repr(C)]
pub struct HostWatch {
    /// Number of measurements; wraps. A process that wants one waits on it (a futex).
    pub looks: AtomicU32,
    /// 1 while the host is short: it has no more than its reserve, or nearly so.
    short: AtomicU32,
    /// Time of the last measurement (CLOCK_MONOTONIC); 0 for none.
    looked_ns: AtomicU64,
    /// Limit on the pool while the host is short, in bytes; 0 for no limit.
    pool_max_bytes: AtomicI64,
    /// Limit on local memory while the host is short, in pages; 0 for no limit.
    local_max_pages: AtomicI64,
    /// How far the pool may grow until the next measurement, in bytes; 0 for no limit.
    pool_step_bytes: AtomicI64,
    /// The host's available memory.
    pub available_bytes: AtomicU64,
    /// Memory to leave to the host.
    pub reserve_bytes: AtomicU64,
    /// Counts requests for an immediate measurement; wraps. The runner waits on it (a futex).
    pub wanted: AtomicU32,
    _pad: u32,
}

impl HostWatch {
    /// Stores a measurement of a host that is not short: the pool may grow up to `pool_bytes`.
    pub fn allow(&self, pool_bytes: u64, now_ns: u64) {
        self.pool_step_bytes
            .store(at_least_1(pool_bytes), Ordering::Relaxed);
        self.pool_max_bytes.store(0, Ordering::Relaxed);
        self.local_max_pages.store(0, Ordering::Relaxed);
        self.looked(0, now_ns);
    }
    /// Stores a measurement of a host that is short: limits on the pool and on local memory.
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
    /// Drops a measurement that is too old.
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
    /// Drops the step, because no measurement comes: the runner is delayed, stopped or gone.
    pub fn forget_step(&self) {
        self.pool_step_bytes.store(0, Ordering::Relaxed);
    }
    /// Whether the host is short of memory.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }
    /// Number of measurements; wraps.
    pub fn looks(&self) -> u32 {
        self.looks.load(Ordering::Acquire)
    }
    /// Requests an immediate measurement; the caller wakes the waiter of [`HostWatch::wanted`].
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Release);
    }
    /// Limit on the pool in bytes, while the host is short.
    #[inline]
    pub fn pool_max(&self) -> Option<i64> {
        some(&self.pool_max_bytes)
    }
    /// Limit on local memory in pages, while the host is short.
    #[inline]
    pub fn local_max(&self) -> Option<i64> {
        some(&self.local_max_pages)
    }
    /// Whether a pool of `pool_bytes` would exceed what is allowed until the next measurement.
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
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_hosts_bounds_hold_beside_the_tenants_own() {
        let (s, _) = crate::tenant();
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
