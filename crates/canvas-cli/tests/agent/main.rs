//! Far memory from a tenant's view: real agent processes, killed, starved and fed wrong data, under
//! a program that checks every byte. The program is this file again, run under `canvas run`.

mod client;
mod donors;
mod load;
#[path = "../common/program.rs"]
mod program;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_shm::mailbox::{Kind, RequestFields, Status};
use client::{Client, contents};
use load::{Ends, load, wait_to_go_on};
use program::{CANVAS, play};

type Run = program::Run<tempfile::TempDir>;

/// Size of the file system that [`too_much`] fills.
const SMALL_BYTES: u32 = 2 << 20;

impl Run {
    /// Starts `part` of this program with these flags.
    fn start(part: &str, flags: &[&str]) -> Run {
        let dir = tempfile::tempdir().unwrap();
        let command = command(dir.path(), dir.path(), &[], flags, part);
        Run::of(dir, command)
    }

    /// The agent's pid, once there is one other than `not`.
    fn agent(&self, not: Option<u32>) -> u32 {
        let me = self.child.id();
        let children = format!("/proc/{me}/task/{me}/children");
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            let agent = fs::read_to_string(&children)
                .unwrap()
                .split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .find(|pid| is_agent(*pid) && Some(*pid) != not);
            if let Some(pid) = agent {
                return pid;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("there is no agent; stderr: {}", self.stderr());
    }

    /// The file that holds far memory.
    fn backing_file(&self) -> fs::File {
        let agent = self.agent(None);
        let dir = self.dir.path().to_str().unwrap().to_owned();
        // The only file of the agent in the far directory.
        let file = fs::read_dir(format!("/proc/{agent}/fd"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|fd| {
                let target = fs::read_link(fd).unwrap();
                target.to_str().unwrap().starts_with(&dir) && !target.ends_with("stderr")
            })
            .unwrap();
        fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .unwrap()
    }
}

fn is_agent(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("agent-worker"))
}

fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
}

/// The part that runs under `canvas run`; without a part it does nothing.
#[test]
#[ignore = "not a test: a part of the other tests"]
fn program() {
    match program::part().as_str() {
        "all kinds" => all_kinds(),
        "load" => load(),
        "patient load" => donors::patient_load(),
        "lost" => donors::lost(),
        "read on" => donors::read_on(),
        "freed" => donors::freed(),
        "read later" => donors::read_later(),
        "wait" => donors::wait(),
        "damage" => damage(),
        "too much" => too_much(),
        "beyond" => beyond(),
        "hostile" => hostile(),
        "orphan" => orphan(),
        other => panic!("no part: {other:?}"),
    }
}

#[test]
fn pages_go_out_and_come_back() {
    let run = Run::start("all kinds", &["--far", "200M"]);
    let (far, err) = run.finish();
    // A request for a slab that is no longer the process's is refused silently.
    assert_eq!(err, "");
    assert_eq!(far["agents"], 1);
    assert_eq!(far["corrupt"], 0);
    assert_eq!(far["limit_bytes"], 256 << 20);
    assert!(far["extents_out"].as_u64().unwrap() >= 80, "{far}");
    assert!(far["reads"].as_u64().unwrap() > 100, "{far}");
}

fn all_kinds() {
    let c = Client::join();
    let slabs: Vec<u32> = (0..4).map(|_| c.take_slab().unwrap()).collect();
    assert_eq!(c.take_slab(), None, "200M are four slabs");
    for first in &slabs {
        for extent in (*first..).take(20) {
            assert_eq!(c.write(extent, 1), Status::Ok);
        }
    }
    for first in &slabs {
        for extent in (*first..).take(20).filter(|e| e % 3 == 0) {
            assert_eq!(c.write(extent, 2), Status::Ok);
        }
    }
    for first in &slabs {
        for extent in (*first..).take(20) {
            let version = if extent % 3 == 0 { 2 } else { 1 };
            for record in [0, 3, 100] {
                assert_eq!(c.read_record(extent, version, record), Status::Ok);
            }
        }
    }
    let last = slabs[3] + SLAB_EXTENTS as u32 - 1;
    assert_eq!(c.write(last, 7), Status::Ok);
    assert_eq!(c.read_record(last, 7, 0), Status::Ok);
    // A released slab is readable by nobody.
    c.drop_slab(slabs[1]);
    assert_eq!(c.read_record(slabs[1], 1, 0), Status::Refused);
    assert_eq!(c.take_slab(), Some(slabs[1]));
    assert_eq!(
        c.read_record(slabs[1], 1, 0),
        Status::Refused,
        "nothing written"
    );
    assert_eq!(c.write(slabs[1], 3), Status::Ok);
    assert_eq!(c.read_record(slabs[1], 3, 99), Status::Ok);
}

#[test]
fn an_agent_may_be_killed_at_any_time() {
    let kills = u64::from(canvas_testing::random::scaled(7));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run = Run::start("load", &["--far", "128M"]);
    run.wait_for("ready");
    let mut agent = None;
    for _ in 0..kills {
        let pid = run.agent(agent);
        std::thread::sleep(Duration::from_micros(rng.u64(0..60_000)));
        kill(pid);
        agent = Some(pid);
    }
    run.agent(agent);
    run.go_on();
    let (far, err) = run.finish();
    // An agent that is killed before it has started work is not counted.
    let agents = far["agents"].as_u64().unwrap();
    assert!((1..=kills + 1).contains(&agents), "{far}");
    assert_eq!(far["corrupt"], 0, "{err}");
    // Agents that die young in a row are no longer reported after the fifth.
    let reported = err.matches("another one takes over").count() as u64;
    assert!((kills.min(5)..=kills).contains(&reported), "{err}");
}

#[test]
fn a_damaged_file_is_noticed() {
    let mut run = Run::start("damage", &["--far", "64M"]);
    run.wait_for("ready");
    let file = run.backing_file();
    let at = |extent: usize| (extent * EXTENT_BYTES) as u64;
    let mut bytes = vec![0; EXTENT_BYTES];
    file.read_exact_at(&mut bytes, at(0)).unwrap();
    let (clear, lines) = contents(0, 1);
    for line in &lines {
        let clear = &clear[line.range()];
        assert!(
            line.len < 16 || !bytes.windows(16).any(|w| w == &clear[16..32]),
            "the file holds a page as it was"
        );
    }
    // Extent 0: one bit. Extent 1: its earlier contents. Extent 2: another extent's. Extent 3 is
    // intact.
    bytes[EXTENT_BYTES - 100] ^= 1;
    file.write_all_at(&bytes, at(0)).unwrap();
    let mut old = vec![0; EXTENT_BYTES];
    file.read_exact_at(&mut old, at(1)).unwrap();
    let mut other = vec![0; EXTENT_BYTES];
    file.read_exact_at(&mut other, at(3)).unwrap();
    file.write_all_at(&other, at(2)).unwrap();
    run.go_on();
    run.wait_for("ready");
    file.write_all_at(&old, at(1)).unwrap();
    run.go_on();
    let (far, err) = run.finish();
    assert!(far["corrupt"].as_u64().unwrap() >= 3, "{far}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.contains("a copy of extent 0 is damaged or old"),
        "{err}"
    );
}

fn damage() {
    let c = Client::join();
    assert_eq!(c.take_slab(), Some(0));
    for extent in 0..4 {
        assert_eq!(c.write(extent, 1), Status::Ok);
    }
    wait_to_go_on();
    assert_eq!(c.read_record(0, 1, 0), Status::Corrupt);
    assert_eq!(c.read_record(0, 1, 1), Status::Ok, "another record of it");
    assert_eq!(c.read_record(2, 1, 0), Status::Corrupt);
    assert_eq!(c.write(1, 2), Status::Ok);
    wait_to_go_on();
    assert_eq!(c.read_record(1, 2, 0), Status::Corrupt);
    assert_eq!(c.read_record(3, 1, 100), Status::Ok);
    // A new write repairs it.
    assert_eq!(c.write(0, 2), Status::Ok);
    assert_eq!(c.read_record(0, 2, 0), Status::Ok);
}

/// The command, with its program playing `part`, after the words `before`.
fn command(dir: &Path, far_dir: &Path, before: &[&str], flags: &[&str], part: &str) -> Command {
    let all = [before, &[CANVAS]].concat();
    let mut command = Command::new(all[0]);
    command.args(&all[1..]).args(["run", "--local", "1G"]);
    // With a directory, the disk keeps what too few donors take.
    let copies = flags
        .iter()
        .position(|f| *f == "--copies")
        .map(|i| flags[i + 1]);
    if copies.is_none_or(|copies| copies.contains("disk")) {
        command.arg(format!("--to=disk:{}", far_dir.display()));
    }
    command
        .arg("--stats")
        .arg(dir.join("stats.json"))
        .args(flags);
    play(&mut command, dir, part);
    command
}

#[test]
fn a_limit_on_file_sizes_is_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let limit = ["prlimit", "--fsize=4294967296"];
    let command = command(dir.path(), dir.path(), &limit, &["--far", "6G"], "beyond");
    let (far, err) = Run::of(dir, command).finish();
    assert_eq!(far["agents"], 1, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("takes no more (File too large)"), "{err}");
}

/// Writes beyond the first 4 GiB.
fn beyond() {
    let c = Client::join();
    let slabs: Vec<u32> = (0..70).map(|_| c.take_slab().unwrap()).collect();
    assert_eq!(c.write(slabs[69], 1), Status::NoRoom);
    assert_eq!(c.write(slabs[63], 1), Status::Ok);
    assert_eq!(c.read_record(slabs[63], 1, 100), Status::Ok);
}

#[test]
fn a_limit_that_forbids_the_shared_area_is_told() {
    let dir = tempfile::tempdir().unwrap();
    // Enough for the library and the code prepared after it.
    let limit = ["prlimit", "--fsize=67108864"];
    let mut command = command(dir.path(), dir.path(), &limit, &["--far", "1G"], "beyond");
    assert_eq!(command.status().unwrap().code(), Some(125));
    let err = fs::read_to_string(dir.path().join("stderr")).unwrap();
    assert_eq!(
        err,
        "canvas: far memory needs a shared area of 2.5 GiB, which the limit on file sizes forbids; raise it (ulimit -f)\n"
    );
}

#[test]
fn a_full_disk_is_told_once_and_hurts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    // Root can make a mount namespace at once; others as the root of a user namespace.
    let root = fs::metadata("/proc/self")
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m))
        .unwrap()
        == 0;
    let unshare: &[&str] = if root { &["-m"] } else { &["-Urm"] };
    let can = Command::new("unshare").args(unshare).arg("true").status();
    if !can.is_ok_and(|s| s.success()) {
        canvas_testing::skip("no mount namespace can be made here");
        return;
    }
    let script = "mount -t tmpfs -o size=2M canvas-test \"$0\" && exec \"$@\"";
    let small_name = small.to_str().unwrap();
    let before = [&["unshare"], unshare, &["sh", "-c", script, small_name]].concat();
    let command = command(
        dir.path(),
        &small,
        &before,
        &["--far", "64M", "-o", "far-reserve=0"],
        "too much",
    );
    let (far, err) = Run::of(dir, command).finish();
    assert_eq!(far["agents"], 1, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("takes no more"), "{err}");
}

/// Writes until there is no room; written data stay, and released room is reused.
fn too_much() {
    let fits = SMALL_BYTES / EXTENT_BYTES as u32;
    let c = Client::join();
    let first = c.take_slab().unwrap();
    let written = (0..fits * 2)
        .filter(|n| match c.write(first + n, 1) {
            Status::Ok => true,
            Status::NoRoom => false,
            other => panic!("{other:?}"),
        })
        .count() as u32;
    assert!((fits - 1..=fits).contains(&written), "{written} of {fits}");
    for n in 0..fits - 1 {
        assert_eq!(c.read_record(first + n, 1, 100), Status::Ok);
    }
    assert_eq!(c.read_record(first + fits, 1, 0), Status::Refused);
    c.drop_slab(first);
    let first = c.take_slab().unwrap();
    assert_eq!(c.write(first, 2), Status::Ok);
    assert_eq!(c.read_record(first, 2, 100), Status::Ok);
}

#[test]
fn forged_requests_are_refused_and_hurt_nobody() {
    let run = Run::start("hostile", &["--far", "64M"]);
    let (far, err) = run.finish();
    assert_eq!(far["agents"], 1, "{err}");
    // At most one line of a kind in ten seconds.
    assert_eq!(err.matches("is refused").count(), 1, "{err}");
    assert_eq!(err.matches("is damaged or old").count(), 1, "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
}

fn hostile() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let c = Client::join();
    let first = c.take_slab().unwrap();
    assert_eq!(c.write(first, 1), Status::Ok);
    let ask = |kind, extent, offset, len| {
        let ask = RequestFields {
            kind,
            extent,
            offset,
            len,
        };
        c.ask(
            ask,
            |far, i| far.copy_in(c.proc, i, 0, &[0xff; 64]),
            |_, _| (),
        )
    };
    let whole = EXTENT_BYTES as u32;
    for (kind, extent, offset, len) in [
        (Kind::Read, u32::MAX, 0, whole),
        (Kind::Read, first + SLAB_EXTENTS as u32, 0, whole),
        (Kind::Read, first + 1, 0, whole),
        (Kind::Read, first, 0, whole + 16),
        (Kind::Read, first, u32::MAX, u32::MAX),
        (Kind::Read, first, 16, u32::MAX - 8),
        (Kind::Read, first, 7, 64),
        (Kind::Read, first, 64, 0),
        (Kind::Write, u32::MAX, 0, whole),
        (Kind::Write, first + SLAB_EXTENTS as u32, 0, whole),
        (Kind::Write, first + 1, 16, 64),
        (Kind::Write, first + 1, 0, whole + 1),
        // An invalid directory of records.
        (Kind::Write, first + 1, 0, whole),
        (Kind::Write, first + 1, 0, 0),
    ] {
        let status = ask(kind, extent, offset, len);
        assert_eq!(status, Status::Refused, "{kind:?} {extent} {offset} {len}");
    }
    // A range that is not a record's does not verify.
    assert_eq!(ask(Kind::Read, first, 64, 64), Status::Corrupt);
    assert_eq!(c.read_record(first, 1, 100), Status::Ok);

    // Random writes over all shared memory while requests are under way: the agent survives.
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(1);
            while !over.load(Relaxed) {
                for i in 0..64 {
                    let at = rng.usize(0..EXTENT_BYTES - 8);
                    c.far.copy_in(c.proc, i, at, &rng.u64(..).to_le_bytes());
                }
                let far = c.far;
                far.asleep.store(rng.u32(0..3), Relaxed);
                far.released.store(1, Relaxed);
                far.slabs_high.store(rng.u32(..), Relaxed);
                far.seals[rng.usize(0..64)].store(rng.u64(..), Relaxed);
                far.slabs[rng.usize(1..1000)]
                    .state
                    .store(rng.u32(0..4), Relaxed);
            }
        });
        let _ends = Ends(&over);
        for n in 0..300u32 {
            let bytes = contents(first + 2 + n % 50, 1).0;
            let kind = if n % 2 == 0 { Kind::Write } else { Kind::Read };
            let ask = RequestFields {
                kind,
                extent: first + 2 + n % 50,
                offset: 0,
                len: whole,
            };
            // Any answer will do; there must be one.
            c.ask(ask, |far, i| far.copy_in(c.proc, i, 0, &bytes), |_, _| ());
        }
        over.store(true, Relaxed);
    });
    c.far.slabs_high.store(1, Relaxed);
    assert_eq!(c.write(first, 9), Status::Ok);
    assert_eq!(
        c.read_record(first, 9, 100),
        Status::Ok,
        "the agent is well"
    );
}

#[test]
fn a_program_outlives_its_runner_and_keeps_its_pages() {
    let mut run = Run::start("orphan", &["--far", "64M"]);
    run.wait_for("ready");
    let agent = run.agent(None);
    kill(run.child.id());
    // `wait` would close it.
    let mut stdin = run.child.stdin.take().unwrap();
    run.child.wait().unwrap();
    writeln!(stdin, "go").unwrap();
    run.wait_for("all there");
    assert!(is_agent(agent));
    // The program ends; then the agent does.
    drop(stdin);
    let until = Instant::now() + Duration::from_secs(30);
    while is_agent(agent) {
        assert!(Instant::now() < until, "the agent stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn orphan() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    for extent in first..first + 50 {
        assert_eq!(c.write(extent, 1), Status::Ok);
    }
    wait_to_go_on();
    for extent in first..first + 50 {
        assert_eq!(c.read_record(extent, 1, 0), Status::Ok);
        assert_eq!(c.write(extent, 2), Status::Ok);
    }
    println!("all there");
    while std::io::stdin().lines().next().is_some() {}
}
