//! Implements what the pager ([`canvas_core::vm`]) requires of the kernel and of the process.

use canvas_core::pager::prefetch::{Advice, Area};
use canvas_core::pager::slot::SlotTable;
use canvas_core::pager::table::PageTable;
use canvas_core::pager::writes::Writes;
use canvas_core::swap::LoadError;
use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_core::vm::context::Batch;
use canvas_core::vm::context::Fill;
use canvas_core::vm::fault::ZERO_PAGES;
use canvas_core::vm::{
    Claim, Copied, Discarded, FarFull, Held, Kernel, Process, Range, Report, Source, State, Stop,
};
use canvas_shm::slow::Cause;
use canvas_shm::{ProcSlot, Segment, lend};
use canvas_sys::{Errno, gate, mem, proc};
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::{PAGE_SIZE, PageBuf, PageId};
use core::mem::{align_of, size_of};
use core::ops::DerefMut;
use core::sync::atomic::Ordering;

use crate::own_memory::areas;
use crate::paging::{accounting, cache, context, discard, fork_accounting, regions, slow, touched};
use crate::report;
use crate::runtime::{
    state,
    state::{PROCESS, uffd},
    thread,
};
use crate::tenant::{members, smaps};

const _: () = assert!(ZERO_PAGES as usize <= areas::ZERO_PAGES);
const _: () = assert!(
    size_of::<Range>() == size_of::<libc::iovec>()
        && align_of::<Range>() == align_of::<libc::iovec>(),
    "discard passes ranges to the kernel as they are"
);

impl Kernel for state::Process {
    #[inline]
    fn now_ns(&self) -> u64 {
        proc::now_ns()
    }
    fn sleep(&self, ns: u64) {
        gate::wait(ns);
    }
    fn sleep_holding(&self, ns: u64) {
        proc::sleep_ns(ns);
    }
    fn during<R>(&self, cause: Cause, f: impl FnOnce() -> R) -> R {
        slow::during(cause, f)
    }
    fn yield_to_page() {
        slow::yield_to_page();
    }
    fn yield_to_chunk() {
        slow::yield_to_chunk();
    }
    fn yield_now() {
        gate::yield_now();
    }
    #[inline]
    fn copy_in(&self, to: Held, from: Source<'_>, protect: bool) -> Copied {
        let src = match from {
            Source::Zeros => areas::zeros(),
            Source::Slot(slot) => cache::buffer(slot),
            Source::Staged(pages) => pages.as_ptr() as usize,
        };
        // SAFETY: the words of these pages are in our busy state (`Held`); the source is memory of canvas's own,
        // present, and as long as the pages.
        let copied = unsafe { uffd().copy(to.first().addr(), src, to.bytes(), protect) };
        Copied {
            pages: copied.done_bytes / PAGE_SIZE,
            stopped: copied.stopped.map(stop),
        }
    }
    #[inline]
    fn copy_out(&self, page: Held, slot: u32) {
        // SAFETY: the page is present and write-protected (its word is Evicting in our hands, and pages that cannot be
        // read are marked STUCK and never selected); the slot is ours alone.
        unsafe {
            core::ptr::copy_nonoverlapping(
                page.first().addr() as *const u8,
                cache::buffer(slot) as *mut u8,
                PAGE_SIZE,
            )
        };
    }
    fn protect(&self, pages: Held, on: bool) -> bool {
        // SAFETY: nobody else protects, discards or fills these pages meanwhile (`Held`); canvas's handlers resolve the
        // faults there.
        unsafe { uffd().write_protect(pages.first().addr(), pages.bytes(), on) }.is_ok()
    }
    fn discard(&self, ranges: &[Range]) -> Discarded {
        // SAFETY: a `Range` has the layout of an iovec (asserted above): an address and a length.
        let ranges = unsafe {
            core::slice::from_raw_parts(ranges.as_ptr().cast::<libc::iovec>(), ranges.len())
        };
        // SAFETY: the pager owns the contents of all pages of the ranges, and needs them no longer.
        let discard = || unsafe { discard::discard(ranges) };
        let (all, still_shared) = members::give_up_shared(|| smaps::shared_in(ranges), discard);
        Discarded { all, still_shared }
    }
    fn discard_page(&self, page: Held) -> bool {
        // SAFETY: the page's word is in our busy state (`Held`), and its contents are copied or clean.
        unsafe { mem::advise(page.first().addr(), page.bytes(), libc::MADV_DONTNEED) }.is_ok()
    }
    fn is_present(&self, page: PageId) -> bool {
        regions::is_present(page)
    }
    fn wake(&self, ranges: &[Range]) {
        if PROCESS.in_thread_mode() {
            for r in ranges {
                uffd().wake(r.addr(), r.bytes());
            }
        }
    }
    fn uncounted<R>(&self, touches: impl FnOnce() -> R) -> R {
        fork_accounting::without_copies(touches)
    }
}

/// Why the kernel stopped a copy.
fn stop(e: Errno) -> Stop {
    match e {
        Errno(libc::ENOENT) => Stop::Border,
        Errno(libc::EAGAIN) | Errno(libc::EINTR) => Stop::Again,
        Errno(libc::ENOMEM) => Stop::NoMemory,
        Errno(libc::EEXIST) => Stop::Present,
        Errno(_) => Stop::NotMapped,
    }
}

impl Process for state::Process {
    #[inline(always)]
    fn state(&self) -> &State {
        &PROCESS.pager
    }
    #[inline(always)]
    fn segment(&self) -> &Segment {
        state::seg()
    }
    #[inline(always)]
    fn slot(&self) -> &ProcSlot {
        state::slot()
    }
    #[inline(always)]
    fn table(&self) -> PageTable<'_> {
        areas::table()
    }
    #[inline(always)]
    fn cache(&self) -> SlotTable<'_> {
        cache::slots()
    }
    #[inline(always)]
    fn slot_page(&self, slot: u32) -> &PageBuf {
        // SAFETY: slot buffers are mapped for the life of the process, and a slot with a writer or taker is not written
        // to before both are done with it.
        unsafe { &*(cache::buffer(slot) as *const PageBuf) }
    }
    #[inline]
    fn fill_slot(&self, slot: u32, page: &PageBuf) {
        // SAFETY: the slot is its allocator's alone until it is filled, and no staging page is a slot's buffer.
        unsafe {
            core::ptr::copy_nonoverlapping(page.as_ptr(), cache::buffer(slot) as *mut u8, PAGE_SIZE)
        };
    }
    #[inline(always)]
    fn writes(&self) -> Writes<'_> {
        areas::writes()
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        thread::thread_hash()
    }
    fn has_forked(&self) -> bool {
        PROCESS.has_forked()
    }
    #[inline]
    fn fill(&self) -> impl DerefMut<Target = Fill> {
        context::fill()
    }
    fn batch(&self) -> impl DerefMut<Target = Batch> {
        context::reclaim()
    }
    fn lent(&self) -> Option<lend::Batch<'_>> {
        Some(state::slot().lend.batch())
    }
    fn slots_opened(&self, n: usize) {
        // The kernel copied nothing for them.
        PROCESS
            .faults_without_copy
            .fetch_add(n as u64, Ordering::Relaxed);
    }
    fn release_dead(&self, other: &ProcSlot) -> bool {
        members::release_gone(|s| core::ptr::eq(s, other))
    }
    fn wake_other(&self, other: &ProcSlot) {
        members::wake(other);
    }
    fn start_reclaimer(&self) {
        accounting::start_reclaimer();
    }
    fn wake_reclaimer(&self) {
        accounting::wake_reclaimer();
    }
    fn wait_for_step(&self) -> bool {
        wait_for_step()
    }
    fn claim_untouched(&self, page: PageId, ahead: u32, stride: i32) -> Option<Claim> {
        regions::claim_untouched(page, ahead, stride)
    }
    fn unclaim(&self, first: PageId, pages: usize) {
        touched::note_untouched(first.index() / BLOCK_PAGES, pages as u32);
    }
    #[inline]
    fn area_of(&self, page: PageId) -> Option<Area> {
        regions::area_of(page)
    }
    #[inline]
    fn advice(&self, page: PageId) -> Advice {
        regions::advice_of(page)
    }
    fn keep_charge(&self, pages: i64) {
        members::keep_charge(pages);
    }
    #[cold]
    fn report(&self, what: Report) {
        match what {
            Report::Damaged { page, why, is_last } => report!(
                "the far copy of page {:#x} does not verify ({}); the program gets SIGBUS{}",
                page.addr(),
                match why {
                    LoadError::Verify => "in the pool",
                    LoadError::NoCopy => "its entry has none",
                    LoadError::InFarTier(_) => "beyond the pool",
                },
                if is_last {
                    " (further ones are counted as verify_failures only)"
                } else {
                    ""
                }
            ),
            Report::Vanished { page, word } => report!(
                "page {:#x} (word {:#x}) vanished from memory; the program gets SIGBUS",
                page.addr(),
                word.0
            ),
            Report::FarFull(why) => report!("{}", far_full(why)),
        }
    }
}

fn far_full(why: FarFull) -> &'static str {
    match why {
        FarFull::HostShort => {
            "this host's memory is down to its reserve: the pool cannot grow, reclaim stops, and new memory is refused \
             with ENOMEM until there is more (or set a smaller -o host-reserve)"
        }
        FarFull::Stalled => {
            "too few donors or disks answer: changed pages stay in local memory, and new memory is refused with \
             ENOMEM until more do"
        }
        FarFull::NoMemory => {
            "this host has no memory left to commit: the pool cannot grow, reclaim stops, and new memory is refused with \
             ENOMEM until there is more (or raise vm.overcommit_ratio)"
        }
        FarFull::PoolFull => {
            "the pool is full: reclaim stops, and new memory is refused with ENOMEM (raise --pool or --local, or add --far)"
        }
        FarFull::AllFull => {
            "the pool and far memory are full: reclaim stops, and new memory is refused with ENOMEM (raise --pool, --far or --local)"
        }
    }
}

/// When the host is short of memory, the pool may grow only by a step at a time: asks the runner for the next step and
/// waits for it. Returns false if something else holds the pool back.
#[cold]
fn wait_for_step() -> bool {
    const MOST_NS: u64 = 200_000_000;
    let seg = state::seg();
    let next = seg.pool_bytes.load(Ordering::Relaxed) + SLAB_CHARGE_BYTES;
    if !seg.host.is_past_step(next) || next > seg.pool_bound() {
        return false;
    }
    let (until, seen) = (proc::now_ns() + MOST_NS, seg.host.looks());
    seg.host.want();
    proc::futex_wake(&seg.host.wanted, 1);
    loop {
        if seg.host.looks() != seen {
            return true;
        }
        let now = proc::now_ns();
        if now >= until {
            break;
        }
        slow::during(Cause::HostShort, || {
            proc::futex_wait(&seg.host.looks, seen, until - now);
        });
    }
    // No supervisor answers: overshooting by one step is better than refusing memory that exists.
    seg.host.forget_step();
    true
}
