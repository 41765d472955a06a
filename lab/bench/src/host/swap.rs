//! Swap of the bench: on a zram device, or on a file with or without zswap.

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
/// The kernel's pressure stall information for memory.
const PRESSURE: &str = "/proc/pressure/memory";
/// Setting that gives programs folios of 64 KiB.
pub(crate) const FOLIOS: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
/// Magic numbers (statfs) of file systems with swappable files: ext2-4, XFS, Btrfs, F2FS.
const SWAPPABLE: [i64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];
const BTRFS: i64 = 0x9123_683E;
/// Disk space that must stay free besides the swap file.
const DISK_RESERVE_BYTES: u64 = 1 << 30;

fn tool(argv: &[&str]) -> Result<(), ToolError> {
    super::tool::run(argv).map(drop)
}

/// The chosen value in "always inherit madvise [never]".
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

/// Swap areas in the text of /proc/swaps: path and used bytes.
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

/// Switches swap on `path` off if it is on.
pub fn off(path: &Path) -> Result<(), ToolError> {
    if !current_areas().iter().any(|(p, _)| p == path) {
        return Ok(());
    }
    tool(&["swapoff", &path.to_string_lossy()])
}

/// Priority of the bench's area; the kernel fills the area with the highest priority first.
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

/// Removes zram device `number`; a missing device is not an error.
pub fn remove_zram(number: u32) -> Result<(), SwapError> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let dir = format!("/sys/block/zram{number}");
        if !Path::new(&dir).exists() {
            return Ok(());
        }
        // Busy for a moment after swapoff, while udev inspects the device.
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

/// Reason why the variant's kernel swap cannot be used here; `None` if it can, or the variant needs none.
/// Changes nothing.
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

/// A directory on a swappable file system with room for `bytes`.
fn swap_place(cache: &Path, bytes: u64) -> Result<PathBuf, SwapError> {
    let mut first = None;
    for dir in [cache, Path::new("/var/tmp")] {
        // The cache may not exist yet; its nearest existing ancestor does.
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

/// A directory for an empty file.
fn file_place(cache: &Path) -> Result<PathBuf, SwapError> {
    let all = [cache, Path::new("/var/tmp")].map(Path::ancestors);
    all.into_iter()
        .flatten()
        .find(|d| d.is_dir())
        .map(Path::to_owned)
        .ok_or(SwapError::NoDisk)
}

/// Active swap, switched off and removed when dropped.
pub struct Swap {
    /// Number of the zram device; `None` for a file.
    zram: Option<u32>,
    zswap: bool,
    /// The swap file, if there is one.
    file: Option<PathBuf>,
    // Undone in this order: swap first, then its device or file, then the settings.
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
    /// Switches on the variant's swap with at least `bytes`; `None` if the variant needs none. `disk_server`
    /// is the command that calls [`slow_disk::server::run`]. On an error nothing is left on.
    pub fn on(
        variant: &Variant,
        bytes: u64,
        cache: &Path,
        disk_server: &[OsString],
        undo: &Arc<Undo>,
    ) -> Result<Option<Swap>, SwapError> {
        // Checked again: someone may have switched swap on since.
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

    /// Gives programs folios of 64 KiB for as long as this lives.
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

    /// Adds swap on zram with a higher priority: pages swapped out from here on go there.
    pub fn add_zram(&mut self, bytes: u64, undo: &Arc<Undo>) -> Result<(), SwapError> {
        self.zram_on(bytes, PRIORITY + 1, undo)
    }

    /// Switches off the swap file that was on first; its pages come back, or go elsewhere.
    pub fn off_first(&self) -> Result<(), ToolError> {
        self.file.as_deref().map_or(Ok(()), off)
    }

    fn zram_on(&mut self, bytes: u64, priority: u32, undo: &Arc<Undo>) -> Result<(), SwapError> {
        if !Path::new(ZRAM_CONTROL).exists() {
            // Undone at the end of the run, not of this cell.
            undo.note(Step::UnloadModule {
                name: "zram".to_owned(),
            })?;
            tool(&["modprobe", "zram"])?;
        }
        // With zswap on, the device would get compressed pages.
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
        // The device has a size now, so undoing the intent leaves it alone.
        drop(intent);
        let device = self.device(number, &dir, undo)?;
        self.held.push(undo.hold(Step::SwapOff {
            path: device.clone(),
        })?);
        Ok(on(&device, priority)?)
    }

    /// The device's node, which udev creates; without udev this function does.
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
            // A kernel without lz4 for zswap keeps its own compressor; the machine's features record it.
            let _ = set("compressor", "lz4");
            if charges_pool {
                // The pool counts towards the group's limit. Without the shrinker nothing makes the kernel
                // write it out, and a program with incompressible pages is killed although swap is free.
                // Kernels before 6.8 have no shrinker.
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
            // A swap file must not be copy-on-write; the flag must be set while the file is empty.
            tool(&["chattr", "+C", &path.to_string_lossy()])?;
        }
        // No holes: the kernel swaps to the blocks directly.
        let flags = nix::fcntl::FallocateFlags::empty();
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        nix::fcntl::fallocate(&file, flags, 0, length).map_err(|e| fail(e.into()))?;
        drop(file);
        self.held
            .push(undo.hold(Step::SwapOff { path: path.clone() })?);
        self.file = Some(path.clone());
        Ok(on(&path, PRIORITY)?)
    }

    /// Whether it is on a zram device.
    pub fn is_zram(&self) -> bool {
        self.zram.is_some()
    }

    /// Mean time of the reads so far, in ns, of a slow disk.
    pub fn mean_read_ns(&self) -> Option<f64> {
        self.slow.as_ref()?.mean_read_ns()
    }

    /// Bytes on the far side: memory of the zram device; pool of zswap and the pages on disk; used part of
    /// the swap file.
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
            reason.starts_with("too little disk") || reason.contains("cannot swap to files"),
            "{reason}"
        );
    }
}
