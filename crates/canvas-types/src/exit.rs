//! Exit codes of the `canvas` command (`canvas --help` lists them).

/// The command did what it was asked to do.
pub const OK: i32 = 0;
/// The command ran, and its answer is negative (for example `doctor` found that nothing works).
pub const NEGATIVE: i32 = 1;
/// Bad input: arguments, configuration, files.
pub const USAGE: i32 = 2;
/// `canvas run` itself failed before or around the program.
pub const RUN_FAILED: i32 = 125;
/// The program was found but could not be executed.
pub const CANNOT_EXEC: i32 = 126;
/// The program was not found.
pub const NOT_FOUND: i32 = 127;
/// Added to the number of the signal that ended the program.
pub const SIGNAL_BASE: i32 = 128;
