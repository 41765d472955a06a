//! The far area of the tenant segment ([`canvas_shm::far`]), as mapped in this process.

use canvas_shm::far::{self, Far};
use canvas_shm::mailbox::Mailbox;
use canvas_shm::segment::config_flag;
use canvas_sys::{Errno, mem, proc};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::own_memory::areas;
use crate::runtime::state;

state! {
    /// The far area, and this process's place in it.
    static FAR: FarArea {
        /// Where it is mapped; 0 without one.
        at: AtomicUsize = AtomicUsize::new(0),
        /// This process's index in the segment.
        index: AtomicUsize = AtomicUsize::new(0),
    }
}

/// Maps the far area, if the tenant has one. Called once, at start-up, before the slot is taken.
pub fn map(fd: i32) -> Result<(), Errno> {
    if state::seg().config.flags.load(Ordering::Relaxed) & config_flag::FAR == 0 {
        return Ok(());
    }
    areas::open_extent_book()?;
    let at = mem::map_shared(fd, far::OFFSET, far::FAR_BYTES, mem::READ_WRITE)?;
    FAR.at.store(at, Ordering::Release);
    if far().is_none_or(|f| f.magic.load(Ordering::Acquire) != far::MAGIC) {
        FAR.at.store(0, Ordering::Relaxed);
        return Err(Errno(libc::EBADF));
    }
    Ok(())
}

/// Takes the mailbox that belongs to our slot, and clears what its last owner left in it.
pub fn take_mailbox() {
    let proc = state::seg().index_of(state::slot());
    FAR.index.store(proc, Ordering::Relaxed);
    if let Some(f) = far() {
        our_mailbox(f).reset();
        drop_process(proc);
        f.set_born(proc, 0);
    }
}

/// The far area, if the tenant has one.
#[inline]
pub fn far() -> Option<&'static Far> {
    let at = FAR.at.load(Ordering::Relaxed);
    // SAFETY: `map` mapped all of the area there, shared and writable, and it is never unmapped.
    (at != 0).then(|| unsafe { Far::at(at) })
}

/// This process's index in the segment.
#[inline]
pub fn index() -> usize {
    FAR.index.load(Ordering::Relaxed)
}

/// This process's requests.
pub fn our_mailbox(f: &Far) -> &Mailbox {
    &f.mailboxes[index()]
}

/// Notifies the agent that this process has posted a request.
pub fn ring(f: &Far) {
    if f.notify(index()) {
        proc::futex_wake(&f.asleep, 1);
    }
}

/// Drops the references of process `proc`, whose slot is being released.
pub fn drop_process(proc: usize) {
    if let Some(f) = far()
        && f.drop_process(proc)
    {
        ring(f);
    }
}

/// How long any thread waits for a read beyond the pool.
pub fn longest_wait_ns() -> u64 {
    far().map_or(0, |f| {
        f.wait_ms_max
            .load(Ordering::Relaxed)
            .min(3_600_000)
            .saturating_mul(1_000_000)
    })
}
