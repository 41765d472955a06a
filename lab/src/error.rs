//! Errors as one clear sentence on standard error.

use std::fmt::Display;

use canvas_types::exit;

/// Why a command ends: the exit code, and the sentence.
#[derive(Debug)]
pub struct Failure {
    /// Exit code (see [`canvas_types::exit`]).
    pub code: i32,
    /// One sentence, without a final stop.
    pub sentence: String,
}

impl Failure {
    /// Bad input.
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
