//! What the pager ([`canvas_core::vm`]) is given here: the kernel and the process, the regions, the gate that keeps
//! fork out, the reclaim thread's rounds, native memory and forks in the accounts, and the optional features.

pub mod accounting;
pub mod app_tier;
pub mod background;
pub mod cache;
pub mod context;
pub mod devices;
pub mod discard;
pub mod fault;
pub mod fork_accounting;
pub mod freeze;
pub mod hints;
pub mod jvm;
pub mod learn;
pub mod native_swap;
pub mod nodes;
pub mod observers;
pub mod regions;
pub mod slow;
pub mod swapin;
pub mod touched;
pub mod trace;
pub mod vm;
