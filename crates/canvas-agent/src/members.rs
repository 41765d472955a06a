//! A tenant's processes: which of them live, and freeing the slots of dead ones.

use nix::errno::Errno;
use std::fs;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_shm::segment::{ProcSlot, Segment};
use canvas_sys::proc::futex_wake;
use canvas_types::procfs::Stat;

/// Time between two looks at the processes of a tenant whose runner does not look any more.
const ORPHAN_SWEEP: Duration = Duration::from_millis(500);
/// Dead processes that one such look lets go. Each costs a look at all slabs, and a tenant can forge a thousand: whoever
/// looks at many tenants has others to serve.
const ORPHAN_DEAD: u32 = 32;

/// State of process `pid`, `None` when there is none.
pub fn proc_state(pid: u32) -> Option<Stat> {
    looked_up(&format!("/proc/{pid}/stat")).ok()?
}

/// What a file of /proc/PID says; `None` when there is no such process. Any other error tells nothing.
fn looked_up(stat: &str) -> std::io::Result<Option<Stat>> {
    match fs::read(stat) {
        Ok(text) => Ok(Stat::parse(&text)),
        // The second: it ended between opening and reading.
        Err(e)
            if [Errno::ENOENT, Errno::ESRCH]
                .contains(&Errno::from_raw(e.raw_os_error().unwrap_or(0))) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Is the process that took the slot at `start_ticks` gone?
fn is_dead(now: Option<Stat>, start_ticks: u64) -> bool {
    match now {
        None => true,
        // Another process has the number now. (0: the slot's owner has not written it yet.)
        Some(s) if start_ticks != 0 && s.start_ticks != start_ticks => true,
        // A zombie has given its memory back, unless only its first thread has ended.
        Some(s) => matches!(s.state, b'Z' | b'X') && s.threads <= 1,
    }
}

/// What tells a tenant's processes from others: it can write any number into its segment.
#[derive(Clone, Copy, Debug)]
pub struct Whose {
    /// Its user.
    pub uid: u32,
    /// The number of its segment's file.
    pub inode: u64,
}

/// Is it known that process `pid` is none of the tenant's? Each of those has the segment open, also in the middle
/// of exec. Where that cannot be looked at its user tells; but root's programs may become anybody's.
fn is_foreign(pid: u32, whose: Whose) -> bool {
    match has_open(pid, whose.inode) {
        Some(has) => !has,
        None => whose.uid != 0 && users(pid).is_some_and(|users| !users.contains(&whose.uid)),
    }
}

/// Has the process a file in memory of this number open? `None` when that cannot be known. It asks no file
/// system, which could wait for ever.
fn has_open(pid: u32, inode: u64) -> Option<bool> {
    let mut all = true;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let Ok(entry) = entry else {
            all = false;
            continue;
        };
        let Ok(target) = fs::read_link(entry.path()) else {
            // Closed meanwhile, or not ours to look at.
            all &= !entry.path().exists();
            continue;
        };
        if !target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"/memfd:canvas")
        {
            continue;
        }
        let number = entry.file_name();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy()));
        let ino = info.ok().and_then(|info| {
            let line = info.lines().find_map(|l| l.strip_prefix("ino:"))?;
            line.trim().parse::<u64>().ok()
        });
        // Kernels before 5.14 do not tell: it may be.
        if ino.is_none_or(|ino| ino == inode) {
            return Some(true);
        }
    }
    all.then_some(false)
}

/// The process's users: real, effective, saved, and for files.
fn users(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.split(|b| *b == b'\n');
    let line = lines.find_map(|l| l.strip_prefix(b"Uid:"))?;
    let numbers = std::str::from_utf8(line).ok()?;
    numbers.split_whitespace().map(|n| n.parse().ok()).collect()
}

/// Frees the slots of dead processes, and the slabs of far memory that only they referred to, and
/// returns how many processes there were.
pub fn release_dead(segment: &Segment, far: Option<&Far>) -> u32 {
    release_some(segment, far, None, u32::MAX)
}

/// The same of `most` at most; with `whose` also slots in which the number of somebody else's process stands.
fn release_some(segment: &Segment, far: Option<&Far>, whose: Option<Whose>, most: u32) -> u32 {
    let mut released = 0;
    for slot in &segment.procs {
        if released == most {
            break;
        }
        let pid = slot.pid.load(Acquire);
        if pid == 0 || pid == u32::MAX {
            continue;
        }
        let start_ticks = slot.start_ticks.load(Acquire);
        let Ok(now) = looked_up(&format!("/proc/{pid}/stat")) else {
            // It may live: we have no descriptor left, for example.
            continue;
        };
        if is_dead(now, start_ticks) || whose.is_some_and(|whose| is_foreign(pid, whose)) {
            segment.release_slot(slot, pid, |index| {
                if let Some(far) = far.filter(|far| far.drop_process(index)) {
                    wake_agent(far, index);
                }
            });
            released += 1;
        }
    }
    released
}

/// Tells the agent that process `index` left something to do.
fn wake_agent(far: &Far, index: usize) {
    if far.ring(index) {
        futex_wake(&far.asleep, 1);
    }
}

/// The reclaim threads look at the bounds when they wake.
pub fn wake_all(segment: &Segment) {
    for slot in segment.procs.iter().filter(|p| p.pid.load(Relaxed) != 0) {
        slot.wake.fetch_add(1, Release);
        futex_wake(&slot.wake, u32::MAX >> 1);
    }
}

/// Has the tenant a process?
pub fn any_left(segment: &Segment) -> bool {
    segment.procs.iter().any(|p| p.pid.load(Acquire) != 0)
}

/// The tenant's processes that live, as far as is known.
pub fn members(segment: &Segment, whose: Whose) -> Vec<u32> {
    let lives = |slot: &ProcSlot| {
        let pid = slot.pid.load(Acquire);
        if pid == 0 || pid == u32::MAX {
            return None;
        }
        let now = looked_up(&format!("/proc/{pid}/stat"));
        let dead = now.is_ok_and(|now| is_dead(now, slot.start_ticks.load(Acquire)));
        (!dead && !is_foreign(pid, whose)).then_some(pid)
    };
    segment.procs.iter().filter_map(lives).collect()
}

/// Looks at the tenant's processes in the runner's place.
#[derive(Default)]
pub struct Orphan {
    last: Option<Instant>,
    /// The last look found none.
    empty: bool,
}

impl Orphan {
    /// Has the tenant no process any more, twice in a row? (Between two looks a fork's child may be
    /// about to take its place.)
    pub fn is_over(&mut self, segment: &Segment, far: &Far, whose: Whose) -> bool {
        if self.last.is_some_and(|t| t.elapsed() < ORPHAN_SWEEP) {
            return false;
        }
        self.last = Some(Instant::now());
        release_some(segment, Some(far), Some(whose), ORPHAN_DEAD);
        let before = std::mem::replace(&mut self.empty, !any_left(segment));
        before && self.empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::far::slab_state;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    #[test]
    fn who_is_dead() {
        let alive = Stat {
            state: b'S',
            parent: 1,
            group: 1,
            threads: 1,
            start_ticks: 7,
        };
        assert!(!is_dead(Some(alive), 7));
        assert!(!is_dead(Some(alive), 0), "start time not written yet");
        assert!(
            is_dead(Some(alive), 8),
            "the number was given to another process"
        );
        assert!(is_dead(None, 7));
        assert!(is_dead(
            Some(Stat {
                state: b'Z',
                ..alive
            }),
            7
        ));
        assert!(
            !is_dead(
                Some(Stat {
                    state: b'Z',
                    threads: 2,
                    ..alive
                }),
                7
            ),
            "first thread ended"
        );
    }

    #[test]
    fn only_slots_of_dead_processes_are_freed() {
        let (_fd, segment) = Segment::create(false).unwrap();
        let me = std::process::id();
        let mine = proc_state(me).unwrap();
        // No process has this number: the kernel's limit is 2^22.
        for (slot, pid, ticks) in [
            (0, me, mine.start_ticks),
            (1, me, mine.start_ticks + 1),
            (2, 1 << 23, 5),
        ] {
            let s = &segment.procs[slot];
            s.start_ticks.store(ticks, Relaxed);
            s.pid.store(pid, Relaxed);
            segment.charge_local(s, 10);
        }
        assert_eq!(release_dead(segment, None), 2);
        assert_eq!(segment.local_pages.load(Relaxed), 10);
        assert_eq!(segment.procs[0].pid.load(Relaxed), me);
        assert_eq!(segment.procs[1].pid.load(Relaxed), 0);
        assert_eq!(release_dead(segment, None), 0);
    }

    /// The host's agent frees slots in segments that tenants write: no number there may end it.
    #[test]
    fn whatever_numbers_stand_in_a_slot_it_is_freed() {
        const NUMBERS: [i64; 4] = [i64::MIN, -1, 1, i64::MAX];
        let (_fd, segment) = Segment::create(false).unwrap();
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
                    slot.pid.store(1 << 23, Relaxed);
                    assert_eq!(release_dead(segment, None), 1);
                }
            }
        }
    }

    #[test]
    fn the_slabs_of_dead_processes_go_to_the_agent() {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.slabs_max.store(9, Relaxed);
        let me = std::process::id();
        for (slot, pid) in [(3, me), (4, 1 << 23)] {
            let s = &segment.procs[slot];
            s.start_ticks
                .store(proc_state(me).unwrap().start_ticks, Relaxed);
            s.pid.store(pid, Relaxed);
        }
        let (mine, dead) = (far.take_slab(3).unwrap(), far.take_slab(4).unwrap());
        assert!(any_left(segment));
        assert_eq!(release_dead(segment, Some(far)), 1);
        let state = |slab: u32| far.slabs[slab as usize].state.load(Relaxed);
        assert_eq!(
            (state(mine), state(dead)),
            (slab_state::USED, slab_state::RELEASED)
        );
        assert!(far.rung(|p| assert_eq!(p, 4)), "the agent is told");
    }

    fn of(segment: &OwnedFd) -> Whose {
        Whose {
            uid: nix::unistd::geteuid().as_raw(),
            inode: nix::sys::stat::fstat(segment).unwrap().st_ino,
        }
    }

    /// What stands in its segment its members have written: a process that never ends, of somebody else, or of
    /// the same user, keeps no tenant alive.
    #[test]
    fn processes_that_are_not_the_tenants_do_not_keep_it_alive() {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let sleeper = |input: Stdio| {
            let mut sleep = Command::new("sleep");
            sleep.arg("600").stdin(input).spawn().unwrap()
        };
        let mut stranger = sleeper(Stdio::null());
        let mut member = sleeper(Stdio::from(fd.try_clone().unwrap()));
        for (slot, pid) in [(2, 1), (3, stranger.id()), (4, member.id())] {
            segment.procs[slot].pid.store(pid, Relaxed);
        }
        let mut orphan = Orphan::default();
        let mut look = || {
            orphan.last = None;
            orphan.is_over(segment, far, of(&fd))
        };
        assert_eq!(members(segment, of(&fd)), [member.id()]);
        assert!(!look() && !look() && !look());
        let pid = |slot: usize| segment.procs[slot].pid.load(Relaxed);
        assert_eq!((pid(2), pid(3), pid(4)), (0, 0, member.id()));
        for child in [&mut stranger, &mut member] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        look();
        assert!(look());
    }

    /// Short forks that follow each other would otherwise be taken for memory until their relatives are measured.
    #[test]
    fn a_forks_child_leaves_behind_only_what_it_shared_when_it_was_measured() {
        use canvas_shm::segment::shares;
        let (_fd, segment) = Segment::create(true).unwrap();
        let slot = &segment.procs[2];
        let ends = |kind, charged, borrowed| {
            slot.pid.store(7, Relaxed);
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
        // It has given up more than it was charged for.
        assert_eq!(ends(shares::CHILD, -20, 40), -20);
        // Its children may map any of it.
        assert_eq!(ends(shares::PARENT, 300, 0), 300);
        assert_eq!(ends(shares::NOBODY, 300, 0), 0);
    }

    #[test]
    fn who_is_foreign_where_descriptors_cannot_be_seen() {
        let me = nix::unistd::geteuid().as_raw();
        let users = users(std::process::id()).unwrap();
        assert!(users.len() == 4 && users.contains(&me));
        // Another segment's process, whoever looks.
        let whose = |uid| Whose { uid, inode: 0 };
        assert!(is_foreign(std::process::id(), whose(me)));
        // One that is gone is judged as dead, not here.
        assert_eq!(has_open(1 << 23, 0), None);
        assert!(!is_foreign(1 << 23, whose(me)));
    }

    #[test]
    fn one_look_at_an_orphan_lets_a_few_dead_go_whatever_their_number() {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let forge = |s: &canvas_shm::segment::ProcSlot| s.pid.store(1 << 23, Relaxed);
        segment.procs.iter().for_each(forge);
        let left = || segment.procs.iter().filter(|s| s.pid.load(Relaxed) != 0);
        let mut orphan = Orphan::default();
        let mut before = left().count();
        let whose = of(&fd);
        while before > 0 {
            assert!(!orphan.is_over(segment, far, whose));
            assert!((1..=32).contains(&(before - left().count())));
            before = left().count();
            orphan.last = None;
        }
        assert!(orphan.is_over(segment, far, whose));
    }

    #[test]
    fn a_process_with_a_name_that_is_not_utf_8_is_alive() {
        let mut child = canvas_testing::process::with_name_not_utf8();
        let name = fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        assert_eq!(name, canvas_testing::process::NAME_NOT_UTF8);
        assert!(!is_dead(proc_state(child.id()), 0));
        let of_none = looked_up("/proc/4294967295/stat").unwrap();
        assert!(is_dead(of_none, 0));
        // As with no descriptor left: it says nothing, least of all that the process is dead.
        assert!(looked_up("/proc/self").is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
