//! A run that is looked at and changed from outside, and a disk that is looked at: each listens on a socket of
//! its own.
//!
//! One connection is one question: a line of JSON in, a line of JSON out ([`canvas_control::wire`]). Who may connect
//! says the directory that the socket lies in ([`canvas_control::place`]), and the kernel, which tells who did.

pub mod beyond;
pub mod disk;
pub mod features;
pub mod set;
pub mod tenant;
