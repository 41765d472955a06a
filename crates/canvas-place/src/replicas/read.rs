//! A read under way: which copy is asked, which as well when that one is silent, and when the read ends without an
//! answer.
//!
//! A donor that does not answer within its usual time ([`crate::pace`]) is suspect: the next copy is asked as well (a
//! hedged read), the first answer is used, and other donors are preferred until the suspect answers a ping. An answer
//! that does not verify ends nothing: the reader requests the next copy, and answers already requested may still
//! arrive.

use super::map::{Map, Slab};
use super::{Donors, Policy, is_away, read_next};

/// The next copy to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextCopy {
    /// This donor, for this handle.
    Donor(usize, u64),
    /// The local disk.
    Disk,
    /// No copy is left.
    NoneLeft,
}

/// What the local disk has of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDisk {
    /// The disk keeps nothing.
    No,
    /// It lacks the extent, as far as is known: it is read when nothing else can be.
    Unsure,
    /// It has the extent, and is read after the donors.
    Yes,
    /// It has the extent, and is read before the donors: by choice of the paths, or because donors' copies are being
    /// released.
    First,
}

impl OnDisk {
    /// For an extent (an index within its slab). `has_disk`: copies are kept there, wanted or not.
    pub fn of(slab: Option<&Slab>, extent: usize, has_disk: bool, policy: Policy) -> OnDisk {
        let policy = slab.map_or(policy, |e| e.policy(policy));
        match slab.filter(|e| e.disk.has(extent)) {
            _ if !has_disk => OnDisk::No,
            Some(lacking) if lacking.may_be_on_disk => OnDisk::Unsure,
            Some(_) => OnDisk::No,
            None if policy.donors == 0 => OnDisk::First,
            None => OnDisk::Yes,
        }
    }
}

/// What happens to a read when no copy is left to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exhausted {
    /// A copy that was asked may still answer.
    AwaitAnswer,
    /// Donors may come back: the read is retried at the next tick ([`Read::retry`]).
    Retry,
    /// The read ends without an answer.
    Fail {
        /// There may be a copy that cannot be reached now; otherwise there is none.
        away: bool,
    },
}

/// A donor's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Bytes.
    Data {
        /// All zeros, as if nothing had ever been written there.
        blank: bool,
    },
    /// The donor no longer has the slab.
    Unknown,
    /// No answer, or a refusal: it may answer later.
    No,
}

/// What to do about an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterAnswer {
    /// Nothing: another answer was used.
    Nothing,
    /// Return the bytes to the reader.
    Deliver,
    /// Ask another copy.
    TryNext {
        /// It counts as a failover, because this donor did not deliver.
        failover: bool,
    },
}

/// A read. Sets of donors are bit masks.
#[derive(Clone, Debug, Default)]
pub struct Read {
    tried: u64,
    pending: u64,
    /// Donors that gave no answer, but may yet.
    silent: u64,
    tried_disk: bool,
    disk_pending: bool,
    disk_failed: bool,
    /// Bytes were returned; they are from this donor, or (`None`) from the disk.
    delivered: bool,
    from: Option<usize>,
}

impl Read {
    /// The returned bytes did not verify. Returns the donor they came from, which lacks the extent.
    pub fn is_bad(&mut self) -> Option<usize> {
        self.delivered = false;
        self.from.take()
    }

    /// The next copy that was not tried. With `besides`, one that was asked may still answer, so only a copy that
    /// should have the extent is asked.
    pub fn next(
        &self,
        slab: Option<&Slab>,
        extent: usize,
        donors: &(impl Donors + ?Sized),
        on_disk: OnDisk,
        besides: bool,
    ) -> NextCopy {
        let has = matches!(on_disk, OnDisk::Yes | OnDisk::First);
        let disk = has && !self.tried_disk;
        if disk && on_disk == OnDisk::First {
            return NextCopy::Disk;
        }
        // A copy that lacks it, as far as is known, is asked only when there is no other: it may have it all the same,
        // and cannot deceive the reader.
        let is_away = || slab.is_some_and(|slab| is_away(slab.sources(donors, extent)));
        let last_resort = !has && !besides && !is_away();
        let next = slab.and_then(|slab| {
            let sources = slab.sources(donors, extent);
            let source = read_next(sources, extent, self.tried, last_resort)?;
            let replica = slab.replicas.iter().find(|c| c.donor == source.donor)?;
            Some((source, replica.handle))
        });
        match next {
            // The disk is certain to answer.
            Some((source, handle)) if !source.suspect || !disk => {
                NextCopy::Donor(source.donor, handle)
            }
            _ if disk => NextCopy::Disk,
            _ if last_resort && on_disk == OnDisk::Unsure && !self.tried_disk => NextCopy::Disk,
            _ => NextCopy::NoneLeft,
        }
    }

    /// A donor was asked, or could not be.
    pub fn on_sent(&mut self, donor: usize, sent: bool) {
        self.tried |= 1 << donor;
        if sent {
            self.pending |= 1 << donor;
        } else {
            self.silent |= 1 << donor;
        }
    }

    /// The disk was asked. False when a donor was asked as well, which may be faster.
    pub fn on_sent_to_disk(&mut self) -> bool {
        self.tried_disk = true;
        self.disk_pending = true;
        self.pending == 0
    }

    /// No copy is left to ask, after `waited_ns`; the tenant waits `wait_ns_max` for copies that cannot be reached.
    pub fn on_exhausted(
        &mut self,
        slab: Option<&Slab>,
        extent: usize,
        donors: &(impl Donors + ?Sized),
        waited_ns: impl FnOnce() -> u64,
        wait_ns_max: u64,
    ) -> Exhausted {
        if self.pending != 0 || self.disk_pending {
            return Exhausted::AwaitAnswer;
        }
        let away = slab.is_some_and(|slab| is_away(slab.sources(donors, extent)));
        let replicas = slab.map_or(&[][..], |slab| &slab.replicas);
        self.silent &= replicas.iter().fold(0, |bits, c| bits | 1 << c.donor);
        let may_come = away || self.silent != 0;
        if may_come && waited_ns() < wait_ns_max {
            self.tried &= !std::mem::take(&mut self.silent);
            return Exhausted::Retry;
        }
        Exhausted::Fail {
            away: may_come || self.disk_failed,
        }
    }

    /// A donor has answered, or never will.
    pub fn on_answer(
        &mut self,
        map: &mut Map,
        slab: u32,
        extent: usize,
        donor: usize,
        answer: Answer,
    ) -> AfterAnswer {
        self.pending &= !(1 << donor);
        if self.delivered {
            // If the returned bytes do not verify, this donor can be asked again.
            self.tried &= !(1 << donor);
            return AfterAnswer::Nothing;
        }
        let mut replica = map.get_mut(&slab).and_then(|e| e.at(donor));
        match answer {
            Answer::Data { blank } => {
                if blank && replica.as_ref().is_none_or(|c| !c.has(extent)) {
                    // The slab was placed there later, and nothing was written to it: it is not damaged.
                    return AfterAnswer::TryNext { failover: false };
                }
                self.delivered = true;
                self.from = Some(donor);
                if let Some(replica) = &mut replica {
                    replica.ops += 1;
                }
                return AfterAnswer::Deliver;
            }
            Answer::No => self.silent |= 1 << donor,
            Answer::Unknown => {}
        }
        AfterAnswer::TryNext { failover: true }
    }

    /// The disk has answered, or ([`Answer::No`]) could not read. A blank answer is neither a copy nor a damaged one
    /// where nothing is known to be on the disk (`on_disk`).
    pub fn on_disk_answer(&mut self, on_disk: OnDisk, answer: Answer) -> AfterAnswer {
        self.disk_pending = false;
        if self.delivered {
            self.tried_disk = false;
            return AfterAnswer::Nothing;
        }
        match answer {
            Answer::Data { blank: true } if on_disk == OnDisk::Unsure => {}
            Answer::Data { .. } => {
                self.delivered = true;
                self.from = None;
                return AfterAnswer::Deliver;
            }
            Answer::Unknown | Answer::No => self.disk_failed = true,
        }
        AfterAnswer::TryNext { failover: false }
    }

    /// A tick after [`Exhausted::Retry`]: donors that were down may be tried again. `up` has a bit for each that
    /// serves.
    pub fn retry(&mut self, up: u64) {
        self.tried &= up;
    }

    /// Whether the disk's answer is still awaited and of use.
    pub fn waits_for_disk(&self) -> bool {
        !self.delivered && self.disk_pending
    }

    /// Whether a donor's answer is still awaited and of use.
    pub fn waits_for(&self, donor: usize) -> bool {
        !self.delivered && self.pending & 1 << donor != 0
    }
}
