//! A disk in far memory: numbered pages, kept compressed and verified in a pool of this host.
//!
//! A guest with any kernel swaps onto it, so that its memory can be far without any software of
//! canvas in the guest. As with zram, nothing survives the host; but the data survive a server's
//! death, in a memory file that another process holds.
//!
//! * [`PageStore`]: the interface of a disk: pages of 4 KiB by number;
//! * [`pool`]: [`PoolStore`], the pages in a compressed pool: one entry of 8 bytes per page;
//! * [`file`]: the memory file of a disk that outlives its server;
//! * [`recover`]: takes over a disk from a killed server;
//! * [`far`]: far memory beyond the pool;
//! * [`span`]: access to byte ranges of such a store;
//! * [`nbd`]: the disk over NBD;
//! * [`ublk`]: the disk as a block device of this host;
//! * [`socket`]: the sockets on which it is served.
#![deny(unsafe_code)]

pub mod far;
pub mod file;
pub mod nbd;
pub mod pool;
pub mod recover;
pub mod socket;
pub mod span;
mod sys;
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

pub use canvas_core::swap::Scratch;
pub use pool::{DiskMemory, DiskStats, PoolStore};

/// Why a page is not read or written. Stored pages are unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DiskError {
    /// The range reaches beyond the disk.
    #[error("the range does not lie on the disk")]
    Outside,
    /// The pool has no room for the page.
    #[error("the pool is full")]
    Full,
    /// No copy beyond the pool can be reached.
    #[error("no copy of a page can be reached")]
    Unreachable,
    /// The stored copy does not verify.
    #[error("the stored copy of a page is damaged")]
    Damaged,
}

/// Pages of 4 KiB by number. A page that was never written, or was discarded, reads as zeros.
///
/// Concurrent calls on a page take effect in some order.
pub trait PageStore: Sync {
    /// Number of pages.
    fn pages(&self) -> u64;
    /// Reads a page. After an error `out` holds unspecified bytes.
    fn read(&self, page: u64, out: &mut PageBuf, scratch: &mut Scratch) -> Result<(), DiskError>;
    /// Writes a page. After an error the page is unchanged.
    fn write(&self, page: u64, from: &PageBuf, scratch: &mut Scratch) -> Result<(), DiskError>;
    /// Changes the bytes of a page from `at` on, atomically. After an error the page is unchanged.
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
    /// Hints that these pages are about to be read, in this order.
    fn expect(&self, _: Range<u64>) {}
    /// Discards the page: its space is free at once.
    fn discard(&self, page: u64) -> Result<(), DiskError>;
}
