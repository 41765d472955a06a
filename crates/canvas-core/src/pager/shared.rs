//! Memory that processes share: the states of its pages, their eviction, and recovery when a process is killed in the
//! middle of a step (docs/SHARED.md).
//!
//! All of this state lies in shared memory, and a process may die between any two steps. A process that finds the
//! lock's holder or a page's owner dead repeats the step ([`Partition::recover`], [`Partition::recover_owner`]) from
//! what is recorded: the words, and a journal of the one eviction that can be in progress. The kernel is behind a trait
//! ([`Kernel`]), which the model test implements.

pub mod ahead;
pub mod demotion;
pub mod word;

use canvas_types::PAGE_SIZE;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, fence};

use crate::pager::scan::ScanCursor;
use word::{Entry, State, Word, load, transition};

/// Maximum victims of an eviction.
pub const VICTIMS_MAX: usize = 256;

/// Values of [`Journal::phase`].
pub mod phase {
    /// Nothing has left memory: victims that are Evicting become Resident again.
    pub const CHOSEN: u32 = 0;
    /// All victims are in the pipe; they are being punched out of the file and read from the pipe.
    pub const IN_PIPE: u32 = 1;
    /// All victims are in the staging buffer and nowhere else; they are being stored.
    pub const STAGED: u32 = 2;
}

/// How bringing a page in ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// The page is in memory, for all mappers.
    Present,
    /// The page could not be made present; nothing has changed.
    Failed,
    /// No far copy can be reached now; nothing has changed.
    Unreachable,
    /// No far copy is left; nothing has changed.
    Lost,
    /// The far copy failed verification.
    Damaged,
}

/// What the kernel and the store do.
pub trait Kernel {
    /// Called between any two steps; a process may die here, and in tests it does.
    fn step(&self) {}
    /// Appends `n` pages of the file from `page` on to the pipe; returns how many it took.
    fn splice(&self, page: u32, n: u32) -> u32;
    /// Removes `n` pages from `page` on from the file, and so from all mappers.
    fn punch(&self, page: u32, n: u32);
    /// Bytes in the pipe.
    fn in_pipe(&self) -> usize;
    /// Reads from the pipe into slot `place` of the staging buffer from `offset` on, at most to the end of the page;
    /// returns how many bytes.
    fn read_pipe(&self, place: usize, offset: usize) -> usize;
    /// Discards the pipe's contents.
    fn drain(&self);
    /// Whether a system call needs the page.
    fn is_pinned(&self, page: u32) -> bool;
    /// Stores the page's contents from slot `place` of the staging buffer; returns `old` if that copy is still up to
    /// date, and `None` if there is no room.
    fn save(&self, page: u32, place: usize, old: Entry) -> Option<Entry>;
    /// Frees an entry that no word names any more.
    fn freed(&self, entry: Entry);
    /// Makes the page present with the contents of slot `place` of the staging buffer, unless it is present.
    fn put_back(&self, page: u32, place: usize);
    /// Makes a page of zeros present, unless the page is present.
    fn fill_new(&self, page: u32) -> Fill;
    /// Makes the page present from its far copy, unless it is present.
    fn fill_far(&self, page: u32, entry: Entry) -> Fill;
    /// Whether the page is in the file.
    fn is_present(&self, page: u32) -> bool;
    /// Marks all of the store as free, and forgets all copies beyond it except those of requests in progress;
    /// [`Kernel::keep`] is then called for each entry in use.
    fn forget_entries(&self);
    /// Marks the entry as in use.
    fn keep(&self, entry: Entry);
}

/// The one eviction that can be in progress. Only the lock's holder writes it.
#[derive(Clone, Copy)]
pub struct Journal<'a> {
    /// How far the eviction has come, a number of [`phase`].
    pub phase: &'a AtomicU32,
    /// How many elements of `pages` are in use.
    pub count: &'a AtomicU32,
    /// The victims; a page whose word is not Evicting is none any more.
    pub pages: &'a [AtomicU32],
}

/// The shared pages of a tenant.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// One word per page.
    pub words: &'a [AtomicU64],
    /// The step that the lock's holder is in, for the process that takes over if it dies.
    pub journal: Journal<'a>,
    /// Where the search for victims continues.
    pub hand: &'a AtomicU32,
    /// Where the search for copies to move or to drop continues.
    pub copies_hand: &'a AtomicU32,
}

/// Result of [`Partition::claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The page is in memory.
    Present,
    /// The page is claimed: the caller must bring it in ([`Partition::fill`]).
    Claimed(Word),
    /// Another thread works on the page; the process slot, if the page is being filled.
    Busy(Option<u16>),
    /// Its far copy is damaged.
    Poisoned,
}

/// What an eviction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Pages that left memory.
    pub pages: u32,
    /// Of those, pages whose far copy was still up to date.
    pub clean: u32,
    /// Pages put back because there was no room for their copies.
    pub refused: u32,
}

impl<'a> Partition<'a> {
    /// Claims a page for `me` if it must be brought in.
    pub fn claim(&self, page: u32, me: u16) -> ClaimOutcome {
        let w = &self.words[page as usize];
        loop {
            let cur = load(w);
            let filling = match cur.state() {
                State::Resident => return ClaimOutcome::Present,
                State::Poisoned => return ClaimOutcome::Poisoned,
                State::Evicting => return ClaimOutcome::Busy(None),
                State::FillingNew | State::FillingFar => {
                    return ClaimOutcome::Busy(Some(cur.owner()));
                }
                State::Untouched => State::FillingNew,
                State::Far => State::FillingFar,
            };
            let new = Word::new(filling, me, cur.entry());
            if transition(w, cur, new) {
                return ClaimOutcome::Claimed(new);
            }
        }
    }

    /// Brings a claimed page in.
    pub fn fill(&self, k: &impl Kernel, page: u32, claimed: Word) -> Fill {
        self.fill_by(k, page, claimed, || match claimed.state() {
            State::FillingNew => k.fill_new(page),
            _ => k.fill_far(page, claimed.entry()),
        })
    }

    /// Like [`Partition::fill`], with `bring` to make the page present from its far copy unless it is present.
    pub fn fill_by(
        &self,
        k: &impl Kernel,
        page: u32,
        claimed: Word,
        bring: impl FnOnce() -> Fill,
    ) -> Fill {
        k.step();
        let done = bring();
        k.step();
        let new = match done {
            Fill::Damaged => Word::new(State::Poisoned, 0, claimed.entry()),
            done => claimed.filled(done == Fill::Present),
        };
        // Nobody else changes the word of a page that a living process fills.
        let was_ours = transition(&self.words[page as usize], claimed, new);
        debug_assert!(was_ours);
        done
    }

    /// Evicts up to `want` pages below `end`. The caller holds the lock, and no eviction is in progress.
    pub fn evict(&self, k: &impl Kernel, want: usize, end: u32) -> Evicted {
        let mut done = Evicted::default();
        if self.choose(k, want, end) == 0 {
            return done;
        }
        self.each_listed(|_, w| {
            let cur = load(w);
            if cur.state() == State::Resident {
                k.step();
                transition(w, cur, Word::new(State::Evicting, 0, cur.entry()));
            }
        });
        // A system call pins a page before it looks at its word, so at least one of the two sides sees the other.
        fence(Ordering::SeqCst);
        self.each_victim(|i, w, cur| {
            if k.is_pinned(self.journal.pages[i].load(Ordering::Relaxed)) {
                k.step();
                transition(w, cur, Word::new(State::Resident, 0, cur.entry()));
            }
        });
        let mut room = true;
        self.each_run(|page, n| {
            let mut taken = 0;
            while room && taken < n {
                k.step();
                let more = k.splice(page + taken, n - taken);
                room = more > 0;
                taken += more;
            }
            for page in page + taken..page + n {
                self.let_go(k, page);
            }
        });
        k.step();
        self.journal.phase.store(phase::IN_PIPE, Ordering::SeqCst);
        self.take_out(k);
        self.save(k, &mut done);
        done
    }

    /// Writes the list of victims; returns how many there are.
    fn choose(&self, k: &impl Kernel, want: usize, end: u32) -> usize {
        let (pages, mut n) = (self.journal.pages, 0);
        let want = want.min(pages.len());
        self.each_from(self.hand, u32::MAX, end, |page, w, cur| {
            // The search has come full circle: a page must not be in the list twice.
            if n == want || n > 0 && page == pages[0].load(Ordering::Relaxed) {
                return false;
            }
            if cur.state() == State::Resident && cur.is_referenced() {
                // Cannot fail: only the lock holder changes Resident words.
                transition(w, cur, cur.unreferenced());
            } else if cur.state() == State::Resident && !k.is_pinned(page) {
                pages[n].store(page, Ordering::Relaxed);
                n += 1;
            }
            true
        });
        k.step();
        self.journal.count.store(n as u32, Ordering::SeqCst);
        n
    }

    /// Calls `on` with at most `most` pages below `end`, round and round from `hand` on, while it returns true.
    fn each_from(
        &self,
        hand: &AtomicU32,
        most: u32,
        end: u32,
        mut on: impl FnMut(u32, &AtomicU64, Word) -> bool,
    ) {
        // The second round finds pages whose referenced bit the first one cleared.
        let mut scan = ScanCursor::new(hand.load(Ordering::Relaxed), end, most as usize).rounds(2);
        while let Some(page) = scan.peek() {
            let w = &self.words[page as usize];
            if !on(page, w, load(w)) {
                break;
            }
            scan.pass(1);
        }
        hand.store(scan.at(), Ordering::Relaxed);
    }

    /// Phase 1: all victims are in the pipe.
    fn take_out(&self, k: &impl Kernel) {
        self.each_run(|page, n| {
            k.step();
            k.punch(page, n);
        });
        let mut places = [0u16; VICTIMS_MAX];
        let mut n = 0;
        self.each_victim(|i, _, _| {
            places[n] = i as u16;
            n += 1;
        });
        // A process that died may have read some of it: the bytes left in the pipe say where to continue.
        loop {
            k.step();
            let left = k.in_pipe();
            if left == 0 {
                break;
            }
            let at = (n * PAGE_SIZE).saturating_sub(left);
            k.read_pipe(places[at / PAGE_SIZE].into(), at % PAGE_SIZE);
        }
        k.step();
        self.journal.phase.store(phase::STAGED, Ordering::SeqCst);
    }

    /// Phase 2: all victims are in the staging buffer.
    fn save(&self, k: &impl Kernel, done: &mut Evicted) {
        self.each_victim(|i, w, cur| {
            let page = self.journal.pages[i].load(Ordering::Relaxed);
            k.step();
            match k.save(page, i, cur.entry()) {
                Some(entry) => {
                    k.step();
                    transition(w, cur, Word::new(State::Far, 0, entry).referenced());
                    k.step();
                    if entry == cur.entry() {
                        done.clean += u32::from(entry.is_some());
                    } else if cur.entry().is_some() {
                        k.freed(cur.entry());
                    }
                    done.pages += 1;
                }
                None => {
                    k.put_back(page, i);
                    k.step();
                    // The old copy is obsolete.
                    transition(w, cur, Word::new(State::Resident, 0, Entry::NONE));
                    k.step();
                    if cur.entry().is_some() {
                        k.freed(cur.entry());
                    }
                    done.refused += 1;
                }
            }
        });
        k.step();
        self.journal.phase.store(phase::CHOSEN, Ordering::SeqCst);
    }

    /// Completes what a dead holder of the lock has begun. The caller now holds the lock.
    pub fn recover(&self, k: &impl Kernel, end: u32) {
        k.forget_entries();
        for w in &self.words[..end as usize] {
            let entry = load(w).entry();
            if entry.is_some() {
                k.keep(entry);
            }
        }
        let at = self.journal.phase.load(Ordering::SeqCst);
        if at == phase::CHOSEN {
            k.step();
            k.drain();
            self.each_victim(|i, _, _| {
                self.let_go(k, self.journal.pages[i].load(Ordering::Relaxed));
            });
            return;
        }
        if at == phase::IN_PIPE {
            self.take_out(k);
        }
        self.save(k, &mut Evicted::default());
    }

    /// Settles the pages that a dead process was filling. The caller holds the lock.
    pub fn recover_owner(&self, k: &impl Kernel, owner: u16, end: u32) {
        for (page, w) in self.words[..end as usize].iter().enumerate() {
            let cur = load(w);
            if cur.is_filled_by(owner) {
                k.step();
                transition(w, cur, cur.filled(k.is_present(page as u32)));
            }
        }
    }

    /// Empties pages that no process maps any more. The caller holds the lock; after a death this is repeated.
    pub fn clear(&self, k: &impl Kernel, start: u32, end: u32) {
        k.step();
        k.punch(start, end - start);
        for w in &self.words[start as usize..end as usize] {
            let cur = load(w);
            if cur == Word(0) {
                continue;
            }
            k.step();
            w.store(0, Ordering::SeqCst);
            k.step();
            if cur.entry().is_some() {
                k.freed(cur.entry());
            }
        }
    }

    /// Returns a victim to memory.
    fn let_go(&self, k: &impl Kernel, page: u32) {
        let w = &self.words[page as usize];
        let cur = load(w);
        k.step();
        transition(w, cur, Word::new(State::Resident, 0, cur.entry()));
    }

    /// Calls `f` with the index and the word of each page in the list.
    fn each_listed(&self, mut f: impl FnMut(usize, &'a AtomicU64)) {
        let n = self.journal.count.load(Ordering::SeqCst) as usize;
        for (i, page) in self.journal.pages.iter().enumerate().take(n) {
            f(i, &self.words[page.load(Ordering::Relaxed) as usize]);
        }
    }

    /// Calls `f` with the index, the word and the word's value of each page in the list that is still Evicting.
    fn each_victim(&self, mut f: impl FnMut(usize, &'a AtomicU64, Word)) {
        self.each_listed(|i, w| {
            let cur = load(w);
            if cur.state() == State::Evicting {
                f(i, w, cur);
            }
        });
    }

    /// Calls `f` with each run of adjacent victims: first page, and how many.
    fn each_run(&self, mut f: impl FnMut(u32, u32)) {
        let mut run = (0, 0);
        self.each_victim(|i, _, _| {
            let page = self.journal.pages[i].load(Ordering::Relaxed);
            if run.1 > 0 && run.0 + run.1 == page {
                run.1 += 1;
                return;
            }
            if run.1 > 0 {
                f(run.0, run.1);
            }
            run = (page, 1);
        });
        if run.1 > 0 {
            f(run.0, run.1);
        }
    }
}
