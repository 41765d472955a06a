//! Compared with naive models: lists of pages for the entries, sets for what a replay brings in.

use super::*;
use canvas_testing::random::{scaled, sized};
use proptest::prelude::*;
use std::collections::HashSet;
use std::vec::Vec;

const MS: u64 = 1_000_000;

fn memory(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

/// Memory of a learner: two tables, and words.
struct Memory(Vec<AtomicU32>, Vec<AtomicU32>, Vec<AtomicU32>);

impl Memory {
    fn new(places: usize, words: usize) -> Memory {
        Memory(memory(places), memory(places), memory(words))
    }
    fn learner(&self) -> Learner<'_> {
        Learner::new(
            Draft::new(&self.2, Index::new(&self.0)),
            Index::new(&self.1),
        )
    }
}

/// The words of a recording of the pages.
fn recorded(pages: &[u32]) -> Vec<AtomicU32> {
    let (places, words) = (memory(1 << 14), memory(3 * pages.len()));
    let mut draft = Draft::new(&words, Index::new(&places));
    for page in pages {
        assert_ne!(draft.add(*page), Added::Full);
    }
    let len = draft.words().len();
    words.into_iter().take(len).collect()
}

/// The pages by chunk, in the order of each chunk's first page; once each.
fn by_chunk(pages: &[u32]) -> Vec<u32> {
    let mut chunks: Vec<(u32, Vec<u32>)> = Vec::new();
    for page in pages {
        let chunk = page / PAGES;
        match chunks.iter_mut().find(|(c, _)| *c == chunk) {
            Some((_, there)) if there.contains(page) => {}
            Some((_, there)) => there.push(*page),
            None => chunks.push((chunk, std::vec![*page])),
        }
    }
    let sorted = chunks.into_iter().flat_map(|(_, mut there)| {
        there.sort_unstable();
        there
    });
    sorted.collect()
}

fn all_pages(words: &[AtomicU32]) -> Vec<u32> {
    chunks::entries(words)
        .flat_map(chunks::Entry::pages)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(64)))]

    #[test]
    fn entries_give_back_the_pages_by_chunk(
        pages in proptest::collection::vec(0u32..5000, 1..400),
        more in proptest::collection::vec(0u32..5000, 1..400),
        room in 1usize..80,
    ) {
        let words = recorded(&pages);
        prop_assert_eq!(all_pages(&words), by_chunk(&pages));
        prop_assert_eq!(chunks::count(&words) as usize, by_chunk(&pages).len());
        let some: Vec<u32> = (0..60).map(|i| i * 83).collect();
        let among = some.iter().filter(|p| pages.contains(p)).count();
        prop_assert_eq!(chunks::among(&words, &some), among);
        // Further entries behind them, with room for only this many chunks.
        let (places, all) = (memory(1 << 9), memory(words.len() + 3 * room));
        for (to, from) in all.iter().zip(&words) {
            to.store(from.load(core::sync::atomic::Ordering::Relaxed), core::sync::atomic::Ordering::Relaxed);
        }
        let mut draft = Draft::behind(&all, words.len(), Index::new(&places));
        draft.add_all(&recorded(&more));
        let known: HashSet<u32> = pages.iter().map(|p| p / PAGES).collect();
        let new: Vec<u32> = by_chunk(&more).iter().map(|p| p / PAGES).filter(|c| !known.contains(c)).collect();
        let mut new_chunks = new.clone();
        new_chunks.dedup();
        new_chunks.truncate(room);
        let both: Vec<u32> = pages.iter().copied().chain(by_chunk(&more).into_iter().filter(|p| {
            known.contains(&(p / PAGES)) || new_chunks.contains(&(p / PAGES))
        })).collect();
        prop_assert_eq!(all_pages(draft.words()), by_chunk(&both));
    }

    /// Whatever the words are, walking them ends, and no page lies outside the managed range.
    #[test]
    fn foreign_words_are_bounded(raw in proptest::collection::vec(any::<u32>(), 0..40)) {
        let words: Vec<AtomicU32> = raw.iter().map(|w| AtomicU32::new(*w)).collect();
        for page in all_pages(&words) {
            prop_assert!((page as usize) < canvas_types::layout::WINDOW_PAGES);
        }
        let _ = chunks::among(&words, &[0, 1, u32::MAX]);
        let m = Memory::new(1 << 6, 300);
        let mut learner = m.learner();
        learner.begin(0, Some(&words));
        let mut out = [0; PAGES as usize];
        for i in 0..100 {
            let n = learner.next(0, &mut out);
            prop_assert!(n <= out.len());
            // The words change during the walk.
            if let Some(w) = words.get(i % 40) {
                w.store((i as u32).wrapping_mul(77_777_777), core::sync::atomic::Ordering::Relaxed);
            }
            learner.fault(0, i as u32 * 31);
        }
    }

    /// A program that needs a part of a recording and then other pages, with a replay that is as fast as the program:
    /// only pages of the recording come in, each once, and few come in for nothing.
    #[test]
    fn a_replay_brings_in_what_is_needed_and_little_else(
        knows in proptest::collection::hash_set(0u32..20_000, 64..sized(3000, 200)),
        keeps in 0usize..=4,
        others in proptest::collection::hash_set(30_000u32..60_000, 100..sized(3000, 200)),
        speed in 1usize..80,
    ) {
        let knows: Vec<u32> = knows.into_iter().collect();
        let words = recorded(&knows);
        let needs: Vec<u32> = knows[..FIRST].iter().copied()
            .chain(knows[FIRST..].iter().copied().take(knows.len() * keeps / 4))
            .chain(others.iter().copied())
            .collect();
        let m = Memory::new(1 << 12, 1 << 14);
        let mut learner = m.learner();
        let now = 5000 * MS;
        for (i, page) in needs[..FIRST].iter().enumerate() {
            prop_assert_eq!(learner.fault(now, *page) == Event::Begins, i == FIRST - 1);
        }
        prop_assert_eq!(chunks::among(&words, learner.seen()), FIRST);
        learner.begin(now, Some(&words));
        let mut present: HashSet<u32> = needs[..FIRST].iter().copied().collect();
        let (mut came, mut hits, mut faults, mut misses, mut out) = (HashSet::new(), FIRST as u32, 0u32, 0u32, [0; PAGES as usize]);
        let (mut stopped, mut passed) = (false, HashSet::new());
        for (i, page) in needs[FIRST..].iter().enumerate() {
            if i % speed == 0 {
                let n = learner.next(0, &mut out);
                prop_assert!(!stopped || n == 0);
                let at = chunks::entries(&words).take(learner.at()).map(|e| e.chunk);
                passed.extend(at);
                for page in &out[..n] {
                    prop_assert!(came.insert(*page), "page {} came twice", page);
                    prop_assert!(knows.contains(page) && !is_left_out(*page));
                    present.insert(*page);
                }
            }
            if present.insert(*page) {
                match knows.contains(page) {
                    true => {
                        faults += 1;
                        // The page was left out, or the replay has not reached it.
                        let passed = passed.contains(&(page / PAGES)) && is_left_out(*page);
                        hits += if passed { SAMPLE } else { 1 };
                    }
                    false => misses += 1,
                }
                let stops = !stopped && misses >= FIRST as u32 && misses > hits;
                stopped |= stops;
                // When it stops, and now and then.
                let event = learner.fault(now, *page);
                prop_assert!(!stops || event == Event::Search, "{:?}", event);
                prop_assert!(event == Event::Nothing || stopped, "{:?}", event);
            }
            prop_assert_eq!(learner.is_stopped(), stopped);
        }
        let needed: HashSet<u32> = needs.iter().copied().collect();
        let in_vain = came.difference(&needed).count() as u32;
        prop_assert!(in_vain <= AHEAD_PAGES + FIRST as u32 * BY_OTHER + faults * BY_SAMPLE + PAGES);
        if keeps == 0 {
            prop_assert!(in_vain <= AHEAD_PAGES + FIRST as u32 * BY_OTHER + PAGES);
        }
        let outcome = learner.ended(now + END_NS).unwrap();
        prop_assert_eq!(outcome, if stopped { Outcome::New } else { Outcome::More });
        let drafted: HashSet<u32> = all_pages(learner.draft()).into_iter().collect();
        prop_assert_eq!(&drafted, &others, "what was not known is written down");
        // The recording is found again, with what was known.
        let whole = memory(words.len() + learner.draft().len());
        for (to, from) in whole.iter().zip(&words) {
            to.store(from.load(core::sync::atomic::Ordering::Relaxed), core::sync::atomic::Ordering::Relaxed);
        }
        let len = learner.merge(&whole, words.len());
        let both: HashSet<u32> = all_pages(&whole[..len]).into_iter().collect();
        prop_assert_eq!(both.len(), knows.len() + others.len());
    }

    /// Each page once, by chunk; with the faults of a program that pages all the time, the recording ends.
    #[test]
    fn a_recording_has_each_page_once(pages in proptest::collection::vec(0u32..2000, 200..2000)) {
        let m = Memory::new(1 << 12, 1 << 12);
        let mut learner = m.learner();
        let (mut known, mut repeats) = (Vec::new(), 0u32);
        for page in &pages {
            if learner.fault(3000 * MS, *page) == Event::Begins {
                learner.begin(3000 * MS, None);
            }
            match known.contains(page) {
                false => known.push(*page),
                true => repeats += 1,
            }
            if learner.ended(3000 * MS).is_some() {
                prop_assert!(repeats > 256, "after {} repeats", repeats);
                break;
            }
        }
        let _ = learner.ended(3000 * MS + END_NS);
        prop_assert_eq!(all_pages(learner.draft()), by_chunk(&known));
    }
}

/// The times at which a resumption begins, given faults on different pages.
fn beginnings(faults: impl Iterator<Item = u64>) -> Vec<u64> {
    let m = Memory::new(1 << 12, 1 << 12);
    let mut learner = m.learner();
    let mut found = Vec::new();
    for (i, now) in faults.enumerate() {
        let _ = learner.ended(now);
        if learner.fault(now, i as u32 * 2) == Event::Begins {
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
    // Not quiet before; after a second of quiet it is a resumption again.
    let busy = || (0..800).map(|i| (1000 + i) * MS);
    assert_eq!(beginnings(busy().chain(burst(2150, 50))), [1031]);
    assert_eq!(beginnings(busy().chain(burst(3000, 50))), [1031, 3003]);
    // It begins slowly, in a window of its own, after a time with no fault at all.
    let slowly = (0..20).map(|i| (3000 + i * 2) * MS);
    let slowly: Vec<u64> = busy().chain(slowly).chain(burst(3051, 50)).collect();
    assert_eq!(beginnings(slowly.into_iter()), [1031, 3054]);
    // A few faults each tenth of a second, as of a program that does housekeeping, are quiet.
    let tidies = (0..400).map(|i| (1000 + i / 20 * 100) * MS + i % 20 * MS / 10);
    let tidies: Vec<u64> = tidies.chain(burst(3010, 50)).collect();
    assert_eq!(beginnings(tidies.into_iter()), [3013]);
    // A few now and then are quiet, also just before it.
    let few = (0..40).map(|i| (1000 + i * 30) * MS);
    let few: Vec<u64> = few.chain(burst(2201, 50)).collect();
    assert_eq!(beginnings(few.into_iter()).len(), 1);
}

#[test]
fn what_had_to_leave_and_is_wanted_at_once_is_no_resumption() {
    let m = Memory::new(1 << 12, 1 << 12);
    let mut learner = m.learner();
    let begins = |learner: &mut Learner<'_>, at: u64| {
        let events = (0..50).map(|i| learner.fault(at * MS, i * 3));
        events.filter(|e| *e == Event::Begins).count()
    };
    for at in 2000..2400 {
        learner.disturbed(at * MS);
    }
    assert_eq!(begins(&mut learner, 2450), 0, "just after");
    assert_eq!(begins(&mut learner, 3200), 1, "when it was quiet again");
}

#[test]
fn it_ends_when_it_is_quiet_and_adds_nothing_of_a_faithful_replay() {
    let pages: Vec<u32> = (0..200).map(|i| i * 3).collect();
    let words = recorded(&pages);
    let m = Memory::new(1 << 10, 1 << 10);
    let mut learner = m.learner();
    for page in &pages[..FIRST] {
        learner.fault(2000 * MS, *page);
    }
    learner.begin(2000 * MS, Some(&words));
    let (mut out, mut came) = ([0; PAGES as usize], Vec::new());
    loop {
        let n = learner.next(0, &mut out);
        came.extend_from_slice(&out[..n]);
        if n == 0 {
            break;
        }
    }
    let want: Vec<u32> = pages.iter().copied().filter(|p| !is_left_out(*p)).collect();
    assert_eq!(came, want);
    assert_eq!(learner.ended(2000 * MS + END_NS - 1), None);
    assert_eq!(learner.ended(2000 * MS + END_NS), Some(Outcome::Nothing));
}

#[test]
fn it_keeps_ahead_of_the_faults_and_comes_back_for_what_it_has_skipped() {
    let pages: Vec<u32> = (0..20).map(|i| i * PAGES + 1).collect();
    let words = recorded(&pages);
    let m = Memory::new(1 << 10, 1 << 10);
    let mut learner = m.learner();
    learner.replay(&words);
    let mut out = [0; PAGES as usize];
    let mut chunks = Vec::new();
    for front in [0, 0, 3, 3, 12, 0, 0] {
        assert_eq!(learner.next(front, &mut out), 1);
        chunks.push(out[0] / PAGES);
    }
    assert_eq!(chunks, [0, 1, 7, 8, 16, 17, 18]);
    while learner.next(5, &mut out) == 1 {
        chunks.push(out[0] / PAGES);
    }
    assert_eq!(chunks[7..9], [19, 0]);
    assert_eq!(chunks.iter().collect::<HashSet<_>>().len(), 20);
    assert_eq!(chunks.len(), 8 + 20);
}

#[test]
fn another_recording_is_looked_for_when_the_first_was_wrong_or_none_fitted() {
    let one = recorded(&(0..FIRST as u32).collect::<Vec<_>>());
    let other = recorded(&(5000..5400).collect::<Vec<_>>());
    let m = Memory::new(1 << 10, 1 << 12);
    let mut learner = m.learner();
    let first = |learner: &mut Learner| {
        (0..FIRST as u32).for_each(|p| {
            learner.fault(2000 * MS, p);
        });
    };
    let found = |learner: &mut Learner, pages: core::ops::Range<u32>| -> Vec<u32> {
        let mut some = pages.clone();
        some.by_ref()
            .filter(|p| learner.fault(2000 * MS, *p) == Event::Search)
            .map(|p| p - pages.start)
            .collect()
    };
    first(&mut learner);
    learner.begin(2000 * MS, Some(&one));
    // As soon as most faults are not predicted.
    assert_eq!(
        found(&mut learner, 5000..5000 + FIRST as u32 + 1),
        [FIRST as u32]
    );
    assert!(learner.is_stopped());
    assert_eq!(chunks::among(&other, learner.seen()), FIRST);
    learner.replay(&other);
    assert!(!learner.is_stopped());
    assert!(learner.next(0, &mut [0; PAGES as usize]) > 0);
    assert_eq!(learner.ended(2000 * MS + END_NS), Some(Outcome::More));
    // Without a recording, after 128 faults, 512 and so on.
    let mut learner = m.learner();
    first(&mut learner);
    learner.begin(2000 * MS, None);
    assert_eq!(
        found(&mut learner, 100..700),
        [128 - 1 - FIRST as u32, 512 - 1 - FIRST as u32]
    );
}

#[test]
fn of_each_64_pages_side_by_side_one_is_left_out() {
    let left: Vec<u32> = (0..SAMPLE * 1000).filter(|p| is_left_out(*p)).collect();
    assert_eq!(left.len(), 1000);
    assert!(left.iter().enumerate().all(|(i, p)| p / SAMPLE == i as u32));
    let places: HashSet<u32> = left.iter().map(|p| p % SAMPLE).collect();
    assert_eq!(places.len(), SAMPLE as usize);
}

#[test]
fn what_has_no_room_ends_a_recording() {
    let m = Memory::new(1 << 8, 60);
    let mut learner = m.learner();
    for i in 0..400u32 {
        if learner.fault(2000 * MS, i * PAGES) == Event::Begins {
            learner.begin(2000 * MS, None);
        }
    }
    assert_eq!(
        learner.ended(2000 * MS),
        Some(Outcome::Nothing),
        "20 pages are not worth it"
    );
    assert_eq!(chunks::count(learner.draft()), 20);
}
