//! A running donor: its threads, their shared state, and its end.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use canvas_host::Host;
use canvas_place::headroom;
use canvas_wire::key::{ClusterKey, random_bytes};
use canvas_wire::{DonorId, SLAB_BYTES};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::warn;

use crate::error::StartError;
use crate::handshakes::Handshakes;
use crate::lanes::Lanes;
use crate::outbox::Outbox;
use crate::rdma::LaneDomains;
use crate::registry::Registry;
use crate::slab::Budget;
use crate::state::{Counters, State};
use crate::watchdog::Watchdog;
use crate::{Config, link};
use canvas_types::contention::Contention;

/// Stack size of a link's thread, whose buffers are on the heap.
const LINK_STACK_BYTES: usize = 256 << 10;
/// Pause after the system refused a new connection for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most time that the end waits for link threads.
const JOIN_TIME: Duration = Duration::from_secs(1);

/// State shared by all threads of a donor.
pub(crate) struct Shared {
    pub config: Config,
    pub key: ClusterKey,
    pub donor_id: DonorId,
    pub listening: SocketAddr,
    pub reserve_bytes: u64,
    /// The host's memory, within this process's control groups.
    pub host: Host,
    pub registry: Registry,
    pub lanes: Lanes,
    pub lane_domains: LaneDomains,
    pub budget: Budget,
    pub counters: Counters,
    /// Pending connections.
    handshakes: Arc<Handshakes>,
    /// Number of established links.
    pub welcomed: AtomicUsize,
    /// Number of connection threads.
    links: AtomicUsize,
    /// Everything that must be closed at the end.
    outboxes: Mutex<Vec<Weak<Outbox>>>,
    start: Instant,
    /// Whether other threads of this host need its processors.
    pub contention: Contention,
    ending: AtomicBool,
    stopped: Mutex<bool>,
    stop: Condvar,
    /// Wakes the listener's thread at the end.
    wake_listener: EventFd,
}

impl Shared {
    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    pub fn is_stopped(&self) -> bool {
        *self
            .stopped
            .lock()
            .expect("no thread panics while it holds this")
    }

    /// Sleeps, at most until the end.
    pub fn sleep(&self, time: Duration) {
        let stopped = self
            .stopped
            .lock()
            .expect("no thread panics while it holds this");
        if !*stopped {
            let _ = self.stop.wait_timeout(stopped, time);
        }
    }

    /// Sets how much memory writes may take until the next sample of the host's memory.
    pub fn set_budget(&self, available_bytes: u64) {
        self.budget
            .set(available_bytes.saturating_sub(self.reserve_bytes));
    }

    /// A write found too little budget: samples the host's memory again.
    pub fn refill_budget(&self) {
        if let Ok(memory) = self.host.memory() {
            self.set_budget(memory.available_bytes);
        }
    }

    /// Registers a link, to close it at the end.
    pub fn watch(&self, outbox: &Arc<Outbox>) {
        let mut all = self
            .outboxes
            .lock()
            .expect("no thread panics while it holds this");
        all.retain(|o| o.strong_count() > 0);
        all.push(Arc::downgrade(outbox));
        drop(all);
        // The end may have come between accept and this.
        if self.is_stopped() {
            outbox.close();
        }
    }
}

/// A donor that runs until it is stopped or dropped.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a donor.
    pub fn start(mut config: Config) -> Result<Server, StartError> {
        if config.key.is_none() && !config.listen.ip().is_loopback() {
            return Err(StartError::NoKey(config.listen.ip()));
        }
        if config.rdma {
            canvas_rdma::check().map_err(StartError::Rdma)?;
        }
        config.memory_bytes = config.memory_bytes / SLAB_BYTES as u64 * SLAB_BYTES as u64;
        if config.memory_bytes == 0 {
            return Err(StartError::NoSlab);
        }
        let host = Host::new(&config.procfs);
        let memory = host.memory()?;
        let reserve_bytes = config.reserve_bytes.unwrap_or(memory.total_bytes / 10);
        if reserve_bytes >= memory.total_bytes {
            return Err(StartError::Reserve {
                reserve_mib: reserve_bytes >> 20,
                total_mib: memory.total_bytes >> 20,
            });
        }
        let no_listener = |source| StartError::Listen {
            addr: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen)
            .and_then(|l| l.set_nonblocking(true).map(|()| l))
            .map_err(no_listener)?;
        let listening = listener.local_addr().map_err(no_listener)?;
        let wake_listener = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(StartError::NoEventfd)?;
        let bounds = headroom::Config::new(config.memory_bytes, reserve_bytes, SLAB_BYTES as u64);
        // Random, so that handles of an earlier run are invalid in this one; not 0, where a List
        // begins; and far from overflow.
        let first_handle = u64::from_le_bytes(random_bytes()?) >> 1 | 1;
        let shared = Arc::new(Shared {
            key: config
                .key
                .clone()
                .unwrap_or_else(ClusterKey::without_secret),
            donor_id: random_bytes()?,
            listening,
            reserve_bytes,
            host,
            registry: Registry::new(headroom::Headroom::new(bounds), first_handle),
            lanes: Lanes::default(),
            lane_domains: LaneDomains::default(),
            budget: Budget::default(),
            counters: Counters::default(),
            handshakes: Arc::default(),
            welcomed: AtomicUsize::new(0),
            links: AtomicUsize::new(0),
            outboxes: Mutex::default(),
            start: Instant::now(),
            contention: Contention::new(),
            ending: AtomicBool::new(false),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
            wake_listener,
            config,
        });
        // A first sample before the first client, which would otherwise find no room.
        shared.registry.observe(memory.available_bytes);
        shared.set_budget(memory.available_bytes);
        let seed = u64::from_le_bytes(random_bytes()?);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(StartError::Thread)
        };
        let (for_watchdog, for_listener) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            spawn(
                "watchdog",
                Box::new(move || Watchdog::new(seed).run(&for_watchdog)),
            )?,
            spawn(
                "listener",
                Box::new(move || accept(&for_listener, &listener)),
            )?,
        ];
        Ok(Server { shared, threads })
    }

    /// The listening address; the system chose the port if it was configured as 0.
    pub fn listening(&self) -> SocketAddr {
        self.shared.listening
    }

    /// The host's reserve.
    pub fn reserve_bytes(&self) -> u64 {
        self.shared.reserve_bytes
    }

    /// Memory that it could lend, and memory lent, in bytes.
    pub fn free_and_lent_bytes(&self) -> (u64, u64) {
        let pong = self.shared.registry.pong();
        (pong.free_bytes, pong.lent_bytes)
    }

    /// Starts the shutdown: lends nothing more, and calls clients to move their slabs within this
    /// time. Returns the number of lent slabs.
    pub fn drain(&self, within: Duration) -> usize {
        self.shared.ending.store(true, Relaxed);
        let deadline_ms = self.shared.now_ms() + within.as_millis() as u64;
        self.shared.registry.stop_all(deadline_ms)
    }

    /// Number of lent slabs.
    pub fn lent_slabs(&self) -> usize {
        self.shared.registry.totals().slabs
    }

    /// Number of reads over sessions; reads by devices are not included.
    pub fn session_reads(&self) -> u64 {
        self.shared.counters.reads.load(Relaxed)
    }

    /// The donor's state.
    pub fn state(&self) -> State {
        let memory = self.shared.host.memory();
        crate::state::state(&self.shared, memory.map_or(0, |m| m.available_bytes))
    }

    /// Stops it: closes all links and frees all memory.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.ending.store(true, Relaxed);
        *self
            .shared
            .stopped
            .lock()
            .expect("no thread panics while it holds this") = true;
        self.shared.stop.notify_all();
        let _ = self.shared.wake_listener.write(1);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let all = std::mem::take(
            &mut *self
                .shared
                .outboxes
                .lock()
                .expect("no thread panics while it holds this"),
        );
        for outbox in all.iter().filter_map(Weak::upgrade) {
            outbox.close();
        }
        let until = Instant::now() + JOIN_TIME;
        while self.shared.links.load(Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The listener's thread.
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.is_stopped() {
        let mut fds = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(shared.wake_listener.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut fds, PollTimeout::NONE);
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) => {
                // The peer may have gone; a lack of descriptors or memory takes a while.
                use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                if !matches!(e.kind(), WouldBlock | Interrupted | ConnectionAborted) {
                    warn!("accept: {}", reason(&e));
                    shared.sleep(ACCEPT_PAUSE);
                }
                continue;
            }
        };
        let outbox = match Outbox::new() {
            Ok(outbox) => Arc::new(outbox),
            Err(e) => {
                warn!("accept: {}", reason(&e));
                shared.sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let (handshake, is_full) = shared.handshakes.begin(peer.ip(), &outbox);
        if is_full {
            warn!(
                "handshakes: too many connections have not shown a key yet; the oldest one of the address with the most is closed"
            );
        }
        shared.counters.links.fetch_add(1, Relaxed);
        shared.links.fetch_add(1, Relaxed);
        let for_link = Arc::clone(shared);
        let spawned = Builder::new()
            .name("link".to_owned())
            .stack_size(LINK_STACK_BYTES)
            .spawn(move || {
                link::run(&for_link, stream, peer, outbox, handshake);
                for_link.links.fetch_sub(1, Relaxed);
            });
        if let Err(e) = spawned {
            shared.links.fetch_sub(1, Relaxed);
            warn!("accept: {}", reason(&e));
            shared.sleep(ACCEPT_PAUSE);
        }
    }
}

/// The system's error text, without Rust's "(os error 2)".
pub(crate) fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
