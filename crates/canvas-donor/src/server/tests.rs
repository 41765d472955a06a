//! Tests that inspect a running donor from inside.

use std::sync::atomic::Ordering::Relaxed;

use crate::watchdog::Watchdog;
use canvas_link::{Completions, Link, LinkConfig, LinkError, Timeouts};
use std::net::TcpStream;

use crate::HANDSHAKES_MAX;
use canvas_wire::frame::{Answer, Range, Request, SlabKey};

use super::*;

/// Longer than any machine needs.
const LONG: Duration = Duration::from_secs(60);
const CLIENT: [u8; 16] = [1; 16];

fn server() -> Server {
    Server::start(Config {
        listen: ([127, 0, 0, 1], 0).into(),
        memory_bytes: SLAB_BYTES as u64,
        reserve_bytes: Some(0),
        key: None,
        lease: LONG,
        evict_within: LONG,
        spin: Duration::from_micros(50),
        state_json: None,
        procfs: "/proc".into(),
        links_max: 16,
        rdma: false,
    })
    .unwrap()
}

fn connect(server: &Server, link: u32) -> Link {
    try_connect(server, link, CLIENT).unwrap()
}

fn try_connect(server: &Server, link: u32, client: [u8; 16]) -> Result<Link, LinkError> {
    let config = LinkConfig {
        link,
        timeouts: Timeouts {
            connect: LONG,
            handshake: LONG,
            request: LONG,
        },
        ..LinkConfig::new(ClusterKey::without_secret(), client)
    };
    Link::connect(server.listening(), config)
}

/// Silent connections take no client's place, and a client with slabs is never locked out.
#[test]
fn who_is_new_is_refused_with_a_sentence_when_all_links_are_there() {
    let server = server();
    let _silent: Vec<_> = (0..2 * HANDSHAKES_MAX)
        .map(|_| TcpStream::connect(server.listening()).unwrap())
        .collect();
    let links: Vec<_> = (1..=16)
        .map(|n| try_connect(&server, 0, [n; 16]).unwrap())
        .collect();
    let why = try_connect(&server, 0, [17; 16]).err().unwrap().to_string();
    assert!(
        why.contains("serves 16 links") && why.contains("-o connections"),
        "{why}"
    );
    let second = try_connect(&server, 1, [1; 16]).unwrap();
    drop((links, second));
    until(|| server.shared.welcomed.load(Relaxed) == 0);
    try_connect(&server, 0, [17; 16]).unwrap();
}

fn until(so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < end, "it never came to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn write(link: &mut Link, handle: u64, data: &[u8]) {
    let offset = 0;
    let request = Request::Write {
        handle,
        offset,
        data,
    };
    let mut completions = Completions::new();
    assert_eq!(link.ask(&request, &mut completions).unwrap(), Answer::Done);
}

fn read(link: &mut Link, handle: u64) -> Vec<u8> {
    let range = Range { offset: 0, len: 4 };
    let mut completions = Completions::new();
    match link.ask(&Request::Read { handle, range }, &mut completions) {
        Ok(Answer::Data(data)) => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Requests of a client that died are not done once its successor was welcomed: the successor may
/// have written the same bytes, which would be overwritten with old ones.
#[test]
fn a_late_write_of_an_older_link_is_not_done() {
    for (old, new) in [(0, 0), (1, 1), (1, 0)] {
        let server = server();
        let mut older = connect(&server, old);
        let key = SlabKey {
            tenant: [2; 16],
            slab: 0,
        };
        let mut completions = Completions::new();
        let handle = match older.ask(&Request::Alloc(key), &mut completions) {
            Ok(Answer::Allocated { handle }) => handle,
            other => panic!("{other:?}"),
        };
        write(&mut older, handle, b"old0");
        let writes = || server.shared.counters.writes.load(Relaxed);
        let outbox = server.shared.outboxes.lock().unwrap()[0].upgrade().unwrap();
        let slab = server.shared.registry.find(&CLIENT, handle).unwrap();

        // One write is being done, and those sent with it wait in the same buffer.
        let held = slab.hold();
        for data in [b"old1", b"old2", b"old3"] {
            let request = Request::Write {
                handle,
                offset: 0,
                data,
            };
            older.submit(0, &request).unwrap();
        }
        assert!(older.flush().unwrap());
        until(|| writes() == 2);
        let welcomed = AtomicBool::new(false);
        std::thread::scope(|s| {
            let newer = s.spawn(|| {
                let mut newer = connect(&server, new);
                welcomed.store(true, Relaxed);
                assert_eq!(read(&mut newer, handle), b"old1");
                write(&mut newer, handle, b"new!");
                newer
            });
            until(|| outbox.is_closed());
            // Time for a wrong implementation to fail; a right one never fails here.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!welcomed.load(Relaxed), "welcomed while a write is done");
            drop(held);
            let mut newer = newer.join().unwrap();
            // This ends the older link's thread.
            while older.poll(&mut completions, LONG).is_ok() {}
            assert_eq!(read(&mut newer, handle), b"new!", "links {old} and {new}");
        });
        assert_eq!(writes(), 3, "links {old} and {new}");
    }
}

/// While the process was stopped, clients could neither be heard nor move slabs: their messages are
/// in their sockets, and their links' threads may not have read them yet.
#[test]
fn leases_and_deadlines_do_not_run_while_the_process_is_stopped() {
    let server = server();
    let mut link = connect(&server, 0);
    let key = SlabKey {
        tenant: [2; 16],
        slab: 0,
    };
    let mut completions = Completions::new();
    link.ask(&Request::Alloc(key), &mut completions).unwrap();
    let lease_ms = LONG.as_millis() as u64;
    let slabs = || server.lent_slabs();
    let shared = &server.shared;
    let mut watchdog = Watchdog::new(1);
    let mut now_ms = shared.now_ms();
    watchdog.tick(shared, now_ms);
    for _ in 0..3 {
        now_ms += 2 * lease_ms;
        watchdog.tick(shared, now_ms);
        assert_eq!(slabs(), 1, "stopped for twice the lease");
    }
    shared.registry.stop_all(now_ms + 100);
    now_ms += lease_ms;
    watchdog.tick(shared, now_ms);
    assert_eq!(slabs(), 1, "stopped past the deadline");
    // Deadlines and leases that pass while it runs do count.
    now_ms += 100;
    watchdog.tick(shared, now_ms);
    assert_eq!(slabs(), 0);
    link.ask(&Request::Ping, &mut completions).unwrap();
    let end_ms = now_ms + lease_ms + 200;
    while now_ms < end_ms {
        assert_eq!(shared.registry.totals().clients, 1);
        now_ms += 100;
        watchdog.tick(shared, now_ms);
        if shared.registry.totals().clients == 0 {
            return;
        }
    }
    panic!("its lease never ended");
}
