//! Which donor gets a slab: the power of two choices (Infiniswap, NSDI'17, §4.2).
//!
//! A new slab goes to the less loaded of two donors drawn at random, first among those that hold none of the tenant's
//! neighbouring slabs (so that a donor's death does not take a whole range), then among the others. Load is the memory
//! that a donor reports it could still lend. There is no central controller: every agent draws for itself.

/// A donor, as its client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// It is connected and lends.
    pub usable: bool,
    /// It holds a copy of this slab.
    pub has_copy: bool,
    /// It holds a neighbouring slab.
    pub has_neighbour: bool,
    /// Memory that it could lend, in bytes, as last reported.
    pub free_bytes: u64,
}

/// The donor for a slab of `slab_bytes`; `None` when none has room. `draw(n)` returns a random number below `n`.
pub fn choose(
    donors: &[Candidate],
    slab_bytes: u64,
    mut draw: impl FnMut(usize) -> usize,
) -> Option<usize> {
    let fits = |c: &Candidate| c.usable && !c.has_copy && c.free_bytes >= slab_bytes;
    let pick = |neighbours: bool| -> Vec<usize> {
        let wanted = |c: &Candidate| fits(c) && (neighbours || !c.has_neighbour);
        (0..donors.len()).filter(|i| wanted(&donors[*i])).collect()
    };
    let mut among = pick(false);
    if among.is_empty() {
        among = pick(true);
    }
    let mut take = |among: &mut Vec<usize>| match among.len() {
        0 => None,
        n => Some(among.swap_remove(draw(n).min(n - 1))),
    };
    let first = take(&mut among)?;
    let second = take(&mut among).unwrap_or(first);
    Some(if donors[second].free_bytes > donors[first].free_bytes {
        second
    } else {
        first
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (any::<bool>(), any::<bool>(), any::<bool>(), 0..8u64).prop_map(
            |(usable, has_copy, has_neighbour, free_bytes)| Candidate {
                usable,
                has_copy,
                has_neighbour,
                free_bytes,
            },
        );
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn only_donors_with_room_and_strangers_first(
            donors in candidates(),
            draws in prop::collection::vec(any::<usize>(), 2),
        ) {
            let mut draws = draws.into_iter();
            let got = choose(&donors, 2, |n| draws.next().unwrap() % n);
            let fits = |c: &Candidate| c.usable && !c.has_copy && c.free_bytes >= 2;
            let strangers = donors.iter().any(|c| fits(c) && !c.has_neighbour);
            match got {
                None => prop_assert!(!donors.iter().any(fits)),
                Some(i) => {
                    prop_assert!(fits(&donors[i]));
                    prop_assert!(!strangers || !donors[i].has_neighbour);
                }
            }
        }

        #[test]
        fn of_two_the_emptier(free in prop::array::uniform2(2..100u64), first in 0..2usize) {
            let donors = free.map(|free_bytes| Candidate {
                usable: true,
                has_copy: false,
                has_neighbour: false,
                free_bytes,
            });
            let mut draws = [first, 0].into_iter();
            let got = choose(&donors, 2, |_| draws.next().unwrap()).unwrap();
            prop_assert_eq!(free[got], free[0].max(free[1]));
        }
    }

    #[test]
    fn two_choices_are_fairer_than_one() {
        // Balls into bins: with two choices the fullest of n bins has O(log log n).
        let spread = |two: bool| {
            let mut rng = fastrand::Rng::with_seed(7);
            let mut donors = vec![
                Candidate {
                    usable: true,
                    has_copy: false,
                    has_neighbour: false,
                    free_bytes: 10_000,
                };
                100
            ];
            for _ in 0..10_000 {
                let i = if two {
                    choose(&donors, 1, |n| rng.usize(0..n)).unwrap()
                } else {
                    rng.usize(0..100)
                };
                donors[i].free_bytes -= 1;
            }
            let free = donors.iter().map(|d| d.free_bytes);
            free.clone().max().unwrap() - free.min().unwrap()
        };
        let (one, two) = (spread(false), spread(true));
        assert!(
            two * 5 < one,
            "spread {two} with two choices, {one} with one"
        );
    }
}
