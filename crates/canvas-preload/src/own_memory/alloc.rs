//! The library's own heap, for the few allocations of its Rust code: at start-up, and in the report of a defect.
//!
//! The program's heap cannot be used: it would grow by what canvas needs for a moment, before its memory is managed.
//! This heap hands out memory from the bottom up and never takes it back, except that the decoder's tables (half a MiB)
//! come from a part that is returned to the kernel as a whole.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use canvas_sys::mem;

use crate::own_memory::{
    own::{self, kind},
    writable::Mark,
};

/// Address space of a part; memory is used only when it is touched.
const PART_BYTES: usize = 32 << 20;

struct Part {
    base: AtomicUsize,
    used: AtomicUsize,
    open: Mark,
}

impl Part {
    const fn new() -> Part {
        Part {
            base: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            open: Mark::new(256 << 10),
        }
    }

    /// The part's first address; 0 if there is no room for it.
    fn base(&self) -> usize {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 {
            return base;
        }
        let Ok(new) = mem::map_lazy(0, PART_BYTES, libc::PROT_NONE) else {
            return 0;
        };
        // Start-up has one thread, so no other is faster; a second part would only lie unused.
        self.base
            .compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(
                |now| now,
                |_| {
                    if ptr::eq(self, &raw const HEAP.lasting) {
                        own::note(new, PART_BYTES, kind::STAYS | kind::COUNTS);
                    }
                    new
                },
            )
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        let base = self.base();
        if base == 0 {
            return ptr::null_mut();
        }
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let at = used.next_multiple_of(layout.align());
            let end = match at.checked_add(layout.size()) {
                Some(end) if end <= PART_BYTES => end,
                _ => return ptr::null_mut(),
            };
            if self.open.reach(base, end, PART_BYTES).is_err() {
                return ptr::null_mut();
            }
            match self
                .used
                .compare_exchange(used, end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return (base + at) as *mut u8,
                Err(now) => used = now,
            }
        }
    }
}

struct Heap {
    lasting: Part,
    decoding: Part,
    decodes: AtomicBool,
}

// SAFETY: each call hands out memory that no other call has: parts are page-aligned (no layout here asks for more),
// `used` only grows, and a part is mapped until nobody refers to it ([`decode`]).
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.decodes.load(Ordering::Relaxed) {
            true => self.decoding.take(layout),
            false => self.lasting.take(layout),
        }
    }
    unsafe fn dealloc(&self, _at: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static HEAP: Heap = Heap {
    lasting: Part::new(),
    decoding: Part::new(),
    decodes: AtomicBool::new(false),
};

/// Runs `f`, and frees all that it allocated. Called once, at start-up, with one thread.
///
/// # Safety
///
/// Nothing may use afterwards what `f` allocated, including statics that it filled.
pub unsafe fn decode<R: Copy>(f: impl FnOnce() -> R) -> R {
    HEAP.decodes.store(true, Ordering::Relaxed);
    let r = f();
    HEAP.decodes.store(false, Ordering::Relaxed);
    let base = HEAP.decoding.base.load(Ordering::Relaxed);
    if base != 0 {
        // SAFETY: the mapping from which `f` allocated, to which nothing refers (the caller's promise).
        let _ = unsafe { mem::unmap(base, PART_BYTES) };
    }
    r
}
