use super::*;
use canvas_types::layout::BLOCK_PAGES;
use proptest::prelude::*;

struct World {
    words: Vec<AtomicU64>,
    counts: Vec<AtomicU32>,
    high: AtomicU32,
}

impl World {
    fn new(blocks: usize) -> World {
        World {
            words: (0..blocks * BLOCK_PAGES)
                .map(|_| AtomicU64::new(0))
                .collect(),
            counts: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
            high: AtomicU32::new(0),
        }
    }
    fn table(&self) -> PageTable<'_> {
        PageTable {
            words: &self.words,
            resident_in_block: &self.counts,
            high_block: &self.high,
        }
    }
    fn put(&self, page: usize, w: Word) {
        self.words[page].store(w.0, Ordering::Relaxed);
        if w.state() == State::Resident {
            self.table().note_resident(page);
        }
    }
    fn state(&self, page: usize) -> State {
        word::load(&self.words[page]).state()
    }
}

fn resident() -> Word {
    Word(0).with_state(State::Resident)
}

fn pages_of(batch: &VictimBatch) -> Vec<u32> {
    batch
        .runs()
        .iter()
        .flat_map(|r| r.start.0..r.start.0 + r.len)
        .collect()
}

fn plain() -> Clock {
    Clock::new(ClockParams {
        bridge_pages: 0,
        ..ClockParams::DEFAULT
    })
}

#[test]
fn takes_cold_pages_in_runs_that_stay_in_their_chunk() {
    let world = World::new(2);
    (10..200).for_each(|p| world.put(p, resident()));
    let (clock, mut out) = (plain(), VictimBatch::new());
    assert_eq!(clock.select(&world.table(), 100, &mut out), 118);
    let runs: Vec<_> = out.runs().iter().map(|r| (r.start.0, r.len)).collect();
    assert_eq!(runs, [(10, 54), (64, 64)]);
    assert!(
        pages_of(&out)
            .iter()
            .all(|p| world.state(*p as usize) == State::Evicting)
    );
    out.clear();
    assert_eq!(
        clock.select(&world.table(), 1000, &mut out),
        72,
        "the rest, and no more"
    );
}

#[test]
fn nothing_resident_gives_nothing() {
    let world = World::new(1);
    let mut out = VictimBatch::new();
    assert_eq!(plain().select(&world.table(), 5, &mut out), 0);
    (0..64).for_each(|p| world.put(p, resident().with_pins(1)));
    (64..128).for_each(|p| world.put(p, resident().set(flag::LOCKED)));
    (128..192).for_each(|p| world.put(p, resident().set(flag::STUCK)));
    assert_eq!(plain().select(&world.table(), 5, &mut out), 0);
    assert!(out.runs().is_empty());
}

#[test]
fn where_only_clean_pages_can_leave_all_of_them_are_found_and_no_other() {
    let world = World::new(2);
    let entry = canvas_types::SwapEntry(7);
    let clean = resident()
        .with_entry(entry)
        .set(flag::FAR_COPY | flag::PROTECTED);
    let is_clean = |p: usize| p % 5 == 2;
    (0..200).for_each(|p| {
        let w = if is_clean(p) { clean } else { resident() };
        world.put(p, if p < 64 { w.set(flag::REFERENCED) } else { w });
    });
    let (clock, mut out) = (plain(), VictimBatch::new());
    assert_eq!(clock.select_clean(&world.table(), 1000, &mut out), 40);
    assert!(pages_of(&out).iter().all(|p| is_clean(*p as usize)));
    assert_eq!(out.dirty_pages(), 0);
    out.clear();
    assert_eq!(clock.select_clean(&world.table(), 1000, &mut out), 0);
    assert_eq!(clock.select(&world.table(), 1000, &mut out), 160);
}

#[test]
fn referenced_pages_get_one_sweep() {
    let world = World::new(1);
    (0..128).for_each(|p| {
        world.put(
            p,
            if p < 64 {
                resident().set(flag::REFERENCED)
            } else {
                resident()
            },
        )
    });
    let (clock, mut out) = (plain(), VictimBatch::new());
    assert_eq!(clock.select(&world.table(), 64, &mut out), 64);
    assert_eq!(pages_of(&out), (64..128).collect::<Vec<_>>());
    out.clear();
    assert_eq!(clock.select(&world.table(), 64, &mut out), 64);
    assert_eq!(pages_of(&out), (0..64).collect::<Vec<_>>(), "spared once");
}

#[test]
fn hot_pages_come_last_but_come() {
    let world = World::new(1);
    (0..512).for_each(|p| {
        world.put(
            p,
            if p % 2 == 0 {
                resident().with_heat(15)
            } else {
                resident()
            },
        )
    });
    let (clock, mut out) = (plain(), VictimBatch::new());
    let mut order = Vec::new();
    while clock.select(&world.table(), 32, &mut out) > 0 {
        order.extend(pages_of(&out));
        out.clear();
    }
    assert_eq!(
        order.len(),
        512,
        "progress: even all-hot memory is reclaimed"
    );
    let (first, last) = order.split_at(256);
    // Heat only delays: a few chunks have their turn early.
    assert!(first.iter().filter(|p| *p % 2 == 1).count() > 200);
    assert!(last.iter().filter(|p| *p % 2 == 0).count() > 200);
}

#[test]
fn a_heat_of_h_is_offered_every_2_to_the_h_sweeps() {
    for heat in 1..5u64 {
        let world = World::new(1);
        world.put(100, resident().with_heat(heat));
        let clock = plain();
        let taken: Vec<bool> = (0..64u32)
            .map(|sweep| {
                let mut out = VictimBatch::new();
                clock.sweep_chunk(
                    &world.table(),
                    1,
                    sweep,
                    (Level::Normal, SweepScope::All),
                    &mut out,
                );
                world.put(100, resident().with_heat(heat));
                out.pages() == 1
            })
            .collect();
        assert_eq!(
            taken.iter().filter(|t| **t).count(),
            64 >> heat,
            "heat {heat}"
        );
    }
}

#[test]
fn streams_go_first_where_they_have_passed() {
    let world = World::new(2);
    (0..64).for_each(|p| world.put(p, resident()));
    (640..704).for_each(|p| world.put(p, resident().set(flag::STREAM)));
    world.put(650, resident());
    let (clock, mut out) = (plain(), VictimBatch::new());
    clock.stream_passed(PageId(640));
    assert_eq!(clock.select(&world.table(), 10, &mut out), 63);
    assert_eq!(
        out.runs()[0],
        Run {
            start: PageId(640),
            len: 10,
            clean: false,
        }
    );
    assert_eq!(world.state(650), State::Resident, "not of the stream");
}

#[test]
fn gaps_are_bridged_when_short_and_cool() {
    let world = World::new(1);
    (0..12).for_each(|p| world.put(p, resident()));
    world.put(3, resident().set(flag::REFERENCED));
    world.put(6, resident().set(flag::REFERENCED).with_heat(9));
    world.put(9, resident().set(flag::REFERENCED).with_pins(1));
    let clock = Clock::new(ClockParams {
        bridge_pages: 1,
        bridge_heat: 1,
        ..ClockParams::DEFAULT
    });
    let mut out = VictimBatch::new();
    clock.select(&world.table(), 8, &mut out);
    let runs: Vec<_> = out.runs().iter().map(|r| (r.start.0, r.len)).collect();
    assert_eq!(runs, [(0, 6), (7, 2), (10, 2)]);
}

#[test]
fn bridging_joins_only_what_it_may() {
    let of = |longest| {
        Clock::new(ClockParams {
            bridge_pages: longest,
            ..ClockParams::DEFAULT
        })
    };
    assert_eq!(of(2).bridge(0b1001, 0b0110), 0b1111);
    assert_eq!(of(1).bridge(0b1001, 0b0110), 0b1001);
    assert_eq!(of(2).bridge(0b1001, 0b0010), 0b1001);
    assert_eq!(of(9).bridge(1 | (1 << 63), !0), 1 | (1 << 63));
    assert_eq!(of(62).bridge(1 | (1 << 63), !0), !0);
    assert_eq!(of(9).bridge(!0, 0), !0);
    assert_eq!(of(9).bridge(0, !0), 0);
    assert_eq!(of(9).bridge(0b1_0110_1000, 0b1111_1111), 0b1_1111_1000);
}

#[test]
fn under_pressure_hot_pages_with_entries_are_reported() {
    let world = World::new(1);
    let hot = resident().with_heat(HEAT_MAX);
    (0..512).for_each(|p| {
        world.put(
            p,
            if p % 4 == 0 {
                hot.with_entry(SwapEntry(p as u32 + 1))
            } else {
                resident()
            },
        )
    });
    let (clock, mut out) = (plain(), VictimBatch::new());
    clock.select(&world.table(), 100, &mut out);
    assert!(out.dropped_candidates().is_empty(), "no pressure");
    out.clear();
    clock.set_pressure(true);
    clock.select(&world.table(), 100, &mut out);
    assert!(!out.dropped_candidates().is_empty());
    for p in out.dropped_candidates() {
        let w = word::load(&world.words[p.index()]);
        assert!(w.heat() == HEAT_MAX && w.entry().is_some());
    }
    let page = out.dropped_candidates()[0].index();
    assert_eq!(
        take_reservation(&world.words[page]),
        Some(SwapEntry(page as u32 + 1))
    );
    assert_eq!(take_reservation(&world.words[page]), None, "only once");
    assert_eq!(word::load(&world.words[page]).state(), State::Resident);
}

#[test]
fn the_hottest_pages_lose_their_copies_without_pressure() {
    let world = World::new(1);
    let copy_heat = u64::from(ClockParams::DEFAULT.copy_heat);
    let kept = |p: usize| {
        resident()
            .with_entry(SwapEntry(p as u32 + 1))
            .set(flag::FAR_COPY)
    };
    (0..512).for_each(|p| {
        world.put(
            p,
            match p % 4 {
                0 => kept(p).with_heat(HEAT_MAX),
                1 => kept(p).with_heat(copy_heat - 1),
                _ => resident(),
            },
        )
    });
    let (clock, mut out) = (plain(), VictimBatch::new());
    clock.select(&world.table(), 100, &mut out);
    assert!(!out.dropped_candidates().is_empty());
    for p in out.dropped_candidates() {
        let w = &world.words[p.index()];
        assert_eq!(word::load(w).heat(), HEAT_MAX);
        assert!(!drop_far_copy(w, |_| false), "it lies elsewhere");
        assert!(word::load(w).has(flag::FAR_COPY));
        assert!(drop_far_copy(w, |entry| entry == SwapEntry(p.0 + 1)));
        let now = word::load(w);
        assert!(now.state() == State::Resident && !now.has(flag::FAR_COPY));
        assert_eq!(now.entry(), SwapEntry(p.0 + 1), "the reservation stays");
        assert!(!drop_far_copy(w, |_| unreachable!()), "only once");
    }
}

#[test]
fn refault_distance_makes_heat() {
    let p = ClockParams::DEFAULT;
    let far = Word(0).with_state(State::Far).with_heat(2).with_epoch(250);
    let near = p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.near_epochs));
    assert_eq!(
        (near.heat(), near.state()),
        (2 + u64::from(p.near_heat), State::Resident)
    );
    assert_eq!(
        p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.far_epochs))
            .heat(),
        2
    );
    assert_eq!(
        p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.far_epochs + 1))
            .heat(),
        1
    );
    assert_eq!(
        p.on_fill(far.with_heat(15), FillKind::VictimHit, 0).heat(),
        u64::from(p.heat_cap)
    );
    assert_eq!(p.on_fill(far, FillKind::Stream, 250).heat(), 0);
}

#[test]
fn filling_and_evicting_keep_what_is_not_theirs() {
    let p = ClockParams::DEFAULT;
    let w = Word(0)
        .set(flag::FAR_COPY | flag::LOCKED | flag::SAMPLED)
        .with_entry(SwapEntry(77))
        .with_pins(3);
    for kind in [
        FillKind::FirstTouch,
        FillKind::FirstTouchAhead,
        FillKind::Demand,
        FillKind::VictimHit,
        FillKind::Prefetch,
        FillKind::Stream,
        FillKind::StreamPrefetch,
    ] {
        let v = p.on_evict(p.on_fill(w.with_state(State::Filling), kind, 9), 10);
        assert!(v.has(flag::FAR_COPY) && v.has(flag::LOCKED) && v.has(flag::SAMPLED));
        assert_eq!((v.entry(), v.pins(), v.epoch()), (SwapEntry(77), 3, 10));
    }
}

#[test]
fn epochs_advance_each_sixteenth_of_memory() {
    let e = EpochClock::new();
    assert_eq!(e.advance(99, 1600), 0);
    assert_eq!(e.advance(1, 1600), 1);
    assert_eq!(e.advance(250, 1600), 3);
    assert_eq!(e.advance(50, 1600), 4);
    assert_eq!(e.now(), 4);
    assert_eq!(e.advance(252 * 100, 1600), 0, "wraps");
    assert_eq!(e.advance(1, 0), 1, "no memory is no division by zero");
}

#[test]
fn empty_blocks_cost_no_words() {
    let world = World::new(64);
    world.put(0, resident());
    world.put(63 * BLOCK_PAGES, resident());
    let mut out = VictimBatch::new();
    assert_eq!(plain().select(&world.table(), 2, &mut out), 2);
    assert_eq!(out.scanned, 2);
}

proptest! {
    /// Whatever the words say: victims are exactly pages that could be evicted, each once; nothing else changes except
    /// the REFERENCED flag; and as many are found as there are (up to the batch's size).
    #[test]
    fn select_is_sound_and_makes_progress(
        raw in proptest::collection::vec((0u64..8, 0u64..16, 0u64..3, any::<bool>(), any::<bool>(), any::<bool>()), 1..700),
        want in 1u32..300,
        gap in 0u8..6,
    ) {
        let world = World::new(2);
        for (page, (state, heat, pins, referenced, locked, stream)) in raw.iter().enumerate() {
            let mut w = Word(0).with_state(State::of(*state)).with_heat(*heat).with_pins(pins.saturating_sub(1));
            for (on, bit) in [(referenced, flag::REFERENCED), (locked, flag::LOCKED), (stream, flag::STREAM)] {
                if *on { w = w.set(bit); }
            }
            world.put(page, w);
        }
        let before: Vec<Word> = world.words.iter().map(word::load).collect();
        let can = before.iter().filter(|w| w.evictable()).count() as u32;
        let clock = Clock::new(ClockParams { bridge_pages: gap, bridge_heat: 15, ..ClockParams::DEFAULT });
        let mut out = VictimBatch::new();
        let n = clock.select(&world.table(), want, &mut out);
        prop_assert!(n >= want.min(can).min((BATCH_PAGES - CHUNK_PAGES) as u32), "{n} of {can}");
        let victims = pages_of(&out);
        prop_assert_eq!(victims.len() as u32, n);
        let mut sorted = victims.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), victims.len());
        for (page, old) in before.iter().enumerate() {
            let new = word::load(&world.words[page]);
            if sorted.binary_search(&(page as u32)).is_ok() {
                prop_assert!(old.evictable());
                prop_assert_eq!(new.state(), State::Evicting);
            } else {
                prop_assert_eq!(new.set(flag::REFERENCED).0, old.set(flag::REFERENCED).0);
            }
        }
        for r in out.runs() {
            prop_assert_eq!(r.start.0 / CHUNK_PAGES as u32, (r.start.0 + r.len - 1) / CHUNK_PAGES as u32);
        }
    }
}
