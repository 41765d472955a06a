//! The program's limits on address space, under which canvas's reservations do not fit. Canvas keeps and enforces the
//! program's soft limits itself, and raises the kernel's as far as possible.

use core::sync::atomic::{AtomicU64, Ordering};

use canvas_sys::{descriptors, sys4};

use crate::memory::admit;

/// A limit of the kernel that is kept here.
static KEPT: [(u32, &AtomicU64); 2] = [
    (libc::RLIMIT_AS, &admit::LIMIT_AS),
    (libc::RLIMIT_DATA, &admit::LIMIT_DATA),
];

/// The hard limit of descriptors that the program has set; the kernel's leaves room for canvas's above it.
pub static HARD_FILES: AtomicU64 = AtomicU64::new(u64::MAX);

/// The kernel's new hard limit of descriptors if the program sets `wanted` and the limit is `now`.
pub fn with_room(wanted: u64, now: u64) -> u64 {
    wanted.max(now.min(wanted.saturating_add(descriptors::ROOM)))
}

/// Soft and hard limit of this process.
fn get(resource: u32) -> Option<[u64; 2]> {
    let mut both = [0u64; 2];
    let at = both.as_mut_ptr() as usize;
    // SAFETY: the kernel writes two numbers to `both`.
    let done = unsafe { sys4(libc::SYS_prlimit64, 0, resource as usize, 0, at) };
    done.ok().map(|_| both)
}

fn set(resource: u32, both: [u64; 2]) {
    let at = both.as_ptr() as usize;
    // SAFETY: the kernel reads two numbers from `both`.
    let _ = unsafe { sys4(libc::SYS_prlimit64, 0, resource as usize, at, 0) };
}

/// Keeps the program's soft limits, and raises the kernel's. Called at start-up.
pub fn keep() {
    for (resource, kept) in KEPT {
        if let Some([soft, _]) = get(resource).filter(|both| both[0] != u64::MAX) {
            kept.store(soft, Ordering::Relaxed);
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
        if let Some([_, hard]) = get(resource) {
            set(resource, [hard, hard]);
        }
    }
}

/// Gives the kernel the program's own soft limits, because canvas no longer enforces them.
pub fn give_back() {
    for (resource, kept) in KEPT {
        let soft = kept.load(Ordering::Relaxed);
        if let Some([_, hard]) = get(resource).filter(|_| soft != u64::MAX) {
            set(resource, [soft.min(hard), hard]);
        }
    }
    let files = HARD_FILES.load(Ordering::Relaxed);
    if let Some([soft, hard]) = get(libc::RLIMIT_NOFILE).filter(|both| files < both[1]) {
        set(libc::RLIMIT_NOFILE, [soft, files.min(hard)]);
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
