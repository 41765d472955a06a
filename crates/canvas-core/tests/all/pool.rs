//! Corruption, giving memory back, full pools, and threads.

use crate::pools::*;
use canvas_core::swap::classes::{
    CLASS_BYTES, RAW_CLASS, RAW_HEADER_BYTES, RAW_HEADERS_BYTES, SLAB_BYTES, class_for,
};
use canvas_core::swap::entry::Record;
use canvas_core::swap::slots::{EMPTY_KEEP, SLAB_CHARGE_BYTES};
use canvas_core::swap::*;
use canvas_testing::random::seed;
use canvas_types::sync::Ordering;
use canvas_types::{PAGE_SIZE, PageBuf, SwapEntry};

fn put(pool: &Pool<'_>, page: &PageBuf, scratch: &mut Scratch) -> Outcome {
    pool.store(SwapEntry::NONE, false, page, scratch).unwrap()
}

/// Offset and length of the payload in slot memory; offset of the header.
fn place(pool: &Pool<'_>, entry: SwapEntry, slabs: usize) -> (usize, usize, usize) {
    let Record::Stored { slot, len, .. } = pool.record(entry) else {
        panic!("not stored")
    };
    if slot.class() == RAW_CLASS {
        (
            slot.offset(),
            len as usize,
            slabs * SLAB_BYTES + slot.slab() * RAW_HEADERS_BYTES + slot.index() * RAW_HEADER_BYTES,
        )
    } else {
        (slot.offset() + 16, len as usize, slot.offset())
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of loads")]
fn any_flipped_bit_is_found() {
    const SLABS: usize = 16;
    let world = World::new(100, SLABS, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let mut out = [0; PAGE_SIZE];
    let mut rng = Rng(seed());
    for random in [0, 40, 600, 1500, 3000, 3500, PAGE_SIZE] {
        let page = page_of(rng.next(), random);
        let entry = put(&pool, &page, &mut scratch).entry;
        let (payload, len, header) = place(&pool, entry, SLABS);
        // Every bit of the header and of short payloads; a sample of long ones.
        let offsets: Vec<usize> = (header..header + 16)
            .chain(
                (0..len)
                    .filter(|_| len < 200 || rng.below(len as u64) < 100)
                    .map(|i| payload + i),
            )
            .collect();
        for off in offsets {
            let bits = if len < 200 || off < header + 16 {
                0..8
            } else {
                (rng.below(8) as u32)..8
            };
            for bit in bits {
                world.mem.flip(off, bit);
                let got = pool.load(entry, &mut out, &mut scratch);
                // lz4 has more than one encoding of some pages (an offset into a run of equal bytes, say); a load may
                // succeed only if the content is right all the same.
                assert!(
                    got == Err(LoadError::Verify) || (got == Ok(()) && out == page),
                    "offset {off} bit {bit}"
                );
                if random >= 3500 || (header..header + 16).contains(&off) {
                    assert_eq!(got, Err(LoadError::Verify), "offset {off} bit {bit}");
                }
                world.mem.flip(off, bit);
            }
        }
        assert_eq!(pool.load(entry, &mut out, &mut scratch), Ok(()));
        assert!(out == page);
    }
}

#[test]
fn a_swapped_copy_is_found() {
    // Two pages of one size whose slots are swapped: each is well-formed, and wrong.
    let world = World::new(10, 4, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let pages = [page_of(1, PAGE_SIZE), page_of(2, PAGE_SIZE)];
    let entries = pages.map(|p| put(&pool, &p, &mut scratch).entry);
    let offsets = entries.map(|e| place(&pool, e, 4).0);
    for (off, page) in offsets.iter().zip(pages.iter().rev()) {
        (&&world.mem).copy_in(*off, page);
    }
    let mut out = [0; PAGE_SIZE];
    for e in entries {
        assert_eq!(pool.load(e, &mut out, &mut scratch), Err(LoadError::Verify));
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of pages")]
fn pages_that_hardly_shrink_are_raw() {
    let world = World::new(4200, 700, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    for random in (0..=PAGE_SIZE).step_by(8) {
        let page = page_of(random as u64, random);
        let outcome = put(&pool, &page, &mut scratch);
        let Record::Stored { slot, len, .. } = pool.record(outcome.entry) else {
            panic!("{random} not stored")
        };
        match outcome.kind {
            Kind::Raw => assert!(random > 3400 && slot.class() == RAW_CLASS),
            Kind::Compressed => {
                assert!(slot.class() < RAW_CLASS && slot.class() == class_for(len as usize + 16));
                assert!(random < CLASS_BYTES[RAW_CLASS - 1] as usize);
            }
            k => panic!("{k:?}"),
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn memory_is_given_back() {
    const SLABS: usize = 300;
    let world = World::new(5000, SLABS, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let mut rng = Rng(seed());
    let mut entries = Vec::new();
    for i in 0..3000 {
        let random = rng.below(4096) as usize;
        entries.push(put(&pool, &page_of(i, random), &mut scratch).entry);
    }
    let full = pool.stats();
    assert!(full.slabs_in_use > 100);
    // Little is allocated beyond what is stored.
    assert!(
        full.charged_bytes < full.stored_bytes * 112 / 100 + 25 * SLAB_CHARGE_BYTES,
        "{full:?}"
    );
    while !entries.is_empty() {
        pool.release(entries.swap_remove(rng.below(entries.len() as u64) as usize));
    }
    let empty = pool.stats();
    assert!(empty.slabs_in_use == 0 && empty.slabs_empty <= EMPTY_KEEP as u64);
    pool.trim();
    assert_eq!(world.budget.used.load(Ordering::Relaxed), 0);
    assert_eq!(
        pool.stats(),
        PoolStats {
            entries_high: full.entries_high,
            ..Default::default()
        }
    );
    assert_eq!(
        world.mem.1.load(Ordering::Relaxed),
        full.slabs_in_use.max(full.slabs_in_use + full.slabs_empty)
    );
}

#[test]
fn full_keeps_what_is_there() {
    let world = World::new(100, 20, 2 * SLAB_CHARGE_BYTES);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let stored: Vec<_> = (0..16)
        .map(|i| {
            (
                page_of(i, PAGE_SIZE),
                put(&pool, &page_of(i, PAGE_SIZE), &mut scratch).entry,
            )
        })
        .collect();
    let full = |copy_dropped| Err(StoreError::Full { copy_dropped });
    // No room for a new page, of any class; its entry is not leaked.
    assert_eq!(
        pool.store(
            SwapEntry::NONE,
            false,
            &page_of(99, PAGE_SIZE),
            &mut scratch
        ),
        full(false)
    );
    assert_eq!(
        pool.store(SwapEntry::NONE, false, &page_of(99, 100), &mut scratch),
        full(false)
    );
    assert_eq!(pool.stats().entries_live, 16);
    // A page whose content shrank goes into its old slot, whatever its class.
    let small = page_of(7, 100);
    assert_eq!(
        pool.store(stored[0].1, true, &small, &mut scratch)
            .unwrap()
            .kind,
        Kind::Compressed
    );
    let mut out = [0; PAGE_SIZE];
    pool.load(stored[0].1, &mut out, &mut scratch).unwrap();
    assert!(out == small);
    assert_eq!(
        pool.store(stored[0].1, true, &small, &mut scratch)
            .unwrap()
            .kind,
        Kind::Clean
    );
    // Zero and same-filled pages need nothing.
    assert_eq!(
        pool.store(SwapEntry::NONE, false, &[0; PAGE_SIZE], &mut scratch)
            .unwrap()
            .entry,
        SwapEntry::NONE
    );
    assert_eq!(
        pool.store(SwapEntry::NONE, false, &same(3), &mut scratch)
            .unwrap()
            .kind,
        Kind::SameFilled
    );
    for (page, entry) in &stored[1..] {
        pool.load(*entry, &mut out, &mut scratch).unwrap();
        assert!(out == *page);
    }
    // Room again as soon as a page is freed.
    pool.release(stored[1].1);
    assert_eq!(
        put(&pool, &page_of(99, PAGE_SIZE), &mut scratch).kind,
        Kind::Raw
    );
}

#[test]
fn a_stale_copy_is_dropped_when_full() {
    let world = World::new(400, 20, 2 * SLAB_CHARGE_BYTES);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    // Many small pages in one slab, large ones in the other: a small one cannot grow.
    let small: Vec<_> = (0..2)
        .map(|i| put(&pool, &page_of(i, 10), &mut scratch).entry)
        .collect();
    (0..8).for_each(|i| {
        assert_eq!(
            put(&pool, &page_of(i, PAGE_SIZE), &mut scratch).kind,
            Kind::Raw
        )
    });
    let grown = page_of(5, PAGE_SIZE);
    assert_eq!(
        pool.store(small[0], true, &grown, &mut scratch),
        Err(StoreError::Full { copy_dropped: true })
    );
    assert_eq!(pool.record(small[0]), Record::Empty);
    assert_eq!(
        pool.store(small[0], false, &grown, &mut scratch),
        Err(StoreError::Full {
            copy_dropped: false
        })
    );
    // The last page of a slab can grow into the slab that it empties.
    assert_eq!(
        pool.store(small[1], true, &grown, &mut scratch)
            .unwrap()
            .kind,
        Kind::Raw
    );
}

#[test]
fn when_full_a_larger_slot_will_do() {
    let world = World::new(400, 20, 2 * SLAB_CHARGE_BYTES);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let slot = |e| match pool.record(e) {
        Record::Stored { slot, .. } => slot,
        other => panic!("{other:?}"),
    };
    let raw: Vec<_> = (0..16)
        .map(|i| put(&pool, &page_of(i, PAGE_SIZE), &mut scratch).entry)
        .collect();
    let old = slot(raw[5]);
    pool.release(raw[2]);
    // A page that shrank stays in its own slot, though there is a free one before it.
    let small = page_of(7, 100);
    let outcome = pool.store(raw[5], true, &small, &mut scratch).unwrap();
    assert_eq!((outcome.kind, slot(raw[5])), (Kind::Compressed, old));
    // A new page takes the free one.
    let new = put(&pool, &page_of(8, 100), &mut scratch);
    assert_eq!(
        (new.kind, slot(new.entry).class()),
        (Kind::Compressed, RAW_CLASS)
    );
    let mut out = [0; PAGE_SIZE];
    for (entry, page) in [(raw[5], small), (new.entry, page_of(8, 100))] {
        assert_eq!(pool.load(entry, &mut out, &mut scratch), Ok(()));
        assert!(out == page);
        let clean = pool.store(entry, true, &page, &mut scratch).unwrap();
        assert_eq!(clean.kind, Kind::Clean);
    }
    // With a budget again, a changed page moves to a slot of its size.
    world.budget.limit.store(i64::MAX, Ordering::Relaxed);
    pool.store(raw[5], true, &page_of(9, 100), &mut scratch)
        .unwrap();
    assert!(slot(raw[5]).class() < RAW_CLASS);
    assert_eq!(pool.stats().slabs_in_use, 3);
}

#[test]
fn entries_can_run_out() {
    let world = World::new(1, 20, i64::MAX);
    let pool = world.pool();
    let mut scratch = Box::new(Scratch::new());
    let first = put(&pool, &page_of(1, 50), &mut scratch);
    assert_eq!(first.entry_from, EntryFrom::Lock);
    assert_eq!(
        pool.store(SwapEntry::NONE, false, &page_of(2, 50), &mut scratch),
        Err(StoreError::NoEntry)
    );
    let again = pool
        .store(first.entry, true, &page_of(2, 50), &mut scratch)
        .unwrap();
    assert_eq!(
        again,
        Outcome {
            entry: first.entry,
            kind: Kind::Compressed,
            entry_from: EntryFrom::Page
        }
    );
}

#[test]
fn threads_work_on_different_entries() {
    let world = World::new(2000, 60, 50 * SLAB_CHARGE_BYTES);
    let pool = world.pool();
    let seed = seed();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let pool = &pool;
            s.spawn(move || {
                let mut rng = Rng(seed ^ t << 56);
                let mut scratch = Box::new(Scratch::new());
                let mut out = [0; PAGE_SIZE];
                let mut mine: Vec<(SwapEntry, u64, usize)> = Vec::new();
                let mut fulls = 0;
                for i in 0..u64::from(canvas_testing::random::scaled(2000)) {
                    if mine.is_empty() || rng.below(3) == 0 {
                        let random = rng.below(4600).min(4096) as usize;
                        match pool.store(
                            SwapEntry::NONE,
                            false,
                            &page_of(i << 8 | t, random),
                            &mut scratch,
                        ) {
                            Ok(o) => mine.push((o.entry, i << 8 | t, random)),
                            Err(StoreError::Full { .. }) => fulls += 1,
                            Err(e) => panic!("{e:?}"),
                        }
                    } else {
                        let at = rng.below(mine.len() as u64) as usize;
                        let (entry, id, random) = mine[at];
                        pool.load(entry, &mut out, &mut scratch).unwrap();
                        assert!(out == page_of(id, random), "thread {t} step {i}");
                        match rng.below(4) {
                            0 => drop((pool.release(entry), mine.swap_remove(at))),
                            1 => match pool.store(
                                entry,
                                true,
                                &page_of(!id, random / 2),
                                &mut scratch,
                            ) {
                                Ok(o) => mine[at] = (o.entry, !id, random / 2),
                                Err(_) => drop((pool.release(entry), mine.swap_remove(at))),
                            },
                            _ => {}
                        }
                    }
                    if i % 500 == 0 {
                        drop(pool.fork_guard());
                    }
                }
                mine.iter().for_each(|m| assert!(pool.release(m.0)));
                fulls
            });
        }
    });
    pool.trim();
    let stats = pool.stats();
    assert_eq!(
        (
            stats.entries_live,
            stats.stored_bytes,
            stats.slabs_in_use,
            stats.charged_bytes
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn a_page_that_is_nowhere_else_outlives_a_full_pool() {
    const SLABS: usize = 1;
    let world = World::new(40, SLABS, i64::MAX);
    let pool = world.pool().keeping_old();
    let mut scratch = Box::new(Scratch::new());
    let mut out = [0; PAGE_SIZE];
    let mut store = |number: u32, has_copy, page: &PageBuf| {
        assert!(pool.claim(SwapEntry(number)));
        pool.store(SwapEntry(number), has_copy, page, &mut scratch)
    };
    // One page that shrinks takes the only slab; one that does not shrink finds none.
    let (small, large) = (page_of(1, 100), page_of(2, PAGE_SIZE));
    assert_eq!(store(3, false, &small).unwrap().entry, SwapEntry(3));
    let full = Err(StoreError::Full {
        copy_dropped: false,
    });
    assert_eq!(store(3, true, &large), full);
    assert_eq!(store(4, false, &large), full);
    let mut scratch = Box::new(Scratch::new());
    pool.load(SwapEntry(3), &mut out, &mut scratch).unwrap();
    assert_eq!(out, small);
    assert_eq!(pool.record(SwapEntry(4)), Record::Empty);
    // Its own slot, or a larger one, is suitable for a page of that size or less.
    let other = page_of(5, 90);
    pool.store(SwapEntry(3), true, &other, &mut scratch)
        .unwrap();
    pool.load(SwapEntry(3), &mut out, &mut scratch).unwrap();
    assert_eq!(out, other);
    assert!(pool.drop_copy(SwapEntry(3)));
    pool.store(SwapEntry(4), false, &large, &mut scratch)
        .unwrap();
    pool.load(SwapEntry(4), &mut out, &mut scratch).unwrap();
    assert_eq!(out, large);
    // An entry that was claimed before stays unchanged, and there is none past the table's end.
    assert!(pool.claim(SwapEntry(4)) && !pool.claim(SwapEntry(41)) && !pool.claim(SwapEntry::NONE));
    pool.load(SwapEntry(4), &mut out, &mut scratch).unwrap();
    assert_eq!(out, large);
}
