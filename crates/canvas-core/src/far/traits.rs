//! What the far tier requires. All of it is known at compile time: no call here is indirect.

use crate::swap::extent::EXTENT_BYTES;
use crate::swap::extents::{ExtentBook, Slabs};
use crate::swap::{LocalPool, Lz, PoolBudget, SlotMem};
use canvas_shm::Counter;
use canvas_shm::mailbox::{Mailbox, RequestFields, Status};
use canvas_types::SwapEntry;
use canvas_types::sync::AtomicU32;

use crate::far::state::State;

/// Where a page was when its state was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageLocation {
    /// In local memory. Its entry may name a copy.
    Local,
    /// Only its stored copy exists. `in_far_tier`: that is probably in far memory; the pool's entry is authoritative.
    Far {
        /// A hint.
        in_far_tier: bool,
    },
    /// Elsewhere, or held by another thread: not to be claimed.
    Other,
}

/// What a claimed page becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageOutcome {
    /// As it was.
    Unchanged,
    /// Far, in far memory (or not to be offered by [`Pages::oldest`] again).
    InFarTier,
    /// Far, in the pool.
    InPool,
    /// Far, in the pool again because it came with a neighbour: not the next one to be demoted.
    PromotedAhead,
    /// Local, without a copy.
    NoCopy,
}

/// The owner of the pages: knows where they are, and lets a thread claim them. Pages have numbers, which mean nothing
/// here.
pub trait Pages {
    /// A page's state at the moment when it was read.
    type Seen: Copy;
    /// Reads a page's state; `None` when there is no such page.
    fn read_state(&self, page: u32) -> Option<Self::Seen>;
    /// The entry that names its copy.
    fn entry(seen: Self::Seen) -> SwapEntry;
    /// Where it was.
    fn location(seen: Self::Seen) -> PageLocation;
    /// Claims the page exclusively for the caller, if its state is still `seen`. It is local or far.
    fn claim(&self, page: u32, seen: Self::Seen) -> bool;
    /// Ends a claim.
    fn publish(&self, page: u32, seen: Self::Seen, outcome: PageOutcome);
    /// Offers pages that are far and in the pool, those evicted longest ago first, until `take` returns false; that
    /// page is offered again. Visits about `scan_max` pages; without that limit it continues until there are none of
    /// any age.
    fn oldest(&self, scan_max: Option<usize>, take: impl FnMut(u32, Self::Seen) -> bool);
    /// Offers local pages whose entries name a copy until `take` returns false. Visits about `scan_max` pages.
    fn with_copies(&self, scan_max: usize, take: impl FnMut(u32, Self::Seen) -> bool);
}

/// Which process to ask for room in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolPeer {
    /// The process with the largest part of it, if that is larger than this one's.
    Larger,
    /// The process with the largest part of it, other than this one.
    Largest,
    /// All other processes with any of it.
    All,
}

/// The process, and its tenant.
pub trait Host {
    /// Monotonic time in ns.
    fn now_ns(&self) -> u64;
    /// Called while waiting long for another thread.
    fn yield_now();
    /// Sleeps for at least about `ns`.
    fn pause(&self, ns: u64);
    /// Adds to a counter.
    fn count(&self, counter: Counter, n: u64);
    /// Pool size of the tenant, in bytes.
    fn pool_bytes(&self) -> i64;
    /// Pool limit in effect now, in bytes.
    fn pool_bound_bytes(&self) -> i64;
    /// Pool size the tenant was configured with, in bytes.
    fn pool_configured_bytes(&self) -> u64;
    /// Whether a page that is promoted into the pool may keep its far copy as well.
    fn keeps_far_copies(&self) -> bool;
    /// Asks other processes of the tenant to give back some of the pool. False when there are none.
    fn ask_for_pool(&self, peer: PoolPeer) -> bool;
    /// Logs that pages cannot be demoted; rate-limited.
    fn cannot_write(&self, why: Status);
}

/// A pool, and the owner of its pages.
pub trait Owner: Pages + Host {
    /// The pool's compressor.
    type Lz: Lz;
    /// The pool's memory.
    type Mem: SlotMem;
    /// The pool's limit.
    type Budget: PoolBudget;
    /// The pool.
    fn pool(&self) -> &LocalPool<'_, Self::Lz, Self::Mem, Self::Budget>;
    /// The far tier's state.
    fn state(&self) -> &State;
}

/// A request, with its buffer, that its holder owns exclusively: claimed and not posted yet, or ended and not released
/// yet. There is at most one for each index of the mailbox. (Another process of the tenant that broke this rule could
/// do anything to this one all the same: a tenant is one trust domain.)
#[derive(Debug)]
pub struct Request(pub(crate) usize);

impl Request {
    /// Its index in the mailbox.
    pub fn index(&self) -> usize {
        self.0
    }
    /// For request `i`, which has ended; the caller is the one that saw its end.
    pub(crate) fn ended(i: usize) -> Request {
        Request(i)
    }
}

/// The way to the agent. A request has a buffer as long as an extent, which the agent owns while the request is under
/// way; a [`Request`] is one that is not.
pub trait Channel {
    /// This process's mailbox.
    fn mailbox(&self) -> &Mailbox;
    /// Notifies the agent of a post.
    fn notify_agent(&self);
    /// Passes the buffer of a request that has ended to `on`.
    fn read<R>(&self, of: &Request, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> R;
    /// Passes the buffer of a request that is not posted yet to `on`.
    fn fill<R>(&self, of: &mut Request, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R;
    /// Copies bytes from `offset` on out of the buffer of a request that has ended.
    fn copy_out(&self, of: &Request, offset: usize, out: &mut [u8]);
    /// Reads a record without the agent, if possible, and puts its first bytes into `to`. The bytes are the last ones
    /// written; otherwise the result is false.
    fn read_directly(&self, _ask: &RequestFields, _to: &mut [u8]) -> bool {
        false
    }
    /// Sleeps while `word`, one of the mailbox's, has `value`, and not much longer than `ns`.
    fn sleep(&self, word: &AtomicU32, value: u32, ns: u64);
    /// Yields the processor to another thread.
    fn yield_cpu(&self);
    /// How long to wait for an answer, in ns.
    fn wait_ns_max(&self) -> u64;
    /// Percent of the pool's limit past which its oldest pages are demoted.
    fn demote_percent(&self) -> u64;
    /// Configured far read size in bytes ([`crate::far::unit`]); 0: as learned.
    fn unit_bytes(&self) -> u64;
    /// Reports the far read size currently chosen, in bytes.
    fn note_unit(&self, bytes: u64);
    /// Reports how long a demand read took, in ns.
    fn note_read(&self, ns: u64);
    /// Reports how long before its use a prefetched page was requested, in ns.
    fn note_ahead(&self, ns: u64);
}

/// Far memory.
pub trait FarStore: Channel {
    /// The owner of the pages.
    type Owner: Owner;
    /// The tenant's slabs.
    type Slabs: Slabs;
    /// The owner.
    fn owner(&self) -> &Self::Owner;
    /// Slabs, as this process sees them.
    fn slabs(&self) -> Self::Slabs;
    /// The extents that this process uses.
    fn book(&self) -> ExtentBook<'_>;
    /// Slabs that the tenant uses, and its limit.
    fn slabs_used_and_max(&self) -> (u64, u64);
    /// An entry no longer names the extent, or a request no longer needs it.
    fn unhold(&self, extent: u32) {
        self.book().unhold(extent, &self.slabs());
    }
}
