//! Contacts runs: each `canvas run` listens on its own socket ([`canvas_control::wire`]).

pub mod client;
pub mod rates;
