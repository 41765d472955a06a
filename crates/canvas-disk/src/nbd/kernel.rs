//! Detects clients that are this host's own kernel: a program has attached a device of its driver,
//! /dev/nbdN.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use canvas_types::PageBuf;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::{DiskError, PageStore, Scratch};

/// Directory of the kernel's block devices.
const DEVICES: &str = "/sys/block";

/// The store that such a client gets: it has the disk's pages, but each access fails. If the client
/// were disconnected instead, pending requests would remain, and their issuers would wait for ever.
pub struct Nothing {
    /// Number of pages.
    pub pages: u64,
}

impl PageStore for Nothing {
    fn pages(&self) -> u64 {
        self.pages
    }
    fn read(&self, _: u64, _: &mut PageBuf, _: &mut Scratch) -> Result<(), DiskError> {
        Err(DiskError::Unreachable)
    }
    fn write(&self, _: u64, _: &PageBuf, _: &mut Scratch) -> Result<(), DiskError> {
        Err(DiskError::Unreachable)
    }
    fn write_part(&self, _: u64, _: usize, _: &[u8], _: &mut Scratch) -> Result<(), DiskError> {
        Err(DiskError::Unreachable)
    }
    fn discard(&self, _: u64) -> Result<(), DiskError> {
        Err(DiskError::Unreachable)
    }
}

/// The device attached by the process at the other end, if there is one by now. The kernel records
/// a device's process before it sends the first request. A process in another PID namespace cannot
/// be seen.
pub fn device_of(stream: &UnixStream) -> Option<String> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    device_by(Path::new(DEVICES), peer.pid())
}

/// The device whose requests go through a connection of process `pid`.
fn device_by(devices: &Path, pid: i32) -> Option<String> {
    for entry in fs::read_dir(devices).ok()?.flatten() {
        let name = entry.file_name().into_string().ok()?;
        if !name.starts_with("nbd") {
            continue;
        }
        // The file exists while the device is attached.
        let noted = fs::read_to_string(entry.path().join("pid"));
        if noted.is_ok_and(|text| text.trim().parse() == Ok(pid)) {
            return Some(name);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_process() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(device_by(dir.path(), 7), None);
        for (name, pid) in [("nbd0", None), ("nbd1", Some("7\n")), ("vda", Some("9\n"))] {
            fs::create_dir(dir.path().join(name)).unwrap();
            if let Some(pid) = pid {
                fs::write(dir.path().join(name).join("pid"), pid).unwrap();
            }
        }
        assert_eq!(device_by(dir.path(), 7), Some("nbd1".to_owned()));
        assert_eq!(device_by(dir.path(), 9), None);
        assert_eq!(device_by(&dir.path().join("none"), 7), None);
    }

    #[test]
    fn a_client_of_this_process_is_no_kernel() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(device_of(&one), None);
    }
}
