//! Far memory beyond a tenant's pool in the answers to clients: for runs and disks alike.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use canvas_control::health::slow;
use canvas_control::status::{AgentStatus, DonorStatus};
use canvas_control::wire::{Donor, Far, Limits};
use canvas_shm::far::SLAB_BYTES;
use canvas_shm::segment::Segment;
use canvas_sys::proc::now_ns;
use canvas_types::ReadUnit;

use super::set::Change;
use crate::far::Keeper;
use crate::stats::slabs;

/// The limits on the pool and on far memory; other fields are empty.
pub fn limits(segment: &Segment, agent: Option<&Keeper>) -> Limits {
    let area = agent.map(Keeper::far);
    let share = agent.map(Keeper::share);
    let pool = agent.and_then(Keeper::pool);
    let asked_bytes = segment.config.pool_bytes.load(Relaxed);
    Limits {
        pool_bytes: pool.map_or(asked_bytes, |p| p.ceiling_bytes),
        far_bytes: area.map(|a| slabs(a).1 * SLAB_BYTES as u64),
        spill_at_percent: area.map(|a| a.spill_percent.load(Relaxed)),
        far_wait_ms: area.map(|a| a.wait_ms_max.load(Relaxed)),
        unit: area.map(|a| ReadUnit::from_number(a.unit_bytes.load(Relaxed)).to_string()),
        lanes: area.map(|a| a.lanes.is_wanted()),
        copies: agent.and_then(Keeper::copies).map(|c| c.to_string()),
        weight: share.map(|s| s.weight),
        swap_in_limit_bytes_per_s: share.and_then(|s| s.swap_in_limit),
        swap_out_limit_bytes_per_s: share.and_then(|s| s.swap_out_limit),
        pool_grant_bytes: pool.map(|p| p.grant_bytes),
        ..Limits::default()
    }
}

/// Applies a change of the pool or of far memory, as far as the agent has not (where the agent
/// grants pools, it applies their changes).
pub fn apply(change: Change, segment: &Segment, area: Option<&canvas_shm::Far>, is_granted: bool) {
    match (change, area) {
        (Change::Pool(bytes), _) if !is_granted => {
            segment.config.pool_bytes.store(bytes, Relaxed);
        }
        (Change::SpillAt(percent), Some(a)) => a.spill_percent.store(percent, Relaxed),
        (Change::FarWait(ms), Some(a)) => a.wait_ms_max.store(ms, Relaxed),
        (Change::Lanes(wanted), Some(a)) => a.lanes.set_wanted(wanted),
        (Change::Unit(unit), Some(a)) => a.unit_bytes.store(unit.number(), Relaxed),
        // The agent applies it.
        _ => {}
    }
}

/// Far memory in use, in whole slabs, in bytes.
pub fn far_bytes(agent: &Keeper) -> u64 {
    slabs(agent.far()).0 * SLAB_BYTES as u64
}

/// Figures of far memory. The program can write to its segment, but not to the agent's report.
pub fn far(agent: &Keeper, said: Option<&AgentStatus>) -> Far {
    Far {
        disk_behind_bytes: said.map_or(0, |s| s.disk_behind_bytes),
        ..Far::of(agent.far(), said.map_or(0, |s| s.degraded_slabs))
    }
}

/// Age of the agent's report.
pub fn age(said: &AgentStatus) -> Duration {
    Duration::from_nanos(now_ns().saturating_sub(said.at_ns))
}

/// The donors in the agent's report.
pub fn donors(said: AgentStatus) -> Vec<Donor> {
    let slow: Vec<_> = slow(&said.donors).map(|d| d.addr).collect();
    let donor = |d: &DonorStatus| Donor {
        address: d.addr.to_string(),
        state: d.state.name().to_owned(),
        slabs: d.slabs,
        free_bytes: d.free_bytes,
        round_trip_us: d.round_trip_us,
        read_p50_us: d.read_us.map(|(p50, _)| p50),
        read_p99_us: d.read_us.map(|(_, p99)| p99),
        suspect: d.suspect,
        slow: slow.contains(&d.addr),
        failovers: d.failovers,
        outstanding: d.outstanding,
        waits_us: d.waits_us,
    };
    said.donors.iter().map(donor).collect()
}
