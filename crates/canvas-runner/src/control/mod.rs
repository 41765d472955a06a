//! Control sockets: runs and disks each listen on a socket of their own for requests to show or
//! change them.
//!
//! A connection carries one request: a line of JSON in, a line of JSON out
//! ([`canvas_control::wire`]). The permissions of the socket's directory decide who may connect
//! ([`canvas_control::place`]), and the kernel identifies the client.

pub mod beyond;
pub mod disk;
pub mod features;
pub mod set;
pub mod tenant;
