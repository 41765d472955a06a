//! Protocols between runs, operators and the host's agent, with the validation of their messages.
//!
//! | module | has |
//! |---|---|
//! | [`wire`] | requests to a run and its answers, over its control socket |
//! | [`place`] | the directory of these sockets |
//! | [`peers`] | serves these requests without blocking the process's main work |
//! | [`names`] | names of tenants and runs |
//! | [`features`] | properties of a run's pages, and what paging costs it |
//! | [`health`] | problems of a tenant, by stable codes |
//! | [`metrics`] | the same figures for Prometheus |
//! | [`hello`] | messages between runners and the host's agent |
//! | [`terms`] | limits that the operator of a host's agent sets for a tenant |
//! | [`user_dir`] | private directories of a user for sockets |
//! | [`settings`] | the table of all settings, and the values that were given |
//! | [`share`] | a tenant's share of contended resources |
//! | [`status`] | an agent's report on its donors |
//!
//! All input is validated here before it is used: no decoder panics, and none allocates by an
//! unchecked length. Nothing here blocks.
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
