//! The `canvas` command from a user's view.
//!
//! Unless a test says otherwise, the preload library is a stub that does nothing
//! (CANVAS_PRELOAD_SO): these tests cover the command; the library has its own tests.

mod errors;
mod passing;
mod texts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The binary under test.
const CANVAS: &str = env!("CARGO_BIN_EXE_canvas");

/// A directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("canvas-cli-test-{}-{n}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// Makes a file with this text and mode.
    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles C with these flags to a file of this name.
fn compile(name: &str, flags: &[&str], source: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Concurrent test runs must not write to one file: each renames its own.
    let mine = dir.join(format!("{name}-{}", std::process::id()));
    let c = mine.with_extension("c");
    fs::write(&c, source).unwrap();
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&mine)
        .arg(&c)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    fs::remove_file(c).unwrap();
    let path = dir.join(name);
    fs::rename(mine, &path).unwrap();
    path
}

/// A library that does nothing.
fn stub() -> &'static Path {
    static STUB: OnceLock<PathBuf> = OnceLock::new();
    STUB.get_or_init(|| {
        compile(
            "stub.so",
            &["-shared", "-fPIC"],
            "void canvas_stub(void) {}\n",
        )
    })
}

/// A statically linked program that exits with 7.
fn static_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let exit_7 =
            r#"__asm__(".globl _start\n_start: mov $60, %eax\n mov $7, %edi\n syscall\n");"#;
        compile("static", &["-static", "-nostdlib"], exit_7)
    })
}

/// `canvas` with these arguments, the stub, no other CANVAS_* variable, and the default action for
/// each signal: signals that the test run inherited as ignored (from nohup, or a script's
/// background) would stay ignored, and no shell can trap them.
fn canvas<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Command {
    let mut c = Command::new("/usr/bin/env");
    c.arg("--default-signal").arg(CANVAS);
    for (name, _) in
        std::env::vars_os().filter(|(n, _)| n.as_encoded_bytes().starts_with(b"CANVAS_"))
    {
        c.env_remove(name);
    }
    c.env("CANVAS_PRELOAD_SO", stub()).args(args);
    c
}

/// A command's output and end.
struct Answer {
    /// The exit code as a shell shows it.
    code: i32,
    out: String,
    err: String,
}

fn answer(output: Output) -> Answer {
    let ended_by = output.status.signal();
    Answer {
        code: ended_by.map_or_else(|| output.status.code().unwrap(), |n| 128 + n),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Part of the message without `--local`.
const NO_BOUND: &str = "runs without a limit, so canvas manages nothing";

fn ask(args: &[&str]) -> Answer {
    answer(canvas(args).output().unwrap())
}

/// The answer to `canvas run -- sh -c script`, without the lines that report that the stub managed
/// nothing, and that there is no limit.
fn sh(flags: &[&str], script: &str) -> Answer {
    let mut answer = ask(&[&["run"], flags, &["--", "sh", "-c", script]].concat());
    let lines: Vec<&str> = answer
        .err
        .lines()
        .filter(|l| !l.contains("did not load the library") && !l.contains(NO_BOUND))
        .collect();
    answer.err = lines.join("\n");
    answer
}
