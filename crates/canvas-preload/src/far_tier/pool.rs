//! This process's compressed pool, in the memory of [`crate::own_memory::areas`].

use canvas_core::swap::classes::region_bytes;
use canvas_core::swap::pool::NodeSlabs;
use canvas_core::swap::slots::SLAB_WORDS;
use canvas_core::swap::{Chosen, LocalPool, Lz, LzScratch, PoolArrays, PoolBudget, SlotMem};
use canvas_shm::Counter;
use canvas_shm::nodes::NodeBook;
use canvas_sys::{lz4, mem, numa};
use canvas_types::layout::{self, NODES_MAX};
use canvas_types::{ExtentRef, PageBuf};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::far_tier::{extents, keys};
use crate::own_memory::areas;
use crate::runtime::{state, thread, time};
use crate::tenant::{far_area, members};

const SLABS: usize = layout::POOL_SLABS;
const _: () = assert!(region_bytes(SLABS) <= areas::POOL_BYTES);
const _: () = assert!(SLABS * SLAB_WORDS * 8 <= areas::CONTEXTS - areas::POOL_META);

/// lz4 from canvas-sys.
pub struct Lz4;

impl Lz for Lz4 {
    fn compress(&self, src: &PageBuf, dst: &mut [u8], scratch: &mut LzScratch) -> Option<usize> {
        lz4::compress(src, dst, scratch)
    }
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        lz4::decompress(src, dst)
    }
}

/// The pool's bytes.
pub struct Region;

impl SlotMem for Region {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        assert!(off <= areas::POOL_BYTES && dst.len() <= areas::POOL_BYTES - off);
        // SAFETY: inside the region (asserted), which is mapped for good. The pool reads a slot for the owner of its
        // entry, so nobody writes there meanwhile.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (areas::pool() + off) as *const u8,
                dst.as_mut_ptr(),
                dst.len(),
            )
        }
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        assert!(off <= areas::POOL_BYTES && src.len() <= areas::POOL_BYTES - off);
        // SAFETY: inside the region (asserted), which is mapped for good. The pool writes a slot for the owner of its
        // entry, so nobody reads or writes there meanwhile.
        unsafe {
            core::ptr::copy_nonoverlapping(
                src.as_ptr(),
                (areas::pool() + off) as *mut u8,
                src.len(),
            )
        }
    }
    fn release(&self, off: usize, len: usize) {
        assert!(off <= areas::POOL_BYTES && len <= areas::POOL_BYTES - off);
        if state::PROCESS.has_forked() {
            members::keep_pool_charge(areas::pool() + off, len);
        }
        // SAFETY: inside the region (asserted); the slot allocator says that nothing is stored there any more.
        let _ = unsafe { mem::advise(areas::pool() + off, len, libc::MADV_DONTNEED) };
    }
}

/// The tenant's bound on pool memory, and this process's part of it.
pub struct Budget;

/// Whether the host, which does not overcommit, gives the pool no more memory.
pub fn has_no_memory() -> bool {
    OURS.refused.load(Ordering::Relaxed)
}

impl PoolBudget for Budget {
    fn charge(&self, bytes: i64) -> bool {
        let ok = state::seg().charge_pool(state::slot(), bytes);
        if ok {
            OURS.charged.fetch_add(bytes, Ordering::Relaxed);
        }
        ok
    }
    fn charge_past_bound(&self, bytes: i64) -> bool {
        state::seg().charge_pool_past_bound(state::slot(), bytes);
        OURS.charged.fetch_add(bytes, Ordering::Relaxed);
        true
    }
    fn open_slab(&self, slab: u32) -> bool {
        let opened = areas::open_slab(slab as usize).is_ok();
        OURS.refused.store(!opened, Ordering::Relaxed);
        opened
    }
    fn drop_extent_ref(&self, place: ExtentRef) {
        extents::unhold(place.extent);
    }
    fn charge_node(&self, node: usize, bytes: i64) -> bool {
        let seg = state::seg();
        if bytes > 0 && seg.nodes[node].is_full(time::now_ns) {
            return false;
        }
        let ok = seg.charge_node(state::slot(), node, bytes);
        if ok {
            OURS.nodes_charged[node].fetch_add(bytes, Ordering::Relaxed);
        }
        ok
    }
    fn node_is_over(&self, node: usize) -> bool {
        state::seg().nodes[node].is_over()
    }
    fn lies_on_node(&self, node: usize, off: usize) -> bool {
        let book = &state::seg().nodes[node];
        // If a filter of the program forbids the question, assume that the node is right.
        match (numa::node_of(areas::pool() + off), book.number()) {
            (Ok(there), Some(wanted)) if there != wanted => {
                book.note_full(time::now_ns());
                state::count(Counter::NodePagesElsewhere, 1);
                false
            }
            _ => true,
        }
    }
    fn loaded_from_node(&self) {
        state::count(Counter::PagesInNode, 1);
    }
}

/// Pages of memory that this process uses in the pool and on nodes.
pub fn charged_pages() -> i64 {
    let nodes = OURS.nodes_charged.iter();
    let nodes = nodes.map(|n| n.load(Ordering::Relaxed));
    (OURS.charged.load(Ordering::Relaxed) + nodes.sum::<i64>()) / 4096
}

pub type Pool = LocalPool<'static, Chosen<Lz4>, Region, Budget>;

struct Cell(UnsafeCell<MaybeUninit<Pool>>);
// SAFETY: `init` alone writes it, before any other thread or handler can read it (its caller's promise).
unsafe impl Sync for Cell {}

state! {
    /// This process's pool, and what it has charged the tenant for it.
    static OURS: Ours {
        pool: Cell = Cell(UnsafeCell::new(MaybeUninit::uninit())),
        /// The host had no memory for the last new slab.
        refused: AtomicBool = AtomicBool::new(false),
        /// Bytes charged.
        charged: AtomicI64 = AtomicI64::new(0),
        /// Bytes charged to each node.
        nodes_charged: [AtomicI64; NODES_MAX] = [const { AtomicI64::new(0) }; NODES_MAX],
    }
}

/// In a fork's child, with the pool's locks just released. The child's pool is its parent's, page by page, until one of
/// the two writes; the parent is charged for it.
pub fn after_fork_in_child() {
    let slot = state::slot();
    slot.pool_bytes.store(0, Ordering::Relaxed);
    let whole = OURS.charged.load(Ordering::Relaxed);
    slot.pool_whole_bytes.store(whole, Ordering::Relaxed);
    for (place, charged) in OURS.nodes_charged.iter().enumerate() {
        slot.node_bytes[place].store(0, Ordering::Relaxed);
        let whole = charged.load(Ordering::Relaxed);
        slot.node_whole_bytes[place].store(whole, Ordering::Relaxed);
    }
    pool().publish_class_bytes(1);
}

/// Creates the pool.
///
/// # Safety
///
/// To be called once, by start-up, before [`pool`]; after the areas are mapped, the segment is attached and keys are
/// made.
pub unsafe fn init() {
    let arrays = PoolArrays {
        entries: areas::entries(),
        slab_words: areas::pool_meta64(0, SLABS * SLAB_WORDS),
        class_bytes: &state::seg().class_bytes,
        digests: far_area::far().map_or(&[], |_| {
            let local = state::seg().local_limit_pages().unwrap_or(0);
            areas::digests(usize::try_from(local).unwrap_or(0))
        }),
    };
    let lz = Chosen {
        lz: Lz4,
        codec: state::seg().config.codec(),
    };
    let hash = *keys::own();
    let pool = LocalPool::new(arrays, hash, lz, Region, Budget, thread::THREADS);
    let nodes = NodeSlabs {
        first: layout::POOL_OWN_SLABS,
        each: layout::NODE_SLABS,
        count: prefer_nodes(),
    };
    let pool = pool.with_nodes(nodes, &state::seg().class_bytes);
    pool.allow_entries(0);
    // SAFETY: nobody has called `pool` yet (the caller's promise), so nothing refers to it.
    unsafe { (*OURS.pool.0.get()).write(pool) };
}

/// Binds each node's part of the pool's range to that node. Returns how many nodes there are.
fn prefer_nodes() -> usize {
    let nodes = state::seg().nodes();
    for (place, number) in nodes.iter().filter_map(NodeBook::number).enumerate() {
        for part in areas::node_parts(place) {
            // The runner has checked that this works here. If a program's filter or cpuset forbids it, a store will
            // notice that the page lies elsewhere.
            let _ = numa::prefer(areas::pool() + part.start, part.len(), number);
        }
    }
    nodes.len()
}

#[inline(always)]
pub fn pool() -> &'static Pool {
    // SAFETY: `init` wrote it before anything calls this, and nothing writes it again.
    unsafe { (*OURS.pool.0.get()).assume_init_ref() }
}
