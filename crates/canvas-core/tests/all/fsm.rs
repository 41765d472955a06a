//! Canvas fig. 7 as a table, and against a model that knows only pages and entries.
use crate::common;
use canvas_core::swap::fsm::*;
use proptest::prelude::*;

const CALM: Event = Event::Pass {
    hot: true,
    pressure: false,
};
const HOT: Event = Event::Pass {
    hot: true,
    pressure: true,
};
const COLD: Event = Event::Pass {
    hot: false,
    pressure: true,
};
const BACK: Event = Event::SwapIn {
    has_entry: true,
    reserve: true,
};
const BACK_ZERO: Event = Event::SwapIn {
    has_entry: false,
    reserve: true,
};
const BACK_WITHOUT: Event = Event::SwapIn {
    has_entry: true,
    reserve: false,
};

#[test]
fn figure_7() {
    use Action::*;
    use PageState::*;
    let table = [
        // A new page that is evicted takes the lock, once.
        (Init, Event::Evict, Some((InRemote, SwapOutLocked))),
        (Init, BACK, Option::None),
        (Init, HOT, Some((Init, None))),
        (Init, COLD, Some((Init, None))),
        (ColdNoEntry, Event::Evict, Some((InRemote, SwapOutLocked))),
        (ColdNoEntry, BACK, Option::None),
        (ColdNoEntry, HOT, Some((ColdNoEntry, None))),
        (ColdNoEntry, COLD, Some((ColdNoEntry, None))),
        // 3 -> 2: a hot page that is no longer accessed.
        (HotNoEntry, COLD, Some((ColdNoEntry, None))),
        (HotNoEntry, HOT, Some((HotNoEntry, None))),
        (HotNoEntry, Event::Evict, Some((InRemote, SwapOutLocked))),
        (HotNoEntry, BACK, Option::None),
        // 4 -> 5: the entry stays with the page.
        (InRemote, BACK, Some((ColdWithEntry, None))),
        (InRemote, BACK_ZERO, Some((ColdNoEntry, None))),
        // Without reservations it does not, and 2 -> 4 takes the lock again.
        (InRemote, BACK_WITHOUT, Some((ColdNoEntry, DropReservation))),
        (InRemote, Event::Evict, Option::None),
        (InRemote, HOT, Option::None),
        // 5 -> 4: lock-free.
        (
            ColdWithEntry,
            Event::Evict,
            Some((InRemote, SwapOutReserved)),
        ),
        // 5 -> 3: only when hot, and only under pressure.
        (ColdWithEntry, HOT, Some((HotNoEntry, DropReservation))),
        (ColdWithEntry, COLD, Some((ColdWithEntry, None))),
        (ColdWithEntry, CALM, Some((ColdWithEntry, None))),
        (ColdWithEntry, BACK, Option::None),
    ];
    for (state, event, want) in table {
        assert_eq!(step(state, event), want, "{state:?} on {event:?}");
    }
}

#[test]
fn pressure_has_hysteresis() {
    for (was, used, want) in [
        (false, 74, false),
        (false, 75, true),
        (true, 74, true),
        (true, 70, true),
        (true, 69, false),
        (false, 70, false),
    ] {
        assert_eq!(pressure(was, used, 100), want, "{was} {used}");
    }
    assert!(pressure(false, u64::MAX, u64::MAX) && !pressure(false, 0, u64::MAX));
    assert!(nearly_full(91, 100) && !nearly_full(90, 100) && nearly_full(u64::MAX, u64::MAX));
}

#[test]
fn a_page_without_entry_pays_the_lock_and_only_then() {
    let event = prop_oneof![
        3 => Just(Event::Evict),
        3 => (any::<bool>(), any::<bool>())
            .prop_map(|(has_entry, reserve)| Event::SwapIn { has_entry, reserve }),
        4 => (any::<bool>(), any::<bool>()).prop_map(|(hot, pressure)| Event::Pass { hot, pressure }),
    ];
    common::runner(500)
        .run(&prop::collection::vec(event, 1..200), |events| {
            let mut state = PageState::Init;
            // The model: is the page local, and does it own an entry?
            let (mut local, mut owns) = (true, false);
            for event in events {
                let result = step(state, event);
                let want = match event {
                    Event::Evict if local => {
                        local = false;
                        let action = if owns {
                            Action::SwapOutReserved
                        } else {
                            Action::SwapOutLocked
                        };
                        owns = true;
                        Some(action)
                    }
                    Event::SwapIn { has_entry, reserve } if !local => {
                        local = true;
                        owns = has_entry && reserve;
                        Some(if has_entry && !reserve {
                            Action::DropReservation
                        } else {
                            Action::None
                        })
                    }
                    Event::Pass {
                        hot: true,
                        pressure: true,
                    } if local && owns => {
                        owns = false;
                        Some(Action::DropReservation)
                    }
                    Event::Pass { .. } if local => Some(Action::None),
                    _ => None,
                };
                prop_assert_eq!(result.map(|r| r.1), want);
                if let Some((next, _)) = result {
                    state = next;
                }
                prop_assert_eq!(state.is_local(), local);
                prop_assert_eq!(state.has_entry(), owns);
            }
            Ok(())
        })
        .unwrap();
}
