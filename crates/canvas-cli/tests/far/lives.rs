//! Clients and donors that disappear and come back.

use std::time::{Duration, Instant};

use canvas_link::{Completion, LinkError};
use nix::sys::signal::Signal;

use super::*;

#[test]
fn slabs_outlive_their_link_and_go_with_the_lease() {
    let donor = Donor::start(&["--memory", "256M", "-o", "lease=3s"]);
    let mut link = connect(&donor, config(1));
    assert_eq!(link.welcome().lease_ms, 3000, "the shorter lease holds");
    let handle = alloc(&mut link, 0);
    write(&mut link, handle, 0, b"kept").unwrap();
    link.close();
    assert!(link.reconnect().unwrap().same_run);
    assert_eq!(read(&mut link, handle, 0, 4).unwrap(), b"kept");
    drop(link);
    donor.wait_log("slabs of it that are freed: 1");
    donor.wait_state("nothing lent", |s| {
        s["slabs"] == 0 && s["clients"].as_array().unwrap().is_empty()
    });
    let mut link = connect(&donor, config(1));
    assert_eq!(
        refused(read(&mut link, handle, 0, 4)),
        ErrorCode::UnknownHandle
    );
}

#[test]
fn a_half_open_link_is_closed_with_the_lease_and_pings_keep_it() {
    let donor = Donor::start(&["--memory", "256M", "-o", "lease=2s"]);
    let mut silent = connect(&donor, config(1));
    alloc(&mut silent, 0);
    let mut alive = connect(&donor, config(2));
    let handle = alloc(&mut alive, 0);
    let mut c = Completions::new();
    wait_for("the silent client's end", || {
        alive.ask(&Request::Ping, &mut c).unwrap();
        let log = donor.log.lock().unwrap();
        log.iter()
            .any(|l| l.contains("that are freed"))
            .then_some(())
    });
    assert_eq!(read(&mut alive, handle, 0, 1).unwrap(), [0]);
    c.clear();
    let error = silent.poll(&mut c, LONG).expect_err("it was closed");
    assert!(
        matches!(error, LinkError::Closed | LinkError::Io(_)),
        "{error}"
    );
}

#[test]
fn a_newer_link_of_the_same_number_replaces_the_older() {
    let donor = Donor::start(&["--memory", "64M"]);
    let mut older = connect(&donor, config(1));
    let handle = alloc(&mut older, 0);
    let mut newer = connect(&donor, config(1));
    let mut c = Completions::new();
    assert!(older.poll(&mut c, LONG).is_err());
    assert_eq!(read(&mut newer, handle, 0, 1).unwrap(), [0]);
    // Of two that came: the state before the second also has one link, and perhaps no slab yet.
    let state = donor.wait_state("one link", |s| {
        s["counters"]["links"] == 2 && s["clients"][0]["links"] == 1
    });
    assert_eq!(state["slabs"], 1);
}

#[test]
fn killed_and_started_again() {
    let mut donor = Donor::start(&["--memory", "64M"]);
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    write(&mut link, handle, 0, b"gone").unwrap();
    donor.signal(Signal::SIGKILL);
    donor.end();
    // Outstanding requests are lost, each exactly once.
    let mut lost = 0;
    for tag in 0..3 {
        let range = Range { offset: 0, len: 4 };
        if link.submit(tag, &Request::Read { handle, range }).is_err() {
            break;
        }
        lost += 1;
    }
    let mut c = Completions::new();
    wait_for("the loss", || {
        link.poll(&mut c, LONG).is_err().then_some(())
    });
    let tags: Vec<u64> = c
        .iter()
        .map(|done| match done {
            Completion::Lost { tag } => tag,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, (0..lost).collect::<Vec<u64>>());
    assert_eq!(link.outstanding(), 0);
    assert!(matches!(link.reconnect(), Err(LinkError::Unreachable(_))));

    let again = Donor::start_at(&donor.addr.to_string(), &["--memory", "64M"]);
    assert!(!link.reconnect().unwrap().same_run);
    assert_eq!(
        refused(read(&mut link, handle, 0, 4)),
        ErrorCode::UnknownHandle
    );
    let new = alloc(&mut link, 0);
    assert_ne!(new, handle);
    assert_eq!(read(&mut link, new, 0, 4).unwrap(), [0; 4]);
    drop(again);
}

#[test]
fn sigterm_with_nothing_lent_ends_it() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut donor = Donor::start(&["--memory", "64M", "-o", "drain=1h"]);
        let mut link = connect(&donor, config(1));
        donor.signal(signal);
        assert_eq!(donor.end().code(), Some(0));
        donor.wait_log(signal.as_str());
        let mut c = Completions::new();
        assert!(link.poll(&mut c, LONG).is_err());
    }
}

#[test]
fn sigterm_waits_for_clients_to_move_and_a_second_one_does_not() {
    let mut donor = Donor::start(&["--memory", "128M", "-o", "drain=1h"]);
    let mut link = connect(&donor, config(1));
    let handles = [alloc(&mut link, 0), alloc(&mut link, 1)];
    write(&mut link, handles[0], 0, b"move me").unwrap();
    donor.signal(Signal::SIGTERM);
    let (id, told) = eviction::wait_stop(&mut link);
    assert_eq!(told, handles);
    assert_eq!(refused(try_alloc(&mut link, 2)), ErrorCode::Ending);
    assert_eq!(
        refused(write(&mut link, handles[0], 0, b"x")),
        ErrorCode::Evicting
    );
    assert_eq!(read(&mut link, handles[0], 0, 7).unwrap(), b"move me");
    eviction::done(&mut link, id, handles[0]);
    donor.wait_state("one slab left", |s| {
        s["slabs"] == 1 && s["health"] == "ending"
    });
    donor.signal(Signal::SIGTERM);
    assert_eq!(donor.end().code(), Some(0));
    donor.wait_log("slabs freed before their clients moved them: 1");
}

/// A draining donor still has slabs that its clients have not moved: a client whose link breaks
/// then can come back for them, and is called again to move them.
#[test]
fn a_donor_that_drains_takes_clients_back_whose_slabs_it_has() {
    let mut donor = Donor::start(&["--memory", "128M", "-o", "drain=1h"]);
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    write(&mut link, handle, 0, b"move me").unwrap();
    // A client without slabs is connected, and another one is not.
    let mut idle = connect(&donor, config(2));
    donor.signal(Signal::SIGTERM);
    donor.wait_state("that it ends", |s| s["health"] == "ending");
    for _ in 0..2 {
        link.close();
        assert!(link.reconnect().unwrap().same_run);
        let (_, told) = eviction::wait_stop(&mut link);
        assert_eq!(told, [handle]);
        assert_eq!(read(&mut link, handle, 0, 7).unwrap(), b"move me");
        assert_eq!(refused(try_alloc(&mut link, 1)), ErrorCode::Ending);
    }
    idle.close();
    let ending = |e: LinkError| match e {
        LinkError::Refused { code, .. } => code,
        other => panic!("{other}"),
    };
    assert_eq!(ending(idle.reconnect().unwrap_err()), ErrorCode::Ending);
    let new = Link::connect(donor.addr, config(3));
    assert_eq!(ending(new.err().unwrap()), ErrorCode::Ending);
    // It ends when the last slab is moved.
    let (id, _) = {
        link.close();
        link.reconnect().unwrap();
        eviction::wait_stop(&mut link)
    };
    eviction::done(&mut link, id, handle);
    assert_eq!(donor.end().code(), Some(0));
}

/// A stopped donor receives nothing, and no client may lose its slabs for that.
#[test]
fn a_donor_that_was_stopped_for_longer_than_the_lease_keeps_the_slabs() {
    const CLIENTS: u8 = 8;
    const LEASE: Duration = Duration::from_secs(2);
    for _ in 0..10 {
        let donor = Donor::start(&["--memory", "4G", "-o", "lease=2s"]);
        let mut began = Instant::now();
        let mut links: Vec<(Link, u64)> = (1..=CLIENTS)
            .map(|n| {
                let mut link = connect(&donor, config(n));
                let handle = alloc(&mut link, 0);
                (link, handle)
            })
            .collect();
        if began.elapsed() > LEASE / 2 {
            // This process was too slow itself.
            continue;
        }
        donor.signal(Signal::SIGSTOP);
        std::thread::sleep(LEASE + LEASE / 2);
        began = Instant::now();
        for (link, _) in &mut links {
            link.submit(0, &Request::Ping).unwrap();
            link.flush().unwrap();
        }
        donor.signal(Signal::SIGCONT);
        let kept = links
            .iter_mut()
            .all(|(link, handle)| read(link, *handle, 0, 1).is_ok());
        if began.elapsed() < LEASE / 2 {
            assert!(kept, "log: {:?}", donor.log.lock().unwrap());
            return;
        }
    }
    panic!("this machine is too slow to be asked");
}
