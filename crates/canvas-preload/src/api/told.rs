//! Kinds of threads and contents of regions, as declared by the program.

use canvas_core::pager::api::kinds::{self, Kind, Kinds};
use canvas_core::pager::api::refs::{self, Declaration, Refs};
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::sync::RawSpin;

state! {
    /// What the program has declared.
    static DECLARED: Declared {
        /// Which kind each thread is.
        kinds: Kinds = Kinds::new(),
        /// What each region holds.
        refs: Refs = Refs::new(),
        /// Lock of both tables, which have one writer at a time. Taken only inside `freeze::enter`, so that no fork
        /// finds it taken.
        writer: RawSpin = RawSpin::new(),
    }
}

/// In a fork's child: removes the parent's threads.
pub fn after_fork_in_child() {
    DECLARED.kinds.clear();
}

/// The declared kind of the thread `tid`.
#[inline]
pub fn kind_of(tid: u32) -> Option<Kind> {
    DECLARED.kinds.of(tid)
}

/// The declared contents of the region of `page`.
#[inline]
pub fn regions_of(page: PageId) -> Option<Declaration> {
    DECLARED.refs.of(page.0)
}

/// Whether the kind of any thread is declared.
pub fn has_kinds() -> bool {
    DECLARED.kinds.any()
}

/// Declares the kind of the thread `tid`; `None` removes it. The caller is inside `freeze::enter`.
pub fn tell_kind(tid: u32, kind: Option<Kind>) -> Result<(), kinds::Full> {
    let _writer = DECLARED.writer.lock(yield_now);
    match kind {
        Some(kind) => DECLARED.kinds.declare(tid, kind),
        None => {
            DECLARED.kinds.forget(tid);
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
    let _writer = DECLARED.writer.lock(yield_now);
    DECLARED.refs.declare(start, end, told)
}

/// Records that the pages `start..end` are unmapped or replaced by another mapping. The caller is inside
/// `freeze::enter`.
pub fn unmapped(start: u32, end: u32) {
    if DECLARED.refs.any() {
        // A full list cannot be split by a hole; then what was declared about the rest stays valid.
        let _ = tell_content(start, end, None);
    }
}
