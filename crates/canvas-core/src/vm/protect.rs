//! Write-protects the victims of a batch with few TLB shootdowns.
//!
//! A shootdown costs the sender about 10 us and each interrupted CPU a few, whatever the number of pages. Victims are
//! scattered among pages that stay, so one protection call covers a *span*: from the first to the last victim of a
//! block. Three kinds of page lie between the victims:
//!
//! * absent ones, kept absent by the chunks' locks during the call;
//! * resident ones that stay, the *bystanders*: they are held Evicting like the victims until the victims are gone, and
//!   then released by one more call over the span;
//! * pages that cannot be held (pinned, locked, busy): the span ends before them.
//!
//! Only one reclaimer works on a block at a time: releasing a span must not release the victims of another.

use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::Ordering;

use super::context::{BYSTANDERS, Protected, SPANS};
use super::state::{BLOCK_LOCKS, CHUNK_LOCKS, State};
use super::{Held, Kernel, Process};
use crate::pager::clock::Run;
use crate::pager::locks::{Exclusive, Shared, SharedLock};
use crate::pager::table::CHUNK_PAGES;
use crate::pager::word::{self, State as At, flag};

/// A gap with more bystanders is not worth bridging: each costs two changes of its word.
const GAP_BYSTANDERS: u32 = 48;
const CHUNKS: usize = BLOCK_PAGES / CHUNK_PAGES;

fn lock_of(state: &State, page: PageId) -> &SharedLock {
    &state.chunks[(page.index() / CHUNK_PAGES) % CHUNK_LOCKS]
}

/// Locks the chunk of `page` for making its pages present. A fill holds the lock from before the copy until the page is
/// published: a page that became present in a span that is being protected would stay protected, and a write by the
/// kernel itself (a `read(2)` into a pinned page) would fail.
#[inline]
pub fn chunk<V: Kernel + Process>(vm: &V, page: PageId) -> Shared<'_> {
    lock_of(vm.state(), page).shared(V::yield_to_chunk)
}

impl Protected {
    /// Write-protects the runs in order. Calls `done` for each run that is protected (clean runs already are), and
    /// `refused` for each that is not, with whether the kernel was asked. Both kinds still belong to the caller. Call
    /// [`Protected::release`] once the protected pages have been discarded.
    pub(super) fn protect<V: Kernel + Process>(
        &mut self,
        vm: &V,
        runs: &[Run],
        mut done: impl FnMut(Run),
        mut refused: impl FnMut(Run, bool),
    ) {
        let block_of = |r: &Run| r.start.0 as usize / BLOCK_PAGES;
        let mut i = 0;
        while i < runs.len() {
            // If a chunk was selected twice its runs go backwards: start a new group there.
            let mut j = i + 1;
            while j < runs.len()
                && block_of(&runs[j]) == block_of(&runs[i])
                && runs[j].start.0 >= runs[j - 1].start.0 + runs[j - 1].len
            {
                j += 1;
            }
            let group = &runs[i..j];
            if group.iter().any(|r| !r.clean) && self.take_block(vm.state(), block_of(&runs[i])) {
                self.protect_group(vm, group, &mut done, &mut refused);
            } else {
                for r in group {
                    match r.clean {
                        true => done(*r),
                        false => refused(*r, false),
                    }
                }
            }
            i = j;
        }
    }

    /// Protects runs of one block, in ascending order.
    fn protect_group<V: Kernel + Process>(
        &mut self,
        vm: &V,
        runs: &[Run],
        done: &mut impl FnMut(Run),
        refused: &mut impl FnMut(Run, bool),
    ) {
        let end_of = |r: &Run| r.start.0 + r.len;
        let (low, high) = (runs[0].start.0, end_of(&runs[runs.len() - 1]) - 1);
        // Always upwards and within one block, so no two holders wait for each other.
        let mut held: [Option<Exclusive<'_>>; CHUNKS] = [const { None }; CHUNKS];
        for c in low as usize / CHUNK_PAGES..=high as usize / CHUNK_PAGES {
            let lock = lock_of(vm.state(), PageId((c * CHUNK_PAGES) as u32));
            held[c % CHUNKS] = Some(lock.exclusive(V::yield_now));
        }
        let mut k = 0;
        while k < runs.len() {
            if runs[k].clean {
                done(runs[k]);
                k += 1;
                continue;
            }
            let before = self.bystander_count;
            let room = self.span_count < SPANS;
            let mut last = k;
            // Clean runs in between are protected already, and gone before the span is released.
            while let Some(ahead) = runs[last + 1..].iter().position(|r| !r.clean)
                && self.bridge_all(vm, &runs[last..=last + 1 + ahead], room)
            {
                last += 1 + ahead;
            }
            let (first, end) = (runs[k].start.0, end_of(&runs[last]));
            if write_protect(vm, first, end, true) {
                runs[k..=last].iter().for_each(|r| done(*r));
                if self.bystander_count > before {
                    self.spans[self.span_count] = (first, end);
                    self.span_count += 1;
                }
            } else {
                // Something foreign lies in between, or the kernel refuses: protect run by run.
                for b in &self.bystanders[before..self.bystander_count] {
                    write_protect(vm, b.0, b.0 + 1, false);
                    stays(vm, *b, true);
                }
                self.bystander_count = before;
                for r in &runs[k..=last] {
                    if r.clean || last > k && write_protect(vm, r.start.0, end_of(r), true) {
                        done(*r);
                    } else {
                        write_protect(vm, r.start.0, end_of(r), false);
                        refused(*r, true);
                    }
                }
            }
            k = last + 1;
        }
    }

    /// Whether one call can also cover the gaps between these runs. If so, their resident pages are held.
    fn bridge_all(&mut self, vm: &impl Process, runs: &[Run], may_hold: bool) -> bool {
        let before = self.bystander_count;
        let all = runs
            .windows(2)
            .all(|r| self.bridge(vm, r[0].start.0 + r[0].len, r[1].start.0, may_hold));
        if !all {
            self.release_from(vm, before);
        }
        all
    }

    /// Releases the bystanders held from index `first` on, which were not protected.
    fn release_from(&mut self, vm: &impl Process, first: usize) {
        for b in &self.bystanders[first..self.bystander_count] {
            stays(vm, *b, false);
        }
        self.bystander_count = first;
    }

    /// Whether one call can also cover the pages `from..to`. If so, their resident pages are held; if not, some of them
    /// may be.
    fn bridge(&mut self, vm: &impl Process, from: u32, to: u32, may_hold: bool) -> bool {
        let before = self.bystander_count;
        for page in PageId::each(from..to) {
            if is_absent(vm, page) {
                continue;
            }
            let slot = vm.word(page);
            let w = word::load(slot);
            let ok = may_hold
                && self.bystander_count < BYSTANDERS
                && self.bystander_count - before < GAP_BYSTANDERS as usize
                && w.evictable()
                && word::transition(slot, w, w.with_state(At::Evicting));
            if !ok {
                return false;
            }
            self.bystanders[self.bystander_count] = page;
            self.bystander_count += 1;
        }
        true
    }

    /// Releases the bystanders after the victims are gone.
    pub(super) fn release(&mut self, vm: &(impl Kernel + Process)) {
        for (first, end) in &self.spans[..self.span_count] {
            write_protect(vm, *first, *end, false);
        }
        for b in &self.bystanders[..self.bystander_count] {
            stays(vm, *b, true);
        }
        (self.span_count, self.bystander_count) = (0, 0);
        for (i, bits) in self.blocks.iter_mut().enumerate() {
            let mut left = core::mem::take(bits);
            while left != 0 {
                let lock = i * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                vm.state().blocks[lock].store(false, Ordering::Release);
            }
        }
    }

    /// Takes the block's lock unless this batch holds it already; returns false if another batch holds it.
    fn take_block(&mut self, state: &State, block: usize) -> bool {
        let lock = block % BLOCK_LOCKS;
        if self.blocks[lock / 64] >> (lock % 64) & 1 != 0 {
            return true;
        }
        let taken = !state.blocks[lock].swap(true, Ordering::Acquire);
        if taken {
            self.blocks[lock / 64] |= 1 << (lock % 64);
        }
        taken
    }
}

/// Returns a held page to Resident. `released`: any protection was lifted.
fn stays(vm: &impl Process, page: PageId, released: bool) {
    let slot = vm.word(page);
    let mut back = word::load(slot).with_state(At::Resident);
    if released {
        back = back.clear(flag::PROTECTED);
    }
    word::publish(slot, back);
}

/// Whether a batch works on the page's block, or on one with the same lock: the span that it releases may cover the
/// page. The caller holds the lock of the page's chunk shared, so a batch that begins later finds the page resident.
pub(super) fn is_taken(vm: &impl Process, page: PageId) -> bool {
    vm.state().blocks[page.index() / BLOCK_PAGES % BLOCK_LOCKS].load(Ordering::Acquire)
}

fn write_protect(vm: &impl Kernel, first: u32, end: u32, on: bool) -> bool {
    // The words of victims and bystanders are Evicting here; nothing between them becomes present meanwhile.
    vm.protect(Held::new(PageId(first), (end - first) as usize), on)
}

/// Whether the page is absent; it stays so while the chunk's lock is held.
fn is_absent(vm: &impl Process, page: PageId) -> bool {
    let w = word::load(vm.word(page));
    matches!(
        w.state(),
        At::Untouched | At::Far | At::Cached | At::Filling | At::Poisoned
    )
}
