//! The local compressed pool: far pages in this process's own memory, compressed.
//!
//! It combines the entry table, the slot allocator and the codec: `store` has its calls, `recover` those after a death;
//! both use `write` and, below it, `copies`, which knows where each copy lies. All calls take `&self` and may run in several threads
//! at once, on different entries; calls on one entry must be serialised, which the page word's busy states ensure. The
//! pool must not be forked in the middle of a call that changes it: hold [`LocalPool::fork_guard`] over the fork with
//! no store under way.
//!
//! ```
//! use canvas_core::swap::pool::{EntryFrom, Kind, LocalPool, PoolArrays, Scratch, SlotMem};
//! use canvas_core::swap::{Lz, LzScratch, PoolBudget};
//! use canvas_core::swap::classes::region_bytes;
//! use canvas_core::swap::hash::{PageHash, portable};
//! use canvas_core::swap::slots::SLAB_WORDS;
//! use canvas_types::sync::{AtomicI64, AtomicU64, Threads};
//! use canvas_types::{PageBuf, SwapEntry};
//! use std::sync::Mutex;
//!
//! struct Region(Mutex<Vec<u8>>); // in practice: a lazily backed mapping
//! impl SlotMem for Region {
//!     fn copy_out(&self, off: usize, dst: &mut [u8]) {
//!         dst.copy_from_slice(&self.0.lock().unwrap()[off..off + dst.len()]);
//!     }
//!     fn copy_in(&self, off: usize, src: &[u8]) {
//!         self.0.lock().unwrap()[off..off + src.len()].copy_from_slice(src);
//!     }
//!     fn release(&self, _off: usize, _len: usize) {} // in practice: madvise(MADV_DONTNEED)
//! }
//! struct NoLz; // in practice: lz4
//! impl Lz for NoLz {
//!     fn compress(&self, _: &PageBuf, _: &mut [u8], _: &mut LzScratch) -> Option<usize> { None }
//!     fn decompress(&self, _: &[u8], _: &mut PageBuf) -> bool { false }
//! }
//! struct NoBound;
//! impl PoolBudget for NoBound {
//!     fn charge(&self, _bytes: i64) -> bool { true }
//! }
//!
//! const SLABS: usize = 2;
//! let entries: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
//! let slab_words = [const { AtomicU64::new(0) }; SLABS * SLAB_WORDS];
//! let class_bytes = [const { AtomicI64::new(0) }; 32]; // in practice: the segment's
//! let key: PageBuf = core::array::from_fn(|i| i as u8 ^ 0x5a); // in practice: random
//! let pool = LocalPool::new(
//!     PoolArrays {
//!         entries: &entries,
//!         slab_words: &slab_words,
//!         class_bytes: &class_bytes,
//!         digests: &[], // without far memory
//!     },
//!     PageHash::new(&key, portable), // in practice: by the processor's instructions
//!     NoLz,
//!     Region(Mutex::new(vec![0; region_bytes(SLABS)])),
//!     NoBound,
//!     Threads {
//!         yield_now: std::thread::yield_now, // in practice: a short sleep
//!         number: || 0, // in practice: one that differs between threads
//!     },
//! );
//! let mut scratch = Scratch::new(); // one for each working thread
//!
//! let page: PageBuf = core::array::from_fn(|i| i as u8);
//! let first = pool.store(SwapEntry::NONE, false, &page, &mut scratch).unwrap();
//! assert_eq!((first.kind, first.entry_from), (Kind::Raw, EntryFrom::Lock));
//! let again = pool.store(first.entry, true, &page, &mut scratch).unwrap();
//! assert_eq!((again.kind, again.entry_from), (Kind::Clean, EntryFrom::Page));
//! let mut back = [0; 4096];
//! pool.load(again.entry, &mut back, &mut scratch).unwrap();
//! assert_eq!(back, page);
//! ```

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
    EntryFrom, Kind, LoadError, Outcome, PoolArrays, PoolStats, Sank, Scratch, SlotMem, Spared,
    StoreError,
};
