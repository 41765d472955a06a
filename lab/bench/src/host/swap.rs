//! Swap of our own: on a zram device, or on a file on disk with or without zswap before it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use canvas_types::procfs::memory_bytes;

use super::cgroup::Controller;
use super::error::{SwapError, ToolError};
use super::slow_disk::{self, SlowDisk};
use super::step::Step;
use super::tool::is_installed;
use super::undo::{Held, Undo};
use crate::variant::Variant;

const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// What the kernel says of time that is lost for want of memory.
const PRESSURE: &str = "/proc/pressure/memory";
/// Whether programs get folios of 64 KiB.
pub(crate) const FOLIOS: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
/// File systems whose files the kernel swaps to (statfs's numbers): ext2-4, XFS, Btrfs, F2FS.
const SWAPPABLE: [i64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];
const BTRFS: i64 = 0x9123_683E;
/// What must stay free on disk beside a swap file.
const DISK_RESERVE_BYTES: u64 = 1 << 30;

fn tool(argv: &[&str]) -> Result<(), ToolError> {
    super::tool::run(argv).map(drop)
}

/// What is chosen of "always inherit madvise [never]".
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

fn write(path: impl AsRef<Path>, text: &str) -> Result<(), SwapError> {
    let path = path.as_ref();
    fs::write(path, text).map_err(|source| SwapError::Set {
        path: path.to_owned(),
        text: text.to_owned(),
        source,
    })
}

/// The swap areas in the text of /proc/swaps: path and used bytes.
fn areas(swaps: &str) -> Vec<(PathBuf, u64)> {
    let area = |line: &str| {
        let mut fields = line.split_whitespace();
        let path = fields.next()?.replace("\\040", " ");
        let used: u64 = fields.nth(2)?.parse().ok()?;
        Some((PathBuf::from(path), used << 10))
    };
    swaps.lines().skip(1).filter_map(area).collect()
}

fn current_areas() -> Vec<(PathBuf, u64)> {
    areas(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

/// Switches swap on `path` off if it is on. An error is one sentence.
pub fn off(path: &Path) -> Result<(), ToolError> {
    if !current_areas().iter().any(|(p, _)| p == path) {
        return Ok(());
    }
    tool(&["swapoff", &path.to_string_lossy()])
}

/// Swap goes to the area with the greatest priority first.
const PRIORITY: u32 = 100;

fn on(path: &Path, priority: u32) -> Result<(), ToolError> {
    let path = path.to_string_lossy();
    tool(&["mkswap", &path])?;
    tool(&["swapon", "-p", &priority.to_string(), &path])
}

/// Numbers of the zram devices.
fn zram_numbers() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let number = |name: &str| name.strip_prefix("zram")?.parse().ok();
    entries
        .filter_map(|e| number(e.ok()?.file_name().to_str()?))
        .collect()
}

/// Removes zram device `number`; nothing to remove is no error.
pub fn remove_zram(number: u32) -> Result<(), SwapError> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let dir = format!("/sys/block/zram{number}");
        if !Path::new(&dir).exists() {
            return Ok(());
        }
        // Busy for a moment after swapoff, while udev looks at it.
        let tried = write(format!("{dir}/reset"), "1")
            .and_then(|()| write(format!("{ZRAM_CONTROL}/hot_remove"), &number.to_string()));
        match tried {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > until => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Removes zram devices that are not in `known` and were never given a size.
pub fn forget_zram(known: &[u32]) -> Result<(), SwapError> {
    for n in zram_numbers().into_iter().filter(|n| !known.contains(n)) {
        let size = fs::read_to_string(format!("/sys/block/zram{n}/disksize")).unwrap_or_default();
        if size.trim() == "0" {
            remove_zram(n)?;
        }
    }
    Ok(())
}

/// Why kernel swap of this kind cannot be had here; `None` when it can, or when
/// the variant needs none. Changes nothing.
pub fn missing(variant: &Variant, cache: &Path) -> Option<SwapError> {
    if !variant.is_kernel() {
        return None;
    }
    if !nix::unistd::geteuid().is_root() {
        return Some(SwapError::NotRoot(Box::new(variant.clone())));
    }
    if let Some((path, _)) = current_areas().into_iter().next() {
        return Some(SwapError::AlreadyOn(path));
    }
    if let Some(name) = ["mkswap", "swapon", "swapoff"]
        .into_iter()
        .find(|n| !is_installed(n))
    {
        return Some(SwapError::NoTool(name));
    }
    if let Err(e) = Controller::find() {
        return Some(e.into());
    }
    match variant {
        Variant::Zram64k if !Path::new(FOLIOS).exists() => Some(SwapError::NoFolios),
        Variant::Tmo(_) if !Path::new(PRESSURE).exists() => Some(SwapError::NoPressure),
        Variant::Zram | Variant::Zram64k | Variant::Tmo(_) => {
            let can_load = || {
                let answer = Command::new("modprobe").args(["-n", "zram"]).output();
                answer.is_ok_and(|o| o.status.success())
            };
            (!Path::new(ZRAM_CONTROL).exists() && !can_load()).then_some(SwapError::NoZram)
        }
        Variant::SlowDisk => {
            let here = slow_disk::missing().map(SwapError::from);
            here.or_else(|| file_place(cache).err())
        }
        Variant::Zswap if !Path::new(ZSWAP).exists() => Some(SwapError::NoZswap),
        _ => swap_place(cache, 0).err(),
    }
}

/// A directory whose file system can be swapped to and has room for `bytes`.
fn swap_place(cache: &Path, bytes: u64) -> Result<PathBuf, SwapError> {
    let mut first = None;
    for dir in [cache, Path::new("/var/tmp")] {
        // The cache may not exist yet; what will hold it does.
        let Some(dir) = dir.ancestors().find(|d| d.is_dir()) else {
            continue;
        };
        let Ok(kind) = nix::sys::statfs::statfs(dir) else {
            continue;
        };
        let free = kind.blocks_available() * u64::try_from(kind.block_size()).unwrap_or(0);
        let dir = dir.to_owned();
        let reason = if !SWAPPABLE.contains(&kind.filesystem_type().0) {
            SwapError::FileSystem(dir)
        } else if free < bytes + DISK_RESERVE_BYTES {
            SwapError::DiskFull {
                dir,
                free_mib: free >> 20,
                wanted_mib: (bytes + DISK_RESERVE_BYTES) >> 20,
            }
        } else {
            return Ok(dir);
        };
        first.get_or_insert(reason);
    }
    Err(first.unwrap_or(SwapError::NoDisk))
}

/// A directory for a file that is there and holds nothing.
fn file_place(cache: &Path) -> Result<PathBuf, SwapError> {
    let all = [cache, Path::new("/var/tmp")].map(Path::ancestors);
    all.into_iter()
        .flatten()
        .find(|d| d.is_dir())
        .map(Path::to_owned)
        .ok_or(SwapError::NoDisk)
}

/// Swap that is on; off and gone when dropped.
pub struct Swap {
    /// N of zramN, or `None` for a file.
    zram: Option<u32>,
    zswap: bool,
    /// The swap file, if there is one.
    file: Option<PathBuf>,
    // Undone in this order: swap first, then what it lies on, then the settings.
    held: Vec<Held>,
    slow: Option<SlowDisk>,
}

impl Drop for Swap {
    fn drop(&mut self) {
        while let Some(newest) = self.held.pop() {
            drop(newest);
        }
    }
}

impl Swap {
    /// Switches on what `variant` wants, at least `bytes` large; `None` when it wants none.
    /// `disk_server` is the command that comes to [`slow_disk::server::run`]. An error is one
    /// sentence; then nothing is left on.
    pub fn on(
        variant: &Variant,
        bytes: u64,
        cache: &Path,
        disk_server: &[OsString],
        undo: &Arc<Undo>,
    ) -> Result<Option<Swap>, SwapError> {
        // Asked again: somebody may have switched swap on since.
        if let Some(reason) = missing(variant, cache) {
            return Err(reason);
        }
        let mut swap = Swap {
            zram: None,
            zswap: false,
            file: None,
            held: Vec::new(),
            slow: None,
        };
        match variant {
            Variant::Local | Variant::LocalOnHalf | Variant::Canvas(_) | Variant::CanvasFar(_) => {
                return Ok(None);
            }
            Variant::Zram | Variant::Tmo(_) => swap.zram_on(bytes, PRIORITY, undo)?,
            Variant::Zram64k => {
                swap.folios_on(undo)?;
                swap.zram_on(bytes, PRIORITY, undo)?;
            }
            Variant::Zswap => {
                swap.zswap = true;
                swap.zswap_set(true, undo)?;
                swap.file_on(bytes, cache, undo)?;
            }
            Variant::Disk => {
                swap.zswap_set(false, undo)?;
                swap.file_on(bytes, cache, undo)?;
            }
            Variant::SlowDisk => {
                swap.zswap_set(false, undo)?;
                let dir = file_place(cache)?;
                let disk = SlowDisk::start(disk_server, bytes, &dir, undo)?;
                let path = disk.device.clone();
                swap.slow = Some(disk);
                swap.held
                    .push(undo.hold(Step::SwapOff { path: path.clone() })?);
                on(&path, PRIORITY)?;
            }
        }
        Ok(Some(swap))
    }

    /// Programs get folios of 64 KiB for as long as this lives.
    fn folios_on(&mut self, undo: &Arc<Undo>) -> Result<(), SwapError> {
        let path = PathBuf::from(FOLIOS);
        let text = fs::read_to_string(&path).map_err(|source| SwapError::Read {
            path: path.clone(),
            source,
        })?;
        let before = chosen(&text).ok_or_else(|| SwapError::NoChoice(path.clone()))?;
        if before != "always" {
            self.held.push(undo.hold(Step::WriteBack {
                path: path.clone(),
                text: before.to_owned(),
            })?);
            write(&path, "always")?;
        }
        Ok(())
    }

    /// Swaps to zram too, and to that first: what leaves memory from here on goes there.
    pub fn add_zram(&mut self, bytes: u64, undo: &Arc<Undo>) -> Result<(), SwapError> {
        self.zram_on(bytes, PRIORITY + 1, undo)
    }

    /// Switches off the file that was on from the beginning: what lies there comes back, or goes elsewhere.
    pub fn off_first(&self) -> Result<(), ToolError> {
        self.file.as_deref().map_or(Ok(()), off)
    }

    fn zram_on(&mut self, bytes: u64, priority: u32, undo: &Arc<Undo>) -> Result<(), SwapError> {
        if !Path::new(ZRAM_CONTROL).exists() {
            // For the rest of the run, not for this cell: undone at its end.
            undo.note(Step::UnloadModule {
                name: "zram".to_owned(),
            })?;
            tool(&["modprobe", "zram"])?;
        }
        // A device of before zswap's time would compress what it gets compressed.
        if Path::new(ZSWAP).exists() {
            self.zswap_set(false, undo)?;
        }
        let intent = undo.hold(Step::ForgetZram {
            known: zram_numbers(),
        })?;
        let added =
            fs::read_to_string(format!("{ZRAM_CONTROL}/hot_add")).map_err(SwapError::AddZram)?;
        let number: u32 = added.trim().parse().map_err(|_| SwapError::NoZramNumber)?;
        self.held.push(undo.hold(Step::RemoveZram { number })?);
        self.zram = Some(number);
        let dir = format!("/sys/block/zram{number}");
        write(format!("{dir}/comp_algorithm"), "lz4").map_err(|_| SwapError::NoLz4)?;
        write(format!("{dir}/disksize"), &bytes.to_string())?;
        // From here on the device has a size, and the intent leaves it alone.
        drop(intent);
        let device = self.device(number, &dir, undo)?;
        self.held.push(undo.hold(Step::SwapOff {
            path: device.clone(),
        })?);
        Ok(on(&device, priority)?)
    }

    /// The device's node, which udev makes; without udev we do.
    fn device(&mut self, number: u32, dir: &str, undo: &Arc<Undo>) -> Result<PathBuf, SwapError> {
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let until = Instant::now() + Duration::from_secs(1);
        while !device.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !device.exists() {
            let text = fs::read_to_string(format!("{dir}/dev")).unwrap_or_default();
            let (major, minor) = text.trim().split_once(':').unwrap_or(("", ""));
            self.held.push(undo.hold(Step::RemoveFile {
                path: device.clone(),
            })?);
            tool(&[
                "mknod",
                "-m",
                "600",
                &device.to_string_lossy(),
                "b",
                major,
                minor,
            ])?;
        }
        Ok(device)
    }

    fn zswap_set(&mut self, enabled: bool, undo: &Arc<Undo>) -> Result<(), SwapError> {
        if !Path::new(ZSWAP).exists() {
            return Ok(());
        }
        let charges_pool = Controller::find().is_ok_and(|c| c.version == 2);
        let mut set = |name: &str, text: &str| {
            let path = PathBuf::from(ZSWAP).join(name);
            let before = fs::read_to_string(&path).map_err(|source| SwapError::Read {
                path: path.clone(),
                source,
            })?;
            let before = before.trim().to_owned();
            if before != text {
                self.held.push(undo.hold(Step::WriteBack {
                    path: path.clone(),
                    text: before,
                })?);
                write(&path, text)?;
            }
            Ok::<(), SwapError>(())
        };
        if enabled {
            // A kernel without lz4 for zswap keeps its own; the machine's features name it.
            let _ = set("compressor", "lz4");
            if charges_pool {
                // The pool is within the group's limit. Without the shrinker nothing makes the
                // kernel write it out, and a program whose pages compress badly is ended for want
                // of memory although swap is free. Kernels before 6.8 have none.
                let _ = set("shrinker_enabled", "Y");
            }
        }
        set("enabled", if enabled { "Y" } else { "N" })
    }

    fn file_on(&mut self, bytes: u64, cache: &Path, undo: &Arc<Undo>) -> Result<(), SwapError> {
        let dir = swap_place(cache, bytes)?;
        let path = dir.join(format!("canvas-bench-{}.swap", std::process::id()));
        self.held
            .push(undo.hold(Step::RemoveFile { path: path.clone() })?);
        let fail = |source| SwapError::File {
            path: path.clone(),
            source,
        };
        let file = fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(fail)?;
        let kind = nix::sys::statfs::fstatfs(&file).map_err(|e| fail(e.into()))?;
        if kind.filesystem_type().0 == BTRFS {
            // Swap cannot be copied on write there; the flag must come before the first byte.
            tool(&["chattr", "+C", &path.to_string_lossy()])?;
        }
        // No holes: the kernel swaps to the blocks themselves.
        let flags = nix::fcntl::FallocateFlags::empty();
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        nix::fcntl::fallocate(&file, flags, 0, length).map_err(|e| fail(e.into()))?;
        drop(file);
        self.held
            .push(undo.hold(Step::SwapOff { path: path.clone() })?);
        self.file = Some(path.clone());
        Ok(on(&path, PRIORITY)?)
    }

    /// Whether it lies on a zram device.
    pub fn is_zram(&self) -> bool {
        self.zram.is_some()
    }

    /// Mean time of the reads so far, in ns, of a disk of the bench's own.
    pub fn mean_read_ns(&self) -> Option<f64> {
        self.slow.as_ref()?.mean_read_ns()
    }

    /// Bytes that the far side takes now: memory of the zram device; pool of zswap and what went
    /// past it to disk; used part of the swap file.
    pub fn far_bytes(&self) -> u64 {
        if let Some(n) = self.zram {
            let text =
                fs::read_to_string(format!("/sys/block/zram{n}/mm_stat")).unwrap_or_default();
            return text
                .split_whitespace()
                .nth(2)
                .and_then(|v| v.parse().ok())
                .unwrap_or(0);
        }
        let used: u64 = current_areas().iter().map(|(_, used)| used).sum();
        if !self.zswap {
            return used;
        }
        let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
        let pool = memory_bytes(&meminfo, "Zswap").unwrap_or(0);
        let original = memory_bytes(&meminfo, "Zswapped").unwrap_or(0);
        pool + used.saturating_sub(original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_areas_are_read() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram1                              partition\t1048572\t\t12\t\t100\n\
                    /a\\040b                              file\t4\t\t0\t\t-2\n";
        assert_eq!(
            areas(text),
            [
                (PathBuf::from("/dev/zram1"), 12 << 10),
                (PathBuf::from("/a b"), 0)
            ]
        );
        assert_eq!(areas("Filename Type\n"), []);
    }

    #[test]
    fn a_choice_is_read() {
        assert_eq!(chosen("always inherit madvise [never]\n"), Some("never"));
        assert_eq!(chosen("[always] inherit madvise never\n"), Some("always"));
        assert_eq!(chosen("never\n"), None);
    }

    #[test]
    fn what_needs_no_swap_misses_none() {
        assert!(missing(&Variant::Local, Path::new("/")).is_none());
        assert!(missing(&Variant::Canvas(vec![]), Path::new("/")).is_none());
    }

    #[test]
    fn too_little_disk_is_one_sentence() {
        let reason = swap_place(Path::new("/var/tmp"), 1 << 60)
            .unwrap_err()
            .to_string();
        assert!(
            reason.starts_with("too little disk") || reason.contains("holds no swap"),
            "{reason}"
        );
    }
}
