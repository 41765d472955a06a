//! A tenant of the host agent: what its runner sent, judged, and the agent that is made of it.
//!
//! The agent makes journal and backing file itself, owned by its user and closed to everybody else. The
//! runner keeps both open, read-only, so that the next agent finds them after a crash; that one opens
//! them for writing by their name in /proc, which only their owner can.

use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use canvas_agent::agent::tenant_id;
use canvas_agent::copies::{self, Copies, Policy};
use canvas_agent::disk::{self, Disk};
use canvas_agent::host::Served;
use canvas_agent::idle::Waker;
use canvas_agent::journal::Journal;
use canvas_agent::seal::Sealer;
use canvas_agent::{Agent, Setup};
use canvas_link::Address;
use canvas_shm::map::Lease;
use canvas_shm::pass;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::hello::{Given, Hello, Wanted};
use crate::error::say;

/// What the agent does for all its tenants.
pub struct Service {
    /// Where backing files go, if there is a disk.
    pub dir: Option<FarDir>,
    /// Servers.
    pub servers: Vec<Address>,
    /// Their key.
    pub key: ClusterKey,
    /// Copies of a tenant that asks for nothing special.
    pub policy: Policy,
}

/// The far directory.
pub struct FarDir {
    path: PathBuf,
    /// The device of files in it.
    device: (u32, u32),
}

impl FarDir {
    /// A directory in which a backing file can be made.
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
    /// As its runner described it, with the copies that were settled.
    pub hello: Hello,
    /// Whose it is.
    pub uid: u32,
    /// What tells its segment from all others.
    pub inode: (u64, u64),
    lease: Lease,
    segment: OwnedFd,
    journal: File,
    backing: Option<File>,
}

impl Tenant {
    /// What a runner of user `uid` asks for; one sentence when it cannot be had.
    pub fn judge(
        mut hello: Hello,
        uid: u32,
        fds: Vec<OwnedFd>,
        service: &Service,
    ) -> Result<Tenant, String> {
        let policy = hello.copies.map_or(service.policy, Policy::from);
        service.can(policy)?;
        hello.copies = Some(Wanted::from(policy));
        let mut fds = fds.into_iter();
        let segment = fds.next().ok_or("it comes without a segment")?;
        let lease = lease(&segment)?;
        let system = |what, e: std::io::Error| format!("{what}: {}", crate::reason(&e));
        let (journal, backing) = match fds.next() {
            None => {
                let journal = Journal::create()
                    .map_err(|e| format!("there is no memory for its journal: {}", e.desc()))?;
                let journal = journal.file().try_clone();
                let journal = journal.map_err(|e| system("its journal cannot be kept", e))?;
                let private = Permissions::from_mode(0o600);
                let closed = journal.set_permissions(private);
                closed.map_err(|e| system("its journal cannot be kept", e))?;
                let backing = match (&service.dir, policy.disk) {
                    (Some(dir), true) => Some(
                        disk::create(&dir.path)
                            .map_err(|e| system("its backing file cannot be made", e))?,
                    ),
                    _ => None,
                };
                (journal, backing)
            }
            Some(journal) => {
                let journal = own_journal(journal)?;
                let backing = match (fds.next(), &service.dir, policy.disk) {
                    (Some(backing), Some(dir), true) => Some(own_backing(backing, dir)?),
                    (None, _, false) => None,
                    _ => return Err("its backing file is missing or one too many".to_owned()),
                };
                (journal, backing)
            }
        };
        if fds.next().is_some() {
            return Err("it comes with too many descriptors".to_owned());
        }
        Tenant::of(hello, uid, lease, segment, journal, backing)
    }

    /// What the agent before this one gives, which is to be trusted, and the connection of its runner.
    pub fn given(
        given: Given,
        fds: Vec<OwnedFd>,
        service: &Service,
    ) -> Result<(Tenant, Option<OwnedFd>), String> {
        let missing = "a descriptor is missing";
        let mut fds = fds.into_iter();
        let policy = Policy::from(given.hello.copies.ok_or("its copies are not known")?);
        let segment = fds.next().ok_or(missing)?;
        let journal = File::from(fds.next().ok_or(missing)?);
        let backing = if policy.disk {
            Some(File::from(fds.next().ok_or(missing)?))
        } else {
            None
        };
        let link = given.linked.then(|| fds.next()).flatten();
        service.can(policy)?;
        let lease = lease(&segment)?;
        let tenant = Tenant::of(given.hello, given.uid, lease, segment, journal, backing)?;
        Ok((tenant, link))
    }

    fn of(
        hello: Hello,
        uid: u32,
        lease: Lease,
        segment: OwnedFd,
        journal: File,
        backing: Option<File>,
    ) -> Result<Tenant, String> {
        let at = nix::sys::stat::fstat(&segment).map_err(|e| e.desc())?;
        Ok(Tenant {
            hello,
            uid,
            inode: (at.st_dev, at.st_ino),
            lease,
            segment,
            journal,
            backing,
        })
    }

    /// The settled copies.
    pub fn policy(&self, service: &Service) -> Policy {
        self.hello.copies.map_or(service.policy, Policy::from)
    }

    /// Its mapped file.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What serves it. Nobody else may do so at this time.
    pub fn agent(&self, service: &Service) -> Result<Box<dyn Served>, String> {
        let far = self.lease.far();
        let waker = Waker(far);
        let system = |e: std::io::Error| format!("it cannot be served: {}", crate::reason(&e));
        let none = |e: Errno| format!("its journal is none: {}", e.desc());
        let journal = self.journal.try_clone().map_err(system)?;
        let journal = Journal::open(journal.into()).map_err(none)?;
        let disk = match &self.backing {
            Some(file) => {
                Some(Disk::new(file.try_clone().map_err(system)?, waker).map_err(system)?)
            }
            None => None,
        };
        let policy = self.policy(service);
        let setup = Setup {
            far,
            tenant: tenant_id(far),
            key: journal.key().map_err(none)?,
            slabs: {
                let slabs = self.hello.slabs;
                Box::new(move || slabs)
            },
            // The host's thread decides when to sleep.
            spin: Duration::ZERO,
            say: |line| say(line),
        };
        match disk {
            Some(disk) if policy.donors == 0 => Ok(Box::new(Agent::new(setup, disk))),
            disk => {
                let config = copies::Config {
                    servers: service.servers.clone(),
                    found: None,
                    key: service.key.clone(),
                    policy,
                    sealer: Sealer::new(&setup.key, setup.tenant),
                    links: usize::from(crate::args::LINKS),
                };
                let tenant = setup.tenant;
                let store =
                    Copies::new(far, tenant, config, journal, disk, waker).map_err(system)?;
                Ok(Box::new(Agent::new(setup, store)))
            }
        }
    }

    /// What its runner keeps for the next agent: journal and backing file, read-only.
    pub fn keepsakes(&self) -> std::io::Result<Vec<OwnedFd>> {
        let files = [Some(&self.journal), self.backing.as_ref()];
        files
            .into_iter()
            .flatten()
            .map(|file| Ok(File::open(in_proc(file.as_fd()))?.into()))
            .collect()
    }

    /// What the next agent gets.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.segment.as_fd(), self.journal.as_fd()];
        fds.extend(self.backing.as_ref().map(AsFd::as_fd));
        fds
    }
}

impl Service {
    /// Can this agent keep copies so?
    pub fn can(&self, policy: Policy) -> Result<(), String> {
        if policy.disk && self.dir.is_none() {
            return Err("this agent keeps nothing on a disk".to_owned());
        }
        if policy.donors > self.servers.len() {
            return Err(format!(
                "its copies need {} servers, and this agent has {}",
                policy.donors,
                self.servers.len()
            ));
        }
        Ok(())
    }
}

fn lease(segment: &OwnedFd) -> Result<Lease, String> {
    let no = "its segment is no sealed memory of a tenant with far memory";
    let lease = Lease::map(segment).map_err(|_| no)?;
    let magics = (
        lease.segment().magic.load(Acquire),
        lease.far().magic.load(Relaxed),
    );
    if magics != (canvas_shm::segment::MAGIC, canvas_shm::far::MAGIC) {
        return Err("its segment is of another release of canvas".to_owned());
    }
    Ok(lease)
}

fn in_proc(fd: BorrowedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// A journal that an agent of this user has made, to write in it.
fn own_journal(fd: OwnedFd) -> Result<File, String> {
    let no = "its journal was not made by an agent of this user";
    // Only a file in memory answers this, and without anybody's help.
    fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| no)?;
    reopened(fd, OFlag::empty(), no)
}

/// The same of a backing file.
fn own_backing(fd: OwnedFd, dir: &FarDir) -> Result<File, String> {
    if pass::device(&fd).ok() != Some(dir.device) {
        return Err("its backing file is not in this agent's far directory".to_owned());
    }
    let no = "its backing file was not made by an agent of this user";
    match fcntl(&fd, FcntlArg::F_GETFL) {
        Ok(flags) => reopened(fd, OFlag::from_bits_retain(flags) & OFlag::O_DIRECT, no),
        Err(_) => Err(no.to_owned()),
    }
}

/// The same file for reading and writing, if it is this user's alone.
fn reopened(fd: OwnedFd, flags: OFlag, no: &str) -> Result<File, String> {
    let file = File::from(fd);
    let is_own = file.metadata().is_ok_and(|m| {
        let user = nix::unistd::geteuid().as_raw();
        m.file_type().is_file() && m.uid() == user && m.mode() & 0o777 == 0o600 && m.nlink() == 0
    });
    if !is_own {
        return Err(no.to_owned());
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .open(in_proc(file.as_fd()))
        .map_err(|e| format!("its file cannot be opened again: {}", crate::reason(&e)))
}

#[cfg(test)]
mod tests {
    use super::super::hello::VERSION;
    use super::*;
    use canvas_shm::{Far, Segment};

    fn service() -> (tempfile::TempDir, Service) {
        let dir = tempfile::tempdir().unwrap();
        let service = Service {
            dir: Some(FarDir::open(dir.path()).unwrap()),
            servers: Vec::new(),
            key: ClusterKey::without_secret(),
            policy: Policy {
                donors: 0,
                disk: true,
            },
        };
        (dir, service)
    }

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            name: "a".to_owned(),
            slabs: 2,
            copies: None,
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
        judged.err().unwrap_or_else(|| "nothing".to_owned())
    }

    #[test]
    fn what_the_runner_keeps_lets_the_next_agent_in() {
        let (_dir, service) = service();
        let fd = segment();
        let again = |fd: &OwnedFd| fd.try_clone().unwrap();
        let first = Tenant::judge(hello(), 7, vec![again(&fd)], &service).unwrap();
        let kept = first.keepsakes().unwrap();
        assert_eq!(kept.len(), 2);
        for file in &kept {
            let flags = fcntl(file, FcntlArg::F_GETFL).unwrap();
            assert_eq!(flags & OFlag::O_ACCMODE.bits(), OFlag::O_RDONLY.bits());
        }
        let key = |t: &Tenant| {
            let journal = t.journal.try_clone().unwrap();
            Journal::open(journal.into()).unwrap().key().unwrap()
        };
        let fds = vec![again(&fd), again(&kept[0]), again(&kept[1])];
        let second = Tenant::judge(hello(), 7, fds, &service).unwrap();
        assert_eq!((key(&first), first.inode), (key(&second), second.inode));
        assert_eq!(second.hello.copies.map(|c| c.disk), Some(true));
    }

    #[test]
    fn strange_descriptors_are_refused() {
        assert_eq!(why(vec![]), "it comes without a segment");
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let no = "its segment is no sealed memory of a tenant with far memory";
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
        assert_eq!(why(fds), "it comes with too many descriptors");
    }

    #[test]
    fn copies_that_the_agent_cannot_keep_are_refused() {
        let (_dir, service) = service();
        let two = Policy {
            donors: 2,
            disk: false,
        };
        let hello = Hello {
            copies: Some(two.into()),
            ..hello()
        };
        let why = Tenant::judge(hello, 0, vec![segment()], &service).err();
        let want = "its copies need 2 servers, and this agent has 0";
        assert_eq!(why.as_deref(), Some(want));
    }
}
