//! This process's direct read channels (lanes), by which a fault reads its page from a donor itself
//! ([`canvas_direct::client`]), with their descriptors protected from the program.

use canvas_direct::client::{Lanes, Process};
use canvas_shm::mailbox::RequestFields;
use canvas_shm::{Counter, Far};

use crate::far_tier::pairs::{self, OurPairs, PAIRS};
use crate::runtime::{
    fds::{self, Fd},
    state, time,
};

const _: () = assert!(canvas_direct::client::COUNT == fds::LANES);

static LANES: Lanes = Lanes::new();

/// This process.
struct Ours;

impl Process for Ours {
    type Pairs = OurPairs;
    fn pairs(&self) -> &OurPairs {
        &PAIRS
    }
    fn now_ns(&self) -> u64 {
        time::now_ns()
    }
    fn fd_floor(&self) -> i32 {
        fds::floor()
    }
    fn keep_fd(&self, index: usize, fd: i32) {
        fds::guard(Fd::Lane(index), fd);
    }
    fn has_own_fds(&self) -> bool {
        fds::has_its_own()
    }
    fn note_slept(&self, ns: u64) {
        state::count(Counter::FaultSleepNs, ns);
    }
}

/// Turns direct reads off in this process for good.
pub fn forbid() {
    pairs::forbid();
    LANES.forbid();
}

/// Reads what `ask` names from a donor into `to`, as many bytes of the record as fit. Returns false if the agent must
/// do that.
pub fn read(far: &Far, ask: &RequestFields, to: &mut [u8]) -> bool {
    LANES.read(far, ask, to, &Ours)
}

/// In a fork's child, before it continues: closes the parent's channels. No thread used one during the fork.
pub fn after_fork_in_child() {
    pairs::after_fork_in_child();
    LANES.close(&Ours);
}
