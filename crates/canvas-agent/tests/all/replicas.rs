//! Copies of extents on donors in this process: writes and repairs in pieces of any size, and donors that come and go.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use canvas_agent::block::Block;
use canvas_agent::journal::Journal;
use canvas_agent::replicas::Policy;
use canvas_agent::store::{Event, Outcome, Store};
use canvas_donor::Server;
use canvas_place::replicas::LATE_BYTES_MAX;
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS, SLABS_MAX};
use canvas_wire::LIST_MAX;
use canvas_wire::frame::{Answer, Items, Lent, Request, SlabKey};

use crate::rig::{PATIENCE, Rig, TENANT, Way, donor, pretender, seed};

#[test]
fn what_was_written_in_pieces_comes_back_whole_from_donors_and_disk() {
    let dir = tempfile::tempdir().unwrap();
    for (donors, disk) in [(1, false), (1, true), (2, false), (3, true)] {
        let servers: Vec<Server> = (0..3).map(|_| donor()).collect();
        let policy = Policy {
            donors,
            disk,
            late: false,
            code: None,
        };
        let mut rig = Rig::new(&servers, policy, disk.then(|| dir.path()), seed());
        let extents: Vec<u32> = (0..12).collect();
        for _ in 0..3 {
            let outcomes = rig.write(&extents, |_| {});
            assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
            rig.check();
        }
        assert!(rig.pieces > 36, "{} pieces", rig.pieces);
        drop(rig);
        servers.into_iter().for_each(Server::stop);
    }
}

#[test]
fn a_donor_that_goes_between_two_pieces_costs_a_copy_and_nothing_else() {
    let mut servers: Vec<Server> = (0..3).map(|_| donor()).collect();
    let policy = Policy {
        donors: 2,
        disk: true,
        late: false,
        code: None,
    };
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&servers, policy, Some(dir.path()), seed());
    let extents: Vec<u32> = (0..12).collect();
    for round in 0..3 {
        let kill_at = rig.pieces + rig.rng.usize(1..20);
        let outcomes = rig.write(&extents, |pieces| {
            // The second and the third; one is left.
            if pieces == kill_at && round > 0 {
                servers.pop().unwrap().stop();
            }
        });
        assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
        rig.check();
    }
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn repairs_move_when_they_are_let_and_what_they_made_is_whole() {
    let mut servers: Vec<Server> = (0..3).map(|_| donor()).collect();
    for disk in [false, true] {
        while servers.len() < 3 {
            servers.push(donor());
        }
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy {
            donors: 2,
            disk,
            late: false,
            code: None,
        };
        let mut rig = Rig::new(&servers, policy, disk.then(|| dir.path()), seed());
        let extents: Vec<u32> = (0..24).collect();
        let outcomes = rig.write(&extents, |_| {});
        assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
        let holds = servers.iter().rposition(|s| s.lent_slabs() > 0).unwrap();
        servers.remove(holds).stop();
        // Some are written while they are repaired.
        let until = Instant::now() + PATIENCE;
        while rig.own < 40 {
            assert!(Instant::now() < until, "nothing is repaired");
            let some = [rig.rng.u32(..4)];
            // Without a disk a write fails, and leaves nothing, while there is only one donor for it.
            rig.write(&some, |_| {});
            for _ in 0..100 {
                assert!(rig.poll().is_empty());
            }
        }
        rig.check();
        rig.repaired();
        // What is left of the first copies goes as well.
        let holds = servers.iter().position(|s| s.lent_slabs() > 0).unwrap();
        servers.remove(holds).stop();
        rig.check();
    }
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_read_in_pieces_that_the_disk_goes_on_with_is_whole() {
    let donor = donor();
    let way = Way::to(donor.listening());
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy {
        donors: 1,
        disk: true,
        late: false,
        code: None,
    };
    let mut rig = Rig::over(&[way.addr], policy, Some(dir.path()), seed());
    let extents: Vec<u32> = (0..8).collect();
    let outcomes = rig.write(&extents, |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    for extent in extents {
        let (seal, fill) = rig.oracle[&extent];
        let cut = rig.rng.usize(1..EXTENT_BYTES);
        let id = rig.next;
        rig.next += 1;
        rig.store.read(id, extent, 0..cut, 0, Block::new());
        let (outcome, block) = rig.ended(id);
        assert_eq!(outcome, Outcome::Done);
        way.held.store(true, Relaxed);
        rig.store.read(id, extent, cut..EXTENT_BYTES, 0, block);
        let (outcome, mut block) = rig.ended(id);
        assert_eq!(outcome, Outcome::Done);
        let opened = rig.sealer.open_extent(extent, seal, &mut block);
        assert_eq!(opened, Ok(()), "extent {extent}, cut at {cut}");
        assert!(block[..] == rig.packed(fill)[..]);
        way.held.store(false, Relaxed);
    }
    donor.stop();
}

/// An extent of each of these slabs.
fn of_slabs(slabs: std::ops::Range<u32>) -> Vec<u32> {
    slabs.map(|slab| slab * SLAB_EXTENTS as u32).collect()
}

/// Copies move from any places to any others while extents are written and read: nothing is lost, and copies that are
/// no longer wanted are freed.
#[test]
fn copies_go_to_other_places_while_they_are_written_and_read() {
    let servers: Vec<Server> = (0..3).map(|_| donor()).collect();
    let dir = tempfile::tempdir().unwrap();
    let policies = Policy::NAMED.map(|(_, policy)| policy);
    let seed = seed();
    let mut now = policies[seed as usize % policies.len()];
    let mut rig = Rig::new(&servers, now, Some(dir.path()), seed);
    let mut moves = 0;
    for round in 0..12 {
        let next = policies[rig.rng.usize(0..policies.len())];
        moves += usize::from(next != now);
        (rig.copies).set(next);
        now = next;
        let began = Instant::now();
        loop {
            let extents: Vec<u32> = (0..3)
                .map(|_| rig.rng.u32(0..3 + round / 2) * SLAB_EXTENTS as u32 + rig.rng.u32(0..6))
                .collect();
            let distinct = extents
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len();
            if distinct == extents.len() && rig.rng.u8(0..4) == 0 {
                // A slab has too few donors for a moment when the policy wants more of them.
                rig.write(&extents, |_| {});
            }
            if rig.rng.u8(0..8) == 0 {
                rig.check();
            }
            if rig.rng.u8(0..16) == 0 {
                let slab = rig.rng.u32(0..3);
                rig.free(slab);
            }
            for _ in 0..100 {
                assert!(rig.poll().is_empty());
            }
            let slabs = of_written(&rig);
            let lent = servers.iter().map(Server::lent_slabs).sum::<usize>();
            let disk = rig.file.as_ref().unwrap().metadata().unwrap().blocks() > 0;
            let is_settled = rig.degraded == 0 && lent == now.donors * slabs && disk == now.disk;
            if is_settled && began.elapsed() > Duration::from_millis(100) {
                break;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "to {now}: {} slabs have too few copies; of {slabs}, donors have {lent}; on disk: {disk}",
                rig.degraded
            );
        }
        rig.check();
    }
    assert!(moves > 2, "it never moved");
    // The last places have everything.
    assert!(rig.oracle.len() > 3);
    servers.into_iter().for_each(Server::stop);
}

/// Infiniswap's asynchronous backup: the disk is behind, by no more than documented, and has everything in the end.
#[test]
fn a_disk_that_gets_its_copy_late_is_not_far_behind_and_has_all_in_the_end() {
    let server = donor();
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy::named("1+disk-async").unwrap();
    let mut rig = Rig::new(
        std::slice::from_ref(&server),
        policy,
        Some(dir.path()),
        seed(),
    );
    let on_disk = |rig: &Rig| rig.file.as_ref().unwrap().metadata().unwrap().blocks() * 512;
    let extent_bytes = EXTENT_BYTES as u64;
    // Before it was connected, the donor took nothing, and the disk took the writes.
    let first = on_disk(&rig);
    assert!(first <= extent_bytes);
    rig.lets = false;
    let late = (LATE_BYTES_MAX / extent_bytes) as u32;
    let all: Vec<u32> = (1..late - 8).collect();
    for some in all.chunks(8) {
        assert!(rig.write(some, |_| {}).iter().all(|o| *o == Outcome::Done));
    }
    assert_eq!(on_disk(&rig), first, "nobody waited for it");
    // Past the limit a write waits for the disk.
    let more: Vec<u32> = (late..late + 64).collect();
    for some in more.chunks(8) {
        assert!(rig.write(some, |_| {}).iter().all(|o| *o == Outcome::Done));
    }
    assert!(
        on_disk(&rig) >= first + 40 * extent_bytes,
        "{}",
        on_disk(&rig)
    );
    rig.lets = true;
    let until = Instant::now() + PATIENCE;
    while on_disk(&rig) < rig.oracle.len() as u64 * extent_bytes {
        assert!(rig.poll().is_empty());
        assert!(Instant::now() < until, "{} bytes are there", on_disk(&rig));
    }
    // Operations under way end.
    for _ in 0..200 {
        assert!(rig.poll().is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop();
    rig.check();
}

/// A store whose donor and disk both have the data, with a donor that can be delayed.
fn over_a_way_and_a_disk() -> (Server, Way, tempfile::TempDir, Rig) {
    let server = donor();
    let way = Way::to(server.listening());
    let dir = tempfile::tempdir().unwrap();
    let both = Policy::new(1, true);
    let rig = Rig::over(&[way.addr], both, Some(dir.path()), seed());
    (server, way, dir, rig)
}

/// Where donors and the disk both have the data, more and more reads go to the disk while the donor is slower.
#[test]
fn what_both_have_is_read_from_the_faster_one() {
    let (server, way, _dir, mut rig) = over_a_way_and_a_disk();
    let extents: Vec<u32> = (0..8).collect();
    let outcomes = rig.write(&extents, |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    rig.check();
    way.delay_us.store(4_000, Relaxed);
    let by_disk = || rig.far.stats.reads_by_disk.load(Relaxed);
    let (until, before) = (Instant::now() + PATIENCE, by_disk());
    while by_disk() < before + 40 {
        assert!(Instant::now() < until, "{} of the disk", by_disk());
        rig.check();
    }
    drop(rig);
    server.stop();
}

/// Operations that have ended, and their outcomes.
fn ends(events: Vec<Event>) -> Vec<(u32, Outcome)> {
    let end = |event| match event {
        Event::Ended { id, outcome, .. } => Some((id, outcome)),
        _ => None,
    };
    events.into_iter().filter_map(end).collect()
}

/// The disk would appear as slow as a donor if its answers were noticed only together with the donor's.
#[test]
fn who_waits_for_a_donor_hears_the_disk() {
    let (server, way, _dir, mut rig) = over_a_way_and_a_disk();
    assert_eq!(rig.write(&[0, 1], |_| {}), [Outcome::Done; 2]);
    let quiet = Instant::now() + PATIENCE;
    while rig.store.expects() {
        assert!(Instant::now() < quiet);
        rig.poll();
    }
    way.held.store(true, Relaxed);
    let (by_donor, by_disk) = (1 << 20, (1 << 20) + 1);
    let whole = 0..EXTENT_BYTES;
    rig.store.read(by_donor, 0, whole.clone(), 0, Block::new());
    assert!(rig.store.expects());
    let of_disk = |rig: &Rig| rig.far.stats.reads_by_disk.load(Relaxed);
    let before = of_disk(&rig);
    while of_disk(&rig) == before {
        rig.store.link(by_disk, 1, false);
    }
    rig.store.read(by_disk, 1, whole, 0, Block::new());
    assert!(rig.store.expects());
    let (mut ended, until) = (Vec::new(), Instant::now() + PATIENCE);
    while !ended.contains(&(by_disk, Outcome::Done)) {
        assert!(rig.store.await_answer(PATIENCE) && Instant::now() < until);
        ended.extend(ends(rig.poll()));
    }
    way.held.store(false, Relaxed);
    while !ended.contains(&(by_donor, Outcome::Done)) {
        assert!(Instant::now() < until, "{ended:?}");
        ended.extend(ends(rig.poll()));
    }
    drop(rig);
    server.stop();
}

/// Slabs with written extents.
fn of_written(rig: &Rig) -> usize {
    let slab = |extent: &u32| extent / SLAB_EXTENTS as u32;
    let slabs: std::collections::BTreeSet<u32> = rig.oracle.keys().map(slab).collect();
    slabs.len()
}

#[test]
fn a_tenant_that_ends_leaves_no_slab_lent() {
    let servers: Vec<Server> = (0..3).map(|_| donor()).collect();
    let policy = Policy {
        donors: 2,
        disk: false,
        late: false,
        code: None,
    };
    let mut rig = Rig::new(&servers, policy, None, seed());
    let outcomes = rig.write(&of_slabs(0..5), |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    let lent = |servers: &[Server]| servers.iter().map(Server::lent_slabs).sum::<usize>();
    assert_eq!(lent(&servers), 10);
    // Reads and writes under way keep nothing alive.
    rig.store.read(900, 0, 0..4096, 0, Block::new());
    rig.store.write(901, 1, Block::new(), EXTENT_BYTES);
    rig.store.free_all(PATIENCE);
    assert_eq!(lent(&servers), 0);
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_slab_that_is_being_lent_when_its_tenant_ends_is_given_back() {
    let donor = donor();
    let way = Way::to(donor.listening());
    let policy = Policy {
        donors: 1,
        disk: false,
        late: false,
        code: None,
    };
    let mut rig = Rig::over(&[way.addr], policy, None, seed());
    assert_eq!(donor.lent_slabs(), 1);
    way.held.store(true, Relaxed);
    rig.store
        .write(900, SLAB_EXTENTS as u32, Block::new(), EXTENT_BYTES);
    rig.poll();
    let held = way.held.clone();
    let opens = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        held.store(false, Relaxed);
    });
    rig.store.free_all(PATIENCE);
    assert_eq!(donor.lent_slabs(), 0);
    opens.join().unwrap();
    donor.stop();
}

#[test]
fn a_donor_that_is_silent_or_gone_does_not_hold_up_the_end_of_a_tenant() {
    let servers: Vec<Server> = (0..3).map(|_| donor()).collect();
    let way = Way::to(servers[0].listening());
    let addrs = [way.addr, servers[1].listening(), servers[2].listening()];
    let policy = Policy {
        donors: 3,
        disk: false,
        late: false,
        code: None,
    };
    let mut rig = Rig::over(&addrs, policy, None, seed());
    rig.write(&of_slabs(0..4), |_| {});
    way.held.store(true, Relaxed);
    let mut servers = servers.into_iter();
    let (silent, gone, there) = (servers.next(), servers.next(), servers.next().unwrap());
    gone.unwrap().stop();
    assert!(there.lent_slabs() > 0);
    let began = Instant::now();
    rig.store.free_all(Duration::from_millis(300));
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    assert_eq!(there.lent_slabs(), 0);
    way.held.store(false, Relaxed);
    silent.unwrap().stop();
    there.stop();
}

/// Reports ever more handles, in pages of `slabs`. Counts the most list requests over one connection.
fn endless(page: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let count = lists.clone();
    let addr = pretender(move || {
        let (count, mut asked) = (count.clone(), 0);
        move |request: &Request<'_>, say: &mut dyn FnMut(Answer<'_>)| {
            if !matches!(request, Request::List { .. }) {
                return say(Answer::Done);
            }
            asked += 1;
            count.fetch_max(asked, Relaxed);
            let slabs: Vec<Lent> = (0..page)
                .map(|n| Lent {
                    key: SlabKey {
                        tenant: TENANT,
                        slab: n as u32,
                    },
                    handle: n as u64 + 1,
                })
                .collect();
            say(Answer::Handles {
                more: true,
                slabs: Items::from(&slabs[..]),
            });
        }
    });
    (addr, lists)
}

#[test]
fn a_donor_that_never_ends_what_it_holds_is_given_up() {
    for page in [LIST_MAX, 0] {
        let (liar, lists) = endless(page);
        let honest = donor();
        let policy = Policy {
            donors: 1,
            disk: false,
            late: false,
            code: None,
        };
        let mut rig = Rig::over(&[liar, honest.listening()], policy, None, seed());
        // As many pages as there can be slabs, and then no more over this connection.
        let most = (2 * SLABS_MAX)
            .checked_div(page)
            .map_or(50, |pages| pages + 2);
        let until = Instant::now() + PATIENCE;
        while !rig
            .said
            .iter()
            .any(|line| line.contains("list of slabs does not end"))
        {
            assert!(Instant::now() < until, "{} lists", lists.load(Relaxed));
            rig.poll();
            // Checked each time: an agent that continued would use up this host's memory.
            let asked = lists.load(Relaxed);
            assert!(asked <= most, "{asked} lists");
        }
        // Nothing else suffers.
        assert_eq!(rig.write(&[1], |_| {}), [Outcome::Done]);
        rig.check();
        honest.stop();
    }
}

/// Slabs without changes are checked once in a while, not at each tick; one that changes is checked at once.
#[test]
fn a_tenant_at_rest_looks_at_few_slabs() {
    const SLABS: u32 = 256;
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::over(&[], Policy::new(0, true), Some(dir.path()), seed());
    let extents: Vec<u32> = (0..SLABS).map(|slab| slab * SLAB_EXTENTS as u32).collect();
    let outcomes = rig.write(&extents, |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    let rest = |rig: &mut Rig, ticks: u32| {
        let before = rig.store.slabs_visited();
        let looked = Instant::now();
        let mut seen = 0;
        while seen < ticks {
            rig.poll();
            std::thread::sleep(Duration::from_millis(21));
            seen += 1;
        }
        (rig.store.slabs_visited() - before, looked.elapsed())
    };
    rest(&mut rig, 3);
    let (looked, took) = rest(&mut rig, 60);
    // All of them once a second, and at most that often since other processes use the processors too.
    let rounds = took.as_secs() + 2;
    assert!(looked <= rounds * u64::from(SLABS), "{looked} in {took:?}");
    assert!(looked > 0);
}

/// A journal may know as many donors as allowed, and another one is named: it waits for a place.
#[test]
fn more_donors_than_there_can_be_wait_for_a_place() {
    use canvas_agent::replicas::SERVERS_MAX;
    let port = |n: usize| SocketAddr::from(([127, 0, 0, 1], 1 + n as u16));
    let journal = Journal::create().unwrap();
    for n in 0..SERVERS_MAX {
        journal.put_donor(n, port(n).into());
    }
    let more = [port(SERVERS_MAX), port(SERVERS_MAX + 1)];
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::over(&[], Policy::new(0, true), Some(dir.path()), seed());
    rig.copies.set(Policy::new(2, false));
    rig.donors = more.to_vec();
    rig.take_over(journal);
    let until = Instant::now() + Duration::from_millis(1200);
    while Instant::now() < until {
        rig.poll();
        std::thread::sleep(Duration::from_millis(5));
    }
    // A write that nobody can take ends, too.
    rig.store.write(7, 0, Block::new(), EXTENT_BYTES);
    let (outcome, _) = rig.ended(7);
    assert_ne!(outcome, Outcome::Done);
}
