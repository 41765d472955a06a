//! Memory that several processes of a tenant map together (docs/SHARED.md). From the top, each using those below it:
//! `members` (processes), `mapping` (calls), `pages` (faults and eviction), `ahead`, `beyond` (demotion), `lock`,
//! `kernel`, `extents`, `pins`, `partition`.

pub mod ahead;
pub mod beyond;
pub mod extents;
pub mod kernel;
pub mod lock;
pub mod mapping;
pub mod members;
pub mod pages;
pub mod partition;
pub mod pins;
