//! The program's mapping calls over the window, and the memory that its other calls name.

pub mod args;
pub mod brk;
pub mod calls;
pub mod exports;
pub mod mm;
pub mod open_pages;
pub mod pins;
pub mod remap;
pub mod uaccess;
