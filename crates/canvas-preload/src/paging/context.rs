//! Working memory of fills and reclaim: a fixed number of contexts in canvas's own memory, each taken for one
//! operation. When all are taken the next thread waits, so memory stays bounded.

use canvas_core::pager::locks::{ContextGuard as Taken, ContextPool};
use canvas_core::vm::context::Batch;
use canvas_core::vm::context::Fill;
use canvas_sys::Errno;
use core::ops::{Deref, DerefMut};

use crate::own_memory::{
    areas,
    writable::{Steps, open},
};
use crate::paging::slow;
use crate::runtime::thread;

/// Concurrent fills, each of which may have a read beyond the pool in flight.
const FILLS: usize = canvas_shm::mailbox::DEMANDS.count_ones() as usize;
/// Concurrent reclaims: more than the processors that could run them, so that no thread waits for a context.
const RECLAIMS: usize = 16;
const FILL_STEP: usize = 1 << 20;
const _: () = assert!(
    core::mem::size_of::<Fill>() <= FILL_STEP && core::mem::size_of::<Batch>() <= FILL_STEP
);

state! {
    static CONTEXTS: Contexts {
        fills: ContextPool<FILLS> = ContextPool::new(),
        fills_open: Steps<1> = Steps::new(),
        reclaims: ContextPool<RECLAIMS> = ContextPool::new(),
        reclaims_open: Steps<1> = Steps::new(),
    }
}
const _: () = assert!(FILLS <= 64 && RECLAIMS <= 64);

/// Opens one context of each kind, so that a waiting thread always has one to wait for. Called once, at start-up.
pub fn open_first() -> Result<(), Errno> {
    open_place::<Fill>(&CONTEXTS.fills_open, 0, fills())?;
    open_place::<Batch>(&CONTEXTS.reclaims_open, 0, reclaims())
}

/// Opens a context at its first use.
#[inline]
fn open_place<T>(open_ones: &Steps<1>, place: usize, base: usize) -> Result<(), Errno> {
    let bytes = core::mem::size_of::<T>();
    let opened = open_ones.reach(place..place + 1, |_| open(base + place * FILL_STEP, bytes));
    opened.map(|_| ())
}

fn fills() -> usize {
    areas::contexts()
}

fn reclaims() -> usize {
    areas::contexts() + FILLS * FILL_STEP
}

/// A context, owned by the caller until dropped.
pub struct Held<T: 'static> {
    at: &'static mut T,
    _place: Taken<'static>,
}

impl<T> Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.at
    }
}
impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.at
    }
}

/// Takes a context.
///
/// # Safety
///
/// All zeros must be a `T`, and `base` that of contexts of that type, one per place, reached only through this
/// function.
unsafe fn hold<T, const N: usize>(
    places: &'static ContextPool<N>,
    open_ones: &Steps<1>,
    first: usize,
    base: usize,
) -> Held<T> {
    let mut place = places.take(first, slow::yield_to_context);
    while open_place::<T>(open_ones, place.index(), base).is_err() {
        // No memory for another context: wait for the first, which is open.
        drop(place);
        slow::yield_to_context();
        place = places.take(0, slow::yield_to_context);
    }
    // SAFETY: `open_place` has opened it, with zeros at first, which are a `T`, as are the bytes that an earlier holder
    // left (the caller's promise); the place just taken makes this the only reference.
    let at = unsafe { &mut *((base + place.index() * FILL_STEP) as *mut T) };
    Held { at, _place: place }
}

/// Takes a context for bringing pages in.
#[inline]
pub fn fill() -> Held<Fill> {
    let (places, open) = (&CONTEXTS.fills, &CONTEXTS.fills_open);
    // SAFETY: zeros are a `Fill`, and its contexts lie there.
    unsafe { hold(places, open, thread::thread_hash(), fills()) }
}

/// Takes a context for reclaim.
pub fn reclaim() -> Held<Batch> {
    // Take the lowest free one: contexts that are never needed at the same time use no memory.
    let (places, open) = (&CONTEXTS.reclaims, &CONTEXTS.reclaims_open);
    // SAFETY: zeros are a `Batch`, and its contexts lie there, behind those of the fills.
    unsafe { hold(places, open, 0, reclaims()) }
}
