//! The reading process's side of direct reads. The agent does every read that fails here.
//!
//! A channel is claimed by one thread for one round trip. No thread waits for a channel, nor for one that is being
//! opened: a thread that needs a page advances the opening by one step, and asks the agent.
//!
//! Nothing here allocates or calls libc, and the stack use is small, so that a fault of any program has room: some have
//! signal stacks of 8 KiB, of which the signal's frame takes 3.

use canvas_shm::lanes::{DONORS_MAX, Donor};
use canvas_shm::{Far, mailbox::RequestFields};
use canvas_sys::net::{Address, Stream};
use canvas_sys::proc;
use canvas_types::contention::Contention;
use canvas_types::controller::Backoff;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use spin::{Mutex, MutexGuard};

use crate::wire::{HEAD_BYTES, READ_BYTES_MAX};

pub mod handoff;
mod lane;
mod pairing;
pub mod pairs;

use lane::{Failed, Lane, ReadVia, RecordRead, Stage};
use pairs::Pairs;

/// Channels of a process.
pub const COUNT: usize = 8;
/// Channels to one donor.
const OF_A_DONOR: usize = 4;
/// One read in this many goes to the agent all the same, so that it keeps measuring the donors.
const PROBE: u32 = 256;
/// Pauses after a channel failed: the first, and the longest; each is twice the one before.
const PAUSE_NS: u64 = 50_000_000;
const PAUSE_NS_MAX: u64 = 5_000_000_000;

/// What the crate requires of the process.
pub trait Process {
    /// Its queue pairs.
    type Pairs: Pairs;
    /// The process's queue pairs, one for each channel.
    fn pairs(&self) -> &Self::Pairs;
    /// The monotonic clock.
    fn now_ns(&self) -> u64;
    /// Descriptors of channels are at or above this number.
    fn fd_floor(&self) -> i32;
    /// Records that channel `index` has this descriptor from now on; -1: none.
    fn keep_fd(&self, index: usize, fd: i32);
    /// Whether this thread has its own descriptor table. It then opens no channel.
    fn has_own_fds(&self) -> bool;
    /// Records that the caller slept during a read that took `ns`.
    fn note_slept(&self, ns: u64);
}

/// A slot for a channel.
struct ChannelSlot {
    /// The donor's index + 1, while its channel is not closed.
    donor: AtomicU32,
    /// Only ever locked by try_lock.
    lane: Mutex<Lane>,
}

/// A process's channels to the donors of its tenant.
pub struct Lanes {
    slots: [ChannelSlot; COUNT],
    /// One pause for each donor.
    rests: [Backoff<PAUSE_NS, PAUSE_NS_MAX>; DONORS_MAX],
    /// The process may not make the system calls that channels need.
    forbidden: AtomicBool,
    reads: AtomicU32,
    contention: Contention,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes::new()
    }
}

/// A channel that the caller owns until it is dropped.
struct Claim<'l> {
    lane: MutexGuard<'l, Lane>,
    slot: &'l ChannelSlot,
    index: usize,
}

impl Claim<'_> {
    /// Ends the channel. The socket is closed if it is still ours to close.
    fn close(&mut self, process: &impl Process) {
        if let Some(stream) = self.lane.close(self.index, process) {
            stream.close();
        }
        process.keep_fd(self.index, -1);
        self.slot.donor.store(0, Ordering::Relaxed);
    }

    /// Starts to connect. False when that is impossible; an error when the donor is to be left alone for a while.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, far: &Far, donor: usize, process: &impl Process) -> Result<bool, Failed> {
        let there: &Donor = &far.lanes.donors[donor];
        let Some(at) = there.address() else {
            return Ok(false);
        };
        let Some((ticket, keys)) = there.take_ticket() else {
            return Ok(false);
        };
        let address = Address {
            ip: at.ip,
            port: at.port,
            is_v6: at.is_v6,
        };
        let stream = Stream::begin(address, process.fd_floor()).map_err(|_| Failed::Broken)?;
        process.keep_fd(self.index, stream.fd());
        let (lane, now_ns) = (&mut *self.lane, process.now_ns());
        let has_pairs = at.has_rdma && process.pairs().available();
        lane.begin(stream, (ticket, has_pairs), proc::processors() > 1, now_ns);
        // One after the other, each in place, because a fault may have a small stack.
        lane.set_caller(&keys);
        lane.set_records(&far.lanes.key(), far.tenant());
        self.slot.donor.store(donor as u32 + 1, Ordering::Relaxed);
        Ok(true)
    }
}

impl Lanes {
    /// Without open channels.
    pub const fn new() -> Lanes {
        Lanes {
            slots: [const {
                ChannelSlot {
                    donor: AtomicU32::new(0),
                    lane: Mutex::new(Lane::new()),
                }
            }; COUNT],
            rests: [const { Backoff::new(0) }; DONORS_MAX],
            forbidden: AtomicBool::new(false),
            reads: AtomicU32::new(0),
            contention: Contention::new(),
        }
    }

    /// Forbids channels from now on.
    pub fn forbid(&self) {
        self.forbidden.store(true, Ordering::Relaxed);
    }

    /// Closes all channels that no thread uses now: at the end, or in a fork's child, because they are the parent's.
    pub fn close(&self, process: &impl Process) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.donor.load(Ordering::Relaxed) != 0
                && let Some(mut claim) = self.claim_slot(index)
            {
                claim.close(process);
            }
        }
    }

    fn claim_slot(&self, index: usize) -> Option<Claim<'_>> {
        let slot = &self.slots[index];
        let lane = slot.lane.try_lock()?;
        Some(Claim { lane, slot, index })
    }

    /// Advances the opening of a channel as far as possible now. True when it is open.
    #[cold]
    #[inline(never)]
    fn advance(&self, claim: &mut Claim, far: &Far, donor: usize, process: &impl Process) -> bool {
        match claim.lane.step(process.now_ns()) {
            Ok(()) => {
                far.stats.lanes_opened.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(Failed::Broken) => {
                claim.close(process);
                self.rests[donor].failed(process.now_ns());
                false
            }
            Err(Failed::Busy | Failed::Elsewhere) => false,
        }
    }

    /// An open channel to the donor that no other thread uses now. Without one, advances an opening by a step.
    #[inline(never)]
    fn claim(&self, far: &Far, donor: usize, process: &impl Process) -> Option<Claim<'_>> {
        let number = donor as u32 + 1;
        let (mut of_it, mut closed) = (0, None);
        for (i, slot) in self.slots.iter().enumerate() {
            match slot.donor.load(Ordering::Relaxed) {
                0 => closed = closed.or(Some(i)),
                n if n == number => {
                    of_it += 1;
                    let Some(mut claim) = self.claim_slot(i) else {
                        continue;
                    };
                    if claim.slot.donor.load(Ordering::Relaxed) != number {
                        continue;
                    }
                    // Only one is opened at a time.
                    let is_open = claim.lane.stage() == Stage::Open
                        || self.advance(&mut claim, far, donor, process);
                    return is_open.then_some(claim);
                }
                _ => {}
            }
        }
        let rest = &self.rests[donor];
        if of_it >= OF_A_DONOR || rest.is_paused(process.now_ns()) || process.has_own_fds() {
            return None;
        }
        let mut claim = self.claim_slot(closed?)?;
        if claim.lane.stage() != Stage::Closed {
            return None;
        }
        match claim.begin(far, donor, process) {
            Ok(true) => self
                .advance(&mut claim, far, donor, process)
                .then_some(claim),
            Ok(false) => None,
            Err(_) => {
                rest.failed(process.now_ns());
                None
            }
        }
    }

    /// Reads what `ask` names from a donor, and puts the first bytes of the record into `to`. False when the agent must
    /// read it. The caller keeps the extent from being rewritten meanwhile.
    pub fn read(
        &self,
        far: &Far,
        ask: &RequestFields,
        to: &mut [u8],
        process: &impl Process,
    ) -> bool {
        let lanes = &far.lanes;
        if !lanes.is_direct() || self.forbidden.load(Ordering::Relaxed) {
            return false;
        }
        let (extent, len) = (ask.extent as usize, ask.len as usize);
        let Some(target) = far.read_target(ask) else {
            return false;
        };
        let donor = target.donor;
        // A record that verifies under this number is the last one written.
        let seal = far.seals[extent].load(Ordering::Acquire);
        let fits = (to.len()..=READ_BYTES_MAX).contains(&len);
        if !lanes.donors[donor].is_open() || seal == 0 || !fits {
            return false;
        }
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        if reads % PROBE == PROBE - 1 {
            return false;
        }
        let Some(mut claim) = self.claim(far, donor, process) else {
            return false;
        };
        let begun_ns = process.now_ns();
        let wanted = RecordRead {
            target: &target,
            ask,
            seal,
            pairs: lanes.pairs(),
        };
        let index = claim.index;
        let outcome = claim.lane.read(index, &wanted, &self.contention, process);
        let stats = &far.stats;
        match outcome {
            Ok(via) => {
                to.copy_from_slice(&claim.lane.answer()[HEAD_BYTES..][..to.len()]);
                self.rests[donor].succeeded();
                target.route.note();
                stats.lane_reads.fetch_add(1, Ordering::Relaxed);
                if via == ReadVia::Pair {
                    stats.lane_pair_reads.fetch_add(1, Ordering::Relaxed);
                }
                stats.lane_bytes.fetch_add(len as u64, Ordering::Relaxed);
                if claim.lane.has_slept() {
                    process.note_slept(process.now_ns().saturating_sub(begun_ns));
                }
                return true;
            }
            Err(Failed::Broken) => {
                claim.close(process);
                self.rests[donor].failed(process.now_ns());
            }
            Err(Failed::Elsewhere) => target.route.clear(),
            Err(Failed::Busy) => {}
        }
        false
    }
}

#[cfg(test)]
mod tests;
