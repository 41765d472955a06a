//! Where faults and callers that need a page enter the pager ([`canvas_core::vm::fault`]).
//!
//! The caller is inside [`crate::paging::freeze`] with all signals blocked. Nothing here allocates from the program's
//! heap, takes a lock that the program can hold, or calls a hooked function.

use canvas_core::vm::FaultSite;
use canvas_core::vm::fault;
use canvas_types::PageId;

use crate::far_tier::tier;
use crate::runtime::state::PROCESS;

pub use canvas_core::vm::fault::Resolved;

/// Explains, for a message, why a page is not present.
pub fn reason(why: Resolved) -> &'static str {
    match why {
        Resolved::Present => "it is present",
        Resolved::NotOurs => "canvas does not manage it",
        Resolved::Poisoned => "its far copy came back damaged",
        Resolved::Unreachable => "its far copy cannot be reached within -o far-wait",
        Resolved::Lost => {
            "no far copy of it is left: the donors that held it have lost it (--copies 2, 3 or 1+disk keeps more than one)"
        }
        Resolved::NoMemory if tier::is_stalled() => {
            "local memory is full, and far memory does not answer"
        }
        Resolved::NoMemory => "local and far memory are both full (raise --pool or --local)",
    }
}

/// Makes `page` present.
pub fn resolve(page: PageId, write: bool) -> Resolved {
    let at = FaultSite {
        page,
        ..FaultSite::default()
    };
    resolve_at(at, write)
}

/// As [`resolve`], for a fault whose exact location is known.
pub fn resolve_at(at: FaultSite, write: bool) -> Resolved {
    fault::fault(&PROCESS, at, write)
}

/// Fills `page` with zeros before its first touch if there is room below the limit, so that nothing is evicted for it.
pub fn fill_if_room(page: PageId) {
    fault::fill_if_room(&PROCESS, page);
}
