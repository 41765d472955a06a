//! The mailbox under shuttle's scheduler: `cargo test -p canvas-shm --features shuttle`.
//!
//! A request's buffer is a word here that its owner writes and the agent answers, so that an answer in the wrong
//! request, a request done for two owners and a lost request are all noticed.
#![cfg(feature = "shuttle")]

use canvas_shm::far::{Slab, count_slab, slab_state};
use canvas_shm::lend::{CopyRequest, RequestCell, Requester, Stage};
use canvas_shm::mailbox::{Kind, Mailbox, RequestFields, Status};
use canvas_types::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use shuttle::sync::Arc;
use shuttle::thread;

/// Few requests, so that they are reused often.
const AMONG: u64 = 0b11;
/// Set by the agent in a buffer that it has answered.
const ANSWER: u64 = 1 << 63;

struct World {
    mailbox: Mailbox,
    buffers: Vec<AtomicU64>,
    /// Requests of each mark that the agent did.
    done: Vec<AtomicU32>,
    over: AtomicU32,
}

fn world(marks: usize) -> Arc<World> {
    Arc::new(World {
        mailbox: Mailbox::new(),
        buffers: (0..64).map(|_| AtomicU64::new(0)).collect(),
        done: (0..marks).map(|_| AtomicU32::new(0)).collect(),
        over: AtomicU32::new(0),
    })
}

fn ask(mark: u32) -> RequestFields {
    RequestFields {
        kind: Kind::Read,
        extent: mark,
        offset: 0,
        len: 16,
    }
}

/// Claims and posts; `None` when all requests are in use.
fn post(w: &World, mark: u32) -> Option<usize> {
    let i = w.mailbox.claim(AMONG)?;
    w.buffers[i].store(mark.into(), Ordering::Relaxed);
    w.mailbox.post(i, ask(mark), 0);
    Some(i)
}

/// Waits for the answer, which must have this mark.
fn wait(w: &World, i: usize, mark: u32) {
    while w.mailbox.ended(i).is_none() {
        thread::yield_now();
    }
    assert_eq!(w.mailbox.ended(i), Some(Status::Ok));
    assert_eq!(
        w.buffers[i].load(Ordering::Relaxed),
        u64::from(mark) | ANSWER,
        "somebody else's answer"
    );
    w.mailbox.release(i);
}

/// Does all pending work.
fn serve(w: &World, bits: u64) {
    for i in (0..64).filter(|i| bits & 1 << i != 0) {
        if let Some((ask, _)) = w.mailbox.take(i) {
            let buffer = w.buffers[i].load(Ordering::Relaxed);
            assert_eq!(buffer, u64::from(ask.extent), "the buffer is its request's");
            thread::yield_now();
            assert_eq!(
                w.buffers[i].swap(buffer | ANSWER, Ordering::Relaxed),
                buffer,
                "the buffer is the agent's"
            );
            w.done[ask.extent as usize].fetch_add(1, Ordering::Relaxed);
            w.mailbox.complete(i, Status::Ok);
        }
    }
}

fn agent(w: &World) {
    while w.over.load(Ordering::Acquire) == 0 {
        serve(w, w.mailbox.collect());
        thread::yield_now();
    }
    serve(w, w.mailbox.collect());
}

fn check(f: impl Fn() + Send + Sync + 'static) {
    let f = std::sync::Arc::new(f);
    let g = f.clone();
    let times = canvas_testing::random::scaled(400) as usize;
    shuttle::check_random(move || g(), times);
    shuttle::check_pct(move || f(), times, 3);
}

/// The place of a request, when there is one.
fn place(mut post: impl FnMut() -> Option<usize>) -> usize {
    loop {
        match post() {
            Some(i) => break i,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn every_request_is_done_once_and_answered_to_its_owner() {
    check(|| {
        let w = world(6);
        let served = {
            let w = w.clone();
            thread::spawn(move || agent(&w))
        };
        let threads: Vec<_> = (0..2u32)
            .map(|t| {
                let w = w.clone();
                thread::spawn(move || {
                    for n in 0..3 {
                        let mark = t * 3 + n;
                        let i = place(|| post(&w, mark));
                        wait(&w, i, mark);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        w.over.store(1, Ordering::Release);
        served.join().unwrap();
        for done in &w.done {
            assert_eq!(done.load(Ordering::Relaxed), 1);
        }
        assert_eq!(w.mailbox.in_use(), 0);
    });
}

#[test]
fn who_gives_up_waiting_hurts_nobody() {
    check(|| {
        let w = world(6);
        let served = {
            let w = w.clone();
            thread::spawn(move || agent(&w))
        };
        let threads: Vec<_> = (0..2u32)
            .map(|t| {
                let w = w.clone();
                thread::spawn(move || {
                    for n in 0..3 {
                        let mark = t * 3 + n;
                        let Some(i) = post(&w, mark) else { continue };
                        if n == 1 {
                            wait(&w, i, mark);
                        } else {
                            w.mailbox.abandon(i);
                        }
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        w.over.store(1, Ordering::Release);
        served.join().unwrap();
        for done in &w.done {
            assert!(done.load(Ordering::Relaxed) <= 1);
        }
        assert_eq!(w.mailbox.in_use(), 0, "all come back");
    });
}

#[test]
fn a_new_process_in_the_place_of_a_dead_one_gets_its_own_answers_only() {
    check(|| {
        let w = world(4);
        let served = {
            let w = w.clone();
            thread::spawn(move || agent(&w))
        };
        // The dead agent left requests in any state.
        for mark in 0..2 {
            if post(&w, mark).is_some() {
                thread::yield_now();
            }
        }
        w.mailbox.reset();
        for mark in 2..4 {
            let i = place(|| post(&w, mark));
            wait(&w, i, mark);
        }
        w.over.store(1, Ordering::Release);
        served.join().unwrap();
        assert_eq!(w.mailbox.in_use(), 0);
        for mark in 2..4 {
            assert_eq!(w.done[mark].load(Ordering::Relaxed), 1);
        }
    });
}

#[test]
fn an_agent_that_takes_over_loses_nothing() {
    check(|| {
        let w = world(4);
        let owner = {
            let w = w.clone();
            thread::spawn(move || {
                for mark in 0..4 {
                    let i = place(|| post(&w, mark));
                    if mark == 1 {
                        w.mailbox.abandon(i);
                        continue;
                    }
                    while w.mailbox.ended(i).is_none() {
                        thread::yield_now();
                    }
                    assert_eq!(
                        w.buffers[i].load(Ordering::Relaxed),
                        u64::from(mark) | ANSWER
                    );
                    w.mailbox.release(i);
                }
                w.over.store(1, Ordering::Release);
            })
        };
        // Agents die between any two steps: after collecting, after taking.
        for step in 0..3 {
            let bits = w.mailbox.collect();
            if step == 1 {
                for i in (0..64).filter(|i| bits & 1 << i != 0) {
                    let _ = w.mailbox.take(i);
                }
            }
            thread::yield_now();
            serve(&w, w.mailbox.recover());
        }
        agent(&w);
        owner.join().unwrap();
        assert_eq!(w.mailbox.in_use(), 0);
    });
}

/// Two places for prefetches.
const AHEAD: u64 = 0b11 << 40;

/// Claims and posts a prefetch; `None` when both places are in use.
fn post_ahead(w: &World, mark: u32) -> Option<usize> {
    let i = w.mailbox.claim(AHEAD)?;
    w.buffers[i].store(mark.into(), Ordering::Relaxed);
    w.mailbox.post(i, ask(mark), 0);
    Some(i)
}

/// An agent that does not start prefetches until a thread waits for one, or none does any more. It remembers the ones
/// that it has collected and not started, as the request table does.
fn lazy_agent(w: &World) {
    let mut left = 0;
    loop {
        let over = w.over.load(Ordering::Acquire) != 0;
        let (posted, escalated) = w.mailbox.take_new();
        left |= posted;
        let now = escalated & left;
        let now = if over { left } else { now };
        serve(w, now);
        left &= !now;
        if over {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn an_escalation_is_never_lost_for_a_request_that_stays() {
    check(|| {
        let w = world(8);
        let served = {
            let w = w.clone();
            thread::spawn(move || lazy_agent(&w))
        };
        let owners: Vec<_> = (0..2u32)
            .map(|t| {
                let w = w.clone();
                thread::spawn(move || {
                    for n in 0..2 {
                        let mark = t * 2 + n;
                        let i = place(|| post_ahead(&w, mark));
                        // Several may come to wait for it. Nothing else makes the agent start: if the escalation were
                        // lost, the wait would never end.
                        let other = {
                            let w = w.clone();
                            thread::spawn(move || {
                                w.mailbox.escalate(i);
                            })
                        };
                        w.mailbox.escalate(i);
                        wait(&w, i, mark);
                        // Its escalation may come late, for whatever request has the place then.
                        if n == 1 {
                            other.join().unwrap();
                        }
                    }
                })
            })
            .collect();
        for t in owners {
            t.join().unwrap();
        }
        w.over.store(1, Ordering::Release);
        served.join().unwrap();
        for done in &w.done[..4] {
            assert_eq!(done.load(Ordering::Relaxed), 1, "once each");
        }
        assert_eq!(w.mailbox.in_use(), 0);
    });
}

#[test]
fn stale_escalations_do_no_harm_beside_abandoned_and_reset_requests() {
    check(|| {
        let w = world(6);
        let served = {
            let w = w.clone();
            thread::spawn(move || lazy_agent(&w))
        };
        // Threads that escalate whatever request has these places, at any moment.
        let stray = {
            let w = w.clone();
            thread::spawn(move || {
                for n in 0..4 {
                    w.mailbox.escalate(40 + n % 2);
                    thread::yield_now();
                }
            })
        };
        for mark in 0..2 {
            if let Some(i) = post_ahead(&w, mark)
                && mark == 0
            {
                w.mailbox.escalate(i);
                w.mailbox.abandon(i);
            }
        }
        // Another process takes over this one's mailbox.
        w.mailbox.reset();
        for mark in 2..5 {
            // An abandoned request may hold a place until a thread waits for it.
            let i = loop {
                match post_ahead(&w, mark) {
                    Some(i) => break i,
                    None => {
                        w.mailbox.escalate(40);
                        w.mailbox.escalate(41);
                        thread::yield_now();
                    }
                }
            };
            if mark == 3 {
                w.mailbox.abandon(i);
                continue;
            }
            w.mailbox.escalate(i);
            wait(&w, i, mark);
        }
        stray.join().unwrap();
        w.over.store(1, Ordering::Release);
        served.join().unwrap();
        for (mark, done) in w.done.iter().enumerate() {
            let done = done.load(Ordering::Relaxed);
            assert!(done <= 1, "{mark}");
            assert!(![2, 4].contains(&mark) || done == 1, "{mark} is not done");
        }
        assert_eq!(w.mailbox.in_use(), 0, "all come back");
    });
}

/// The tenant may have one slab, and has it; the agent frees it.
#[test]
fn a_slab_that_is_seen_free_is_not_refused() {
    check(|| {
        let tenant = Arc::new((Slab::new(), AtomicI64::new(1)));
        tenant
            .0
            .state
            .store(slab_state::RELEASED, Ordering::Relaxed);
        let agent = {
            let tenant = tenant.clone();
            thread::spawn(move || tenant.0.freed(&tenant.1))
        };
        while tenant.0.state.load(Ordering::Acquire) != slab_state::FREE {
            thread::yield_now();
        }
        assert!(count_slab(&tenant.1, 1));
        agent.join().unwrap();
        assert_eq!(tenant.1.load(Ordering::Relaxed), 1);
    });
}

/// Of two processes one takes the last slab; one's failure never makes the other fail.
#[test]
fn who_is_refused_a_slab_takes_nobody_elses() {
    check(|| {
        let used = Arc::new(AtomicI64::new(1));
        let other = {
            let used = used.clone();
            thread::spawn(move || count_slab(&used, 1))
        };
        used.fetch_sub(1, Ordering::Relaxed);
        let (mine, others) = (count_slab(&used, 1), other.join().unwrap());
        assert!(mine != others, "{mine}, {others}");
    });
}

/// A page's frames, of which the first that is not [`GONE`] is mapped.
struct Page {
    lend: RequestCell,
    /// The number of the frame; `GONE` while the page is evicted.
    mapped: AtomicU32,
    frames: Vec<AtomicU64>,
}

const GONE: u32 = u32::MAX;
const PAGE: u32 = 9;

/// The owner's reclaim unmaps the page, and a fault brings it back, in another frame.
fn leaves_and_comes_back(page: &Page, frame: u32) {
    {
        let batch = page.lend.batch();
        if (batch.kept_pages()).is_some_and(|(first, end)| (first..end).contains(&PAGE)) {
            return;
        }
        let old = page.mapped.load(Ordering::SeqCst);
        let copy = page.frames[old as usize].load(Ordering::SeqCst);
        page.mapped.store(GONE, Ordering::SeqCst);
        page.frames[frame as usize].store(copy, Ordering::SeqCst);
    }
    page.mapped.store(frame, Ordering::SeqCst);
}

/// The kernel, for another process: finds the mapped frame, and writes into it. False when there is none.
fn writes(page: &Page, thread: u32, bit: u64) -> bool {
    let requester = Requester { process: 1, thread };
    let used = CopyRequest::of(requester, PAGE, 1).at(Stage::Copying);
    while !page.lend.put(used) {
        thread::yield_now();
    }
    while page.lend.is_in_batch() {
        thread::yield_now();
    }
    let frame = page.mapped.load(Ordering::SeqCst);
    if frame != GONE {
        page.frames[frame as usize].fetch_or(bit, Ordering::SeqCst);
    }
    assert!(page.lend.remove(used));
    frame != GONE
}

#[test]
fn what_is_written_into_a_page_stays_when_it_leaves() {
    check(|| {
        let page = Arc::new(Page {
            lend: RequestCell::new(),
            mapped: AtomicU32::new(0),
            frames: (0..3).map(|_| AtomicU64::new(0)).collect(),
        });
        let writers: Vec<_> = (0..2)
            .map(|i| {
                let page = page.clone();
                thread::spawn(move || if writes(&page, i, 1 << i) { 1 << i } else { 0 })
            })
            .collect();
        for frame in [1, 2] {
            leaves_and_comes_back(&page, frame);
        }
        let written = writers.into_iter().map(|w| w.join().unwrap()).sum();
        let frame = page.mapped.load(Ordering::SeqCst);
        assert_eq!(
            page.frames[frame as usize].load(Ordering::SeqCst),
            written,
            "what was written is there"
        );
    });
}
