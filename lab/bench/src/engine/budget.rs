//! Time limit of a run of the bench: leaves out, and reports, the cells that do not fit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::plan::{Cell, Member, Set};
use crate::cells::words;
use crate::record::Skip;
use crate::variant::Variant;

/// Identifies a cell over its repeats: index of its set, variant, ratio.
pub type Key = (usize, Variant, Option<u32>);

/// Time budget of one run.
pub struct Budget {
    allowed: Option<Duration>,
    until: Option<Instant>,
    /// Longest duration of each cell.
    took: BTreeMap<Key, Duration>,
    /// Number of repeats of each cell that were run, or are not needed any more.
    dealt: BTreeMap<Key, u32>,
}

/// Key of a cell of set number `set`.
pub fn key(set: usize, cell: &Cell) -> Key {
    (set, cell.variant.clone(), cell.percent)
}

impl Budget {
    /// A budget of `allowed` from `began` on; unlimited without it.
    pub fn new(began: Instant, allowed: Option<Duration>) -> Budget {
        Budget {
            allowed,
            // A limit too large to represent never expires.
            until: allowed.and_then(|a| began.checked_add(a)),
            took: BTreeMap::new(),
            dealt: BTreeMap::new(),
        }
    }

    /// Time at which the budget is spent.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the budget is spent.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether there is time for a cell, judged by its longest duration so far.
    pub fn has_room_for(&self, key: &Key) -> bool {
        let took = self.took.get(key).copied().unwrap_or_default();
        self.until.is_none_or(|until| Instant::now() + took < until)
    }

    /// Records that a repeat of a cell was run or is not needed, and its duration.
    pub fn dealt_with(&mut self, key: Key, took: Duration) {
        let longest = self.took.entry(key.clone()).or_default();
        *longest = took.max(*longest);
        *self.dealt.entry(key).or_default() += 1;
    }

    /// Cells left out for lack of time: a line for each set.
    pub fn left_out(&self, sets: &[Set]) -> Vec<Skip> {
        let Some(allowed) = self.allowed else {
            return Vec::new();
        };
        let mut skips = Vec::new();
        for (number, set) in sets.iter().enumerate() {
            let mut parts = Vec::new();
            for cell in set.places() {
                let done = self.dealt.get(&key(number, &cell)).copied().unwrap_or(0);
                if done < set.repeats {
                    let percent = cell.percent.map_or(String::new(), |p| format!(" at {p} %"));
                    let left = set.repeats - done;
                    parts.push(format!(
                        "{left} of {} repeats of {}{percent}",
                        set.repeats, cell.variant
                    ));
                }
            }
            if parts.is_empty() {
                continue;
            }
            let name = |m: &Member| match words(&m.parameters) {
                none if none.is_empty() => m.workload.clone(),
                some => format!("{} ({some})", m.workload),
            };
            let names: Vec<String> = set.members.iter().map(name).collect();
            skips.push(Skip {
                run_id: String::new(),
                experiment: set.experiment.clone(),
                workload: Some(names.join("+")),
                variant: None,
                reason: format!(
                    "the time of {} s was over; not run: {}",
                    allowed.as_secs_f64(),
                    parts.join(", ")
                ),
            });
        }
        skips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(workload: &str) -> Set {
        Set {
            beside: None,
            experiment: "quick".to_owned(),
            members: vec![Member {
                workload: workload.to_owned(),
                ..Member::default()
            }],
            variants: vec![Variant::Local, Variant::Zram],
            percents: vec![50, 25],
            repeats: 3,
            scale: 1.0,
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        let mut sets = [set("zipf"), set("snappy")];
        let threads = ("threads".to_owned(), "2".to_owned());
        sets[1].members[0].parameters.extend([threads]);
        let mut budget = Budget::new(Instant::now(), Some(Duration::from_secs(3600)));
        for (n, set) in sets.iter().enumerate() {
            for repeat in 0..3 {
                for cell in set.cells(repeat) {
                    let late = n == 1 && repeat == 2 && cell.percent != Some(50);
                    if !late {
                        budget.dealt_with(key(n, &cell), Duration::from_secs(1));
                    }
                }
            }
        }
        let left = budget.left_out(&sets);
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].workload.as_deref(), Some("snappy (threads=2)"));
        assert_eq!(
            left[0].reason,
            "the time of 3600 s was over; not run: 1 of 3 repeats of local, 1 of 3 repeats of zram at 25 %"
        );
        assert_eq!(Budget::new(Instant::now(), None).left_out(&sets), []);
    }

    #[test]
    fn a_cell_that_took_longer_than_what_is_left_is_not_begun() {
        let mut budget = Budget::new(Instant::now(), Some(Duration::from_secs(3600)));
        let (short, long) = ((0, Variant::Zram, Some(50)), (0, Variant::Zram, Some(25)));
        budget.dealt_with(short.clone(), Duration::from_secs(1));
        budget.dealt_with(long.clone(), Duration::from_secs(7200));
        budget.dealt_with(long.clone(), Duration::from_secs(1));
        assert!(budget.has_room_for(&short) && !budget.has_room_for(&long));
        assert!(!budget.is_over());
        let none = Budget::new(Instant::now(), Some(Duration::ZERO));
        assert!(none.is_over() && !none.has_room_for(&short));
        let free = Budget::new(Instant::now(), None);
        assert!(!free.is_over() && free.has_room_for(&long));
    }
}
