//! One donor: its links, and the thread that connects them.
//!
//! What is needed at once goes over the first link, everything else over the last: a page that a
//! program waits for does not queue behind extents that are written or repaired.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_link::{Address, LinkConfig, LinkError, Transport, connect};
use canvas_place::pace::{Pace, Recent};
use canvas_place::replicas::{CONNECT_PAUSE_NS, CONNECT_PAUSE_NS_MAX, ping_every_ns};
use canvas_wire::DonorId;
use canvas_wire::frame::Request;

use crate::idle::Waker;

/// First and longest pause between two tries to connect.
const PAUSE: Duration = Duration::from_nanos(CONNECT_PAUSE_NS);
const PAUSE_MAX: Duration = Duration::from_nanos(CONNECT_PAUSE_NS_MAX);

/// A read of no more than this is one that a program waits for.
pub const PROMPT_BYTES: usize = 8 << 10;

/// Where a donor stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No link; since then.
    Down(Instant),
    /// Connected; what it still holds of ours is being asked for.
    Listing,
    /// It serves.
    Up,
}

/// A donor.
pub struct Donor {
    /// Where it listens.
    pub addr: Address,
    /// Where it stands.
    pub state: State,
    /// The connections; none while it is down.
    pub links: Vec<Box<dyn Transport>>,
    /// The run of it that is, or was, connected.
    pub run: Option<DonorId>,
    /// What it could lend, as far as is known.
    pub free_bytes: u64,
    /// It takes memory back, or lends none.
    pub pressure: bool,
    /// When it was last asked for a sign of life.
    pub pinged: Instant,
    /// How long its answers to that take.
    pub round_trips: Recent,
    /// How often it wants one.
    pub ping_every: Duration,
    /// What it said it holds, while it is being asked.
    pub listed: Vec<u64>,
    /// How long its answers take.
    pub pace: Pace,
    /// It has been silent since then for longer than usual, and has not answered a ping.
    pub suspect: Option<Instant>,
    /// Reads that another copy was asked for since this one was silent, or failed.
    pub failovers: u64,
    /// That it is down was told.
    pub told: bool,
    /// What was asked over a link that is gone waits for nothing any more.
    pub orphans: bool,
    wanted: Sender<()>,
    connected: Receiver<Result<Vec<Box<dyn Transport>>, ConnectError>>,
}

impl Donor {
    /// One that is being connected to.
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

    /// Asks the thread for a new connection.
    fn reconnect(&self) {
        // The thread lives as long as this.
        let _ = self.wanted.send(());
    }

    /// A link is of no use any more: all are closed, and made anew.
    pub fn lost(&mut self) {
        if !matches!(self.state, State::Down(_)) {
            self.state = State::Down(Instant::now());
            self.links.clear();
            self.orphans = true;
            self.reconnect();
        }
    }

    /// A new connection, or why there is none yet.
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

    /// The link that a request goes over; `None` while it is down.
    pub fn link_for(&mut self, request: &Request) -> Option<&mut Box<dyn Transport>> {
        let prompt = match request {
            Request::Read { range, .. } => range.len as usize <= PROMPT_BYTES,
            Request::Ping => true,
            // Lanes are asked for on the first link.
            Request::Lane(_) | Request::LaneRate { .. } | Request::LaneEnd { .. } => true,
            _ => false,
        };
        if prompt {
            self.links.first_mut()
        } else {
            self.links.last_mut()
        }
    }

    /// Serves it?
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A link cannot be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Its links lead to two runs of it.
    #[error("it was started anew while it was being connected to")]
    Restarted,
}

/// All links, to one run of the donor.
fn connect_all(
    addr: Address,
    config: &LinkConfig,
    n: usize,
) -> Result<Vec<Box<dyn Transport>>, ConnectError> {
    // A device serves all that was posted at one time; and each link pins the slabs that it uses.
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
