//! Looking at a run and changing it from outside: each `canvas run` listens on a socket of its own.
//!
//! One connection is one question: a line of JSON in, a line of JSON out ([`wire`]). Who may connect
//! says the directory that the socket lies in ([`place`]), and the kernel, which tells who did.

pub mod client;
pub mod health;
pub mod peers;
pub mod place;
pub mod rates;
pub mod set;
pub mod tenant;
pub mod wire;
