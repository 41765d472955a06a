//! What `canvas swap-in` brings back, in which order, and when (FastSwap's proactive swap-in).

use std::fmt;

/// Bit of a pagemap entry: the page is present.
const PRESENT: u64 = 1 << 63;
/// Bit of a pagemap entry: the page is swapped out, and the low bits hold its slot.
const SWAPPED: u64 = 1 << 62;
/// Bits of an entry with the swap device; those above them, up to [`PLACE_BITS`], hold the offset on it.
const DEVICE_BITS: u32 = 5;
const PLACE_BITS: u32 = 55;

/// Nothing comes back in an interval in which the kernel writes out more pages a second than this.
pub const WRITTEN_PAGES_PER_S_MAX: f64 = 256.0;
/// Nothing comes back when tasks wait for memory for more than this share of time, in percent.
pub const PRESSURE_PERCENT_MAX: f64 = 10.0;
/// Least room for which it starts, unless less is all that is needed.
pub const ROOM_BYTES_MIN: u64 = 16 << 20;

/// Consecutive pages of one process whose slots are consecutive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    /// Slot of the first page: device and offset. 0 where the kernel does not reveal it.
    pub slot: u64,
    /// The process.
    pub process: u32,
    /// Number of the first page.
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// Adds the swapped pages of a process's pagemap, at most `pages_max`; `entries` begin with that of page `first`.
/// Returns how many pages were added, and how many entries were read.
pub fn add(
    process: u32,
    first: u64,
    entries: &[u64],
    pages_max: u64,
    pieces: &mut Vec<Piece>,
) -> (u64, usize) {
    let mut added = 0;
    for (i, entry) in entries.iter().enumerate() {
        if entry & (SWAPPED | PRESENT) != SWAPPED {
            continue;
        }
        if added == pages_max {
            return (added, i);
        }
        let (page, slot) = (first + i as u64, slot_of(*entry));
        added += 1;
        if let Some(last) = pieces.last_mut()
            && (last.process, last.page + last.pages) == (process, page)
            && slot
                == if last.slot == 0 {
                    0
                } else {
                    last.slot + last.pages
                }
        {
            last.pages += 1;
            continue;
        }
        pieces.push(Piece {
            slot,
            process,
            page,
            pages: 1,
        });
    }
    (added, entries.len())
}

/// A swapped page's slot as a number, such that adjacent slots have adjacent numbers. An unprivileged process sees
/// zeros; offset 0 of a device holds no page.
fn slot_of(entry: u64) -> u64 {
    let told = entry & ((1 << PLACE_BITS) - 1);
    let device = told & ((1 << DEVICE_BITS) - 1);
    device << (PLACE_BITS - DEVICE_BITS) | told >> DEVICE_BITS
}

/// Sorts pieces by slot, and divides them into calls: each of one process, of at most `ranges_max` pieces.
pub fn calls(pieces: &mut [Piece], ranges_max: usize) -> impl Iterator<Item = &[Piece]> {
    pieces.sort_unstable();
    let same = pieces.chunk_by(|a, b| a.process == b.process);
    same.flat_map(move |of_one| of_one.chunks(ranges_max.max(1)))
}

/// The system's state before pages come back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SystemSample {
    /// Memory available without swapping.
    pub available_bytes: u64,
    /// Bytes swapped out and not also in memory.
    pub swapped_bytes: u64,
    /// Pages that the kernel wrote out in a second, recently.
    pub written_pages_per_s: f64,
    /// Share of time, in percent, in which tasks recently waited for memory; `None` where the kernel does not report
    /// it.
    pub pressure_percent: Option<f64>,
}

/// Why nothing comes back now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapInBlocker {
    /// Nothing is swapped out.
    NothingSwapped,
    /// There is no free memory.
    NoRoom,
    /// Pages are being swapped out.
    PagesLeave,
    /// Tasks wait for memory.
    Pressure,
}

impl fmt::Display for SwapInBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapInBlocker::NothingSwapped => "nothing is swapped out",
            SwapInBlocker::NoRoom => "there is no free memory",
            SwapInBlocker::PagesLeave => "pages are being swapped out",
            SwapInBlocker::Pressure => "programs wait for memory",
        })
    }
}

/// How many bytes may come back if `free_bytes` are to stay free.
pub fn room(available_bytes: u64, free_bytes: u64) -> u64 {
    available_bytes.saturating_sub(free_bytes)
}

/// Whether to bring pages back now: how many bytes at most, or why not.
pub fn judge(sample: &SystemSample, free_bytes: u64) -> Result<u64, SwapInBlocker> {
    let room = room(sample.available_bytes, free_bytes);
    if sample.swapped_bytes == 0 {
        Err(SwapInBlocker::NothingSwapped)
    } else if sample.written_pages_per_s > WRITTEN_PAGES_PER_S_MAX {
        Err(SwapInBlocker::PagesLeave)
    } else if sample
        .pressure_percent
        .is_some_and(|p| p > PRESSURE_PERCENT_MAX)
    {
        Err(SwapInBlocker::Pressure)
    } else if room < sample.swapped_bytes.min(ROOM_BYTES_MIN) {
        Err(SwapInBlocker::NoRoom)
    } else {
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn swapped(device: u64, place: u64) -> u64 {
        SWAPPED | place << DEVICE_BITS | device
    }

    #[test]
    fn neighbours_are_one_piece() {
        let entries = [
            0,
            swapped(1, 7),
            swapped(1, 8),
            PRESENT | 5,
            swapped(1, 9),
            swapped(1, 11),
            swapped(2, 12),
        ];
        let mut pieces = Vec::new();
        assert_eq!(add(4, 100, &entries, 99, &mut pieces), (5, 7));
        let got: Vec<_> = pieces.iter().map(|p| (p.page, p.pages)).collect();
        assert_eq!(got, [(101, 2), (104, 1), (105, 1), (106, 1)]);
        // Of another process, or further away: another piece.
        add(5, 107, &[swapped(2, 13)], 99, &mut pieces);
        assert_eq!(pieces.len(), 5);
        // Where slots are not revealed, consecutive pages form a piece.
        let mut pieces = Vec::new();
        add(4, 0, &[SWAPPED; 6], 99, &mut pieces);
        assert_eq!((pieces.len(), pieces[0].pages, pieces[0].slot), (1, 6, 0));
    }

    #[test]
    fn what_is_too_much_is_left() {
        let mut pieces = Vec::new();
        let entries = [swapped(0, 3), 0, swapped(0, 4), swapped(0, 5)];
        assert_eq!(add(1, 0, &entries, 2, &mut pieces), (2, 3));
        assert_eq!(add(1, 3, &entries[3..], 2, &mut pieces), (1, 1));
        assert_eq!(add(1, 3, &entries[3..], 0, &mut pieces), (0, 0));
    }

    #[test]
    fn it_waits_while_memory_is_short() {
        let calm = SystemSample {
            available_bytes: 3 << 30,
            swapped_bytes: 1 << 30,
            written_pages_per_s: 0.0,
            pressure_percent: None,
        };
        let free = 1 << 30;
        assert_eq!(judge(&calm, free), Ok(2 << 30));
        let with = |change: fn(&mut SystemSample)| {
            let mut sample = calm;
            change(&mut sample);
            judge(&sample, free)
        };
        assert_eq!(
            with(|l| l.swapped_bytes = 0),
            Err(SwapInBlocker::NothingSwapped)
        );
        assert_eq!(
            with(|l| l.written_pages_per_s = 257.0),
            Err(SwapInBlocker::PagesLeave)
        );
        assert_eq!(
            with(|l| l.pressure_percent = Some(10.1)),
            Err(SwapInBlocker::Pressure)
        );
        assert_eq!(with(|l| l.pressure_percent = Some(9.0)), Ok(2 << 30));
        assert_eq!(
            with(|l| l.available_bytes = 1 << 30),
            Err(SwapInBlocker::NoRoom)
        );
        let little = (1 << 30) + (8 << 20);
        assert_eq!(
            with(|l| l.available_bytes = (1 << 30) + (8 << 20)),
            Err(SwapInBlocker::NoRoom)
        );
        let all = SystemSample {
            available_bytes: little,
            swapped_bytes: 4 << 20,
            ..calm
        };
        assert_eq!(judge(&all, free), Ok(8 << 20));
    }

    /// A page of a process: none, present, or swapped to a slot; without a device the slot is not revealed.
    fn page() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(PRESENT | 77),
            Just(SWAPPED),
            (0u64..2, 1u64..60).prop_map(|(device, place)| swapped(device, place)),
        ]
    }

    proptest! {
        /// Against a list of single pages: each swapped page is requested once, no other one, in the order of slots,
        /// never more than there is room for, in calls that the kernel accepts.
        #[test]
        fn every_swapped_page_is_asked_for_once(
            processes in prop::collection::vec(prop::collection::vec(page(), 0..80), 1..5),
            step in 1usize..90,
            room in 0u64..200,
            ranges_max in 1usize..9,
        ) {
            let mut pieces = Vec::new();
            let mut left = room;
            let mut all = Vec::new();
            for (process, entries) in processes.iter().enumerate() {
                for (i, part) in entries.chunks(step).enumerate() {
                    let (added, looked) = add(process as u32, (i * step) as u64, part, left, &mut pieces);
                    left -= added;
                    prop_assert!(looked == part.len() || left == 0);
                }
                let of_it = entries.iter().enumerate().filter(|(_, e)| **e & (SWAPPED | PRESENT) == SWAPPED);
                all.extend(of_it.map(|(page, e)| (slot_of(*e), process as u32, page as u64)));
            }
            all.truncate(room as usize);
            let mut got = Vec::new();
            for call in calls(&mut pieces, ranges_max) {
                prop_assert!((1..=ranges_max).contains(&call.len()));
                prop_assert!(call.iter().all(|p| p.process == call[0].process));
                for p in call {
                    let slot = |i| if p.slot == 0 { 0 } else { p.slot + i };
                    got.extend((0..p.pages).map(|i| (slot(i), p.process, p.page + i)));
                }
            }
            // Pieces are in the order of their first slots; two pages never share a slot except here.
            let firsts: Vec<_> = pieces.iter().map(|p| p.slot).collect();
            prop_assert!(firsts.is_sorted());
            got.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!(got, all);
        }
    }
}
