//! Rates of links, in the syntax of `tc` and the command line: 200mbit, 2.5gbit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Rate of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate {
    /// Bits per second, a multiple of 1000.
    pub bits_per_s: u64,
}

const MEGA: u64 = 1_000_000;
const GIGA: u64 = 1_000_000_000;
/// With lower rates, even the smallest cell takes hours; higher rates exceed what `tc` can shape here.
const BOUNDS: std::ops::RangeInclusive<u64> = MEGA..=100 * GIGA;

impl Rate {
    /// A rate of `n` Mbit/s.
    pub const fn mbit(n: u32) -> Rate {
        Rate {
            bits_per_s: n as u64 * MEGA,
        }
    }

    /// The rate in bytes per second.
    pub fn bytes_per_s(self) -> f64 {
        self.bits_per_s as f64 / 8.0
    }
}

/// Reason why a text is not a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkRateError {
    /// Not a number with a unit.
    #[error("it is not a rate; write one such as 200mbit or 2.5gbit")]
    NoRate,
    /// Out of range.
    #[error("it is out of range; write 1mbit to 100gbit")]
    OutOfRange,
}

impl FromStr for Rate {
    type Err = LinkRateError;

    fn from_str(text: &str) -> Result<Rate, LinkRateError> {
        let lower = text.to_ascii_lowercase();
        let (number, unit) = match (lower.strip_suffix("mbit"), lower.strip_suffix("gbit")) {
            (Some(number), _) => (number, MEGA),
            (_, Some(number)) => (number, GIGA),
            _ => return Err(LinkRateError::NoRate),
        };
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number: f64 = match number.parse() {
            Ok(n) if digits(number) => n,
            _ => return Err(LinkRateError::NoRate),
        };
        // A multiple of 1000, so that the printed value is exact.
        let bits_per_s = (number * (unit / 1000) as f64).round() as u64 * 1000;
        if BOUNDS.contains(&bits_per_s) {
            Ok(Rate { bits_per_s })
        } else {
            Err(LinkRateError::OutOfRange)
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bits_per_s >= GIGA {
            write!(f, "{}gbit", self.bits_per_s as f64 / GIGA as f64)
        } else {
            write!(f, "{}mbit", self.bits_per_s as f64 / MEGA as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Rate>().map(|r| r.bits_per_s);
        assert_eq!(read("200mbit"), Ok(200 * MEGA));
        assert_eq!(read("2.5Gbit"), Ok(2500 * MEGA));
        assert_eq!(Rate::mbit(2500).to_string(), "2.5gbit");
        assert_eq!(Rate::mbit(1000).bytes_per_s(), 125e6);
        for bad in [
            "",
            "gbit",
            "1g",
            "200",
            "-1gbit",
            "1e3mbit",
            "infgbit",
            "1.2.3gbit",
        ] {
            assert_eq!(read(bad), Err(LinkRateError::NoRate), "{bad}");
        }
        for bad in ["0mbit", "0.5mbit", "101gbit"] {
            assert_eq!(read(bad), Err(LinkRateError::OutOfRange), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read(thousands in 1000u64..=100 * MEGA) {
            let rate = Rate { bits_per_s: thousands * 1000 };
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
