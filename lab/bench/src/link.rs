//! Links between hosts, in the command line's syntax: 200mbit, 25us, 1gbit+25us.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rate::{LinkRateError, Rate};

/// One-way delay of packets with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delay {
    /// Delay in ns.
    pub ns: u32,
}

/// Shorter delays disappear in a round trip's own time; longer ones exceed the time that an eBPF program can
/// wait.
const BOUNDS_NS: std::ops::RangeInclusive<u32> = 1_000..=100_000;

impl Delay {
    /// A delay of `ns` nanoseconds.
    pub const fn ns(ns: u32) -> Delay {
        Delay { ns }
    }

    /// The delay as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.ns.into())
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", f64::from(self.ns) / 1e3)
    }
}

/// A link between two hosts, equal in both directions; has a rate, a delay, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Rate; unlimited without it.
    pub rate: Option<Rate>,
    /// One-way delay; none without it.
    pub delay: Option<Delay>,
}

/// Reason why a text is not a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The rate is invalid.
    #[error(transparent)]
    Rate(#[from] LinkRateError),
    /// The delay is not a number.
    #[error("it has no delay; write one such as 25us or 12.5us, for one direction")]
    NoDelay,
    /// The delay is out of range.
    #[error("its delay is out of range; write 1us to 100us, for one direction")]
    DelayRange,
}

fn delay(number: &str) -> Result<Delay, LinkError> {
    let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let us: f64 = match number.parse() {
        Ok(us) if digits => us,
        _ => return Err(LinkError::NoDelay),
    };
    // The cast saturates, and the maximum is out of range.
    let ns = (us * 1e3).round() as u32;
    if BOUNDS_NS.contains(&ns) {
        Ok(Delay { ns })
    } else {
        Err(LinkError::DelayRange)
    }
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Link, LinkError> {
        let lower = text.to_ascii_lowercase();
        let Some(before) = lower.strip_suffix("us") else {
            let rate = Some(text.parse()?);
            return Ok(Link { rate, delay: None });
        };
        let (rate, number) = match before.split_once('+') {
            Some((rate, number)) => (Some(rate.parse()?), number),
            None => (None, before),
        };
        Ok(Link {
            rate,
            delay: Some(delay(number)?),
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rate, self.delay) {
            (Some(rate), Some(delay)) => write!(f, "{rate}+{delay}"),
            (Some(rate), None) => rate.fmt(f),
            (None, Some(delay)) => delay.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn links_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Link>();
        let link = |mbit: Option<u32>, ns: Option<u32>| {
            Ok(Link {
                rate: mbit.map(Rate::mbit),
                delay: ns.map(Delay::ns),
            })
        };
        assert_eq!(read("200mbit"), link(Some(200), None));
        assert_eq!(read("25us"), link(None, Some(25_000)));
        assert_eq!(read("12.5US"), link(None, Some(12_500)));
        assert_eq!(read("2.5gbit+25us"), link(Some(2500), Some(25_000)));
        for bad in ["us", "+us", "1gbit+us", "-1us", "1e1us", "1.2.3us"] {
            let e = read(bad).unwrap_err();
            assert!(
                matches!(e, LinkError::NoDelay | LinkError::Rate(_)),
                "{bad}: {e}"
            );
        }
        for bad in ["0us", "0.5us", "101us", "99999999999us"] {
            assert_eq!(read(bad), Err(LinkError::DelayRange), "{bad}");
        }
        for bad in ["", "fast", "25us+1gbit", "fast+25us"] {
            assert_eq!(read(bad), Err(LinkRateError::NoRate.into()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read(
            mbit in proptest::option::of(1u32..100_000),
            ns in BOUNDS_NS,
        ) {
            let link = Link { rate: mbit.map(Rate::mbit), delay: Some(Delay { ns }) };
            prop_assert_eq!(link.to_string().parse(), Ok(link));
        }
    }
}
