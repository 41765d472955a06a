//! A tenant's processes: finds the live ones and frees the slots of dead ones.

use std::fs;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_shm::lives::Lives;
use canvas_shm::segment::{ProcSlot, Segment};
use canvas_sys::proc::futex_wake;
use canvas_types::procfs::Stat;

/// Time between two sweeps over the processes of a tenant whose runner is gone.
const ORPHAN_SWEEP: Duration = Duration::from_millis(500);
/// Dead processes that one sweep frees at most. Each costs a scan of all slabs, and a tenant can forge a thousand,
/// while the host agent has other tenants to serve.
const ORPHAN_DEAD: u32 = 32;

/// State of process `pid`; `None` when it does not exist.
pub fn proc_state(pid: u32) -> Option<Stat> {
    Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Frees the slots of dead processes, and the slabs of far memory that only they used. Returns the number of dead
/// processes.
pub fn release_dead(lives: Lives, segment: &Segment, far: Option<&Far>) -> u32 {
    release_some(lives, segment, far, u32::MAX)
}

/// As [`release_dead`], for at most `most` processes.
fn release_some(lives: Lives, segment: &Segment, far: Option<&Far>, most: u32) -> u32 {
    let mut released = 0;
    for slot in &segment.procs {
        if released == most {
            break;
        }
        let Some(id) = slot.identity().filter(|id| lives.is_gone(*id)) else {
            continue;
        };
        segment.release_slot(slot, id, |index| {
            if let Some(far) = far.filter(|far| far.drop_process(index)) {
                wake_agent(far, index);
            }
        });
        released += 1;
    }
    released
}

/// Notifies the agent that process `index` left work.
fn wake_agent(far: &Far, index: usize) {
    if far.notify(index) {
        futex_wake(&far.asleep, 1);
    }
}

/// Wakes the reclaim threads of all processes, so that they read the limits again.
pub fn wake_all(segment: &Segment) {
    for slot in segment.procs.iter().filter(|p| p.identity().is_some()) {
        slot.wake.fetch_add(1, Release);
        futex_wake(&slot.wake, u32::MAX >> 1);
    }
}

/// Whether the tenant has a process.
pub fn any_left(segment: &Segment) -> bool {
    segment.procs.iter().any(|p| p.id.load(Acquire) != 0)
}

/// PIDs of the tenant's live processes, of those that have one in this PID namespace.
pub fn members(lives: Lives, segment: &Segment) -> Vec<u32> {
    let living = |slot: &&ProcSlot| slot.identity().is_some_and(|id| !lives.is_gone(id));
    let places = segment.procs.iter().filter(living);
    places.filter_map(|slot| lives.number_at(slot)).collect()
}

/// Sweeps over the tenant's processes in place of its runner.
#[derive(Default)]
pub struct RunnerlessTenant {
    last: Option<Instant>,
    /// The last sweep found no process.
    empty: bool,
}

impl RunnerlessTenant {
    /// Whether two sweeps in a row found no process. (Between two sweeps a fork's child may be about to take its slot.)
    pub fn is_over(&mut self, lives: Lives, segment: &Segment, far: &Far) -> bool {
        if self.last.is_some_and(|t| t.elapsed() < ORPHAN_SWEEP) {
            return false;
        }
        self.last = Some(Instant::now());
        release_some(lives, segment, Some(far), ORPHAN_DEAD);
        let before = std::mem::replace(&mut self.empty, !any_left(segment));
        before && self.empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::far::slab_state;
    use canvas_shm::lives::live;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::atomic::Ordering::Relaxed;

    fn begun(far: bool) -> (&'static OwnedFd, &'static Segment, Lives<'static>) {
        let (fd, segment) = Segment::create(far).unwrap();
        let fd: &'static OwnedFd = Box::leak(Box::new(fd));
        (fd, segment, Lives::of(fd))
    }

    #[test]
    fn only_slots_of_dead_processes_are_freed() {
        let (fd, segment, lives) = begun(false);
        let me = live(fd, segment).unwrap();
        // The PID in the slot proves nothing.
        for (slot, id) in [(0, me), (1, segment.draw_identity()), (2, 1 << 63)] {
            let s = &segment.procs[slot];
            s.pid.store(std::process::id(), Relaxed);
            s.id.store(id, Relaxed);
            segment.charge_local(s, 10);
        }
        assert_eq!(release_dead(lives, segment, None), 2);
        assert_eq!(segment.local_pages.load(Relaxed), 10);
        assert_eq!(segment.procs[0].identity(), Some(me));
        assert_eq!(segment.procs[1].identity(), None);
        assert_eq!(release_dead(lives, segment, None), 0);
        assert_eq!(members(lives, segment), [std::process::id()]);
    }

    /// The host's agent frees slots in segments that tenants write: no number there may crash it.
    #[test]
    fn whatever_numbers_stand_in_a_slot_it_is_freed() {
        const NUMBERS: [i64; 4] = [i64::MIN, -1, 1, i64::MAX];
        let (_fd, segment, lives) = begun(false);
        let slot = &segment.procs[1];
        for charged in NUMBERS {
            for others in NUMBERS {
                for kind in [0, 1, 2, 7] {
                    for (number, value) in [
                        (&slot.charged_pages, charged),
                        (&slot.borrowed_pages, others),
                        (&slot.native_pages, others),
                        (&slot.pool_bytes, charged),
                        (&slot.far_pages, others),
                        (&segment.local_pages, others),
                        (&segment.footprint_pages, others),
                        (&segment.pool_bytes, charged),
                    ] {
                        number.store(value, Relaxed);
                    }
                    slot.shares.store(kind, Relaxed);
                    slot.id.store(1 << 23, Relaxed);
                    assert_eq!(release_dead(lives, segment, None), 1);
                }
            }
        }
    }

    #[test]
    fn the_slabs_of_dead_processes_go_to_the_agent() {
        let (fd, segment, lives) = begun(true);
        let far = Far::map(fd).unwrap();
        far.slabs_max.store(9, Relaxed);
        for (slot, id) in [(3, live(fd, segment).unwrap()), (4, 1 << 23)] {
            segment.procs[slot].id.store(id, Relaxed);
        }
        let (mine, dead) = (far.take_slab(3).unwrap(), far.take_slab(4).unwrap());
        assert!(any_left(segment));
        assert_eq!(release_dead(lives, segment, Some(far)), 1);
        let state = |slab: u32| far.slabs[slab as usize].state.load(Relaxed);
        assert_eq!(
            (state(mine), state(dead)),
            (slab_state::USED, slab_state::RELEASED)
        );
        assert!(
            far.take_notified(|p| assert_eq!(p, 4)),
            "the agent is notified"
        );
    }

    /// The slots are written by members; only a process that has the segment's file open keeps a tenant alive.
    #[test]
    fn processes_that_are_not_the_tenants_do_not_keep_it_alive() {
        let (fd, segment, lives) = begun(true);
        let far = Far::map(fd).unwrap();
        // A lock on another tenant's file does not count for this one.
        let (other, others, _) = begun(false);
        let _ = segment.draw_identity();
        let strange = live(other, others).unwrap();
        let opened = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let member = segment.draw_identity();
        canvas_sys::lock::hold_with_file(opened.as_raw_fd(), member).unwrap();
        for (slot, id) in [(2, 1), (3, strange), (4, member)] {
            segment.procs[slot].id.store(id, Relaxed);
        }
        let mut runnerless = RunnerlessTenant::default();
        let mut look = || {
            runnerless.last = None;
            runnerless.is_over(lives, segment, far)
        };
        assert!(!look() && !look() && !look());
        let id = |slot: usize| segment.procs[slot].id.load(Relaxed);
        assert_eq!((id(2), id(3), id(4)), (0, 0, member));
        drop(opened);
        look();
        assert!(look());
    }

    /// Otherwise short forks in sequence would count as memory until their relatives are measured.
    #[test]
    fn a_forks_child_leaves_behind_only_what_it_shared_when_it_was_measured() {
        use canvas_shm::segment::shares;
        let (_fd, segment) = Segment::create(true).unwrap();
        let slot = &segment.procs[2];
        let ends = |kind, charged, borrowed| {
            slot.id.store(7, Relaxed);
            slot.shares.store(kind, Relaxed);
            segment.charge_local(slot, charged);
            segment.charge_footprint(charged);
            slot.borrowed_pages.store(borrowed, Relaxed);
            segment.give_back_own(slot, 100);
            segment.release_slot(slot, 7, |_| ());
            let orphans = segment.orphan_pages.swap(0, Relaxed);
            assert_eq!(segment.local_pages.swap(0, Relaxed), orphans);
            assert_eq!(segment.footprint_pages.swap(0, Relaxed), orphans);
            orphans
        };
        assert_eq!(ends(shares::CHILD, 300, 0), 0);
        assert_eq!(ends(shares::CHILD, 300, 40), 40);
        // It has released more than it was charged for.
        assert_eq!(ends(shares::CHILD, -20, 40), -20);
        // Its children may map any of its pages.
        assert_eq!(ends(shares::PARENT, 300, 0), 300);
        assert_eq!(ends(shares::NOBODY, 300, 0), 0);
    }

    #[test]
    fn one_look_at_an_orphan_lets_a_few_dead_go_whatever_their_number() {
        let (fd, segment, lives) = begun(true);
        let far = Far::map(fd).unwrap();
        let forge = |s: &ProcSlot| s.id.store(1 << 23, Relaxed);
        segment.procs.iter().for_each(forge);
        let left = || segment.procs.iter().filter(|s| s.id.load(Relaxed) != 0);
        let mut runnerless = RunnerlessTenant::default();
        let mut before = left().count();
        while before > 0 {
            assert!(!runnerless.is_over(lives, segment, far));
            assert!((1..=32).contains(&(before - left().count())));
            before = left().count();
            runnerless.last = None;
        }
        assert!(runnerless.is_over(lives, segment, far));
    }

    #[test]
    fn the_state_of_a_process_with_a_name_that_is_not_utf_8() {
        let mut child = canvas_testing::process::with_name_not_utf8();
        let name = fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        assert_eq!(name, canvas_testing::process::NAME_NOT_UTF8);
        assert!(proc_state(child.id()).is_some());
        assert_eq!(proc_state(u32::MAX), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
