//! The far read size (`unit`): how many bytes come back with a page that is read from beyond the pool.

use core::fmt;
use core::str::FromStr;

use crate::PAGE_SIZE;
use crate::units::Size;

/// Bytes of an extent, the smallest far read size of more than a page, and the largest one.
const EXTENT_BYTES: u64 = 32 << 10;
const BYTES_MAX: u64 = 2 << 20;

/// The far read size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadUnit {
    /// Each process learns it from how much of what comes in it uses.
    #[default]
    Auto,
    /// The page alone, or this many bytes: a power of two.
    Bytes(u64),
}

/// The text is no far read size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadUnitError;

impl ReadUnit {
    /// The size with this number; other numbers are rounded down to a valid size.
    pub fn from_number(n: u64) -> ReadUnit {
        match n {
            0 => ReadUnit::Auto,
            n if n < EXTENT_BYTES => ReadUnit::Bytes(PAGE_SIZE as u64),
            n => ReadUnit::Bytes((1 << n.ilog2()).min(BYTES_MAX)),
        }
    }

    /// Encodes the size as a number: bytes, or 0 for the learned size.
    pub fn number(self) -> u64 {
        match self {
            ReadUnit::Auto => 0,
            ReadUnit::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for ReadUnit {
    type Err = ReadUnitError;
    fn from_str(text: &str) -> Result<ReadUnit, ReadUnitError> {
        if text == "auto" {
            return Ok(ReadUnit::Auto);
        }
        let bytes = text.parse::<Size>().map_err(|_| ReadUnitError)?.bytes;
        match ReadUnit::from_number(bytes) {
            unit if bytes != 0 && unit.number() == bytes => Ok(unit),
            _ => Err(ReadUnitError),
        }
    }
}

impl fmt::Display for ReadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ReadUnit::Auto => f.write_str("auto"),
            ReadUnit::Bytes(bytes) => Size::from_bytes(bytes).fmt(f),
        }
    }
}

impl fmt::Display for ReadUnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no read unit; write auto, 4K, or 32K to 2M in powers of two")
    }
}

impl core::error::Error for ReadUnitError {}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn units_are_written_as_they_are_read() {
        let all = [
            "auto", "4K", "32K", "64K", "128K", "256K", "512K", "1M", "2M",
        ];
        for text in all {
            let unit: ReadUnit = text.parse().unwrap();
            assert_eq!(unit.to_string(), text);
            assert_eq!(ReadUnit::from_number(unit.number()), unit);
        }
        for text in ["", "0", "5%", "8K", "48K", "4M", "-1", "Auto"] {
            assert_eq!(text.parse::<ReadUnit>(), Err(ReadUnitError), "{text}");
        }
        // A segment can contain anything.
        assert_eq!(ReadUnit::from_number(u64::MAX).to_string(), "2M");
        assert_eq!(ReadUnit::from_number(33 << 10).to_string(), "32K");
        assert_eq!(ReadUnit::from_number(1).to_string(), "4K");
    }
}
