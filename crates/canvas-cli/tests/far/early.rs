//! Slabs are freed at once when the host runs out of memory before clients can move them.

use canvas_link::Completion;
use canvas_wire::frame::{Call, Items, Valued};

use super::eviction::{fill, with_reserve};
use super::*;

/// Sends the donor the values of slabs.
fn value(link: &mut Link, slabs: &[(u64, u64)]) {
    let valued: Vec<Valued> = slabs
        .iter()
        .map(|&(handle, worth)| Valued { handle, worth })
        .collect();
    let slabs = Items::from(valued.as_slice());
    let mut c = Completions::new();
    let answer = link.ask(&Request::Worth { slabs }, &mut c).unwrap();
    assert_eq!(answer, Answer::Done);
}

/// The slabs that the donor reports as freed, once it does.
fn wait_gone(link: &mut Link) -> Vec<u64> {
    wait_for("the donor's word", || {
        let mut c = Completions::new();
        link.submit(0, &Request::Ping).unwrap();
        link.poll(&mut c, LONG).unwrap();
        c.iter().find_map(|done| match done {
            Completion::Call {
                call:
                    Call::EvictStop {
                        deadline_ms: 0,
                        handles,
                    },
                ..
            } => Some(handles.iter().collect()),
            _ => None,
        })
    })
}

/// The shorter memory is, the more goes: first spare copies, then copies that others count on, and
/// only then sole copies. A passive client cannot prevent it.
#[test]
fn what_is_worth_least_goes_first() {
    let donor = with_reserve("1h");
    let mut link = connect(&donor, config(1));
    let [sole, kept, spare] = [0, 1, 2].map(|n| {
        let handle = alloc(&mut link, n);
        fill(&mut link, handle, 8);
        handle
    });
    value(&mut link, &[(sole, 0), (kept, 1), (spare, 2)]);
    let mut other = connect(&donor, config(2));
    // Not this client's slab.
    value(&mut other, &[(sole, 2)]);
    let there = |link: &mut Link, handle| read(link, handle, 64 << 14, 3).is_ok();

    // An eviction has begun, which waits for an hour; nothing more.
    donor.set_available(501);
    donor.wait_log("slabs that must go");
    assert!([sole, kept, spare].map(|h| there(&mut link, h)) == [true; 3]);
    donor.set_available(499);
    assert_eq!(wait_gone(&mut link), [spare]);
    assert_eq!(
        refused(read(&mut link, spare, 0, 3)),
        ErrorCode::UnknownHandle
    );
    donor.set_available(251);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!([sole, kept].map(|h| there(&mut link, h)) == [true; 2]);
    donor.set_available(249);
    assert_eq!(wait_gone(&mut link), [kept]);
    donor.set_available(126);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(there(&mut link, sole));
    donor.set_available(124);
    assert_eq!(wait_gone(&mut link), [sole]);
    donor.wait_log("the only copies known here: 1");
    let counted = |s: &serde_json::Value| s["counters"]["freed_early_slabs"] == 3;
    let state = donor.wait_state("they are counted", counted);
    assert_eq!(state["counters"]["freed_early_sole_slabs"], 1);
    assert_eq!(
        (&state["slabs"], &state["touched_bytes"]),
        (&0.into(), &0.into())
    );
    // A slab that is lent again under the same key starts as zeros.
    donor.set_available(32 << 10);
    donor.wait_log("expand");
    let again = alloc(&mut link, 2);
    assert_ne!(again, spare);
    assert_eq!(read(&mut link, again, 64 << 14, 3).unwrap(), [0; 3]);
}

/// A slab that is allocated again has lost its value.
#[test]
fn what_is_asked_for_anew_is_worth_the_most() {
    let donor = with_reserve("1h");
    let mut link = connect(&donor, config(1));
    let [first, second] = [0, 1].map(|n| {
        let handle = alloc(&mut link, n);
        fill(&mut link, handle, 2);
        handle
    });
    value(&mut link, &[(first, 2), (second, 2)]);
    assert_eq!(alloc(&mut link, 0), first);
    donor.set_available(499);
    assert_eq!(wait_gone(&mut link), [second]);
    assert_eq!(read(&mut link, first, 0, 3).unwrap(), [1; 3]);
}
