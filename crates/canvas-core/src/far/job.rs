//! The purpose of a program's request, and which of its threads completes it.
//!
//! A job belongs to a mailbox index ([`canvas_shm::mailbox`]): any thread of the process may see that its request has
//! ended, and exactly one processes that, with the answer of *this* request. Index and job are reused at once
//! afterwards, so a thread that has seen an end and was then delayed must not take the next job for the one that it
//! saw.
//!
//! ```text
//!  Idle ──► UnderWay ──► Busy ──► Idle
//!               ▲          │
//!               └──────────┘ its request has not ended after all
//! ```

use canvas_types::ExtentRef;
use canvas_types::sync::{AtomicI64, AtomicU32, Ordering};

use canvas_shm::mailbox::Status;

const IDLE: u32 = 0;
const UNDER_WAY: u32 = 1;
/// A thread is completing it.
const BUSY: u32 = 2;

/// The purpose of a job's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum JobKind {
    /// Writes an extent of the pool's oldest pages (demotion).
    Demote,
    /// Fetches an extent for its pages (promotion).
    Fetch,
    /// Fetches an extent to empty it (compaction).
    Compact,
    /// Fetches the record of one page ([`SinglePageRead`]).
    Page,
}

impl JobKind {
    fn of(raw: u32) -> JobKind {
        [JobKind::Demote, JobKind::Compact, JobKind::Page]
            .into_iter()
            .find(|k| *k as u32 == raw)
            .unwrap_or(JobKind::Fetch)
    }
}

/// A page whose record is read ahead of need, alone: its number, and the record's position in the extent. Encoded in
/// the bytes of a [`JobKind::Page`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinglePageRead {
    /// The page's number.
    pub page: u32,
    /// As in [`canvas_types::ExtentRef`]; a multiple of 16.
    pub offset: u32,
    /// As in [`canvas_types::ExtentRef`].
    pub len: u16,
}

impl SinglePageRead {
    const UNIT: u32 = 16;

    /// The page's record at `place`.
    pub fn at(page: u32, place: ExtentRef) -> SinglePageRead {
        SinglePageRead {
            page,
            offset: place.offset,
            len: place.len,
        }
    }

    /// Its position, given the extent.
    pub fn place(self, extent: u32) -> ExtentRef {
        ExtentRef {
            extent,
            offset: self.offset,
            len: self.len,
        }
    }

    /// Encodes it as the bytes of a job.
    pub fn bytes(self) -> i64 {
        let offset = u64::from(self.offset / SinglePageRead::UNIT) << 32;
        (u64::from(self.page) | offset | u64::from(self.len) << 48) as i64
    }

    /// Decodes the bytes of a job.
    pub fn of(bytes: i64) -> SinglePageRead {
        let bytes = bytes as u64;
        SinglePageRead {
            page: bytes as u32,
            offset: u32::from((bytes >> 32) as u16) * SinglePageRead::UNIT,
            len: (bytes >> 48) as u16,
        }
    }
}

/// What a program has requested from the agent besides faults: an extent to write or to fetch. The module's
/// documentation describes its states.
pub struct Job {
    state: AtomicU32,
    kind: AtomicU32,
    extent: AtomicU32,
    bytes: AtomicI64,
}

/// A job that has ended, for the one thread that completes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its purpose.
    pub kind: JobKind,
    /// Its extent.
    pub extent: u32,
    /// The bytes it was begun with.
    pub bytes: i64,
    /// The result of its request.
    pub status: Status,
}

impl Job {
    /// An idle job.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Job {
            state: AtomicU32::new(IDLE),
            kind: AtomicU32::new(JobKind::Fetch as u32),
            extent: AtomicU32::new(0),
            bytes: AtomicI64::new(0),
        }
    }

    /// Begins, before the request is posted. The caller has claimed the request.
    pub fn begin(&self, kind: JobKind, extent: u32, bytes: i64) {
        self.kind.store(kind as u32, Ordering::Relaxed);
        self.extent.store(extent, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.state.store(UNDER_WAY, Ordering::Release);
    }

    /// Whether it is for this extent, completion included.
    pub fn is_about(&self, extent: u32) -> bool {
        self.state.load(Ordering::Acquire) != IDLE && self.extent.load(Ordering::Relaxed) == extent
    }

    /// Whether it is for this extent, while no thread completes it.
    pub fn is_open(&self, extent: u32) -> bool {
        self.state.load(Ordering::Acquire) == UNDER_WAY
            && self.extent.load(Ordering::Relaxed) == extent
    }

    /// Its purpose, or its last one.
    pub fn kind(&self) -> JobKind {
        JobKind::of(self.kind.load(Ordering::Relaxed))
    }

    /// Whether it brings the whole extent, completion included.
    pub fn brings(&self, extent: u32) -> bool {
        self.is_about(extent) && self.kind() != JobKind::Page
    }

    /// Whether it brings this page's record alone, completion included.
    pub fn brings_alone(&self, extent: u32, alone: SinglePageRead) -> bool {
        self.is(JobKind::Page)
            && self.extent.load(Ordering::Relaxed) == extent
            && SinglePageRead::of(self.bytes.load(Ordering::Relaxed)) == alone
    }

    /// Whether it is under way with this purpose, completion included.
    pub fn is(&self, kind: JobKind) -> bool {
        self.state.load(Ordering::Acquire) != IDLE && self.kind() == kind
    }

    fn take(&self) -> bool {
        self.state
            .compare_exchange(UNDER_WAY, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the job, if its request has ended; the caller then completes it alone, until [`Job::through`]. `ended`
    /// reads the request's result ([`canvas_shm::mailbox::Mailbox::ended`]).
    pub fn end(&self, ended: impl Fn() -> Option<Status>) -> Option<Ended> {
        if self.state.load(Ordering::Acquire) != UNDER_WAY || ended().is_none() || !self.take() {
            return None;
        }
        // Only now is it certain to be this job's request: between the check and the taking, another thread can have
        // completed the one that was seen, and a third begun this one.
        let Some(status) = ended() else {
            self.state.store(UNDER_WAY, Ordering::Release);
            return None;
        };
        Some(Ended {
            kind: self.kind(),
            extent: self.extent.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            status,
        })
    }

    /// Takes the job from its request, which is given up. Until [`Job::through`] the caller owns it. False when it is
    /// for another extent by now, or another thread completes it.
    pub fn give_up(&self, extent: u32) -> bool {
        if !self.take() {
            return false;
        }
        let same = self.extent.load(Ordering::Relaxed) == extent;
        if !same {
            self.state.store(UNDER_WAY, Ordering::Release);
        }
        same
    }

    /// Ends the completion; the request is released or abandoned after this.
    pub fn through(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// In a fork's child: forgets the parent's job. Returns its extent.
    pub fn forget(&self) -> Option<u32> {
        (self.state.swap(IDLE, Ordering::Relaxed) != IDLE)
            .then(|| self.extent.load(Ordering::Relaxed))
    }
}
