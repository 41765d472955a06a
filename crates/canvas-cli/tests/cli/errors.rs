//! Invalid input: the exit code, and one sentence.

use super::*;

/// Standard error is one line that begins with the command's name and contains `text`.
fn assert_sentence(answer: &Answer, code: i32, text: &str, what: &str) {
    assert_eq!(answer.code, code, "{what}: {}", answer.err);
    assert!(answer.err.starts_with("canvas: "), "{what}: {}", answer.err);
    assert_eq!(answer.err.lines().count(), 1, "{what}: {}", answer.err);
    assert!(answer.err.contains(text), "{what}: {}", answer.err);
    assert_eq!(answer.out, "", "{what}: nothing goes to standard output");
}

#[test]
fn bad_arguments_of_run_are_125() {
    for (args, text) in [
        (&["run"][..], "there is no program to run"),
        (&["run", "--"], "there is no program to run"),
        (&["run", "--local", "1G"], "there is no program to run"),
        (&["run", "--local"], "--local has no value"),
        (
            &["run", "--locl", "1G", "true"],
            "there is no flag --locl; did you mean --local?",
        ),
        (
            &["run", "--local", "4X", "true"],
            "--local 4X: its unit is unknown; write a size such as 4G",
        ),
        (
            &["run", "--local=4GB", "true"],
            "--local 4GB: KB, MB, GB and TB mean 1000 to some",
        ),
        (
            &["run", "--local", "", "true"],
            "nothing is written there; write a size",
        ),
        (
            &["run", "--local", "0%", "true"],
            "it is a share of nothing",
        ),
        (
            &["run", "--local", "101%", "true"],
            "it is more than the whole",
        ),
        (
            &["run", "--local", "1M", "true"],
            "--local 1M: it is too small; write 8M or more",
        ),
        (
            &["run", "--local", "99999999999G", "true"],
            "it is too large",
        ),
        (
            &["run", "--local", "1G", "--local", "2G", "true"],
            "--local is given twice",
        ),
        (
            &["run", "--pool", "25%", "true"],
            "--pool 25%: its unit is unknown",
        ),
        (&["run", "--pool", "1", "true"], "--pool 1: it is too small"),
        (
            &["run", "--local", "64M", "-o", "swap-cache=64M", "true"],
            "-o swap-cache=64M is part of --local 64M",
        ),
        (
            &["run", "-o", "codec=zstd", "true"],
            "-o codec=zstd: write one of lz4, none",
        ),
        (
            &["run", "-o", "reservations=2", "true"],
            "-o reservations=2: it is neither; write on or off",
        ),
        (
            &["run", "-o", "native-swap=maybe", "true"],
            "-o native-swap=maybe: it is neither; write on or off",
        ),
        (
            &["run", "-o", "prefetch=fast", "true"],
            "-o prefetch=fast: write one of streams, leap, readahead, none, auto",
        ),
        (
            &["run", concat!("--no", "-prefetch"), "true"],
            "there is no flag --no-prefetch; write -o prefetch=none",
        ),
        (
            &["run", "--mode", "turbo", "true"],
            "--mode turbo: write one of auto, signal, thread",
        ),
        (&["run", "--require=1", "true"], "--require takes no value"),
        (
            &["run", "--stats", "/no/such/dir/s.json", "true"],
            "the report cannot be written to /no/such/dir/s.json",
        ),
        (
            &["run", "--stats", "/", "true"],
            "the report cannot be written to /",
        ),
        (
            &[
                "run",
                "--local",
                "64M",
                "-o",
                "learn=/no/such/dir/r",
                "true",
            ],
            "-o learn=/no/such/dir/r: /no/such/dir/r.tmp cannot be written: No such file or directory",
        ),
        (
            &["run", "-o", "learn=/tmp/r", "true"],
            "-o learn without --local has no effect",
        ),
        (
            &["run", "-o", "trace=/no/such/dir/t", "true"],
            "the trace cannot be written to /no/such/dir/t",
        ),
    ] {
        assert_sentence(&ask(args), 125, text, &format!("{args:?}"));
    }
}

/// An unsuitable device and a missing library are reported in the same way: before anything is
/// started, and with what to do.
#[test]
fn rdma_that_cannot_be_had_is_told_before_anything_starts() {
    let has_device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|d| d.count() > 0);
    if has_device {
        canvas_testing::skip("this host has an RDMA device");
        return;
    }
    let server = "rdma://127.0.0.1:7070";
    let args = [
        "run", "--local", "16M", "--far", "1G", "--to", server, "true",
    ];
    let text = "RDMA";
    let a = ask(&args);
    assert_sentence(&a, 125, text, server);
    assert!(
        a.err.contains("write 127.0.0.1:7070 to go over TCP"),
        "{}",
        a.err
    );
    let args = [
        "serve",
        "--rdma",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "64M",
    ];
    let a = ask(&args);
    assert_sentence(&a, 2, text, "serve --rdma");
    assert!(
        a.err.contains("without --rdma memory is lent over TCP"),
        "{}",
        a.err
    );
}

#[test]
fn what_makes_no_disk_is_refused_and_nothing_is_made() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let (sock, file, nowhere) = (path("disk.sock"), path("file"), path("no/disk.sock"));
    std::fs::write(&file, "dear").unwrap();
    for (flags, text) in [
        (
            &["--size", "0", "--nbd", &sock][..],
            "--size 0 is less than a page; write 4K or more",
        ),
        (
            &["--size", "5000", "--nbd", &sock],
            "--size 5000 is not a whole number of pages; write a multiple of 4K",
        ),
        (
            &["--size", "9T", "--nbd", &sock],
            "--size 9T is too large; write ",
        ),
        (
            &["--size", "1G", "--pool", "4K", "--nbd", &sock],
            "--pool 4K: it is too small; write 1M or more",
        ),
        (
            &["--size", "1G", "--pool", "8T", "--nbd", &sock],
            "--pool 8T is too large; write ",
        ),
        (
            &["--size", "1G"],
            "the disk would have no clients; write --vhost-user PATH, --nbd PATH or --swap-host",
        ),
        (
            &["--size", "1G", "--swap-host", "--nbd", &sock],
            "exclude each other",
        ),
        (
            &["--size", "1G", "--swap-host", "--far", "1G"],
            "--swap-host excludes far memory",
        ),
        (&["--size", "1G", "--vhost-user", &file], "--vhost-user: "),
        (
            &["--size", "1G", "--queues", "33", "--nbd", &sock],
            "--queues",
        ),
        (&["--nbd", &sock], "--size"),
        (&["--size", "1X", "--nbd", &sock], "--size"),
        (
            &["--size", "1G", "-o", "codec=zip", "--nbd", &sock],
            "write one of lz4, none",
        ),
        (
            &["--size", "1G", "--nbd", &sock, "--far", "4K"],
            "--far 4K: it is too small; write 1M or more",
        ),
        (
            &["--size", "1G", "--nbd", &sock, "--copies", "2"],
            "--copies without --far has no effect; write --far SIZE to say how much memory may go there",
        ),
        (
            &["--size", "1G", "--nbd", &sock, "-o", "weight=200"],
            "-o weight without --far has no effect; write --far SIZE to say how much memory may go there",
        ),
        (
            &[
                "--size",
                "1G",
                "--nbd",
                &sock,
                "--far",
                "1G",
                "--to=agent:/no/such/agent",
            ],
            "/no/such/agent",
        ),
        (
            &["--size", "1G", "--nbd", &file],
            "exists and is not a socket; write another path",
        ),
        (
            &["--size", "1G", "--nbd", &nowhere],
            "cannot be listened on: No such file or directory",
        ),
        (
            &["--size", "1G", "--nbd", &sock, "--group", "no-such-group"],
            "--nbd: there is no group no-such-group",
        ),
    ] {
        let args = [&["disk"], flags].concat();
        assert_sentence(&ask(&args), 2, text, &format!("{args:?}"));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "dear");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn bad_variables_are_named() {
    for (name, value, text) in [
        ("CANVAS_LOCAL", "4X", "CANVAS_LOCAL=4X: its unit is unknown"),
        (
            "CANVAS_OPTIONS",
            "pool=x",
            "CANVAS_OPTIONS: pool=x: it does not start with a number",
        ),
        (
            "CANVAS_OPTIONS",
            "pool=1G mode=fast",
            "CANVAS_OPTIONS: mode=fast: write one of auto, signal, thread",
        ),
        (
            "CANVAS_SERVER",
            "10.0.0.5:7070",
            "CANVAS_SERVER is not read; write CANVAS_OPTIONS=to=HOST:PORT, or unset it",
        ),
        (
            "CANVAS_PRELOAD_SO",
            "/no/such.so",
            "CANVAS_PRELOAD_SO=/no/such.so cannot be read",
        ),
    ] {
        let got = answer(canvas(&["run", "true"]).env(name, value).output().unwrap());
        assert_sentence(&got, 125, text, name);
    }
}

#[test]
fn flags_win_over_variables() {
    let got = answer(
        canvas(&["run", "--local", "5X", "true"])
            .env("CANVAS_LOCAL", "4X")
            .output()
            .unwrap(),
    );
    assert_sentence(
        &got,
        125,
        "--local 5X",
        "both bad: the flag is the one that counts",
    );
    let good = answer(
        canvas(&["run", "--local", "1G", "true"])
            .env("CANVAS_LOCAL", "4X")
            .output()
            .unwrap(),
    );
    assert_eq!(good.code, 0, "{}", good.err);
}

#[test]
fn bad_input_to_other_commands_is_2() {
    let scratch = Scratch::new();
    let text = scratch.file("text", "not a trace", 0o644);
    let text = text.to_str().unwrap();
    for (args, sentence) in [
        (
            &["frobnicate"][..],
            "there is no command frobnicate; see `canvas --help`",
        ),
        (&["--frobnicate"], "there is no flag --frobnicate"),
        (
            &["doctor", "now"],
            "there is no argument now; see `canvas doctor --help`",
        ),
        (
            &["doctor", "--jsn"],
            "there is no flag --jsn; did you mean --json?",
        ),
        (&["bench", "quick"], "write `lab run`"),
        (&["workload", "zipf"], "write `lab workload`"),
        (&["replay", text], "write `lab replay`"),
        (&["report", text], "write `lab report`"),
        (
            &["completions"],
            "is missing; see `canvas completions --help`",
        ),
        (&["completions", "tcsh"], "write one of bash"),
        (
            &["man", "--dir", "/proc/nowhere"],
            "manual pages cannot be written to /proc/nowhere",
        ),
    ] {
        assert_sentence(&ask(args), 2, sentence, &format!("{args:?}"));
    }
}

#[test]
fn what_is_not_there_is_127_and_what_cannot_run_is_126() {
    let scratch = Scratch::new();
    let path = |p: PathBuf| p.to_str().unwrap().to_owned();
    let plain = path(scratch.file("plain", "echo hello\n", 0o755));
    let refused = path(scratch.file("refused", "#!/bin/sh\n", 0o644));
    let orphan = path(scratch.file("orphan", "#!/no/such/interpreter\n", 0o755));
    let through = format!("{refused}/x");
    for (name, code, text) in [
        (
            "no-such-program",
            127,
            "there is no program no-such-program in PATH",
        ),
        (
            "/no/such/program",
            127,
            "there is no program /no/such/program",
        ),
        (through.as_str(), 127, "there is no program"),
        ("", 127, "the program's name is empty"),
        ("/", 126, "it is a directory"),
        (
            &plain,
            126,
            "it is neither a program nor a script with a #! line",
        ),
        (&refused, 126, "permission denied"),
        (
            &orphan,
            126,
            "the interpreter or loader that it names does not exist",
        ),
    ] {
        assert_sentence(&ask(&["run", "--", name]), code, text, name);
    }
}

#[test]
fn static_programs_run_unmanaged_unless_that_is_an_error() {
    let program = static_program().to_str().unwrap();
    let got = ask(&["run", program]);
    assert_sentence(
        &got,
        7,
        "is statically linked; it runs unmanaged",
        "warning",
    );
    let got = ask(&["run", "--require", program]);
    assert_sentence(
        &got,
        125,
        "is statically linked, so it cannot be managed",
        "error",
    );
    let got = answer(
        canvas(&["run", program])
            .env("CANVAS_OPTIONS", "require=1")
            .output()
            .unwrap(),
    );
    assert_sentence(&got, 125, "is statically linked", "error by variable");
    // The interpreter of a script decides.
    let scratch = Scratch::new();
    let script = scratch.file("script", &format!("#!{program}\n"), 0o755);
    assert_sentence(
        &ask(&["run", script.to_str().unwrap()]),
        7,
        "is statically linked",
        "script",
    );
}

#[test]
fn a_loader_that_brings_no_library_is_noticed() {
    // The stub never reports that it manages anything, as when the loader ignores LD_PRELOAD.
    assert_sentence(
        &ask(&["run", "--local", "64M", "true"]),
        0,
        "its loader did not load the library",
        "warning",
    );
    assert_sentence(
        &ask(&["run", "--local", "64M", "--require", "true"]),
        125,
        "its loader did not load the library",
        "error",
    );
    assert_eq!(
        ask(&["run", "--require", "false"]).code,
        1,
        "a failure of the program stays its own"
    );
}

#[test]
fn without_a_bound_one_line_says_that_canvas_does_nothing() {
    let scratch = Scratch::new();
    let report = scratch.path("s.json");
    let with = |flags: &[&str]| ask(&[&["run"], flags, &["--", "echo", "hello"]].concat());
    let got = with(&[]);
    assert_eq!((got.code, got.out.as_str()), (0, "hello\n"));
    let line = got.err.lines().find(|l| l.contains(NO_BOUND));
    assert!(
        line.is_some_and(|l| l.contains("--local 25%")),
        "{}",
        got.err
    );
    // With a limit canvas manages memory, and a report measures.
    let stats = ["--stats", report.to_str().unwrap()];
    for flags in [
        &["--local", "64M"][..],
        &stats,
        &["--metrics", "127.0.0.1:0"],
    ] {
        let got = with(flags);
        assert_eq!((got.code, got.out.as_str()), (0, "hello\n"));
        assert!(!got.err.contains("bound"), "{flags:?}: {}", got.err);
    }
}

#[test]
fn an_unwritable_report_is_found_before_the_program_starts() {
    let scratch = Scratch::new();
    let mark = scratch.path("mark");
    let mark = mark.to_str().unwrap();
    let got = ask(&["run", "--stats", "/no/such/dir/s.json", "--", "touch", mark]);
    assert_eq!(got.code, 125);
    assert!(!Path::new(mark).exists(), "the program ran");
}

#[test]
fn the_address_space_must_hold_the_window() {
    let script = format!("ulimit -v 4000000; exec {CANVAS} run true");
    let mut c = Command::new("sh");
    let got = answer(
        c.args(["-c", &script])
            .env("CANVAS_PRELOAD_SO", stub())
            .output()
            .unwrap(),
    );
    assert_sentence(&got, 125, "ulimit -v unlimited", "ulimit -v");
}

/// canvas trusts no directory that other users can read, and `status` says why it shows nothing.
#[test]
fn a_directory_of_sockets_that_is_open_to_others_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let mut command = canvas(&["status"]);
        answer(command.env("CANVAS_RUN_DIR", dir.path()).output().unwrap())
    };
    let answer = ask(0o755);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let why = "it is another user's, or open to other users; its sockets are ignored";
    assert!(answer.err.contains(why), "{}", answer.err);
    assert_eq!(ask(0o700).err, "");
}
