//! The reference policies that canvas's is compared with. All of them see every touch of every page.

use std::collections::{BinaryHeap, VecDeque};

/// A cache of pages with a replacement policy. Pages are small dense numbers.
pub trait Policy {
    /// Touches a page, which is in the cache afterwards; returns whether it was before.
    fn touch(&mut self, page: u32) -> bool;
    /// Forgets a discarded page.
    fn discard(&mut self, page: u32);
}

const NIL: u32 = u32::MAX;

/// A doubly linked list of pages over two arrays; a page is in at most one list of an arena.
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

struct Links {
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl Links {
    fn new(pages: usize) -> Links {
        Links {
            next: vec![NIL; pages],
            prev: vec![NIL; pages],
        }
    }
}

impl List {
    fn new() -> List {
        List {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }
    /// Inserts `page` at the head, as the youngest.
    fn push(&mut self, l: &mut Links, page: u32) {
        l.next[page as usize] = self.head;
        l.prev[page as usize] = NIL;
        match self.head {
            NIL => self.tail = page,
            h => l.prev[h as usize] = page,
        }
        self.head = page;
        self.len += 1;
    }
    fn remove(&mut self, l: &mut Links, page: u32) {
        let (next, prev) = (l.next[page as usize], l.prev[page as usize]);
        match prev {
            NIL => self.head = next,
            p => l.next[p as usize] = next,
        }
        match next {
            NIL => self.tail = prev,
            n => l.prev[n as usize] = prev,
        }
        self.len -= 1;
    }
}

/// Least recently used.
pub struct Lru {
    list: List,
    links: Links,
    here: Vec<bool>,
    capacity: usize,
}

impl Lru {
    /// An empty cache of `capacity` pages; page numbers are below `pages`.
    pub fn new(capacity: usize, pages: usize) -> Lru {
        Lru {
            list: List::new(),
            links: Links::new(pages),
            here: vec![false; pages],
            capacity,
        }
    }
}

impl Policy for Lru {
    fn touch(&mut self, page: u32) -> bool {
        let hit = self.here[page as usize];
        if hit {
            self.list.remove(&mut self.links, page);
        } else {
            if self.list.len >= self.capacity {
                let victim = self.list.tail;
                self.list.remove(&mut self.links, victim);
                self.here[victim as usize] = false;
            }
            self.here[page as usize] = true;
        }
        self.list.push(&mut self.links, page);
        hit
    }
    fn discard(&mut self, page: u32) {
        if std::mem::replace(&mut self.here[page as usize], false) {
            self.list.remove(&mut self.links, page);
        }
    }
}

/// First in, first out.
pub struct Fifo {
    list: List,
    links: Links,
    here: Vec<bool>,
    capacity: usize,
}

impl Fifo {
    /// An empty cache of `capacity` pages; page numbers are below `pages`.
    pub fn new(capacity: usize, pages: usize) -> Fifo {
        Fifo {
            list: List::new(),
            links: Links::new(pages),
            here: vec![false; pages],
            capacity,
        }
    }
}

impl Policy for Fifo {
    fn touch(&mut self, page: u32) -> bool {
        if self.here[page as usize] {
            return true;
        }
        if self.list.len >= self.capacity {
            let victim = self.list.tail;
            self.list.remove(&mut self.links, victim);
            self.here[victim as usize] = false;
        }
        self.here[page as usize] = true;
        self.list.push(&mut self.links, page);
        false
    }
    fn discard(&mut self, page: u32) {
        if std::mem::replace(&mut self.here[page as usize], false) {
            self.list.remove(&mut self.links, page);
        }
    }
}

/// SIEVE (NSDI'24): a FIFO whose hand walks from old to young and spares visited pages in place.
pub struct Sieve {
    list: List,
    links: Links,
    here: Vec<bool>,
    visited: Vec<bool>,
    hand: u32,
    capacity: usize,
}

impl Sieve {
    /// An empty cache of `capacity` pages; page numbers are below `pages`.
    pub fn new(capacity: usize, pages: usize) -> Sieve {
        Sieve {
            list: List::new(),
            links: Links::new(pages),
            here: vec![false; pages],
            visited: vec![false; pages],
            hand: NIL,
            capacity,
        }
    }
    fn evict(&mut self) {
        let mut at = if self.hand == NIL {
            self.list.tail
        } else {
            self.hand
        };
        while std::mem::replace(&mut self.visited[at as usize], false) {
            at = match self.links.prev[at as usize] {
                NIL => self.list.tail,
                p => p,
            };
        }
        self.hand = self.links.prev[at as usize];
        self.list.remove(&mut self.links, at);
        self.here[at as usize] = false;
    }
}

impl Policy for Sieve {
    fn touch(&mut self, page: u32) -> bool {
        if self.here[page as usize] {
            self.visited[page as usize] = true;
            return true;
        }
        if self.list.len >= self.capacity {
            self.evict();
        }
        self.here[page as usize] = true;
        self.visited[page as usize] = false;
        self.list.push(&mut self.links, page);
        false
    }
    fn discard(&mut self, page: u32) {
        if std::mem::replace(&mut self.here[page as usize], false) {
            if self.hand == page {
                self.hand = self.links.prev[page as usize];
            }
            self.visited[page as usize] = false;
            self.list.remove(&mut self.links, page);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    Small,
    Main,
}

/// S3-FIFO (SOSP'23): a small queue for new pages (a tenth), a main queue, and a ghost queue, as long as the
/// main one, of pages evicted from the small queue.
pub struct S3Fifo {
    small: List,
    main: List,
    links: Links,
    place: Vec<Place>,
    freq: Vec<u8>,
    /// Ghosts in order; an entry is valid only if `ghost_of` of its page still has its number.
    ghosts: VecDeque<(u32, u64)>,
    ghost_of: Vec<u64>,
    ghost_count: u64,
    ghost_live: usize,
    small_capacity: usize,
    capacity: usize,
}

impl S3Fifo {
    /// An empty cache of `capacity` pages; page numbers are below `pages`.
    pub fn new(capacity: usize, pages: usize) -> S3Fifo {
        S3Fifo {
            small: List::new(),
            main: List::new(),
            links: Links::new(pages),
            place: vec![Place::Out; pages],
            freq: vec![0; pages],
            ghosts: VecDeque::new(),
            ghost_of: vec![0; pages],
            ghost_count: 0,
            ghost_live: 0,
            small_capacity: (capacity / 10).max(1),
            capacity,
        }
    }
    fn evict(&mut self) {
        while self.small.len + self.main.len >= self.capacity {
            if self.small.len >= self.small_capacity || self.main.len == 0 {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }
    fn evict_small(&mut self) {
        while self.small.len > 0 {
            let page = self.small.tail;
            self.small.remove(&mut self.links, page);
            if self.freq[page as usize] > 1 {
                self.freq[page as usize] = 0;
                self.place[page as usize] = Place::Main;
                self.main.push(&mut self.links, page);
                if self.main.len > self.capacity - self.small_capacity {
                    return self.evict_main();
                }
            } else {
                self.place[page as usize] = Place::Out;
                return self.remember(page);
            }
        }
    }
    fn evict_main(&mut self) {
        while self.main.len > 0 {
            let page = self.main.tail;
            self.main.remove(&mut self.links, page);
            if self.freq[page as usize] > 0 {
                self.freq[page as usize] -= 1;
                self.main.push(&mut self.links, page);
            } else {
                self.place[page as usize] = Place::Out;
                return;
            }
        }
    }
    fn remember(&mut self, page: u32) {
        let room = (self.capacity - self.small_capacity).max(1);
        while self.ghost_live >= room {
            let Some((old, number)) = self.ghosts.pop_front() else {
                break;
            };
            if self.ghost_of[old as usize] == number {
                self.ghost_of[old as usize] = 0;
                self.ghost_live -= 1;
            }
        }
        self.ghost_count += 1;
        self.ghost_of[page as usize] = self.ghost_count;
        self.ghost_live += 1;
        self.ghosts.push_back((page, self.ghost_count));
    }
    fn forget(&mut self, page: u32) -> bool {
        let known = std::mem::replace(&mut self.ghost_of[page as usize], 0) != 0;
        self.ghost_live -= usize::from(known);
        known
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, page: u32) -> bool {
        if self.place[page as usize] != Place::Out {
            self.freq[page as usize] = (self.freq[page as usize] + 1).min(3);
            return true;
        }
        self.evict();
        self.freq[page as usize] = 0;
        if self.forget(page) {
            self.place[page as usize] = Place::Main;
            self.main.push(&mut self.links, page);
        } else {
            self.place[page as usize] = Place::Small;
            self.small.push(&mut self.links, page);
        }
        false
    }
    fn discard(&mut self, page: u32) {
        match std::mem::replace(&mut self.place[page as usize], Place::Out) {
            Place::Small => self.small.remove(&mut self.links, page),
            Place::Main => self.main.remove(&mut self.links, page),
            Place::Out => {
                self.forget(page);
            }
        }
    }
}

/// Belady's optimum: evicts the page whose next touch is farthest in the future.
pub struct Opt<'a> {
    /// For each event its page's next touch, or `u32::MAX` if it is discarded or never touched again.
    next_use: &'a [u32],
    now: usize,
    /// Next touch of each page in the cache; `None` for pages outside it.
    here: Vec<Option<u32>>,
    farthest: BinaryHeap<(u32, u32)>,
    len: usize,
    capacity: usize,
}

impl<'a> Opt<'a> {
    /// An empty cache of `capacity` pages; page numbers are below `pages`. `next_use` has one entry per
    /// event.
    pub fn new(capacity: usize, pages: usize, next_use: &'a [u32]) -> Opt<'a> {
        Opt {
            next_use,
            now: 0,
            here: vec![None; pages],
            farthest: BinaryHeap::new(),
            len: 0,
            capacity,
        }
    }
}

impl Policy for Opt<'_> {
    fn touch(&mut self, page: u32) -> bool {
        let next = self.next_use[self.now];
        self.now += 1;
        let hit = self.here[page as usize].is_some();
        if !hit {
            while self.len >= self.capacity {
                let Some((at, victim)) = self.farthest.pop() else {
                    break;
                };
                // An entry is stale unless it has the page's present next use.
                if self.here[victim as usize] == Some(at) {
                    self.here[victim as usize] = None;
                    self.len -= 1;
                }
            }
            self.len += 1;
        }
        self.here[page as usize] = Some(next);
        self.farthest.push((next, page));
        hit
    }
    fn discard(&mut self, page: u32) {
        self.now += 1;
        if self.here[page as usize].take().is_some() {
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Op, next_uses};
    use proptest::prelude::*;

    fn hits(policy: &mut dyn Policy, string: &[u32]) -> Vec<bool> {
        string.iter().map(|p| policy.touch(*p)).collect()
    }
    fn events(string: &[u32]) -> Vec<Event> {
        string
            .iter()
            .map(|p| Event {
                page: *p,
                thread: 0,
                op: Op::Touch,
            })
            .collect()
    }
    fn misses_of(policy: &mut dyn Policy, string: &[u32]) -> usize {
        hits(policy, string).iter().filter(|h| !**h).count()
    }

    /// The textbook string, in 3 frames: FIFO 9, LRU 10, OPT 7 misses.
    const BELADY: [u32; 12] = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];

    #[test]
    fn fifo_shows_beladys_anomaly() {
        assert_eq!(misses_of(&mut Fifo::new(3, 6), &BELADY), 9);
        assert_eq!(misses_of(&mut Fifo::new(4, 6), &BELADY), 10);
    }

    #[test]
    fn lru_by_hand() {
        assert_eq!(misses_of(&mut Lru::new(3, 6), &BELADY), 10);
        assert_eq!(misses_of(&mut Lru::new(4, 6), &BELADY), 8);
        assert_eq!(
            hits(&mut Lru::new(2, 4), &[1, 2, 1, 3, 2, 1]),
            [false, false, true, false, false, false]
        );
    }

    #[test]
    fn opt_by_hand() {
        let next = next_uses(&events(&BELADY), 6);
        assert_eq!(misses_of(&mut Opt::new(3, 6, &next), &BELADY), 7);
        assert_eq!(misses_of(&mut Opt::new(4, 6, &next), &BELADY), 6);
    }

    #[test]
    fn sieve_by_hand() {
        // Page 1 is visited: the hand clears its bit and evicts 2; the hand then stands at 3.
        let mut s = Sieve::new(3, 8);
        assert_eq!(
            hits(&mut s, &[1, 2, 3, 1, 4]),
            [false, false, false, true, false]
        );
        // Cache: 4 3 1 (young to old), hand at 3. 5 evicts 3; then 1 and 4 hit.
        assert_eq!(hits(&mut s, &[5, 1, 4]), [false, true, true]);
        // Cache: 5 4* 1*, hand at 4: the hand clears 4 and 1, and evicts 5 (unvisited).
        assert_eq!(hits(&mut s, &[6, 4, 1, 5]), [false, true, true, false]);
    }

    #[test]
    fn s3fifo_by_hand() {
        // Capacity 10: small 1, main 9. A scan of new pages goes through the small queue only.
        let mut s = S3Fifo::new(10, 64);
        assert_eq!(misses_of(&mut s, &(0..10).collect::<Vec<_>>()), 10);
        // Full, all pages in small. 10 evicts 0 (freq 0) to the ghosts; a touch of 0 enters main.
        assert_eq!(hits(&mut s, &[10, 0]), [false, false]);
        assert!(
            s.place[0] == Place::Main && s.place[1] == Place::Out && s.place[10] == Place::Small
        );
        // 2 was touched twice: it moves from small to main instead of being evicted.
        assert_eq!(hits(&mut s, &[2, 2, 11]), [true, true, false]);
        assert!(s.place[2] == Place::Main && s.place[3] == Place::Out);
    }

    #[test]
    fn a_discarded_page_misses() {
        let string = [1, 2, 3];
        let next = next_uses(
            &[
                Event {
                    page: 1,
                    thread: 0,
                    op: Op::Touch,
                },
                Event {
                    page: 1,
                    thread: 0,
                    op: Op::Discard,
                },
                Event {
                    page: 1,
                    thread: 0,
                    op: Op::Touch,
                },
            ],
            4,
        );
        assert_eq!(next, [u32::MAX, u32::MAX, u32::MAX]);
        let mut all: Vec<Box<dyn Policy>> = vec![
            Box::new(Lru::new(3, 4)),
            Box::new(Fifo::new(3, 4)),
            Box::new(Sieve::new(3, 4)),
            Box::new(S3Fifo::new(3, 4)),
        ];
        for p in &mut all {
            hits(&mut **p, &string);
            p.discard(2);
            assert_eq!(hits(&mut **p, &[1, 3, 2]), [true, true, false]);
        }
        let mut opt = Opt::new(3, 4, &next);
        assert!(!opt.touch(1));
        opt.discard(1);
        assert!(!opt.touch(1));
    }

    proptest! {
        #[test]
        fn nothing_beats_opt(string in proptest::collection::vec(0u32..24, 1..400), capacity in 1usize..20) {
            let next = next_uses(&events(&string), 24);
            let best = misses_of(&mut Opt::new(capacity, 24, &next), &string);
            let all: Vec<Box<dyn Policy>> = vec![
                Box::new(Lru::new(capacity, 24)),
                Box::new(Fifo::new(capacity, 24)),
                Box::new(Sieve::new(capacity, 24)),
                Box::new(S3Fifo::new(capacity, 24)),
            ];
            for mut p in all {
                prop_assert!(best <= misses_of(&mut *p, &string));
            }
        }

        #[test]
        fn lru_matches_a_naive_one(string in proptest::collection::vec(0u32..12, 1..200), capacity in 1usize..8) {
            let mut naive: Vec<u32> = Vec::new();
            let mut lru = Lru::new(capacity, 12);
            for page in string {
                let at = naive.iter().position(|p| *p == page);
                prop_assert_eq!(lru.touch(page), at.is_some());
                if let Some(at) = at {
                    naive.remove(at);
                }
                naive.push(page);
                if naive.len() > capacity {
                    naive.remove(0);
                }
            }
        }
    }
}
