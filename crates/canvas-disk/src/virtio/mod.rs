//! The disk as a virtio block device, over vhost-user: the guest's memory is shared, and pages are
//! read and written in place.
//!
//! There is no flush: no stored data outlive the process.

mod device;
pub mod request;
mod ring;

pub use device::{Device, QUEUES_MAX, serve};

use request::{SECTOR, SEGMENTS_MAX};

/// Size of the used part of the configuration space.
const CONFIG_BYTES: usize = 60;
/// Most data segments of a request.
const DATA_SEGMENTS_MAX: u32 = 126;
/// Size of a block.
const BLOCK: u32 = canvas_types::PAGE_SIZE as u32;
/// Most sectors of a range to discard or zero.
const RANGE_SECTORS_MAX: u32 = 1 << 22;

/// The configuration space (section 5.2.4), which describes the disk to the guest's driver.
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
    // Zeroed ranges take no space.
    put(56, &[1]);
    out
}
