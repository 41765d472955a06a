//! Decisions of the far pool, apart from those who carry them out: servers, agents and the
//! simulator call the same code. No clock, no thread, no system call; random numbers come from the
//! caller's seeded generator.
//!
//! * [`choose`]: which donor gets a slab;
//! * [`elastic`]: how much of a host's pool each of its tenants may fill;
//! * [`replicas`]: where a slab's replicas are placed, which of them count, which is read, what is
//!   repaired from where, which is given up;
//! * [`headroom`]: how much of its memory a donor lends, and when it takes some back;
//! * [`lease`]: when a donor has not heard of a client for too long;
//! * [`pace`]: how long a donor is waited for before another copy is asked as well;
//! * [`reserve`]: how far a tenant may grow where its host runs out of memory;
//! * [`victims`]: which slabs it takes back.
#![forbid(unsafe_code)]

pub mod choose;
pub mod elastic;
pub mod headroom;
pub mod lease;
pub mod pace;
pub mod replicas;
pub mod reserve;
pub mod victims;
