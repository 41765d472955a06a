//! Canvas's own memory in this process: where it lies, and how much there is.

use canvas_sys::pagemap::{EXCLUSIVE, Pagemap, Run};
use canvas_types::layout;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::runtime::fds;

/// Properties of an area, as bits.
pub mod kind {
    /// A fault may need it: it is never paged out by the kernel.
    pub const STAYS: u32 = 1;
    /// Its pages count as canvas's metadata.
    pub const COUNTS: u32 = 2;
}

struct Area {
    start: AtomicUsize,
    /// 0 until the area is recorded.
    end: AtomicUsize,
    kind: AtomicU32,
}

const AREAS: usize = 32;
/// Canvas's threads in a process: the reclaim thread, and the handlers of thread mode.
const STACKS: usize = 4;

state! {
    /// Where canvas's own memory lies.
    static OWN: Own {
        noted: [Area; AREAS] = [const { Area::new() }; AREAS],
        noted_count: AtomicUsize = AtomicUsize::new(0),
        stacks: [Area; STACKS] = [const { Area::new() }; STACKS],
        stacks_count: AtomicUsize = AtomicUsize::new(0),
        /// This process is a fork's child: pages that it has not written to since are shared with its parent and
        /// counted there.
        is_child: AtomicBool = AtomicBool::new(false),
    }
}

/// In a fork's child, which has none of its parent's threads.
pub fn after_fork_in_child() {
    OWN.is_child.store(true, Ordering::Relaxed);
    for area in &OWN.stacks {
        area.end.store(0, Ordering::Relaxed);
    }
    OWN.stacks_count.store(0, Ordering::Relaxed);
}

impl Area {
    const fn new() -> Area {
        Area {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            kind: AtomicU32::new(0),
        }
    }
    fn is(&self, bit: u32) -> bool {
        self.end.load(Ordering::Acquire) != 0 && self.kind.load(Ordering::Relaxed) & bit != 0
    }
    fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }
    fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }
}

fn note_in(areas: &[Area], count: &AtomicUsize, start: usize, bytes: usize, kind: u32) {
    if let Some(area) = areas.get(count.fetch_add(1, Ordering::Relaxed)) {
        area.start.store(start, Ordering::Relaxed);
        area.kind.store(kind, Ordering::Relaxed);
        area.end.store(start + bytes, Ordering::Release);
    }
}

/// Records an area; `kind` has bits of [`kind`]. For start-up.
pub fn note(start: usize, bytes: usize, kind: u32) {
    note_in(&OWN.noted, &OWN.noted_count, start, bytes, kind);
}

/// Records the areas at fixed addresses: the managed range, all that lies at an offset from it, and the call gate.
pub fn note_fixed() {
    let (window, tables) = (layout::window_base(), layout::tables(0));
    note(window, tables - window, kind::STAYS);
    note(tables, layout::META_BYTES, kind::STAYS | kind::COUNTS);
    note(
        layout::gate_page(),
        canvas_types::PAGE_SIZE,
        kind::STAYS | kind::COUNTS,
    );
}

/// Records the stack of a thread of canvas.
pub fn note_stack(start: usize, bytes: usize) {
    let kind = kind::STAYS | kind::COUNTS;
    note_in(&OWN.stacks, &OWN.stacks_count, start, bytes, kind);
}

fn areas(bit: u32) -> impl Iterator<Item = &'static Area> {
    let all = OWN.noted.iter().chain(&OWN.stacks);
    all.filter(move |area| area.is(bit))
}

/// The first part of `start..end` that the kernel may page out; `None` if there is none.
pub fn first_free(mut start: usize, mut end: usize) -> Option<(usize, usize)> {
    while start < end {
        let meets = |area: &&Area| area.start() < end && start < area.end();
        let Some(area) = areas(kind::STAYS).find(meets) else {
            return Some((start, end));
        };
        if area.start() <= start {
            start = area.end();
        } else {
            end = area.start();
        }
    }
    None
}

/// Pages of memory that canvas uses besides the program's pages and their copies: tables, stacks, its library's data,
/// code that it patched. `None` if the kernel cannot tell (before Linux 6.7).
pub fn resident_pages() -> Option<i64> {
    let map = fds::pagemap()?;
    let exclusive = OWN.is_child.load(Ordering::Relaxed);
    let mut pages = 0;
    for area in areas(kind::COUNTS) {
        let (mut at, end) = (area.start(), area.end());
        while at < end {
            let mut runs = [Run::default(); 32];
            let found = map.private_runs(at, end, usize::MAX >> 1, &mut runs).ok()?;
            for run in &runs[..found.runs] {
                pages += match exclusive {
                    true => exclusive_pages(&map, *run),
                    false => run.pages() as i64,
                };
            }
            if found.until <= at {
                break;
            }
            at = found.until;
        }
    }
    Some(pages)
}

fn exclusive_pages(map: &Pagemap, run: Run) -> i64 {
    let (mut pages, mut at) = (0, 0);
    while at < run.pages() {
        let mut entries = [0u64; 64];
        let n = entries.len().min(run.pages() - at);
        let seen = map.read(
            run.start() + at * canvas_types::PAGE_SIZE,
            &mut entries[..n],
        );
        let exclusive = |e: &&u64| **e & EXCLUSIVE != 0;
        pages += entries[..seen].iter().filter(exclusive).count() as i64;
        at += n;
    }
    pages
}
