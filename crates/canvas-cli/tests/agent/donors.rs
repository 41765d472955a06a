//! The same with donors: killed, stopped, emptied and started again under a program that checks
//! every byte.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use canvas_shm::mailbox::Status;

use crate::client::Client;
use crate::{CANVAS, Run, kill, wait_to_go_on};

/// A donor under test.
struct Donor {
    child: Child,
    addr: String,
    lines: Receiver<String>,
}

impl Donor {
    fn start(listen: &str) -> Donor {
        let mut child = Command::new(CANVAS)
            .args([
                "serve",
                "--memory",
                "1G",
                "--reserve",
                "64M",
                "--listen",
                listen,
            ])
            .env_remove("CANVAS_KEY_FILE")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in err.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let line = lines.recv_timeout(Duration::from_secs(20)).unwrap();
        let addr = line.split("listening on ").nth(1).unwrap();
        let addr = addr.split(',').next().unwrap().to_owned();
        Donor { child, addr, lines }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Starts again at the same address.
    fn again(mut self) -> Donor {
        kill(self.child.id());
        self.child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let addr = self.addr.clone();
        // The port may be busy for a moment.
        loop {
            if std::net::TcpListener::bind(&addr).is_ok() {
                return Donor::start(&addr);
            }
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn donors<const N: usize>() -> ([Donor; N], String) {
    let donors: [Donor; N] = std::array::from_fn(|_| Donor::start("127.0.0.1:0"));
    let addrs: Vec<_> = donors.iter().map(|d| d.addr.clone()).collect();
    (donors, addrs.join(","))
}

fn start(servers: &str, copies: &str) -> Run {
    let flags = ["--far", "512M", "--server", servers, "--copies", copies];
    let run = Run::start("patient load", &flags);
    run.wait_for("ready");
    run
}

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Writes and reads on four threads; what cannot be reached is asked for again, for a bounded time.
/// Prints the longest time that anything took.
pub fn patient_load() {
    let c = Client::join();
    let over = AtomicBool::new(false);
    let longest = AtomicU64::new(0);
    let patient = |what: &dyn Fn() -> Status| {
        let from = Instant::now();
        loop {
            match what() {
                Status::Ok => break,
                Status::Unreachable | Status::NoRoom => {
                    assert!(from.elapsed() < Duration::from_secs(30), "no end");
                    rest(5);
                }
                other => panic!("{other:?}"),
            }
        }
        longest.fetch_max(from.elapsed().as_millis() as u64, Relaxed);
    };
    let slabs: Vec<u32> = (0..4).map(|_| c.take_slab().unwrap()).collect();
    std::thread::scope(|s| {
        for (t, first) in slabs.iter().enumerate() {
            let (c, over, patient) = (&c, &over, &patient);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(t as u64);
                let mut versions = [0u64; 60];
                while !over.load(Relaxed) {
                    let n = rng.usize(0..versions.len());
                    let extent = first + n as u32;
                    if versions[n] == 0 || rng.u8(0..4) == 0 {
                        versions[n] += 1;
                        patient(&|| c.write(extent, versions[n]));
                    } else {
                        let record = rng.usize(0..20);
                        patient(&|| c.read_record(extent, versions[n], record));
                    }
                    if rng.u8(0..64) == 0 {
                        rest(1);
                    }
                }
                for (n, version) in versions.iter().enumerate().filter(|(_, v)| **v > 0) {
                    patient(&|| c.read_record(first + n as u32, *version, 100));
                }
            });
        }
        wait_to_go_on();
        over.store(true, Relaxed);
    });
    println!("longest: {} ms", longest.load(Relaxed));
}

#[test]
fn a_donor_that_dies_takes_nothing_with_it() {
    for copies in ["2", "1+disk"] {
        let ([a, b, c], servers) = donors();
        let mut run = start(&servers, copies);
        rest(500);
        let a = a.again();
        rest(3000);
        let b = b.again();
        rest(3000);
        run.go_on();
        run.wait_for("longest");
        let (far, err) = run.finish();
        println!("{copies}: {far}\n{err}");
        assert_eq!(far["agents"], 1, "{err}");
        assert!(far["reads"].as_u64().unwrap() > 100, "{far}");
        assert!(err.contains("it serves again"), "{err}");
        drop((a, b, c));
    }
}

#[test]
fn a_donor_that_hangs_delays_but_does_not_stop() {
    let ([a, b], servers) = donors();
    let mut run = start(&servers, "1+disk");
    rest(300);
    for donor in [&a, &b] {
        donor.signal("-STOP");
        rest(1500);
        donor.signal("-CONT");
        rest(1000);
    }
    run.go_on();
    run.wait_for("longest");
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert!(err.contains("does not answer in time"), "{err}");
}

#[test]
fn a_donor_that_ends_is_emptied_first() {
    let ([a, b, c], servers) = donors();
    let mut run = start(&servers, "2");
    rest(700);
    a.signal("-TERM");
    let until = Instant::now() + Duration::from_secs(20);
    let mut said = Vec::new();
    while let Ok(line) = a
        .lines
        .recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        said.push(line);
    }
    assert!(
        !said.iter().any(|l| l.contains("were not moved")),
        "{said:?}"
    );
    rest(500);
    run.go_on();
    run.wait_for("longest");
    let (far, err) = run.finish();
    println!("{said:?}\n{far}\n{err}");
    assert_eq!(far["corrupt"], 0, "{err}");
    drop((b, c));
}

#[test]
fn an_agent_that_takes_over_finds_the_donors_copies() {
    let ([a, b], servers) = donors();
    let mut run = start(&servers, "2");
    let mut agent = None;
    for _ in 0..3 {
        rest(400);
        let pid = run.agent(agent);
        kill(pid);
        agent = Some(pid);
    }
    rest(1000);
    run.go_on();
    run.wait_for("longest");
    let (far, err) = run.finish();
    assert_eq!(far["agents"], 4, "{err}");
    assert_eq!(far["corrupt"], 0, "{err}");
    drop((a, b));
}

#[test]
fn with_no_other_copy_a_dead_donor_is_told() {
    let ([a], servers) = donors();
    let flags = [
        "--far",
        "64M",
        "--server",
        &servers,
        "--copies",
        "none",
        "--far-wait",
        "1s",
    ];
    let mut run = Run::start("lost", &flags);
    run.wait_for("ready");
    kill(a.child.id());
    run.go_on();
    let (_, err) = run.finish();
    assert!(err.contains("donor 127.0.0.1"), "{err}");
}

pub fn lost() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while c.write(first, 1) != Status::Ok {
        assert!(Instant::now() < until);
        rest(5);
    }
    assert_eq!(c.read_record(first, 1, 100), Status::Ok);
    wait_to_go_on();
    // Within the link's bound, and never zeros.
    let from = Instant::now();
    while c.read_record(first, 1, 0) == Status::Ok {
        assert!(from.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(c.read_record(first, 1, 0), Status::Unreachable);
    assert_ne!(c.write(first + 1, 1), Status::Ok);
}
