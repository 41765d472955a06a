//! How a page enters and leaves local memory, and which process is charged for it.

pub mod accounting;
pub mod ages;
pub mod app_tier;
pub mod cache;
pub mod chunk;
pub mod context;
pub mod devices;
pub mod fault;
pub mod fork_accounting;
pub mod hints;
pub mod in_line;
pub mod learn;
pub mod native_swap;
pub mod nodes;
pub mod protect;
pub mod reclaim;
pub mod swapin;
pub mod trace;
