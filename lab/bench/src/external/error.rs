//! Errors of external programs and of preparing their needs.
//!
//! The text of each is the sentence that the user reads.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// Reason why a workload cannot run here, or cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A file or directory cannot be read, created, removed, written, opened or renamed.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// The attempted action, as a verb.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The lock of the cache cannot be taken.
    #[error("cannot lock {}: {}", .path.display(), .error.desc())]
    Lock {
        /// Path of the lock file.
        path: PathBuf,
        /// What the system says.
        error: Errno,
    },
    /// A path has no parent directory or no file name.
    #[error("{} is no place for a file", .0.display())]
    NoPlace(PathBuf),
    /// The file system of a directory cannot be queried.
    #[error("cannot look at {}: {}", .dir.display(), .error.desc())]
    FileSystem {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        error: Errno,
    },
    /// The disk of a directory has too little room.
    #[error(
        "{} has {free_mib} MiB free and {needed_mib} MiB are needed: make room, or choose another cache",
        .dir.display()
    )]
    DiskFull {
        /// The directory.
        dir: PathBuf,
        /// Free space, in MiB.
        free_mib: u64,
        /// Needed space, in MiB.
        needed_mib: u64,
    },
    /// A helper cannot be started.
    #[error("cannot run {name}: {source}")]
    CannotRun {
        /// The helper.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A helper failed.
    #[error("{name} failed: {said}")]
    HelperFailed {
        /// The helper.
        name: String,
        /// The most informative line of its output.
        said: String,
    },
    /// YCSB's jars cannot be downloaded.
    #[error("YCSB cannot be fetched from Maven Central: {0}")]
    Fetch(#[source] Box<WorkloadError>),
    /// A downloaded jar has another checksum than expected.
    #[error("{name} from Maven Central has the SHA-256 {got} instead of {known}")]
    OtherJar {
        /// The jar.
        name: &'static str,
        /// Its checksum.
        got: String,
        /// The expected checksum.
        known: &'static str,
    },
    /// A jar is missing from the download.
    #[error("Maven did not fetch {0}")]
    NotFetched(&'static str),
    /// The download has an unexpected jar.
    #[error("Maven fetched {0}, which nothing asked for")]
    NotAskedFor(String),
    /// Python packages cannot be installed.
    #[error("{packages} cannot be installed from PyPI: {source}")]
    Install {
        /// The packages with their versions.
        packages: String,
        /// The reason.
        source: Box<WorkloadError>,
    },
    /// A program is not installed on this host.
    #[error("{program} is not installed: install it (Debian's package {package})")]
    NotInstalled {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: String,
    },
    /// No Java of a suitable version was found.
    #[error(
        "no Java {what} of version {first} to {last} was found: install it (Debian's package \
         openjdk-17-{package}-headless)"
    )]
    NoJava {
        /// "compiler" or "runtime".
        what: &'static str,
        /// The oldest suitable version.
        first: u32,
        /// The newest suitable version.
        last: u32,
        /// The middle of the Debian package's name.
        package: &'static str,
    },
    /// No suitable Python was found.
    #[error(
        "no Python 3.9 to 3.12 with venv was found: install it (Debian's packages python3 and \
         python3-venv)"
    )]
    NoPython,
    /// No port can be requested.
    #[error("cannot listen on 127.0.0.1: {0}")]
    Listen(#[source] io::Error),
    /// All ports have been used.
    #[error("no free port on 127.0.0.1 was found")]
    NoPort,
    /// The source of Redis, which has its tests, was not found.
    #[error(
        "Redis' tests are not there: unpack the source of Debian's package (`apt-get source \
         redis`) and let {0} name their directory"
    )]
    NoRedisTests(&'static str),
}
