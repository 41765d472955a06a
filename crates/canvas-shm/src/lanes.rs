//! What a tenant's processes need for direct read channels ("lanes"): their own connections to donors, for demand reads
//! (docs/design/lanes.md). The agent writes it, in the far area ([`crate::far`]).
//!
//! Nothing here needs to be read consistently. If a route changes while it is read, another process takes a ticket
//! first, or a donor is gone, the result is a record that does not verify, and the read goes to the agent.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use crate::far::{EXTENT_BYTES, Far, SLAB_EXTENTS};
use crate::mailbox::RequestFields;

/// Most donors to which a tenant can have channels.
pub const DONORS_MAX: usize = 64;
/// Bytes of a ticket ([`Donor::take_ticket`]).
pub const TICKET_BYTES: usize = 16;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of the two keys of a channel: of the program's messages, and of the donor's.
pub const KEYS_BYTES: usize = 2 * KEY_BYTES;

/// In a route's donor word: the page is on the local disk as well.
const ON_DISK: u32 = 1 << 16;
/// In a route's donor word, instead of a donor: the slab is in shards, each with a route of its own. The length of a
/// shard of an extent is in place of the handle.
const IN_SHARDS: u32 = 1 << 31;

/// In a donor's port word: its channels can use queue pairs.
const HAS_RDMA: u32 = 1 << 24;

/// Most data shards of a slab.
pub const SHARDS_MAX: usize = 8;

/// States of a donor's ticket.
mod ticket {
    /// There is no ticket.
    pub const NONE: u32 = 0;
    /// The agent, or a process, is writing or reading it.
    pub const BUSY: u32 = 1;
    /// The ticket can be taken.
    pub const READY: u32 = 2;
}

/// Bytes that other processes may change: words of atomics.
#[repr(transparent)]
struct Bytes<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Bytes<WORDS> {
    fn put(&self, bytes: &[u8]) {
        for (word, part) in self.0.iter().zip(bytes.chunks_exact(8)) {
            let part = part.try_into().unwrap_or_default();
            word.store(u64::from_le_bytes(part), Ordering::Relaxed);
        }
    }

    fn get<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for (word, part) in self.0.iter().zip(bytes.chunks_exact_mut(8)) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }
}

/// A donor with direct read channels.
#[repr(C, align(64))]
pub struct Donor {
    /// Its address: port in the lowest 16 bits, above them 4 or 6, with [`HAS_RDMA`]; 0 while it has no channels.
    port: AtomicU32,
    /// 1 when a process wants a ticket.
    wanted: AtomicU32,
    ticket_state: AtomicU32,
    ip: Bytes<2>,
    ticket: Bytes<2>,
    keys: Bytes<8>,
}

/// An address: IPv4 in the first 4 bytes, or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DonorAddress {
    /// In network byte order; the first four bytes when it is not `is_v6`.
    pub ip: [u8; 16],
    /// TCP port.
    pub port: u16,
    /// Whether the address is IPv6.
    pub is_v6: bool,
    /// Whether a channel may use a queue pair.
    pub has_rdma: bool,
}

impl Donor {
    /// Agent: publishes that the donor serves channels at this address, or (`None`) that it does not.
    pub fn set_address(&self, address: Option<DonorAddress>) {
        let Some(DonorAddress {
            ip,
            port,
            is_v6,
            has_rdma,
        }) = address
        else {
            return self.port.store(0, Ordering::Release);
        };
        self.ip.put(&ip);
        let family = if is_v6 { 6 } else { 4 };
        let rdma = if has_rdma { HAS_RDMA } else { 0 };
        self.port
            .store(family << 16 | u32::from(port) | rdma, Ordering::Release);
    }

    /// Program: where the donor serves channels, if it does.
    pub fn address(&self) -> Option<DonorAddress> {
        let port = self.port.load(Ordering::Acquire);
        (port != 0).then(|| DonorAddress {
            ip: self.ip.get(),
            port: port as u16,
            is_v6: (port & !HAS_RDMA) >> 16 == 6,
            has_rdma: port & HAS_RDMA != 0,
        })
    }

    /// Program: whether the donor serves channels.
    pub fn is_open(&self) -> bool {
        self.port.load(Ordering::Relaxed) != 0
    }

    /// Program: takes a ticket, with the keys of its channel. `None` when there is none: then the agent is asked for
    /// one, and has it in a moment.
    pub fn take_ticket(&self) -> Option<([u8; TICKET_BYTES], [u8; KEYS_BYTES])> {
        if !self.turn(ticket::READY, ticket::BUSY) {
            self.wanted.store(1, Ordering::Release);
            return None;
        }
        let taken = (self.ticket.get(), self.keys.get());
        self.ticket_state.store(ticket::NONE, Ordering::Release);
        Some(taken)
    }

    /// Agent: whether a ticket is wanted and missing. True once for each request.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
            && self.ticket_state.load(Ordering::Relaxed) == ticket::NONE
            && self.wanted.swap(0, Ordering::AcqRel) != 0
    }

    /// Agent: offers a ticket. False when there is one already.
    pub fn put_ticket(&self, ticket: &[u8; TICKET_BYTES], keys: &[u8; KEYS_BYTES]) -> bool {
        if !self.turn(ticket::NONE, ticket::BUSY) {
            return false;
        }
        self.ticket.put(ticket);
        self.keys.put(keys);
        self.ticket_state.store(ticket::READY, Ordering::Release);
        true
    }

    /// Agent: withdraws the ticket. True when no process has taken it.
    pub fn take_ticket_back(&self) -> bool {
        self.turn(ticket::READY, ticket::NONE)
    }

    /// Agent: removes the ticket, whatever state a dead process has left.
    pub fn drop_ticket(&self) {
        self.ticket_state.store(ticket::NONE, Ordering::Release);
    }

    fn turn(&self, from: u32, to: u32) -> bool {
        self.ticket_state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// Where a slab's records are read.
#[repr(C, align(16))]
pub struct Route {
    handle: AtomicU64,
    /// The donor's index + 1, with [`ON_DISK`]; 0 for none.
    donor: AtomicU32,
    /// Reads since the agent's last query.
    reads: AtomicU32,
}

impl Route {
    /// Agent: the slab is complete on this donor, under this handle.
    pub fn set(&self, donor: usize, handle: u64, on_disk: bool) {
        let word = (donor as u32 + 1) | if on_disk { ON_DISK } else { 0 };
        self.put(word, handle);
    }

    /// Agent: the slab is in shards, each with `shard_bytes` of every extent. Their routes are already set.
    pub fn set_in_shards(&self, shard_bytes: usize) {
        self.put(IN_SHARDS, shard_bytes as u64);
    }

    fn put(&self, word: u32, handle: u64) {
        if self.donor.load(Ordering::Relaxed) == word
            && self.handle.load(Ordering::Relaxed) == handle
        {
            return;
        }
        self.donor.store(0, Ordering::Release);
        self.handle.store(handle, Ordering::Release);
        self.donor.store(word, Ordering::Release);
    }

    /// Bytes of a shard of each extent, where the slab is in shards.
    pub fn shard_bytes(&self) -> Option<usize> {
        let in_shards = self.donor.load(Ordering::Acquire) == IN_SHARDS;
        let bytes = in_shards.then(|| self.handle.load(Ordering::Acquire) as usize)?;
        (1..=EXTENT_BYTES).contains(&bytes).then_some(bytes)
    }

    /// Removes the route. A program does so when what it read did not verify.
    pub fn clear(&self) {
        if self.donor.load(Ordering::Relaxed) != 0 {
            self.donor.store(0, Ordering::Release);
        }
    }

    /// Program: the donor to read from and its handle; `None` if the disk is preferred (`disk_first`) and has the slab.
    pub fn get(&self, disk_first: bool) -> Option<(usize, u64)> {
        let word = self.donor.load(Ordering::Acquire);
        if word >= IN_SHARDS || (disk_first && word & ON_DISK != 0) {
            return None;
        }
        let donor = ((word & (ON_DISK - 1)) as usize).checked_sub(1)?;
        (donor < DONORS_MAX).then(|| (donor, self.handle.load(Ordering::Acquire)))
    }

    /// Program: a record was read by this route.
    pub fn note(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Agent: reads since its last query.
    pub fn take_reads(&self) -> u64 {
        match self.reads.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.reads.swap(0, Ordering::Relaxed).into(),
        }
    }
}

/// Tells processes whether they may read from donors directly, and the connection details.
#[repr(C, align(64))]
pub struct Lanes {
    /// 1 while the tenant's processes may read directly.
    direct: AtomicU32,
    /// 1 when channels are switched off; written by the runner.
    off: AtomicU32,
    /// 1 while the local disk answers sooner than donors do.
    disk_first: AtomicU32,
    /// Odd while queue pairs may be used; changes each time that they are allowed again.
    pairs: AtomicU32,
    /// 1 when some donors are reached by RDMA.
    rdma: AtomicU32,
    /// 1 when a program has logged why it has no queue pairs.
    complained: AtomicU32,
    /// The key of the tenant's records.
    key: Bytes<4>,
    /// Donors, by the agent's index.
    pub donors: [Donor; DONORS_MAX],
}

impl Lanes {
    /// Agent: sets whether processes may read directly.
    pub fn set_direct(&self, direct: bool) {
        self.direct.store(direct.into(), Ordering::Release);
    }

    /// Program: whether it may read directly.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed) != 0
    }

    /// Runner: switches channels on or off.
    pub fn set_wanted(&self, wanted: bool) {
        self.off.store((!wanted).into(), Ordering::Relaxed);
    }

    /// Whether channels are switched on (the default).
    pub fn is_wanted(&self) -> bool {
        self.off.load(Ordering::Relaxed) == 0
    }

    /// Agent: sets whether the disk answers sooner.
    pub fn set_disk_first(&self, first: bool) {
        self.disk_first.store(first.into(), Ordering::Relaxed);
    }

    /// Program: whether the disk answers sooner.
    #[inline]
    pub fn is_disk_first(&self) -> bool {
        self.disk_first.load(Ordering::Relaxed) != 0
    }

    /// Agent: sets whether some donors are reached by RDMA.
    pub fn set_has_rdma(&self, has: bool) {
        self.rdma.store(has.into(), Ordering::Release);
    }

    /// Program: whether some donors are reached by RDMA.
    pub fn has_rdma(&self) -> bool {
        self.rdma.load(Ordering::Acquire) != 0
    }

    /// Program: true once, for the one that logs why it has no queue pairs.
    pub fn complains(&self) -> bool {
        self.complained.swap(1, Ordering::Relaxed) == 0
    }

    /// Agent: sets whether queue pairs may be used.
    pub fn set_pairs(&self, may: bool) {
        let before = self.pairs.load(Ordering::Relaxed);
        if may != (before & 1 != 0) {
            self.pairs.store(before.wrapping_add(1), Ordering::Release);
        }
    }

    /// Program: the current period in which queue pairs may be used, as a number; those joined in another period are
    /// invalid.
    #[inline]
    pub fn pairs(&self) -> Option<u32> {
        let pairs = self.pairs.load(Ordering::Relaxed);
        (pairs & 1 != 0).then_some(pairs)
    }

    /// Agent: sets the key of the tenant's records.
    pub fn set_key(&self, key: &[u8; KEY_BYTES]) {
        self.key.put(key);
    }

    /// Program: the key of the tenant's records.
    pub fn key(&self) -> [u8; KEY_BYTES] {
        self.key.get()
    }
}

/// Where to send a read.
pub struct ReadTarget<'f> {
    /// The route it uses.
    pub route: &'f Route,
    /// The donor.
    pub donor: usize,
    /// The donor's handle for its part of the slab.
    pub handle: u64,
    /// Offset of the bytes within that part.
    pub offset: u32,
}

impl Far {
    /// Program: the donor from which to read what `ask` names. `None` when the agent must read it, also where it
    /// crosses from one shard into the next.
    pub fn read_target(&self, ask: &RequestFields) -> Option<ReadTarget<'_>> {
        let extent = ask.extent as usize;
        let (slab, within) = (extent / SLAB_EXTENTS, extent % SLAB_EXTENTS);
        let (begin, len) = (ask.offset as usize, ask.len as usize);
        let whole = self.routes.get(slab)?;
        let (route, offset) = match whole.shard_bytes() {
            None => (whole, within * EXTENT_BYTES + begin),
            Some(shard_bytes) => {
                let (shard, from) = (begin / shard_bytes, begin % shard_bytes);
                if from + len > shard_bytes {
                    return None;
                }
                let route = self.shard_routes[slab].get(shard)?;
                (route, within * shard_bytes + from)
            }
        };
        let (donor, handle) = route.get(self.lanes.is_disk_first())?;
        Some(ReadTarget {
            route,
            donor,
            handle,
            offset: offset as u32,
        })
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::mailbox::Kind;
    use std::boxed::Box;

    fn zeroed<T>() -> Box<T> {
        // SAFETY: the type consists of atomics, for which zeros are valid.
        unsafe { Box::new(core::mem::MaybeUninit::<T>::zeroed().assume_init()) }
    }

    #[test]
    fn a_ticket_is_taken_once_and_wanted_again() {
        let donor = zeroed::<Donor>();
        assert_eq!(donor.take_ticket(), None);
        assert!(donor.is_wanted() && !donor.is_wanted(), "asked once");
        assert!(donor.put_ticket(&[7; 16], &[9; 64]));
        assert!(!donor.put_ticket(&[8; 16], &[8; 64]), "one is there");
        assert_eq!(donor.take_ticket(), Some(([7; 16], [9; 64])));
        assert_eq!(donor.take_ticket(), None);
        assert!(donor.is_wanted());
        donor.ticket_state.store(ticket::BUSY, Ordering::Relaxed);
        assert!(!donor.put_ticket(&[7; 16], &[9; 64]), "who takes it died");
        donor.drop_ticket();
        assert!(donor.put_ticket(&[7; 16], &[9; 64]));
    }

    #[test]
    fn queue_pairs_of_before_are_told_apart() {
        let lanes = zeroed::<Lanes>();
        assert_eq!(lanes.pairs(), None);
        lanes.set_pairs(false);
        assert_eq!(lanes.pairs(), None);
        lanes.set_pairs(true);
        let first = lanes.pairs().unwrap();
        lanes.set_pairs(true);
        assert_eq!(lanes.pairs(), Some(first));
        lanes.set_pairs(false);
        assert_eq!(lanes.pairs(), None);
        lanes.set_pairs(true);
        assert!(lanes.pairs().is_some_and(|n| n != first));
    }

    #[test]
    fn places_are_told_as_they_are() {
        let donor = zeroed::<Donor>();
        assert_eq!((donor.address(), donor.is_open()), (None, false));
        for is_v6 in [false, true] {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&[10, 0, 0, 2]);
            let address = DonorAddress {
                ip,
                port: 65_535,
                is_v6,
                has_rdma: !is_v6,
            };
            donor.set_address(Some(address));
            assert_eq!((donor.address(), donor.is_open()), (Some(address), true));
        }
        donor.set_address(None);
        assert_eq!(donor.address(), None);
    }

    #[test]
    fn routes_lead_to_one_donor_and_may_give_way_to_the_disk() {
        let route = zeroed::<Route>();
        assert_eq!(route.get(false), None);
        route.set(63, u64::MAX, true);
        assert_eq!(route.get(false), Some((63, u64::MAX)));
        assert_eq!(route.get(true), None);
        route.set(0, 5, false);
        assert_eq!(route.get(true), Some((0, 5)));
        route.note();
        route.note();
        assert_eq!([route.take_reads(), route.take_reads()], [2, 0]);
        route.clear();
        assert_eq!(route.get(false), None);
        for word in [u32::MAX, ON_DISK, IN_SHARDS, IN_SHARDS | 1] {
            route.donor.store(word, Ordering::Relaxed);
            assert_eq!(route.get(false), None, "a tenant wrote it");
        }
    }

    #[test]
    fn a_read_goes_to_the_shard_that_has_all_of_it() {
        let (_, far) = crate::tenant();
        let target = |extent, offset, len| {
            let kind = Kind::Read;
            let ask = RequestFields {
                kind,
                extent,
                offset,
                len,
            };
            far.read_target(&ask).map(|w| (w.donor, w.handle, w.offset))
        };
        let extent = SLAB_EXTENTS as u32 + 3;
        assert_eq!(target(extent, 64, 200), None);
        far.routes[1].set(5, 50, false);
        let at = 3 * EXTENT_BYTES as u32 + 64;
        assert_eq!(target(extent, 64, 200), Some((5, 50, at)));
        // In three shards, the last one padded; the second has no donor.
        let shard = 10_944;
        for (n, donor) in [(0, 1), (2, 2)] {
            far.shard_routes[1][n].set(donor, 10 + n as u64, false);
        }
        far.routes[1].set_in_shards(shard as usize);
        assert_eq!(target(extent, 64, 200), Some((1, 10, 3 * shard + 64)));
        assert_eq!(target(extent, 0, shard), Some((1, 10, 3 * shard)));
        assert_eq!(target(extent, 2 * shard, 300), Some((2, 12, 3 * shard)));
        assert_eq!(
            target(extent, shard - 100, 200),
            None,
            "from one into the next"
        );
        assert_eq!(target(extent, shard, 200), None, "nobody has it");
        // The tenant can write any number there.
        for bytes in [0, 1, EXTENT_BYTES as u64 + 1, u64::MAX] {
            far.routes[1].handle.store(bytes, Ordering::Relaxed);
            assert_eq!(target(extent, 640, 200), None);
        }
        assert_eq!(target(u32::MAX, 0, 200), None, "no such slab");
        far.routes[1].set(5, 50, false);
        assert_eq!(target(extent, 64, 200), Some((5, 50, at)), "copies again");
    }
}
