//! Memory that processes share: the states of its pages, their eviction, and what is done when a process
//! is killed in the middle of it (docs/SHARED.md).
//!
//! All of it lies in shared memory, and a process may die between any two steps. So whoever finds the
//! lock's holder or a page's owner dead does the step again ([`Partition::recover`],
//! [`Partition::bury`]), from what is written down: the words, and a journal of the one eviction that
//! can be under way. The kernel is a trait ([`Kernel`]), which the model test stands in for.

pub mod ahead;
pub mod beyond;
pub mod word;

use canvas_types::PAGE_SIZE;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, fence};

use word::{Entry, State, Word, load, transition};

/// Victims of an eviction at most.
pub const VICTIMS_MAX: usize = 256;

/// Values of [`Journal::phase`].
pub mod phase {
    /// Nothing was taken out: victims that are Evicting are Resident.
    pub const CHOSEN: u32 = 0;
    /// All victims are in the pipe; they are being punched and read.
    pub const IN_PIPE: u32 = 1;
    /// All victims are in the staging buffer and nowhere else; they are being stored.
    pub const STAGED: u32 = 2;
}

/// How bringing a page in ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// The page is there, for all.
    Present,
    /// It could not be made present; as before.
    Failed,
    /// No far copy can be reached now; as before.
    Unreachable,
    /// No far copy is left; as before.
    Lost,
    /// Its far copy is not what it was.
    Damaged,
}

/// What the kernel and the store do.
pub trait Kernel {
    /// Between any two steps; a process may end here, and in tests it does.
    fn step(&self) {}
    /// Puts `n` pages of the file from `page` on into the pipe, behind what is there; how many it took.
    fn splice(&self, page: u32, n: u32) -> u32;
    /// Takes `n` pages from `page` on from the file, and so from all mappers.
    fn punch(&self, page: u32, n: u32);
    /// Bytes in the pipe.
    fn in_pipe(&self) -> usize;
    /// Reads from the pipe into `place` of the staging buffer from `offset` on, at most to the end of the
    /// page; how many bytes.
    fn read_pipe(&self, place: usize, offset: usize) -> usize;
    /// Throws away what is in the pipe.
    fn drain(&self);
    /// Does a system call need the page?
    fn is_pinned(&self, page: u32) -> bool;
    /// Stores what is in `place` of the staging buffer, which is the page's: `old` when that is its copy still.
    /// `None`: there is no room.
    fn save(&self, page: u32, place: usize, old: Entry) -> Option<Entry>;
    /// No word has the entry any more.
    fn freed(&self, entry: Entry);
    /// Makes the page present with what is in `place` of the staging buffer, unless it is present.
    fn put_back(&self, page: u32, place: usize);
    /// Makes a page of zeros present, unless the page is.
    fn fill_new(&self, page: u32) -> Fill;
    /// Makes the page present from its far copy, unless it is.
    fn fill_far(&self, page: u32, entry: Entry) -> Fill;
    /// Is the page in the file?
    fn is_present(&self, page: u32) -> bool;
    /// Forgets which parts of the store are in use, and of what lies beyond it all but what requests under way are
    /// about; [`Kernel::keep`] tells each of them then.
    fn forget_entries(&self);
    /// The entry is in use.
    fn keep(&self, entry: Entry);
}

/// The one eviction that can be under way. Written by the lock's holder.
#[derive(Clone, Copy)]
pub struct Journal<'a> {
    /// How far the eviction has come, a number of [`phase`].
    pub phase: &'a AtomicU32,
    /// How many places of `pages` are in use.
    pub count: &'a AtomicU32,
    /// Their pages; those whose word is not Evicting are none.
    pub pages: &'a [AtomicU32],
}

/// The shared pages of a tenant.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// A word a page.
    pub words: &'a [AtomicU64],
    /// What the lock's holder is in the middle of, for whoever takes over.
    pub journal: Journal<'a>,
    /// Where the search for victims goes on.
    pub hand: &'a AtomicU32,
    /// Where the search for copies to carry on, or to give up, goes on.
    pub copies_hand: &'a AtomicU32,
}

/// What a look at a page's word showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The page is in memory.
    Present,
    /// The caller is to bring it in ([`Partition::fill`]).
    Claimed(Word),
    /// Somebody works on it; who, when it is being filled.
    Busy(Option<u16>),
    /// Its far copy is damaged.
    Poisoned,
}

/// What an eviction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Pages that left memory.
    pub pages: u32,
    /// Of those, whose copy was still right.
    pub clean: u32,
    /// Pages that came back, because there was no room for their copies.
    pub refused: u32,
    /// Pages that were let go because a system call needs them.
    pub pinned: u32,
}

impl<'a> Partition<'a> {
    /// Claims a page for `me` if it is to be brought in.
    pub fn claim(&self, page: u32, me: u16) -> Look {
        let w = &self.words[page as usize];
        loop {
            let cur = load(w);
            let filling = match cur.state() {
                State::Resident => return Look::Present,
                State::Poisoned => return Look::Poisoned,
                State::Evicting => return Look::Busy(None),
                State::FillingNew | State::FillingFar => return Look::Busy(Some(cur.owner())),
                State::Untouched => State::FillingNew,
                State::Far => State::FillingFar,
            };
            let new = Word::new(filling, me, cur.entry());
            if transition(w, cur, new) {
                return Look::Claimed(new);
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

    /// The same by `bring`, which makes it present from its far copy, unless it is.
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
        // Nobody changes the word of a page that a living process fills.
        let was_ours = transition(&self.words[page as usize], claimed, new);
        debug_assert!(was_ours);
        done
    }

    /// Takes up to `want` pages below `end` out of memory. Under the lock, with nothing under way.
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
        // A call pins before it looks at the words: one of the two sees the other.
        fence(Ordering::SeqCst);
        self.each_victim(|i, w, cur| {
            if k.is_pinned(self.journal.pages[i].load(Ordering::Relaxed)) {
                done.pinned += 1;
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

    /// Writes the list of victims; how many.
    fn choose(&self, k: &impl Kernel, want: usize, end: u32) -> usize {
        let want = want.min(self.journal.pages.len());
        let mut n = 0;
        let mut page = self.hand.load(Ordering::Relaxed);
        // The second round finds what the first one has found referenced.
        for _ in 0..2 * u64::from(end) {
            if n == want {
                break;
            }
            if page >= end {
                page = 0;
            }
            // All the way round: a page must not be in the list twice.
            if n > 0 && page == self.journal.pages[0].load(Ordering::Relaxed) {
                break;
            }
            let w = &self.words[page as usize];
            let cur = load(w);
            if cur.state() == State::Resident {
                if cur.is_referenced() {
                    // Lost to nobody: Resident words are the lock holder's to change.
                    transition(w, cur, cur.unreferenced());
                } else if !k.is_pinned(page) {
                    self.journal.pages[n].store(page, Ordering::Relaxed);
                    n += 1;
                }
            }
            page += 1;
        }
        self.hand.store(page, Ordering::Relaxed);
        k.step();
        self.journal.count.store(n as u32, Ordering::SeqCst);
        n
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
        // A dead one may have read some of it: what is left says where to go on.
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
                    // The old copy is of no use any more.
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

    /// Ends what a dead holder of the lock has begun. The caller holds the lock now.
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

    /// Settles the pages that a dead process was filling. Under the lock.
    pub fn bury(&self, k: &impl Kernel, owner: u16, end: u32) {
        for (page, w) in self.words[..end as usize].iter().enumerate() {
            let cur = load(w);
            if cur.is_filled_by(owner) {
                k.step();
                transition(w, cur, cur.filled(k.is_present(page as u32)));
            }
        }
    }

    /// Empties pages that no process has any more. Under the lock; done again after a death.
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

    /// A victim stays in memory after all.
    fn let_go(&self, k: &impl Kernel, page: u32) {
        let w = &self.words[page as usize];
        let cur = load(w);
        k.step();
        transition(w, cur, Word::new(State::Resident, 0, cur.entry()));
    }

    /// Calls `f` with the place and the word of each page in the list.
    fn each_listed(&self, mut f: impl FnMut(usize, &'a AtomicU64)) {
        let n = self.journal.count.load(Ordering::SeqCst) as usize;
        for (i, page) in self.journal.pages.iter().enumerate().take(n) {
            f(i, &self.words[page.load(Ordering::Relaxed) as usize]);
        }
    }

    /// The same for those that are Evicting, with the word's value.
    fn each_victim(&self, mut f: impl FnMut(usize, &'a AtomicU64, Word)) {
        self.each_listed(|i, w| {
            let cur = load(w);
            if cur.state() == State::Evicting {
                f(i, w, cur);
            }
        });
    }

    /// Calls `f` with each run of victims that are neighbours: first page, how many.
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
