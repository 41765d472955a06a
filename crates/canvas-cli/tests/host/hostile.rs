//! Peers that lie, beside a tenant that works on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use canvas_shm::far::FAR_BYTES;
use canvas_shm::segment::SEGMENT_BYTES;
use canvas_shm::{Far, Segment, pass};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::Host;

/// What the agent answers to a message, until it hangs up.
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
    format!(r#"{{"ask":"tenant","version":1,"name":"{name}","slabs":1,"copies":null}}"#).into()
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
        tell(&host, br#"{"ask":"over","version":1}"#, &[]),
        "no tenant",
    );
    refused(
        tell(&host, br#"{"ask":"over","version":9}"#, &[]),
        "version 9",
    );
    refused(tell(&host, &hello("a"), &[]), "without a segment");
    refused(tell(&host, &hello("../a"), &[]), "no name of a tenant");

    let whole = SEGMENT_BYTES + FAR_BYTES;
    let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    let no = "no sealed memory";
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

    // Served, and then nonsense over the same connection: it counts as one that hung up.
    let fd = pass::connect(&host.socket()).unwrap();
    pass::send(&fd, &hello("b"), &[right.as_fd()]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    pass::send(&fd, &[7; 100], &many).unwrap();
    assert!(heard(&fd).contains("serves"));

    // Silence, from more than may be silent at a time.
    let silent: Vec<OwnedFd> = (0..200)
        .filter_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            pass::connect(&host.socket()).ok()
        })
        .collect();
    assert!(silent.len() > 64);
    for fd in &silent {
        refused(heard(fd), "said nothing");
    }
    let (_, err) = host.run("short", &["--far", "64M"]).finish();
    assert_eq!(err, "");
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
    assert!(agent.said().contains("is not served"), "{}", agent.said());
    assert!(agent.said().lines().count() < 10, "{}", agent.said());
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
    for n in 0..5 {
        let (fd, segment) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        far.magic
            .store(canvas_shm::far::MAGIC, std::sync::atomic::Ordering::SeqCst);
        let link = pass::connect(&host.socket()).unwrap();
        pass::send(&link, &hello(&format!("s{n}")), &[fd.as_fd()]).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        // The head of the far area, the slabs, the mailboxes: random words, while it is served.
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
            far.ring(rng.usize(0..1024));
            far.magic
                .store(canvas_shm::far::MAGIC, std::sync::atomic::Ordering::SeqCst);
        }
        for slot in &segment.procs {
            slot.pid.store(1 << 23, std::sync::atomic::Ordering::SeqCst);
            slot.far_pages
                .store(i64::MAX, std::sync::atomic::Ordering::SeqCst);
        }
        // The agent looks at its processes now.
        drop(link);
    }
    std::thread::sleep(Duration::from_millis(1500));
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
}
