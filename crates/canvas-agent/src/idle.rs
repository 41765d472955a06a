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

/// How long answers over a network are looked for: some round trips.
pub(crate) const EXPECT: Duration = Duration::from_millis(1);

/// Decides between looking and sleeping.
#[derive(Debug)]
pub struct Idle {
    spin: Duration,
    expect: Duration,
    last_work: Instant,
}

impl Idle {
    /// Looks for `spin` after the last work.
    pub fn new(spin: Duration) -> Idle {
        Idle {
            spin: looking(spin),
            expect: looking(EXPECT),
            last_work: Instant::now(),
        }
    }

    /// After a look that found work or not: returns when it is time to look again. With `expects` an
    /// answer is on its way; after `due_in` there is something to do that nobody wakes it for.
    /// `is_ready` is asked once the tenant's processes know that the agent
    /// sleeps.
    pub fn pause(
        &mut self,
        worked: bool,
        expects: bool,
        due_in: Option<Duration>,
        far: &Far,
        is_ready: impl FnOnce() -> bool,
    ) {
        if worked {
            self.last_work = Instant::now();
            return;
        }
        let spin = if expects {
            self.spin.max(self.expect)
        } else {
            self.spin
        };
        if self.last_work.elapsed() < spin && !is_contended() {
            relax();
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
