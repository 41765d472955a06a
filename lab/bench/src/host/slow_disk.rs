//! A disk whose reads take 100 us each, on any host.
//!
//! It is a loop device over a file in a FUSE file system. The server process holds the bytes in memory,
//! delays the answer to each read, and writes at once, as a disk with a cache does. Concurrent reads are
//! delayed in parallel. The delay is calibrated so that a lone reader of single pages, without the page
//! cache, sees 100 us, and adjusted all the time so that the mean of all reads stays there. (A control
//! group's limit on reads per second would not do: it admits a tenth of a second's reads at full speed, and
//! then none.)

pub mod fuse;
pub mod server;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use canvas_types::procfs::memory_bytes;
use nix::fcntl::OFlag;

use super::error::{SlowDiskError, StartError, ToolError};
use super::step::Step;
use super::tool;
use super::undo::{Held, Undo};

/// Latency of a read.
pub const READ: Duration = Duration::from_micros(100);
/// Allowed deviation of a lone reader's median.
const TOLERANCE: Duration = Duration::from_micros(10);
/// Initial delay.
const FIRST_WAIT: Duration = Duration::from_micros(50);
/// Number of timed reads per calibration step; below, the number of steps.
const READS: usize = 500;
const ROUNDS: usize = 6;
/// Interval of adjustments while the disk is in use, and the least number of reads between them.
const TICK: Duration = Duration::from_millis(50);
const READS_A_TICK: u64 = 50;
const PAGE: usize = 4096;
/// Device over which the kernel sends requests to a FUSE server.
const FUSE: &str = "/dev/fuse";
/// Prefix of the server's line when it is ready, followed by the path of its mount namespace.
const READY: &str = "ready ";
const LOOP_CONTROL: &str = "/dev/loop-control";
/// Memory that must stay free besides the disk's bytes.
const MEMORY_RESERVE_BYTES: u64 = 1 << 30;

/// Reason why such a disk cannot be used here.
pub fn missing() -> Option<SlowDiskError> {
    let tools = ["losetup", "chrt", "nsenter"];
    if let Some(name) = tools.into_iter().find(|n| !tool::is_installed(n)) {
        return Some(SlowDiskError::NoTool(name));
    }
    let no_device = [FUSE, LOOP_CONTROL]
        .into_iter()
        .find(|device| File::open(device).is_err());
    if let Some(device) = no_device {
        return Some(SlowDiskError::NoDevice(device));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    (!has_root_mount(&mounts)).then_some(SlowDiskError::Chroot)
}

/// Whether a file system is mounted at /, from the text of /proc/self/mountinfo; false in a plain chroot.
fn has_root_mount(mounts: &str) -> bool {
    let mut points = mounts.lines().map(|line| line.split(' ').nth(4));
    points.any(|point| point == Some("/"))
}

/// Loop devices (/dev/loopN) over a file of this name.
fn loops_of(name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let over = |device: &str| {
        let text = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok()?;
        (Path::new(text.trim()).file_name()? == name).then(|| Path::new("/dev").join(device))
    };
    entries
        .filter_map(|e| over(e.ok()?.file_name().to_str()?))
        .collect()
}

/// Detaches loop devices over a file of this name; none is not an error.
pub(super) fn detach(name: &str) -> Result<(), ToolError> {
    for device in loops_of(name) {
        tool::run(&["losetup", "--detach", &device.to_string_lossy()])?;
    }
    Ok(())
}

/// Number of reads that the device has answered, and their total time in ms, from the text of
/// /sys/block/DEVICE/stat.
fn reads_in(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.split_whitespace();
    let reads = fields.next()?.parse().ok()?;
    let ms = fields.nth(2)?.parse().ok()?;
    Some((reads, ms))
}

/// The server process, and the pipe over which its delay is set.
struct Server {
    child: Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
    /// Path of its mount namespace.
    namespace: String,
}

impl Server {
    fn start(
        command: &[OsString],
        place: &Path,
        bytes: u64,
        undo: &Arc<Undo>,
    ) -> Result<(Server, Held), SlowDiskError> {
        // High priority: a real disk needs no processor of the host.
        let mut command = {
            let mut all = Command::new("chrt");
            all.args(["--fifo", "1"]).args(command);
            all
        };
        command
            .arg(place)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let (mut child, _, held) = undo.start(&mut command).map_err(|e| match e {
            StartError::Spawn(e) => SlowDiskError::Server(e.to_string()),
            StartError::Journal(e) => SlowDiskError::Journal(e),
        })?;
        let (Some(told), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(SlowDiskError::Server("it has no pipes".to_owned()));
        };
        let says = BufReader::new(says);
        let mut server = Server {
            child,
            told,
            says,
            namespace: String::new(),
        };
        server.namespace = server.hear(READY)?;
        Ok((server, held))
    }

    /// Waits for a line with this prefix and returns the rest. Skips other lines, which are a test runner's;
    /// the last line of a server that ended is its error.
    fn hear(&mut self, begins: &str) -> Result<String, SlowDiskError> {
        let mut last = "it ended at once".to_owned();
        let mut line = String::new();
        loop {
            line.clear();
            match self.says.read_line(&mut line) {
                Ok(0) => return Err(SlowDiskError::Server(last)),
                Ok(_) => match line.trim_end().strip_prefix(begins) {
                    Some(rest) => return Ok(rest.to_owned()),
                    None if line.trim().is_empty() => {}
                    None => line.trim().clone_into(&mut last),
                },
                Err(e) => return Err(SlowDiskError::Server(e.to_string())),
            }
        }
    }

    /// Sets the delay of reads.
    fn wait(&mut self, wait: Duration) -> Result<(), SlowDiskError> {
        let ns = wait.as_nanos().to_string();
        writeln!(self.told, "{ns}").map_err(|e| SlowDiskError::Server(e.to_string()))?;
        self.hear(&ns).map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page aligned for direct I/O.
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// Median time of direct single-page reads of non-adjacent pages.
fn lone_read(device: &Path, bytes: u64) -> Result<Duration, SlowDiskError> {
    let fail = SlowDiskError::Read;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(device)
        .map_err(fail)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut page = Box::new(Page([0; PAGE]));
    let mut times = Vec::with_capacity(READS);
    for _ in 0..READS {
        let at = random.u64(..bytes / PAGE as u64) * PAGE as u64;
        let began = Instant::now();
        file.read_exact_at(&mut page.0, at).map_err(fail)?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times[READS / 2])
}

/// Next delay to try after a read with delay `wait` took `took`.
fn next_wait(wait: Duration, took: Duration) -> Duration {
    (wait + READ).saturating_sub(took)
}

/// Number of reads that a device has answered, and their total time in ms.
fn reads_of(device: &Path) -> Option<(u64, u64)> {
    let name = device.file_name()?.to_str()?;
    reads_in(&fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?)
}

/// Mean time of the reads between two samples; `None` if there were fewer than `least`.
fn mean_between(before: (u64, u64), now: (u64, u64), least: u64) -> Option<Duration> {
    let count = now.0.checked_sub(before.0).filter(|n| *n >= least.max(1))?;
    let ms = now.1.saturating_sub(before.1);
    Some(Duration::from_nanos(ms * 1_000_000 / count))
}

/// Moves the delay half of the way to the value that would have given the right mean.
fn nearer(wait: Duration, mean: Duration) -> Duration {
    (wait + next_wait(wait, mean).min(READ)) / 2
}

/// Keeps the mean of all reads at its target while others use the disk and the processors: unlike on a real
/// disk, a request waits for a processor on its way to the server.
struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(mut server: Server, mut wait: Duration, device: PathBuf) -> Keeper {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut before = reads_of(&device).unwrap_or_default();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let now = reads_of(&device).unwrap_or_default();
                let Some(mean) = mean_between(before, now, READS_A_TICK) else {
                    continue;
                };
                before = now;
                wait = nearer(wait, mean);
                // The server may end before this thread does.
                let _ = server.wait(wait);
            }
        });
        Keeper {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A slow disk, removed when dropped.
pub struct SlowDisk {
    /// Path of the device, /dev/loopN.
    pub device: PathBuf,
    /// Number of reads during calibration, and their total time in ms.
    before: (u64, u64),
    // Dropped in this order: swap first, then what it is on.
    _attached: Held,
    _process: Held,
    _place: Held,
    _keeper: Keeper,
}

impl SlowDisk {
    /// Creates a disk of `bytes`; `server` is the command that calls [`server::run`], to which a path and a
    /// number are appended. Files are in `dir`.
    pub fn start(
        server: &[OsString],
        bytes: u64,
        dir: &Path,
        undo: &Arc<Undo>,
    ) -> Result<SlowDisk, SlowDiskError> {
        let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
        let free = memory_bytes(&meminfo, "MemAvailable").unwrap_or(u64::MAX);
        if free < bytes + MEMORY_RESERVE_BYTES {
            return Err(SlowDiskError::MemoryFull {
                free_mib: free >> 20,
                wanted_mib: (bytes + MEMORY_RESERVE_BYTES) >> 20,
            });
        }
        let name = format!("canvas-bench-{}.disk", std::process::id());
        let place = dir.join(&name);
        let held_place = undo.hold(Step::RemoveFile {
            path: place.clone(),
        })?;
        OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&place)
            .map_err(|source| SlowDiskError::Place {
                path: place.clone(),
                source,
            })?;
        let (mut server, process) = Server::start(server, &place, bytes, undo)?;
        let attached = undo.hold(Step::DetachLoop { name })?;
        let namespace = format!("--mount={}", server.namespace);
        let said = tool::run(&[
            "nsenter",
            &namespace,
            "--",
            "losetup",
            "--find",
            "--show",
            "--direct-io=on",
            &place.to_string_lossy(),
        ])?;
        let device = PathBuf::from(said.trim());
        let wait = set_wait(&mut server, &device, bytes)?;
        let before = reads_of(&device).unwrap_or_default();
        Ok(SlowDisk {
            before,
            _attached: attached,
            _process: process,
            _place: held_place,
            _keeper: Keeper::start(server, wait, device.clone()),
            device,
        })
    }

    /// Mean time of the reads so far, in ns, from the kernel's statistics of the device.
    pub fn mean_read_ns(&self) -> Option<f64> {
        let mean = mean_between(self.before, reads_of(&self.device)?, 1)?;
        Some(mean.as_nanos() as f64)
    }
}

/// Calibrates the delay of reads, and returns it.
fn set_wait(server: &mut Server, device: &Path, bytes: u64) -> Result<Duration, SlowDiskError> {
    let mut wait = FIRST_WAIT;
    let mut took = Duration::ZERO;
    for _ in 0..ROUNDS {
        server.wait(wait)?;
        took = lone_read(device, bytes)?;
        if took.abs_diff(READ) <= TOLERANCE / 4 {
            return Ok(wait);
        }
        wait = next_wait(wait, took);
    }
    if took.abs_diff(READ) <= TOLERANCE {
        return Ok(wait);
    }
    Err(SlowDiskError::NotSet(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_is_told_by_its_mounts() {
        let root = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let proc = "22 21 0:20 / /proc rw - proc proc rw\n";
        assert!(has_root_mount(&format!("{proc}{root}")));
        assert!(!has_root_mount(proc));
    }
    use crate::engine::tests::{disk_server, one_journal, request};

    #[test]
    fn reads_of_a_device_are_counted() {
        let stat =
            "    2561        3    41024      256       12        0       96        1 0 0 0\n";
        assert_eq!(reads_in(stat), Some((2561, 256)));
        assert_eq!(reads_in("1 2 3"), None);
    }

    #[test]
    fn waiting_follows_what_a_read_took() {
        let us = Duration::from_micros;
        assert_eq!(next_wait(us(50), us(80)), us(70));
        assert_eq!(next_wait(us(50), us(120)), us(30));
        assert_eq!(next_wait(us(50), us(400)), us(0), "it cannot be that fast");
    }

    #[test]
    fn the_mean_of_all_reads_moves_the_waiting_half_of_the_way() {
        let us = Duration::from_micros;
        assert_eq!(mean_between((10, 7), (110, 21), 50), Some(us(140)));
        assert_eq!(mean_between((10, 7), (59, 21), 50), None);
        assert_eq!(mean_between((10, 7), (10, 7), 0), None);
        assert_eq!(nearer(us(60), us(140)), us(40));
        assert_eq!(nearer(us(60), us(80)), us(70));
        assert_eq!(nearer(us(60), us(500)), us(30));
        assert_eq!(nearer(us(90), us(0)), us(95), "no longer than a read");
    }

    /// The disk stores what is written, reads slowly, and leaves nothing behind.
    #[test]
    fn a_slow_disk_is_a_disk_and_is_slow() {
        if !canvas_testing::has_root("a slow disk") {
            return;
        }
        if let Some(reason) = missing() {
            canvas_testing::skip(&reason.to_string());
            return;
        }
        let _one = one_journal();
        let dir = tempfile::tempdir().unwrap();
        let undo = Undo::begin(&crate::host::reverse::Host, &request(&[]).guardian).unwrap();
        const BYTES: u64 = 64 << 20;
        let disk = match SlowDisk::start(&disk_server(), BYTES, dir.path(), &undo) {
            Ok(disk) => disk,
            // On a busy machine reads vary too much to calibrate.
            Err(e @ SlowDiskError::NotSet(_)) => {
                canvas_testing::skip(&e.to_string());
                assert_eq!(undo.finish(), [""; 0]);
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let name = format!("canvas-bench-{}.disk", std::process::id());
        assert_eq!(loops_of(&name), std::slice::from_ref(&disk.device));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&disk.device)
            .unwrap();
        let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 4096) as u8).collect();
        file.write_all_at(&data, 5 << 20).unwrap();
        file.sync_all().unwrap();
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_DIRECT.bits())
            .open(&disk.device)
            .unwrap();
        let mut page = Box::new(Page([0; PAGE]));
        let began = Instant::now();
        for n in 0..700u64 {
            let at = (5 << 20) + n * PAGE as u64;
            direct.read_exact_at(&mut page.0, at).unwrap();
            assert!(page.0.iter().all(|byte| *byte == n as u8), "{n}");
        }
        let each_us = began.elapsed().as_secs_f64() * 1e6 / 700.0;
        assert!(each_us > 70.0, "{each_us}");
        let counted = disk.mean_read_ns().unwrap();
        assert!(counted > 50e3, "{counted}");
        drop((file, direct, disk));
        assert!(loops_of(&name).is_empty());
        assert_eq!(undo.finish(), [""; 0]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
