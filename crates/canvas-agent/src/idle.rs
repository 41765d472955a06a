//! When to look again: busy for a moment after work, asleep on the tenant's bell after that.
//!
//! Each sleep costs the program that ends it a wake-up (some 5 us for it, and as much again until
//! this thread runs). While requests keep coming the agent looks without sleeping; on a machine with
//! few processors it gives its own up between two looks.

use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_sys::proc::{futex_wait, futex_wake};
use canvas_types::contention::Contention;

use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// Longest sleep. A tenant that forges [`Far::asleep`] delays its own answers by this.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How long answers over a network are looked for: as long as a near donor takes. Behind a slower link the processor is
/// of more use to others meanwhile.
pub(crate) const EXPECT: Duration = Duration::from_micros(20);

/// How long an answer is waited for after that, and nothing else: one system call wakes nobody in between. Who posts a
/// request meanwhile is heard when it has come, or when this is over (a thread whose request is under way posts no other,
/// so that is somebody beside it). As long as a tick of the kernel: for what is sooner, the kernel sets the processor's
/// timer anew, twice a read, which in a virtual machine costs as much as all the rest of a sleep.
pub(crate) const AWAIT: Duration = Duration::from_millis(4);

/// Decides between looking and sleeping.
#[derive(Debug)]
pub struct Idle {
    spin: Duration,
    expect: Duration,
    last_work: Instant,
    /// Since then an answer was waited for in vain.
    in_vain: bool,
}

impl Idle {
    /// Looks for `spin` after the last work.
    pub fn new(spin: Duration) -> Idle {
        Idle {
            spin: looking(spin),
            expect: looking(EXPECT),
            last_work: Instant::now(),
            in_vain: false,
        }
    }

    /// After a look that found work or not: returns when it is time to look again. With `expects` an
    /// answer is on its way, which `await_answer` sleeps for; after `due_in` there is something to do that nobody wakes
    /// it for. `is_ready` is asked once the tenant's processes know that the agent sleeps.
    pub fn pause(
        &mut self,
        worked: bool,
        expects: bool,
        due_in: Option<Duration>,
        far: &Far,
        await_answer: impl FnOnce(Duration) -> bool,
        is_ready: impl FnOnce() -> bool,
    ) {
        if worked {
            self.last_work = Instant::now();
            self.in_vain = false;
            return;
        }
        let spin = if expects { self.expect } else { self.spin };
        if self.last_work.elapsed() < spin && !is_contended() {
            relax();
            return;
        }
        if expects && !self.in_vain {
            self.in_vain = !await_answer(due_in.map_or(AWAIT, |due| due.min(AWAIT)));
            return;
        }
        if far.about_to_sleep() {
            if !is_ready() {
                let time = due_in.map_or(SLEEP_MAX, |due| due.min(SLEEP_MAX));
                futex_wait(&far.asleep, 1, time.as_nanos() as u64);
            }
            far.asleep.store(0, Ordering::SeqCst);
        }
    }
}

static CONTENTION: Contention = Contention::new();

/// The clock of [`CONTENTION`]: without a system call.
fn clock_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Whether other threads want the processors: then it is better to sleep than to look.
pub(crate) fn is_contended() -> bool {
    CONTENTION.is_here(clock_ns())
}

/// Between two looks: where processors are few, whoever is to make work may need this one.
pub(crate) fn relax() {
    static FEW: LazyLock<bool> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()) <= 2);
    if *FEW {
        let began_ns = clock_ns();
        std::thread::yield_now();
        CONTENTION.gave_way(began_ns, clock_ns());
    } else {
        std::hint::spin_loop();
    }
}

/// How long to look that was to look for `time`. On one processor nobody else can make work while a
/// thread looks for it.
pub(crate) fn looking(time: Duration) -> Duration {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => time,
        _ => Duration::ZERO,
    }
}

/// Wakes the agent from another thread of its process.
#[derive(Clone, Copy)]
pub struct Waker(pub &'static Far);

impl Waker {
    /// Call it after what the agent is to see is there to see.
    pub fn wake(self) {
        // One read-modify-write, so it is ordered after what came before whatever it finds.
        if self.0.asleep.swap(0, Ordering::SeqCst) != 0 {
            futex_wake(&self.0.asleep, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::Segment;
    use std::cell::Cell;

    #[test]
    fn an_answer_is_waited_for_once_and_then_with_everybody() {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let mut idle = Idle::new(Duration::ZERO);
        idle.expect = Duration::ZERO;
        let (awaited, asked) = (Cell::new(0), Cell::new(0));
        let mut pause = |worked, expects, due_in: Option<Duration>, comes| {
            let await_answer = |time| {
                awaited.set(awaited.get() + 1);
                assert!(time <= due_in.unwrap_or(AWAIT));
                comes
            };
            // Ready, so that it does not sleep.
            let is_ready = || {
                asked.set(asked.get() + 1);
                true
            };
            idle.pause(worked, expects, due_in, far, await_answer, is_ready);
            (awaited.get(), asked.get())
        };
        assert_eq!(
            pause(false, false, None, true),
            (0, 1),
            "nothing is expected"
        );
        assert_eq!(pause(false, true, None, true), (1, 1));
        assert_eq!(
            pause(false, true, Some(Duration::from_micros(5)), false),
            (2, 1)
        );
        // It did not come: from now on whoever rings is heard as well.
        assert_eq!(pause(false, true, None, true), (2, 2));
        assert_eq!(pause(true, true, None, true), (2, 2), "it worked");
        assert_eq!(pause(false, true, None, true), (3, 2));
    }
}
