//! The host agent: it serves one tenant's requests for far memory ([`canvas_shm::far`]).
//!
//! One thread owns everything ([`agent::Agent`]): it takes requests from the tenant's mailboxes,
//! orders them ([`desk`]), seals what is written ([`seal`]), hands it to a [`store::Store`], and
//! verifies what comes back. A store may have threads of its own; they pass whole buffers.
//!
//! What outlives the agent is in two files: the tenant segment (requests, seal numbers, who uses
//! which slab) and the journal ([`journal`]: the key). An agent that takes over from a dead one
//! needs no more than these and the stores.
//!
//! [`host`] serves many tenants from one thread, a turn of each after the other; [`lanes`] decides what is begun
//! when links are short.
//!
//! The tenant's processes may write anything into the segment. What the agent reads there it copies
//! once and judges then; a forged value harms the tenant's own pages only.
#![forbid(unsafe_code)]

pub mod agent;
pub mod block;
pub mod copies;
pub mod desk;
pub mod disk;
pub mod host;
pub mod idle;
pub mod journal;
pub mod lanes;
pub mod log;
pub mod seal;
pub mod share;
pub mod status;
pub mod store;
pub mod turns;

pub use agent::{Agent, Setup};
pub use share::Share;
