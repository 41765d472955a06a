//! Tells donors what slabs are worth to their client, so that a donor whose host runs out of memory knows which to free
//! first ([`crate::early`]).
//!
//! Several donors may run out of memory at one time, and none of them consults anybody. So whatever [`Worth::Spare`]
//! replicas they free, enough must be left to restore everything: of each slab one copy (or as many shards as its code
//! needs) is kept, and a donor may learn that its replica is spare only when all donors of the kept ones are known to
//! have confirmed that theirs are kept.

use super::map::{REPLICAS_MAX, Replica, Slab};
use super::{Donors, EXTENTS_MAX, Policy};
use crate::early::Worth;

/// What a donor was sent about a replica's worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReportedWorth {
    /// What it confirmed last. A donor without a message takes a slab for the only copy.
    confirmed: Worth,
    /// The message under way.
    under_way: Option<Worth>,
    /// It may believe something other than what it confirmed.
    unsure: bool,
    /// It may believe that the replica is spare.
    may_be_spare: bool,
    /// No message before this time (ns).
    again_ns: u64,
}

impl ReportedWorth {
    /// For a replica about which an earlier agent may have sent anything.
    pub fn unknown() -> ReportedWorth {
        ReportedWorth {
            unsure: true,
            may_be_spare: true,
            ..ReportedWorth::default()
        }
    }

    /// Whether the donor may believe that the replica is spare.
    pub fn may_be_spare(&self) -> bool {
        self.may_be_spare
    }

    /// Whether to send a message, if the replica has this worth.
    fn is_due(&self, worth: Worth, now_ns: u64) -> bool {
        self.under_way.is_none()
            && now_ns >= self.again_ns
            && (self.unsure || self.confirmed != worth)
    }

    /// The donor does not understand these messages, and frees nothing early.
    pub fn not_supported(&mut self) {
        *self = ReportedWorth {
            again_ns: u64::MAX,
            ..ReportedWorth::default()
        };
    }

    /// A message is under way.
    pub fn on_sent(&mut self, worth: Worth) {
        self.under_way = Some(worth);
        self.may_be_spare |= worth == Worth::Spare;
    }

    /// The donor has confirmed the message, or (not `ok`) may not have received it; it is repeated after `again_ns`.
    pub fn on_answer(&mut self, ok: bool, again_ns: u64) {
        let Some(worth) = self.under_way.take() else {
            return;
        };
        if ok {
            (self.confirmed, self.unsure) = (worth, false);
            self.may_be_spare = worth == Worth::Spare;
        } else {
            (self.unsure, self.again_ns) = (true, again_ns);
        }
    }
}

impl Slab {
    /// How many replicas restore everything.
    pub fn needed(&self) -> usize {
        self.code.map_or(1, |code| code.data())
    }

    /// The messages to send now about the slab with this number: donor, handle, worth.
    pub fn worths(
        &self,
        slab: u32,
        donors: &(impl Donors + ?Sized),
        policy: Policy,
        now_ns: u64,
    ) -> Vec<(usize, u64, Worth)> {
        let policy = self.policy(policy);
        let has_disk = policy.disk && self.may_be_on_disk;
        // What is written late may be on donors alone.
        let on_disk = has_disk && !policy.late && self.disk.is_none();
        let nearly = has_disk && policy.late && self.disk.count(|_| true) <= EXTENTS_MAX / 16;
        let stays = |c: &Replica| {
            c.missing.is_none() && c.leaving.is_none() && donors.view(c.donor).is_up()
        };
        let whole = self.those(stays);
        let keepers = self.keepers(slab, whole);
        let is_safe = self.different(keepers) >= self.needed();
        let others = self.different(whole) > self.needed() || nearly;
        let are_told = keepers & self.those(|c| c.reported.may_be_spare) == 0;
        let worth = |at: usize| match (keepers & 1 << at != 0, is_safe) {
            _ if on_disk => Some(Worth::Spare),
            (true, _) if others => Some(Worth::Kept),
            (true, _) | (false, false) => Some(Worth::Sole),
            // Only once the donors of the kept replicas have confirmed.
            (false, true) => are_told.then_some(Worth::Spare),
        };
        let mut tell = Vec::new();
        for (at, c) in self.replicas.iter().enumerate() {
            if let Some(worth) = worth(at)
                && donors.view(c.donor).is_up()
                && c.reported.is_due(worth, now_ns)
            {
                tell.push((c.donor, c.handle, worth));
            }
        }
        tell
    }

    /// Of the replicas in `whole`, the ones to keep, a bit each: those that are kept already first, and a different one
    /// for each slab, so that each donor has some to free.
    fn keepers(&self, slab: u32, whole: u32) -> u32 {
        let n = self.replicas.len();
        let turns = (0..n).map(|i| (i + slab as usize) % n);
        let may_be_spare = |at: &usize| self.replicas[*at].reported.may_be_spare;
        let first = turns.clone().filter(|at| !may_be_spare(at));
        let mut keepers = 0;
        for at in first.chain(turns.filter(may_be_spare)) {
            let has = self.different(keepers);
            let is_new = self.different(keepers | 1 << at) > has;
            if whole & 1 << at != 0 && has < self.needed() && is_new {
                keepers |= 1 << at;
            }
        }
        keepers
    }

    /// The replicas for which `is_so` holds, a bit each.
    fn those(&self, is_so: impl Fn(&Replica) -> bool) -> u32 {
        let all = self.replicas.iter().enumerate();
        all.fold(0, |bits, (at, c)| bits | u32::from(is_so(c)) << at)
    }

    /// Number of copies, or of different shards, among these.
    fn different(&self, replicas: u32) -> usize {
        if self.code.is_none() {
            return replicas.count_ones() as usize;
        }
        let all = self.replicas.iter().enumerate();
        let of_them = all.filter(|(at, _)| replicas & 1 << at != 0);
        let shards = of_them.fold(0u32, |bits, (_, c)| bits | 1 << c.shard);
        shards.count_ones() as usize
    }
}

const _: () = assert!(REPLICAS_MAX <= u32::BITS as usize);

#[cfg(test)]
mod tests;
