//! What a tenant's agent knows.

use std::collections::BTreeMap;

use canvas_agent::copies::map::{Map, Slab};
use canvas_place::copies::{GRACE_NS, Held, Source};

use crate::ClientId;
use crate::engine::Ns;
use crate::repair::Repairs;

/// Requests of a tenant's program at one time, at most.
pub const OPS_MAX: usize = 64;
/// Donors of a tenant, at most (a bit each in masks).
pub const DONORS_MAX: usize = 64;

/// Where a donor stands, as in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No link; since then.
    Down(Ns),
    /// Connected; it is asked what it holds.
    Listing,
    /// It serves.
    Up,
}

/// A donor as its client sees it.
pub struct Donor {
    /// Which host.
    pub host: u32,
    /// Where it stands.
    pub state: State,
    /// Which connection it is; what belongs to an earlier one is not heard.
    pub link: u32,
    /// The run of it that is, or was, connected.
    pub run: u64,
    /// What it could lend, as it said last.
    pub free_bytes: u64,
    /// It takes memory back.
    pub pressure: bool,
}

impl Donor {
    /// Serves it?
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }
    /// Serves it, or may it again in a moment?
    pub fn may_serve(&self, now: Ns) -> bool {
        match self.state {
            State::Down(since) => now - since < GRACE_NS,
            _ => true,
        }
    }
}

/// What was asked of a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// For a read.
    Read(u32),
    /// For a write.
    Write(u32),
    /// For a copy of a slab.
    Alloc(u32),
    /// A slab that is not needed.
    Free,
    /// What it holds.
    List,
    /// A sign of life.
    Ping,
    /// Bytes for a copy.
    RepairRead(usize),
    /// Bytes of a copy.
    RepairWrite(usize),
}

/// A request of the program.
pub struct Op {
    /// Which extent.
    pub extent: u32,
    /// Version that is written; `None` is a read.
    pub version: Option<u64>,
    /// Read: donors that were asked, a bit each, and the one that is.
    pub tried: u64,
    /// See there.
    pub at: Option<usize>,
    /// Read: the disk was asked.
    pub tried_disk: bool,
    /// Write: donors that it was sent to, a bit each.
    pub sent: u64,
    /// Write: answers that are awaited.
    pub parts: usize,
    /// Write: donors that have it, a bit each.
    pub confirmed: u64,
    /// Write: the disk has it, or not.
    pub disk: Option<bool>,
}

/// A tenant and its agent.
pub struct Agent {
    /// Who it is at donors; another one in every life.
    pub id: ClientId,
    /// Where it runs.
    pub host: u32,
    /// Its host did not die.
    pub alive: bool,
    /// Donors.
    pub donors: Vec<Donor>,
    /// Slabs.
    pub map: Map,
    /// The version of each extent that the program will read; 0 is none, or being written.
    pub seals: Vec<u64>,
    /// Versions on its disk.
    pub disk: Vec<u64>,
    /// The next version.
    pub next_seal: u64,
    /// Requests of the program.
    pub ops: BTreeMap<u32, Op>,
    /// Numbers of requests so far.
    pub next_op: u32,
    /// Requests to donors: whom, what, since when.
    pub calls: BTreeMap<u64, (usize, Call, Ns)>,
    /// Repairs.
    pub repairs: Repairs,
    /// A tick will come.
    pub ticking: bool,
    /// Slabs with too few whole copies at the last tick.
    pub degraded: usize,
    /// The next extent of the first round of writes.
    pub fill: usize,
    /// Draws of placement.
    pub rng: fastrand::Rng,
    /// Draws of the program.
    pub program: fastrand::Rng,
}

impl Agent {
    /// Is a request for the extent under way? The program has one at a time.
    pub fn is_busy(&self, extent: u32) -> bool {
        self.ops.values().any(|op| op.extent == extent)
    }

    /// A slab's copies, as decisions see them.
    pub fn held(&self, entry: &Slab, now: Ns) -> Vec<Held> {
        let see = |c: &canvas_agent::copies::map::Copy| Held {
            donor: c.donor,
            up: self.donors[c.donor].is_up(),
            may_serve: self.donors[c.donor].may_serve(now),
            whole: c.missing.is_none(),
            leaving_until_ns: c.leaving.map(|(_, until)| until),
        };
        entry.copies.iter().map(see).collect()
    }

    /// The copies of an extent of it.
    pub fn sources(&self, entry: &Slab, within: usize) -> impl Iterator<Item = Source> + Clone {
        entry.copies.iter().map(move |c| Source {
            donor: c.donor,
            up: self.donors[c.donor].is_up(),
            has: c.has(within),
            suspect: false,
        })
    }
}

/// A run's number in the form of the wire.
pub fn run_id(run: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&run.to_le_bytes());
    id
}
