//! The partition, as this process maps it: its files, what the processes share, and the word of their lock.

use canvas_core::pager::shared::{Journal, Partition};
use canvas_shm::segment::shared_fd;
use canvas_shm::shared::{Control, Map, Proc};
use canvas_sys::shmem;
use canvas_types::PAGE_SIZE;
use canvas_types::layout::shared_base;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::paging::regions::Lists;
use crate::runtime::{fds, fds::Fd, state};

state! {
    /// This process among those that share the partition.
    pub(super) static MEMBER: Member {
        /// Whether this process maps the partition.
        pub(super) on: AtomicBool = AtomicBool::new(false),
        /// Where the control file is mapped.
        pub(super) control: AtomicUsize = AtomicUsize::new(0),
        /// This process's number, and what it writes into the lock.
        pub(super) number: AtomicUsize = AtomicUsize::new(0),
        pub(super) lock: AtomicU64 = AtomicU64::new(0),
    }
}

/// Whether shared memory is managed here.
#[inline(always)]
pub fn is_on() -> bool {
    MEMBER.on.load(Ordering::Relaxed)
}

/// The control file.
pub fn map() -> Map {
    // SAFETY: before anything calls this, `members::start` has mapped all of the file there, shared and writable, for good.
    unsafe { Map::at(MEMBER.control.load(Ordering::Relaxed)) }
}

/// The state that the processes share.
pub fn control() -> &'static Control {
    map().control()
}

/// One of our descriptors ([`shared_fd`]).
pub fn fd(which: usize) -> i32 {
    fds::get(Fd::Shared(which)).unwrap_or(-1)
}

/// This process's number.
pub fn me() -> usize {
    MEMBER.number.load(Ordering::Relaxed)
}

/// This process's entry.
pub fn my_proc() -> &'static Proc {
    &control().procs[me()]
}

/// One past the highest page that was ever in a region.
pub fn end() -> u32 {
    control().end.load(Ordering::Acquire)
}

/// The partition's pages.
pub fn partition() -> Partition<'static> {
    let c = control();
    Partition {
        words: map().words(),
        journal: Journal {
            phase: &c.phase,
            count: &c.victims,
            pages: &c.pages[..(c.pipe_pages.load(Ordering::Relaxed) as usize).min(c.pages.len())],
        },
        hand: &c.hand,
        copies_hand: &c.copies_hand,
    }
}

/// The address of a page.
pub fn addr_of(page: u32) -> usize {
    shared_base() + page as usize * PAGE_SIZE
}

/// The page that contains an address of the partition.
pub fn page_of(addr: usize) -> u32 {
    ((addr - shared_base()) / PAGE_SIZE) as u32
}

/// Resident pages, as the kernel counts them.
pub fn resident() -> i64 {
    shmem::pages(fd(shared_fd::PARTITION)).map_or(0, |n| n as i64)
}

/// Pages that may be resident: `--shared`, or what the host's agent grants of it.
pub fn limit() -> i64 {
    (state::seg().shared).limit_pages(control().limit_pages.load(Ordering::Relaxed))
}

/// Pages that may come in beside a faulting one without an eviction: a part of the room left, because other processes
/// may do the same.
pub fn room() -> u32 {
    let left = limit() - resident() - 1;
    u32::try_from(left / 4).unwrap_or(0)
}

/// Whether the page may be touched.
pub fn is_readable(g: &Lists, page: u32) -> bool {
    g.partition.at(page).is_some_and(|r| r.attr.prot != 0)
}

/// The lock on eviction, regions and the store, between all processes of the tenant.
pub struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        control().lock.store(0, Ordering::SeqCst);
    }
}

/// Takes the lock from `holder`, a dead process, or 0 where it is free.
pub(super) fn take_from(holder: u64) -> Option<Held> {
    let mine = MEMBER.lock.load(Ordering::Relaxed);
    let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
    let taken = control().lock.compare_exchange(holder, mine, order, failed);
    taken.is_ok().then(|| Held(()))
}

/// Takes the lock if it is free.
pub fn try_lock() -> Option<Held> {
    take_from(0)
}
