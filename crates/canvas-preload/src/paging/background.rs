//! A round of the reclaim thread.

use canvas_core::vm::{ledger, reclaim};
use canvas_sys::proc;

use crate::far_tier::tier;
use crate::paging::{cache, context, nodes};
use crate::runtime::{state, state::PROCESS};

/// Writes ahead, demotes, and frees what is above the mark. Returns false if there was nothing to do.
pub fn round() -> bool {
    state::seg().host.forget_old(proc::now_ns());
    let mut worked = reclaim::write_ahead(&PROCESS);
    worked |= tier::give_to_others();
    worked |= nodes::background_round();
    worked |= tier::background_round();
    if tier::waits_for_cached() {
        let slots = cache::slots();
        let cached = slots.capacity() - slots.available();
        worked |= reclaim::write_out(&PROCESS, &mut context::reclaim(), cached) > 0;
    }
    worked |= reclaim::evict_excess(&PROCESS);
    if ledger::short_of_room(&PROCESS) {
        ledger::ask_for_rest(&PROCESS);
    }
    worked
}
