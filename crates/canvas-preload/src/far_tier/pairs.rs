//! Queue pairs of this process's direct read channels (RDMA), and the thread that creates and destroys them.
//!
//! A device's driver is C code with a heap and locks. It must not use the program's: its structures would be paged, and
//! a fault would need them to bring them back. So the driver is loaded separately, with a C library of its own
//! ([`canvas_rdma::load_apart`]), and one thread does all that takes long or allocates. Start-up creates the thread for
//! a tenant with donors by RDMA. A fault calls the driver only to post a read and to poll for its completion.
//!
//! There are no queue pairs in a fork's child, which lacks that thread, nor where faults are served by threads without
//! the C library's thread-local data. Direct reads use TCP connections there.

use canvas_direct::client::handoff::{ClaimerState, Handoff, NotifyThread, ThreadCommand};
use canvas_direct::client::pairs::{PairState, Pairs, Refused};
use canvas_direct::wire::READ_BYTES_MAX;
use canvas_rdma::{Domain, Reader};
use canvas_sys::file;
use canvas_sys::net::Address;
use canvas_sys::{gate, proc, signal};
use canvas_types::rdma::{Exposed, QueuePair};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::report;
use crate::runtime::{
    fds::{self, Fd},
    state,
};
use crate::tenant::far_area;

/// A descriptor of the device, and the file that it refers to.
#[derive(Clone, Copy)]
struct File {
    fd: i32,
    which: (u64, u64),
}

impl File {
    fn of(fd: i32) -> Option<File> {
        let which = file::stat_filtered(fd).map(file::which).ok()?;
        Some(File { fd, which })
    }

    /// Whether the descriptor, in this thread, still refers to the file. Nothing may be sent to another file.
    fn is_here(self) -> bool {
        file::stat_filtered(self.fd).map(file::which) == Ok(self.which)
    }
}

/// State of one queue pair.
struct Cell {
    reader: Option<Reader>,
    /// Descriptor of the reader's device, through which some devices' drivers are notified of a request.
    file: Option<File>,
    /// Our address that it is to be created for.
    local: Option<Address>,
    /// The peer that it is to be connected to.
    peer: Option<QueuePair>,
}

struct Place {
    handoff: Handoff,
    cell: UnsafeCell<Cell>,
}

// SAFETY: `handoff` says whose the cell is: the one thread's (`serve`), or that of the thread which has claimed the
// lane.
unsafe impl Sync for Place {}

/// A process opens its device at most this often: if the program closes its descriptors unnoticed, what the process had
/// of it leaks.
const OPENED_MAX: u32 = 8;

/// How long to wait for what the thread is doing.
const QUIET_NS_MAX: u64 = 1_000_000_000;

state! {
    /// The process's queue pairs, one per direct read channel.
    pub static PAIRS: OurPairs {
        places: [Place; fds::LANES] = [const {
            Place {
                handoff: Handoff::new(),
                cell: UnsafeCell::new(Cell {
                    reader: None,
                    file: None,
                    local: None,
                    peer: None,
                }),
            }
        }; fds::LANES],
        /// There is a thread that creates them.
        are_there: AtomicBool = AtomicBool::new(false),
        /// The thread is working.
        is_at_work: AtomicBool = AtomicBool::new(false),
        /// Notifier: changed when there is something for the thread to do.
        bell: AtomicU32 = AtomicU32::new(0),
        device: Device = Device(UnsafeCell::new([None; fds::DEVICES])),
    }
}

/// Starts the thread, with all signals blocked except these, if the tenant has donors by RDMA. The last step of
/// start-up.
pub fn start(open_signals: u64) {
    let wanted = far_area::far().is_some_and(|f| f.lanes.has_rdma());
    if !wanted || state::PROCESS.in_thread_mode() {
        return;
    }
    // The thread must not handle the program's signals.
    let mask = signal::set_mask(!open_signals);
    let begun = std::thread::Builder::new()
        .name("canvas-rdma".to_owned())
        .stack_size(256 << 10)
        .spawn(|| PAIRS.serve());
    signal::set_mask(mask);
    PAIRS.are_there.store(begun.is_ok(), Ordering::Release);
}

/// Turns queue pairs off in this process for good: system calls that the device's driver makes may be forbidden soon.
pub fn forbid() {
    if !PAIRS.are_there.swap(false, Ordering::SeqCst) {
        return;
    }
    // Wait only for a while: the thread may be waiting for a lock of the loader that our caller holds.
    let until = proc::now_ns() + QUIET_NS_MAX;
    while PAIRS.is_at_work.load(Ordering::SeqCst) && proc::now_ns() < until {
        gate::yield_now();
    }
}

/// In a fork's child: drops the parent's queue pairs; there is no thread for new ones.
pub fn after_fork_in_child() {
    if !PAIRS.are_there.swap(false, Ordering::Relaxed) {
        return;
    }
    for place in &PAIRS.places {
        place.handoff.reset();
    }
    for which in 0..fds::DEVICES {
        fds::guard(Fd::Device(which), -1);
    }
    for file in PAIRS.device.files().into_iter().flatten() {
        if file.is_here() {
            proc::close(file.fd);
        }
    }
}

/// The open device, for a fork's child.
struct Device(UnsafeCell<[Option<File>; fds::DEVICES]>);

// SAFETY: one thread writes it (`Worker`), and only a fork's child, which has no such thread, reads it.
unsafe impl Sync for Device {}

impl Device {
    fn files(&self) -> [Option<File>; fds::DEVICES] {
        // SAFETY: the fork may have come in the middle of a write. That changes whether a file is there by one byte,
        // and otherwise numbers, of which any bits are valid; the reader compares them with the file's (`is_here`).
        unsafe { self.0.get().read_volatile() }
    }

    fn set(&self, files: [Option<File>; fds::DEVICES]) {
        // SAFETY: the one thread that writes it is here, and in this process nobody reads it.
        unsafe { self.0.get().write_volatile(files) }
    }
}

/// State of the thread.
#[derive(Default)]
struct Worker {
    is_loaded: bool,
    opened: u32,
    /// The device, and our address that it was opened for.
    device: Option<Opened>,
}

struct Opened {
    local: Address,
    domain: Arc<Domain>,
    file: File,
}

impl Worker {
    /// Creates a queue pair. A process has one device, the one by which its first donor is reached.
    fn make(&mut self, cell: &mut Cell) -> Result<(), String> {
        let local = cell.local.ok_or("no local address")?;
        if !self.is_loaded {
            canvas_rdma::load_apart().map_err(|why| why.to_string())?;
            self.is_loaded = true;
        }
        if self.device.as_ref().is_some_and(|d| !d.file.is_here()) {
            // Its descriptors may refer to another file now: leak the device rather than close them.
            core::mem::forget(self.device.take());
        }
        if self.device.is_none() {
            self.device = Some(self.open(local)?);
        }
        let Some(device) = &self.device else {
            return Err("no device has been opened".to_owned());
        };
        if device.local.ip != local.ip {
            return Err("another device is in use".to_owned());
        }
        let mut psn = [0; 4];
        proc::random_bytes(&mut psn).map_err(|e| format!("getrandom: error {}", e.0))?;
        let psn = u32::from_le_bytes(psn);
        let reader =
            Reader::new(&device.domain, READ_BYTES_MAX, psn).map_err(|why| why.to_string())?;
        (cell.reader, cell.file) = (Some(reader), Some(device.file));
        Ok(())
    }

    fn open(&mut self, local: Address) -> Result<Opened, String> {
        self.opened += 1;
        if self.opened > OPENED_MAX {
            return Err("the program has closed its descriptors too often".to_owned());
        }
        let opened = Domain::open_above(ip_of(local), fds::floor());
        let (domain, fds) = opened.map_err(|why| why.to_string())?;
        for (which, fd) in fds.into_iter().enumerate() {
            fds::guard(Fd::Device(which), fd);
        }
        PAIRS.device.set(fds.map(File::of));
        let file = File::of(fds[0]).ok_or("its descriptor was closed")?;
        Ok(Opened {
            local,
            domain,
            file,
        })
    }
}

impl Cell {
    fn connect(&mut self) -> Result<(), String> {
        if !self.file.is_some_and(File::is_here) {
            return Err("its descriptor was closed".to_owned());
        }
        let reader = self.reader.as_mut().ok_or("there is no queue pair")?;
        let peer = self.peer.ok_or("there is no peer")?;
        reader.connect(&peer).map_err(|why| why.to_string())
    }

    fn end(&mut self) {
        let reader = self.reader.take();
        if !self.file.take().is_some_and(File::is_here) {
            core::mem::forget(reader);
        }
    }
}

impl OurPairs {
    /// Wakes the thread.
    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        proc::futex_wake(&self.bell, 1);
    }

    /// Calls `on` with the cell of a lane that is in this state; the caller has claimed the lane.
    fn with<R>(
        &self,
        lane: usize,
        state: ClaimerState,
        on: impl FnOnce(&mut Cell) -> R,
    ) -> Option<R> {
        let place = &self.places[lane];
        if place.handoff.claimer_state() != Ok(Some(state)) {
            return None;
        }
        // SAFETY: in this state of the handoff the cell is the claimer's of the lane, which is the calling thread; `on`
        // works on the cell's queue pair and does not come back here.
        Some(on(unsafe { &mut *place.cell.get() }))
    }

    /// The thread's main loop.
    fn serve(&self) {
        let mut worker = Worker::default();
        loop {
            let bell = self.bell.load(Ordering::Acquire);
            for place in &self.places {
                self.is_at_work.store(true, Ordering::SeqCst);
                if self.are_there.load(Ordering::SeqCst) {
                    self.work(place, &mut worker);
                }
                self.is_at_work.store(false, Ordering::SeqCst);
            }
            proc::futex_wait(&self.bell, bell, u64::MAX);
        }
    }

    /// Does what is to be done for one queue pair.
    fn work(&self, place: &Place, worker: &mut Worker) {
        let Some(what) = place.handoff.command() else {
            return;
        };
        // SAFETY: `command` says that the cell is this thread's, until `complete`.
        let cell = unsafe { &mut *place.cell.get() };
        let done = match what {
            ThreadCommand::Make => worker.make(cell).map(|()| ClaimerState::Made),
            ThreadCommand::Connect => cell.connect().map(|()| ClaimerState::Ready),
            ThreadCommand::End => {
                cell.end();
                Ok(ClaimerState::None)
            }
        };
        let next = done.unwrap_or_else(|why| {
            complain(&why);
            ClaimerState::Failed
        });
        place.handoff.complete(next);
    }
}

/// Reports why there are no queue pairs, once in the life of the tenant.
fn complain(why: &str) {
    if far_area::far().is_some_and(|f| f.lanes.complains()) {
        report!(
            "direct reads from donors by RDMA are not possible ({why}); TCP connections are used instead"
        );
    }
}

fn ip_of(address: Address) -> IpAddr {
    let [a, b, c, d, ..] = address.ip;
    if address.is_v6 {
        Ipv6Addr::from(address.ip).into()
    } else {
        Ipv4Addr::new(a, b, c, d).into()
    }
}

impl Pairs for OurPairs {
    fn available(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }

    fn state(&self, lane: usize) -> PairState {
        match self.places[lane].handoff.claimer_state() {
            Err(NotifyThread) => {
                self.ring();
                PairState::Busy
            }
            Ok(None) => PairState::Busy,
            Ok(Some(ClaimerState::None)) => PairState::None,
            Ok(Some(ClaimerState::Made)) => {
                let end = |cell: &mut Cell| cell.reader.as_ref().map(Reader::local);
                let end = self.with(lane, ClaimerState::Made, end).flatten();
                end.map_or(PairState::Failed, PairState::Made)
            }
            Ok(Some(ClaimerState::Ready)) => PairState::Ready,
            Ok(Some(ClaimerState::Failed)) => PairState::Failed,
        }
    }

    fn make(&self, lane: usize, local: Address) {
        let taken = self.with(lane, ClaimerState::None, |cell| cell.local = Some(local));
        if taken.is_some() {
            self.places[lane].handoff.hand_over(ThreadCommand::Make);
            self.ring();
        }
    }

    fn connect(&self, lane: usize, peer: &QueuePair) {
        let taken = self.with(lane, ClaimerState::Made, |cell| cell.peer = Some(*peer));
        if taken.is_some() {
            self.places[lane].handoff.hand_over(ThreadCommand::Connect);
            self.ring();
        }
    }

    fn end(&self, lane: usize) {
        if self.places[lane].handoff.end() == Err(NotifyThread) {
            self.ring();
        }
    }

    fn post_read(
        &self,
        lane: usize,
        from: Exposed,
        offset: u32,
        len: usize,
    ) -> Result<(), Refused> {
        if !self.available() {
            return Err(Refused);
        }
        let asked = self.with(lane, ClaimerState::Ready, |cell| {
            let reader = cell.reader.as_mut()?;
            let is_here = cell.file.is_some_and(File::is_here);
            (is_here && reader.ask(from, offset, len).is_ok()).then_some(())
        });
        asked.flatten().ok_or(Refused)
    }

    fn poll_read(&self, lane: usize, to: &mut [u8]) -> Result<bool, Refused> {
        let taken = self.with(lane, ClaimerState::Ready, |cell| {
            cell.reader.as_mut()?.take(to).ok()
        });
        taken.flatten().ok_or(Refused)
    }
}
