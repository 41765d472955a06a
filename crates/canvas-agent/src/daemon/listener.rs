//! The host agent's socket: accepts connections, reads messages, and keeps the list of tenants.
//!
//! It runs on one thread, which may wait for files but never for a peer; the serving threads ([`super::threads`]) get
//! finished agents from it and return them. A peer that is silent or sends an invalid message gets an error and is
//! disconnected, and delays nobody else.

use std::cmp::Reverse;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use canvas_shm::pass;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt};
use tracing::{error, info, warn};

use super::error::AdmissionError;
use super::memory::HostMemory;
use super::prepared::Prepared;
use super::socket::ListeningSocket;
use super::tenant::{Service, Tenant};
use super::threads::ServingThreads;
use crate::members::{RunnerlessTenant, members};
use canvas_control::hello::{
    Answer, Ask, BYTES_MAX, Change, Hello, LINKS_MAX, Take, VERSION, Wanted,
};

/// Most tenants at one time.
pub(super) const TENANTS_MAX: usize = 1024;
/// Most runs of all tenants at one time: each has a descriptor here.
pub(super) const RUNS_MAX: usize = 4096;
/// Most pending connections; past it one user's oldest is closed.
const PENDING_MAX: usize = 64;
/// How long a pending connection may be silent.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// Time between two sweeps over tenants without a runner.
const SWEEP: Duration = Duration::from_millis(500);
/// Most names and numbers in one sentence.
const NAMES_TOLD: usize = 16;
/// How long disk operations may take to end when another agent takes over.
const DISK_WAIT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A pending connection: its peer has sent nothing yet.
struct PendingConnection {
    fd: OwnedFd,
    uid: u32,
    pid: i32,
    since: Instant,
}

/// A tenant being served.
pub struct TenantEntry {
    /// Its number, here and in the serving threads.
    pub id: u64,
    /// The tenant.
    pub tenant: Tenant,
    /// Its runners' connections.
    pub links: Vec<OwnedFd>,
    runnerless: RunnerlessTenant,
}

/// How the agent ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A signal of this name ended it.
    Signal(&'static str),
    /// Another agent has taken everything over.
    Replaced,
}

/// Listens for runners and operators, and keeps the tenants.
pub struct Listener {
    service: Service,
    /// Slabs of all tenants together.
    slabs_max: usize,
    /// The host's memory that tenants share.
    memory: HostMemory,
    pub(super) listening: ListeningSocket,
    signals: SignalFd,
    pending: Vec<PendingConnection>,
    /// The tenants being served.
    pub entries: Vec<TenantEntry>,
    prepared: Prepared,
    next_id: u64,
    threads: ServingThreads,
    accept_again: Option<Instant>,
}

impl Listener {
    /// Without tenants; `threads` serve those that come.
    pub fn new(
        service: Service,
        slabs_max: usize,
        memory: HostMemory,
        threads: ServingThreads,
        listening: ListeningSocket,
        signals: SignalFd,
    ) -> Listener {
        Listener {
            service,
            slabs_max,
            memory,
            listening,
            signals,
            pending: Vec::new(),
            entries: Vec::new(),
            prepared: Prepared::new(0),
            next_id: 1,
            threads,
            accept_again: None,
        }
    }

    /// Serves until a signal arrives or another agent takes over.
    pub fn serve(&mut self) -> End {
        loop {
            let (signal, knocks, pending, links) = self.wait();
            if signal && let Ok(Some(info)) = self.signals.read_signal() {
                let signal = Signal::try_from(info.ssi_signo as i32);
                return End::Signal(signal.map_or("a signal", Signal::as_str));
            }
            for (at, link) in links.into_iter().rev() {
                self.read_runner(at, link);
            }
            for at in pending.into_iter().rev() {
                if self.read_pending(at) {
                    return End::Replaced;
                }
            }
            if knocks && self.accept() {
                return End::Replaced;
            }
            self.tick();
        }
    }

    /// Waits for events: whether a signal and a connection arrived, and which pending connections (by index) and
    /// runners (by index of the tenant and of the connection) can be read.
    fn wait(&self) -> (bool, bool, Vec<usize>, Vec<(usize, usize)>) {
        let now = Instant::now();
        let in_time = |at: Instant| at.saturating_duration_since(now);
        let hellos = self.pending.iter().map(|s| in_time(s.since + HELLO_WAIT));
        let orphans = self.entries.iter().filter(|s| s.links.is_empty());
        let least = hellos
            .chain(orphans.map(|_| SWEEP))
            .chain(self.accept_again.map(in_time))
            .chain(self.memory.due().map(in_time))
            .chain(self.prepared.due().map(in_time))
            .chain(self.threads.due().map(in_time))
            .min();
        let timeout = least.map_or(PollTimeout::NONE, |t| {
            PollTimeout::try_from(t.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let all = self.entries.iter().enumerate();
        let linked: Vec<(usize, usize)> = all
            .flat_map(|(i, s)| (0..s.links.len()).map(move |k| (i, k)))
            .collect();
        let mut fds = vec![input(self.signals.as_fd())];
        fds.extend(self.pending.iter().map(|s| input(s.fd.as_fd())));
        let links = self.entries.iter().flat_map(|s| &s.links);
        fds.extend(links.map(|fd| input(fd.as_fd())));
        if self.accept_again.is_none() {
            fds.push(input(self.listening.socket.as_fd()));
        }
        if poll(&mut fds, timeout).is_err() {
            return (false, false, Vec::new(), Vec::new());
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let n = self.pending.len();
        let speak = |i: &usize| ready[1 + i];
        (
            ready[0],
            self.accept_again.is_none() && ready.last() == Some(&true),
            (0..n).filter(speak).collect(),
            linked
                .into_iter()
                .enumerate()
                .filter(|(k, _)| ready[1 + n + k])
                .map(|(_, i)| i)
                .collect(),
        )
    }

    /// Accepts connections. True when one of them was the next agent, which has everything now.
    fn accept(&mut self) -> bool {
        for _ in 0..PENDING_MAX {
            match pass::accept(&self.listening.socket) {
                Ok(fd) => {
                    let Ok(peer) = getsockopt(&fd, sockopt::PeerCredentials) else {
                        continue;
                    };
                    if self.pending.len() >= PENDING_MAX && self.make_room() {
                        return true;
                    }
                    self.pending.push(PendingConnection {
                        fd,
                        uid: peer.uid(),
                        pid: peer.pid(),
                        since: Instant::now(),
                    });
                }
                Err(Errno::EAGAIN) => return false,
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(e) => {
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    warn!("cannot accept a connection: {}", e.desc());
                    return false;
                }
            }
        }
        false
    }

    /// Makes room for another connection. True when a pending one was the next agent, which has everything now.
    fn make_room(&mut self) -> bool {
        // A connection that has sent a message by now is served instead of closed.
        for at in (0..self.pending.len()).rev() {
            if self.read_pending(at) {
                return true;
            }
        }
        if self.pending.len() >= PENDING_MAX
            && let Some(at) = most_pending(self.pending.iter().map(|s| (s.uid, s.since)))
        {
            let oldest = self.pending.swap_remove(at);
            self.refuse(&oldest, "too many other connections have sent nothing");
        }
        false
    }

    /// Sends the reason for a refusal and logs it; the connection closes when `who` is dropped.
    fn refuse(&mut self, who: &PendingConnection, why: impl Display) {
        send_refusal(who, &why, false);
        warn!(
            "user {} (process {}) is not served: {why}",
            who.uid, who.pid
        );
    }

    /// Reads a pending connection. True when it was the next agent, which has everything now.
    fn read_pending(&mut self, at: usize) -> bool {
        let who = self.pending.swap_remove(at);
        let mut buf = [0; BYTES_MAX];
        let got = match pass::receive(&who.fd, &mut buf) {
            Ok(got) if got.bytes == 0 && !got.cut => return false,
            Ok(got) => got,
            Err(Errno::EAGAIN) => {
                self.pending.push(who);
                return false;
            }
            Err(_) => return false,
        };
        if got.cut {
            self.refuse(&who, "its message is longer than any of ours");
            return false;
        }
        match Ask::decode(&buf[..got.bytes]) {
            Ok(Ask::Begin { name, join, .. }) => self.begin(who, &name, join),
            Ok(Ask::Tenant(hello)) => self.hello(who, hello, got.fds),
            Ok(Ask::Offers { .. }) => self.offer(&who),
            Ok(Ask::Take(take)) => self.assign_prepared(who, &take),
            Ok(Ask::End { name, force, .. }) => self.end_named(who, &name, force),
            Ok(Ask::Leave { .. }) => return self.hand_over(who),
            Ok(_) => self.refuse(&who, "it has no tenant here"),
            Err(why) => self.refuse(&who, why),
        }
        false
    }

    /// A run starts: as a new tenant, or as one more run of an existing tenant.
    fn begin(&mut self, who: PendingConnection, name: &str, join: bool) {
        let known = self.position(name);
        let Some(at) = known else {
            let answer = Answer::Vacant {
                version: VERSION,
                terms: self.service.terms(name).clone(),
            };
            let _ = pass::send(&who.fd, &answer.encode(), &[]);
            return;
        };
        let there = &self.entries[at];
        let why = if there.tenant.uid != who.uid {
            Some(AdmissionError::Anothers(name.to_owned()))
        } else if !join {
            Some(AdmissionError::Taken(name.to_owned()))
        } else {
            self.is_full(at)
        };
        if let Some(why) = why {
            return self.refuse(&who, why);
        }
        match there.tenant.recovery_fds() {
            Ok(kept) => {
                let answer = Answer::Joins(there.tenant.settled(&self.service));
                let mut fds = vec![there.tenant.segment()];
                fds.extend(kept.iter().map(AsFd::as_fd));
                // If the runner is gone by now, reading its connection will show it.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                self.entries[at].links.push(who.fd);
            }
            Err(e) => self.refuse(&who, files_not_opened(e)),
        }
    }

    /// Sends what a new tenant could have.
    fn offer(&self, who: &PendingConnection) {
        let prepared = self.prepared.copies(&self.service);
        let prepared = prepared.into_iter().map(Wanted::from).collect();
        let answer = Answer::Offers(self.service.offers(self.slabs_left(None), prepared));
        // The peer may not listen.
        let _ = pass::send(&who.fd, &answer.encode(), &[]);
    }

    /// Gives a run a prepared tenant, if there is one.
    fn assign_prepared(&mut self, who: PendingConnection, take: &Take) {
        match self.claim_prepared(&who, take) {
            Ok(Some(kept)) => {
                let Some(entry) = self.entries.last_mut() else {
                    return;
                };
                let answer = Answer::Prepared {
                    version: VERSION,
                    name: entry.tenant.hello.name.clone(),
                    settled: entry.tenant.settled(&self.service),
                };
                let mut fds = vec![entry.tenant.segment()];
                fds.extend(kept.iter().map(AsFd::as_fd));
                // If the runner is gone by now, reading its connection will show it.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                entry.links.push(who.fd);
            }
            Ok(None) => {
                let answer = Answer::NonePrepared { version: VERSION };
                let _ = pass::send(&who.fd, &answer.encode(), &[]);
            }
            Err(why) => self.refuse(&who, why),
        }
    }

    /// Makes a prepared tenant the last entry; returns the descriptors that its runner is to keep.
    fn claim_prepared(
        &mut self,
        who: &PendingConnection,
        take: &Take,
    ) -> Result<Option<Vec<OwnedFd>>, AdmissionError> {
        self.has_places()?;
        self.has_room("a prepared tenant", take.slabs, None)?;
        let Some((id, tenant)) = self.prepared.claim(take, who.uid, &self.service)? else {
            return Ok(None);
        };
        let kept = tenant.recovery_fds().map_err(files_not_opened);
        let share = tenant.share(&self.service);
        self.entries.push(TenantEntry {
            id,
            tenant,
            links: Vec::new(),
            runnerless: RunnerlessTenant::default(),
        });
        self.threads.set_share(id, share);
        let new = &self.entries[self.entries.len() - 1];
        self.memory.admit(&self.service, new, &self.entries);
        kept.map(Some)
    }

    /// Prepares a tenant, if one is missing.
    fn prepare(&mut self) {
        let Some(tenant) = self.prepared.prepare(&self.service) else {
            return;
        };
        match self.serve_tenant(&tenant) {
            Ok(id) => self.prepared.ready.push((id, tenant)),
            Err(why) => self.prepared.failed(&why),
        }
    }

    /// Whether there can be one more tenant; the error says why not.
    fn has_places(&self) -> Result<(), AdmissionError> {
        if self.entries.len() >= TENANTS_MAX {
            return Err(AdmissionError::Tenants);
        }
        self.memory.is_full().map_or(Ok(()), Err)
    }

    /// Why the tenant can have no more runs, if it cannot.
    fn is_full(&self, at: usize) -> Option<AdmissionError> {
        let there = &self.entries[at];
        let all: usize = self.entries.iter().map(|s| s.links.len()).sum();
        if there.links.len() >= LINKS_MAX {
            let name = there.tenant.hello.name.clone();
            return Some(AdmissionError::RunsOfTenant(name));
        }
        (all >= RUNS_MAX).then_some(AdmissionError::Runs)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries
            .iter()
            .position(|s| s.tenant.hello.name == name)
    }

    fn hello(&mut self, who: PendingConnection, hello: Hello, fds: Vec<OwnedFd>) {
        let entered = self.enter(&who, hello, fds).and_then(|at| {
            let kept = self.entries[at].tenant.recovery_fds();
            Ok((at, kept.map_err(files_not_opened)?))
        });
        match entered {
            Ok((at, kept)) => {
                let answer = Answer::Serves(self.entries[at].tenant.settled(&self.service));
                let fds: Vec<_> = kept.iter().map(AsFd::as_fd).collect();
                // If the runner is gone by now, reading its connection will show it.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                self.entries[at].links.push(who.fd);
            }
            // The run will join that tenant; nothing to log.
            Err(why @ AdmissionError::Taken(_)) => send_refusal(&who, &why, true),
            Err(why) => self.refuse(&who, why),
        }
    }

    /// Serves the tenant that a runner asks for; returns the index of its entry.
    fn enter(
        &mut self,
        who: &PendingConnection,
        hello: Hello,
        fds: Vec<OwnedFd>,
    ) -> Result<usize, AdmissionError> {
        let name = hello.name.clone();
        if let Some(at) = self.position(&name) {
            let there = &self.entries[at];
            if there.tenant.uid != who.uid {
                return Err(AdmissionError::Anothers(name));
            }
            let segment = fds.first().and_then(|fd| nix::sys::stat::fstat(fd).ok());
            if segment.map(|s| (s.st_dev, s.st_ino)) != Some(there.tenant.inode) {
                return Err(AdmissionError::Taken(name));
            }
            if let Some(why) = self.is_full(at) {
                return Err(why);
            }
            // One of its runners is back.
            return Ok(at);
        }
        self.has_places()?;
        // A tenant that an earlier agent has served comes with a journal.
        let is_new = fds.len() == 1;
        let tenant = Tenant::judge(hello, who.uid, fds, &self.service)?;
        if let Some(why) = self.memory.is_full_for(&tenant).filter(|_| is_new) {
            return Err(why);
        }
        if self.entries.iter().any(|s| s.tenant.inode == tenant.inode) {
            return Err(AdmissionError::SegmentTaken);
        }
        self.has_room(&name, tenant.hello.slabs, None)?;
        self.add(tenant, Vec::new())?;
        let at = self.entries.len() - 1;
        // Before the runner gets its answer, and so before its programs start.
        let new = &self.entries[at];
        self.memory.admit(&self.service, new, &self.entries);
        Ok(at)
    }

    /// Whether there is far memory left for `slabs`, beside those of all tenants but `except`.
    fn has_room(
        &self,
        name: &str,
        slabs: usize,
        except: Option<usize>,
    ) -> Result<(), AdmissionError> {
        let left = self.slabs_left(except);
        if slabs > left {
            return Err(AdmissionError::Room {
                left_mib: left * 64,
                name: name.to_owned(),
                wanted_mib: slabs * 64,
            });
        }
        Ok(())
    }

    /// Slabs left beside those of all tenants but `except`.
    fn slabs_left(&self, except: Option<usize>) -> usize {
        let others = self.entries.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != except);
        let used: usize = others.map(|(_, s)| s.tenant.hello.slabs).sum();
        self.slabs_max.saturating_sub(used)
    }

    /// Adds a tenant and serves it.
    pub fn add(&mut self, tenant: Tenant, links: Vec<OwnedFd>) -> Result<(), AdmissionError> {
        let id = self.serve_tenant(&tenant)?;
        self.entries.push(TenantEntry {
            id,
            tenant,
            links,
            runnerless: RunnerlessTenant::default(),
        });
        Ok(())
    }

    /// Starts serving a tenant; returns its number.
    fn serve_tenant(&mut self, tenant: &Tenant) -> Result<u64, AdmissionError> {
        let agent = tenant.agent(&self.service)?;
        let id = self.next_id;
        self.next_id += 1;
        self.threads.add(id, agent);
        Ok(id)
    }

    /// Sets how many tenants to keep prepared.
    pub fn keep_warm(&mut self, tenants: u8) {
        self.prepared = Prepared::new(tenants);
    }

    /// Gives the tenants that were taken over their parts of the host's memory, where it is limited.
    pub fn begin_memory(&mut self) {
        self.memory.begin(&self.service, &self.entries);
    }

    /// The agent's configuration for tenants.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Reads a runner's message, or notices that it has closed the connection.
    fn read_runner(&mut self, at: usize, link: usize) {
        let fd = &self.entries[at].links[link];
        let mut buf = [0; BYTES_MAX];
        let said = match pass::receive(fd, &mut buf) {
            Ok(got) => Ask::decode(&buf[..got.bytes]).ok(),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(_) => None,
        };
        match said {
            // The last runner ends the tenant; the others only leave it.
            Some(Ask::Over { .. }) if self.entries[at].links.len() == 1 => self.end(at),
            Some(Ask::Change(change)) => {
                let (version, id) = (VERSION, change.id);
                let answer = match self.change(at, &change) {
                    Ok(()) => Answer::Changed { version, id },
                    Err(why) => Answer::Unchanged {
                        version,
                        why: why.to_string(),
                        id,
                    },
                };
                // If the runner is gone by now, reading its connection will show it.
                let _ = pass::send(&self.entries[at].links[link], &answer.encode(), &[]);
            }
            // It closed the connection or sent an invalid message: the tenant lives as long as it has processes.
            _ => drop(self.entries[at].links.remove(link)),
        }
    }

    /// Applies a change to a tenant completely, or not at all.
    fn change(&mut self, at: usize, change: &Change) -> Result<(), AdmissionError> {
        if let Some(slabs) = change.slabs {
            self.has_room(&self.entries[at].tenant.hello.name, slabs, Some(at))?;
        }
        let TenantEntry { id, tenant, .. } = &mut self.entries[at];
        tenant.change(change, &self.service)?;
        self.threads.set_share(*id, tenant.share(&self.service));
        let changed = &self.entries[at];
        self.memory.change(&self.service, changed, &self.entries);
        Ok(())
    }

    /// Ends a tenant.
    fn end(&mut self, at: usize) {
        let TenantEntry {
            id, tenant, links, ..
        } = self.entries.swap_remove(at);
        self.memory.remove(id, &self.entries);
        // Its runner waits for the connection to close, which says that everything is freed.
        self.threads.remove(id, Box::new((tenant, links)));
    }

    /// An operator ends a tenant; the connection closes when everything is freed.
    fn end_named(&mut self, who: PendingConnection, name: &str, force: bool) {
        match self.may_end(&who, name, force) {
            Ok(at) => {
                info!(tenant = %name, "the tenant is ended by user {} (process {})", who.uid, who.pid);
                let version = VERSION;
                // The peer may not listen.
                let _ = pass::send(&who.fd, &Answer::Changed { version, id: 0 }.encode(), &[]);
                self.entries[at].links.push(who.fd);
                self.end(at);
            }
            Err(why) => self.refuse(&who, why),
        }
    }

    /// The index of the tenant, if `who` may end it now; otherwise why not.
    fn may_end(
        &self,
        who: &PendingConnection,
        name: &str,
        force: bool,
    ) -> Result<usize, AdmissionError> {
        let is_operator = who.uid == 0 || who.uid == nix::unistd::geteuid().as_raw();
        let is_theirs = |s: &&TenantEntry| is_operator || s.tenant.uid == who.uid;
        let Some(at) = self
            .position(name)
            .filter(|at| is_theirs(&&self.entries[*at]))
        else {
            let names = self.entries.iter().filter(is_theirs).take(NAMES_TOLD);
            let names: Vec<&str> = names.map(|s| s.tenant.hello.name.as_str()).collect();
            let name = name.to_owned();
            return Err(match names[..] {
                [] => AdmissionError::Nobody(name),
                _ => AdmissionError::Unknown {
                    name,
                    others: names.join(", "),
                },
            });
        };
        let there = &self.entries[at];
        if !there.links.is_empty() {
            return Err(AdmissionError::HasRun(name.to_owned()));
        }
        let members = members(there.tenant.lives(), there.tenant.lease().segment());
        if force || members.is_empty() {
            return Ok(at);
        }
        let pids: Vec<String> = members
            .iter()
            .take(NAMES_TOLD)
            .map(u32::to_string)
            .collect();
        Err(AdmissionError::HasProcesses {
            name: name.to_owned(),
            pids: pids.join(", "),
        })
    }

    /// Periodic work.
    fn tick(&mut self) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
        }
        while let Some(at) = self
            .pending
            .iter()
            .position(|s| now.duration_since(s.since) >= HELLO_WAIT)
        {
            let who = self.pending.swap_remove(at);
            self.refuse(&who, "it connected and sent nothing");
        }
        for at in (0..self.entries.len()).rev() {
            let s = &mut self.entries[at];
            let (lives, lease) = (s.tenant.lives(), s.tenant.lease());
            if s.links.is_empty() && s.runnerless.is_over(lives, lease.segment(), lease.far()) {
                self.end(at);
            }
        }
        self.memory.tend(&self.service, &self.entries);
        self.threads.tend();
        self.prepare();
    }

    /// Hands over to another agent. True when that one has everything.
    fn hand_over(&mut self, who: PendingConnection) -> bool {
        if who.uid != 0 && who.uid != nix::unistd::geteuid().as_raw() {
            self.refuse(&who, "only root and the agent's own user may replace it");
            return false;
        }
        if let Err(why) = super::replace::hand_over(&who.fd, &self.listening, &self.entries) {
            return self.handover_failed(&who, &why);
        }
        // Until the handover all tenants are served.
        if !self.threads.hold(DISK_WAIT) {
            let wait_s = DISK_WAIT.as_secs();
            return self.handover_failed(
                &who,
                &format_args!("disk operations have not ended within {wait_s} s"),
            );
        }
        let agents = self.threads.remove_all();
        // No run has them, and the next agent prepares its own.
        self.prepared.ready.clear();
        // Dropping an agent joins its threads, which have nothing left to do.
        std::thread::scope(|s| {
            for agent in agents {
                s.spawn(|| drop(agent));
            }
        });
        let gone = super::replace::confirm_stopped(&who.fd);
        if let Err(why) = &gone {
            for TenantEntry { tenant, links, .. } in std::mem::take(&mut self.entries) {
                let name = tenant.hello.name.clone();
                if let Err(why) = self.add(tenant, links) {
                    error!(tenant = %name, "the tenant is lost: {why}");
                }
            }
            self.begin_memory();
            self.threads.resume();
            self.handover_failed(&who, why);
        }
        gone.is_ok()
    }

    /// The handover to another agent has failed.
    fn handover_failed(&self, who: &PendingConnection, why: &dyn Display) -> bool {
        send_refusal(who, &why, false);
        warn!("another agent failed to take over ({why}); this one keeps serving");
        false
    }
}

/// Which pending connection, by user and time, to close: the oldest one of the user with the most, so that no user can
/// close another's.
fn most_pending(all: impl Iterator<Item = (u32, Instant)> + Clone) -> Option<usize> {
    let of = |uid| all.clone().filter(|(other, _)| *other == uid).count();
    let key = |(_, (uid, since)): &(usize, (u32, Instant))| (Reverse(of(*uid)), *since);
    all.clone().enumerate().min_by_key(key).map(|(at, _)| at)
}

/// Sends a refusal. With `taken` its tenant exists, and the run can join it.
fn send_refusal(who: &PendingConnection, why: &impl Display, taken: bool) {
    let answer = Answer::Refused {
        version: VERSION,
        why: why.to_string(),
        taken,
    };
    // The peer may not listen.
    let _ = pass::send(&who.fd, &answer.encode(), &[]);
}

/// The descriptors for a runner to keep could not be opened.
fn files_not_opened(source: std::io::Error) -> AdmissionError {
    AdmissionError::System {
        what: "cannot open its files for its runner",
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_connects_again_and_again_closes_its_own_connections() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let all = [(7, at(0)), (8, at(3)), (8, at(2)), (8, at(5)), (9, at(1))];
        assert_eq!(most_pending(all.into_iter()), Some(2));
        assert_eq!(most_pending(all[..2].iter().copied()), Some(0));
        assert_eq!(most_pending(all[..0].iter().copied()), None);
    }
}
