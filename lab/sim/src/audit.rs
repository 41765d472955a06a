//! Invariants of a world, checked from outside: what agents believe against what hosts hold.

use canvas_place::replicas::{Code, DonorView, Slab, whole};

use crate::agent::run_id;
use crate::host::Life;
use crate::world::World;

/// Number of extents of living tenants that are lost: no donor known to the agent has the version that the
/// program must read, and neither has the disk. A hung host still has its data.
pub fn lost(world: &World) -> usize {
    let mut lost = 0;
    for agent in world.agents.iter().filter(|a| a.alive) {
        for (extent, &seal) in agent.seals.iter().enumerate() {
            if seal == 0 || agent.disk[extent] == seal {
                continue;
            }
            let (slab, within) = world.place_of(extent as u32);
            let copies = agent.map.get(&slab).map_or(&[][..], |e| &e.replicas[..]);
            let there = copies.iter().filter(|c| {
                let host = &world.hosts[agent.donors[c.donor].host as usize];
                host.life != Life::Dead
                    && run_id(host.run) == c.run
                    && host.read(agent.id, c.handle, within) == Ok(seal)
            });
            let enough = world.config.policy.code.map_or(1, Code::data);
            // Whole copies all have the same shard number.
            let shards = there.fold(0u32, |bits, c| bits | 1 << c.shard);
            lost += usize::from((shards.count_ones() as usize) < enough);
        }
    }
    lost
}

/// Number of copies of a slab, or of different shards, at donors that serve.
pub fn serving(slab: &Slab, donors: &[DonorView]) -> usize {
    whole(slab.held(donors, 0))
}

/// Copies that agents count on at serving donors but that are not there in the right version; one sentence
/// for each.
pub fn false_beliefs(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for agent in world.agents.iter().filter(|a| a.alive) {
        for (slab, entry) in &agent.map {
            for copy in entry.replicas.iter().filter(|c| c.leaving.is_none()) {
                let donor = &agent.donors[copy.donor];
                let host = &world.hosts[donor.host as usize];
                if !donor.is_up() || host.life != Life::Up || run_id(host.run) != copy.run {
                    continue;
                }
                for within in 0..world.config.extents {
                    let extent = *slab as usize * world.config.extents + within;
                    let seal = agent.seals[extent];
                    if seal == 0 || !copy.has(within) || agent.is_busy(extent as u32) {
                        continue;
                    }
                    let there = host.read(agent.id, copy.handle, within);
                    if there != Ok(seal) {
                        wrong.push(format!(
                            "tenant {} counts on host {} for extent {within} of slab {slab} in version \
                             {seal}; there is {there:?}",
                            agent.id, donor.host
                        ));
                    }
                }
            }
        }
    }
    wrong
}

/// Slabs of living tenants with fewer complete copies, at working hosts and on their disk, than the policy
/// requires.
pub fn short_slabs(world: &World) -> usize {
    let (now, extents) = (world.now(), world.config.extents);
    let mut short = 0;
    for agent in world.agents.iter().filter(|a| a.alive) {
        for (slab, entry) in &agent.map {
            let first = *slab as usize * extents;
            if agent.seals[first..first + extents].iter().all(|s| *s == 0) {
                continue;
            }
            let held = entry.held(&agent.donors, now).filter(|c| {
                let host = &world.hosts[agent.donors[c.donor].host as usize];
                host.life == Life::Up && host.run == agent.donors[c.donor].run
            });
            let policy = world.config.policy;
            let written = first..first + extents;
            let off_disk = |e: usize| agent.seals[e] != agent.disk[e] && !agent.is_busy(e as u32);
            let off_disk = policy.disk && written.into_iter().any(off_disk);
            short += usize::from(whole(held) < policy.donors || off_disk);
        }
    }
    short
}

/// Whether all programs have written every extent once, and every one is stored outside of them.
pub fn filled(world: &World) -> bool {
    let full = |a: &crate::agent::Agent| {
        let written = |(e, s): (usize, &u64)| *s != 0 || a.is_busy(e as u32);
        a.fill == a.seals.len() && a.seals.iter().enumerate().all(written)
    };
    world.agents.iter().filter(|a| a.alive).all(full)
}
