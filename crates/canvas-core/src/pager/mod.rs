//! The pager's decisions: the page word and its transitions, which page to evict, what to prefetch. Uses no clock, no
//! thread and no system call, and allocates nothing on the paths that a fault takes.

pub mod ages;
pub mod api;
pub mod app;
pub mod clock;
pub mod copies;
pub mod demotion;
pub mod dirty_share;
pub mod floor;
pub mod headroom;
pub mod hints;
pub mod holds;
pub mod learn;
pub mod locks;
pub mod native;
pub mod prefetch;
pub mod regions;
pub mod scan;
pub mod shared;
pub mod slot;
pub mod swapin;
pub mod table;
pub mod trace;
pub mod word;
pub mod writes;
