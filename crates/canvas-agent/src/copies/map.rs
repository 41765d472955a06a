//! Which donors hold which slab, and what is missing there. Pure, but for the seals it is shown.

use std::collections::{BTreeMap, HashSet};

use canvas_shm::far::SLAB_EXTENTS;
use canvas_wire::DonorId;

/// Copies of a slab at most, one that is being moved included.
pub const COPIES_MAX: usize = 4;
/// Bytes of a slab's line in the journal.
pub const LINE_BYTES: usize = 32 * COPIES_MAX;

/// Extents that a copy lacks.
pub type Missing = Box<[u64; SLAB_EXTENTS / 64]>;

/// One donor's copy of a slab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Index of the donor.
    pub donor: usize,
    /// The run of the donor that lent it.
    pub run: DonorId,
    /// What the donor calls it.
    pub handle: u64,
    /// What it lacks; `None` when it is whole.
    pub missing: Option<Missing>,
    /// The donor takes it back: its call, and until when (ns).
    pub leaving: Option<(u64, u64)>,
    /// Operations since the donor last asked.
    pub ops: u64,
}

impl Copy {
    /// Has it the extent (a number within the slab)?
    pub fn has(&self, extent: usize) -> bool {
        self.missing
            .as_ref()
            .is_none_or(|m| m[extent / 64] & 1 << (extent % 64) == 0)
    }
    /// It lacks the extent. True when it was whole before.
    pub fn lacks(&mut self, extent: usize) -> bool {
        let was_whole = self.missing.is_none();
        let m = self
            .missing
            .get_or_insert_with(|| Box::new([0; SLAB_EXTENTS / 64]));
        m[extent / 64] |= 1 << (extent % 64);
        was_whole
    }
    /// It has the extent now.
    pub fn gained(&mut self, extent: usize) {
        if let Some(m) = &mut self.missing {
            m[extent / 64] &= !(1 << (extent % 64));
        }
    }
    /// It lacks everything.
    pub fn lacks_all(&mut self) {
        self.missing = Some(Box::new([!0; SLAB_EXTENTS / 64]));
    }
    /// The first extent that it lacks and that `is_written`; what is not is nothing to lack. Those to
    /// `skip` are left as they are. True in the second place when that made it whole.
    pub fn next_missing(
        &mut self,
        skip: impl Fn(usize) -> bool,
        is_written: impl Fn(usize) -> bool,
    ) -> (Option<usize>, bool) {
        let Some(m) = &mut self.missing else {
            return (None, false);
        };
        let mut left = false;
        for (w, word) in m.iter_mut().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                let extent = w * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if skip(extent) {
                    left = true;
                } else if !is_written(extent) {
                    *word &= !(1 << (extent % 64));
                } else {
                    return (Some(extent), false);
                }
            }
        }
        if !left {
            self.missing = None;
        }
        (None, !left)
    }
}

/// A slab's copies, and what is under way for it.
#[derive(Default, Debug)]
pub struct Slab {
    /// Copies.
    pub copies: Vec<Copy>,
    /// Requests for a copy under way.
    pub allocating: usize,
    /// Writes that wait for these.
    pub waiting: Vec<u32>,
    /// It is to be freed when these have ended.
    pub free: bool,
    /// Donors that had no room, a bit each, until the time to ask again (ns).
    pub refused: u64,
    /// When to look for another donor again.
    pub again_ns: u64,
}

impl Slab {
    /// The copy at a donor.
    pub fn at(&mut self, donor: usize) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|c| c.donor == donor)
    }
    /// As the journal has it: all zeros without a copy.
    pub fn line(&self) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        for (part, copy) in line.chunks_exact_mut(32).zip(&self.copies) {
            part[0] = 1;
            part[1] = copy.missing.is_none().into();
            part[2..4].copy_from_slice(&(copy.donor as u16).to_le_bytes());
            part[8..16].copy_from_slice(&copy.handle.to_le_bytes());
            part[16..].copy_from_slice(&copy.run);
        }
        line
    }
    /// From the journal; what is not known to be whole lacks everything.
    pub fn from_line(line: &[u8; LINE_BYTES]) -> Slab {
        let mut slab = Slab::default();
        for part in line.as_chunks::<32>().0.iter().filter(|p| p[0] == 1) {
            let mut copy = Copy {
                donor: u16::from_le_bytes([part[2], part[3]]).into(),
                run: *part[16..].first_chunk().expect("16 bytes"),
                handle: u64::from_le_bytes(*part[8..].first_chunk().expect("8 bytes")),
                missing: None,
                leaving: None,
                ops: 0,
            };
            if part[1] == 0 {
                copy.lacks_all();
            }
            slab.copies.push(copy);
        }
        slab
    }
}

/// All slabs that were ever written and not freed.
pub type Map = BTreeMap<u32, Slab>;

/// Forgets copies at a donor; the slabs that had them.
pub fn forget(map: &mut Map, donor: usize, gone: impl Fn(&Copy) -> bool) -> Vec<u32> {
    let mut changed = Vec::new();
    for (slab, entry) in map {
        let before = entry.copies.len();
        entry.copies.retain(|c| c.donor != donor || !gone(c));
        if entry.copies.len() != before {
            changed.push(*slab);
        }
    }
    changed
}

/// There is a new connection to a donor, and this run of it: what an earlier run lent is gone, and what
/// it wanted back over the old connection it calls for again, before it says what it holds. The slabs
/// that had a copy there.
pub fn connected(map: &mut Map, donor: usize, run: DonorId) -> Vec<u32> {
    for copy in map.values_mut().filter_map(|e| e.at(donor)) {
        copy.leaving = None;
    }
    forget(map, donor, |copy| copy.run != run)
}

/// A donor says which handles it holds: the slabs that had a copy there and have none any more, and
/// handles that it holds for nothing.
pub fn listed(map: &mut Map, donor: usize, held: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let holds: HashSet<u64> = held.iter().copied().collect();
    let changed = forget(map, donor, |copy| !holds.contains(&copy.handle));
    let copies = map.values_mut().filter_map(|e| e.at(donor));
    let known: HashSet<u64> = copies.map(|c| c.handle).collect();
    let garbage = held.iter().copied().filter(|h| !known.contains(h));
    (changed, garbage.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(donor: usize) -> Copy {
        Copy {
            donor,
            run: [donor as u8; 16],
            handle: 77 + donor as u64,
            missing: None,
            leaving: None,
            ops: 0,
        }
    }

    #[test]
    fn the_journal_brings_copies_back() {
        let mut slab = Slab {
            copies: vec![copy(0), copy(3)],
            ..Slab::default()
        };
        slab.copies[1].lacks(9);
        let again = Slab::from_line(&slab.line());
        slab.copies[1].lacks_all();
        assert_eq!(again.copies, slab.copies);
        assert_eq!(Slab::default().line(), [0; LINE_BYTES]);
        assert!(Slab::from_line(&[0; LINE_BYTES]).copies.is_empty());
    }

    /// The donor calls for what is leaving as soon as it is connected, so before it lists what it has.
    #[test]
    fn a_call_between_connection_and_list_is_kept() {
        let leaving = |handle| Copy {
            handle,
            leaving: Some((1, 100)),
            ..copy(2)
        };
        let mut map = Map::new();
        for (slab, handle) in [(0, 7), (1, 8), (2, 9)] {
            let entry: &mut Slab = map.entry(slab).or_default();
            entry.copies = vec![copy(0), leaving(handle)];
        }
        assert!(connected(&mut map, 2, [2; 16]).is_empty());
        assert!(map.values_mut().all(|e| e.at(2).unwrap().leaving.is_none()));
        map.get_mut(&1).unwrap().at(2).unwrap().leaving = Some((5, 200));
        assert_eq!(listed(&mut map, 2, &[8, 9, 40]), (vec![0], vec![40]));
        assert_eq!(map[&1].copies[1].leaving, Some((5, 200)));
        assert_eq!(map[&0].copies, [copy(0)]);
        assert_eq!(connected(&mut map, 2, [3; 16]), [1, 2]);
    }

    #[test]
    fn what_is_being_written_is_not_forgotten() {
        let mut c = copy(0);
        c.lacks(5);
        // Not written yet, as far as the seal tells; but it is about to be.
        assert_eq!(c.next_missing(|e| e == 5, |_| false), (None, false));
        assert!(!c.has(5));
        assert_eq!(c.next_missing(|_| false, |_| true), (Some(5), false));
        assert_eq!(c.next_missing(|_| false, |_| false), (None, true));
        assert!(c.has(5));
    }

    proptest! {
        #[test]
        fn what_is_missing_is_as_a_set_has_it(
            steps in prop::collection::vec((0..2048usize, 0..3u8), 0..200),
            written in prop::collection::btree_set(0..2048usize, 0..40),
        ) {
            let mut c = copy(1);
            let mut missing = std::collections::BTreeSet::new();
            for (extent, kind) in steps {
                match kind {
                    0 | 1 => {
                        let whole = c.missing.is_none();
                        prop_assert_eq!(c.lacks(extent), whole);
                        missing.insert(extent);
                    }
                    _ => {
                        c.gained(extent);
                        missing.remove(&extent);
                    }
                }
                prop_assert_eq!(c.has(extent), !missing.contains(&extent));
            }
            let had_any = c.missing.is_some();
            let mut got = Vec::new();
            loop {
                match c.next_missing(|_| false, |e| written.contains(&e)) {
                    (Some(e), false) => {
                        got.push(e);
                        c.gained(e);
                    }
                    (None, whole) => {
                        prop_assert_eq!(whole, had_any);
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let want: Vec<_> = missing.intersection(&written).copied().collect();
            prop_assert_eq!(got, want);
            prop_assert!(c.missing.is_none());
        }
    }
}
