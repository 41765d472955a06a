//! What runs, their operators and the host's agent say to each other, and how it is judged.
//!
//! | module | has |
//! |---|---|
//! | [`wire`] | questions to a run and its answers, over its control socket |
//! | [`place`] | the directory of these sockets |
//! | [`peers`] | those who ask: served beside something more important |
//! | [`names`] | what tenants and runs are called |
//! | [`features`] | what a run's pages are like, and what paging costs it |
//! | [`health`] | what can be wrong with a tenant, by codes that stay the same |
//! | [`metrics`] | the same figures for scrapers |
//! | [`hello`] | messages between runners and the host's agent |
//! | [`terms`] | what the operator of a host's agent settles for a tenant |
//! | [`user_dir`] | directories for sockets that are one user's alone |
//! | [`settings`] | every setting, in one table, and what was given of them |
//! | [`share`] | what a tenant gets of what several want |
//! | [`status`] | what an agent says of its donors |
//!
//! Whatever comes from outside is judged here before anything in it is believed: no decoder panics,
//! and none allocates by a length that it has not checked. Nothing here waits.
#![forbid(unsafe_code)]

pub mod features;
pub mod health;
pub mod hello;
pub mod metrics;
pub mod names;
pub mod peers;
pub mod place;
pub mod settings;
pub mod share;
pub mod status;
pub mod terms;
pub mod text;
pub mod user_dir;
pub mod wire;
