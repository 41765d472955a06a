//! How a page enters and leaves local memory, and which process is charged for it.

pub mod accounting;
pub mod app_tier;
pub mod background;
pub mod cache;
pub mod context;
pub mod devices;
pub mod fault;
pub mod fork_accounting;
pub mod hints;
pub mod learn;
pub mod native_swap;
pub mod nodes;
pub mod observers;
pub mod swapin;
pub mod trace;
pub mod vm;
