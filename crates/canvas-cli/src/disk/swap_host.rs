//! `--swap-host`: this host's own kernel swaps onto the disk, so the disk's process must not need
//! memory while others wait for it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use canvas_disk::ublk::{self, Device, Queue};
use canvas_disk::{DiskMemory, PoolStore};
use canvas_host::HostMemory;
use canvas_sys::Errno as SysErrno;
use canvas_sys::process::{stay_in_memory, write_memory_out};
use canvas_types::units::Size;
use nix::errno::Errno;
use nix::libc;
use tracing::error;

use crate::args::DiskArgs;
use crate::error::Failure;
use crate::swap_in::system::Groups;
use canvas_control::settings::table::{FAR, TO};

/// Most of the available memory that may be used, in percent.
const TAKEN_PERCENT_MAX: u64 = 90;

/// Prepares this process, while it has a single thread, so that the kernel can wait for it.
pub fn prepare(args: &DiskArgs, pages: u64, pool: Size) -> Result<(), Failure> {
    if args.settings.has(FAR) || args.settings.has(TO) {
        return Err(wrong(
            "excludes far memory, which needs memory of this host just when none is left; leave out --far and --to",
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(wrong("needs root, because its memory is locked"));
    }
    let bytes = DiskMemory::taken_bytes(pages, pool.bytes);
    let host = HostMemory::of_machine(Path::new("/proc")).map_err(Failure::usage)?;
    fits(bytes, host.available_bytes)?;
    if *Groups::default().room(std::process::id()) != u64::MAX {
        return Err(wrong(
            "cannot be used in a control group with a limit on memory; start it in one without",
        ));
    }
    write_memory_out().map_err(|e| {
        not_had(
            "the kernel refuses PR_SET_IO_FLUSHER (it needs CAP_SYS_RESOURCE)",
            e,
        )
    })?;
    stay_in_memory().map_err(|e| not_had("memory cannot be locked (it needs CAP_IPC_LOCK)", e))?;
    fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| {
        let why = crate::reason(&e);
        wrong(&format!(
            "is not possible, because /proc/self/oom_score_adj cannot be set to -1000: {why}"
        ))
    })
}

/// Checks that this much memory is available, with some to spare.
fn fits(bytes: u64, available_bytes: u64) -> Result<(), Failure> {
    if bytes <= available_bytes / 100 * TAKEN_PERCENT_MAX {
        return Ok(());
    }
    Err(wrong(&format!(
        "takes {} MiB at once for disk and pool, and this host has {} MiB available; write a smaller --pool",
        bytes >> 20,
        available_bytes >> 20
    )))
}

fn wrong(why: &str) -> Failure {
    Failure::usage(format!("--swap-host {why}"))
}

fn not_had(why: &str, e: SysErrno) -> Failure {
    let e = Errno::from_raw(e.0).desc();
    wrong(&format!("is not possible, because {why}: {e}"))
}

/// The disk as a block device of this host.
pub struct HostDevice {
    device: Device,
    threads: Vec<thread::JoinHandle<()>>,
    path: String,
}

impl HostDevice {
    /// Serves the device in its own threads.
    pub fn start(store: &'static PoolStore<'static>, queues: u16) -> Result<HostDevice, Failure> {
        let failed = |e: SysErrno| match Errno::from_raw(e.0) {
            Errno::ENOENT => wrong(
                "needs the kernel's block devices by ublk (Linux 6.4); write: modprobe ublk_drv",
            ),
            Errno::ENOSYS => wrong("needs io_uring, which this kernel lacks"),
            Errno::EPERM => {
                wrong("needs io_uring, which is off here; see /proc/sys/kernel/io_uring_disabled")
            }
            _ => not_had("the kernel made no ublk block device", e),
        };
        let device = Device::add(canvas_disk::PageStore::pages(store), queues).map_err(failed)?;
        let path = format!("/dev/ublkb{}", device.number());
        let mut host = HostDevice {
            device,
            threads: Vec::new(),
            path,
        };
        let all: Result<Vec<Queue>, _> = (0..queues).map(|n| host.device.queue(n)).collect();
        let (began, begun) = mpsc::channel();
        for (n, queue) in all.map_err(failed)?.into_iter().enumerate() {
            let (began, path) = (began.clone(), host.path.clone());
            let serve = move || {
                let tell = |result| {
                    let _ = began.send(result);
                };
                if let Err(e) = ublk::serve(queue, store, tell) {
                    let why = Errno::from_raw(e.0).desc();
                    error!("queue {n} of {path} is no longer served: {why}");
                }
            };
            let thread = thread::Builder::new().name(format!("ublk-{n}"));
            let thread = thread.spawn(serve).map_err(|e| {
                wrong(&format!(
                    "is not possible, because a thread cannot be started: {}",
                    crate::reason(&e)
                ))
            })?;
            host.threads.push(thread);
        }
        for _ in 0..queues {
            // Each thread sends once.
            begun.recv().unwrap_or(Err(SysErrno(0))).map_err(failed)?;
        }
        host.device.start(std::process::id()).map_err(failed)?;
        Ok(host)
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the host swaps onto it, or may: somebody has opened it exclusively. /proc/swaps
    /// names the device only if there is no mapping (dm-crypt, LVM), RAID or file system in
    /// between.
    pub fn is_swap(&self) -> bool {
        is_held(Path::new(&self.path))
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // This ends its queues, which must have ended before the device is deleted.
        let _ = self.device.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether somebody has a block device, or a partition of it, open exclusively: a swap area, a
/// mapping, a mounted file system. True also if this cannot be determined.
fn is_held(device: &Path) -> bool {
    let mut open = OpenOptions::new();
    match open.read(true).custom_flags(libc::O_EXCL).open(device) {
        // The file is closed at once.
        Ok(_) => false,
        // The device is no longer served.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => false,
        // Or device files are missing here.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_device_that_somebody_holds_is_seen() {
        if !canvas_testing::has_root("a loop device") {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let losetup = |words: &[&str]| Command::new("losetup").args(words).output().unwrap();
        let made = losetup(&["--find", "--show", file.path().to_str().unwrap()]);
        let device = String::from_utf8(made.stdout).unwrap();
        let device = Path::new(device.trim());
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return canvas_testing::skip(&format!("there is no loop device: {}", why.trim()));
        }
        // Like dm-crypt, LVM, RAID and file systems; then /proc/swaps does not name the device.
        let mut hold = OpenOptions::new();
        hold.read(true).custom_flags(libc::O_EXCL);
        let seen_before = is_held(device);
        let held = hold.open(device).unwrap();
        let seen = is_held(device);
        drop(held);
        let seen_after = is_held(device);
        losetup(&["--detach", device.to_str().unwrap()]);
        assert_eq!((seen_before, seen, seen_after), (false, true, false));
        assert!(is_held(Path::new("/dev/none")), "it cannot be known");
    }

    #[test]
    fn it_leaves_memory_to_the_host() {
        assert!(fits(89 << 20, 100 << 20).is_ok());
        let said = fits(91 << 20, 100 << 20).unwrap_err().sentence;
        assert_eq!(
            said,
            "--swap-host takes 91 MiB at once for disk and pool, and this host has 100 MiB available; write a smaller \
             --pool"
        );
    }
}
