//! A tenant of the host agent: validates what its runner sent, and creates the agent for it.
//!
//! The agent creates journal and backing files itself, owned by its user and closed to everybody else. The runner keeps
//! both open, read-only, so that the next agent finds them after a crash; that agent reopens them for writing through
//! /proc, which only their owner can.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use crate::copies::LiveCopies;
use crate::disk::{self, Disk};
use crate::idle::Waker;
use crate::journal::{Journal, PoolGrant, random};
use crate::numbers::SealNumbers;
use crate::replicas::{self, Policy, Replicas};
use crate::seal::Sealer;
use crate::serve_loop::TenantAgent;
use crate::share::LiveShare;
use crate::{Agent, Setup, Share};
use canvas_link::Address;
use canvas_shm::lives::Lives;
use canvas_shm::map::Lease;
use canvas_shm::{Far, pass};
use canvas_types::units::Amount;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::error::AdmissionError;
use crate::finder::Finder;
use canvas_control::hello::SMALL_MIN;
use canvas_control::hello::{Asked, Change, Given, Hello, Offers, Settled, Take, VERSION, Wanted};
use canvas_control::terms::Terms;
use canvas_place::paths::PATHS_MAX;

/// The agent's configuration for all tenants.
pub struct Service {
    /// Directories for backing files, each on a disk of its own; none without a disk.
    pub dirs: Vec<FarDir>,
    /// Space to leave free on each of these disks.
    pub reserve: Option<Amount>,
    /// Donors.
    pub servers: Vec<Address>,
    /// The donors' key.
    pub key: ClusterKey,
    /// Copies policy of a tenant that asks for none.
    pub policy: Policy,
    /// Finds more donors, if there is gossip.
    pub finder: Option<Finder>,
    /// The operator's settings for tenants, by name.
    pub terms: BTreeMap<String, Terms>,
}

/// A far directory.
pub struct FarDir {
    path: PathBuf,
    /// The device that holds its files.
    device: (u32, u32),
}

impl FarDir {
    /// Opens a directory in which a backing file can be created.
    pub fn open(path: &Path) -> std::io::Result<FarDir> {
        let device = pass::device(&disk::create(path)?)?;
        Ok(FarDir {
            path: path.to_owned(),
            device,
        })
    }
}

/// A tenant.
pub struct Tenant {
    /// What its runner asked for, with later changes.
    pub hello: Hello,
    /// The user it belongs to.
    pub uid: u32,
    /// Device and inode of its segment, which identify it.
    pub inode: (u64, u64),
    lease: Lease,
    segment: OwnedFd,
    journal: Journal,
    /// One in each far directory of the agent that created them.
    backing: Vec<File>,
    /// Slabs that it may fill, shared with its agent.
    slabs: Arc<AtomicUsize>,
    /// Its copies policy, shared with its agent.
    copies: LiveCopies,
    /// Most that its pool may have, in bytes, whatever the other tenants do.
    pub pool_ceiling: u64,
}

impl Tenant {
    /// Creates the tenant that a runner of user `uid` asks for; the error says why it cannot.
    pub fn judge(
        mut hello: Hello,
        uid: u32,
        fds: Vec<OwnedFd>,
        service: &Service,
    ) -> Result<Tenant, AdmissionError> {
        let terms = service.terms(&hello.name);
        let settled = hello.copies.or(terms.copies);
        let mut policy = settled.map_or(service.policy, Policy::from);
        service.can(policy)?;
        let mut fds = fds.into_iter();
        let segment = fds.next().ok_or(AdmissionError::NoSegment)?;
        let lease = lease(&segment)?;
        let system = |what| move |source| AdmissionError::System { what, source };
        let (journal, backing) = match fds.next() {
            None => {
                terms.allow_copies(hello.copies)?;
                terms.allow_slabs(hello.slabs)?;
                terms.allow(&hello.asked, is_trusted(uid))?;
                let journal = Journal::create().map_err(AdmissionError::NoJournal)?;
                let private = Permissions::from_mode(0o600);
                let closed = journal.file().set_permissions(private);
                closed.map_err(system("cannot set the permissions of its journal"))?;
                let noted = journal.set_slabs_max(hello.slabs as u64);
                noted.map_err(AdmissionError::JournalUnwritable)?;
                note(&journal, &hello.asked, terms)?;
                // The copies policy may use the disks later.
                let backing = service.dirs.iter().map(|dir| {
                    disk::create(&dir.path).map_err(system("cannot create its backing file"))
                });
                (journal, backing.collect::<Result<_, _>>()?)
            }
            Some(journal) => {
                let journal = own_journal(journal)?;
                // The journal counts, not what the runner says now.
                hello.slabs = match journal.slabs_max() {
                    0 => hello.slabs,
                    noted => noted as usize,
                };
                hello.asked = asked(&journal);
                policy = journal.copies().unwrap_or(policy);
                service.can(policy)?;
                note(&journal, &hello.asked, terms)?;
                let files: Vec<OwnedFd> = fds.by_ref().take(PATHS_MAX).collect();
                let is_kept = !service.dirs.is_empty();
                if files.is_empty() && policy.disk || !files.is_empty() && !is_kept {
                    return Err(AdmissionError::Backing);
                }
                let backing = files.into_iter().map(|fd| own_backing(fd, &service.dirs));
                (journal, backing.collect::<Result<_, _>>()?)
            }
        };
        if fds.next().is_some() {
            return Err(AdmissionError::TooManyDescriptors);
        }
        hello.copies = Some(Wanted::from(policy));
        Tenant::of(hello, uid, lease, segment, journal, backing, terms)
    }

    /// Takes a tenant over from the previous agent, which is trusted, with its runners' connections.
    pub fn given(
        given: Given,
        fds: Vec<OwnedFd>,
        service: &Service,
    ) -> Result<(Tenant, Vec<OwnedFd>), AdmissionError> {
        let missing = || AdmissionError::DescriptorMissing;
        let mut fds = fds.into_iter();
        let policy = given.hello.copies.ok_or(AdmissionError::CopiesUnknown)?;
        let policy = Policy::from(policy);
        let segment = fds.next().ok_or_else(missing)?;
        let journal =
            Journal::open(fds.next().ok_or_else(missing)?).map_err(AdmissionError::JournalBad)?;
        let files = fds.len().saturating_sub(given.links);
        if files == 0 && policy.disk || files > PATHS_MAX {
            return Err(missing());
        }
        let backing = fds.by_ref().take(files).map(File::from).collect();
        let links = fds.take(given.links).collect();
        service.can(policy)?;
        let terms = service.terms(&given.hello.name);
        note(&journal, &given.hello.asked, terms)?;
        let lease = lease(&segment)?;
        let (hello, uid) = (given.hello, given.uid);
        let tenant = Tenant::of(hello, uid, lease, segment, journal, backing, terms)?;
        Ok((tenant, links))
    }

    fn of(
        hello: Hello,
        uid: u32,
        lease: Lease,
        segment: OwnedFd,
        journal: Journal,
        backing: Vec<File>,
        terms: &Terms,
    ) -> Result<Tenant, AdmissionError> {
        let slabs = Arc::new(AtomicUsize::new(hello.slabs));
        let policy = hello.copies.ok_or(AdmissionError::CopiesUnknown)?;
        let noted = journal.set_copies(policy.into());
        noted.map_err(AdmissionError::JournalUnwritable)?;
        let at = nix::sys::stat::fstat(&segment).map_err(AdmissionError::Kernel)?;
        // Without a grant the limit is what its runner asked for.
        let asked = lease.segment().config.pool_bytes.load(Relaxed);
        let ceiling = journal.pool().map_or(asked, |p| p.ceiling_bytes);
        let ceiling = ceiling.min(terms.pool_bytes.unwrap_or(u64::MAX));
        Ok(Tenant {
            pool_ceiling: ceiling.max(SMALL_MIN.bytes),
            hello,
            uid,
            inode: (at.st_dev, at.st_ino),
            lease,
            segment,
            journal,
            backing,
            slabs,
            copies: LiveCopies::new(policy.into()),
        })
    }

    /// Which of its processes live.
    pub fn lives(&self) -> Lives<'_> {
        Lives::of(&self.segment)
    }

    /// Its settings, for a runner.
    pub fn settled(&self, service: &Service) -> Settled {
        Settled {
            version: VERSION,
            copies: self.policy(service).into(),
            slabs: self.hello.slabs,
            terms: service.terms(&self.hello.name).clone(),
        }
    }

    /// Its share of links and backends.
    pub fn share(&self, service: &Service) -> Share {
        service.terms(&self.hello.name).share(&self.hello.asked)
    }

    /// Its segment, for one more runner.
    pub fn segment(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    /// Gives a prepared tenant to a run of user `uid`: completely, or not at all with the reason.
    pub fn claim(&mut self, to: &Take, uid: u32, service: &Service) -> Result<(), AdmissionError> {
        let terms = service.terms(&self.hello.name);
        terms.allow_pool(to.pool_bytes)?;
        let before = std::mem::replace(&mut self.uid, uid);
        let changed = self.change(
            &Change {
                version: VERSION,
                slabs: Some(to.slabs),
                weight: to.asked.weight,
                swap_in_limit: to.asked.swap_in_limit,
                swap_out_limit: to.asked.swap_out_limit,
                copies: to.copies,
                ..Change::default()
            },
            service,
        );
        if changed.is_err() {
            self.uid = before;
            return changed;
        }
        self.pool_ceiling = to.pool_bytes;
        let config = &self.lease.segment().config;
        config.pool_bytes.store(to.pool_bytes, Relaxed);
        Ok(())
    }

    /// Applies a change completely, or not at all with the reason.
    pub fn change(&mut self, change: &Change, service: &Service) -> Result<(), AdmissionError> {
        let terms = service.terms(&self.hello.name);
        let asked = terms.change(self.hello.asked, change, is_trusted(self.uid))?;
        if let Some(bytes) = change.pool_bytes {
            terms.allow_pool(bytes)?;
            if self.pool_grant().is_none() {
                return Err(AdmissionError::PoolsUnbounded);
            }
        }
        if let Some(copies) = change.copies {
            terms.allow_copies(Some(copies))?;
            service.can(copies.into())?;
            if copies.disk && self.backing.is_empty() {
                return Err(AdmissionError::NoDisk);
            }
        }
        if let Some(slabs) = change.slabs {
            terms.allow_slabs(slabs)?;
            self.set_slabs(slabs)?;
        }
        if let Some(copies) = change.copies {
            let noted = self.journal.set_copies(copies.into());
            noted.map_err(AdmissionError::JournalUnwritable)?;
            self.hello.copies = Some(copies);
            self.copies.set(copies.into());
        }
        self.hello.asked = asked;
        self.pool_ceiling = change.pool_bytes.unwrap_or(self.pool_ceiling);
        note(&self.journal, &asked, terms)
    }

    /// Its last grant of the host's pool, in bytes.
    pub fn pool_grant(&self) -> Option<u64> {
        self.journal.pool().map(|p| p.grant_bytes)
    }

    /// Stores its grant of the host's pool, for its runners and the next agent.
    pub fn grant_pool(&self, grant_bytes: u64) -> Result<(), AdmissionError> {
        let grant = PoolGrant {
            ceiling_bytes: self.pool_ceiling,
            grant_bytes,
        };
        if self.journal.pool() == Some(grant) {
            return Ok(());
        }
        let noted = self.journal.set_pool(Some(grant));
        noted.map_err(AdmissionError::JournalUnwritable)
    }

    /// Lifts the grant of an earlier agent: the tenant gets all that it asked for.
    pub fn free_pool(&self) -> Result<(), AdmissionError> {
        if self.pool_grant().is_none() {
            return Ok(());
        }
        let bound = &self.lease.segment().config.pool_bytes;
        bound.store(self.pool_ceiling, Relaxed);
        let noted = self.journal.set_pool(None);
        noted.map_err(AdmissionError::JournalUnwritable)
    }

    /// Changes the limit on its far memory: not below what it uses.
    fn set_slabs(&mut self, slabs: usize) -> Result<(), AdmissionError> {
        let far = self.lease.far();
        let before = self.hello.slabs;
        // The agent must never allow less than the program takes.
        let most = slabs.max(before);
        let noted = self.journal.set_slabs_max(most as u64);
        noted.map_err(AdmissionError::JournalUnwritable)?;
        self.slabs.store(most, Relaxed);
        far.slabs_max.store(slabs as u64, SeqCst);
        let fits = far.slabs_used.load(SeqCst) <= slabs as i64;
        let slabs = if fits { slabs } else { before };
        far.slabs_max.store(slabs as u64, Relaxed);
        self.slabs.store(slabs, Relaxed);
        self.hello.slabs = slabs;
        let noted = self.journal.set_slabs_max(slabs as u64);
        noted.map_err(AdmissionError::JournalUnwritable)?;
        if fits {
            return Ok(());
        }
        Err(AdmissionError::FarInUse)
    }

    /// Its copies policy.
    pub fn policy(&self, service: &Service) -> Policy {
        self.hello.copies.map_or(service.policy, Policy::from)
    }

    /// Its mapped segment.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Creates the agent that serves it. No other agent may serve it at the same time.
    pub fn agent(&self, service: &Service) -> Result<Box<dyn TenantAgent>, AdmissionError> {
        let far = self.lease.far();
        let waker = Waker(far);
        let system = |source| AdmissionError::System {
            what: "cannot serve it",
            source,
        };
        let none = AdmissionError::JournalBad;
        let journal = self.journal.try_clone().map_err(none)?;
        let files = self.backing.iter().map(File::try_clone);
        let files = files.collect::<Result<Vec<_>, _>>().map_err(system)?;
        let disk = match files.is_empty() {
            true => None,
            false => Some(Disk::new(files, service.reserve, waker).map_err(system)?),
        };
        let setup = Setup {
            far,
            tenant: far.tenant(),
            name: self.hello.name.clone(),
            key: journal.key().map_err(none)?,
            numbers: SealNumbers::new(journal.try_clone().map_err(none)?),
            slabs: {
                let slabs = self.slabs.clone();
                Box::new(move || slabs.load(Relaxed))
            },
            // The host's thread decides when to sleep.
            spin: Duration::ZERO,
            share: LiveShare::new(self.share(service)),
        };
        match disk {
            Some(disk) if service.servers.is_empty() && service.finder.is_none() => {
                Ok(Box::new(Agent::new(setup, disk)))
            }
            disk => {
                let config = replicas::Config {
                    servers: service.servers.clone(),
                    found: service.finder.as_ref().map(|f| f.follow(waker)),
                    key: service.key.clone(),
                    copies: self.copies.clone(),
                    disk_keeps: true,
                    sealer: Sealer::new(&setup.key, setup.tenant),
                    links: usize::from(replicas::LINKS),
                    lanes: Some(setup.key),
                };
                let tenant = setup.tenant;
                let store =
                    Replicas::new(far, tenant, config, journal, disk, waker).map_err(system)?;
                Ok(Box::new(Agent::new(setup, store)))
            }
        }
    }

    /// Descriptors that its runner keeps for the next agent: journal and backing files, read-only.
    pub fn recovery_fds(&self) -> std::io::Result<Vec<OwnedFd>> {
        std::iter::once(self.journal.file())
            .chain(&self.backing)
            .map(|file| Ok(File::open(in_proc(file.as_fd()))?.into()))
            .collect()
    }

    /// Descriptors for the next agent.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.segment.as_fd(), self.journal.file().as_fd()];
        fds.extend(self.backing.iter().map(AsFd::as_fd));
        fds
    }
}

impl Service {
    /// The operator's settings for a tenant.
    pub fn terms(&self, name: &str) -> &Terms {
        static NOTHING: Terms = Terms {
            local: None,
            pool_bytes: None,
            far_bytes: None,
            copies: None,
            weight: None,
            swap_in_limit: None,
            swap_out_limit: None,
            pool_floor_bytes: None,
            shared_floor_bytes: None,
        };
        self.terms.get(name).unwrap_or(&NOTHING)
    }

    /// What a new tenant could have, and the prepared ones.
    pub fn offers(&self, slabs: usize, prepared: Vec<Wanted>) -> Offers {
        Offers {
            version: VERSION,
            copies: self.policy.into(),
            has_donors: !self.servers.is_empty() || self.finder.is_some(),
            has_disk: !self.dirs.is_empty(),
            slabs,
            prepared,
        }
    }

    /// Whether this agent can keep copies by this policy; the error says why not.
    pub fn can(&self, policy: Policy) -> Result<(), AdmissionError> {
        if policy.disk && self.dirs.is_empty() {
            return Err(AdmissionError::NoDisk);
        }
        // Gossip may find more at any time.
        if policy.donors > self.servers.len() && self.finder.is_none() {
            return Err(AdmissionError::FewServers {
                wanted: policy.donors,
                there: self.servers.len(),
            });
        }
        Ok(())
    }
}

/// Initialises the far area of a new tenant: a random id, the slabs that it may fill, the part of its pool past which
/// the oldest pages are demoted, in percent, and how long a fault may wait for far memory, in ms.
pub fn begin_far(far: &Far, slabs: usize, spill_percent: u64, wait_ms: u64) -> Result<(), Errno> {
    let id: [u8; 16] = random()?;
    for (word, bytes) in far.tenant_id.iter().zip(id.as_chunks().0) {
        word.store(u64::from_le_bytes(*bytes), Relaxed);
    }
    far.slabs_max.store(slabs as u64, Relaxed);
    far.spill_percent.store(spill_percent, Relaxed);
    far.wait_ms_max.store(wait_ms, Relaxed);
    far.magic.store(canvas_shm::far::MAGIC, Relaxed);
    Ok(())
}

/// Root and the agent's own user are trusted: they could write the agent's file anyway.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// What a tenant asked for, from its journal.
fn asked(journal: &Journal) -> Asked {
    let [weight, swap_in_limit, swap_out_limit] = journal.asked();
    Asked {
        weight: weight.and_then(|w| w.try_into().ok()),
        swap_in_limit,
        swap_out_limit,
    }
}

/// Stores what a tenant asked for, and the resulting share, for its runners and the next agent.
fn note(journal: &Journal, asked: &Asked, terms: &Terms) -> Result<(), AdmissionError> {
    let words = [
        asked.weight.map(u64::from),
        asked.swap_in_limit,
        asked.swap_out_limit,
    ];
    let noted = journal.set_asked(words);
    let noted = noted.and_then(|()| journal.set_share(terms.share(asked)));
    noted.map_err(AdmissionError::JournalUnwritable)
}

fn lease(segment: &OwnedFd) -> Result<Lease, AdmissionError> {
    let lease = Lease::map(segment).map_err(|_| AdmissionError::Unsealed)?;
    let magics = (
        lease.segment().magic.load(Acquire),
        lease.far().magic.load(Relaxed),
    );
    if magics != (canvas_shm::segment::MAGIC, canvas_shm::far::MAGIC) {
        return Err(AdmissionError::OtherRelease);
    }
    Ok(lease)
}

fn in_proc(fd: BorrowedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Reopens for writing a journal that an agent of this user has created.
fn own_journal(fd: OwnedFd) -> Result<Journal, AdmissionError> {
    // Only a memfd answers this, and without waiting for a file system.
    fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| AdmissionError::ForeignJournal)?;
    let file = reopened(fd, OFlag::empty(), AdmissionError::ForeignJournal)?;
    Journal::open(file.into()).map_err(AdmissionError::JournalBad)
}

/// Reopens for writing a backing file that an agent of this user has created.
fn own_backing(fd: OwnedFd, dirs: &[FarDir]) -> Result<File, AdmissionError> {
    let device = pass::device(&fd).ok();
    if dirs.iter().all(|dir| device != Some(dir.device)) {
        return Err(AdmissionError::BackingElsewhere);
    }
    let no = AdmissionError::ForeignBacking;
    match fcntl(&fd, FcntlArg::F_GETFL) {
        Ok(flags) => reopened(fd, OFlag::from_bits_retain(flags) & OFlag::O_DIRECT, no),
        Err(_) => Err(no),
    }
}

/// Reopens this file for reading and writing, if it is this user's alone.
fn reopened(fd: OwnedFd, flags: OFlag, no: AdmissionError) -> Result<File, AdmissionError> {
    let file = File::from(fd);
    let is_own = file.metadata().is_ok_and(|m| {
        let user = nix::unistd::geteuid().as_raw();
        m.file_type().is_file() && m.uid() == user && m.mode() & 0o777 == 0o600 && m.nlink() == 0
    });
    if !is_own {
        return Err(no);
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .open(in_proc(file.as_fd()))
        .map_err(|source| AdmissionError::System {
            what: "cannot reopen its file",
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::Segment;

    fn service() -> (tempfile::TempDir, Service) {
        let dir = tempfile::tempdir().unwrap();
        let service = Service {
            dirs: vec![FarDir::open(dir.path()).unwrap()],
            reserve: None,
            servers: Vec::new(),
            key: ClusterKey::without_secret(),
            policy: Policy {
                donors: 0,
                disk: true,
                late: false,
                code: None,
            },
            finder: None,
            terms: BTreeMap::new(),
        };
        (dir, service)
    }

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            name: "a".to_owned(),
            slabs: 2,
            copies: None,
            asked: Asked::default(),
        }
    }

    fn segment() -> OwnedFd {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.magic.store(canvas_shm::far::MAGIC, Relaxed);
        fd
    }

    fn why(fds: Vec<OwnedFd>) -> String {
        let (_dir, service) = service();
        let judged = Tenant::judge(hello(), 0, fds, &service);
        judged
            .err()
            .map_or_else(|| "nothing".to_owned(), |e| e.to_string())
    }

    #[test]
    fn what_the_runner_keeps_lets_the_next_agent_in() {
        let (_dir, service) = service();
        let fd = segment();
        let again = |fd: &OwnedFd| fd.try_clone().unwrap();
        let first = Tenant::judge(hello(), 7, vec![again(&fd)], &service).unwrap();
        let kept = first.recovery_fds().unwrap();
        assert_eq!(kept.len(), 2);
        for file in &kept {
            let flags = fcntl(file, FcntlArg::F_GETFL).unwrap();
            assert_eq!(flags & OFlag::O_ACCMODE.bits(), OFlag::O_RDONLY.bits());
        }
        let key = |t: &Tenant| t.journal.key().unwrap();
        let fds = vec![again(&fd), again(&kept[0]), again(&kept[1])];
        let second = Tenant::judge(hello(), 7, fds, &service).unwrap();
        assert_eq!((key(&first), first.inode), (key(&second), second.inode));
        assert_eq!(second.hello.copies.map(|c| c.disk), Some(true));
    }

    #[test]
    fn strange_descriptors_are_refused() {
        assert_eq!(why(vec![]), "its message has no segment");
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let no = "its segment is not the sealed memory of a tenant with far memory";
        assert_eq!(why(vec![null()]), no);
        let (small, _) = Segment::create(false).unwrap();
        assert_eq!(why(vec![small]), no);
        let (other, _) = Segment::create(true).unwrap();
        let release = "its segment is of another release of canvas";
        assert_eq!(why(vec![other]), release);
        let no = "its journal was not made by an agent of this user";
        assert_eq!(why(vec![segment(), null()]), no);
        // A file in memory that everybody could write to.
        assert_eq!(why(vec![segment(), segment()]), no);
        let journal = || {
            let journal = Journal::create().unwrap().file().try_clone().unwrap();
            journal
                .set_permissions(Permissions::from_mode(0o600))
                .unwrap();
            OwnedFd::from(journal)
        };
        let missing = "its backing file is missing or one too many";
        assert_eq!(why(vec![segment(), journal()]), missing);
        let outside = "its backing file is not in this agent's far directory";
        assert_eq!(why(vec![segment(), journal(), null()]), outside);
        let dir = tempfile::tempdir().unwrap();
        let named = File::create(dir.path().join("x")).unwrap();
        let no = "its backing file was not made by an agent of this user";
        assert_eq!(why(vec![segment(), journal(), named.into()]), no);
        let backing = OwnedFd::from(disk::create(dir.path()).unwrap());
        let fds = vec![segment(), journal(), backing, null()];
        assert_eq!(why(fds), outside);
        let files = (0..=PATHS_MAX).map(|_| OwnedFd::from(disk::create(dir.path()).unwrap()));
        let fds = [segment(), journal()].into_iter().chain(files).collect();
        assert_eq!(why(fds), "its message has too many descriptors");
    }

    #[test]
    fn what_was_settled_is_not_the_runners_to_say() {
        let (_dir, mut service) = service();
        let (fd, weight) = (segment(), |w| Asked {
            weight: Some(w),
            ..Asked::default()
        });
        let again = |fd: &OwnedFd| fd.try_clone().unwrap();
        let first = Hello {
            asked: weight(70),
            ..hello()
        };
        let mut first = Tenant::judge(first, 7, vec![again(&fd)], &service).unwrap();
        assert_eq!(first.share(&service).weight, 70);
        let bound = || far_of(&fd).slabs_max.load(Relaxed);
        let change = |slabs, weight| Change {
            slabs,
            weight,
            ..Change::default()
        };
        first.change(&change(Some(5), Some(80)), &service).unwrap();
        assert_eq!((first.hello.slabs, bound()), (5, 5));
        assert_eq!(first.share(&service).weight, 80);
        // All or nothing.
        let why = first.change(&change(Some(9), Some(101)), &service);
        let why = why.unwrap_err().to_string();
        assert!(why.contains("only the agent's operator can give"));
        assert_eq!((first.hello.slabs, bound()), (5, 5));
        far_of(&fd).slabs_used.store(4, Relaxed);
        assert!(first.change(&change(Some(3), None), &service).is_err());
        assert_eq!((first.hello.slabs, bound()), (5, 5));
        // Neither the segment nor what the runner says to the next agent can raise it.
        far_of(&fd).slabs_max.store(1000, Relaxed);
        let kept = first.recovery_fds().unwrap();
        let fds = || vec![again(&fd), again(&kept[0]), again(&kept[1])];
        let greedy = || Hello {
            slabs: 1000,
            asked: weight(1000),
            ..hello()
        };
        let next = Tenant::judge(greedy(), 7, fds(), &service).unwrap();
        assert_eq!((next.hello.slabs, next.share(&service).weight), (5, 80));
        // The operator's new file applies at once, also to running tenants.
        let terms = Terms {
            weight: Some(30),
            swap_in_limit: Some(1 << 20),
            ..Terms::default()
        };
        service.terms.insert("a".to_owned(), terms);
        let next = Tenant::judge(greedy(), 7, fds(), &service).unwrap();
        let share = next.share(&service);
        assert_eq!((share.weight, share.swap_in_limit), (30, Some(1 << 20)));
        assert_eq!(next.journal.share(), Some(share));
        let fresh = Tenant::judge(greedy(), 7, vec![segment()], &service).err();
        let fresh = fresh.unwrap().to_string();
        assert!(fresh.starts_with("weight 1000 is more than"));
    }

    fn far_of(fd: &OwnedFd) -> &'static Far {
        Far::map(fd).unwrap()
    }

    #[test]
    fn copies_that_the_agent_cannot_keep_are_refused() {
        let (_dir, service) = service();
        let two = Policy {
            donors: 2,
            disk: false,
            late: false,
            code: None,
        };
        let hello = Hello {
            copies: Some(two.into()),
            ..hello()
        };
        let why = Tenant::judge(hello, 0, vec![segment()], &service).err();
        let want = "its copies need 2 donors, and this agent has 0";
        assert_eq!(why.unwrap().to_string(), want);
    }
}
