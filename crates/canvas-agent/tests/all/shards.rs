//! Slabs in shards, on donors in this process.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_agent::journal::Journal;
use canvas_agent::replicas::Policy;
use canvas_agent::store::{Outcome, Store};
use canvas_donor::Server;
use canvas_shm::far::SLAB_EXTENTS;

use crate::rig::{PATIENCE, Rig, Way, donor, donor_at, seed};

/// Pages that [`Rig::packed`] puts into an extent.
const PAGES: usize = 7;

fn policy(name: &str) -> Policy {
    Policy::named(name).unwrap()
}

/// Extents of a few slabs, each once.
fn some(rig: &mut Rig) -> Vec<u32> {
    let one = |rng: &mut fastrand::Rng| rng.u32(0..3) * SLAB_EXTENTS as u32 + rng.u32(0..5);
    let n = rig.rng.usize(1..6);
    let all: BTreeSet<u32> = (0..n).map(|_| one(&mut rig.rng)).collect();
    all.into_iter().collect()
}

/// Waits until each written slab has all its shards, on donors that work.
fn redundant(rig: &mut Rig, servers: &[Option<Server>], shards: usize) {
    let until = Instant::now() + PATIENCE;
    let mut since = None;
    loop {
        assert!(rig.poll().is_empty());
        let slabs: BTreeSet<u32> = rig.oracle.keys().map(|e| e / SLAB_EXTENTS as u32).collect();
        let lent = |s: &Server| s.lent_slabs();
        let lent: usize = servers.iter().flatten().map(lent).sum();
        // A slab whose only write failed, because donors were away, has its shards all the same.
        let of_slabs = lent >= shards * slabs.len() && lent.is_multiple_of(shards);
        let is_whole = rig.degraded == 0 && of_slabs;
        since = since.filter(|_| is_whole);
        if is_whole && since.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(60)
        {
            return;
        }
        assert!(
            Instant::now() < until,
            "{} slabs lack shards; of {} slabs, donors have {lent}",
            rig.degraded,
            slabs.len()
        );
    }
}

fn started(name: &str, donors: usize) -> (Vec<Option<Server>>, Rig) {
    let servers: Vec<Server> = (0..donors).map(|_| donor()).collect();
    let addrs: Vec<SocketAddr> = servers.iter().map(Server::listening).collect();
    let rig = Rig::over(&addrs, policy(name), None, seed());
    (servers.into_iter().map(Some).collect(), rig)
}

/// Random writes, page reads, frees, donor deaths, donors that come back empty, and repairs, against a map of the last
/// writes: as long as no more donors are dead than the code allows, nothing is lost; and a read returns what was
/// written, or nothing.
#[test]
fn nothing_is_lost_while_no_more_donors_are_dead_than_the_code_allows() {
    for (name, spare) in [("4+2", 2), ("2+1", 1), ("3+2", 1)] {
        let code = policy(name).code.unwrap();
        let (mut servers, mut rig) = started(name, code.shards() + spare);
        let mut dead = 0;
        let (mut deaths, mut pages) = (0, 0);
        for _ in 0..60 {
            match rig.rng.u8(0..10) {
                0..=3 => {
                    let extents = some(&mut rig);
                    let outcomes = rig.write(&extents, |_| {});
                    let is_whole = servers.iter().all(Option::is_some);
                    assert!(!is_whole || dead > 0 || !outcomes.contains(&Outcome::NoRoom));
                }
                4..=6 if !rig.oracle.is_empty() => {
                    let all: Vec<u32> = rig.oracle.keys().copied().collect();
                    let extent = all[rig.rng.usize(0..all.len())];
                    let page = rig.rng.usize(0..PAGES);
                    assert_eq!(rig.read_page(extent, page), Outcome::Done, "{extent}");
                    pages += 1;
                }
                7 if dead < code.parity() => {
                    let up: Vec<usize> = (0..servers.len())
                        .filter(|i| servers[*i].is_some())
                        .collect();
                    let one = up[rig.rng.usize(0..up.len())];
                    servers[one].take().unwrap().stop();
                    dead += 1;
                    deaths += 1;
                }
                8 if dead > 0 => {
                    // Empty, and as another process.
                    let empty = servers.iter().position(Option::is_none).unwrap();
                    servers[empty] = Some(donor_at(rig.donors[empty]));
                    redundant(&mut rig, &servers, code.shards());
                    dead = servers.iter().filter(|s| s.is_none()).count();
                    if dead <= spare {
                        dead = 0;
                    }
                }
                9 => {
                    let slab = rig.rng.u32(0..3);
                    rig.free(slab);
                }
                _ => rig.check(),
            }
            let absent = servers.iter().filter(|s| s.is_none()).count();
            if absent > spare {
                let empty = servers.iter().position(Option::is_none).unwrap();
                servers[empty] = Some(donor_at(rig.donors[empty]));
                redundant(&mut rig, &servers, code.shards());
                dead = 0;
            }
        }
        rig.check();
        println!("{name}: {deaths} deaths, {pages} pages");
        drop(rig);
        servers.into_iter().flatten().for_each(Server::stop);
    }
}

/// As many donors as the code allows die at once: everything can be read at once, page by page and whole, and after the
/// repair as many others may die.
#[test]
fn two_dead_donors_cost_no_page_and_two_more_after_the_repair() {
    let (mut servers, mut rig) = started("4+2", 10);
    let extents: Vec<u32> = (0..12).collect();
    let outcomes = rig.write(&extents, |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    let parts = servers.iter().flatten().filter(|s| s.lent_slabs() > 0);
    assert_eq!(parts.count(), 6);
    for _ in 0..2 {
        for _ in 0..2 {
            let holds = |s: &Option<Server>| s.as_ref().is_some_and(|s| s.lent_slabs() > 0);
            let one = servers.iter().position(holds).unwrap();
            servers[one].take().unwrap().stop();
        }
        for extent in &extents {
            for page in 0..PAGES {
                assert_eq!(rig.read_page(*extent, page), Outcome::Done);
            }
        }
        rig.check();
        redundant(&mut rig, &servers, 6);
        rig.check();
    }
    assert!(rig.far.stats.decoded.load(Relaxed) > 0);
    assert_eq!(rig.far.stats.corrupt.load(Relaxed), 0);
    drop(rig);
    servers.into_iter().flatten().for_each(Server::stop);
}

/// A healthy page costs one request, or two where it crosses from one shard into the next; nothing is computed.
#[test]
fn a_page_of_a_healthy_extent_comes_from_its_own_donors_alone() {
    let (servers, mut rig) = started("4+2", 6);
    let code = policy("4+2").code.unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        rig.write(&[0], |_| {});
        redundant(&mut rig, &servers, 6);
        let reads = |servers: &[Option<Server>]| -> u64 {
            let of = |s: &Server| s.session_reads();
            servers.iter().flatten().map(of).sum()
        };
        let (before, failovers) = (reads(&servers), rig.failovers);
        let mut shards = 0;
        let packed = rig.packed(1);
        for page in 0..PAGES {
            assert_eq!(rig.read_page(0, page), Outcome::Done);
            let line = canvas_core::swap::extent::line(&packed, PAGES, page).unwrap();
            shards += code.shard_ranges(packed.len(), line.range()).count() as u64;
        }
        let asked = reads(&servers) - before;
        // Failovers are reported at the next tick.
        let told = Instant::now() + Duration::from_millis(50);
        while Instant::now() < told {
            assert!(rig.poll().is_empty());
        }
        if rig.failovers == failovers {
            assert_eq!(asked, shards);
            assert!(shards <= 2 * PAGES as u64);
            break;
        }
        // On a busy machine a donor was slow, and others were asked for its shard.
        assert!(Instant::now() < until);
    }
    drop(rig);
    servers.into_iter().flatten().for_each(Server::stop);
}

/// A slow donor delays nobody: its shards are computed from the others.
#[test]
fn a_slow_donor_is_not_waited_for() {
    let servers: Vec<Server> = (0..6).map(|_| donor()).collect();
    let ways: Vec<Way> = servers.iter().map(|s| Way::to(s.listening())).collect();
    let addrs: Vec<SocketAddr> = ways.iter().map(|way| way.addr).collect();
    let mut rig = Rig::over(&addrs, policy("4+2"), None, seed());
    let outcomes = rig.write(&[0, 1, 2], |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    for way in &ways {
        way.held.store(true, Relaxed);
        let began = Instant::now();
        for page in 0..PAGES {
            assert_eq!(rig.read_page(1, page), Outcome::Done);
        }
        // A donor is given up after a second.
        assert!(
            began.elapsed() < Duration::from_millis(900),
            "{:?}",
            began.elapsed()
        );
        way.held.store(false, Relaxed);
        let until = Instant::now() + PATIENCE;
        while rig.store.expects() {
            assert!(Instant::now() < until);
            assert!(rig.poll().is_empty());
        }
    }
    assert!(rig.far.stats.decoded.load(Relaxed) > 0);
    drop(rig);
    servers.into_iter().for_each(Server::stop);
}

/// A copy of a journal's current content.
fn copied(journal: &Journal) -> Journal {
    let other = Journal::create().unwrap();
    let (from, to): (&File, &File) = (journal.file(), other.file());
    let mut bytes = vec![0; from.metadata().unwrap().len() as usize];
    from.read_exact_at(&mut bytes, 0).unwrap();
    to.write_all_at(&bytes, 0).unwrap();
    other
}

/// An agent takes over and knows only the journal, also where that says that a donor lacks extents but not which.
#[test]
fn an_agent_that_takes_over_finds_every_shard() {
    let (mut servers, mut rig) = started("4+2", 7);
    let extents: Vec<u32> = (0..8).collect();
    rig.write(&extents, |_| {});
    let journal = copied(&rig.journal);
    rig.take_over(journal);
    rig.check();
    redundant(&mut rig, &servers, 6);
    // One dies, and is being replaced when the next agent takes over.
    let holds = |s: &Option<Server>| s.as_ref().is_some_and(|s| s.lent_slabs() > 0);
    let one = servers.iter().position(holds).unwrap();
    servers[one].take().unwrap().stop();
    // Writes that fail for lack of a donor are gone; the rest is there.
    rig.write(&extents[..4], |_| {});
    let journal = copied(&rig.journal);
    rig.take_over(journal);
    rig.check();
    redundant(&mut rig, &servers, 6);
    rig.check();
    drop(rig);
    servers.into_iter().flatten().for_each(Server::stop);
}

/// Donors hold old data unknown to the agent, which believes that they have the new data: no old byte is ever accepted,
/// and the donor with it is found out and repaired.
#[test]
fn an_old_shard_is_found_out_and_made_good() {
    let servers: Vec<Server> = (0..6).map(|_| donor()).collect();
    let ways: Vec<Way> = servers.iter().map(|s| Way::to(s.listening())).collect();
    let addrs: Vec<SocketAddr> = ways.iter().map(|way| way.addr).collect();
    let mut rig = Rig::over(&addrs, policy("4+2"), None, seed());
    let extents: Vec<u32> = (0..4).collect();
    rig.write(&extents, |_| {});
    let before = copied(&rig.journal);
    // Two donors do not get the next writes, which therefore fail; but the others have them.
    for round in 0..2 {
        let silent = [round, round + 3];
        let held = |on: bool| silent.iter().for_each(|i| ways[*i].held.store(on, Relaxed));
        held(true);
        rig.write(&extents, |_| {});
        let seals = rig.seal - extents.len() as u64;
        held(false);
        // As if they had succeeded: the expected bytes are those of the extents sealed last.
        let fills = rig.fills.clone();
        for (n, extent) in extents.iter().enumerate() {
            let seal = seals + n as u64 + 1;
            rig.far.seals[*extent as usize].store(seal, Relaxed);
            rig.oracle.insert(*extent, (seal, fills[n]));
        }
        rig.take_over(copied(&before));
        for extent in &extents {
            for page in 0..PAGES {
                assert_eq!(rig.read_page(*extent, page), Outcome::Done);
            }
        }
        // A page that was computed while the donor of its shard was slow has not exposed that donor.
        rig.check_beside_old();
        let until = Instant::now() + PATIENCE;
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(300) {
            let own = rig.own;
            assert!(rig.poll().is_empty());
            if rig.own != own || rig.degraded > 0 {
                quiet = Instant::now();
            }
            assert!(Instant::now() < until);
        }
        let told = rig
            .said
            .iter()
            .filter(|line| line.contains("damaged or old"));
        assert!(told.count() > 0);
        rig.said.clear();
        // Any two donors are silent now.
        for i in [1, 4] {
            ways[i].held.store(true, Relaxed);
        }
        rig.check();
        for i in [1, 4] {
            ways[i].held.store(false, Relaxed);
        }
    }
    drop(rig);
    servers.into_iter().for_each(Server::stop);
}
