//! Reports the donors' state to the journal, twice a second.

use std::time::{Duration, Instant};

use canvas_sys::proc::now_ns;

use super::Replicas;
use super::donor::State;
use canvas_control::status::{AgentStatus, DonorState, DonorStatus};

/// Time between two reports.
const PAUSE: Duration = Duration::from_millis(500);

impl Replicas {
    /// Writes the donors' state to the journal, if that is due.
    pub(super) fn report(&mut self) {
        if self.reported.is_some_and(|t| t.elapsed() < PAUSE) {
            return;
        }
        self.reported = Some(Instant::now());
        let mut slabs = vec![0u32; self.donors.len()];
        for copy in self.map.values().flat_map(|e| &e.replicas) {
            slabs[copy.donor] += 1;
        }
        // By donor, the number of requests awaiting an answer and the start of the oldest.
        let mut waiting = vec![(0u32, None::<Instant>); self.donors.len()];
        for sent in self.calls.values() {
            let (n, since) = &mut waiting[sent.donor];
            *n += 1;
            *since = Some(since.map_or(sent.since, |s| s.min(sent.since)));
        }
        let us = |t: Duration| t.as_micros().min(u128::from(u32::MAX - 1)) as u32;
        let us_of = |ns| us(Duration::from_nanos(ns));
        let donors = self.donors.iter().zip(slabs).zip(waiting);
        let donors = donors.map(|((d, slabs), (outstanding, since))| DonorStatus {
            addr: d.addr.addr,
            state: match d.state {
                State::Down(_) => DonorState::Down,
                State::Listing => DonorState::Listing,
                State::Up if d.pressure => DonorState::Pressure,
                State::Up => DonorState::Up,
            },
            slabs,
            free_bytes: d.free_bytes,
            round_trip_us: d.round_trips.median_ns().map(us_of),
            read_us: (d.pace.p50_and_p99_ns()).map(|(p50, p99)| (us_of(p50), us_of(p99))),
            suspect: d.suspect.is_some(),
            failovers: d.failovers,
            outstanding,
            waits_us: since.map_or(0, |since| us(since.elapsed())),
        });
        let status = AgentStatus {
            at_ns: now_ns(),
            pid: std::process::id(),
            degraded_slabs: self.degraded,
            disk_behind_bytes: self.behind * canvas_shm::far::EXTENT_BYTES as u64,
            donors: donors.collect(),
        };
        self.journal.put_status(&status);
    }
}
