//! What the commands refuse, each with one sentence and exit code 2; and keys.

use std::os::unix::fs::PermissionsExt;

use canvas_wire::frame::QueuePair;

use super::*;

/// Runs to the end and returns standard error, which must be one line.
fn fails(args: &[&str]) -> String {
    let out = canvas(args).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{args:?}: {out:?}");
    assert!(out.stdout.is_empty());
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn without_a_key_only_loopback() {
    for addr in ["0.0.0.0:0", "[::]:0", "10.1.2.3:7070"] {
        let text = fails(&["serve", "--listen", addr, "--memory", "1G"]);
        assert!(text.contains("without a cluster key"), "{text}");
    }
    let donor = Donor::start_at("[::1]:0", &["--memory", "64M"]);
    alloc(&mut connect(&donor, config(1)), 0);
}

#[test]
fn bad_flags() {
    for (args, part) in [
        (
            &["serve", "--listen", "127.0.0.1", "--memory", "1G"][..],
            "not an address with a port",
        ),
        (&["serve", "--memory", "1G"], "--listen is missing"),
        (&["serve", "--listen", "127.0.0.1:0"], "--memory is missing"),
        (
            &["serve", "--listen", "127.0.0.1:0", "--memory", "1M"],
            "less than one slab",
        ),
        (
            &["serve", "--listen", "127.0.0.1:0", "--memory", "1GB"],
            "KB, MB",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--memory",
                "1G",
                "-o",
                "lease=0s",
            ],
            "-o lease=0s",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--memory",
                "1G",
                "--reserve",
                "900T",
            ],
            "leaves nothing",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--memory",
                "1G",
                "-o",
                "procfs=/nonexistent",
            ],
            "/nonexistent/meminfo cannot be read",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--memory",
                "1G",
                "--key-file",
                "/nonexistent",
            ],
            "/nonexistent cannot be read",
        ),
    ] {
        let text = fails(args);
        assert!(text.contains(part), "{args:?}: {text}");
    }
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = busy.local_addr().unwrap().to_string();
    let text = fails(&["serve", "--listen", &addr, "--memory", "1G"]);
    assert!(text.contains("cannot listen on"), "{text}");
}

#[test]
fn keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), "key");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let line = fs::read_to_string(&path).unwrap();
    assert_eq!(line.len(), 65);
    let name = path.to_str().unwrap();
    let other = dir.path().join("other");
    let made = canvas(&["keygen"]).arg(&other).output().unwrap();
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success() && made.stderr.is_empty());
    assert!(
        said.lines().count() == 1 && said.contains(other.to_str().unwrap()),
        "{said}"
    );
    let secret = fs::read_to_string(&other).unwrap();
    assert!(
        !said.contains(secret.trim()),
        "the key is not for the screen"
    );
    assert!(fails(&["keygen", name]).contains("exists already"));
    assert_eq!(fs::read_to_string(&path).unwrap(), line, "it was touched");

    let printed = canvas(&["keygen"]).output().unwrap();
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed.len(), 65);
    assert_ne!(printed, line, "two keys are the same");

    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "1G",
        "--key-file",
        name,
    ];
    for mode in [0o640, 0o604, 0o660, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let text = fails(&serve);
        assert!(
            text.contains("can be read or written by others"),
            "{mode:o}: {text}"
        );
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    for bad in [
        "",
        "abc\n",
        &line[1..],
        "0".repeat(64).as_str(),
        &format!("{line}{line}"),
    ] {
        fs::write(&path, bad).unwrap();
        let text = fails(&serve);
        assert!(text.contains("has no key"), "{text}");
        assert!(
            bad.trim().is_empty() || !text.contains(bad.trim()),
            "it shows the key: {text}"
        );
    }
}

/// A client that requests RDMA gets the reason for the refusal, and the session goes on without
/// RDMA.
#[test]
fn rdma_that_was_not_offered() {
    let donor = Donor::start(&["--memory", "64M"]);
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    let mut completions = Completions::new();
    let join = Request::Join(QueuePair {
        number: 1,
        psn: 2,
        gid: [3; 16],
        lid: 0,
        mtu: 1,
        reads: 1,
    });
    for request in [join, Request::Expose { handle }] {
        match link.ask(&request, &mut completions) {
            Err(AskError::Refused {
                code: ErrorCode::NoRdma,
                text,
            }) => assert!(
                text.contains("TCP only") || text.contains("no RDMA"),
                "{text}"
            ),
            other => panic!("{request:?}: {other:?}"),
        }
    }
    link.ask(&Request::Free { handle }, &mut completions)
        .unwrap();
}
