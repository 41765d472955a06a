//! Memory that several processes of a tenant map together.

pub mod ahead;
pub mod beyond;
pub mod kernel;
pub mod mapping;
pub mod pages;
pub mod pins;
