//! When the agent polls for requests and when it sleeps: it polls briefly after work, then sleeps on the tenant's
//! futex.
//!
//! Each sleep costs the program that ends it a wake-up (about 5 us, and as much again until this thread runs). While
//! requests keep arriving the agent polls without sleeping; on a machine with few processors it yields between polls.

use std::time::{Duration, Instant};

use canvas_shm::Far;
use canvas_sys::proc::{futex_wait, futex_wake};
use canvas_types::contention::Contention;

use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// Longest sleep. A tenant that forges [`Far::asleep`] delays its own answers by this.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How long to poll for an answer over a network: the round trip of a near donor. With a slower link the processor is
/// better left to other threads.
pub(crate) const EXPECT: Duration = Duration::from_micros(20);

/// How long to sleep for an answer after that, on that answer alone: one system call, no wake-ups in between. A request
/// posted meanwhile is noticed when the answer arrives or this time is over; the thread that waits for the answer posts
/// no other, so the delay hits only other threads. The time is one tick of the kernel: for a shorter timeout the kernel
/// reprograms the processor's timer twice a read, which in a virtual machine costs as much as the rest of the sleep.
pub(crate) const AWAIT: Duration = Duration::from_millis(4);

/// Decides between polling and sleeping.
#[derive(Debug)]
pub struct Idle {
    spin: Duration,
    expect: Duration,
    last_work: Instant,
    /// Since the last work, waiting for an answer timed out.
    in_vain: bool,
}

impl Idle {
    /// Polls for `spin` after the last work.
    pub fn new(spin: Duration) -> Idle {
        Idle {
            spin: spin_time(spin),
            expect: spin_time(EXPECT),
            last_work: Instant::now(),
            in_vain: false,
        }
    }

    /// Called after each poll; returns when it is time to poll again. `worked`: the poll found work. `expects`: an
    /// answer is on its way, and `await_answer` sleeps for it (false on timeout). `due_in`: time until there is work
    /// for which nobody wakes the agent. `is_ready` is called once the tenant's processes can see that the agent
    /// sleeps; if it returns true, the agent does not sleep.
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

/// The clock of [`CONTENTION`]; it needs no system call.
fn clock_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Whether other threads want the processors, so that sleeping is better than polling.
pub(crate) fn is_contended() -> bool {
    CONTENTION.is_contended(clock_ns())
}

/// Pauses between two polls. Where processors are few it yields, since the thread that makes work may need this one.
pub(crate) fn relax() {
    static FEW: LazyLock<bool> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()) <= 2);
    if *FEW {
        let began_ns = clock_ns();
        std::thread::yield_now();
        CONTENTION.record_yield(began_ns, clock_ns());
    } else {
        std::hint::spin_loop();
    }
}

/// The polling time to use where `time` is wanted: zero on a single processor, where no other thread can make work
/// while this one polls.
pub(crate) fn spin_time(time: Duration) -> Duration {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => time,
        _ => Duration::ZERO,
    }
}

/// Wakes the agent from another thread of its process.
#[derive(Clone, Copy)]
pub struct Waker(pub &'static Far);

impl Waker {
    /// Wakes the agent. Call it after publishing the work.
    pub fn wake(self) {
        // One read-modify-write, so it is ordered after all earlier writes whatever value it finds.
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
            // True, so that it does not sleep.
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
        // The answer did not come: from now on any notification is noticed as well.
        assert_eq!(pause(false, true, None, true), (2, 2));
        assert_eq!(pause(true, true, None, true), (2, 2), "it worked");
        assert_eq!(pause(false, true, None, true), (3, 2));
    }
}
