//! The journal: what an agent needs from its predecessor and the tenant must not see. A memfd that the runner holds.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use canvas_link::Address;
use canvas_place::replicas::Policy;
use canvas_shm::far::SLABS_MAX;
use canvas_wire::key::Zeroizing;

use crate::copies;
use crate::replicas::SERVERS_MAX;
use crate::replicas::line::LINE_BYTES;
use crate::seal::KEY_BYTES;
use crate::share::Share;
use canvas_control::status::AgentStatus;

const MAGIC: &[u8; 16] = b"canvas journal 2";
/// Offset of the key.
const KEY: u64 = 16;
/// Offset of the name under which donors know the tenant's agents.
const CLIENT: u64 = 48;
/// Offset of the pool's key, as a line of text; zeros without one.
const CLUSTER: u64 = 64;
const CLUSTER_BYTES: usize = 64;
/// Offset of the number of slabs that the tenant may fill.
const SLABS_MAX_AT: u64 = 128;
/// Offsets of the tenant's share, and of what the tenant asked for: [`SHARE_WORDS`] numbers each.
const SHARE_AT: u64 = 136;
const ASKED_AT: u64 = 160;
/// Offset of the tenant's pool: [`SHARE_WORDS`] numbers: ceiling (0 when unset), grant, 0.
const POOL_AT: u64 = 184;
/// Offset of the first seal number that is not reserved.
const SEALS_AT: u64 = 208;
/// Offset of the copies policy, as [`copies::number`]; 0 when unset.
const COPIES_AT: u64 = 216;
/// Weight (0 when unset), swap-in limit, swap-out limit (0 for none).
const SHARE_WORDS: usize = 3;
/// Offset of the donors' addresses, to whose index the slabs' lines refer.
const DONORS: u64 = 512;
const DONOR_BYTES: usize = 20;
/// Offset of the slabs: the first bytes of each line, which are the whole line unless the slab is in shards.
const SLABS: u64 = 4096;
const HEAD_BYTES: usize = 128;
/// Offset of the rest of the lines.
const RESTS: u64 = 16 << 20;
const REST_BYTES: usize = LINE_BYTES - HEAD_BYTES;
const _: () = assert!(SLABS + (SLABS_MAX * HEAD_BYTES) as u64 <= RESTS);
const _: () = assert!(RESTS + (SLABS_MAX * REST_BYTES) as u64 <= STATUS);
/// Lines read in one batch.
const LINES: usize = 1024;
/// Offset of the agent's status, past all slabs: two entries, written alternately.
const STATUS: u64 = 64 << 20;
/// Bytes of each entry: a sequence number, a checksum, and the length of the body (u64 each), then the body.
const STATUS_BYTES: usize = 8192;
const STATUS_HEAD: usize = 24;

/// The journal of one tenant.
pub struct Journal {
    file: File,
}

/// A tenant's part of its host's pool, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolGrant {
    /// What the tenant asks for (`--pool`).
    pub ceiling_bytes: u64,
    /// What the tenant may fill now.
    pub grant_bytes: u64,
}

/// Random bytes from the kernel; `EIO` when it has none.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Errno::EIO)?;
    Ok(bytes)
}

impl Journal {
    /// Creates a journal with a new key.
    pub fn create() -> Result<Journal, Errno> {
        let fd = memfd_create(c"canvas-journal", MFdFlags::MFD_CLOEXEC)?;
        let file = File::from(fd);
        let write = |at, bytes: &[u8]| file.write_all_at(bytes, at).map_err(errno);
        write(KEY, &random::<KEY_BYTES>()?)?;
        write(CLIENT, &random::<16>()?)?;
        write(SEALS_AT, &1u64.to_le_bytes())?;
        write(0, MAGIC)?;
        Ok(Journal { file })
    }

    /// Opens the journal behind `fd`; `EINVAL` when the file is not a journal.
    pub fn open(fd: OwnedFd) -> Result<Journal, Errno> {
        let file = File::from(fd);
        let journal = Journal { file };
        if &journal.magic()? != MAGIC {
            return Err(Errno::EINVAL);
        }
        Ok(journal)
    }

    /// A second handle to this journal.
    pub fn try_clone(&self) -> Result<Journal, Errno> {
        let file = self.file.try_clone().map_err(errno)?;
        Ok(Journal { file })
    }

    fn magic(&self) -> Result<[u8; 16], Errno> {
        let mut magic = [0; 16];
        self.file.read_exact_at(&mut magic, 0).map_err(errno)?;
        Ok(magic)
    }

    /// Agent: reserves the next `count` seal numbers. No two calls return the same number, whether by this agent or by
    /// one that takes over; only one agent reserves at a time. After an error no number is reserved and none may be
    /// used.
    pub fn reserve_seals(&self, count: u64) -> Result<Range<u64>, Errno> {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, SEALS_AT)
            .map_err(errno)?;
        let start = u64::from_le_bytes(bytes);
        if start == 0 {
            return Err(Errno::EINVAL);
        }
        let end = start.checked_add(count).ok_or(Errno::EOVERFLOW)?;
        self.file
            .write_all_at(&end.to_le_bytes(), SEALS_AT)
            .map_err(errno)?;
        Ok(start..end)
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

    /// Stores the pool's key; `EINVAL` when the line is too long.
    pub fn set_cluster_key(&self, line: &str) -> Result<(), Errno> {
        let mut bytes = Zeroizing::new([0; CLUSTER_BYTES]);
        let line = line.trim_end().as_bytes();
        bytes
            .get_mut(..line.len())
            .ok_or(Errno::EINVAL)?
            .copy_from_slice(line);
        self.file.write_all_at(&*bytes, CLUSTER).map_err(errno)
    }

    /// The pool's key as a line, if one is stored.
    pub fn cluster_key(&self) -> Option<Zeroizing<String>> {
        let mut bytes = Zeroizing::new([0; CLUSTER_BYTES]);
        self.file.read_exact_at(&mut *bytes, CLUSTER).ok()?;
        let line = (bytes[0] != 0).then(|| String::from_utf8_lossy(&*bytes).into_owned());
        line.map(Zeroizing::new)
    }

    /// Stores the address of donor `i`.
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

    /// The stored addresses, by donor index.
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

    /// Stores where a slab's copies are. An agent that is killed in this call leaves the old line or the new one, or,
    /// for a slab in shards, parts of both: a shard whose part is wrong does not verify, or its donor does not know the
    /// handle.
    pub fn put(&self, slab: u32, line: &[u8; LINE_BYTES]) {
        // The file is in memory; if memory runs out the line is lost, and with it at most one copy.
        let (head, rest) = line.split_at(HEAD_BYTES);
        let at = |first, bytes| first + u64::from(slab) * bytes as u64;
        let mut before = [0; REST_BYTES];
        let rest_at = at(RESTS, REST_BYTES);
        read_up_to(&self.file, &mut before, rest_at);
        // Most slabs have no rest, and then no memory is allocated for it.
        if before[..] != *rest {
            let _ = self.file.write_all_at(rest, rest_at);
        }
        let _ = self.file.write_all_at(head, at(SLABS, HEAD_BYTES));
    }

    /// All lines that are not zero, by slab.
    pub fn lines(&self) -> Vec<(u32, [u8; LINE_BYTES])> {
        let mut lines = Vec::new();
        let mut heads = vec![0; LINES * HEAD_BYTES];
        let mut rests = vec![0; LINES * REST_BYTES];
        for first in (0..SLABS_MAX).step_by(LINES) {
            let at = |start, bytes| start + (first * bytes) as u64;
            let read = read_up_to(&self.file, &mut heads, at(SLABS, HEAD_BYTES));
            rests.fill(0);
            read_up_to(&self.file, &mut rests, at(RESTS, REST_BYTES));
            let there = heads[..read].chunks_exact(HEAD_BYTES);
            for (i, (head, rest)) in there.zip(rests.chunks_exact(REST_BYTES)).enumerate() {
                let mut line = [0; LINE_BYTES];
                line[..HEAD_BYTES].copy_from_slice(head);
                line[HEAD_BYTES..].copy_from_slice(rest);
                if line != [0; LINE_BYTES] {
                    lines.push(((first + i) as u32, line));
                }
            }
            if read < heads.len() {
                break;
            }
        }
        lines
    }

    /// Runner: stores the number of slabs that the tenant may fill.
    pub fn set_slabs_max(&self, slabs: u64) -> Result<(), Errno> {
        self.put_word(SLABS_MAX_AT, slabs)
    }

    /// The number of slabs that the tenant may fill; 0 when unset.
    pub fn slabs_max(&self) -> u64 {
        self.word(SLABS_MAX_AT).unwrap_or(0)
    }

    /// Stores the copies policy.
    pub fn set_copies(&self, policy: Policy) -> Result<(), Errno> {
        self.put_word(COPIES_AT, copies::number(policy))
    }

    /// The copies policy; `None` when unset.
    pub fn copies(&self) -> Option<Policy> {
        let number = self.word(COPIES_AT)?;
        (number != 0).then(|| copies::policy(number))
    }

    /// Stores the tenant's share.
    pub fn set_share(&self, share: Share) -> Result<(), Errno> {
        let Share {
            weight,
            swap_in_limit,
            swap_out_limit,
        } = share;
        let limits = [swap_in_limit, swap_out_limit].map(|l| l.unwrap_or(0));
        self.put_words(SHARE_AT, [weight.into(), limits[0], limits[1]])
    }

    /// The tenant's share; `None` when unset.
    pub fn share(&self) -> Option<Share> {
        let [weight, swap_in, swap_out] = self.words(SHARE_AT)?;
        let share = Share {
            weight: weight.try_into().unwrap_or(u32::MAX),
            swap_in_limit: Some(swap_in).filter(|l| *l != 0),
            swap_out_limit: Some(swap_out).filter(|l| *l != 0),
        };
        (weight != 0).then(|| share.clamped())
    }

    /// Host agent: stores what the tenant asked for of its share; the operator set the rest.
    pub fn set_asked(&self, asked: [Option<u64>; SHARE_WORDS]) -> Result<(), Errno> {
        self.put_words(ASKED_AT, asked.map(|n| n.unwrap_or(0)))
    }

    /// What the tenant asked for: weight, swap-in limit and swap-out limit; `None` for each that is unset.
    pub fn asked(&self) -> [Option<u64>; SHARE_WORDS] {
        let words = self.words(ASKED_AT).unwrap_or_default();
        words.map(|n| Some(n).filter(|n| *n != 0))
    }

    /// Host agent: stores the tenant's grant of the host's pool; `None` when it is unbounded.
    pub fn set_pool(&self, pool: Option<PoolGrant>) -> Result<(), Errno> {
        let words = pool.map_or([0; SHARE_WORDS], |p| [p.ceiling_bytes, p.grant_bytes, 0]);
        self.put_words(POOL_AT, words)
    }

    /// The tenant's grant of the host's pool; `None` when it is unbounded.
    pub fn pool(&self) -> Option<PoolGrant> {
        let [ceiling_bytes, grant_bytes, _] = self.words(POOL_AT)?;
        let grant = PoolGrant {
            ceiling_bytes,
            grant_bytes,
        };
        (ceiling_bytes != 0).then_some(grant)
    }

    fn put_word(&self, at: u64, word: u64) -> Result<(), Errno> {
        let bytes = word.to_le_bytes();
        self.file.write_all_at(&bytes, at).map_err(errno)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn put_words(&self, at: u64, words: [u64; SHARE_WORDS]) -> Result<(), Errno> {
        // One write, so that a reader finds all of it or nothing.
        let bytes = words.map(u64::to_le_bytes).concat();
        self.file.write_all_at(&bytes, at).map_err(errno)
    }

    fn words(&self, at: u64) -> Option<[u64; SHARE_WORDS]> {
        let mut bytes = [0; SHARE_WORDS * 8];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        let words: &[[u8; 8]] = bytes.as_chunks().0;
        Some(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
    }

    /// Agent: stores its status. A reader finds this status or the one before it, and never waits.
    pub fn put_status(&self, status: &AgentStatus) {
        let count = self.newest().map_or(1, |(count, _)| count + 1);
        let body = status.encode();
        let mut bytes = Vec::with_capacity(STATUS_HEAD + body.len());
        bytes.extend(count.to_le_bytes());
        bytes.extend(checksum(count, &body).to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        if bytes.len() <= STATUS_BYTES {
            // If there is no memory for it, readers keep the previous status.
            let _ = self.file.write_all_at(&bytes, status_at(count));
        }
    }

    /// Runner: the last status that the agent stored.
    pub fn status(&self) -> Option<AgentStatus> {
        self.newest()
            .and_then(|(_, body)| AgentStatus::decode(&body))
    }

    /// The newest complete entry: its sequence number and body.
    fn newest(&self) -> Option<(u64, Vec<u8>)> {
        let place = |n| {
            let mut bytes = vec![0; STATUS_BYTES];
            let read = read_up_to(&self.file, &mut bytes, status_at(n));
            let (head, body) = bytes[..read].split_at_checked(STATUS_HEAD)?;
            let word = |i: usize| u64::from_le_bytes(head.as_chunks().0[i]);
            let body = body.get(..usize::try_from(word(2)).ok()?)?;
            (word(0) != 0 && checksum(word(0), body) == word(1)).then(|| (word(0), body.to_vec()))
        };
        place(0)
            .into_iter()
            .chain(place(1))
            .max_by_key(|(count, _)| *count)
    }

    /// The file, to pass on to another process.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn status_at(count: u64) -> u64 {
    STATUS + count % 2 * STATUS_BYTES as u64
}

/// Checksum of an entry: tells complete entries from incomplete ones.
fn checksum(count: u64, body: &[u8]) -> u64 {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(&count.to_le_bytes());
    hash.update(body);
    u64::from_le_bytes(*hash.finish().as_ref().first_chunk().expect("32 bytes"))
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> usize {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => read += n,
        }
    }
    read
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
        assert_eq!(*j.cluster_key().unwrap(), "ab".repeat(32));
        assert_eq!(j.set_cluster_key(&"a".repeat(65)), Err(Errno::EINVAL));
    }

    #[test]
    fn the_bound_on_slabs_is_found_again() {
        let j = Journal::create().unwrap();
        assert_eq!(j.slabs_max(), 0);
        j.set_slabs_max(77).unwrap();
        assert_eq!(j.slabs_max(), 77);
    }

    #[test]
    fn the_share_is_found_again() {
        let j = Journal::create().unwrap();
        assert_eq!((j.share(), j.asked(), j.copies()), (None, [None; 3], None));
        let copies = Policy {
            donors: 2,
            disk: false,
            late: false,
            code: None,
        };
        j.set_copies(copies).unwrap();
        assert_eq!(j.copies(), Some(copies));
        let share = Share {
            weight: 300,
            swap_in_limit: None,
            swap_out_limit: Some(1 << 20),
        };
        j.set_share(share).unwrap();
        j.set_asked([Some(300), None, Some(1 << 21)]).unwrap();
        assert_eq!(j.share(), Some(share));
        assert_eq!(j.asked(), [Some(300), None, Some(1 << 21)]);
        assert_eq!(j.slabs_max(), 0, "a place of its own");
        assert!(j.donors().is_empty());
    }

    #[test]
    fn a_status_is_whole_or_the_one_before() {
        let j = Journal::create().unwrap();
        assert_eq!(j.status(), None);
        let status = |pid| AgentStatus {
            pid,
            ..AgentStatus::default()
        };
        for pid in 1..6 {
            j.put_status(&status(pid));
            assert_eq!(j.status(), Some(status(pid)));
        }
        assert_eq!(j.lines(), vec![], "no slab");
        // The fifth is damaged, as if its agent had been killed while writing: the fourth counts, and the next status
        // overwrites the fifth.
        j.file().write_all_at(&[1], status_at(5) + 30).unwrap();
        assert_eq!(j.status(), Some(status(4)));
        j.put_status(&status(6));
        assert_eq!(j.status(), Some(status(6)));
        // An invalid length.
        for at in [status_at(0), status_at(1)] {
            j.file().write_all_at(&[0xff; 8], at + 16).unwrap();
        }
        assert_eq!(j.status(), None);
    }

    #[test]
    fn a_reader_beside_a_writer_sees_whole_ones() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let j = Journal::create().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (over, j) = (&over, &j);
            s.spawn(move || {
                for pid in 1..3000 {
                    let at_ns = u64::from(pid) * 7;
                    j.put_status(&AgentStatus {
                        at_ns,
                        pid,
                        ..AgentStatus::default()
                    });
                }
                over.store(true, Relaxed);
            });
            while !over.load(Relaxed) {
                if let Some(s) = j.status() {
                    assert_eq!(s.at_ns, u64::from(s.pid) * 7);
                }
            }
        });
    }

    #[test]
    fn reserved_seal_numbers_follow_each_other() {
        let j = Journal::create().unwrap();
        assert_eq!(j.reserve_seals(10), Ok(1..11));
        let again = j.try_clone().unwrap();
        assert_eq!(again.reserve_seals(5), Ok(11..16));
        assert_eq!(j.reserve_seals(1), Ok(16..17));
        assert_eq!((j.slabs_max(), j.pool()), (0, None), "a place of its own");
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
