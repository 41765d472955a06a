//! The program's mapping calls, and the memory that its other calls use.

pub mod admit;
pub mod advice;
pub mod args;
pub mod brk;
pub mod calls;
pub mod exports;
pub mod lending;
pub mod lock;
pub mod mm;
pub mod native;
pub mod open_pages;
pub mod others;
pub mod pins;
pub mod ranges;
pub mod remap;
pub mod uaccess;
pub mod wishes;
