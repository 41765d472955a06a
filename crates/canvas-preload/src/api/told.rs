//! Kinds of threads and contents of regions, as the program has told them.

use canvas_pager::api::kinds::{self, Kind, Kinds};
use canvas_pager::api::refs::{self, Refs, Told};
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::sync::RawSpin;

use crate::base::freeze;

static KINDS: Kinds = Kinds::new();
static REFS: Refs = Refs::new();
/// Of both, which have one writer at a time. Taken inside only, so that no fork finds it taken.
static WRITER: RawSpin = RawSpin::new();

/// What the thread `tid` is for, if it was told.
#[inline]
pub fn kind_of(tid: u32) -> Option<Kind> {
    KINDS.of(tid)
}

/// What lies in the region of `page`, if it was told.
#[inline]
pub fn regions_of(page: PageId) -> Option<Told> {
    REFS.of(page.0)
}

/// Tells what the thread `tid` is for; `None` forgets it.
pub fn tell_kind(tid: u32, kind: Option<Kind>) -> Result<(), kinds::Full> {
    let _inside = freeze::enter();
    let _writer = WRITER.lock(yield_now);
    match kind {
        Some(kind) => KINDS.tell(tid, kind),
        None => {
            KINDS.forget(tid);
            Ok(())
        }
    }
}

/// The calling thread ends: its number may be another one's soon.
pub fn thread_ends() {
    if KINDS.any() {
        let _ = tell_kind(proc::tid(), None);
    }
}

/// Tells what lies in the pages `start..end`; `None` forgets it. The caller is inside.
pub fn tell_content(start: u32, end: u32, told: Option<Told>) -> Result<(), refs::Full> {
    let _writer = WRITER.lock(yield_now);
    REFS.tell(start, end, told)
}

/// The pages `start..end` are unmapped, or something else is mapped there. The caller is inside.
pub fn unmapped(start: u32, end: u32) {
    if REFS.any() {
        // A full list cannot be split by a hole; then what was told of the rest stays true.
        let _ = tell_content(start, end, None);
    }
}

/// In a fork's child: the threads were its parent's.
pub fn after_fork_in_child() {
    KINDS.clear();
}
