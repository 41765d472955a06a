//! What the far tier stands on. All of it is known when the code is compiled: no call here is indirect.

use canvas_shm::Counter;
use canvas_shm::mailbox::{Ask, Mailbox, Status};
use canvas_swap::extent::EXTENT_BYTES;
use canvas_swap::extents::{ExtentBook, Slabs};
use canvas_swap::{LocalPool, Lz, PoolBudget, SlotMem};
use canvas_types::SwapEntry;
use canvas_types::sync::AtomicU32;

use crate::channel::Request;
use crate::state::State;

/// Where a page was when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// In local memory. Its entry may name a copy.
    Local,
    /// Only its stored copy exists. `beyond`: that is likely to lie beyond the pool; the pool's entry knows.
    Far {
        /// A hint.
        beyond: bool,
    },
    /// Elsewhere, or in the hands of another thread: not to be claimed.
    Other,
}

/// What a claimed page becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Becomes {
    /// What it was when it was looked at.
    AsBefore,
    /// Far, beyond the pool (or not worth being offered by [`Pages::oldest`] again).
    Beyond,
    /// Far, in the pool.
    InPool,
    /// Far, in the pool again with a neighbour: not the next to leave it.
    CameBack,
    /// Local, without a copy.
    NoCopy,
}

/// Who owns the pages: tells where they are, and gives them out to be worked on. Pages have numbers, which mean
/// nothing here.
pub trait Pages {
    /// A page's state at the moment when it was looked at.
    type Seen: Copy;
    /// Looks at a page; `None` when there is no such page.
    fn look(&self, page: u32) -> Option<Self::Seen>;
    /// The entry that names its copy.
    fn entry(seen: Self::Seen) -> SwapEntry;
    /// Where it was.
    fn whereabouts(seen: Self::Seen) -> Whereabouts;
    /// Takes the page into the caller's hands, out of those of all others, if it is as it was seen. It is local or
    /// far.
    fn claim(&self, page: u32, seen: Self::Seen) -> bool;
    /// Gives a claimed page back.
    fn publish(&self, page: u32, seen: Self::Seen, becomes: Becomes);
    /// Offers pages that are far and in the pool, those that left local memory longest ago first,
    /// until `take` returns false; that page is offered again. Looks at about `look_max` pages; without that bound it
    /// goes on until there is none of any age.
    fn oldest(&self, look_max: Option<usize>, take: impl FnMut(u32, Self::Seen) -> bool);
    /// Offers local pages whose entries name a copy until `take` returns false. Looks at about `look_max` pages.
    fn with_copies(&self, look_max: usize, take: impl FnMut(u32, Self::Seen) -> bool);
}

/// Whom to ask for room in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// The process that has the largest part of it, if that is larger than ours.
    Larger,
    /// The process that has the largest part of it, other than ours.
    Largest,
    /// All others that have any of it.
    All,
}

/// The process, and the tenant that it belongs to.
pub trait Host {
    /// Monotonic time.
    fn now_ns(&self) -> u64;
    /// Called while waiting long for another thread.
    fn yield_now();
    /// Sleeps, at least about so long.
    fn pause(&self, ns: u64);
    /// Counts.
    fn count(&self, counter: Counter, n: u64);
    /// Bytes of pool that the tenant has.
    fn pool_bytes(&self) -> i64;
    /// And may have now.
    fn pool_bound_bytes(&self) -> i64;
    /// And was promised.
    fn pool_asked_bytes(&self) -> u64;
    /// May a page that comes back into the pool keep its place beyond it as well?
    fn keeps_places(&self) -> bool;
    /// Asks other processes of the tenant to give back some of the pool. False when there is none to ask.
    fn ask_for_pool(&self, whom: Whom) -> bool;
    /// Pages cannot leave the pool; said at most once in a while.
    fn cannot_write(&self, why: Status);
}

/// A pool, and who owns its pages.
pub trait Owner: Pages + Host {
    /// The pool's compressor.
    type Lz: Lz;
    /// Its memory.
    type Mem: SlotMem;
    /// Its bound.
    type Budget: PoolBudget;
    /// The pool.
    fn pool(&self) -> &LocalPool<'_, Self::Lz, Self::Mem, Self::Budget>;
    /// The far tier's own.
    fn state(&self) -> &State;
}

/// The way to the agent. A request has a buffer, as long as an extent, which is the agent's while the request is
/// under way; a [`Request`] is one that is not.
pub trait Channel {
    /// Our requests.
    fn mailbox(&self) -> &Mailbox;
    /// Tells the agent that something was posted.
    fn ring(&self);
    /// The buffer of a request that has ended.
    fn read<R>(&self, of: &Request, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> R;
    /// The buffer of a request that is not yet posted.
    fn fill<R>(&self, of: &mut Request, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R;
    /// Copies bytes from `offset` on out of the buffer of a request that has ended.
    fn copy_out(&self, of: &Request, offset: usize, out: &mut [u8]);
    /// Reads a record without the agent, if there is a way, and puts its first bytes into `to`. What comes is what was
    /// written last, or nothing.
    fn read_directly(&self, _ask: &Ask, _to: &mut [u8]) -> bool {
        false
    }
    /// Sleeps while `word`, one of the mailbox, has `value`, and not much longer than `ns`.
    fn sleep(&self, word: &AtomicU32, value: u32, ns: u64);
    /// Lets another thread have this processor.
    fn give_way(&self);
    /// How long an answer is waited for.
    fn wait_ns_max(&self) -> u64;
    /// Part of the pool's bound, in percent, past which its oldest pages leave it.
    fn spill_percent(&self) -> u64;
    /// Bytes that come back with a page that is read beyond the pool ([`crate::unit`]); 0: as is learned.
    fn unit_bytes(&self) -> u64;
    /// It was learned that so many are best.
    fn note_unit(&self, bytes: u64);
    /// A page that was needed came after so long.
    fn note_read(&self, ns: u64);
    /// A page that was fetched ahead was asked for so long before its use.
    fn note_ahead(&self, ns: u64);
}

/// What lies beyond the pool.
pub trait Beyond: Channel {
    /// Whose pages are there.
    type Owner: Owner;
    /// The tenant's slabs.
    type Slabs: Slabs;
    /// The owner.
    fn owner(&self) -> &Self::Owner;
    /// Slabs as this process sees them.
    fn slabs(&self) -> Self::Slabs;
    /// Which extents this process uses.
    fn book(&self) -> ExtentBook<'_>;
    /// Slabs that the tenant uses, and that it may use.
    fn slabs_used_and_max(&self) -> (u64, u64);
}
