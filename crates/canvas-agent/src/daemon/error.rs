//! Why the host's agent does not start, does not serve a tenant, or is not replaced.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::path::PathBuf;

use canvas_control::hello::{LINKS_MAX, MessageError};
use canvas_control::terms::TermsError;
use canvas_control::text::reason;
use canvas_types::units::Size;
use nix::errno::Errno;

use super::listener::{RUNS_MAX, TENANTS_MAX};
use super::pool::POOL_MIN;
use super::shared::LOCAL_MIN;

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket cannot be opened to whom it is for.
    #[error("agent: {0}")]
    Socket(#[from] SocketError),
    /// The thread that serves cannot be started.
    #[error("agent: there is no thread: {}", reason(.0))]
    Thread(#[source] io::Error),
    /// The agent that it was to replace goes on.
    #[error("agent: the one at {} is not replaced and goes on: {source}", .path.display())]
    NotReplaced {
        /// Where that one listens.
        path: PathBuf,
        /// Why.
        source: ReplaceError,
    },
    /// Another agent listens there.
    #[error(
        "agent: there is one at {} already; write --replace to take its tenants over, or another place after --socket",
        .0.display()
    )]
    Occupied(PathBuf),
    /// It cannot listen there.
    #[error(
        "agent: {} cannot be listened at: {}; write another place after --socket",
        .path.display(),
        reason(.source)
    )]
    Listen {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// What is wrong with the place of the agent's socket, or with who may connect there.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A directory for it cannot be made.
    #[error(
        "there is no directory for a socket in {}: {}; set XDG_RUNTIME_DIR or name a socket",
        .dir.display(),
        reason(.source)
    )]
    Dir {
        /// Where it would be.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no such group.
    #[error("there is no group {0}; write one that exists after --group")]
    Group(String),
    /// Its permissions stay as they are.
    #[error("the permissions of {} cannot be set: {}", .path.display(), reason(.source))]
    Permissions {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Why the host's pool cannot be divided so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostPoolError {
    /// It is smaller than the floors of a few tenants.
    #[error("--pool {0} is too little for several tenants; write {min} or more", min = POOL_MIN)]
    TooLittle(Size),
    /// The floors that are settled leave too little of it.
    #[error(
        "the floors of all tenants (pool_floor) come to {floors}, which is more than three quarters of --pool {pool}; give them less, or the pool more"
    )]
    Floors {
        /// All of them together.
        floors: Size,
        /// The pool.
        pool: Size,
    },
}

/// Why section `[shared]` of the agent's file makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostSharedError {
    /// It is smaller than the floors of a few tenants.
    #[error("local {0} is too little for several tenants; write {min} or more", min = LOCAL_MIN)]
    TooLittle(Size),
    /// One floor leaves too little of it.
    #[error(
        "floor {floor} is more than three quarters of local {local}; write less, or more local"
    )]
    Floor {
        /// The floor.
        floor: Size,
        /// The bound on all.
        local: Size,
    },
    /// No tenant can have so much.
    #[error("ceiling {ceiling} is more than local {local}; write {local} or less")]
    CeilingAbove {
        /// The ceiling.
        ceiling: Size,
        /// The bound on all.
        local: Size,
    },
    /// A tenant cannot keep more than it may have.
    #[error("ceiling {ceiling} is less than floor {floor}; write {floor} or more")]
    CeilingBelow {
        /// The ceiling.
        ceiling: Size,
        /// The floor.
        floor: Size,
    },
    /// The floors that are settled leave too little of it.
    #[error(
        "the floors of all tenants (shared_floor) come to {floors}, which is more than three quarters of local {local}; give them less, or write more local"
    )]
    Floors {
        /// All of them together.
        floors: Size,
        /// The bound on all.
        local: Size,
    },
}

impl HostSharedError {
    /// The key of the section that is to be changed.
    pub fn key(&self) -> &'static str {
        match self {
            HostSharedError::TooLittle(_) | HostSharedError::Floors { .. } => "local",
            HostSharedError::Floor { .. } => "floor",
            HostSharedError::CeilingAbove { .. } | HostSharedError::CeilingBelow { .. } => {
                "ceiling"
            }
        }
    }
}

/// Why one agent does not take another one's tenants over.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The kernel's answer.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// The other one says nothing in time.
    #[error("it does not answer")]
    Silent,
    /// The connection has ended.
    #[error("it closed the connection")]
    HungUp,
    /// It is not to be believed.
    #[error("it is another user's; run the new one as that user")]
    OtherUser,
    /// It answers something else.
    #[error("it does not say that it leaves")]
    NoLeave,
    /// Its socket or the lock beside it is missing.
    #[error("it does not give its socket")]
    NoSocket,
    /// A tenant is missing.
    #[error("it does not give all its tenants")]
    NotAll,
    /// It has not said its last word.
    #[error("it stays")]
    Stays,
    /// More descriptors than this process may have.
    #[error("a descriptor of it cannot be had")]
    Descriptor,
    /// Its answer makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Its own words.
    #[error("{0}")]
    Refused(String),
}

/// Why a tenant is not served, not changed or not ended: what its runner or the operator is told.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// Its message makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The operator does not allow it.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// Its first descriptor is missing.
    #[error("it comes without a segment")]
    NoSegment,
    /// Its segment is another file.
    #[error("its segment is no sealed memory of a tenant with far memory")]
    Unsealed,
    /// Its segment has another layout.
    #[error("its segment is of another release of canvas")]
    OtherRelease,
    /// Two tenants cannot have one segment.
    #[error("its segment is another tenant's")]
    SegmentTaken,
    /// There is no memory for a journal.
    #[error("there is no memory for its journal: {}", .0.desc())]
    NoJournal(#[source] Errno),
    /// Its journal takes nothing.
    #[error("its journal cannot be written: {}", .0.desc())]
    JournalUnwritable(#[source] Errno),
    /// Its journal cannot be read.
    #[error("its journal is none: {}", .0.desc())]
    JournalBad(#[source] Errno),
    /// Somebody else could have written its journal.
    #[error("its journal was not made by an agent of this user")]
    ForeignJournal,
    /// Somebody else could have written its backing file.
    #[error("its backing file was not made by an agent of this user")]
    ForeignBacking,
    /// Its backing file is on another device.
    #[error("its backing file is not in this agent's far directory")]
    BackingElsewhere,
    /// Its copies and its descriptors do not agree.
    #[error("its backing file is missing or one too many")]
    Backing,
    /// More descriptors than a tenant has.
    #[error("it comes with too many descriptors")]
    TooManyDescriptors,
    /// The agent before this one has given too few.
    #[error("a descriptor is missing")]
    DescriptorMissing,
    /// The agent before this one has not said them.
    #[error("its copies are not known")]
    CopiesUnknown,
    /// The kernel's answer.
    #[error("{}", .0.desc())]
    Kernel(#[source] Errno),
    /// A file or a thread cannot be had.
    #[error("{what}: {}", reason(.source))]
    System {
        /// What does not happen for it.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A pool is to be bounded where none is.
    #[error("the agent does not bound the pools of its tenants any more; try again")]
    PoolsUnbounded,
    /// Its bound on far memory would be below what it has.
    #[error("more far memory has come into use since then; try again")]
    FarInUse,
    /// It wants a copy on a disk.
    #[error("this agent keeps nothing on a disk")]
    NoDisk,
    /// It wants copies on more servers than there are.
    #[error("its copies need {wanted} donors, and this agent has {there}")]
    FewServers {
        /// How many it wants.
        wanted: usize,
        /// How many there are.
        there: usize,
    },
    /// The name is another user's.
    #[error("tenant {0} is another user's; write another name after --tenant")]
    Anothers(String),
    /// The name is in use.
    #[error("there is a tenant {0} already; write another name after --tenant")]
    Taken(String),
    /// It has as many runs as it can have.
    #[error("tenant {0} has {max} runs already", max = LINKS_MAX)]
    RunsOfTenant(String),
    /// There are as many runs as there can be.
    #[error("{} runs are served already", RUNS_MAX)]
    Runs,
    /// There are as many tenants as there can be.
    #[error("{} tenants are served already", TENANTS_MAX)]
    Tenants,
    /// The host's pool has no floor for one more than these.
    #[error("{0} tenants have their floors in this agent's pool (--pool) already")]
    Pool(usize),
    /// The host's bound on shared memory has no slab for one more.
    #[error(
        "all of this agent's bound on shared memory ([shared] local {0}) is tenants' with --shared already"
    )]
    Shared(Size),
    /// There is less far memory left.
    #[error(
        "{left_mib} MiB of far memory are left of what this agent gives (--far), and {name} wants {wanted_mib}"
    )]
    Room {
        /// What is left, in MiB.
        left_mib: usize,
        /// Who wants more.
        name: String,
        /// What it wants, in MiB.
        wanted_mib: usize,
    },
    /// There is no tenant at all that the operator could end.
    #[error("there is no tenant {0}, nor another one")]
    Nobody(String),
    /// There are others, and not that one.
    #[error("there is no tenant {name}; there is {others}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        others: String,
    },
    /// It has a run.
    #[error("tenant {0} has a run, which ends it when it ends itself; end that one first")]
    HasRun(String),
    /// It has processes.
    #[error(
        "tenant {name} has processes ({pids}); end them first, or write --force: they lose what is far"
    )]
    HasProcesses {
        /// Its name.
        name: String,
        /// Their numbers.
        pids: String,
    },
}
