//! Who may connect, and what other users cannot do. These tests need root, to switch users.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::{CANVAS, Host, stub};

/// User and group id of nobody.
const NOBODY: &str = "65534";

/// Runs `canvas` as nobody; `None` if that is not possible here.
fn as_nobody(host: &Host, words: &[&str]) -> Option<Output> {
    if !canvas_testing::has_root("becoming another user") {
        return None;
    }
    // Nobody else may read cargo's directory.
    let canvas = host.dir.path().join("canvas");
    if !canvas.exists() {
        fs::copy(CANVAS, &canvas).unwrap();
        fs::set_permissions(host.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
        .arg(canvas)
        .args(words)
        .env("CANVAS_PRELOAD_SO", stub(host.dir.path()))
        .output();
    Some(output.unwrap())
}

#[test]
fn the_socket_is_for_its_user_and_a_group_that_was_named() {
    let mut host = Host::new();
    let socket = host.socket();
    let name = socket.to_str().unwrap().to_owned();
    let agent_flag = format!("--to=agent:{name}");
    let words = [
        "run",
        "--local",
        "64M",
        "--far",
        "64M",
        "--tenant",
        "web",
        &agent_flag,
        "--",
        "true",
    ];
    let mut agent = host.agent(&[]);
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let Some(out) = as_nobody(&host, &words) else {
        return;
    };
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125), "{err}");
    assert!(err.contains("Permission denied"), "{err}");

    let next = host.agent(&["--replace", "--group", "nogroup"]);
    assert_eq!(agent.end().code(), Some(0));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o660);
    let out = as_nobody(&host, &words).unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{err}");

    // The tenant and the agent are root's.
    let mut run = host.run("load", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("ready");
    let out = as_nobody(&host, &words).unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("tenant web belongs to another user"), "{err}");
    let dir = host.dir.path().join("theirs");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let theirs = [
        "agent",
        "--replace",
        "--socket",
        &name,
        "--to",
        &format!("disk:{}", dir.display()),
    ];
    let out = as_nobody(&host, &theirs).unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("only root and the agent's own user"), "{err}");
    run.go_on();
    let (far, err) = run.finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    drop(next);
}

/// A process with a cluster key leaves no copy of its file in memory, and protects its memory from
/// other processes of its user and from core dumps.
#[test]
fn who_has_a_key_is_closed_to_its_own_user() {
    let host = Host::new();
    let dir = host.dir.path();
    let Some(out) = as_nobody(&host, &["keygen"]) else {
        return;
    };
    let line = String::from_utf8(out.stdout).unwrap();
    let key = dir.join("key");
    fs::write(&key, &line).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&key, Some(65534), Some(65534)).unwrap();
    let state = dir.join("state");
    fs::create_dir(&state).unwrap();
    chown(&state, Some(65534), Some(65534)).unwrap();
    let mut donor = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
        .arg(dir.join("canvas"))
        .args([
            "serve",
            "--memory",
            "64M",
            "--reserve",
            "0",
            "--listen",
            "127.0.0.1:0",
        ])
        .arg("--state-json")
        .arg(state.join("s.json"))
        .arg("--key-file")
        .arg(&key)
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !state.join("s.json").exists() {
        assert!(Instant::now() < until && donor.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let proc = Path::new("/proc").join(donor.id().to_string());
    let owner = fs::metadata(proc.join("maps")).unwrap().uid();
    let found = memory(&proc)
        .windows(32)
        .any(|w| w == &line.as_bytes()[32..64]);
    donor.kill().unwrap();
    donor.wait().unwrap();
    assert_eq!(owner, 0, "who may look is root alone");
    assert!(!found, "its memory has the line of the key");
}

/// Memory that a process has written to.
fn memory(proc: &Path) -> Vec<u8> {
    let mem = fs::File::open(proc.join("mem")).unwrap();
    let mut all = Vec::new();
    for line in fs::read_to_string(proc.join("maps")).unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|n| u64::from_str_radix(n, 16).unwrap());
        if rest.starts_with("rw") && to - from <= 64 << 20 {
            let at = all.len();
            all.resize(at + (to - from) as usize, 0);
            let _ = mem.read_at(&mut all[at..], from);
        }
    }
    all
}

/// Another user has made this user's directory for sockets in /tmp.
#[test]
fn another_user_cannot_deny_an_agent() {
    if !canvas_testing::has_root("becoming another user") {
        return;
    }
    let host = Host::new();
    let dir = host.dir.path();
    fs::copy(CANVAS, dir.join("canvas")).unwrap();
    stub(dir);
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(dir, 0o1777);
    let taken = dir.join(format!("canvas-{NOBODY}"));
    fs::create_dir(&taken).unwrap();
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    mode(&theirs, 0o777);
    // In their namespace this directory is /tmp.
    let script = "
        mount --bind \"$1\" /tmp && cd /tmp || exit 90
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '
            unset XDG_RUNTIME_DIR CANVAS_RUN_DIR
            export CANVAS_PRELOAD_SO=/tmp/\"$1\"
            ./canvas agent --to disk:theirs --far 128M 2>theirs/err &
            for n in $(seq 600); do grep -q listening theirs/err && break; sleep .1; done
            ./canvas run --local 64M --far 64M --to agent -- ./canvas status
            code=$?
            kill $!; wait
            exit $code' - \"$2\"";
    let stub = stub(dir).file_name().unwrap().to_owned();
    let out = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "-",
        ])
        .arg(dir)
        .arg(stub)
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let agent = fs::read_to_string(theirs.join("err")).unwrap();
    assert_eq!(out.status.code(), Some(0), "{said}\n{agent}");
    assert!(agent.contains("listening at /tmp/canvas-65534."), "{agent}");
    // `canvas status` sees the run, whose socket is there as well.
    assert!(said.contains("canvas"), "{said}");
    assert_eq!(fs::read_dir(taken).unwrap().count(), 0);
}
