//! Calls by which a device may write to pages that nobody named: an `ioctl` on a device whose argument is a
//! pointer, to a structure with pointers to buffers perhaps (SG_IO, NVMe passthrough). The kernel holds such pages
//! for the length of the call, and neither tells us nor keeps us from unmapping them: what the device wrote would
//! be lost. So this process's reclaim stands still meanwhile, [`holds::MAX_NS`] a call at most.
//!
//! Programs that are in such calls nearly all the time (sound, graphics) would never be reclaimed from. So
//! where the tenant is past its limit and reclaim was held, the next call waits a little and gives first.
//!
//! Virtual machines by KVM are a device of another kind: the processors of a guest touch its memory inside of an
//! `ioctl` that has no pointer and lasts, so in signal mode, in which only a thread's own faults are served, they could
//! not go on at the first far page. There no machine is made ([`refuses`]), and monitors that can emulate one do.

use canvas_pager::holds::{self, Batch, Call, Holds};
use canvas_sys::{gate, proc};
use canvas_types::PAGE_SIZE;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::base::{freeze, state};
use crate::paging::{accounting, reclaim};
use crate::report;

const _: () = assert!(
    holds::MAX_NS == 60_000_000_000,
    "SEMANTICS.md says a minute"
);

static HOLDS: Holds = Holds::new();
/// A batch was refused since a call last gave.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Begins a batch of reclaim; `None` while a device may write to any page.
pub fn batch() -> Option<Batch<'static>> {
    let batch = HOLDS.batch(proc::now_ns());
    if batch.is_none() {
        REFUSED.store(true, Ordering::Relaxed);
    }
    batch
}

/// Reclaim stands still until this is dropped.
pub struct Held(Call);

impl Drop for Held {
    fn drop(&mut self) {
        HOLDS.end(self.0);
    }
}

/// KVM_CREATE_VM: _IO(0xae, 1).
const CREATE_VM: u32 = 0xae01;
/// /dev/kvm, whatever it is called.
const KVM: u64 = libc::makedev(10, 232);

/// Is it an `ioctl` that makes a virtual machine which could not run? One line says so, the first time.
pub fn refuses(a: &[usize; 6]) -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if a[1] as u32 != CREATE_VM || state::THREAD_MODE.load(Ordering::Relaxed) {
        return false;
    }
    let is_kvm = |f: proc::FileFacts| f.mode & libc::S_IFMT == libc::S_IFCHR && f.device == KVM;
    if !proc::file_facts(a[0] as i32).is_ok_and(is_kvm) {
        return false;
    }
    if !TOLD.swap(true, Ordering::Relaxed) {
        report!(
            "KVM is refused to this program, because signal mode cannot serve a guest's processors; write --mode thread, \
             or let the guest be emulated (qemu: -accel tcg)"
        );
    }
    true
}

/// Before an `ioctl` with these arguments.
pub fn before_ioctl(a: &[usize; 6]) -> Option<Held> {
    // The first page is never mapped: no pointer, and nothing behind it.
    if a[2] < PAGE_SIZE || !is_device(a[0]) {
        return None;
    }
    if REFUSED.load(Ordering::Relaxed) && REFUSED.swap(false, Ordering::Relaxed) {
        give();
    }
    let held = Held(HOLDS.begin(proc::now_ns()));
    // A batch takes a millisecond at most; one that a vfork child was killed in has no end.
    const PATIENCE_NS: u64 = 1_000_000_000;
    let begun = proc::now_ns();
    while !HOLDS.is_settled() && proc::now_ns() < begun + PATIENCE_NS {
        gate::wait(50_000);
    }
    Some(held)
}

fn is_device(fd: usize) -> bool {
    let device = |mode: u32| matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
    proc::file_facts(fd as i32).is_ok_and(|f| device(f.mode))
}

/// Gives what reclaim would have taken, where the tenant is past its limit. Other calls that hold reclaim are
/// waited for, a little.
#[cold]
fn give() {
    const WAITS_MAX: u32 = 20;
    let mut waits = 0;
    while waits < WAITS_MAX && accounting::is_past_limit() {
        let done = {
            let _inside = freeze::enter();
            match accounting::excess() {
                0 => return,
                pages => reclaim::run(pages.min(64) as u32, reclaim::Whose::Direct),
            }
        };
        if done == 0 {
            waits += 1;
            gate::wait(1_000_000);
        }
    }
}

/// In a fork's child.
pub fn after_fork_in_child() {
    HOLDS.forget();
}
