//! One failure at a time: a host dies, comes back, or hangs. Only data with a single copy may be lost.

use std::fmt::Write;

use canvas_place::replicas::Policy;

use super::Size;
use crate::audit;
use crate::engine::{MS, Ns, SEC};
use crate::host::Life;
use crate::world::{Config, Fault, World};

/// Longest time until everything has all its copies again.
pub const REPAIR_NS_MAX: Ns = 120 * SEC;

/// A fault of one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It dies, for good or until it comes back after this time.
    Die(Option<Ns>),
    /// It hangs for this time.
    Hang(Ns),
    /// Its own programs want all memory but the reserve for time `.0`, and grow by `.1` bytes per second.
    Squeeze(Ns, u64),
    /// Like `Squeeze(.0, .1)`; also hangs at `.2` after the beginning, for `.3`.
    SqueezeAndHang(Ns, u64, Ns, Ns),
    /// All tenants switch to another policy; the host dies for good `.1` later.
    SwitchAndDie(Policy, Ns),
}

/// Effect of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Number of extents lost.
    pub lost: usize,
    /// Time from the failure until every slab had all its copies; `None` if not within the limit.
    pub redundant_after: Option<Ns>,
}

/// Applies the step to a host, and waits until all copies are complete. The program rewrites extents that
/// were lost, which the outcome has counted.
pub fn step(world: &mut World, host: usize, step: Step) -> Outcome {
    let start = world.now();
    let own_before = world.hosts[host].own_bytes;
    let back = match step {
        Step::Die(back) => {
            world.fault(host, Fault::Die);
            back
        }
        Step::Hang(time) => {
            world.fault(host, Fault::Hang);
            Some(time)
        }
        Step::SwitchAndDie(policy, after) => {
            world.switch(policy);
            world.run_until(world.now() + after);
            world.fault(host, Fault::Die);
            None
        }
        Step::Squeeze(time, bytes_per_s) | Step::SqueezeAndHang(time, bytes_per_s, ..) => {
            let h = &mut world.hosts[host];
            h.own_bytes_per_s = bytes_per_s;
            h.own_target_bytes = h.bytes - h.reserve_bytes();
            Some(time)
        }
    };
    if let Step::SqueezeAndHang(_, _, after, time) = step {
        for fault in [Fault::Hang, Fault::Rise] {
            let wait = if fault == Fault::Hang { after } else { time };
            world.run_until(world.now() + wait);
            world.fault(host, fault);
        }
    }
    let lost = audit::lost(world);
    let at = (start + back.unwrap_or(0)).max(world.now());
    let early = world.run_while(at - world.now(), |w| audit::short_slabs(w) == 0);
    let mut redundant_after = early.map(|_| world.now() - start);
    world.run_until(at);
    match step {
        Step::Squeeze(..) | Step::SqueezeAndHang(..) => {
            world.hosts[host].own_target_bytes = own_before
        }
        _ if back.is_some() => world.fault(host, Fault::Rise),
        _ => {}
    }
    let before = world.now() - start;
    // A lost extent lacks all copies until the program writes it again.
    let again = world.run_while(REPAIR_NS_MAX, |w| audit::short_slabs(w) == 0);
    if redundant_after.is_none() {
        redundant_after = again.map(|t| t + before);
    }
    // What agents believe is true, and remains true.
    world.run_until(world.now() + 500 * MS);
    let wrong = audit::false_beliefs(world);
    assert_eq!(wrong, Vec::<String>::new(), "seed {}", world.config.seed);
    let lost = lost.max(audit::lost(world));
    Outcome {
        lost,
        redundant_after,
    }
}

/// A world whose programs have filled the pool.
pub fn filled(config: Config) -> World {
    let seed = config.seed;
    let mut world = World::new(config);
    let full = world.run_while(240 * SEC, |w| {
        audit::filled(w) && audit::short_slabs(w) == 0
    });
    assert!(full.is_some(), "seed {seed}: the pool fills");
    world
}

/// The working host with the most complete copies that agents count on.
pub fn fullest(world: &World) -> usize {
    let up = |h: &usize| world.hosts[*h].life == Life::Up;
    let copies = |h: usize| {
        let its = |a: &crate::agent::Agent| {
            let here = |d: usize| a.donors[d].host as usize == h;
            let all = a.map.values().flat_map(|e| &e.replicas);
            all.filter(|c| here(c.donor) && c.missing.is_none()).count()
        };
        world.agents.iter().map(its).sum::<usize>()
    };
    let hosts = (0..world.hosts.len()).filter(up);
    hosts.max_by_key(|h| copies(*h)).expect("one works")
}

/// Policies and their names.
pub const POLICIES: [(&str, Policy); 4] = [
    (
        "1+disk",
        Policy {
            donors: 1,
            disk: true,
            late: false,
            code: None,
        },
    ),
    (
        "2",
        Policy {
            donors: 2,
            disk: false,
            late: false,
            code: None,
        },
    ),
    (
        "3",
        Policy {
            donors: 3,
            disk: false,
            late: false,
            code: None,
        },
    ),
    (
        "1",
        Policy {
            donors: 1,
            disk: false,
            late: false,
            code: None,
        },
    ),
];

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let (hosts, slabs, extents) = match size {
        Size::Short | Size::Hosts(_) => (8, 2, 64),
        Size::Full => (32, 8, 2048),
    };
    let steps = [
        Step::Die(None),
        Step::Die(Some(5 * SEC)),
        Step::Hang(SEC),
        Step::Hang(10 * SEC),
        Step::Hang(40 * SEC),
    ];
    let mut text = format!(
        "one failure at a time, {hosts} hosts, {slabs} slabs of {extents} extents a tenant (seed {seed})\n  \
         copies  failure            lost extents  full redundancy after (s)\n"
    );
    let coded = |name| (name, Policy::named(name).expect("a code"));
    for (name, policy) in POLICIES.into_iter().chain(["2+1", "4+2"].map(coded)) {
        let mut world = filled(Config {
            slabs,
            extents,
            load_ns: 4 * MS / (extents as u64 / 64),
            ..Config::new(seed, hosts, policy)
        });
        let mut lost = 0;
        for s in steps {
            let host = fullest(&world);
            let outcome = step(&mut world, host, s);
            let what = match s {
                Step::Die(None) => "dies".to_owned(),
                Step::Die(Some(t)) => format!("dies, back in {} s", t / SEC),
                Step::Hang(t) => format!("hangs for {} s", t / SEC),
                Step::Squeeze(t, _) | Step::SqueezeAndHang(t, ..) => {
                    format!("is short for {} s", t / SEC)
                }
                Step::SwitchAndDie(policy, _) => format!("dies on the way to {policy}"),
            };
            let after = outcome.redundant_after.map_or("never".to_owned(), |t| {
                format!("{:.2}", t as f64 / SEC as f64)
            });
            let _ = writeln!(
                text,
                "  {name:<6}  {what:<17}  {:>12}  {after:>25}",
                outcome.lost
            );
            lost += outcome.lost;
            if name != "1" {
                assert_eq!(outcome.lost, 0, "seed {seed}: copies={name}, a host {what}");
                assert!(
                    outcome.redundant_after.is_some(),
                    "seed {seed}: copies={name}, {what}"
                );
            }
        }
        assert_eq!(
            lost > 0,
            name == "1",
            "seed {seed}: copies={name} lost {lost}"
        );
        let s = &world.stats;
        let _ = writeln!(
            text,
            "          reads {} (disk {}, went on {}, old copies not believed {}), unanswered {}, repaired {}",
            s.reads, s.disk_reads, s.failovers, s.stale, s.unanswered, s.repaired
        );
    }
    text
}
