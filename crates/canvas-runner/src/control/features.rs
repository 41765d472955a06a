//! Collects the sums for [`canvas_control::features`] from a running run.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use canvas_control::features::Sums;
use canvas_core::swap::classes::CLASS_BYTES;
use canvas_shm::lives::Lives;
use canvas_shm::segment::{Counter, Mode, Segment};
use canvas_types::PAGE_SIZE;
use canvas_types::procfs::{cpu_ticks, memory_bytes};

use crate::sweep::Sample;

/// Reads the segment and, through `lives`, /proc for its processes; levels are those of `sample`.
pub fn look(lives: Option<Lives>, segment: &Segment, mode: Option<Mode>, sample: &Sample) -> Sums {
    let total = |c| segment.total(c);
    let touched = sample.touched_pages();
    let (fault_ns, _) = segment.fault_times();
    let faults = fault_ns.into_iter().fold(0, u64::saturating_add);
    // The faulting thread works itself, or sleeps until another thread has resolved the fault.
    let (delivery_ns, woken_ns) = match mode {
        Some(Mode::Signal) => (delivery_ns(Mode::Signal), 0),
        Some(Mode::Thread) => (0, faults.saturating_mul(delivery_ns(Mode::Thread))),
        None => (0, 0),
    };
    let mut sums = Sums {
        pages_in: total(Counter::PagesIn),
        pages_in_stream: total(Counter::PagesInStream),
        pages_out: total(Counter::PagesOut),
        pages_out_clean: total(Counter::PagesOutClean),
        refaults: segment.refaults().to_vec(),
        faults,
        fault_ns: segment.fault_ns_sum(),
        fault_sleep_ns: total(Counter::FaultSleepNs).saturating_add(woken_ns),
        fault_cpu_ns: total(Counter::FaultCpuNs),
        delivery_ns,
        reclaim_ns: total(Counter::ReclaimCpuNs),
        reclaim_wanted_ns: total(Counter::ReclaimWantedNs),
        touched_pages: count(touched),
        touched_blocks: count(sample.touched_blocks),
        anon_bytes: page_bytes(touched.saturating_add(sample.native_pages)),
        ..Sums::default()
    };
    for (class, stored) in CLASS_BYTES.iter().zip(sample.class_bytes) {
        let pages = count(stored) / u64::from(*class);
        sums.stored_bytes = sums.stored_bytes.saturating_add(count(stored));
        sums.stored_pages = sums.stored_pages.saturating_add(pages);
    }
    for slot in segment.procs_used() {
        let Some(id) = slot.identity() else { continue };
        sums.stalled_ns.insert(id, slot.stalled_ns.load(Relaxed));
        let Some(pid) = lives.and_then(|l| l.number_at(slot)) else {
            continue;
        };
        // Nothing can be read of a process that has just ended.
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let ticks = cpu_ticks(&read("stat")).unwrap_or(0);
        sums.cpu_ns = sums.cpu_ns.saturating_add(ticks.saturating_mul(tick_ns()));
    }
    sums.file_bytes = lives.map_or(0, |l| file_bytes(l, segment));
    sums
}

/// File memory of a run's processes, in bytes, from /proc.
pub fn file_bytes(lives: Lives, segment: &Segment) -> u64 {
    let of = |pid: u32| {
        // Nothing can be read of a process that has just ended.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        memory_bytes(&status, "RssFile").unwrap_or(0)
    };
    lives.numbers(segment).map(of).fold(0, u64::saturating_add)
}

/// A number that the program can write, made non-negative.
fn count(n: i64) -> u64 {
    n.max(0) as u64
}

fn page_bytes(pages: i64) -> u64 {
    count(pages).saturating_mul(PAGE_SIZE as u64)
}

/// A clock tick of /proc, in ns.
fn tick_ns() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    static NS: OnceLock<u64> = OnceLock::new();
    *NS.get_or_init(|| {
        let per_s = sysconf(SysconfVar::CLK_TCK)
            .ok()
            .flatten()
            .filter(|n| *n > 0);
        1_000_000_000 / per_s.unwrap_or(100) as u64
    })
}

/// Time that the kernel needs to deliver a fault and to return, measured once: for a signal, or for
/// waking another thread and being woken by it.
fn delivery_ns(mode: Mode) -> u64 {
    static NS: OnceLock<u64> = OnceLock::new();
    *NS.get_or_init(|| match mode {
        Mode::Signal => canvas_sys::delivery::signal_ns().unwrap_or(0),
        Mode::Thread => wake_up_ns().unwrap_or(0),
    })
}

/// Median time until a waiting thread is awake and has answered, in ns.
fn wake_up_ns() -> Option<u64> {
    const ROUNDS: usize = 33;
    let (mut ours, mut theirs) = UnixStream::pair().ok()?;
    let other = std::thread::spawn(move || {
        let mut byte = [0];
        while theirs
            .read_exact(&mut byte)
            .and_then(|()| theirs.write_all(&byte))
            .is_ok()
        {}
    });
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        ours.write_all(&[0])
            .and_then(|()| ours.read_exact(&mut [0]))
            .ok()?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    drop(ours);
    // It ends because the writing end is closed.
    let _ = other.join();
    times.sort_unstable();
    Some(times[ROUNDS / 2])
}
