//! State behind `canvas.h`: kinds of threads, regions with references, faults for a reader.
//!
//! The program's calls change it and faults read it: nothing here makes a fault wait.

pub mod faults;
pub mod kinds;
pub mod refs;
