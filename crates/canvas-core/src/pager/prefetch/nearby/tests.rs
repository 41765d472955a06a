use super::*;
use canvas_testing::random::{scaled, sized};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The rules, written down over sets of pages.
#[derive(Default)]
struct Oracle {
    chunks: BTreeMap<(usize, usize), OpenChunk>,
    faults: BTreeMap<usize, usize>,
    /// Per cell: accuracy and judgements of each step, and the steps taken.
    cells: BTreeMap<u32, ([(u64, u64); STEPS], usize)>,
}

#[derive(Clone)]
struct OpenChunk {
    n: u32,
    opened: u8,
    cells: [u32; 2],
    watched: BTreeSet<u32>,
    seen: BTreeSet<u32>,
}

impl Oracle {
    fn close(&mut self, key: (usize, usize)) {
        let Some(chunk) = self.chunks.remove(&key) else {
            return;
        };
        if chunk.seen.is_empty() {
            return;
        }
        for cell in chunk.cells {
            let (steps, taken) = self.cells.entry(cell).or_default();
            for (step, (accuracy, judged)) in steps.iter_mut().enumerate() {
                let (mut all, mut used) = (0u64, 0u64);
                // What a half of a group would have brought in if its other half had faulted first.
                for half in 0..64u32 >> step {
                    let inside = |half: u32, of: &BTreeSet<u32>| {
                        of.iter().filter(|p| (*p % 64) >> step == half).count() as u64
                    };
                    let other = half ^ 1;
                    if inside(other, &chunk.seen) > 0 {
                        let alone = inside(half, &chunk.seen) == 0;
                        all += inside(half, &chunk.watched) * if alone { 2 } else { 1 };
                        used += inside(half, &chunk.seen);
                    }
                }
                if let Some(sample) = (used * 255).checked_div(all) {
                    let parts = *judged + 1;
                    *accuracy = (*accuracy * *judged + sample + parts / 2) / parts;
                    *judged = parts.min(7);
                }
            }
            let bad = steps[..*taken].iter().position(|s| s.0 < 115);
            match (bad, steps.get(*taken)) {
                (Some(bad), _) => *taken = bad,
                (None, Some((accuracy, judged))) if *judged >= 4 && *accuracy >= 141 => *taken += 1,
                _ => {}
            }
        }
    }

    /// Pages that a fault brings in beside `page`.
    fn fault(&mut self, thread: u32, page: u32, epoch: u8, far: &BTreeSet<u32>) -> Vec<u32> {
        let (n, key) = (page / 64, Nearby::index(page / 64));
        let now = self.faults.entry(key.0).or_default();
        *now += 1;
        let other = (key.0, *now % CHUNKS);
        let old = |c: &OpenChunk| epoch.wrapping_sub(c.opened) >= 2;
        if self.chunks.get(&other).is_some_and(old) {
            self.close(other);
        }
        let cells = Nearby::cells_of(thread, PageId(page));
        let stays = |c: &OpenChunk| c.n == n && !c.seen.contains(&page) && !old(c);
        if !self.chunks.get(&key).is_some_and(stays) {
            self.close(key);
            let pages = n * 64..n * 64 + 64;
            let chunk = OpenChunk {
                n,
                opened: epoch,
                cells,
                watched: pages.filter(|p| *p == page || far.contains(p)).collect(),
                seen: BTreeSet::new(),
            };
            self.chunks.insert(key, chunk);
        }
        let cell = |i: usize| self.cells.get(&cells[i]).copied().unwrap_or_default();
        let taken = if cell(0).0[0].1 >= 4 {
            cell(0).1
        } else {
            cell(1).1
        };
        let chunk = self.chunks.get_mut(&key).unwrap();
        if chunk.watched.contains(&page) {
            chunk.seen.insert(page);
        }
        let width = 1u32 << taken;
        let group: Vec<u32> = (page / width * width..page / width * width + width).collect();
        let wanted = |p: &u32| *p != page && far.contains(p);
        let last = group.iter().rposition(|p| far.contains(p));
        for (i, p) in group.iter().enumerate() {
            let every = width.min(8) as usize;
            let left = i % every == every - 1 || last == Some(i);
            if wanted(p) && !left && !chunk.seen.contains(p) {
                chunk.watched.remove(p);
            }
        }
        group.into_iter().filter(wanted).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(64)))]

    #[test]
    fn does_what_the_rules_say(
        // Thread, one of 40 chunks in two regions, page or run in it, epochs that pass, what is evicted.
        steps in prop::collection::vec((0u32..2, 0u32..40, 0u32..64, 1u32..12, 0u8..12), 1..sized(400, 40)),
    ) {
        let (nearby, mut oracle) = (Box::new(Nearby::new()), Oracle::default());
        let mut far: BTreeSet<u32> = (0..8192).collect();
        let mut epoch = 250u8;
        for (thread, chunk, first, pages, passes) in steps {
            epoch = epoch.wrapping_add(u8::from(passes == 0));
            let chunk = if chunk < 20 { chunk } else { chunk + 64 };
            for page in (first..(first + pages).min(64)).map(|p| chunk * 64 + p) {
                if !far.remove(&page) {
                    continue;
                }
                let plan = nearby.on_fault(thread, PageId(page), epoch, |p| far.contains(&p.0));
                let got: Vec<u32> = (0..plan.count)
                    .filter_map(|i| plan.page(i))
                    .map(|p| p.0)
                    .filter(|p| far.contains(p))
                    .collect();
                prop_assert_eq!(&got, &oracle.fault(thread, page, epoch, &far));
                got.iter().for_each(|p| { far.remove(p); });
            }
            if passes < 6 {
                far.extend(chunk * 64..chunk * 64 + 64);
            }
        }
    }

    /// Random faults bring in next to nothing.
    #[test]
    fn random_faults_stay_alone(seed: u64) {
        let nearby = Box::new(Nearby::new());
        let (mut x, mut planned) = (seed | 1, 0);
        for i in 0..4000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = PageId((x >> 40) as u32 % 1_000_000);
            planned += nearby.on_fault(1, page, (i / 64) as u8, |_| true).count;
        }
        prop_assert!(planned < 40, "{planned} planned");
    }
}

/// A page that was seen, was evicted, and came in again by a plan is no longer watched. This once made more pages seem
/// used than possible: the accuracy overflowed its eight bits into the count beside it.
#[test]
fn what_was_seen_and_came_in_again_counts_as_watched() {
    let nearby = Box::new(Nearby::new());
    let chunk = &nearby.shards[0].chunks[0];
    put(&chunk.owner, 1);
    put(&chunk.cells, 1 | 2 << 16);
    store(&chunk.watched, 0b01);
    store(&chunk.seen, 0b11);
    nearby.close(chunk);
    for at in [1, 2] {
        let cell = Cell(load(&nearby.cells[at]));
        assert_eq!((cell.accuracy(0), cell.evidence(0)), (255, 1));
    }
}

/// Faults on the first pages of each chunk's quarters, `pages` of 16, answered as a caller does; returns the number of
/// faults and of pages that came in beside them.
fn visit(nearby: &Nearby, thread: u32, chunks: std::ops::Range<u32>, pages: u32) -> (u32, u32) {
    let (mut faults, mut beside) = (0, 0);
    for n in chunks {
        let mut here = BTreeSet::new();
        // From the middle outwards, so that no stream would expect it.
        for page in (0..pages).map(|i| n * 64 + (i * 7 + 3) % 16) {
            if !here.insert(page) {
                nearby.on_hit(PageId(page));
                continue;
            }
            faults += 1;
            let plan = nearby.on_fault(thread, PageId(page), 0, |p| !here.contains(&p.0));
            let came: Vec<u32> = (0..plan.count)
                .filter_map(|i| plan.page(i))
                .map(|p| p.0)
                .collect();
            beside += came.iter().filter(|p| here.insert(**p)).count() as u32;
        }
        // A page that is seen twice was evicted in between: the chunk is judged.
        nearby.on_fault(thread, PageId(n * 64 + 3), 0, |_| false);
    }
    (faults, beside)
}

#[test]
fn what_is_used_is_brought_in_as_wide_as_it_is_used() {
    let nearby = Box::new(Nearby::new());
    visit(&nearby, 1, 0..40, 16);
    let (faults, beside) = visit(&nearby, 1, 0..40, 16);
    assert_eq!(
        (faults, beside),
        (40, 15 * 40),
        "groups of 16, and no wider"
    );
}

#[test]
fn threads_learn_apart_in_one_region() {
    let nearby = Box::new(Nearby::new());
    for _ in 0..4 {
        visit(&nearby, 1, 0..32, 16);
        visit(&nearby, 2, 32..64, 1);
    }
    assert_eq!(visit(&nearby, 1, 0..32, 16).0, 32);
    assert_eq!(visit(&nearby, 2, 32..64, 1), (32, 0));
}

#[test]
fn a_region_that_alternates_changes_its_width_seldom() {
    let nearby = Box::new(Nearby::new());
    let width = || nearby.width(Nearby::cells_of(1, PageId(0)));
    visit(&nearby, 1, 0..64, 16);
    let (mut changes, mut before) = (0, width());
    for round in 0..64 {
        // One visit in seven finds nothing but its own page.
        visit(
            &nearby,
            1,
            round..round + 1,
            if round % 7 == 0 { 1 } else { 16 },
        );
        changes += u32::from(width() != before);
        before = width();
    }
    assert_eq!(changes, 0);
    // When nothing is used any more, prefetching ends.
    visit(&nearby, 1, 0..64, 1);
    assert_eq!(visit(&nearby, 1, 0..64, 1).1, 0);
}

#[test]
fn pages_of_a_stream_are_no_evidence() {
    let nearby = Box::new(Nearby::new());
    for n in 0..64u32 {
        for page in n * 64..n * 64 + 64 {
            let plan = nearby.on_fault(1, PageId(page), 0, |_| true);
            assert_eq!(plan.count, 0);
            nearby.on_stream(PageId(page), &Plan::NONE);
        }
        nearby.on_fault(1, PageId(n * 64), 4, |_| false);
    }
}

#[test]
fn a_marked_page_tells_what_it_stands_for() {
    let nearby = Box::new(Nearby::new());
    visit(&nearby, 1, 0..40, 16);
    let plan = nearby.on_fault(1, PageId(48 * 64 + 2), 0, |_| true);
    assert_eq!((plan.start, plan.count), (PageId(48 * 64), 16));
    let done = Done {
        reached: 16,
        issued: 15,
        marked: 2,
    };
    nearby.carried_out(&plan, &done);
    assert_eq!(nearby.on_unused(PageId(48 * 64 + 7)), Some(7));
    assert_eq!(nearby.on_hit(PageId(48 * 64 + 7)), Some(7));
    assert_eq!(nearby.on_hit(PageId(48 * 64 + 7)), None, "only once");
    assert_eq!(nearby.on_hit(PageId(48 * 64 + 6)), None, "mapped");
    assert_eq!(nearby.on_unused(PageId(48 * 64 + 7)), None);
}
