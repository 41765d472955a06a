//! What is refused, and what fails.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let host = Host::new();
    for (args, want) in [
        (&["status", "nobody"][..], "there is no run nobody"),
        (
            &["stat"][..],
            "no canvas run and no canvas disk of this user is running",
        ),
        (&["stat", "-i", "0"][..], "out of range"),
        (&["stat", "-n", "0"][..], "--count"),
        (&["top"][..], "this is not a terminal; use `canvas stat`"),
        (&["set", "t"][..], "is missing"),
        (
            &["set", "t", "local"][..],
            "local is not a change; write KEY=VALUE",
        ),
        (&["set", "t", "local=1G"][..], "there is no run t"),
        (&["status", "--colour"][..], "there is no flag --colour"),
    ] {
        let (code, out, err) = host.ask(args);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{args:?}: {err}"
        );
        assert!(err.contains(want), "{args:?}: {err}");
    }
    let (code, _, err) = host.ask(&["run", "--tenant", "a/b", "--", "true"]);
    assert_eq!((code, err.lines().count()), (125, 1));
    assert!(err.contains("it is not a tenant's name"), "{err}");
    assert_eq!(host.ask(&["status"]).0, 0, "nothing runs, nothing is wrong");
    assert_eq!(host.ask(&["status", "--json"]).1, "");
}

/// A run of `cat`, with its standard input.
fn cat(host: &Host, flags: &[&str]) -> (Child, PathBuf) {
    let child = host
        .canvas(&["run"])
        .args(flags)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let socket = wait_for("its socket", || {
        let mut files = fs::read_dir(host.run_dir()).unwrap();
        files.find_map(|f| {
            let path = f.unwrap().path();
            path.to_str()?
                .ends_with(&format!(".{pid}.sock"))
                .then_some(path)
        })
    });
    (child, socket)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

fn tell(socket: &PathBuf, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_socket_takes_good_questions_only_and_whoever_is_slow_is_dropped() {
    let host = Host::new();
    let (child, socket) = cat(&host, &["--local", "64M", "--tenant", "c"]);
    for (text, want) in [
        ("{}\n", "missing field"),
        (
            "{\"canvas\":2,\"ask\":\"status\"}\n",
            "speaks version 1 and the request has version 2",
        ),
        ("{\"canvas\":1,\"ask\":\"dance\"}\n", "unknown variant"),
        (
            "{\"canvas\":1,\"ask\":\"status\",\"and\":1}\n",
            "unknown field",
        ),
        ("\u{0}\n", "not a request to canvas"),
    ] {
        let answer: Value = serde_json::from_str(&tell(&socket, text.as_bytes())).unwrap();
        let why = answer["answer"]["refused"].as_str().unwrap();
        assert!(why.contains(want), "{text}: {why}");
    }
    let good: Value =
        serde_json::from_str(&tell(&socket, b"{\"canvas\":1,\"ask\":\"stat\"}\n")).unwrap();
    assert_eq!(good["answer"]["stat"]["status"]["tenant"], "c");
    assert_eq!(tell(&socket, &[b'x'; 100_000]), "", "no end to it");
    // Many silent connections: they are dropped, and then there is room again.
    let idle: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    wait_for("an answer", || {
        (host.ask(&["status", "c"]).0 == 0).then_some(())
    });
    for mut stream in idle {
        stream.set_read_timeout(Some(LONG)).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
    end(child);
}

#[test]
fn what_a_run_was_not_started_with_cannot_be_set() {
    let host = Host::new();
    let (child, _) = cat(&host, &["--tenant", "c"]);
    for (change, want) in [
        ("local=1G", "this run has no limit on local memory"),
        (
            "shared=1G",
            "canvas does not manage this run's shared memory",
        ),
        ("far=1G", "this run has no far memory"),
        ("spill-at=5", "this run has no far memory"),
    ] {
        let (code, _, err) = host.ask(&["set", "c", change]);
        assert!(
            code == 2 && err.contains(want) && err.lines().count() == 1,
            "{err}"
        );
    }
    end(child);
}

#[test]
fn two_runs_of_one_name_are_told_apart_by_their_processes() {
    let host = Host::new();
    let (a, _) = cat(&host, &["--local", "64M"]);
    let (b, _) = cat(&host, &["--local", "64M"]);
    let (code, _, err) = host.ask(&["set", "cat", "local=32M"]);
    assert!(
        code == 2 && err.contains("there are 2 runs called cat; write the process of one"),
        "{err}"
    );
    assert_eq!(host.ask(&["set", &b.id().to_string(), "local=32M"]).0, 0);
    let limit = |child: &Child| {
        let out = host
            .ask(&["status", &format!("cat.{}", child.id()), "--json"])
            .1;
        let status: Value = serde_json::from_str(&out).unwrap();
        status["limits"]["local_bytes"].as_u64().unwrap()
    };
    assert_eq!((limit(&a), limit(&b)), (64 * MIB, 32 * MIB));
    assert_eq!(host.ask(&["status", "cat"]).1.matches("healthy").count(), 2);
    end(a);
    end(b);
}

#[test]
fn sockets_of_dead_runs_are_removed() {
    let host = Host::new();
    // As left behind by a run that was killed.
    let dead = host.run_dir().join("gone.1.sock");
    drop(UnixListener::bind(&dead).unwrap());
    assert_eq!(host.ask(&["status"]).0, 0);
    assert!(!dead.exists());
    drop(UnixListener::bind(&dead).unwrap());
    let (child, socket) = cat(&host, &[]);
    assert!(!dead.exists() && socket.exists());
    end(child);
    assert!(!socket.exists());
}

#[test]
fn a_run_goes_on_without_its_socket() {
    let host = Host::new();
    fs::set_permissions(host.run_dir(), PermissionsExt::from_mode(0o777)).unwrap();
    let (code, out, err) = host.ask(&["run", "--local", "64M", "--", "echo", "hello"]);
    assert_eq!((code, out.as_str()), (0, "hello\n"));
    assert!(
        err.contains("`canvas status` will not see this run") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn another_user_gets_no_answer() {
    if !canvas_testing::has_root("becoming another user") {
        return;
    }
    let host = Host::new();
    let (child, socket) = cat(&host, &["--tenant", "c"]);
    // Everything is accessible to everybody: the kernel still identifies the client.
    for path in [host.dir.path(), &host.run_dir()] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.settimeout(60)\n\
        s.connect(sys.argv[1])\n\
        s.sendall(b'{\"canvas\":1,\"ask\":\"status\"}\\n')\n\
        print(len(s.recv(100)))";
    let ask = |user: u32| {
        use std::os::unix::process::CommandExt;
        let out = Command::new("python3")
            .args(["-c", script])
            .arg(&socket)
            .uid(user)
            .gid(user)
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    assert_eq!(ask(0), "100");
    assert_ne!(ask(65534), "100");
    end(child);
}
