//! Decisions of the far pool, apart from those who carry them out: servers, agents and the
//! simulator call the same code. No clock, no thread, no system call; random numbers come from the
//! caller's seeded generator.
//!
//! * [`choose`]: which donor gets a slab;
//! * [`elastic`]: how much of a host's pool each of its tenants may fill;
//! * [`copies`]: which of its copies count, which is read, which is given up;
//! * [`headroom`]: how much of its memory a donor lends, and when it takes some back;
//! * [`pace`]: how long a donor is waited for before another copy is asked as well;
//! * [`victims`]: which slabs it takes back.
#![forbid(unsafe_code)]

pub mod choose;
pub mod copies;
pub mod elastic;
pub mod headroom;
pub mod pace;
pub mod victims;
