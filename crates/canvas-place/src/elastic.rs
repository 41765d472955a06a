//! Elastic pools: how much of a host's pool each of its tenants may fill, in slabs that are granted and revoked by swap
//! traffic (FastSwap §II), with a floor for each tenant.
//!
//! Demands are met by weighted max-min: a tenant that wants less than its weight's share gets what it wants, and the
//! rest goes to the others. A tenant that swaps and has filled its grant wants more. One that swaps and has not filled
//! it wants what it uses. An idle one wants its floor, and keeps the rest as long as nobody else wants it. The *amount*
//! of traffic only says who is idle; weights decide how much each gets. So a tenant that lies about its traffic, or
//! about what it uses, gets at most its weight's share.
//!
//! A tenant is idle after a quiet second, however much it swapped before. A load with short pauses would then lose its
//! pool in each pause and fetch it back afterwards. So this time doubles, up to [`SHORT`] rounds, when a tenant swaps
//! again after a pause that was shorter than that, and halves after a longer one.
//!
//! Revoked memory is free only when its tenant has written it out. Until then, but for at most [`PATIENCE`] rounds, it
//! is *held* and granted to nobody. An idle tenant that has returned all that was revoked loses a larger part in the
//! next round: so the rate of revocation follows the tenant's write rate.
//!
//! Memory that forks share is divided in this way as well (`[shared]` of the agent's file), with two differences
//! ([`Pools::pulling`]). First, the amount of traffic has some effect: of the tenants that want more, one with more
//! page-ins than another counts with up to twice its weight. So a liar gets at most the share of twice its weight.
//! Second, a tenant there is quiet when everything it needs is resident, because hits are not observed. So an idle
//! tenant loses little at first and twice as much in each round; if it needs that again, the cut was a mistake, and the
//! next one comes half a minute later.
//!
//! Invariants, whatever the readings say: the sum of all grants, and of what is held, is at most the host's pool; no
//! grant exceeds its ceiling; and none is cut below its floor. A new tenant starts with what is free. If that is less
//! than its floor, the rest is revoked from others at once, and the tenant gets it when they have returned it or after
//! [`PATIENCE`] rounds; it gets its first slab at once. A floor that rises by itself, as others leave, is reached in
//! this way as well.

mod fill;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use canvas_types::controller::ewma;
use fill::{Want, fill};

use crate::in_a_row;

/// Bytes of a slab: 2 MiB.
pub const SLAB_BYTES: u64 = 2 << 20;
/// Rounds a second.
pub const ROUNDS_IN_S: usize = 4;
/// Rounds after which revoked memory counts as returned: 10 s.
pub const PATIENCE: usize = 10 * ROUNDS_IN_S;
/// Pages a round, smoothed, from which a tenant counts as swapping: 64 a second.
pub const BUSY_PAGES: u64 = 16;
/// A round with fewer pages is quiet.
pub const QUIET_PAGES: u64 = 16;
/// Quiet rounds after which a tenant is idle, at first.
pub const QUIET: u32 = ROUNDS_IN_S as u32;
/// Pauses of fewer rounds are too short to take a pool away: 5 s.
pub const SHORT: u32 = 5 * QUIET;
/// As [`SHORT`], where quiet tenants may use all that they have: 30 s.
pub const PULLING_SHORT: u32 = 30 * QUIET;
/// Tenants for which the smallest pool has floors.
pub const TENANTS_MIN: u64 = 4;
/// Slabs in use revoked in a round: this part of the grant, but at least `STEP_MIN` and at most `STEP_MAX` (64 MiB a
/// second), because writing them out takes time of the tenant's disk or donors.
const STEP_PART: u64 = 32;
const STEP_MIN: u64 = 1;
const STEP_MAX: u64 = 8;
/// As [`STEP_PART`] and [`STEP_MAX`], for an idle tenant that has returned what was revoked.
const IDLE_STEP_PART: u64 = 4;
const IDLE_STEP_MAX: u64 = 32;
/// Where quiet tenants may use all that they have, the step starts at that of busy ones and doubles this many times.
const DOUBLINGS: u32 = (STEP_PART / IDLE_STEP_PART).ilog2();
/// 1/`RESERVE_PART` of the pool is kept for new tenants.
const RESERVE_PART: u64 = 32;
/// All default floors together are 1/`FLOORS_PART` of the pool.
const FLOORS_PART: u64 = 4;
/// Fractions of a page in the smoothed traffic.
const FRACTION: u64 = 256;
/// The tenant with the most traffic counts with twice its weight, one with almost none with its weight; in between in
/// steps of 1/`PULLS` of the weight.
const PULLS: u64 = 8;
/// A smaller change of the pull is ignored, so that equal tenants come to rest at equal parts.
const PULL_STEPS: u64 = 2;
/// More pages than a round can move.
const PAGES_MAX: u64 = 1 << 32;

/// Number of slabs that hold `bytes`.
pub fn slabs_of(bytes: u64) -> u64 {
    bytes.div_ceil(SLAB_BYTES)
}

/// A tenant's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Its weight; at least 1.
    pub weight: u32,
    /// Slabs that it always keeps; `None` for an equal part of a quarter of the pool. Never more than its ceiling.
    pub floor: Option<u64>,
    /// Most slabs for which it has use; at least 1.
    pub ceiling: u64,
}

/// A tenant's figures, none of which need be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Bytes in its pool.
    pub used_bytes: u64,
    /// Percent of its limit past which it demotes its oldest pages.
    pub spill_percent: u64,
    /// Bytes in its pool that cannot be demoted.
    pub pinned_bytes: u64,
    /// Pages swapped in or out since the last reading. Pages demoted from the pool to the next tier do not count,
    /// because revocations cause them.
    pub pages: u64,
}

/// A new tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Newcomer {
    /// Its number here.
    pub id: u64,
    /// Its settings.
    pub bounds: Bounds,
    /// Its grant under the previous agent.
    pub had: Option<u64>,
    /// Its figures.
    pub reading: Reading,
}

impl Bounds {
    fn sound(self) -> Bounds {
        Bounds {
            weight: self.weight.max(1),
            floor: self.floor.map(|f| f.max(1)),
            ceiling: self.ceiling.max(1),
        }
    }
}

#[derive(Clone, Debug)]
struct Tenant {
    bounds: Bounds,
    floor: u64,
    /// What it may fill.
    grant: u64,
    /// Its grant, and what it has not returned yet.
    held: u64,
    /// The grants of the last rounds, the newest first.
    recent: [u64; PATIENCE],
    reading: Reading,
    /// Pages a round, smoothed, in [`FRACTION`]s.
    traffic: u64,
    /// Steps by which it counts with more than its weight.
    pull: u64,
    busy: bool,
    /// Consecutive quiet rounds.
    quiet: u32,
    /// Quiet rounds after which it is idle.
    quiet_max: u32,
    /// Rounds since it became idle.
    idle: u32,
}

/// The pools of a host.
#[derive(Clone, Debug)]
pub struct Pools {
    slabs: u64,
    /// Whether the amount of traffic counts.
    pulls: bool,
    tenants: BTreeMap<u64, Tenant>,
}

impl Pools {
    /// A pool of `slabs` for all tenants.
    pub fn new(slabs: u64) -> Pools {
        Pools {
            slabs,
            pulls: false,
            tenants: BTreeMap::new(),
        }
    }

    /// As [`Pools::new`], where the amount of traffic counts: demand is measured by page-ins.
    pub fn pulling(slabs: u64) -> Pools {
        Pools {
            pulls: true,
            ..Pools::new(slabs)
        }
    }

    /// This pool without any tenant.
    pub fn emptied(&self) -> Pools {
        Pools {
            tenants: BTreeMap::new(),
            ..*self
        }
    }

    /// Slabs of all tenants together.
    pub fn slabs(&self) -> u64 {
        self.slabs
    }

    /// Most tenants that find a floor of at least a slab.
    pub fn tenants_max(&self) -> usize {
        usize::try_from((self.slabs / FLOORS_PART).max(1)).unwrap_or(usize::MAX)
    }

    /// Whether configured floors may come to `slabs`. The rest is for default floors, and for traffic.
    pub fn allows_floors(&self, slabs: u64) -> bool {
        slabs <= self.slabs - self.slabs / FLOORS_PART
    }

    /// Adds tenants: each starts with its grant under the previous agent, if it had one, otherwise with what is free,
    /// divided among them if that is too little for all.
    pub fn admit(&mut self, newcomers: &[Newcomer]) {
        for new in newcomers {
            let tenant = Tenant {
                bounds: new.bounds.sound(),
                floor: 0,
                grant: 0,
                held: 0,
                recent: [new.had.unwrap_or(0); PATIENCE],
                reading: new.reading,
                traffic: 0,
                pull: 0,
                busy: false,
                quiet: 0,
                quiet_max: QUIET,
                idle: self.short(),
            };
            self.tenants.insert(new.id, tenant);
        }
        self.set_floors();
        // Their floors first, from all that is free; then the rest except the reserve.
        for (is_floor, kept) in [(true, 0), (false, self.reserve())] {
            let want = |new: &Newcomer| {
                let t = &self.tenants[&new.id];
                let all = new.had.unwrap_or(u64::MAX).min(t.bounds.ceiling);
                let high = if is_floor { all.min(t.floor) } else { all };
                Want {
                    weight: t.bounds.weight,
                    low: t.grant,
                    high: high.max(t.grant),
                }
            };
            let wants: Vec<Want> = newcomers.iter().map(want).collect();
            let granted: u64 = wants.iter().map(|w| w.low).sum();
            let room = granted + self.free().saturating_sub(kept);
            for (new, slabs) in newcomers.iter().zip(fill(room, &wants)) {
                if let Some(t) = self.tenants.get_mut(&new.id) {
                    (t.grant, t.held) = (slabs, slabs);
                }
            }
        }
        self.settle(false);
    }

    /// A tenant has ended, and has freed its memory.
    pub fn remove(&mut self, id: u64) {
        self.tenants.remove(&id);
        self.set_floors();
        self.settle(false);
    }

    /// Changes a tenant's settings.
    pub fn set_bounds(&mut self, id: u64, bounds: Bounds) {
        let Some(t) = self.tenants.get_mut(&id) else {
            return;
        };
        t.bounds = bounds.sound();
        t.grant = t.grant.min(t.bounds.ceiling);
        self.set_floors();
        self.settle(false);
    }

    /// Adds a tenant's figures.
    pub fn read(&mut self, id: u64, reading: Reading) {
        if let Some(t) = self.tenants.get_mut(&id) {
            t.reading = Reading {
                pages: t.reading.pages.saturating_add(reading.pages),
                ..reading
            };
        }
    }

    /// Ends a round (1/[`ROUNDS_IN_S`] of a second) in which each tenant was read: grants and revokes slabs.
    pub fn round(&mut self) {
        let short = self.short();
        for t in self.tenants.values_mut() {
            t.note_traffic(short);
            t.recent.rotate_right(1);
            t.recent[0] = t.grant;
        }
        if self.pulls {
            self.note_pulls();
        }
        self.settle(true);
    }

    /// Pauses of fewer rounds are too short to take memory away.
    fn short(&self) -> u32 {
        if self.pulls { PULLING_SHORT } else { SHORT }
    }

    /// Updates how strongly each tenant pulls, by its traffic relative to the most.
    fn note_pulls(&mut self) {
        let all = self.tenants.values();
        let most = all.filter(|t| t.busy).map(|t| t.traffic).max();
        for t in self.tenants.values_mut() {
            let now = match most {
                Some(most) if t.busy => (t.traffic * PULLS + most / 2) / most.max(1),
                _ => 0,
            };
            if now.abs_diff(t.pull) >= PULL_STEPS || now == 0 || now == PULLS {
                t.pull = now;
            }
        }
    }

    /// Slabs that the tenant may fill.
    pub fn grant(&self, id: u64) -> u64 {
        self.tenants.get(&id).map_or(0, |t| t.grant)
    }

    /// Slabs that the tenant always keeps.
    pub fn floor(&self, id: u64) -> u64 {
        self.tenants.get(&id).map_or(0, |t| t.floor)
    }

    /// Whether the tenant has more in its pool than any of its last grants. (A sixteenth is tolerated, because pages
    /// shared before a fork are counted late.)
    pub fn is_overdue(&self, id: u64) -> bool {
        self.tenants.get(&id).is_some_and(|t| {
            let most = t.longest_ago();
            slabs_of(t.reading.used_bytes) > most + most / 16 + 1
        })
    }

    /// Slabs that no tenant holds.
    pub fn free(&self) -> u64 {
        let held: u64 = self.tenants.values().map(|t| t.held).sum();
        self.slabs.saturating_sub(held)
    }

    fn reserve(&self) -> u64 {
        self.slabs / RESERVE_PART
    }

    fn set_floors(&mut self) {
        let n = self.tenants.len().max(1) as u64;
        let usual = (self.slabs / FLOORS_PART / n).max(1);
        let wants: Vec<Want> = self
            .tenants
            .values()
            .map(|t| Want {
                weight: 1,
                low: 0,
                high: t.bounds.floor.unwrap_or(usual).min(t.bounds.ceiling),
            })
            .collect();
        for (t, floor) in self.tenants.values_mut().zip(fill(self.slabs, &wants)) {
            t.floor = floor;
        }
    }

    /// The grants towards which the current demands lead.
    fn targets(&self) -> Vec<u64> {
        let floors: u64 = self.tenants.values().map(|t| t.floor).sum();
        let room = (self.slabs - self.reserve()).max(floors);
        let wants = |of: &dyn Fn(usize, &Tenant) -> (u64, u64)| -> Vec<Want> {
            let all = self.tenants.values().enumerate();
            all.map(|(i, t)| {
                let (low, high) = of(i, t);
                let weight = t.weight(self.pulls);
                Want { weight, low, high }
            })
            .collect()
        };
        let first = fill(room, &wants(&|_, t| (t.floor, t.want())));
        // What nobody wants stays where it is.
        fill(room, &wants(&|i, t| (first[i], first[i].max(t.grant))))
    }

    /// A tenant can do nothing without a slab, so it gets its first one at once.
    fn give_first_slabs(&mut self) {
        let bare = self.tenants.iter().filter(|(_, t)| t.held == 0);
        let bare: Vec<u64> = bare.map(|(id, _)| *id).collect();
        for id in bare {
            if self.free() == 0 {
                let debtor = self.tenants.values_mut().max_by_key(|t| t.held - t.grant);
                match debtor.filter(|t| t.held > t.grant) {
                    Some(t) => t.held -= 1,
                    None => return,
                }
            }
            if let Some(t) = self.tenants.get_mut(&id) {
                (t.grant, t.held) = (1, 1);
            }
        }
    }

    /// Revokes and grants as far as possible now; memory in use and above the floors is revoked only in a round.
    fn settle(&mut self, in_round: bool) {
        let targets = self.targets();
        let lacking: u64 = self.tenants.values().map(Tenant::lacks).sum();
        for (t, target) in self.tenants.values_mut().zip(&targets) {
            t.cut(*target, in_round, lacking, self.pulls);
        }
        self.give_first_slabs();
        for (is_floor, kept) in [(true, 0), (false, self.reserve())] {
            let wants: Vec<Want> = self
                .tenants
                .values()
                .zip(&targets)
                .map(|(t, target)| {
                    let high = if is_floor {
                        t.floor.min(*target)
                    } else {
                        *target
                    };
                    Want {
                        weight: t.weight(self.pulls),
                        low: t.held,
                        high: high.max(t.held),
                    }
                })
                .collect();
            let held: u64 = wants.iter().map(|w| w.low).sum();
            let room = held + self.free().saturating_sub(kept);
            let granted = fill(room, &wants);
            for ((t, target), slabs) in self.tenants.values_mut().zip(&targets).zip(granted) {
                // It may use again what it has not returned yet.
                t.grant = t.grant.max(slabs.min(*target));
                t.held = t.held.max(t.grant);
            }
        }
    }
}

impl Tenant {
    /// Its weight among tenants that want more.
    fn weight(&self, pulls: bool) -> u32 {
        let steps = if pulls { PULLS + self.pull } else { 1 };
        self.bounds.weight.saturating_mul(steps as u32)
    }

    /// Updates whether it is busy, after what it swapped in this round.
    fn note_traffic(&mut self, short: u32) {
        let pages = std::mem::take(&mut self.reading.pages).min(PAGES_MAX);
        // Half of a change shows after two or three seconds.
        self.traffic = ewma::<1, 16>(self.traffic, pages * FRACTION);
        self.quiet = in_a_row(self.quiet, pages < QUIET_PAGES);
        if self.busy && self.quiet >= self.quiet_max {
            // Earlier traffic is no sign of later traffic.
            (self.busy, self.traffic, self.idle) = (false, 0, 0);
        } else if !self.busy {
            self.idle = self.idle.saturating_add(1);
            self.busy = self.traffic >= BUSY_PAGES * FRACTION;
            if self.busy {
                self.quiet_max = match self.idle.saturating_add(self.quiet_max) < short {
                    true => (self.quiet_max * 2).min(short),
                    false => (self.quiet_max / 2).max(QUIET),
                };
            }
        }
    }

    /// Slabs that it wants.
    fn want(&self) -> u64 {
        let Reading {
            used_bytes,
            spill_percent,
            pinned_bytes,
            ..
        } = self.reading;
        let percent = spill_percent.clamp(1, 100);
        let used = u128::from(used_bytes) * 100;
        let mark = u128::from(self.grant * SLAB_BYTES) * u128::from(percent);
        let want = if !self.busy {
            self.floor
        } else if used * 16 >= mark * 15 {
            self.bounds.ceiling
        } else {
            // An eighth more than it uses is not full: such a grant causes no new demand.
            let enough = used / u128::from(percent * SLAB_BYTES) * 9 / 8 + 2;
            self.grant.min(u64::try_from(enough).unwrap_or(u64::MAX))
        };
        want.max(slabs_of(pinned_bytes))
            .clamp(self.floor, self.bounds.ceiling.max(self.floor))
    }

    /// Slabs missing to its floor.
    fn lacks(&self) -> u64 {
        self.floor.saturating_sub(self.grant)
    }

    /// Its greatest grant of the last rounds.
    fn longest_ago(&self) -> u64 {
        self.recent.iter().copied().fold(self.grant, u64::max)
    }

    /// Revokes down to `target`: unused slabs at once, the rest in steps, or by `lacking` when other tenants are below
    /// their floors.
    fn cut(&mut self, target: u64, in_round: bool, lacking: u64, pulls: bool) {
        let used = slabs_of(self.reading.used_bytes);
        let step = if !in_round {
            0
        } else if self.busy || used > self.grant {
            (self.grant / STEP_PART).clamp(STEP_MIN, STEP_MAX)
        } else if pulls {
            let part = (STEP_PART >> self.idle.min(DOUBLINGS)).max(IDLE_STEP_PART);
            (self.grant / part).clamp(STEP_MIN, IDLE_STEP_MAX)
        } else {
            (self.grant / IDLE_STEP_PART).clamp(STEP_MIN, IDLE_STEP_MAX)
        };
        let in_steps = self.grant.min(used).saturating_sub(step + lacking);
        self.grant = self.grant.min(target.max(in_steps).max(self.floor));
        let most = used.min(self.longest_ago());
        self.held = self.held.min(most).max(self.grant);
    }
}
