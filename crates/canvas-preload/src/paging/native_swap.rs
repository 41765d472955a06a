//! Pages out native memory that does not fit, through the kernel, if the host has swap.
//!
//! While native memory is in the way ([`canvas_core::pager::native`]), the reclaim thread walks the process's private
//! mappings, some pages per call, and has the kernel page them out. A page that is used comes back on its own. Excluded
//! are canvas's memory that a fault may need ([`own`]), the main thread's stack, pages that relatives share (nothing
//! would be freed), and locked memory, which the kernel refuses.

use canvas_core::pager::native::{PAUSE_NS, Pauses, ROUND_PAGES, judge};
use canvas_shm::Counter;
use canvas_sys::pagemap::{EXCLUSIVE, OF_FILE, PRESENT, Pagemap, Run};
use canvas_sys::{mem, proc};
use canvas_types::PAGE_SIZE;
use canvas_types::procfs::{self, Mapping};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use crate::own_memory::own;
use crate::paging::accounting;
use crate::runtime::{fds, lines::Lines, state};

/// Pages that one call pages out at most. The program's mapping calls may wait for as long as that takes.
const STEP_PAGES: usize = 256;
/// Present pages that one call examines.
const LOOK_PAGES: usize = 4096;
/// On kernels that do not skip empty space on their own (before Linux 6.7), mappings larger than this are skipped.
const UNSEEN_BYTES: usize = 4 << 30;

state! {
    static SWAP: NativeSwap {
        /// A seccomp filter of the program forbids the calls that this needs. Filters are never removed.
        forbidden: AtomicBool = AtomicBool::new(false),
        /// The program has locked all its memory.
        locked: AtomicBool = AtomicBool::new(false),
        /// Where the current round is, and where it began.
        at: AtomicUsize = AtomicUsize::new(0),
        began_at: AtomicUsize = AtomicUsize::new(0),
        /// How many pages it may still page out, and how many it has.
        to_give: AtomicI64 = AtomicI64::new(0),
        given: AtomicI64 = AtomicI64::new(0),
        /// Pages of this process in the host's swap when the last round ended.
        swapped: AtomicI64 = AtomicI64::new(0),
        pauses: Pauses = Pauses::new(0),
    }
}

/// In a fork's child: locks are not inherited, and the round is the parent's.
pub fn after_fork_in_child() {
    lock(false);
    for n in [&SWAP.to_give, &SWAP.given, &SWAP.swapped] {
        n.store(0, Ordering::Relaxed);
    }
    SWAP.at.store(0, Ordering::Relaxed);
    SWAP.pauses.succeeded();
    SWAP.pauses.pause_until(0);
}

/// Turns this off for good: a filter of the program forbids it from now on.
pub fn forbid() {
    SWAP.forbidden.store(true, Ordering::Relaxed);
}

/// Records that the program has locked all of its memory, so that none of it may leave, or has unlocked it.
pub fn lock(locked: bool) {
    SWAP.locked.store(locked, Ordering::Relaxed);
}

/// Runs a part of a round if it is time for one. Only the reclaim thread calls this.
pub fn look(now: u64) {
    let seg = state::seg();
    if seg.native_in_the_way.load(Ordering::Relaxed) == 0
        || SWAP.pauses.is_paused(now)
        || !seg.config.native_swap()
        || SWAP.forbidden.load(Ordering::Relaxed)
        || SWAP.locked.load(Ordering::Relaxed)
    {
        return;
    }
    if SWAP.to_give.load(Ordering::Relaxed) <= 0 && !begin_round(now) {
        return;
    }
    let most = SWAP.to_give.load(Ordering::Relaxed).min(STEP_PAGES as i64);
    let Some(step) = Step::new(most as usize) else {
        return end_round(now);
    };
    let from = SWAP.at.load(Ordering::Relaxed);
    let step = step.walk(from);
    state::count(Counter::NativeOut, step.given as u64);
    // An estimate, which the next measurement corrects.
    accounting::expect_native(-step.given);
    SWAP.given.fetch_add(step.given, Ordering::Relaxed);
    let left = SWAP.to_give.fetch_sub(step.given, Ordering::Relaxed) - step.given;
    SWAP.at.store(step.next.unwrap_or(0), Ordering::Relaxed);
    if step.next.is_none() || left <= 0 {
        end_round(now);
    }
}

/// Begins a round. Returns false if it is too early: most of what the last round paged out is back, or there is no
/// swap.
fn begin_round(now: u64) -> bool {
    if free_swap_pages() < ROUND_PAGES {
        SWAP.pauses.pause_until(now + PAUSE_NS);
        return false;
    }
    let given = SWAP.given.swap(0, Ordering::Relaxed);
    if given > 0 {
        let back = (SWAP.swapped.load(Ordering::Relaxed) - swapped_pages()).max(0);
        judge(&SWAP.pauses, given, back, now - PAUSE_NS);
        if SWAP.pauses.is_paused(now) {
            return false;
        }
    }
    SWAP.began_at
        .store(SWAP.at.load(Ordering::Relaxed), Ordering::Relaxed);
    SWAP.to_give.store(ROUND_PAGES, Ordering::Relaxed);
    true
}

fn end_round(now: u64) {
    SWAP.to_give.store(0, Ordering::Relaxed);
    SWAP.swapped.store(swapped_pages(), Ordering::Relaxed);
    if SWAP.given.load(Ordering::Relaxed) > 0 {
        SWAP.pauses.pause_until(now + PAUSE_NS);
    } else if SWAP.began_at.load(Ordering::Relaxed) == 0 {
        // A whole pass over all mappings paged out nothing.
        judge(&SWAP.pauses, 0, 0, now);
    }
}

fn swapped_pages() -> i64 {
    accounting::anonymous_pages().map_or(0, |(_, swapped)| swapped)
}

/// Pages that the host's swap has room for; 0 without swap.
fn free_swap_pages() -> i64 {
    let mut buf = [0u8; 2048];
    let read = proc::read_file(c"/proc/meminfo", &mut buf).unwrap_or(0);
    let bytes = procfs::memory_bytes(&buf[..read], "SwapFree").unwrap_or(0);
    (bytes / PAGE_SIZE as u64) as i64
}

/// A part of a round.
struct Step {
    map: ManuallyDrop<Pagemap>,
    /// Pages that it may still page out.
    left: usize,
    /// Pages that it may still examine.
    looks: usize,
    given: i64,
    /// Where the next step continues; `None` when this one has reached the end.
    next: Option<usize>,
}

impl Step {
    fn new(most: usize) -> Option<Step> {
        Some(Step {
            map: fds::pagemap()?,
            left: most,
            looks: LOOK_PAGES,
            given: 0,
            next: None,
        })
    }

    /// Walks the mappings from `from` on, within its limits.
    fn walk(mut self, from: usize) -> Step {
        let Some(mut lines) = Lines::open(proc::pid(), b"maps") else {
            return self;
        };
        lines.each_while(|line| {
            let Some(m) = Mapping::parse(line).filter(|m| m.end > from && may_leave(m)) else {
                return true;
            };
            let mut at = m.start.max(from);
            while let Some((start, end)) = own::first_free(at, m.end) {
                at = self.part(start, end);
                if self.left == 0 || self.looks == 0 {
                    self.next = Some(at);
                    return false;
                }
            }
            true
        });
        self
    }

    /// Pages out what it can of `start..end`; returns where it stopped.
    fn part(&mut self, start: usize, end: usize) -> usize {
        let mut runs = [Run::default(); 16];
        let (found, until) = match self.map.private_runs(start, end, self.looks, &mut runs) {
            Ok(found) => (&runs[..found.runs], found.until),
            Err(_) if end - start > UNSEEN_BYTES => return end,
            Err(_) => {
                let pages = ((end - start) / PAGE_SIZE).min(self.looks);
                runs[0] = Run::new(start, pages);
                (&runs[..1], start + pages * PAGE_SIZE)
            }
        };
        for run in found {
            let mut done = 0;
            while done < run.pages() {
                if self.left == 0 || self.looks == 0 {
                    return run.start() + done * PAGE_SIZE;
                }
                let at = run.start() + done * PAGE_SIZE;
                let pages = (run.pages() - done).min(64).min(self.looks);
                self.looks -= pages;
                match self.give(at, pages) {
                    Some(seen) => done += seen,
                    // Locked, or of a kind that the kernel does not page out.
                    None => return end,
                }
            }
        }
        until.max(start + PAGE_SIZE)
    }

    /// Pages out what it can of up to 64 pages from `at` on. Returns how many it has gone through; `None` if the kernel
    /// refuses.
    fn give(&mut self, at: usize, pages: usize) -> Option<usize> {
        let mut entries = [0u64; 64];
        if self.map.read(at, &mut entries[..pages]) < pages {
            return None;
        }
        let can_leave = |e: u64| e & (PRESENT | EXCLUSIVE | OF_FILE) == PRESENT | EXCLUSIVE;
        let mut first = 0;
        while first < pages && self.left > 0 {
            let row = entries[first..pages].iter().take_while(|e| can_leave(**e));
            let n = row.count().min(self.left);
            if n == 0 {
                first += 1;
                continue;
            }
            // SAFETY: the advice changes no contents: what is touched comes back unchanged.
            let advised =
                unsafe { mem::advise(at + first * PAGE_SIZE, n * PAGE_SIZE, libc::MADV_PAGEOUT) };
            advised.ok()?;
            self.left -= n;
            self.given += self.gone(at + first * PAGE_SIZE, n);
            first += n;
        }
        Some(first)
    }

    /// How many of `n` pages that were present are so no longer.
    fn gone(&self, at: usize, n: usize) -> i64 {
        let mut entries = [0u64; 64];
        let seen = self.map.read(at, &mut entries[..n]);
        let gone = entries[..seen].iter().filter(|e| *e & PRESENT == 0);
        gone.count() as i64
    }
}

/// Whether the mapping is private memory without a special purpose. The main thread's stack is excluded: its upper end
/// is in use, and nothing tells how much.
fn may_leave(m: &Mapping) -> bool {
    let special = m.name.first() == Some(&b'[');
    m.is_private && (!special || m.name == b"[heap]" || m.name.starts_with(b"[anon"))
}
