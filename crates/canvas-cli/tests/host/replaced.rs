//! An agent that is to be replaced while its disk hangs. Needs root, for a file system that can be
//! frozen.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Host, ends};

/// A file system whose writes can be made to hang.
struct Disk {
    dir: tempfile::TempDir,
}

fn tool(words: &[&str]) -> bool {
    let command = Command::new(words[0])
        .args(&words[1..])
        .stdout(Stdio::null())
        .status();
    command.is_ok_and(|status| status.success())
}

impl Disk {
    fn new() -> Option<Disk> {
        if !canvas_testing::has_root("a file system that is frozen") {
            return None;
        }
        let disk = Disk {
            dir: tempfile::tempdir().unwrap(),
        };
        let image = disk.dir.path().join("image");
        fs::File::create(&image)
            .unwrap()
            .set_len(600 << 20)
            .unwrap();
        fs::create_dir(disk.far()).unwrap();
        let [image, far] = [image, disk.far()].map(|p| p.to_str().unwrap().to_owned());
        if !tool(&["mkfs.ext4", "-q", &image]) || !tool(&["mount", "-o", "loop", &image, &far]) {
            canvas_testing::skip("no file system can be mounted from a file");
            return None;
        }
        Some(disk)
    }

    fn far(&self) -> PathBuf {
        self.dir.path().join("far")
    }

    fn freeze(&self) -> Frozen {
        let far = self.far();
        assert!(tool(&["fsfreeze", "--freeze", far.to_str().unwrap()]));
        Frozen(far)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        tool(&["umount", "--lazy", self.far().to_str().unwrap()]);
    }
}

/// A frozen file system: writes hang until this is dropped.
struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        tool(&["fsfreeze", "--unfreeze", self.0.to_str().unwrap()]);
    }
}

/// Whether a thread of the process waits for a disk.
fn hangs(pid: u32) -> bool {
    let tasks = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task"));
    tasks.unwrap().flatten().any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('D'))
    })
}

/// Writes under way to a disk cannot be handed over; the old agent serves on, and its listener does
/// not wait for the disk.
#[test]
fn an_agent_whose_disk_hangs_goes_on() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let mut host = Host::new();
    let mut agent = host.begin_at(&disk.far(), &[]);
    agent.wait_for("listening at");
    let run = host.run("load", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("ready");
    // Dropped before those that wait for it, should this fail: they cannot be killed.
    let frozen = disk.freeze();
    let until = Instant::now() + Duration::from_secs(30);
    while !hangs(agent.child.id()) {
        assert!(Instant::now() < until, "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut next = host.begin(&["--replace"]);
    assert_eq!(next.end().code(), Some(1), "{}", next.said());
    let why = "disk operations have not ended within 5 s";
    assert!(next.said().contains(why), "{}", next.said());
    agent.wait_for("this one keeps serving");
    let (code, said) = host.ask(&["set", "web", "weight=5"]);
    assert_eq!(code, Some(0), "{said}");
    drop(frozen);
    let next = host.agent(&["--replace"]);
    assert_eq!(agent.end().code(), Some(0), "{}", agent.said());
    next.wait_for("tenants taken over: 1");
    for (far, err) in ends(vec![run]) {
        assert_eq!(
            (&far["agents"], &far["corrupt"]),
            (&2.into(), &0.into()),
            "{err}"
        );
    }
    drop(next);
}
