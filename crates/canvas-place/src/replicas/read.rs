//! A read under way: which copy is asked, which as well when that is silent, and when the read ends
//! without an answer.
//!
//! A donor that does not answer within its usual time ([`crate::pace`]) is suspect: the next copy is
//! asked as well (a hedged read), the first answer is taken, and others are asked before the suspect
//! until it answers a ping. An answer that does not verify ends nothing: the reader asks for the next
//! copy, and those that were asked already may still answer.

use super::map::{Map, Slab};
use super::{Donors, Policy, is_away, read_next};

/// Whom to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// This donor, for what it calls so.
    Donor(usize, u64),
    /// The disk of this host.
    Disk,
    /// There is nobody left.
    Nobody,
}

/// What the disk of this host has of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDisk {
    /// Nothing is kept there.
    No,
    /// It lacks it, as far as is known: it is asked when nobody else can be.
    Unsure,
    /// It has it, and is asked after the donors.
    Yes,
    /// It has it, and is asked before the donors: it is the disk's turn, or their copies are given up.
    First,
}

impl OnDisk {
    /// What is known of an extent (a number within its slab). `has_disk`: copies are kept there, wanted or not.
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

/// What becomes of a read that there is nobody left to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Otherwise {
    /// Who was asked may still answer.
    Waits,
    /// Donors may come back: it is tried again at the next tick ([`Read::try_again`]).
    Later,
    /// It ends. With `away` there may be a copy that cannot be reached now; otherwise there is none.
    Ends {
        /// See there.
        away: bool,
    },
}

/// What a donor's answer means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Bytes; `blank` ones look as if nothing had ever been written there.
    Data {
        /// See there.
        blank: bool,
    },
    /// It has not got the slab any more.
    Unknown,
    /// None, or one that says no: it may answer yet.
    No,
}

/// What to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// The read has been answered by another one.
    Nothing,
    /// The reader gets the bytes.
    HandOut,
    /// Another copy is asked; with `failover` because this donor gave nothing.
    GoOn {
        /// See there.
        failover: bool,
    },
}

/// A read. Donors are sets of bits.
#[derive(Clone, Debug, Default)]
pub struct Read {
    tried: u64,
    asked: u64,
    /// Gave no answer, but may yet.
    silent: u64,
    tried_disk: bool,
    asked_disk: bool,
    disk_failed: bool,
    /// Bytes were handed out; these are from this donor, or (`None`) from the disk.
    handed: bool,
    from: Option<usize>,
}

impl Read {
    /// What was handed out did not verify. The donor whose bytes these were lacks the extent.
    pub fn is_bad(&mut self) -> Option<usize> {
        self.handed = false;
        self.from.take()
    }

    /// The next copy that was not tried. `besides` one that may still answer, only a copy that should
    /// have the extent is worth it.
    pub fn next(
        &self,
        slab: Option<&Slab>,
        extent: usize,
        donors: &(impl Donors + ?Sized),
        on_disk: OnDisk,
        besides: bool,
    ) -> Ask {
        let has = matches!(on_disk, OnDisk::Yes | OnDisk::First);
        let disk = has && !self.tried_disk;
        if disk && on_disk == OnDisk::First {
            return Ask::Disk;
        }
        // A copy that lacks it, as far as is known, only when there is no other: it may have it all the same,
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
            // The disk answers for certain.
            Some((source, handle)) if !source.suspect || !disk => Ask::Donor(source.donor, handle),
            _ if disk => Ask::Disk,
            _ if last_resort && on_disk == OnDisk::Unsure && !self.tried_disk => Ask::Disk,
            _ => Ask::Nobody,
        }
    }

    /// A donor was asked, or could not be.
    pub fn asked(&mut self, donor: usize, sent: bool) {
        self.tried |= 1 << donor;
        if sent {
            self.asked |= 1 << donor;
        } else {
            self.silent |= 1 << donor;
        }
    }

    /// The disk was asked. False when a donor was as well, which may be faster.
    pub fn asked_disk(&mut self) -> bool {
        self.tried_disk = true;
        self.asked_disk = true;
        self.asked == 0
    }

    /// There is nobody left to ask, after so long; the tenant waits `wait_ns_max` for what cannot be
    /// reached.
    pub fn otherwise(
        &mut self,
        slab: Option<&Slab>,
        extent: usize,
        donors: &(impl Donors + ?Sized),
        waited_ns: impl FnOnce() -> u64,
        wait_ns_max: u64,
    ) -> Otherwise {
        if self.asked != 0 || self.asked_disk {
            return Otherwise::Waits;
        }
        let away = slab.is_some_and(|slab| is_away(slab.sources(donors, extent)));
        let replicas = slab.map_or(&[][..], |slab| &slab.replicas);
        self.silent &= replicas.iter().fold(0, |bits, c| bits | 1 << c.donor);
        let may_come = away || self.silent != 0;
        if may_come && waited_ns() < wait_ns_max {
            self.tried &= !std::mem::take(&mut self.silent);
            return Otherwise::Later;
        }
        Otherwise::Ends {
            away: may_come || self.disk_failed,
        }
    }

    /// A donor has answered, or never will.
    pub fn answered(
        &mut self,
        map: &mut Map,
        slab: u32,
        extent: usize,
        donor: usize,
        answer: Answer,
    ) -> Then {
        self.asked &= !(1 << donor);
        if self.handed {
            // If what was handed out does not verify, this one can be asked anew.
            self.tried &= !(1 << donor);
            return Then::Nothing;
        }
        let mut replica = map.get_mut(&slab).and_then(|e| e.at(donor));
        match answer {
            Answer::Data { blank } => {
                if blank && replica.as_ref().is_none_or(|c| !c.has(extent)) {
                    // It was placed anew, and nothing has been written there: it is not damaged.
                    return Then::GoOn { failover: false };
                }
                self.handed = true;
                self.from = Some(donor);
                if let Some(replica) = &mut replica {
                    replica.ops += 1;
                }
                return Then::HandOut;
            }
            Answer::No => self.silent |= 1 << donor,
            Answer::Unknown => {}
        }
        Then::GoOn { failover: true }
    }

    /// The disk has answered, or ([`Answer::No`]) could not read. What is blank is no copy where nothing is known to be
    /// kept there (`on_disk`), and so none that is damaged.
    pub fn disk_answered(&mut self, on_disk: OnDisk, answer: Answer) -> Then {
        self.asked_disk = false;
        if self.handed {
            self.tried_disk = false;
            return Then::Nothing;
        }
        match answer {
            Answer::Data { blank: true } if on_disk == OnDisk::Unsure => {}
            Answer::Data { .. } => {
                self.handed = true;
                self.from = None;
                return Then::HandOut;
            }
            Answer::Unknown | Answer::No => self.disk_failed = true,
        }
        Then::GoOn { failover: false }
    }

    /// A tick after [`Otherwise::Later`]: donors (a bit each) that do not serve are tried anew.
    pub fn try_again(&mut self, up: u64) {
        self.tried &= up;
    }

    /// Is the disk's answer still awaited, and of use?
    pub fn waits_for_disk(&self) -> bool {
        !self.handed && self.asked_disk
    }

    /// Is a donor's answer still awaited, and of use?
    pub fn waits_for(&self, donor: usize) -> bool {
        !self.handed && self.asked & 1 << donor != 0
    }
}
