//! A disk in far memory: pages by number, kept compressed and verified in a pool of this host.
//!
//! A guest of any kernel swaps onto it, so its memory is far without anything of canvas's in the guest.
//! Nothing survives the host, as with zram; a server's death it does survive, in a memory file that another
//! process holds.
//!
//! * [`PageStore`]: what a disk is made of, pages of 4 KiB by their number;
//! * [`pool`]: [`PoolStore`], the pages in a compressed pool: one entry of 8 bytes a page;
//! * [`file`]: the memory file of a disk that outlives its server;
//! * [`recover`]: a disk as a killed server left it;
//! * [`far`]: what lies beyond the pool;
//! * [`span`]: any range of bytes of such a store;
//! * [`nbd`]: the disk over NBD;
//! * [`ublk`]: the disk as a block device of this host;
//! * [`socket`]: where it is served.
#![forbid(unsafe_code)]

pub mod far;
pub mod file;
pub mod nbd;
pub mod pool;
pub mod recover;
pub mod socket;
pub mod span;
pub mod ublk;
pub mod virtio;

#[cfg(test)]
mod far_model;
#[cfg(test)]
mod model;
#[cfg(test)]
mod ram;
#[cfg(test)]
mod recover_model;

use std::ops::Range;

use canvas_types::PageBuf;

pub use canvas_swap::Scratch;
pub use pool::{DiskMemory, DiskStats, PoolStore};

/// Why a page is not read or written. What was stored before is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DiskError {
    /// The range does not lie on the disk.
    #[error("the range does not lie on the disk")]
    Outside,
    /// The pool has no room for the page.
    #[error("the pool is full")]
    Full,
    /// No copy beyond the pool can be reached.
    #[error("no copy of a page can be reached")]
    Unreachable,
    /// The stored copy is not what was stored.
    #[error("the stored copy of a page is damaged")]
    Damaged,
}

/// Pages of 4 KiB by their number. One that was never written, or was discarded, reads as zeros.
///
/// Calls of several threads are in some order on each page.
pub trait PageStore: Sync {
    /// How many pages there are.
    fn pages(&self) -> u64;
    /// Reads a page. After an error `out` holds unspecified bytes.
    fn read(&self, page: u64, out: &mut PageBuf, scratch: &mut Scratch) -> Result<(), DiskError>;
    /// Makes `from` the page. After an error the page is as before.
    fn write(&self, page: u64, from: &PageBuf, scratch: &mut Scratch) -> Result<(), DiskError>;
    /// Changes the bytes of a page from `at` on, in one step. After an error the page is as before.
    ///
    /// # Panics
    /// When the bytes leave the page.
    fn write_part(
        &self,
        page: u64,
        at: usize,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError>;
    /// These pages are about to be read, in this order: a hint, for what takes time.
    fn expect(&self, _: Range<u64>) {}
    /// The page is needed no more: what it takes is free at once.
    fn discard(&self, page: u64) -> Result<(), DiskError>;
}
