//! Where `canvas dispatch` runs a program, and with which settings: algorithm 1 of xDM.
//!
//! Settings follow from earlier runs of the program ([`settings`]). Where its far memory goes is xDM's prior: anonymous
//! pages with random refaults go to a donor, files and streams to a disk. Then a tenant is chosen, in this order
//! ([`steps`]):
//!
//! 1. a running tenant with the same copies policy and with room for this program;
//! 2. a prepared one with the same policy;
//! 3. a prepared one with another policy, which is changed;
//! 4. a new one.
//!
//! Only policies that keep a copy on the disk are exchanged for each other, so durability never changes.

use crate::advise::{Point, Search};
use crate::replicas::Policy;

/// Wanted speed, relative to all memory local.
pub const SPEED: f64 = 0.95;
/// Least local memory to work with, in bytes.
pub const LOCAL_MIN: u64 = 8 << 20;
/// The smallest pool that is chosen, in bytes.
pub const POOL_MIN: u64 = 16 << 20;
/// Measurements of a program that count: those of its last runs.
pub const POINTS_MAX: usize = 6;
/// From this part on, files or streams count as most of the memory.
const MOST: f64 = 0.5;

/// Data from earlier runs of a program.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Known {
    /// All of its memory at its peak, in bytes.
    pub footprint_bytes: u64,
    /// Compression ratio of its pages, 1 or more.
    pub compression: Option<f64>,
    /// Part of its memory that is mapped files, 0 to 1.
    pub file_ratio: Option<f64>,
    /// Part of its refaulted pages that came in streams, 0 to 1.
    pub sequential_ratio: Option<f64>,
    /// Its speed at sizes of local memory, one for each run.
    pub points: Vec<Point>,
}

/// This host and its agent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Host {
    /// Memory that nobody needs, without the reserve, in bytes.
    pub spare_bytes: u64,
    /// The largest pool of a run, in bytes.
    pub pool_bytes_max: u64,
    /// Copies policy of a tenant that asks for none.
    pub copies: Policy,
    /// Whether donors can hold copies.
    pub has_donors: bool,
    /// Whether a local disk can hold copies.
    pub has_disk: bool,
}

/// Settings for a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Where its far memory goes.
    pub copies: Policy,
    /// Local memory that it needs for [`SPEED`], in bytes; `None` when nothing is known of the program.
    pub need_bytes: Option<u64>,
    /// Limit on local memory of a new tenant for it, in bytes.
    pub local_bytes: u64,
    /// Limit on that tenant's pool, in bytes; `None` for the default.
    pub pool_bytes: Option<u64>,
    /// Reason for the choice of `copies`, as a part of a sentence.
    pub why: String,
}

/// A tenant in which a program runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Online {
    /// Its copies policy.
    pub copies: Policy,
    /// Local memory left in it, in bytes.
    pub room_bytes: u64,
}

/// A tenant for the program; the next one is tried when this one rejects it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// The running tenant of this index.
    Join(usize),
    /// A prepared tenant.
    Take(Free),
    /// A new tenant.
    New,
}

/// A prepared tenant, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Free {
    /// It has the wanted copies policy.
    Same(usize),
    /// Its copies policy must be changed.
    Switch(usize),
}

/// The settings for a program on this host.
pub fn settings(known: Option<&Known>, host: &Host) -> Settings {
    let (copies, why) = copies(known, host);
    let need_bytes = known.and_then(need);
    let spare_bytes = host.spare_bytes.max(LOCAL_MIN);
    let local_bytes = need_bytes.map_or(spare_bytes, |need| need.min(spare_bytes));
    // The pool is to hold all of it, as far as the memory that is left allows.
    let pool_bytes = known.filter(|k| k.footprint_bytes > 0).map(|known| {
        let compression = known.compression.unwrap_or(1.0).max(1.0);
        let all = (known.footprint_bytes as f64 / compression) as u64;
        let left = spare_bytes - local_bytes;
        let most = left.min(host.pool_bytes_max).max(POOL_MIN);
        all.saturating_add(all / 4).clamp(POOL_MIN, most)
    });
    Settings {
        copies,
        need_bytes,
        local_bytes,
        pool_bytes,
        why,
    }
}

/// Local memory with which a run had its speed, in bytes: its limit, or a little more than its peak.
pub fn local_of_run(limit_bytes: Option<u64>, peak_bytes: u64) -> u64 {
    let used = peak_bytes.saturating_add(peak_bytes / 8);
    limit_bytes.unwrap_or(u64::MAX).min(used)
}

/// Local memory known, or predicted, to be enough for [`SPEED`], in bytes.
fn need(known: &Known) -> Option<u64> {
    let all = known
        .footprint_bytes
        .saturating_add(known.footprint_bytes / 8);
    let mut search = Search::new(all, LOCAL_MIN, 50);
    for point in &known.points {
        search.add(point.clone());
    }
    let foretold = search.foretold(SPEED)?;
    Some(foretold.clamp(LOCAL_MIN, all.max(LOCAL_MIN)))
}

/// Where far memory goes, and why.
fn copies(known: Option<&Known>, host: &Host) -> (Policy, String) {
    let default = |why: &str| (host.copies, why.to_owned());
    let Some(known) = known else {
        return default("the program has no earlier runs");
    };
    let disk = Policy::new(0, true);
    let donor = Policy { donors: 1, ..disk };
    if ![disk, donor].contains(&host.copies) {
        return default("no other place is as durable as the default");
    }
    let percent = |part: f64| format!("{:.0}%", part * 100.0);
    let (wanted, can, why) = match (known.file_ratio, known.sequential_ratio) {
        (Some(files), _) if files >= MOST => (
            disk,
            host.has_disk,
            format!("{} of its memory is files", percent(files)),
        ),
        (_, Some(streams)) if streams >= MOST => (
            disk,
            host.has_disk,
            format!("{} of its refaults are sequential", percent(streams)),
        ),
        (_, Some(streams)) => (
            donor,
            host.has_donors && host.has_disk,
            format!("{} of its refaults are random", percent(1.0 - streams)),
        ),
        (_, None) => return default("it had no refaults"),
    };
    match can {
        true => (wanted, why),
        false => (host.copies, format!("{why}, but there is no other place")),
    }
}

/// The tenants to try for a program, in order. `free` has the copies policies of the prepared tenants.
pub fn steps(settings: &Settings, online: &[Online], free: &[Policy]) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(need) = settings.need_bytes {
        let mut fit: Vec<(u64, usize)> = online
            .iter()
            .enumerate()
            .filter(|(_, o)| o.copies == settings.copies && o.room_bytes >= need)
            .map(|(i, o)| (o.room_bytes, i))
            .collect();
        // The smallest sufficient room first: large rooms are for large programs.
        fit.sort_unstable();
        steps.extend(fit.into_iter().map(|(_, i)| Step::Join(i)));
    }
    steps.extend(take(settings.copies, free).map(Step::Take));
    steps.push(Step::New);
    steps
}

/// The prepared tenant for a program with this copies policy.
pub fn take(copies: Policy, free: &[Policy]) -> Option<Free> {
    match free.iter().position(|there| *there == copies) {
        Some(same) => Some(Free::Same(same)),
        None => (!free.is_empty()).then_some(Free::Switch(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Curve;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn policy(name: &str) -> Policy {
        Policy::named(name).unwrap()
    }

    fn host() -> Host {
        Host {
            spare_bytes: 4000 * MIB,
            pool_bytes_max: 2000 * MIB,
            copies: policy("1+disk"),
            has_donors: true,
            has_disk: true,
        }
    }

    fn point(local_bytes: u64, speed: f64) -> Point {
        Point {
            speed,
            curve: Curve {
                local_bytes,
                footprint_bytes: 1000 * MIB,
                refaults: vec![10, 10, 0, 0, 0, 0, 0, 0, 0],
                stream_ratio: 0.0,
            },
        }
    }

    fn known(files: f64, streams: Option<f64>) -> Known {
        Known {
            footprint_bytes: 1000 * MIB,
            compression: Some(2.5),
            file_ratio: Some(files),
            sequential_ratio: streams,
            points: vec![point(600 * MIB, 0.97)],
        }
    }

    #[test]
    fn anonymous_random_pages_go_to_a_donor_files_and_streams_to_a_disk() {
        for (files, streams, wanted) in [
            (0.1, Some(0.1), "1+disk"),
            (0.1, Some(0.9), "disk"),
            (0.7, Some(0.1), "disk"),
            (0.7, None, "disk"),
        ] {
            for default in ["disk", "1+disk"] {
                let host = Host {
                    copies: policy(default),
                    ..host()
                };
                let got = settings(Some(&known(files, streams)), &host);
                assert_eq!(
                    got.copies,
                    policy(wanted),
                    "{files} {streams:?}: {}",
                    got.why
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_had_and_what_would_keep_less_is_the_default() {
        let random = known(0.0, Some(0.0));
        let of = |known: Option<&Known>, host: Host| {
            let got = settings(known, &host);
            (got.copies.to_string(), got.why)
        };
        let alone = Host {
            copies: policy("disk"),
            has_donors: false,
            ..host()
        };
        let want = "100% of its refaults are random, but there is no other place";
        assert_eq!(
            of(Some(&random), alone),
            ("disk".to_owned(), want.to_owned())
        );
        assert_eq!(of(None, host()).1, "the program has no earlier runs");
        assert_eq!(of(Some(&known(0.2, None)), host()).1, "it had no refaults");
        for kept in ["2", "3", "1", "1+disk-async"] {
            let host = Host {
                copies: policy(kept),
                ..host()
            };
            assert_eq!(of(Some(&random), host).0, kept);
        }
    }

    #[test]
    fn local_memory_is_what_was_enough_or_what_is_left() {
        let got = settings(Some(&known(0.0, Some(0.0))), &host());
        assert_eq!(
            (got.need_bytes, got.local_bytes),
            (Some(600 * MIB), 600 * MIB)
        );
        // 400 MiB compressed, and a quarter.
        assert_eq!(got.pool_bytes, Some(500 * MIB));
        let poor = Host {
            spare_bytes: 100 * MIB,
            ..host()
        };
        let got = settings(Some(&known(0.0, Some(0.0))), &poor);
        assert_eq!(
            (got.need_bytes, got.local_bytes),
            (Some(600 * MIB), 100 * MIB)
        );
        assert_eq!(got.pool_bytes, Some(POOL_MIN));
        let got = settings(None, &host());
        assert_eq!(
            (got.need_bytes, got.local_bytes, got.pool_bytes),
            (None, 4000 * MIB, None)
        );
        let none = Host {
            spare_bytes: 0,
            ..host()
        };
        assert_eq!(settings(None, &none).local_bytes, LOCAL_MIN);
    }

    #[test]
    fn a_run_that_was_too_slow_gets_more_the_next_time() {
        let mut slow = known(0.0, Some(0.0));
        slow.points = vec![point(400 * MIB, 0.6)];
        let need = settings(Some(&slow), &host()).need_bytes.unwrap();
        // The refault distances were short: a little more memory is enough.
        assert!((410 * MIB..600 * MIB).contains(&need), "{}", need / MIB);
        slow.points.push(point(need, 0.9));
        let more = settings(Some(&slow), &host()).need_bytes.unwrap();
        assert!(more > need, "{} MiB", more / MIB);
    }

    #[test]
    fn a_run_that_never_reached_its_bound_needs_what_it_used() {
        assert_eq!(local_of_run(Some(1000), 80), 90);
        assert_eq!(local_of_run(Some(80), 80), 80);
        assert_eq!(local_of_run(None, u64::MAX), u64::MAX);
    }

    #[test]
    fn unknown_programs_join_nobody() {
        let online = [Online {
            copies: policy("1+disk"),
            room_bytes: u64::MAX,
        }];
        let got = steps(&settings(None, &host()), &online, &[]);
        assert_eq!(got, [Step::New]);
    }

    fn any_copies() -> impl Strategy<Value = Policy> {
        (0..3usize).prop_map(|i| Policy::NAMED[[0, 2, 5][i]].1)
    }

    /// Algorithm 1 as published: online tenants, free ones with the same backend, any free one, a new one.
    fn algorithm_1(s: &Settings, online: &[Online], free: &[Policy]) -> Step {
        let mut best: Option<usize> = None;
        for (i, tenant) in online.iter().enumerate() {
            let Some(need) = s.need_bytes else { continue };
            if tenant.copies == s.copies && tenant.room_bytes >= need {
                let is_better = match best {
                    None => true,
                    Some(b) => tenant.room_bytes < online[b].room_bytes,
                };
                if is_better {
                    best = Some(i);
                }
            }
        }
        if let Some(best) = best {
            return Step::Join(best);
        }
        for (i, copies) in free.iter().enumerate() {
            if *copies == s.copies {
                return Step::Take(Free::Same(i));
            }
        }
        match free.is_empty() {
            false => Step::Take(Free::Switch(0)),
            true => Step::New,
        }
    }

    proptest! {
        #[test]
        fn each_step_is_that_of_the_algorithm_when_those_before_have_refused(
            copies in any_copies(),
            need in prop::option::of(0..20u64),
            tenants in prop::collection::vec((any_copies(), 0..30u64), 0..8),
            free in prop::collection::vec(any_copies(), 0..4),
        ) {
            let settings = Settings {
                copies, need_bytes: need, local_bytes: LOCAL_MIN, pool_bytes: None, why: String::new(),
            };
            let mut online: Vec<Online> = tenants
                .into_iter()
                .map(|(copies, room_bytes)| Online { copies, room_bytes })
                .collect();
            let mut left = free.clone();
            for step in steps(&settings, &online, &free) {
                prop_assert_eq!(step, algorithm_1(&settings, &online, &left));
                // The tenant rejects it.
                match step {
                    Step::Join(i) => {
                        prop_assert_eq!(online[i].copies, copies);
                        prop_assert!(Some(online[i].room_bytes) >= need);
                        online[i].copies = Policy::new(9, false);
                    }
                    Step::Take(_) => left.clear(),
                    Step::New => {}
                }
            }
        }

        #[test]
        fn whatever_is_known_settings_can_be_had(
            footprint in any::<u64>(),
            compression in prop::option::of(0.1..1e6f64),
            ratios in (prop::option::of(0.0..=1.0f64), prop::option::of(0.0..=1.0f64)),
            points in prop::collection::vec((any::<u64>(), 0.0..=1.0f64, prop::collection::vec(0..100u64, 9)), 0..7),
            spare_bytes in any::<u64>(),
            pool_bytes_max in any::<u64>(),
            default in 0..6usize,
            has in (any::<bool>(), any::<bool>()),
        ) {
            let points = points.into_iter().map(|(local_bytes, speed, refaults)| Point {
                speed,
                curve: Curve { local_bytes, footprint_bytes: footprint, refaults, stream_ratio: 0.5 },
            });
            let known = Known {
                footprint_bytes: footprint,
                compression,
                file_ratio: ratios.0,
                sequential_ratio: ratios.1,
                points: points.collect(),
            };
            let host = Host {
                spare_bytes, pool_bytes_max, copies: Policy::NAMED[default].1, has_donors: has.0, has_disk: has.1,
            };
            let got = settings(Some(&known), &host);
            let spare = spare_bytes.max(LOCAL_MIN);
            prop_assert!((LOCAL_MIN..=spare).contains(&got.local_bytes));
            prop_assert_eq!(got.need_bytes.is_some(), !known.points.is_empty());
            prop_assert!(got.need_bytes.is_none_or(|n| n >= got.local_bytes || n == got.local_bytes));
            if let Some(pool) = got.pool_bytes {
                let left = spare - got.local_bytes;
                prop_assert!(pool == POOL_MIN || pool > POOL_MIN && pool <= left.min(pool_bytes_max));
            }
            // The default, or a policy that is possible here and also keeps a copy on the disk.
            let is_there = (got.copies.donors == 0 || host.has_donors) && (!got.copies.disk || host.has_disk);
            prop_assert!(got.copies == host.copies || is_there && got.copies.disk);
        }
    }
}
