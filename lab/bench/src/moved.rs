//! Data that a program moved beyond its pool in a part of its time, from the ticks of its run.

use crate::record::{Sample, Tick};

/// Totals over a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// Length in seconds.
    pub seconds: f64,
    /// Stored bytes read.
    pub in_bytes: f64,
    /// Stored bytes written to the first copy.
    pub out_bytes: f64,
    /// Pages promoted.
    pub in_pages: f64,
}

/// Totals between two times, in seconds since the program's start; `None` if the interval is empty, or the
/// ticks do not cover it. Rates are taken as constant within a tick.
pub fn between(ticks: &[Tick], from_s: f64, to_s: f64) -> Option<Moved> {
    let told_to_s = ticks.last()?.at_s;
    if from_s < 0.0 || from_s >= to_s || to_s > told_to_s {
        return None;
    }
    let mut moved = Moved {
        seconds: to_s - from_s,
        ..Moved::default()
    };
    let mut begin_s = 0.0;
    for tick in ticks {
        let span_s = tick.at_s.min(to_s) - f64::max(begin_s, from_s);
        begin_s = tick.at_s;
        if span_s <= 0.0 {
            continue;
        }
        let far = tick.far?;
        moved.in_bytes += far.in_bytes_per_s * span_s;
        moved.out_bytes += far.out_bytes_per_s * span_s;
        moved.in_pages += far.in_pages_per_s * span_s;
    }
    Some(moved)
}

/// Totals over the measured part of a run, if its program reports it.
pub fn measured(sample: &Sample) -> Option<Moved> {
    let (from_s, to_s) = sample.measured_s?;
    between(&sample.timeline, from_s, to_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FarTick;
    use proptest::prelude::*;

    fn tick(at_s: f64, rate: f64) -> Tick {
        Tick {
            at_s,
            far: Some(FarTick {
                in_bytes_per_s: rate,
                out_bytes_per_s: 2.0 * rate,
                in_pages_per_s: rate / 4096.0,
                ..FarTick::default()
            }),
            ..Tick::default()
        }
    }

    #[test]
    fn parts_of_ticks_count_in_part() {
        let ticks = [tick(1.0, 100.0), tick(2.0, 200.0), tick(4.0, 400.0)];
        let bytes = |from, to| between(&ticks, from, to).map(|m| m.in_bytes);
        assert_eq!(bytes(0.0, 4.0), Some(1100.0));
        assert_eq!(bytes(0.5, 1.5), Some(150.0));
        assert_eq!(bytes(3.0, 3.5), Some(200.0));
        let all = between(&ticks, 1.0, 4.0).unwrap();
        assert_eq!((all.seconds, all.out_bytes), (3.0, 2000.0));
    }

    #[test]
    fn what_is_not_told_is_not_guessed() {
        let ticks = [tick(1.0, 100.0), tick(2.0, 200.0)];
        for (from, to) in [(0.0, 2.1), (1.0, 1.0), (1.5, 1.0), (-0.1, 1.0)] {
            assert_eq!(between(&ticks, from, to), None, "{from} to {to}");
        }
        assert_eq!(between(&[], 0.0, 1.0), None);
        let local = [
            Tick {
                at_s: 1.0,
                ..Tick::default()
            },
            ticks[1],
        ];
        assert_eq!(between(&local, 0.5, 2.0), None);
        assert!(between(&local, 1.0, 2.0).is_some());
    }

    proptest! {
        #[test]
        fn parts_add_up(spans in prop::collection::vec((0.1f64..2.0, 0.0f64..1e9), 1..20), cut in 0.01f64..0.99) {
            let mut at_s = 0.0;
            let ticks: Vec<Tick> = spans.iter().map(|(span, rate)| {
                at_s += span;
                tick(at_s, *rate)
            }).collect();
            let of = |from, to| between(&ticks, from, to).unwrap().in_bytes;
            let (whole, parts) = (of(0.0, at_s), of(0.0, cut * at_s) + of(cut * at_s, at_s));
            prop_assert!((whole - parts).abs() <= 1e-9 * whole, "{whole} {parts}");
        }
    }
}
