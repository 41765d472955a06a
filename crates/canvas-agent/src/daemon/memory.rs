//! The memory of its host that an agent divides among all its tenants.

use std::fmt::Display;
use std::time::{Duration, Instant};

use canvas_place::elastic::{PATIENCE, ROUNDS_IN_S};
use canvas_shm::segment::{Counter, Segment};
use tracing::warn;

use super::error::AdmissionError;
use super::listener::TenantEntry;
use super::pool::HostPool;
use super::shared::HostShared;
use super::tenant::{Service, Tenant};

/// Time between two rounds of a division.
pub(super) const ROUND: Duration = Duration::from_millis(1000 / ROUNDS_IN_S as u64);
/// How long a tenant may keep memory that was revoked, in s.
pub(super) const PATIENCE_S: usize = PATIENCE / ROUNDS_IN_S;

/// Logs `what` about a tenant when it becomes true, and not again while it stays true.
pub(super) fn warn_once(so: bool, was_said: &mut bool, s: &TenantEntry, what: impl Display) {
    if so && !*was_said {
        let (tenant, user) = (&s.tenant.hello.name, s.tenant.uid);
        warn!(%tenant, user, "the tenant {what}");
    }
    *was_said = so;
}

/// Sum of these page counters of a tenant.
pub(super) fn pages_of(segment: &Segment, of: &[Counter]) -> u64 {
    let all = of.iter().map(|c| segment.total(*c));
    all.fold(0, u64::wrapping_add)
}

/// The host's pool and shared memory, each limited or not.
pub struct HostMemory {
    /// Compressed memory.
    pub pool: HostPool,
    /// Resident memory that forks share.
    pub shared: HostShared,
}

impl HostMemory {
    /// Why no more tenants can be added, if so.
    pub fn is_full(&self) -> Option<AdmissionError> {
        self.pool.is_full()
    }

    /// Why this tenant cannot be added, if so.
    pub fn is_full_for(&self, tenant: &Tenant) -> Option<AdmissionError> {
        self.shared.is_full_for(tenant)
    }

    /// Starts with these tenants, all new to this agent.
    pub fn begin(&mut self, service: &Service, entries: &[TenantEntry]) {
        self.pool.begin(service, entries);
        self.shared.begin(service, entries);
    }

    /// This tenant was added, and is among `entries`.
    pub fn admit(&mut self, service: &Service, new: &TenantEntry, entries: &[TenantEntry]) {
        self.pool.admit(service, &[new], entries);
        self.shared.admit(service, &[new], entries);
    }

    /// A tenant has ended.
    pub fn remove(&mut self, id: u64, entries: &[TenantEntry]) {
        self.pool.remove(id, entries);
        self.shared.remove(id, entries);
    }

    /// A tenant's ceiling, weight or floor has changed.
    pub fn change(&mut self, service: &Service, changed: &TenantEntry, entries: &[TenantEntry]) {
        self.pool.change(service, changed, entries);
        self.shared.change(service, changed, entries);
    }

    /// When the next round is due.
    pub fn due(&self) -> Option<Instant> {
        self.pool.due().into_iter().chain(self.shared.due()).min()
    }

    /// Runs the rounds that are due.
    pub fn tend(&mut self, service: &Service, entries: &[TenantEntry]) {
        self.pool.tend(entries);
        self.shared.tend(service, entries);
    }
}
