use canvas_place::headroom;
use canvas_wire::{EVICT_MAX, SLAB_BYTES};

use super::*;

const MIB: u64 = 1 << 20;
const SLAB: u64 = SLAB_BYTES as u64;

/// A table that may lend `slabs` slabs, on a host with plenty of memory.
fn registry(slabs: u64) -> Registry {
    let config = headroom::Config::new(slabs * SLAB, 1000 * MIB, SLAB);
    let mut headroom = Headroom::new(config);
    headroom.observe(Sample {
        available_bytes: 1 << 50,
        ..Sample::default()
    });
    Registry::new(headroom, 100)
}

fn outbox() -> Arc<Outbox> {
    Arc::new(Outbox::new().unwrap())
}

fn key(slab: u32) -> SlabKey {
    SlabKey {
        tenant: [1; 16],
        slab,
    }
}

fn join(r: &Registry, id: u8, link: u32, now_ms: u64) -> (Arc<Client>, Arc<Outbox>) {
    let outbox = outbox();
    let client = r.join([id; 16], link, &outbox, 1000, now_ms).unwrap();
    (client, outbox)
}

#[test]
fn a_page_of_a_list_is_followed_by_the_next() {
    let count = LIST_MAX + 3;
    let r = registry(2 * count as u64);
    let (ours, _a) = join(&r, 1, 0, 0);
    let (theirs, _b) = join(&r, 2, 0, 0);
    let mut handles = Vec::new();
    for n in 0..count as u32 {
        handles.push(r.alloc(&ours, key(n)).unwrap());
        r.alloc(&theirs, key(n)).unwrap();
    }
    let (page, more) = r.list(&ours.id, 0);
    assert_eq!((page.len(), more), (LIST_MAX, true));
    let (rest, more) = r.list(&ours.id, page.last().unwrap().handle);
    assert_eq!((rest.len(), more), (3, false));
    let listed: Vec<u64> = page.iter().chain(&rest).map(|l| l.handle).collect();
    assert_eq!(listed, handles);
}

#[test]
fn parts_of_slabs_take_their_part_of_what_is_lent() {
    let r = registry(2);
    let (ours, _a) = join(&r, 1, 0, 0);
    let part = |slab| SlabKey::part([1; 16], slab, 4);
    let whole = r.alloc(&ours, key(0)).unwrap();
    let parts: Vec<u64> = (0..4).map(|n| r.alloc(&ours, part(n)).unwrap()).collect();
    // A part of a slab differs from the whole slab.
    assert!(!parts.contains(&whole));
    assert_eq!(r.alloc(&ours, part(3)), Ok(parts[3]));
    assert_eq!(r.totals().lent_bytes, 2 * SLAB);
    assert_eq!(r.alloc(&ours, part(4)), Err(ErrorCode::NoRoom));
    r.free(&ours.id, parts[1]).unwrap();
    assert_eq!(r.alloc(&ours, key(1)), Err(ErrorCode::NoRoom));
    r.alloc(&ours, part(4)).unwrap();
    r.free(&ours.id, whole).unwrap();
    assert_eq!(r.pong().lent_bytes, SLAB);
    r.alloc(&ours, key(1)).unwrap();
}

#[test]
fn links_of_a_client_are_bounded_and_replaced_by_number() {
    let r = registry(1);
    let mut outboxes = Vec::new();
    for link in 0..LINKS_OF_A_CLIENT_MAX as u32 {
        outboxes.push(join(&r, 1, link, 0).1);
    }
    let one_more = outbox();
    let refused = r.join([1; 16], 99, &one_more, 1000, 0);
    assert_eq!(refused.err(), Some(ErrorCode::TooManyLinks));
    let (client, newer) = join(&r, 1, 3, 0);
    assert!(outboxes[3].is_closed());
    assert!(!newer.is_closed());
    // The older link's end does not remove the newer one.
    r.leave(&client, 3, &outboxes[3]);
    assert_eq!(client.link_count(), LINKS_OF_A_CLIENT_MAX);
    r.leave(&client, 3, &newer);
    assert_eq!(client.link_count(), LINKS_OF_A_CLIENT_MAX - 1);
}

#[test]
fn with_its_first_link_a_client_begins_anew() {
    let r = registry(1);
    let older: Vec<_> = (0..3).map(|link| join(&r, 1, link, 0).1).collect();
    let (_, other) = join(&r, 2, 1, 0);
    let (client, newer) = join(&r, 1, 0, 0);
    assert!(older.iter().all(|o| o.is_closed() && o.serve().is_none()));
    assert!(!newer.is_closed() && !other.is_closed());
    assert_eq!(client.link_count(), 1);
    // Its next links replace none.
    let (_, second) = join(&r, 1, 1, 0);
    assert!(!newer.is_closed() && !second.is_closed());
    // A client with the maximum of links can start again, too.
    for link in 2..LINKS_OF_A_CLIENT_MAX as u32 {
        join(&r, 1, link, 0);
    }
    let (client, _newest) = join(&r, 1, 0, 0);
    assert_eq!(client.link_count(), 1);
}

/// Also for a link that replaces one which is still waiting for the link that it replaced.
#[test]
fn newer_links_wait_for_what_an_older_one_is_doing() {
    let r = registry(1);
    let (_, oldest) = join(&r, 1, 1, 0);
    let older = outbox();
    let said = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        let serving = oldest.serve().unwrap();
        s.spawn(|| {
            r.join([1; 16], 0, &older, 1000, 0).unwrap();
            said.lock().unwrap().push("welcome");
        });
        until(|| oldest.is_closed());
        for newer in 0..2 {
            let (r, said) = (&r, &said);
            s.spawn(move || {
                r.join([1; 16], newer, &outbox(), 1000, 0).unwrap();
                said.lock().unwrap().push("welcome");
            });
        }
        until(|| older.is_closed());
        // Time for a wrong implementation to fail; a right one never fails here.
        std::thread::sleep(std::time::Duration::from_millis(100));
        said.lock().unwrap().push("served");
        drop(serving);
    });
    let said = said.into_inner().unwrap();
    assert_eq!(said, ["served", "welcome", "welcome", "welcome"]);
    assert!(r.clients()[0].client.links().replaced.is_empty());
}

fn until(so: impl Fn() -> bool) {
    while !so() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn leases_end_one_by_one() {
    let r = registry(4);
    let (early, outbox) = join(&r, 1, 0, 0);
    let (late, _keep) = join(&r, 2, 0, 0);
    let gone = r.alloc(&early, key(0)).unwrap();
    let kept = r.alloc(&late, key(0)).unwrap();
    late.heard(900);
    assert!(r.expire(1000).is_empty());
    let expired = r.expire(1001);
    assert_eq!(expired.len(), 1);
    assert_eq!((expired[0].client.id, expired[0].slabs), (early.id, 1));
    assert!(outbox.is_closed());
    assert!(r.find(&early.id, gone).is_none());
    assert!(r.find(&late.id, kept).is_some());
    // Its thread may not have noticed yet.
    assert_eq!(r.alloc(&early, key(1)), Err(ErrorCode::Ending));
    assert_eq!(r.totals().slabs, 1);
    // It comes back as a new client, with a new slab under the same key.
    let (again, _o) = join(&r, 1, 0, 2000);
    assert_ne!(r.alloc(&again, key(0)).unwrap(), gone);
}

#[test]
fn clients_are_called_over_their_lowest_link_and_answers_of_others_do_not_count() {
    let r = registry(8);
    let (a, a2) = join(&r, 1, 2, 0);
    let a1 = outbox();
    r.join(a.id, 1, &a1, 1000, 0).unwrap();
    let (b, b0) = join(&r, 2, 0, 0);
    let ours: Vec<u64> = (0..3).map(|n| r.alloc(&a, key(n)).unwrap()).collect();
    let theirs = r.alloc(&b, key(0)).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    assert_eq!(r.query(&mut rng, 1), 4);
    assert!(a2.take().is_empty());
    assert_eq!(a1.take().len(), 1);
    assert_eq!(b0.take(), [OwnedCall::Query(vec![theirs])]);
    for &h in &ours {
        r.note_activity(&a.id, h, 10);
        // Not its own slab.
        r.note_activity(&b.id, h, 0);
    }
    r.note_activity(&a.id, theirs, 0);
    assert!(!r.all_answered());
    r.note_activity(&b.id, theirs, 5);
    assert!(r.all_answered());
    assert_eq!(r.stop_least_active(1, 700), 1);
    let stop = OwnedCall::Stop {
        deadline_ms: 700,
        handles: vec![theirs],
    };
    assert_eq!(b0.take(), [stop]);
    assert!(a1.take().is_empty());
    // Only the deadline frees it, not another client.
    r.evict_done(&a.id, theirs);
    r.evict_done(&a.id, ours[0]);
    assert_eq!(r.free_due(699), 0);
    assert_eq!(r.totals().slabs, 4);
    assert_eq!(r.free_due(700), 1);
    assert!(r.find(&b.id, theirs).is_none());
}

#[test]
fn what_a_silent_client_uses_is_counted_by_the_server() {
    let r = registry(8);
    let (a, _o) = join(&r, 1, 0, 0);
    let busy = r.alloc(&a, key(0)).unwrap();
    let idle = r.alloc(&a, key(1)).unwrap();
    let mut out = Vec::new();
    let read = |h: u64, out: &mut Vec<u8>| {
        let slab = r.find(&a.id, h).unwrap();
        slab.read(std::iter::empty(), out).unwrap();
    };
    for _ in 0..5 {
        read(idle, &mut out);
    }
    // Use before the last query does not count in the next.
    let mut rng = fastrand::Rng::with_seed(1);
    r.query(&mut rng, 0);
    r.stop_least_active(0, 700);
    for _ in 0..2 {
        read(busy, &mut out);
    }
    read(idle, &mut out);
    r.query(&mut rng, 1);
    assert_eq!(r.stop_least_active(1, 700), 1);
    assert_eq!(r.totals().leaving, 1);
    r.evict_done(&a.id, idle);
    assert_eq!(r.totals().slabs, 1);
    assert!(r.find(&a.id, busy).is_some());
}

/// A queue holds a bounded number of queries, but every slab that must be moved.
#[test]
fn no_slab_that_must_go_is_left_out() {
    let count = 2 * EVICT_MAX as u64 + 7;
    let r = registry(2 * count);
    let (client, outbox) = join(&r, 1, 0, 0);
    let handles: Vec<u64> = (0..count as u32)
        .map(|n| r.alloc(&client, key(n)).unwrap())
        .collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let stopped = |outbox: &Outbox| -> Vec<u64> {
        let stopped = outbox.take().into_iter().filter_map(|call| match call {
            OwnedCall::Stop { handles, .. } => Some(handles),
            _ => None,
        });
        let mut stopped: Vec<u64> = stopped.flatten().collect();
        stopped.sort_unstable();
        stopped
    };
    // Evictions of one slab each, on a link that takes no calls.
    for n in 0..200 {
        r.query(&mut rng, 1);
        assert_eq!(r.stop_least_active(1, 700 + n), 1);
    }
    let calls = outbox.take();
    let questions = calls.iter().filter(|c| matches!(c, OwnedCall::Query(_)));
    assert!((1..=64).contains(&questions.count()));
    let stops = calls.iter().filter(|c| matches!(c, OwnedCall::Stop { .. }));
    assert_eq!(stops.count(), 200);
    let (_, again) = join(&r, 1, 0, 0);
    assert_eq!(stopped(&again).len(), 200);
    // All at once: in as few calls as possible.
    r.stop_all(5000);
    assert_eq!(stopped(&again).len(), handles.len() - 200);
    let (_, third) = join(&r, 1, 0, 0);
    assert_eq!(stopped(&third), handles);
}

/// Each client is informed of its own, and freed slabs cannot be found, even by those who knew
/// them.
#[test]
fn what_is_freed_at_once_is_told() {
    let r = registry(8);
    let (a, a0) = join(&r, 1, 0, 0);
    let (b, b0) = join(&r, 2, 0, 0);
    let budget = crate::slab::Budget::default();
    budget.set(u64::MAX);
    let fill = |client: &Arc<Client>, slab: u32| {
        let handle = r.alloc(client, key(slab)).unwrap();
        let there = r.find(&client.id, handle).unwrap();
        there.write(0, &vec![7; 1 << 20], &budget, || {}).unwrap();
        (handle, there)
    };
    let (sole, of_sole) = fill(&a, 0);
    let (spare, _) = fill(&a, 1);
    let (theirs, _) = fill(&b, 0);
    let worth = |handle, worth| Valued { handle, worth };
    r.value(
        &a.id,
        [worth(spare, 2), worth(theirs, 0), worth(999, 2)].into_iter(),
    );
    r.value(&b.id, [worth(theirs, 1), worth(sole, 2)].into_iter());
    let mut sample = early::HostSample {
        available_bytes: 248 * MIB,
        reserve_bytes: 1000 * MIB,
        ..early::HostSample::default()
    };
    let freed = r.free_early(&sample);
    let freed: Vec<_> = freed.iter().map(|s| (s.slab, s.worth)).collect();
    assert_eq!(freed, [(spare, Worth::Spare), (theirs, Worth::Kept)]);
    assert_eq!(a0.take(), [OwnedCall::Gone(vec![spare])]);
    assert_eq!(b0.take(), [OwnedCall::Gone(vec![theirs])]);
    assert_eq!((r.totals().slabs, r.totals().touched_bytes), (1, MIB));
    assert!(
        r.free_early(&sample).is_empty(),
        "the mark of sole ones is lower"
    );
    sample.available_bytes = 0;
    assert_eq!(r.free_early(&sample).len(), 1);
    let mut out = Vec::new();
    let read = of_sole.read(std::iter::empty(), &mut out);
    assert_eq!(read, Err(ErrorCode::UnknownHandle));
    assert!(r.find(&a.id, sole).is_none());
    assert_ne!(r.alloc(&a, key(0)).unwrap(), sole);
    // A client without a link is not informed, and finds out when it is back.
    r.leave(&a, 0, &a0);
    fill(&a, 1);
    assert_eq!(r.free_early(&sample).len(), 1);
    assert!(
        a0.take()
            .iter()
            .all(|call| matches!(call, OwnedCall::Gone(_)))
    );
}

#[test]
fn the_end_takes_only_clients_that_have_slabs() {
    let r = registry(4);
    let (has, _a) = join(&r, 1, 0, 0);
    let (has_none, _b) = join(&r, 2, 0, 0);
    let handle = r.alloc(&has, key(0)).unwrap();
    r.stop_all(700);
    let refused = |id: u8, link| r.join([id; 16], link, &outbox(), 1000, 0).err();
    assert_eq!(refused(2, 0), Some(ErrorCode::Ending));
    assert_eq!(refused(3, 0), Some(ErrorCode::Ending));
    assert_eq!((refused(1, 0), refused(1, 1)), (None, None));
    assert_eq!(r.alloc(&has, key(1)), Err(ErrorCode::Ending));
    assert_eq!(
        r.totals().clients,
        2,
        "a client that is refused leaves nothing"
    );
    r.evict_done(&has_none.id, handle);
    r.evict_done(&has.id, handle);
    assert_eq!(refused(1, 0), Some(ErrorCode::Ending));
}

#[test]
fn what_clients_hold_is_told_and_freed_in_one_pass() {
    let r = registry(100);
    let clients: Vec<_> = (1..=20).map(|id| join(&r, id, 0, 0).0).collect();
    for (n, client) in clients.iter().enumerate() {
        for slab in 0..n as u32 % 4 {
            r.alloc(client, key(slab)).unwrap();
        }
    }
    let passes = |r: &Registry| r.lock().slabs.passes.take();
    passes(&r);
    let told = r.clients();
    assert_eq!(passes(&r), 1);
    for figures in told {
        let n = usize::from(figures.client.id[0]) - 1;
        assert_eq!(figures.slabs, n % 4);
    }
    // All of them expire at once, with everything they had.
    assert_eq!(r.expire(100_000).len(), clients.len());
    assert_eq!(passes(&r), 1);
    assert_eq!(r.totals().slabs, 0);
}
