//! Where canvas lives in a managed program's address space.
//!
//! All far memory lies in one window of addresses, so "is this ours?" is one comparison and page
//! metadata is a flat array. The addresses are fixed, because a seccomp filter survives `execve`
//! and must mean the same in every process of a tenant. They lie above the native heap (a break
//! that moves up is what malloc expects), below `mmap_base`, and clear of ZGC's heap views.

use crate::page::PAGE_SIZE;

/// First byte of the window.
pub const WINDOW_BASE: usize = 0x6000_0000_0000;
/// Bytes in the window.
pub const WINDOW_BYTES: usize = 0x0800_0000_0000;
/// One past the window's last byte.
pub const WINDOW_END: usize = WINDOW_BASE + WINDOW_BYTES;
/// Pages in the window.
pub const WINDOW_PAGES: usize = WINDOW_BYTES / PAGE_SIZE;

/// First byte of what canvas keeps behind the window: swap cache buffers, the pool.
pub const STORE_BASE: usize = WINDOW_BASE + WINDOW_BYTES;

/// First byte of the partition of shared memory (`canvas run --shared`).
pub const SHARED_BASE: usize = 0x6f00_0000_0000;
/// Bytes in the partition.
pub const SHARED_BYTES: usize = 0x0080_0000_0000;
/// One past the partition's last byte.
pub const SHARED_END: usize = SHARED_BASE + SHARED_BYTES;
/// Pages in the partition.
pub const SHARED_PAGES: usize = SHARED_BYTES / PAGE_SIZE;

/// Page words, one `u64` a page of the window.
pub const WORDS_BASE: usize = 0x7000_0000_0000;

/// The page that holds the syscall instruction which the filter lets through.
pub const GATE_PAGE: usize = 0x70f0_0000_0000;

/// The break area starts the window and has this size; a program that needs more gets it by mmap.
pub const BRK_BYTES: usize = 64 << 30;

/// Pages of one accounting block (2 MiB), the unit in which the clock hand skips empty space.
pub const BLOCK_PAGES: usize = 512;
/// Blocks in the window.
pub const WINDOW_BLOCKS: usize = WINDOW_PAGES / BLOCK_PAGES;

/// True when `addr` lies in the window.
#[inline(always)]
pub const fn in_window(addr: usize) -> bool {
    addr.wrapping_sub(WINDOW_BASE) < WINDOW_BYTES
}

/// True when `addr` lies in the partition of shared memory.
#[inline(always)]
pub const fn in_partition(addr: usize) -> bool {
    addr.wrapping_sub(SHARED_BASE) < SHARED_BYTES
}

/// True for all addresses of the window and the partition, and for none of the program's other ones: between
/// the two lies what is canvas's own.
#[inline(always)]
pub const fn may_be_far(addr: usize) -> bool {
    addr.wrapping_sub(WINDOW_BASE) < SHARED_END - WINDOW_BASE
}

const _: () = assert!(SHARED_BASE > STORE_BASE && SHARED_END <= WORDS_BASE);
const _: () = assert!(WINDOW_PAGES <= u32::MAX as usize);
const _: () = assert!(STORE_BASE == WINDOW_END);
const _: () = assert!(STORE_BASE + WINDOW_BYTES <= WORDS_BASE);
const _: () = assert!(WORDS_BASE + WINDOW_PAGES * 8 <= GATE_PAGE);
