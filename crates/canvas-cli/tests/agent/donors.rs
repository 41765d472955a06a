//! Tests with donors: killed, stopped, emptied and restarted under a program that checks every
//! byte.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use canvas_agent::journal::Journal;
use canvas_control::status::{AgentStatus, DonorState};
use canvas_link::{Completions, Link, LinkConfig};
use canvas_shm::far::{EXTENT_BYTES, SLAB_BYTES};
use canvas_shm::mailbox::Status;
use canvas_sys::proc::now_ns;
use canvas_wire::frame::{Answer, Request};
use canvas_wire::key::ClusterKey;

use crate::client::Client;
use crate::{CANVAS, Run, kill, wait_to_go_on};

/// A donor under test.
struct Donor {
    child: Child,
    addr: String,
    /// Address of its gossip, or empty.
    gossip: String,
    lines: Receiver<String>,
}

impl Donor {
    fn start(listen: &str) -> Donor {
        Donor::with(listen, &[])
    }

    /// A member of the gossip that knows these donors.
    fn gossiping(seeds: &[&Donor], more: &[&str]) -> Donor {
        let seeds: Vec<&str> = seeds.iter().map(|d| &*d.gossip).collect();
        let seeds = seeds.join(",");
        let mut flags = vec!["--gossip", "127.0.0.1:0"];
        if !seeds.is_empty() {
            flags.extend(["--join", &seeds]);
        }
        flags.extend(more);
        Donor::with("127.0.0.1:0", &flags)
    }

    fn with(listen: &str, flags: &[&str]) -> Donor {
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
            .args(flags)
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
        let gossip = line.split("gossip on ").nth(1).unwrap_or_default();
        Donor {
            child,
            addr,
            gossip: gossip.to_owned(),
            lines,
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Restarts it at the same address.
    fn again(mut self) -> Donor {
        kill(self.child.id());
        self.child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let addr = self.addr.clone();
        // The port may be in use for a moment.
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
    let flags = ["--far", "512M", "--to", servers, "--copies", copies];
    let run = Run::start("patient load", &flags);
    run.wait_for("ready");
    run
}

fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "in vain waited for: {what}");
        rest(5);
    }
}

impl Run {
    /// The agent's journal, which its successor gets, too.
    fn journal(&self) -> Journal {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.agent(None))).unwrap();
        let journal = |fd: std::io::Result<std::fs::DirEntry>| {
            let mut options = std::fs::File::options();
            let file = options.read(true).write(true).open(fd.ok()?.path());
            Journal::open(file.ok()?.into()).ok()
        };
        fds.into_iter().find_map(journal).unwrap()
    }

    /// Waits until an agent's report, made after this call, satisfies `is_so`.
    fn wait_report(&self, what: &str, is_so: impl Fn(&AgentStatus) -> bool) {
        let (journal, from) = (self.journal(), now_ns());
        let report = || journal.status().filter(|s| s.at_ns > from);
        wait_until(what, || report().is_some_and(|s| is_so(&s)));
    }

    /// Waits until donors hold this many copies of slabs, and none is missing.
    fn wait_whole(&self, copies: u32) {
        self.wait_report("all copies", |s| {
            let held: u32 = s.donors.iter().map(|d| d.slabs).sum();
            s.degraded_slabs == 0 && held >= copies
        });
    }

    /// Waits until this many donors are down.
    fn wait_down(&self, donors: usize) {
        self.wait_report("a donor's end", |s| {
            let down = s.donors.iter().filter(|d| d.state == DonorState::Down);
            down.count() == donors
        });
    }

    /// Waits until the agent has said this about a donor.
    fn wait_said(&self, donor: &Donor, what: &str) {
        wait_until(what, || {
            let said = self.stderr();
            let mut lines = said.lines();
            lines.any(|l| l.contains(&donor.addr) && l.contains(what))
        });
    }
}

/// Writes and reads on four threads; requests that fail because donors are unreachable are
/// repeated, for a bounded time. Prints the longest time of a request.
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
                // On a busy machine it may be over before a thread started.
                let mut at_least = 200;
                while at_least > 0 || !over.load(Relaxed) {
                    at_least -= i32::from(at_least > 0);
                    let n = rng.usize(0..versions.len());
                    let extent = first + n as u32;
                    if versions[n] == 0 || rng.u8(0..4) == 0 {
                        versions[n] += 1;
                        patient(&|| c.write(extent, versions[n]));
                    } else {
                        let record = rng.usize(0..20);
                        patient(&|| c.read_record(extent, versions[n], record));
                    }
                    if rng.u8(0..16) == 0 {
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
fn servers_lend_without_being_told_how_much() {
    let ([_a, _b], servers) = donors();
    let mut run = Run::start("patient load", &["--to", &servers, "--copies", "2"]);
    run.wait_for("ready");
    run.go_on();
    run.wait_for("longest");
    let (far, err) = run.finish();
    assert!(far["reads"].as_u64().unwrap() > 0, "{far}");
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let slabs = (kib << 10).div_ceil(SLAB_BYTES as u64);
    assert_eq!(far["limit_bytes"], slabs * SLAB_BYTES as u64, "{far}");
    // A donor may be slow for a moment on a busy machine; nothing else may be reported.
    let slow = |l: &str| l.contains("does not answer in time") || l.contains("it serves again");
    assert!(err.lines().all(slow), "{err}");
}

#[test]
fn a_donor_that_dies_takes_nothing_with_it() {
    for (copies, held) in [("2", 8), ("1+disk", 4)] {
        let ([a, b, c], servers) = donors();
        let mut run = start(&servers, copies);
        run.wait_whole(held);
        let again = |donor: Donor| {
            let donor = donor.again();
            run.wait_said(&donor, "it serves again");
            run.wait_whole(held);
            donor
        };
        let (a, b) = (again(a), again(b));
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
    run.wait_whole(4);
    for donor in [&a, &b] {
        donor.signal("-STOP");
        run.wait_said(donor, "does not answer in time");
        donor.signal("-CONT");
        run.wait_said(donor, "it serves again");
        run.wait_whole(4);
    }
    run.go_on();
    println!("{}", run.wait_for("longest"));
    let (far, err) = run.finish();
    println!("{far}\n{err}");
}

#[test]
fn a_donor_that_ends_is_emptied_first() {
    let ([a, b, c], servers) = donors();
    let mut run = start(&servers, "2");
    run.wait_whole(8);
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
        !said
            .iter()
            .any(|l| l.contains("freed before their clients moved")),
        "{said:?}"
    );
    run.wait_whole(8);
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
    let journal = run.journal();
    let mut agent = None;
    let mut next = || {
        let pid = run.agent(agent);
        agent = Some(pid);
        wait_until("its copies", || {
            let report = journal.status().filter(|s| s.pid == pid);
            report.is_some_and(|s| s.degraded_slabs == 0 && s.donors.iter().all(|d| d.slabs == 4))
        });
        pid
    };
    for _ in 0..3 {
        kill(next());
    }
    next();
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
        "--to",
        &servers,
        "--copies",
        "1",
        "-o",
        "far-wait=1s",
    ];
    let mut run = Run::start("lost", &flags);
    run.wait_for("ready");
    kill(a.child.id());
    run.go_on();
    run.wait_for("ready");
    let a = a.again();
    run.go_on();
    let (_, err) = run.finish();
    drop(a);
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
    // Within the link's timeout, and never zeros.
    let from = Instant::now();
    while c.read_record(first, 1, 0) == Status::Ok {
        assert!(from.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(c.read_record(first, 1, 0), Status::Unreachable);
    assert_ne!(c.write(first + 1, 1), Status::Ok);
    wait_to_go_on();
    // A lost page is distinguished from an unreachable one, at once.
    let from = Instant::now();
    while c.read_record(first, 1, 0) == Status::Unreachable {
        assert!(from.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(c.read_record(first, 1, 0), Status::Lost);
}

/// Writes, and then only reads until told to end, and in the end everything. Prints the longest
/// time of a read before that.
pub fn read_on() {
    let c = Client::join();
    let extents = 200;
    let first = c.take_slab().unwrap();
    for extent in first..first + extents {
        let until = Instant::now() + Duration::from_secs(30);
        while c.write(extent, 1) != Status::Ok {
            assert!(Instant::now() < until);
            rest(5);
        }
    }
    let over = AtomicBool::new(false);
    let (longest, reads) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..2 {
            let (c, over, longest, reads) = (&c, &over, &longest, &reads);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(t);
                while !over.load(Relaxed) {
                    let extent = first + rng.u32(0..extents);
                    let from = Instant::now();
                    let status = c.read_record(extent, 1, rng.usize(0..8));
                    longest.fetch_max(from.elapsed().as_millis() as u64, Relaxed);
                    reads.fetch_add(1, Relaxed);
                    assert_eq!(status, Status::Ok);
                    rest(1);
                }
            });
        }
        wait_to_go_on();
        over.store(true, Relaxed);
    });
    for extent in first..first + extents {
        assert_eq!(c.read_record(extent, 1, 100), Status::Ok);
    }
    println!(
        "longest: {} ms of {} reads",
        longest.load(Relaxed),
        reads.load(Relaxed)
    );
}

/// Silent for less time than a request's timeout: the link stays, and reads go to another copy.
#[test]
fn a_silent_donor_is_gone_around() {
    for copies in ["2", "1+disk"] {
        let (donors, servers): ([Donor; 2], _) = donors();
        let flags = ["--far", "64M", "--to", &servers, "--copies", copies];
        let mut run = Run::start("read on", &flags);
        run.wait_for("ready");
        for donor in &donors {
            donor.signal("-STOP");
            rest(600);
            donor.signal("-CONT");
            rest(300);
        }
        run.go_on();
        let longest = run.wait_for("longest");
        let (far, err) = run.finish();
        println!("{copies}: {longest}; {far}\n{err}");
        assert!(!err.contains("does not answer in time"), "{err}");
        assert!(far["failovers"].as_u64().unwrap() > 0, "{far}");
    }
}

/// Silent for good, as when a cable is cut: reads go elsewhere until the link is given up, and
/// after that.
#[test]
fn a_donor_that_is_silent_for_good_is_gone_around() {
    for copies in ["2", "1+disk"] {
        let ([a, b], servers) = donors();
        let flags = ["--far", "64M", "--to", &servers, "--copies", copies];
        let mut run = Run::start("read on", &flags);
        run.wait_for("ready");
        a.signal("-STOP");
        run.wait_said(&a, "does not answer in time");
        a.signal("-CONT");
        run.wait_said(&a, "it serves again");
        b.signal("-STOP");
        run.wait_said(&b, "does not answer in time");
        run.go_on();
        let longest = run.wait_for("longest");
        let (far, err) = run.finish();
        println!("{copies}: {longest}; {far}\n{err}");
        assert!(far["failovers"].as_u64().unwrap() > 0, "{far}");
    }
}

/// Holders of the client's id and key can free its slabs, as a donor's own errors may.
fn free_all(run: &Run, donor: &Donor) {
    let client = run.journal().client().unwrap();
    let config = LinkConfig {
        link: 9,
        ..LinkConfig::new(ClusterKey::without_secret(), client)
    };
    let mut link = Link::connect(donor.addr.parse().unwrap(), config).unwrap();
    let mut completions = Completions::new();
    let handles = match link.ask(&Request::List { after: 0 }, &mut completions) {
        Ok(Answer::Handles { slabs, .. }) => slabs.iter().map(|s| s.handle).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert!(!handles.is_empty());
    for handle in handles {
        completions.clear();
        let freed = link.ask(&Request::Free { handle }, &mut completions);
        assert!(matches!(freed, Ok(Answer::Done)), "{freed:?}");
    }
}

#[test]
fn what_a_donor_has_not_got_any_more_is_made_good() {
    let ([a, b], servers) = donors();
    let flags = ["--far", "64M", "--to", &servers, "--copies", "2"];
    let mut run = Run::start("read on", &flags);
    run.wait_for("ready");
    free_all(&run, &a);
    run.wait_said(&a, "it no longer has slab 0");
    run.wait_whole(2);
    // The only remains of the slab's first copies: what was copied to `a` again must be complete.
    kill(b.child.id());
    run.wait_down(1);
    run.go_on();
    println!("{}", run.wait_for("longest"));
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert!(far["repairs"].as_u64().unwrap() > 0, "{far}");
    assert_eq!(far["corrupt"], 0, "{err}");
}

/// Writes, and reads what all donors have freed.
pub fn freed() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    let write = |extent| {
        let until = Instant::now() + Duration::from_secs(30);
        while c.write(extent, 1) != Status::Ok {
            assert!(Instant::now() < until);
            rest(5);
        }
    };
    write(first);
    wait_to_go_on();
    // Its slab gets a new place.
    write(first + 1);
    for _ in 0..3 {
        assert_eq!(c.read_record(first, 1, 100), Status::Lost);
        assert_eq!(c.read_record(first + 1, 1, 100), Status::Ok);
    }
}

#[test]
fn what_all_donors_have_freed_is_lost_and_not_damaged() {
    let ([a, b], servers) = donors();
    let flags = ["--far", "64M", "--to", &servers, "--copies", "2"];
    let mut run = Run::start("freed", &flags);
    run.wait_for("ready");
    for donor in [&a, &b] {
        free_all(&run, donor);
    }
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!(far["corrupt"], 0, "{err}");
}

/// Counts the pages of slabs in the donor's memory; with `change`, flips a bit in each, as its
/// operator could.
fn pages(donor: &Donor, change: bool) -> usize {
    let pid = donor.child.id();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    let mut found = 0;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = fields[0].split_once('-').unwrap();
        let from = u64::from_str_radix(from, 16).unwrap();
        let to = u64::from_str_radix(to, 16).unwrap();
        // Anonymous, and large enough for slabs: the kernel merges neighbours.
        if fields.len() > 5 || !fields[1].starts_with("rw") || to - from < SLAB_BYTES as u64 {
            continue;
        }
        let mut page = [0; 4096];
        for at in (from..to).step_by(page.len()) {
            memory.read_exact_at(&mut page, at).unwrap();
            if page.iter().any(|b| *b != 0) {
                found += 1;
                if change {
                    page.iter_mut().for_each(|b| *b ^= 4);
                    memory.write_all_at(&page, at).unwrap();
                }
            }
        }
    }
    found
}

/// Writes, and reads everything when told to.
pub fn read_later() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    for extent in first..first + 100 {
        let until = Instant::now() + Duration::from_secs(30);
        while c.write(extent, 1) != Status::Ok {
            assert!(Instant::now() < until);
            rest(5);
        }
    }
    wait_to_go_on();
    for extent in first..first + 100 {
        assert_eq!(c.read_record(extent, 1, 100), Status::Ok);
    }
}

/// Of three copies one is damaged and one is lost: the new one is made from the good one, so that
/// it can replace it.
#[test]
fn a_damaged_copy_is_not_copied_on() {
    let (donors, servers): ([Donor; 4], _) = donors();
    let flags = ["--far", "64M", "--to", &servers, "--copies", "3"];
    let mut run = Run::start("read later", &flags);
    run.wait_for("ready");
    let holders: Vec<&Donor> = donors.iter().filter(|d| pages(d, false) > 0).collect();
    assert_eq!(holders.len(), 3);
    assert!(pages(holders[0], true) >= 800);
    kill(holders[1].child.id());
    run.wait_down(1);
    run.wait_whole(3);
    kill(holders[2].child.id());
    run.wait_down(2);
    run.go_on();
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert!(far["corrupt"].as_u64().unwrap() > 0, "{far}");
    assert!(err.contains("it is not used for repair"), "{err}");
}

/// The only remaining copy, on the disk, is damaged: it is not copied.
#[test]
fn a_damaged_file_is_not_copied_on() {
    let ([a, b], servers) = donors();
    let flags = ["--far", "64M", "--to", &servers, "--copies", "1+disk"];
    let mut run = Run::start("wait", &flags);
    run.wait_for("ready");
    let file = run.backing_file();
    let mut bytes = vec![0; EXTENT_BYTES];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.iter_mut().for_each(|b| *b ^= 4);
    file.write_all_at(&bytes, 0).unwrap();
    let (holder, other) = if pages(&a, false) > 0 { (a, b) } else { (b, a) };
    kill(holder.child.id());
    wait_until("repair", || {
        run.stderr().contains("it is not used for repair") && pages(&other, false) > 0
    });
    // Of extents 0 and 1 it has the second, and stays without the first.
    rest(500);
    let got = pages(&other, false);
    assert!((1..=EXTENT_BYTES / 4096).contains(&got), "{got} pages");
    run.go_on();
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert_eq!(far["corrupt"], 1, "counted once: {far}");
    drop(holder);
}

pub fn wait() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    for extent in [first, first + 1] {
        assert_eq!(c.write(extent, 1), Status::Ok);
    }
    wait_to_go_on();
}

#[test]
fn a_run_that_knows_one_member_uses_all_donors() {
    let a = Donor::gossiping(&[], &[]);
    let b = Donor::gossiping(&[&a], &[]);
    let c = Donor::gossiping(&[&b], &[]);
    let flags = [
        "--far",
        "64M",
        "--to",
        &format!("gossip:{}", b.gossip),
        "--copies",
        "3",
    ];
    let mut run = Run::start("read later", &flags);
    run.wait_for("ready");
    for donor in [&a, &b, &c] {
        assert!(pages(donor, false) > 0, "{}", run.stderr());
    }
    // The next agent knows the donors by the numbers in the slabs' records.
    let agent = run.agent(None);
    kill(agent);
    run.agent(Some(agent));
    run.go_on();
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert_eq!(far["corrupt"], 0, "{err}");
    assert!(err.contains("found by gossip"), "{err}");
}

#[test]
fn a_donor_that_comes_later_is_used_and_a_stranger_is_not() {
    let a = Donor::gossiping(&[], &[]);
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let made = Command::new(CANVAS).arg("keygen").arg(&key).status();
    assert!(made.unwrap().success());
    let stranger = Donor::gossiping(&[&a], &["--key-file", key.to_str().unwrap()]);
    let flags = [
        "--far",
        "64M",
        "--to",
        &format!("gossip:{}", a.gossip),
        "--copies",
        "2",
    ];
    let mut run = Run::start("read later", &flags);
    // Nothing is written while there is one donor, and an unknown one: they gossip twice a second.
    run.wait_report("a donor", |s| s.donors.len() == 1);
    rest(1000);
    assert_eq!(pages(&stranger, false), 0);
    assert!(run.lines.try_iter().all(|line| !line.contains("ready")));
    let b = Donor::gossiping(&[&a], &[]);
    run.wait_for("ready");
    assert!(pages(&a, false) > 0 && pages(&b, false) > 0);
    assert_eq!(pages(&stranger, false), 0);
    // The gossip has lost it; its pages are still there.
    drop(a);
    run.go_on();
    let (far, err) = run.finish();
    println!("{far}\n{err}");
    assert_eq!(err.matches("found by gossip").count(), 2, "{err}");
}
