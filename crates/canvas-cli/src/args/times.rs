//! Values of flags that are times within bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use canvas_types::units::{Span, UnitError};

/// Why a time is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimeError {
    /// Its text is no time.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// It is too short or too long for what it is for.
    #[error("it is out of range; write {0}")]
    OutOfRange(&'static str),
}

/// Time between two lines: seconds, or a duration.
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

/// A time in `range`, whose name is `named`.
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
