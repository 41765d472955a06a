//! How much a program may be slowed down (`--slo`): a target, stored in the tenant segment as one number.

use core::fmt;
use core::str::FromStr;

use crate::units::{Share, Span, UnitError};

/// How much memory is taken from a program that could keep more: as much as the target allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Slo {
    /// Nothing is taken ahead of need.
    #[default]
    Off,
    /// Paging takes at most this share of the time that the program would need without it, in parts per million.
    Slowdown(u32),
    /// 99 of 100 faults take at most this long, in ns.
    P99(u64),
}

/// Set in the number of a time.
const TIME: u64 = 1 << 63;
/// Accepted ranges.
const SLOWDOWN_PPM: core::ops::RangeInclusive<u32> = 1_000..=500_000;
const P99_NS: core::ops::RangeInclusive<u64> = 1_000..=10_000_000_000;

/// Why a text is no target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SloError {
    /// Not a valid share.
    Share(UnitError),
    /// Not a valid time.
    Time(UnitError),
    /// A share out of range.
    Slowdown,
    /// A time out of range.
    P99,
}

impl Slo {
    /// The target with this number; off for an unknown number.
    pub fn from_number(n: u64) -> Slo {
        match n {
            n if n & TIME != 0 && P99_NS.contains(&(n & !TIME)) => Slo::P99(n & !TIME),
            n => match u32::try_from(n) {
                Ok(ppm) if SLOWDOWN_PPM.contains(&ppm) => Slo::Slowdown(ppm),
                _ => Slo::Off,
            },
        }
    }

    /// Encodes the target as a number.
    pub fn number(self) -> u64 {
        match self {
            Slo::Off => 0,
            Slo::Slowdown(ppm) => ppm.into(),
            Slo::P99(ns) => TIME | ns,
        }
    }

    /// Whether there is a target.
    pub fn is_on(self) -> bool {
        self != Slo::Off
    }
}

impl FromStr for Slo {
    type Err = SloError;
    fn from_str(text: &str) -> Result<Slo, SloError> {
        if text == "off" {
            return Ok(Slo::Off);
        }
        if let Some(time) = text.strip_prefix("p99=") {
            let ns = time.parse::<Span>().map_err(SloError::Time)?.ns;
            return match P99_NS.contains(&ns) {
                true => Ok(Slo::P99(ns)),
                false => Err(SloError::P99),
            };
        }
        let ppm = text.parse::<Share>().map_err(SloError::Share)?.ppm();
        match SLOWDOWN_PPM.contains(&ppm) {
            true => Ok(Slo::Slowdown(ppm)),
            false => Err(SloError::Slowdown),
        }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Slo::Off => f.write_str("off"),
            Slo::Slowdown(ppm) => write!(f, "{}%", f64::from(ppm) / 10_000.0),
            Slo::P99(ns) => write!(f, "p99={}us", ns as f64 / 1_000.0),
        }
    }
}

impl fmt::Display for SloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SloError::Share(e) => write!(f, "{e}, a time as in p99=300us, or off"),
            SloError::Time(e) => e.fmt(f),
            SloError::Slowdown => f.write_str("it is out of range; write a share of 0.1% to 50%"),
            SloError::P99 => f.write_str("it is out of range; write p99=1us to p99=10s"),
        }
    }
}

impl core::error::Error for SloError {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn what_is_written_is_kept_as_a_number() {
        for (text, want) in [
            ("off", Slo::Off),
            ("2%", Slo::Slowdown(20_000)),
            ("0.1%", Slo::Slowdown(1_000)),
            ("50%", Slo::Slowdown(500_000)),
            ("p99=300us", Slo::P99(300_000)),
            ("p99=10s", Slo::P99(10_000_000_000)),
        ] {
            let slo: Slo = text.parse().unwrap();
            assert_eq!(
                (slo, Slo::from_number(slo.number())),
                (want, want),
                "{text}"
            );
            assert_eq!(slo.to_string().parse(), Ok(slo), "{slo}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for text in [
            "0.05%", "51%", "p99=10ns", "p99=11s", "p99=", "p98=3us", "2", "", "on",
        ] {
            let why = text.parse::<Slo>().unwrap_err().to_string();
            assert!(why.contains("write "), "{text}: {why}");
        }
    }

    #[test]
    fn a_number_that_is_none_is_off() {
        for n in [1, 999, 500_001, u64::MAX, TIME, TIME | 1, 1 << 40] {
            assert_eq!(Slo::from_number(n), Slo::Off, "{n}");
        }
    }
}
