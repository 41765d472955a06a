//! What an agent needs of the one before it, and the tenant must not see: a memfd of the runner.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use ring::rand::{SecureRandom, SystemRandom};

use canvas_link::Address;
use canvas_shm::far::SLABS_MAX;

use crate::copies::SERVERS_MAX;
use crate::copies::map::LINE_BYTES;
use crate::seal::KEY_BYTES;

const MAGIC: &[u8; 16] = b"canvas journal 1";
/// Where the key lies.
const KEY: u64 = 16;
/// Where the name lies under which donors know the tenant's agents.
const CLIENT: u64 = 48;
/// Where the pool's key lies, as a line; zeros without one.
const CLUSTER: u64 = 64;
const CLUSTER_BYTES: usize = 64;
/// Where the donors' addresses lie: what slabs' lines number.
const DONORS: u64 = 512;
const DONOR_BYTES: usize = 20;
/// Where the slabs begin, a line each.
const SLABS: u64 = 4096;

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
        write(CLIENT, &random::<16>()?)?;
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

    /// The name under which donors know the tenant's agents.
    pub fn client(&self) -> Result<[u8; 16], Errno> {
        let mut client = [0; 16];
        self.file
            .read_exact_at(&mut client, CLIENT)
            .map_err(errno)?;
        Ok(client)
    }

    /// Notes the pool's key.
    pub fn set_cluster_key(&self, line: &str) -> Result<(), Errno> {
        let mut bytes = [0; CLUSTER_BYTES];
        let line = line.trim_end().as_bytes();
        bytes
            .get_mut(..line.len())
            .ok_or(Errno::EINVAL)?
            .copy_from_slice(line);
        self.file.write_all_at(&bytes, CLUSTER).map_err(errno)
    }

    /// The pool's key as a line, if it was noted.
    pub fn cluster_key(&self) -> Option<String> {
        let mut bytes = [0; CLUSTER_BYTES];
        self.file.read_exact_at(&mut bytes, CLUSTER).ok()?;
        (bytes[0] != 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Notes the address of donor `i`.
    pub fn put_donor(&self, i: usize, donor: Address) {
        let Address { addr, rdma } = donor;
        let mut bytes = [0; DONOR_BYTES];
        bytes[..2].copy_from_slice(&addr.port().to_le_bytes());
        bytes[3] = rdma.into();
        match addr.ip() {
            IpAddr::V4(ip) => {
                bytes[2] = 4;
                bytes[4..8].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[2] = 6;
                bytes[4..].copy_from_slice(&ip.octets());
            }
        }
        let at = DONORS + (i * DONOR_BYTES) as u64;
        let _ = self.file.write_all_at(&bytes, at);
    }

    /// The addresses that were noted, in their order.
    pub fn donors(&self) -> Vec<Address> {
        let read = |i: usize| {
            let mut bytes = [0; DONOR_BYTES];
            let at = DONORS + (i * DONOR_BYTES) as u64;
            self.file.read_exact_at(&mut bytes, at).ok()?;
            let ip: IpAddr = match bytes[2] {
                4 => <[u8; 4]>::try_from(&bytes[4..8]).ok()?.into(),
                6 => <[u8; 16]>::try_from(&bytes[4..]).ok()?.into(),
                _ => return None,
            };
            let port = u16::from_le_bytes([bytes[0], bytes[1]]);
            Some(Address {
                addr: SocketAddr::new(ip, port),
                rdma: bytes[3] != 0,
            })
        };
        (0..SERVERS_MAX).map_while(read).collect()
    }

    /// Notes where a slab's copies are, in one write: an agent that is killed leaves the old line or
    /// the new one.
    pub fn put(&self, slab: u32, line: &[u8; LINE_BYTES]) {
        // Memory; were there none left, the line would be lost, and with it at most a copy.
        let _ = self
            .file
            .write_all_at(line, SLABS + u64::from(slab) * LINE_BYTES as u64);
    }

    /// All lines that are not zero, by slab.
    pub fn lines(&self) -> Vec<(u32, [u8; LINE_BYTES])> {
        let mut lines = Vec::new();
        for slab in 0..SLABS_MAX as u32 {
            let mut line = [0; LINE_BYTES];
            let at = SLABS + u64::from(slab) * LINE_BYTES as u64;
            if self.file.read_exact_at(&mut line, at).is_err() {
                break;
            }
            if line != [0; LINE_BYTES] {
                lines.push((slab, line));
            }
        }
        lines
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
    fn donors_are_found_again_in_their_order() {
        let journal = Journal::create().unwrap();
        assert!(journal.donors().is_empty());
        let addr = |i| match i % 2 {
            0 => ([10, 0, 0, i as u8], 7070 + i as u16).into(),
            _ => ([0xfd00, 0, 0, 0, 0, 0, 0, i as u16], 7070).into(),
        };
        let all: Vec<Address> = (0..SERVERS_MAX)
            .map(|i| Address {
                addr: addr(i),
                rdma: i % 3 == 0,
            })
            .collect();
        for (i, addr) in all.iter().enumerate() {
            journal.put_donor(i, *addr);
        }
        assert_eq!(journal.donors(), all);
        journal.put_donor(3, all[0]);
        assert_eq!(journal.donors()[3], all[0]);
        assert!(DONORS as usize + SERVERS_MAX * DONOR_BYTES <= SLABS as usize);
    }

    #[test]
    fn the_key_is_random_and_found_again() {
        let a = Journal::create().unwrap();
        let again = Journal::open(a.file().try_clone().unwrap().into()).unwrap();
        assert_eq!(a.key().unwrap(), again.key().unwrap());
        assert_ne!(a.key().unwrap(), Journal::create().unwrap().key().unwrap());
        assert_eq!(a.client().unwrap(), again.client().unwrap());
    }

    #[test]
    fn slabs_and_the_pools_key_are_found_again() {
        let j = Journal::create().unwrap();
        assert_eq!((j.lines(), j.cluster_key()), (vec![], None));
        j.put(3, &[3; LINE_BYTES]);
        j.put(1, &[1; LINE_BYTES]);
        j.put(2, &[2; LINE_BYTES]);
        j.put(2, &[0; LINE_BYTES]);
        j.set_cluster_key(&"ab".repeat(32)).unwrap();
        assert_eq!(j.lines(), [(1, [1; LINE_BYTES]), (3, [3; LINE_BYTES])]);
        assert_eq!(j.cluster_key(), Some("ab".repeat(32)));
        assert_eq!(j.set_cluster_key(&"a".repeat(65)), Err(Errno::EINVAL));
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
