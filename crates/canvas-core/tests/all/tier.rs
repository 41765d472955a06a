//! The far tier step by step: what is demoted when, what is promoted, and what happens when no answer comes.

use std::sync::atomic::Ordering::Relaxed;

use crate::toy::agent::Mood;
use crate::toy::{self, COPY, Content, FAR, PER_SLAB, SLABS, Toy, World, under_way};
use canvas_core::far::fetch::{self, Lost};
use canvas_core::far::job::JobKind;
use canvas_core::far::{FarStore, channel, completion, demote, resident_copies, room};
use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_shm::Counter;
use canvas_shm::mailbox::Status;

fn page(n: u32) -> Content {
    Content {
        seed: u64::from(n) + 1,
        len: 1500,
    }
}

/// Pages `from..to` written and swapped out.
fn out(toy: &Toy, from: u32, to: u32) {
    for n in from..to {
        assert!(toy.write(n, page(n)));
        assert!(toy.swap_out(n), "page {n}");
    }
}

/// Answers the agent's requests, the oldest first, and completes them; rounds until nothing happens.
fn settle(toy: &Toy) {
    for _ in 0..200 {
        demote::background_round(toy);
        toy.w.agent.lock().unwrap().answer(toy.w, 0, Status::Ok);
        completion::finish_all(toy);
        toy.w.passes(3_000_000);
    }
}

fn answer(toy: &Toy, status: Status) {
    toy.w.agent.lock().unwrap().answer(toy.w, 0, status);
}

fn beyond_at(toy: &Toy, page: u32) -> canvas_types::ExtentRef {
    toy.pool.extent_ref(toy.word(page).entry()).unwrap()
}

/// 60 pages, of which these are in far memory, and a pool with room again.
fn some_beyond(toy: &Toy) -> Vec<u32> {
    out(toy, 0, 60);
    settle(toy);
    let gone = beyond(toy);
    toy.w.bound.store(8 * SLAB_CHARGE_BYTES, Relaxed);
    gone
}

fn beyond(toy: &Toy) -> Vec<u32> {
    let deep = |n: &u32| toy.pool.extent_ref(toy.word(*n).entry()).is_some();
    (0..64).filter(deep).collect()
}

#[test]
fn a_pool_past_its_mark_writes_its_oldest_and_keeps_them_until_that_is_durable() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    out(&toy, 0, 60);
    assert!(demote::background_round(&toy));
    assert!(beyond(&toy).is_empty() && under_way(&toy, JobKind::Demote) > 0);
    assert_eq!(demote::idle_ns(&toy), 300_000, "its end is looked for");
    // Rewritten while it is being written: the new copy stays.
    toy.swap_in(0, page(0), true, false).unwrap();
    assert!(toy.write(0, page(99)) && toy.swap_out(0));
    settle(&toy);
    let gone = beyond(&toy);
    assert!(gone.contains(&1) && !gone.contains(&0), "{gone:?}");
    assert_eq!(w.counted(Counter::PagesDemoted), gone.len() as u64);
    assert!(!room::is_stalled(&toy) && demote::idle_ns(&toy) == u64::MAX);
    toy.check(|n| {
        if n == 0 {
            page(99)
        } else if n < 60 {
            page(n)
        } else {
            toy::ZEROS
        }
    });
    // No more than it takes.
    assert!(gone.len() < 40, "{gone:?}");
}

#[test]
fn a_write_that_fails_keeps_the_pages_and_rests_for_a_while() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    out(&toy, 0, 60);
    demote::background_round(&toy);
    while under_way(&toy, JobKind::Demote) > 0 {
        answer(&toy, Status::NoRoom);
        completion::finish_all(&toy);
    }
    assert_eq!(*w.told.lock().unwrap(), [Status::NoRoom], "said once");
    assert!(beyond(&toy).is_empty());
    let (used, limit) = room::used_and_limit(&toy);
    assert_eq!(used, limit, "far memory counts as full");
    demote::background_round(&toy);
    assert_eq!(under_way(&toy, JobKind::Demote), 0, "not again at once");
    w.passes(201_000_000);
    settle(&toy);
    assert!(!beyond(&toy).is_empty());
    assert!(room::used_and_limit(&toy).0 < room::used_and_limit(&toy).1);
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}

#[test]
fn copies_of_local_pages_that_are_too_few_are_not_looked_for_again_at_once() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let gone = some_beyond(&toy);
    // A page comes back to local memory and keeps its copies in the pool and in far memory.
    let keeps_both = |n: usize| {
        toy.swap_in(gone[n], page(gone[n]), true, true).unwrap();
        let entry = toy.word(gone[n]).entry();
        assert!(toy.pool.home_ref(entry).is_some());
        entry
    };
    let first = keeps_both(0);
    w.bound.store(0, Relaxed);
    demote::background_round(&toy);
    assert!(toy.pool.home_ref(first).is_none(), "it goes for nothing");
    // The next one is also alone, and not worth a pass over all pages while others can be written.
    w.bound.store(8 * SLAB_CHARGE_BYTES, Relaxed);
    let second = keeps_both(1);
    out(&toy, 60, 64);
    w.bound.store(0, Relaxed);
    w.passes(3_000_000);
    demote::background_round(&toy);
    assert!(toy.pool.home_ref(second).is_some());
    settle(&toy);
    assert!(toy.pool.home_ref(second).is_none());
    toy.check(page);
}

#[test]
fn neighbours_of_a_page_that_was_read_come_into_the_pool() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let gone = some_beyond(&toy);
    assert!(room::pool_has_room(&toy));
    let place = toy.pool.extent_ref(toy.word(gone[0]).entry()).unwrap();
    toy.swap_in(gone[0], page(gone[0]), false, true).unwrap();
    assert!(channel::is_in_flight(
        &toy,
        gone[1],
        beyond_at(&toy, gone[1])
    ));
    // A second request for it is the same one.
    fetch::fetch(&toy, place.extent);
    assert_eq!(under_way(&toy, JobKind::Fetch), 1);
    w.passes(7_000_000);
    // A thread that needs one of them waits for the extent, and does not read it alone.
    toy.swap_in(gone[1], page(gone[1]), true, false).unwrap();
    assert_eq!(w.counted(Counter::FaultBeyondPool), 1);
    assert!(w.counted(Counter::PagesPromoted) > 1);
    let ahead = w.ahead_ns.lock().unwrap().clone();
    assert!(ahead.len() == 1 && ahead[0] >= 7_000_000, "{ahead:?}");
    assert!(!beyond(&toy).contains(&gone[2]), "it came with it");
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}

#[test]
fn a_page_that_is_read_ahead_alone_comes_into_the_pool_without_its_neighbours() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let gone = some_beyond(&toy);
    assert!(toy.read_ahead(gone[0]) && toy.read_ahead(gone[1]));
    assert!(!toy.read_ahead(gone[0]), "it is on its way");
    assert_eq!(under_way(&toy, JobKind::Page), 2);
    assert!(!channel::is_in_flight(
        &toy,
        gone[2],
        beyond_at(&toy, gone[2])
    ));
    // The second is freed meanwhile, and its number reused.
    toy.discard(gone[1]);
    settle(&toy);
    assert_eq!(w.counted(Counter::PagesPromoted), 1);
    assert!(!beyond(&toy).contains(&gone[0]) && beyond(&toy).contains(&gone[2]));
    // A thread that needs one that is on its way waits for it, and does not request it again.
    assert!(toy.read_ahead(gone[2]));
    toy.swap_in(gone[2], page(gone[2]), true, false).unwrap();
    assert_eq!(w.counted(Counter::FaultBeyondPool), 0);
    toy.check(|n| {
        if n < 60 && n != gone[1] {
            page(n)
        } else {
            toy::ZEROS
        }
    });
}

/// A page whose neighbours are all used up is not read from far memory each time.
#[test]
fn a_page_that_was_read_alone_is_in_the_pool_from_then_on_if_that_has_room() {
    for has_room in [true, false] {
        let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
        let toy = w.toy();
        out(&toy, 0, 60);
        settle(&toy);
        let gone = beyond(&toy);
        if has_room {
            w.bound.store(8 * SLAB_CHARGE_BYTES, Relaxed);
        }
        let entry = toy.word(gone[0]).entry();
        toy.swap_in(gone[0], page(gone[0]), true, true).unwrap();
        assert_eq!(toy.pool.extent_ref(entry).is_none(), has_room);
        settle(&toy);
        out(&toy, gone[0], gone[0] + 1);
        settle(&toy);
        let before = w.counted(Counter::FaultBeyondPool);
        toy.swap_in(gone[0], page(gone[0]), true, true).unwrap();
        let read_again = w.counted(Counter::FaultBeyondPool) > before;
        assert_eq!(read_again, !has_room);
        toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
    }
}

#[test]
fn what_came_back_and_did_not_change_leaves_the_pool_unwritten() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let gone = some_beyond(&toy);
    toy.swap_in(gone[0], page(gone[0]), true, true).unwrap();
    settle(&toy);
    assert!(w.counted(Counter::PagesPromoted) > 0);
    let stayed = beyond(&toy);
    let raised: Vec<u32> = gone.into_iter().filter(|n| !stayed.contains(n)).collect();
    // So little that the hand comes round to the promoted ones, which it passes over once.
    w.bound.store(SLAB_CHARGE_BYTES, Relaxed);
    settle(&toy);
    let now = beyond(&toy);
    let again = raised.iter().filter(|n| now.contains(n)).count() as u64;
    assert!(again > 5, "{raised:?}");
    assert!(w.counted(Counter::PagesDemotedUnwritten) >= again);
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}

#[test]
fn a_fetch_that_is_too_late_is_dropped_and_its_extent_let_go() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    out(&toy, 0, 60);
    settle(&toy);
    let place = toy
        .pool
        .extent_ref(toy.word(beyond(&toy)[0]).entry())
        .unwrap();
    fetch::fetch(&toy, place.extent);
    answer(&toy, Status::Late);
    assert!(!completion::finish_all(&toy));
    assert_eq!(w.counted(Counter::PrefetchDropped), 1);
    assert_eq!(w.counted(Counter::BeyondPoolFailure), 0);
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}

#[test]
fn without_an_answer_a_page_stays_far_and_comes_later() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    out(&toy, 0, 60);
    settle(&toy);
    let n = beyond(&toy)[0];
    let came = |mood| {
        w.agent.lock().unwrap().mood = mood;
        toy.swap_in(n, page(n), true, false)
    };
    assert_eq!(came(Mood::Away), Err(Lost::Unreachable));
    assert_eq!(came(Mood::Says(Status::Corrupt)), Err(Lost::Damaged));
    assert_eq!(came(Mood::Says(Status::Lost)), Err(Lost::Gone));
    // A thread that waits for its extent gives up and requests the page alone.
    let place = toy.pool.extent_ref(toy.word(n).entry()).unwrap();
    fetch::fetch(&toy, place.extent);
    assert_eq!(came(Mood::Away), Err(Lost::Unreachable));
    assert!(!channel::is_in_flight(&toy, n, place));
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
    assert_eq!(toy.word(n).state(), FAR);
    assert_eq!(came(Mood::Well), Ok(()));
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}

#[test]
fn a_full_pool_waits_for_its_writes_but_not_for_ever() {
    let w = World::new(200, 4 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    // More than it holds: each store that finds it full waits until some pages were demoted.
    out(&toy, 0, 150);
    assert!(beyond(&toy).len() > 20);
    w.agent.lock().unwrap().mood = Mood::Away;
    let (mut n, from) = (150, w.now_ns.load(Relaxed));
    while n < 200 && toy.write(n, page(n)) && toy.swap_out(n) {
        n += 1;
    }
    assert!(n < 200 && room::is_stalled(&toy));
    let waited_ns = w.now_ns.load(Relaxed) - from;
    assert!((20_000_000..60_000_000).contains(&waited_ns), "{waited_ns}");
    // No thread waits again meanwhile.
    let from = w.now_ns.load(Relaxed);
    assert!(!toy.swap_out(n));
    assert!(w.now_ns.load(Relaxed) - from < 1_000_000);
    toy.check(|k| if k <= n { page(k) } else { toy::ZEROS });
    // After one answer it continues.
    w.agent.lock().unwrap().mood = Mood::Well;
    answer(&toy, Status::Ok);
    completion::finish_all(&toy);
    assert!(!room::is_stalled(&toy) && toy.swap_out(n));
}

/// Other threads may use every page while one searches for unused ones: the pool is reported full only when that lasts,
/// not at once.
#[test]
fn a_look_that_finds_all_pages_in_use_is_not_the_last_one() {
    let w = World::new(200, 4 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    out(&toy, 0, 60);
    settle(&toy);
    assert_eq!(under_way(&toy, JobKind::Demote), 0);
    w.all_used.store(20, Relaxed);
    assert!(demote::make_room(&toy));
    settle(&toy);
    // Where it is always so, no thread waits forever.
    w.all_used.store(u64::MAX, Relaxed);
    assert!(!demote::make_room(&toy));
}

#[test]
fn compaction_brings_the_rest_of_sparse_extents_together_and_keeps_everything() {
    let w = World::new(400, 4 * SLAB_CHARGE_BYTES);
    w.slabs_max.store(2, Relaxed);
    let toy = w.toy();
    out(&toy, 0, 280);
    settle(&toy);
    let room = || FarStore::book(&toy).room(SLABS as u32);
    let (extents, free) = room();
    assert_eq!(extents, 2 * PER_SLAB as u64, "all that there are");
    assert_eq!(w.counted(Counter::ExtentsCompacted), 0, "they are full");
    let kept = |n: u32| n < 280 && n.is_multiple_of(5);
    (0..280).filter(|n| !kept(*n)).for_each(|n| toy.discard(n));
    assert_eq!(room(), (extents, free), "each has kept a few");
    settle(&toy);
    assert!(w.counted(Counter::ExtentsCompacted) > 4);
    let (extents_now, free_now) = room();
    let in_use = (extents - free, extents_now - free_now);
    assert!(in_use.1 * 2 < in_use.0, "{in_use:?}");
    toy.check(|n| if kept(n) { page(n) } else { toy::ZEROS });
}

/// What is left of several slabs is gathered in fewer, and the others are given back; so is the slab from which extents
/// are taken, when nothing is left of it.
#[test]
fn slabs_of_which_little_is_left_are_given_back() {
    let w = World::new(400, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let slabs = || w.taken.lock().unwrap().len();
    // Long enough for several searches.
    let time_passes = || {
        for _ in 0..20 {
            settle(&toy);
        }
    };
    out(&toy, 0, 400);
    settle(&toy);
    assert!(slabs() >= 3, "{} slabs", slabs());
    let lives = |k: u32| k.is_multiple_of(16);
    (0..400).filter(|k| !lives(*k)).for_each(|k| toy.discard(k));
    time_passes();
    assert!(slabs() <= 1, "{} slabs for 25 pages", slabs());
    toy.check(|k| if lives(k) { page(k) } else { toy::ZEROS });
    (0..400).filter(|k| lives(*k)).for_each(|k| toy.discard(k));
    time_passes();
    assert_eq!(slabs(), 0);
}

/// Too few donors answer: no thread waits for a write, pages that are also in far memory are demoted, and no page in
/// local memory loses the copy without which it could not be evicted.
#[test]
fn where_nothing_can_be_written_only_what_lies_beyond_too_leaves_the_pool() {
    let w = World::new(64, 3 * SLAB_CHARGE_BYTES);
    let toy = w.toy();
    let gone = some_beyond(&toy);
    toy.swap_in(gone[0], page(gone[0]), true, true).unwrap();
    settle(&toy);
    let stayed = beyond(&toy);
    let raised = gone.iter().filter(|n| !stayed.contains(n)).count();
    assert!(raised > 5);
    // In local memory, with its only copy in the pool.
    let in_pool = (0..60).find(|n| !gone.contains(n)).unwrap();
    toy.swap_in(in_pool, page(in_pool), true, false).unwrap();
    assert!(toy.word(in_pool).has(COPY));
    assert!(demote::write_for_others(&toy, 1) && !room::is_closed(&toy));
    answer(&toy, Status::Unreachable);
    completion::finish_all(&toy);
    assert!(room::is_closed(&toy) && room::may_open(&toy));
    w.bound.store(SLAB_CHARGE_BYTES, Relaxed);
    let from = w.now_ns.load(Relaxed);
    resident_copies::give_slabs(&toy, 8 * SLAB_CHARGE_BYTES);
    assert!(toy.word(in_pool).has(COPY), "it could not leave again");
    let mut made = 0;
    for _ in 0..20 {
        let before = w.now_ns.load(Relaxed);
        made += u32::from(demote::make_room_unwritten(&toy));
        assert!(w.now_ns.load(Relaxed) - before < 1_000_000, "it has waited");
        w.passes(3_000_000);
    }
    assert!(made > 0 && w.now_ns.load(Relaxed) > from);
    let left = beyond(&toy).len() - stayed.len();
    assert!(left + 1 >= raised, "{left} of {raised}");
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
    // One successful write ends it.
    w.passes(1_000_000_000);
    settle(&toy);
    assert!(!room::is_closed(&toy));
    toy.check(|n| if n < 60 { page(n) } else { toy::ZEROS });
}
