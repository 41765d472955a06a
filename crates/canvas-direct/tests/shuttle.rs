//! Ownership of a queue pair, under shuttle's scheduler: never two owners at a time, and each one created is ended
//! once.
#![cfg(feature = "shuttle")]

use canvas_direct::client::turn::{Changed, Claimers, Threads, Turn};
use shuttle::rand::Rng;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::thread;

#[derive(Clone)]
struct Pair {
    turn: Arc<Turn>,
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
            let Some(what) = self.turn.threads() else {
                if over {
                    return;
                }
                thread::yield_now();
                continue;
            };
            self.work();
            let fails = shuttle::rand::thread_rng().gen_bool(0.3);
            let done = match what {
                Threads::Make if fails => Claimers::Failed,
                Threads::Make => {
                    self.made.fetch_add(1, Ordering::SeqCst);
                    Claimers::Made
                }
                Threads::Connect if fails => Claimers::Failed,
                Threads::Connect => Claimers::Ready,
                Threads::End => {
                    // One that could not be created is ended as well.
                    self.ended.fetch_add(1, Ordering::SeqCst);
                    Claimers::None
                }
            };
            self.turn.give_back(done);
        }
    }

    /// The claimer of the channel, for some steps; then nobody wants the queue pair any more.
    fn claim(&self) -> u32 {
        let mut made = 0;
        for _ in 0..8 {
            match self.turn.claimers() {
                Ok(Some(Claimers::None)) => {
                    self.work();
                    made += 1;
                    self.turn.give(Threads::Make);
                }
                Ok(Some(Claimers::Made)) => {
                    self.work();
                    self.turn.give(Threads::Connect);
                }
                Ok(Some(Claimers::Ready)) => self.work(),
                Ok(Some(Claimers::Failed)) => self.turn.give(Threads::End),
                Ok(None) | Err(Changed) => {}
            }
            if shuttle::rand::thread_rng().gen_bool(0.2) {
                let _ = self.turn.let_go();
            }
            thread::yield_now();
        }
        while self.turn.claimers() != Ok(Some(Claimers::None)) {
            let _ = self.turn.let_go();
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
                turn: Arc::new(Turn::new()),
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
