//! The program's limits on address space, under which canvas's reservations do not fit. Canvas keeps and enforces the
//! program's soft limits itself, and raises the kernel's as far as possible.

use core::sync::atomic::{AtomicU64, Ordering};

use canvas_sys::descriptors;
use canvas_sys::proc::{self, Limit};

use crate::runtime::state::PROCESS;

/// The soft limits of the kernel that canvas keeps.
static KEPT: [(u32, &AtomicU64); 2] = [
    (libc::RLIMIT_AS, &PROCESS.address_space.soft),
    (libc::RLIMIT_DATA, &PROCESS.data.soft),
];

/// The kernel's new hard limit of descriptors if the program sets `wanted` and the limit is `now`.
pub fn with_room(wanted: u64, now: u64) -> u64 {
    wanted.max(now.min(wanted.saturating_add(descriptors::ROOM)))
}

fn get(resource: u32) -> Option<Limit> {
    proc::limit(0, resource, None).ok()
}

fn set(resource: u32, soft: u64, hard: u64) {
    let _ = proc::limit(0, resource, Some(&Limit { soft, hard }));
}

/// Keeps the program's soft limits, and raises the kernel's. Called at start-up.
pub fn keep() {
    for (resource, kept) in KEPT {
        if let Some(now) = get(resource).filter(|now| now.soft != u64::MAX) {
            kept.store(now.soft, Ordering::Relaxed);
        }
    }
    raise();
}

/// Raises the kernel's soft limits as far as possible.
fn raise() {
    for (resource, kept) in KEPT {
        if kept.load(Ordering::Relaxed) == u64::MAX {
            continue;
        }
        if let Some(now) = get(resource) {
            set(resource, now.hard, now.hard);
        }
    }
}

/// Gives the kernel the program's own soft limits, because canvas no longer enforces them.
pub fn give_back() {
    for (resource, kept) in KEPT {
        let soft = kept.load(Ordering::Relaxed);
        if let Some(now) = get(resource).filter(|_| soft != u64::MAX) {
            set(resource, soft.min(now.hard), now.hard);
        }
    }
    let files = PROCESS.hard_files.load(Ordering::Relaxed);
    if let Some(now) = get(libc::RLIMIT_NOFILE).filter(|now| files < now.hard) {
        set(libc::RLIMIT_NOFILE, now.soft, files);
    }
}

/// The kernel has the program's own limits until this is dropped.
pub struct Given(());

/// For an exec: the new image starts with the program's limits.
pub fn as_the_program_has_them() -> Given {
    give_back();
    Given(())
}

impl Drop for Given {
    fn drop(&mut self) {
        raise();
    }
}
