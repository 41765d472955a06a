//! Puts pages into the managed range: copies them in, and publishes what their words become.

use canvas_shm::Counter;
use canvas_shm::slow::Cause;
use canvas_types::sync::Ordering;
use canvas_types::{PageId, SwapEntry};

use super::ledger::{self, count, reserves};
use super::protect;
use super::{Copied, Held, Report, Source, Stop, Vm};
use crate::pager::clock::FillKind;
use crate::pager::word::{self, State, Word, flag};
use crate::swap::LoadError;
use crate::swap::fsm::{self, Reservation};

/// Copies pages from `from` to the absent pages `to`, write-protected if `protect`. The caller holds the chunk's lock
/// shared. What stopped it, if anything, stopped it for good.
#[inline]
pub(super) fn copy_in<V: Vm>(vm: &V, to: Held, from: Source<'_>, protect: bool) -> Copied {
    const NO_MEMORY_MAX: u32 = 1000;
    let (mut done, mut step, mut tries) = (0, to.pages(), 0u32);
    while done < to.pages() {
        let n = step.min(to.pages() - done);
        let rest = match from {
            Source::Staged(pages) => Source::Staged(&pages[done..done + n]),
            same => same,
        };
        let copied = vm.copy_in(Held::new(to.first().plus(done), n), rest, protect);
        done += copied.pages;
        match copied.stopped {
            None => {}
            // Copy page by page.
            Some(Stop::Border) if step > 1 => step = 1,
            Some(Stop::Again) => {
                tries += 1;
                if tries > 3 {
                    vm.during(Cause::KernelMemory, V::yield_now);
                }
            }
            Some(Stop::NoMemory) if tries < NO_MEMORY_MAX => {
                tries += 1;
                vm.during(Cause::KernelMemory, || vm.sleep_holding(100_000));
            }
            stopped => {
                return Copied {
                    pages: done,
                    stopped,
                };
            }
        }
    }
    Copied {
        pages: done,
        stopped: None,
    }
}

/// Publishes pages `page..page + n` (present, words busy in our hands) as resident.
#[inline]
pub(super) fn publish_run(vm: &impl Vm, page: PageId, n: usize, new_word: impl Fn(usize) -> Word) {
    vm.table().note_resident_run(page.index(), n);
    ledger::note_resident(vm, n as i64);
    for i in 0..n {
        word::publish(vm.word(page.plus(i)), new_word(i));
    }
}

/// Marks a far page as poisoned: its copy failed verification, or is not where its entry says.
pub(super) fn poison(vm: &impl Vm, page: PageId, cur: Word, why: LoadError) {
    /// Damaged pages that are reported by a line each; further ones are only counted.
    const LINES: u32 = 8;
    count(vm, Counter::VerifyFailure, 1);
    let damaged = &vm.state().damaged;
    let told = damaged.load(Ordering::Relaxed);
    if told < LINES {
        damaged.store(told + 1, Ordering::Relaxed);
        vm.report(Report::Damaged {
            page,
            why,
            is_last: told + 1 == LINES,
        });
    }
    vm.slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    word::publish(vm.word(page), cur.with_state(State::Poisoned));
}

/// Whether a far page that is faulted in by a read is mapped write-protected. The caller holds its chunk's lock shared.
#[inline]
pub(super) fn starts_protected(vm: &impl Vm, page: PageId, cur: Word) -> bool {
    cur.entry().is_some()
        // A system call may still write to a page that was discarded during the call.
        && cur.pins() == 0
        && reserves(vm)
        && !vm.writes().expected(page, cur.epoch())
        && !protect::is_taken(vm, page)
}

/// The word of a far page that was just brought in.
#[inline]
pub(super) fn filled(vm: &impl Vm, cur: Word, kind: FillKind, protected: bool) -> Word {
    // A stream touches this page again only after everything else, so pages that came from beyond the pool go back
    // there rather than wait in the pool.
    if matches!(kind, FillKind::Stream | FillKind::StreamPrefetch) {
        vm.demote_home(cur.entry());
    }
    let new = keep_or_release(vm, on_fill(vm, cur.clear(flag::IN_FAR_TIER), kind), true);
    match protected {
        true => new.set(flag::PROTECTED),
        false => new,
    }
}

/// Decides whether a page that comes in keeps its entry, and returns `new` accordingly; `far_copy`: the entry holds a
/// copy.
#[inline]
pub(super) fn keep_or_release(vm: &impl Vm, new: Word, far_copy: bool) -> Word {
    let entry = new.entry();
    if fsm::on_swap_in(entry.is_some(), reserves(vm)) == Reservation::Drop {
        vm.release(entry);
        return new.with_entry(SwapEntry::NONE).clear(flag::FAR_COPY);
    }
    if entry.is_some() && far_copy {
        new.set(flag::FAR_COPY)
    } else {
        new.clear(flag::FAR_COPY)
    }
}

/// The word of a page that comes in as `kind`.
#[inline]
pub(super) fn on_fill(vm: &impl Vm, word: Word, kind: FillKind) -> Word {
    let state = vm.state();
    state.clock.params.on_fill(word, kind, state.epoch.now())
}
