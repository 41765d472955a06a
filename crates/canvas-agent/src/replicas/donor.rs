//! One donor: its links, and the thread that connects them.
//!
//! Urgent requests use the first link, all others the last, so that a page for which a program waits does not queue
//! behind extents that are written or repaired.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_link::{Address, LinkConfig, LinkError, Transport, connect};
use canvas_place::pace::{Pace, Recent};
use canvas_place::replicas::{CONNECT_PAUSE_NS, CONNECT_PAUSE_NS_MAX, ping_every_ns};
use canvas_wire::DonorId;
use canvas_wire::frame::Request;

use crate::idle::Waker;

/// First and longest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_nanos(CONNECT_PAUSE_NS);
const PAUSE_MAX: Duration = Duration::from_nanos(CONNECT_PAUSE_NS_MAX);

/// A read of at most this many bytes counts as one for which a program waits.
pub const PROMPT_BYTES: usize = 8 << 10;

/// Connection state of a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No link since this time.
    Down(Instant),
    /// Connected; the list of slabs that it still holds for this tenant is being fetched.
    Listing,
    /// It serves requests.
    Up,
}

/// A donor.
pub struct Donor {
    /// Its address.
    pub addr: Address,
    /// Its connection state.
    pub state: State,
    /// Its connections; none while it is down.
    pub links: Vec<Box<dyn Transport>>,
    /// The identity of the donor process that is, or was last, connected.
    pub run: Option<DonorId>,
    /// Memory that it could lend, as last reported.
    pub free_bytes: u64,
    /// It is reclaiming memory, or lends none.
    pub pressure: bool,
    /// When it was last pinged.
    pub pinged: Instant,
    /// Round-trip times of its answers to pings.
    pub round_trips: Recent,
    /// How often it wants to be pinged.
    pub ping_every: Duration,
    /// Handles that it reported while the list is being fetched.
    pub listed: Vec<u64>,
    /// Latency of its answers.
    pub pace: Pace,
    /// Since then it is suspect: it was silent for longer than usual and has not answered a ping.
    pub suspect: Option<Instant>,
    /// Reads that failed over to another copy because this donor was silent or failed.
    pub failovers: u64,
    /// That it is down was logged.
    pub told: bool,
    /// A link closed: the requests sent over it are to be ended.
    pub orphans: bool,
    wanted: Sender<()>,
    connected: Receiver<Result<Vec<Box<dyn Transport>>, ConnectError>>,
}

impl Donor {
    /// Starts connecting to a donor.
    pub fn new(
        addr: Address,
        config: LinkConfig,
        links: usize,
        waker: Waker,
    ) -> std::io::Result<Donor> {
        let (want, wanted) = channel();
        let (give, connected) = channel();
        std::thread::Builder::new()
            .name("connect".to_owned())
            .spawn(move || {
                while wanted.recv().is_ok() {
                    let mut pause = PAUSE;
                    loop {
                        match connect_all(addr, &config, links) {
                            Ok(links) => {
                                let _ = give.send(Ok(links));
                                waker.wake();
                                break;
                            }
                            Err(why) => {
                                if give.send(Err(why)).is_err() {
                                    return;
                                }
                                waker.wake();
                            }
                        }
                        std::thread::sleep(pause);
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            })?;
        let donor = Donor {
            addr,
            state: State::Down(Instant::now()),
            links: Vec::new(),
            run: None,
            free_bytes: 0,
            pressure: false,
            pinged: Instant::now(),
            round_trips: Recent::default(),
            ping_every: Duration::from_secs(1),
            listed: Vec::new(),
            pace: Pace::default(),
            suspect: None,
            told: false,
            failovers: 0,
            orphans: false,
            wanted: want,
            connected,
        };
        donor.reconnect();
        Ok(donor)
    }

    /// Asks the thread for new connections.
    fn reconnect(&self) {
        // Cannot fail: the thread lives as long as this donor.
        let _ = self.wanted.send(());
    }

    /// A link has failed: closes all links and reconnects.
    pub fn lost(&mut self) {
        if !matches!(self.state, State::Down(_)) {
            self.state = State::Down(Instant::now());
            self.links.clear();
            self.orphans = true;
            self.reconnect();
        }
    }

    /// The result of connecting, if there is a new one: success, or why it failed.
    pub fn connected(&mut self) -> Option<Result<(), ConnectError>> {
        match self.connected.try_recv().ok()? {
            Err(why) => Some(Err(why)),
            Ok(links) => {
                let welcome = *links.first()?.welcome();
                self.state = State::Listing;
                self.run = Some(welcome.donor_id);
                self.free_bytes = welcome.free_bytes;
                self.pressure = false;
                let lease_ns = u64::from(welcome.lease_ms) * 1_000_000;
                self.ping_every = Duration::from_nanos(ping_every_ns(lease_ns));
                self.pinged = Instant::now();
                self.listed.clear();
                self.links = links;
                self.suspect = None;
                Some(Ok(()))
            }
        }
    }

    /// The link for a request; `None` while the donor is down.
    pub fn link_for(&mut self, request: &Request) -> Option<&mut Box<dyn Transport>> {
        let prompt = match request {
            Request::Read { range, .. } => range.len as usize <= PROMPT_BYTES,
            Request::Ping => true,
            // Direct read channels are requested over the first link.
            Request::Lane(_) | Request::LaneRate { .. } | Request::LaneEnd { .. } => true,
            _ => false,
        };
        if prompt {
            self.links.first_mut()
        } else {
            self.links.last_mut()
        }
    }

    /// Whether it serves requests.
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A link could not be opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Its links lead to two different processes of the donor.
    #[error("it restarted while the agent was connecting to it")]
    Restarted,
}

/// Opens all links, to one process of the donor.
fn connect_all(
    addr: Address,
    config: &LinkConfig,
    n: usize,
) -> Result<Vec<Box<dyn Transport>>, ConnectError> {
    // A device serves all posted requests at one time, and each link pins the slabs that it uses.
    let n = if addr.rdma { 1 } else { n.max(1) };
    let mut links: Vec<Box<dyn Transport>> = Vec::with_capacity(n);
    for number in 0..n {
        let config = LinkConfig {
            link: number as u32,
            ..config.clone()
        };
        let link = connect(&addr, config)?;
        if links
            .first()
            .is_some_and(|l| l.welcome().donor_id != link.welcome().donor_id)
        {
            return Err(ConnectError::Restarted);
        }
        links.push(link);
    }
    Ok(links)
}
