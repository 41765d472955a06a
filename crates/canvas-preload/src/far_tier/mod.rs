//! Where pages go that left local memory: the compressed pool, and what lies beyond it ([`canvas_core::far`]).

pub mod extents;
pub mod fork;
pub mod keys;
pub mod lanes;
pub mod ours;
pub mod pairs;
pub mod pool;
pub mod store;
pub mod tier;
