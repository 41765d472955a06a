//! Errors of setting up the host for a run, and of restoring it afterwards.
//!
//! The text of each is the sentence that the user reads.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;

use crate::processes::TreeError;
use crate::variant::Variant;

/// Reason why a system tool failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The tool cannot be started.
    #[error("{tool} cannot be run: {source}")]
    CannotRun {
        /// Its name.
        tool: String,
        /// What the system says.
        source: io::Error,
    },
    /// The tool exited with an error.
    #[error("{command} failed: {said}")]
    Failed {
        /// Its name and its arguments.
        command: String,
        /// Its last line on standard error.
        said: String,
    },
}

/// Reason why changes to the host cannot be journalled, or the lock beside the journals cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The directory cannot be created or queried.
    #[error("the journal directory {} cannot be used: {source}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Someone else created a directory of that name.
    #[error("the journal directory {} belongs to another user; remove it", .0.display())]
    NotOurs(PathBuf),
    /// Other benches that end keep removing the directory.
    #[error("other benches keep removing the journal directory; try again")]
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
    #[error("no command for the guardian was given")]
    NoGuardian,
    /// The guardian is not watching.
    #[error("the guardian cannot be started: {0}")]
    Guardian(#[from] GuardianError),
    /// A line of the journal cannot be serialised.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// A line of the journal cannot be appended.
    #[error("the journal cannot be written: {0}")]
    Append(#[source] io::Error),
}

/// Reason why the guardian is not watching.
#[derive(Debug, thiserror::Error)]
pub enum GuardianError {
    /// The guardian cannot be started.
    #[error(transparent)]
    Start(#[from] io::Error),
    /// The guardian ended before it was ready.
    #[error("it ended at once ({0})")]
    Ended(ExitStatus),
    /// The guardian does not report that it is ready.
    #[error("it does not answer")]
    Silent,
}

/// Reason why a control group cannot limit memory.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The user is not root.
    #[error("limiting memory by control group needs root")]
    NotRoot,
    /// The host has no memory controller.
    #[error("no control group controller for memory is mounted")]
    NoController,
    /// The host has no controller for disks.
    #[error("no control group controller for disks (blkio or io) is mounted")]
    NoDiskController,
    /// A directory is on no disk of this host.
    #[error("{} is on no disk, so its reads cannot be limited", .0.display())]
    NoDisk(PathBuf),
    /// A group cannot be created or limited.
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
    /// The change cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reason why a process is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system cannot start it.
    #[error("{0}")]
    Spawn(#[source] io::Error),
    /// It cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reason why a program cannot be confined to some of the processors.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The system refuses.
    #[error(
        "the processors that a program may use cannot be changed ({0}); is another policy in force?"
    )]
    System(#[from] Errno),
    /// There is only one processor to halve.
    #[error(
        "agent and donors need processors of their own, and this host has only one; use a host with two"
    )]
    OnlyOne,
}

/// Reason why kernel swap cannot be used, or not be switched off.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// The user is not root.
    #[error("{0} needs root to switch swap on")]
    NotRoot(Box<Variant>),
    /// The host already has swap.
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
    /// The kernel has no pressure stall information.
    #[error("this kernel has no pressure stall information (psi=1 on its command line)")]
    NoPressure,
    /// The kernel has no folios of this size.
    #[error("this kernel has no folios of 64 KiB (Linux 6.8, with transparent huge pages)")]
    NoFolios,
    /// A setting has an unknown format.
    #[error("{} cannot be read: it has no choice in brackets", .0.display())]
    NoChoice(PathBuf),
    /// The kernel has no zswap.
    #[error("this kernel has no zswap")]
    NoZswap,
    /// The kernel cannot swap to files on this file system.
    #[error("the kernel cannot swap to files on the file system of {}", .0.display())]
    FileSystem(PathBuf),
    /// The disk has too little room.
    #[error(
        "too little disk: {free_mib} MiB are free in {} and the swap file needs {wanted_mib}",
        .dir.display()
    )]
    DiskFull {
        /// A directory on the disk.
        dir: PathBuf,
        /// Free space, in MiB.
        free_mib: u64,
        /// Space needed for the file and the reserve, in MiB.
        wanted_mib: u64,
    },
    /// No directory could hold a swap file.
    #[error("no directory is on a disk that can hold a swap file")]
    NoDisk,
    /// The kernel cannot add a zram device.
    #[error("no zram device can be added: {0}")]
    AddZram(#[source] io::Error),
    /// The kernel does not report the number of the added device.
    #[error("no zram device can be added")]
    NoZramNumber,
    /// The device has no lz4.
    #[error("this kernel's zram has no lz4")]
    NoLz4,
    /// A setting cannot be changed.
    #[error("{} cannot be set to {text}: {source}", .path.display())]
    Set {
        /// The setting's file.
        path: PathBuf,
        /// The value to write.
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
    /// The disk with slow reads cannot be used.
    #[error(transparent)]
    SlowDisk(#[from] SlowDiskError),
    /// The swap file cannot be created.
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
    /// The change cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reason why a disk with slow reads cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SlowDiskError {
    /// A tool is not installed.
    #[error("a disk with slow reads needs {0}, which is not installed; install util-linux")]
    NoTool(&'static str),
    /// The kernel lacks a device.
    #[error(
        "a disk with slow reads needs {0}, which cannot be opened; has this kernel FUSE and loop \
         devices?"
    )]
    NoDevice(&'static str),
    /// In a chroot, the file would be looked up outside of it.
    #[error(
        "a disk with slow reads cannot be had in a chroot: its server's mounts are reached by nsenter, which leaves \
         the chroot; begin it in a namespace of mounts with its own root (unshare --mount, pivot_root)"
    )]
    Chroot,
    /// The disk's bytes are in memory, of which there is too little.
    #[error(
        "too little memory: {free_mib} MiB are available and a disk with slow reads wants \
         {wanted_mib}"
    )]
    MemoryFull {
        /// Available memory, in MiB.
        free_mib: u64,
        /// Memory needed for the disk and the reserve, in MiB.
        wanted_mib: u64,
    },
    /// The file to mount the disk over cannot be created.
    #[error("{} cannot be made: {source}", .path.display())]
    Place {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The process that serves the disk does not work.
    #[error("a disk with slow reads cannot be started: {0}")]
    Server(String),
    /// The disk cannot be read.
    #[error("the bench's slow disk cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The disk's reads have the wrong latency.
    #[error(
        "reads of the bench's slow disk take {} us instead of 100; is this machine busy?",
        .0.as_micros()
    )]
    NotSet(Duration),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The change cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reason why the bench cannot have a network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The user is not root.
    #[error("a network link needs root")]
    NotRoot,
    /// A tool is not installed.
    #[error("a network link needs {0}, which is not installed")]
    NoTool(&'static str),
    /// A tool of iproute2 is not installed.
    #[error("a network link needs {0}, which is not installed; install iproute2")]
    NoIproute(&'static str),
    /// Creating a namespace failed.
    #[error("no network namespace can be made here: {0}")]
    NoNamespace(#[source] ToolError),
    /// The list of routes has an unknown format.
    #[error("the host's routes cannot be read: this `ip` has no JSON; install iproute2")]
    Routes,
    /// The host uses all addresses reserved for benchmarks.
    #[error("the host has routes to all of 198.18.0.0/15; no address is left for a link")]
    NoAddress,
    /// The process that keeps the namespace cannot be started or queried.
    #[error("a network namespace cannot be made: {0}")]
    Keep(#[source] io::Error),
    /// The process that keeps the namespace is not in one.
    #[error("a network namespace cannot be made")]
    NotKept,
    /// No connection works through the link.
    #[error(
        "no traffic passes the bench's link ({0}); does a firewall drop what goes to \
         198.18.0.0/15?"
    )]
    Blocked(#[source] io::Error),
    /// The eBPF program of the delay cannot be written.
    #[error("the program that delays packets cannot be written: {0}")]
    Object(#[source] io::Error),
    /// The eBPF program of the delay cannot be loaded.
    #[error(
        "a link with a delay needs a kernel with clsact and BPF (CONFIG_NET_CLS_BPF) and a tc \
         with BPF: {0}"
    )]
    NoDelay(String),
    /// Round trips are shorter than the delay.
    #[error(
        "the bench's link has too little delay: a round trip took {} us instead of {} or more",
        .shortest.as_micros(),
        .wanted.as_micros()
    )]
    TooShort {
        /// The shortest round trip measured.
        shortest: Duration,
        /// The delay of both directions.
        wanted: Duration,
    },
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The change cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reason why a change to the host is not undone.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// A program is still running.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A control group remains.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Swap or its device remains.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// A network link or a loop device remains.
    #[error(transparent)]
    Link(#[from] ToolError),
    /// A setting is not restored.
    #[error("{} cannot be set back to {text}: {source}", .path.display())]
    SetBack {
        /// The setting's file.
        path: PathBuf,
        /// Its original value.
        text: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file or a directory remains.
    #[error("{} cannot be removed: {source}", .path.display())]
    Remove {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The change is undone, but the journal cannot record that.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
