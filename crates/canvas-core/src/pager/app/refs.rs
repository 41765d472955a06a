//! References: pointers in a page that has just come in, some of which the faulting instruction will probably follow
//! (content-directed prefetching, Cooksey, ASPLOS '02; groups must first prove themselves in a sandbox, Pugsley, HPCA
//! '14).
//!
//! After a fault at address `a` by the instruction at `ip`, the decoded page is at hand. The pointers near `a` that
//! lead to far pages are *candidates*. Which of them are worth following depends on the code, so a candidate's *group*
//! is the instruction and the distance of the pointer from `a`. Nothing is fetched for a group until its pages were
//! faulted on often enough after they had been candidates.

use canvas_types::sync::{AtomicU64, Ordering};
use canvas_types::{PAGE_SIZE, PageBuf, PageId};

use super::links::PrefetchList;

/// Number of groups.
const GROUPS: usize = 4096;
/// Candidates that are remembered per thread.
const RING: usize = 32;
/// Candidates of one fault, at most.
pub const CANDIDATES_MAX: usize = 8;
/// Pointers are searched from this far before the address to this far after it, in bytes.
const BEFORE: usize = 128;
const AFTER: usize = 256;
/// A group is judged after this many candidates.
const TRIES_MIN: u64 = 16;
/// A group is live if at least this percentage of its candidates is used.
const USED_PERCENT: u64 = 40;

/// How pointers are stored in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// 64-bit addresses.
    Raw,
    /// 32-bit references of a Java heap: address = base + value << shift.
    Narrow {
        /// Added to the shifted value.
        base: usize,
        /// How far the value is shifted, at most 8.
        shift: u32,
    },
}

impl Encoding {
    fn bytes(self) -> usize {
        match self {
            Encoding::Raw => 8,
            Encoding::Narrow { .. } => 4,
        }
    }

    fn address(self, raw: &[u8]) -> Option<usize> {
        match self {
            Encoding::Raw => raw.try_into().ok().map(usize::from_le_bytes),
            Encoding::Narrow { base, shift } => {
                let value = u32::from_le_bytes(raw.try_into().ok()?) as usize;
                (value != 0).then(|| base.wrapping_add(value << shift.min(8)))
            }
        }
    }
}

/// A pointer near a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Candidate {
    /// The page that it leads to.
    pub page: PageId,
    /// Byte of that page.
    low: u16,
    /// Distance from the fault to the pointer, in bytes.
    delta: i16,
}

/// The candidates of a fault at byte `offset` of a page with these contents, nearest first. `page_of` returns the far
/// page that an address lies in, if there is one.
pub fn candidates(
    bytes: &PageBuf,
    offset: usize,
    encoding: Encoding,
    page_of: impl Fn(usize) -> Option<PageId>,
    found: &mut [Candidate; CANDIDATES_MAX],
) -> usize {
    let step = encoding.bytes();
    let at = offset.min(PAGE_SIZE - step) / step * step;
    let mut n = 0;
    let mut look = |slot: usize| {
        let address = encoding.address(&bytes[slot..slot + step]);
        if let Some((address, page)) = address.and_then(|a| Some((a, page_of(a)?))) {
            found[n] = Candidate {
                page,
                low: (address % PAGE_SIZE) as u16,
                delta: (slot as isize - at as isize) as i16,
            };
            n += 1;
        }
        n < CANDIDATES_MAX
    };
    let (after, before) = (AFTER / step, BEFORE / step);
    for i in 0..after {
        let up = at + i * step;
        if up + step <= PAGE_SIZE && !look(up) {
            break;
        }
        if i > 0 && i <= before && at >= i * step && !look(at - i * step) {
            break;
        }
    }
    n
}

/// One thread's candidates.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    seen: [Seen; RING],
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// 0 for none; page number 0 is never a program's.
    page: u32,
    group: u16,
}

impl Ring {
    /// Creates an empty ring.
    pub const fn new() -> Ring {
        Ring {
            seen: [Seen { page: 0, group: 0 }; RING],
            next: 0,
        }
    }
}

impl Default for Ring {
    fn default() -> Ring {
        Ring::new()
    }
}

/// All groups of a process: `tag << 32 | tries << 8 | uses`.
pub struct Groups {
    words: [AtomicU64; GROUPS],
}

impl Groups {
    /// Creates groups without history.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Groups {
        Groups {
            words: [const { AtomicU64::new(0) }; GROUPS],
        }
    }

    /// Handles a fault of a thread on `page` by the instruction at `ip`; `found` are the candidates there. Adds pages
    /// worth requesting to `asked`.
    pub fn on_fault(
        &self,
        ring: &mut Ring,
        page: PageId,
        ip: usize,
        found: &[Candidate],
        asked: &mut PrefetchList,
    ) {
        for seen in ring.seen.iter_mut().filter(|s| s.page == page.0) {
            let used = core::mem::take(seen);
            let word = &self.words[usize::from(used.group)];
            let now = word.load(Ordering::Relaxed);
            if now & 0xff < now >> 8 & 0xff {
                word.store(now + 1, Ordering::Relaxed);
            }
        }
        for candidate in found.iter().filter(|c| c.page != page) {
            let (group, lives) = self.tried(ip, candidate.delta);
            if lives {
                asked.push(candidate.page);
            }
            ring.seen[ring.next % RING] = Seen {
                page: candidate.page.0,
                group,
            };
            ring.next = (ring.next + 1) % RING;
        }
    }

    /// Counts one more candidate of a group; returns the group and whether it is live.
    fn tried(&self, ip: usize, delta: i16) -> (u16, bool) {
        let mixed = (ip as u64 ^ (delta as u16 as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let (group, tag) = ((hash >> 52) as usize % GROUPS, hash >> 16 & 0xffff_ffff);
        let word = &self.words[group];
        let now = word.load(Ordering::Relaxed);
        let (mut tries, mut uses) = match now >> 32 == tag {
            true => (now >> 8 & 0xff, now & 0xff),
            false => (0, 0),
        };
        let lives = tries >= TRIES_MIN && uses * 100 >= tries * USED_PERCENT;
        if tries == 0xff {
            (tries, uses) = (tries / 2, uses / 2);
        }
        word.store(tag << 32 | (tries + 1) << 8 | uses, Ordering::Relaxed);
        (group as u16, lives)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_testing::random::sized;

    fn page_with(values: &[(usize, u64)]) -> Box<PageBuf> {
        let mut page = Box::new([0; PAGE_SIZE]);
        for (at, value) in values {
            page[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
        }
        page
    }

    fn far(address: usize) -> Option<PageId> {
        (0x10_0000..0x20_0000)
            .contains(&address)
            .then_some(PageId((address / PAGE_SIZE) as u32))
    }

    fn all(bytes: &PageBuf, offset: usize, encoding: Encoding) -> Vec<(u32, i16)> {
        let mut found = [Candidate::default(); CANDIDATES_MAX];
        let n = candidates(bytes, offset, encoding, far, &mut found);
        found[..n].iter().map(|c| (c.page.0, c.delta)).collect()
    }

    #[test]
    fn pointers_near_the_fault_are_candidates_the_nearest_first() {
        let page = page_with(&[
            (1000, 0x10_1008),
            (1040, 0x10_2000),
            (960, 0x10_3000),
            (3000, 0x10_4000),
            (1048, 77),
        ]);
        assert_eq!(
            all(&page, 1003, Encoding::Raw),
            [(0x101, 0), (0x102, 40), (0x103, -40)]
        );
        assert_eq!(all(&page, 4095, Encoding::Raw), []);
        assert_eq!(
            all(&page_with(&[(4088, 0x10_5000)]), 4095, Encoding::Raw),
            [(0x105, 0)]
        );
        assert_eq!(
            all(&page_with(&[(0, 0x10_5000)]), 0, Encoding::Raw),
            [(0x105, 0)]
        );
    }

    #[test]
    fn narrow_pointers_are_widened() {
        let narrow = Encoding::Narrow {
            base: 0x10_0000,
            shift: 3,
        };
        let page = page_with(&[(16, 0x200 << 32 | 0x400)]);
        assert_eq!(all(&page, 16, narrow), [(0x102, 0), (0x101, 4)]);
        // Null is no pointer, and an invalid shift does not panic.
        assert_eq!(all(&page_with(&[]), 16, narrow), []);
        let odd = Encoding::Narrow {
            base: usize::MAX,
            shift: 99,
        };
        assert_eq!(all(&page, 16, odd), []);
    }

    /// A chain of nodes: one instruction follows one pointer in each, another follows none. Returns how many pages were
    /// requested.
    fn follow(groups: &Groups, ring: &mut Ring, steps: u32, follows: bool) -> usize {
        let mut asked_for = 0;
        for i in 0..steps {
            let here = PageId(1000 + i);
            let next = PageId(if follows { 1001 + i } else { 90_000 + i });
            let found = [
                Candidate {
                    page: next,
                    low: 0,
                    delta: 8,
                },
                Candidate {
                    page: PageId(500_000 + i),
                    low: 0,
                    delta: -8,
                },
            ];
            let mut asked = PrefetchList::default();
            let ip = if follows { 0x1234 } else { 0x8888 };
            groups.on_fault(ring, here, ip, &found, &mut asked);
            assert!(asked.pages().iter().all(|p| *p == next));
            asked_for += asked.pages().len();
        }
        asked_for
    }

    #[test]
    fn a_group_proves_itself_before_anything_is_fetched() {
        let (groups, mut ring) = (Box::new(Groups::new()), Ring::default());
        let asked = follow(&groups, &mut ring, 1000, true);
        assert!(asked > 950, "{asked}");
        assert_eq!(follow(&groups, &mut ring, 1000, false), 0);
    }

    /// Memory full of numbers that look like pointers: nothing is fetched for them.
    #[test]
    fn false_pointers_stay_in_the_sandbox() {
        let (groups, mut ring) = (Box::new(Groups::new()), Ring::default());
        let mut rng = fastrand::Rng::with_seed(3);
        let mut asked_for = 0;
        for _ in 0..sized(20_000, 1000) {
            let mut found = [Candidate::default(); CANDIDATES_MAX];
            for (i, c) in found.iter_mut().enumerate() {
                *c = Candidate {
                    page: PageId(rng.u32(1..100_000)),
                    low: 0,
                    delta: 8 * i as i16,
                };
            }
            let mut asked = PrefetchList::default();
            let here = PageId(rng.u32(1..100_000));
            groups.on_fault(&mut ring, here, 0x77, &found, &mut asked);
            asked_for += asked.pages().len();
        }
        assert!(asked_for < 200, "{asked_for}");
    }
}
