//! Problems of a tenant, by stable codes; docs/OPERATING.md has the table.

use std::time::Duration;

use crate::status::{AgentStatus, DonorState, DonorStatus};
use crate::text::Bytes;
use crate::wire::{Far, Limits, Problem, Used};
use canvas_types::units::Size;

/// A kind of problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// A donor cannot be reached.
    DonorUnreachable,
    /// Slabs have fewer copies than `--copies` asks for.
    SlabsDegraded,
    /// All far memory is in use, and the pool is filling up.
    FarFull,
    /// Reclaim has stopped because there is no room.
    PoolFull,
    /// The agent has died, and another one is taking over.
    AgentRestarting,
    /// Far copies did not verify.
    VerifyFailures,
    /// A donor lends no more memory.
    DonorPressure,
    /// The agent has not reported for too long.
    AgentSilent,
    /// More local memory is used than the limit allows.
    OverLocal,
    /// Processes run unmanaged.
    Unmanaged,
    /// Copies on donors or disk were damaged.
    CopiesCorrupt,
    /// The `canvas run` process does not answer.
    RunnerSilent,
    /// The limit on local memory is below the memory that cannot be paged.
    LocalTooSmall,
    /// The host has no more memory than its reserve.
    HostShort,
    /// A donor answers much later than the fastest.
    DonorSlow,
}

/// Memory left on a host that is short of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostLeft {
    /// Memory that can still be used.
    pub available_bytes: u64,
    /// Memory that must stay free.
    pub reserve_bytes: u64,
}

impl Code {
    /// All codes; a number is never reused.
    pub const ALL: [(Code, &'static str, &'static str); 15] = [
        (Code::DonorUnreachable, "C001", "donor-unreachable"),
        (Code::SlabsDegraded, "C002", "slabs-degraded"),
        (Code::FarFull, "C003", "far-full"),
        (Code::PoolFull, "C004", "pool-full"),
        (Code::AgentRestarting, "C005", "agent-restarting"),
        (Code::VerifyFailures, "C006", "verify-failures"),
        (Code::DonorPressure, "C007", "donor-pressure"),
        (Code::AgentSilent, "C008", "agent-silent"),
        (Code::OverLocal, "C009", "over-local"),
        (Code::Unmanaged, "C010", "unmanaged"),
        (Code::CopiesCorrupt, "C011", "copies-corrupt"),
        (Code::RunnerSilent, "C012", "runner-silent"),
        (Code::LocalTooSmall, "C013", "local-too-small"),
        (Code::HostShort, "C014", "host-short"),
        (Code::DonorSlow, "C015", "donor-slow"),
    ];

    /// A problem of this kind.
    pub fn problem(self, text: impl Into<String>) -> Problem {
        let (_, code, name) = Code::ALL[self as usize];
        Problem {
            code: code.to_owned(),
            name: name.to_owned(),
            text: text.into(),
        }
    }
}

/// The agent reports twice a second; after this long it counts as silent.
const SILENT: Duration = Duration::from_secs(3);
/// Overshoot of the local limit that is tolerated.
const OVERSHOOT_BYTES: u64 = 4 << 20;

/// Input for a tenant's health.
pub struct Facts<'a> {
    /// Its limits.
    pub limits: &'a Limits,
    /// Its usage.
    pub used: &'a Used,
    /// Its far memory, if it has any.
    pub far: Option<&'a Far>,
    /// The agent's last report, and its age.
    pub agent: Option<(&'a AgentStatus, Duration)>,
    /// The agent died a moment ago, and another one has taken over or will.
    pub agent_restarts: bool,
    /// Reclaim has stopped because there is no room.
    pub stopped: bool,
    /// The host has no more than its reserve, or hardly more.
    pub host: Option<HostLeft>,
    /// Number of far copies that did not verify.
    pub verify_failures: u64,
    /// Number of processes that could not be managed.
    pub unmanaged: u32,
}

/// Reports problems of far memory beyond the pool.
fn judge_far(f: &Facts, far: &Far, add: &mut impl FnMut(Code, String)) {
    if far.degraded_slabs > 0 {
        let n = far.degraded_slabs;
        add(
            Code::SlabsDegraded,
            format!("slabs of far memory with fewer copies than --copies asks for: {n}"),
        );
    }
    let limit = f.limits.far_bytes.unwrap_or(0);
    // It is fine that all slabs are in use while compaction makes room in them: then the pool stays
    // near its mark.
    let bound = f.limits.pool_now_bytes();
    let mark = bound / 100 * f.limits.spill_at_percent.unwrap_or(100).min(100);
    if f.used.far_bytes >= limit && f.used.pool_bytes > mark + (bound - mark) / 2 {
        add(
            Code::FarFull,
            "all of --far is in use, and the pool fills up: it is far past spill-at".to_owned(),
        );
    }
    if far.corrupt > 0 {
        let n = far.corrupt;
        add(
            Code::CopiesCorrupt,
            format!("{n} copies that were read from donors or disk were damaged or old"),
        );
    }
}

/// Slow donors: silent ones, and those whose reads or pings take many times as long as those of the
/// run's fastest donor, by a relevant amount.
pub fn slow(donors: &[DonorStatus]) -> impl Iterator<Item = &DonorStatus> {
    /// A donor is slow if its median time is this many times the fastest donor's,
    const TIMES: u32 = 8;
    /// and no less than this: for reads,
    const READ_US_MIN: u32 = 2_000;
    /// and for pings, which have to wake threads on a busy host.
    const PING_US_MIN: u32 = 10_000;
    /// A request that waits longer than this waits for more than a pause of the donor's host.
    const SILENT_US: u32 = 200_000;
    let read = |d: &DonorStatus| d.read_us.map(|(p50, _)| p50);
    let ping = |d: &DonorStatus| d.round_trip_us;
    let bound = |us: &dyn Fn(&DonorStatus) -> Option<u32>, least: u32| {
        let best = donors.iter().filter_map(us).min().unwrap_or(0);
        best.saturating_mul(TIMES).max(least)
    };
    let (read_us_max, ping_us_max) = (bound(&read, READ_US_MIN), bound(&ping, PING_US_MIN));
    let serves = |d: &&DonorStatus| matches!(d.state, DonorState::Up | DonorState::Pressure);
    donors.iter().filter(serves).filter(move |d| {
        (d.suspect && d.waits_us >= SILENT_US)
            || read(d).is_some_and(|us| us > read_us_max)
            || ping(d).is_some_and(|us| us > ping_us_max)
    })
}

fn how_slow(d: &DonorStatus) -> String {
    let addr = d.addr;
    let reads = d.read_us.map_or_else(String::new, |(p50, p99)| {
        format!(": half of its reads take {p50} us or more, one in 100 {p99} us or more")
    });
    let pings = d.round_trip_us.map_or_else(String::new, |us| {
        let joined = if reads.is_empty() { ":" } else { ", and" };
        format!("{joined} half of its answers to a ping {us} us or more")
    });
    match d.suspect {
        true => {
            format!(
                "donor {addr} is silent, and is read only after others until it answers{reads}{pings}"
            )
        }
        false => format!("donor {addr} answers much later than another{reads}{pings}"),
    }
}

/// All problems, ordered by code.
pub fn judge(f: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |code: Code, text: String| found.push(code.problem(text));
    let donors = f.agent.iter().flat_map(|(agent, _)| &agent.donors);
    for d in donors.clone().filter(|d| d.state == DonorState::Down) {
        add(
            Code::DonorUnreachable,
            format!("donor {} cannot be reached", d.addr),
        );
    }
    if let Some(far) = f.far {
        judge_far(f, far, &mut add);
    }
    if f.stopped {
        add(
            Code::PoolFull,
            "there is no room for more far copies: reclaim has stopped, and new memory is refused"
                .to_owned(),
        );
    }
    if let Some(left) = f.host {
        let (available, reserve) = (Bytes(left.available_bytes), Bytes(left.reserve_bytes));
        add(
            Code::HostShort,
            format!(
                "this host has {available} of memory left, of which {reserve} are its reserve (-o host-reserve): the pool stops growing"
            ),
        );
    }
    if f.agent_restarts {
        add(
            Code::AgentRestarting,
            "the agent of far memory has ended, and another one takes over".to_owned(),
        );
    }
    if f.verify_failures > 0 {
        let n = f.verify_failures;
        add(
            Code::VerifyFailures,
            format!("{n} far copies did not verify on their way back"),
        );
    }
    for d in donors.filter(|d| d.state == DonorState::Pressure) {
        add(
            Code::DonorPressure,
            format!(
                "donor {} lends nothing more, and may take memory back",
                d.addr
            ),
        );
    }
    for d in f.agent.iter().flat_map(|(agent, _)| slow(&agent.donors)) {
        add(Code::DonorSlow, how_slow(d));
    }
    if let Some((_, age)) = f.agent.filter(|(_, age)| *age > SILENT) {
        add(
            Code::AgentSilent,
            format!(
                "the agent of far memory has not reported for {} s",
                age.as_secs()
            ),
        );
    }
    if let Some(needed) = f.limits.local_needed_bytes {
        add(
            Code::LocalTooSmall,
            format!(
                "--local is less than what cannot be paged and the least that each process needs: the program exceeds it; {} is enough",
                Size::from_bytes(needed)
            ),
        );
    } else if let Some(limit) = f.limits.local_effective_bytes
        && f.used.local_bytes > limit + OVERSHOOT_BYTES
    {
        add(
            Code::OverLocal,
            "more local memory is used than --local allows".to_owned(),
        );
    }
    if f.unmanaged > 0 {
        let n = f.unmanaged;
        add(Code::Unmanaged, format!("{n} processes run unmanaged"));
    }
    // A stable sort, which keeps problems of one kind together.
    found.sort_by(|a, b| a.code.cmp(&b.code));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::DonorStatus;

    const DOC: &str = include_str!("../../../docs/OPERATING.md");

    #[test]
    fn each_code_has_its_row_in_the_document() {
        for (i, (code, number, name)) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, i);
            assert_eq!(number, format!("C{:03}", i + 1));
            assert!(
                DOC.contains(&format!("| `{number}` | `{name}` |")),
                "{name}"
            );
        }
        let rows = DOC.lines().filter(|l| l.starts_with("| `C0")).count();
        assert_eq!(rows, Code::ALL.len());
    }

    fn limits() -> Limits {
        Limits {
            local_bytes: Some(64 << 20),
            local_percent: None,
            local_effective_bytes: Some(64 << 20),
            local_needed_bytes: None,
            pool_bytes: 100 << 20,
            far_bytes: Some(256 << 20),
            spill_at_percent: Some(80),
            far_wait_ms: Some(1),
            unit: None,
            lanes: None,
            prefetch: "none".to_owned(),
            app_tier: "off".to_owned(),
            weight: Some(100),
            swap_in_limit_bytes_per_s: None,
            swap_out_limit_bytes_per_s: None,
            pool_grant_bytes: None,
            shared_bytes: None,
            shared_grant_bytes: None,
            proactive_threshold_bytes: None,
            proactive_batch_bytes: 0,
            slo: None,
            copies: None,
        }
    }

    fn names(found: &[Problem]) -> Vec<&str> {
        found.iter().map(|p| p.name.as_str()).collect()
    }

    #[test]
    fn each_trouble_is_seen_and_health_too() {
        let limits = limits();
        let good_used = Used {
            local_bytes: 66 << 20,
            pool_bytes: 90 << 20, // Halfway between 80 % and full.
            far_bytes: 256 << 20,
            ..Used::default()
        };
        let donor = |state, port| DonorStatus {
            addr: ([127, 0, 0, 1], port).into(),
            state,
            slabs: 0,
            free_bytes: 0,
            round_trip_us: None,
            read_us: Some((100, 900)),
            suspect: false,
            failovers: 0,
            outstanding: 0,
            waits_us: 0,
        };
        let good_agent = AgentStatus {
            donors: vec![donor(DonorState::Up, 1), donor(DonorState::Listing, 2)],
            ..AgentStatus::default()
        };
        let good = Facts {
            limits: &limits,
            used: &good_used,
            far: Some(&Far::default()),
            agent: Some((&good_agent, Duration::from_secs(1))),
            agent_restarts: false,
            stopped: false,
            host: None,
            verify_failures: 0,
            unmanaged: 0,
        };
        assert_eq!(judge(&good), []);
        let used = Used {
            local_bytes: 69 << 20,
            pool_bytes: 91 << 20,
            ..good_used
        };
        let agent = AgentStatus {
            donors: vec![
                donor(DonorState::Pressure, 1),
                donor(DonorState::Down, 2),
                donor(DonorState::Down, 3),
                DonorStatus {
                    read_us: Some((2_001, 2_002)),
                    round_trip_us: Some(200),
                    ..donor(DonorState::Up, 4)
                },
                DonorStatus {
                    suspect: true,
                    waits_us: 200_000,
                    ..donor(DonorState::Up, 5)
                },
                DonorStatus {
                    suspect: true,
                    waits_us: 199_999,
                    round_trip_us: Some(10_000),
                    ..donor(DonorState::Up, 7)
                },
                // No reads from this one.
                DonorStatus {
                    read_us: None,
                    round_trip_us: Some(10_001),
                    ..donor(DonorState::Pressure, 8)
                },
                DonorStatus {
                    read_us: Some((1_999, 90_000)),
                    ..donor(DonorState::Up, 6)
                },
            ],
            ..AgentStatus::default()
        };
        let bad = Facts {
            used: &used,
            far: Some(&Far {
                degraded_slabs: 2,
                corrupt: 1,
                ..Far::default()
            }),
            agent: Some((&agent, Duration::from_secs(9))),
            agent_restarts: true,
            stopped: true,
            host: Some(HostLeft {
                available_bytes: 5,
                reserve_bytes: 4,
            }),
            verify_failures: 3,
            unmanaged: 1,
            ..good
        };
        assert_eq!(
            names(&judge(&bad)),
            [
                "donor-unreachable",
                "donor-unreachable",
                "slabs-degraded",
                "far-full",
                "pool-full",
                "agent-restarting",
                "verify-failures",
                "donor-pressure",
                "donor-pressure",
                "agent-silent",
                "over-local",
                "unmanaged",
                "copies-corrupt",
                "host-short",
                "donor-slow",
                "donor-slow",
                "donor-slow",
            ]
        );
        let slow = slow(&agent.donors).map(|d| d.addr.port());
        assert_eq!(slow.collect::<Vec<_>>(), [4, 5, 8]);
        // Reported instead of `over-local`, with the limit that is needed.
        let limits = Limits {
            local_needed_bytes: Some(80 << 20),
            ..limits.clone()
        };
        let over = Used {
            local_bytes: used.local_bytes,
            ..good_used
        };
        let found = judge(&Facts {
            limits: &limits,
            used: &over,
            ..good
        });
        assert_eq!(names(&found), ["local-too-small"]);
        assert!(found[0].text.contains("80M"), "{}", found[0].text);
    }
}
