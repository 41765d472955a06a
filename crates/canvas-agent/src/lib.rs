//! The host agent: it serves a tenant's requests for far memory, which arrive in the tenant segment
//! ([`canvas_shm::far`]).
//!
//! One thread owns all state of a tenant ([`agent::Agent`]). It takes requests from the tenant's mailboxes, orders them
//! ([`request_table`]), seals written extents ([`seal`]), passes them to a [`store::Store`], and verifies what the
//! store returns. A store may have threads of its own; whole buffers pass between them.
//!
//! Two files outlive the agent: the tenant segment (requests, seals of written extents, which process uses which slab)
//! and the journal ([`journal`]: the key, and the seal numbers reserved so far, [`numbers`]). An agent that takes over
//! needs only these two files and the stores.
//!
//! [`serve_loop`] serves many tenants from one thread, in turn; [`daemon::threads`] adds threads when one is too few.
//! [`dispatch`] schedules I/O across all threads when links are short.
//!
//! The agent runs as one of two processes: [`worker`] serves one run, [`daemon`] all tenants of a host.
//!
//! The tenant's processes may write anything into the segment. The agent copies each value once and validates the copy;
//! a forged value harms only the tenant's own pages.
#![forbid(unsafe_code)]

pub mod agent;
pub mod block;
pub mod copies;
pub mod daemon;
mod direct;
pub mod disk;
pub mod dispatch;
pub mod erasure;
pub mod finder;
pub mod idle;
pub mod journal;
pub mod members;
pub mod notifier;
pub mod numbers;
pub mod replicas;
pub mod request_table;
pub mod round_robin;
pub mod seal;
pub mod serve_loop;
pub mod share;
pub mod store;
pub mod worker;

pub use agent::{Agent, Setup};
pub use share::Share;
