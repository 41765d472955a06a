//! Sizes, shares, durations and rates as people write them: `4G`, `25%`, `10ms`, `200M/s`.
//!
//! A unit is a power of 1024 (`K` and `KiB` mean the same), as in ulimit, docker and the JVM. `KB` and `MB` mean 1000
//! to some and 1024 to others, so they are refused rather than guessed. Arithmetic is in whole numbers; what cannot be
//! represented exactly is rounded down.

use core::fmt;
use core::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Size {
    /// The size in bytes.
    pub bytes: u64,
}

/// A share of a whole: more than nothing, at most all of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Share {
    ppm: u32,
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Span {
    /// The duration in nanoseconds.
    pub ns: u64,
}

/// A limit given either as a size or as a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A fixed number of bytes.
    Size(Size),
    /// A share of something that is known only later.
    Share(Share),
}

/// A limit on throughput.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct RateLimit {
    /// Bytes per second; `None` for no limit.
    pub bytes_per_s: Option<u64>,
}

/// What the text should be; selects the advice in the error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// The text should be a [`Size`], such as `4G`.
    Size,
    /// The text should be a [`Share`], such as `25%`.
    Share,
    /// The text should be a [`Span`], such as `10ms`.
    Span,
    /// The text should be an [`Amount`]: a size or a share.
    Amount,
    /// The text should be a [`RateLimit`], such as `200M/s` or `none`.
    RateLimit,
}

/// What is wrong with the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The text is empty.
    Empty,
    /// It does not start with a number.
    NoNumber,
    /// It starts with a minus sign.
    Negative,
    /// It contains white space.
    Space,
    /// A point without digits on both sides.
    BadFraction,
    /// The number is followed by an unknown unit.
    UnknownUnit,
    /// `KB` and the like.
    AmbiguousUnit,
    /// The number has no unit but needs one.
    NoUnit,
    /// It does not fit 64 bits.
    TooLarge,
    /// Less than the smallest step, but not zero.
    TooFine,
    /// A share of nothing.
    ZeroShare,
    /// A share of more than the whole.
    ShareOverWhole,
    /// A rate without `/s`.
    NoSecond,
    /// A rate of zero.
    ZeroRate,
}

/// Why a text is not the expected quantity; its `Display` is one sentence that says what is wrong and what to write
/// instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitError {
    /// What the text should be.
    pub quantity: Quantity,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.fault {
            Fault::Empty => "nothing is written there",
            Fault::NoNumber => "it does not start with a number",
            Fault::Negative => "it is negative",
            Fault::Space => "there is a space in it",
            Fault::BadFraction => "a point needs digits on both sides",
            Fault::UnknownUnit => "its unit is unknown",
            Fault::AmbiguousUnit => "KB, MB, GB and TB mean 1000 to some and 1024 to others",
            Fault::NoUnit => "it has no unit",
            Fault::TooLarge => "it is too large",
            Fault::TooFine => "it is finer than can be measured",
            Fault::ZeroShare => "it is a share of nothing",
            Fault::ShareOverWhole => "it is more than the whole",
            Fault::NoSecond => "it does not end in /s",
            Fault::ZeroRate => "nothing would ever get through",
        })?;
        f.write_str(match self.quantity {
            Quantity::Size => "; write a size such as 4G, 512M, 1.5GiB or a number of bytes",
            Quantity::Share => "; write a share such as 25%",
            Quantity::Span => "; write a duration such as 10ms, 1.5s or 2m",
            Quantity::Amount => {
                "; write a size such as 4G, 512M or 1.5GiB, a number of bytes, or a share such as 25%"
            }
            Quantity::RateLimit => "; write a rate such as 200M/s or 1.5GiB/s, or none",
        })
    }
}

impl core::error::Error for UnitError {}

/// A number as written: `digits / 10^scale`.
struct Number {
    digits: u128,
    scale: u32,
}

/// Maximum number of digits; more would not fit the arithmetic below.
const DIGITS_MAX: usize = 24;

/// Splits `text` into its number and the rest.
fn number(text: &str) -> Result<(Number, &str), Fault> {
    if text.is_empty() {
        return Err(Fault::Empty);
    }
    if text.contains(char::is_whitespace) {
        return Err(Fault::Space);
    }
    if text.starts_with('-') {
        return Err(Fault::Negative);
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    if number.is_empty() {
        return Err(Fault::NoNumber);
    }
    let (whole, fraction) = match number.split_once('.') {
        None => (number, ""),
        Some((w, f)) if w.is_empty() || f.is_empty() || f.contains('.') => {
            return Err(Fault::BadFraction);
        }
        Some((w, f)) => (w, f.trim_end_matches('0')),
    };
    if whole.trim_start_matches('0').len() + fraction.len() > DIGITS_MAX {
        return Err(Fault::TooLarge);
    }
    let digits = whole
        .bytes()
        .chain(fraction.bytes())
        .fold(0u128, |n, c| n * 10 + u128::from(c - b'0'));
    Ok((
        Number {
            digits,
            scale: fraction.len() as u32,
        },
        rest,
    ))
}

impl Number {
    /// This many units, rounded down.
    fn times(&self, unit: u64) -> Result<u64, Fault> {
        let product = self
            .digits
            .checked_mul(u128::from(unit))
            .ok_or(Fault::TooLarge)?;
        let n = product / 10u128.pow(self.scale);
        if n == 0 && self.digits != 0 {
            return Err(Fault::TooFine);
        }
        u64::try_from(n).map_err(|_| Fault::TooLarge)
    }
}

fn size(text: &str) -> Result<Size, Fault> {
    let (number, unit) = number(text)?;
    // The longest accepted unit is "KiB".
    let shift = match unit {
        "" | "B" | "b" => 0,
        "K" | "k" | "KiB" | "Ki" => 10,
        "M" | "m" | "MiB" | "Mi" => 20,
        "G" | "g" | "GiB" | "Gi" => 30,
        "T" | "t" | "TiB" | "Ti" => 40,
        "%" => return Err(Fault::UnknownUnit),
        u if u.len() == 2
            && matches!(
                u.as_bytes()[0],
                b'K' | b'k' | b'M' | b'm' | b'G' | b'g' | b'T' | b't'
            )
            && matches!(u.as_bytes()[1], b'B' | b'b') =>
        {
            return Err(Fault::AmbiguousUnit);
        }
        _ => return Err(Fault::UnknownUnit),
    };
    if shift == 0 && number.scale != 0 {
        return Err(Fault::TooFine);
    }
    Ok(Size {
        bytes: number.times(1 << shift)?,
    })
}

fn share(text: &str) -> Result<Share, Fault> {
    let (number, unit) = number(text)?;
    match unit {
        "%" => {}
        "" => return Err(Fault::NoUnit),
        _ => return Err(Fault::UnknownUnit),
    }
    match number.times(10_000)? {
        0 => Err(Fault::ZeroShare),
        ppm if ppm <= 1_000_000 => Ok(Share { ppm: ppm as u32 }),
        _ => Err(Fault::ShareOverWhole),
    }
}

fn span(text: &str) -> Result<Span, Fault> {
    let (number, unit) = number(text)?;
    let unit_ns = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "" if number.digits == 0 => 1,
        "" => return Err(Fault::NoUnit),
        _ => return Err(Fault::UnknownUnit),
    };
    Ok(Span {
        ns: number.times(unit_ns)?,
    })
}

fn amount(text: &str) -> Result<Amount, Fault> {
    if text.ends_with('%') {
        share(text).map(Amount::Share)
    } else {
        size(text).map(Amount::Size)
    }
}

fn rate_limit(text: &str) -> Result<RateLimit, Fault> {
    if text == "none" {
        return Ok(RateLimit::NONE);
    }
    let per_second = text.strip_suffix("/s");
    // Report faults of the size itself first.
    let size = size(per_second.unwrap_or(text))?;
    match (per_second, size.bytes) {
        (None, _) => Err(Fault::NoSecond),
        (_, 0) => Err(Fault::ZeroRate),
        (_, bytes) => Ok(RateLimit::bytes_per_s(bytes)),
    }
}

macro_rules! from_str {
    ($type:ident, $read:ident) => {
        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<$type, UnitError> {
                $read(text).map_err(|fault| UnitError {
                    quantity: Quantity::$type,
                    fault,
                })
            }
        }
    };
}
from_str!(Size, size);
from_str!(Share, share);
from_str!(Span, span);
from_str!(Amount, amount);
from_str!(RateLimit, rate_limit);

impl RateLimit {
    /// No limit.
    pub const NONE: RateLimit = RateLimit { bytes_per_s: None };
    /// This many bytes per second.
    pub const fn bytes_per_s(bytes: u64) -> RateLimit {
        RateLimit {
            bytes_per_s: Some(bytes),
        }
    }
}

impl Size {
    /// This many bytes.
    pub const fn from_bytes(bytes: u64) -> Size {
        Size { bytes }
    }
    /// Whole pages that fit.
    pub const fn pages(self) -> u64 {
        self.bytes / crate::PAGE_SIZE as u64
    }
}

impl Share {
    /// This many parts per million; `None` unless that is more than nothing and at most the whole.
    pub const fn from_ppm(ppm: u32) -> Option<Share> {
        if ppm == 0 || ppm > 1_000_000 {
            None
        } else {
            Some(Share { ppm })
        }
    }
    /// Parts per million, 1 to 1 000 000.
    pub const fn ppm(self) -> u32 {
        self.ppm
    }
}

/// Uses the largest unit that divides the value, so that parsing the text gives the same value.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.bytes != 0 && self.bytes.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.bytes >> shift);
            }
        }
        write!(f, "{}", self.bytes)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut fraction, mut width) = (self.ppm / 10_000, self.ppm % 10_000, 4);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        write!(f, "{whole}.{fraction:0width$}%")
    }
}

impl From<Span> for core::time::Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.ns)
    }
}

/// Uses the largest unit that divides the value, so that parsing the text gives the same value.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (ns, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
            if self.ns.is_multiple_of(ns) {
                return write!(f, "{}{unit}", self.ns / ns);
            }
        }
        write!(f, "{}ns", self.ns)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Size(s) => s.fmt(f),
            Amount::Share(s) => s.fmt(f),
        }
    }
}

/// Parsing the text gives the same value.
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes_per_s {
            Some(bytes) => write!(f, "{}/s", Size::from_bytes(bytes)),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests;
