//! What a tenant's agent knows.

use std::collections::BTreeMap;

use canvas_place::pace::Pace;
use canvas_place::replicas::code::Gather;
use canvas_place::replicas::read::Read;
use canvas_place::replicas::repair::Repairs;
use canvas_place::replicas::{DonorView, Donors, Map, REPAIRS, RunId, Standing};

use crate::ClientId;
use crate::engine::Ns;
use crate::shards::{Gathering, Piece};

/// Requests of a tenant's program at one time, at most.
pub const OPS_MAX: usize = 64;
/// Donors of a tenant, at most (a bit each in masks).
pub const DONORS_MAX: usize = 64;

/// A donor as its client sees it.
pub struct Donor {
    /// Which host.
    pub host: u32,
    /// Where it stands.
    pub state: Standing,
    /// Which connection it is; what belongs to an earlier one is not heard.
    pub link: u32,
    /// The run of it that is, or was, connected.
    pub run: u64,
    /// What it could lend, as it said last.
    pub free_bytes: u64,
    /// It takes memory back.
    pub pressure: bool,
    /// How long its answers to reads take.
    pub pace: Pace,
    /// It has been silent since then for longer than usual, and has not answered a ping.
    pub suspect: Option<Ns>,
    /// The next pause between two tries to connect.
    pub pause_ns: Ns,
}

impl Donor {
    /// Serves it?
    pub fn is_up(&self) -> bool {
        self.state == Standing::Up
    }
    /// There is no link.
    pub fn is_down(&self) -> bool {
        matches!(self.state, Standing::Down { .. })
    }
}

/// The donors that a tenant knows.
#[derive(Default)]
pub struct Known(pub Vec<Donor>);

impl Donors for Known {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn view(&self, donor: usize) -> DonorView {
        let d = &self.0[donor];
        DonorView {
            standing: d.state,
            pressure: d.pressure,
            free_bytes: d.free_bytes,
            suspect: d.suspect.is_some(),
        }
    }
}

impl std::ops::Index<usize> for Known {
    type Output = Donor;
    fn index(&self, donor: usize) -> &Donor {
        &self.0[donor]
    }
}

impl std::ops::IndexMut<usize> for Known {
    fn index_mut(&mut self, donor: usize) -> &mut Donor {
        &mut self.0[donor]
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

/// A request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Whom it was sent to.
    pub donor: usize,
    /// What the donor calls the slab that it names, or 0.
    pub handle: u64,
    /// What was asked.
    pub call: Call,
    /// Since when.
    pub since: Ns,
}

/// A request of the program.
pub struct Op {
    /// Which extent.
    pub extent: u32,
    /// Version that is written; `None` is a read.
    pub version: Option<u64>,
    /// Read: who was asked.
    pub read: Read,
    /// Read of what lies in shards: whose shards were asked for, what came, and whether all are asked.
    pub gather: Option<Gather>,
    /// See there.
    pub pieces: Vec<Piece>,
    /// See there.
    pub searches: bool,
    /// When it began.
    pub since: Ns,
    /// Write: donors that it was sent to, a bit each.
    pub sent: u64,
    /// Write: answers that are awaited.
    pub parts: usize,
    /// Write: donors that have it, a bit each.
    pub confirmed: u64,
    /// Write: the disk was asked.
    pub to_disk: bool,
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
    pub donors: Known,
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
    /// Requests to donors.
    pub calls: BTreeMap<u64, Sent>,
    /// Reads that wait for donors to come back.
    pub away: Vec<u32>,
    /// Repairs.
    pub repairs: Repairs,
    /// What is read for repairs of shards, by slot.
    pub gatherings: [Gathering; REPAIRS],
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
}

/// A run's number in the form of the wire.
pub fn run_id(run: u64) -> RunId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&run.to_le_bytes());
    id
}
