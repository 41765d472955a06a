//! One donor: its link, and the thread that connects it.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use canvas_link::{Link, LinkConfig};
use canvas_wire::DonorId;

use crate::idle::Waker;

/// First and longest pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
    pub addr: SocketAddr,
    /// Where it stands.
    pub state: State,
    /// The connection, unless it is down.
    pub link: Option<Link>,
    /// The run of it that is, or was, connected.
    pub run: Option<DonorId>,
    /// What it could lend, as far as is known.
    pub free_bytes: u64,
    /// It takes memory back, or lends none.
    pub pressure: bool,
    /// When it was last asked for a sign of life.
    pub pinged: Instant,
    /// How long its last answer to that took.
    pub round_trip: Option<Duration>,
    /// How often it wants one.
    pub ping_every: Duration,
    /// What it said it holds, while it is being asked.
    pub listed: Vec<u64>,
    /// That it is down was told.
    pub told: bool,
    /// What was asked over a link that is gone waits for nothing any more.
    pub orphans: bool,
    connect: Sender<()>,
    connected: Receiver<Result<Box<Link>, String>>,
}

impl Donor {
    /// One that is being connected to.
    pub fn new(addr: SocketAddr, config: LinkConfig, waker: Waker) -> std::io::Result<Donor> {
        let (connect, wanted) = channel();
        let (give, connected) = channel();
        std::thread::Builder::new()
            .name("connect".to_owned())
            .spawn(move || {
                while wanted.recv().is_ok() {
                    let mut pause = PAUSE;
                    loop {
                        match Link::connect(addr, config.clone()) {
                            Ok(link) => {
                                let _ = give.send(Ok(Box::new(link)));
                                waker.wake();
                                break;
                            }
                            Err(e) => {
                                if give.send(Err(e.to_string())).is_err() {
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
            link: None,
            run: None,
            free_bytes: 0,
            pressure: false,
            pinged: Instant::now(),
            round_trip: None,
            ping_every: Duration::from_secs(1),
            listed: Vec::new(),
            told: false,
            orphans: false,
            connect,
            connected,
        };
        donor.reconnect();
        Ok(donor)
    }

    /// Asks the thread for a new connection.
    fn reconnect(&self) {
        // The thread lives as long as this.
        let _ = self.connect.send(());
    }

    /// The link is of no use any more: it is closed, and made anew.
    pub fn lost(&mut self) {
        if !matches!(self.state, State::Down(_)) {
            self.state = State::Down(Instant::now());
            self.link = None;
            self.orphans = true;
            self.reconnect();
        }
    }

    /// A new connection, or why there is none yet.
    pub fn connected(&mut self) -> Option<Result<(), String>> {
        match self.connected.try_recv().ok()? {
            Err(why) => Some(Err(why)),
            Ok(link) => {
                let welcome = *link.welcome();
                self.state = State::Listing;
                self.run = Some(welcome.donor_id);
                self.free_bytes = welcome.free_bytes;
                self.pressure = false;
                let third = Duration::from_millis(u64::from(welcome.lease_ms) / 3);
                self.ping_every = third.min(Duration::from_secs(1));
                self.pinged = Instant::now();
                self.listed.clear();
                self.link = Some(*link);
                Some(Ok(()))
            }
        }
    }

    /// Serves it?
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Serves it, or may it again in a moment?
    pub fn may_serve(&self, grace: Duration) -> bool {
        match self.state {
            State::Down(since) => since.elapsed() < grace,
            _ => true,
        }
    }
}
