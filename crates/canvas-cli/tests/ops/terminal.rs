//! `canvas top` on its own terminal.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::tcgetattr;

use super::*;

/// A `canvas top` and its terminal.
struct Top {
    child: Child,
    master: fs::File,
    /// Kept open, so that the terminal outlives the program.
    slave: OwnedFd,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Top {
    fn start(host: &Host) -> Top {
        let size = Winsize {
            ws_row: 30,
            ws_col: 160,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = host.canvas(&["top", "-i", "200ms"]);
        command
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let child = command.spawn().unwrap();
        drop(command);
        let master = fs::File::from(pty.master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (master.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = std::io::Read::read(&mut from, &mut chunk) {
                to.lock().unwrap().extend(&chunk[..n]);
            }
        });
        Top {
            child,
            master,
            slave: pty.slave,
            screen,
        }
    }

    fn wait_for(&self, text: &str) {
        wait_for(text, || {
            let screen = self.screen.lock().unwrap();
            String::from_utf8_lossy(&screen)
                .contains(text)
                .then_some(())
        });
    }

    /// Returns the exit code; checks that the terminal is restored.
    fn end(mut self, before: &nix::sys::termios::Termios) -> i32 {
        let status = wait_for("its end", || self.child.try_wait().unwrap());
        self.wait_for("\x1b[?1049l");
        self.wait_for("\x1b[?25h");
        assert!(
            tcgetattr(self.slave.as_fd()).unwrap() == *before,
            "it is raw still"
        );
        status.code().unwrap()
    }
}

#[test]
fn top_shows_disks() {
    let host = Host::new();
    let socket = host.dir.path().join("disk.sock");
    let socket = socket.to_str().unwrap();
    let args = [
        "disk", "--size", "333M", "--pool", "7M", "--nbd", socket, "--tenant", "vm",
    ];
    let mut disk = host.canvas(&args).stderr(Stdio::null()).spawn().unwrap();
    // Before the first drawing: later ones only show changes.
    wait_for("the disk", || {
        let said = host.canvas(&["status"]).output().unwrap().stdout;
        String::from_utf8_lossy(&said)
            .contains("333M")
            .then_some(())
    });
    let mut top = Top::start(&host);
    for text in [
        "0 runs, 1 disks, 0 donors",
        "DISK",
        "WRITE/s",
        "vm",
        "333M",
        "7.0M",
    ] {
        top.wait_for(text);
    }
    top.master.write_all(b"q").unwrap();
    let ended = wait_for("its end", || top.child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
    signal(disk.id(), Signal::SIGTERM);
    assert_eq!(disk.wait().unwrap().code(), Some(0));
}

#[test]
fn top_shows_runs_and_donors_and_gives_the_terminal_back() {
    let host = Host::new();
    let donor = Donor::start(&host, &[]);
    let flags = far_flags("32M", &donor);
    let redis = Redis::start(&host, &flags);
    let mut load = Load::fill(&redis.socket, 60 * MIB);
    load.go();
    let plain = openpty(None, None).unwrap();
    let before = tcgetattr(plain.slave.as_fd()).unwrap();
    for (how, code) in [("q", 0), ("\x03", 0), ("\x1b", 0)] {
        let mut top = Top::start(&host);
        for text in [
            "\x1b[?1049h",
            "TENANT",
            "32M",
            "1 runs, 1 donors",
            &donor.addr,
        ] {
            top.wait_for(text);
        }
        assert!(
            tcgetattr(top.slave.as_fd()).unwrap() != before,
            "it is not raw"
        );
        top.master.write_all(how.as_bytes()).unwrap();
        assert_eq!(top.end(&before), code, "{how:?}");
    }
    for (how, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let top = Top::start(&host);
        top.wait_for("1 runs");
        signal(top.child.id(), how);
        assert_eq!(top.end(&before), code, "{how}");
    }
    load.end();
    redis.end();
}
