//! The reserve is kept, and lent memory is taken back by the protocol.

use canvas_link::Completion;
use canvas_wire::frame::{Call, Items, Reply, Used};

use super::*;

/// Waits for the donor's call to return slabs; answers activity queries with `ops`.
fn wait_stop_answering(link: &mut Link, ops: impl Fn(u64) -> Option<u64>) -> (u64, Vec<u64>) {
    wait_for("the donor's call", || {
        let mut c = Completions::new();
        link.submit(0, &Request::Ping).unwrap();
        link.poll(&mut c, LONG).unwrap();
        for done in c.iter() {
            match done {
                Completion::Call {
                    id,
                    call: Call::EvictStop { handles, .. },
                } => return Some((id, handles.iter().collect())),
                Completion::Call {
                    id,
                    call: Call::EvictQuery { handles },
                } => {
                    let used: Vec<Used> = handles
                        .iter()
                        .filter_map(|handle| {
                            Some(Used {
                                handle,
                                ops: ops(handle)?,
                            })
                        })
                        .collect();
                    link.reply(id, &Reply::Activity(Items::from(used.as_slice())))
                        .unwrap();
                    link.flush().unwrap();
                }
                _ => {}
            }
        }
        None
    })
}

pub(super) fn wait_stop(link: &mut Link) -> (u64, Vec<u64>) {
    wait_stop_answering(link, |_| None)
}

pub(super) fn done(link: &mut Link, call: u64, handle: u64) {
    link.reply(call, &Reply::EvictDone { handle }).unwrap();
    link.flush().unwrap();
}

/// A donor that reserves 1000 MiB for its host and gives its clients `evict_within` to move slabs.
pub(super) fn with_reserve(evict_within: &str) -> Donor {
    Donor::start(&[
        "--memory",
        "4G",
        "--reserve",
        "1000M",
        "-o",
        &format!("evict-within={evict_within}"),
    ])
}

/// Writes a slab's first `mib` MiB.
pub(super) fn fill(link: &mut Link, handle: u64, mib: u32) {
    let data = [1; canvas_wire::DATA_BYTES_MAX];
    for at in (0..mib << 20).step_by(data.len()) {
        write(link, handle, at, &data).unwrap();
    }
}

#[test]
fn no_more_is_lent_than_the_host_can_give() {
    // With a reserve of 1000 MiB, lending stops where eviction begins, at 1250 MiB.
    let donor = Donor::start(&["--memory", "4G", "--reserve", "1000M"]);
    donor.set_available(1250 + 3 * 64);
    let mut link = connect(&donor, config(1));
    let mut c = Completions::new();
    wait_for("the donor to see its host's memory", || {
        match link.ask(&Request::Ping, &mut c).unwrap() {
            Answer::Pong(pong) => (pong.free_bytes == (3 * 64) << 20).then_some(()),
            other => panic!("{other:?}"),
        }
    });
    // Lent memory counts in full before it is written.
    for slab in 0..3 {
        alloc(&mut link, slab);
    }
    assert_eq!(refused(try_alloc(&mut link, 3)), ErrorCode::NoRoom);
}

#[test]
fn a_write_never_takes_the_reserve() {
    let donor = with_reserve("1h");
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    // Another program of the host used everything down to the reserve.
    donor.set_available(1000);
    let mut c = Completions::new();
    wait_for("the donor to see it", || {
        match link.ask(&Request::Ping, &mut c).unwrap() {
            Answer::Pong(pong) => pong.pressure.then_some(()),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(
        refused(write(&mut link, handle, 0, &[2; 4096])),
        ErrorCode::NoRoom
    );
    // Reads need no memory.
    assert_eq!(read(&mut link, handle, 0, 4096).unwrap(), [0; 4096]);
    // With a little room, writes are allowed again.
    donor.set_available(1001);
    wait_for("room for a page", || {
        write(&mut link, handle, 0, &[2; 4096]).ok()
    });
    let state = donor.wait_state("what was written", |s| s["touched_bytes"] != 0);
    assert_eq!(state["touched_bytes"], 4096);
}

#[test]
fn the_least_active_go_and_are_freed_when_they_are_moved() {
    let donor = with_reserve("1h");
    let mut link = connect(&donor, config(1));
    let handles: Vec<u64> = (0..6).map(|n| alloc(&mut link, n)).collect();
    for &handle in &handles {
        fill(&mut link, handle, 1);
    }
    // Six slabs are sampled: one that goes, and five more. The donor's own count agrees with the
    // client's answers, which may come too late on a busy machine.
    let idle = handles[4];
    for &handle in handles.iter().filter(|&&h| h != idle) {
        read(&mut link, handle, 0, 1).unwrap();
    }
    donor.set_available(1240);
    let (id, told) = wait_stop_answering(&mut link, |h| Some(if h == idle { 3 } else { 900 }));
    assert_eq!(told, [idle]);
    donor.set_available(32 << 10);
    assert_eq!(
        read(&mut link, idle, 0, 3).unwrap(),
        [1; 3],
        "it can be read until it is moved"
    );
    assert_eq!(
        refused(write(&mut link, idle, 0, b"x")),
        ErrorCode::Evicting
    );
    // The host has memory again, but the eviction is not over.
    donor.wait_state("it is leaving", |s| s["health"] == "evicting");
    done(&mut link, id, idle);
    donor.wait_state("it is freed", |s| s["slabs"] == 5 && s["health"] == "ok");
    assert_eq!(
        refused(read(&mut link, idle, 0, 1)),
        ErrorCode::UnknownHandle
    );
    // A slab that was not called back is not freed by an EvictDone.
    done(&mut link, id, handles[0]);
    assert_eq!(read(&mut link, handles[0], 0, 3).unwrap(), [1; 3]);
    // The host has recovered: after a while the donor lends more.
    donor.wait_log("expand");
    alloc(&mut link, 9);
}

#[test]
fn a_hung_client_does_not_block_an_eviction() {
    let donor = with_reserve("300ms");
    let mut hung = connect(&donor, config(1));
    let handle = alloc(&mut hung, 0);
    fill(&mut hung, handle, 1);
    donor.set_available(1100);
    // It answers neither the query nor the call.
    donor.wait_log("were not moved in time");
    // The state may have been written before anything was lent.
    let late = |s: &serde_json::Value| s["counters"]["evicted_late_slabs"] == 1;
    let state = donor.wait_state("it is counted", late);
    assert_eq!(state["slabs"], 0);
    assert_eq!(
        refused(read(&mut hung, handle, 0, 1)),
        ErrorCode::UnknownHandle
    );
}

#[test]
fn a_client_that_comes_back_is_told_again() {
    let donor = with_reserve("1h");
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    fill(&mut link, handle, 1);
    link.close();
    donor.set_available(1100);
    donor.wait_log("slabs that must go");
    link.reconnect().unwrap();
    let (id, told) = wait_stop(&mut link);
    assert_eq!(told, [handle]);
    done(&mut link, id, handle);
    donor.wait_state("it is freed", |s| s["slabs"] == 0);
}

/// Clients with more slabs than fit into a link's queue of calls are informed of all again.
#[test]
fn a_client_with_many_slabs_is_told_of_all_of_them_again() {
    const SLABS: u32 = 300;
    let donor = Donor::start(&["--memory", "24G", "-o", "drain=1h"]);
    let mut link = connect(&donor, config(1));
    let mut handles: Vec<u64> = (0..SLABS).map(|n| alloc(&mut link, n)).collect();
    link.close();
    donor.signal(nix::sys::signal::Signal::SIGTERM);
    donor.wait_state("that it ends", |s| s["health"] == "ending");
    link.reconnect().unwrap();
    let (mut told, mut calls) = (Vec::new(), 0);
    let mut c = Completions::new();
    wait_for("the donor's calls", || {
        c.clear();
        link.poll(&mut c, std::time::Duration::from_millis(100))
            .unwrap();
        for done in c.iter() {
            if let Completion::Call {
                call: Call::EvictStop { handles, .. },
                ..
            } = done
            {
                told.extend(handles.iter());
                calls += 1;
            }
        }
        (told.len() >= handles.len()).then_some(())
    });
    told.sort_unstable();
    handles.sort_unstable();
    assert_eq!(told, handles);
    assert_eq!(calls, SLABS.div_ceil(canvas_wire::EVICT_MAX as u32));
}
