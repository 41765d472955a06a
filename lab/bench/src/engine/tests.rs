//! Whole runs of the bench with a real program, and checks that the host is unchanged afterwards.

use crate::engine::own_dir;
use crate::host::reverse::Host;
use crate::host::step::Step;
use crate::host::undo::Undo;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::plan::Request;
use super::{Ended, run_with};
use crate::host::slow_disk;
use crate::host::swap::{self, FOLIOS};
use crate::host::undo;
use crate::record::{Line, Outcome, Sample};
use crate::variant::{KERNEL, Variant};
use crate::workload::{Argv, Place, Plan, Workload, WorkloadError};

/// A Python program that fills memory with compressible pages, reads them repeatedly for a time, and prints a
/// checksum.
struct Touch {
    name: &'static str,
    seconds: f64,
    mib: u64,
    flaw: &'static str,
}

const SCRIPT: &str = r#"
import sys, time, json
mib, seconds, flaw = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
pages = mib * 256
memory = bytearray(mib << 20)
for p in range(pages):
    memory[p * 4096:p * 4096 + 1024] = (p * 2654435761 % 2**32).to_bytes(4, "little") * 256
began, reads, total = time.monotonic(), 0, 0
while True:
    total = 0
    for p in range(pages):
        total += memory[(p * 7919 % pages) * 4096 + 5]
        reads += 1
    if time.monotonic() - began > seconds:
        break
spent = time.monotonic() - began
if flaw == "exit": sys.exit("something is broken")
if flaw == "silent": sys.exit(0)
if flaw == "random": total = time.monotonic_ns()
print("noise")
print(json.dumps({"answer": "sum %d" % total, "seconds": spent, "ops_per_s": reads / spent,
                  "rates": [[0.25, 100.0]]}))
"#;

impl Workload for Touch {
    fn name(&self) -> &str {
        self.name
    }
    fn about(&self) -> &str {
        "fills memory and reads it"
    }
    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        (self.flaw == "missing").then(|| WorkloadError::NotInstalled {
            program: "no-such-program".to_owned(),
            package: "no-such-package".to_owned(),
        })
    }
    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let path = place.cache.clone();
        fs::create_dir_all(&path).map_err(|source| WorkloadError::File {
            action: "create",
            path,
            source,
        })
    }
    fn plan(&self, _: &Place, run: u32) -> Result<Plan, WorkloadError> {
        // The very first run measures the working set and is not interrupted.
        let seconds = if run == 0 {
            self.seconds.min(0.3)
        } else {
            self.seconds
        };
        let (mib, seconds) = (self.mib.to_string(), seconds.to_string());
        let words = ["/usr/bin/python3", "-c", SCRIPT, &mib, &seconds, self.flaw];
        Ok(Plan::Program(Argv {
            argv: words.iter().map(|w| (*w).to_owned()).collect(),
            env: vec![],
        }))
    }
    fn timeout_s(&self, _: &Place) -> u64 {
        if self.flaw == "hang" { 5 } else { 120 }
    }
}

pub(crate) fn workloads() -> Vec<Box<dyn Workload>> {
    let touch = |name, seconds, mib, flaw| -> Box<dyn Workload> {
        Box::new(Touch {
            name,
            seconds,
            mib,
            flaw,
        })
    };
    vec![
        touch("touch", 0.3, 64, ""),
        touch("twin", 0.3, 48, ""),
        touch("linger", 100.0, 96, ""),
        touch("exits", 0.0, 16, "exit"),
        touch("silent", 0.0, 16, "silent"),
        touch("random", 0.0, 16, "random"),
        touch("hangs", 50.0, 16, "hang"),
        touch("absent", 0.0, 16, "missing"),
    ]
}

fn words(command: &[&str]) -> Vec<OsString> {
    let exe = std::env::current_exe().unwrap();
    std::iter::once(exe.into_os_string())
        .chain(command.iter().map(OsString::from))
        .collect()
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("bench-test-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A request for the experiments of these names with two variants, one of which runs on any host.
pub(crate) fn request(names: &[&str]) -> Request {
    let dir = std::env::temp_dir().join(format!("bench-test-{}", std::process::id()));
    Request {
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        variants: Some(vec![Variant::Local]),
        canvas_flags: vec![],
        far_links: vec![],
        with: vec![],
        percents: Some(vec![50]),
        co_run: false,
        repeats: Some(1),
        scale: Some(1.0),
        time_max: None,
        seed: 1,
        out: dir.join("r.jsonl"),
        cache: dir.join("cache"),
        canvas: "/nonexistent/canvas".into(),
        lab: "/nonexistent/lab".into(),
        argv: vec![],
        canvas_version: "0".to_owned(),
        guardian: words(&[
            "engine::tests::as_guardian",
            "--exact",
            "--ignored",
            "--nocapture",
        ]),
        disk_server: disk_server(),
    }
}

/// Command of a disk with slow reads.
pub(crate) fn disk_server() -> Vec<OsString> {
    words(&[
        "engine::tests::as_disk",
        "--exact",
        "--ignored",
        "--nocapture",
        "--skip",
    ])
}

/// Allows one journal at a time in this process, since tests check that nothing of a bench is left.
pub(crate) fn one_journal() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a request in `dir`; returns its outcome and samples.
fn bench(
    names: &[&str],
    dir: &Path,
    change: impl FnOnce(&mut Request),
) -> (Result<Ended, String>, Vec<Sample>, String) {
    let mut request = request(names);
    request.out = dir.join("r.jsonl");
    request.cache = dir.join("cache");
    change(&mut request);
    let _one = one_journal();
    let mut shown = String::new();
    let ended = run_with(&request, &workloads(), |t| shown = t.to_owned());
    assert_eq!(left_of(std::process::id()), Vec::<PathBuf>::new());
    let text = fs::read_to_string(&request.out).unwrap_or_default();
    let line = |l| match serde_json::from_str(l).unwrap() {
        Line::Sample(s) => Some(*s),
        _ => None,
    };
    let ended = ended.map_err(|e| e.to_string());
    (ended, text.lines().filter_map(line).collect(), shown)
}

/// Not a test: [`request`] starts it as the guardian.
#[test]
#[ignore = "not a test: the guardian of other tests"]
fn as_guardian() {
    if let Some(journal) = std::env::args()
        .next_back()
        .filter(|a| a.ends_with(".journal"))
    {
        std::process::exit(undo::guard(&Host, Path::new(&journal)));
    }
}

/// Not a test: [`request`] starts it as a disk. The words after `--skip` name no test.
#[test]
#[ignore = "not a test: the disk of other tests"]
fn as_disk() {
    let words: Vec<String> = std::env::args().collect();
    if let [.., place, bytes] = words.as_slice()
        && let Ok(bytes) = bytes.parse()
    {
        std::process::exit(slow_disk::server::run(Path::new(place), bytes));
    }
}

/// Exit code of a victim that left the slow disk out: on a busy machine its reads vary too much to calibrate it.
const NOT_SLOW: i32 = 77;

/// Not a test: a bench that other tests kill.
#[test]
#[ignore = "not a test: the victim of other tests"]
fn as_victim() {
    let Some(dir) = std::env::var_os("CANVAS_BENCH_TEST_DIR") else {
        return;
    };
    let variant = variant_named(&std::env::var("CANVAS_BENCH_TEST_VARIANT").unwrap());
    let (ended, ..) = bench(&["linger"], Path::new(&dir), |r| {
        r.variants = Some(vec![variant.clone()]);
    });
    let code = match ended {
        Ok(Ended::Stopped(signal)) => 128 + signal,
        Ok(Ended::Done) if variant == Variant::SlowDisk => NOT_SLOW,
        other => panic!("{other:?}"),
    };
    std::process::exit(code);
}

fn variant_named(name: &str) -> Variant {
    KERNEL.into_iter().find(|v| v.to_string() == name).unwrap()
}

/// Allows one test at a time to switch swap on; prints the reason and returns `None` if swap cannot be used.
fn swap_turn(variant: &Variant) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if !canvas_testing::has_root("switching swap on") {
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match swap::missing(variant, Path::new("/var/tmp")) {
        None => Some(turn),
        Some(reason) => {
            canvas_testing::skip(&reason.to_string());
            None
        }
    }
}

/// State of the host that a bench changes: swap, zram devices, zswap's settings, huge pages.
#[derive(Debug, PartialEq)]
struct HostState {
    swaps: String,
    zram: Vec<String>,
    zswap: Vec<String>,
    folios: String,
}

fn host_state() -> HostState {
    let names = |dir: &str, prefix: &str| {
        let mut v: Vec<String> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|n| n.starts_with(prefix))
            .collect();
        v.sort();
        v
    };
    let zswap = "/sys/module/zswap/parameters";
    HostState {
        swaps: fs::read_to_string("/proc/swaps").unwrap_or_default(),
        zram: names("/sys/block", "zram"),
        zswap: names(zswap, "")
            .iter()
            .map(|n| {
                format!(
                    "{n}={}",
                    fs::read_to_string(format!("{zswap}/{n}")).unwrap_or_default()
                )
            })
            .collect(),
        folios: fs::read_to_string(FOLIOS).unwrap_or_default(),
    }
}

/// What bench `pid` has on the host: groups, journal, scratch directory, swap file.
fn left_of(pid: u32) -> Vec<PathBuf> {
    let mut left = Vec::new();
    for dir in [
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup",
        "/run/canvas-lab",
        "/tmp",
        "/var/tmp",
    ] {
        for e in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = e.file_name().to_string_lossy().into_owned();
            let ours = name.starts_with(&format!("canvas-bench-{pid}-"))
                || name.starts_with(&format!("canvas-bench-{pid}."))
                || (name.starts_with("canvas-bench-") && name.ends_with(&format!("-{pid}")))
                || (name.starts_with(&format!("{pid}-")) && name.ends_with(".journal"))
                || (name == "lock"
                    && fs::read_to_string(e.path()).is_ok_and(|t| t == pid.to_string()));
            if ours {
                left.push(e.path());
            }
        }
    }
    for e in fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
    {
        if e.file_name()
            .to_string_lossy()
            .starts_with(&format!("cb{pid}n"))
        {
            left.push(e.path());
        }
    }
    left
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the bench if its test fails.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bench that runs `linger` on `variant` and has begun to swap; `None` if it left the variant out.
fn victim(variant: &Variant, dir: &Path) -> Option<Victim> {
    let command = words(&[
        "engine::tests::as_victim",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    let child = Command::new(&command[0])
        .args(&command[1..])
        .env("CANVAS_BENCH_TEST_DIR", dir)
        .env("CANVAS_BENCH_TEST_VARIANT", variant.to_string())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut victim = Victim(child);
    let mut ended = None;
    wait_for("swapping", || {
        ended = victim.0.try_wait().unwrap();
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        let is_used = |line: &str| {
            let used = line.split_whitespace().nth(3);
            used.is_some_and(|used| used.parse::<u64>().unwrap_or(0) > 1024)
        };
        ended.is_some() || swaps.lines().skip(1).any(is_used)
    });
    if ended.and_then(|status| status.code()) == Some(NOT_SLOW) {
        canvas_testing::skip("the bench's slow disk cannot be calibrated: this machine is busy");
        return None;
    }
    assert_eq!(ended, None, "it ended by itself");
    assert!(
        left_of(victim.0.id()).len() >= 3,
        "{:?}",
        left_of(victim.0.id())
    );
    Some(victim)
}

/// Returns false if the test cannot run here.
fn ended_by(signal: Signal, variant: &Variant, name: &str) -> bool {
    let Some(_turn) = swap_turn(variant) else {
        return false;
    };
    // No other bench may run.
    let _one = one_journal();
    let before = host_state();
    let dir = scratch(name);
    let Some(mut victim) = victim(variant, &dir) else {
        fs::remove_dir_all(dir).unwrap();
        return false;
    };
    let pid = victim.0.id();
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
    let status = victim.0.wait().unwrap();
    if signal == Signal::SIGKILL {
        // The guardian needs time; a bench that undoes its changes itself must have finished.
        wait_for("undoing", || {
            left_of(pid).is_empty() && host_state() == before
        });
    } else {
        assert_eq!(status.code(), Some(128 + signal as i32));
    }
    assert_eq!(left_of(pid), Vec::<PathBuf>::new());
    assert_eq!(host_state(), before);
    let swap_files = fs::read_dir(dir.join("cache")).unwrap().count();
    assert_eq!(swap_files, 0);
    fs::remove_dir_all(dir).unwrap();
    true
}

#[test]
fn killed_on_zram_the_host_is_as_before() {
    ended_by(Signal::SIGKILL, &Variant::Zram, "kill-zram");
}

#[test]
fn killed_on_zram_with_folios_the_host_is_as_before() {
    let in_use = || fs::read_to_string(FOLIOS).is_ok_and(|text| text.contains("[always]"));
    if in_use() {
        canvas_testing::skip("folios of 64 KiB are on already");
        return;
    }
    let watch = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(60);
        while !in_use() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        Instant::now() < until
    });
    let ran = ended_by(Signal::SIGKILL, &Variant::Zram64k, "kill-zram-64k");
    assert!(!ran || watch.join().unwrap(), "they were never on");
}

#[test]
fn killed_on_zswap_the_host_is_as_before() {
    ended_by(Signal::SIGKILL, &Variant::Zswap, "kill-zswap");
}

#[test]
fn interrupted_on_zram_the_host_is_as_before() {
    ended_by(Signal::SIGINT, &Variant::Zram, "int-zram");
}

#[test]
fn terminated_on_disk_the_host_is_as_before() {
    ended_by(Signal::SIGTERM, &Variant::Disk, "term-disk");
}

/// The server of the slow disk lives until swap is off.
#[test]
fn killed_on_a_slow_disk_the_host_is_as_before() {
    ended_by(Signal::SIGKILL, &Variant::SlowDisk, "kill-slow-disk");
}

#[test]
fn a_plain_run_is_recorded_and_nothing_is_left() {
    let dir = scratch("plain");
    let (ended, samples, shown) = bench(&["touch"], &dir, |r| r.repeats = Some(3));
    assert_eq!(ended, Ok(Ended::Done));
    assert_eq!(samples.len(), 3);
    for (i, s) in samples.iter().enumerate() {
        assert_eq!(
            (s.repeat as usize, &s.outcome, &s.variant),
            (i, &Outcome::Ok, &Variant::Local)
        );
        assert_eq!(
            (s.experiment.as_str(), s.workload.as_str(), s.limit_bytes),
            ("sweep", "touch", None)
        );
        assert_eq!(s.answer, samples[0].answer);
        let (seconds, user) = (s.seconds.unwrap(), s.cpu_user_s.unwrap());
        assert!(
            (0.3..60.0).contains(&seconds) && (0.05..60.0).contains(&user),
            "{seconds} {user}"
        );
        let mib = s.memory_peak_bytes.unwrap() >> 20;
        assert!((60..120).contains(&mib), "{mib} MiB");
    }
    assert!(shown.contains("touch"), "{shown}");
    fs::remove_dir_all(dir).unwrap();
}

/// The time limit is far too short for all cells; the cells left out are named.
#[test]
fn what_there_is_no_time_for_is_left_out_and_named() {
    for (time, runs_some) in [
        (Duration::from_secs(3), None),
        (Duration::ZERO, Some(false)),
    ] {
        let dir = scratch(&format!("time-{}", time.as_secs()));
        let (ended, samples, _) = bench(&["touch", "linger"], &dir, |r| {
            r.repeats = Some(100_000);
            r.time_max = Some(time);
        });
        assert!(samples.len() < 1000, "{}", samples.len());
        assert!(
            samples.iter().all(|s| s.outcome == Outcome::Ok),
            "cut is no hang"
        );
        match ended {
            Ok(end) => assert_eq!((end, runs_some), (Ended::Done, None)),
            Err(e) => {
                assert!(samples.is_empty() && e.contains("--time-max"), "{e}");
            }
        }
        let text = fs::read_to_string(dir.join("r.jsonl")).unwrap();
        for name in ["touch", "linger"] {
            let done = samples.iter().filter(|s| s.workload == name).count();
            let line = text
                .lines()
                .filter_map(|l| match serde_json::from_str(l).unwrap() {
                    Line::Skip(skip) if skip.workload.as_deref() == Some(name) => Some(skip),
                    _ => None,
                })
                .next()
                .unwrap();
            let words = format!("{} of 100000 repeats of local", 100_000 - done);
            assert!(line.reason.contains(&words), "{}", line.reason);
        }
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn kernel_swap_holds_what_the_limit_does_not() {
    for variant in KERNEL {
        let Some(_turn) = swap_turn(&variant) else {
            continue;
        };
        let before = host_state();
        let dir = scratch(&format!("run-{variant}"));
        let (ended, samples, _) = bench(&["touch"], &dir, |r| {
            r.variants = Some(vec![Variant::Local, variant.clone()]);
            r.out = dir.join("r.jsonl");
        });
        let of = |variant: &Variant| {
            let found = samples.iter().find(|s| s.variant == *variant);
            found.unwrap_or_else(|| panic!("no sample of {variant}: {ended:?} {samples:?}"))
        };
        let s = of(&variant);
        // With cgroup v1 the kernel sometimes kills programs although swap is free; that is a valid result.
        if s.outcome != Outcome::Oom {
            assert_eq!(ended, Ok(Ended::Done), "{samples:?}");
            let limit = s.limit_bytes.unwrap();
            assert!((30 << 20..60 << 20).contains(&limit), "{limit}");
            assert!(s.memory_peak_bytes.unwrap() <= limit + (1 << 20), "{s:?}");
            assert!(
                s.swap_out_pages.unwrap() > 4000 && s.swap_in_pages.unwrap() > 4000,
                "{s:?}"
            );
            assert!(
                s.faults.unwrap() > 100 && s.far_peak_bytes.unwrap() > 1 << 20,
                "{s:?}"
            );
            assert_eq!(s.answer, of(&Variant::Local).answer);
        }
        assert_eq!(host_state(), before);
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn programs_of_a_co_run_have_samples_alone_and_together() {
    let dir = scratch("co-run");
    let (ended, samples, _) = bench(&["touch", "twin"], &dir, |r| r.co_run = true);
    assert_eq!(ended, Ok(Ended::Done), "{samples:?}");
    let shape = |s: &Sample| (s.workload.clone(), s.co_run.clone());
    let own = |w: &str, set: Option<&str>| (w.to_owned(), set.map(str::to_owned));
    assert_eq!(
        samples.iter().map(shape).collect::<Vec<_>>(),
        [
            own("touch", None),
            own("twin", None),
            own("touch", Some("touch+twin")),
            own("twin", Some("touch+twin"))
        ]
    );
    let (a, b) = (&samples[2], &samples[3]);
    assert!(
        (a.at_s - b.at_s).abs() < 0.25,
        "they start together: {} {}",
        a.at_s,
        b.at_s
    );
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_goes_wrong_is_told_apart() {
    for (name, check) in [
        (
            "exits",
            (|o| matches!(o, Outcome::Failed(s) if s.contains("something is broken")))
                as fn(&Outcome) -> bool,
        ),
        (
            "silent",
            |o| matches!(o, Outcome::Failed(s) if s.contains("no answer")),
        ),
        ("random", |o| *o == Outcome::Wrong),
        ("hangs", |o| *o == Outcome::Timeout),
    ] {
        let dir = scratch(name);
        let (ended, samples, _) = bench(&[name], &dir, |_| ());
        assert_eq!(ended, Ok(Ended::SomeFailed(1)), "{name}");
        assert!(
            check(&samples[0].outcome),
            "{name}: {:?}",
            samples[0].outcome
        );
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn bad_input_is_a_sentence_and_makes_no_file() {
    let dir = scratch("bad");
    for (names, text) in [
        (
            &["no-such"][..],
            "there is no experiment or workload no-such",
        ),
        (&[], "there is nothing to run"),
        (&["absent"], "absent: no-such-program is not installed"),
    ] {
        let (ended, samples, _) = bench(names, &dir, |_| ());
        assert!(ended.as_ref().is_err_and(|e| e.contains(text)), "{ended:?}");
        assert!(samples.is_empty() && !dir.join("r.jsonl").exists() && !dir.join("cache").exists());
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_list_is_in_columns() {
    let text = super::list(&request(&["quick"]));
    let all = crate::registry::workloads();
    let columns: Vec<usize> = all
        .iter()
        .map(|w| {
            let line = text
                .lines()
                .find(|l| l.trim_start().split(' ').next() == Some(w.name()));
            line.and_then(|l| l.find(w.about())).unwrap()
        })
        .collect();
    assert!(columns.iter().all(|c| *c == columns[0]), "{text}");
    // Features that canvas has are not listed as missing.
    let missing = ["not yet", "canvas has one tier", "there is no scheduler"];
    assert!(missing.iter().all(|words| !text.contains(words)), "{text}");
}

/// Only a directory that the bench created is removed at the end, never another one of that name.
#[test]
fn only_a_directory_of_its_own_is_noted_for_removal() {
    let _one = one_journal();
    let dir = tempfile::tempdir().unwrap();
    let undo = Undo::begin(&Host, &request(&[]).guardian).unwrap();
    let (a, b) = (own_dir(dir.path(), &undo), own_dir(dir.path(), &undo));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(a != b && a.is_dir() && b.is_dir());
    let noted = [&a, &b].map(|path| Step::RemoveTree { path: path.clone() });
    assert_eq!(undo.steps(), noted);
    // A directory that cannot be created is not journalled.
    assert!(own_dir(&dir.path().join("none"), &undo).is_err());
    assert_eq!(undo.steps().len(), 2);
    fs::write(a.join("file"), "").unwrap();
    assert_eq!(undo.finish(), [""; 0]);
    assert!(!a.exists() && !b.exists());
}
