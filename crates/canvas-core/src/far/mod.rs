//! The far tier below a compressed pool ([`crate::swap::pool`]): a disk or the memory of other hosts. Pages are demoted
//! there in *extents* ([`crate::swap::extent`]), as the pool stored them, and promoted alone or with their neighbours.
//! Another process, the agent, reads and writes the extents; requests go to it through a mailbox
//! ([`canvas_shm::mailbox`]).
//!
//! Each of these uses only those after it:
//!
//! * [`demote`]: demotion; [`compact`]: freeing extents when there are no more slabs;
//! * [`completion`]: the ends of requests; [`moves`]: what happens to each page of an extent then;
//! * [`fetch`]: promotion; [`resident_copies`]: copies in the pool that are only a cache;
//! * [`room`]: the pool's excess; [`channel`]: requests, and the job of each ([`job`]);
//! * [`traits`]: what this crate requires: the owner of the pages, the process, the way to the agent;
//! * [`state`]: what all of this remembers: [`writes`], whether they succeed; [`lead_time`], how far ahead extents are
//!   fetched; [`unit`], how much is fetched beside a page.
//!
//! Nothing here allocates, makes a system call, or knows whose pages these are: a program's or those of a block device.
//! State is made of atomics. Any thread may call anything at any time; each page is processed by the
//! thread that claimed it ([`traits::Pages::claim`]), and each end of a request by the one that took it.

pub mod channel;
pub mod compact;
pub mod completion;
pub mod demote;
pub mod fetch;
pub mod job;
pub mod lead_time;
pub mod moves;
pub mod resident_copies;
pub mod room;
pub mod state;
pub mod traits;
pub mod unit;
pub mod writes;

pub use state::State;
pub use traits::{
    Channel, FarStore, Host, Owner, PageLocation, PageOutcome, Pages, PoolPeer, Request,
};
