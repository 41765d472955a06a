//! Tenants prepared for future runs (`canvas agent --warm N`).
//!
//! A prepared tenant has everything but a run: its segment, which the agent creates, journal and backing files, and
//! connections to its donors. It has a random name and no slab, and no agent takes it over. The run that takes it
//! ([`Ask::Take`]) becomes its owner, with the copies policy changed where the run wants another; then the next one is
//! prepared.
//!
//! [`Ask::Take`]: canvas_control::hello::Ask::Take

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use canvas_control::hello::{Asked, Hello, Take, VERSION, Wanted};
use canvas_place::dispatch::{Free, take};
use canvas_place::replicas::Policy;
use canvas_shm::map::Lease;
use canvas_shm::segment::Segment;
use nix::unistd::geteuid;
use tracing::warn;

use super::error::AdmissionError;
use super::tenant::{Service, Tenant, begin_far};
use crate::journal::random;

/// Most prepared tenants.
pub const WARM_MAX: u8 = 16;
/// Pause after a failed preparation.
const AGAIN: Duration = Duration::from_secs(5);
/// Settings of a prepared tenant until its run sets them: the part of the pool past which its oldest pages are demoted,
/// in percent, and how long a fault may wait, in ms.
const SPILL_PERCENT: u64 = 80;
const WAIT_MS: u64 = 30_000;

/// The prepared tenants, and how many there are to be.
pub(super) struct Prepared {
    wanted: usize,
    /// Each with its number in the serving threads.
    pub(super) ready: Vec<(u64, Tenant)>,
    next: Instant,
}

impl Prepared {
    /// None yet.
    pub(super) fn new(wanted: u8) -> Prepared {
        Prepared {
            wanted: wanted.min(WARM_MAX).into(),
            ready: Vec::new(),
            next: Instant::now(),
        }
    }

    /// When to prepare the next one; `None` when there are enough.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.ready.len() < self.wanted).then_some(self.next)
    }

    /// Prepares one more, if it is time for it.
    pub(super) fn prepare(&mut self, service: &Service) -> Option<Tenant> {
        let now = Instant::now();
        self.due().filter(|due| *due <= now)?;
        match prepare(service) {
            Ok(tenant) => Some(tenant),
            Err(why) => {
                self.failed(&why);
                None
            }
        }
    }

    /// A preparation failed: the next attempt is later.
    pub(super) fn failed(&mut self, why: &AdmissionError) {
        self.next = Instant::now() + AGAIN;
        warn!("cannot prepare a tenant: {why}");
    }

    /// The copies policies of the prepared tenants.
    pub(super) fn copies(&self, service: &Service) -> Vec<Policy> {
        self.ready.iter().map(|(_, t)| t.policy(service)).collect()
    }

    /// The prepared tenant that fits the request best, changed to match it and owned by `uid`; it stays prepared when
    /// that fails.
    pub(super) fn claim(
        &mut self,
        asked: &Take,
        uid: u32,
        service: &Service,
    ) -> Result<Option<(u64, Tenant)>, AdmissionError> {
        let copies = asked.copies.map_or(service.policy, Policy::from);
        let Some(Free::Same(at) | Free::Switch(at)) = take(copies, &self.copies(service)) else {
            return Ok(None);
        };
        let wanted = Take {
            copies: Some(Wanted::from(copies)),
            ..*asked
        };
        self.ready[at].1.claim(&wanted, uid, service)?;
        Ok(Some(self.ready.remove(at)))
    }
}

/// Creates a tenant without a run.
fn prepare(service: &Service) -> Result<Tenant, AdmissionError> {
    let [a, b, c, d] = random().map_err(AdmissionError::Kernel)?;
    let hello = Hello {
        version: VERSION,
        name: format!("prepared-{a:02x}{b:02x}{c:02x}{d:02x}"),
        slabs: 1,
        copies: None,
        asked: Asked::default(),
    };
    Tenant::judge(hello, geteuid().as_raw(), vec![segment()?], service)
}

/// Creates a segment as a run does, without what its run would ask for.
fn segment() -> Result<OwnedFd, AdmissionError> {
    let fd = Segment::file(true).map_err(AdmissionError::Kernel)?;
    let lease = Lease::map(&fd).map_err(AdmissionError::Kernel)?;
    lease.segment().begin();
    begin_far(lease.far(), 1, SPILL_PERCENT, WAIT_MS).map_err(AdmissionError::Kernel)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tenant::FarDir;
    use canvas_control::hello::SMALL_MIN;
    use canvas_wire::key::ClusterKey;
    use std::collections::BTreeMap;
    use std::sync::atomic::Ordering::Relaxed;

    const DISK: Policy = Policy::new(0, true);

    fn service() -> (tempfile::TempDir, Service) {
        let dir = tempfile::tempdir().unwrap();
        let service = Service {
            dirs: vec![FarDir::open(dir.path()).unwrap()],
            reserve: None,
            servers: vec!["127.0.0.1:1".parse().unwrap()],
            key: ClusterKey::without_secret(),
            policy: DISK,
            finder: None,
            terms: BTreeMap::new(),
        };
        (dir, service)
    }

    fn asked(copies: Option<Policy>) -> Take {
        Take {
            version: VERSION,
            slabs: 7,
            copies: copies.map(Wanted::from),
            pool_bytes: SMALL_MIN.bytes * 3,
            asked: Asked::default(),
        }
    }

    #[test]
    fn a_prepared_tenant_is_what_its_run_asks_for() {
        let (_dir, service) = service();
        let mut prepared = Prepared::new(2);
        for id in [4, 5] {
            assert!(prepared.due().is_some());
            let tenant = prepared.prepare(&service).unwrap();
            prepared.ready.push((id, tenant));
        }
        assert!(prepared.due().is_none() && prepared.prepare(&service).is_none());
        assert_ne!(
            prepared.ready[0].1.hello.name,
            prepared.ready[1].1.hello.name
        );

        let two = Policy { donors: 2, ..DISK };
        let why = prepared
            .claim(&asked(Some(two)), 9, &service)
            .err()
            .unwrap();
        assert!(why.to_string().contains("2 donors"), "{why}");
        assert_eq!(prepared.ready.len(), 2, "it is left");
        assert_ne!(prepared.ready[0].1.uid, 9);

        let one = Policy { donors: 1, ..DISK };
        for (id, copies, has) in [(4, Some(one), one), (5, None, DISK)] {
            let given = prepared.claim(&asked(copies), 9, &service).unwrap();
            let (got, tenant) = given.unwrap();
            assert_eq!((got, tenant.uid, tenant.policy(&service)), (id, 9, has));
            let (segment, far) = (tenant.lease().segment(), tenant.lease().far());
            assert_eq!((tenant.hello.slabs, far.slabs_max.load(Relaxed)), (7, 7));
            let pool = segment.config.pool_bytes.load(Relaxed);
            assert_eq!((tenant.pool_ceiling, pool), (3 << 20, 3 << 20));
        }
        assert!(prepared.due().is_some());
        assert!(prepared.claim(&asked(None), 9, &service).unwrap().is_none());
    }
}
