//! `--slo`: evicts memory that a program does not need, ahead of need, as far as the slowdown stays
//! within the target (`canvas_place::slo` decides).

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use canvas_control::features::Sums;
use canvas_place::slo::{Controller, Latency, Slowdown, TenantSample};
use canvas_shm::histogram::{BUCKETS, bucket_floor_ns};
use canvas_shm::lives::Lives;
use canvas_shm::segment::{Counter, Mode, ProcSlot, Segment};
use canvas_sys::proc::futex_wake;
use canvas_types::Slo;

use crate::control::features;
use crate::sweep::Sample;

/// Interval of samples.
const PERIOD: Duration = Duration::from_millis(200);
/// Most of the pool that may be copies of resident pages, as a share, and at least the bytes below.
const COPIES_MAX: f64 = 0.125;
const COPIES_MAX_BYTES: i64 = 2 << 20;
/// Interval of asking processes to drop such copies.
const COPIES_PERIOD: Duration = Duration::from_secs(1);

/// State of `--slo` for one run.
pub struct Offload {
    controller: Controller,
    slowdown: Slowdown,
    latency: Latency,
    before: Option<Before>,
    /// Time of the next sample.
    next: Instant,
    /// Time of the next check of copies in the pool.
    next_copies: Instant,
}

struct Before {
    at: Instant,
    sums: Sums,
    fault_ns: [u64; BUCKETS],
}

impl Offload {
    /// For a run that starts now.
    pub fn new() -> Offload {
        Offload {
            controller: Controller::new(),
            slowdown: Slowdown::default(),
            latency: Latency::new(BUCKETS),
            before: None,
            next: Instant::now(),
            next_copies: Instant::now(),
        }
    }

    /// If there is a target and a sample is due, takes it and requests evictions.
    pub fn look(&mut self, lives: Lives, segment: &Segment, mode: Option<Mode>) {
        let now = Instant::now();
        let slo = segment.config.slo();
        // Only the run that made the tenant does this.
        let is_ours = segment.config.runner_pid.load(Relaxed) == std::process::id();
        if now < self.next || !slo.is_on() || !is_ours {
            return;
        }
        self.next = now + PERIOD;
        let sample = Sample::take(segment);
        let sums = features::look(Some(lives), segment, mode, &sample);
        let after = Before {
            at: now,
            sums,
            fault_ns: segment.fault_times().0,
        };
        let Some(before) = self.before.replace(after) else {
            return;
        };
        let elapsed_s = now.duration_since(before.at).as_secs_f64();
        let of_target = self.measure(&before, elapsed_s, slo);
        let pages = self.controller.step(&TenantSample {
            elapsed_s,
            of_target,
            local_pages: held(segment).map(|(_, pages)| pages).sum(),
            footprint_pages: sample.touched_pages().max(0) as u64,
        });
        ask(segment, pages);
        if now >= self.next_copies {
            self.next_copies = now + COPIES_PERIOD;
            let stored = self.before.as_ref().map_or(0, |b| b.sums.stored_pages);
            ask_for_copies(segment, stored);
        }
    }

    /// The measured cost since `before`, as a part of the target.
    fn measure(&mut self, before: &Before, elapsed_s: f64, slo: Slo) -> Option<f64> {
        let after = self.before.as_ref()?;
        let since = after.sums.since(&before.sums);
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.slowdown.add(
            elapsed_s,
            seconds(since.paging_ns()),
            seconds(since.rest_ns()),
        );
        let mut more = [0; BUCKETS];
        for (i, more) in more.iter_mut().enumerate() {
            *more = after.fault_ns[i].saturating_sub(before.fault_ns[i]);
        }
        self.latency.add(elapsed_s, &more);
        match slo {
            Slo::Off => None,
            Slo::Slowdown(ppm) => Some(self.slowdown.now()? / (f64::from(ppm) / 1e6)),
            Slo::P99(ns) => {
                let p99_ns = bucket_floor_ns(self.latency.p99_bucket()? + 1);
                Some(p99_ns as f64 / ns as f64)
            }
        }
    }
}

impl Default for Offload {
    fn default() -> Offload {
        Offload::new()
    }
}

/// The running processes, and the number of pages of each.
fn held(segment: &Segment) -> impl Iterator<Item = (&ProcSlot, u64)> {
    segment
        .procs_used()
        .iter()
        .filter(|slot| slot.identity().is_some())
        .map(|slot| (slot, slot.held_pages().max(0) as u64))
}

/// Requests from each process its part of `pages`.
fn ask(segment: &Segment, pages: u64) {
    let all: u64 = held(segment)
        .map(|(_, pages)| pages)
        .fold(0, u64::saturating_add);
    if all == 0 || pages == 0 {
        return;
    }
    for (slot, has) in held(segment) {
        let part = u128::from(pages) * u128::from(has) / u128::from(all);
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        if part > 0 {
            // Overwrites what is left of the last request.
            slot.offload_wanted.store(part, Relaxed);
            slot.wake.fetch_add(1, Release);
            futex_wake(&slot.wake, 1);
        }
    }
    segment.count(0, Counter::PagesOffload, pages);
}

/// Copies of resident pages save work when the pages are evicted again, but take memory until then.
/// With a target that frees memory, each process drops half of the copies beyond a small part of
/// the pool. The pool has `stored` pages.
fn ask_for_copies(segment: &Segment, stored: u64) {
    let far: i64 = held(segment)
        .map(|(slot, _)| slot.far_pages.load(Relaxed).max(0))
        .sum();
    if stored == 0 {
        return;
    }
    let copies = 1.0 - far as f64 / stored as f64;
    for (slot, _) in held(segment) {
        let pool = slot.pool_bytes.load(Relaxed).max(0);
        let bytes = (pool as f64 * (copies - COPIES_MAX) / 2.0) as i64;
        if bytes > COPIES_MAX_BYTES {
            slot.pool_wanted_bytes.fetch_max(bytes, Relaxed);
            slot.wake.fetch_add(1, Release);
            futex_wake(&slot.wake, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_pages_that_are_back_are_given_up_past_a_small_part_of_the_pool() {
        let (_fd, segment) = Segment::create(false).unwrap();
        let slot = &segment.procs[0];
        slot.id.store(10, Relaxed);
        slot.pool_bytes.store(64 << 20, Relaxed);
        segment.procs_end.store(1, Relaxed);
        let asked = |far: i64, stored: u64| {
            slot.far_pages.store(far, Relaxed);
            slot.pool_wanted_bytes.store(0, Relaxed);
            ask_for_copies(segment, stored);
            slot.pool_wanted_bytes.load(Relaxed)
        };
        // All stored pages are evicted; nothing is stored; a ninth is resident.
        assert_eq!(asked(32_768, 32_768), 0);
        assert_eq!(asked(100, 0), 0);
        assert_eq!(asked(16_000, 18_000), 0);
        // Half is resident.
        assert_eq!(asked(16_384, 32_768), (64 << 20) * 3 / 16);
    }

    #[test]
    fn each_process_is_asked_for_its_part() {
        let (_fd, segment) = Segment::create(false).unwrap();
        for (slot, pid, pages) in [(0, 10, 3000), (1, 11, 1000), (2, 0, 5000), (3, 12, 0)] {
            let slot = &segment.procs[slot];
            slot.id.store(pid, Relaxed);
            slot.resident_pages.store(pages, Relaxed);
        }
        segment.procs_end.store(4, Relaxed);
        ask(segment, 400);
        let asked: Vec<u32> = segment.procs[..4]
            .iter()
            .map(|s| s.offload_wanted.load(Relaxed))
            .collect();
        assert_eq!(asked, [300, 100, 0, 0]);
        assert_eq!(segment.total(Counter::PagesOffload), 400);
    }
}
