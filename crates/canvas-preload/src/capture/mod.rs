//! The system calls of the program: patched sites, their hooks, the filter behind them.

pub mod filters;
pub mod hooks;
pub mod patch;
pub mod prepared;
pub mod stub;
