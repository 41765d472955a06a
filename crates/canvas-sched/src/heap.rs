//! An indexed binary heap: smallest key first, and any member can be removed in O(log n).

/// Marks a member that is not in the heap.
const OUT: u32 = u32::MAX;

/// Members are small numbers, each in the heap at most once. Only [`IndexHeap::reserve`] allocates.
#[derive(Debug)]
pub(crate) struct IndexHeap<K> {
    entries: Vec<(K, u32)>,
    /// Index in `entries`, by member.
    places: Vec<u32>,
}

impl<K: Ord + Copy> IndexHeap<K> {
    pub(crate) fn new() -> IndexHeap<K> {
        IndexHeap {
            entries: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Allocates storage for members `0..n`.
    pub(crate) fn reserve(&mut self, n: usize) {
        if n > self.places.len() {
            self.places.resize(n, OUT);
            self.entries.reserve(n - self.entries.len());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn contains(&self, member: u32) -> bool {
        self.places[member as usize] != OUT
    }

    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// Inserts the member, or changes its key.
    pub(crate) fn put(&mut self, member: u32, key: K) {
        let place = self.places[member as usize];
        if place == OUT {
            self.entries.push((key, member));
            self.rise(self.entries.len() - 1);
        } else {
            let place = place as usize;
            let old = self.entries[place].0;
            self.entries[place].0 = key;
            if key < old {
                self.rise(place);
            } else {
                self.sink(place);
            }
        }
    }

    /// Removes the member. False when it was not in the heap.
    pub(crate) fn remove(&mut self, member: u32) -> bool {
        let place = self.places[member as usize];
        if place == OUT {
            return false;
        }
        self.places[member as usize] = OUT;
        let place = place as usize;
        let last = self.entries.pop().expect("the member is in it");
        if last.1 != member {
            self.entries[place] = last;
            self.places[last.1 as usize] = place as u32;
            self.rise(place);
            self.sink(self.places[last.1 as usize] as usize);
        }
        true
    }

    fn rise(&mut self, mut at: usize) {
        let entry = self.entries[at];
        while at > 0 {
            let above = (at - 1) / 2;
            if self.entries[above].0 <= entry.0 {
                break;
            }
            self.set(at, self.entries[above]);
            at = above;
        }
        self.set(at, entry);
    }

    fn sink(&mut self, mut at: usize) {
        let entry = self.entries[at];
        loop {
            let mut below = 2 * at + 1;
            if below >= self.entries.len() {
                break;
            }
            if below + 1 < self.entries.len() && self.entries[below + 1].0 < self.entries[below].0 {
                below += 1;
            }
            if entry.0 <= self.entries[below].0 {
                break;
            }
            self.set(at, self.entries[below]);
            at = below;
        }
        self.set(at, entry);
    }

    fn set(&mut self, at: usize, entry: (K, u32)) {
        self.entries[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }

    /// # Panics
    /// When order or indices are broken.
    pub(crate) fn check(&self) {
        for (at, (key, member)) in self.entries.iter().enumerate() {
            assert!(at == 0 || self.entries[(at - 1) / 2].0 <= *key);
            assert_eq!(self.places[*member as usize] as usize, at);
        }
        let within = self.places.iter().filter(|p| **p != OUT).count();
        assert_eq!(within, self.entries.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_the_smallest(ops in prop::collection::vec((0u32..20, 0u32..50, 0u8..3), 1..200)) {
            let mut heap = IndexHeap::new();
            heap.reserve(20);
            let mut plain: Vec<Option<u32>> = vec![None; 20];
            for (member, key, op) in ops {
                let was = plain[member as usize];
                if op == 0 {
                    prop_assert_eq!(heap.remove(member), was.is_some());
                    plain[member as usize] = None;
                } else {
                    heap.put(member, (key, member));
                    plain[member as usize] = Some(key);
                }
                heap.check();
                let least = plain.iter().enumerate().filter_map(|(m, k)| k.map(|k| (k, m as u32))).min();
                prop_assert_eq!(heap.first().map(|(k, _)| k), least);
                prop_assert_eq!(heap.len(), plain.iter().flatten().count());
                prop_assert_eq!(heap.contains(member), plain[member as usize].is_some());
            }
        }
    }
}
