//! How a page enters and leaves local memory: the pager of a process, over what [`traits`] requires.
//!
//! Calls go one way: [`fault`] uses [`fill`], [`map`], [`reclaim`] and [`ledger`]; [`reclaim`] uses [`unmap`] and
//! [`ledger`]; the ledger calls nobody. A charge returns what it needs ([`ledger::Charge`]), and its caller reclaims.
//!
//! * [`fault`]: makes the page present that a thread needs;
//! * [`fill`]: brings in pages that may be needed soon, in runs;
//! * [`map`]: copies pages into the managed range, and publishes them;
//! * [`reclaim`]: chooses what leaves, for a [`reclaim::Reason`], and writes the swap cache out;
//! * [`unmap`]: moves a batch of victims from the managed range to the swap cache; [`protect`]: write-protects them;
//! * [`ledger`]: limits, charges, and how the processes of a tenant divide local memory; [`floors`]: what each of them
//!   keeps; [`ages`]: how old its pages are, by which the processes share an eviction;
//! * [`context`]: working memory of one operation; [`spans`]: pages that it holds;
//! * [`state`]: what all of this remembers, one [`State`] a process.
//!
//! Nothing here makes a system call, allocates, or knows an address but that of a page. The model tests run this code
//! over a simulated kernel.

pub mod ages;
pub mod context;
pub mod fault;
pub mod fill;
pub mod floors;
pub mod ledger;
pub mod locked;
pub mod map;
pub mod protect;
pub mod reclaim;
pub mod spans;
pub mod state;
pub mod traits;
pub mod unmap;

pub use crate::pager::prefetch::FaultSite;
pub use spans::{Held, Range};
pub use state::State;
pub use traits::{
    Claim, Copied, Discarded, FarFull, Kernel, Observers, Process, Report, Source, Stop, Store, Vm,
};
