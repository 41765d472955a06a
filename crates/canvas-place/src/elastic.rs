//! Elastic pools: how much of a host's pool each of its tenants may fill, in slabs that are granted and
//! revoked by swap traffic (FastSwap §II), with a floor for each tenant.
//!
//! What tenants want is filled by weighted max-min: who wants less than its weight's part gets what it
//! wants, and the rest is for the others. A tenant wants more when it swaps and has filled what it has.
//! One that swaps and has not wants what it uses. One that is idle wants its floor, and keeps what it has
//! as long as nobody else wants it. The *amount* of traffic says who is idle and no more, and weights say
//! how much: so a tenant that lies about its traffic, or about what it uses, gets what its weight gives
//! and no more.
//!
//! A tenant is idle when it was quiet for a second, however much it swapped before. Loads with short
//! pauses would have their pools taken away and fetched back in each of them. So the time doubles, up to
//! [`SHORT`] rounds, when a tenant swaps again after a pause that was shorter than that, and halves after
//! a longer one.
//!
//! What is revoked is memory again only when its tenant has written it out. Until then, but no longer
//! than [`PATIENCE`] rounds, it is *held* and is granted to nobody. An idle tenant that has given back
//! all that was revoked loses a larger part in the next round: so what it loses follows how fast it
//! writes.
//!
//! Memory that forks share is divided in the same way (`[shared]` of the agent's file), but for two things
//! ([`Pools::pulling`]). The amount counts a little: of those that want more, one whose pages come in more often
//! than another one's pulls with up to twice its weight. So one that lies gets at most what twice its weight gives.
//! And a tenant is quiet there when all that it needs is in memory, as hits are not seen. So an idle one loses
//! little at first and twice as much in each round; when that comes back it was a mistake, and is made again
//! half a minute later at the latest.
//!
//! Promises, at every moment, whatever the readings say: the sum of all grants, and of what is held, is
//! at most the host's pool; no grant is above its ceiling; and none is cut below its floor. A tenant
//! that comes begins with what is free. When that is less than its floor, the rest is revoked from
//! others at once, and it has it when they have given it back or [`PATIENCE`] rounds later; its first
//! slab it has at once. A floor that rises by itself, as others leave, is reached in the same way.

mod fill;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use fill::{Want, fill};

/// Bytes of a slab: 2 MiB.
pub const SLAB_BYTES: u64 = 2 << 20;
/// Rounds in a second.
pub const ROUNDS_IN_S: usize = 4;
/// Rounds after which what was revoked counts as given back: 10 s.
pub const PATIENCE: usize = 10 * ROUNDS_IN_S;
/// Pages a round, smoothed, from which on a tenant swaps: 64 in a second.
pub const BUSY_PAGES: u64 = 16;
/// A round with fewer pages than that is quiet.
pub const QUIET_PAGES: u64 = 16;
/// Quiet rounds after which a tenant is idle, at first.
pub const QUIET: u32 = ROUNDS_IN_S as u32;
/// Rounds without need that are too few to take a pool away and fetch it back: 5 s.
pub const SHORT: u32 = 5 * QUIET;
/// The same where quiet tenants may use all that they have: 30 s.
pub const PULLING_SHORT: u32 = 30 * QUIET;
/// Tenants that the smallest pool has floors for.
pub const TENANTS_MIN: u64 = 4;
/// Slabs in use that are revoked in a round: this part of the grant, but at least and at most so many
/// (64 MiB in a second): writing them out takes its tenant's disk or donors time.
const STEP_PART: u64 = 32;
const STEP_MIN: u64 = 1;
const STEP_MAX: u64 = 8;
/// The same of an idle tenant that has given back what was revoked.
const IDLE_STEP_PART: u64 = 4;
const IDLE_STEP_MAX: u64 = 32;
/// Where quiet tenants may use all that they have, it begins as with busy ones and doubles so often.
const DOUBLINGS: u32 = (STEP_PART / IDLE_STEP_PART).ilog2();
/// The part of the pool that is kept for tenants to come is one by this.
const RESERVE_PART: u64 = 32;
/// All floors of which nothing is said come to one by this of the pool.
const FLOORS_PART: u64 = 4;
/// The traffic is smoothed with this weight: half of a change shows after two or three seconds.
const SMOOTH: u64 = 16;
/// Parts of a page in the smoothed traffic.
const FRACTION: u64 = 256;
/// Who has the most traffic of those that swap pulls with twice its weight, one with next to none with its weight; in
/// between in steps of this part of it.
const PULLS: u64 = 8;
/// A change by fewer steps is none: what is equal has equal parts, which come to rest.
const PULL_STEPS: u64 = 2;
/// More pages than a round can move.
const PAGES_MAX: u64 = 1 << 32;

/// Slabs that hold so many bytes.
pub fn slabs_of(bytes: u64) -> u64 {
    bytes.div_ceil(SLAB_BYTES)
}

/// What is settled for a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Its part of what several want; at least 1.
    pub weight: u32,
    /// Slabs that it keeps whatever it does; `None` for an equal part of a quarter of the pool. Never more
    /// than its ceiling.
    pub floor: Option<u64>,
    /// Slabs that it has use for at most; at least 1.
    pub ceiling: u64,
}

/// What is seen of a tenant. Nothing of it need be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Bytes in its pool.
    pub used_bytes: u64,
    /// Percent of its bound from which on it writes its oldest pages out.
    pub spill_percent: u64,
    /// Bytes in its pool that have no other place to go to.
    pub pinned_bytes: u64,
    /// Pages that were swapped in or out since the reading before. Not those that left the pool for the
    /// next tier: what is revoked goes there, and that is no need of its tenant's.
    pub pages: u64,
}

/// A tenant that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Newcomer {
    /// What it is called here.
    pub id: u64,
    /// What is settled for it.
    pub bounds: Bounds,
    /// Its grant under the agent before this one.
    pub had: Option<u64>,
    /// What is seen of it.
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
    /// That, and what it has not given back.
    held: u64,
    /// The grants of the last rounds, the newest first.
    recent: [u64; PATIENCE],
    reading: Reading,
    /// Pages a round, smoothed, in [`FRACTION`]s.
    traffic: u64,
    /// Steps by which it pulls with more than its weight.
    pull: u64,
    busy: bool,
    /// Quiet rounds in a row, up to now.
    quiet: u32,
    /// After so many of them it is idle.
    quiet_max: u32,
    /// Rounds since it is.
    idle: u32,
}

/// The pools of a host.
#[derive(Clone, Debug)]
pub struct Pools {
    slabs: u64,
    /// The amount of traffic counts.
    pulls: bool,
    tenants: BTreeMap<u64, Tenant>,
}

impl Pools {
    /// A pool of so many slabs for all tenants.
    pub fn new(slabs: u64) -> Pools {
        Pools {
            slabs,
            pulls: false,
            tenants: BTreeMap::new(),
        }
    }

    /// The same, where the amount of traffic counts: what is divided is wanted for the pages that come in.
    pub fn pulling(slabs: u64) -> Pools {
        Pools {
            pulls: true,
            ..Pools::new(slabs)
        }
    }

    /// The same without any tenant.
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

    /// Tenants that find a floor of a slab each, at most.
    pub fn tenants_max(&self) -> usize {
        usize::try_from((self.slabs / FLOORS_PART).max(1)).unwrap_or(usize::MAX)
    }

    /// May floors that were settled come to so many slabs? The rest is for those of which nothing is said,
    /// and for traffic.
    pub fn allows_floors(&self, slabs: u64) -> bool {
        slabs <= self.slabs - self.slabs / FLOORS_PART
    }

    /// Tenants come: each begins with what it had under another agent, if it had something, else with
    /// what is free; when there is too little for all of them each with its part.
    pub fn arrive(&mut self, newcomers: &[Newcomer]) {
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
        // Their floors first, from all that is free; then the rest but the reserve.
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

    /// A tenant is gone, and its memory with it.
    pub fn leave(&mut self, id: u64) {
        self.tenants.remove(&id);
        self.set_floors();
        self.settle(false);
    }

    /// Other bounds hold for a tenant.
    pub fn set_bounds(&mut self, id: u64, bounds: Bounds) {
        let Some(t) = self.tenants.get_mut(&id) else {
            return;
        };
        t.bounds = bounds.sound();
        t.grant = t.grant.min(t.bounds.ceiling);
        self.set_floors();
        self.settle(false);
    }

    /// What is seen of a tenant now.
    pub fn read(&mut self, id: u64, reading: Reading) {
        if let Some(t) = self.tenants.get_mut(&id) {
            t.reading = Reading {
                pages: t.reading.pages.saturating_add(reading.pages),
                ..reading
            };
        }
    }

    /// A round (a [`ROUNDS_IN_S`]th of a second) is over, and each tenant has been read: slabs are granted
    /// and revoked.
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

    /// Rounds without need that are too few to take away what is needed again.
    fn short(&self) -> u32 {
        if self.pulls { PULLING_SHORT } else { SHORT }
    }

    /// How strongly each pulls, by its part of the most traffic.
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

    /// Slabs that it keeps whatever it does.
    pub fn floor(&self, id: u64) -> u64 {
        self.tenants.get(&id).map_or(0, |t| t.floor)
    }

    /// Has it more in its pool than was granted to it in any of the last rounds? (A sixteenth is allowed:
    /// what lies in pages that were shared before a fork is counted afterwards.)
    pub fn is_overdue(&self, id: u64) -> bool {
        self.tenants.get(&id).is_some_and(|t| {
            let most = t.longest_ago();
            slabs_of(t.reading.used_bytes) > most + most / 16 + 1
        })
    }

    /// Slabs that nobody has.
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

    /// What each is to have in the end, as things are now.
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

    /// Nobody can do anything without a slab, so the first one is not waited for.
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

    /// Revokes and grants as far as can be now; what is in use and above all floors only in a round.
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
                // What it has not given back yet it may have again.
                t.grant = t.grant.max(slabs.min(*target));
                t.held = t.held.max(t.grant);
            }
        }
    }
}

impl Tenant {
    /// Its part of what several want.
    fn weight(&self, pulls: bool) -> u32 {
        let steps = if pulls { PULLS + self.pull } else { 1 };
        self.bounds.weight.saturating_mul(steps as u32)
    }

    /// Is it busy, after what it swapped in this round?
    fn note_traffic(&mut self, short: u32) {
        let pages = std::mem::take(&mut self.reading.pages).min(PAGES_MAX);
        self.traffic = (self.traffic * (SMOOTH - 1) + pages * FRACTION) / SMOOTH;
        self.quiet = match pages < QUIET_PAGES {
            true => self.quiet.saturating_add(1),
            false => 0,
        };
        if self.busy && self.quiet >= self.quiet_max {
            // What was before is no sign of what comes.
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
            // An eighth more than it uses is not full: what is granted so is not asked for again.
            let enough = used / u128::from(percent * SLAB_BYTES) * 9 / 8 + 2;
            self.grant.min(u64::try_from(enough).unwrap_or(u64::MAX))
        };
        want.max(slabs_of(pinned_bytes))
            .clamp(self.floor, self.bounds.ceiling.max(self.floor))
    }

    /// Slabs that it has not, of its floor.
    fn lacks(&self) -> u64 {
        self.floor.saturating_sub(self.grant)
    }

    /// Its greatest grant of the last rounds.
    fn longest_ago(&self) -> u64 {
        self.recent.iter().copied().fold(self.grant, u64::max)
    }

    /// Revokes down to `target`: what it does not use at once, the rest in steps; `lacking` more of it
    /// when others are below their floors.
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
