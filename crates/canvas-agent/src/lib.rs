//! The host agent: it serves one tenant's requests for far memory ([`canvas_shm::far`]).
//!
//! One thread owns everything ([`agent::Agent`]): it takes requests from the tenant's mailboxes,
//! orders them ([`request_table`]), seals what is written ([`seal`]), hands it to a [`store::Store`], and
//! verifies what comes back. A store may have threads of its own; they pass whole buffers.
//!
//! What outlives the agent is in two files: the tenant segment (requests, seals of what was written, who
//! uses which slab) and the journal ([`journal`]: the key, and which seal numbers were used, [`numbers`]).
//! An agent that takes over from a dead one needs no more than these and the stores.
//!
//! [`host`] serves many tenants from one thread, a turn of each after the other; where one thread is too few there are
//! more of them ([`daemon::threads`]). [`dispatch`] decides for all threads what is begun when links are short.
//!
//! As a process it is one of two: [`worker`] serves one run, [`daemon`] all tenants of a host.
//!
//! The tenant's processes may write anything into the segment. What the agent reads there it copies
//! once and judges then; a forged value harms the tenant's own pages only.
#![forbid(unsafe_code)]

pub mod agent;
pub mod bell;
pub mod block;
pub mod copies;
pub mod daemon;
mod direct;
pub mod disk;
pub mod dispatch;
pub mod erasure;
pub mod finder;
pub mod host;
pub mod idle;
pub mod journal;
pub mod log;
pub mod members;
pub mod numbers;
pub mod replicas;
pub mod request_table;
pub mod round_robin;
pub mod seal;
pub mod share;
pub mod store;
pub mod worker;

pub use agent::{Agent, Setup};
pub use share::Share;
