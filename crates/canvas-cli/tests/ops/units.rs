//! The systemd units.

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
