//! Why the host cannot be set up for a run, or set back after it.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;

use crate::processes::TreeError;
use crate::variant::Variant;

/// Why a tool of the system did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It cannot be started.
    #[error("{tool} cannot be run: {source}")]
    CannotRun {
        /// Its name.
        tool: String,
        /// What the system says.
        source: io::Error,
    },
    /// It ended without success.
    #[error("{command} failed: {said}")]
    Failed {
        /// Its name and its arguments.
        command: String,
        /// The last line that it wrote on standard error.
        said: String,
    },
}

/// Why changes of the host cannot be written down, or the lock beside the journals not be taken.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The directory cannot be made or looked at.
    #[error("the journal directory {} cannot be used: {source}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody else made a directory of that name.
    #[error("the journal directory {} belongs to somebody else; remove it", .0.display())]
    NotOurs(PathBuf),
    /// Benches that end remove the directory whenever it is made.
    #[error("the journal directory is removed again and again; try once more")]
    Removed,
    /// A file in the directory cannot be opened.
    #[error("{} cannot be written: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A journal cannot be locked or shared with the guardian.
    #[error("the journal {} cannot be written: {source}", .path.display())]
    Begin {
        /// The journal.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The bench has no command that starts the guardian.
    #[error("there is no guardian to start")]
    NoGuardian,
    /// The guardian does not watch.
    #[error("the guardian cannot be started: {0}")]
    Guardian(#[from] GuardianError),
    /// A line of the journal cannot be made.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// A line of the journal cannot be appended.
    #[error("the journal cannot be written: {0}")]
    Append(#[source] io::Error),
}

/// Why the guardian does not watch.
#[derive(Debug, thiserror::Error)]
pub enum GuardianError {
    /// The system does not start it.
    #[error(transparent)]
    Start(#[from] io::Error),
    /// It ended before it said that it watches.
    #[error("it ended at once ({0})")]
    Ended(ExitStatus),
    /// It does not say that it watches.
    #[error("it does not answer")]
    Silent,
}

/// Why memory cannot be limited by a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The user is not root.
    #[error("limiting memory by control group needs root")]
    NotRoot,
    /// The host has no controller for memory.
    #[error("no control group controller for memory is mounted")]
    NoController,
    /// The host has no controller for disks.
    #[error("no control group controller for disks (blkio or io) is mounted")]
    NoDiskController,
    /// A directory is on no disk of this host.
    #[error("{} is on no disk, so its reads cannot be bound", .0.display())]
    NoDisk(PathBuf),
    /// A group cannot be made or limited.
    #[error("the control group {} cannot be set up: {source}", .path.display())]
    SetUp {
        /// The group's directory, or a file in it.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A group cannot be removed.
    #[error("the control group {} cannot be removed: {source}", .path.display())]
    Remove {
        /// The group's directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The change cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why a process is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system does not start it.
    #[error("{0}")]
    Spawn(#[source] io::Error),
    /// It cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why a program cannot be confined to a part of the processors.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The system refuses.
    #[error(
        "the processors that a program may use cannot be changed ({0}); is another policy in force?"
    )]
    System(#[from] Errno),
    /// There is one processor, and two halves are wanted.
    #[error(
        "agent and donors cannot have processors of their own: there is one; give the bench two"
    )]
    OnlyOne,
}

/// Why kernel swap cannot be had, or not be switched off.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// The user is not root.
    #[error("{0} needs root to switch swap on")]
    NotRoot(Box<Variant>),
    /// The host swaps already.
    #[error(
        "swap is already on ({}), which the bench leaves alone; switch it off first",
        .0.display()
    )]
    AlreadyOn(PathBuf),
    /// A tool is not installed.
    #[error("{0} is not installed; install util-linux")]
    NoTool(&'static str),
    /// Memory cannot be limited, so nothing would be swapped.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel has no zram.
    #[error("this kernel has no zram")]
    NoZram,
    /// The kernel does not tell what is lost for want of memory.
    #[error("this kernel has no pressure stall information (psi=1 on its command line)")]
    NoPressure,
    /// The kernel has no folios of the size.
    #[error("this kernel has no folios of 64 KiB (Linux 6.8, with transparent huge pages)")]
    NoFolios,
    /// A setting is in no known form.
    #[error("{} cannot be read: it has no choice in brackets", .0.display())]
    NoChoice(PathBuf),
    /// The kernel has no zswap.
    #[error("this kernel has no zswap")]
    NoZswap,
    /// The kernel does not swap to files there.
    #[error("the file system of {} holds no swap files", .0.display())]
    FileSystem(PathBuf),
    /// The disk has too little room.
    #[error(
        "too little disk: {free_mib} MiB are free in {} and the swap file wants {wanted_mib}",
        .dir.display()
    )]
    DiskFull {
        /// A directory on the disk.
        dir: PathBuf,
        /// What is free there, in MiB.
        free_mib: u64,
        /// What the file and the reserve take, in MiB.
        wanted_mib: u64,
    },
    /// No directory is known that could hold a swap file.
    #[error("there is no disk for a swap file")]
    NoDisk,
    /// The kernel adds no device.
    #[error("no zram device can be added: {0}")]
    AddZram(#[source] io::Error),
    /// The kernel does not say which device it added.
    #[error("no zram device can be added")]
    NoZramNumber,
    /// The device cannot compress as the bench wants it to.
    #[error("this kernel's zram has no lz4")]
    NoLz4,
    /// A setting cannot be changed.
    #[error("{} cannot be set to {text}: {source}", .path.display())]
    Set {
        /// The setting's file.
        path: PathBuf,
        /// What it was to hold.
        text: String,
        /// What the system says.
        source: io::Error,
    },
    /// A setting cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Read {
        /// The setting's file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no disk with slow reads.
    #[error(transparent)]
    SlowDisk(#[from] SlowDiskError),
    /// The swap file cannot be made.
    #[error("the swap file {} cannot be made: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The change cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why there can be no disk with slow reads.
#[derive(Debug, thiserror::Error)]
pub enum SlowDiskError {
    /// A tool is not installed.
    #[error("a disk with slow reads needs {0}, which is not installed; install util-linux")]
    NoTool(&'static str),
    /// The kernel has no such device.
    #[error(
        "a disk with slow reads needs {0}, which cannot be opened; has this kernel FUSE and loop \
         devices?"
    )]
    NoDevice(&'static str),
    /// The file would be looked for outside of the changed root.
    #[error(
        "a disk with slow reads cannot be had in a chroot: its server's mounts are reached by nsenter, which leaves \
         the chroot; begin it in a namespace of mounts with its own root (unshare --mount, pivot_root)"
    )]
    Chroot,
    /// Its bytes are held in memory, of which there is too little.
    #[error(
        "too little memory: {free_mib} MiB are available and a disk with slow reads wants \
         {wanted_mib}"
    )]
    MemoryFull {
        /// What is available, in MiB.
        free_mib: u64,
        /// What the disk and the reserve take, in MiB.
        wanted_mib: u64,
    },
    /// There is no file that it could be mounted over.
    #[error("{} cannot be made: {source}", .path.display())]
    Place {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The process that is the disk does not work.
    #[error("a disk with slow reads cannot be started: {0}")]
    Server(String),
    /// It cannot be read.
    #[error("the bench's own disk cannot be read: {0}")]
    Read(#[source] io::Error),
    /// Its reads take another time than they should.
    #[error(
        "reads of the bench's own disk take {} us and not 100; is this machine busy?",
        .0.as_micros()
    )]
    NotSet(Duration),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The change cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why there can be no network of the bench's own.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The user is not root.
    #[error("a link of its own needs root")]
    NotRoot,
    /// A tool is not installed.
    #[error("a link of its own needs {0}, which is not installed")]
    NoTool(&'static str),
    /// A tool of iproute2 is not installed.
    #[error("a link of its own needs {0}, which is not installed; install iproute2")]
    NoIproute(&'static str),
    /// A namespace was tried, and there was none.
    #[error("no network namespace can be made here: {0}")]
    NoNamespace(#[source] ToolError),
    /// The answer about routes is in no known form.
    #[error("the host's routes cannot be read: this `ip` has no JSON; install iproute2")]
    Routes,
    /// The host uses all addresses for benchmarks.
    #[error("the host has routes to all of 198.18.0.0/15; no address is left for a link")]
    NoAddress,
    /// The process that keeps the namespace cannot be started or asked after.
    #[error("a network namespace cannot be made: {0}")]
    Keep(#[source] io::Error),
    /// The process that keeps the namespace did not come to it.
    #[error("a network namespace cannot be made")]
    NotKept,
    /// No connection gets through.
    #[error(
        "nothing gets through the bench's own link ({0}); does a firewall drop what goes to \
         198.18.0.0/15?"
    )]
    Blocked(#[source] io::Error),
    /// The program that holds packets back cannot be written.
    #[error("what makes a link longer cannot be written: {0}")]
    Object(#[source] io::Error),
    /// The program that holds packets back cannot be loaded.
    #[error(
        "a link with a length needs a kernel with clsact and BPF (CONFIG_NET_CLS_BPF) and a tc \
         with BPF: {0}"
    )]
    NoDelay(String),
    /// Packets came through too fast.
    #[error(
        "the bench's own link is too short: a round trip took {} us instead of {} or more",
        .shortest.as_micros(),
        .wanted.as_micros()
    )]
    TooShort {
        /// The shortest round trip that was seen.
        shortest: Duration,
        /// What its two ways take.
        wanted: Duration,
    },
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The change cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why a change of the host is not undone.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// A program goes on.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A control group stays.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Swap or a device for it stays.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// A network link or a loop device stays.
    #[error(transparent)]
    Link(#[from] ToolError),
    /// A setting stays changed.
    #[error("{} cannot be set back to {text}: {source}", .path.display())]
    SetBack {
        /// The setting's file.
        path: PathBuf,
        /// What it held.
        text: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file or a directory stays.
    #[error("{} cannot be removed: {source}", .path.display())]
    Remove {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is undone, and the journal does not say so.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
