//! The far tier's state.

use canvas_shm::mailbox::REQUESTS;
use canvas_types::contention::Contention;
use canvas_types::sync::{AtomicBool, AtomicU32, AtomicU64};

use crate::far::job::Job;
use crate::far::lead_time::LeadTime;
use crate::far::unit::Unit;
use crate::far::writes::Writes;
use crate::swap::compaction::CompactionScan;

/// Pauses of demotion.
pub(crate) struct DemotionPauses {
    /// No background search before this time: the last one found nothing to write.
    pub(crate) found_none_until_ns: AtomicU64,
    /// No search for pages of the pool that are also far, while nothing can be written, before this time.
    pub(crate) no_homes_until_ns: AtomicU64,
    /// Other processes are not asked for room before this time, because asking was in vain.
    pub(crate) vain_until_ns: AtomicU64,
}

impl DemotionPauses {
    /// None.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        DemotionPauses {
            found_none_until_ns: AtomicU64::new(0),
            no_homes_until_ns: AtomicU64::new(0),
            vain_until_ns: AtomicU64::new(0),
        }
    }
}

/// No search before these times: the last one found none, or, of copies that are also far, too few.
pub(crate) struct CopyPauses {
    pub(crate) none_until_ns: AtomicU64,
    pub(crate) no_homes_until_ns: AtomicU64,
}

impl CopyPauses {
    /// None.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        CopyPauses {
            none_until_ns: AtomicU64::new(0),
            no_homes_until_ns: AtomicU64::new(0),
        }
    }
}

/// State of compaction.
pub(crate) struct Compaction {
    pub(crate) hand: CompactionScan,
    /// No search before this time: the last one found none, or there is enough room.
    pub(crate) paused_until_ns: AtomicU64,
    pub(crate) give_back: GiveBack,
}

/// State of giving slabs back.
pub(crate) struct GiveBack {
    /// No search before this time.
    pub(crate) paused_until_ns: AtomicU64,
    /// Number of writes at the last search.
    pub(crate) made: AtomicU32,
    /// The next extent of the slab being emptied, and the number of passes over all of them.
    pub(crate) at: AtomicU32,
    pub(crate) passes: AtomicU32,
    /// Pages that are neither local nor far keep some of its extents.
    pub(crate) waits: AtomicBool,
}

impl Compaction {
    /// Starts at the first extent.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Compaction {
            hand: CompactionScan::new(),
            paused_until_ns: AtomicU64::new(0),
            give_back: GiveBack {
                paused_until_ns: AtomicU64::new(0),
                made: AtomicU32::new(0),
                at: AtomicU32::new(0),
                passes: AtomicU32::new(0),
                waits: AtomicBool::new(false),
            },
        }
    }
}

/// State of one process's far tier.
pub struct State {
    /// Jobs of this process's requests, by the request's index.
    pub(crate) jobs: [Job; REQUESTS],
    /// Whether other threads want the processors.
    pub(crate) contention: Contention,
    pub(crate) lead_time: LeadTime,
    pub(crate) writes: Writes,
    pub(crate) demotion: DemotionPauses,
    pub(crate) copies: CopyPauses,
    pub(crate) compaction: Compaction,
    pub(crate) unit: Unit,
}

impl State {
    /// Nothing is under way, and nothing is learned yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        State {
            jobs: [const { Job::new() }; REQUESTS],
            contention: Contention::new(),
            lead_time: LeadTime::new(),
            writes: Writes::new(),
            demotion: DemotionPauses::new(),
            copies: CopyPauses::new(),
            compaction: Compaction::new(),
            unit: Unit::new(),
        }
    }
}
