//! Captures the program's system calls: patched sites, their hooks, and the filter behind them.

pub mod filters;
pub mod hooks;
pub mod patch;
pub mod prepared;
pub mod stub;
