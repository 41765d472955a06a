//! `host-reserve`: a run's watch over its host's memory (`canvas_place::reserve` decides).
//!
//! "Host" is whatever limits the program: the machine, or a control group with a memory limit
//! (version 1 or 2) that contains the program; the one with least memory left above its reserve
//! counts.

use std::path::Path;
use std::time::Duration;

use canvas_host::groups::{Group, Limited, groups_of};
use canvas_place::reserve::{Guard, Held, RoomSample, Verdict};
use canvas_shm::segment::{LOCAL_PAGES_MIN, Segment, config_flag};
use canvas_sys::proc::{futex_wait, futex_wake, now_ns};
use canvas_types::PAGE_SIZE;
use canvas_types::units::Amount;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::facts::ram_bytes;
use crate::options::HostMemory;
use canvas_control::health::HostLeft;

/// Interval of samples while the tenant's steps are small and it grows, or its host has little
/// left; and otherwise.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_millis(50);
/// Least time between samples, however many processes want the next one at once.
const APART: Duration = Duration::from_micros(300);
/// Pools grow by less than this in [`LATER`].
const STEP_FOR_LATER: u64 = 64 << 20;
/// Memory that a run always keeps, so that its program can go on: of the pool, and of local memory.
const POOL_MIN_BYTES: u64 = 1 << 20;
const LOCAL_MIN_BYTES: u64 = LOCAL_PAGES_MIN as u64 * PAGE_SIZE as u64;

/// Watches as long as this process lives, on its own thread. CMD is process `child`.
pub fn watch(segment: &'static Segment, reserve: Amount, child: u32) {
    let watch = move || {
        let mut guard = Guard::default();
        let (mut limited, ram_bytes) = (Limited::default(), ram_bytes());
        let mut before = (0, 0);
        let mut answered = 0;
        loop {
            let groups = limited.look(ram_bytes, || groups_of(child));
            let wanted = segment.host.wanted.load(Acquire);
            let now = held(segment);
            let grows = (now.pool_bytes, now.local_bytes) != before;
            before = (now.pool_bytes, now.local_bytes);
            let soon = look(&groups, reserve).is_some_and(|seen| {
                apply(segment, &mut guard, seen, now);
                let near = seen.available_bytes < seen.reserve_bytes.saturating_mul(4);
                near || grows && seen.step_bytes() < STEP_FOR_LATER
            });
            // They wanted this sample, or none: a request from here on is for the next one.
            if wanted != answered {
                futex_wake(&segment.host.looks, i32::MAX as u32);
                answered = wanted;
            }
            std::thread::sleep(APART);
            let pause = if soon { SOON } else { LATER };
            futex_wait(&segment.host.wanted, wanted, pause.as_nanos() as u64);
        }
    };
    // Without the thread the program still runs, within the tenant's own limits.
    let _ = std::thread::Builder::new()
        .name("reserve".to_owned())
        .spawn(watch);
}

fn held(segment: &Segment) -> Held {
    let local_pages = segment.local_pages.load(Relaxed).max(0) as u64;
    Held {
        pool_bytes: segment.pool_used(),
        local_bytes: local_pages * PAGE_SIZE as u64,
        can_spill: segment.config.flags.load(Relaxed) & config_flag::FAR != 0,
    }
}

fn apply(segment: &Segment, guard: &mut Guard, seen: RoomSample, now: Held) {
    let host = &segment.host;
    host.available_bytes.store(seen.available_bytes, Relaxed);
    host.reserve_bytes.store(seen.reserve_bytes, Relaxed);
    match guard.judge(seen, now) {
        Verdict::Step { pool_bytes } => host.allow(pool_bytes, now_ns()),
        Verdict::Short {
            pool_bytes,
            local_bytes,
        } => {
            let began = !host.is_short();
            let local_pages = local_bytes.max(LOCAL_MIN_BYTES) / PAGE_SIZE as u64;
            host.bound(pool_bytes.max(POOL_MIN_BYTES), local_pages, now_ns());
            if began {
                canvas_agent::members::wake_all(segment);
            }
        }
    }
}

/// The shortage to report, if there is one.
pub fn left(segment: &Segment) -> Option<HostLeft> {
    let host = &segment.host;
    host.is_short().then(|| HostLeft {
        available_bytes: host.available_bytes.load(Relaxed),
        reserve_bytes: host.reserve_bytes.load(Relaxed),
    })
}

/// The machine's memory, and the part that this process's control groups allow.
pub fn host_memory() -> HostMemory {
    let groups = groups_of(std::process::id());
    let ram_bytes = ram_bytes();
    HostMemory {
        ram_bytes,
        usable_bytes: smallest(ram_bytes, groups.iter().filter_map(Group::limit_bytes)),
    }
}

/// Ignores limits of 0, in which no program could run.
fn smallest(machine: u64, limits: impl Iterator<Item = u64>) -> u64 {
    limits.filter(|l| *l != 0).fold(machine, u64::min)
}

/// The machine or group with least memory left above its reserve.
fn look(groups: &[Group], reserve: Amount) -> Option<RoomSample> {
    let machine = canvas_host::HostMemory::of_machine(Path::new("/proc")).ok()?;
    let machine = (machine.total_bytes, machine.available_bytes);
    let all = groups.iter().filter_map(Group::total_and_available);
    let of = |(total, available): (u64, u64)| RoomSample {
        available_bytes: available,
        reserve_bytes: reserve_of(reserve, total),
    };
    let smaller = all.filter(|(total, _)| *total < machine.0);
    let looks = smaller.chain([machine]).map(of);
    looks.min_by_key(|l| l.available_bytes as i128 - l.reserve_bytes as i128)
}

/// A share refers to each group's own limit; a size applies to the machine, and to a smaller group
/// as at most a quarter.
fn reserve_of(reserve: Amount, total: u64) -> u64 {
    match reserve {
        Amount::Size(size) => size.bytes.min(total / 4),
        Amount::Share(share) => {
            (u128::from(total) * u128::from(share.ppm()) / 1_000_000).min(u128::from(total)) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_host_is_the_smallest_group() {
        let of = |limits: &[u64]| smallest(1000, limits.iter().copied());
        assert_eq!(of(&[]), 1000);
        assert_eq!(of(&[u64::MAX >> 1, 700, 900]), 700);
        assert_eq!(of(&[0]), 1000);
    }

    #[test]
    fn who_wants_a_look_does_not_wait_for_the_next_in_turn() {
        const WANTED: u32 = 20;
        let segment = Segment::create(false).unwrap().1;
        let host = &segment.host;
        let share = Amount::Share("5%".parse().unwrap());
        watch(segment, share, std::process::id());
        let begun = Instant::now();
        for _ in 0..WANTED {
            let seen = host.looks();
            host.want();
            futex_wake(&host.wanted, 1);
            while host.looks() == seen {
                futex_wait(&host.looks, seen, 1_000_000_000);
            }
        }
        // One after the other they would take one `LATER` each, or one `SOON` on a machine with
        // little left.
        let took = begun.elapsed();
        assert!(took < WANTED * SOON / 2, "{took:?}");
    }

    #[test]
    fn a_reserve_of_each() {
        let share = Amount::Share("5%".parse().unwrap());
        assert_eq!(reserve_of(share, 1000), 50);
        let size = Amount::Size("1M".parse().unwrap());
        assert_eq!(
            (reserve_of(size, 2 << 20), reserve_of(size, 1 << 30)),
            (1 << 19, 1 << 20)
        );
    }

    #[test]
    fn this_machine_has_memory() {
        let share = Amount::Share("5%".parse().unwrap());
        let seen = look(&groups_of(std::process::id()), share).unwrap();
        assert!(seen.available_bytes > 0 && seen.reserve_bytes > 0);
    }
}
