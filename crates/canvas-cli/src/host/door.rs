//! The host agent's socket: who connects, what they say, and which tenants there are.
//!
//! One thread, which may wait for files and for nobody's answer; the thread that serves
//! ([`canvas_agent::host`]) gets finished agents from it and gives them back. A peer that says nothing,
//! or nonsense, is closed with a sentence and costs nobody else anything.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_agent::Share;
use canvas_agent::host::{Bell, Host, Served};
use canvas_agent::lanes::Lanes;
use canvas_agent::log::{About, Log};
use canvas_shm::pass;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt};

use super::hello::{Answer, Ask, BYTES_MAX, Change, Hello, LINKS_MAX, VERSION};
use super::pool::HostPool;
use super::socket::Listening;
use super::tenant::{Service, Tenant};
use crate::error::say;
use crate::sweep::Orphan;

/// Tenants at one time.
const TENANTS_MAX: usize = 1024;
/// Runs of all tenants at one time: each has a descriptor here.
const RUNS_MAX: usize = 4096;
/// Connections that have said nothing yet; past it the oldest is closed.
const STRANGERS_MAX: usize = 64;
/// How long they may say nothing.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// Time between two looks at tenants without a runner.
const SWEEP: Duration = Duration::from_millis(500);
/// After a connection that could not be taken for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the thread that serves is told.
enum Command {
    /// Serve this one too.
    Add(u64, Box<dyn Served>),
    /// It gets this where it is not alone.
    Share(u64, Share),
    /// Serve it no more; drop the rest when its agent has ended.
    Remove(u64, Box<dyn Send>),
    /// Serve nobody any more, and give all back.
    RemoveAll(Sender<Vec<(u64, Box<dyn Served>)>>),
}

/// Who has connected and said nothing yet.
struct Stranger {
    fd: OwnedFd,
    uid: u32,
    pid: i32,
    since: Instant,
}

/// A tenant that is served.
pub struct Seated {
    /// Its number, here and for the thread that serves.
    pub id: u64,
    /// It.
    pub tenant: Tenant,
    /// Its runners' connections.
    pub links: Vec<OwnedFd>,
    orphan: Orphan,
}

/// Why a run is not served.
struct No {
    why: String,
    /// Its tenant is there: it can be joined.
    taken: bool,
}

impl From<String> for No {
    fn from(why: String) -> No {
        No { why, taken: false }
    }
}

fn is_anothers(name: &str) -> String {
    format!("tenant {name} is another user's; write another name after --tenant")
}

fn is_taken(name: &str) -> String {
    format!("there is a tenant {name} already; write another name after --tenant")
}

/// How the agent ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By this signal.
    Signal(&'static str),
    /// Another agent has taken everything over.
    Replaced,
}

/// The door.
pub struct Door {
    service: Service,
    /// Slabs of all tenants together.
    slabs_max: usize,
    /// Compressed memory of all tenants together.
    pool: HostPool,
    listening: Listening,
    signals: SignalFd,
    strangers: Vec<Stranger>,
    /// Tenants.
    pub seated: Vec<Seated>,
    next_id: u64,
    tell: Sender<Command>,
    bell: Arc<Bell>,
    log: Log,
    accept_again: Option<Instant>,
}

impl Door {
    /// Starts the thread that serves.
    pub fn new(
        service: Service,
        slabs_max: usize,
        pool: HostPool,
        spin: Duration,
        lanes: Lanes,
        listening: Listening,
        signals: SignalFd,
    ) -> std::io::Result<Door> {
        let bell = Arc::new(Bell::default());
        let (tell, told) = channel();
        let theirs = bell.clone();
        std::thread::Builder::new()
            .name("serve".to_owned())
            .spawn(move || Host::new(spin, lanes).serve(&theirs, |host| obey(host, &told)))?;
        Ok(Door {
            service,
            slabs_max,
            pool,
            listening,
            signals,
            strangers: Vec::new(),
            seated: Vec::new(),
            next_id: 1,
            tell,
            bell,
            log: Log::new(|line| say(line)),
            accept_again: None,
        })
    }

    fn tell(&self, command: Command) {
        // The other thread ends with the process only.
        let _ = self.tell.send(command);
        self.bell.ring();
    }

    /// Serves until a signal comes or another agent takes over.
    pub fn serve(&mut self) -> End {
        loop {
            let (signal, knocks, strangers, links) = self.wait();
            if signal && let Ok(Some(info)) = self.signals.read_signal() {
                let signal = Signal::try_from(info.ssi_signo as i32);
                return End::Signal(signal.map_or("a signal", Signal::as_str));
            }
            for (at, link) in links.into_iter().rev() {
                self.hear_runner(at, link);
            }
            for at in strangers.into_iter().rev() {
                if self.hear_stranger(at) {
                    return End::Replaced;
                }
            }
            if knocks {
                self.accept();
            }
            self.look_around();
        }
    }

    /// Waits for something: a signal, a connection, strangers (by index) and runners (by their tenant's
    /// index and their own) that speak.
    fn wait(&self) -> (bool, bool, Vec<usize>, Vec<(usize, usize)>) {
        let now = Instant::now();
        let in_time = |at: Instant| at.saturating_duration_since(now);
        let hellos = self.strangers.iter().map(|s| in_time(s.since + HELLO_WAIT));
        let orphans = self.seated.iter().filter(|s| s.links.is_empty());
        let least = hellos
            .chain(orphans.map(|_| SWEEP))
            .chain(self.accept_again.map(in_time))
            .chain(self.pool.due().map(in_time))
            .min();
        let timeout = least.map_or(PollTimeout::NONE, |t| {
            PollTimeout::try_from(t.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let all = self.seated.iter().enumerate();
        let linked: Vec<(usize, usize)> = all
            .flat_map(|(i, s)| (0..s.links.len()).map(move |k| (i, k)))
            .collect();
        let mut fds = vec![input(self.signals.as_fd())];
        fds.extend(self.strangers.iter().map(|s| input(s.fd.as_fd())));
        let links = self.seated.iter().flat_map(|s| &s.links);
        fds.extend(links.map(|fd| input(fd.as_fd())));
        if self.accept_again.is_none() {
            fds.push(input(self.listening.socket.as_fd()));
        }
        if poll(&mut fds, timeout).is_err() {
            return (false, false, Vec::new(), Vec::new());
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let n = self.strangers.len();
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

    fn accept(&mut self) {
        for _ in 0..STRANGERS_MAX {
            match pass::accept(&self.listening.socket) {
                Ok(fd) => {
                    let Ok(peer) = getsockopt(&fd, sockopt::PeerCredentials) else {
                        continue;
                    };
                    let all = self.strangers.iter().enumerate();
                    let oldest = all.min_by_key(|(_, s)| s.since).map(|(at, _)| at);
                    if let Some(at) = oldest.filter(|_| self.strangers.len() >= STRANGERS_MAX) {
                        let oldest = self.strangers.swap_remove(at);
                        self.refuse(&oldest, "too many others have connected and said nothing");
                    }
                    self.strangers.push(Stranger {
                        fd,
                        uid: peer.uid(),
                        pid: peer.pid(),
                        since: Instant::now(),
                    });
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(e) => {
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    self.log.line(
                        About::Hello,
                        format_args!("a connection cannot be taken: {}", e.desc()),
                    );
                    return;
                }
            }
        }
    }

    /// Says why not, and hangs up when `who` is dropped.
    fn refuse(&mut self, who: &Stranger, why: &str) {
        self.refuse_as(who, &No::from(why.to_owned()));
    }

    fn refuse_as(&mut self, who: &Stranger, no: &No) {
        let No { why, taken } = no;
        let answer = Answer::Refused {
            version: VERSION,
            why: why.clone(),
            taken: *taken,
        };
        // It need not listen.
        let _ = pass::send(&who.fd, &answer.encode(), &[]);
        if *taken {
            // It joins now.
            return;
        }
        self.log.line(
            About::Hello,
            format_args!(
                "user {} (process {}) is not served: {why}",
                who.uid, who.pid
            ),
        );
    }

    /// A stranger speaks. True when it was the next agent, which has everything now.
    fn hear_stranger(&mut self, at: usize) -> bool {
        let who = self.strangers.swap_remove(at);
        let mut buf = [0; BYTES_MAX];
        let got = match pass::receive(&who.fd, &mut buf) {
            Ok(got) if got.bytes == 0 && !got.cut => return false,
            Ok(got) => got,
            Err(Errno::EAGAIN) => {
                self.strangers.push(who);
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
            Ok(Ask::Leave { .. }) => return self.leave(who),
            Ok(_) => self.refuse(&who, "it has no tenant here"),
            Err(why) => self.refuse(&who, &why),
        }
        false
    }

    /// A run begins: alone, or as one more of a tenant that is there.
    fn begin(&mut self, who: Stranger, name: &str, join: bool) {
        let known = self.position(name);
        let Some(at) = known else {
            let answer = Answer::Vacant {
                version: VERSION,
                terms: self.service.terms(name).clone(),
            };
            let _ = pass::send(&who.fd, &answer.encode(), &[]);
            return;
        };
        let there = &self.seated[at];
        let why = if there.tenant.uid != who.uid {
            Some(is_anothers(name))
        } else if !join {
            Some(is_taken(name))
        } else {
            self.is_full(at)
        };
        if let Some(why) = why {
            return self.refuse(&who, &why);
        }
        match there.tenant.keepsakes() {
            Ok(kept) => {
                let answer = Answer::Joins(there.tenant.seat(&self.service));
                let mut fds = vec![there.tenant.segment()];
                fds.extend(kept.iter().map(AsFd::as_fd));
                // A runner that is gone by now is noticed when its connection is read.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                self.seated[at].links.push(who.fd);
            }
            Err(e) => {
                let why = format!("its files cannot be kept: {}", crate::reason(&e));
                self.refuse(&who, &why);
            }
        }
    }

    /// Why no more runs can be a tenant's, if so.
    fn is_full(&self, at: usize) -> Option<String> {
        let there = &self.seated[at];
        let all: usize = self.seated.iter().map(|s| s.links.len()).sum();
        if there.links.len() >= LINKS_MAX {
            let name = &there.tenant.hello.name;
            return Some(format!("tenant {name} has {LINKS_MAX} runs already"));
        }
        (all >= RUNS_MAX).then(|| format!("{RUNS_MAX} runs are served already"))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.seated.iter().position(|s| s.tenant.hello.name == name)
    }

    fn hello(&mut self, who: Stranger, hello: Hello, fds: Vec<OwnedFd>) {
        let seated = self.seat(&who, hello, fds).and_then(|at| {
            let kept = self.seated[at].tenant.keepsakes();
            let kept =
                kept.map_err(|e| format!("its files cannot be kept: {}", crate::reason(&e)))?;
            Ok((at, kept))
        });
        match seated {
            Ok((at, kept)) => {
                let answer = Answer::Serves(self.seated[at].tenant.seat(&self.service));
                let fds: Vec<_> = kept.iter().map(AsFd::as_fd).collect();
                // A runner that is gone by now is noticed when its connection is read.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                self.seated[at].links.push(who.fd);
            }
            Err(no) => self.refuse_as(&who, &no),
        }
    }

    /// Serves what is asked for; where it is seated then.
    fn seat(&mut self, who: &Stranger, hello: Hello, fds: Vec<OwnedFd>) -> Result<usize, No> {
        let name = hello.name.clone();
        if let Some(at) = self.position(&name) {
            let there = &self.seated[at];
            if there.tenant.uid != who.uid {
                return Err(is_anothers(&name).into());
            }
            let segment = fds.first().and_then(|fd| nix::sys::stat::fstat(fd).ok());
            if segment.map(|s| (s.st_dev, s.st_ino)) != Some(there.tenant.inode) {
                return Err(No {
                    why: is_taken(&name),
                    taken: true,
                });
            }
            if let Some(why) = self.is_full(at) {
                return Err(why.into());
            }
            // One of its runners is back.
            return Ok(at);
        }
        if self.seated.len() >= TENANTS_MAX {
            return Err(format!("{TENANTS_MAX} tenants are served already").into());
        }
        if let Some(why) = self.pool.is_full() {
            return Err(why.into());
        }
        let tenant = Tenant::judge(hello, who.uid, fds, &self.service)?;
        if self.seated.iter().any(|s| s.tenant.inode == tenant.inode) {
            return Err("its segment is another tenant's".to_owned().into());
        }
        self.has_room(&name, tenant.hello.slabs, None)?;
        self.add(tenant, Vec::new())?;
        let at = self.seated.len() - 1;
        // Before its runner is answered, and so before its programs start.
        let new = &self.seated[at];
        self.pool.arrive(&self.service, &[new], &self.seated);
        Ok(at)
    }

    /// Is there far memory left for so many slabs, beside those of all tenants but `except`?
    fn has_room(&self, name: &str, slabs: usize, except: Option<usize>) -> Result<(), String> {
        let others = self.seated.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != except);
        let used: usize = others.map(|(_, s)| s.tenant.hello.slabs).sum();
        let left = self.slabs_max.saturating_sub(used);
        if slabs > left {
            return Err(format!(
                "{} MiB of far memory are left of what this agent gives (--far-max), and {name} wants {}",
                left * 64,
                slabs * 64
            ));
        }
        Ok(())
    }

    /// Serves a tenant.
    pub fn add(&mut self, tenant: Tenant, links: Vec<OwnedFd>) -> Result<(), String> {
        let agent = tenant.agent(&self.service)?;
        let id = self.next_id;
        self.next_id += 1;
        self.tell(Command::Add(id, agent));
        self.seated.push(Seated {
            id,
            tenant,
            links,
            orphan: Orphan::default(),
        });
        Ok(())
    }

    /// Tenants that were taken over get their parts of the host's pool, if it is bounded.
    pub fn begin_pools(&mut self) {
        self.pool.begin(&self.service, &self.seated);
    }

    /// What the agent does for its tenants.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// A runner speaks, or has hung up.
    fn hear_runner(&mut self, at: usize, link: usize) {
        let fd = &self.seated[at].links[link];
        let mut buf = [0; BYTES_MAX];
        let said = match pass::receive(fd, &mut buf) {
            Ok(got) => Ask::decode(&buf[..got.bytes]),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(e) => Err(e.desc().to_owned()),
        };
        match said {
            // The last one says when the tenant is over; the others only go.
            Ok(Ask::Over { .. }) if self.seated[at].links.len() == 1 => self.end(at),
            Ok(Ask::Change(change)) => {
                let version = VERSION;
                let answer = match self.change(at, &change) {
                    Ok(()) => Answer::Changed { version },
                    Err(why) => Answer::Unchanged { version, why },
                };
                // A runner that is gone is noticed when its connection is read.
                let _ = pass::send(&self.seated[at].links[link], &answer.encode(), &[]);
            }
            // It has hung up, or makes no sense: the tenant goes on as long as it has processes.
            _ => drop(self.seated[at].links.remove(link)),
        }
    }

    /// Changes a tenant: all of it, or nothing.
    fn change(&mut self, at: usize, change: &Change) -> Result<(), String> {
        if let Some(slabs) = change.slabs {
            self.has_room(&self.seated[at].tenant.hello.name, slabs, Some(at))?;
        }
        let Seated { id, tenant, .. } = &mut self.seated[at];
        tenant.change(change, &self.service)?;
        let command = Command::Share(*id, tenant.share(&self.service));
        self.tell(command);
        let changed = &self.seated[at];
        self.pool.change(&self.service, changed, &self.seated);
        Ok(())
    }

    /// A tenant is over.
    fn end(&mut self, at: usize) {
        let Seated {
            id, tenant, links, ..
        } = self.seated.swap_remove(at);
        self.pool.leave(id, &self.seated);
        // Its runner waits for the connection's end, which says that all is given back.
        self.tell(Command::Remove(id, Box::new((tenant, links))));
    }

    /// What time brings.
    fn look_around(&mut self) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
        }
        while let Some(at) = self
            .strangers
            .iter()
            .position(|s| now.duration_since(s.since) >= HELLO_WAIT)
        {
            let who = self.strangers.swap_remove(at);
            self.refuse(&who, "it has connected and said nothing");
        }
        for at in (0..self.seated.len()).rev() {
            let s = &mut self.seated[at];
            let lease = s.tenant.lease();
            if s.links.is_empty() && s.orphan.is_over(lease.segment(), lease.far()) {
                self.end(at);
            }
        }
        self.pool.tend(&self.seated);
    }

    /// Another agent wants to take over. True when it has.
    fn leave(&mut self, who: Stranger) -> bool {
        if who.uid != 0 && who.uid != nix::unistd::geteuid().as_raw() {
            self.refuse(&who, "only root and the agent's own user may replace it");
            return false;
        }
        let (send, given) = channel();
        self.tell(Command::RemoveAll(send));
        let agents = given.recv().unwrap_or_default();
        // An agent that is dropped waits for its disk: nothing of it is under way any more after that.
        std::thread::scope(|s| {
            for (_, agent) in agents {
                s.spawn(|| drop(agent));
            }
        });
        match super::replace::give(&who.fd, &self.listening, &self.seated) {
            Ok(()) => true,
            Err(why) => {
                say(format_args!(
                    "agent: the one that was to take over has not ({why}); this one goes on"
                ));
                for Seated { tenant, links, .. } in std::mem::take(&mut self.seated) {
                    let name = tenant.hello.name.clone();
                    if let Err(why) = self.add(tenant, links) {
                        say(format_args!("agent: tenant {name} is lost: {why}"));
                    }
                }
                self.begin_pools();
                false
            }
        }
    }
}

/// The thread that serves does what it is told.
fn obey(host: &mut Host, told: &Receiver<Command>) -> bool {
    while let Ok(command) = told.try_recv() {
        match command {
            Command::Add(id, agent) => host.add(id, agent),
            Command::Share(id, share) => host.set_share(id, share),
            Command::Remove(id, rest) => {
                let agent = host.remove(id);
                let ends = move || {
                    if let Some(mut agent) = agent {
                        agent.leave();
                    }
                    drop(rest);
                };
                // Without a thread it ends here, and the others wait for it.
                let _ = std::thread::Builder::new()
                    .name("end".to_owned())
                    .spawn(ends);
            }
            Command::RemoveAll(to) => {
                let _ = to.send(host.remove_all());
            }
        }
    }
    true
}
