//! What a tenant's processes need for lanes: connections of their own to donors, for demand reads
//! (docs/design/lanes.md). The agent writes it, in the far area ([`crate::far`]).
//!
//! Nothing here has to be read whole. A route that changes while it is read, a ticket that another
//! process took, a donor that is gone: what comes of it is no record that opens, and the read goes
//! to the agent.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use crate::far::{EXTENT_BYTES, Far, SLAB_EXTENTS};
use crate::mailbox::Ask;

/// Donors that a tenant can have lanes to.
pub const DONORS_MAX: usize = 64;
/// Bytes of a ticket ([`Donor::take_ticket`]).
pub const TICKET_BYTES: usize = 16;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of the two keys of a lane: of what its program sends, and of what its donor does.
pub const KEYS_BYTES: usize = 2 * KEY_BYTES;

/// In the donor's word of a route: the page is on this host's disk as well.
const ON_DISK: u32 = 1 << 16;
/// In the donor's word of a route, instead of a donor: the slab lies in shards, each with a route of its own. How long
/// a shard of an extent is stands in place of the handle.
const IN_SHARDS: u32 = 1 << 31;

/// In the word of a donor's place: its lanes may join queue pairs.
const HAS_RDMA: u32 = 1 << 24;

/// Shards of a slab that have its bytes, at most.
pub const SHARDS_MAX: usize = 8;

/// States of a donor's ticket.
mod ticket {
    /// There is none.
    pub const NONE: u32 = 0;
    /// The agent, or a process, is at it.
    pub const BUSY: u32 = 1;
    /// It can be taken.
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

/// A donor that lanes lead to.
#[repr(C, align(64))]
pub struct Donor {
    /// Where it listens: port in the lowest 16 bits, above them 4 or 6, with [`HAS_RDMA`]; 0 while it serves no
    /// lanes.
    place: AtomicU32,
    /// 1 when a process wants a ticket.
    wanted: AtomicU32,
    ticket_state: AtomicU32,
    address: Bytes<2>,
    ticket: Bytes<2>,
    keys: Bytes<8>,
}

/// An address: IPv4 in the first 4 bytes, or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Of the network, in its order; the first four when it is not `is_v6`.
    pub ip: [u8; 16],
    /// Port.
    pub port: u16,
    /// IPv6.
    pub is_v6: bool,
    /// A lane may join a queue pair.
    pub has_rdma: bool,
}

impl Donor {
    /// Agent: the donor serves lanes at this place, or (`None`) does not.
    pub fn set_place(&self, place: Option<Place>) {
        let Some(Place {
            ip,
            port,
            is_v6,
            has_rdma,
        }) = place
        else {
            return self.place.store(0, Ordering::Release);
        };
        self.address.put(&ip);
        let family = if is_v6 { 6 } else { 4 };
        let rdma = if has_rdma { HAS_RDMA } else { 0 };
        self.place
            .store(family << 16 | u32::from(port) | rdma, Ordering::Release);
    }

    /// Program: where the donor serves lanes, if it does.
    pub fn place(&self) -> Option<Place> {
        let place = self.place.load(Ordering::Acquire);
        (place != 0).then(|| Place {
            ip: self.address.get(),
            port: place as u16,
            is_v6: (place & !HAS_RDMA) >> 16 == 6,
            has_rdma: place & HAS_RDMA != 0,
        })
    }

    /// Program: does the donor serve lanes?
    pub fn is_open(&self) -> bool {
        self.place.load(Ordering::Relaxed) != 0
    }

    /// Program: a ticket, with the keys of its lane. `None` when there is none: then the agent is
    /// asked for one, and has it in a moment.
    pub fn take_ticket(&self) -> Option<([u8; TICKET_BYTES], [u8; KEYS_BYTES])> {
        if !self.turn(ticket::READY, ticket::BUSY) {
            self.wanted.store(1, Ordering::Release);
            return None;
        }
        let taken = (self.ticket.get(), self.keys.get());
        self.ticket_state.store(ticket::NONE, Ordering::Release);
        Some(taken)
    }

    /// Agent: is a ticket wanted that is not there? Asked once.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
            && self.ticket_state.load(Ordering::Relaxed) == ticket::NONE
            && self.wanted.swap(0, Ordering::AcqRel) != 0
    }

    /// Agent: a ticket. False when there is one already.
    pub fn put_ticket(&self, ticket: &[u8; TICKET_BYTES], keys: &[u8; KEYS_BYTES]) -> bool {
        if !self.turn(ticket::NONE, ticket::BUSY) {
            return false;
        }
        self.ticket.put(ticket);
        self.keys.put(keys);
        self.ticket_state.store(ticket::READY, Ordering::Release);
        true
    }

    /// Agent: nobody is to take the ticket any more. True when nobody has.
    pub fn take_ticket_back(&self) -> bool {
        self.turn(ticket::READY, ticket::NONE)
    }

    /// Agent: there is no ticket any more, whatever a process that died over it has left.
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
    /// The donor's number and 1; 0 for none. With [`ON_DISK`].
    donor: AtomicU32,
    /// Reads since the agent last asked.
    reads: AtomicU32,
}

impl Route {
    /// Agent: the slab is whole at this donor, by this name.
    pub fn set(&self, donor: usize, handle: u64, on_disk: bool) {
        let word = (donor as u32 + 1) | if on_disk { ON_DISK } else { 0 };
        self.put(word, handle);
    }

    /// Agent: the slab lies in shards, of so many bytes of each extent. Their routes are there.
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

    /// Either: how many bytes of each extent a shard has, where the slab lies in shards.
    pub fn shard_bytes(&self) -> Option<usize> {
        let in_shards = self.donor.load(Ordering::Acquire) == IN_SHARDS;
        let bytes = in_shards.then(|| self.handle.load(Ordering::Acquire) as usize)?;
        (1..=EXTENT_BYTES).contains(&bytes).then_some(bytes)
    }

    /// Either: there is none. A program says so when what it read did not open.
    pub fn clear(&self) {
        if self.donor.load(Ordering::Relaxed) != 0 {
            self.donor.store(0, Ordering::Release);
        }
    }

    /// Program: the donor to read from and what it calls the slab, unless the disk is to be read
    /// (`disk_first`) where it has the slab.
    pub fn get(&self, disk_first: bool) -> Option<(usize, u64)> {
        let word = self.donor.load(Ordering::Acquire);
        if word >= IN_SHARDS || (disk_first && word & ON_DISK != 0) {
            return None;
        }
        let donor = ((word & (ON_DISK - 1)) as usize).checked_sub(1)?;
        (donor < DONORS_MAX).then(|| (donor, self.handle.load(Ordering::Acquire)))
    }

    /// Program: a record was read by it.
    pub fn note(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Agent: how many were since it last asked.
    pub fn take_reads(&self) -> u64 {
        match self.reads.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.reads.swap(0, Ordering::Relaxed).into(),
        }
    }
}

/// Whether, and how, processes read by themselves.
#[repr(C, align(64))]
pub struct Lanes {
    /// 1 while the tenant's processes may.
    direct: AtomicU32,
    /// 1 when nobody wants lanes; the runner's to write.
    off: AtomicU32,
    /// 1 while this host's disk answers sooner than donors do.
    disk_first: AtomicU32,
    /// Odd while queue pairs of lanes may be read by; another number each time that they may again.
    pairs: AtomicU32,
    /// 1 when some donors are reached by RDMA.
    rdma: AtomicU32,
    /// 1 when a program has said why it has no queue pairs.
    complained: AtomicU32,
    /// The key that the tenant's records are sealed with.
    key: Bytes<4>,
    /// Donors, by the agent's number.
    pub donors: [Donor; DONORS_MAX],
}

impl Lanes {
    /// Agent: from now on processes may read by themselves, or may not.
    pub fn set_direct(&self, direct: bool) {
        self.direct.store(direct.into(), Ordering::Release);
    }

    /// Program: may it?
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed) != 0
    }

    /// Runner: lanes are wanted, or not.
    pub fn set_wanted(&self, wanted: bool) {
        self.off.store((!wanted).into(), Ordering::Relaxed);
    }

    /// Are they? Unless told otherwise.
    pub fn is_wanted(&self) -> bool {
        self.off.load(Ordering::Relaxed) == 0
    }

    /// Agent: the disk answers sooner.
    pub fn set_disk_first(&self, first: bool) {
        self.disk_first.store(first.into(), Ordering::Relaxed);
    }

    /// Program: does it?
    #[inline]
    pub fn is_disk_first(&self) -> bool {
        self.disk_first.load(Ordering::Relaxed) != 0
    }

    /// Agent: some donors are reached by RDMA, or none.
    pub fn set_has_rdma(&self, has: bool) {
        self.rdma.store(has.into(), Ordering::Release);
    }

    /// Program: are some?
    pub fn has_rdma(&self) -> bool {
        self.rdma.load(Ordering::Acquire) != 0
    }

    /// Program: is it the first that says why it has no queue pairs?
    pub fn complains(&self) -> bool {
        self.complained.swap(1, Ordering::Relaxed) == 0
    }

    /// Agent: queue pairs may be read by from now on, or may not.
    pub fn set_pairs(&self, may: bool) {
        let before = self.pairs.load(Ordering::Relaxed);
        if may != (before & 1 != 0) {
            self.pairs.store(before.wrapping_add(1), Ordering::Release);
        }
    }

    /// Program: while queue pairs may be read by, a number; those that were joined under another one are over.
    #[inline]
    pub fn pairs(&self) -> Option<u32> {
        let pairs = self.pairs.load(Ordering::Relaxed);
        (pairs & 1 != 0).then_some(pairs)
    }

    /// Agent: what the tenant's records are sealed with.
    pub fn set_key(&self, key: &[u8; KEY_BYTES]) {
        self.key.put(key);
    }

    /// Program: the key.
    pub fn key(&self) -> [u8; KEY_BYTES] {
        self.key.get()
    }
}

/// Where a read goes.
pub struct Way<'f> {
    /// By which route.
    pub route: &'f Route,
    /// The donor.
    pub donor: usize,
    /// What it calls what it has of the slab.
    pub handle: u64,
    /// Where in that the bytes begin.
    pub offset: u32,
}

impl Far {
    /// Program: where the donor is that can be read from what `ask` names. `None` when the agent must read it: also where
    /// it goes from one shard into the next.
    pub fn way(&self, ask: &Ask) -> Option<Way<'_>> {
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
        Some(Way {
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
        // SAFETY: of atomics, for which zeros are valid.
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
        assert_eq!((donor.place(), donor.is_open()), (None, false));
        for is_v6 in [false, true] {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&[10, 0, 0, 2]);
            let place = Place {
                ip,
                port: 65_535,
                is_v6,
                has_rdma: !is_v6,
            };
            donor.set_place(Some(place));
            assert_eq!((donor.place(), donor.is_open()), (Some(place), true));
        }
        donor.set_place(None);
        assert_eq!(donor.place(), None);
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
        let (fd, _) = crate::Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let way = |extent, offset, len| {
            let kind = Kind::Read;
            let ask = Ask {
                kind,
                extent,
                offset,
                len,
            };
            far.way(&ask).map(|w| (w.donor, w.handle, w.offset))
        };
        let extent = SLAB_EXTENTS as u32 + 3;
        assert_eq!(way(extent, 64, 200), None);
        far.routes[1].set(5, 50, false);
        let at = 3 * EXTENT_BYTES as u32 + 64;
        assert_eq!(way(extent, 64, 200), Some((5, 50, at)));
        // In three shards, the last one with a rest, of which the second is nobody's.
        let shard = 10_944;
        for (n, donor) in [(0, 1), (2, 2)] {
            far.shard_routes[1][n].set(donor, 10 + n as u64, false);
        }
        far.routes[1].set_in_shards(shard as usize);
        assert_eq!(way(extent, 64, 200), Some((1, 10, 3 * shard + 64)));
        assert_eq!(way(extent, 0, shard), Some((1, 10, 3 * shard)));
        assert_eq!(way(extent, 2 * shard, 300), Some((2, 12, 3 * shard)));
        assert_eq!(
            way(extent, shard - 100, 200),
            None,
            "from one into the next"
        );
        assert_eq!(way(extent, shard, 200), None, "nobody has it");
        // What is written there is the tenant's to write.
        for bytes in [0, 1, EXTENT_BYTES as u64 + 1, u64::MAX] {
            far.routes[1].handle.store(bytes, Ordering::Relaxed);
            assert_eq!(way(extent, 640, 200), None);
        }
        assert_eq!(way(u32::MAX, 0, 200), None, "no such slab");
        far.routes[1].set(5, 50, false);
        assert_eq!(way(extent, 64, 200), Some((5, 50, at)), "copies again");
    }
}
