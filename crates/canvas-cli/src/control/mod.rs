//! Asking runs how they are: each `canvas run` listens on a socket of its own ([`canvas_control::wire`]).

pub mod client;
pub mod rates;
