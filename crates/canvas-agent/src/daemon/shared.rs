//! One limit for all tenants of a host on the resident pages that their forks share (`canvas run --shared`), divided by
//! use ([`canvas_place::elastic`] decides).
//!
//! Such pages are in memory of the tenants' own processes, which obey the smaller of two limits: their run's
//! `--shared`, and the grant that the agent writes into their segment. They evict what exceeds it. A tenant is granted
//! one slab when it starts, before the agent knows whether it has such pages, so that no tenant is unlimited until the
//! next round.
//!
//! An agent that ends, or dies, leaves the last grants in force. The sum of what the runs asked for may be far above
//! what the host has, and without grants all of them would grow while no agent runs. The next agent continues from the
//! grants, or lifts them if its file has no section `[shared]`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_place::elastic::{Bounds, Newcomer, Pools, Reading, SLAB_BYTES, slabs_of};
use canvas_shm::segment::{Counter, Segment};
use canvas_types::units::Size;

use super::error::{AdmissionError, HostSharedError};
use super::listener::TenantEntry;
use super::memory::{PATIENCE_S, ROUND, pages_of, warn_once};
use super::pool::POOL_MIN;
use super::tenant::{Service, Tenant};
use crate::members::wake_all;
use canvas_control::hello::SMALL_MIN;
use canvas_control::terms::Terms;

/// The smallest limit of a host: as for a pool, four tenants find a floor in it.
pub const LOCAL_MIN: Size = POOL_MIN;
/// Delay of the first round of an agent that took nothing over: by then the tenants of an agent that died are back,
/// with their grants.
const RETURN: Duration = Duration::from_secs(3);
/// Percent of its limit to which a tenant's reclaim threads reduce such pages.
const RECLAIMED_PERCENT: u64 = 93;

/// Section `[shared]` of an agent's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Most resident shared memory of all tenants together.
    pub local: Size,
    /// What a tenant always keeps, unless its own section sets another floor.
    pub floor: Option<Size>,
    /// Most that a tenant may have.
    pub ceiling: Option<Size>,
}

/// The host's limit, if there is one.
pub struct HostShared {
    policy: Option<(Section, Pools)>,
    known: BTreeMap<u64, TenantGrant>,
    next: Instant,
}

/// A tenant, beside what the policy knows.
struct TenantGrant {
    /// What its run asked for at the last check, in bytes; 0 for nothing yet.
    asked: u64,
    /// The policy has it: its run has asked for something once.
    is_divided: bool,
    /// The grant written into its segment, in bytes.
    written: u64,
    /// Its grant under the previous agent.
    had: Option<u64>,
    /// Pages that had become resident at the last check.
    pages: u64,
    /// It has overwritten its grant, and that was logged.
    is_named: bool,
    /// It has more in memory than it was granted, or finds no room in the limit, and that was logged.
    is_overdue: bool,
}

impl HostShared {
    /// With the section's limits, where there is one. The tenants' floors must fit.
    pub fn new(
        section: Option<Section>,
        terms: &BTreeMap<String, Terms>,
    ) -> Result<HostShared, HostSharedError> {
        let policy = match section {
            None => None,
            Some(section) => Some((section, judge(&section, terms)?)),
        };
        Ok(HostShared {
            policy,
            known: BTreeMap::new(),
            next: Instant::now() + ROUND,
        })
    }

    /// Why this tenant cannot be added, if so: all slabs of the limit are other tenants' first ones.
    pub fn is_full_for(&self, tenant: &Tenant) -> Option<AdmissionError> {
        let (section, policy) = self.policy.as_ref()?;
        let divided = divided(&self.known);
        let is_full = asked(tenant.lease().segment()) != 0 && divided >= policy.slabs();
        is_full.then_some(AdmissionError::Shared(section.local))
    }

    /// Starts with these tenants, all new to this agent.
    pub fn begin(&mut self, service: &Service, entries: &[TenantEntry]) {
        self.known.clear();
        if entries.is_empty() {
            self.next = Instant::now() + RETURN;
        }
        if let Some((_, policy)) = &mut self.policy {
            *policy = policy.emptied();
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
        if self.policy.is_none() {
            for s in newcomers {
                // An earlier agent may have granted it less.
                s.tenant.lease().segment().shared.bytes.store(0, Relaxed);
            }
            return;
        }
        for s in newcomers {
            let segment = s.tenant.lease().segment();
            let there = segment.shared.bytes.load(Relaxed);
            let known = TenantGrant {
                asked: 0,
                is_divided: false,
                written: there,
                had: (there != 0 && asked(segment) != 0).then_some(there),
                pages: pages(segment),
                is_named: false,
                is_overdue: false,
            };
            self.known.insert(s.id, known);
        }
        self.look(service, entries);
        self.apply(entries);
    }

    /// A tenant has ended.
    pub fn remove(&mut self, id: u64, entries: &[TenantEntry]) {
        self.known.remove(&id);
        if let Some((_, policy)) = &mut self.policy {
            policy.remove(id);
        }
        self.apply(entries);
    }

    /// A tenant's weight has changed.
    pub fn change(&mut self, service: &Service, changed: &TenantEntry, entries: &[TenantEntry]) {
        self.look(service, entries);
        if let (Some((section, policy)), Some(known)) =
            (&mut self.policy, self.known.get(&changed.id))
            && known.is_divided
        {
            let bounds = bounds(section, &changed.tenant, service, known.asked);
            policy.set_bounds(changed.id, bounds);
        }
        self.apply(entries);
    }

    /// When the next round is due.
    pub fn due(&self) -> Option<Instant> {
        (!self.known.is_empty()).then_some(self.next)
    }

    /// Runs the round that is due.
    pub fn tend(&mut self, service: &Service, entries: &[TenantEntry]) {
        let now = Instant::now();
        if self.policy.is_none() || self.next > now {
            return;
        }
        self.next = now + ROUND;
        self.look(service, entries);
        let Some((_, policy)) = &mut self.policy else {
            return;
        };
        policy.round();
        for s in entries {
            let Some(known) = self.known.get_mut(&s.id).filter(|k| k.is_divided) else {
                continue;
            };
            let is_overdue = policy.is_overdue(s.id);
            warn_once(
                is_overdue,
                &mut known.is_overdue,
                s,
                format_args!(
                    "has more shared memory in memory than it was granted in the last {PATIENCE_S} s: its calls hold pages, its far memory is full or slow, or its programs ignore their limit"
                ),
            );
        }
        self.apply(entries);
    }

    /// Reads all tenants' figures: what they use, whose runs ask for something new, and which have overwritten their
    /// grant.
    fn look(&mut self, service: &Service, entries: &[TenantEntry]) {
        let Some((section, policy)) = &mut self.policy else {
            return;
        };
        let mut newcomers = Vec::new();
        for s in entries {
            let Some(known) = self.known.get_mut(&s.id) else {
                continue;
            };
            let segment = s.tenant.lease().segment();
            if known.is_divided && segment.shared.bytes.load(Relaxed) != known.written {
                warn_once(
                    true,
                    &mut known.is_named,
                    s,
                    "has overwritten the limit on its shared memory in its segment; the agent restores it each time, and logs this once",
                );
            }
            let (before, now) = (known.asked, asked(segment));
            let come = pages(segment);
            let reading = reading(&s.tenant, come.saturating_sub(known.pages));
            (known.asked, known.pages) = (now, come);
            if known.is_divided {
                if now != before {
                    policy.set_bounds(s.id, bounds(section, &s.tenant, service, now));
                }
                policy.read(s.id, reading);
            } else if now != 0 {
                newcomers.push(Newcomer {
                    id: s.id,
                    bounds: bounds(section, &s.tenant, service, now),
                    had: known.had.map(slabs_of),
                    reading,
                });
            }
        }
        let divided = divided(&self.known);
        let places = policy.slabs().saturating_sub(divided) as usize;
        // They are not refused, because their runs have started. Each stays with the slab that it has.
        for new in newcomers.split_off(newcomers.len().min(places)) {
            if let Some(s) = entries.iter().find(|s| s.id == new.id)
                && let Some(known) = self.known.get_mut(&new.id)
            {
                warn_once(
                    true,
                    &mut known.is_overdue,
                    s,
                    "has 2M beyond the limit on shared memory ([shared]), which has no slab left; raise its local",
                );
            }
        }
        for new in &newcomers {
            if let Some(known) = self.known.get_mut(&new.id) {
                known.is_divided = true;
            }
        }
        policy.admit(&newcomers);
    }

    /// Writes each grant that has changed, or that the tenant has overwritten.
    fn apply(&mut self, entries: &[TenantEntry]) {
        let Some((_, policy)) = &self.policy else {
            return;
        };
        for s in entries {
            let Some(known) = self.known.get_mut(&s.id) else {
                continue;
            };
            let segment = s.tenant.lease().segment();
            let grant = match known.is_divided {
                true => (policy.grant(s.id).saturating_mul(SLAB_BYTES)).min(known.asked),
                false => SLAB_BYTES,
            };
            let grant = grant.max(SMALL_MIN.bytes);
            let there = segment.shared.bytes.load(Relaxed);
            if there != grant {
                segment.shared.bytes.store(grant, Relaxed);
            }
            if there > grant && known.is_divided {
                wake_all(segment);
            }
            known.written = grant;
        }
    }
}

/// How many tenants the policy has.
fn divided(known: &BTreeMap<u64, TenantGrant>) -> u64 {
    known.values().filter(|k| k.is_divided).count() as u64
}

/// The policy of a section, if its sizes are consistent.
fn judge(section: &Section, terms: &BTreeMap<String, Terms>) -> Result<Pools, HostSharedError> {
    let local = section.local;
    if local < LOCAL_MIN {
        return Err(HostSharedError::TooLittle(local));
    }
    let policy = Pools::pulling(local.bytes / SLAB_BYTES);
    if let Some(floor) = section.floor
        && !policy.allows_floors(slabs_of(floor.bytes))
    {
        return Err(HostSharedError::Floor { floor, local });
    }
    if let Some(ceiling) = section.ceiling {
        if ceiling > local {
            return Err(HostSharedError::CeilingAbove { ceiling, local });
        }
        if let Some(floor) = section.floor.filter(|floor| *floor > ceiling) {
            return Err(HostSharedError::CeilingBelow { ceiling, floor });
        }
    }
    let floors = terms.values().filter_map(|t| t.shared_floor_bytes);
    let floors = floors.map(slabs_of).fold(0, u64::saturating_add);
    if !policy.allows_floors(floors) {
        return Err(HostSharedError::Floors {
            floors: Size::from_bytes(floors.saturating_mul(SLAB_BYTES)),
            local,
        });
    }
    Ok(policy)
}

fn bounds(section: &Section, tenant: &Tenant, service: &Service, asked: u64) -> Bounds {
    let settled = service.terms(&tenant.hello.name).shared_floor_bytes;
    let floor = settled.or(section.floor.map(|size| size.bytes));
    let ceiling = section.ceiling.map_or(u64::MAX, |size| size.bytes);
    Bounds {
        weight: tenant.share(service).weight,
        floor: floor.map(slabs_of),
        ceiling: slabs_of(asked.min(ceiling)),
    }
}

/// What a tenant's run asks for (`--shared`), in bytes; 0 for nothing.
fn asked(segment: &Segment) -> u64 {
    segment.config.shared_bytes.load(Relaxed)
}

/// Pages that have become resident, by the tenant's own count: those faulted back in, and new ones. Evictions do not
/// count, because a revocation causes them and shows no demand.
fn pages(segment: &Segment) -> u64 {
    pages_of(segment, &[Counter::SharedIn, Counter::SharedNew])
}

/// A tenant's figures, by its own count.
fn reading(tenant: &Tenant, pages: u64) -> Reading {
    let (segment, far) = (tenant.lease().segment(), tenant.lease().far());
    let used_bytes = segment.shared.used_bytes.load(Relaxed);
    // Nothing can be evicted where the pool and far memory are full.
    let slabs_used = far.slabs_used.load(Relaxed).max(0) as u64;
    let bound = segment.config.pool_bytes.load(Relaxed);
    let is_pinned =
        slabs_used >= tenant.hello.slabs as u64 && segment.pool_used() >= bound - bound / 16;
    Reading {
        used_bytes,
        spill_percent: RECLAIMED_PERCENT,
        pinned_bytes: if is_pinned { used_bytes } else { 0 },
        pages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(local: &str, floor: Option<&str>, ceiling: Option<&str>) -> Section {
        let size = |text: &str| text.parse().unwrap();
        Section {
            local: size(local),
            floor: floor.map(size),
            ceiling: ceiling.map(size),
        }
    }

    fn why(section: Section, floors: &[u64]) -> Option<String> {
        let terms = |(i, mib): (usize, &u64)| {
            let shared_floor_bytes = Some(mib << 20);
            let terms = Terms {
                shared_floor_bytes,
                ..Terms::default()
            };
            (i.to_string(), terms)
        };
        let terms = floors.iter().enumerate().map(terms).collect();
        let made = HostShared::new(Some(section), &terms);
        made.err().map(|e| e.to_string())
    }

    #[test]
    fn a_section_whose_sizes_do_not_go_together_is_refused_with_a_sentence() {
        let free = HostShared::new(None, &BTreeMap::new()).unwrap();
        assert!(free.policy.is_none() && free.due().is_none());
        for (local, floor, ceiling, floors) in [
            ("32M", None, None, &[][..]),
            ("32M", Some("24M"), Some("32M"), &[12, 12]),
            ("1G", Some("8M"), Some("8M"), &[]),
        ] {
            assert_eq!(why(section(local, floor, ceiling), floors), None);
        }
        for (local, floor, ceiling, floors, want) in [
            (
                "31M",
                None,
                None,
                &[][..],
                "31M is too small for several tenants; write 32M or more",
            ),
            (
                "64M",
                Some("49M"),
                None,
                &[],
                "floor 49M is more than three quarters of local 64M; write less, or more local",
            ),
            (
                "64M",
                None,
                Some("65M"),
                &[],
                "ceiling 65M is more than local 64M; write 64M or less",
            ),
            (
                "64M",
                Some("16M"),
                Some("8M"),
                &[],
                "ceiling 8M is less than floor 16M; write 16M or more",
            ),
            (
                "64M",
                None,
                None,
                &[32, 17],
                "(shared_floor) come to 50M, which is more than three quarters of local 64M",
            ),
        ] {
            let got = why(section(local, floor, ceiling), floors).unwrap_or_default();
            assert!(got.contains(want), "{got}");
        }
    }
}
