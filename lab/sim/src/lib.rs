//! A seeded simulator of the far pool: many hosts that lend memory, and tenants that use it.
//!
//! The decisions are the product's own code, all of it in `canvas_place`: where replicas are placed,
//! which count, which is read, repaired and given up, what a donor lends and takes back. What carries
//! them out (links, disks, memory) is modelled here, in events with times: lab/SIMULATION.md tells the
//! two apart.
//!
//! One thread, one queue, one seed: no clock, no other random source, no iteration over hashed
//! tables. The same [`world::Config`] gives the same [`engine::Trace`].
//!
//! * [`engine`]: time, queue, hash;
//! * [`host`]: a host's memory and its donor;
//! * [`agent`]: what a tenant's agent knows; [`client`], [`repair`], [`shards`]: what it does;
//! * [`world`]: all of them, the network between them, faults;
//! * [`audit`]: what must be true;
//! * [`contention`]: the processors of one host that put pages out, and their locks;
//! * [`scenario`]: experiments with figures.
#![forbid(unsafe_code)]

pub mod agent;
pub mod audit;
mod client;
pub mod contention;
pub mod engine;
pub mod host;
mod repair;
pub mod scenario;
pub mod shards;
pub mod world;

/// Size of the product's slab.
pub const SLAB_BYTES: u64 = canvas_wire::SLAB_BYTES as u64;
/// Most extents that a slab can have.
pub const EXTENTS_MAX: usize = SLAB_BYTES as usize / canvas_wire::EXTENT_BYTES;
/// A tenant in one of its lives.
pub type ClientId = u64;
