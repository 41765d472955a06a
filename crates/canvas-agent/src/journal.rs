//! What an agent needs of the one before it, and the tenant must not see: a memfd of the runner.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use ring::rand::{SecureRandom, SystemRandom};

use crate::seal::KEY_BYTES;

const MAGIC: &[u8; 16] = b"canvas journal 1";
/// Where the key lies.
const KEY: u64 = 16;

/// The journal of one tenant.
pub struct Journal {
    file: File,
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Errno::EIO)?;
    Ok(bytes)
}

impl Journal {
    /// A new one, with a new key.
    pub fn create() -> Result<Journal, Errno> {
        let fd = memfd_create(c"canvas-journal", MFdFlags::MFD_CLOEXEC)?;
        let file = File::from(fd);
        let write = |at, bytes: &[u8]| file.write_all_at(bytes, at).map_err(errno);
        write(KEY, &random::<KEY_BYTES>()?)?;
        write(0, MAGIC)?;
        Ok(Journal { file })
    }

    /// The one behind `fd`; `EINVAL` when that is none.
    pub fn open(fd: OwnedFd) -> Result<Journal, Errno> {
        let file = File::from(fd);
        let mut magic = [0; 16];
        file.read_exact_at(&mut magic, 0).map_err(errno)?;
        if &magic != MAGIC {
            return Err(Errno::EINVAL);
        }
        Ok(Journal { file })
    }

    /// The tenant's key.
    pub fn key(&self) -> Result<[u8; KEY_BYTES], Errno> {
        let mut key = [0; KEY_BYTES];
        self.file.read_exact_at(&mut key, KEY).map_err(errno)?;
        Ok(key)
    }

    /// The file, to hand on.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn errno(e: std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_random_and_found_again() {
        let a = Journal::create().unwrap();
        let again = Journal::open(a.file().try_clone().unwrap().into()).unwrap();
        assert_eq!(a.key().unwrap(), again.key().unwrap());
        assert_ne!(a.key().unwrap(), Journal::create().unwrap().key().unwrap());
    }

    #[test]
    fn another_file_is_no_journal() {
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(Journal::open(empty.into()).err(), Some(Errno::EINVAL));
        let other = tempfile::tempfile().unwrap();
        other.write_all_at(&[1; 100], 0).unwrap();
        assert_eq!(Journal::open(other.into()).err(), Some(Errno::EINVAL));
    }
}
