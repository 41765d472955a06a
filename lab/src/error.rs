//! Errors, printed as one sentence on standard error.

use std::fmt::Display;

use canvas_types::exit;

/// Exit code and message of a command that failed.
#[derive(Debug)]
pub struct Failure {
    /// Exit code (see [`canvas_types::exit`]).
    pub code: i32,
    /// One sentence, without a final full stop.
    pub sentence: String,
}

impl Failure {
    /// A failure for invalid input.
    pub fn usage(sentence: impl Display) -> Failure {
        Failure {
            code: exit::USAGE,
            sentence: sentence.to_string(),
        }
    }
}

/// Writes one line to standard error.
pub fn say(sentence: impl Display) {
    eprintln!("lab: {sentence}");
}
