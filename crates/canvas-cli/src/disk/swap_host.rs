//! `--swap-host`: the kernel of this host swaps onto the disk, so that the disk's process must need no memory while
//! others wait for it.

use std::fs;
use std::path::Path;

use canvas_disk::DiskMemory;
use canvas_donor::host::HostMemory;
use canvas_sys::Errno as SysErrno;
use canvas_sys::process::{stay_in_memory, write_memory_out};
use canvas_types::units::Size;
use nix::errno::Errno;

use crate::args::DiskArgs;
use crate::error::Failure;
use crate::swap_in::system::Groups;

/// Of what is available so much may be taken, in percent.
const TAKEN_PERCENT_MAX: u64 = 90;

/// Makes this process one that the kernel can wait for, before it has any other thread.
pub fn prepare(args: &DiskArgs, pages: u64, pool: Size) -> Result<(), Failure> {
    let beyond = &args.beyond;
    let has_far = beyond.far.is_some()
        || beyond.agent.is_some()
        || !beyond.servers.is_empty()
        || !beyond.seeds.is_empty();
    if has_far {
        return Err(wrong(
            "goes without far memory, which takes memory of this host's when it has none; leave --far, --server, --seed \
             and --agent away",
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(wrong("takes root: its memory is locked"));
    }
    let bytes = DiskMemory::taken_bytes(pages, pool.bytes);
    let host = HostMemory::read(Path::new("/proc")).map_err(Failure::usage)?;
    fits(bytes, host.available_bytes)?;
    if Groups::default().room(std::process::id()) != u64::MAX {
        return Err(wrong(
            "cannot be used in a control group with a limit (memory.max or memory.high); start it in one without",
        ));
    }
    let kernel =
        |what: &str, e: SysErrno| wrong(&format!("{what}: {}", Errno::from_raw(e.0).desc()));
    write_memory_out().map_err(|e| {
        kernel(
            "cannot be had, as the kernel takes no PR_SET_IO_FLUSHER (Linux 5.6, CAP_SYS_RESOURCE)",
            e,
        )
    })?;
    stay_in_memory().map_err(|e| {
        kernel(
            "cannot be had, as memory cannot be locked (CAP_IPC_LOCK)",
            e,
        )
    })?;
    fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| {
        let why = crate::reason(&e);
        wrong(&format!(
            "cannot be had, as /proc/self/oom_score_adj cannot be set to -1000: {why}"
        ))
    })
}

/// So much memory can be taken, and leaves some.
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

#[cfg(test)]
mod tests {
    use super::*;

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
