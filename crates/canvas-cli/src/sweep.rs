//! Watching the tenant's processes: freeing the slots of dead ones, and the peaks that only a
//! sample over all processes can show.

use nix::errno::Errno;
use std::fs;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_shm::segment::{CLASSES_MAX, Segment};
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

/// Frees the slots of dead processes, and the slabs of far memory that only they referred to, and
/// returns how many processes there were.
pub fn release_dead(segment: &Segment, far: Option<&Far>) -> u32 {
    release_some(segment, far, u32::MAX)
}

fn release_some(segment: &Segment, far: Option<&Far>, most: u32) -> u32 {
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
        if is_dead(now, start_ticks) {
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

/// Has the tenant a process?
pub fn any_left(segment: &Segment) -> bool {
    segment.procs.iter().any(|p| p.pid.load(Acquire) != 0)
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
    pub fn is_over(&mut self, segment: &Segment, far: &Far) -> bool {
        if self.last.is_some_and(|t| t.elapsed() < ORPHAN_SWEEP) {
            return false;
        }
        self.last = Some(Instant::now());
        release_some(segment, Some(far), ORPHAN_DEAD);
        let before = std::mem::replace(&mut self.empty, !any_left(segment));
        before && self.empty
    }
}

/// What all processes of the tenant have at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Pages mapped in the window.
    pub resident_pages: i64,
    /// Pages in the swap cache.
    pub cached_pages: i64,
    /// Pages of anonymous memory outside the window, and metadata.
    pub native_pages: i64,
    /// Pages that exist only as far copies.
    pub far_pages: i64,
    /// Bytes stored by class.
    pub class_bytes: [i64; CLASSES_MAX],
}

impl Sample {
    /// Adds up what the processes have now.
    pub fn take(segment: &Segment) -> Sample {
        let mut s = Sample::default();
        for slot in segment
            .procs
            .iter()
            .filter(|s| !matches!(s.pid.load(Relaxed), 0 | u32::MAX))
        {
            s.resident_pages += slot.resident_pages.load(Relaxed);
            s.cached_pages += slot.cached_pages.load(Relaxed);
            s.native_pages += slot.native_pages.load(Relaxed);
            s.far_pages += slot.far_pages.load(Relaxed);
        }
        for (sum, bytes) in s.class_bytes.iter_mut().zip(&segment.class_bytes) {
            *sum = bytes.load(Relaxed);
        }
        s
    }
}

/// The highest values of all samples, each for itself, and the last one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Highest values.
    pub peak: Sample,
    /// The last sample.
    pub last: Sample,
    /// Pages of processes that charge nothing themselves.
    pub uncharged_pages: i64,
}

impl Peaks {
    /// Takes a sample.
    pub fn sample(&mut self, segment: &Segment) {
        let mut now = Sample::take(segment);
        now.native_pages += self.uncharged_pages;
        let p = &mut self.peak;
        p.resident_pages = p.resident_pages.max(now.resident_pages);
        p.cached_pages = p.cached_pages.max(now.cached_pages);
        p.native_pages = p.native_pages.max(now.native_pages);
        p.far_pages = p.far_pages.max(now.far_pages);
        for (peak, now) in p.class_bytes.iter_mut().zip(now.class_bytes) {
            *peak = now.max(*peak);
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::far::slab_state;

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

    #[test]
    fn one_look_at_an_orphan_lets_a_few_dead_go_whatever_their_number() {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let forge = |s: &canvas_shm::segment::ProcSlot| s.pid.store(1 << 23, Relaxed);
        segment.procs.iter().for_each(forge);
        let left = || segment.procs.iter().filter(|s| s.pid.load(Relaxed) != 0);
        let mut orphan = Orphan::default();
        let mut before = left().count();
        while before > 0 {
            assert!(!orphan.is_over(segment, far));
            assert!((1..=32).contains(&(before - left().count())));
            before = left().count();
            orphan.last = None;
        }
        assert!(orphan.is_over(segment, far));
    }

    #[test]
    fn a_process_with_a_name_that_is_not_utf_8_is_alive() {
        use std::io::Read;
        use std::process::{Command, Stdio};
        let mut child = Command::new("sh")
            .args(["-c", r"printf 'caf\351' >/proc/$$/comm; echo; read -r line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut renamed = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut renamed)
            .unwrap();
        let name = fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        assert_eq!(name, b"caf\xe9\n");
        assert!(!is_dead(proc_state(child.id()), 0));
        let of_none = looked_up("/proc/4294967295/stat").unwrap();
        assert!(is_dead(of_none, 0));
        // As with no descriptor left: it says nothing, least of all that the process is dead.
        assert!(looked_up("/proc/self").is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn peaks_outlive_the_processes() {
        let (_fd, segment) = Segment::create(false).unwrap();
        let slot = &segment.procs[5];
        slot.pid.store(1 << 23, Relaxed);
        slot.resident_pages.store(100, Relaxed);
        segment.class_bytes[3].store(4096, Relaxed);
        let mut peaks = Peaks::default();
        peaks.sample(segment);
        release_dead(segment, None);
        segment.class_bytes[3].store(0, Relaxed);
        peaks.sample(segment);
        assert_eq!(
            (peaks.peak.resident_pages, peaks.peak.class_bytes[3]),
            (100, 4096)
        );
        assert_eq!(peaks.last, Sample::default());
    }
}
