//! Far memory across a fork: the child shares its parent's references and has requests of its own.

use canvas_core::swap::extents::{Slabs, Span};
use canvas_shm::far::Far;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::far_tier::{
    extents::{OurSlabs, book},
    lanes, tier,
};
use crate::tenant::{far_area, far_area::far};

state! {
    static FORKS: Forks {
        /// Those through which this process inherited its references ([`Span`]), 0 for none.
        born: AtomicU64 = AtomicU64::new(0),
        /// Number of the one in progress.
        next: AtomicU32 = AtomicU32::new(0),
    }
}

fn each_of_ours(f: &'static Far, on: impl FnMut(u32)) {
    book().each_slab(OurSlabs(f).high(), on);
}

/// In the parent, frozen, just before the fork: takes the references that the child will have.
pub fn before_fork() {
    let Some(f) = far() else { return };
    let fork = f.number_fork();
    FORKS.next.store(fork, Ordering::Relaxed);
    book().forks(fork, OurSlabs(f).high());
    each_of_ours(f, |slab| f.slabs[slab as usize].hold());
}

/// In the parent: there is no child, so drops these references.
pub fn fork_failed() {
    if let Some(f) = far() {
        each_of_ours(f, |slab| f.slabs[slab as usize].unhold());
    }
}

/// In the child, which has its slot: its own requests, none in progress, and its own references.
pub fn after_fork_in_child() {
    let Some(f) = far() else { return };
    lanes::after_fork_in_child();
    far_area::take_mailbox();
    let proc = far_area::index();
    let parents = Span::of(FORKS.born.load(Ordering::Relaxed));
    let born = Span::of_child(parents, FORKS.next.load(Ordering::Relaxed)).raw();
    FORKS.born.store(born, Ordering::Relaxed);
    f.set_born(proc, born);
    each_of_ours(f, |slab| f.slabs[slab as usize].inherit(proc));
    // Only after none of the parent's requests is kept: which extents the child itself may use.
    tier::forget();
    book().forked(&OurSlabs(f));
}
