//! The sizes in which far pages are stored.
//!
//! A slab of [`SLAB_BYTES`] is cut into slots of one class. The slot sizes are the slab's size divided by whole
//! numbers, rounded down to 16, so that the tail of a slab wastes almost nothing, and step by 8–14 %, so that a slot
//! wastes little. The table at [`CLASS_BYTES`] shows what finer classes save.
//!
//! The last class is a whole page, for pages that do not shrink enough to fit the class below it: they are stored raw,
//! which also saves decompression. Their headers are separate, in a strip of [`RAW_HEADERS_BYTES`] for each slab after
//! the region's slabs; with the header inside, only seven raw pages would fit into a slab instead of eight.

use canvas_types::PAGE_SIZE;

/// Bytes in a slab. 16 KiB would leave a gap of 25 % below the whole-page class; 64 KiB would waste more memory in
/// partly filled slabs.
pub const SLAB_BYTES: usize = 32 << 10;
/// Number of classes.
pub const CLASSES: usize = 25;
/// Bytes of header (the content's hash) with each stored page.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a slot, by class, ascending.
///
/// Share of the pool beyond an exact fit, slab tails included, with lz4 on synthetic heaps (`tests/class_waste.rs`
/// prints and checks it):
///
/// | pages | mean payload, bytes | FastSwap's 512/1024/2048/4096 | 13 classes | these 25 |
/// |---|---|---|---|---|
/// | text | 2227 | 45 % | 18 % | 4 % |
/// | objects | 2700 | 32 % | 10 % | 6 % |
/// | floats | 3294 | 16 % | 5 % | 3 % |
/// | sizes uniform up to a page | 2115 | 25 % | 11 % | 6 % |
pub const CLASS_BYTES: [u16; CLASSES] = [
    128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 816, 896, 1024, 1168, 1296, 1488, 1632, 1808,
    2048, 2336, 2720, 2976, 3264, 3632, 4096,
];
/// The class of raw pages.
pub const RAW_CLASS: usize = CLASSES - 1;
/// Raw slots in a slab.
pub const RAW_SLOTS: usize = SLAB_BYTES / PAGE_SIZE;
/// Bytes of a raw slot's header: the hash, the copy's place in far memory, 8 unused.
pub const RAW_HEADER_BYTES: usize = 2 * HEADER_BYTES;
/// Bytes of raw headers for each slab.
pub const RAW_HEADERS_BYTES: usize = RAW_SLOTS * RAW_HEADER_BYTES;
/// Longest compressed payload that is kept; longer ones are stored raw.
pub const COMPRESSED_MAX: usize = CLASS_BYTES[RAW_CLASS - 1] as usize - HEADER_BYTES;
/// Most slots in a slab.
pub const SLOTS_MAX: usize = SLAB_BYTES / CLASS_BYTES[0] as usize;

/// Bytes of the region for this many slabs: the slabs, then the strip of raw headers.
pub const fn region_bytes(slabs: usize) -> usize {
    slabs * (SLAB_BYTES + RAW_HEADERS_BYTES)
}

/// Slots in a slab of `class`.
#[inline(always)]
pub const fn slots_per_slab(class: usize) -> usize {
    SLAB_BYTES / CLASS_BYTES[class] as usize
}

/// Class by size in units of 16 bytes, rounded up.
const LOOKUP: [u8; PAGE_SIZE / 16 + 1] = {
    let mut table = [0u8; PAGE_SIZE / 16 + 1];
    let mut class = 0;
    let mut i = 0;
    while i < table.len() {
        if i * 16 > CLASS_BYTES[class] as usize {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};

/// The smallest class with slots of at least `bytes`, header included; `bytes` up to a page.
#[inline(always)]
pub fn class_for(bytes: usize) -> usize {
    LOOKUP[bytes.div_ceil(16).min(PAGE_SIZE / 16)] as usize
}

const _: () = {
    let mut i = 0;
    while i < CLASSES {
        assert!(CLASS_BYTES[i].is_multiple_of(16));
        assert!(i == 0 || CLASS_BYTES[i] > CLASS_BYTES[i - 1]);
        i += 1;
    }
    assert!(CLASS_BYTES[RAW_CLASS] as usize == PAGE_SIZE);
};
