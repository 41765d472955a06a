//! Limits a program's reads of a disk, with the kernel's io controller.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::sys::stat::{major, minor};

use super::cgroup::{self, Controller, Group};
use super::error::CgroupError;
use super::undo::Undo;

/// Reason why reads of the disk of `dir` cannot be limited here.
pub fn missing(dir: &Path) -> Option<CgroupError> {
    let there = dir.ancestors().find(|d| d.is_dir()).unwrap_or(dir);
    controller().and_then(|_| disk_of(there)).err()
}

fn controller() -> Result<Controller, CgroupError> {
    Controller::named("blkio", "io")?.ok_or(CgroupError::NoDiskController)
}

/// Disk of a directory, as MAJOR:MINOR; for a partition its whole disk, since only that can be limited.
fn disk_of(dir: &Path) -> Result<String, CgroupError> {
    let none = || CgroupError::NoDisk(dir.to_owned());
    let number = fs::metadata(dir).map_err(|_| none())?.dev();
    let name = format!("{}:{}", major(number), minor(number));
    let home = Path::new("/sys/dev/block").join(&name);
    if !home.exists() {
        return Err(none());
    }
    if !home.join("partition").exists() {
        return Ok(name);
    }
    let whole = fs::read_to_string(home.join("../dev")).map_err(|_| none())?;
    Ok(whole.trim().to_owned())
}

/// Limits the reads of the disk of `dir` by the processes of `group`, or by those of a sibling group, which
/// they must then run in.
pub fn bind(
    group: &Group,
    undo: &Arc<Undo>,
    name: &str,
    dir: &Path,
    reads_per_s: u32,
) -> Result<Option<Group>, CgroupError> {
    let (controller, disk) = (controller()?, disk_of(dir)?);
    if controller.version == 2 {
        cgroup::enable(&controller, undo, "io")?;
        group.set("io.max", &format!("{disk} riops={reads_per_s}"))?;
        return Ok(None);
    }
    let beside = Group::made(&controller, undo, name, "blkio")?;
    let bound = format!("{disk} {reads_per_s}");
    beside.set("blkio.throttle.read_iops_device", &bound)?;
    Ok(Some(beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_on_no_disk_is_named() {
        let why = disk_of(Path::new("/proc")).unwrap_err().to_string();
        assert!(why.starts_with("/proc is on no disk"), "{why}");
    }
}
