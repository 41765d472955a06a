//! Native memory that does not fit leaves through the kernel, where the host has swap.
//!
//! While native memory is in the way ([`canvas_pager::native`]), the reclaim thread walks the process's private
//! mappings, some pages at each of its looks, and has the kernel page them out. A page that is used comes back
//! by itself. What a fault may need of canvas's own stays ([`own`]), and so do the main thread's stack, pages that
//! relatives share (nothing would be freed), and locked memory, which the kernel refuses.

use canvas_pager::native::{PAUSE_MIN_NS, ROUND_PAGES, pause_after};
use canvas_shm::Counter;
use canvas_sys::pagemap::{EXCLUSIVE, OF_FILE, PRESENT, Pagemap, Run};
use canvas_sys::{mem, proc};
use canvas_types::PAGE_SIZE;
use canvas_types::procfs::{self, Mapping};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use crate::base::{fds, lines::Lines, own, state};
use crate::paging::accounting;

/// Pages that one look gives the kernel at most. The program's mapping calls may wait for as long as that takes.
const STEP_PAGES: usize = 256;
/// Pages that are there, and looked at for that.
const LOOK_PAGES: usize = 4096;
/// Of a kernel that does not skip empty space by itself (before Linux 6.7), larger mappings are left alone.
const UNSEEN_BYTES: usize = 4 << 30;

/// A filter of the program's forbids the calls that this takes. Filters stay for ever.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// The program has locked all its memory.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// The round that goes on: where it is, what it may still give, what it has given.
static CURSOR: AtomicUsize = AtomicUsize::new(0);
static BEGAN_AT: AtomicUsize = AtomicUsize::new(0);
static TO_GIVE: AtomicI64 = AtomicI64::new(0);
static GIVEN: AtomicI64 = AtomicI64::new(0);
/// Pages of this process in the host's swap when the last round ended.
static SWAPPED: AtomicI64 = AtomicI64::new(0);
static PAUSE_NS: AtomicU64 = AtomicU64::new(PAUSE_MIN_NS);
static NEXT_NS: AtomicU64 = AtomicU64::new(0);

/// The program's filter forbids it from now on.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// The program locks all of its memory, or lifts that: then none of it leaves.
pub fn lock(locked: bool) {
    LOCKED.store(locked, Ordering::Relaxed);
}

/// In a fork's child: locks are not inherited, and the round is the parent's.
pub fn after_fork_in_child() {
    lock(false);
    for n in [&TO_GIVE, &GIVEN, &SWAPPED] {
        n.store(0, Ordering::Relaxed);
    }
    CURSOR.store(0, Ordering::Relaxed);
    PAUSE_NS.store(PAUSE_MIN_NS, Ordering::Relaxed);
    NEXT_NS.store(0, Ordering::Relaxed);
}

/// The reclaim thread's look, and nobody else's.
pub fn look(now: u64) {
    let seg = state::seg();
    if seg.native_in_the_way.load(Ordering::Relaxed) == 0
        || now < NEXT_NS.load(Ordering::Relaxed)
        || !seg.config.native_swap()
        || FORBIDDEN.load(Ordering::Relaxed)
        || LOCKED.load(Ordering::Relaxed)
    {
        return;
    }
    if TO_GIVE.load(Ordering::Relaxed) <= 0 && !begin_round(now) {
        return;
    }
    let most = TO_GIVE.load(Ordering::Relaxed).min(STEP_PAGES as i64);
    let Some(step) = Step::new(most as usize) else {
        return end_round(now);
    };
    let from = CURSOR.load(Ordering::Relaxed);
    let step = step.walk(from);
    state::count(Counter::NativeOut, step.given as u64);
    // The next measurement has the last word.
    accounting::expect_native(-step.given);
    GIVEN.fetch_add(step.given, Ordering::Relaxed);
    let left = TO_GIVE.fetch_sub(step.given, Ordering::Relaxed) - step.given;
    CURSOR.store(step.next.unwrap_or(0), Ordering::Relaxed);
    if step.next.is_none() || left <= 0 {
        end_round(now);
    }
}

/// False when it is not time for one: most of what left in the last one is back, or there is no swap.
fn begin_round(now: u64) -> bool {
    let pause = |ns| NEXT_NS.store(now + ns, Ordering::Relaxed);
    if free_swap_pages() < ROUND_PAGES {
        pause(PAUSE_MIN_NS);
        return false;
    }
    let given = GIVEN.swap(0, Ordering::Relaxed);
    if given > 0 {
        let back = (SWAPPED.load(Ordering::Relaxed) - swapped_pages()).max(0);
        let ns = pause_after(PAUSE_NS.load(Ordering::Relaxed), given, back);
        PAUSE_NS.store(ns, Ordering::Relaxed);
        if ns > PAUSE_MIN_NS {
            pause(ns - PAUSE_MIN_NS);
            return false;
        }
    }
    BEGAN_AT.store(CURSOR.load(Ordering::Relaxed), Ordering::Relaxed);
    TO_GIVE.store(ROUND_PAGES, Ordering::Relaxed);
    true
}

fn end_round(now: u64) {
    TO_GIVE.store(0, Ordering::Relaxed);
    SWAPPED.store(swapped_pages(), Ordering::Relaxed);
    if GIVEN.load(Ordering::Relaxed) > 0 {
        NEXT_NS.store(now + PAUSE_MIN_NS, Ordering::Relaxed);
    } else if BEGAN_AT.load(Ordering::Relaxed) == 0 {
        // Nothing, from the first mapping to the last.
        let ns = pause_after(PAUSE_NS.load(Ordering::Relaxed), 0, 0);
        PAUSE_NS.store(ns, Ordering::Relaxed);
        NEXT_NS.store(now + ns, Ordering::Relaxed);
    }
}

fn swapped_pages() -> i64 {
    accounting::anonymous_pages().map_or(0, |(_, swapped)| swapped)
}

/// What the host's swap has room for; 0 without swap.
fn free_swap_pages() -> i64 {
    let mut buf = [0u8; 2048];
    let read = proc::read_file(c"/proc/meminfo", &mut buf).unwrap_or(0);
    let bytes = procfs::memory_bytes(&buf[..read], "SwapFree").unwrap_or(0);
    (bytes / PAGE_SIZE as u64) as i64
}

/// A part of a round.
struct Step {
    map: ManuallyDrop<Pagemap>,
    /// Pages that it may still give.
    left: usize,
    /// Pages that it may still look at.
    looks: usize,
    given: i64,
    /// Where the next one goes on; `None` when this one has come to the end.
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

    /// Goes through the mappings from `from` on, as far as it may.
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

    /// Gives what it can of `start..end`; returns up to where it has come.
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

    /// Gives what it can of up to 64 pages from `at` on; returns how many it has gone through, `None` when the
    /// kernel refuses.
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
            // SAFETY: advice that changes no contents: what is touched comes back as it was.
            let advised =
                unsafe { mem::advise(at + first * PAGE_SIZE, n * PAGE_SIZE, libc::MADV_PAGEOUT) };
            advised.ok()?;
            self.left -= n;
            self.given += self.gone(at + first * PAGE_SIZE, n);
            first += n;
        }
        Some(first)
    }

    /// How many of `n` pages that were there are there no more.
    fn gone(&self, at: usize, n: usize) -> i64 {
        let mut entries = [0u64; 64];
        let seen = self.map.read(at, &mut entries[..n]);
        let gone = entries[..seen].iter().filter(|e| *e & PRESENT == 0);
        gone.count() as i64
    }
}

/// Private memory that is not for something of the kernel's. The main thread's stack is in use at its upper end,
/// and what of it is not cannot be told.
fn may_leave(m: &Mapping) -> bool {
    let special = m.name.first() == Some(&b'[');
    m.is_private && (!special || m.name == b"[heap]" || m.name.starts_with(b"[anon"))
}
