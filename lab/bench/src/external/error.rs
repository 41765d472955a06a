//! Why a program cannot be run here, or what it needs not be had.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// Why a workload cannot run here, or cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A file or directory cannot be read, created, removed, written, opened or renamed.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The cache's lock cannot be taken.
    #[error("cannot lock {}: {}", .path.display(), .error.desc())]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// What the system says.
        error: Errno,
    },
    /// A path has no directory or no name.
    #[error("{} is no place for a file", .0.display())]
    NoPlace(PathBuf),
    /// The file system of a directory cannot be looked at.
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
        /// What is free, in MiB.
        free_mib: u64,
        /// What is needed, in MiB.
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
    /// A helper ended without success.
    #[error("{name} failed: {said}")]
    HelperFailed {
        /// The helper.
        name: String,
        /// The line of its output that tells most.
        said: String,
    },
    /// YCSB's jars cannot be fetched.
    #[error("YCSB cannot be fetched from Maven Central: {0}")]
    Fetch(#[source] Box<WorkloadError>),
    /// A fetched jar is not the known one.
    #[error("{name} from Maven Central has the SHA-256 {got} instead of {known}")]
    OtherJar {
        /// The jar.
        name: &'static str,
        /// Its sum.
        got: String,
        /// The sum that it should have.
        known: &'static str,
    },
    /// A jar is missing from what was fetched.
    #[error("Maven did not fetch {0}")]
    NotFetched(&'static str),
    /// A jar came that is not known.
    #[error("Maven fetched {0}, which nothing asked for")]
    NotAskedFor(String),
    /// Packages of Python cannot be installed.
    #[error("{packages} cannot be installed from PyPI: {source}")]
    Install {
        /// The packages with their versions.
        packages: String,
        /// Why.
        source: Box<WorkloadError>,
    },
    /// A program of the system is not there.
    #[error("{program} is not installed: install it (Debian's package {package})")]
    NotInstalled {
        /// The program.
        program: String,
        /// The package that has it.
        package: String,
    },
    /// No Java of a version that will do is there.
    #[error(
        "no Java {what} of version {first} to {last} was found: install it (Debian's package \
         openjdk-17-{package}-headless)"
    )]
    NoJava {
        /// Compiler or runtime.
        what: &'static str,
        /// The oldest version that will do.
        first: u32,
        /// The newest.
        last: u32,
        /// The middle of the package's name.
        package: &'static str,
    },
    /// No Python that will do is there.
    #[error(
        "no Python 3.9 to 3.12 with venv was found: install it (Debian's packages python3 and \
         python3-venv)"
    )]
    NoPython,
    /// A port cannot be asked for.
    #[error("cannot listen on 127.0.0.1: {0}")]
    Listen(#[source] io::Error),
    /// All ports were given out.
    #[error("no free port on 127.0.0.1 was found")]
    NoPort,
    /// The source of Redis, which has its tests, is not there.
    #[error(
        "Redis' tests are not there: unpack the source of Debian's package (`apt-get source \
         redis`) and let {0} name their directory"
    )]
    NoRedisTests(&'static str),
}
