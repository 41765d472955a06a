//! The kernel as only a disk needs it: memory that comes with use, and block devices of this host. All of this crate's
//! `unsafe` is here.
#![allow(unsafe_code)]

pub mod lazy;
mod mapping;
pub mod ublk;
mod uring;
