//! Why the host's agent does not start, does not serve a tenant, or is not replaced.
//!
//! The text of each error is the sentence that its user reads.

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
    /// The socket's directory or permissions are wrong.
    #[error("agent: {0}")]
    Socket(#[from] SocketError),
    /// The serving thread cannot be started.
    #[error("agent: cannot start a thread: {}", reason(.0))]
    Thread(#[source] io::Error),
    /// The agent that was to be replaced keeps serving.
    #[error("agent: the one at {} was not replaced and keeps serving: {source}", .path.display())]
    NotReplaced {
        /// That agent's socket.
        path: PathBuf,
        /// The reason.
        source: ReplaceError,
    },
    /// Another agent listens there.
    #[error(
        "agent: another agent listens at {}; take its tenants over with --replace, or name another socket with --socket",
        .0.display()
    )]
    Occupied(PathBuf),
    /// The agent cannot listen there.
    #[error(
        "agent: cannot listen at {}: {}; name another socket with --socket",
        .path.display(),
        reason(.source)
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// What is wrong with the agent's socket, or with who may connect to it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Its directory cannot be created.
    #[error(
        "cannot create a directory for the socket in {}: {}; set XDG_RUNTIME_DIR or name a socket",
        .dir.display(),
        reason(.source)
    )]
    Dir {
        /// The parent of that directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The group does not exist.
    #[error("there is no group {0}; name an existing group with --group")]
    Group(String),
    /// The socket's permissions cannot be changed.
    #[error("cannot set the permissions of {}: {}", .path.display(), reason(.source))]
    Permissions {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why the host's pool cannot be divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostPoolError {
    /// The pool is smaller than the floors of a few tenants.
    #[error("--pool {0} is too small for several tenants; write {min} or more", min = POOL_MIN)]
    TooLittle(Size),
    /// The configured floors leave too little of the pool.
    #[error(
        "the floors of all tenants (pool_floor) come to {floors}, which is more than three quarters of --pool {pool}; give them less, or the pool more"
    )]
    Floors {
        /// The sum of the floors.
        floors: Size,
        /// The pool.
        pool: Size,
    },
}

/// Why section `[shared]` of the agent's file is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostSharedError {
    /// `local` is smaller than the floors of a few tenants.
    #[error("local {0} is too small for several tenants; write {min} or more", min = LOCAL_MIN)]
    TooLittle(Size),
    /// One floor leaves too little of `local`.
    #[error(
        "floor {floor} is more than three quarters of local {local}; write less, or more local"
    )]
    Floor {
        /// The floor.
        floor: Size,
        /// The limit for all tenants.
        local: Size,
    },
    /// A tenant's ceiling exceeds the limit for all.
    #[error("ceiling {ceiling} is more than local {local}; write {local} or less")]
    CeilingAbove {
        /// The ceiling.
        ceiling: Size,
        /// The limit for all tenants.
        local: Size,
    },
    /// The ceiling is below the floor.
    #[error("ceiling {ceiling} is less than floor {floor}; write {floor} or more")]
    CeilingBelow {
        /// The ceiling.
        ceiling: Size,
        /// The floor.
        floor: Size,
    },
    /// The configured floors leave too little of `local`.
    #[error(
        "the floors of all tenants (shared_floor) come to {floors}, which is more than three quarters of local {local}; give them less, or write more local"
    )]
    Floors {
        /// The sum of the floors.
        floors: Size,
        /// The limit for all tenants.
        local: Size,
    },
}

impl HostSharedError {
    /// The key of the section to change.
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

/// Why an agent did not take another one's tenants over.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// A system call failed.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// The old agent did not answer in time.
    #[error("it does not answer")]
    Silent,
    /// The old agent closed the connection.
    #[error("it closed the connection")]
    HungUp,
    /// The old agent belongs to another user, and so is not trusted.
    #[error("it belongs to another user; run the new one as that user")]
    OtherUser,
    /// The old agent sent an unexpected answer.
    #[error("it sent something other than its handover")]
    NoLeave,
    /// The old agent did not pass its socket or the lock file.
    #[error("it did not hand over its socket")]
    NoSocket,
    /// The old agent did not pass every tenant.
    #[error("it did not hand over all its tenants")]
    NotAll,
    /// The old agent did not send its final message.
    #[error("it did not complete the handover")]
    Stays,
    /// This process has no descriptors left.
    #[error("this process cannot open more descriptors")]
    Descriptor,
    /// The old agent's message is invalid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The old agent's own words.
    #[error("{0}")]
    Refused(String),
}

/// Why a tenant is not served, changed or ended, for its runner or the operator.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The message is invalid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The operator does not allow it.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The message came without its first descriptor, the segment.
    #[error("its message has no segment")]
    NoSegment,
    /// The first descriptor is another kind of file.
    #[error("its segment is not the sealed memory of a tenant with far memory")]
    Unsealed,
    /// The segment has another layout.
    #[error("its segment is of another release of canvas")]
    OtherRelease,
    /// Two tenants cannot share one segment.
    #[error("its segment belongs to another tenant")]
    SegmentTaken,
    /// The journal cannot be created.
    #[error("cannot create its journal: {}", .0.desc())]
    NoJournal(#[source] Errno),
    /// The journal cannot be written.
    #[error("cannot write its journal: {}", .0.desc())]
    JournalUnwritable(#[source] Errno),
    /// The journal is invalid.
    #[error("its journal cannot be read: {}", .0.desc())]
    JournalBad(#[source] Errno),
    /// Another user could have written the journal.
    #[error("its journal was not made by an agent of this user")]
    ForeignJournal,
    /// Another user could have written the backing file.
    #[error("its backing file was not made by an agent of this user")]
    ForeignBacking,
    /// The backing file is on another device.
    #[error("its backing file is not in this agent's far directory")]
    BackingElsewhere,
    /// The copies policy and the number of backing files do not agree.
    #[error("its backing file is missing or one too many")]
    Backing,
    /// The message has more descriptors than a tenant needs.
    #[error("its message has too many descriptors")]
    TooManyDescriptors,
    /// The previous agent passed too few descriptors.
    #[error("a descriptor is missing")]
    DescriptorMissing,
    /// The previous agent did not pass the copies policy.
    #[error("its copies policy is missing")]
    CopiesUnknown,
    /// A system call failed.
    #[error("{}", .0.desc())]
    Kernel(#[source] Errno),
    /// A file or a thread could not be created.
    #[error("{what}: {}", reason(.source))]
    System {
        /// What failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A pool is to be limited, but this agent has no pool limit any more.
    #[error("the agent no longer limits the pools of its tenants; try again")]
    PoolsUnbounded,
    /// The limit on far memory would be below the memory in use.
    #[error("more far memory has come into use since then; try again")]
    FarInUse,
    /// The tenant wants a copy on a disk, and this agent has none.
    #[error("this agent has no disk for far memory")]
    NoDisk,
    /// The tenant wants copies on more donors than there are.
    #[error("its copies need {wanted} donors, and this agent has {there}")]
    FewServers {
        /// How many donors it wants.
        wanted: usize,
        /// How many donors there are.
        there: usize,
    },
    /// The name belongs to another user.
    #[error("tenant {0} belongs to another user; write another name after --tenant")]
    Anothers(String),
    /// The name is in use.
    #[error("there is a tenant {0} already; write another name after --tenant")]
    Taken(String),
    /// The tenant has as many runs as it may have.
    #[error("tenant {0} has {max} runs already", max = LINKS_MAX)]
    RunsOfTenant(String),
    /// There are as many runs as the agent can serve.
    #[error("{} runs are served already", RUNS_MAX)]
    Runs,
    /// There are as many tenants as the agent can serve.
    #[error("{} tenants are served already", TENANTS_MAX)]
    Tenants,
    /// The host's pool has no floor left for another tenant.
    #[error("{0} tenants have their floors in this agent's pool (--pool) already")]
    Pool(usize),
    /// The host's limit on shared memory has no slab left for another tenant.
    #[error(
        "tenants with --shared already use all of this agent's shared memory ([shared] local {0})"
    )]
    Shared(Size),
    /// Less far memory is left than the tenant wants.
    #[error(
        "{left_mib} MiB of far memory are left of this agent's --far, and {name} wants {wanted_mib}"
    )]
    Room {
        /// What is left, in MiB.
        left_mib: usize,
        /// The tenant.
        name: String,
        /// What it wants, in MiB.
        wanted_mib: usize,
    },
    /// There is no tenant that the operator could end.
    #[error("there is no tenant {0}, nor any other")]
    Nobody(String),
    /// There is no tenant of this name, but there are others.
    #[error("there is no tenant {name}; there is {others}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The existing tenants.
        others: String,
    },
    /// The tenant has a run.
    #[error("tenant {0} has a run; end that run, which ends the tenant too")]
    HasRun(String),
    /// The tenant has processes.
    #[error(
        "tenant {name} has processes ({pids}); end them first, or write --force: they lose their far pages"
    )]
    HasProcesses {
        /// Its name.
        name: String,
        /// Their PIDs.
        pids: String,
    },
}
