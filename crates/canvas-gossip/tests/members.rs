//! Members on the loopback device.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use canvas_gossip::{Config, Gossip, Member};
use canvas_wire::key::ClusterKey;

fn member(key: u8, seeds: &[&Gossip], lends: Option<u16>) -> Gossip {
    Gossip::start(Config {
        listen: ([127, 0, 0, 1], 0).into(),
        // By name, to be resolved here and later.
        seeds: seeds
            .iter()
            .map(|g| format!("localhost:{}", g.listening().port()))
            .collect(),
        key: ClusterKey::from_bytes([key; 32]),
        lends: lends.map(|port| ([0, 0, 0, 0], port).into()),
        changed: Box::new(|_| ()),
    })
    .unwrap()
}

/// Waits until the known donors satisfy `is_so`.
fn until(what: &str, gossip: &Gossip, is_so: impl Fn(&[Member]) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so(&gossip.members()) {
        assert!(Instant::now() < end, "{what}: {:?}", gossip.members());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn addrs(members: &[Member]) -> Vec<SocketAddr> {
    members.iter().map(|m| m.donor.addr).collect()
}

fn at(ports: &[u16]) -> Vec<SocketAddr> {
    ports.iter().map(|p| ([127, 0, 0, 1], *p).into()).collect()
}

#[test]
fn who_knows_one_learns_of_all_and_of_deaths() {
    let a = member(1, &[], Some(101));
    let b = member(1, &[&a], Some(102));
    let c = member(1, &[&b], Some(103));
    let run = member(1, &[&a], None);
    until("three", &run, |m| addrs(m) == at(&[101, 102, 103]));
    c.announce(7 << 30, 1 << 30);
    until("figures", &run, |m| {
        m.iter()
            .any(|m| m.donor.free_bytes == 7 << 30 && m.donor.lent_bytes == 1 << 30)
    });
    let late = member(1, &[&c], Some(104));
    until("a fourth", &run, |m| addrs(m) == at(&[101, 102, 103, 104]));
    until("all live", &run, |m| m.iter().all(|m| m.live));
    drop(b);
    until("one is dead", &run, |m| m.len() == 4 && !m[1].live);
    until("the others live", &run, |m| {
        m.iter().filter(|m| m.live).count() == 3
    });
    // Restarted at its address: one donor, not two.
    let b = member(1, &[&a], Some(102));
    until("it is back", &run, |m| {
        addrs(m) == at(&[101, 102, 103, 104]) && m[1].live
    });
    drop((a, b, late));
}

#[test]
fn another_key_is_no_member_and_gets_no_answer() {
    let a = member(1, &[], Some(101));
    let stranger = member(2, &[&a], Some(102));
    let friend = member(1, &[&a], Some(103));
    until("the friend", &a, |m| addrs(m) == at(&[101, 103]));
    until("refused", &a, |_| a.refused() >= 3);
    assert_eq!(addrs(&stranger.members()), at(&[102]));
    assert_eq!(addrs(&a.members()), at(&[101, 103]));

    // Noise gets no answer.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before = a.refused();
    for len in [0, 1, 24, 25, 41, 100, 2000] {
        socket.send_to(&vec![1; len], a.listening()).unwrap();
    }
    until("noise", &a, |_| a.refused() >= before + 7);
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv_from(&mut [0; 100]).is_err());
    drop(friend);
}

#[test]
fn an_address_that_nobody_can_know_is_asked_for() {
    let refused = Gossip::start(Config {
        listen: ([0, 0, 0, 0], 0).into(),
        seeds: Vec::new(),
        key: ClusterKey::without_secret(),
        lends: Some(([0, 0, 0, 0], 7070).into()),
        changed: Box::new(|_| ()),
    });
    let why = refused.err().unwrap().to_string();
    assert!(why.contains("write the one that others reach"), "{why}");
}
