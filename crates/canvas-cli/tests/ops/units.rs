//! The systemd units, and the journal.

use super::*;

#[test]
fn systemd_takes_the_units() {
    let known = Command::new("systemd-analyze").arg("--version").output();
    if !known.is_ok_and(|o| o.status.success()) {
        canvas_testing::skip("systemd-analyze is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let units = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../etc/systemd");
    let mut count = 0;
    for unit in fs::read_dir(units).unwrap() {
        let unit = unit.unwrap().path();
        let text = fs::read_to_string(&unit).unwrap();
        let here = dir.path().join(unit.file_name().unwrap());
        // `systemd-analyze` requires the program to exist.
        fs::write(&here, text.replace("/usr/local/bin/canvas", CANVAS)).unwrap();
        let out = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&here)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let ours: Vec<_> = said.lines().filter(|l| l.contains("canvas-")).collect();
        assert!(out.status.success() && ours.is_empty(), "{unit:?}: {said}");
        count += 1;
    }
    assert_eq!(count, 2);
}

/// systemd names the journal's stream to its services by device and inode; a process with another
/// standard error may inherit the name.
#[test]
fn a_daemon_writes_priorities_where_the_journal_reads_them() {
    use std::os::unix::fs::MetadataExt;
    let host = Host::new();
    let path = host.dir.path().join("log");
    let first_line = |stream: &dyn Fn(&fs::Metadata) -> String| {
        let log = fs::File::create(&path).unwrap();
        let stream = stream(&log.metadata().unwrap());
        let mut daemon = host
            .canvas(&["serve", "--listen", "127.0.0.1:0", "--memory", "64M"])
            .env("JOURNAL_STREAM", stream)
            .stderr(log)
            .spawn()
            .unwrap();
        let line = wait_for("a line", || {
            let text = fs::read_to_string(&path).unwrap();
            text.ends_with('\n').then_some(text)
        });
        signal(daemon.id(), nix::sys::signal::Signal::SIGTERM);
        assert!(daemon.wait().unwrap().success());
        line
    };
    let line = first_line(&|log| format!("{}:{}", log.dev(), log.ino()));
    assert!(
        line.starts_with("<6>serve: listening on 127.0.0.1:"),
        "{line}"
    );
    let line = first_line(&|log| format!("{}:{}", log.dev(), log.ino() + 1));
    let (time, text) = line.split_once("Z  INFO ").expect("time and level");
    assert!(time.starts_with("20") && !time.contains(' '), "{line}");
    assert!(text.starts_with("serve: listening on 127.0.0.1:"), "{line}");
}
