//! A tenant's far area, which its processes and the agent share. It follows the tenant segment in the same memfd
//! ([`OFFSET`]), and exists only when the tenant has far memory beyond its pool.
//!
//! Far memory is numbered in *extents* of [`EXTENT_BYTES`]; [`SLAB_EXTENTS`] of them are a *slab*, the unit that donors
//! lend and processes own. A process takes a free slab by a compare-and-swap, and allocates the extents in it alone: it
//! need not ask the agent, which maps a slab to donors when its first extent is written. A fork's child refers to the
//! slabs of its parent ([`Far::others`]), and does not write there. The agent frees a slab without references.
//!
//! The agent copies each value that it reads here and validates the copy: the tenant's processes may write anything
//! anywhere. A forged value harms only that tenant.

use canvas_types::PAGE_SIZE;
use canvas_types::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::histogram::Histogram;
use crate::lanes::{Lanes, Route, SHARDS_MAX};
use crate::mailbox::{Mailbox, REQUESTS};
use crate::segment::{PROCS_MAX, SEGMENT_BYTES};

/// "FAR" and the layout's version.
pub const MAGIC: u64 = 0x0046_4152_0000_000d;
/// Bytes of an extent: the unit of writing.
pub const EXTENT_BYTES: usize = 32 << 10;
/// Extents of a slab.
pub const SLAB_EXTENTS: usize = 2048;
/// Bytes of a slab: the unit of lending.
pub const SLAB_BYTES: usize = EXTENT_BYTES * SLAB_EXTENTS;
/// Most slabs of a tenant (2 TiB).
pub const SLABS_MAX: usize = 1 << 15;
/// Most extents of a tenant.
pub const EXTENTS_MAX: usize = SLABS_MAX * SLAB_EXTENTS;

/// Process index reserved for shared memory's slabs and mailbox; never assigned to a process.
pub const SHARED: usize = PROCS_MAX - 1;

/// How often the agent puts back a slab that was released by mistake. A tenant may release it repeatedly, and must not
/// keep the agent busy: after that the agent waits for the next notification.
const PUT_BACK_TRIES: usize = 8;

const REF_WORDS: usize = PROCS_MAX / 64;

/// States of a slab. Only the agent leaves [`slab_state::RELEASED`].
pub mod slab_state {
    /// No process refers to it and no data are kept: it can be taken.
    pub const FREE: u32 = 0;
    /// Processes refer to it.
    pub const USED: u32 = 1;
    /// No process refers to it; donors' copies of it are to be freed.
    pub const RELEASED: u32 = 2;
}

/// One slab of the tenant's far memory.
#[repr(C, align(64))]
pub struct Slab {
    /// One of [`slab_state`].
    pub state: AtomicU32,
    /// Number of forks under way whose children will refer to it.
    holds: AtomicU32,
    /// A bit for each process, by its index in [`crate::Segment::procs`].
    refs: [AtomicU64; REF_WORDS],
}

/// Statistics that the agent keeps for the tenant.
#[repr(C)]
pub struct FarStats {
    /// Extents written and durable.
    pub extents_out: AtomicU64,
    /// Reads answered, of single pages or whole extents.
    pub reads: AtomicU64,
    /// Bytes read for them, as stored.
    pub bytes_in: AtomicU64,
    /// Bytes written to the first copy, as stored.
    pub bytes_out: AtomicU64,
    /// Reads that failed over from the first copy to another one.
    pub failovers: AtomicU64,
    /// Copies that did not verify.
    pub corrupt: AtomicU64,
    /// Slabs whose lost copy was rebuilt.
    pub repairs: AtomicU64,
    /// Slabs that currently have fewer copies than the policy wants.
    pub degraded_slabs: AtomicI64,
    /// Times of single reads for which a fault waited, from the request to the decoded page; written by the programs.
    pub read_ns: Histogram,
    /// Times from the prefetch of an extent to the use of each of its pages; written by the programs. From it the agent
    /// decides which prefetches come too late (Canvas §5.3).
    pub ahead_ns: Histogram,
    /// Times of completed prefetches, from the request to the answer, whether a thread came to wait for them or not.
    pub prefetch_ns: Histogram,
    /// Requests started, by [`class`].
    pub sent: [AtomicU64; class::CLASSES],
    /// Bytes of these requests.
    pub sent_bytes: [AtomicU64; class::CLASSES],
    /// Time that they waited in the agent before, in ns.
    pub waited_ns: [AtomicU64; class::CLASSES],
    /// Prefetches dropped because they would have come too late.
    pub dropped: AtomicU64,
    /// Prefetches for which a thread came to wait before they started.
    pub promoted: AtomicU64,
    /// Time that the agent's thread worked for the tenant, in ns.
    pub agent_ns: AtomicU64,
    /// Far read size in bytes, as a process has learned last; 0 before. Written by the programs.
    pub unit_bytes: AtomicU64,
    /// Reads from the disk of data that a donor has as well.
    pub reads_by_disk: AtomicU64,
    /// Reads computed from other shards than the ones with their bytes.
    pub decoded: AtomicU64,
    /// Reads by processes themselves, over direct read channels. This counter and the next ones are written by the
    /// programs.
    pub lane_reads: AtomicU64,
    /// Of these, reads by queue pairs, which no donor's processor answered.
    pub lane_pair_reads: AtomicU64,
    /// Bytes of these reads, as stored.
    pub lane_bytes: AtomicU64,
    /// Direct read channels opened.
    pub lanes_opened: AtomicU64,
    /// Operations that may be under way on a far directory at a time; the maximum over all directories.
    pub disk_width: AtomicU64,
}

/// Classes of requests, as indices into the statistics.
pub mod class {
    /// A fault waits for it.
    pub const DEMAND: usize = 0;
    /// A prefetch for which no thread waits yet.
    pub const PREFETCH: usize = 1;
    /// A write.
    pub const SWAP_OUT: usize = 2;
    /// Number of classes.
    pub const CLASSES: usize = 3;
}

/// The far area.
#[repr(C, align(4096))]
pub struct Far {
    /// [`MAGIC`], written last.
    pub magic: AtomicU64,
    /// Random id of the tenant, for donors.
    pub tenant_id: [AtomicU64; 2],
    /// Slabs that the tenant may use.
    pub slabs_max: AtomicU64,
    /// Slabs in use.
    pub slabs_used: AtomicI64,
    /// One past the highest slab ever used.
    pub slabs_high: AtomicU32,
    /// 1 while the agent sleeps (futex) and must be woken.
    pub asleep: AtomicU32,
    /// Number of agents so far: the first is 1; each that takes over adds 1.
    pub agent: AtomicU32,
    /// 1 when a slab may be [`slab_state::RELEASED`]; the agent clears it before it scans.
    pub released: AtomicU32,
    /// Far read size in bytes; 0: as each process learns.
    pub unit_bytes: AtomicU64,
    /// Percent of the pool's limit past which its oldest pages are demoted to far memory.
    pub spill_percent: AtomicU64,
    /// Longest time that a fault may wait for a far read, in ms.
    pub wait_ms_max: AtomicU64,
    /// Number of forks so far of processes that refer to slabs.
    forks: AtomicU32,
    /// By process, the first and last fork from which its inherited pages stem; 0 for none.
    born: [AtomicU64; PROCS_MAX],
    /// Statistics.
    pub stats: FarStats,
    /// A bit for each process that has posted.
    active: [AtomicU64; REF_WORDS],
    /// The tenant's slabs: state, and which processes refer to each.
    pub slabs: [Slab; SLABS_MAX],
    /// Mailboxes, by process.
    pub mailboxes: [Mailbox; PROCS_MAX],
    /// By extent, the seal of its last write, or 0 for none; written by the agent.
    pub seals: [AtomicU64; EXTENTS_MAX],
    /// Direct read channels.
    pub lanes: Lanes,
    /// Where processes read each slab directly.
    pub routes: [Route; SLABS_MAX],
    /// Where they read a slab's data shards. Valid only while the slab's own route says that it is in shards, so nobody
    /// clears them afterwards.
    pub shard_routes: [[Route; SHARDS_MAX]; SLABS_MAX],
}

/// Offset of the far area in the tenant's memfd.
pub const OFFSET: usize = SEGMENT_BYTES;
/// Offset of the buffers in the far area.
const BUFFERS: usize = core::mem::size_of::<Far>();
/// Bytes of the far area, buffers included. Sparse: unused parts take no memory.
pub const FAR_BYTES: usize = BUFFERS + PROCS_MAX * REQUESTS * EXTENT_BYTES;

const _: () = assert!(OFFSET.is_multiple_of(PAGE_SIZE) && BUFFERS.is_multiple_of(PAGE_SIZE));

impl Far {
    /// The far area at `addr`.
    ///
    /// # Safety
    /// `addr` must be the start of a mapping of at least [`FAR_BYTES`] bytes, page-aligned, shared,
    /// writable, and never unmapped. Any contents are valid: every field is an atomic.
    pub unsafe fn at(addr: usize) -> &'static Far {
        assert!(addr.is_multiple_of(PAGE_SIZE));
        // SAFETY: a mapping of the full size that stays, the caller's promise; all fields are atomics, for which any
        // bits are valid, and to which other processes may write.
        unsafe { &*(addr as *const Far) }
    }

    /// The tenant's id, for donors.
    pub fn tenant(&self) -> [u8; 16] {
        let mut id = [0; 16];
        for (bytes, word) in id.chunks_exact_mut(8).zip(&self.tenant_id) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        id
    }

    /// The buffer of request `i` of process `proc`: [`EXTENT_BYTES`] that live as long as the mapping. The request's
    /// state says who owns it.
    ///
    /// # Panics
    /// When there is no such process or request.
    pub fn buffer(&self, proc: usize, i: usize) -> *mut u8 {
        assert!(proc < PROCS_MAX && i < REQUESTS);
        let at = (self as *const Far).addr() + BUFFERS + (proc * REQUESTS + i) * EXTENT_BYTES;
        core::ptr::with_exposed_provenance_mut(at)
    }

    /// Copies out of a buffer, from `offset`.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn copy_out(&self, proc: usize, i: usize, offset: usize, dst: &mut [u8]) {
        assert!(offset <= EXTENT_BYTES && dst.len() <= EXTENT_BYTES - offset);
        // SAFETY: the range lies in the buffer (asserted), and that in the mapping (the promise of `at`). Another
        // process may write there meanwhile: then any bytes come out, and the caller verifies them before it relies on
        // them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                self.buffer(proc, i).add(offset),
                dst.as_mut_ptr(),
                dst.len(),
            )
        }
    }

    /// Copies into a buffer, at `offset`.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn copy_in(&self, proc: usize, i: usize, offset: usize, src: &[u8]) {
        assert!(offset <= EXTENT_BYTES && src.len() <= EXTENT_BYTES - offset);
        // SAFETY: the range lies in the buffer (asserted), and that in the mapping (the promise of `at`). Another
        // process may access it meanwhile: then any bytes are left, which a reader verifies before it relies on them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                src.as_ptr(),
                self.buffer(proc, i).add(offset),
                src.len(),
            )
        }
    }

    /// Program: notifies the agent that process `proc` has posted. True when the agent sleeps: then wake one waiter of
    /// [`Far::asleep`].
    pub fn notify(&self, proc: usize) -> bool {
        self.active[proc / 64].fetch_or(1 << (proc % 64), Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst) != 0 && self.asleep.swap(0, Ordering::SeqCst) != 0
    }

    /// Agent: calls `on` for each process that has posted since the last call. True if any had.
    pub fn take_notified(&self, mut on: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (w, word) in self.active.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                on(w * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                any = true;
            }
        }
        any
    }

    /// Agent: announces that it will sleep on [`Far::asleep`] while that is 1. False when something was posted
    /// meanwhile.
    pub fn about_to_sleep(&self) -> bool {
        self.asleep.store(1, Ordering::SeqCst);
        let quiet = self.active.iter().all(|w| w.load(Ordering::SeqCst) == 0)
            && self.released.load(Ordering::SeqCst) == 0;
        if !quiet {
            self.asleep.store(0, Ordering::SeqCst);
        }
        quiet
    }

    /// Program: takes a free slab for process `proc`; `None` when the tenant's far limit is reached.
    pub fn take_slab(&self, proc: usize) -> Option<u32> {
        let max = self.slabs_max.load(Ordering::Relaxed).min(SLABS_MAX as u64);
        if !count_slab(&self.slabs_used, max as i64) {
            return None;
        }
        let (word, bit) = (proc / 64, 1 << (proc % 64));
        for (i, slab) in self.slabs.iter().enumerate() {
            // Take the reference first: the previous owner may still be about to release the slab, and the agent puts
            // back a released slab that has references ([`Far::is_released`]).
            if slab.state.load(Ordering::Relaxed) != slab_state::FREE
                || slab.refs[word].fetch_or(bit, Ordering::SeqCst) & bit != 0
            {
                continue;
            }
            if slab
                .state
                .compare_exchange(
                    slab_state::FREE,
                    slab_state::USED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
            {
                self.slabs_high.fetch_max(i as u32 + 1, Ordering::Relaxed);
                return Some(i as u32);
            }
            // Another process was faster, and may have released it already because of this reference.
            self.drop_slab(i as u32, proc);
        }
        self.slabs_used.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Program: removes the reference of process `proc` to the slab. The last one leaves the slab to the agent; then
    /// the result is true, and the caller notifies the agent ([`Far::notify`]).
    pub fn drop_slab(&self, slab: u32, proc: usize) -> bool {
        let Some(s) = self.slabs.get(slab as usize) else {
            return false;
        };
        s.refs[proc / 64].fetch_and(!(1 << (proc % 64)), Ordering::SeqCst);
        let gone = s.is_unused()
            && s.state
                .compare_exchange(
                    slab_state::USED,
                    slab_state::RELEASED,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .is_ok();
        if gone {
            self.released.store(1, Ordering::SeqCst);
        }
        gone
    }

    /// Program: a number for the fork that is about to happen, larger than all before (or the maximum).
    pub fn number_fork(&self) -> u32 {
        let next = |n: u32| Some(n.saturating_add(1));
        let before = self
            .forks
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        before.unwrap_or_default().saturating_add(1)
    }

    /// Program: sets the forks from which process `proc`, the caller, has inherited (first << 32 | last), or 0 for
    /// none.
    pub fn set_born(&self, proc: usize, forks: u64) {
        self.born[proc].store(forks, Ordering::SeqCst);
    }

    /// Program: calls `on` with the forks ([`Far::set_born`]) of each process other than `proc` that refers to the
    /// slab. False when there may be more of them in a moment, because a child is on its way.
    pub fn others(&self, slab: u32, proc: usize, mut on: impl FnMut(u64)) -> bool {
        let s = &self.slabs[slab as usize];
        // Read the holds first: a child takes its reference before it ends the hold.
        let settled = s.holds.load(Ordering::SeqCst) == 0;
        for (w, word) in s.refs.iter().enumerate() {
            let mut bits = word.load(Ordering::SeqCst);
            if w == proc / 64 {
                bits &= !(1 << (proc % 64));
            }
            while bits != 0 {
                on(self.born[w * 64 + bits.trailing_zeros() as usize].load(Ordering::SeqCst));
                bits &= bits - 1;
            }
        }
        settled
    }

    /// Drops all references of process `proc`, which has ended or has exec'd. True when the agent must be notified.
    pub fn drop_process(&self, proc: usize) -> bool {
        let mut gone = false;
        // Any process of the tenant can have written any number there.
        let high = self.slabs_high.load(Ordering::Acquire);
        for slab in 0..high.min(SLABS_MAX as u32) {
            if self.slabs[slab as usize].refers(proc) {
                gone |= self.drop_slab(slab, proc);
            }
        }
        gone
    }

    /// Calls `on` for each slab of process `proc`, the tenant's only one, which has ended at any instruction, for the
    /// process that is `proc` from now on. A slab that it was about to take or to release is released. True when the
    /// agent must be notified.
    pub fn take_over_slabs(&self, proc: usize, mut on: impl FnMut(u32)) -> bool {
        // It may have ended before it recorded the slab that it had just taken in `slabs_high`.
        let used = |slab: &&Slab| slab.state.load(Ordering::Acquire) != slab_state::FREE;
        let told = self
            .slabs_high
            .load(Ordering::Acquire)
            .min(SLABS_MAX as u32);
        let more = self.slabs[told as usize..].iter().take_while(used).count();
        let high = told + more as u32;
        self.slabs_high.fetch_max(high, Ordering::AcqRel);
        let mut gone = false;
        // It may have been about to take the next one.
        for slab in 0..(high + 1).min(SLABS_MAX as u32) {
            let s = &self.slabs[slab as usize];
            if s.refers(proc) && s.state.load(Ordering::Acquire) == slab_state::USED {
                on(slab);
            } else {
                gone |= self.drop_slab(slab, proc);
            }
        }
        gone
    }

    /// Agent: whether the slab is released. Two processes may drop their references at the same time and both find it
    /// unused; the slower one then releases a slab that has an owner again. Such a slab is put back.
    pub fn is_released(&self, slab: u32) -> bool {
        let Some(s) = self.slabs.get(slab as usize) else {
            return false;
        };
        let turn = |from, to| {
            s.state
                .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        };
        for _ in 0..PUT_BACK_TRIES {
            if s.state.load(Ordering::SeqCst) != slab_state::RELEASED {
                return false;
            }
            if s.is_unused() {
                return true;
            }
            turn(slab_state::RELEASED, slab_state::USED);
            // A process that dropped the last reference just now found it released.
            if s.is_unused() {
                turn(slab_state::USED, slab_state::RELEASED);
            }
        }
        false
    }

    /// Agent: donors' copies of a released slab have been freed.
    pub fn slab_freed(&self, slab: u32) {
        let Some(s) = self.slabs.get(slab as usize) else {
            return;
        };
        for seal in &self.seals[slab as usize * SLAB_EXTENTS..][..SLAB_EXTENTS] {
            if seal.load(Ordering::Relaxed) != 0 {
                seal.store(0, Ordering::Relaxed);
            }
        }
        s.freed(&self.slabs_used);
    }
}

/// Counts one more used slab; false, with no intermediate count visible, when there are `max`.
pub fn count_slab(used: &AtomicI64, max: i64) -> bool {
    let more = |n: i64| (n < max).then_some(n + 1);
    used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
        .is_ok()
}

impl Slab {
    /// A free slab.
    #[cfg(feature = "shuttle")]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Slab {
        Slab {
            state: AtomicU32::new(slab_state::FREE),
            holds: AtomicU32::new(0),
            refs: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
    /// Agent: donors' copies of the slab have been freed, if it was released. A process that sees that the slab can be
    /// taken no longer finds it counted in `used`.
    pub fn freed(&self, used: &AtomicI64) {
        // Only the agent leaves this state.
        if self.state.load(Ordering::Acquire) == slab_state::RELEASED {
            used.fetch_sub(1, Ordering::AcqRel);
            self.state.store(slab_state::FREE, Ordering::Release);
        }
    }
    /// Whether process `proc` refers to it.
    pub fn refers(&self, proc: usize) -> bool {
        self.refs[proc / 64].load(Ordering::Acquire) & 1 << (proc % 64) != 0
    }
    fn is_unused(&self) -> bool {
        self.holds.load(Ordering::SeqCst) == 0
            && self.refs.iter().all(|w| w.load(Ordering::SeqCst) == 0)
    }
    /// In a process about to fork: the child will refer to it. Ended by [`Slab::inherit`] in the child, or by
    /// [`Slab::unhold`] in the parent when the fork fails.
    pub fn hold(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
    }
    /// In the child, which is process `proc`: takes its reference.
    pub fn inherit(&self, proc: usize) {
        self.refs[proc / 64].fetch_or(1 << (proc % 64), Ordering::SeqCst);
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }
    /// The fork failed: ends the hold.
    pub fn unhold(&self) {
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use slab_state::{FREE, RELEASED, USED};
    use std::vec;
    use std::vec::Vec;

    fn far() -> &'static Far {
        let (_, far) = crate::tenant();
        far.slabs_max.store(3, Ordering::Relaxed);
        far
    }

    fn state(far: &Far, slab: u32) -> u32 {
        far.slabs[slab as usize].state.load(Ordering::Relaxed)
    }

    #[test]
    fn a_slab_is_free_again_when_the_last_reference_and_the_agent_are_done() {
        let far = far();
        let slab = far.take_slab(70).unwrap();
        let s = &far.slabs[slab as usize];
        let others = |proc| {
            let mut seen = Vec::new();
            (far.others(slab, proc, |b| seen.push(b)), seen)
        };
        assert!(s.refers(70) && !s.refers(71));
        assert_eq!((others(70), others(71)), ((true, vec![]), (true, vec![0])));
        s.hold();
        assert_eq!(others(70), (false, vec![]), "a child is on its way");
        assert!(!far.drop_process(70), "the child will refer to it");
        far.set_born(3, 17);
        s.inherit(3);
        assert_eq!((others(3), others(70)), ((true, vec![]), (true, vec![17])));
        assert_eq!(state(far, slab), USED);
        assert!(far.drop_process(3));
        assert_eq!(state(far, slab), RELEASED);
        assert_eq!(far.released.load(Ordering::Relaxed), 1);
        far.seals[slab as usize * SLAB_EXTENTS + 5].store(9, Ordering::Relaxed);
        far.slab_freed(slab);
        assert_eq!(state(far, slab), FREE);
        assert_eq!(
            far.seals[slab as usize * SLAB_EXTENTS + 5].load(Ordering::Relaxed),
            0
        );
        assert_eq!(far.slabs_used.load(Ordering::Relaxed), 0);
        far.slab_freed(slab);
        assert_eq!(far.slabs_used.load(Ordering::Relaxed), 0, "once only");
    }

    /// A process that drops its reference is stopped before it releases the slab, until the slab has another owner.
    #[test]
    fn a_late_release_of_a_slab_that_is_used_again_is_put_right() {
        let far = far();
        let slab = far.take_slab(5).unwrap();
        let s = &far.slabs[slab as usize];
        assert!(!far.is_released(slab));
        assert!(far.drop_slab(slab, 5));
        assert!(far.is_released(slab));
        far.slab_freed(slab);
        assert_eq!(far.take_slab(6), Some(slab));
        s.state.store(RELEASED, Ordering::Relaxed);
        assert!(!far.is_released(slab));
        assert_eq!(state(far, slab), USED);
        assert!(far.drop_slab(slab, 6));
        assert!(far.is_released(slab));
    }

    #[test]
    fn slabs_of_a_killed_process_are_its_successors_or_nobodys() {
        let far = far();
        let refer = |slab: usize, proc| far.slabs[slab].refs[0].store(proc, Ordering::Relaxed);
        let take_over = || {
            let mut got = Vec::new();
            (far.take_over_slabs(4, |slab| got.push(slab)), got)
        };
        assert_eq!([far.take_slab(4), far.take_slab(4)], [Some(0), Some(1)]);
        // It had dropped its reference to the second, and not notified the agent; it was about to take the third.
        refer(1, 0);
        refer(2, 1 << 4);
        assert_eq!(take_over(), (true, vec![0]));
        assert_eq!(
            [0, 1, 2].map(|slab| state(far, slab)),
            [USED, RELEASED, FREE]
        );
        far.slab_freed(1);
        assert_eq!([far.take_slab(4), far.take_slab(4)], [Some(1), Some(2)]);
        // It had taken the fourth, and not updated `slabs_high`.
        refer(3, 1 << 4);
        far.slabs[3].state.store(USED, Ordering::Relaxed);
        assert_eq!(take_over(), (false, vec![0, 1, 2, 3]));
        assert_eq!(far.slabs_high.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn forks_are_numbered_from_one_and_never_from_zero_again() {
        let far = far();
        assert_eq!([far.number_fork(), far.number_fork()], [1, 2]);
        far.forks.store(u32::MAX - 1, Ordering::Relaxed);
        assert_eq!([far.number_fork(), far.number_fork()], [u32::MAX; 2]);
    }

    #[test]
    fn the_limit_holds() {
        let far = far();
        let got: Vec<_> = (0..4).map(|_| far.take_slab(0)).collect();
        assert_eq!(got, [Some(0), Some(1), Some(2), None]);
        assert!(far.drop_slab(1, 0));
        assert_eq!(far.take_slab(0), None, "still with the agent");
        far.slab_freed(1);
        assert_eq!(far.take_slab(9), Some(1));
    }

    #[test]
    fn a_notification_wakes_a_sleeper_once_and_is_never_lost() {
        let far = far();
        assert!(!far.notify(5), "awake");
        assert!(!far.about_to_sleep(), "something was posted");
        let mut who = Vec::new();
        assert!(far.take_notified(|p| who.push(p)));
        assert_eq!(who, [5]);
        assert!(far.about_to_sleep());
        assert!(far.notify(64), "asleep: wake it");
        assert!(!far.notify(1023), "woken already");
        who.clear();
        far.take_notified(|p| who.push(p));
        assert_eq!(who, [64, 1023]);
        assert!(!far.take_notified(|_| ()));
    }
}
