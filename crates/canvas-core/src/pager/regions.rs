//! Which parts of the managed range are mapped, and how: the user-space counterpart of the kernel's VMA list.
//!
//! A sorted array of disjoint regions; adjacent equal ones are merged. Pages outside any region are inaccessible
//! (PROT_NONE in the kernel). The caller provides the array's memory; a full array is an error (ENOMEM for the
//! program), like exceeding `vm.max_map_count`. An empty region ends the list, for readers outside the process
//! (`canvas dump`).

/// Attributes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Attr {
    /// Bits of `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    pub prot: u8,
    /// Bits of [`kind`].
    pub kind: u16,
}

impl Attr {
    /// The protection in the kernel: none in a guard region.
    pub fn access(self) -> i32 {
        match self.kind & kind::GUARD {
            0 => i32::from(self.prot),
            _ => 0,
        }
    }
    /// Whether the program may read here.
    pub fn is_readable(self) -> bool {
        self.access() & 1 != 0
    }
}

/// Bits of [`Attr::kind`].
pub mod kind {
    /// A kernel mapping covers the managed range here (a file, shared memory); canvas leaves it alone.
    pub const NATIVE: u16 = 1;
    /// Not inherited by fork's child.
    pub const DONTFORK: u16 = 2;
    /// Zeroed in fork's child.
    pub const WIPEONFORK: u16 = 4;
    /// Used in no order: nothing is prefetched beside a fault.
    pub const RANDOM: u16 = 8;
    /// Used from its first page to its last.
    pub const SEQUENTIAL: u16 = 16;
    /// Not charged as committed memory (`MAP_NORESERVE`).
    pub const NORESERVE: u16 = 32;
    /// Pages stay in memory from their first touch on (`mlock` and its relatives).
    pub const LOCKED: u16 = 64;
    /// Inaccessible, whatever its protection, until the guard is removed (`MADV_GUARD_INSTALL`).
    pub const GUARD: u16 = 128;
    /// Protection, address and existence may not change any more (`mseal`).
    pub const SEALED: u16 = 256;
    /// Excluded from core dumps.
    pub const DONTDUMP: u16 = 512;
}

/// A mapped part of the managed range, in pages: `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Region {
    /// Number of its first page in the managed range.
    pub start: u32,
    /// One past the last page.
    pub end: u32,
    /// How it is mapped.
    pub attr: Attr,
}

impl Region {
    /// Decodes a region's bytes read from another process's list.
    pub fn from_bytes(bytes: &[u8; size_of::<Region>()]) -> Region {
        let [a, b, c, d, e, f, g, h, prot, _, i, j] = *bytes;
        Region {
            start: u32::from_ne_bytes([a, b, c, d]),
            end: u32::from_ne_bytes([e, f, g, h]),
            attr: Attr {
                prot,
                kind: u16::from_ne_bytes([i, j]),
            },
        }
    }
}

/// The array of regions is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The mapped regions of one managed range.
pub struct Regions<'a> {
    items: &'a mut [Region],
    /// Items that are writable, and the function that makes more of them so.
    writable: usize,
    open: fn(usize) -> usize,
    len: usize,
    pages: u64,
}

impl<'a> Regions<'a> {
    /// Creates an empty list, in memory for at most `items.len()` regions.
    pub fn new(items: &'a mut [Region]) -> Regions<'a> {
        let writable = items.len();
        Regions {
            items,
            writable,
            open: |_| 0,
            len: 0,
            pages: 0,
        }
    }
    /// Creates an empty list in memory that is opened as the number of regions grows: `open(n)` makes at least `n`
    /// items writable and returns how many are; fewer than `n` if there is no memory.
    pub fn opened_by(items: &'a mut [Region], open: fn(usize) -> usize) -> Regions<'a> {
        Regions {
            writable: 0,
            open,
            ..Regions::new(items)
        }
    }
    /// All regions, in order.
    pub fn as_slice(&self) -> &[Region] {
        &self.items[..self.len]
    }
    /// Pages of all regions together, including unreadable ones.
    pub fn pages(&self) -> u64 {
        self.pages
    }
    /// Index of the first region that ends after `page`.
    fn first_after(&self, page: u32) -> usize {
        self.as_slice().partition_point(|r| r.end <= page)
    }
    /// The region that contains `page`.
    pub fn at(&self, page: u32) -> Option<Region> {
        let r = *self.as_slice().get(self.first_after(page))?;
        (r.start <= page).then_some(r)
    }
    /// End of the mapped pages from `start` on without a hole, at most `end`.
    pub fn covered_until(&self, start: u32, end: u32) -> u32 {
        let mut next = start;
        for r in &self.as_slice()[self.first_after(start)..] {
            if next >= end || r.start > next {
                break;
            }
            next = r.end;
        }
        next.min(end)
    }
    /// Whether every page of `start..end` is mapped.
    pub fn covers(&self, start: u32, end: u32) -> bool {
        self.covered_until(start, end) == end
    }
    /// Calls `f` with each region's part inside `start..end`.
    pub fn each(&self, start: u32, end: u32, mut f: impl FnMut(Region)) {
        for r in &self.as_slice()[self.first_after(start)..] {
            if r.start >= end {
                break;
            }
            f(Region {
                start: r.start.max(start),
                end: r.end.min(end),
                attr: r.attr,
            });
        }
    }
    /// The first region's part inside `start..end`, for walks that change regions on their way.
    pub fn first_in(&self, start: u32, end: u32) -> Option<Region> {
        let r = *self.as_slice().get(self.first_after(start))?;
        let part = Region {
            start: r.start.max(start),
            end: r.end.min(end),
            attr: r.attr,
        };
        (part.start < part.end).then_some(part)
    }
    /// First free range of `len` pages at or above `low`, aligned to `align` pages (a power of two), ending at or below
    /// `high`.
    pub fn find_gap(&self, len: u32, align: u32, low: u32, high: u32) -> Option<u32> {
        let up = |p: u32| p.checked_add(align - 1).map(|p| p & !(align - 1));
        let mut at = up(low)?;
        for r in &self.as_slice()[self.first_after(low)..] {
            if at.checked_add(len)? <= r.start {
                break;
            }
            at = up(r.end.max(at))?;
        }
        (at.checked_add(len)? <= high).then_some(at)
    }
    fn replace(&mut self, from: usize, to: usize, with: &[Region]) -> Result<(), Full> {
        let new_len = self.len - (to - from) + with.len();
        if new_len > self.items.len() {
            return Err(Full);
        }
        // One more, for the empty region at the end.
        let wanted = (new_len + 1).min(self.items.len());
        if wanted > self.writable {
            self.writable = (self.open)(wanted);
            if wanted > self.writable {
                return Err(Full);
            }
        }
        for r in &self.items[from..to] {
            self.pages -= u64::from(r.end - r.start);
        }
        self.items.copy_within(to..self.len, from + with.len());
        self.items[from..from + with.len()].copy_from_slice(with);
        self.len = new_len;
        if let Some(end) = self.items.get_mut(new_len) {
            *end = Region::default();
        }
        for r in with {
            self.pages += u64::from(r.end - r.start);
        }
        Ok(())
    }
    /// Removes `start..end`, splitting regions that overlap it.
    pub fn remove(&mut self, start: u32, end: u32) -> Result<(), Full> {
        self.put(start, end, None)
    }
    /// Maps `start..end` with `attr`, replacing what was there.
    pub fn insert(&mut self, start: u32, end: u32, attr: Attr) -> Result<(), Full> {
        self.put(start, end, Some(attr))
    }
    fn put(&mut self, start: u32, end: u32, attr: Option<Attr>) -> Result<(), Full> {
        if start >= end {
            return Ok(());
        }
        let mut from = self.first_after(start);
        let mut to = from + self.as_slice()[from..].partition_point(|r| r.start < end);
        let mut with = [Region::default(); 3];
        let mut n = 0;
        let mut push = |r: Region| {
            if r.start >= r.end {
                return;
            }
            if n > 0 && with[n - 1].end == r.start && with[n - 1].attr == r.attr {
                with[n - 1].end = r.end;
            } else {
                with[n] = r;
                n += 1;
            }
        };
        // Merge with adjacent equal regions.
        if let Some(attr) = attr {
            if from > 0 && self.items[from - 1].end == start && self.items[from - 1].attr == attr {
                from -= 1;
            }
            if to < self.len && self.items[to].start == end && self.items[to].attr == attr {
                to += 1;
            }
        }
        if from < to {
            let first = self.items[from];
            push(Region {
                end: first.end.min(start),
                ..first
            });
        }
        if let Some(attr) = attr {
            push(Region { start, end, attr });
        }
        if from < to {
            let last = self.items[to - 1];
            push(Region {
                start: last.start.max(end),
                ..last
            });
        }
        self.replace(from, to, &with[..n])
    }
    /// Changes the attributes of every mapped page in `start..end` by `f`.
    pub fn update(&mut self, start: u32, end: u32, f: impl Fn(Attr) -> Attr) -> Result<(), Full> {
        let mut at = start;
        while let Some(r) = self.first_in(at, end) {
            let new = f(r.attr);
            if new != r.attr {
                self.insert(r.start, r.end, new)?;
            }
            at = r.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const PAGES: u32 = 64;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, u32, u8),
        Remove(u32, u32),
        Update(u32, u32, u8),
        Gap(u32, u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = (0..PAGES, 1..20u32).prop_map(|(s, l)| (s, (s + l).min(PAGES)));
        prop_oneof![
            (range.clone(), 1..4u8).prop_map(|((s, e), p)| Op::Insert(s, e, p)),
            range.clone().prop_map(|(s, e)| Op::Remove(s, e)),
            (range, 1..4u8).prop_map(|((s, e), p)| Op::Update(s, e, p)),
            (1..20u32, 0..4u32).prop_map(|(l, a)| Op::Gap(l, 1 << a)),
        ]
    }

    proptest! {
        /// Compared with a naive oracle: one attribute per page.
        #[test]
        fn matches_one_attribute_a_page(ops in proptest::collection::vec(op(), 1..200)) {
            let mut items = vec![Region::default(); 128];
            let mut regions = Regions::new(&mut items);
            let mut oracle: Vec<Option<u8>> = vec![None; PAGES as usize];
            for op in ops {
                match op {
                    Op::Insert(s, e, p) => {
                        regions.insert(s, e, Attr { prot: p, kind: u16::from(p) & kind::NATIVE }).unwrap();
                        oracle[s as usize..e as usize].fill(Some(p));
                    }
                    Op::Remove(s, e) => {
                        regions.remove(s, e).unwrap();
                        oracle[s as usize..e as usize].fill(None);
                    }
                    Op::Update(s, e, p) => {
                        regions.update(s, e, |_| Attr { prot: p, kind: u16::from(p) & kind::NATIVE }).unwrap();
                        for o in oracle[s as usize..e as usize].iter_mut().flatten() {
                            *o = p;
                        }
                    }
                    Op::Gap(l, a) => {
                        let want = (0..=PAGES.saturating_sub(l))
                            .find(|s| s % a == 0 && oracle[*s as usize..(*s + l) as usize].iter().all(Option::is_none));
                        prop_assert_eq!(regions.find_gap(l, a, 0, PAGES), want);
                    }
                }
                for p in 0..PAGES {
                    prop_assert_eq!(regions.at(p).map(|r| r.attr.prot), oracle[p as usize]);
                }
                prop_assert_eq!(regions.pages(), oracle.iter().flatten().count() as u64);
                prop_assert_eq!(regions.covers(3, 9), oracle[3..9].iter().all(Option::is_some));
                prop_assert_eq!(regions.first_in(9, 9), None);
                let first = regions.first_in(3, 9).map(|r| (r.start, r.attr.prot));
                let want = (3..9u32).find_map(|p| Some((p, oracle[p as usize]?)));
                prop_assert_eq!(first, want);
                for w in regions.as_slice().windows(2) {
                    prop_assert!(w[0].end < w[1].start || (w[0].end == w[1].start && w[0].attr != w[1].attr));
                }
            }
        }
    }

    #[test]
    fn a_full_array_refuses_and_changes_nothing() {
        let mut items = [Region::default(); 2];
        let mut r = Regions::new(&mut items);
        let a = Attr { prot: 3, kind: 0 };
        r.insert(0, 10, a).unwrap();
        r.insert(20, 30, a).unwrap();
        assert_eq!(r.remove(4, 6), Err(Full));
        assert_eq!(r.insert(12, 14, a), Err(Full));
        assert_eq!(
            r.as_slice(),
            &[
                Region {
                    start: 0,
                    end: 10,
                    attr: a
                },
                Region {
                    start: 20,
                    end: 30,
                    attr: a
                }
            ]
        );
    }

    #[test]
    fn items_are_opened_before_they_are_written() {
        // Opens as many as are requested, up to five: there is no memory for more.
        let open = |wanted: usize| if wanted <= 5 { wanted } else { 0 };
        let mut items = [Region::default(); 20];
        let mut r = Regions::opened_by(&mut items, open);
        let a = Attr { prot: 3, kind: 0 };
        for i in 0..4 {
            r.insert(i * 10, i * 10 + 5, a).unwrap();
        }
        assert_eq!(
            r.insert(90, 95, a),
            Err(Full),
            "and the empty one at the end"
        );
        assert_eq!(r.remove(2, 3), Err(Full));
        assert_eq!(r.as_slice().len(), 4);
        r.remove(30, 35).unwrap();
        r.remove(2, 3).unwrap();
        assert_eq!((r.as_slice().len(), r.pages()), (4, 14));
    }
}
