//! Values of flags that are times.

use std::ops::RangeInclusive;
use std::time::Duration;

use canvas_types::units::{Span, UnitError};

/// Why a time is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimeError {
    /// The text is not a time.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// It is too short or too long for its flag.
    #[error("it is out of range; write {0}")]
    OutOfRange(&'static str),
}

/// Parses the time between two lines: seconds, or a duration.
pub fn interval(text: &str) -> Result<Duration, TimeError> {
    const DAY: Duration = Duration::from_secs(86400);
    let plain = text.parse::<f64>().is_ok();
    let with_unit = if plain {
        format!("{text}s")
    } else {
        text.to_owned()
    };
    within(&with_unit, Duration::from_millis(100)..=DAY, "100ms to 24h")
}

/// Parses a time in `range`; `named` describes the range.
fn within(
    text: &str,
    range: RangeInclusive<Duration>,
    named: &'static str,
) -> Result<Duration, TimeError> {
    let span: Span = text.parse()?;
    let time = Duration::from(span);
    if range.contains(&time) {
        Ok(time)
    } else {
        Err(TimeError::OutOfRange(named))
    }
}
