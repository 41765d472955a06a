//! The keys of the content hash (`canvas_swap::hash`).
//!
//! A page of a process's own is hashed and verified by that process alone, and by children that it forks,
//! which inherit its pages and so its key: random bytes of its own, made at its start. An exec makes a new
//! key; of the old image no page is left. Pages that forks share are brought back by whoever comes by, so
//! their key is the tenant's: in the control file of shared memory, copied from there at the start, so that
//! nothing that happens to the file later matters.

use canvas_shm::shared::Map;
use canvas_swap::hash::{PageHash, Products, portable};
use canvas_sys::{Errno, clmul, proc};
use canvas_types::PAGE_SIZE;
use core::cell::UnsafeCell;

use crate::base::areas;

struct Cell(UnsafeCell<PageHash<'static>>);
// SAFETY: written by `init` and `init_shared` alone, before any other thread or handler can read it.
unsafe impl Sync for Cell {}

static NO_KEY: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
static OWN: Cell = Cell(UnsafeCell::new(PageHash::new(&NO_KEY, portable)));
static SHARED: Cell = Cell(UnsafeCell::new(PageHash::new(&NO_KEY, portable)));

fn products() -> Products {
    clmul::fastest().unwrap_or(portable)
}

/// Makes the process's own key. Once, at start-up, after the areas are mapped.
pub fn init() -> Result<(), Errno> {
    // SAFETY: the areas are mapped, and start-up calls this once.
    let key = unsafe { areas::key_memory(0) };
    proc::random_bytes(key)?;
    // SAFETY: start-up has one thread and no handler installed yet.
    unsafe { *OWN.0.get() = PageHash::new(key, products()) };
    Ok(())
}

/// Takes the key of shared pages. Once, at start-up, before any of them can be touched.
pub fn init_shared(map: Map) {
    // SAFETY: the areas are mapped, and start-up calls this once.
    let key = unsafe { areas::key_memory(1) };
    map.page_key(key);
    // SAFETY: nothing reads it before this process maps shared memory, which it does after this.
    unsafe { *SHARED.0.get() = PageHash::new(key, products()) };
}

/// Hashes this process's pages.
#[inline(always)]
pub fn own() -> &'static PageHash<'static> {
    // SAFETY: `init` ran before anything that calls this.
    unsafe { &*OWN.0.get() }
}

/// Hashes shared pages.
#[inline(always)]
pub fn shared() -> &'static PageHash<'static> {
    // SAFETY: `init_shared` ran before anything that calls this.
    unsafe { &*SHARED.0.get() }
}
