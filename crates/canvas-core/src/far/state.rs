//! The far tier's state.

use canvas_shm::mailbox::REQUESTS;
use canvas_types::contention::Contention;

use crate::far::compact::Compaction;
use crate::far::job::Job;
use crate::far::lead_time::LeadTime;
use crate::far::resident_copies::Rests;
use crate::far::room::Room;
use crate::far::spill::Pauses;
use crate::far::unit::Unit;

/// `const fn new()`; under shuttle, whose atomics cannot be constants, `fn new()`.
macro_rules! new {
    ($what:literal, $new:expr) => {
        #[doc = $what]
        #[allow(clippy::new_without_default)]
        #[cfg(not(feature = "shuttle"))]
        pub const fn new() -> Self {
            $new
        }
        #[doc = $what]
        #[allow(clippy::new_without_default)]
        #[cfg(feature = "shuttle")]
        pub fn new() -> Self {
            $new
        }
    };
}
pub(crate) use new;

/// State of one process's far tier.
pub struct State {
    /// Jobs of this process's requests, by the request's index.
    pub(crate) jobs: [Job; REQUESTS],
    /// Whether other threads want the processors.
    pub(crate) contention: Contention,
    pub(crate) lead_time: LeadTime,
    pub(crate) room: Room,
    pub(crate) spill: Pauses,
    pub(crate) copies: Rests,
    pub(crate) compaction: Compaction,
    pub(crate) unit: Unit,
}

#[cfg(not(feature = "shuttle"))]
const fn jobs() -> [Job; REQUESTS] {
    [const { Job::new() }; REQUESTS]
}
#[cfg(feature = "shuttle")]
fn jobs() -> [Job; REQUESTS] {
    core::array::from_fn(|_| Job::new())
}

impl State {
    new!(
        "Nothing is under way, and nothing is learned yet.",
        State {
            jobs: jobs(),
            contention: Contention::new(),
            lead_time: LeadTime::new(),
            room: Room::new(),
            spill: Pauses::new(),
            copies: Rests::new(),
            compaction: Compaction::new(),
            unit: Unit::new(),
        }
    );
}
