//! What canvas decides and what it stores, apart from the kernel and from processes.
//!
//! * [`pager`]: page words and their transitions, which page to evict, what to prefetch;
//! * [`swap`]: swap entries and the compressed pool;
//! * [`far`]: moves of stored pages between a pool and far memory;
//! * [`scan`]: how searches go round over pages and extents;
//! * [`vm`]: how a page enters and leaves local memory, over a kernel and a store that the caller provides.
//!
//! Nothing here allocates, makes a system call or reads a clock; the caller passes memory, time and threads.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

pub mod far;
pub mod pager;
pub mod swap;
pub mod vm;
