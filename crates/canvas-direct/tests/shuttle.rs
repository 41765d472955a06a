//! Ownership of a queue pair, under shuttle's scheduler: never two owners at a time, and each one created is ended
//! once.
#![cfg(feature = "shuttle")]

use canvas_direct::client::handoff::{ClaimerState, Handoff, NotifyThread, ThreadCommand};
use shuttle::rand::Rng;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::thread;

#[derive(Clone)]
struct Pair {
    handoff: Arc<Handoff>,
    /// A thread works on it.
    busy: Arc<AtomicBool>,
    /// Queue pairs created, and ended.
    made: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
}

impl Pair {
    /// Works on it, which no other thread may do meanwhile.
    fn work(&self) {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "two at once");
        thread::yield_now();
        self.busy.store(false, Ordering::SeqCst);
    }

    fn serve(&self) {
        loop {
            let over = self.over.load(Ordering::SeqCst);
            let Some(what) = self.handoff.command() else {
                if over {
                    return;
                }
                thread::yield_now();
                continue;
            };
            self.work();
            let fails = shuttle::rand::thread_rng().gen_bool(0.3);
            let done = match what {
                ThreadCommand::Make if fails => ClaimerState::Failed,
                ThreadCommand::Make => {
                    self.made.fetch_add(1, Ordering::SeqCst);
                    ClaimerState::Made
                }
                ThreadCommand::Connect if fails => ClaimerState::Failed,
                ThreadCommand::Connect => ClaimerState::Ready,
                ThreadCommand::End => {
                    // One that could not be created is ended as well.
                    self.ended.fetch_add(1, Ordering::SeqCst);
                    ClaimerState::None
                }
            };
            self.handoff.complete(done);
        }
    }

    /// The claimer of the channel, for some steps; then nobody wants the queue pair any more.
    fn claim(&self) -> u32 {
        let mut made = 0;
        for _ in 0..8 {
            match self.handoff.claimer_state() {
                Ok(Some(ClaimerState::None)) => {
                    self.work();
                    made += 1;
                    self.handoff.hand_over(ThreadCommand::Make);
                }
                Ok(Some(ClaimerState::Made)) => {
                    self.work();
                    self.handoff.hand_over(ThreadCommand::Connect);
                }
                Ok(Some(ClaimerState::Ready)) => self.work(),
                Ok(Some(ClaimerState::Failed)) => self.handoff.hand_over(ThreadCommand::End),
                Ok(None) | Err(NotifyThread) => {}
            }
            if shuttle::rand::thread_rng().gen_bool(0.2) {
                let _ = self.handoff.end();
            }
            thread::yield_now();
        }
        while self.handoff.claimer_state() != Ok(Some(ClaimerState::None)) {
            let _ = self.handoff.end();
            thread::yield_now();
        }
        made
    }
}

#[test]
fn a_queue_pair_is_one_threads_at_a_time_and_ended_once() {
    shuttle::check_random(
        || {
            let pair = Pair {
                handoff: Arc::new(Handoff::new()),
                busy: Arc::new(AtomicBool::new(false)),
                made: Arc::new(AtomicU32::new(0)),
                ended: Arc::new(AtomicU32::new(0)),
                over: Arc::new(AtomicBool::new(false)),
            };
            let server = pair.clone();
            let serving = thread::spawn(move || server.serve());
            let asked = pair.claim();
            pair.over.store(true, Ordering::SeqCst);
            serving.join().unwrap();
            assert!(pair.made.load(Ordering::SeqCst) <= asked);
            assert_eq!(pair.ended.load(Ordering::SeqCst), asked);
        },
        3000,
    );
}
