//! The far tier: what lies beyond a compressed pool ([`canvas_swap::pool`]), on a disk or in the memory of
//! other hosts. Pages go there in *extents* ([`canvas_swap::extent`]), as the pool stored them, and come back
//! alone or with their neighbours. Another process, the agent, reads and writes the extents; requests go to it
//! through a mailbox ([`canvas_shm::mailbox`]).
//!
//! * [`traits`]: what this stands on: who owns the pages, the process that it runs in, the way to the agent;
//! * [`spill`]: out of the pool; [`fetch`]: back; [`compact`]: room beyond the pool when there are no more slabs;
//! * [`channel`]: requests, and the job of each ([`job`]); [`completion`]: their ends; [`moves`]: what becomes of
//!   each page of an extent then;
//! * [`resident_copies`]: copies in the pool that are a cache only;
//! * [`room`]: what the pool has too much of, and whether writes find a place; [`lead_time`]: how far ahead
//!   extents are fetched; [`unit`]: how much comes back beside a page.
//!
//! Nothing here allocates, makes a system call, or knows whose pages these are: a program's or those of a block
//! device. State is one [`State`], made of atomics. Any thread may call anything at any time; each page is worked
//! on by the thread that claimed it ([`traits::Pages::claim`]), and each end of a request by the one that got it.
#![no_std]
#![forbid(unsafe_code)]

pub mod channel;
pub mod compact;
pub mod completion;
pub mod fetch;
pub mod job;
pub mod lead_time;
pub mod moves;
pub mod resident_copies;
pub mod room;
pub mod spill;
pub mod state;
pub mod traits;
pub mod unit;

pub use channel::Request;
pub use state::State;
pub use traits::{Becomes, Beyond, Channel, Host, Owner, Pages, Whereabouts, Whom};

/// An entry names the extent no more, or a request is through with it.
pub(crate) fn unhold(b: &impl Beyond, extent: u32) {
    b.book().unhold(extent, &b.slabs());
}
