//! A pool that is interrupted while it copies, anywhere, with another thread's store in between; and the one recovered
//! from its entries, against a map of what was acknowledged.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{ThreadId, current};

use crate::pools::*;
use canvas_core::swap::entry::Record;
use canvas_core::swap::hash::{PageHash, portable};
use canvas_core::swap::pool::{Adopted, JOURNAL_WORDS};
use canvas_core::swap::slots::{SLAB_CHARGE_BYTES, SLAB_WORDS};
use canvas_core::swap::{Chosen, LocalPool, PoolArrays, Scratch, SlotMem, StoreError};
use canvas_testing::random::run_until;
use canvas_types::sync::{AtomicI64, AtomicU64, Ordering, Threads};
use canvas_types::{Codec, PAGE_SIZE, PageBuf, SwapEntry};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

/// An interrupted step: its entry, and what it would have become.
type Open = Option<(u32, (u8, u64))>;

const ENTRIES: u32 = 70;
const SLABS: usize = 12;

#[derive(Clone, Debug)]
struct Step {
    entry: u32,
    content: (u8, u64),
    /// Another thread stores this in the middle of it, before copy number .0.
    other: Option<(u32, u32, (u8, u64))>,
    /// It ends at copy number .0, of which this many bytes are made.
    cut: Option<(u32, usize)>,
}

fn content() -> impl Strategy<Value = (u8, u64)> {
    // Most of them have few sizes, so that they reuse each other's slots.
    (
        prop_oneof![1 => 0..2u8, 5 => Just(2), 6 => 3..6u8],
        any::<u64>(),
    )
}

fn step() -> impl Strategy<Value = Step> {
    let entry = || 1..=ENTRIES;
    let other = prop_oneof![3 => Just(None), 1 => (0..3u32, entry(), content()).prop_map(Some)];
    let bytes = prop_oneof![Just(0), Just(PAGE_SIZE), 1..PAGE_SIZE];
    let cut = prop_oneof![6 => Just(None), 1 => (0..3u32, bytes).prop_map(Some)];
    (entry(), content(), other, cut).prop_map(|(entry, content, other, cut)| Step {
        entry,
        content,
        other,
        cut,
    })
}

/// The page of a step; `None` is one that is dropped.
fn page((kind, seed): (u8, u64), before: Option<&PageBuf>) -> Option<PageBuf> {
    match kind {
        0 => None,
        1 => Some(same(seed % 1000 + 1)),
        2 => Some(page_of(seed, PAGE_SIZE)),
        3 => Some(page_of(seed, 2000)),
        4 => Some(page_of(seed, seed as usize % 3500)),
        _ => {
            let mut page = *before.unwrap_or(&page_of(seed, 1500));
            page[seed as usize % PAGE_SIZE] ^= 1 | (seed >> 20) as u8;
            Some(page)
        }
    }
}

/// What happens at the copies of one thread.
#[derive(Default)]
struct Plan {
    copies: u32,
    other: Option<u32>,
    cut: Option<(u32, usize)>,
}

struct Hooked<'w> {
    mem: &'w Mem,
    whose: ThreadId,
    plan: &'w Mutex<Plan>,
    /// Lets the other thread store, and waits for it.
    other: Mutex<(Sender<()>, Receiver<()>)>,
}

/// The panic of an interruption.
struct Ended;

impl SlotMem for Hooked<'_> {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        self.mem.copy_out(off, dst);
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        if current().id() == self.whose {
            let (is_others, cut) = {
                let mut plan = self.plan.lock().unwrap();
                let at = plan.copies;
                plan.copies += 1;
                let cut = plan.cut.filter(|(cut, _)| *cut == at);
                (plan.other.take_if(|o| *o == at).is_some(), cut)
            };
            if is_others {
                let other = self.other.lock().unwrap();
                other.0.send(()).unwrap();
                other.1.recv().unwrap();
            }
            if let Some((_, bytes)) = cut {
                self.mem.copy_in(off, &src[..bytes.min(src.len())]);
                resume_unwind(Box::new(Ended));
            }
        }
        self.mem.copy_in(off, src);
    }
    fn release(&self, off: usize, len: usize) {
        self.mem.release(off, len);
    }
}

type Cut<'a> = LocalPool<'a, Chosen<Lz4>, Hooked<'a>, &'a Budget>;

/// What outlives a pool, and what was acknowledged.
struct Disk {
    entries: Vec<AtomicU64>,
    journal: Vec<AtomicU64>,
    mem: Mem,
    key: PageBuf,
    acknowledged: Mutex<BTreeMap<u32, PageBuf>>,
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Disk {
    /// Stores a step's page; `None` when there is no room.
    fn store(&self, pool: &Cut, entry: u32, content: (u8, u64)) -> Option<()> {
        let before = self.acknowledged.lock().unwrap().get(&entry).copied();
        let page = page(content, before.as_ref());
        let name = SwapEntry(entry);
        pool.claim(name);
        let has_copy = before.is_some();
        match &page {
            None => drop(pool.drop_copy(name)),
            Some(page) => match pool.store(name, has_copy, page, &mut Scratch::new()) {
                Ok(_) => {}
                Err(StoreError::Full { copy_dropped }) => {
                    assert!(!copy_dropped);
                    return None;
                }
                Err(StoreError::NoEntry) => panic!("no entry"),
            },
        }
        let mut acknowledged = self.acknowledged.lock().unwrap();
        match page {
            None => drop(acknowledged.remove(&entry)),
            Some(page) => drop(acknowledged.insert(entry, page)),
        }
        Some(())
    }

    /// Reads all pages of a recovered pool: `open` was under way.
    fn check(&self, pool: &Cut, open: Option<(u32, (u8, u64))>) -> TestCaseResult {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        for entry in 1..=ENTRIES {
            let before = acknowledged.get(&entry).copied();
            let mut out = [0; PAGE_SIZE];
            let now = match pool.record(SwapEntry(entry)) {
                Record::Free | Record::Empty => None,
                _ => {
                    let loaded = pool.load(SwapEntry(entry), &mut out, &mut Scratch::new());
                    prop_assert_eq!(loaded, Ok(()), "entry {}", entry);
                    Some(out)
                }
            };
            if let Some((_, content)) = open.filter(|(open, _)| *open == entry) {
                let new = page(content, before.as_ref());
                prop_assert!(now == before || now == new, "entry {} is mixed", entry);
                match now {
                    None => drop(acknowledged.remove(&entry)),
                    Some(page) => drop(acknowledged.insert(entry, page)),
                }
            } else {
                prop_assert!(
                    now == before,
                    "entry {} is not as it was acknowledged",
                    entry
                );
            }
        }
        Ok(())
    }

    /// A pool over what the last one left, until a step is interrupted; returns the number of steps, and the
    /// interrupted one.
    fn live(
        &self,
        steps: &[Step],
        open: Open,
        seen: &RefCell<BTreeSet<&'static str>>,
    ) -> Result<(usize, Open), TestCaseError> {
        let (slab_words, class_bytes) =
            (words(SLABS * SLAB_WORDS), [const { AtomicI64::new(0) }; 32]);
        let budget = Budget::new(SLAB_CHARGE_BYTES * SLABS as i64 / 2);
        let plan = Mutex::default();
        let ((go, gone), (done, is_done)) = (channel(), channel());
        let mem = Hooked {
            mem: &self.mem,
            whose: current().id(),
            plan: &plan,
            other: Mutex::new((go, is_done)),
        };
        let arrays = PoolArrays {
            entries: &self.entries,
            slab_words: &slab_words,
            class_bytes: &class_bytes,
            digests: &[],
        };
        let threads = Threads {
            yield_now: std::thread::yield_now,
            number: || 0,
        };
        let lz = Chosen {
            lz: Lz4,
            codec: Codec::Lz4,
        };
        let hash = PageHash::new(&self.key, portable);
        let pool = LocalPool::new(arrays, hash, lz, mem, &budget, threads);
        let pool = pool.keeping_old().journaled(&self.journal);
        pool.redo();
        for entry in 1..=ENTRIES {
            let adopted = pool.adopt(SwapEntry(entry));
            prop_assert!(
                !matches!(adopted, Adopted::Lost | Adopted::Duplicate(_)),
                "{:?}",
                adopted
            );
        }
        pool.finish_recovery();
        prop_assert_eq!(pool.charged_bytes(), budget.used.load(Ordering::Relaxed));
        self.check(&pool, open)?;
        let others = Mutex::new(None);
        std::thread::scope(|s| {
            let (pool, others) = (&pool, &others);
            s.spawn(move || {
                for () in gone {
                    let what: Option<(u32, (u8, u64))> = others.lock().unwrap().take();
                    if let Some((entry, content)) = what {
                        self.store(pool, entry, content);
                    }
                    done.send(()).unwrap();
                }
            });
            let mut result = (steps.len(), None);
            for (i, step) in steps.iter().enumerate() {
                let other = step.other.filter(|(_, entry, _)| *entry != step.entry);
                *others.lock().unwrap() = other.map(|(_, entry, content)| (entry, content));
                *plan.lock().unwrap() = Plan {
                    copies: 0,
                    other: other.map(|(at, ..)| at),
                    cut: step.cut,
                };
                let store = || self.store(pool, step.entry, step.content);
                match catch_unwind(AssertUnwindSafe(store)) {
                    Ok(Some(())) => {}
                    Ok(None) => drop(seen.borrow_mut().insert("full")),
                    Err(_) => {
                        let noted = self.journal.iter().step_by(JOURNAL_WORDS);
                        let noted = noted.filter(|w| w.load(Ordering::Relaxed) == 2).count();
                        let kind = ["cut beside", "cut over the old one"][noted.min(1)];
                        seen.borrow_mut().insert(kind);
                        result = (i + 1, Some((step.entry, step.content)));
                        break;
                    }
                }
                if other.is_some() && plan.lock().unwrap().other.is_none() {
                    seen.borrow_mut().insert("other");
                }
            }
            // The other thread ends.
            let (nothing, _) = channel();
            pool.mem().other.lock().unwrap().0 = nothing;
            Ok(result)
        })
    }
}

#[test]
fn what_was_acknowledged_is_there_after_any_cut() {
    let seen = RefCell::default();
    let case = |steps: Vec<Step>| {
        let disk = Disk {
            entries: words(ENTRIES as usize + 1),
            journal: words(2 * JOURNAL_WORDS),
            mem: Mem::new(SLABS),
            key: page_of(77, PAGE_SIZE),
            acknowledged: Mutex::default(),
        };
        let (mut at, mut open) = (0, None);
        while at < steps.len() || open.is_some() {
            let (taken, cut) = disk.live(&steps[at..], open, &seen)?;
            (at, open) = (at + taken, cut);
        }
        disk.live(&[], None, &seen).map(drop)
    };
    let plan = prop::collection::vec(step(), 50..400);
    let all = ["cut beside", "cut over the old one", "full", "other"];
    let complete = || all.iter().all(|what| seen.borrow().contains(what));
    run_until(10, &plan, case, complete);
    assert!(complete(), "{:?}", seen.borrow());
}
