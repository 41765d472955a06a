//! Who may connect, and what other users may not do. They need root, to become somebody else.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use super::{CANVAS, Host, stub};

/// The user and group that belong to nobody.
const NOBODY: &str = "65534";

/// Runs `canvas` as nobody; `None` when that is not possible here.
fn as_nobody(host: &Host, words: &[&str]) -> Option<Output> {
    if !canvas_testing::has_root("becoming another user") {
        return None;
    }
    // Where cargo puts it nobody else may look.
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
    let agent_flag = format!("--agent={name}");
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

    // Root's tenant is root's, and so is the agent.
    let mut run = host.run("load", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("ready");
    let out = as_nobody(&host, &words).unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("tenant web is another user's"), "{err}");
    let dir = host.dir.path().join("theirs");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let theirs = [
        "agent",
        "--replace",
        "--socket",
        &name,
        "--far-dir",
        dir.to_str().unwrap(),
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
