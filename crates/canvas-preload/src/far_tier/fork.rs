//! Far memory across a fork: the child refers to what its parent refers to, and has requests of its own.

use canvas_shm::far::Far;
use canvas_swap::extents::{Slabs, Span};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::{far_area, far_area::far};
use crate::far_tier::{
    extents::{OurSlabs, book},
    lanes, tier,
};

/// The forks that what we inherited stems from ([`Span`]), 0 for none.
static BORN: AtomicU64 = AtomicU64::new(0);

/// The number of the fork under way.
static NEXT_FORK: AtomicU32 = AtomicU32::new(0);

fn each_of_ours(f: &'static Far, on: impl FnMut(u32)) {
    book().each_slab(OurSlabs(f).high(), on);
}

/// In the parent, frozen, just before the fork: the child will refer to what we refer to.
pub fn before_fork() {
    let Some(f) = far() else { return };
    let fork = f.number_fork();
    NEXT_FORK.store(fork, Ordering::Relaxed);
    book().forks(fork, OurSlabs(f).high());
    each_of_ours(f, |slab| f.slabs[slab as usize].hold());
}

/// In the parent: there is no child.
pub fn fork_failed() {
    if let Some(f) = far() {
        each_of_ours(f, |slab| f.slabs[slab as usize].unhold());
    }
}

/// In the child, which has its slot: its own requests, none under way; its own references.
pub fn after_fork_in_child() {
    let Some(f) = far() else { return };
    lanes::after_fork_in_child();
    far_area::take_mailbox();
    let proc = far_area::index();
    let parents = Span::of(BORN.load(Ordering::Relaxed));
    let born = Span::of_child(parents, NEXT_FORK.load(Ordering::Relaxed)).raw();
    BORN.store(born, Ordering::Relaxed);
    f.set_born(proc, born);
    each_of_ours(f, |slab| f.slabs[slab as usize].inherit(proc));
    // With no request of the parent's kept, and only then: which extents are the child's own to use.
    tier::forget();
    book().forked(&OurSlabs(f));
}
