//! Against naive models: a list of pages for the words, sets for what a replay brings in.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::vec::Vec;

const MS: u64 = 1_000_000;

fn memory(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

/// The words of the pages in their order, batches sorted.
fn recorded(pages: &[u32]) -> Vec<AtomicU32> {
    let words = memory(2 * pages.len() + 2);
    let mut writer = Writer::new(&words);
    pages.iter().for_each(|p| writer.push(*p).unwrap());
    assert_eq!(writer.finish() as usize, pages.len());
    let len = writer.words().len();
    words.into_iter().take(len).collect()
}

proptest! {
    #[test]
    fn words_give_back_the_pages_in_sorted_batches(pages in proptest::collection::vec(0u32..500, 0..400)) {
        let words = recorded(&pages);
        let mut want = pages.clone();
        want.chunks_mut(words::BATCH).for_each(<[u32]>::sort_unstable);
        prop_assert_eq!(words::count(&words), want.len() as u64);
        prop_assert_eq!(words::pages(&words).collect::<Vec<_>>(), want);
        let some: Vec<u32> = (0..60).map(|i| i * 9).collect();
        let among = some.iter().filter(|p| pages.contains(p)).count();
        prop_assert_eq!(words::among(&words, &some), among);
    }

    /// Whatever the words are, reading them ends, and no page lies outside of the window.
    #[test]
    fn foreign_words_are_bounded(raw in proptest::collection::vec(any::<u32>(), 0..20)) {
        let words: Vec<AtomicU32> = raw.iter().map(|w| AtomicU32::new(*w)).collect();
        let most = raw.len() * words::RUN_MAX as usize;
        let mut n = 0;
        for page in words::pages(&words) {
            prop_assert!(page < 1 << 31);
            n += 1;
        }
        prop_assert!(n <= most);
        let _ = words::among(&words, &[0, 1, u32::MAX]);
    }

    /// A program that needs `needs` after a recording of `knows`, with a replay that is as fast as the program: what
    /// comes in is of the recording, comes once, and what comes in vain is bounded.
    #[test]
    fn a_replay_brings_in_what_is_needed_and_little_else(
        knows in proptest::collection::hash_set(0u32..20_000, 64..3000),
        keeps in 0usize..=4,
        others in proptest::collection::hash_set(30_000u32..60_000, 100..3000),
        lot in 1usize..80,
    ) {
        let knows: Vec<u32> = knows.into_iter().collect();
        let words = recorded(&knows);
        // Of the recording so many quarters, in its order, then pages that are not in it.
        let needs: Vec<u32> = knows[..FIRST].iter().copied()
            .chain(knows[FIRST..].iter().copied().take(knows.len() * keeps / 4))
            .chain(others.iter().copied())
            .collect();
        let (known, draft) = (memory(1 << 14), memory(1 << 14));
        let mut learner = Learner::new(&known, &draft);
        let now = 5000 * MS;
        for (i, page) in needs[..FIRST].iter().enumerate() {
            prop_assert_eq!(learner.fault(now, *page), i == FIRST - 1);
        }
        prop_assert_eq!(words::among(&words, learner.first()), FIRST);
        learner.begin(now, Some(&words));
        let mut present: HashSet<u32> = needs[..FIRST].iter().copied().collect();
        let (mut came, mut faults, mut out) = (HashSet::new(), 0u32, [0; 80]);
        for page in &needs[FIRST..] {
            let n = learner.next(&words, &mut out[..lot]);
            for page in &out[..n] {
                prop_assert!(came.insert(*page), "page {} came twice", page);
                prop_assert!(knows.contains(page));
                present.insert(*page);
            }
            if present.insert(*page) {
                faults += 1;
                prop_assert!(!learner.fault(now, *page), "a resumption within one");
            }
        }
        let needed: HashSet<u32> = needs.iter().copied().collect();
        let in_vain = came.difference(&needed).count() as u32;
        let credit = AHEAD_PAGES + FIRST as u32 * BY_EARLY + faults * BY_SAMPLE;
        prop_assert!(in_vain <= credit.min(knows.len() as u32));
        // None of the others is in the recording: as soon as they are most of the faults, it ends.
        let hits = FIRST as u32 + faults.saturating_sub(others.len() as u32);
        prop_assert_eq!(learner.is_stopped(), others.len() as u32 > hits);
        let outcome = learner.ended(now + END_NS).unwrap();
        prop_assert_eq!(outcome, if learner_was_stopped(others.len(), hits) { Outcome::New } else { Outcome::More });
        let drafted: HashSet<u32> = words::pages(learner.draft()).collect();
        prop_assert_eq!(&drafted, &others, "what was not known is written down");
    }

    /// Once, in the order of the first faults, batches sorted.
    #[test]
    fn a_recording_has_each_page_once(pages in proptest::collection::vec(0u32..2000, 200..2000)) {
        let (known, draft) = (memory(1 << 12), memory(1 << 12));
        let mut learner = Learner::new(&known, &draft);
        let mut model: Vec<u32> = Vec::new();
        let mut repeats = 0;
        for page in &pages {
            // Where the faults are those of a program that pages all the time, the recording has ended.
            if learner.fault(3000 * MS, *page) {
                learner.begin(3000 * MS, None);
            }
            match model.contains(page) {
                false => model.push(*page),
                true => repeats += 1,
            }
            if learner.ended(3000 * MS).is_some() {
                prop_assert!(repeats > 256, "after {} repeats", repeats);
                break;
            }
        }
        let _ = learner.ended(3000 * MS + END_NS);
        model.chunks_mut(words::BATCH).for_each(<[u32]>::sort_unstable);
        let drafted: Vec<u32> = words::pages(learner.draft()).collect();
        prop_assert_eq!(&drafted[..], &model[..drafted.len()]);
        prop_assert!(drafted.len() + 1 >= model.len());
    }
}

fn learner_was_stopped(misses: usize, hits: u32) -> bool {
    misses as u32 > hits
}

/// The times at which a resumption begins, of faults on different pages.
fn beginnings(faults: impl Iterator<Item = u64>) -> Vec<u64> {
    let (known, draft) = (memory(1 << 12), memory(1 << 12));
    let mut learner = Learner::new(&known, &draft);
    let mut found = Vec::new();
    for (i, now) in faults.enumerate() {
        let _ = learner.ended(now);
        if learner.fault(now, i as u32 * 2) {
            learner.begin(now, None);
            found.push(now / MS);
        }
    }
    found
}

#[test]
fn a_resumption_is_a_burst_after_a_quiet_time() {
    let burst = |at: u64, n: u64| (0..n).map(move |i| at * MS + i * MS / 10);
    assert_eq!(beginnings(burst(2000, 100)), [2003]);
    // Too few, and too slow.
    assert!(beginnings(burst(2000, 31)).is_empty());
    assert!(beginnings((0..100).map(|i| (2000 + i * 3) * MS)).is_empty());
    // Not quiet before; after a second of quiet it is one again.
    let busy = || (0..200).map(|i| (1000 + i * 4) * MS);
    assert!(beginnings(busy().chain(burst(1900, 50))).is_empty());
    assert_eq!(beginnings(busy().chain(burst(3000, 50))), [3003]);
    // A few now and then are quiet, also just before it.
    let few = (0..40).map(|i| (1000 + i * 30) * MS);
    let few: Vec<u64> = few.chain(burst(2201, 50)).collect();
    assert_eq!(beginnings(few.into_iter()).len(), 1);
}

#[test]
fn it_ends_when_it_is_quiet_and_keeps_nothing_of_a_faithful_replay() {
    let pages: Vec<u32> = (0..200).map(|i| i * 3).collect();
    let words = recorded(&pages);
    let (known, draft) = (memory(1 << 10), memory(1 << 10));
    let mut learner = Learner::new(&known, &draft);
    for page in &pages[..FIRST] {
        learner.fault(2000 * MS, *page);
    }
    learner.begin(2000 * MS, Some(&words));
    let mut out = [0; 512];
    // One in 32 is left out.
    assert_eq!(learner.next(&words, &mut out), 200 - 200 / SAMPLE as usize);
    assert_eq!(learner.ended(2000 * MS + END_NS - 1), None);
    assert_eq!(learner.ended(2000 * MS + END_NS), Some(Outcome::Nothing));
    assert!(!learner.is_resuming());
}

#[test]
fn what_is_full_ends_and_what_has_no_room_is_left_out() {
    let (known, draft) = (memory(1 << 8), memory(64));
    let mut learner = Learner::new(&known, &draft);
    for i in 0..400u32 {
        if learner.fault(2000 * MS, i * 2) {
            learner.begin(2000 * MS, None);
        }
    }
    assert_eq!(learner.ended(2000 * MS), Some(Outcome::New));
    assert_eq!(learner.draft().len(), 64);
    let more = recorded(&[1, 5]);
    assert_eq!(words::append(&draft, 63, &more), None);
    assert_eq!(words::append(&draft, 62, &more), Some(64));
}
