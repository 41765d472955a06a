//! One pool for all tenants of a host: grants and revokes its slabs by swap traffic ([`canvas_place::elastic`]
//! decides).
//!
//! A tenant's pool is in memory of its own processes, and its limit is in its segment: a grant or revocation writes
//! another limit there. The processes demote what exceeds it to the next tier. The grant is also stored in the tenant's
//! journal, where its runners read it and the next agent continues from it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use canvas_place::elastic::{Bounds, Newcomer, Pools, Reading, SLAB_BYTES, TENANTS_MIN, slabs_of};
use canvas_shm::segment::{Counter, Segment};
use canvas_types::units::Size;
use tracing::warn;

use super::error::{AdmissionError, HostPoolError};
use super::listener::TenantEntry;
use super::memory::{PATIENCE_S, ROUND, pages_of, warn_once};
use super::tenant::{Service, Tenant};
use crate::members::wake_all;
use canvas_control::terms::Terms;

/// The smallest pool of a host: four tenants find a floor in it.
pub const POOL_MIN: Size = Size::from_bytes(TENANTS_MIN * 4 * SLAB_BYTES);

/// The host's pool, if it is limited.
pub struct HostPool {
    policy: Option<Pools>,
    known: BTreeMap<u64, TenantLimit>,
    next: Instant,
}

/// A tenant, beside what the policy knows.
struct TenantLimit {
    /// The limit written into its segment, in bytes.
    written: u64,
    /// Pages that it had swapped at the last check.
    pages: u64,
    /// It has overwritten its limit, and that was logged.
    is_named: bool,
    /// It holds more than it was granted, and that was logged.
    is_overdue: bool,
}

impl HostPool {
    /// A pool of `bytes` for all tenants; `None` for no limit. The tenants' floors must fit.
    pub fn new(
        bytes: Option<Size>,
        terms: &BTreeMap<String, Terms>,
    ) -> Result<HostPool, HostPoolError> {
        let policy = match bytes {
            None => None,
            Some(size) if size < POOL_MIN => return Err(HostPoolError::TooLittle(size)),
            Some(size) => {
                let policy = Pools::new(size.bytes / SLAB_BYTES);
                let floors = terms.values().filter_map(|t| t.pool_floor_bytes);
                let floors = floors.map(slabs_of).sum();
                if !policy.allows_floors(floors) {
                    return Err(HostPoolError::Floors {
                        floors: Size::from_bytes(floors.saturating_mul(SLAB_BYTES)),
                        pool: size,
                    });
                }
                Some(policy)
            }
        };
        Ok(HostPool {
            policy,
            known: BTreeMap::new(),
            next: Instant::now() + ROUND,
        })
    }

    /// Why no more tenants can be added, if so.
    pub fn is_full(&self) -> Option<AdmissionError> {
        let most = self.policy.as_ref()?.tenants_max();
        (self.known.len() >= most).then_some(AdmissionError::Pool(most))
    }

    /// Starts with these tenants, all new to this agent.
    pub fn begin(&mut self, service: &Service, entries: &[TenantEntry]) {
        self.known.clear();
        if let Some(policy) = &mut self.policy {
            *policy = Pools::new(policy.slabs());
        }
        let all: Vec<&TenantEntry> = entries.iter().collect();
        self.admit(service, &all, entries);
    }

    /// These tenants were added, and are among `entries`.
    pub fn admit(
        &mut self,
        service: &Service,
        newcomers: &[&TenantEntry],
        entries: &[TenantEntry],
    ) {
        let Some(policy) = &mut self.policy else {
            for s in newcomers {
                // An earlier agent may have granted it less.
                noted(&s.tenant, s.tenant.free_pool());
            }
            return;
        };
        look(policy, &mut self.known, entries);
        let newcomers: Vec<Newcomer> = newcomers
            .iter()
            .map(|s| {
                let pages = pages(s.tenant.lease().segment());
                let had = s.tenant.pool_grant();
                let known = TenantLimit {
                    written: had.unwrap_or(s.tenant.pool_ceiling),
                    pages,
                    is_named: false,
                    is_overdue: false,
                };
                let reading = reading(&s.tenant, &known, pages);
                self.known.insert(s.id, known);
                Newcomer {
                    id: s.id,
                    bounds: bounds(&s.tenant, service),
                    had: had.map(slabs_of),
                    reading,
                }
            })
            .collect();
        policy.admit(&newcomers);
        self.apply(entries);
    }

    /// A tenant has ended.
    pub fn remove(&mut self, id: u64, entries: &[TenantEntry]) {
        self.known.remove(&id);
        if let Some(policy) = &mut self.policy {
            policy.remove(id);
        }
        self.apply(entries);
    }

    /// A tenant's ceiling, weight or floor has changed.
    pub fn change(&mut self, service: &Service, changed: &TenantEntry, entries: &[TenantEntry]) {
        if let Some(policy) = &mut self.policy {
            look(policy, &mut self.known, entries);
            policy.set_bounds(changed.id, bounds(&changed.tenant, service));
        }
        self.apply(entries);
    }

    /// When the next round is due.
    pub fn due(&self) -> Option<Instant> {
        (!self.known.is_empty()).then_some(self.next)
    }

    /// Runs the round that is due.
    pub fn tend(&mut self, entries: &[TenantEntry]) {
        let now = Instant::now();
        let Some(policy) = self.policy.as_mut().filter(|_| self.next <= now) else {
            return;
        };
        self.next = now + ROUND;
        look(policy, &mut self.known, entries);
        policy.round();
        for s in entries {
            let Some(known) = self.known.get_mut(&s.id) else {
                continue;
            };
            let is_overdue = policy.is_overdue(s.id);
            warn_once(
                is_overdue,
                &mut known.is_overdue,
                s,
                format_args!(
                    "has more in its pool than it was granted in the last {PATIENCE_S} s: its far memory is full or slow, or its programs ignore their limit"
                ),
            );
        }
        self.apply(entries);
    }

    /// Writes each limit that has changed, or that the tenant has overwritten.
    fn apply(&mut self, entries: &[TenantEntry]) {
        let Some(policy) = &self.policy else { return };
        for s in entries {
            let Some(known) = self.known.get_mut(&s.id) else {
                continue;
            };
            let segment = s.tenant.lease().segment();
            let grant = policy.grant(s.id).saturating_mul(SLAB_BYTES);
            let grant = grant.min(s.tenant.pool_ceiling);
            let there = segment.config.pool_bytes.load(Relaxed);
            noted(&s.tenant, s.tenant.grant_pool(grant));
            if there != grant {
                segment.config.pool_bytes.store(grant, Relaxed);
            }
            if there > grant {
                wake_all(segment);
            }
            known.written = grant;
        }
    }
}

fn noted(tenant: &Tenant, noted: Result<(), AdmissionError>) {
    if let Err(why) = noted {
        warn!(tenant = %tenant.hello.name, "{why}");
    }
}

fn bounds(tenant: &Tenant, service: &Service) -> Bounds {
    let floor = service.terms(&tenant.hello.name).pool_floor_bytes;
    Bounds {
        weight: tenant.share(service).weight,
        floor: floor.map(slabs_of),
        ceiling: slabs_of(tenant.pool_ceiling),
    }
}

/// Reads all tenants' figures, and logs those that have overwritten their limit.
fn look(policy: &mut Pools, known: &mut BTreeMap<u64, TenantLimit>, entries: &[TenantEntry]) {
    for s in entries {
        let Some(known) = known.get_mut(&s.id) else {
            continue;
        };
        let segment = s.tenant.lease().segment();
        if segment.config.pool_bytes.load(Relaxed) != known.written {
            let what = "has overwritten the limit on its pool in its segment; the agent restores it each time, and logs this once";
            warn_once(true, &mut known.is_named, s, what);
        }
        let now = pages(segment);
        policy.read(s.id, reading(&s.tenant, known, now));
        known.pages = now;
    }
}

/// Pages that a tenant has swapped in and out, by its own count, including those that its programs share.
fn pages(segment: &Segment) -> u64 {
    use Counter::{PagesIn, PagesOut, SharedIn, SharedOut};
    pages_of(segment, &[PagesIn, PagesOut, SharedIn, SharedOut])
}

/// A tenant's figures, by its own count.
fn reading(tenant: &Tenant, known: &TenantLimit, pages: u64) -> Reading {
    let (segment, far) = (tenant.lease().segment(), tenant.lease().far());
    let used_bytes = segment.pool_used();
    let spill_percent = far.spill_percent.load(Relaxed).clamp(1, 100);
    let slabs_used = far.slabs_used.load(Relaxed).max(0) as u64;
    // The last slab may have room; but a tenant that stays above its mark has found none.
    let mark = known.written / 100 * spill_percent;
    let is_pinned = slabs_used >= tenant.hello.slabs as u64 && used_bytes > mark + mark / 16;
    Reading {
        used_bytes,
        spill_percent,
        pinned_bytes: if is_pinned { used_bytes } else { 0 },
        pages: pages.saturating_sub(known.pages),
    }
}
