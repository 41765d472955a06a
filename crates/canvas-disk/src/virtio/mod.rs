//! The disk as a virtio block device, over vhost-user: the guest's memory is shared, and pages are read and
//! written in place.
//!
//! There is no flush: nothing that is stored outlives the process.

mod device;
pub mod request;
mod ring;

pub use device::{Device, QUEUES_MAX, serve};

use request::{SECTOR, SEGMENTS_MAX};

/// Bytes of the configuration space, as far as it is used.
const CONFIG_BYTES: usize = 60;
/// Segments of data of one request, at most.
const DATA_SEGMENTS_MAX: u32 = 126;
/// Bytes of a block.
const BLOCK: u32 = canvas_types::PAGE_SIZE as u32;
/// Sectors of one range to discard or zero, at most.
const RANGE_SECTORS_MAX: u32 = 1 << 22;

/// The configuration space (section 5.2.4): what the guest's driver is told about the disk.
fn config(disk_bytes: u64, queues: u16) -> [u8; CONFIG_BYTES] {
    let mut out = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(disk_bytes / SECTOR).to_le_bytes());
    put(12, &DATA_SEGMENTS_MAX.to_le_bytes());
    put(20, &BLOCK.to_le_bytes());
    put(34, &queues.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &(SEGMENTS_MAX as u32).to_le_bytes());
    put(44, &(BLOCK / SECTOR as u32).to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &(SEGMENTS_MAX as u32).to_le_bytes());
    // Zeros take nothing.
    put(56, &[1]);
    out
}
