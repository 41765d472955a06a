//! The keys of the content hash (`canvas_core::swap::hash`).
//!
//! A private page is hashed and verified only by its process, and by children that it forks, which inherit its pages
//! and so its key: random bytes made at its start. An exec makes a new key; no page of the old image is left. Shared
//! pages can be brought in by any process, so their key is the tenant's. It is in the control file of shared memory and
//! copied at start, so that later changes to the file do not matter.

use canvas_core::swap::hash::{PageHash, Products, portable};
use canvas_shm::shared::Map;
use canvas_sys::{Errno, clmul, proc};
use canvas_types::PAGE_SIZE;
use core::cell::UnsafeCell;

use crate::own_memory::areas;

struct Cell(UnsafeCell<PageHash<'static>>);
// SAFETY: `init` and `init_shared` alone write it, before any other thread or handler can read it (their callers'
// promise).
unsafe impl Sync for Cell {}

static NO_KEY: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

state! {
    static HASHES: Hashes {
        own: Cell = Cell(UnsafeCell::new(PageHash::new(&NO_KEY, portable))),
        shared: Cell = Cell(UnsafeCell::new(PageHash::new(&NO_KEY, portable))),
    }
}

fn products() -> Products {
    clmul::fastest().unwrap_or(portable)
}

/// Makes the process's own key.
///
/// # Safety
///
/// To be called once, by start-up, after the areas are mapped and before [`own`].
pub unsafe fn init() -> Result<(), Errno> {
    // SAFETY: the areas are mapped, and this is called once (the caller's promise): nobody else has the memory.
    let key = unsafe { areas::key_memory(0) };
    proc::random_bytes(key)?;
    // SAFETY: nobody has called `own` yet (the caller's promise), so nothing refers to it.
    unsafe { *HASHES.own.0.get() = PageHash::new(key, products()) };
    Ok(())
}

/// Copies the key of shared pages.
///
/// # Safety
///
/// To be called once, by start-up, after the areas are mapped and before [`shared`].
pub unsafe fn init_shared(map: Map) {
    // SAFETY: the areas are mapped, and this is called once (the caller's promise): nobody else has the memory.
    let key = unsafe { areas::key_memory(1) };
    map.page_key(key);
    // SAFETY: nobody has called `shared` yet (the caller's promise), so nothing refers to it.
    unsafe { *HASHES.shared.0.get() = PageHash::new(key, products()) };
}

/// The hash of this process's pages.
#[inline(always)]
pub fn own() -> &'static PageHash<'static> {
    // SAFETY: `init` wrote it before anything calls this, and nothing writes it again.
    unsafe { &*HASHES.own.0.get() }
}

/// The hash of shared pages.
#[inline(always)]
pub fn shared() -> &'static PageHash<'static> {
    // SAFETY: `init_shared` wrote it before anything calls this, and nothing writes it again.
    unsafe { &*HASHES.shared.0.get() }
}
