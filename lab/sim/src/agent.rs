//! State of a tenant's agent.

use std::collections::BTreeMap;

use canvas_place::pace::Pace;
use canvas_place::replicas::code::Gather;
use canvas_place::replicas::read::Read;
use canvas_place::replicas::repair::Repairs;
use canvas_place::replicas::{ConnectionState, DonorView, Donors, Map, REPAIRS, RunId};

use crate::ClientId;
use crate::engine::Ns;
use crate::shards::{Gathering, Piece};

/// Most requests of a tenant's program outstanding at one time.
pub const OPS_MAX: usize = 64;
/// Most donors of a tenant (masks have one bit for each).
pub const DONORS_MAX: usize = 64;

/// A donor as its client believes it to be.
pub struct Donor {
    /// Index of its host.
    pub host: u32,
    /// State of the connection.
    pub state: ConnectionState,
    /// Number of the connection; messages of earlier connections are ignored.
    pub link: u32,
    /// The donor's run that is, or was last, connected.
    pub run: u64,
    /// Bytes that it last offered to lend.
    pub free_bytes: u64,
    /// The donor is under memory pressure and takes memory back.
    pub pressure: bool,
    /// Latency of its answers to reads.
    pub pace: Pace,
    /// Time since which it has been silent for longer than usual, without an answer to a ping.
    pub suspect: Option<Ns>,
    /// Pause before the next attempt to connect.
    pub pause_ns: Ns,
}

impl Donor {
    /// Whether the donor serves requests.
    pub fn is_up(&self) -> bool {
        self.state == ConnectionState::Up
    }
    /// Whether there is no connection.
    pub fn is_down(&self) -> bool {
        matches!(self.state, ConnectionState::Down { .. })
    }
}

/// Donors of a tenant.
#[derive(Default)]
pub struct Known(pub Vec<Donor>);

impl Donors for Known {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn view(&self, donor: usize) -> DonorView {
        let d = &self.0[donor];
        DonorView {
            connection: d.state,
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

/// Kind of a request to a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Read for request `.0` of the program.
    Read(u32),
    /// Write for request `.0` of the program.
    Write(u32),
    /// Allocation of a copy of slab `.0`.
    Alloc(u32),
    /// Release of a slab.
    Free,
    /// List of the slabs that the donor holds.
    List,
    /// Sign of life.
    Ping,
    /// Read of an extent for the repair in slot `.0`.
    RepairRead(usize),
    /// Write of an extent for the repair in slot `.0`.
    RepairWrite(usize),
}

/// A request waiting for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Donor that it was sent to.
    pub donor: usize,
    /// The donor's handle of the slab, or 0 if the request names none.
    pub handle: u64,
    /// Kind of request.
    pub call: Call,
    /// Time of sending.
    pub since: Ns,
}

/// A request of the program.
pub struct Op {
    /// Extent that it reads or writes.
    pub extent: u32,
    /// Version to write, or `None` for a read.
    pub version: Option<u64>,
    /// Read: the copies that were asked.
    pub read: Read,
    /// Read of an extent in shards: the shards requested and received, and whether all donors have been
    /// asked.
    pub gather: Option<Gather>,
    /// Read of an extent in shards: the shards received.
    pub pieces: Vec<Piece>,
    /// Read of an extent in shards: all donors that may have a shard were asked.
    pub searches: bool,
    /// Time at which it began.
    pub since: Ns,
    /// Write: mask of the donors it was sent to.
    pub sent: u64,
    /// Write: number of answers outstanding.
    pub parts: usize,
    /// Write: mask of the donors that confirmed it.
    pub confirmed: u64,
    /// Write: it was sent to the disk.
    pub to_disk: bool,
    /// Write: whether the disk has it; `None` before the disk's answer.
    pub disk: Option<bool>,
}

/// A tenant and its agent.
pub struct Agent {
    /// The tenant's identity at donors; each life has another.
    pub id: ClientId,
    /// Index of its host.
    pub host: u32,
    /// Its host has not died.
    pub alive: bool,
    /// The donors it knows.
    pub donors: Known,
    /// Its slabs and their copies.
    pub map: Map,
    /// Version of each extent that the program must read; 0 if there is none, or a write is under way.
    pub seals: Vec<u64>,
    /// Versions on its disk, by extent.
    pub disk: Vec<u64>,
    /// Version of the next write.
    pub next_seal: u64,
    /// Requests of the program, by number.
    pub ops: BTreeMap<u32, Op>,
    /// Number of the next request.
    pub next_op: u32,
    /// Requests to donors, by tag.
    pub calls: BTreeMap<u64, Sent>,
    /// Reads waiting for donors to come back.
    pub away: Vec<u32>,
    /// Repairs under way.
    pub repairs: Repairs,
    /// Shards read for repairs, by slot.
    pub gatherings: [Gathering; REPAIRS],
    /// A tick is scheduled.
    pub ticking: bool,
    /// Slabs with too few complete copies at the last tick.
    pub degraded: usize,
    /// Next extent of the first round of writes.
    pub fill: usize,
    /// Random numbers of placement.
    pub rng: fastrand::Rng,
    /// Random numbers of the program.
    pub program: fastrand::Rng,
}

impl Agent {
    /// Whether a request for the extent is under way. The program has at most one per extent.
    pub fn is_busy(&self, extent: u32) -> bool {
        self.ops.values().any(|op| op.extent == extent)
    }
}

/// A run's number in the format of the wire.
pub fn run_id(run: u64) -> RunId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&run.to_le_bytes());
    id
}
