//! What a request of a program is about, and which of its threads ends it.
//!
//! A job goes with a place in the mailbox ([`canvas_shm::mailbox`]): any thread of the process may see that its
//! request has ended, and exactly one works on that, with the answer of *this* request. Place and job are used
//! anew at once afterwards, so a thread that has seen an end and was then held up must not take the next
//! job for the one that it saw.
//!
//! ```text
//!  Idle ──► UnderWay ──► Busy ──► Idle
//!               ▲          │
//!               └──────────┘ its request has not ended after all
//! ```

use canvas_types::DeepPlace;
use canvas_types::sync::{AtomicI64, AtomicU32, Ordering};

use canvas_shm::mailbox::Status;

const IDLE: u32 = 0;
const UNDER_WAY: u32 = 1;
/// A thread works on its end.
const BUSY: u32 = 2;

/// What a job's request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum JobKind {
    /// An extent of the pool's oldest pages is written.
    Spill,
    /// An extent comes back for its pages.
    Fetch,
    /// An extent comes back to be emptied.
    Compact,
    /// The record of one page comes back ([`Alone`]).
    Page,
}

impl JobKind {
    fn of(raw: u32) -> JobKind {
        [JobKind::Spill, JobKind::Compact, JobKind::Page]
            .into_iter()
            .find(|k| *k as u32 == raw)
            .unwrap_or(JobKind::Fetch)
    }
}

/// A page whose record is read ahead of need, alone: its number, and where in the extent the record lies. It is what
/// the bytes of a [`JobKind::Page`] say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone {
    /// The page's number.
    pub page: u32,
    /// As in [`canvas_types::DeepPlace`]; a multiple of 16.
    pub offset: u32,
    /// As in [`canvas_types::DeepPlace`].
    pub len: u16,
}

impl Alone {
    const UNIT: u32 = 16;

    /// The page's record at `place`.
    pub fn at(page: u32, place: DeepPlace) -> Alone {
        Alone {
            page,
            offset: place.offset,
            len: place.len,
        }
    }

    /// Where in the extent it is.
    pub fn place(self, extent: u32) -> DeepPlace {
        DeepPlace {
            extent,
            offset: self.offset,
            len: self.len,
        }
    }

    /// As the bytes of a job.
    pub fn bytes(self) -> i64 {
        let offset = u64::from(self.offset / Alone::UNIT) << 32;
        (u64::from(self.page) | offset | u64::from(self.len) << 48) as i64
    }

    /// Of the bytes of a job.
    pub fn of(bytes: i64) -> Alone {
        let bytes = bytes as u64;
        Alone {
            page: bytes as u32,
            offset: u32::from((bytes >> 32) as u16) * Alone::UNIT,
            len: (bytes >> 48) as u16,
        }
    }
}

/// What a program has asked the agent for beside faults: an extent to write or to fetch. See the
/// module.
pub struct Job {
    state: AtomicU32,
    kind: AtomicU32,
    extent: AtomicU32,
    bytes: AtomicI64,
}

/// A job that has ended, for the one thread that got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// What it was for.
    pub kind: JobKind,
    /// The extent that it is about.
    pub extent: u32,
    /// As it was begun with.
    pub bytes: i64,
    /// How its request ended.
    pub status: Status,
}

impl Job {
    /// A place without a job.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Job {
        Job {
            state: AtomicU32::new(IDLE),
            kind: AtomicU32::new(JobKind::Fetch as u32),
            extent: AtomicU32::new(0),
            bytes: AtomicI64::new(0),
        }
    }

    /// A place without a job.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Job {
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

    /// Is it about this extent, its end included?
    pub fn is_about(&self, extent: u32) -> bool {
        self.state.load(Ordering::Acquire) != IDLE && self.extent.load(Ordering::Relaxed) == extent
    }

    /// The same, while nobody works on its end.
    pub fn is_open(&self, extent: u32) -> bool {
        self.state.load(Ordering::Acquire) == UNDER_WAY
            && self.extent.load(Ordering::Relaxed) == extent
    }

    /// What it is for, or was for last.
    pub fn kind(&self) -> JobKind {
        JobKind::of(self.kind.load(Ordering::Relaxed))
    }

    /// Does it bring the whole extent, its end included?
    pub fn brings(&self, extent: u32) -> bool {
        self.is_about(extent) && self.kind() != JobKind::Page
    }

    /// Does it bring this page's record alone, its end included?
    pub fn brings_alone(&self, extent: u32, alone: Alone) -> bool {
        self.is(JobKind::Page)
            && self.extent.load(Ordering::Relaxed) == extent
            && Alone::of(self.bytes.load(Ordering::Relaxed)) == alone
    }

    /// Is it under way and of this kind, its end included?
    pub fn is(&self, kind: JobKind) -> bool {
        self.state.load(Ordering::Acquire) != IDLE && self.kind() == kind
    }

    fn take(&self) -> bool {
        self.state
            .compare_exchange(UNDER_WAY, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The job's end, if its request has ended; the caller works on it alone then, until
    /// [`Job::through`]. `ended` looks at the request ([`canvas_shm::mailbox::Mailbox::ended`]).
    pub fn end(&self, ended: impl Fn() -> Option<Status>) -> Option<Ended> {
        if self.state.load(Ordering::Acquire) != UNDER_WAY || ended().is_none() || !self.take() {
            return None;
        }
        // Only now is it sure to be this job's request: between the look and the taking another thread
        // can have ended the one that was seen, and a third begun this one.
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

    /// Takes the job from under its request, which is given up. Until [`Job::through`] the caller works on it
    /// alone. False when it is about another extent by now, or another thread works on its end.
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

    /// The caller is through with its end; the request is released or abandoned after this.
    pub fn through(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// In a fork's child: forgets the parent's. The extent that it was about.
    pub fn forget(&self) -> Option<u32> {
        (self.state.swap(IDLE, Ordering::Relaxed) != IDLE)
            .then(|| self.extent.load(Ordering::Relaxed))
    }
}
