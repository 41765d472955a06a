//! What /proc says about memory: a process's proportional share (PID/smaps), its mappings (PID/maps), and which pages
//! are present and shared (self/pagemap).
//!
//! After a fork, pages are shared until one side writes. Pss counts a page that n processes map as 1/n, so the sum over
//! a tenant's processes is the memory that it really uses. The walk costs about 10 ms per resident GiB, so only forked
//! processes do it, and seldom.

use canvas_shm::ProcSlot;
use canvas_shm::lives::map_offset;
use canvas_sys::pagemap::{EXCLUSIVE, PRESENT, Pagemap};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::NODES_MAX;

use crate::own_memory::areas;
use crate::runtime::{fds::pagemap, lines::Lines};
use crate::tenant::{life, life::Number};

fn hex(text: &[u8]) -> Option<usize> {
    let mut n = 0usize;
    let mut any = false;
    for b in text {
        let d = (*b as char).to_digit(16)?;
        n = n.checked_mul(16)? + d as usize;
        any = true;
    }
    any.then_some(n)
}

/// A process's share of the memory that it maps.
#[derive(Clone, Copy)]
pub struct Shares {
    /// Pages of anonymous memory outside the pool.
    pub pages: i64,
    /// Of these, pages that no other process maps.
    pub own_pages: i64,
    /// Pages of anonymous memory in the host's swap.
    pub swapped_pages: i64,
    pool: Store,
    nodes: [Store; NODES_MAX],
}

/// Memory for stored pages: its resident size in KiB, and the process's share of that.
#[derive(Clone, Copy, Default)]
struct Store {
    rss_kib: i64,
    pss_kib: i64,
}

impl Store {
    /// The share of a store that would be charged `whole` if nobody shared it.
    fn of(self, whole: i64) -> i64 {
        if self.rss_kib == 0 {
            return whole;
        }
        (i128::from(whole) * i128::from(self.pss_kib) / i128::from(self.rss_kib)) as i64
    }
}

impl Shares {
    /// The share of a pool that would be charged `whole` if nobody shared it.
    pub fn of_pool(self, whole: i64) -> i64 {
        self.pool.of(whole)
    }
    /// The share of memory on a node that would be charged `whole` if nobody shared it.
    pub fn of_node(self, place: usize, whole: i64) -> i64 {
        self.nodes[place].of(whole)
    }
}

/// What a mapping is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Others,
    Pool,
    Node(usize),
}

impl Whose {
    /// What the mapping that starts here is for. Memory on nodes has mappings of its own, separate from the pool's.
    fn at(start: usize, nodes: usize) -> Whose {
        if !(areas::pool()..areas::pool() + areas::POOL_BYTES).contains(&start) {
            return Whose::Others;
        }
        match areas::node_at(start) {
            Some(place) if place < nodes => Whose::Node(place),
            _ => Whose::Pool,
        }
    }
}

/// Why a process's shares are unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// It is ending, or has just started.
    None,
    /// It lives, but cannot be examined from here: it is in another PID namespace, or another user's.
    Lives,
}

/// Opens a process's smaps; also returns the offset of the line that proves that they are the right process's. No proof
/// is needed for our own.
fn smaps_of(slot: &ProcSlot) -> Result<(Lines, Option<usize>), Unseen> {
    let id = slot.identity().ok_or(Unseen::None)?;
    if id == life::id() {
        let own = Lines::open_file(c"/proc/self/smaps").ok_or(Unseen::Lives)?;
        return Ok((own, None));
    }
    let number = match life::number(slot) {
        Number::Here(number) => number,
        Number::None => return Err(Unseen::None),
        Number::Elsewhere => return Err(Unseen::Lives),
    };
    match Lines::open(number, b"smaps") {
        Some(lines) => Ok((lines, Some(map_offset(id)))),
        None if life::is_gone(id) => Err(Unseen::None),
        None => Err(Unseen::Lives),
    }
}

/// The shares of the process with this slot, whose tenant has `nodes_there` nodes.
pub fn proportional(slot: &ProcSlot, nodes_there: usize) -> Result<Shares, Unseen> {
    let (mut lines, its) = smaps_of(slot)?;
    let mut is_it = its.is_none();
    let mut whose = Whose::Others;
    let (mut pool, mut nodes) = (Store::default(), [Store::default(); NODES_MAX]);
    let (mut kib, mut rss, mut pss, mut own, mut own_kib) = (0i64, 0i64, 0i64, 0i64, 0i64);
    let mut swapped_kib = 0;
    // A process that is ending has no mappings any more.
    let mut seen = false;
    lines.each(|line| {
        let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
        let Some(first) = words.next() else { return };
        if let Some(dash) = first.iter().position(|b| *b == b'-')
            && let Some(start) = hex(&first[..dash])
        {
            seen = true;
            // The protection, then the offset.
            is_it |= its.is_some() && words.nth(1).and_then(hex) == its;
            whose = Whose::at(start, nodes_there);
            return;
        }
        let value = || {
            let digits = words.clone().next().unwrap_or(b"0");
            digits
                .iter()
                .filter(|b| b.is_ascii_digit())
                .fold(0i64, |k, b| k * 10 + i64::from(b - b'0'))
        };
        let mut none = Store::default();
        let store = match whose {
            Whose::Others => &mut none,
            Whose::Pool => &mut pool,
            Whose::Node(place) => &mut nodes[place],
        };
        // A mapping's Pss includes its file pages: count the anonymous part of it.
        match first {
            b"Rss:" => {
                rss = value();
                store.rss_kib += rss;
            }
            b"Pss:" => {
                pss = value();
                store.pss_kib += pss;
            }
            b"Private_Dirty:" => own = value(),
            b"SwapPss:" => swapped_kib += value(),
            b"Anonymous:" if whose == Whose::Others && rss > 0 => {
                kib += pss * value() / rss;
                own_kib += own.min(value());
            }
            _ => {}
        }
    });
    if !seen {
        return Err(Unseen::None);
    }
    if !is_it {
        // /proc belongs to another namespace, in which another process has this number.
        return Err(Unseen::Lives);
    }
    Ok(Shares {
        pages: kib / 4,
        own_pages: own_kib / 4,
        swapped_pages: swapped_kib / 4,
        pool,
        nodes,
    })
}

/// For up to 64 pages from `addr` on, one bit per page that is present and also mapped by another process.
fn shared(map: &Pagemap, addr: usize, pages: usize) -> u64 {
    let mut entries = [0u64; 64];
    let pages = pages.min(entries.len());
    let seen = map.read(addr, &mut entries[..pages]);
    entries[..seen].iter().enumerate().fold(0, |bits, (i, e)| {
        bits | u64::from(e & (PRESENT | EXCLUSIVE) == PRESENT) << i
    })
}

/// Whether the page at `addr` is present; `None` if the kernel does not say.
pub fn present(addr: usize) -> Option<bool> {
    let mut entry = [0u64];
    (pagemap()?.read(addr, &mut entry) == 1).then_some(entry[0] & PRESENT != 0)
}

/// How many of the present pages in `ranges` (at most 64 pages each) another process also maps.
pub fn shared_in(ranges: &[libc::iovec]) -> i64 {
    let Some(map) = pagemap() else { return 0 };
    let count =
        |r: &libc::iovec| shared(&map, r.iov_base as usize, r.iov_len / PAGE_SIZE).count_ones();
    ranges.iter().map(|r| i64::from(count(r))).sum()
}

/// How many of the pages marked in `which`, one bit per page from `addr` on, another process also maps.
pub fn shared_pages(addr: usize, which: &[u64]) -> i64 {
    let Some(map) = pagemap() else { return 0 };
    let mut n = 0;
    for (i, bits) in which.iter().enumerate().filter(|(_, b)| **b != 0) {
        let at = addr + i * 64 * PAGE_SIZE;
        n += i64::from((shared(&map, at, 64) & bits).count_ones());
    }
    n
}
