//! The lock on eviction, regions and the store, between all processes of the tenant: its next holder completes what a
//! dead process had begun.

use canvas_shm::segment::shared_fd;
use canvas_sys::gate::{self, give_way};
use canvas_sys::shmem;
use canvas_types::PAGE_SIZE;
use core::sync::atomic::Ordering;

use crate::runtime::state;
use crate::shared::{
    extents,
    kernel::Here,
    partition::{Held, control, end, fd, partition, resident, take_from, try_lock},
};
use crate::tenant::life;

/// Bits of the lock's word that hold the index of the process that has it.
const PLACE_BITS: u32 = 16;

/// The lock's word while process `i` holds it.
pub(super) fn lock_word(id: u64, i: usize) -> u64 {
    id << PLACE_BITS | (i as u64 + 1)
}

/// The identity and the index in a lock's word.
pub(super) fn holder_of(word: u64) -> (u64, usize) {
    let place = word & ((1 << PLACE_BITS) - 1);
    (word >> PLACE_BITS, (place as usize).wrapping_sub(1))
}

fn is_dead_holder(word: u64) -> bool {
    word != 0 && life::is_gone(holder_of(word).0)
}

/// Takes the lock. The caller is inside `freeze::enter`, and holds no page that it claimed.
pub fn lock() -> Held {
    let mut spins = 0u32;
    loop {
        if let Some(held) = try_lock() {
            return held;
        }
        spins += 1;
        if spins < 64 {
            core::hint::spin_loop();
        } else if spins < 72 {
            give_way();
        } else {
            gate::wait(20_000);
            let holder = control().lock.load(Ordering::SeqCst);
            if spins.is_multiple_of(32)
                && is_dead_holder(holder)
                && let Some(held) = take_over(holder)
            {
                return held;
            }
        }
    }
}

/// Takes the lock of a dead holder, and completes what it has begun.
fn take_over(holder: u64) -> Option<Held> {
    let held = take_from(holder)?;
    partition().recover(&Here, end());
    collect(&held);
    Some(held)
}

/// Settles all that a dead process had begun, and releases its regions.
pub(super) fn bury(_held: &Held, i: usize) {
    let c = control();
    let p = &c.procs[i];
    partition().recover_owner(&Here, i as u16, end());
    for r in &c.regions {
        r.let_go(i);
    }
    p.forking.store(0, Ordering::Relaxed);
    p.pin_all.store(0, Ordering::Relaxed);
    for used in &p.used {
        used.store(0, Ordering::Relaxed);
    }
    for pin in &p.pins {
        pin.store(0, Ordering::Relaxed);
    }
}

/// Checks all processes for dead ones.
pub(super) fn bury_dead(held: &Held) {
    let c = control();
    let mut any = false;
    for i in 0..c.procs_end.load(Ordering::SeqCst) as usize {
        any |= bury_if_dead(held, i);
    }
    if any {
        collect(held);
    }
}

/// Settles all of process `i` if it is dead.
pub(super) fn bury_if_dead(held: &Held, i: usize) -> bool {
    let p = &control().procs[i];
    let id = p.id.load(Ordering::SeqCst);
    let dead = id != 0 && id != life::id() && life::is_gone(id);
    if dead {
        bury(held, i);
        p.id.store(0, Ordering::SeqCst);
    }
    dead
}

/// Empties regions that no process has a part of any more.
pub fn collect(held: &Held) {
    use canvas_shm::shared::region_state::{DYING, FREE, USED};
    let mut any = false;
    for r in &control().regions {
        match r.state.load(Ordering::SeqCst) {
            USED if r.is_orphan() => r.state.store(DYING, Ordering::SeqCst),
            DYING => {}
            _ => continue,
        }
        let (start, end) = (
            r.start.load(Ordering::Relaxed),
            r.end.load(Ordering::Relaxed),
        );
        partition().clear(&Here, start, end);
        r.state.store(FREE, Ordering::SeqCst);
        any = true;
    }
    if any {
        extents::give_back_empty(held);
    }
    note_store(held);
}

/// Publishes the size of the store, and the number of resident pages. The caller holds the lock.
pub fn note_store(_held: &Held) {
    state::seg().shared.note_used(resident());
    let pages = shmem::pages(fd(shared_fd::STORE)).map_or(0, |n| n as i64);
    state::seg()
        .shared_store_bytes
        .store(pages * PAGE_SIZE as i64, Ordering::Relaxed);
    control().store_peak.fetch_max(pages, Ordering::Relaxed);
}

/// Takes the lock, unless a living process has it.
pub(super) fn lock_in_background() -> Option<Held> {
    try_lock().or_else(|| {
        let holder = control().lock.load(Ordering::SeqCst);
        is_dead_holder(holder).then(|| take_over(holder)).flatten()
    })
}
