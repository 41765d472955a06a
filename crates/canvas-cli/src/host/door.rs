//! The host agent's socket: who connects, what they say, and which tenants there are.
//!
//! One thread, which may wait for files and for nobody's answer; the thread that serves
//! ([`canvas_agent::host`]) gets finished agents from it and gives them back. A peer that says nothing,
//! or nonsense, is closed with a sentence and costs nobody else anything.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_agent::host::{Bell, Host, Served};
use canvas_agent::log::{About, Log};
use canvas_shm::pass;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt};

use super::hello::{Answer, Ask, BYTES_MAX, Hello, VERSION, Wanted};
use super::socket::Listening;
use super::tenant::{Service, Tenant};
use crate::error::say;
use crate::sweep::Orphan;

/// Tenants at one time.
const TENANTS_MAX: usize = 1024;
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
    id: u64,
    /// It.
    pub tenant: Tenant,
    /// Its runner's connection.
    pub link: Option<OwnedFd>,
    orphan: Orphan,
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
        spin: Duration,
        listening: Listening,
        signals: SignalFd,
    ) -> std::io::Result<Door> {
        let bell = Arc::new(Bell::default());
        let (tell, told) = channel();
        let theirs = bell.clone();
        std::thread::Builder::new()
            .name("serve".to_owned())
            .spawn(move || Host::new(spin).serve(&theirs, |host| obey(host, &told)))?;
        Ok(Door {
            service,
            slabs_max,
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
            for at in links.into_iter().rev() {
                self.hear_runner(at);
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

    /// Waits for something: a signal, a connection, strangers and runners (by index) that speak.
    fn wait(&self) -> (bool, bool, Vec<usize>, Vec<usize>) {
        let now = Instant::now();
        let in_time = |at: Instant| at.saturating_duration_since(now);
        let hellos = self.strangers.iter().map(|s| in_time(s.since + HELLO_WAIT));
        let orphans = self.seated.iter().filter(|s| s.link.is_none());
        let least = hellos
            .chain(orphans.map(|_| SWEEP))
            .chain(self.accept_again.map(in_time))
            .min();
        let timeout = least.map_or(PollTimeout::NONE, |t| {
            PollTimeout::try_from(t.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let linked: Vec<usize> = (0..self.seated.len())
            .filter(|i| self.seated[*i].link.is_some())
            .collect();
        let mut fds = vec![input(self.signals.as_fd())];
        fds.extend(self.strangers.iter().map(|s| input(s.fd.as_fd())));
        let links = self.seated.iter().filter_map(|s| s.link.as_ref());
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
        let answer = Answer::Refused {
            version: VERSION,
            why: why.to_owned(),
        };
        // It need not listen.
        let _ = pass::send(&who.fd, &answer.encode(), &[]);
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
            Ok(Ask::Tenant(hello)) => self.hello(who, hello, got.fds),
            Ok(Ask::Leave { .. }) => return self.leave(who),
            Ok(_) => self.refuse(&who, "it has no tenant here"),
            Err(why) => self.refuse(&who, &why),
        }
        false
    }

    fn hello(&mut self, who: Stranger, hello: Hello, fds: Vec<OwnedFd>) {
        match self.seat(&who, hello, fds) {
            Ok((copies, fds)) => {
                let answer = Answer::Serves {
                    version: VERSION,
                    copies,
                };
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                // A runner that is gone by now is noticed when its connection is read.
                let _ = pass::send(&who.fd, &answer.encode(), &fds);
                if let Some(seated) = self.seated.last_mut() {
                    seated.link = Some(who.fd);
                }
            }
            Err(why) => self.refuse(&who, &why),
        }
    }

    /// Serves what is asked for; it is the last of those seated then.
    fn seat(
        &mut self,
        who: &Stranger,
        hello: Hello,
        fds: Vec<OwnedFd>,
    ) -> Result<(Wanted, Vec<OwnedFd>), String> {
        let name = hello.name.clone();
        let known = self.seated.iter().position(|s| s.tenant.hello.name == name);
        if let Some(at) = known {
            let there = &self.seated[at];
            if there.tenant.uid != who.uid {
                return Err(format!(
                    "tenant {name} is another user's; write another name after --tenant"
                ));
            }
            let segment = fds.first().and_then(|fd| nix::sys::stat::fstat(fd).ok());
            if there.link.is_some()
                || segment.map(|s| (s.st_dev, s.st_ino)) != Some(there.tenant.inode)
            {
                return Err(format!(
                    "there is a tenant {name} already; write another name after --tenant"
                ));
            }
            // Its runner is back.
            let seated = self.seated.remove(at);
            self.seated.push(seated);
            return self.welcome();
        }
        if self.seated.len() >= TENANTS_MAX {
            return Err(format!("{TENANTS_MAX} tenants are served already"));
        }
        let used: usize = self.seated.iter().map(|s| s.tenant.hello.slabs).sum();
        let left = self.slabs_max.saturating_sub(used);
        if hello.slabs > left {
            return Err(format!(
                "{} MiB of far memory are left of what this agent gives (--far-max), and {name} wants {}",
                left * 64,
                hello.slabs * 64
            ));
        }
        let tenant = Tenant::judge(hello, who.uid, fds, &self.service)?;
        if self.seated.iter().any(|s| s.tenant.inode == tenant.inode) {
            return Err("its segment is another tenant's".to_owned());
        }
        self.add(tenant, None)?;
        self.welcome()
    }

    /// What the runner of the tenant seated last is told.
    fn welcome(&self) -> Result<(Wanted, Vec<OwnedFd>), String> {
        let tenant = &self.seated.last().ok_or("it is gone again")?.tenant;
        let kept = tenant.keepsakes();
        let kept = kept.map_err(|e| format!("its files cannot be kept: {}", crate::reason(&e)))?;
        Ok((tenant.policy(&self.service).into(), kept))
    }

    /// Serves a tenant.
    pub fn add(&mut self, tenant: Tenant, link: Option<OwnedFd>) -> Result<(), String> {
        let agent = tenant.agent(&self.service)?;
        let id = self.next_id;
        self.next_id += 1;
        self.tell(Command::Add(id, agent));
        self.seated.push(Seated {
            id,
            tenant,
            link,
            orphan: Orphan::default(),
        });
        Ok(())
    }

    /// What the agent does for its tenants.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// A runner speaks, or has hung up.
    fn hear_runner(&mut self, at: usize) {
        let Some(link) = self.seated[at].link.as_ref() else {
            return;
        };
        let mut buf = [0; BYTES_MAX];
        let said = match pass::receive(link, &mut buf) {
            Ok(got) => Ask::decode(&buf[..got.bytes]),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(e) => Err(e.desc().to_owned()),
        };
        match said {
            Ok(Ask::Over { .. }) => self.end(at),
            // It has hung up, or makes no sense: the tenant goes on as long as it has processes.
            _ => self.seated[at].link = None,
        }
    }

    /// A tenant is over.
    fn end(&mut self, at: usize) {
        let Seated {
            id, tenant, link, ..
        } = self.seated.swap_remove(at);
        // Its runner waits for the connection's end, which says that all is given back.
        self.tell(Command::Remove(id, Box::new((tenant, link))));
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
            if s.link.is_none() && s.orphan.is_over(lease.segment(), lease.far()) {
                self.end(at);
            }
        }
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
                for Seated { tenant, link, .. } in std::mem::take(&mut self.seated) {
                    let name = tenant.hello.name.clone();
                    if let Err(why) = self.add(tenant, link) {
                        say(format_args!("agent: tenant {name} is lost: {why}"));
                    }
                }
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
            Command::Remove(id, rest) => {
                let agent = host.remove(id);
                let ends = move || {
                    drop(agent);
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
