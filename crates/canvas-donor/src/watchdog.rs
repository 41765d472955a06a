//! The watchdog: one thread that samples the host's memory, ends leases, evicts, and writes the
//! state file.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use canvas_host::HostMemory;
use canvas_place::early::{self, Worth};
use canvas_place::headroom::Decision;
use canvas_place::lease;
use tracing::{error, info, warn};

use crate::server::Shared;
use crate::{QUERY_TIME, TICK, TICK_NEAR, state};

/// Interval of writing the state file.
const STATE_EVERY_MS: u64 = 1000;

/// The watchdog's state between ticks.
pub(crate) struct Watchdog {
    rng: fastrand::Rng,
    /// An eviction that waits for clients' answers: number of slabs, and deadline.
    query: Option<(usize, u64)>,
    state_due_ms: u64,
    available_bytes: u64,
    /// Time of the last tick.
    ticked_ms: Option<u64>,
    /// Time of the next decision about lending more or less.
    decides_ms: u64,
    /// Tracks how fast the host's memory shrinks.
    watch: early::Watch,
    /// Whether the host's memory is nearly used up.
    is_near: bool,
}

impl Watchdog {
    pub fn new(seed: u64) -> Watchdog {
        Watchdog {
            rng: fastrand::Rng::with_seed(seed),
            query: None,
            state_due_ms: 0,
            available_bytes: 0,
            ticked_ms: None,
            decides_ms: 0,
            watch: early::Watch::default(),
            is_near: false,
        }
    }

    /// Runs until the donor has stopped.
    pub fn run(mut self, shared: &Arc<Shared>) {
        while !shared.is_stopped() {
            self.tick(shared, shared.now_ms());
            shared.sleep(if self.is_near { TICK_NEAR } else { TICK });
        }
        self.write_state(shared);
    }

    /// One tick at this time.
    pub(crate) fn tick(&mut self, shared: &Arc<Shared>, now_ms: u64) {
        // Messages that clients sent meanwhile are in their sockets, and may be read only after
        // this.
        let before_ms = self.ticked_ms.replace(now_ms).unwrap_or(now_ms);
        if let Some(gap_ms) = lease::gap(before_ms, now_ms, TICK.as_millis() as u64) {
            shared.registry.postpone(gap_ms, now_ms);
        }
        for gone in shared.registry.expire(now_ms) {
            shared.lanes.end_all(&gone.client.id);
            let counters = &shared.counters;
            counters.expired_slabs.fetch_add(gone.slabs as u64, Relaxed);
            if gone.slabs > 0 {
                warn!(
                    client = %state::hex(&gone.client.id[..4]),
                    "lease over: the client was silent for {} ms; slabs of it that are freed: {}",
                    now_ms.saturating_sub(gone.client.last_ms()),
                    gone.slabs
                );
            }
        }
        let late = shared.registry.free_due(now_ms);
        if late > 0 {
            shared
                .counters
                .evicted_late_slabs
                .fetch_add(late as u64, Relaxed);
            warn!("deadline over: slabs that were not moved in time and are freed: {late}");
        }
        self.watch_memory(shared, now_ms);
        self.finish_query(shared, now_ms);
        if now_ms >= self.state_due_ms {
            self.state_due_ms = now_ms + STATE_EVERY_MS;
            self.write_state(shared);
        }
    }

    fn watch_memory(&mut self, shared: &Arc<Shared>, now_ms: u64) {
        let memory = match shared.host.memory() {
            Ok(memory) => memory,
            Err(why) => {
                // Without figures it must not lend; it also does not take back what it lent.
                shared.budget.set(0);
                self.is_near = false;
                error!("memory unknown: {why}");
                return;
            }
        };
        let available = memory.available_bytes;
        self.available_bytes = available;
        shared.set_budget(available);
        self.free_early(shared, memory, now_ms);
        // The average is defined over samples at this interval.
        if now_ms < self.decides_ms {
            return;
        }
        self.decides_ms = now_ms + TICK.as_millis() as u64;
        match shared.registry.observe(available) {
            Decision::Hold => {}
            Decision::Expand => info!(
                "expand: lending up to {} MiB again",
                shared.registry.headroom().1 >> 20
            ),
            Decision::Evict { slabs } if self.query.is_none() => {
                let sampled = shared.registry.query(&mut self.rng, slabs as usize);
                if sampled > 0 {
                    let until_ms = now_ms + QUERY_TIME.as_millis() as u64;
                    self.query = Some((slabs as usize, until_ms));
                }
            }
            Decision::Evict { .. } => {}
        }
    }

    /// Frees slabs at once if the host runs out of memory before clients can move them.
    fn free_early(&mut self, shared: &Arc<Shared>, memory: HostMemory, now_ms: u64) {
        let available = memory.available_bytes;
        self.watch.sample(now_ms, available);
        let sample = early::HostSample {
            available_bytes: available,
            swap_free_bytes: memory.swap_free_bytes,
            reserve_bytes: shared.reserve_bytes,
            fall_bytes_s: self.watch.fall_bytes_s(),
        };
        // If nothing is lent, there is nothing to free.
        self.is_near = sample.is_near() && shared.registry.pong().lent_bytes > 0;
        if !sample.is_short() || self.watch.is_stale(now_ms, available) {
            return;
        }
        let freed = shared.registry.free_early(&sample);
        if freed.is_empty() {
            return;
        }
        let bytes = freed.iter().map(|s| s.bytes).sum();
        self.watch.freed(now_ms, available, bytes);
        let sole = freed.iter().filter(|s| s.worth == Worth::Sole).count();
        let counters = &shared.counters;
        counters
            .freed_early_slabs
            .fetch_add(freed.len() as u64, Relaxed);
        counters
            .freed_early_sole_slabs
            .fetch_add(sole as u64, Relaxed);
        error!(
            "freed early: only {} MiB are available (reserve {} MiB), {} MiB less every second; \
                 slabs that are freed at once: {} ({} MiB), of which the only copies known here: {sole}",
            available >> 20,
            shared.reserve_bytes >> 20,
            sample.fall_bytes_s >> 20,
            freed.len(),
            bytes >> 20,
        );
    }

    fn finish_query(&mut self, shared: &Arc<Shared>, now_ms: u64) {
        let Some((slabs, until_ms)) = self.query else {
            return;
        };
        if now_ms < until_ms && !shared.registry.all_answered() {
            return;
        }
        self.query = None;
        let deadline_ms = now_ms + shared.config.evict_within.as_millis() as u64;
        let stopped = shared.registry.stop_least_active(slabs, deadline_ms);
        shared
            .counters
            .evicted_slabs
            .fetch_add(stopped as u64, Relaxed);
        warn!(
            "evict: {} MiB are available, the reserve is {} MiB; slabs that must go within {} ms: {stopped}",
            self.available_bytes >> 20,
            shared.reserve_bytes >> 20,
            shared.config.evict_within.as_millis()
        );
    }

    fn write_state(&self, shared: &Arc<Shared>) {
        if let Some(path) = &shared.config.state_json {
            let text = state::json(shared, self.available_bytes);
            if let Err(e) = state::write(path, &text) {
                warn!("state file: {} cannot be written: {e}", path.display());
            }
        }
    }
}
