//! Memory layouts that canvas processes share.
//!
//! `canvas run` creates one *tenant segment* (a memfd), every process of the tenant maps it, and the reader at exit (or
//! `canvas run` itself) turns it into the report. Everything in it is an atomic, so a process that dies at any
//! instruction leaves a readable segment and no lock.
#![no_std]
#[cfg(feature = "std")]
extern crate std;

pub mod far;
#[cfg(feature = "std")]
pub mod files;
pub mod histogram;
pub mod host;
pub mod lanes;
pub mod learn;
pub mod lend;
pub mod lives;
pub mod mailbox;
#[cfg(feature = "std")]
pub mod map;
pub mod nodes;
#[cfg(feature = "std")]
pub mod pass;
pub mod segment;
pub mod shared;
pub mod slow;

pub use far::Far;
pub use mailbox::Mailbox;
pub use segment::{Config, Counter, Mode, ProcSlot, Segment};

/// A tenant's segment and far area, for tests: in a memory file, which Miri does not have, or in ordinary memory.
#[cfg(all(test, feature = "std"))]
fn tenant() -> (&'static Segment, &'static Far) {
    use std::alloc::{Layout, alloc_zeroed};
    if !cfg!(miri) {
        let (fd, segment) = Segment::create(true).unwrap();
        return (segment, Far::map(fd).unwrap());
    }
    let bytes = far::OFFSET + size_of::<Far>();
    let layout = Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: the layout is not empty.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    let at = at.expose_provenance();
    // SAFETY: memory of both sizes, one behind the other on page borders, which nobody frees. What lies behind the far
    // area's fields are buffers, 2.6 GiB, which no test of this crate uses.
    unsafe { (Segment::at(at), Far::at(at + far::OFFSET)) }
}
