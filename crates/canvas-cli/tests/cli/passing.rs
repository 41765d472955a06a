//! What passes between caller and program: streams, exit codes, environment, reports.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

#[test]
fn an_ignored_sigchld_does_not_lose_the_exit_code() {
    let script = format!("trap '' CHLD; exec {CANVAS} run -- sh -c 'exit 9'");
    let status = Command::new("bash")
        .args(["-c", &script])
        .env("CANVAS_PRELOAD_SO", stub())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(9));
}

#[test]
fn what_the_program_sends_to_canvas_does_not_come_back() {
    // Reads of a pipe without a writer wait without a process of their own, so that a trap runs at
    // once.
    let script = "exec 9<> <(:); n=0; trap 'n=$((n+1))' USR1; trap 'echo $n; exit 0' TERM; kill -USR1 $PPID; echo ready; while :; do read -t 0.01 -u 9; done";
    let mut child = canvas(&["run", "--", "bash", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    // Lower signals are read first: USR1 (10) was handled when TERM (15) arrives.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    out.read_to_string(&mut said).unwrap();
    assert_eq!(said, "ready\n0\n");
    child.wait().unwrap();
}

#[test]
fn flags_end_at_the_first_word() {
    let got = ask(&["run", "--local", "1G", "echo", "--local", "--", "--help"]);
    assert_eq!((got.code, got.out.as_str()), (0, "--local -- --help\n"));
}

#[test]
fn the_library_is_loaded_and_descriptors_are_high() {
    let script = "echo $LD_PRELOAD $CANVAS_SEGMENT_FD $CANVAS_PRELOAD_FD; ls -l /proc/self/fd; cat /proc/self/maps";
    let got = sh(&[], script);
    let first: Vec<&str> = got.out.lines().next().unwrap().split(' ').collect();
    let [preload, segment, library] = first[..] else {
        panic!("{first:?}")
    };
    assert_eq!(preload, format!("/proc/self/fd/{library}"));
    for (fd, file) in [(segment, "canvas-segment"), (library, "canvas-preload")] {
        assert!(fd.parse::<u32>().unwrap() >= 200, "{fd}");
        assert!(
            got.out.contains(&format!("{fd} -> /memfd:{file}")),
            "{}",
            got.out
        );
    }
    assert_eq!(
        got.out.lines().filter(|l| l.contains("-> /memfd:")).count(),
        2,
        "no other descriptor is left open"
    );
    assert!(
        got.out
            .lines()
            .any(|l| l.contains("r-xp") && l.contains("canvas-preload")),
        "{}",
        got.out
    );
}

#[test]
fn a_low_limit_on_descriptors_is_respected() {
    let script = format!("ulimit -n 64; exec {CANVAS} run -- sh -c 'echo $CANVAS_SEGMENT_FD'");
    let out = Command::new("sh")
        .args(["-c", &script])
        .env("CANVAS_PRELOAD_SO", stub())
        .output()
        .unwrap();
    let fd: u32 = String::from_utf8(out.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!((32..64).contains(&fd), "{fd}");
}

#[test]
fn a_canvas_run_within_a_canvas_run_replaces_the_library() {
    let got = sh(
        &[],
        &format!(
            "echo $LD_PRELOAD; exec {CANVAS} run -- sh -c 'echo $LD_PRELOAD:$CANVAS_PRELOAD_FD'"
        ),
    );
    let lines: Vec<&str> = got.out.lines().collect();
    let (inner, fd) = lines[1].split_once(':').unwrap();
    assert_eq!(inner, format!("/proc/self/fd/{fd}"));
}

#[test]
fn an_older_ld_preload_stays_behind_ours() {
    let stub = stub().to_str().unwrap();
    let got = answer(
        canvas(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
            .env("LD_PRELOAD", stub)
            .output()
            .unwrap(),
    );
    assert!(
        got.out.starts_with("/proc/self/fd/") && got.out.trim_end().ends_with(&format!(":{stub}")),
        "{}",
        got.out
    );
}

fn report(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_report_tells_how_the_program_ended() {
    let scratch = Scratch::new();
    let file = scratch.path("s.json");
    let flags = [
        "--stats",
        file.to_str().unwrap(),
        "--local",
        "64M",
        "--pool",
        "1G",
    ];
    assert_eq!(sh(&flags, "exit 3").code, 3);
    let r = report(&file);
    assert_eq!(r["schema"], "canvas-stats/1");
    assert_eq!(r["program"], "sh");
    assert_eq!(
        (&r["exit"]["code"], &r["exit"]["signal"]),
        (&3.into(), &serde_json::Value::Null)
    );
    assert_eq!(r["limits"]["local_bytes"], 64 << 20);
    assert_eq!(r["limits"]["pool_bytes"], 1 << 30);
    assert_eq!(r["limits"]["swap_cache_bytes"], 4 << 20);
    assert_eq!(r["canvas_version"], env!("CARGO_PKG_VERSION"));
    assert!(
        r["time"]["wall_s"].as_f64().unwrap() > 0.0
            && r["processes"]["max_rss_bytes"].as_u64().unwrap() > 0
    );
    assert!(["signal", "thread"].contains(&r["mode"].as_str().unwrap()));
    assert_eq!(r["counters"]["verify_failures"], 0);

    // Replaces the older one, and reports deaths, too.
    assert_eq!(sh(&flags, "kill -KILL $$").code, 137);
    let r = report(&file);
    assert_eq!(
        (&r["exit"]["code"], &r["exit"]["signal"]),
        (&serde_json::Value::Null, &9.into())
    );
    let left: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["s.json"], "no temporary file is left");
}

#[test]
fn the_report_of_an_unmanaged_program_has_no_mode() {
    let scratch = Scratch::new();
    let file = scratch.path("s.json");
    let got = ask(&[
        "run",
        "--stats",
        file.to_str().unwrap(),
        static_program().to_str().unwrap(),
    ]);
    assert_eq!(got.code, 7);
    assert_eq!(report(&file)["mode"], serde_json::Value::Null);
}

#[test]
fn a_report_can_go_to_a_stream() {
    let got = sh(&["--stats", "/dev/stderr"], "exit 0");
    assert!(got.err.contains("canvas-stats/1"), "{}", got.err);
}

#[test]
fn a_trace_begins_with_its_header() {
    let scratch = Scratch::new();
    let file = scratch.path("t");
    let name = file.to_str().unwrap();
    assert_eq!(
        sh(
            &["-o", &format!("trace={name}"), "--local", "64M"],
            "exit 0"
        )
        .code,
        0
    );
    let bytes = fs::read(&file).unwrap();
    let header =
        canvas_core::pager::trace::Header::decode(bytes[..64].try_into().unwrap()).unwrap();
    assert_eq!(header.local_pages, 16384);
    assert_eq!(bytes.len(), 64, "the stub records nothing");
}

/// With the library embedded in the binary, if there is one.
#[test]
fn the_embedded_library_is_the_one_that_is_loaded() {
    let doctor: serde_json::Value = serde_json::from_str(&ask(&["doctor", "--json"]).out).unwrap();
    let bytes = doctor["library_bytes"].as_u64().unwrap();
    let script =
        "f=/proc/self/fd/$CANVAS_PRELOAD_FD; stat -L -c %s $f; tail -c 4096 $f | head -c 8";
    let got = answer(
        canvas(&["run", "--local", "64M", "--", "sh", "-c", script])
            .env_remove("CANVAS_PRELOAD_SO")
            .output()
            .unwrap(),
    );
    if bytes == 0 {
        assert_eq!(got.code, 125);
        assert!(got.err.contains("built without its library"), "{}", got.err);
    } else {
        let (size, end) = got.out.split_once('\n').unwrap();
        let size: u64 = size.parse().unwrap();
        // After it comes the code of this host's libc, if that could be prepared.
        let has_code = size > bytes && end == "canvcode";
        assert!(
            size == bytes || has_code,
            "{size} {bytes} {end:?} {}",
            got.err
        );
    }
}
