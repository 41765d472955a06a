//! Hostile peers, while another tenant works.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use canvas_shm::far::{EXTENT_BYTES, FAR_BYTES, SLAB_EXTENTS, slab_state};
use canvas_shm::mailbox::{Kind, RequestFields, Status};
use canvas_shm::segment::{PROCS_MAX, SEGMENT_BYTES};
use canvas_shm::{Far, Segment, pass};
use canvas_sys::proc::{futex_wake, now_ns};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::client::{Client, contents};
use super::{Agent, Host, Run};

/// The agent's answers to a message, until it closes the connection.
fn tell(host: &Host, bytes: &[u8], fds: &[BorrowedFd]) -> String {
    let fd = pass::connect(&host.socket()).unwrap();
    pass::send(&fd, bytes, fds).unwrap();
    heard(&fd)
}

fn heard(fd: &OwnedFd) -> String {
    let mut said = String::new();
    loop {
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let n = poll(&mut fds, PollTimeout::from(10_000u16)).unwrap();
        assert_eq!(n, 1, "neither an answer nor an end after '{said}'");
        let mut buf = [0; 8192];
        match pass::receive(fd, &mut buf) {
            Ok(got) if got.bytes > 0 => said += std::str::from_utf8(&buf[..got.bytes]).unwrap(),
            _ => return said,
        }
    }
}

fn hello(name: &str) -> Vec<u8> {
    format!(r#"{{"ask":"tenant","version":2,"name":"{name}","slabs":1,"copies":null}}"#).into()
}

fn memory(bytes: usize, seals: SealFlag) -> OwnedFd {
    let fd = memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes as i64).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

#[test]
fn lies_cost_nobody_else_anything() {
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let mut run = host.run("load", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("ready");
    let refused = |said: String, want: &str| {
        assert!(said.contains("refused") && said.contains(want), "{said}");
    };
    for bytes in [
        &b"x"[..],
        b"{}",
        b"[]",
        b"{\"version\":1}",
        &[0xff; 4096],
        &[0; 1],
    ] {
        refused(tell(&host, bytes, &[]), "\"why\":\"it ");
    }
    refused(tell(&host, &[b' '; 5000], &[]), "longer than any of ours");
    refused(
        tell(&host, br#"{"ask":"over","version":2}"#, &[]),
        "no tenant",
    );
    refused(
        tell(&host, br#"{"ask":"over","version":9}"#, &[]),
        "version 9",
    );
    refused(tell(&host, &hello("a"), &[]), "has no segment");
    refused(tell(&host, &hello("../a"), &[]), "not a tenant's name");

    let whole = SEGMENT_BYTES + FAR_BYTES;
    let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    let no = "not the sealed memory";
    let unsealed = memory(whole, SealFlag::F_SEAL_GROW);
    refused(tell(&host, &hello("a"), &[unsealed.as_fd()]), no);
    let short = memory(whole - 4096, sealed);
    refused(tell(&host, &hello("a"), &[short.as_fd()]), no);
    let read_only = memory(whole, sealed | SealFlag::F_SEAL_WRITE);
    refused(tell(&host, &hello("a"), &[read_only.as_fd()]), no);
    let zeros = memory(whole, sealed);
    refused(
        tell(&host, &hello("a"), &[zeros.as_fd()]),
        "another release",
    );
    let (pipe, _write) = nix::unistd::pipe().unwrap();
    refused(tell(&host, &hello("a"), &[pipe.as_fd()]), no);
    let many = vec![zeros.as_fd(); 253];
    for _ in 0..20 {
        refused(tell(&host, &hello("a"), &many), "another release");
    }
    let (right, _) = Segment::create(true).unwrap();
    let far = Far::map(&right).unwrap();
    far.magic
        .store(canvas_shm::far::MAGIC, std::sync::atomic::Ordering::SeqCst);
    let fds = [right.as_fd(), right.as_fd()];
    refused(tell(&host, &hello("a"), &fds), "journal was not made");
    let fds = [right.as_fd(), pipe.as_fd(), pipe.as_fd(), pipe.as_fd()];
    refused(tell(&host, &hello("a"), &fds), "journal was not made");
    refused(
        tell(&host, &hello("web"), &[right.as_fd()]),
        "a tenant web already",
    );

    // Served, and then an invalid message on the same connection: it counts as closed.
    let fd = pass::connect(&host.socket()).unwrap();
    pass::send(&fd, &hello("b"), &[right.as_fd()]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    pass::send(&fd, &[7; 100], &many).unwrap();
    assert!(heard(&fd).contains("serves"));

    // Silent connections, more than are allowed at a time.
    let silent: Vec<OwnedFd> = (0..200)
        .filter_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            pass::connect(&host.socket()).ok()
        })
        .collect();
    assert!(silent.len() > 64);
    for fd in &silent {
        refused(heard(fd), "sent nothing");
    }
    let (_, err) = host.run("short", &["--far", "64M"]).finish();
    assert_eq!(err, "");
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
    assert!(agent.said().contains("is not served"), "{}", agent.said());
    // Five refusals in ten seconds.
    assert!(agent.said().lines().count() < 30, "{}", agent.said());
}

#[test]
fn what_a_tenant_scribbles_into_its_segment_hurts_nobody_else() {
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let mut run = host.run("load", &["--far", "128M"]);
    run.wait_for("ready");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for n in 0..3 {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.magic
            .store(canvas_shm::far::MAGIC, std::sync::atomic::Ordering::SeqCst);
        let link = pass::connect(&host.socket()).unwrap();
        pass::send(&link, &hello(&format!("s{n}")), &[fd.as_fd()]).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        // Random words in the head of the far area, the slabs and the mailboxes, while it is
        // served.
        let until = std::time::Instant::now() + Duration::from_millis(300);
        while std::time::Instant::now() < until {
            let at = SEGMENT_BYTES as u64 + rng.u64(0..(16 << 20) / 8) * 8;
            let many = rng.usize(1..512);
            let words: Vec<u8> = std::iter::repeat_with(|| match rng.u8(0..3) {
                0 => 0xff,
                1 => rng.u8(0..4),
                _ => rng.u8(..),
            })
            .take(many)
            .collect();
            std::os::unix::fs::FileExt::write_all_at(&file, &words, at).unwrap();
            far.notify(rng.usize(0..1024));
            far.magic
                .store(canvas_shm::far::MAGIC, std::sync::atomic::Ordering::SeqCst);
        }
        for slot in &segment.procs {
            slot.pid.store(1 << 23, std::sync::atomic::Ordering::SeqCst);
            slot.far_pages
                .store(i64::MAX, std::sync::atomic::Ordering::SeqCst);
        }
        // The agent now checks its processes.
        drop(link);
    }
    std::thread::sleep(Duration::from_millis(1500));
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
}

/// Two threads write and read, and check every byte. For each line on standard input, it prints the
/// number of requests answered so far.
pub fn steady() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    let (over, ran) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..2u32 {
            let (c, over, ran) = (&c, &over, &ran);
            s.spawn(move || {
                let mut version = 0;
                while !over.load(Relaxed) {
                    version += 1;
                    for extent in (0..8).map(|e| first + t * 8 + e) {
                        assert_eq!(c.write(extent, version), Status::Ok);
                        assert_eq!(c.read_record(extent, version, 3), Status::Ok);
                        ran.fetch_add(2, Relaxed);
                    }
                }
            });
        }
        println!("ready");
        for line in std::io::stdin().lines() {
            line.unwrap();
            println!("ran {}", ran.load(Relaxed));
        }
        over.store(true, Relaxed);
    });
}

/// Requests answered so far, of all these runs.
fn ran(runs: &mut [Run]) -> u64 {
    let one = |run: &mut Run| {
        writeln!(run.child.stdin.as_mut().unwrap(), "and?").unwrap();
        let said = run.wait_for("ran ");
        said.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    runs.iter_mut().map(one).sum()
}

/// Requests answered in a while.
fn answered(runs: &mut [Run]) -> u64 {
    let before = ran(runs);
    std::thread::sleep(Duration::from_millis(300));
    ran(runs) - before
}

/// Memory of an agent itself, in KiB.
fn own_kib(agent: &Agent) -> u64 {
    let path = format!("/proc/{}/status", agent.child.id());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Attacks, each on a part of the words that the tenant shares with the agent.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Random words everywhere: mailboxes, slabs, bitmaps, figures, configuration.
    Scribble,
    /// Notifications and urgent marks of all processes without requests; the agent never sleeps.
    Ring,
    /// Requests at full speed, forged or abandoned, with changing buffers.
    Flood,
    /// All slabs released and taken again; seals and their numbers changed.
    Slabs,
}

/// Runs one attack until it is over.
fn attack(how: Attack, far: &'static Far, file: &fs::File, over: &AtomicBool, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let any = |rng: &mut fastrand::Rng| match rng.u8(0..4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.u64(0..64),
        _ => rng.u64(..),
    };
    while !over.load(Relaxed) {
        let proc = rng.usize(0..PROCS_MAX);
        let mailbox = &far.mailboxes[proc];
        match how {
            Attack::Scribble => {
                // The segment, and the far area up to the seals; then the buffers of a process.
                let at = match rng.u8(0..8) {
                    0 => rng.u64(0..SEGMENT_BYTES as u64 / 8) * 8,
                    _ => SEGMENT_BYTES as u64 + rng.u64(0..(16 << 20) / 8) * 8,
                };
                let words: Vec<u8> = (0..rng.usize(1..64))
                    .flat_map(|_| any(&mut rng).to_le_bytes())
                    .collect();
                file.write_all_at(&words, at).unwrap();
                far.stats.ahead_ns.record(any(&mut rng));
                far.spill_percent.store(any(&mut rng), Relaxed);
                far.wait_ms_max.store(any(&mut rng), Relaxed);
                far.slabs_max.store(any(&mut rng), Relaxed);
            }
            Attack::Ring => {
                (0..64).for_each(|i| {
                    mailbox.escalate(i);
                });
                (0..PROCS_MAX).for_each(|proc| {
                    far.notify(proc);
                });
                far.asleep.store(rng.u32(0..3), SeqCst);
                futex_wake(&far.asleep, 1);
            }
            Attack::Flood => {
                let proc = rng.usize(0..4);
                let mailbox = &far.mailboxes[proc];
                for slab in &far.slabs[..2] {
                    slab.inherit(proc);
                    slab.state.store(slab_state::USED, Relaxed);
                }
                let (kind, among) = match rng.bool() {
                    true => (Kind::Read, u64::MAX),
                    false => (Kind::Write, u64::MAX << rng.u8(..64)),
                };
                let Some(i) = mailbox.claim(among) else {
                    mailbox.reset();
                    continue;
                };
                let extent = match rng.u8(0..4) {
                    0 => any(&mut rng) as u32,
                    _ => rng.u32(0..2 * SLAB_EXTENTS as u32),
                };
                let (offset, len) = match rng.u8(0..4) {
                    0 => (any(&mut rng) as u32, any(&mut rng) as u32),
                    _ => (0, EXTENT_BYTES as u32),
                };
                far.copy_in(proc, i, 0, &contents(extent, 1).0);
                let ask = RequestFields {
                    kind,
                    extent,
                    offset,
                    len,
                };
                let posted_ns = match rng.bool() {
                    true => now_ns(),
                    false => any(&mut rng),
                };
                mailbox.post(i, ask, posted_ns);
                if far.notify(proc) {
                    futex_wake(&far.asleep, 1);
                }
                let at = rng.usize(0..EXTENT_BYTES - 8);
                far.copy_in(proc, i, at, &rng.u64(..).to_le_bytes());
                match rng.u8(0..4) {
                    0 => mailbox.abandon(i),
                    1 => mailbox.release(i),
                    2 => mailbox.reset(),
                    // As if it had just been posted, whatever it is.
                    _ => mailbox.word(i).store(1, SeqCst),
                }
            }
            Attack::Slabs => {
                far.slabs_high.store(any(&mut rng) as u32, Relaxed);
                for _ in 0..64 {
                    let slab = &far.slabs[rng.usize(0..far.slabs.len())];
                    slab.state.store(rng.u32(0..4), SeqCst);
                    far.seals[rng.usize(0..2 * SLAB_EXTENTS)].store(any(&mut rng), Relaxed);
                }
                far.released.store(1, SeqCst);
                far.slabs_used.store(any(&mut rng) as i64, Relaxed);
            }
        }
        // Leaves processors to the others, so that only the agent could slow them down.
        std::thread::sleep(Duration::from_micros(rng.u64(0..20)));
    }
}

#[test]
fn several_tenants_under_load_and_one_that_attacks_in_every_way() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let mut runs: Vec<Run> = (0..3)
        .map(|_| host.run("steady", &["--far", "64M"]))
        .collect();
    for run in &runs {
        run.wait_for("ready");
    }
    let alone = answered(&mut runs);
    let own = own_kib(&agent);
    let (fd, _) = Segment::create(true).unwrap();
    let far = Far::map(&fd).unwrap();
    far.magic.store(canvas_shm::far::MAGIC, SeqCst);
    let link = pass::connect(&host.socket()).unwrap();
    pass::send(&link, &hello("villain"), &[fd.as_fd()]).unwrap();
    let file = fs::File::from(fd.try_clone().unwrap());
    let all = [Attack::Scribble, Attack::Ring, Attack::Flood, Attack::Slabs];
    let together = std::iter::once(&all[..]);
    for attacks in all.chunks(1).chain(together) {
        let over = AtomicBool::new(false);
        let with = std::thread::scope(|s| {
            for how in attacks {
                let (file, over) = (&file, &over);
                s.spawn(move || attack(*how, far, file, over, seed));
            }
            let with = answered(&mut runs);
            over.store(true, Relaxed);
            with
        });
        println!("{attacks:?}: {:.2} of {alone}", with as f64 / alone as f64);
        // Far below the fair share, as the machine may be busy; but a tenant that had to wait for
        // the attacker would get nothing.
        assert!(with * 50 > alone, "{attacks:?}: {with} of {alone}");
        assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
    }
    // 208 operations of 36 KiB, and the threads' memory.
    let grown = own_kib(&agent).saturating_sub(own);
    println!("{grown} KiB more");
    assert!(grown < 64 << 10, "{grown} KiB");
    let cost = far.stats.agent_ns.load(Relaxed);
    println!(
        "the agent says it cost {:.3} s (if nothing was written there)",
        cost as f64 / 1e9
    );
    drop(link);
    for run in runs {
        let (far, err) = run.finish();
        assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
        assert_eq!(far["corrupt"], 0);
        assert!(far["agent_cpu_s"].as_f64().unwrap() > 0.0, "{far}");
    }
    let said = agent.said();
    let is_refusal =
        |line: &&str| line.contains("a request of process") && line.contains("tenant=villain");
    let refusals = said.lines().filter(is_refusal).count();
    // Five in ten seconds, of many thousands.
    assert!((1..100).contains(&refusals), "{said}");
    assert!(said.lines().count() < refusals + 30, "{said}");
}
