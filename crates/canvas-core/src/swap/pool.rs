//! The local compressed pool: far pages in this process's own memory, compressed.
//!
//! It combines the entry table, the slot allocator and the codec: `store` has its calls, `recover` those after a death;
//! both use `write` and, below it, `copies`, which knows where each copy lies. All calls take `&self` and may run in several threads
//! at once, on different entries; calls on one entry must be serialised, which the page word's busy states ensure. The
//! pool must not be forked in the middle of a call that changes it: hold [`LocalPool::fork_guard`] over the fork with
//! no store under way.
//! The tests make one over plain memory: `tests/all/pools/mod.rs`.

mod copies;
mod journal;
mod nodes;
mod recover;
mod store;
mod types;
mod write;

pub use copies::LocalPool;
pub use journal::JOURNAL_WORDS;
pub use nodes::{NODE_PAGE_BYTES, NodeSlabs};
pub use recover::Adopted;
pub use store::PoolForkGuard;
pub use types::{
    EntryFrom, FreedCopy, Kind, LoadError, NodeDemotion, Outcome, PoolArrays, PoolStats, Scratch,
    SlotMem, StoreError,
};
