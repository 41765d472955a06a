//! Faults and eviction of memory that forks share (`canvas run --shared`): one partition for all processes of the tenant,
//! paged by any of them. `canvas_core::pager::shared` has the states and the recovery after a death.

use canvas_core::far::PoolPeer;
use canvas_core::pager::shared::word::{State, Word, load};
use canvas_core::pager::shared::{ClaimOutcome, Fill};
use canvas_shm::Counter;
use canvas_shm::segment::shared_fd;
use canvas_shm::slow::Cause;
use canvas_sys::gate::{self, give_way};
use canvas_sys::{proc, shmem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::shared_end;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::paging::{accounting, fault::Resolved, freeze, regions, slow};
use crate::report;
use crate::runtime::{state, state::count};
use crate::shared::{
    ahead::{self, count_filled},
    beyond,
    kernel::Here,
    lock::{bury_dead, bury_if_dead, collect, lock, lock_in_background, note_store},
    partition::{
        Held, addr_of, control, end, fd, is_on, is_readable, limit, me, page_of, partition,
        resident, try_lock,
    },
    pins::Pin,
};
use crate::tenant::{far_area, life, members};

/// Makes a page present. The caller is inside `freeze::enter`.
pub fn resolve(page: u32) -> Resolved {
    let p = partition();
    let w = &p.words[page as usize];
    let mut waits = 0u32;
    let mut contradictions = 0;
    loop {
        match load(w).state() {
            State::Poisoned => return Resolved::Poisoned,
            State::Resident => {
                if shmem::has_page(fd(shared_fd::PARTITION), page as usize * PAGE_SIZE) != Ok(false)
                {
                    // Another thread was faster.
                    return Resolved::Present;
                }
                if load(w).state() == State::Resident {
                    contradictions += 1;
                    if contradictions > 100 {
                        return vanished(page);
                    }
                }
                continue;
            }
            State::Untouched | State::Far if !make_room() => return Resolved::NoMemory,
            _ => {}
        }
        let claimed = {
            // The lock makes a mapping call see each page as claimed or not at all.
            let g = regions::lock();
            if !is_readable(&g, page) {
                return Resolved::NotOurs;
            }
            p.claim(page, me() as u16)
        };
        match claimed {
            ClaimOutcome::Present => {}
            ClaimOutcome::Poisoned => return Resolved::Poisoned,
            ClaimOutcome::Busy(owner) => {
                waits += 1;
                if waits < 64 {
                    core::hint::spin_loop();
                } else if waits < 80 {
                    give_way();
                } else {
                    slow::during(Cause::SharedPage, || gate::wait(20_000));
                    if waits.is_multiple_of(64) {
                        look_after(owner);
                    }
                }
            }
            ClaimOutcome::Claimed(word) => match bring(page, word) {
                Fill::Present => {
                    count_filled(word);
                    return Resolved::Present;
                }
                Fill::Failed => return Resolved::NoMemory,
                Fill::Unreachable => return Resolved::Unreachable,
                Fill::Lost => return Resolved::Lost,
                Fill::Damaged => {
                    count(Counter::VerifyFailure, 1);
                    report!(
                        "the far copy of shared page {:#x} does not verify; the program gets SIGBUS",
                        addr_of(page)
                    );
                    return Resolved::Poisoned;
                }
            },
        }
    }
}

/// Adds the pages of `addr..addr+bytes` to those of a pin, and makes them present.
pub fn pin(pin: &mut Pin, addr: usize, bytes: usize) {
    if !is_on() || bytes == 0 {
        return;
    }
    let last = addr.saturating_add(bytes - 1).min(shared_end() - 1);
    let (first, end) = (page_of(addr), page_of(last) + 1);
    pin.note(first, end);
    for page in first..end {
        while load(&partition().words[page as usize]).state() != State::Resident {
            let _inside = freeze::enter();
            match resolve(page) {
                Resolved::Present => {}
                Resolved::NoMemory => return say_full(),
                _ => return,
            }
        }
    }
}

/// Reports full memory, once. A fault that fails ends the program with a message; a failing call needs one, too.
#[cold]
fn say_full() {
    report!(
        once: "shared and far memory are both full (raise --pool or --shared); a system call fails with EFAULT"
    );
}

/// Brings a claimed page in, and the pages that come with it.
fn bring(page: u32, claimed: Word) -> Fill {
    match claimed.state() {
        State::FillingNew => partition().fill(&Here, page, claimed),
        _ => ahead::fill(page, claimed),
    }
}

/// A page has been busy for long: checks whether the process that works on it is dead.
fn look_after(owner: Option<u16>) {
    let Some(i) = owner.map(usize::from) else {
        // It is being evicted: whoever gets the lock finds that completed.
        drop(lock());
        return;
    };
    let id = control().procs[i].id.load(Ordering::SeqCst);
    if id != 0 && life::is_gone(id) {
        let held = lock();
        if bury_if_dead(&held, i) {
            collect(&held);
        }
    }
}

/// The word says that the page is resident, but the file does not have it: it is lost, and must not silently turn into
/// zeros.
#[cold]
fn vanished(page: u32) -> Resolved {
    let _held = lock();
    let w = &partition().words[page as usize];
    let cur = load(w);
    let there = shmem::has_page(fd(shared_fd::PARTITION), page as usize * PAGE_SIZE);
    if cur.state() == State::Resident && there == Ok(false) {
        count(Counter::Anomaly, 1);
        report!(
            "shared page {:#x} vanished from memory; the program gets SIGBUS",
            addr_of(page)
        );
        w.store(
            Word::new(State::Poisoned, 0, cur.entry()).0,
            Ordering::SeqCst,
        );
        return Resolved::Poisoned;
    }
    Resolved::Present
}

fn batch(limit: i64) -> usize {
    (limit / 16).clamp(8, 64) as usize
}

/// Pages below the limit at which background eviction begins, and ends.
fn gaps(limit: i64) -> (i64, i64) {
    (limit / 32, limit / 16)
}

/// Makes room for one more page, by eviction if necessary; returns false if local and far memory are both full.
fn make_room() -> bool {
    let c = control();
    let (mut most, mut fruitless, mut now) = (limit(), 0, resident());
    if now < most {
        if now > most - gaps(most).0 {
            accounting::wake_reclaimer();
        }
    } else {
        let begun = proc::now_ns();
        while now >= most {
            let done = {
                let held = lock();
                // Another process may have made room meanwhile.
                now = resident();
                if now < most {
                    break;
                }
                let done = evict(&held, batch(most));
                if done.refused > 0 {
                    beyond::make_room(&held);
                    members::ask_for_pool(PoolPeer::Largest);
                }
                done
            };
            if done.pages == 0 {
                fruitless += 1;
                // Copies being written will make room when that has ended.
                let waited_ns = proc::now_ns() - begun;
                let will_be = beyond::is_writing() && waited_ns < far_area::longest_wait_ns();
                if done.refused > 0 && fruitless > 100 && !will_be {
                    // Exceeding the agent's grant must not end a program from which nothing can leave; exceeding
                    // `--shared` does.
                    if now < c.limit_pages.load(Ordering::Relaxed) {
                        break;
                    }
                    return false;
                }
                // Everything is pinned, or busy: there is nothing to evict.
                if done.refused == 0 && fruitless > 4 {
                    break;
                }
                gate::wait(if done.refused > 0 { 1_000_000 } else { 100_000 });
            }
            (most, now) = (limit(), resident());
        }
    }
    state::seg().shared.note_used(now + 1);
    if now + 1 > c.resident_peak.load(Ordering::Relaxed) {
        c.resident_peak.fetch_max(now + 1, Ordering::Relaxed);
    }
    true
}

fn evict(held: &Held, want: usize) -> canvas_core::pager::shared::Evicted {
    let done = partition().evict(&Here, want, end());
    count(Counter::SharedOut, done.pages.into());
    count(Counter::SharedOutClean, done.clean.into());
    note_store(held);
    beyond::keep_up(held);
    done
}

/// Runs one round of the reclaim thread's part: makes room ahead of need, and checks for dead processes once a second.
/// Returns false if there is nothing to do.
pub fn background_round() -> bool {
    static DRAINS: AtomicBool = AtomicBool::new(false);
    if !is_on() {
        return false;
    }
    // One process does this for all.
    if members::once_in(&control().looked_ns, 1_000_000_000, proc::now_ns())
        && let Some(held) = lock_in_background()
    {
        bury_dead(&held);
    }
    let sinks = beyond::background_round();
    let limit = limit();
    let (begin, until) = gaps(limit);
    let drains = DRAINS.load(Ordering::Relaxed);
    if resident() <= limit - if drains { until } else { begin } {
        DRAINS.store(false, Ordering::Relaxed);
        return sinks;
    }
    DRAINS.store(true, Ordering::Relaxed);
    let worked = try_lock().is_some_and(|held| evict(&held, batch(limit)).pages > 0);
    if !worked {
        DRAINS.store(false, Ordering::Relaxed);
    }
    worked | sinks
}
