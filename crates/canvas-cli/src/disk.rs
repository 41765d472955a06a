//! `canvas disk`, from its flags to its end.

mod questions;
mod state;
mod supervise;
mod swap_host;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use canvas_control::peers::{Asked, Peers};
use canvas_control::wire;
use canvas_disk::far::Tenant;
use canvas_disk::file::DiskFile;
use canvas_disk::nbd::{ClientStats, Server};
use canvas_disk::pool::{PAGES_MAX, POOL_BYTES_MAX};
use canvas_disk::socket::Socket;
use canvas_disk::virtio::{self, Device};
use canvas_disk::{DiskMemory, DiskStats, PoolStore};
use canvas_runner::ServedDisk;
use canvas_runner::join::{self, Begun};
use canvas_runner::options::{FarOptions, HostOptions};
use canvas_runner::storage::Storage;
use canvas_shm::mailbox::Status;
use canvas_types::units::Size;
use canvas_types::{PAGE_SIZE, exit};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use tracing::{error, info, warn};

use crate::args::{DiskArgs, HeldArgs};
use crate::error::Failure;
use crate::options::Places;
use crate::{options, signals, tenant_flags};
use canvas_control::hello::SMALL_MIN;
use canvas_control::settings::Key;
use canvas_control::settings::table::*;
use questions::Holder;
use state::{State, ratio};
use supervise::{Given, Held, Sockets};
use swap_host::HostDevice;

/// Interval of updating the state.
const TICK: Duration = Duration::from_secs(1);
/// Interval of checking the agent, which may have died.
const AGENT_TICK: Duration = Duration::from_millis(100);
/// Interval of checking the agent while a client reads metrics.
const PEERS_TICK: Duration = Duration::from_millis(100);
/// How long a pool must have had room before a full pool is reported again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// Serves the disk until a signal ends it: by a child process if the disk is to survive its server,
/// else in this process.
pub fn run(args: &DiskArgs) -> Result<i32, Failure> {
    let args = &settled(args.clone())?;
    let given = &args.settings;
    let size = size(args)?;
    let pages = pages(size)?;
    let pool = pool(args, size)?;
    let swap_host = given.value(SWAP_HOST).0;
    if !given.has(NBD) && !given.has(VHOST_USER) && !swap_host {
        return Err(Failure::usage(
            "the disk would have no clients; write --vhost-user PATH, --nbd PATH or --swap-host",
        ));
    }
    let far = far(args)?;
    if swap_host {
        stands_alone(args)?;
        swap_host::prepare(args, pages, pool)?;
    } else if given.value(RESTARTS) > 0 {
        let file = DiskFile::create(pages, pool.bytes).map_err(Failure::usage)?;
        let sockets = sockets(args)?;
        let storage = far.map(|far| begin(pool, &far)).transpose()?;
        let held = Held {
            file,
            sockets,
            storage,
        };
        return supervise::run(args, held);
    }
    let peers = peers(args)?;
    let signals = ends()?;
    let sockets = sockets(args)?;
    let storage = far.as_ref().map(|far| begin(pool, far)).transpose()?;
    let memory = match swap_host {
        true => DiskMemory::taken(pages, pool.bytes),
        false => DiskMemory::new(pages, pool.bytes),
    };
    let mut memory = memory.map_err(Failure::usage)?;
    if let Some(storage) = &storage {
        let tenant = Tenant::enter(storage.fd(), storage.segment, storage.far).map_err(|e| {
            let why = Errno::from_raw(e.0).desc();
            Failure::usage(format!(
                "far memory: no free process entry in its tenant: {why}"
            ))
        })?;
        memory = memory.with_tenant(tenant);
    }
    let named = (name(args, own_name), 0);
    let beyond = storage.map_or(Beyond::Nothing, Beyond::Own);
    serve(args, named, signals, peers, sockets, memory, beyond)
}

/// Serves a disk that another process holds.
pub fn serve_held(args: &HeldArgs) -> Result<i32, Failure> {
    // First of all, so that no signal is lost.
    let signals = ends()?;
    let given = Given::take(args)?;
    let (disk, died) = (&args.disk, args.died);
    let peers = match peers(disk) {
        // An address that is in use now is no reason to lose the stored data.
        Err(why) if died > 0 => {
            warn!("{}; there are no metrics", why.sentence);
            Peers::new()
        }
        peers => peers?,
    };
    let named = (name(disk, || name_of(args.holder)), died);
    let (sockets, memory) = (given.sockets, given.memory);
    let beyond = given.holder.map_or(Beyond::Nothing, Beyond::Held);
    let result = serve(disk, named, signals, peers, sockets, memory, beyond);
    drop(given.segment);
    result
}

/// Before the first thread, so that all threads block these signals.
fn ends() -> Result<SignalFd, Failure> {
    let fail = |e: Errno| Failure::usage(format!("signals cannot be waited for: {}", e.desc()));
    signals::ends().map_err(fail)
}

fn peers(args: &DiskArgs) -> Result<Peers, Failure> {
    let mut peers = Peers::new();
    if let Some(addr) = args.settings.get(METRICS) {
        peers.offer_metrics(addr).map_err(Failure::usage)?;
    }
    Ok(peers)
}

fn sockets(args: &DiskArgs) -> Result<Sockets, Failure> {
    let group = args.settings.get(GROUP);
    let open = |key: Key<PathBuf>| {
        let path = args.settings.get(key);
        let open = |path| Socket::open(path, group.as_deref());
        let socket = path.as_deref().map(open).transpose();
        socket.map_err(|e| Failure::usage(format!("--{}: {e}", key.name)))
    };
    Ok(Sockets {
        nbd: open(NBD)?,
        vhost: open(VHOST_USER)?,
    })
}

/// Serves the disk `name` in this process; `died` servers have died before.
fn serve(
    args: &DiskArgs,
    (name, died): (String, u32),
    signals: SignalFd,
    mut peers: Peers,
    sockets: Sockets,
    memory: Box<DiskMemory>,
    beyond: Beyond,
) -> Result<i32, Failure> {
    let given = &args.settings;
    let queues = given.value(QUEUES);
    // It exists until the process ends, whatever threads use it then.
    let memory: &'static DiskMemory = Box::leak(memory);
    let store: &'static PoolStore<'static> =
        Box::leak(Box::new(PoolStore::new(memory, given.value(CODEC))));
    let start = |socket| Vhost::start(socket, store, queues);
    let vhost = sockets.vhost.map(start).transpose()?;
    let swap_host = given.value(SWAP_HOST).0;
    let host = swap_host.then(|| HostDevice::start(store, queues));
    let host = host.transpose()?;
    let disk = Disk {
        name,
        pool_start_bytes: memory.pool_bytes_max(),
        nbd: sockets.nbd.map(Server::new),
        vhost,
        host,
        memory,
        store,
        args,
        died,
        began: Instant::now(),
    };
    if let Err(why) = peers.open(&disk.name, "disk") {
        warn!("{why}");
    }
    disk.greet();
    let signal = disk.serve(&signals, &mut peers, beyond);
    let stats = disk.store.stats();
    info!("{signal}: ending; pages stored: {}", stats.stored_pages);
    disk.write_state("ending");
    Ok(exit::OK)
}

/// Default name of the disk at the host's agent.
fn own_name() -> String {
    name_of(std::process::id())
}

/// Default name of the disk of process `pid`.
fn name_of(pid: u32) -> String {
    format!("disk.{pid}")
}

/// The flags, completed by the operator's terms; an error if they exceed the terms.
fn settled(mut args: DiskArgs) -> Result<DiskArgs, Failure> {
    let usage = |f: Failure| Failure::usage(f.sentence);
    let Some(host) = options::host_of(&args.settings, own_name).map_err(usage)? else {
        return Ok(args);
    };
    let name = host.name.clone();
    // A disk cannot be joined, and cannot join a tenant.
    let alone = HostOptions {
        is_named: false,
        ..host
    };
    match join::begin(alone).map_err(Failure::usage)? {
        Begun::Vacant(terms) => {
            tenant_flags::fill_beyond(&terms, &mut args.settings).map_err(usage)?;
            Ok(args)
        }
        Begun::Joined(_) => Err(is_there(&name)),
    }
}

fn is_there(name: &str) -> Failure {
    Failure::usage(format!(
        "tenant {name} exists already; write another name after --tenant"
    ))
}

/// Far memory beyond the pool, if requested.
fn far(args: &DiskArgs) -> Result<Option<FarOptions>, Failure> {
    let usage = |f: Failure| Failure::usage(f.sentence);
    let host = canvas_runner::host_memory();
    let slabs = options::far_slabs(&args.settings, host.ram_bytes).map_err(usage)?;
    let Some(slabs) = slabs else {
        return Ok(None);
    };
    let far = options::far_options(&args.settings, slabs, own_name);
    let mut far = far.map_err(usage)?;
    far.of_daemon = true;
    Ok(Some(far))
}

/// The disk's name in `canvas status` and other commands.
fn name(args: &DiskArgs, own_name: impl FnOnce() -> String) -> String {
    let at_host = Places::of(&args.settings).agent.is_some();
    let given = args.settings.get(TENANT);
    given.unwrap_or_else(|| {
        if at_host {
            own_name()
        } else {
            "disk".to_owned()
        }
    })
}

/// A server's far memory.
enum Beyond {
    Nothing,
    /// Its own.
    Own(Storage),
    /// Its holder's.
    Held(Holder),
}

impl Beyond {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self {
            Beyond::Own(storage) => storage.poll_fd(),
            Beyond::Nothing | Beyond::Held(_) => None,
        }
    }

    /// Checks whether the agent has died, if that is this process's task.
    fn tend(&mut self) {
        if let Beyond::Own(storage) = self {
            storage.tend();
        }
    }

    /// The answer to a request about the disk.
    fn answer(&mut self, disk: ServedDisk, line: &[u8]) -> String {
        match self {
            Beyond::Nothing => disk.answer(line, None),
            Beyond::Own(storage) => disk.answer(line, Some(storage)),
            Beyond::Held(holder) => holder.ask(disk, line),
        }
    }
}

/// Starts the tenant of the disk.
fn begin(pool: Size, far: &FarOptions) -> Result<Storage, Failure> {
    let begun = Storage::begin(pool.bytes, far).map_err(Failure::usage)?;
    begun.ok_or_else(|| is_there(far.host.as_ref().map_or("", |host| host.name.as_str())))
}

/// A device served over vhost-user.
struct Vhost {
    device: Arc<Device<PoolStore<'static>>>,
    /// Removed when dropped.
    _socket: Socket,
}

impl Vhost {
    /// Serves it in its own threads until the process ends.
    fn start(
        socket: Socket,
        store: &'static PoolStore<'static>,
        queues: u16,
    ) -> Result<Vhost, Failure> {
        let fail = |e: std::io::Error| {
            Failure::usage(format!(
                "--vhost-user: a thread cannot be started: {}",
                crate::reason(&e)
            ))
        };
        let listener = socket.listener.try_clone().map_err(fail)?;
        listener.set_nonblocking(false).map_err(fail)?;
        let device = Device::new(store, queues);
        let served = device.clone();
        let serve = move || {
            if let Err(e) = virtio::serve(listener, &served) {
                error!("vhost-user is no longer served: {e}");
            }
        };
        let thread = thread::Builder::new().name("vhost-user".to_owned());
        thread.spawn(serve).map_err(fail)?;
        Ok(Vhost {
            device,
            _socket: socket,
        })
    }
}

/// Number of pages of a disk of this size.
fn pages(size: Size) -> Result<u64, Failure> {
    let page = PAGE_SIZE as u64;
    let fail = |why: String| Err(Failure::usage(format!("--size {size} {why}")));
    match size.bytes / page {
        0 => fail("is less than a page; write 4K or more".to_owned()),
        _ if !size.bytes.is_multiple_of(page) => {
            fail("is not a whole number of pages; write a multiple of 4K".to_owned())
        }
        pages if pages > PAGES_MAX => {
            let most = Size::from_bytes(PAGES_MAX * page);
            fail(format!("is too large; write {most} or less"))
        }
        pages => Ok(pages),
    }
}

/// The size of the disk.
fn size(args: &DiskArgs) -> Result<Size, Failure> {
    let size = args.settings.get(SIZE);
    size.ok_or_else(|| Failure::usage("--size is missing; see `canvas disk --help`"))
}

/// Refuses other clients for a disk that its host swaps onto.
fn stands_alone(args: &DiskArgs) -> Result<(), Failure> {
    let given = &args.settings;
    let others = [
        given.has(NBD).then_some(NBD.name),
        given.has(VHOST_USER).then_some(VHOST_USER.name),
        given.has(GROUP).then_some(GROUP.name),
        given.has(QUEUES).then_some(QUEUES.name),
    ];
    match others.into_iter().flatten().next() {
        Some(other) => Err(Failure::usage(format!(
            "--swap-host and --{other} exclude each other; write one of them"
        ))),
        None => Ok(()),
    }
}

/// The limit on the pool.
fn pool(args: &DiskArgs, disk: Size) -> Result<Size, Failure> {
    match args.settings.get(POOL) {
        Some(size) if size.bytes > POOL_BYTES_MAX => Err(Failure::usage(format!(
            "--pool {size} is too large; write {} or less",
            Size::from_bytes(POOL_BYTES_MAX)
        ))),
        Some(size) => Ok(size),
        None => {
            let half = Size::from_bytes(canvas_runner::host_memory().usable_bytes / 2);
            Ok(disk.min(half).max(SMALL_MIN))
        }
    }
}

/// A disk that is served.
struct Disk<'a> {
    name: String,
    /// The initial limit on its pool.
    pool_start_bytes: u64,
    nbd: Option<Server>,
    vhost: Option<Vhost>,
    host: Option<HostDevice>,
    memory: &'static DiskMemory,
    store: &'static PoolStore<'static>,
    args: &'a DiskArgs,
    /// Number of servers that died before this one.
    died: u32,
    began: Instant,
}

impl Disk<'_> {
    /// Prints where the disk is served.
    fn greet(&self) {
        let stats = self.store.stats();
        if self.died == 0 {
            let given = &self.args.settings;
            let paths = [given.get(VHOST_USER), given.get(NBD)];
            let paths = paths.into_iter().flatten();
            let paths = paths.map(|p| p.display().to_string());
            let device = self.host.as_ref().map(|host| host.path().to_owned());
            let paths: Vec<String> = paths.chain(device).collect();
            let far = match stats.far_bytes_max {
                0 => String::new(),
                bytes => format!(", far memory up to {} MiB", bytes >> 20),
            };
            info!(
                "{} at {}, pool up to {} MiB{far}",
                given.get(SIZE).unwrap_or_default(),
                paths.join(" and "),
                self.memory.pool_bytes_max() >> 20
            );
            return;
        }
        let found = self.store.found();
        let damaged = match found.lost {
            0 => String::new(),
            n => format!(", of which {n} are damaged: reads of them fail with EIO"),
        };
        info!("served again, with {} stored pages{damaged}", found.stored);
    }

    /// Serves until a signal comes; returns its name.
    fn serve(&self, signals: &SignalFd, peers: &mut Peers, mut beyond: Beyond) -> &'static str {
        let over = AtomicBool::new(false);
        let signal = thread::scope(|scope| {
            if self.memory.has_tenant() {
                scope.spawn(|| self.move_pages(&over));
            }
            let mut watch = Watch::default();
            let mut asked = None;
            let signal = loop {
                if let Some(signal) = self.wait(signals, peers, &mut beyond, &watch) {
                    asked = Some(signal);
                    self.say_when(signal);
                }
                if let Some(signal) = asked.filter(|_| !self.is_swap()) {
                    break signal;
                }
                if let Some(nbd) = &self.nbd {
                    nbd.accept(scope, self.store);
                }
                beyond.tend();
                watch.look(self);
            };
            over.store(true, Relaxed);
            self.memory.leave();
            if let Some(nbd) = &self.nbd {
                nbd.hang_up();
            }
            signal
        });
        if let Beyond::Own(storage) = beyond {
            storage.end();
        }
        signal
    }

    /// Whether the host's own memory is on the disk.
    fn is_swap(&self) -> bool {
        self.host.as_ref().is_some_and(HostDevice::is_swap)
    }

    /// If the requested end of the disk has to wait, prints for what.
    fn say_when(&self, signal: &str) {
        if let Some(host) = self.host.as_ref().filter(|host| host.is_swap()) {
            warn!(
                "{signal}: this host swaps onto {0}, so the disk ends after: swapoff {0}",
                host.path()
            );
        }
    }

    /// Moves pages from the pool to far memory when the pool is above its mark.
    fn move_pages(&self, over: &AtomicBool) {
        while !over.load(Relaxed) {
            thread::sleep(self.store.background_round());
        }
    }

    /// Waits for a client, a signal or the next tick; returns the signal, if any.
    fn wait(
        &self,
        signals: &SignalFd,
        peers: &mut Peers,
        beyond: &mut Beyond,
        watch: &Watch,
    ) -> Option<&'static str> {
        let tick = match beyond {
            Beyond::Own(_) => AGENT_TICK,
            Beyond::Nothing | Beyond::Held(_) => TICK,
        };
        let until = Instant::now() + tick;
        loop {
            if let Ok(Some(info)) = signals.read_signal() {
                let signal = Signal::try_from(info.ssi_signo as i32);
                return Some(signal.map_or("a signal", Signal::as_str));
            }
            let left = until.saturating_duration_since(Instant::now());
            // Slow clients are disconnected in time.
            let left = if peers.any() {
                left.min(PEERS_TICK)
            } else {
                left
            };
            let nbd = self.nbd.as_ref().map(Server::fd);
            let own = [Some(signals.as_fd()), nbd].into_iter().flatten();
            let own = own.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let agent = beyond.poll_fd();
            let mut fds: Vec<_> = own.chain(agent).chain(peers.poll_fds()).collect();
            let watched = fds.len() - peers.poll_fds().count();
            let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
            // An error is either over in the next round, or found again.
            let _ = poll(&mut fds, timeout);
            let came = fds[1..watched].iter().any(|fd| fd.any().unwrap_or(false));
            drop(fds);
            peers.serve(|asked| match asked {
                Asked::Metrics => self.state("ok").metrics(),
                Asked::Line(line) => beyond.answer(self.served(watch), line),
            });
            if came || Instant::now() >= until {
                return None;
            }
        }
    }

    fn clients(&self) -> ClientStats {
        let mut clients = self.nbd.as_ref().map(Server::stats).unwrap_or_default();
        if let Some(vhost) = &self.vhost {
            let (now, ever) = vhost.device.clients();
            clients.clients += now;
            clients.accepted += ever;
        }
        clients
    }

    /// The disk's state for clients that ask for it.
    fn served(&self, watch: &Watch) -> ServedDisk {
        let stats = self.store.stats();
        let given = &self.args.settings;
        let socket = given.get(VHOST_USER).or_else(|| given.get(NBD));
        ServedDisk {
            name: self.name.clone(),
            pid: std::process::id(),
            pool_start_bytes: self.pool_start_bytes,
            socket: match &self.host {
                Some(host) => host.path().to_owned(),
                None => socket.map_or(String::new(), |path| path.display().to_string()),
            },
            uptime: self.began.elapsed(),
            pool_bytes: stats.pool_bytes,
            pool_bytes_max: stats.pool_bytes_max,
            is_full: watch.is_full || stats.refused > watch.before.refused,
            disk: wire::Disk {
                size_bytes: stats.pages * PAGE_SIZE as u64,
                stored_pages: stats.stored_pages,
                ratio: ratio(&stats),
                clients: self.clients().clients,
                reads_per_s: watch.reads_per_s,
                writes_per_s: watch.writes_per_s,
                reads: stats.reads,
                writes: stats.writes,
                far_reads: stats.far_reads,
                refused: stats.refused,
                unreachable: stats.unreachable,
                damaged: stats.damaged,
            },
        }
    }

    fn state(&self, health: &'static str) -> State {
        let (stats, clients) = (self.store.stats(), self.clients());
        let died = (self.died, self.store.found().lost);
        let device = self.host.as_ref().map(HostDevice::path);
        State::new(
            (self.args, device),
            health,
            self.began.elapsed(),
            died,
            &stats,
            &clients,
        )
    }

    fn write_state(&self, health: &'static str) {
        if let Some(path) = &self.args.settings.get(STATE_JSON)
            && let Err(e) = canvas_donor::state::write(path, &self.state(health).json())
        {
            warn!(
                "{} cannot be written: {}",
                path.display(),
                crate::reason(&e)
            );
        }
    }
}

/// State of what is checked once a second.
#[derive(Default)]
struct Watch {
    looked: Option<Instant>,
    before: DiskStats,
    /// Pages read and written in the last second, and whether a write found no room.
    reads_per_s: f64,
    writes_per_s: f64,
    is_full: bool,
    /// When a write last found no room.
    full: Option<Instant>,
}

impl Watch {
    fn look(&mut self, disk: &Disk<'_>) {
        if self.looked.is_some_and(|t| t.elapsed() < TICK) {
            return;
        }
        let (now, stats) = (Instant::now(), disk.store.stats());
        let before = self.looked.replace(now).unwrap_or(disk.began);
        // Rounded to a tenth.
        let rate =
            |n: u64| (n as f64 / (now - before).as_secs_f64().max(0.001) * 10.0).round() / 10.0;
        self.reads_per_s = rate(stats.reads - self.before.reads);
        self.writes_per_s = rate(stats.writes - self.before.writes);
        self.is_full = stats.refused > self.before.refused;
        if self.is_full {
            if self.full.is_none_or(|t| now - t > TOLD_AGAIN) {
                error!(
                    "the pool of {} is full: writes fail with ENOSPC; start with a larger --pool, or free pages in the guest",
                    Size::from_bytes(stats.pool_bytes_max)
                );
            }
            self.full = Some(now);
        }
        if let Some(why) = disk.store.stuck() {
            warn!(
                "pages cannot be moved beyond the pool ({}); they stay in it",
                match why {
                    Status::NoRoom => "there is no room",
                    Status::Unreachable => "no copy can be made: donors or disk do not answer",
                    Status::Refused => "the agent refuses",
                    _ => "the copy is damaged",
                }
            );
        }
        if stats.damaged > self.before.damaged {
            error!(
                "{} reads found damaged pages and failed with EIO; check this host's memory, and that of donors",
                stats.damaged - self.before.damaged
            );
        }
        if stats.writes == self.before.writes {
            disk.store.trim();
        }
        self.before = stats;
        disk.write_state(if self.is_full { "full" } else { "ok" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_disk_are_refused() {
        let said = |bytes| pages(Size::from_bytes(bytes)).map_err(|f| f.sentence);
        assert_eq!(said(8 << 30), Ok(2 << 20));
        let wrong = |bytes| said(bytes).unwrap_err();
        assert_eq!(wrong(0), "--size 0 is less than a page; write 4K or more");
        assert_eq!(
            wrong(4097),
            "--size 4097 is not a whole number of pages; write a multiple of 4K"
        );
        assert!(wrong(1 << 43).contains("is too large; write "));
    }
}
