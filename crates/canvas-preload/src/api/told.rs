//! Kinds of threads and contents of regions, as declared by the program.

use canvas_core::pager::api::kinds::{self, Kind, Kinds};
use canvas_core::pager::api::refs::{self, Declaration, Refs};
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::sync::RawSpin;

static KINDS: Kinds = Kinds::new();
static REFS: Refs = Refs::new();
/// Lock of both tables, which have one writer at a time. Taken only inside `freeze::enter`, so that no fork finds it
/// taken.
static WRITER: RawSpin = RawSpin::new();

/// The declared kind of the thread `tid`.
#[inline]
pub fn kind_of(tid: u32) -> Option<Kind> {
    KINDS.of(tid)
}

/// The declared contents of the region of `page`.
#[inline]
pub fn regions_of(page: PageId) -> Option<Declaration> {
    REFS.of(page.0)
}

/// Whether the kind of any thread is declared.
pub fn has_kinds() -> bool {
    KINDS.any()
}

/// Declares the kind of the thread `tid`; `None` removes it. The caller is inside `freeze::enter`.
pub fn tell_kind(tid: u32, kind: Option<Kind>) -> Result<(), kinds::Full> {
    let _writer = WRITER.lock(yield_now);
    match kind {
        Some(kind) => KINDS.declare(tid, kind),
        None => {
            KINDS.forget(tid);
            Ok(())
        }
    }
}

/// Removes the calling thread, which ends: its number may be reused soon. The caller is inside `freeze::enter`.
pub fn thread_ends() {
    let _ = tell_kind(proc::tid(), None);
}

/// Declares the contents of the pages `start..end`; `None` removes the declaration. The caller is inside
/// `freeze::enter`.
pub fn tell_content(start: u32, end: u32, told: Option<Declaration>) -> Result<(), refs::Full> {
    let _writer = WRITER.lock(yield_now);
    REFS.declare(start, end, told)
}

/// Records that the pages `start..end` are unmapped or replaced by another mapping. The caller is inside
/// `freeze::enter`.
pub fn unmapped(start: u32, end: u32) {
    if REFS.any() {
        // A full list cannot be split by a hole; then what was declared about the rest stays valid.
        let _ = tell_content(start, end, None);
    }
}

/// In a fork's child: removes the parent's threads.
pub fn after_fork_in_child() {
    KINDS.clear();
}
