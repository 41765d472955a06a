//! The far tier under shuttle's scheduler: `cargo test -p canvas-core --features shuttle`. Threads of a program complete
//! requests, wait for extents and rewrite pages while the agent answers; the toy fails when two use one buffer.

use crate::toy::{Content, Toy, World, ZEROS};
use canvas_core::far::job::{Job, JobKind};
use canvas_core::far::{completion, demote, fetch};
use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_shm::mailbox::{FETCHES, Kind, Mailbox, RequestFields, Status, WRITES};
use canvas_types::sync::{AtomicU32, Ordering};
use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::thread;

fn check(quick: u32, f: impl Fn() + Send + Sync + 'static) {
    let times = canvas_testing::random::scaled(quick) as usize;
    let f = std::sync::Arc::new(f);
    let g = f.clone();
    let config = || {
        let mut config = shuttle::Config::new();
        // A page and working memory of the pool pass through it.
        config.stack_size = 1 << 20;
        config
    };
    Runner::new(RandomScheduler::new(times), config()).run(move || g());
    Runner::new(PctScheduler::new(3, times), config()).run(move || f());
}

#[test]
fn a_job_is_ended_once_and_with_its_own_answer() {
    check(400, || {
        let mailbox = Arc::new(Mailbox::new());
        // One place, reused by any thread that finds it free. Its buffer is a word.
        let (job, buffer) = (Arc::new(Job::new()), Arc::new(AtomicU32::new(0)));
        let ended = Arc::new(AtomicU32::new(0));
        const ANSWER: u32 = 1 << 31;
        let agent = {
            let (mailbox, buffer, ended) = (mailbox.clone(), buffer.clone(), ended.clone());
            thread::spawn(move || {
                while ended.load(Ordering::Acquire) < 6 {
                    if mailbox.collect() != 0
                        && let Some((ask, _)) = mailbox.take(0)
                    {
                        let asked = buffer.fetch_or(ANSWER, Ordering::Relaxed);
                        assert_eq!(asked, ask.extent, "the buffer is its request's");
                        mailbox.complete(0, Status::Ok);
                    }
                    thread::yield_now();
                }
            })
        };
        let threads: Vec<_> = (0..3u32)
            .map(|t| {
                let (mailbox, buffer) = (mailbox.clone(), buffer.clone());
                let (job, ended) = (job.clone(), ended.clone());
                thread::spawn(move || {
                    let mut next = 2 * t;
                    while ended.load(Ordering::Acquire) < 6 {
                        if let Some(end) = job.end(|| mailbox.ended(0)) {
                            // The answer in the buffer is the one for the job's extent.
                            assert_eq!(end.bytes, i64::from(end.extent));
                            let answer = buffer.load(Ordering::Relaxed);
                            assert_eq!(answer, end.extent | ANSWER, "another job's answer");
                            ended.fetch_add(1, Ordering::AcqRel);
                            job.through();
                            mailbox.release(0);
                        } else if next < 2 * t + 2 && mailbox.claim(1).is_some() {
                            buffer.store(next, Ordering::Relaxed);
                            job.begin(JobKind::Fetch, next, next.into());
                            let ask = RequestFields {
                                kind: Kind::Read,
                                extent: next,
                                offset: 0,
                                len: 16,
                            };
                            mailbox.post(0, ask, 0);
                            next += 1;
                        }
                        thread::yield_now();
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        agent.join().unwrap();
        assert_eq!(mailbox.in_use(), 0);
    });
}

fn page(n: u32) -> Content {
    Content {
        seed: u64::from(n) + 1,
        len: 4000,
    }
}

const PAGES: u32 = 16;

/// A world with its pages in the pool, past its mark.
fn world() -> World {
    World::new(PAGES as usize, 2 * SLAB_CHARGE_BYTES)
}

fn fill(toy: &Toy) {
    for n in 0..14 {
        assert!(toy.write(n, page(n)) && toy.swap_out(n));
    }
    assert!(demote::background_round(toy), "it is past its mark");
}

/// Answers until the end.
fn agent(world: &World, over: &AtomicU32) {
    while over.load(Ordering::Acquire) == 0 {
        // Nobody else holds it while threads run.
        world.agent.try_lock().unwrap().step(world);
        thread::yield_now();
    }
}

/// Completes the requests in `among` until there are none.
fn ends(toy: &Toy, among: u64) {
    while toy.w.mailbox.in_use() & among != 0 {
        completion::finish_all(toy);
        thread::yield_now();
    }
}

#[test]
fn threads_that_end_spills_and_rewrite_their_pages_lose_none() {
    check(40, || {
        let (world, over) = (world(), AtomicU32::new(0));
        let toy = world.toy();
        fill(&toy);
        thread::scope(|s| {
            let answers = s.spawn(|| agent(&world, &over));
            let work = [
                s.spawn(|| ends(&toy, WRITES)),
                s.spawn(|| ends(&toy, WRITES)),
                s.spawn(|| {
                    for n in [0, 3] {
                        toy.swap_in(n, page(n), n == 0, false).unwrap();
                        assert!(toy.write(n, page(n + 100)));
                        toy.swap_out(n);
                    }
                }),
            ];
            work.into_iter().for_each(|t| t.join().unwrap());
            over.store(1, Ordering::Release);
            answers.join().unwrap();
        });
        toy.check(|n| match n {
            0 | 3 => page(n + 100),
            14.. => ZEROS,
            _ => page(n),
        });
    });
}

#[test]
fn threads_that_wait_for_one_extent_all_get_their_pages() {
    check(40, || {
        let (world, over) = (world(), AtomicU32::new(0));
        let toy = world.toy();
        fill(&toy);
        while world.mailbox.in_use() & WRITES != 0 {
            world.agent.lock().unwrap().step(&world);
            completion::finish_all(&toy);
        }
        let place = |n: u32| toy.pool.extent_ref(toy.word(n).entry());
        let deep: Vec<u32> = (0..14).filter(|n| place(*n).is_some()).collect();
        assert!(deep.len() > 2, "{deep:?}");
        fetch::fetch(&toy, place(deep[0]).unwrap().extent);
        let comes = |n: u32| toy.swap_in(n, page(n), n.is_multiple_of(2), false).unwrap();
        let comes = &comes;
        thread::scope(|s| {
            let answers = s.spawn(|| agent(&world, &over));
            let threads = [deep[0], deep[1], deep[2]].map(|n| s.spawn(move || comes(n)));
            threads.into_iter().for_each(|t| t.join().unwrap());
            ends(&toy, FETCHES);
            over.store(1, Ordering::Release);
            answers.join().unwrap();
        });
        toy.check(|n| if n < 14 { page(n) } else { ZEROS });
    });
}
