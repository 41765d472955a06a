//! Where canvas lives in a managed program's address space.
//!
//! All far memory lies in one managed range (the window), so "is this ours?" is one comparison and page metadata is a
//! flat array. Everything else that belongs to canvas lies at a fixed offset from the window, except the gate page. The
//! addresses of both are drawn at random for each tenant ([`Bases`]) and are equal in all its processes, because a
//! seccomp filter survives `execve` and must mean the same there.
//!
//! They lie above the native heap (malloc expects a break that moves up), below `mmap_base`, and clear of ZGC's heap
//! views.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::page::PAGE_SIZE;

/// Bytes in the managed range.
pub const WINDOW_BYTES: usize = 0x0800_0000_0000;
/// Pages in the managed range.
pub const WINDOW_PAGES: usize = WINDOW_BYTES / PAGE_SIZE;

/// Offset from the managed range's first byte to what canvas keeps behind it: swap cache buffers, the pool.
pub const STORE_OFFSET: usize = WINDOW_BYTES;

/// Offset from the managed range's first byte to the partition of shared memory (`canvas run --shared`).
pub const SHARED_OFFSET: usize = 0x0f00_0000_0000;
/// Bytes in the partition.
pub const SHARED_BYTES: usize = 0x0080_0000_0000;
/// Pages in the partition.
pub const SHARED_PAGES: usize = SHARED_BYTES / PAGE_SIZE;

/// Offset from the managed range's first byte to the page words (one `u64` per page of the managed range) and other
/// tables.
pub const WORDS_OFFSET: usize = 0x1000_0000_0000;
/// Bytes of the words and of all other tables.
pub const META_BYTES: usize = 0x40_0000_0000;
/// Offset from the managed range's first byte to the end of everything at a fixed offset from it.
pub const SPAN_BYTES: usize = WORDS_OFFSET + META_BYTES;

/// Maximum pages of swap cache (128 MiB): its metadata is touched all over, so it is bounded, too.
pub const CACHE_SLOTS_MAX: usize = 1 << 15;
/// Slabs of the pool's range, 32 KiB each: the pool's own, then each node's.
pub const POOL_SLABS: usize = POOL_OWN_SLABS + NODES_MAX * NODE_SLABS;
/// Slabs of the compressed pool: at most 2 TiB.
pub const POOL_OWN_SLABS: usize = 1 << 26;
/// NUMA nodes that a tenant can have pages on (`canvas run --numa`).
pub const NODES_MAX: usize = 4;
/// Slabs of the pool's range that lie on one node: at most 256 GiB.
pub const NODE_SLABS: usize = 1 << 23;
/// Offset in the tables of the list of the managed range's regions, ended by an empty one.
pub const REGIONS: usize = 0x12_0000_0000;
/// Offset in the tables of the list of the process's parts of the partition of shared memory.
pub const PARTITION_REGIONS: usize = REGIONS + 0x8000_0000;
/// Maximum regions of the managed range.
pub const REGIONS_MAX: usize = 1 << 20;
/// Maximum parts of the partition that a process can have.
pub const PARTITION_REGIONS_MAX: usize = 8192;
/// Offset in the tables of the swap cache's metadata: states of its slots, then their pages, a `u32` each, and more.
pub const CACHE_META: usize = 0x13_0000_0000;
/// Offset in the tables of the swap entries, one `u64` each.
pub const ENTRIES: usize = 0x18_0000_0000;
/// Offset in the tables of the key of the content hash for private pages, followed by the key for shared ones.
pub const KEYS: usize = 0x3d_0000_0000;
/// Maximum entries of the table.
pub const ENTRIES_MAX: usize = 1 << 31;

/// Size of the break area, which starts the managed range; a program that needs more gets it by mmap.
pub const BRK_BYTES: usize = 64 << 30;

/// Pages of one accounting block (2 MiB), the unit in which the clock hand skips empty space.
pub const BLOCK_PAGES: usize = 512;
/// Blocks in the managed range.
pub const WINDOW_BLOCKS: usize = WINDOW_PAGES / BLOCK_PAGES;

/// Alignment of the managed range.
const WINDOW_ALIGN: usize = BLOCK_PAGES * PAGE_SIZE;

/// Addresses that are specific to a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bases {
    /// First byte of the managed range.
    pub window: usize,
    /// The page with the syscall instruction that the filter lets through.
    pub gate: usize,
}

impl Bases {
    /// The addresses of a tenant that has not drawn any.
    pub const DEFAULT: Bases = Bases {
        window: 0x6000_0000_0000,
        gate: GATE_FIRST,
    };

    /// The addresses chosen by `random` bits, on a host whose kernel moves programs and mappings by up to 2^`rnd_bits`
    /// pages (vm.mmap_rnd_bits). If that leaves the managed range no choice, only the gate's address is drawn.
    pub const fn draw(random: [u64; 2], rnd_bits: u32) -> Bases {
        let (low, high) = window_range(rnd_bits);
        let window = if low < high {
            low + (random[0] % ((high - low) / WINDOW_ALIGN) as u64) as usize * WINDOW_ALIGN
        } else {
            Bases::DEFAULT.window
        };
        let gate = GATE_FIRST + (random[1] % GATES as u64) as usize * PAGE_SIZE;
        Bases { window, gate }
    }

    /// Whether [`Bases::draw`] can return these addresses. (The tenant can write to the segment.)
    pub const fn are_valid(self) -> bool {
        self.window.is_multiple_of(WINDOW_ALIGN)
            && self.window >= WINDOW_FIRST
            && self.window < WINDOW_LAST
            && self.gate.is_multiple_of(PAGE_SIZE)
            && self.gate >= GATE_FIRST
            && self.gate < GATE_FIRST + GATES * PAGE_SIZE
    }

    /// Part `i` of the addresses, encoded as [`Bases::PARTS`] numbers of [`Bases::PART_BITS`] bits for a channel that
    /// carries only small numbers.
    pub const fn part(self, i: usize) -> u32 {
        let window = ((self.window - WINDOW_FIRST) / WINDOW_ALIGN) as u64;
        let gate = ((self.gate - GATE_FIRST) / PAGE_SIZE) as u64;
        let all = window << GATE_BITS | gate;
        (all >> (i * Bases::PART_BITS)) as u32 & ((1 << Bases::PART_BITS) - 1)
    }

    /// Decodes the addresses from the numbers of [`Bases::part`].
    pub fn of_parts(mut part: impl FnMut(usize) -> Option<u32>) -> Option<Bases> {
        let mut all = 0u64;
        for i in 0..Bases::PARTS {
            all |= u64::from(part(i)?) << (i * Bases::PART_BITS);
        }
        let bases = Bases {
            window: WINDOW_FIRST + (all >> GATE_BITS) as usize * WINDOW_ALIGN,
            gate: GATE_FIRST + (all as usize & (GATES - 1)) * PAGE_SIZE,
        };
        bases.are_valid().then_some(bases)
    }

    /// Bits of a part.
    pub const PART_BITS: usize = 11;
    /// How many numbers of [`Bases::PART_BITS`] bits encode the addresses ([`Bases::part`]).
    pub const PARTS: usize = 5;
}

/// Lowest address of the managed range.
const WINDOW_FIRST: usize = 0x5800_0000_0000;
/// The managed range begins below this.
const WINDOW_LAST: usize = 0x6800_0000_0000;
/// Lowest address of the gate: below all managed ranges, above programs and their native breaks.
const GATE_FIRST: usize = 0x5700_0000_0000;
const GATE_BITS: usize = 28;
/// Number of pages that the gate is chosen from.
const GATES: usize = 1 << GATE_BITS;

/// The kernel's ELF_ET_DYN_BASE: the lowest address of a position-independent program.
const PROGRAM_FIRST: usize = 0x5555_5555_4000;
/// Space that a program and its native break may take above its address.
const PROGRAM_BYTES: usize = 0x80_0000_0000;
/// The end of user addresses.
const USER_END: usize = 0x8000_0000_0000;
/// Space between that and the first mapping (stack, its own random offset), plus the room that is left for native
/// mappings, which grow downwards.
const NATIVE_BYTES: usize = 0x0200_0000_0000;

/// End of the allocators of AddressSanitizer and LeakSanitizer, which have fixed addresses. Programs built with them
/// run without the library, but if a managed program started them they run with its filter, which takes pointers into
/// the managed range for far ones.
const SANITIZERS_END: usize = 0x6400_0000_0000;

/// Range of addresses for the managed range that no program and no native mapping can reach.
const fn window_range(rnd_bits: u32) -> (usize, usize) {
    let moves = PAGE_SIZE << (if rnd_bits < 32 { rnd_bits } else { 32 });
    let low = (PROGRAM_FIRST + moves + PROGRAM_BYTES).next_multiple_of(WINDOW_ALIGN);
    let high = USER_END - NATIVE_BYTES - moves - SPAN_BYTES;
    let low = if low > WINDOW_FIRST {
        low
    } else {
        WINDOW_FIRST
    };
    let high = if high < WINDOW_LAST {
        high
    } else {
        WINDOW_LAST
    };
    // Ignored if it leaves no choice.
    let low = if low < SANITIZERS_END && SANITIZERS_END < high {
        SANITIZERS_END
    } else {
        low
    };
    (low, high)
}

static WINDOW: AtomicUsize = AtomicUsize::new(Bases::DEFAULT.window);
static GATE: AtomicUsize = AtomicUsize::new(Bases::DEFAULT.gate);
static PLACED: AtomicBool = AtomicBool::new(false);

/// Sets the addresses of the managed range and the gate in this process. Called once, before anything is mapped there:
/// later calls change nothing, and return false.
pub fn place(bases: Bases) -> bool {
    if !bases.are_valid() || PLACED.swap(true, Ordering::Relaxed) {
        return false;
    }
    WINDOW.store(bases.window, Ordering::Relaxed);
    GATE.store(bases.gate, Ordering::Relaxed);
    true
}

/// The addresses of the managed range and the gate in this process.
pub fn bases() -> Bases {
    Bases {
        window: window_base(),
        gate: gate_page(),
    }
}

/// First byte of the managed range.
#[inline(always)]
pub fn window_base() -> usize {
    WINDOW.load(Ordering::Relaxed)
}

/// One past the managed range's last byte.
#[inline(always)]
pub fn window_end() -> usize {
    window_base() + WINDOW_BYTES
}

/// Address of the swap cache buffers: one page per slot.
#[inline(always)]
pub fn cache_buffers() -> usize {
    window_base() + STORE_OFFSET
}

/// Address of the compressed pool.
#[inline(always)]
pub fn pool() -> usize {
    window_base() + STORE_OFFSET + (1 << 40)
}

/// The owner of the slab whose bytes, or raw headers, lie at this offset of the pool's range (`slab_bytes` of each slab
/// come first, then `header_bytes` of each): a node, by its index in the tenant, or `None` for the pool itself.
pub const fn node_at(offset: usize, slab_bytes: usize, header_bytes: usize) -> Option<usize> {
    let slab = match offset.checked_sub(POOL_SLABS * slab_bytes) {
        None => offset / slab_bytes,
        Some(in_headers) => in_headers / header_bytes,
    };
    match slab.checked_sub(POOL_OWN_SLABS) {
        Some(slab) if slab / NODE_SLABS < NODES_MAX => Some(slab / NODE_SLABS),
        _ => None,
    }
}

/// Address of a table; the page words are at offset 0.
#[inline(always)]
pub fn tables(offset: usize) -> usize {
    window_base() + WORDS_OFFSET + offset
}

/// First byte of the partition of shared memory.
#[inline(always)]
pub fn shared_base() -> usize {
    window_base() + SHARED_OFFSET
}

/// One past the partition's last byte.
#[inline(always)]
pub fn shared_end() -> usize {
    shared_base() + SHARED_BYTES
}

/// The page with the syscall instruction that the filter lets through.
pub fn gate_page() -> usize {
    GATE.load(Ordering::Relaxed)
}

/// Whether `addr` lies in the managed range.
#[inline(always)]
pub fn in_window(addr: usize) -> bool {
    addr.wrapping_sub(window_base()) < WINDOW_BYTES
}

/// Whether `addr` lies in the partition of shared memory.
#[inline(always)]
pub fn in_partition(addr: usize) -> bool {
    addr.wrapping_sub(shared_base()) < SHARED_BYTES
}

/// Whether `addr` may lie in the managed range or the partition: true for all of their addresses, and for none of the
/// program's other ones, because only memory of canvas lies between the two.
#[inline(always)]
pub fn may_be_far(addr: usize) -> bool {
    addr.wrapping_sub(window_base()) < SHARED_OFFSET + SHARED_BYTES
}

const _: () = assert!(SHARED_OFFSET > STORE_OFFSET && SHARED_OFFSET + SHARED_BYTES <= WORDS_OFFSET);
const _: () = assert!(WINDOW_PAGES <= u32::MAX as usize);
const _: () = assert!(STORE_OFFSET + WINDOW_BYTES <= WORDS_OFFSET);
const _: () = assert!(WINDOW_PAGES * 8 <= META_BYTES);
const _: () = assert!(GATE_FIRST + GATES * PAGE_SIZE <= WINDOW_FIRST);
const _: () = assert!(Bases::DEFAULT.are_valid());
const _: () = assert!(
    ((WINDOW_LAST - WINDOW_FIRST) / WINDOW_ALIGN) << GATE_BITS
        <= 1 << (Bases::PARTS * Bases::PART_BITS)
);

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL_BITS: u32 = 28;

    #[test]
    fn a_slab_and_its_headers_belong_to_one_node() {
        let of = |slab: usize| {
            let by_slab = node_at(slab * 100, 100, 7);
            assert_eq!(by_slab, node_at(slab * 100 + 99, 100, 7), "{slab}");
            assert_eq!(
                by_slab,
                node_at(POOL_SLABS * 100 + slab * 7, 100, 7),
                "{slab}"
            );
            by_slab
        };
        let first = POOL_OWN_SLABS;
        let nodes = [
            0,
            first - 1,
            first,
            first + NODE_SLABS - 1,
            first + NODE_SLABS,
        ]
        .map(of);
        assert_eq!(nodes, [None, None, Some(0), Some(0), Some(1)]);
        assert_eq!(of(POOL_SLABS - 1), Some(NODES_MAX - 1));
        assert_eq!(node_at(POOL_SLABS * 107, 100, 7), None, "behind all");
    }

    #[test]
    fn draws_use_the_whole_range_and_keep_clear_of_everything_else() {
        let (low, high) = window_range(USUAL_BITS);
        assert_eq!((low, high), (SANITIZERS_END, WINDOW_LAST), "23 bits");
        let program_end = PROGRAM_FIRST + (PAGE_SIZE << USUAL_BITS) + PROGRAM_BYTES;
        assert!(program_end <= GATE_FIRST);
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            seed ^ seed >> 29
        };
        let mut seen = [0u32; 16];
        for _ in 0..4096 {
            let b = Bases::draw([next(), next()], USUAL_BITS);
            assert!(b.are_valid(), "{b:x?}");
            let end = b.window + SPAN_BYTES;
            assert!(
                end + NATIVE_BYTES + (PAGE_SIZE << USUAL_BITS) <= USER_END,
                "{b:x?}"
            );
            seen[(b.window - low) * 16 / (high - low)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 128), "{seen:?}");
    }

    #[test]
    fn a_host_that_leaves_no_room_draws_the_gate_only() {
        for bits in [32, 40] {
            let a = Bases::draw([1 << 40, 77], bits);
            assert_eq!(a.window, Bases::DEFAULT.window, "{bits}");
            assert_eq!(a.gate, GATE_FIRST + 77 * PAGE_SIZE);
            assert!(a.are_valid());
        }
    }

    #[test]
    fn bases_travel_in_parts() {
        for random in [
            [0, 0],
            [u64::MAX, u64::MAX],
            [0x1234_5678_9abc, 0xdead_beef_cafe],
        ] {
            let b = Bases::draw(random, USUAL_BITS);
            assert!((0..Bases::PARTS).all(|i| b.part(i) < 1 << Bases::PART_BITS));
            assert_eq!(Bases::of_parts(|i| Some(b.part(i))), Some(b));
        }
        assert_eq!(Bases::of_parts(|_| None), None);
    }

    #[test]
    fn what_was_not_drawn_is_refused() {
        let b = Bases::DEFAULT;
        for window in [
            0,
            b.window + PAGE_SIZE,
            WINDOW_FIRST - WINDOW_ALIGN,
            WINDOW_LAST,
        ] {
            assert!(!Bases { window, ..b }.are_valid());
        }
        for gate in [0, b.gate + 1, GATE_FIRST - PAGE_SIZE, WINDOW_FIRST] {
            assert!(!Bases { gate, ..b }.are_valid());
        }
    }
}
