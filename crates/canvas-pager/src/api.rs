//! What `canvas.h` tells and asks: kinds of threads, regions with references, faults for whoever reads them.
//!
//! The program's calls change it, faults read it: nothing here makes a fault wait.

pub mod faults;
pub mod kinds;
pub mod refs;
