//! The swap partition of one process: which page owns which swap entry, and where and in what form its bytes are
//! stored.
//!
//! * [`entry`]: the table of swap entries, 8 bytes each, and its lock-protected allocator;
//! * [`fsm`]: when a page keeps its entry and when it loses it (Canvas §5.1, fig. 7);
//! * [`classes`]: the sizes in which compressed pages are stored;
//! * [`slots`]: the allocator of such slots over slabs of one lazily backed region;
//! * [`extent`]: batches of stored pages, for far memory;
//! * [`extents`]: which extents a process uses, and which it may reuse after forks;
//! * [`compaction`]: which extents are worth emptying, when there are no more;
//! * [`units`]: the store of pages that processes share;
//! * [`uses`]: which extents such pages use;
//! * [`codec`]: page classification, compression and the stored form;
//! * [`delta`]: pages that changed a little since they were compressed;
//! * [`hash`]: the keyed content hash;
//! * [`digests`]: content hashes of local pages with a copy in far memory;
//! * [`pool`]: [`LocalPool`], the compressed pool in this process's own memory, which combines these.
//!
//! Nothing here allocates, makes a system call, or knows about threads: all arrays come from the caller, all-zero
//! memory is a valid start, and a forked child can continue with its copy.

pub mod classes;
pub mod codec;
pub mod compaction;
pub mod delta;
pub mod digests;
pub mod entry;
pub mod extent;
pub mod extents;
pub mod fsm;
pub mod hash;
pub mod pool;
pub mod slots;
pub mod units;
pub mod uses;

pub use canvas_types::LzScratch;
pub use codec::{Chosen, Lz};
pub use entry::{EntryTable, Record};
pub use pool::{
    EntryFrom, FreedCopy, Kind, LoadError, LocalPool, Outcome, PoolArrays, PoolForkGuard,
    PoolStats, Scratch, SlotMem, StoreError,
};
pub use slots::{PoolBudget, SlabRelease, SlotId, SlotPool};
