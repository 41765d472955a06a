//! Regions whose contents the program has declared, so that they can be followed.
//!
//! A sorted list. Its writer, one at a time, makes a number odd while it changes the list. A look-up that meets a
//! change is repeated a few times, and then finds nothing: a fault never waits.

use canvas_types::sync::{AtomicU64, Ordering};

/// What a region contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Content {
    /// An array that is used in order.
    Array = 1,
    /// 64-bit addresses.
    Refs64 = 2,
    /// 32-bit references, converted to addresses by [`Declaration::base`] and [`Declaration::shift`].
    Refs32 = 3,
}

impl Content {
    fn from_number(n: u64) -> Option<Content> {
        [Content::Array, Content::Refs64, Content::Refs32]
            .into_iter()
            .find(|content| *content as u64 == n)
    }
}

/// What the program declared about a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// What it contains.
    pub content: Content,
    /// For [`Content::Refs32`]: the address is `base + (reference << shift)`.
    pub base: u64,
    /// The shift in that formula.
    pub shift: u8,
}

/// Regions that can be declared.
pub const REGIONS: usize = 4096;

struct RegionCell {
    /// `start << 32 | end`, in pages.
    pages: AtomicU64,
    /// `shift << 8 | content`.
    what: AtomicU64,
    base: AtomicU64,
}

/// The list: 96 KiB, usable as a static.
pub struct Refs {
    /// Odd while the list changes.
    change: AtomicU64,
    len: AtomicU64,
    cells: [RegionCell; REGIONS],
}

/// There is no cell left; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

type Item = (u32, u32, Declaration);

impl RegionCell {
    const fn new() -> RegionCell {
        RegionCell {
            pages: AtomicU64::new(0),
            what: AtomicU64::new(0),
            base: AtomicU64::new(0),
        }
    }
}
impl Refs {
    /// Creates an empty list.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Refs {
        Refs {
            change: AtomicU64::new(0),
            len: AtomicU64::new(0),
            cells: [const { RegionCell::new() }; REGIONS],
        }
    }

    fn len(&self) -> usize {
        (self.len.load(Ordering::Acquire) as usize).min(REGIONS)
    }
    fn pages(&self, i: usize) -> (u32, u32) {
        let v = self.cells[i].pages.load(Ordering::Acquire);
        ((v >> 32) as u32, v as u32)
    }
    fn get(&self, i: usize) -> Option<Item> {
        let (start, end) = self.pages(i);
        let what = self.cells[i].what.load(Ordering::Acquire);
        let declaration = Declaration {
            content: Content::from_number(what & 0xff)?,
            base: self.cells[i].base.load(Ordering::Acquire),
            shift: (what >> 8) as u8,
        };
        Some((start, end, declaration))
    }
    fn put(&self, i: usize, (start, end, declaration): Item) {
        let cell = &self.cells[i];
        let pages = u64::from(start) << 32 | u64::from(end);
        let what = u64::from(declaration.shift) << 8 | declaration.content as u64;
        cell.pages.store(pages, Ordering::Release);
        cell.what.store(what, Ordering::Release);
        cell.base.store(declaration.base, Ordering::Release);
    }
    /// Index of the first region that ends after `page`.
    fn first_after(&self, page: u32) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.pages(middle).1 <= page {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Whether any region is declared.
    #[inline]
    pub fn any(&self) -> bool {
        self.len.load(Ordering::Relaxed) != 0
    }

    /// What was declared about the region of `page`.
    pub fn of(&self, page: u32) -> Option<Declaration> {
        /// Attempts, each of which may meet a change.
        const ATTEMPTS: u32 = 4;
        if !self.any() {
            return None;
        }
        for _ in 0..ATTEMPTS {
            let before = self.change.load(Ordering::Acquire);
            let i = self.first_after(page);
            let found = if i < self.len() { self.get(i) } else { None };
            if before.is_multiple_of(2) && self.change.load(Ordering::Acquire) == before {
                return found
                    .filter(|(start, end, _)| (*start..*end).contains(&page))
                    .map(|(_, _, declaration)| declaration);
            }
        }
        None
    }

    /// Declares the contents of the pages `start..end`, or removes their declaration, replacing earlier ones. One
    /// writer at a time.
    pub fn declare(
        &self,
        start: u32,
        end: u32,
        declaration: Option<Declaration>,
    ) -> Result<(), Full> {
        if start >= end {
            return Ok(());
        }
        let from = self.first_after(start);
        let mut to = from;
        while to < self.len() && self.pages(to).0 < end {
            to += 1;
        }
        // The replacement of the overlapping regions: the rest of the first, the new one, the rest of the last.
        let met = |i: usize| if from < to { self.get(i) } else { None };
        let before = met(from).filter(|(s, _, _)| *s < start);
        let after = met(to.wrapping_sub(1)).filter(|(_, e, _)| *e > end);
        let new = [
            before.map(|(s, _, t)| (s, start, t)),
            declaration.map(|t| (start, end, t)),
            after.map(|(_, e, t)| (end, e, t)),
        ];
        let count = new.iter().flatten().count();
        let (len, len_then) = (self.len(), self.len() + count - (to - from));
        if len_then > REGIONS {
            return Err(Full);
        }
        self.change.fetch_add(1, Ordering::AcqRel);
        let shift = |i: usize| {
            if let Some(item) = self.get(i) {
                self.put(i + from + count - to, item);
            }
        };
        match from + count > to {
            true => (to..len).rev().for_each(shift),
            false => (to..len).for_each(shift),
        }
        for (i, item) in new.into_iter().flatten().enumerate() {
            self.put(from + i, item);
        }
        self.len.store(len_then as u64, Ordering::Release);
        self.change.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_testing::random::sized;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    fn declaration(n: u64) -> Option<Declaration> {
        Content::from_number(n % 4).map(|content| Declaration {
            content,
            base: n * 1_000_003,
            shift: (n % 4) as u8,
        })
    }

    proptest! {
        /// Compared with one declaration per page.
        #[test]
        fn matches_one_answer_a_page(ops in proptest::collection::vec((0..60u32, 1..20u32, 0..40u64), 1..200)) {
            let refs = Box::new(Refs::new());
            let mut oracle: Vec<Option<Declaration>> = vec![None; 80];
            for (start, n, what) in ops {
                refs.declare(start, start + n, declaration(what)).unwrap();
                oracle[start as usize..(start + n) as usize].fill(declaration(what));
                for (page, declaration) in oracle.iter().enumerate() {
                    prop_assert_eq!(refs.of(page as u32), *declaration);
                }
                prop_assert_eq!(refs.any(), oracle.iter().any(Option::is_some));
            }
        }
    }

    #[test]
    fn a_full_list_refuses_and_changes_nothing() {
        let refs = Box::new(Refs::new());
        for i in 0..REGIONS as u32 {
            refs.declare(3 * i, 3 * i + 2, declaration(1)).unwrap();
        }
        assert_eq!(refs.declare(2, 3, declaration(2)), Err(Full));
        assert_eq!((refs.of(2), refs.of(1)), (None, declaration(1)));
        assert_eq!(refs.declare(0, 2, None), Ok(()));
        assert_eq!(refs.declare(0, 1, declaration(2)), Ok(()));
        assert_eq!((refs.of(0), refs.of(1)), (declaration(2), None));
        refs.declare(0, u32::MAX, None).unwrap();
        assert!(!refs.any());
    }

    #[test]
    fn a_look_sees_a_whole_answer_or_none_while_the_list_changes() {
        let refs = Box::new(Refs::new());
        std::thread::scope(|s| {
            let refs = &refs;
            let writer = s.spawn(move || {
                for i in 0..sized(20_000u64, 200) {
                    let start = (i * 7 % 50) as u32;
                    refs.declare(start, start + 30, declaration(i)).unwrap();
                }
            });
            while !writer.is_finished() {
                for page in 0..80 {
                    if let Some(t) = refs.of(page) {
                        let n = t.base / 1_000_003;
                        assert_eq!(Some(t), declaration(n));
                    }
                }
            }
        });
    }
}
