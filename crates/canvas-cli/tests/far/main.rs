//! `canvas serve` from the view of clients and operators: real processes on the loopback device.
//!
//! Timeouts are far above real times; no test depends on speed.

#[path = "../common/command.rs"]
mod command;
mod data;
mod early;
mod eviction;
mod lives;
mod peers;
mod refusals;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use canvas_link::{AskError, Completions, Link, LinkConfig, Timeouts};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Range, Request, SlabKey};
use canvas_wire::key::ClusterKey;
use command::{LONG, canvas, wait_for};

/// A donor process, killed when dropped.
struct Donor {
    child: Child,
    addr: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl Donor {
    /// Starts one with these flags and `--listen`, `--state-json` and `-o procfs` (where a host of
    /// 64 GiB has 32 GiB available).
    fn start(flags: &[&str]) -> Donor {
        Donor::start_at("127.0.0.1:0", flags)
    }

    fn start_at(listen: &str, flags: &[&str]) -> Donor {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("meminfo"), meminfo(32 << 10)).unwrap();
        let state = dir.path().join("state.json");
        let mut child = canvas(&["serve", "--listen", listen])
            .args(["--state-json", state.to_str().unwrap()])
            .args(["-o", &format!("procfs={}", dir.path().display())])
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().expect("a first line").unwrap();
        let addr = first
            .split_once("listening on ")
            .and_then(|(_, rest)| rest.split(',').next())
            .and_then(|addr| addr.parse().ok())
            .unwrap_or_else(|| panic!("no address in: {first}"));
        let log = Arc::new(Mutex::new(vec![first]));
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                writer.lock().unwrap().push(line);
            }
        });
        Donor {
            child,
            addr,
            log,
            dir,
        }
    }

    /// Sets the host's available memory, in MiB.
    fn set_available(&self, mib: u64) {
        // Atomically, or the donor could read half of it.
        let new = self.dir.path().join("meminfo.new");
        fs::write(&new, meminfo(mib)).unwrap();
        fs::rename(&new, self.dir.path().join("meminfo")).unwrap();
    }

    /// Waits for a line that contains `part`.
    fn wait_log(&self, part: &str) -> String {
        wait_for(&format!("a line with {part:?} in {:?}", self.log), || {
            let log = self.log.lock().unwrap();
            log.iter().find(|l| l.contains(part)).cloned()
        })
    }

    /// Waits for a state file that satisfies `so`.
    fn wait_state(&self, what: &str, so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let path = self.dir.path().join("state.json");
        wait_for(what, || {
            let value = serde_json::from_str(&fs::read_to_string(&path).ok()?).unwrap();
            so(&value).then_some(value)
        })
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end.
    fn end(&mut self) -> ExitStatus {
        wait_for("the server's end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn meminfo(available_mib: u64) -> String {
    format!(
        "MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable: {} kB\n",
        64u64 << 20,
        available_mib << 10
    )
}

/// A client's configuration, with long timeouts for busy machines.
fn config(client: u8) -> LinkConfig {
    let mut config = LinkConfig::new(ClusterKey::without_secret(), [client; 16]);
    config.timeouts = Timeouts {
        connect: LONG,
        handshake: LONG,
        request: LONG,
    };
    config
}

fn connect(donor: &Donor, config: LinkConfig) -> Link {
    Link::connect(donor.addr, config).unwrap_or_else(|e| panic!("{e}; log: {:?}", donor.log))
}

fn key(slab: u32) -> SlabKey {
    SlabKey {
        tenant: [0xaa; 16],
        slab,
    }
}

fn try_alloc(link: &mut Link, slab: u32) -> Result<u64, AskError> {
    let mut c = Completions::new();
    match link.ask(&Request::Alloc(key(slab)), &mut c)? {
        Answer::Allocated { handle } => Ok(handle),
        other => panic!("{other:?}"),
    }
}

fn alloc(link: &mut Link, slab: u32) -> u64 {
    try_alloc(link, slab).unwrap()
}

fn write(link: &mut Link, handle: u64, offset: u32, data: &[u8]) -> Result<(), AskError> {
    let mut c = Completions::new();
    let request = Request::Write {
        handle,
        offset,
        data,
    };
    match link.ask(&request, &mut c)? {
        Answer::Done => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn read(link: &mut Link, handle: u64, offset: u32, len: u32) -> Result<Vec<u8>, AskError> {
    let mut c = Completions::new();
    let range = Range { offset, len };
    match link.ask(&Request::Read { handle, range }, &mut c)? {
        Answer::Data(bytes) => Ok(bytes.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// The donor's error, which the result must be.
fn refused<T: std::fmt::Debug>(result: Result<T, AskError>) -> ErrorCode {
    match result {
        Err(AskError::Refused { code, .. }) => code,
        other => panic!("no refusal but {other:?}"),
    }
}

/// Makes a key file in this directory.
fn key_file(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let made = canvas(&["keygen", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    path
}
