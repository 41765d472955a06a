//! The pool against a map, with budgets so small that it is often full.

use crate::pools::*;
use canvas_core::swap::classes::RAW_SLOTS;
use canvas_core::swap::entry::Record;
use canvas_core::swap::pool::NodeDemotion;
use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_core::swap::{
    EntryFrom, FreedCopy, Kind, LoadError, Outcome, PoolStats, Scratch, StoreError,
};
use canvas_testing::random::run_until;
use canvas_types::sync::Ordering;
use canvas_types::{Codec, ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Content {
    Zero,
    Same(u64),
    Noise {
        seed: u64,
        random: usize,
    },
    /// As before, except for this many words.
    Changed {
        seed: u64,
        words: usize,
    },
}

impl Content {
    fn page(&self, before: &PageBuf) -> PageBuf {
        match *self {
            Content::Changed { seed, words } => {
                let mut page = *before;
                for i in 0..words as u64 {
                    let at = (seed.wrapping_add(i * 37) % 512) as usize * 8;
                    page[at] = page[at].wrapping_add(1);
                }
                page
            }
            Content::Zero => [0; PAGE_SIZE],
            Content::Same(p) => same(p),
            Content::Noise { seed, random } => page_of(seed, random),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Swap the page out with this content, or with its current content.
    Store {
        page: usize,
        content: Option<Content>,
    },
    Load(usize),
    DropCopy(usize),
    Release(usize),
    Trim,
    Limit(i64),
    /// Demotes the copy in the pool to an extent of its own; `late`: it was read out before the page was last stored.
    Demote {
        page: usize,
        late: bool,
    },
    /// Promotes it, and `keeps` its extent or not.
    Promote {
        page: usize,
        keeps: bool,
    },
    /// Its extent is emptied: it is promoted, past the limit if necessary, or only leaves its extent.
    Vacate {
        page: usize,
        past_bound: bool,
    },
    /// Drops the copy in the pool, if there is one in far memory.
    DemoteHome(usize),
    /// Drops the copy in the pool in any case.
    FreeCached(usize),
    /// Demotes the copy on a node to the pool.
    DemoteFromNode(usize),
    /// Changes the limit of a node.
    NodeLimit {
        node: usize,
        slabs: i64,
    },
    /// Whether new slabs on nodes are placed elsewhere.
    Elsewhere(bool),
}

/// What the pager would know about a page.
#[derive(Clone)]
struct Page {
    /// What the program wrote; the copy in memory when `far` is false.
    bytes: Box<PageBuf>,
    entry: SwapEntry,
    has_copy: bool,
    /// The copy as it was stored some time ago.
    read_out: Vec<u8>,
}

/// The content of extents: one page each.
type Extents = BTreeMap<u32, Vec<u8>>;

const PAGES: usize = 60;

fn pool_op() -> impl Strategy<Value = Op> {
    let content = prop_oneof![
        1 => Just(Content::Zero),
        1 => prop_oneof![Just(1u64), any::<u64>()].prop_map(Content::Same),
        6 => (any::<u64>(), prop_oneof![0..PAGE_SIZE, Just(PAGE_SIZE), 3400..3700usize])
            .prop_map(|(seed, random)| Content::Noise { seed, random }),
        4 => (any::<u64>(), prop_oneof![3 => 1..=3usize, 1 => 4..20usize])
            .prop_map(|(seed, words)| Content::Changed { seed, words }),
    ];
    prop_oneof![
        10 => (0..PAGES, prop::option::weighted(0.7, content)).prop_map(|(page, content)| Op::Store { page, content }),
        6 => (0..PAGES).prop_map(Op::Load),
        2 => (0..PAGES).prop_map(Op::DropCopy),
        2 => (0..PAGES).prop_map(Op::Release),
        1 => Just(Op::Trim),
        1 => (0..8i64).prop_map(Op::Limit),
        5 => (0..PAGES, any::<bool>()).prop_map(|(page, late)| Op::Demote { page, late }),
        4 => (0..PAGES, any::<bool>()).prop_map(|(page, keeps)| Op::Promote { page, keeps }),
        3 => (0..PAGES, any::<bool>()).prop_map(|(page, past_bound)| Op::Vacate { page, past_bound }),
        3 => (0..PAGES).prop_map(Op::DemoteHome),
        2 => (0..PAGES).prop_map(Op::FreeCached),
    ]
}

fn op(nodes: bool) -> BoxedStrategy<Op> {
    if !nodes {
        return pool_op().boxed();
    }
    prop_oneof![
        40 => pool_op(),
        4 => (0..PAGES).prop_map(Op::DemoteFromNode),
        1 => (0..NODES, 0..=NODE_SLABS as i64 + 1)
            .prop_map(|(node, slabs)| Op::NodeLimit { node, slabs }),
        1 => prop::bool::weighted(0.2).prop_map(Op::Elsewhere),
    ]
    .boxed()
}

/// Which results of a store the test has seen: a run that misses one proves little.
type Seen = RefCell<BTreeSet<String>>;

fn store(
    pool: &Pool<'_>,
    p: &mut Page,
    content: &Option<Content>,
    scratch: &mut Scratch,
    seen: &Seen,
) -> Result<(), TestCaseError> {
    let before = p.bytes.clone();
    if let Some(c) = content {
        *p.bytes = c.page(&before);
    }
    let unchanged = before == p.bytes;
    let had = p.clone();
    let record = pool.record(p.entry);
    let was_in_far_tier = matches!(record, Record::InFarTier(_));
    let node_before = pool.node_of(p.entry);
    let result = pool.store(p.entry, p.has_copy, &p.bytes, scratch);
    if let (Some(node), Ok(o)) = (node_before, &result)
        && matches!(o.kind, Kind::Raw | Kind::Compressed)
        && pool.node_of(o.entry) == Some(node)
    {
        seen.borrow_mut().insert("over, in place".into());
    }
    seen.borrow_mut().insert(match result {
        Ok(o) => format!("{:?}", o.kind),
        Err(e) => format!("{e:?}"),
    });
    match result {
        Ok(Outcome {
            entry,
            kind,
            entry_from,
        }) => {
            match entry_from {
                EntryFrom::Nowhere => prop_assert!(!entry.is_some()),
                EntryFrom::Page => prop_assert!(entry.is_some() && entry == had.entry),
                EntryFrom::Lock | EntryFrom::Magazine => {
                    prop_assert!(entry.is_some() && !had.entry.is_some())
                }
            }
            let word = u64::from_ne_bytes(p.bytes[..8].try_into().unwrap());
            let filled = *p.bytes == same(word);
            match kind {
                Kind::Zero => prop_assert!(filled && word == 0),
                Kind::SameFilled => {
                    prop_assert!(filled && pool.record(entry) == Record::SameFilled(word))
                }
                Kind::Clean => {
                    prop_assert!(had.has_copy && unchanged);
                    prop_assert_eq!(pool.record(entry), record);
                    if was_in_far_tier {
                        seen.borrow_mut().insert("Clean below".into());
                    }
                }
                Kind::Raw | Kind::Compressed | Kind::Delta => {
                    prop_assert!(kind != Kind::Delta || had.has_copy && !was_in_far_tier);
                    let Record::Stored { len, .. } = pool.record(entry) else {
                        panic!("{kind:?} without a slot")
                    };
                    prop_assert_eq!(kind == Kind::Raw, len as usize == PAGE_SIZE);
                }
                Kind::OnNode => {
                    let on_node = pool.node_of(entry).is_some();
                    let whole = matches!(pool.record(entry), Record::Stored { len: 4096, .. });
                    prop_assert!(on_node && whole);
                }
            }
            // Nothing is written twice, unless it is in far memory and its hash is not known.
            prop_assert!(
                !(had.has_copy && unchanged && entry.is_some())
                    || kind == Kind::Clean
                    || was_in_far_tier
            );
            prop_assert_eq!(entry.is_some(), kind != Kind::Zero);
            p.entry = entry;
            p.has_copy = entry.is_some();
        }
        Err(StoreError::Full { copy_dropped }) => {
            prop_assert_eq!(copy_dropped, had.has_copy);
            p.has_copy = false;
            let record = pool.record(p.entry);
            prop_assert_eq!(
                record,
                if p.entry.is_some() {
                    Record::Empty
                } else {
                    Record::Free
                }
            );
        }
        Err(StoreError::NoEntry) => prop_assert!(!had.entry.is_some()),
    }
    Ok(())
}

/// The copy in the pool as it is stored; empty when there is none.
fn read_out(pool: &Pool<'_>, entry: SwapEntry) -> Vec<u8> {
    let Some(len) = pool.stored_len(entry) else {
        return Vec::new();
    };
    let mut bytes = vec![0; 16 + len as usize];
    assert!(!pool.copy_stored(entry, &mut bytes[1..]));
    assert!(pool.copy_stored(entry, &mut bytes));
    bytes
}

/// A load that follows the entry to far memory.
fn load(
    pool: &Pool<'_>,
    entry: SwapEntry,
    extents: &Extents,
    out: &mut PageBuf,
    scratch: &mut Scratch,
) -> Result<(), LoadError> {
    match pool.load(entry, out, scratch) {
        Err(LoadError::InFarTier(place)) => {
            let mut bytes = extents[&place.extent].clone();
            assert_eq!(bytes.len(), 16 + place.len as usize);
            let at = place.extent as usize % bytes.len();
            bytes[at] ^= 0x10;
            // A single wrong bit is noticed.
            assert_eq!(pool.decode(entry, &bytes, out), Err(LoadError::Verify));
            bytes[at] ^= 0x10;
            pool.decode(entry, &bytes, out)
        }
        other => other,
    }
}

/// The pool, and what the pager would know about its pages.
struct Model<'a> {
    world: &'a World,
    pool: Pool<'a>,
    scratch: Box<Scratch>,
    pages: Vec<Page>,
    extents: Extents,
    next_extent: u32,
    out: PageBuf,
    seen: &'a Seen,
}

impl<'a> Model<'a> {
    fn new(world: &'a World, codec: Codec, seen: &'a Seen) -> Model<'a> {
        let fresh = Page {
            bytes: Box::new([0; PAGE_SIZE]),
            entry: SwapEntry::NONE,
            has_copy: false,
            read_out: Vec::new(),
        };
        Model {
            world,
            pool: world.pool_with(codec),
            scratch: Box::new(Scratch::new()),
            pages: vec![fresh; PAGES],
            extents: Extents::new(),
            next_extent: 0,
            out: [0x77; PAGE_SIZE],
            seen,
        }
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Store { page, content } => self.store(page, &content)?,
            Op::Load(i) => self.load(i)?,
            Op::DropCopy(i) => {
                let p = &mut self.pages[i];
                prop_assert_eq!(self.pool.drop_copy(p.entry), p.has_copy);
                p.has_copy = false;
            }
            Op::Release(i) => {
                let p = &mut self.pages[i];
                prop_assert_eq!(self.pool.release(p.entry), p.entry.is_some());
                p.has_copy = false;
                p.entry = SwapEntry::NONE;
            }
            Op::Demote { page, late } => self.demote(page, late)?,
            Op::Promote { page, keeps } => self.promote(page, keeps)?,
            Op::Vacate { page, past_bound } => self.vacate(page, past_bound)?,
            Op::DemoteHome(i) => self.demote_home(i)?,
            Op::FreeCached(i) => self.free_cached(i)?,
            Op::DemoteFromNode(i) => self.demote_from_node(i)?,
            Op::NodeLimit { node, slabs } => self.world.budget.node_limit[node]
                .store(slabs * SLAB_CHARGE_BYTES, Ordering::Relaxed),
            Op::Elsewhere(is) => self.world.budget.elsewhere.store(is, Ordering::Relaxed),
            Op::Trim => {
                let before = self.pool.charged_bytes();
                let empty = self.pool.empty_bytes();
                self.pool.trim();
                prop_assert_eq!(before - self.pool.charged_bytes(), empty);
                prop_assert_eq!(self.pool.empty_bytes(), 0);
            }
            Op::Limit(slabs) => self
                .world
                .budget
                .limit
                .store(slabs * SLAB_CHARGE_BYTES, Ordering::Relaxed),
        }
        self.check()
    }

    /// Swaps a page out: to a node, where one takes it.
    fn store(&mut self, page: usize, content: &Option<Content>) -> Result<(), TestCaseError> {
        let budget = &self.world.budget;
        let takes = |node: &usize| {
            let used = budget.node_used[*node].load(Ordering::Relaxed);
            let limit = budget.node_limit[*node].load(Ordering::Relaxed);
            let most = limit.min(NODE_SLABS as i64 * SLAB_CHARGE_BYTES);
            let elsewhere = budget.elsewhere.load(Ordering::Relaxed);
            used <= limit
                && (self.pool.node_free_bytes(*node) > 0
                    || used + SLAB_CHARGE_BYTES <= most && !elsewhere)
        };
        let node = match self.world.own_slabs {
            None => None,
            Some(_) => (self.pool.node_of(self.pages[page].entry))
                .filter(|n| {
                    let used = budget.node_used[*n].load(Ordering::Relaxed);
                    used <= budget.node_limit[*n].load(Ordering::Relaxed)
                })
                .or_else(|| (0..NODES).find(takes)),
        };
        let p = &mut self.pages[page];
        let had = (p.entry, self.pool.record(p.entry));
        store(&self.pool, p, content, &mut self.scratch, self.seen)?;
        let now = self.pool.record(p.entry);
        let stored = matches!(now, Record::Stored { .. }) && (p.entry, now) != had;
        if stored && self.pool.node_of(p.entry) != node {
            // A page on a node that is over its limit may stay where nothing else takes it.
            let stays = match (had.1, now) {
                (Record::Stored { slot: a, .. }, Record::Stored { slot: b, .. }) => a == b,
                _ => false,
            };
            prop_assert!(node.is_none() && stays, "{node:?} {:?} {now:?}", had.1);
        }
        Ok(())
    }

    /// Demotes the copy on a node to the pool unchanged.
    fn demote_from_node(&mut self, i: usize) -> Result<(), TestCaseError> {
        let p = &self.pages[i];
        let (node, record) = (self.pool.node_of(p.entry), self.pool.record(p.entry));
        let demotion = self.pool.demote_from_node(p.entry, &mut self.scratch);
        self.seen.borrow_mut().insert(format!("node {demotion:?}"));
        match demotion {
            NodeDemotion::Yes => {
                prop_assert!(node.is_some() && self.pool.node_of(p.entry).is_none());
                self.load(i)?;
            }
            NodeDemotion::NoRoom => {
                prop_assert!(node.is_some());
                prop_assert_eq!(self.pool.record(p.entry), record);
            }
            NodeDemotion::NotThis => {
                prop_assert!(node.is_none());
                prop_assert_eq!(self.pool.record(p.entry), record);
            }
        }
        Ok(())
    }

    /// Reads a page's copy.
    fn load(&mut self, i: usize) -> Result<(), TestCaseError> {
        let p = &self.pages[i];
        let loads = &self.world.budget.node_loads;
        let before = loads.load(Ordering::Relaxed);
        let from_node = u64::from(self.pool.node_of(p.entry).is_some());
        let result = load(
            &self.pool,
            p.entry,
            &self.extents,
            &mut self.out,
            &mut self.scratch,
        );
        prop_assert_eq!(loads.load(Ordering::Relaxed) - before, from_node);
        if p.has_copy {
            prop_assert_eq!(result, Ok(()));
            prop_assert!(self.out == *p.bytes);
        } else if p.entry.is_some() {
            prop_assert_eq!(result, Err(LoadError::NoCopy));
        } else {
            prop_assert_eq!(result, Ok(()));
            prop_assert!(self.out == [0; PAGE_SIZE]);
        }
        Ok(())
    }

    /// Demotes the copy.
    fn demote(&mut self, page: usize, late: bool) -> Result<(), TestCaseError> {
        let p = &mut self.pages[page];
        let earlier = p.read_out.clone();
        p.read_out = read_out(&self.pool, p.entry);
        let bytes = if late { earlier } else { p.read_out.clone() };
        if let Some((hash, payload)) = bytes.split_first_chunk::<16>() {
            let place = ExtentRef {
                extent: self.next_extent,
                offset: 16 * (self.next_extent % 2048),
                len: payload.len() as u16,
            };
            // A copy stored since then keeps its place, unless it is the same again.
            let demoted = self.pool.demote(p.entry, hash, place);
            prop_assert_eq!(demoted, bytes == p.read_out);
            self.seen.borrow_mut().insert(format!("demoted {demoted}"));
            if demoted {
                self.extents.insert(self.next_extent, bytes);
                self.next_extent += 1;
            }
        }
        Ok(())
    }

    /// Promotes it.
    fn promote(&mut self, page: usize, keeps: bool) -> Result<(), TestCaseError> {
        let entry = self.pages[page].entry;
        if let Record::InFarTier(place) = self.pool.record(entry) {
            let wrong = ExtentRef {
                offset: place.offset ^ 16,
                ..place
            };
            let bytes = self.extents[&place.extent].clone();
            prop_assert!(!self.pool.promote(entry, wrong, &bytes, keeps));
            let promoted = self.pool.promote(entry, place, &bytes, keeps);
            self.seen
                .borrow_mut()
                .insert(format!("promoted {promoted}"));
            prop_assert_eq!(promoted, read_out(&self.pool, entry) == bytes);
        }
        Ok(())
    }

    /// Its extent is emptied.
    fn vacate(&mut self, page: usize, past_bound: bool) -> Result<(), TestCaseError> {
        let entry = self.pages[page].entry;
        let (record, before) = (self.pool.record(entry), read_out(&self.pool, entry));
        let place = match record {
            Record::InFarTier(place) => Some(place),
            _ => self.pool.home_ref(entry),
        };
        let Some(place) = place else { return Ok(()) };
        let bytes = self.extents[&place.extent].clone();
        let other = ExtentRef {
            extent: place.extent + 1,
            ..place
        };
        prop_assert!(!self.pool.vacate(entry, other, &bytes, past_bound));
        prop_assert_eq!(self.pool.record(entry), record);
        let left = self.pool.vacate(entry, place, &bytes, past_bound);
        let home = matches!(record, Record::Stored { .. });
        self.seen.borrow_mut().insert(format!("vacated {left}"));
        prop_assert!(left || !(past_bound || home));
        if left {
            prop_assert!(!home || before == bytes);
            prop_assert_eq!(read_out(&self.pool, entry), bytes);
            prop_assert_eq!(self.pool.home_ref(entry), None);
            let gone = self.world.budget.dropped_refs.lock().unwrap();
            prop_assert_eq!(gone.last(), Some(&place.extent));
        } else {
            prop_assert_eq!(self.pool.record(entry), record);
        }
        Ok(())
    }

    /// Drops the copy in the pool, if there is one in far memory.
    fn demote_home(&mut self, i: usize) -> Result<(), TestCaseError> {
        let entry = self.pages[i].entry;
        let (record, bytes) = (self.pool.record(entry), read_out(&self.pool, entry));
        let demoted = self.pool.demote_home(entry).is_some();
        self.seen
            .borrow_mut()
            .insert(format!("demoted home {demoted}"));
        prop_assert_eq!(demoted, matches!(record, Record::Stored { home: true, .. }));
        if let (true, Record::InFarTier(place)) = (demoted, self.pool.record(entry)) {
            prop_assert_eq!(&self.extents[&place.extent], &bytes);
        } else {
            prop_assert_eq!(self.pool.record(entry), record);
        }
        Ok(())
    }

    /// Drops the copy in the pool in any case.
    fn free_cached(&mut self, i: usize) -> Result<(), TestCaseError> {
        let entry = self.pages[i].entry;
        let (record, before) = (self.pool.record(entry), self.pool.stats());
        let freed_copy = self.pool.free_cached_copy(entry);
        let freed = match (freed_copy, record, self.pool.record(entry)) {
            (FreedCopy::Demoted(n), Record::Stored { home: true, .. }, now) => {
                prop_assert!(matches!(now, Record::InFarTier(_)));
                n
            }
            (FreedCopy::Dropped(n), Record::Stored { home: false, .. }, now) => {
                prop_assert_eq!(now, Record::Empty);
                self.pages[i].has_copy = false;
                n
            }
            (FreedCopy::Nothing, was, now) => {
                let stored = matches!(was, Record::Stored { .. });
                prop_assert!(was == now && !stored);
                0
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        let stats = self.pool.stats();
        let slots = |s: PoolStats| s.slot_bytes + s.node_slot_bytes;
        prop_assert_eq!(slots(before) - slots(stats), freed as i64);
        prop_assert_eq!(before.entries_live, stats.entries_live);
        let kind = format!("{freed_copy:?}");
        let kind = kind.split('(').next().unwrap_or_default();
        self.seen.borrow_mut().insert(format!("freed {kind}"));
        Ok(())
    }

    /// The invariants after each operation.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for extent in self.world.budget.dropped_refs.lock().unwrap().drain(..) {
            prop_assert!(self.extents.remove(&extent).is_some(), "told of twice");
        }
        let in_far_tier: BTreeSet<_> = self
            .pages
            .iter()
            .filter_map(|p| match self.pool.record(p.entry) {
                Record::InFarTier(place) => Some(place.extent),
                _ => None,
            })
            .collect();
        let records = || self.pages.iter().map(|p| self.pool.record(p.entry));
        let homes = records().filter(|r| matches!(r, Record::Stored { home: true, .. }));
        prop_assert!(
            in_far_tier
                .iter()
                .all(|extent| self.extents.contains_key(extent))
        );
        prop_assert_eq!(self.extents.len(), in_far_tier.len() + homes.count());
        let stats = self.pool.stats();
        let entries: BTreeSet<_> = self
            .pages
            .iter()
            .filter(|p| p.entry.is_some())
            .map(|p| p.entry.0)
            .collect();
        prop_assert_eq!(stats.entries_live, entries.len() as u64);
        prop_assert_eq!(
            entries.len(),
            self.pages.iter().filter(|p| p.entry.is_some()).count()
        );
        let stored: i64 = self
            .pages
            .iter()
            .filter_map(|p| match self.pool.record(p.entry) {
                Record::Stored { len, .. } => Some(len as i64 + 16),
                _ => None,
            })
            .sum();
        prop_assert_eq!(stats.stored_bytes, stored);
        prop_assert_eq!(
            self.world.budget.used.load(Ordering::Relaxed),
            stats.charged_bytes
        );
        prop_assert_eq!(
            stats.charged_bytes,
            (stats.slabs_in_use + stats.slabs_empty) as i64 * SLAB_CHARGE_BYTES
        );
        let classes: i64 = self
            .world
            .class_bytes
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .sum();
        prop_assert_eq!(stats.slot_bytes, classes);
        self.check_nodes(stats)
    }

    /// The invariants of nodes: pages there are charged there, slab by slab.
    fn check_nodes(&self, stats: PoolStats) -> Result<(), TestCaseError> {
        let (mut pages, mut used) = (0, 0);
        for node in 0..NODES {
            let on = |p: &&Page| self.pool.node_of(p.entry) == Some(node);
            let there = self.pages.iter().filter(on).count() as i64;
            let charged = self.world.budget.node_used[node].load(Ordering::Relaxed);
            let per_page = SLAB_CHARGE_BYTES / RAW_SLOTS as i64;
            prop_assert_eq!(charged - self.pool.node_free_bytes(node), there * per_page);
            pages += there;
            used += charged;
        }
        prop_assert_eq!(stats.node_slot_bytes, pages * PAGE_SIZE as i64);
        prop_assert_eq!(stats.node_charged_bytes, used);
        Ok(())
    }

    fn finish(mut self) -> Result<(), TestCaseError> {
        // Every page is unchanged, and all of them can be freed.
        for i in 0..self.pages.len() {
            if self.pages[i].has_copy {
                self.load(i)?;
            }
            self.pool.release(self.pages[i].entry);
        }
        self.pool.trim();
        let stats = self.pool.stats();
        prop_assert_eq!(
            (
                stats.entries_live,
                stats.stored_bytes,
                stats.slabs_in_use,
                stats.charged_bytes,
                stats.node_charged_bytes
            ),
            (0, 0, 0, 0, 0)
        );
        prop_assert_eq!(self.world.budget.used.load(Ordering::Relaxed), 0);
        Ok(())
    }
}

/// Runs the pool against the map. Stores, and other operations with several results, end in `all` of these, and in no
/// other.
fn check(codec: Codec, nodes: bool, all: &[&str]) {
    let seen = Seen::default();
    let case = |ops| {
        let limit = 4 * SLAB_CHARGE_BYTES;
        let world = match nodes {
            true => World::with_nodes(45, 12, limit),
            false => World::new(25, 12, limit),
        };
        let mut model = Model::new(&world, codec, &seen);
        for op in ops {
            model.apply(op)?;
        }
        model.finish()
    };
    let plan = prop::collection::vec(op(nodes), 1..600);
    run_until(50, &plan, case, || seen.borrow().len() >= all.len());
    let seen: Vec<String> = seen.take().into_iter().collect();
    assert_eq!(seen, all);
}

const KEPT: &str = "Full { copy_dropped: false }";
const DROPPED: &str = "Full { copy_dropped: true }";

/// The results with compression and without nodes.
const COMPRESSED: [&str; 21] = [
    "Clean",
    "Clean below",
    "Compressed",
    "Delta",
    KEPT,
    DROPPED,
    "NoEntry",
    "Raw",
    "SameFilled",
    "Zero",
    "demoted false",
    "demoted home false",
    "demoted home true",
    "demoted true",
    "freed Demoted",
    "freed Dropped",
    "freed Nothing",
    "promoted false",
    "promoted true",
    "vacated false",
    "vacated true",
];

#[test]
fn behaves_like_a_map() {
    check(Codec::Lz4, false, &COMPRESSED);
}

#[test]
fn behaves_like_a_map_with_nodes() {
    let on_nodes = [
        "OnNode",
        "node NoRoom",
        "node NotThis",
        "node Yes",
        "over, in place",
    ];
    let mut all = [&COMPRESSED[..], &on_nodes].concat();
    all.sort_unstable();
    check(Codec::Lz4, true, &all);
}

#[test]
fn behaves_like_a_map_uncompressed() {
    let mut all = COMPRESSED.to_vec();
    all.retain(|what| !["Compressed", "Delta"].contains(what));
    check(Codec::None, false, &all);
}
