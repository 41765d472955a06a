//! Decisions of the far pool, separate from their execution: donors, agents and the simulator call this code. No clock,
//! no thread, no system call; random numbers come from the caller's seeded generator.
//!
//! * [`advise`]: how much local memory a wanted speed needs, by trying some sizes;
//! * [`choose`]: which donor gets a slab;
//! * [`curve`]: which part of a program's faults would remain with more local memory;
//! * [`dispatch`]: in which tenant `canvas dispatch` runs a program, and with which settings;
//! * [`early`]: which slabs a donor frees at once, because its host runs out of memory before clients move them;
//! * [`elastic`]: how much of a host's pool each of its tenants may fill;
//! * [`replicas`]: where a slab's replicas are placed, which of them count, which is read, what is repaired from where,
//!   which is released;
//! * [`headroom`]: how much of its memory a donor lends, and when it reclaims some;
//! * [`lease`]: when a client's lease is over;
//! * [`pace`]: how long to wait for a donor before another copy is asked as well;
//! * [`paths`]: which of several directories takes the next write, and whether a donor or the disk is read;
//! * [`reserve`]: how far a tenant may grow where its host runs out of memory;
//! * [`slo`]: how much memory a program gives up ahead of need, so that paging slows it by no more than a target;
//! * [`swap_in`]: what `canvas swap-in` brings back, in which order, and when;
//! * [`threads`]: which of an agent's threads serves which tenant;
//! * [`tune`]: what `canvas tune` changes of a run;
//! * [`victims`]: which slabs a donor reclaims;
//! * [`width`]: how many operations of a directory are under way at a time.
#![forbid(unsafe_code)]

pub mod advise;
pub mod choose;
pub mod curve;
pub mod dispatch;
pub mod early;
pub mod elastic;
pub mod headroom;
pub mod lease;
pub mod pace;
pub mod paths;
pub mod replicas;
pub mod reserve;
pub mod slo;
pub mod swap_in;
pub mod threads;
pub mod tune;
pub mod victims;
pub mod width;

/// How many times in a row something has held, after it has held (or not) once more.
fn in_a_row(times: u32, holds: bool) -> u32 {
    if holds { times.saturating_add(1) } else { 0 }
}
