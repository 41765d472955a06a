//! The threshold of proactive swap-in, which brings pages back before they are touched. Stored in the tenant segment as
//! one number.

use core::fmt;
use core::str::FromStr;

use crate::units::{Amount, Share, Size, UnitError};

/// How far below the limit local memory must be for pages to come back, and must stay while they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threshold {
    /// Pages do not come back unasked.
    Off,
    /// By this size, or by this share of the limit.
    At(Amount),
}

/// Set in the number of a share.
const SHARE: u64 = 1 << 63;
const WHOLE_PPM: u128 = 1_000_000;

impl Threshold {
    /// The default: 5 % of the limit.
    pub const DEFAULT_PPM: u64 = 50_000;

    /// The threshold with this number; off for an unknown number.
    pub fn from_number(n: u64) -> Threshold {
        let amount = match n {
            0 => None,
            n if n & SHARE == 0 => Some(Amount::Size(Size::from_bytes(n))),
            n => u32::try_from(n & !SHARE)
                .ok()
                .and_then(Share::from_ppm)
                .map(Amount::Share),
        };
        amount.map_or(Threshold::Off, Threshold::At)
    }

    /// Encodes the threshold as a number. A size of nothing is one byte.
    pub fn number(self) -> u64 {
        match self {
            Threshold::Off => 0,
            Threshold::At(Amount::Size(size)) => size.bytes.clamp(1, SHARE - 1),
            Threshold::At(Amount::Share(share)) => SHARE | u64::from(share.ppm()),
        }
    }

    /// The threshold for a limit of `limit` units of `unit` bytes, in these units, rounded up; `None` if it is off.
    pub fn of(self, limit: u64, unit: u64) -> Option<u64> {
        match self {
            Threshold::Off => None,
            Threshold::At(Amount::Size(size)) => Some(size.bytes.div_ceil(unit)),
            Threshold::At(Amount::Share(share)) => {
                let part = u128::from(limit) * u128::from(share.ppm());
                Some(part.div_ceil(WHOLE_PPM) as u64)
            }
        }
    }
}

impl Default for Threshold {
    fn default() -> Threshold {
        Threshold::from_number(SHARE | Threshold::DEFAULT_PPM)
    }
}

impl FromStr for Threshold {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Threshold, UnitError> {
        match text {
            "off" => Ok(Threshold::Off),
            text => text.parse().map(Threshold::At),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::Off => f.write_str("off"),
            Threshold::At(amount) => amount.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn it_is_what_was_written() {
        for text in ["off", "5%", "0.25%", "64M", "1G"] {
            let threshold: Threshold = text.parse().unwrap();
            assert_eq!(threshold.to_string(), text);
            assert_eq!(Threshold::from_number(threshold.number()), threshold);
        }
        assert_eq!(Threshold::default().to_string(), "5%");
        for bad in ["", "on", "5", "0%", "101%", "5KB", "-1M"] {
            let read = bad.parse::<Threshold>();
            assert!(bad == "5" || read.is_err(), "{bad}: {read:?}");
        }
    }

    #[test]
    fn it_is_a_part_of_the_limit_rounded_up() {
        let of = |text: &str, pages| text.parse::<Threshold>().unwrap().of(pages, 4096);
        assert_eq!(of("off", 1000), None);
        assert_eq!(of("5%", 1001), Some(51));
        assert_eq!(of("5000", 1000), Some(2));
        assert_eq!(of("100%", u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn any_number_is_a_threshold() {
        for n in [
            0,
            1,
            SHARE,
            SHARE | 1,
            SHARE | 2_000_000,
            u64::MAX,
            SHARE - 1,
        ] {
            let _ = Threshold::from_number(n).of(u64::MAX, 4096);
        }
        assert_eq!(Threshold::from_number(SHARE), Threshold::Off);
    }
}
